"""Plans to words: what a value says, and where two values of one type differ.

``explain`` dispatches on the value's type, one short function each. Rules REPORT-4 and REPORT-5 of
``specs/indexer.md``, SEQ-13 of ``specs/sequence.md``.
"""

from functools import singledispatch

import attrs
import numpy as np

from hpfun.compression.blocks import DocumentCompressionPlan
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute
from hpfun.indexer.tasks import IndexerTaskPlan
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute
from hpfun.sequence.packed import PackedSequence
from hpfun.sequence.report import SequenceReport, sequence_report
from hpfun.sequence.tnd import CsaTndPlan
from hpfun.serial import field_digests

ROWS_SHOWN = 16
PARTNERS_SHOWN = 4


@singledispatch
def explain(value: object) -> str:
    """A value in plain words, a few lines of at most 80 columns; HP-SERIAL-002 for a type without words.

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
    kind = type(value).__name__
    raise refusal(
        "HP-SERIAL-002",
        "value",
        f"no words for a {kind}",
        "pass a plan, a report, a route, an exchange or documents",
        type=kind,
    )


@explain.register
def _(value: PackedDocuments) -> str:
    low, high, mean = value.lengths.min(), value.lengths.max(), value.total / value.num_documents
    documents, tokens = _count(value.num_documents, "document"), _count(value.total, "token")
    return f"{documents}, {tokens}; lengths {low} to {high}, mean {mean:.1f}."


@explain.register
def _(value: IndexerPlanReport) -> str:
    rows, moves = ("row", "moves") if value.moved_rows == 1 else ("rows", "move")
    return (
        f"Work {int(value.loads.sum())} pairs; busiest worker {value.max_load}, {value.imbalance:.3f}x the mean.\n"
        f"No plan can get below {value.makespan_bound}; this one is {value.makespan_gap:.2%} above.\n"
        f"{value.moved_rows} {rows} {moves} ({value.moved_share:.2%}); this balance needs at least "
        f"{value.moved_rows_bound} to move.\n"
        f"Tasks from elsewhere per worker: at most {value.received_tasks.max()}; peers: at most {value.peers.max()}."
    )


@explain.register
def _(value: IndexerTaskPlan) -> str:
    report = indexer_plan_report(value)
    mean = int(value.loads.sum()) / value.size
    lines = [
        f"Indexer plan {value.options.mode.value}: {_count(value.documents.total, 'token')} in "
        f"{_count(value.documents.num_documents, 'document')} over {_count(value.size, 'rank')}, ratio {value.ratio}.",
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


@explain.register
def _(value: RowExchange) -> str:
    kind = "adds up" if value.reduce else "places"
    need = "a collective is needed" if value.required else "no rank sends anything: no collective"
    sent, received, kept = (len(value.row_list(name)) for name in ("send_rows", "receive_rows", "local_sources"))
    return (
        f"Rank {value.rank} of {value.size} {kind} {_count(value.num_source_rows, 'source row')} into "
        f"{_count(value.num_target_rows, 'slot')}:\n"
        f"  sends {_count(sent, 'row')} to {_count((value.input_splits > 0).sum(), 'rank')}, "
        f"receives {received} from {(value.output_splits > 0).sum()};\n"
        f"  keeps {_count(kept, 'row')}, leaves {_count(value.num_unwritten, 'slot')} unwritten; {need}."
    )


@explain.register
def _(value: IndexerRoute) -> str:
    lines = [
        explain(value.exchange),
        f"Scores {_count(value.query_count, 'row')} in {_count(len(value.segments), 'segment')}:",
    ]
    for part in value.segments[:ROWS_SHOWN]:
        lines.append(
            f"  rows {part.query_start}..{part.query_stop} see keys {part.key_start}..{part.key_stop}, "
            f"residual {part.residual}"
        )
    return "\n".join((*lines, *_more(len(value.segments), "segment")))


@explain.register
def _(value: SequenceReport) -> str:
    largest = f"Largest bank: {_count(value.max_bank_rows, 'row')}"
    if not value.moved_rows:
        return f"No row moves: no collective. {largest}, all own."
    weighed = f", {_count(value.moved_bytes, 'byte')} at {value.bytes_per_row} a row" if value.bytes_per_row else ""
    lines = [f"{_count(value.moved_rows, 'row')} {'moves' if value.moved_rows == 1 else 'move'}{weighed}."]
    for name, rows, total, share in (
        ("all-gather", value.all_gather_rows, value.all_gather_bytes, value.share_of_all_gather),
        ("causal ring", value.ring_rows, value.ring_bytes, value.share_of_ring),
    ):
        weighed = f", {_count(total, 'byte')}" if value.bytes_per_row else ""
        lines.append(f"  {name}: {_count(rows, 'row')}{weighed}; the plan {_share(share)}")
    return "\n".join(
        (
            *lines,
            f"{largest}.",
            f"Senders to a rank: at most {value.senders.max()}; peers: at most {value.peers.max()}.",
        )
    )


@explain.register
def _(value: SequenceBankPlan) -> str:
    report = sequence_report(value)
    low, high = int(value.own_rows.min()), int(value.own_rows.max())
    each = f"{low}" if low == high else f"{low} to {high}"
    lines = [
        f"Bank plan {value.kind}: {_count(value.total_rows, 'row')} over {_count(value.size, 'rank')}, {each} each.",
        explain(report),
        f"{'rank':>8}{'own':>14}{'halo':>14}{'bank':>14}{'senders':>10}{'peers':>8}",
    ]
    for rank in range(min(value.size, ROWS_SHOWN)):
        own, halo, bank = value.own_rows[rank], value.halo_rows[rank], value.bank_rows[rank]
        lines.append(f"{rank:>8}{own:>14}{halo:>14}{bank:>14}{report.senders[rank]:>10}{report.peers[rank]:>8}")
    return "\n".join((*lines, *_more(value.size, "rank")))


@explain.register
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
            lines.append(f"  {does} {_count(splits.sum(), 'row')} {way} {len(ranks)} ranks, {ranks[0]} to {ranks[-1]}")
        else:
            lines += [f"  {does} {_count(splits[rank], 'row')} {way} rank {rank}" for rank in ranks]
    return "\n".join(lines)


@explain.register
def _(value: DocumentCompressionPlan) -> str:
    before = f", each read with the {value.ratio} before it" if value.overlap else ""
    lines = [
        explain(value.halo),
        f"Compresses {_count(value.num_blocks, 'block')} of {_count(value.ratio, 'row')}{before};\n"
        f"  no rank has more than {_count(value.max_blocks, 'block')}.",
    ]
    for start, position, document in zip(
        *(part[:ROWS_SHOWN].tolist() for part in (value.block_starts, value.block_positions, value.block_documents)),
        strict=True,
    ):
        lines.append(f"  rows {start}..{start + value.ratio} of the bank: document {document}, position {position}")
    return "\n".join((*lines, *_more(value.num_blocks, "block")))


@explain.register
def _(value: PackedSequence) -> str:
    documents = value.documents
    first, last = documents.documents_at((value.local_start, value.local_stop - 1)).tolist()
    return (
        f"Rows {value.local_start}..{value.local_stop} of a pack of {_count(value.global_length, 'token')} in "
        f"{_count(documents.num_documents, 'document')}:\n"
        f"  {_count(value.local_length, 'row')} of {_count(last - first + 1, 'document')}, from document {first} on."
    )


@explain.register
def _(value: CsaTndPlan) -> str:
    count, rows, keys = len(value.residuals), int(value.cu_query_lengths[-1]), int(value.cu_key_lengths[-1])
    lines = [f"Packed layout: {_count(count, 'sequence')}, {_count(rows, 'row')}, {_count(keys, 'key')}:"]
    parts = (value.query_starts, value.query_stops, value.key_starts, value.key_stops, value.residuals)
    for start, stop, first, end, residual in zip(*(part[:ROWS_SHOWN].tolist() for part in parts), strict=True):
        lines.append(f"  rows {start}..{stop} with keys {first}..{end}, residual {residual}")
    return "\n".join((*lines, *_more(count, "sequence")))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _share(share: float) -> str:
    return "under 0.01%" if 0 < share < 0.0001 else f"{share:.2%}"


def _more(number: int, noun: str) -> list[str]:
    """What stands for the lines beyond ``ROWS_SHOWN``, if any."""
    return [f"  ... {_count(number - ROWS_SHOWN, f'more {noun}')}"] if number > ROWS_SHOWN else []


def diff(one: object, other: object) -> tuple[str, ...]:
    """Names of the fields in which two values of one type differ, nested ones with dots; () if equal.

    >>> from hpfun import indexer_task_plan
    >>> diff(indexer_task_plan((5, 3, 8), 2, 1, "none"), indexer_task_plan((5, 3, 8), 2, 2, "none"))
    ('ratio',)
    """
    if type(one) is not type(other):
        return ("type",)
    ours, theirs = field_digests(one), field_digests(other)
    found: list[str] = []
    for name in ours:
        if ours[name] != theirs[name]:
            a, b = getattr(one, name), getattr(other, name)
            inner = diff(a, b) if attrs.has(type(a)) and type(a) is type(b) else ()
            found.extend(f"{name}.{part}" for part in inner) if inner else found.append(name)
    return tuple(found)
