"""Sparse attention by Ascend's operators: keys of 512 + 64 channels without a window, or of 512 channels with one.

The first is ``npu_sparse_flash_attention``, here; the second is in ``mla``.
"""

from typing import Any

import attrs
import torch
from torch.autograd.function import once_differentiable

from hpfun.attention import AttentionSegments
from hpfun_torch.ops.contract import check_sparse_attention
from hpfun_torch.ops.npu.extensions import extension
from hpfun_torch.ops.npu.lengths import cumulative_without_zero
from hpfun_torch.ops.npu.limits import HALF, POWERS, Limit, Span, check_limits, dtypes
from hpfun_torch.ops.npu.mla import window_attention
from hpfun_torch.ops.npu.packing import in_sequences, put_rows, take_rows, unattended

NOPE = 512  # channels that are key and value; the rotary channels of the key stand behind them
LIMITS = (
    Limit("dtype", "query", HALF, "cast query and key bank to one of them"),
    Limit("heads", "query", POWERS),
    Limit("dim", "query", (576,)),
    Limit("value_width", "value_width", (NOPE,)),
    Limit("ratio", "segments", (1,)),
    Limit("selected", "selected", (True,), "give ids, or use packed_attention for all keys"),
    Limit("topk", "selected", Span(1, 2**31 - 1), "give at least one column, -1 for none"),
    Limit("sinks", "sinks", (False,), "the gradient's operator takes no sinks: use the CPU's operator"),
)


def sparse_attention(
    query: torch.Tensor,
    window_bank: torch.Tensor | None,
    key_bank: torch.Tensor | None,
    selected: torch.Tensor | None,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
    value_width: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse, as ``hpfun_torch.ops.sparse_attention`` says; no gradient through lse.

    Without a window an id that its row does not see is masked by the operator, and ids are to be given once a row.
    Raises HP-OPS-001 and 002.
    """
    options: dict[str, Any] = {"segments": segments, "scale": scale, "sinks": sinks}
    width = check_sparse_attention(query, window_bank, key_bank, selected, value_width=value_width, **options)
    other = extension("sparse_attention")
    if other is not None:
        return other(query, window_bank, key_bank, selected, value_width=value_width, **options)
    if window_bank is not None:
        return window_attention(query, window_bank, key_bank, selected, segments, float(scale), sinks, width)
    got = {
        "dtype": dtypes(query, key_bank),
        "heads": query.shape[1],
        "dim": query.shape[2],
        "value_width": width,
        "ratio": segments.ratio,
        "selected": selected is not None,
        "topk": 1 if selected is None else selected.shape[1],
        "sinks": sinks is not None,
    }
    check_limits("npu_sparse_flash_attention", LIMITS, got)
    if key_bank is None or selected is None:
        raise AssertionError("ratio 1 has a key bank, and the limits ask for ids")
    call = attend_selected(query, key_bank, selected, segments, float(scale))
    out = call.out.masked_fill(call.empty[:, None, None], 0)
    lse = (call.top + call.total.log())[0].masked_fill(call.empty[:, None], -torch.inf)
    none, low = unattended(query, NOPE, None)
    starts, stops = segments.query_starts, segments.query_stops
    return put_rows(out, starts, stops, none), put_rows(lse, starts, stops, low)


@attrs.frozen(eq=False)
class SelectedCall:
    """What went into a call on packed rows and what came out; ``empty`` rows had no id and were given one.

    ``parts`` are query, key and the rotary channels of both; ``top`` is the greatest logit and ``total`` the sum of
    exponentials under it, float32 ``[1, rows, heads]``. ``out`` alone has a gradient.
    """

    parts: tuple[torch.Tensor, ...]
    ids: torch.Tensor
    empty: torch.Tensor
    out: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor


def attend_selected(
    query: torch.Tensor, key_bank: torch.Tensor, selected: torch.Tensor, segments: AttentionSegments, scale: float
) -> SelectedCall:
    """Attention of the segments' rows to their selected keys, packed."""
    starts, stops = segments.query_starts, segments.query_stops
    first, last = segments.key_starts, segments.key_stops
    rows, keys = take_rows(query, starts, stops), take_rows(key_bank, first, last)[:, None]
    ids, empty = in_sequences(take_rows(selected, starts, stops), first, stops - starts)
    lengths = [cumulative_without_zero(part, query.device) for part in (stops - starts, last - first)]
    cut = (rows[..., :NOPE], keys[..., :NOPE], rows[..., NOPE:], keys[..., NOPE:])
    parts = tuple(part.contiguous() for part in cut)
    out, top, total = _SparseFlash.apply(*parts, ids[:, None], *lengths, scale)
    return SelectedCall(parts, ids[:, None], empty, out, top, total)


class _SparseFlash(torch.autograd.Function):
    """The call on packed rows, and its gradient; keys are values too, so their two gradients add up."""

    @staticmethod
    def forward(query, key, query_rope, key_rope, ids, query_lengths, key_lengths, scale):
        return torch.ops.npu.npu_sparse_flash_attention(
            query,
            key,
            key,
            ids,
            scale,
            actual_seq_lengths_query=query_lengths,
            actual_seq_lengths_kv=key_lengths,
            query_rope=query_rope,
            key_rope=key_rope,
            sparse_block_size=1,
            layout_query="TND",
            layout_kv="TND",
            sparse_mode=3,
            attention_mode=2,
            return_softmax_lse=True,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        query, key, query_rope, key_rope, ids, query_lengths, key_lengths, out, top, total = ctx.saved_tensors
        d_query, d_key, d_value, d_query_rope, d_key_rope = torch.ops.npu.npu_sparse_flash_attention_grad(
            query,
            key,
            key,
            ids,
            grads[0].contiguous(),
            out,
            top,
            total,
            ctx.scale,
            1,
            query_rope=query_rope,
            key_rope=key_rope,
            actual_seq_qlen=query_lengths,
            actual_seq_kvlen=key_lengths,
            layout="TND",
            sparse_mode=3,
            attention_mode=2,
        )
        return d_query, d_key + d_value, d_query_rope, d_key_rope, None, None, None, None
