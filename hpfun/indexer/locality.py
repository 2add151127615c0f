"""Locality balance: rows stay at home unless they must move.

Ranks above the target give up the fewest rows that bring them down to it; ranks below it receive, in rank
order, so that rows travel to near ranks, in few runs, between few peers. Rules LOCAL-1 to LOCAL-9 of
``specs/indexer.md``. No published balancer does this; the nearest, expert placement and zigzag, move almost
every row.
"""

import attrs
import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.assigned import Assigned, join
from hpfun.indexer.cuts import Line, Runs, capped_cuts, lay_out, smoothest_cuts
from hpfun.indexer.options import IndexerOptions
from hpfun.indexer.shedding import Pieces, Shedding, least_shedding, shard_pieces, shed_cuts
from hpfun.indexer.work import row_work

PPM = 10**6


def balance_target(total: int, size: int, tolerance_ppm: int = 0) -> int:
    """Pairs that a worker should score at most: the mean, plus the tolerance, rounded up.

    >>> balance_target(57, 2), balance_target(1_000_000, 8, tolerance_ppm=1000)
    (29, 125125)
    """
    return -(-total * (PPM + tolerance_ppm) // (size * PPM))


def locality(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode locality; HP-INDEX-006 where a row capacity leaves rows without a worker."""
    local, capacity = documents.total // size, options.capacity
    if capacity is not None and capacity < local:
        raise refusal(
            "HP-INDEX-006",
            "capacity",
            f"{size} workers of at most {capacity} rows cannot hold {documents.total} rows",
            f"raise capacity to {local} or more",
            capacity=capacity,
            local=local,
            homeless_rows=documents.total - size * capacity,
        )
    pieces = shard_pieces(documents, size, ratio, options.row_cost)
    target = balance_target(int(pieces.loads.sum()), size, options.tolerance_ppm)
    shedding = least_shedding(pieces, target, ratio, options.row_cost)
    heaviest = int(row_work(pieces.last.max() - 1, ratio, options.row_cost))
    goal = _Goal(ratio, options.row_cost, target, heaviest, capacity, local, options.ranks_per_node)
    if capacity is None:
        tasks, loads = _moved(goal, pieces, shedding, _rounded_rows(goal, pieces, shedding, within_needs=False))
        if int(loads.max()) <= target + heaviest:
            return tasks
    return _moved(goal, pieces, shedding, _rounded_rows(goal, pieces, shedding, within_needs=True))[0]


@attrs.frozen
class _Goal:
    """What a plan should reach: at most ``target`` pairs and ``capacity`` rows on a worker."""

    ratio: int
    row_cost: int
    target: int
    heaviest: int
    capacity: int | None
    local: int
    ranks_per_node: int | None


def _rounded_rows(goal: _Goal, pieces: Pieces, shedding: Shedding, within_needs: bool) -> np.ndarray:
    """Rows of its level that each rank gives up: the fewest that bring it to the target, or one fewer.

    All together may give up more work than the others lack. Some then keep a row and stay less than that row
    above the target, those first that stay nearest. ``within_needs`` makes as many do so as it takes until
    nothing is given up that nobody lacks; else as many as make the busiest rank, giver or receiver, least.
    """
    surplus = int(shedding.overshoots.sum()) - (len(pieces.loads) * goal.target - int(pieces.loads.sum()))
    if surplus <= 0:
        return shedding.level_rows
    inexact = np.flatnonzero(shedding.overshoots)
    above = (shedding.level_works - shedding.overshoots)[inexact]
    order = np.argsort(above, kind="stable")
    left = np.maximum(surplus - np.cumsum(shedding.level_works[inexact[order]]), 0)
    count = int(np.argmin(left)) + 1  # the first that leaves nothing
    if not within_needs:
        receivers = int(np.count_nonzero(pieces.loads < goal.target))
        # a receiver's own cut lies half a row off on average, unless it takes all
        cut = goal.heaviest // 2 if receivers > 1 else 0
        givers = [0, *above[order][:count].tolist()]
        takers = [surplus // receivers + cut, *(left[:count] // receivers + cut).tolist()]
        count = min(range(count + 1), key=lambda k: (max(givers[k], takers[k]), -k))
    rows = shedding.level_rows.copy()
    rows[inexact[order[:count]]] -= 1
    return rows


def _moved(goal: _Goal, pieces: Pieces, shedding: Shedding, level_rows: np.ndarray) -> tuple[Assigned, np.ndarray]:
    """Tasks of rows that stay and rows that move, and the loads that follow."""
    cuts = shed_cuts(pieces, shedding, level_rows, goal.ratio)
    kept_stops = pieces.stops.copy()
    kept_stops[shedding.pieces] -= pieces.last[shedding.pieces] - cuts
    kept = kept_stops > pieces.starts
    home = Assigned(pieces.starts[kept], kept_stops[kept], pieces.owners[kept])

    starts, owners = pieces.starts[shedding.pieces], pieces.owners[shedding.pieces]
    first, last = pieces.first[shedding.pieces], pieces.last[shedding.pieces]
    runs = Runs(starts + cuts - first, cuts, last, owners).where(cuts < last)
    loads = pieces.loads.copy()
    line = lay_out(runs, goal.ratio, goal.row_cost)
    np.subtract.at(loads, runs.owners, np.diff(line.work_ends))
    takers = np.flatnonzero(pieces.loads < goal.target)
    tasks = _place(goal, line, takers, loads) if len(runs.starts) else []
    return join((home, *tasks)), loads


def _place(goal: _Goal, line: Line, takers: np.ndarray, loads: np.ndarray) -> list[Assigned]:
    """Tasks of all runs: inside the nodes first, where nodes are given, then over the whole group."""
    rows = np.full(len(loads), goal.local)
    tasks = []
    if goal.ranks_per_node is not None:
        width = min(goal.ranks_per_node, len(loads))
        runs, left = line.runs, []
        for node in np.unique(runs.owners // width):
            inside = takers[takers // width == node]
            there = lay_out(runs.where(runs.owners // width == node), goal.ratio, goal.row_cost)
            placed, rest = _hand_out(goal, there, inside, 0, loads, rows)
            tasks.append(placed)
            left.append(rest)
        names = ("starts", "first", "last", "owners")
        runs = Runs(*(np.concatenate([getattr(rest, name) for rest in left]) for name in names))
        line = lay_out(runs, goal.ratio, goal.row_cost)
        takers = takers[loads[takers] < goal.target]
    # a rank that lacks less than one row would get a fragment: leave it out if the others lack enough
    roomy = takers[goal.target - loads[takers] >= goal.heaviest]
    if goal.capacity is None and sum((goal.target - loads[roomy]).tolist()) >= line.work:
        takers = roomy
    lacking = sum((goal.target - loads[takers]).tolist())
    above = -(-(line.work - lacking) // len(takers)) if line.work > lacking else 0
    placed, rest = _hand_out(goal, line, takers, above, loads, rows)
    if len(rest.starts):
        homeless = int((rest.last - rest.first).sum())
        raise refusal(
            "HP-INDEX-006",
            "capacity",
            f"{homeless} rows find no worker with at most {goal.capacity} rows",
            "raise capacity or tolerance_ppm",
            capacity=goal.capacity,
            local=goal.local,
            homeless_rows=homeless,
        )
    return [*tasks, placed]


def _hand_out(
    goal: _Goal, line: Line, takers: np.ndarray, above: int, loads: np.ndarray, rows: np.ndarray
) -> tuple[Assigned, Runs]:
    """Tasks that fill the takers to ``above`` over the target, and the runs left; adds to ``loads`` and ``rows``."""
    cuts = np.zeros(0, dtype=np.int64)
    if len(takers) and line.work:
        needs = (goal.target + above - loads[takers]).tolist()
        cuts, works = smoothest_cuts(line, needs)
        if goal.capacity is not None and (rows[takers] + np.diff(cuts, prepend=0) > goal.capacity).any():
            rooms = (goal.capacity - rows[takers]).tolist()
            cuts, works = capped_cuts(line, needs, rooms, goal.heaviest)
        loads[takers] += np.diff(works, prepend=0)
        rows[takers] += np.diff(cuts, prepend=0)
    return line.split(cuts, takers)
