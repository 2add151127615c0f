"""``hpfun batch``: how a batch is padded and laid out over context-parallel ranks, layouts side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hpfun.batch import BatchPlan, BatchTopology, batch_view, plan_batch
from hpfun.batch.layouts import LAYOUTS
from hpfun.batch.report import batch_figures
from hpfun.batch_report import draw_batches, layouts_table
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
    write_text,
)
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.explain import explain
from hpfun.serial import to_json


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Group:
    """The decoder group, and how the batch is laid out in it."""

    ranks: str = "8"
    """CP ranks; several as 8,32,128."""
    tp: Count = 1
    """TP ranks of each CP rank."""
    sequence_parallel: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """TP ranks share the rows of a CP rank."""
    layout: str | None = None
    """contiguous or zigzag; both side by side if not given."""
    alignment: Count | None = None
    """Make the padded length a multiple of this; by default of what either layout needs, 2 x CP ranks or more."""
    capacity: Count | None = None
    """The most padded tokens."""


NO_GROUP = Group()


def batch(
    source: Source,
    /,
    *,
    rank: Annotated[Count | None, Parameter(group=OUTPUT)] = None,
    given: Input = NO_INPUT,
    group: Group = NO_GROUP,
    picture: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    out: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Lay a batch out over context-parallel ranks: padding, causal work and labels of each layout.

    The pack need not divide by the ranks: it is padded.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    rank
        Explain what this CP rank holds.
    picture
        Draw who holds what as PNG, SVG or PDF; with several --ranks, one file each.
    out
        Write the plan as JSON; needs one --ranks and --layout.
    as_json
        Print the figures, or with --rank the views, as one JSON object.
    """
    check_picture(picture)
    sizes = group_sizes(group.ranks)
    layouts = LAYOUTS if group.layout is None else (group.layout,)
    if out is not None:
        _check_one_plan(len(sizes) * len(layouts))
    documents = read_batch(source, given, [1])
    made = _planned(documents, group, sizes, layouts, picture)
    if out is not None:
        write_text(out, to_json(made[0]) + "\n")
        note(f"Wrote {out}.")
    if rank is not None:
        _print_rank(made, rank, as_json)
        return
    rows = [batch_figures(plan) for plan in made]
    if as_json:
        print_json(tokens=documents.total, documents=documents.num_documents, plans=rows)
    else:
        _print_table(made, rows)


def _check_one_plan(count: int) -> None:
    """HP-INPUT-002 unless there is one plan for the file of ``--out``."""
    if count > 1:
        advice = "pass one --ranks and a --layout"
        raise refusal("HP-INPUT-002", "--out", f"{count} plans for one file", advice, plans=count)


def _planned(
    documents: PackedDocuments, group: Group, sizes: Sequence[int], layouts: Sequence[str], picture: Path | None
) -> list[BatchPlan]:
    """The plans of all sizes and layouts, and a picture for each size."""
    options: dict[str, Any] = {"alignment": group.alignment, "capacity": group.capacity}
    made: list[BatchPlan] = []
    with progress_bar("Planning", len(sizes)) as step:
        for size in sizes:
            topology = BatchTopology(size, group.tp, group.sequence_parallel)
            plans = [plan_batch(documents, topology, layout=layout, **options) for layout in layouts]
            if picture is not None:
                path = numbered(picture, size, len(sizes))
                draw_batches({plan.layout: plan for plan in plans}, path)
                note(f"Drew {path}.")
            made += plans
            step(1)
    return made


def _print_rank(made: Sequence[BatchPlan], rank: int, as_json: bool) -> None:
    views = [batch_view(plan, rank) for plan in made]
    if as_json:
        print(f'{{"views":[{",".join(map(to_json, views))}]}}')
    else:
        print("\n\n".join(map(explain, views)))


def _print_table(made: Sequence[BatchPlan], rows: Sequence[Mapping[str, Any]]) -> None:
    console = stdout()
    first, topology = made[0], made[0].topology
    longest = int(first.lengths.max())
    console.print(f"{first.num_tokens:,} tokens in {len(first.lengths):,} documents; longest {longest:,}")
    shared = f", {topology.tp_size} TP ranks {'with' if topology.sequence_parallel else 'without'} sequence parallelism"
    console.print()
    console.print(layouts_table(rows, f"Layouts{shared if topology.tp_size > 1 else ''}"))
    console.print("\nbusiest: causal work of a rank; keys moved: rows that attention brings to", style="dim")
    console.print("other ranks, document prefixes when contiguous, all of them in zigzag", style="dim")
