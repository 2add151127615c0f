"""Plans to words: what a value says, and where two values of one type differ.

``explain`` dispatches on the value's type, one short function each. Rules REPORT-4 and REPORT-5 of
``specs/indexer.md``.
"""

from functools import singledispatch

import attrs

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute
from hpfun.indexer.tasks import IndexerTaskPlan
from hpfun.serial import field_digests

ROWS_SHOWN = 16


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
    return f"{value.num_documents} documents, {value.total} tokens; lengths {low} to {high}, mean {mean:.1f}."


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
        f"Indexer plan {value.options.mode.value}: {value.documents.total} tokens in {value.documents.num_documents} "
        f"documents over {value.size} ranks, ratio {value.ratio}.",
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
    return (
        f"Rank {value.rank} of {value.size} {kind} {value.num_source_rows} source rows into "
        f"{value.num_target_rows} slots:\n"
        f"  sends {len(value.send_rows)} rows to {int((value.input_splits > 0).sum())} ranks, "
        f"receives {len(value.receive_rows)} from {int((value.output_splits > 0).sum())};\n"
        f"  keeps {len(value.local_sources)} rows, leaves {value.num_unwritten} slots unwritten; {need}."
    )


@explain.register
def _(value: IndexerRoute) -> str:
    lines = [explain(value.exchange), f"Scores {value.query_count} rows in {len(value.segments)} segments:"]
    for part in value.segments[:ROWS_SHOWN]:
        lines.append(
            f"  rows {part.query_start}..{part.query_stop} see keys {part.key_start}..{part.key_stop}, "
            f"residual {part.residual}"
        )
    if len(value.segments) > ROWS_SHOWN:
        lines.append(f"  ... {len(value.segments) - ROWS_SHOWN} more segments")
    return "\n".join(lines)


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
