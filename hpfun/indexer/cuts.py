"""Rows that look for a worker, laid end to end and cut where each receiver has enough.

A cut falls between two rows, so nobody gets exactly what it lacks. Where the cuts fall is chosen so that the
worst excess is as small as it can be. Rules LOCAL-5 to LOCAL-9 of ``specs/indexer.md``.
"""

from itertools import accumulate
from typing import Any

import attrs
import numpy as np

from hpfun.indexer.assigned import Assigned
from hpfun.indexer.work import row_work, rows_within, work_before


@attrs.frozen(eq=False)
class Runs:
    """Stretches of rows: global ``starts``, in-document ``first`` and ``last``, ``owners``; int64 arrays."""

    starts: Any
    first: Any
    last: Any
    owners: Any

    def where(self, chosen: np.ndarray) -> "Runs":
        """The runs selected by an index or a mask."""
        return Runs(self.starts[chosen], self.first[chosen], self.last[chosen], self.owners[chosen])


@attrs.frozen(eq=False)
class Line:
    """Runs laid end to end: run i holds the rows ``[ends[i], ends[i + 1])`` of the line, and the work likewise."""

    runs: Runs
    ratio: int
    row_cost: int
    ends: Any
    work_ends: Any

    @property
    def work(self) -> int:
        """Pairs that all rows of the line score."""
        return int(self.work_ends[-1])

    def affordable(self, works: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The most rows from the line's start with at most ``works``; their work; and the work of the next row."""
        run = np.minimum(np.searchsorted(self.work_ends, works, side="right") - 1, len(self.runs.first) - 1)
        first, ratio, row_cost = self.runs.first[run], self.ratio, self.row_cost
        base = work_before(first, ratio, row_cost)
        row = np.minimum(rows_within(works - self.work_ends[run] + base, ratio, row_cost), self.runs.last[run])
        spent = self.work_ends[run] + work_before(row, ratio, row_cost) - base
        return self.ends[run] + row - first, spent, row_work(row, ratio, row_cost)

    def work_until(self, row: int) -> int:
        """Pairs that the first ``row`` rows of the line score."""
        run = min(int(np.searchsorted(self.ends, row, side="right")) - 1, len(self.runs.first) - 1)
        first = int(self.runs.first[run])
        done = work_before(first + row - int(self.ends[run]), self.ratio, self.row_cost)
        return int(self.work_ends[run]) + done - work_before(first, self.ratio, self.row_cost)

    def split(self, cuts: np.ndarray, receivers: np.ndarray) -> tuple[Assigned, Runs]:
        """Rows before each cut to the receiver of that cut; and the runs behind the last one."""
        points = np.unique(np.concatenate((self.ends, cuts)))
        run = np.searchsorted(self.ends, points[:-1], side="right") - 1
        taker = np.searchsorted(cuts, points[:-1], side="right")
        inside = points[:-1] - self.ends[run]
        lengths = points[1:] - points[:-1]
        starts, first = self.runs.starts[run] + inside, self.runs.first[run] + inside
        taken = taker < len(receivers)
        left = Runs(starts, first, first + lengths, self.runs.owners[run]).where(~taken)
        return Assigned(starts[taken], (starts + lengths)[taken], receivers[taker[taken]]), left


def lay_out(runs: Runs, ratio: int, row_cost: int) -> Line:
    """The line of ``runs``, in their order."""
    works = work_before(runs.last, ratio, row_cost) - work_before(runs.first, ratio, row_cost)
    ends, work_ends = (np.concatenate(([0], np.cumsum(part))) for part in (runs.last - runs.first, works))
    return Line(runs, ratio, row_cost, ends, work_ends)


def smoothest_cuts(line: Line, needs: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Row and work at the cut after each receiver, int64, so that the worst excess over a need is least.

    Each cut has two candidates, just below and just above the running sum of needs, so errors are carried on
    and never add up. The choice among them is a shortest path over two states a receiver.
    """
    total = line.work
    wanted = np.array(list(accumulate(needs, lambda sum_, need: min(sum_ + need, total), initial=0))[1:])
    rows, low_works, following = line.affordable(wanted)
    exact = low_works == wanted
    high_works = np.where(exact, low_works, low_works + following)
    steps = []
    worst, previous = (0, 0), (0, 0)  # worst excess so far, and the work at the cut, if that is the low, high one
    for low, high, need in zip(low_works.tolist(), high_works.tolist(), needs, strict=True):
        after_low = [max(worst[0], cut - previous[0] - need) for cut in (low, high)]
        after_high = [max(worst[1], cut - previous[1] - need) for cut in (low, high)]
        # two needs inside one row: a cut never lies before the one before it
        from_high = [previous[1] <= cut and after_high[i] < after_low[i] for i, cut in enumerate((low, high))]
        steps.append(from_high)
        worst = tuple(after_high[i] if from_high[i] else after_low[i] for i in (0, 1))
        previous = (low, high)
    up = worst[1] < worst[0]
    ups = np.empty(len(needs), dtype=bool)
    for at in range(len(needs) - 1, -1, -1):
        ups[at] = up
        up = steps[at][up]
    ups &= ~exact
    return rows + ups, np.where(ups, high_works, low_works)


def capped_cuts(line: Line, needs: list[int], rooms: list[int], slack: int) -> tuple[np.ndarray, np.ndarray]:
    """The same where receiver i takes at most ``rooms[i]`` rows.

    Each takes what it needs and what earlier ones had no room for, but at most ``slack`` pairs beyond its need.
    What finds no place lies behind the last cut.
    """
    cuts, works = [], []
    row = work = wanted = 0
    for need, room in zip(needs, rooms, strict=True):
        wanted += need
        limit = min(max(wanted, work), work + need + slack, line.work)
        row = min(int(line.affordable(np.array([limit]))[0][0]), row + max(room, 0))
        work = line.work_until(row)
        cuts.append(row)
        works.append(work)
    return np.array(cuts), np.array(works)
