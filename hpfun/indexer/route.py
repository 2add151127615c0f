"""One rank's view of a task plan: the rows it sends and receives, and the keys its rows may see.

Rules ROUTE-1 to ROUTE-5 of ``specs/indexer.md``. The cost is O(size + tasks), whatever the number of rows.
"""

import re
from typing import Any

import attrs
import numpy as np

from hpfun._fields import content_digest, integer_field, kind_field, plan_value, readonly
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.indexer.segments import IndexerSegment
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan
from hpfun.intervals import shard_pieces
from hpfun.rows import joined
from hpfun.sequence.segments import document_segments
from hpfun.shards import check_rank


@plan_value
class IndexerRoute:
    """One rank's part in a balanced selection.

    ``exchange`` moves query rows from owners to workers; its transpose brings the ids home. ``query_count``
    rows are scored here, in the order of ``segments``; ``max_query_count`` is the most on any worker of the
    group. ``plan_digest`` names the plan that all ranks of the group must share.
    """

    exchange: RowExchange = kind_field(RowExchange, "HP-INDEX-010")
    query_count: int = integer_field("HP-INDEX-010", least=0)
    segments: tuple[IndexerSegment, ...] = attrs.field(converter=lambda parts: _checked_segments(parts))
    max_query_count: int = integer_field("HP-INDEX-010", least=0)
    plan_digest: str = kind_field(str, "HP-INDEX-010")

    digest = content_digest

    def __attrs_post_init__(self):
        edges = [0, *(part.query_stop for part in self.segments)]
        if [part.query_start for part in self.segments] != edges[:-1] or edges[-1] != self.query_count:
            message = f"segments do not tile {self.query_count} rows in order"
            raise refusal("HP-INDEX-010", "segments", message, query_count=self.query_count, last=edges[-1])
        rows = (self.exchange.num_target_rows, self.query_count, self.max_query_count)
        if rows[0] != rows[1] or rows[1] > rows[2] or not self.exchange.num_source_rows:
            message = f"slots, rows and most rows {rows} do not fit together"
            raise refusal("HP-INDEX-010", "query_count", message, rows=rows, local=self.exchange.num_source_rows)
        if not re.fullmatch("[0-9a-f]{64}", self.plan_digest):
            raise refusal("HP-INDEX-010", "plan_digest", "is no sha256 in hex", got=self.plan_digest[:80])

    @property
    def projection_calls(self) -> int:
        """Calls of a projection in chunks of a shard's rows, equal on all ranks and at least one."""
        return max(1, -(-self.max_query_count // self.exchange.num_source_rows))


def _checked_segments(parts: Any) -> tuple[IndexerSegment, ...]:
    if not isinstance(parts, (tuple, list)) or not all(isinstance(part, IndexerSegment) for part in parts):
        kind = type(parts).__name__
        raise refusal("HP-INDEX-010", "segments", f"needs a tuple of IndexerSegment, got {kind}", type=kind)
    return tuple(parts)


def indexer_route(lengths: object, size: int, rank: int, ratio: int, mode: str, **options: Any) -> IndexerRoute:
    """One rank's route for the plan that ``indexer_task_plan(lengths, size, ratio, mode, **options)`` gives.

    Raises what ``indexer_task_plan`` raises, and HP-INDEX-007 for a rank outside the group.

    >>> route = indexer_route((5, 3, 8), 2, 0, 1, "greedy", block_size=2)
    >>> [tuple(segment) for segment in route.segments]
    [(0, 2, 0, 2, 0), (2, 3, 5, 8, 0), (3, 5, 8, 12, 0), (5, 7, 8, 16, 0)]
    >>> route.exchange.send_rows.tolist(), route.exchange.receive_rows.tolist()
    ([2, 3, 4, 5, 6], [3, 4, 5, 6])
    """
    return plan_route(indexer_task_plan(lengths, size, ratio, mode, **options), rank)


def plan_route(plan: IndexerTaskPlan, rank: int) -> IndexerRoute:
    """One rank's route of a plan; HP-INDEX-007 for a rank outside the group."""
    rank = check_rank(rank, plan.size, "HP-INDEX-007")
    return IndexerRoute(
        exchange=_exchange(plan, rank),
        query_count=int(plan.row_counts[rank]),
        segments=_segments(plan, rank),
        max_query_count=int(plan.row_counts.max()),
        plan_digest=plan.digest,
    )


def _mine(plan: IndexerTaskPlan, rank: int) -> slice:
    return slice(int(plan.worker_offsets[rank]), int(plan.worker_offsets[rank + 1]))


def _exchange(plan: IndexerTaskPlan, rank: int) -> RowExchange:
    local, low = plan.local_rows, rank * plan.local_rows
    mine = _mine(plan, rank)
    _, owners, starts, stops = shard_pieces(plan.task_starts[mine], plan.task_stops[mine], local)
    counts, own = stops - starts, owners == rank
    slots = np.cumsum(counts)
    output_splits = np.zeros(plan.size, dtype=np.int64)
    np.add.at(output_splits, owners[~own], counts[~own])
    received = joined(slots[~own] - counts[~own], slots[~own])
    kept = joined(starts[own] - low, stops[own] - low), joined(slots[own] - counts[own], slots[own])

    by_row = plan.task_order
    near = slice(*np.searchsorted(plan.task_starts[by_row], (low, low + local)))
    touching = by_row[max(near.start - 1, 0) : near.stop]
    touching = np.sort(touching[plan.task_workers[touching] != rank])  # worker order, then by start
    starts = np.maximum(plan.task_starts[touching], low)
    stops = np.maximum(np.minimum(plan.task_stops[touching], low + local), starts)
    input_splits = np.zeros(plan.size, dtype=np.int64)
    np.add.at(input_splits, plan.task_workers[touching], stops - starts)
    return RowExchange(
        size=plan.size,
        rank=rank,
        num_source_rows=local,
        num_target_rows=int(plan.row_counts[rank]),
        send_rows=joined(starts - low, stops - low),
        input_splits=readonly(input_splits),
        output_splits=readonly(output_splits),
        receive_rows=received,
        local_sources=kept[0],
        local_targets=kept[1],
        required=plan.moved_rows > 0,
    )


def _segments(plan: IndexerTaskPlan, rank: int) -> tuple[IndexerSegment, ...]:
    mine = _mine(plan, rank)
    return document_segments(
        plan.documents, plan.ratio, plan.task_documents[mine], plan.task_starts[mine], plan.task_stops[mine]
    )
