"""Document lengths of a batch, from what batches carry; and a batch cut to a length.

Rules BATCH-6, BATCH-10 and BATCH-43 of ``specs/batch.md``.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpfun._fields import integer, integers
from hpfun.batch.plan import document_lengths
from hpfun.errors import refusal

_CODE = "HP-BATCH-002"


def lengths_from_cu(cu_seq_lens: object, total: int) -> tuple[int, ...]:
    """Lengths of documents with these cumulative ends, 0 where an end repeats.

    HP-BATCH-002 unless the ends start at 0, never fall, and end at ``total`` tokens.

    >>> lengths_from_cu([0, 4, 4, 10], 10)
    (4, 0, 6)
    """
    ends = integers(cu_seq_lens, "cu_seq_lens", _CODE)
    total = integer(total, "total", _CODE, least=0)
    falls = np.flatnonzero(ends[1:] < ends[:-1])
    if len(ends) and ends[0] == 0 and ends[-1] == total and not len(falls):
        return tuple(np.diff(ends).tolist())
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (None, None)
    message = f"ends from {first} to {last} of {total} tokens"
    if len(falls):
        message = f"entry {falls[0] + 1} is {ends[falls[0] + 1]}, after {ends[falls[0]]}"
    advice = "give the boundaries of the pack before padding"
    raise refusal(_CODE, "cu_seq_lens", message, advice, first=first, last=last, sequence_length=total)


def lengths_from_positions(position_ids: object) -> tuple[int, ...]:
    """Lengths of documents whose tokens count up: one starts wherever a position is not the one before plus 1.

    ``position_ids`` int ``[tokens]``; HP-BATCH-002 for anything else.

    >>> lengths_from_positions([0, 1, 2, 0, 0, 1])
    (3, 1, 2)
    """
    positions = integers(position_ids, "position_ids", _CODE)
    if not len(positions):
        return ()
    starts = np.flatnonzero(positions[1:] != positions[:-1] + 1) + 1
    return tuple(np.diff(starts, prepend=0, append=len(positions)).tolist())


def truncate(
    lengths: object, spans: Iterable[tuple[int, int]], max_length: int
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Lengths and spans of the first ``max_length`` tokens; documents and spans behind the cut are left out.

    ``spans`` are the tokens ``[start, stop)`` of images or frames. HP-BATCH-006 where the cut would lie inside one,
    with the largest length below it that no span forbids; HP-BATCH-002 for lengths, spans or a limit that are none.

    >>> truncate((4, 8), [(5, 9)], 9), truncate((4, 8), [(5, 9)], 5)
    (((4, 5), ((5, 9),)), ((4, 1), ()))
    """
    given = document_lengths(lengths)
    limit = integer(max_length, "max_length", _CODE, least=0)
    total = int(given.sum())
    images = _spans(spans, total)
    cut = min(limit, total)
    inside = next((span for span in images if span[0] < cut < span[1]), None)
    if inside is not None:
        legal = cut
        while crossed := [start for start, stop in images if start < legal < stop]:
            legal = min(crossed)
        message = f"{limit} tokens end inside the span [{inside[0]}, {inside[1]})"
        facts = {"span": inside, "max_length": limit, "largest_legal": legal}
        raise refusal("HP-BATCH-006", "max_length", message, f"cut to {legal} tokens", **facts)
    ends = np.concatenate(([0], np.cumsum(given)))
    kept = np.diff(np.minimum(ends, cut))[(ends[:-1] < cut) | (cut == total)]
    return tuple(kept.tolist()), tuple(span for span in images if span[1] <= cut)


def _spans(spans: Any, total: int) -> tuple[tuple[int, int], ...]:
    found = []
    if not isinstance(spans, Iterable):
        kind = type(spans).__name__
        raise refusal(_CODE, "spans", f"needs pairs, got {kind}", "pass (first token, one behind the last)", type=kind)
    for index, span in enumerate(spans):
        ends = tuple(integers(span, f"spans[{index}]", _CODE).tolist())
        if len(ends) != 2 or not 0 <= ends[0] < ends[1] <= total:
            facts: dict[str, Any] = {"span": ends, "sequence_length": total}
            advice = "pass (first token, one behind the last) in the pack"
            raise refusal(_CODE, f"spans[{index}]", f"{ends} is no span of {total} tokens", advice, **facts)
        found.append(ends)
    return tuple(found)
