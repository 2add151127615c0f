"""Work of the Lightning Indexer: how many (query, key) pairs a stretch of rows has to score.

A row at in-document position p sees ``(p + 1) // ratio`` keys of its own document, each standing for ``ratio``
tokens, and may cost ``row_cost`` pairs on top. The work of the first n rows has a closed form and an exact
inverse, so planners count in integers and never walk over rows. Rules WORK-1 to WORK-5 of
``specs/indexer.md``; the scoring itself is that of DeepSeek-V3.2's Lightning Indexer.
"""

from typing import Any

import numpy as np

from hpfun._fields import INT64_MAX
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal

WORK_LIMIT = 2**62  # headroom: sums of two totals stay inside int64


def work_before(rows: Any, ratio: int, row_cost: int = 0) -> Any:
    """Pairs scored by the first ``rows`` rows of a document (int or int64 array), row cost included.

    >>> [work_before(n, 2) for n in range(6)]
    [0, 0, 1, 2, 4, 6]
    """
    keys = rows // ratio
    return ratio * _sum_below(keys) + keys * (rows - keys * ratio + 1) + row_cost * rows


def row_work(positions: Any, ratio: int, row_cost: int = 0) -> Any:
    """Pairs scored by the row at an in-document position (int or int64 array).

    >>> [row_work(p, 2, row_cost=1) for p in range(4)]
    [1, 2, 2, 3]
    """
    return (positions + 1) // ratio + row_cost


def rows_seeing(keys: Any, ratio: int) -> Any:
    """Rows of a document, from its start, that see at most ``keys`` keys (``keys >= -1``).

    >>> [int(rows_seeing(k, 2)) for k in (-1, 0, 1)]
    [0, 1, 3]
    """
    return np.maximum((keys + 1) * ratio - 1, 0)


def work_seeing(keys: Any, ratio: int, row_cost: int = 0) -> Any:
    """Pairs scored by the ``rows_seeing(keys, ratio)`` first rows; ``-row_cost`` at most for ``keys = -1``.

    >>> [work_seeing(k, 2) == work_before(int(rows_seeing(k, 2)), 2) for k in range(4)]
    [True, True, True, True]
    """
    return ratio * _sum_below(keys + 1) + row_cost * ((keys + 1) * ratio - 1)


def _sum_below(n: Any) -> Any:
    """0 + 1 + ... + (n - 1), with the even factor halved first: ``n * (n - 1)`` may be beyond int64."""
    return (n >> 1) * ((n - 1) | 1)


def rows_within(work: np.ndarray, ratio: int, row_cost: int = 0) -> np.ndarray:
    """The most rows, from a document's start, whose work is at most ``work``; the inverse of ``work_before``.

    ``work`` is int64, not negative. A float square root guesses how many keys the last affordable level of
    rows sees; exact integer comparisons then move the guess until it is right.

    >>> rows_within(np.array([0, 1, 3, 4]), 2).tolist()
    [1, 2, 3, 4]
    """

    half = row_cost + 0.5
    inside = np.maximum(half * half + 2.0 * (work.astype(np.float64) - row_cost * (ratio - 1.0)) / ratio, 0.0)
    keys = np.maximum(np.sqrt(inside) - half, -1.0).astype(np.int64)
    while (over := work_seeing(keys, ratio, row_cost) > work).any():
        keys -= over
    while (fits := work_seeing(keys + 1, ratio, row_cost) <= work).any():
        keys += fits
    rows = rows_seeing(keys, ratio)
    return rows + (work - work_before(rows, ratio, row_cost)) // (keys + 1 + row_cost)


def check_work_range(documents: PackedDocuments, ratio: int, row_cost: int) -> None:
    """HP-INDEX-009 unless every total and every intermediate of ``work_before`` fits into int64."""
    longest = int(documents.lengths.max())
    largest = work_before(longest, ratio, row_cost)
    bound = documents.num_documents * largest
    if bound >= WORK_LIMIT and largest < WORK_LIMIT:  # too coarse: add up in two exact halves
        works = work_before(documents.lengths, ratio, row_cost)
        bound = (int((works >> 31).sum()) << 31) + int((works & (2**31 - 1)).sum())
    spread = 2 * (longest + 2 * ratio) * (row_cost + 1)
    if bound >= WORK_LIMIT or largest >= WORK_LIMIT or spread > INT64_MAX:
        raise refusal(
            "HP-INDEX-009",
            "lengths",
            f"work of {max(bound, largest, spread)} pairs is beyond {WORK_LIMIT}",
            "split the batch, or lower row_cost",
            work=max(bound, largest, spread),
            most=WORK_LIMIT,
            longest=longest,
        )
