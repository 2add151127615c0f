"""``hpfun routes``: what a context-parallel step has to move for a batch, and what it would move without a plan.

``hpfun explain`` of saved values of the same family is here as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from hpfun._fields import integer
from hpfun.bank_picture import draw_banks
from hpfun.batch import BatchManifest, BatchPlan, BatchView, DecoderSequenceLayout, LossScale, batch_figures, batch_view
from hpfun.cli_options import (
    NO_INPUT,
    OUTPUT,
    PLAN,
    Count,
    Input,
    Json,
    Source,
    check_picture,
    group_sizes,
    note,
    numbered,
    print_json,
    progress_bar,
    read_batch,
    stdout,
)
from hpfun.compression.blocks import DocumentCompressionPlan, compression_halo_plan
from hpfun.compression.offsets import compressed_document_offsets
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.explain import explain
from hpfun.recompute import BudgetResult, Estimate, RecomputePlan
from hpfun.report import figures_table, in_units
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.sequence.packed import PackedSequence
from hpfun.sequence.prefix import document_prefix_plan
from hpfun.sequence.report import SequenceReport, sequence_report
from hpfun.sequence.tnd import CsaTndPlan
from hpfun.sequence.window import sliding_window_plan
from hpfun.serial import to_json


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Banks:
    """The group, and what its rows see."""

    ranks: str = "8"
    """Ranks of the group; several as 8,32,128."""
    window: Count = 128
    """Rows that a row sees in its sliding window, itself included."""
    ratio: Count = 4
    """Tokens behind one compressed key."""
    overlap: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Read each block of tokens together with the block before it."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Widths:
    """What a moved row weighs."""

    bytes_per_row: Count = 0
    """Bytes of a token's row, for window and halo."""
    key_bytes: Count | None = None
    """Bytes of a compressed key, for prefix; those of a token's row if not given."""


NO_BANKS, NO_WIDTHS = Banks(), Widths()
# what ``explain_saved`` takes
SAVED = (
    SequenceBankPlan,
    SequenceDispatchRoute,
    SequenceReport,
    DocumentCompressionPlan,
    PackedSequence,
    CsaTndPlan,
    BatchPlan,
    BatchView,
    DecoderSequenceLayout,
    LossScale,
    BatchManifest,
    RecomputePlan,
    BudgetResult,
    Estimate,
)


