"""hpfun: who computes what and who sends what to whom, as pure functions on integers."""

from hpfun.documents import PackedDocuments
from hpfun.errors import CODES, PlanError, Violation
from hpfun.exchange import RowExchange, check_exchanges, exchange_bytes, traffic_matrix, transpose
from hpfun.explain import diff, explain
from hpfun.indexer.bounds import makespan_lower_bound, moved_rows_lower_bound
from hpfun.indexer.options import (
    IndexerMode,
    IndexerOptions,
    resolve_indexer_balance_block_size,
    validate_indexer_hybrid_threshold,
)
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute, indexer_route, plan_route
from hpfun.indexer.segments import IndexerSegment
from hpfun.indexer.tasks import IndexerTask, IndexerTaskPlan, indexer_task_plan
from hpfun.outcome import Outcome, attempt, merge_outcomes
from hpfun.serial import digest, from_json, to_json
from hpfun.simulate import simulate_exchange

__version__ = "0.1.0"

__all__ = [
    "CODES",
    "IndexerMode",
    "IndexerOptions",
    "IndexerPlanReport",
    "IndexerRoute",
    "IndexerSegment",
    "IndexerTask",
    "IndexerTaskPlan",
    "Outcome",
    "PackedDocuments",
    "PlanError",
    "RowExchange",
    "Violation",
    "attempt",
    "check_exchanges",
    "diff",
    "digest",
    "exchange_bytes",
    "explain",
    "from_json",
    "indexer_plan_report",
    "indexer_route",
    "indexer_task_plan",
    "makespan_lower_bound",
    "merge_outcomes",
    "moved_rows_lower_bound",
    "plan_route",
    "resolve_indexer_balance_block_size",
    "simulate_exchange",
    "to_json",
    "traffic_matrix",
    "transpose",
    "validate_indexer_hybrid_threshold",
]
