"""Plans to words: what a value says, or what it says of one part.

``explain`` dispatches on the value's type, one short function each. Rules REPORT-4 of ``specs/indexer.md``,
SEQ-13 of ``specs/sequence.md``, RECOMPUTE-41 of ``specs/recompute.md``, ATTN-18 of ``specs/attention.md``, BATCH-45 of
``specs/batch.md``.
"""

from functools import singledispatch

import numpy as np

from hpfun.attention.plan import AttentionPlan
from hpfun.attention.schedule import OverlapSchedule
from hpfun.attention.sharing import LayerSharing
from hpfun.attention.words import attention_in_words, schedule_in_words, sharing_in_words
from hpfun.batch.decoder import DecoderSequenceLayout
from hpfun.batch.loss import LossScale
from hpfun.batch.manifest import BatchManifest
from hpfun.batch.plan import BatchPlan
from hpfun.batch.view import BatchView
from hpfun.batch.words import (
    batch_in_words,
    batch_view_in_words,
    decoder_in_words,
    loss_in_words,
    manifest_in_words,
)
from hpfun.compression.blocks import DocumentCompressionPlan
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute
from hpfun.indexer.tasks import IndexerTaskPlan
from hpfun.recompute.budget import BudgetResult, Estimate
from hpfun.recompute.plan import RecomputePlan
from hpfun.recompute.words import choice_in_words, estimate_in_words, module_in_words, plan_in_words
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute
from hpfun.sequence.packed import PackedSequence
from hpfun.sequence.report import SequenceReport, sequence_report
from hpfun.sequence.tnd import CsaTndPlan
from hpfun.wording import counted

ROWS_SHOWN = 16
PARTNERS_SHOWN = 4


def explain(value: object, fqn: str | None = None) -> str:
    """A value in plain words, a few lines of at most 80 columns; with ``fqn``, what it says of that module.

    Raises HP-SERIAL-002 for a type without words, or without words for a module.

    >>> from hpfun import indexer_task_plan
    >>> print(explain(indexer_task_plan((5, 3, 8), 2, 1, "locality")))
    Indexer plan locality: 16 tokens in 3 documents over 2 ranks, ratio 1.
    Work 57 pairs; busiest worker 29, 1.018x the mean.
    No plan can get below 29; this one is 0.00% above.
    1 row moves (6.25%); this balance needs at least 1 to move.
    Tasks from elsewhere per worker: at most 1; peers: at most 1.
      worker        rows                  load   of mean   tasks
           0           9                    29     1.018       3
           1           7                    28     0.982       1
    """
    return _words(value) if fqn is None else _module_words(value, fqn)


@singledispatch
def _words(value: object) -> str:
    kind = type(value).__name__
    raise refusal(
        "HP-SERIAL-002",
        "value",
        f"no words for a {kind}",
        "pass a plan, a report, a route, an exchange or documents",
        type=kind,
    )


@singledispatch
def _module_words(value: object, fqn: str) -> str:
    kind = type(value).__name__
    raise refusal("HP-SERIAL-002", "value", f"a {kind} says nothing of modules", "pass a recompute plan", type=kind)


_words.register(RecomputePlan)(plan_in_words)
_words.register(Estimate)(estimate_in_words)
_words.register(BudgetResult)(choice_in_words)
_words.register(LayerSharing)(sharing_in_words)
_words.register(OverlapSchedule)(schedule_in_words)
_words.register(AttentionPlan)(attention_in_words)
_words.register(BatchPlan)(batch_in_words)
_words.register(BatchView)(batch_view_in_words)
_words.register(DecoderSequenceLayout)(decoder_in_words)
_words.register(LossScale)(loss_in_words)
_words.register(BatchManifest)(manifest_in_words)
_module_words.register(RecomputePlan)(module_in_words)


@_words.register
def _(value: PackedDocuments) -> str:
    low, high, mean = value.lengths.min(), value.lengths.max(), value.total / value.num_documents
    documents, tokens = counted(value.num_documents, "document"), counted(value.total, "token")
    return f"{documents}, {tokens}; lengths {low} to {high}, mean {mean:.1f}."


