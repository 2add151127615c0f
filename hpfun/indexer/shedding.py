"""The fewest rows that an overloaded rank must give up to meet a limit.

A rank's most expensive rows are the tails of its document pieces, so the fewest rows are everything that
sees more than some number of keys, plus some of the rows that see exactly that number. That number is found
by bisection for all overloaded ranks at once. Rules LOCAL-1 to LOCAL-3 of ``specs/indexer.md``.
"""

from typing import Any

import attrs
import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.indexer.work import rows_seeing, work_before, work_seeing


@attrs.frozen(eq=False)
class Pieces:
    """Stretches of one document inside one shard, in row order; int64 arrays of equal length.

    ``starts`` and ``stops`` are global rows, ``first`` and ``last`` the same counted from the document's
    start, ``works`` the pairs to score; piece i belongs to ``owners[i]``. ``loads`` is int64 ``[size]``.
    """

    starts: Any
    stops: Any
    owners: Any
    first: Any
    last: Any
    work_to_first: Any
    work_to_last: Any
    loads: Any


def shard_pieces(documents: PackedDocuments, size: int, ratio: int, row_cost: int) -> Pieces:
    """The pieces that ``size`` equal shards cut the documents into."""
    local = documents.shard_rows(size)
    cuts = np.sort(np.concatenate((documents.boundaries, np.arange(local, documents.total, local))), kind="stable")
    cuts = cuts[np.concatenate(([True], cuts[1:] != cuts[:-1]))]
    starts, stops = cuts[:-1], cuts[1:]
    origins = documents.boundaries[np.searchsorted(documents.boundaries, starts, side="right") - 1]
    owners = starts // local
    first, last = starts - origins, stops - origins
    to_first, to_last = work_before(first, ratio, row_cost), work_before(last, ratio, row_cost)
    edges = np.searchsorted(starts, np.arange(0, documents.total, local))
    return Pieces(starts, stops, owners, first, last, to_first, to_last, np.add.reduceat(to_last - to_first, edges))


@attrs.frozen(eq=False)
class Shedding:
    """What the ranks above a limit give up at least; arrays over those ranks, in rank order.

    Rank ``ranks[i]`` gives up every row that sees more than ``levels[i]`` keys and ``level_rows[i]`` of those
    that see exactly as many, each of ``level_works[i]`` pairs; it then lies ``overshoots[i]`` pairs (less than
    one such row) below the limit. ``pieces`` indexes the pieces of those ranks and ``groups`` says whose.
    """

    ranks: Any
    levels: Any
    level_rows: Any
    level_works: Any
    overshoots: Any
    pieces: Any
    groups: Any


def least_shedding(pieces: Pieces, limit: int, ratio: int, row_cost: int) -> Shedding:
    """The least that every rank above ``limit`` pairs has to give up."""
    ranks = np.flatnonzero(pieces.loads > limit)
    chosen = np.flatnonzero((pieces.loads > limit)[pieces.owners])
    groups = np.searchsorted(ranks, pieces.owners[chosen])
    edges = np.searchsorted(groups, np.arange(len(ranks)))
    low, high = pieces.work_to_first[chosen], pieces.work_to_last[chosen]
    if not len(ranks):
        return Shedding(ranks, ranks, ranks, ranks, ranks, chosen, groups)
    bases = np.add.reduceat(low, edges)

    def kept(keys: np.ndarray) -> np.ndarray:
        """Work of the rows that see at most ``keys`` keys, per rank."""
        level = work_seeing(keys, ratio, row_cost)[groups]
        return np.add.reduceat(np.minimum(np.maximum(level, low), high), edges) - bases

    fits = np.full(len(ranks), -1)
    exceeds = np.maximum.reduceat(pieces.last[chosen], edges) // ratio
    while (exceeds - fits > 1).any():
        middle = (fits + exceeds) // 2
        good = kept(middle) <= limit
        fits = np.where(good, middle, fits)
        exceeds = np.where(good, exceeds, middle)
    excess = kept(exceeds) - limit
    each = exceeds + row_cost
    level_rows = -(-excess // each)
    return Shedding(ranks, exceeds, level_rows, each, level_rows * each - excess, chosen, groups)


def shed_cuts(pieces: Pieces, shedding: Shedding, level_rows: np.ndarray, ratio: int) -> np.ndarray:
    """Where the kept part of each of ``shedding.pieces`` ends, as an in-document row (int64).

    ``level_rows`` rows of each rank's level are given up: first of pieces that give up rows above the level
    anyway (their run only gets longer), then of those with the most rows on the level.
    """
    first, last = pieces.first[shedding.pieces], pieces.last[shedding.pieces]
    above = np.clip(rows_seeing(shedding.levels, ratio)[shedding.groups], first, last)
    on_level = above - np.clip(rows_seeing(shedding.levels - 1, ratio)[shedding.groups], first, last)
    order = np.lexsort((-on_level, above == last, shedding.groups))
    counts = on_level[order]
    ends = np.cumsum(counts)
    edges = np.searchsorted(shedding.groups, np.arange(len(shedding.ranks)))
    before = ends - counts
    taken = np.clip(level_rows[shedding.groups] - (before - before[edges][shedding.groups]), 0, counts)
    cuts = np.empty_like(above)
    cuts[order] = above[order] - taken
    return cuts
