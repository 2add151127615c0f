"""Compression of rows into keys: a softmax over each block's gates weighs its rows.

Without overlap ``norm(sum over the block of softmax(gate + bias) * row)``, as DeepSeek-V4's heavily compressed
attention; with overlap a block also takes the block before it, through the first half of the channels, as its
compressed sparse attention. Rules ATTN-22 and ATTN-23 of ``specs/attention.md``.
"""

from collections.abc import Callable

import torch

from hpfun import DocumentCompressionPlan
from hpfun.errors import refusal
from hpfun_torch.compression import compression_blocks, map_blocks

Function = Callable[[torch.Tensor], torch.Tensor]


def compress(
    rows: torch.Tensor,
    gates: torch.Tensor,
    plan: DocumentCompressionPlan | None,
    *,
    ratio: int,
    bias: torch.Tensor | None = None,
    norm: Function | None = None,
    rotate: Function | None = None,
) -> torch.Tensor:
    """Keys ``[num_blocks, D]`` of rows and gates ``[rows, D]``, with overlap ``[rows, 2 D]``.

    ``rows`` are halo and shard, ``dispatch_sequence(shard, plan.halo)``, or the shard itself where ``plan`` is None, on
    all ranks alike: then it is reshaped to blocks of ``ratio``. ``bias [ratio, channels]`` is added to the gates before
    a block is taken apart; ``norm`` and ``rotate`` are applied to the keys. The softmax runs in float32. A rank without
    blocks gives no keys, and still takes part in backward. Raises HP-ROUTE-006 for rows that do not fit.

    >>> from hpfun import document_compression_plan
    >>> rows = torch.tensor([[1.0], [3.0], [5.0], [7.0]])
    >>> compress(rows, torch.zeros(4, 1), None, ratio=2).tolist()
    [[2.0], [6.0]]
    """
    _check(rows, gates, plan, ratio)
    if plan is None:
        blocks = [part.unflatten(0, (-1, ratio)) for part in (rows, gates)]
        keys = _pooled(blocks[0], blocks[1] if bias is None else blocks[1] + bias)
    elif plan.overlap:
        keys = _pooled(*_overlapping(rows, gates, plan, bias))
    else:
        keys = map_blocks(lambda own, gate: _pooled(own, gate if bias is None else gate + bias), plan, rows, gates)
    keys = keys if norm is None else norm(keys)
    return keys if rotate is None else rotate(keys)


def _pooled(rows: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Rows ``[blocks, width, D]`` of each block, weighed by the softmax of its gates."""
    dtype = torch.float64 if gates.dtype == torch.float64 else torch.float32
    return (rows * gates.softmax(dim=1, dtype=dtype).to(rows.dtype)).sum(dim=1)


def _overlapping(
    rows: torch.Tensor, gates: torch.Tensor, plan: DocumentCompressionPlan, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and gates ``[blocks, 2 * ratio, D]``: first half of the channels before, second half own."""
    ratio, half = plan.ratio, rows.shape[-1] // 2
    added = None if bias is None else bias.repeat(2, 1)
    taken, weighed = compression_blocks(rows, plan), compression_blocks(gates, plan, fill=-torch.inf)
    weighed = weighed if added is None else weighed + added

    def halves(part: torch.Tensor) -> torch.Tensor:
        return torch.cat((part[:, :ratio, :half], part[:, ratio:, half:]), dim=1)

    return halves(taken), halves(weighed)


def _check(rows: torch.Tensor, gates: torch.Tensor, plan: DocumentCompressionPlan | None, ratio: int) -> None:
    shapes = (tuple(rows.shape), tuple(gates.shape))
    odd = plan is not None and plan.overlap and rows.shape[-1] % 2 == 1
    unlike = plan is not None and plan.ratio != ratio
    ragged = plan is None and rows.shape[0] % ratio != 0
    if rows.ndim != 2 or shapes[0] != shapes[1] or odd or unlike or ragged:
        message = f"rows and gates of shapes {shapes} do not make blocks of {ratio}"
        facts = {"rows": shapes[0], "gates": shapes[1], "ratio": ratio}
        raise refusal("HP-ROUTE-006", "rows", message, "pass the bank of plan.halo, [rows, channels]", **facts)
