"""A task plan in figures: loads, movement, and both gaps to what is possible at all.

Rules REPORT-1 to REPORT-3 of ``specs/indexer.md``.
"""

from typing import Any

import numpy as np

from hpfun._fields import content_digest, integer, integer_field, integers_field, kind_field, plan_value, readonly
from hpfun.errors import refusal
from hpfun.indexer.bounds import makespan_lower_bound, moved_rows_lower_bound
from hpfun.indexer.tasks import IndexerTaskPlan
from hpfun.intervals import shard_pieces


@plan_value
class IndexerPlanReport:
    """What a plan does and how far from optimal it is.

    Loads are pairs, int64 ``[size]``. ``makespan_bound`` is the least possible greatest load, and
    ``moved_rows_bound`` the fewest moved rows of any plan whose greatest load is no more than this plan's.
    ``received_tasks`` counts, per worker, its tasks with a row from elsewhere; ``peers`` the ranks it exchanges
    rows with. ``bytes_out`` and ``bytes_back`` are bytes between ranks, in total.
    """

    mode: str = kind_field(str, "HP-INDEX-010")
    size: int = integer_field("HP-INDEX-010", least=1)
    tokens: int = integer_field("HP-INDEX-010", least=1)
    loads: Any = integers_field("HP-INDEX-010")
    makespan_bound: int = integer_field("HP-INDEX-010", least=0)
    moved_rows: int = integer_field("HP-INDEX-010", least=0)
    moved_rows_bound: int = integer_field("HP-INDEX-010", least=0)
    bytes_out: int = integer_field("HP-INDEX-010", least=0, most=None)
    bytes_back: int = integer_field("HP-INDEX-010", least=0, most=None)
    tasks: Any = integers_field("HP-INDEX-010")
    received_tasks: Any = integers_field("HP-INDEX-010")
    peers: Any = integers_field("HP-INDEX-010")

    digest = content_digest

    def __attrs_post_init__(self):
        entries = {name: len(getattr(self, name)) for name in ("loads", "tasks", "received_tasks", "peers")}
        if set(entries.values()) != {self.size}:
            message = f"{self.size} ranks, but {entries} entries"
            raise refusal("HP-INDEX-010", "size", message, size=self.size, entries=tuple(entries.values()))

    @property
    def max_load(self) -> int:
        """Pairs of the busiest worker."""
        return int(self.loads.max())

    @property
    def imbalance(self) -> float:
        """Greatest load over mean load; 1.0 if there is no work."""
        total = int(self.loads.sum())
        return self.max_load * self.size / total if total else 1.0

    @property
    def makespan_gap(self) -> float:
        """Greatest load over the least possible one, minus 1: 0.0 is optimal."""
        return self.max_load / self.makespan_bound - 1 if self.makespan_bound else 0.0

    @property
    def moved_rows_gap(self) -> float:
        """Moved rows over the fewest possible at this balance, minus 1; infinite where none had to move."""
        if self.moved_rows == self.moved_rows_bound:
            return 0.0
        return self.moved_rows / self.moved_rows_bound - 1 if self.moved_rows_bound else float("inf")

    @property
    def moved_share(self) -> float:
        """Moved rows as a share of all rows, 0 to 1."""
        return self.moved_rows / self.tokens


def indexer_plan_report(
    plan: IndexerTaskPlan, bytes_per_row_out: int = 0, bytes_per_row_back: int = 0
) -> IndexerPlanReport:
    """Loads, movement, peers and gaps of a plan, with ``bytes_per_row_*`` bytes a row on each way.

    Raises HP-INDEX-011 for byte counts that are not ints of at least 0.

    >>> from hpfun import indexer_task_plan
    >>> report = indexer_plan_report(indexer_task_plan((5, 3, 8), 2, 1, "locality"), 100, 4)
    >>> report.max_load, report.makespan_bound, report.moved_rows, report.moved_rows_bound, report.bytes_out
    (29, 29, 1, 1, 100)
    """
    out = integer(bytes_per_row_out, "bytes_per_row_out", "HP-INDEX-011", least=0)
    back = integer(bytes_per_row_back, "bytes_per_row_back", "HP-INDEX-011", least=0)
    arguments = (plan.documents, plan.size, plan.ratio)
    row_cost = plan.options.row_cost
    lengths = plan.task_stops - plan.task_starts
    return IndexerPlanReport(
        mode=plan.options.mode.value,
        size=plan.size,
        tokens=plan.documents.total,
        loads=plan.loads,
        makespan_bound=makespan_lower_bound(*arguments, row_cost),
        moved_rows=plan.moved_rows,
        moved_rows_bound=moved_rows_lower_bound(*arguments, int(plan.loads.max()), row_cost),
        bytes_out=plan.moved_rows * out,
        bytes_back=plan.moved_rows * back,
        tasks=readonly(np.diff(plan.worker_offsets)),
        received_tasks=readonly(np.bincount(plan.task_workers[plan.home_rows < lengths], minlength=plan.size)),
        peers=_peers(plan),
    )


def _peers(plan: IndexerTaskPlan) -> np.ndarray:
    """Ranks that each rank sends rows to or receives rows from; int64 ``[size]``."""
    which, owners, _, _ = shard_pieces(plan.task_starts, plan.task_stops, plan.local_rows)
    workers = plan.task_workers[which]
    low, high = np.minimum(owners, workers), np.maximum(owners, workers)
    pairs = np.unique((low * plan.size + high)[low != high])
    return readonly(np.bincount(np.concatenate((pairs // plan.size, pairs % plan.size)), minlength=plan.size))
