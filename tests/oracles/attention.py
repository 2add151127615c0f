"""Sparse attention and the indexer's loss by loops over rows, from their definitions; float64, one row at a time.

Ranges are what the caller says: pairs ``(start, stop)`` a row, so nothing of ``hpfun`` is needed.
"""

from collections.abc import Sequence

import torch

Ranges = Sequence[tuple[int, int]]


def attend(
    query: torch.Tensor,
    window_bank: torch.Tensor | None,
    key_bank: torch.Tensor | None,
    selected: torch.Tensor | None,
    windows: Ranges,
    visible: Ranges,
    scale: float,
    sinks: torch.Tensor | None = None,
    value_width: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output ``[Q, H, V]`` and lse ``[Q, H]``, float64; rows beyond the ranges attend to nothing.

    A row's keys are its window rows, then its selected keys, each as often as its id stands there; without ids, with
    a key bank, all keys of its visible range.
    """
    width = query.shape[2] if value_width is None else value_width
    outs, sums = [], []
    for t in range(query.shape[0]):
        keys = []
        if window_bank is not None and t < len(windows):
            keys += [window_bank[j].double() for j in range(*windows[t])]
        if key_bank is not None and selected is not None:
            keys += [key_bank[j].double() for j in selected[t].tolist() if j >= 0]
        elif key_bank is not None and t < len(visible):
            keys += [key_bank[j].double() for j in range(*visible[t])]
        rows, lses = [], []
        for h in range(query.shape[1]):
            logits = [scale * (query[t, h].double() * key).sum() for key in keys]
            out, lse = weighted(logits, [key[:width] for key in keys], None if sinks is None else sinks[h].double())
            rows.append(query[t, h, :1].double().new_zeros(width) if out is None else out)
            lses.append(lse)
        outs.append(torch.stack(rows))
        sums.append(torch.stack(lses))
    empty = (0, query.shape[1])
    if not outs:
        return query.double().new_zeros((*empty, width)), query.double().new_zeros(empty)
    return torch.stack(outs), torch.stack(sums)


def weighted(
    logits: list[torch.Tensor], values: list[torch.Tensor], sink: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Softmax-weighted values, and the log of the sum of exponentials; None and -inf (or the sink) of no keys."""
    everything = [*logits, *([] if sink is None else [sink])]
    if not everything:
        return None, torch.tensor(-torch.inf, dtype=torch.float64)
    lse = torch.stack(everything).logsumexp(0)
    out = None
    for logit, value in zip(logits, values, strict=True):
        part = (logit - lse).exp() * value
        out = part if out is None else out + part
    return out, lse


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    windows: Ranges,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's attention to its window of ``key [K, Hkv, D]`` and ``value [K, Hkv, V]``; float64."""
    group = query.shape[1] // key.shape[1]
    out = query.double().new_zeros((*query.shape[:2], value.shape[2]))
    lse = query.double().new_full(query.shape[:2], -torch.inf)
    rows = []
    for t in range(query.shape[0]):
        places = range(*windows[t]) if t < len(windows) else range(0)
        for h in range(query.shape[1]):
            logits = [scale * (query[t, h].double() * key[j, h // group].double()).sum() for j in places]
            values = [value[j, h // group].double() for j in places]
            rows.append(weighted(logits, values, None if sinks is None else sinks[h].double()))
    flat = [out.view(-1, value.shape[2])[at] if row[0] is None else row[0] for at, row in enumerate(rows)]
    if not rows:
        return out, lse
    return torch.stack(flat).view(out.shape), torch.stack([row[1] for row in rows]).view(lse.shape)


def kl(
    index_query: torch.Tensor,
    index_key: torch.Tensor,
    weights: torch.Tensor,
    selected: torch.Tensor,
    query: torch.Tensor,
    key_bank: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
    num_queries: int | None = None,
) -> torch.Tensor:
    """Mean over rows of ``sum p (log p - log softmax(index scores))`` over the row's selected keys; float64.

    p is the attention over these keys, the sink dropped, summed over heads, divided by its sum, without gradient.
    """
    total = (index_query.double() * 0).sum()
    for t in range(query.shape[0]):
        ids = [j for j in selected[t].tolist() if j >= 0]
        if not ids:
            continue
        target = torch.zeros(len(ids), dtype=torch.float64)
        for h in range(query.shape[1]):
            logits = [scale * (query[t, h].double() * key_bank[j].double()).sum().detach() for j in ids]
            sink = [] if sinks is None else [sinks[h].double().detach()]
            target += torch.stack([*logits, *sink]).softmax(0)[: len(ids)]
        target = target / target.sum()
        scores = []
        for j in ids:
            score = (weights[t, 0] * 0).double()
            for h in range(index_query.shape[1]):
                dot = (index_query[t, h].double() * index_key[j].double()).sum()
                score = score + weights[t, h].double() * dot.clamp(min=0)
            scores.append(score)
        student = torch.stack(scores).log_softmax(0)
        for p, log_q in zip(target, student, strict=True):
            if p > 0:
                total = total + p * (p.log() - log_q)
    return total / max(1, query.shape[0] if num_queries is None else num_queries)
