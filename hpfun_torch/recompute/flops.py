"""Flops of a forward, with the operators that torch's own counter does not know.

Counted as torch counts: two for a multiplication with its addition, attention without regard to masks.
"""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def flop_counter() -> FlopCounterMode:
    """A counter that knows grouped products of experts, and fused attention on the CPU, as well.

    >>> with flop_counter() as counter:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> counter.get_total_flops()
    60
    """
    known: dict[Any, Any] = {
        torch.ops.aten._grouped_mm: _grouped_product,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    }
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if fallback is not None:  # once transformers is imported
        known[fallback] = _grouped_product
    return FlopCounterMode(display=False, custom_mapping=known)


def _grouped_product(rows: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Each of ``[rows, width]`` times one of ``[experts, width, columns]``."""
    return 2 * rows[0] * rows[1] * weights[-1]


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * key[2] * (width + value[3])
