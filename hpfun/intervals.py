"""Half-open intervals ``[start, stop)`` as pairs of int64 arrays.

Every family counts in intervals and expands to rows only at the end. Rules INTERVAL-1 to INTERVAL-4 of
``specs/exchange.md``.
"""

import numpy as np

LONG_ROWS = 256  # from which an interval is worth a call of its own


def expand(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """All integers of the intervals, one interval after the other; int64 of length ``sum(stops - starts)``.

    >>> expand(np.array([4, 0]), np.array([7, 2])).tolist()
    [4, 5, 6, 0, 1]
    """
    counts = stops - starts
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if total > LONG_ROWS * len(counts):  # one by one, long intervals need no array beside the result
        rows, numbers = np.empty(total, np.int64), np.arange(int(counts.max()))
        for start, count, end in zip(starts.tolist(), counts.tolist(), ends.tolist(), strict=True):
            np.add(numbers[:count], start, out=rows[end - count : end])
        return rows
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)


def runs(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of ``expand`` with the fewest intervals: maximal runs of consecutive rows.

    >>> starts, stops = runs(np.array([4, 5, 6, 0, 1]))
    >>> starts.tolist(), stops.tolist()
    ([4, 0], [7, 2])
    """
    if len(rows) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    breaks = np.flatnonzero(rows[1:] != rows[:-1] + 1) + 1
    firsts = np.concatenate(([0], breaks))
    lasts = np.concatenate((breaks, [len(rows)])) - 1
    return rows[firsts], rows[lasts] + 1


def overlap_rows(starts: np.ndarray, stops: np.ndarray, low: np.ndarray | int, high: np.ndarray | int) -> np.ndarray:
    """Number of rows that ``[starts, stops)`` and ``[low, high)`` share, elementwise.

    >>> overlap_rows(np.array([0, 6]), np.array([5, 9]), np.array([3, 0]), np.array([9, 2])).tolist()
    [2, 0]
    """
    return np.maximum(np.minimum(stops, high) - np.maximum(starts, low), 0)


def shard_pieces(
    starts: np.ndarray, stops: np.ndarray, local: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Non-empty intervals cut at the edges of shards of ``local`` rows: of each piece its interval, shard and ends.

    >>> [part.tolist() for part in shard_pieces(np.array([2, 9]), np.array([8, 10]), local=4)]
    [[0, 0, 1], [0, 1, 2], [2, 4, 9], [4, 8, 10]]
    """
    first, last = starts // local, (stops - 1) // local
    which = np.repeat(np.arange(len(starts)), last - first + 1)
    shards = expand(first, last + 1)
    lows, highs = shards * local, (shards + 1) * local
    return which, shards, np.maximum(starts[which], lows), np.minimum(stops[which], highs)
