"""The indexer's loss by ``npu_sparse_lightning_indexer_grad_kl_loss``, which gives the loss and its gradients at once.

It takes the sum of the rows' divergences as the loss; whether the operator itself divides by the rows has not been
run on a device.
"""

import torch
from torch.autograd.function import once_differentiable

from hpfun.attention import AttentionSegments
from hpfun_torch.ops.contract import check_indexer_kl
from hpfun_torch.ops.npu.extensions import extension
from hpfun_torch.ops.npu.lengths import host_lengths
from hpfun_torch.ops.npu.limits import HALF, POWERS, Limit, Span, check_limits, dtypes
from hpfun_torch.ops.npu.packing import take_rows
from hpfun_torch.ops.npu.sparse import SelectedCall, attend_selected

MOST = 512


def limits(keys: int) -> tuple[Limit, ...]:
    """Limits of the call for a bank of ``keys`` keys."""
    return (
        Limit("dtype", "index_query", HALF, "cast all tensors to one of them"),
        Limit("index heads", "index_query", (64,)),
        Limit("index dim", "index_query", (128,)),
        Limit("heads", "query", POWERS),
        Limit("dim", "query", (576,)),
        Limit("ratio", "segments", (1,)),
        Limit("keys", "key_bank", Span(1, 2**31 - 1), "leave the loss of a rank without keys out"),
        Limit("topk", "selected", Span(min(MOST, keys), MOST), "pad the ids with -1"),
        Limit("sinks", "sinks", (False,), "what the operator does with them is not known: use the CPU's operator"),
    )


def indexer_kl(
    index_query: torch.Tensor,
    index_key: torch.Tensor,
    weights: torch.Tensor,
    selected: torch.Tensor,
    query: torch.Tensor,
    key_bank: torch.Tensor,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
    num_queries: int | None = None,
) -> torch.Tensor:
    """The loss, as ``hpfun_torch.ops.indexer_kl`` says; the attention is run again for its softmax's maximum and sum.

    A row without an id gets one key, on which both distributions are 1. Raises HP-OPS-001 and 002.
    """
    given = (index_query, index_key, weights, selected, query, key_bank)
    count = check_indexer_kl(*given, segments=segments, scale=scale, sinks=sinks, num_queries=num_queries)
    other = extension("indexer_kl")
    if other is not None:
        return other(*given, segments=segments, scale=scale, sinks=sinks, num_queries=num_queries)
    got = {
        "dtype": dtypes(index_query, index_key, weights, query, key_bank),
        "index heads": index_query.shape[1],
        "index dim": index_query.shape[2],
        "heads": query.shape[1],
        "dim": query.shape[2],
        "ratio": segments.ratio,
        "keys": key_bank.shape[0],
        "topk": selected.shape[1],
        "sinks": sinks is not None,
    }
    check_limits("npu_sparse_lightning_indexer_grad_kl_loss", limits(key_bank.shape[0]), got)
    with torch.no_grad():
        call = attend_selected(query, key_bank, selected, segments, float(scale))
    starts, stops = segments.query_starts, segments.query_stops
    first, last = segments.key_starts, segments.key_stops
    rows, keys = take_rows(index_query, starts, stops), take_rows(index_key, first, last)[:, None]
    factors = take_rows(weights, starts, stops)
    lengths = (host_lengths(stops - starts), host_lengths(last - first))
    student = (part.contiguous() for part in (rows, keys, factors))
    total, *_ = _KlLoss.apply(*student, call, lengths, float(scale))
    return total / count


class _KlLoss(torch.autograd.Function):
    """Sum of the divergences; the gradients come with it and wait for the backward."""

    @staticmethod
    def forward(index_query, index_key, weights, call: SelectedCall, lengths, scale):
        query, key, query_rope, key_rope = call.parts
        *grads, loss = torch.ops.npu.npu_sparse_lightning_indexer_grad_kl_loss(
            query,
            key,
            index_query,
            index_key,
            weights,
            call.ids,
            call.top,
            call.total,
            scale,
            query_rope=query_rope,
            key_rope=key_rope,
            actual_seq_qlen=lengths[0],
            actual_seq_klen=lengths[1],
            layout="TND",
            sparse_mode=3,
        )
        return loss.reshape(()), *grads

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        return *((part * grads[0]).to(part.dtype) for part in ctx.saved_tensors), None, None, None
