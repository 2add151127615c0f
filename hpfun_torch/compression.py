"""Compression blocks of tensors: a rank's halo and shard as ``[blocks, width]``, and the rotary rows of its keys.

Rules COMPRESS-9 and COMPRESS-11 of ``specs/compression.md``.
"""

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import torch

from hpfun import DocumentCompressionPlan
from hpfun.compression.blocks import check_rotary_tables
from hpfun.errors import refusal
from hpfun.rows import row_list
from hpfun_torch.checks import check_dim
from hpfun_torch.convert import Rows, device_rows, kept_per_device


@torch.compiler.disable  # a compiler would trace the plan's NumPy arrays; without fullgraph it calls this instead
def compression_blocks(
    bank: torch.Tensor, plan: DocumentCompressionPlan, dim: int = 0, fill: float = 0
) -> torch.Tensor:
    """Rows of every block: ``plan.halo.bank_rows`` along ``dim`` in, ``[num_blocks, width]`` in their place out.

    ``bank`` is ``dispatch_sequence(rows, plan.halo, group, dim)``. With overlap the first ``ratio`` columns are the
    block before, ``fill`` where a document's first block has none. Differentiable. A view where the blocks run on and
    do not overlap. Raises HP-ROUTE-006 (rows) and HP-ROUTE-007 (``dim``).

    >>> from hpfun import document_compression_plan
    >>> plan = document_compression_plan((0, 10), 4, 10, 1, rank=0)
    >>> compression_blocks(torch.arange(10), plan).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    _check_bank(bank, plan, dim)
    rows = bank.movedim(dim, 0)
    places = _places(plan, bank.device)
    blocks = places.own.take(rows).unflatten(0, (plan.num_blocks, plan.ratio))
    if plan.overlap:
        before = places.before.take(rows).unflatten(0, (plan.num_blocks, plan.ratio))
        missing = places.missing.view(-1, *[1] * (before.ndim - 1))
        blocks = torch.cat((before.masked_fill(missing, fill), blocks), dim=1)
    at = dim % bank.ndim
    return blocks.movedim((0, 1), (at, at + 1))


@torch.compiler.disable
def map_blocks(
    function: Callable[..., torch.Tensor], plan: DocumentCompressionPlan, *banks: torch.Tensor, dim: int = 0
) -> torch.Tensor:
    """``function`` of every block of the banks: compression without a copy of the rows.

    ``function`` gets each bank's blocks ``[blocks, width, ...]`` and gives ``[blocks, ...]``, a block's result from
    that block alone. Where blocks run on for long it is called once per stretch, on views; else, and with overlap, once
    on copies. Gives ``[num_blocks, ...]``. Raises HP-ROUTE-006 and HP-ROUTE-007.

    >>> from hpfun import document_compression_plan
    >>> plan = document_compression_plan((0, 10), 4, 10, 1, rank=0)
    >>> map_blocks(lambda blocks: blocks.sum(dim=1), plan, torch.arange(10)).tolist()
    [6, 22]
    """
    if not banks:
        raise refusal("HP-ROUTE-006", "banks", "no bank given", "pass dispatch_sequence(rows, plan.halo, group, dim)")
    for bank in banks:
        _check_bank(bank, plan, dim)
    rows = [bank.movedim(dim, 0) for bank in banks]
    spans = None if plan.overlap else _places(plan, rows[0].device).own.spans
    if not spans:
        return function(*(compression_blocks(part, plan) for part in rows))
    stretches = [[part[start:stop].unflatten(0, (-1, plan.ratio)) for part in rows] for start, stop in spans]
    done = [function(*stretch) for stretch in stretches]
    return done[0] if len(done) == 1 else torch.cat(done)


@torch.compiler.disable
def compressed_positions(
    plan: DocumentCompressionPlan, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary rows of this rank's keys: cos and sin at the position of each block's first token, in their own dtype.

    Tables ``[..., positions, width]`` by in-document position in, ``[..., num_blocks, width]`` out; once per batch
    and table is enough. Raises HP-COMPRESS-003.

    >>> from hpfun import document_compression_plan
    >>> plan = document_compression_plan((0, 10), 4, 5, 2, rank=1)
    >>> compressed_positions(plan, torch.arange(10.0)[:, None], torch.ones(10, 1))[0].tolist()
    [[4.0]]
    """
    check_rotary_tables(plan, cos, sin)
    index = _places(plan, cos.device).positions
    return cos.index_select(-2, index), sin.index_select(-2, index)


@attrs.frozen(eq=False)
class _Places:
    """Rows of the blocks and of the blocks before, which of those are missing, and positions; on one device."""

    own: Rows
    before: Rows
    missing: Any
    positions: Any


@kept_per_device()
def _places(plan: DocumentCompressionPlan, device: torch.device) -> _Places:
    """The plan's places on ``device``."""
    own = (plan.block_starts[:, None] + np.arange(plan.ratio if plan.num_blocks else 0)).reshape(-1)
    missing = plan.block_positions == 0
    # rows that stand in for a missing block are read, and then overwritten
    before = np.where(np.repeat(missing, plan.ratio if plan.num_blocks else 0), own, own - plan.ratio)
    return _Places(
        own=device_rows(row_list(own, "rows"), device),
        before=device_rows(row_list(before, "rows"), device),
        missing=torch.from_numpy(missing).to(device),
        positions=torch.from_numpy(plan.block_positions.copy()).to(device),
    )


def _check_bank(bank: Any, plan: Any, dim: Any) -> None:
    if not isinstance(bank, torch.Tensor) or not isinstance(plan, DocumentCompressionPlan):
        kinds = (type(bank).__name__, type(plan).__name__)
        message = f"needs a tensor and a DocumentCompressionPlan, got {kinds}"
        raise refusal("HP-ROUTE-006", "bank", message, "without a plan reshape the shard", types=kinds)
    check_dim(bank, dim, "HP-ROUTE-007")
    if bank.shape[dim] != plan.halo.bank_rows:
        facts = {"rows": bank.shape[dim], "expected": plan.halo.bank_rows, "dim": dim}
        message = f"{bank.shape[dim]} rows along dim {dim}, halo and shard have {plan.halo.bank_rows}"
        raise refusal("HP-ROUTE-006", "bank", message, "pass dispatch_sequence(rows, plan.halo, group, dim)", **facts)
