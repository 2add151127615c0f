"""Attention to a window and compressed keys by ``sparse_flash_mla`` of the extension package.

Its schemas were transcribed, and neither they nor the call have been run on a device. Two things are open. The
gradient's operator takes a metadata tensor that only some generations of devices want, and whose own operator is not
known here: it gets none. Whether it takes a sequence without compressed keys is not known either: one is given as two
equal lengths.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hpfun.attention import AttentionSegments
from hpfun_torch.ops.npu.lengths import cumulative_with_zero
from hpfun_torch.ops.npu.limits import HALF, Limit, Span, check_limits, dtypes
from hpfun_torch.ops.npu.packing import in_sequences, put_rows, take_rows, unattended

WINDOW = 128
LIMITS = (
    Limit("dtype", "query", HALF, "cast query and banks to one of them"),
    Limit("heads", "query", Span(1, 128)),
    Limit("dim", "query", (512,)),
    Limit("value_width", "value_width", (512,)),
    Limit("window", "segments", (WINDOW,)),
    Limit("ratio", "segments", (0, 1, 4, 128)),
    Limit("topk", "selected", (None, 512, 1024), "pad the ids with -1, or give none for all keys"),
)


def window_attention(
    query: torch.Tensor,
    window_bank: torch.Tensor,
    key_bank: torch.Tensor | None,
    selected: torch.Tensor | None,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None,
    width: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[Q, H, 512]`` and float32 lse ``[Q, H]`` of arguments that fit the contract. Raises HP-OPS-002."""
    got = {
        "dtype": dtypes(query, window_bank, key_bank),
        "heads": query.shape[1],
        "dim": query.shape[2],
        "value_width": width,
        "window": _window(segments),
        "ratio": segments.ratio,
        "topk": None if selected is None else selected.shape[1],
    }
    check_limits("sparse_flash_mla", LIMITS, got)
    starts, stops = segments.query_starts, segments.query_stops
    rows = take_rows(query, starts, stops).contiguous()
    near = take_rows(window_bank, segments.window_starts, segments.window_stops)[:, None].contiguous()
    far = ids = None
    if key_bank is not None:
        far = take_rows(key_bank, segments.key_starts, segments.key_stops)[:, None].contiguous()
    if selected is not None:
        ids, empty = in_sequences(take_rows(selected, starts, stops), segments.key_starts, stops - starts)
        ids = ids.masked_fill(empty[:, None], -1)[:, None]  # the window alone is enough for a row
    sink = None if sinks is None else sinks.float()
    out, lse = _SparseMla.apply(rows, near, far, ids, sink, _options(segments, query.device, far is not None), scale)
    none, low = unattended(query, width, sinks)
    return put_rows(out, starts, stops, none), put_rows(lse[0], starts, stops, low)


def _window(segments: AttentionSegments) -> int:
    """The window; the operator's where no row has so many rows before it that a window would cut them."""
    longest = int((segments.window_stops - segments.window_starts).max())
    return WINDOW if longest <= min(segments.window, WINDOW) else segments.window


def _options(segments: AttentionSegments, device: torch.device, compressed: bool) -> dict[str, Any]:
    """What metadata, attention and gradient are all told: lengths with the leading 0, masks, layouts.

    The query is aligned to the right end of both banks' slices; ``cmp_residual_kv`` tells how many tokens stand behind
    the last whole key.
    """
    options: dict[str, Any] = {
        "cu_seqlens_q": cumulative_with_zero(segments.query_stops - segments.query_starts, device),
        "cu_seqlens_ori_kv": cumulative_with_zero(segments.window_stops - segments.window_starts, device),
        "cmp_ratio": max(segments.ratio, 1),
        "ori_mask_mode": 4,
        "cmp_mask_mode": 3,
        "ori_win_left": WINDOW - 1,
        "ori_win_right": 0,
        "layout_q": "TND",
        "layout_kv": "TND",
    }
    if compressed:
        options["cu_seqlens_cmp_kv"] = cumulative_with_zero(segments.key_stops - segments.key_starts, device)
        options["cmp_residual_kv"] = torch.tensor(segments.residuals, dtype=torch.int32, device=device)
    return options


class _SparseMla(torch.autograd.Function):
    """The call on packed rows, and its gradient."""

    @staticmethod
    def forward(query, near, far, ids, sinks, options: Mapping[str, Any], scale):
        package = torch.ops.cann_ops_transformer
        metadata = package.sparse_flash_mla_metadata(
            query.shape[1],
            1,
            query.shape[2],
            ori_topk=0,
            cmp_topk=0 if ids is None else ids.shape[-1],
            has_ori_kv=True,
            has_cmp_kv=far is not None,
            **options,
        )
        return package.sparse_flash_mla(
            query,
            ori_kv=near,
            cmp_kv=far,
            cmp_sparse_indices=ids,
            sinks=sinks,
            metadata=metadata,
            softmax_scale=scale,
            return_softmax_lse=True,
            **options,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.options, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        query, near, far, ids, sinks, out, lse = ctx.saved_tensors
        d_query, d_near, d_far, d_sinks, _, _ = torch.ops.cann_ops_transformer.sparse_flash_mla_grad(
            query,
            grads[0].contiguous(),
            out,
            lse,
            ori_kv=near,
            cmp_kv=far,
            cmp_sparse_indices=ids,
            sinks=sinks,
            softmax_scale=ctx.scale,
            **ctx.options,
        )
        return d_query, d_near, None if far is None else d_far, None, None if sinks is None else d_sinks, None, None
