"""Locality balance: rows stay at home unless they must move.

Ranks above the target give up the fewest rows that bring them down to it; ranks below it receive, in rank
order, so that rows travel to near ranks, in few runs, between few peers. Every cut falls on a row, and where
is chosen so that the worst deviation of any receiver is as small as it can be. Rules LOCAL-1 to LOCAL-9 of
``specs/indexer.md``. No published balancer does this; the nearest, expert placement and zigzag, move almost
every row.
"""

from typing import Any

import attrs
import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.assigned import Assigned, join
from hpfun.indexer.options import IndexerOptions
from hpfun.indexer.shedding import Pieces, Shedding, least_shedding, shard_pieces, shed_cuts
from hpfun.indexer.work import row_work, rows_within, work_before

PPM = 10**6


@attrs.frozen(eq=False)
class Runs:
    """Stretches of rows that look for a worker: global ``starts``, in-document ``first`` and ``last``, ``owners``."""

    starts: Any
    first: Any
    last: Any
    owners: Any

    def where(self, chosen: np.ndarray) -> "Runs":
        """The runs selected by an index or a mask."""
        return Runs(self.starts[chosen], self.first[chosen], self.last[chosen], self.owners[chosen])


def balance_target(total: int, size: int, tolerance_ppm: int = 0) -> int:
    """Pairs that a worker should score at most: the mean, plus the tolerance, rounded up.

    >>> balance_target(57, 2), balance_target(1_000_000, 8, tolerance_ppm=1000)
    (29, 125125)
    """
    return -(-total * (PPM + tolerance_ppm) // (size * PPM))


def locality(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode locality; HP-INDEX-006 where a row capacity leaves rows without a worker."""
    row_cost = options.row_cost
    pieces = shard_pieces(documents, size, ratio, row_cost)
    target = balance_target(int(pieces.loads.sum()), size, options.tolerance_ppm)
    shedding = least_shedding(pieces, target, ratio, row_cost)
    cuts = shed_cuts(pieces, shedding, _rounded_rows(pieces, shedding, target), ratio)
    kept_stops = pieces.stops.copy()
    kept_stops[shedding.pieces] -= pieces.last[shedding.pieces] - cuts
    starts, owners = pieces.starts[shedding.pieces], pieces.owners[shedding.pieces]
    first, last = pieces.first[shedding.pieces], pieces.last[shedding.pieces]
    shed = Runs(starts + cuts - first, cuts, last, owners).where(cuts < last)

    kept = kept_stops > pieces.starts
    home = Assigned(pieces.starts[kept], kept_stops[kept], pieces.owners[kept])
    fill = _Fill(
        ratio,
        row_cost,
        target,
        int(row_work(pieces.last.max() - 1, ratio, row_cost)),
        options.capacity,
        documents.total // size,
    )
    moved = _place(fill, shed, pieces.loads, options.ranks_per_node)
    return join((home, *moved))


def _rounded_rows(pieces: Pieces, shedding: Shedding, target: int) -> np.ndarray:
    """Rows of its level that each rank gives up: rounded up, but down where the receivers have no room.

    Rounding up everywhere may give up more work than the others lack; rounding down leaves a rank less than
    one row above the target, so as few ranks as possible do, those that end nearest to it.
    """
    rows = shedding.level_rows.copy()
    surplus = int(shedding.overshoots.sum()) - (len(pieces.loads) * target - int(pieces.loads.sum()))
    if surplus > 0:
        inexact = np.flatnonzero(shedding.overshoots)
        above = (shedding.level_works - shedding.overshoots)[inexact]
        order = inexact[np.argsort(above, kind="stable")]
        count = int(np.searchsorted(np.cumsum(shedding.level_works[order]), surplus)) + 1
        rows[order[:count]] -= 1
    return rows


@attrs.frozen
class _Fill:
    """What it takes to hand rows to receivers: the work formula, the target, and the row limit."""

    ratio: int
    row_cost: int
    target: int
    heaviest: int
    capacity: int | None
    local: int

    def work(self, rows: Any) -> Any:
        return work_before(rows, self.ratio, self.row_cost)


def _place(fill: _Fill, runs: Runs, loads: np.ndarray, ranks_per_node: int | None):
    """Tasks of all shed runs: inside the nodes first, where nodes are given, then over the whole group."""
    loads, rows = loads.copy(), np.full(len(loads), fill.local)
    if not len(runs.starts):
        return []
    tasks = []
    receivers = np.flatnonzero(loads < fill.target)
    if ranks_per_node is not None:
        left = []
        for node in np.unique(runs.owners // ranks_per_node):
            inside = receivers[receivers // ranks_per_node == node]
            placed, rest = _hand_out(fill, runs.where(runs.owners // ranks_per_node == node), inside, loads, rows)
            tasks.append(placed)
            left.append(rest)
        runs = Runs(
            *(np.concatenate([getattr(rest, name) for rest in left]) for name in ("starts", "first", "last", "owners"))
        )
        receivers = np.flatnonzero(loads < fill.target)
    # a rank that lacks less than one row would get a fragment: leave it out if the others have room enough
    roomy = receivers[fill.target - loads[receivers] >= fill.heaviest]
    if int((fill.target - loads[roomy]).sum()) >= int((fill.work(runs.last) - fill.work(runs.first)).sum()):
        receivers = roomy
    placed, left = _hand_out(fill, runs, receivers, loads, rows)
    if len(left.starts):
        homeless = int((left.last - left.first).sum())
        raise refusal(
            "HP-INDEX-006",
            "capacity",
            f"{homeless} rows find no worker with at most {fill.capacity} rows",
            "raise capacity or tolerance_ppm",
            capacity=fill.capacity,
            local=fill.local,
            homeless_rows=homeless,
        )
    return [*tasks, placed]


def _hand_out(fill: _Fill, runs: Runs, receivers: np.ndarray, loads: np.ndarray, held: np.ndarray):
    """Cut ``runs`` at the receivers' needs; the tasks, and the runs left over. Adds to ``loads`` and ``held``."""
    lengths = runs.last - runs.first
    ends = np.concatenate(([0], np.cumsum(lengths)))
    work_ends = np.concatenate(([0], np.cumsum(fill.work(runs.last) - fill.work(runs.first))))
    cuts = np.zeros(0, dtype=np.int64)
    if len(receivers) and len(lengths):
        needs = fill.target - loads[receivers]
        cuts, works = _smoothest_cuts(fill, runs, ends, work_ends, needs)
        got = np.diff(cuts, prepend=0)
        if fill.capacity is not None and (held[receivers] + got > fill.capacity).any():
            cuts, works = _capped_cuts(fill, runs, ends, work_ends, needs, fill.capacity - held[receivers])
            got = np.diff(cuts, prepend=0)
        loads[receivers] += np.diff(works, prepend=0)
        held[receivers] += got
    points = np.unique(np.concatenate((ends, cuts)))
    run = np.searchsorted(ends, points[:-1], side="right") - 1
    taker = np.searchsorted(cuts, points[:-1], side="right")
    starts = runs.starts[run] + points[:-1] - ends[run]
    stops = runs.starts[run] + points[1:] - ends[run]
    taken = taker < len(receivers)
    first = runs.first[run] + points[:-1] - ends[run]
    left = Runs(starts, first, first + stops - starts, runs.owners[run]).where(~taken)
    return Assigned(starts[taken], stops[taken], receivers[taker[taken]]), left


def _cut_at(fill: _Fill, runs: Runs, ends: np.ndarray, work_ends: np.ndarray, works: np.ndarray):
    """The most rows, counted along the runs, with at most ``works``; their work; and the work of the next row."""
    run = np.minimum(np.searchsorted(work_ends, works, side="right") - 1, len(runs.first) - 1)
    base = fill.work(runs.first[run])
    row = np.minimum(rows_within(works - work_ends[run] + base, fill.ratio, fill.row_cost), runs.last[run])
    return (
        ends[run] + row - runs.first[run],
        work_ends[run] + fill.work(row) - base,
        row_work(row, fill.ratio, fill.row_cost),
    )


def _smoothest_cuts(fill: _Fill, runs: Runs, ends: np.ndarray, work_ends: np.ndarray, needs: np.ndarray):
    """Cut after each receiver's need, one row less or one row more, so that the worst excess is least.

    Each receiver's cut has two candidates around the running sum of needs, so errors are carried on and never
    add up; the choice that minimises the greatest excess over a need is a shortest path over two states.
    """
    wanted = np.minimum(np.cumsum(needs), work_ends[-1])
    rows, works, following = _cut_at(fill, runs, ends, work_ends, wanted)
    exact = works == wanted
    upper = np.where(exact, works, works + following)
    paths = []
    least = (0, 0)  # worst excess so far if the previous cut was taken low, high
    previous = (0, 0)
    for low, high, need in zip(works.tolist(), upper.tolist(), needs.tolist(), strict=True):
        step = []
        state = []
        for cut in (low, high):
            through_low, through_high = max(least[0], cut - previous[0] - need), max(least[1], cut - previous[1] - need)
            step.append(through_high < through_low)
            state.append(min(through_low, through_high))
        paths.append(step)
        least, previous = (state[0], state[1]), (low, high)
    up = bool(least[1] < least[0])
    choices = np.empty(len(needs), dtype=bool)
    for at in range(len(needs) - 1, -1, -1):
        choices[at] = up
        up = paths[at][up]
    choices &= ~exact
    return rows + choices, np.where(choices, upper, works)


def _capped_cuts(
    fill: _Fill, runs: Runs, ends: np.ndarray, work_ends: np.ndarray, needs: np.ndarray, rooms: np.ndarray
):
    """Cuts where row limits bind: each receiver takes what it needs and what earlier ones had no room for.

    Nobody takes more than one heaviest row beyond its need or more than its room; what is left stays behind
    the last cut.
    """
    cuts, works = [], []
    row = work = wanted = 0
    for need, room in zip(needs.tolist(), rooms.tolist(), strict=True):
        wanted += need
        limit = min(max(wanted, work), work + need + fill.heaviest, int(work_ends[-1]))
        row = min(int(_cut_at(fill, runs, ends, work_ends, np.array([limit]))[0][0]), row + max(room, 0))
        run = min(int(np.searchsorted(ends, row, side="right")) - 1, len(runs.first) - 1)
        base = int(runs.first[run])
        work = int(work_ends[run]) + int(fill.work(base + row - int(ends[run]))) - int(fill.work(base))
        cuts.append(row)
        works.append(work)
    return np.array(cuts), np.array(works)
