"""Sliding windows: a row attends to itself and to the ``window - 1`` rows before it, inside its document.

Rules SEQ-1 and SEQ-2 of ``specs/sequence.md``.
"""

from functools import lru_cache

import numpy as np

from hpfun._fields import readonly
from hpfun.documents import PackedDocuments
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.shards import check_shards, positive


def sliding_window_plan(boundaries: object, local_length: int, size: int, window: int) -> SequenceBankPlan:
    """The token banks of all ranks for a sliding window of ``window`` rows, the row itself included.

    ``boundaries`` are cumulative document ends with a leading 0, or ``PackedDocuments``; each of ``size`` ranks owns
    ``local_length`` rows. Raises HP-ROUTE-001 and 003 to 005.

    >>> sliding_window_plan((0, 5, 8, 16), 4, 4, window=6).bank_starts.tolist()
    [0, 0, 8, 8]
    """
    documents, local, size = check_shards(boundaries, local_length, size)
    return _plan(documents, local, size, min(positive(window, "window"), documents.total))


def sliding_window_route(
    boundaries: object, local_length: int, size: int, rank: int, window: int
) -> SequenceDispatchRoute:
    """One rank's bank of tokens for a sliding window; arguments as in ``sliding_window_plan``.

    The bank is ``[max(document start of the first own row, that row - window + 1), end of the own rows)``. Raises
    HP-ROUTE-001 to 005.

    >>> route = sliding_window_route((0, 16), 2, 8, rank=2, window=5)
    >>> route.global_start, route.global_stop, route.exchange.output_splits.tolist()
    (0, 6, [2, 2, 0, 0, 0, 0, 0, 0])
    """
    return bank_route(sliding_window_plan(boundaries, local_length, size, window), rank)


@lru_cache(maxsize=32)
def _plan(documents: PackedDocuments, local: int, size: int, window: int) -> SequenceBankPlan:
    """The plan, computed once for equal arguments: the ranks of a host share it."""
    firsts = np.arange(size + 1) * local
    starts = documents.boundaries[documents.documents_at(firsts[:-1])]
    return SequenceBankPlan("window", readonly(firsts), readonly(np.maximum(starts, firsts[:-1] - window + 1)))
