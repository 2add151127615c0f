"""How far from perfect: what no row-granular plan can beat.

Rules BOUND-1 and BOUND-2 of ``specs/indexer.md``.
"""

import numpy as np

from hpfun._fields import integer
from hpfun.indexer.shedding import least_shedding, shard_pieces
from hpfun.indexer.tasks import check_group, read_documents
from hpfun.indexer.work import check_work_range, row_work, rows_seeing


def makespan_lower_bound(lengths: object, size: int, ratio: int, row_cost: int = 0) -> int:
    """The least possible greatest load, in pairs: the mean rounded up, or the heaviest single row.

    Raises HP-INDEX-001, 002, 009, 011.

    >>> makespan_lower_bound((5, 3, 8), 2, 1), makespan_lower_bound((1, 1, 6), 8, 1)
    (29, 6)
    """
    pieces = _pieces(lengths, size, ratio, row_cost)
    heaviest = int(row_work(pieces.last.max() - 1, ratio, row_cost))
    return max(-(-int(pieces.loads.sum()) // len(pieces.loads)), heaviest)


def moved_rows_lower_bound(lengths: object, size: int, ratio: int, makespan: int, row_cost: int = 0) -> int:
    """The fewest rows that leave home in any plan whose greatest load is at most ``makespan`` pairs.

    Each rank must give up rows until the rest is at most ``makespan``; taking its most expensive rows first
    needs the fewest. Raises HP-INDEX-001, 002, 009, 011.

    >>> moved_rows_lower_bound((5, 3, 8), 2, 1, makespan=29)
    1
    """
    makespan = integer(makespan, "makespan", "HP-INDEX-011", least=0)
    pieces = _pieces(lengths, size, ratio, row_cost)
    shedding = least_shedding(pieces, makespan, ratio, row_cost)
    level_ends = rows_seeing(shedding.levels, ratio)[shedding.groups]
    first, last = pieces.first[shedding.pieces], pieces.last[shedding.pieces]
    above = last - np.clip(level_ends, first, last)
    return int(above.sum()) + int(shedding.level_rows.sum())


def _pieces(lengths: object, size: int, ratio: int, row_cost: int):
    documents = read_documents(lengths)
    check_group(documents, size, ratio)
    row_cost = integer(row_cost, "row_cost", "HP-INDEX-011", least=0)
    check_work_range(documents, int(ratio), row_cost)
    return shard_pieces(documents, size, int(ratio), row_cost)
