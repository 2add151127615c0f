"""Order restored: where the tokens of a batch lie in its shards, and rows moved from one plan's shards to another's.

Rules BATCH-22 and BATCH-23 of ``specs/batch.md``.
"""

from functools import lru_cache

import numpy as np

from hpfun._fields import readonly, sealed
from hpfun.batch.layouts import BY_NAME
from hpfun.batch.plan import BatchPlan, check_plan
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.shards import check_rank


def restore_index(plan: BatchPlan) -> np.ndarray:
    """The row of each token in all CP ranks' shards, one after the other; int64 ``[tokens]``.

    Indexing the concatenated shards with it gives the batch as it came, without padding. With sequence parallelism the
    parts of the TP ranks, inner, concatenate to the same rows. Raises HP-BATCH-007 for what is no plan.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> restore_index(plan_batch((3, 5), BatchTopology(2), layout="zigzag")).tolist()
    [0, 6, 7, 2, 3, 8, 9, 10]
    """
    return _token_rows(check_plan(plan))


@lru_cache(maxsize=4)
def _token_rows(plan: BatchPlan) -> np.ndarray:
    return readonly(position_rows(plan)[plan.sources >= 0])


def position_rows(plan: BatchPlan) -> np.ndarray:
    """The row of each position in all CP ranks' shards, one after the other; int64 ``[padded length]``.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> position_rows(plan_batch((3, 5), BatchTopology(2), layout="zigzag")).tolist()
    [0, 6, 7, 1, 2, 3, 8, 9, 10, 11, 4, 5]
    """
    return sealed(BY_NAME[check_plan(plan).layout].rows(plan.cu_seq_lens, plan.topology.cp_size))


def relayout(plan_from: BatchPlan, plan_to: BatchPlan, rank: int) -> RowExchange:
    """The exchange that turns a CP rank's shard of one plan into its shard of another of the same documents.

    Slots of padding stay unwritten: the executor's ``fill`` goes there. The group is that of the plan with more CP
    ranks; the ranks that the other lacks have no rows in it. Costs O(padded length). Raises HP-BATCH-007 for plans of
    other documents, HP-ROUTE-002 for a rank outside the group.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> there, back = (plan_batch((8,), BatchTopology(2), layout=layout) for layout in ("contiguous", "zigzag"))
    >>> exchange = relayout(there, back, rank=0)
    >>> exchange.local_targets.tolist(), exchange.send_rows.tolist(), exchange.receive_rows.tolist()
    ([0, 1], [2, 3], [2, 3])
    """
    check_plan(plan_from, "plan_from")
    check_plan(plan_to, "plan_to")
    if not np.array_equal(plan_from.lengths, plan_to.lengths):
        digests = (plan_from.digest, plan_to.digest)
        message = f"{plan_from.num_tokens} and {plan_to.num_tokens} tokens in other documents"
        raise refusal("HP-BATCH-007", "plan_to", message, "plan the same lengths twice", digests=digests)
    size = max(plan_from.topology.cp_size, plan_to.topology.cp_size)
    rank = check_rank(rank, size)
    places = [(restore_index(plan), plan.local_length) for plan in (plan_from, plan_to)]
    (source_rank, source_row), (target_rank, target_row) = (np.divmod(rows, local) for rows, local in places)
    mine, arriving = source_rank == rank, target_rank == rank
    sent, received = np.flatnonzero(mine & ~arriving), np.flatnonzero(arriving & ~mine)
    sent = sent[np.argsort(target_rank[sent], kind="stable")]
    received = received[np.argsort(source_rank[received], kind="stable")]
    kept = np.flatnonzero(mine & arriving)
    return RowExchange(
        size=size,
        rank=rank,
        num_source_rows=_rows_of(plan_from, rank),
        num_target_rows=_rows_of(plan_to, rank),
        send_rows=source_row[sent],
        input_splits=np.bincount(target_rank[sent], minlength=size),
        output_splits=np.bincount(source_rank[received], minlength=size),
        receive_rows=target_row[received],
        local_sources=source_row[kept],
        local_targets=target_row[kept],
        required=bool((source_rank != target_rank).any()),
    )


def _rows_of(plan: BatchPlan, rank: int) -> int:
    return plan.local_length if rank < plan.topology.cp_size else 0
