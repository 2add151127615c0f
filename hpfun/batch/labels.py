"""Labels, shifted inside documents before anything is cut, and how many each rank then has.

Rules BATCH-25 and BATCH-27 of ``specs/batch.md``.
"""

import numpy as np

from hpfun._fields import INT64_MAX, integer, integers, readonly
from hpfun.batch.plan import BatchPlan, check_plan, document_lengths
from hpfun.errors import refusal

IGNORED = -100


def shift_labels(labels: object, lengths: object, *, depth: int = 1, ignore: int = IGNORED) -> np.ndarray:
    """Each token's label ``depth`` tokens on in its own document, ``ignore`` where there is none; int64 ``[tokens]``.

    ``labels`` int ``[tokens]`` of the whole pack, whose documents have ``lengths`` tokens; ``depth`` is 1 for the next
    token, more for the heads of multi-token prediction. Raises HP-BATCH-003 where there are other labels than tokens,
    HP-BATCH-002 for lengths and HP-BATCH-012 for a depth below 1.

    >>> shift_labels([11, 12, 13, 21, 22], (3, 2)).tolist()
    [12, 13, -100, 22, -100]
    """
    given = integers(labels, "labels", "HP-BATCH-003")
    documents = document_lengths(lengths)
    ahead = integer(depth, "depth", "HP-BATCH-012", least=1, most=INT64_MAX)
    total = int(documents.sum())
    if len(given) != total:
        facts = {"fields": ("labels",), "actual": len(given), "expected": total}
        message = f"{len(given)} labels for documents of {total} tokens"
        raise refusal(
            "HP-BATCH-003", "labels", message, "shift the labels of the whole pack, before it is cut", **facts
        )
    shifted = np.full(total, integer(ignore, "ignore", "HP-BATCH-003", least=-INT64_MAX, most=INT64_MAX))
    if ahead < total:
        left = _left(documents)[:-ahead]
        np.copyto(shifted[:-ahead], given[ahead:], where=left > ahead)
    return readonly(shifted)


def label_counts(plan: BatchPlan, depth: int = 1) -> np.ndarray:
    """Rows of each CP rank that have a label when none is ignored: those with ``depth`` more tokens; int64 ``[cp]``.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> label_counts(plan_batch((7,), BatchTopology(2), layout="zigzag")).tolist()
    [2, 4]
    """
    ahead = integer(depth, "depth", "HP-BATCH-012", least=1, most=INT64_MAX)
    check_plan(plan)
    return readonly(np.array([plan.real_rows(rank, ahead) for rank in range(plan.topology.cp_size)], np.int64))


def _left(lengths: np.ndarray) -> np.ndarray:
    """Tokens of its document from each token on, the token included."""
    ends = np.cumsum(lengths)
    return np.repeat(ends, lengths) - np.arange(int(lengths.sum()))
