"""Sparse attention in plain tensor operations, chunk by chunk: a window of rows, chosen or all visible keys, a sink.

Forward keeps the output and one log-sum-exp a row and head; backward makes the probabilities of a chunk again. No
tensor has as many elements as there are rows times keys. Rules OPS-20 to OPS-23 of ``specs/executors.md``; the formula
is that of DeepSeek-V4's attention, whose sink is a logit with zero value.
"""

import torch

from hpfun.attention import AttentionSegments
from hpfun.errors import refusal
from hpfun_torch.ops.contract import check_packed_attention, check_sparse_attention
from hpfun_torch.ops.cpu.parts import Banks, Part, chunks, exactly, ranges_of, sum_dtype


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
    """Attention of every row to its window rows and to its chosen, or all visible, keys.

    ``query [Q, H, D]``, banks ``[rows, D]``, ``selected`` integers ``[Q, k]`` (rows of the key bank, -1 for none; None:
    every visible key), ``sinks [H]``. The value of a row of a bank is its first ``value_width`` channels, all by
    default. Gives ``([Q, H, value], log-sum-exp [Q, H] float32 or 64)``; a row with nothing to attend to gives 0. Sums
    run in float32, in float64 for float64. Differentiable in query, banks and sinks; a second gradient is HP-OPS-005.
    Raises HP-OPS-001.

    >>> from hpfun.attention import attention_segments
    >>> segments = attention_segments((0, 2), 2, 1, rank=0, window=2, ratio=0)
    >>> rows = torch.tensor([[2.0], [4.0]])
    >>> sparse_attention(torch.zeros(2, 1, 1), rows, None, None, segments=segments, scale=1.0)[0].view(-1).tolist()
    [2.0, 3.0]
    """
    width = check_sparse_attention(
        query, window_bank, key_bank, selected, segments=segments, scale=scale, sinks=sinks, value_width=value_width
    )
    inputs = Banks(window_bank, None, key_bank, None, sinks)
    return _Attend.apply(query, *inputs, selected, segments, scale, width)


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every row to the rows of its window, with heads of keys and values.

    ``query [Q, H, D]``, ``key [K, G, D]``, ``value [K, G, V]`` with G dividing H, ``sinks [H]``; ``window_ranges`` of
    the segments count rows of ``key``. Gives ``([Q, H, V], log-sum-exp [Q, H])``, differentiable as
    ``sparse_attention`` is. Raises HP-OPS-001.
    """
    check_packed_attention(query, key, value, segments=segments, scale=scale, sinks=sinks)
    groups = key.shape[1]
    heads = query.shape[1] // groups
    parts = []
    for group in range(groups):
        own = slice(group * heads, (group + 1) * heads)
        inputs = Banks(key[:, group], value[:, group], None, None, None if sinks is None else sinks[own])
        parts.append(_Attend.apply(query[:, own], *inputs, None, segments, scale, value.shape[-1]))
    outputs, sums = zip(*parts, strict=True)
    return torch.cat(outputs, dim=1), torch.cat(sums, dim=1)


def logits_of(query: torch.Tensor, parts: list[Part], scale: float) -> torch.Tensor:
    """Logits ``[C, H, keys of all parts]`` of a chunk, -inf where a row does not look."""
    found = [query.new_empty((*query.shape[:2], 0))]
    for part in parts:
        scores = query @ part.key.mT if part.key.ndim == 3 else _rows_by(query, part.key.t())
        found.append((scores * scale).masked_fill_(~part.seen[:, None], -torch.inf))
    return torch.cat(found, dim=-1)


def _rows_by(query: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``query [C, H, n] @ matrix [n, m]`` as one product."""
    return (query.reshape(-1, query.shape[-1]) @ matrix).view(*query.shape[:2], -1)


