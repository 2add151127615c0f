"""hpfun: who computes what and who sends what to whom, as pure functions on integers."""

from hpfun.compression import (
    DocumentCompressionPlan,
    compressed_document_offsets,
    compressed_owner_offsets,
    compressed_positions,
    compression_halo_plan,
    document_compression_plan,
)
from hpfun.difference import Change, diff
from hpfun.documents import PackedDocuments
from hpfun.errors import CODES, PlanError, Violation
from hpfun.exchange import RowExchange, check_exchanges, exchange_bytes, traffic_matrix, transpose
from hpfun.explain import explain
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
from hpfun.rows import RowRuns
from hpfun.sequence import (
    CsaTndPlan,
    PackedSequence,
    SequenceBankPlan,
    SequenceDispatchRoute,
    SequenceReport,
    bank_route,
    csa_tnd_plan,
    document_prefix_plan,
    document_prefix_route,
    indexer_segments,
    sequence_report,
    sliding_window_plan,
    sliding_window_route,
    split_segments,
)
from hpfun.serial import digest, from_json, to_json
from hpfun.simulate import simulate_exchange

__version__ = "0.1.0"

__all__ = [
    "CODES",
    "Change",
    "CsaTndPlan",
    "DocumentCompressionPlan",
    "IndexerMode",
    "IndexerOptions",
    "IndexerPlanReport",
    "IndexerRoute",
    "IndexerSegment",
    "IndexerTask",
    "IndexerTaskPlan",
    "Outcome",
    "PackedDocuments",
    "PackedSequence",
    "PlanError",
    "RowExchange",
    "RowRuns",
    "SequenceBankPlan",
    "SequenceDispatchRoute",
    "SequenceReport",
    "Violation",
    "attempt",
    "bank_route",
    "check_exchanges",
    "compressed_document_offsets",
    "compressed_owner_offsets",
    "compressed_positions",
    "compression_halo_plan",
    "csa_tnd_plan",
    "diff",
    "digest",
    "document_compression_plan",
    "document_prefix_plan",
    "document_prefix_route",
    "exchange_bytes",
    "explain",
    "from_json",
    "indexer_plan_report",
    "indexer_route",
    "indexer_segments",
    "indexer_task_plan",
    "makespan_lower_bound",
    "merge_outcomes",
    "moved_rows_lower_bound",
    "plan_route",
    "resolve_indexer_balance_block_size",
    "sequence_report",
    "simulate_exchange",
    "sliding_window_plan",
    "sliding_window_route",
    "split_segments",
    "to_json",
    "traffic_matrix",
    "transpose",
    "validate_indexer_hybrid_threshold",
]
