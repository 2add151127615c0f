"""Row lists: rows that run on are kept as intervals, scattered ones as an array.

A bank of a million rows is then a handful of numbers, and an executor slices where it would gather. Which of the
two a list is follows from its rows alone, so equal lists are equal values. Rules ROWS-1 to ROWS-4 of
``specs/exchange.md``.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integers, integers_field, known_valid, plan_value, readonly
from hpfun.errors import refusal
from hpfun.intervals import expand, runs

_CODE = "HP-EXCHANGE-004"
_FEW, _LONG = 64, 256  # where intervals are cheaper to look at than their rows


@plan_value
class RowRuns:
    """Rows as half-open intervals ``[starts, stops)``, int64, in the order in which they are listed.

    Every interval has a row, and none goes on where the one before ends. A constructor that takes row lists takes
    this as well, and keeps it unless an array is smaller. Raises HP-EXCHANGE-004.

    >>> rows = RowRuns([4, 0], [7, 2])
    >>> len(rows), rows.rows.tolist()
    (5, [4, 5, 6, 0, 1])
    """

    starts: Any = integers_field(_CODE)
    stops: Any = integers_field(_CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        starts, stops = self.starts, self.stops
        if len(starts) != len(stops):
            facts = {"starts": len(starts), "stops": len(stops)}
            raise refusal(_CODE, "stops", f"{len(starts)} starts and {len(stops)} stops", "pass pairs", **facts)
        at = _first_misplaced(self)
        if at is not None:
            message = f"[{starts[at]}, {stops[at]}) is empty, or goes on where the interval before ends"
            advice = "drop empty intervals and join adjacent ones"
            raise refusal(_CODE, "starts", message, advice, index=at, start=int(starts[at]), stop=int(stops[at]))
        _check_count(self)

    @cached_property
    def count(self) -> int:
        """Number of rows."""
        if len(self.starts) > _FEW and int(np.abs(self.stops - self.starts).max()) <= INT64_MAX // len(self.starts):
            return int((self.stops - self.starts).sum())
        return sum(self.stops.tolist()) - sum(self.starts.tolist())

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The intervals as pairs of Python ints."""
        return tuple(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @property
    def rows(self) -> np.ndarray:
        """The rows one by one; int64."""
        return readonly(expand(self.starts, self.stops))

    def __len__(self) -> int:
        return self.count


RowList = np.ndarray | RowRuns


def joined(starts: Any, stops: Any) -> RowRuns:
    """The intervals in their order, without empty ones, adjacent ones joined.

    >>> joined([0, 2, 2, 7], [2, 2, 5, 8]).spans
    ((0, 5), (7, 8))
    """
    firsts, lasts = np.asarray(starts, dtype=np.int64), np.asarray(stops, dtype=np.int64)
    filled = firsts < lasts
    if not filled.all():
        firsts, lasts = firsts[filled], lasts[filled]
    apart = firsts[1:] != lasts[:-1]
    if not apart.all():
        breaks = np.flatnonzero(apart)
        firsts = firsts[np.concatenate(([0], breaks + 1))]
        lasts = lasts[np.concatenate((breaks, [len(lasts) - 1]))]
    runs = known_valid(RowRuns, starts=readonly(firsts), stops=readonly(lasts))
    _check_count(runs)
    return runs


def chained(*parts: RowList) -> RowList:
    """The rows of several lists, one list after the other.

    >>> chained(RowRuns([4], [7]), RowRuns([7], [9])).rows.tolist()
    [4, 5, 6, 7, 8]
    """
    if all(isinstance(part, RowRuns) or not len(part) for part in parts):
        ends = [spans_of(part) for part in parts]
        starts, stops = (np.concatenate(side) for side in zip(*ends, strict=True))
        return row_list(joined(starts, stops), "rows")
    return row_list(readonly(np.concatenate([rows_of(part) for part in parts])), "rows")


def cut(part: RowList, at: int) -> tuple[RowList, RowList]:
    """The first ``at`` rows of a list, and the others.

    >>> [piece.rows.tolist() for piece in cut(RowRuns([0, 8], [4, 11]), 2)]
    [[0, 1], [2, 3, 8, 9, 10]]
    """
    if not isinstance(part, RowRuns):
        return part[:at], part[at:]
    ends = np.cumsum(part.stops - part.starts)
    firsts = ends - (part.stops - part.starts)
    head = joined(part.starts, np.clip(part.stops - (ends - at), part.starts, part.stops))
    tail = joined(np.clip(part.starts + (at - firsts), part.starts, part.stops), part.stops)
    return row_list(head, "rows"), row_list(tail, "rows")


def row_list(values: object, where: str) -> RowList:
    """``values`` (row numbers, or ``RowRuns``) in the smaller of the two forms; HP-EXCHANGE-004.

    >>> type(row_list([4, 5, 6, 0, 1], "rows")).__name__, type(row_list([4, 6, 8], "rows")).__name__
    ('RowRuns', 'ndarray')
    """
    if isinstance(values, RowRuns):
        return values if _smaller(len(values.starts), len(values)) else values.rows
    rows = integers(values, where, _CODE)
    num_runs = 1 + int(np.count_nonzero(rows[1:] - rows[:-1] != 1))
    if not _smaller(num_runs, len(rows)) or int(rows.max()) == INT64_MAX:  # there is no end behind the last number
        return rows
    starts, stops = runs(rows)
    return RowRuns(readonly(starts), readonly(stops))


def _smaller(num_runs: int, num_rows: int) -> bool:
    return 0 < 2 * num_runs <= num_rows


# what a field that holds a ``RowList`` converts with; ``expands`` makes it read as rows
AS_ROW_LIST = attrs.Converter(lambda values, field: row_list(values, field.name), takes_field=True)


def expands(cls: type, *names: str) -> None:
    """Make the fields ``names`` of an attrs class read as int64 rows, whatever form they are kept in."""
    for name in names:
        setattr(cls, name, property(lambda value, name=name: rows_of(vars(value)[name])))


def rows_of(part: RowList) -> np.ndarray:
    """The rows one by one; int64, read-only."""
    return part.rows if isinstance(part, RowRuns) else part


def spans_of(part: RowList) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops of intervals that list the rows, at no cost: those of an array are single rows."""
    return (part.starts, part.stops) if isinstance(part, RowRuns) else (part, part + 1)


def runs_of(part: RowList) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops of the fewest intervals that list the rows; int64."""
    return (part.starts, part.stops) if isinstance(part, RowRuns) else runs(part)


def _first_misplaced(runs: RowRuns) -> int | None:
    """The first interval that is empty or goes on where the one before ends."""
    if len(runs.starts) <= _FEW:  # for a handful, Python ints are quicker than arrays
        ends = (None, *(stop for _, stop in runs.spans))
        return next((i for i, (start, stop) in enumerate(runs.spans) if start >= stop or start == ends[i]), None)
    wrong = runs.starts >= runs.stops
    wrong[1:] |= runs.starts[1:] == runs.stops[:-1]
    return int(wrong.argmax()) if wrong.any() else None


def _check_count(runs: RowRuns) -> None:
    if runs.count > INT64_MAX:
        raise refusal(_CODE, "stops", f"{runs.count} rows are beyond int64", rows=runs.count, most=INT64_MAX)


def extremes(part: RowList) -> tuple[int, int]:
    """Least and greatest row of a list that has one."""
    if not isinstance(part, RowRuns):
        return int(part.min()), int(part.max())
    if len(part.starts) == 1:
        start, stop = part.spans[0]
        return start, stop - 1
    return int(part.starts.min()), int(part.stops.max()) - 1


def coverage(parts: Sequence[RowList], extent: int) -> tuple[int, int, int]:
    """Of rows inside ``0..extent - 1``: how many are listed, how often the most listed one is, and the lowest such.

    Costs the intervals where rows run on, else the rows, never the extent.

    >>> coverage([np.array([7, 9]), RowRuns([0, 6], [3, 9])], 10)
    (7, 2, 7)
    """
    filled = [part for part in parts if len(part)]
    if not filled:
        return 0, 0, 0
    num_spans = sum(len(part.starts) if isinstance(part, RowRuns) else len(part) for part in filled)
    if num_spans <= _FEW or num_spans * _LONG <= sum(map(len, filled)):
        return _swept(filled)
    rows = np.concatenate([rows_of(part) for part in filled])
    if extent > 8 * len(rows) + 1024:
        found, times = np.unique(rows, return_counts=True)
    else:
        times = np.bincount(rows)
        found = np.flatnonzero(times)
        times = times[found]
    most = int(times.argmax())
    return len(found), int(times[most]), int(found[most])


def _swept(parts: Sequence[RowList]) -> tuple[int, int, int]:
    spans: list[tuple[int, int]] = []
    for part in parts:
        spans += part.spans if isinstance(part, RowRuns) else [(row, row + 1) for row in part.tolist()]
    spans.sort()
    if all(one[1] <= two[0] for one, two in pairwise(spans)):
        return sum(map(len, parts)), 1, spans[0][0]
    changes: dict[int, int] = {}
    for start, stop in spans:
        changes[start] = changes.get(start, 0) + 1
        changes[stop] = changes.get(stop, 0) - 1
    listed = most = lowest = depth = before = 0
    for at in sorted(changes):
        listed += (at - before) * (depth > 0)
        depth, before = depth + changes[at], at
        if depth > most:
            most, lowest = depth, at
    return listed, most, lowest
