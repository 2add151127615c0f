"""Attention inside documents by ``npu_fusion_attention_v2``: packed layout, lengths on the host, compressed mask."""

from functools import lru_cache

import torch
from torch.autograd.function import once_differentiable

from hpfun.attention import AttentionSegments
from hpfun_torch.ops.contract import check_packed_attention
from hpfun_torch.ops.npu.extensions import extension
from hpfun_torch.ops.npu.lengths import host_lengths
from hpfun_torch.ops.npu.limits import HALF, Limit, Span, check_limits, dtypes
from hpfun_torch.ops.npu.packing import put_rows, take_rows, unattended

CAUSAL, BAND = 3, 4  # both count from the right end of query and keys
LIMITS = (
    Limit("dtype", "query", (*HALF, ("float32",)), "cast query, key and value to one of them"),
    Limit("heads", "query", Span(1, 256)),
    Limit("dim", "query", Span(1, 768)),
    Limit("value dim at most dim", "value", (True,)),
    Limit("sequences", "segments", Span(1, 2048), "split the batch"),
)


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse, as ``hpfun_torch.ops.packed_attention`` says; no gradient through lse.

    No row is fully masked, since each sees itself. Raises HP-OPS-001 and 002.
    """
    check_packed_attention(query, key, value, segments=segments, scale=scale, sinks=sinks)
    other = extension("packed_attention")
    if other is not None:
        return other(query, key, value, segments=segments, scale=scale, sinks=sinks)
    got = {
        "dtype": dtypes(query, key, value),
        "heads": query.shape[1],
        "dim": query.shape[2],
        "value dim at most dim": value.shape[2] <= query.shape[2],
        "sequences": segments.num_segments,
    }
    check_limits("npu_fusion_attention_v2", LIMITS, got)
    starts, stops = segments.query_starts, segments.query_stops
    first, last = segments.window_starts, segments.window_stops
    options = {
        "actual_seq_qlen": host_lengths(stops - starts),
        "actual_seq_kvlen": host_lengths(last - first),
        "sparse_mode": BAND if bool((last - first > segments.window).any()) else CAUSAL,
        "softmax_layout": "TND",
    }
    if options["sparse_mode"] == BAND:
        options |= {"pre_tokens": segments.window - 1, "next_tokens": 0}
    rows = take_rows(query, starts, stops).contiguous()
    keys, values = (take_rows(part, first, last).contiguous() for part in (key, value))
    sink = None if sinks is None else sinks.float()
    out, top, total = _Fusion.apply(rows, keys, values, sink, _mask(query.device), options, float(scale))
    lse = top[..., 0] + total[..., 0].log()  # eight equal numbers a row
    none, low = unattended(query, value.shape[2], sinks)
    return put_rows(out, starts, stops, none), put_rows(lse, starts, stops, low)


@lru_cache(maxsize=16)
def _mask(device: torch.device) -> torch.Tensor:
    """The one mask of all compressed modes: True is masked. Without it the operator ignores the mode, silently."""
    with torch.inference_mode(mode=False):  # every layer keeps it for its backward
        return torch.ones((2048, 2048), dtype=torch.bool, device=device).triu(1)


class _Fusion(torch.autograd.Function):
    """The call on packed rows, and its gradient."""

    @staticmethod
    def forward(query, key, value, sinks, mask, options, scale):
        out, top, total, _, *_ = torch.ops.npu.npu_fusion_attention_v2(
            query, key, value, query.shape[1], "TND", atten_mask=mask, scale=scale, sink=sinks, **options
        )
        return out, top, total

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.options, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        query, key, value, sinks, mask, out, top, total = ctx.saved_tensors
        d_query, d_key, d_value, _, _, _, d_sinks = torch.ops.npu.npu_fusion_attention_grad_v2(
            query,
            key,
            value,
            grads[0].contiguous(),
            query.shape[1],
            "TND",
            atten_mask=mask,
            softmax_max=top,
            softmax_sum=total,
            attention_in=out,
            scale_value=ctx.scale,
            sink=sinks,
            **ctx.options,
        )
        return d_query, d_key, d_value, None if sinks is None else d_sinks, None, None, None
