"""Causal work: how many pairs of a row and a key each CP rank has under causal attention.

Rule BATCH-20 of ``specs/batch.md``.
"""

import numpy as np

from hpfun._fields import INT64_MAX, readonly
from hpfun.batch.plan import BatchPlan, check_plan
from hpfun.errors import refusal


def causal_work(plan: BatchPlan, *, padding: bool = False) -> np.ndarray:
    """Pairs of each CP rank under causal attention: its rows' places in their documents plus 1; int64 ``[cp]``.

    Of real rows, or with ``padding`` of all. Raises HP-BATCH-007 for what is no plan, HP-BATCH-013 where all pairs
    together are beyond int64.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> causal_work(plan_batch((4, 12), BatchTopology(2))).tolist()
    [20, 68]
    >>> causal_work(plan_batch((4, 12), BatchTopology(2), layout="zigzag")).tolist()
    [44, 44]
    """
    check_plan(plan)
    total_work(plan, padding=padding)
    ranks = range(plan.topology.cp_size)
    return readonly(np.array([rank_work(plan, rank, padding=padding) for rank in ranks], np.int64))


def total_work(plan: BatchPlan, *, padding: bool = False) -> int:
    """Pairs of all ranks together; HP-BATCH-013 beyond int64."""
    lengths = plan.padded_lengths if padding else plan.real_lengths
    pairs = sum(length * (length + 1) // 2 for length in lengths.tolist())
    if pairs > INT64_MAX:
        facts = {"padded": plan.padded_length, "raw": plan.num_tokens, "capacity": INT64_MAX}
        raise refusal("HP-BATCH-013", "plan", f"{pairs} pairs are beyond int64", "plan shorter documents", **facts)
    return pairs


def rank_work(plan: BatchPlan, cp_rank: int, *, padding: bool = False) -> int:
    """Pairs of one rank, whose sum ``total_work`` allows; costs O(documents)."""
    documents, starts, stops = plan.pieces(cp_rank)
    lengths = (plan.padded_lengths if padding else plan.real_lengths)[documents]
    low = starts - plan.cu_seq_lens[:-1][documents]
    rows = np.maximum(np.minimum(stops - starts, lengths - low), 0)
    ends = 2 * low + rows + 1  # of the two factors one is even: halved first, the product stays in int64
    return int(np.where(rows % 2 == 0, rows // 2 * ends, rows * (ends // 2)).sum())