@_words.register
def _(value: IndexerPlanReport) -> str:
    rows, moves = ("row", "moves") if value.moved_rows == 1 else ("rows", "move")
    return (
        f"Work {int(value.loads.sum())} pairs; busiest worker {value.max_load}, {value.imbalance:.3f}x the mean.\n"
        f"No plan can get below {value.makespan_bound}; this one is {value.makespan_gap:.2%} above.\n"
        f"{value.moved_rows} {rows} {moves} ({value.moved_share:.2%}); this balance needs at least "
        f"{value.moved_rows_bound} to move.\n"
        f"Tasks from elsewhere per worker: at most {value.received_tasks.max()}; peers: at most {value.peers.max()}."
    )


@_words.register
def _(value: IndexerTaskPlan) -> str:
    report = indexer_plan_report(value)
    mean = int(value.loads.sum()) / value.size
    lines = [
        f"Indexer plan {value.options.mode.value}: {counted(value.documents.total, 'token')} in "
        f"{counted(value.documents.num_documents, 'document')} over {counted(value.size, 'rank')}, "
        f"ratio {value.ratio}.",
        explain(report),
        f"{'worker':>8}{'rows':>12}{'load':>22}{'of mean':>10}{'tasks':>8}",
    ]
    for worker in range(min(value.size, ROWS_SHOWN)):
        load = int(value.loads[worker])
        share = load / mean if mean else 1.0
        lines.append(f"{worker:>8}{value.row_counts[worker]:>12}{load:>22}{share:>10.3f}{report.tasks[worker]:>8}")
    if value.size > ROWS_SHOWN:
        lines.append(f"{'...':>8} {value.size - ROWS_SHOWN} more workers")
    return "\n".join(lines)


@_words.register
def _(value: RowExchange) -> str:
    kind = "adds up" if value.reduce else "places"
    need = "a collective is needed" if value.required else "no rank sends anything: no collective"
    sent, received, kept = (len(value.row_list(name)) for name in ("send_rows", "receive_rows", "local_sources"))
    return (
        f"Rank {value.rank} of {value.size} {kind} {counted(value.num_source_rows, 'source row')} into "
        f"{counted(value.num_target_rows, 'slot')}:\n"
        f"  sends {counted(sent, 'row')} to {counted((value.input_splits > 0).sum(), 'rank')}, "
        f"receives {received} from {(value.output_splits > 0).sum()};\n"
        f"  keeps {counted(kept, 'row')}, leaves {counted(value.num_unwritten, 'slot')} unwritten; {need}."
    )


@_words.register
def _(value: IndexerRoute) -> str:
    lines = [
        explain(value.exchange),
        f"Scores {counted(value.query_count, 'row')} in {counted(len(value.segments), 'segment')}:",
    ]
    for part in value.segments[:ROWS_SHOWN]:
        lines.append(
            f"  rows {part.query_start}..{part.query_stop} see keys {part.key_start}..{part.key_stop}, "
            f"residual {part.residual}"
        )
    return "\n".join((*lines, *_more(len(value.segments), "segment")))


@_words.register
def _(value: SequenceReport) -> str:
    largest = f"Largest bank: {counted(value.max_bank_rows, 'row')}"
    if not value.moved_rows:
        return f"No row moves: no collective. {largest}, all own."
    weighed = f", {counted(value.moved_bytes, 'byte')} at {value.bytes_per_row} a row" if value.bytes_per_row else ""
    lines = [f"{counted(value.moved_rows, 'row')} {'moves' if value.moved_rows == 1 else 'move'}{weighed}."]
    for name, rows, total, share in (
        ("all-gather", value.all_gather_rows, value.all_gather_bytes, value.share_of_all_gather),
        ("causal ring", value.ring_rows, value.ring_bytes, value.share_of_ring),
    ):
        weighed = f", {counted(total, 'byte')}" if value.bytes_per_row else ""
        lines.append(f"  {name}: {counted(rows, 'row')}{weighed}; the plan {_share(share)}")
    return "\n".join(
        (
            *lines,
            f"{largest}.",
            f"Senders to a rank: at most {value.senders.max()}; peers: at most {value.peers.max()}.",
        )
    )


