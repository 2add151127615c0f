"""Sequence routes: the rows around its shard that a rank needs, and the segments of what it holds."""

from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.sequence.packed import PackedSequence
from hpfun.sequence.prefix import document_prefix_plan, document_prefix_route
from hpfun.sequence.report import SequenceReport, sequence_report
from hpfun.sequence.segments import indexer_segments, split_segments
from hpfun.sequence.tnd import CsaTndPlan, csa_tnd_plan
from hpfun.sequence.window import sliding_window_plan, sliding_window_route

__all__ = [
    "CsaTndPlan",
    "PackedSequence",
    "SequenceBankPlan",
    "SequenceDispatchRoute",
    "SequenceReport",
    "bank_route",
    "csa_tnd_plan",
    "document_prefix_plan",
    "document_prefix_route",
    "indexer_segments",
    "sequence_report",
    "sliding_window_plan",
    "sliding_window_route",
    "split_segments",
]
