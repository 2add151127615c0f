"""Hypothesis strategies for banks, their routes and reports, compression plans, packed layouts and row intervals.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.compression.blocks import DocumentCompressionPlan, compression_halo_plan, document_compression_plan
from hpfun.pack_strategies import group_sizes, packed_documents
from hpfun.rows import RowRuns, joined
from hpfun.sequence.bank import KINDS, SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.sequence.packed import PackedSequence
from hpfun.sequence.prefix import document_prefix_plan
from hpfun.sequence.report import SequenceReport, sequence_report
from hpfun.sequence.tnd import CsaTndPlan, csa_tnd_plan
from hpfun.sequence.window import sliding_window_plan


@st.composite
def sequence_requests(draw: st.DrawFn, max_size: int = 6, max_length: int = 24) -> dict[str, Any]:
    """Keyword arguments that every plan of sequence routes takes: ``boundaries``, ``local_length`` and ``size``.

    >>> from hypothesis import find
    >>> request = find(sequence_requests(), lambda request: request["size"] == 3)
    >>> request["boundaries"].total == 3 * request["local_length"]
    True
    """
    size = draw(group_sizes(max_size))
    documents = draw(packed_documents(max_length=max_length, multiple_of=size))
    return {"boundaries": documents, "local_length": documents.total // size, "size": size}


@st.composite
def sequence_bank_plans(
    draw: st.DrawFn, kinds: SearchStrategy[str] | None = None, max_size: int = 6, max_length: int = 24
) -> SequenceBankPlan:
    """Bank plans of every kind, or of ``kinds``; windows and ratios reach beyond the longest document.

    >>> from hypothesis import find
    >>> find(sequence_bank_plans(), lambda plan: plan.kind == "halo" and plan.required).size > 1
    True
    """
    kind = draw(kinds or st.sampled_from(KINDS))
    request = draw(sequence_requests(max_size, max_length))
    if kind == "window":
        return sliding_window_plan(**request, window=draw(st.integers(1, max_length + 2)))
    ratio = draw(_ratios(max_length))
    if kind == "prefix":
        return document_prefix_plan(**request, ratio=ratio)
    return compression_halo_plan(**request, ratio=ratio, overlap=draw(st.booleans()))


def sequence_routes(
    kinds: SearchStrategy[str] | None = None, max_size: int = 6, max_length: int = 24
) -> SearchStrategy[list[SequenceDispatchRoute]]:
    """The routes of all ranks of one bank plan, in rank order; arguments as in ``sequence_bank_plans``.

    >>> from hypothesis import find
    >>> routes = find(sequence_routes(), lambda routes: routes[0].exchange.required)
    >>> len(routes) == routes[0].exchange.size
    True
    """
    plans = sequence_bank_plans(kinds, max_size, max_length)
    return plans.map(lambda plan: [bank_route(plan, rank) for rank in range(plan.size)])


def sequence_reports() -> SearchStrategy[SequenceReport]:
    """Reports on bank plans, some with more bytes than int64 holds.

    >>> from hypothesis import find
    >>> find(sequence_reports(), lambda report: report.moved_bytes > 2**64).moved_rows > 0
    True
    """
    return st.builds(sequence_report, sequence_bank_plans(), st.integers(0, 2**20) | st.integers(0, 2**70))


@st.composite
def compression_plans(draw: st.DrawFn, max_size: int = 6, max_length: int = 24) -> list[DocumentCompressionPlan]:
    """The compression plans of all ranks of a pack that needs them, in rank order.

    >>> from hypothesis import find
    >>> find(compression_plans(), lambda plans: any(plan.halo.halo_rows for plan in plans))[0].max_blocks > 0
    True
    """
    request = draw(sequence_requests(max_size, max_length))
    request["ratio"] = draw(_ratios(max_length, least=2))
    overlap = draw(st.booleans())
    # packs of whole blocks need no plan without overlap
    overlap = overlap or document_compression_plan(**request, rank=0) is None
    plans = (document_compression_plan(**request, rank=rank, overlap=overlap) for rank in range(request["size"]))
    return [plan for plan in plans if plan is not None]


@st.composite
def packed_sequences(draw: st.DrawFn, max_length: int = 24) -> PackedSequence:
    """Stretches of packs, from a single row to the whole pack.

    >>> from hypothesis import find
    >>> find(packed_sequences(), lambda shard: shard.local_start > 0 and shard.local_length > 1).global_length
    3
    """
    documents = draw(packed_documents(max_length=max_length))
    start = draw(st.integers(0, documents.total - 1))
    return PackedSequence(documents.boundaries, start, draw(st.integers(1, documents.total - start)), documents.total)


@st.composite
def csa_tnd_plans(draw: st.DrawFn, max_length: int = 24) -> CsaTndPlan:
    """Packed layouts of stretches of packs.

    >>> from hypothesis import find
    >>> len(find(csa_tnd_plans(), lambda plan: not plan.covers_queries(int(plan.query_stops[-1]))).residuals)
    1
    """
    shard = draw(packed_sequences(max_length))
    for ratio in (draw(_ratios(max_length)), 1):  # at ratio 1 every row has a key
        plan = csa_tnd_plan(shard.segments(ratio), ratio)
        if plan is not None:
            return plan
    raise AssertionError("a row without a key at ratio 1")


@st.composite
def row_runs(draw: st.DrawFn, max_runs: int = 6, max_row: int = 40) -> RowRuns:
    """Rows as intervals in any order, overlapping ones and none at all included.

    >>> from hypothesis import find
    >>> find(row_runs(), lambda runs: len(runs.starts) > 1 and runs.starts[0] > runs.starts[1]).rows.tolist()
    [1, 0]
    """
    starts = draw(st.lists(st.integers(0, max_row - 1), max_size=max_runs))
    return joined(starts, [start + draw(st.integers(1, max_row - start)) for start in starts])


def _ratios(max_length: int, least: int = 1) -> SearchStrategy[int]:
    """Small ratios mostly, and some that no document fills."""
    return st.integers(least, 5) | st.integers(least, max_length + 1)