@_words.register
def _(value: SequenceBankPlan) -> str:
    report = sequence_report(value)
    low, high = int(value.own_rows.min()), int(value.own_rows.max())
    each = f"{low}" if low == high else f"{low} to {high}"
    lines = [
        f"Bank plan {value.kind}: {counted(value.total_rows, 'row')} over {counted(value.size, 'rank')}, {each} each.",
        explain(report),
        f"{'rank':>8}{'own':>14}{'halo':>14}{'bank':>14}{'senders':>10}{'peers':>8}",
    ]
    for rank in range(min(value.size, ROWS_SHOWN)):
        own, halo, bank = value.own_rows[rank], value.halo_rows[rank], value.bank_rows[rank]
        lines.append(f"{rank:>8}{own:>14}{halo:>14}{bank:>14}{report.senders[rank]:>10}{report.peers[rank]:>8}")
    return "\n".join((*lines, *_more(value.size, "rank")))


@_words.register
def _(value: SequenceDispatchRoute) -> str:
    exchange = value.exchange
    lines = [
        f"Bank of rows {value.global_start}..{value.global_stop}: {value.halo_rows} received, "
        f"{value.local_length} own.",
        explain(exchange),
    ]
    for does, way, splits in (("receives", "from", exchange.output_splits), ("sends", "to", exchange.input_splits)):
        ranks = np.flatnonzero(splits).tolist()
        if len(ranks) > PARTNERS_SHOWN:
            lines.append(f"  {does} {counted(splits.sum(), 'row')} {way} {len(ranks)} ranks, {ranks[0]} to {ranks[-1]}")
        else:
            lines += [f"  {does} {counted(splits[rank], 'row')} {way} rank {rank}" for rank in ranks]
    return "\n".join(lines)


@_words.register
def _(value: DocumentCompressionPlan) -> str:
    before = f", each read with the {value.ratio} before it" if value.overlap else ""
    lines = [
        explain(value.halo),
        f"Compresses {counted(value.num_blocks, 'block')} of {counted(value.ratio, 'row')}{before};\n"
        f"  no rank has more than {counted(value.max_blocks, 'block')}.",
    ]
    for start, position, document in zip(
        *(part[:ROWS_SHOWN].tolist() for part in (value.block_starts, value.block_positions, value.block_documents)),
        strict=True,
    ):
        lines.append(f"  rows {start}..{start + value.ratio} of the bank: document {document}, position {position}")
    return "\n".join((*lines, *_more(value.num_blocks, "block")))


@_words.register
def _(value: PackedSequence) -> str:
    documents = value.documents
    first, last = documents.documents_at((value.local_start, value.local_stop - 1)).tolist()
    return (
        f"Rows {value.local_start}..{value.local_stop} of a pack of {counted(value.global_length, 'token')} in "
        f"{counted(documents.num_documents, 'document')}:\n"
        f"  {counted(value.local_length, 'row')} of {counted(last - first + 1, 'document')}, from document {first} on."
    )


@_words.register
def _(value: CsaTndPlan) -> str:
    count, rows, keys = len(value.residuals), int(value.cu_query_lengths[-1]), int(value.cu_key_lengths[-1])
    lines = [f"Packed layout: {counted(count, 'sequence')}, {counted(rows, 'row')}, {counted(keys, 'key')}:"]
    parts = (value.query_starts, value.query_stops, value.key_starts, value.key_stops, value.residuals)
    for start, stop, first, end, residual in zip(*(part[:ROWS_SHOWN].tolist() for part in parts), strict=True):
        lines.append(f"  rows {start}..{stop} with keys {first}..{end}, residual {residual}")
    return "\n".join((*lines, *_more(count, "sequence")))


def _share(share: float) -> str:
    return "under 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def _more(number: int, noun: str) -> list[str]:
    """What stands for the lines beyond ``ROWS_SHOWN``, if any."""
    return [f"  ... {counted(number - ROWS_SHOWN, f'more {noun}')}"] if number > ROWS_SHOWN else []
