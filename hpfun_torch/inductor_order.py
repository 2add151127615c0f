"""Collectives keep their order in inductor's code.

The operators of ``compiled`` are effects in a fixed order, which the graph keeps. Inductor of torch 2.13 notes that
order under the names of buffers and looks for it under those of operations, so its scheduler, which sorts by memory,
may start one rank's collectives in another order than its peers'. Here the order is noted where the scheduler looks.
"""

import sys
from typing import Any

from torch.utils import _pytree

_done: set[str] = set()


def keep_order(operator: Any) -> None:
    """Lower ``operator`` with a dependence on the one before it, as soon as inductor is there; once per process."""
    lowering: Any = sys.modules.get("torch._inductor.lowering")
    if lowering is None or operator.name() in _done:
        return
    _done.add(operator.name())
    lowering.register_lowering(operator, type_promotion_kind=None)(_ordered(operator))


def _ordered(operator: Any) -> Any:
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    def lower(*arguments: Any, **options: Any) -> Any:
        graph: Any = V.graph
        first = len(graph.operations)
        made = ir.FallbackKernel.create(operator, *arguments, **options)
        result = _pytree.tree_map(_wrapped, made)
        before = graph.__dict__.get("_hpfun_last")
        for operation in graph.operations[first:]:
            if before is not None:
                graph.additional_star_deps[operation.get_operation_name()].add(before)
        graph.__dict__["_hpfun_last"] = graph.operations[-1].get_name()
        return result

    def _wrapped(part: Any) -> Any:
        return part.wrap_for_lowering() if isinstance(part, ir.IRNode) else part

    return lower