def with_sink(logits: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Log-sum-exp ``[C, H]`` of logits and sink."""
    if sinks is not None:
        column = sinks.to(logits.dtype)[None, :, None].expand(len(logits), -1, 1)
        logits = torch.cat((logits, column), dim=-1)
    return logits.logsumexp(dim=-1) if logits.shape[-1] else logits.new_full(logits.shape[:2], -torch.inf)


def probabilities(logits: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Softmax of a chunk by its log-sum-exp; zeros where that is -inf."""
    return (logits - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp_()


class _Attend(torch.autograd.Function):
    """See ``sparse_attention``; the log-sum-exp has no gradient."""

    @staticmethod
    @exactly
    def forward(query, window, window_value, key, value, sinks, selected, segments, scale, width):
        banks = Banks(window, window_value, key, value, sinks)
        ranges = ranges_of(segments, query.device)
        heads = query.shape[1]
        dtype = sum_dtype(query)
        output = query.new_zeros((*query.shape[:2], width))
        sums = torch.full(query.shape[:2], -torch.inf, dtype=dtype, device=query.device)
        for rows, parts in chunks(banks, selected, ranges, heads, width, dtype):
            logits = logits_of(query[rows].to(dtype), parts, scale)
            sums[rows] = lse = with_sink(logits, sinks)
            output[rows] = _weighed(probabilities(logits, lse), parts, width).to(query.dtype)
        return output, sums

    @staticmethod
    def setup_context(ctx, inputs, output):
        query, window, window_value, key, value, sinks, selected, *ctx.rest = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(query, window, window_value, key, value, sinks, selected, *output)

    @staticmethod
    def backward(ctx, grad, _):  # ty: ignore[incompatible-method-override]
        grads = _AttendBackward.apply(grad, *ctx.saved_tensors, *ctx.rest)
        return *grads, None, None, None, None


class _AttendBackward(torch.autograd.Function):
    """Gradients of query, banks and sinks; a function of its own so that transforms see plain tensors."""

    @staticmethod
    @exactly
    def forward(grad, query, window, window_value, key, value, sinks, selected, output, sums, segments, scale, width):
        banks = Banks(window, window_value, key, value, sinks)
        ranges = ranges_of(segments, query.device)
        dtype = sum_dtype(query)
        totals = Banks(*(None if bank is None else torch.zeros_like(bank, dtype=dtype) for bank in banks))
        query_grad = torch.zeros_like(query)
        for rows, parts in chunks(banks, selected, ranges, query.shape[1], width, dtype):
            asked, given = query[rows].to(dtype), grad[rows].to(dtype)
            lse = sums[rows]
            weights = probabilities(logits_of(asked, parts, scale), lse)
            drift = (given * output[rows].to(dtype)).sum(-1)
            if sinks is not None and totals.sinks is not None:
                share = (sinks.to(dtype) - lse).exp()
                totals.sinks.sub_((share * drift).sum(0))
            query_grad[rows] = _add_gradients(totals, parts, weights, asked, given, drift, scale).to(query.dtype)
        dtypes = [None if bank is None else bank.dtype for bank in banks]  # sinks may be wider than the rest
        return query_grad, *(
            None if total is None else total.to(own) for total, own in zip(totals, dtypes, strict=True)
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise refusal("HP-OPS-005", "query", "a second gradient of attention", "take gradients of it once")


def _add_gradients(
    totals: Banks,
    parts: list[Part],
    weights: torch.Tensor,
    query: torch.Tensor,
    given: torch.Tensor,
    drift: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Add a chunk's gradients of the banks to ``totals``; gives that of its query ``[C, H, D]``."""
    query_grad = torch.zeros_like(query)
    at = 0
    for part in parts:
        count = part.seen.shape[-1]
        own = weights[..., at : at + count]
        at += count
        chosen = part.key.ndim == 3
        inner = given @ part.value.mT if chosen else _rows_by(given, part.value.t())
        slope = own * (inner - drift[..., None]) * scale
        query_grad += slope @ part.key if chosen else _rows_by(slope, part.key)
        key_grad = slope.mT @ query if chosen else slope.flatten(0, 1).t() @ query.flatten(0, 1)
        value_grad = own.mT @ given if chosen else own.flatten(0, 1).t() @ given.flatten(0, 1)
        values = getattr(totals, "window_value" if part.bank == "window" else "value")
        if values is None:
            key_grad[..., : value_grad.shape[-1]] += value_grad
        else:
            _add(values, part.place, value_grad)
        _add(getattr(totals, part.bank), part.place, key_grad)
    return query_grad


def _add(total: torch.Tensor, place: slice | torch.Tensor, grad: torch.Tensor) -> None:
    if isinstance(place, slice):
        total[place] += grad
    else:
        total.index_add_(0, place.reshape(-1), grad.flatten(0, -2))


def _weighed(weights: torch.Tensor, parts: list[Part], width: int) -> torch.Tensor:
    """Values by their probabilities: ``[C, H, width]``."""
    total = weights.new_zeros((*weights.shape[:2], width))
    at = 0
    for part in parts:
        count = part.seen.shape[-1]
        own = weights[..., at : at + count]
        total += own @ part.value if part.value.ndim == 3 else _rows_by(own, part.value)
        at += count
    return total