def routes(
    source: Source,
    /,
    *,
    rank: Annotated[Count | None, Parameter(group=OUTPUT)] = None,
    given: Input = NO_INPUT,
    banks: Banks = NO_BANKS,
    weights: Widths = NO_WIDTHS,
    picture: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Say what context parallelism has to move, beside an all-gather and a ring.

    Three routes: window, the tokens before a shard that a sliding window sees; prefix, the compressed keys of the
    document that reaches into a shard; halo, the tokens that a rank needs to compress its blocks.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    rank
        Explain the three routes of this rank.
    picture
        Draw who needs whose rows as PNG, SVG or PDF; with several --ranks, one file each.
    as_json
        Print the figures, or with --rank the routes, as one JSON object.
    """
    check_picture(picture)
    widths = _widths(weights)
    sizes = group_sizes(banks.ranks)
    documents = read_batch(source, given, sizes)
    starts = _document_starts(documents, banks.ratio) if picture is not None else {}
    made: list[tuple[str, SequenceBankPlan]] = []
    with progress_bar("Planning", len(sizes)) as step:
        for size in sizes:
            plans = bank_plans(documents, size, banks)
            if picture is not None:
                path = numbered(picture, size, len(sizes))
                draw_banks(plans, path, starts, widths)
                note(f"Drew {path}.")
            made += plans.items()
            step(1)
    if rank is not None:
        _print_rank(made, rank, as_json)
        return
    rows = [figures(name, sequence_report(plan, widths[name])) for name, plan in made]
    if as_json:
        asked = {"window": banks.window, "ratio": banks.ratio, "overlap": banks.overlap}
        print_json(tokens=documents.total, documents=documents.num_documents, **asked, routes=rows)
    else:
        _print_table(documents, banks, rows)


def bank_plans(documents: PackedDocuments, size: int, banks: Banks) -> dict[str, SequenceBankPlan]:
    """The three bank plans of a pack, by name."""
    local = documents.shard_rows(size)
    return {
        "window": sliding_window_plan(documents, local, size, banks.window),
        "prefix": document_prefix_plan(documents, local, size, banks.ratio),
        "halo": compression_halo_plan(documents, banks.ratio, local, size, banks.overlap),
    }


def figures(name: str, report: SequenceReport) -> dict[str, Any]:
    """One route's figures, as data that JSON can hold.

    >>> plan = sliding_window_plan((0, 5, 8, 16), 4, 4, window=6)
    >>> row = figures("window", sequence_report(plan, 100))
    >>> row["ranks"], row["moved_bytes"], row["ring_bytes"], row["max_bank_rows"]
    (4, 800, 2400, 8)
    """
    return {
        "ranks": report.size,
        "route": name,
        "rows": report.total_rows,
        "moved_rows": report.moved_rows,
        "moved_bytes": report.moved_bytes,
        "all_gather_bytes": report.all_gather_bytes,
        "ring_bytes": report.ring_bytes,
        "share_of_all_gather": report.share_of_all_gather,
        "share_of_ring": report.share_of_ring,
        "max_bank_rows": report.max_bank_rows,
        "max_senders": int(report.senders.max()),
        "max_peers": int(report.peers.max()),
    }


def explain_saved(value: Any, rank: int | None, module: str | None, as_json: bool) -> None:
    """Print the words of a saved value, of one rank's route of a bank plan, or of a module of a recompute plan.

    Raises HP-INPUT-002 where a value has no ranks or modules, and HP-ROUTE-002.
    """
    if module is not None and not isinstance(value, RecomputePlan):
        kind = type(value).__name__
        raise refusal("HP-INPUT-002", "--module", f"a saved {kind} has no modules", "leave it out", type=kind)
    if rank is not None:
        if not isinstance(value, (SequenceBankPlan, BatchPlan)):
            kind = type(value).__name__
            raise refusal("HP-INPUT-002", "--rank", f"a saved {kind} has no ranks", "leave it out", type=kind)
        value = bank_route(value, rank) if isinstance(value, SequenceBankPlan) else batch_view(value, rank)
    if not as_json:
        print(explain(value, module))
    elif module is not None:
        print_json(module=module, text=explain(value, module))
    elif isinstance(value, SequenceBankPlan):
        print_json(routes=[figures(value.kind, sequence_report(value))])
    elif isinstance(value, BatchPlan):
        print_json(plans=[batch_figures(value)])
    else:
        print(to_json(value))


def _widths(weights: Widths) -> dict[str, int]:
    """Bytes of a row, by route; HP-ROUTE-001."""
    token = integer(weights.bytes_per_row, "--bytes-per-row", "HP-ROUTE-001", least=0)
    key = token if weights.key_bytes is None else integer(weights.key_bytes, "--key-bytes", "HP-ROUTE-001", least=0)
    return {"window": token, "prefix": key, "halo": token}


def _document_starts(documents: PackedDocuments, ratio: int) -> dict[str, np.ndarray]:
    """First rows of the documents in the layout of each route."""
    keys = np.unique(compressed_document_offsets(documents, ratio)[:-1])
    return {"window": documents.boundaries[:-1], "prefix": keys, "halo": documents.boundaries[:-1]}


def _print_rank(made: Sequence[tuple[str, SequenceBankPlan]], rank: int, as_json: bool) -> None:
    found = [(name, plan.size, bank_route(plan, rank)) for name, plan in made]
    if as_json:
        parts = (f'{{"ranks":{size},"route":"{name}","value":{to_json(route)}}}' for name, size, route in found)
        print(f'{{"routes":[{",".join(parts)}]}}')
    else:
        print("\n\n".join(f"{name}: {explain(route)}" for name, _, route in found))


def _print_table(documents: PackedDocuments, banks: Banks, rows: Sequence[Mapping[str, Any]]) -> None:
    console = stdout()
    overlap = ", overlap" if banks.overlap else ""
    console.print(
        f"{documents.total:,} tokens in {documents.num_documents:,} documents; longest {int(documents.lengths.max()):,}"
    )
    headings = (
        "rows\nmoved",
        "bytes\nmoved",
        "gather\nbytes",
        "ring\nbytes",
        "of\ngather",
        "of\nring",
        "largest\nbank",
        "peers\nmax",
    )
    title = f"Window {banks.window:,}, ratio {banks.ratio:,}{overlap}"
    table = figures_table(title, {"ranks": "right", "route": "left", **dict.fromkeys(headings, "right")})
    for at, row in enumerate(rows):
        table.add_row(f"{row['ranks']:,}" if at % 3 == 0 else "", row["route"], *_cells(row), end_section=at % 3 == 2)
    console.print()
    console.print(table)
    console.print("\nrows of prefix are compressed keys; gather: every rank gets all other rows;", style="dim")
    console.print("ring: every shard goes to all later ranks, whatever documents it holds", style="dim")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        in_units(row["moved_rows"]),
        *(in_units(row[name]) if row[name] else "-" for name in ("moved_bytes", "all_gather_bytes", "ring_bytes")),
        _percent(row["share_of_all_gather"]),
        _percent(row["share_of_ring"]),
        in_units(row["max_bank_rows"]),
        in_units(row["max_peers"]),
    )


def _percent(share: float) -> str:
    return "<0.01%" if 0 < share < 0.0001 else f"{share:.2%}"
