"""Collectives keep their order in inductor's code.

The operators of ``compiled`` are effects in a fixed order, which the graph keeps. Inductor of torch 2.13 notes that
order under the names of buffers and looks for it under those of operations, so its scheduler, which sorts by memory,
may start one rank's collectives in another order than its peers'. Here the order is noted where the scheduler looks.
"""

import sys
from typing import Any

from torch.utils import _pytree


def keep_order(operator: Any) -> None:
    """Lower ``operator`` with a dependence on the effect before it, from when inductor is there."""
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is not None and operator not in lowering.lowerings:
        lowering.register_lowering(operator, type_promotion_kind=None)(_ordered(operator))


def _ordered(operator: Any) -> Any:
    from torch._higher_order_ops.effects import _get_effect
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    def lower(*arguments: Any, **options: Any) -> Any:
        graph: Any = V.graph
        first, before = len(graph.operations), graph.effectful_ops.get(_get_effect(operator))
        made = ir.FallbackKernel.create(operator, *arguments, **options)
        if before is not None:
            for operation in graph.operations[first:]:
                graph.additional_star_deps[operation.get_operation_name()].add(before.get_name())
        return _pytree.tree_map(lambda part: part.wrap_for_lowering() if isinstance(part, ir.IRNode) else part, made)

    return lower
