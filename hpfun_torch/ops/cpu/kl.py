"""The indexer's KL loss in plain tensor operations, chunk by chunk: how far its scores are from where attention looks.

The target of a row is what its attention gives to the chosen keys: per head a softmax over them and the sink, sink
dropped, heads added up and brought to sum 1. It is taken in logarithms, so that a sink that leaves next to nothing
leaves that in proportion. Rules OPS-25 to OPS-27 of ``specs/executors.md``; the loss is that of DeepSeek-V3.2.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.functional import log_softmax

from hpfun.attention import AttentionSegments
from hpfun_torch.ops.contract import check_indexer_kl
from hpfun_torch.ops.cpu.attention import with_sink
from hpfun_torch.ops.cpu.parts import ELEMENTS, ROWS, exactly, sum_dtype


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
    """Mean over all queries of ``sum p (log p - log softmax(score))`` over their chosen keys; a scalar, float32 or 64.

    ``index_query [Q, heads, dim]``, ``index_key [K, dim]``, ``weights [Q, heads]``, ``selected`` integers ``[Q, k]``
    (rows of both banks, -1 for none), ``query [Q, H, D]``, ``key_bank [K, D]``, ``sinks [H]``. Rows without a key give
    0 and count. ``num_queries`` is the number to divide by, Q by default: pass that of all ranks, and add up their
    losses. Differentiable, once, in ``index_query``, ``index_key`` and ``weights`` alone. Raises HP-OPS-001.

    >>> one = torch.ones(1, 1, 1)
    >>> keys, chosen = torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1]])
    >>> from hpfun.attention import attention_segments
    >>> segments = attention_segments((0, 1), 1, 1, rank=0, window=0, ratio=1)
    >>> indexer_kl(one, keys, one[0], chosen, one, keys, segments=segments, scale=1.0).item()
    0.0
    """
    options = {"segments": segments, "scale": scale, "sinks": sinks, "num_queries": num_queries}
    count = check_indexer_kl(index_query, index_key, weights, selected, query, key_bank, **options)
    inputs = (index_query, index_key, weights)
    learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    targets = (query.detach(), key_bank.detach(), None if sinks is None else sinks.detach())
    return _Kl.apply(*inputs, selected, *targets, scale, count, learning)[0]


class Chunk(NamedTuple):
    """A chunk of rows, the places of their keys, and which of those are keys."""

    rows: slice
    place: torch.Tensor
    valid: torch.Tensor


def _chunks(selected: torch.Tensor, numbers: int) -> Iterator[Chunk]:
    step = max(1, min(ROWS, ELEMENTS // max(1, numbers * selected.shape[1])))
    for start in range(0, len(selected), step):
        rows = slice(start, min(start + step, len(selected)))
        ids = selected[rows].long()
        yield Chunk(rows, ids.clamp(min=0), ids >= 0)


def _gathered(bank: torch.Tensor, place: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return bank[place.reshape(-1)].to(dtype).unflatten(0, place.shape)


def _log_target(query: torch.Tensor, keys: torch.Tensor, sinks: Any, valid: torch.Tensor, scale: float) -> torch.Tensor:
    """Logarithm of the target ``[C, k]``, -inf where there is no key."""
    logits = ((query @ keys.mT) * scale).masked_fill(~valid[:, None], -torch.inf)
    share = logits - with_sink(logits, sinks)[..., None]
    summed = share.logsumexp(dim=1)
    return summed - summed.logsumexp(dim=1, keepdim=True)


class _Kl(torch.autograd.Function):
    """The loss, and with ``learning`` the gradients of the three inputs, all in one pass over the chunks."""

    @staticmethod
    @exactly
    def forward(index_query, index_key, weights, selected, query, key_bank, sinks, scale, count, learning):
        inputs = (index_query, index_key, weights)
        dtype = sum_dtype(index_query)
        loss = index_query.new_zeros((), dtype=dtype)
        grads = [torch.zeros_like(tensor, dtype=dtype) if learning else tensor.new_empty(0) for tensor in inputs]
        if not len(index_key) or not selected.shape[1]:
            return loss, *(_like(grad, tensor, learning) for grad, tensor in zip(grads, inputs, strict=True))
        numbers = index_query.shape[1] + query.shape[1] + index_key.shape[1] + key_bank.shape[1]
        for rows, place, valid in _chunks(selected, numbers):
            some = valid.any(1, keepdim=True)
            keys = _gathered(index_key, place, dtype)
            asked, heads = index_query[rows].to(dtype), weights[rows].to(dtype)
            active = (asked @ keys.mT).relu_()
            scores = torch.einsum("chk,ch->ck", active, heads)
            looked = _gathered(key_bank, place, dtype)
            target = _log_target(query[rows].to(dtype), looked, sinks, valid | ~some, scale)
            student = log_softmax(scores.masked_fill(~(valid | ~some), -torch.inf), dim=-1)
            share = target.exp().masked_fill(~valid, 0.0)
            loss += (share * (target - student).masked_fill(~valid | (share == 0), 0.0)).sum() / count
            if learning:
                slope = ((student.exp() - share).masked_fill(~valid, 0.0) / count)[:, None]
                grads[2][rows] = (active * slope).sum(-1)
                slope = slope * heads[..., None] * (active > 0)
                grads[0][rows] = slope @ keys
                grads[1].index_add_(0, place.reshape(-1), (slope.mT @ asked).flatten(0, 1))
        return loss, *(_like(grad, tensor, learning) for grad, tensor in zip(grads, inputs, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx, grad, *_):  # ty: ignore[incompatible-method-override]
        return *((grad * kept).to(kept.dtype) for kept in ctx.saved_tensors), *([None] * 7)


def _like(grad: torch.Tensor, tensor: torch.Tensor, learning: bool) -> torch.Tensor:
    return grad.to(tensor.dtype) if learning else grad
