"""What a balance mode answers: stretches of rows, and the worker of each.

The planners of the modes share this value; the task plan sorts and merges it (rule PLAN-3 of
``specs/indexer.md``).
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.indexer.work import work_before


@attrs.frozen(eq=False)
class Assigned:
    """Global rows ``[starts, stops)``, each inside one document, and their ``workers``; int64, in any order."""

    starts: Any
    stops: Any
    workers: Any


def join(parts: Sequence[Assigned]) -> Assigned:
    """All stretches of several answers in one."""
    names = ("starts", "stops", "workers")
    return Assigned(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def stretch_works(
    documents: PackedDocuments, starts: np.ndarray, stops: np.ndarray, ratio: int, row_cost: int
) -> np.ndarray:
    """Pairs scored by global rows ``[starts, stops)``, each inside one document; int64.

    >>> stretch_works(PackedDocuments((5, 3)), np.array([0, 5]), np.array([5, 8]), 1, 0).tolist()
    [15, 6]
    """
    origins = documents.boundaries[documents.documents_at(starts)]
    return work_before(stops - origins, ratio, row_cost) - work_before(starts - origins, ratio, row_cost)
