"""``hpfun plan``, ``compare``, ``explain`` and ``bounds``: the balance of the indexer, and words for saved plans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.table import Table

from hpfun.cli_options import (
    NO_BALANCE,
    NO_BYTES,
    NO_INPUT,
    NO_RANKS,
    OUTPUT,
    Balance,
    Bytes,
    Count,
    Input,
    Json,
    Mode,
    Ranks,
    Source,
    check_picture,
    group_sizes,
    note,
    numbered,
    print_json,
    progress_bar,
    read_batch,
    read_source,
    stdout,
    write_text,
)
from hpfun.cli_routes import SAVED, explain_saved
from hpfun.comparison import MOST_TASKS, plan_all_modes, tasks_at_most, warm_up
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.explain import explain as in_words
from hpfun.indexer.bounds import makespan_lower_bound, moved_rows_lower_bound
from hpfun.indexer.options import DEFAULT_BLOCK_SIZE, IndexerMode
from hpfun.indexer.route import plan_route
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan
from hpfun.report import compare_rows, comparison_table, draw_plans, in_units
from hpfun.serial import to_json
from hpfun.workloads import WORKLOADS


def plan(
    source: Source,
    /,
    *,
    mode: Mode = "locality",
    given: Input = NO_INPUT,
    group: Ranks = NO_RANKS,
    balance: Balance = NO_BALANCE,
    out: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Plan a batch, and print or save the plan.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    mode
        none, zigzag, greedy, hybrid or locality.
    out
        Write the plan as JSON; with several --ranks, one file each.
    as_json
        Print the plan as JSON, as hpfun explain reads it.
    """
    sizes = group_sizes(group.ranks)
    documents = read_batch(source, given, sizes)
    plans = [_plan(documents, size, group, balance, mode) for size in sizes]
    if out is not None:
        for made in plans:
            path = numbered(out, made.size, len(plans))
            write_text(path, to_json(made) + "\n")
            note(f"Wrote {path}: {len(made.task_starts):,} tasks.")
    if as_json:
        texts = [to_json(made) for made in plans]
        print(texts[0] if len(texts) == 1 else f'{{"plans":[{",".join(texts)}]}}')
    else:
        print("\n\n".join(map(in_words, plans)))


def compare(
    source: Source,
    /,
    *,
    given: Input = NO_INPUT,
    group: Ranks = NO_RANKS,
    balance: Balance = NO_BALANCE,
    weights: Bytes = NO_BYTES,
    picture: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Compare the five balance modes on a batch.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    picture
        Draw who scores what as PNG, SVG or PDF; with several --ranks, one file each.
    as_json
        Print the figures as one JSON object.
    """
    check_picture(picture)
    sizes = group_sizes(group.ranks)
    documents = read_batch(source, given, sizes)
    warm_up()
    comparisons = []
    with progress_bar("Planning", len(sizes) * len(IndexerMode)) as step:
        for size in sizes:
            made = plan_all_modes(
                documents, size, group.ratio, row_cost=group.row_cost, step=lambda: step(1), **vars(balance)
            )
            rows = compare_rows(made.plans, weights.bytes_out, weights.bytes_back, made.seconds)
            by_mode = {row["name"]: row for row in rows}
            by_mode |= {name: {"name": name, "skipped": reason} for name, reason in made.skipped.items()}
            chosen = {"block_size": made.block_size, "zigzag_min_length": made.zigzag_min_length}
            comparisons.append({"ranks": size, **chosen, "rows": [by_mode[mode.value] for mode in IndexerMode]})
            if picture is not None:
                path = numbered(picture, size, len(sizes))
                draw_plans(made.plans, path)
                note(f"Drew {path}.")
    if as_json:
        print_json(**_batch_figures(documents, group), comparisons=comparisons)
    else:
        _print_comparisons(documents, group, comparisons)


def explain(
    source: Source,
    /,
    *,
    rank: Annotated[Count | None, Parameter(group=OUTPUT)] = None,
    module: Annotated[str | None, Parameter(group=OUTPUT)] = None,
    mode: Mode = "locality",
    given: Input = NO_INPUT,
    group: Ranks = NO_RANKS,
    balance: Balance = NO_BALANCE,
    as_json: Json = False,
) -> None:
    """Say in words what a plan does, or what one rank does in it.

    Parameters
    ----------
    source
        A plan that hpfun plan, batch or recompute wrote, a saved bank plan or route, or what hpfun plan takes.
    rank
        Explain the route of this rank.
    module
        Explain what a recompute plan does to this module.
    mode
        none, zigzag, greedy, hybrid or locality; a saved plan has its own.
    as_json
        Print the figures, or with --rank the route, as one JSON object.
    """
    value = None if source in WORKLOADS else read_source(source, given)
    if isinstance(value, SAVED):
        explain_saved(value, rank, module, as_json)
        return
    if module is not None:
        raise refusal("HP-INPUT-002", "--module", "is for a saved recompute plan", "leave it out", got=module[:60])
    if isinstance(value, IndexerTaskPlan):
        plans = [value]
    else:
        sizes = group_sizes(group.ranks)
        documents = read_batch(source, given, sizes, value)
        plans = [_plan(documents, size, group, balance, mode) for size in sizes]
    routes = [] if rank is None else [plan_route(made, rank) for made in plans]
    if not as_json:
        print("\n\n".join(map(in_words, routes or plans)))
    elif rank is None:
        print_json(plans=[row for made in plans for row in compare_rows({made.options.mode.value: made})])
    else:
        texts = [to_json(route) for route in routes]
        print(texts[0] if len(texts) == 1 else f'{{"routes":[{",".join(texts)}]}}')


def bounds(source: Source, /, *, given: Input = NO_INPUT, group: Ranks = NO_RANKS, as_json: Json = False) -> None:
    """Say what no plan can beat: the least busiest load, and the fewest moved rows at it.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    as_json
        Print the bounds as one JSON object.
    """
    sizes = group_sizes(group.ranks)
    documents = read_batch(source, given, sizes)
    rows = [_bounds(documents, size, group) for size in sizes]
    if as_json:
        print_json(**_batch_figures(documents, group), bounds=rows)
        return
    table = Table(title=_title(documents, group), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("ranks", "rows\neach", "busiest\nnow", "busiest\nat best", "best\n/ mean", "rows\nto move", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row['ranks']:,}",
            f"{row['local_rows']:,}",
            f"{row['imbalance_now']:.3f}x",
            in_units(row["makespan_bound"]),
            f"{row['makespan_bound'] / row['mean_load']:.3f}x" if row["mean_load"] else "-",
            f"{row['moved_rows_bound']:,}",
            f"{row['moved_share_bound']:.1%}",
        )
    stdout().print(table)


def _plan(documents: PackedDocuments, size: int, group: Ranks, balance: Balance, mode: str) -> IndexerTaskPlan:
    """One plan with exactly the options given; HP-INPUT-003 where it would have too many tasks."""
    block = balance.block_size or min(DEFAULT_BLOCK_SIZE, documents.total // size)
    tasks = tasks_at_most(documents, size, mode, max(block, 1), balance.zigzag_min_length or 1)
    if tasks > MOST_TASKS:
        message = f"mode {mode:.20} would cut this pack into some {tasks} tasks, more than {MOST_TASKS}"
        raise refusal("HP-INPUT-003", "--mode", message, "use locality", mode=mode, tasks=tasks, most=MOST_TASKS)
    return indexer_task_plan(documents, size, group.ratio, mode, row_cost=group.row_cost, **vars(balance))


def _bounds(documents: PackedDocuments, size: int, group: Ranks) -> dict[str, Any]:
    now = indexer_task_plan(documents, size, group.ratio, "none", row_cost=group.row_cost)
    least = makespan_lower_bound(documents, size, group.ratio, group.row_cost)
    fewest = moved_rows_lower_bound(documents, size, group.ratio, least, group.row_cost)
    return {
        "ranks": size,
        "local_rows": now.local_rows,
        "mean_load": int(now.loads.sum()) / size,
        "imbalance_now": now.imbalance,
        "makespan_bound": least,
        "moved_rows_bound": fewest,
        "moved_share_bound": fewest / documents.total,
    }


def _batch_figures(documents: PackedDocuments, group: Ranks) -> dict[str, int]:
    return {
        "tokens": documents.total,
        "documents": documents.num_documents,
        "ratio": group.ratio,
        "row_cost": group.row_cost,
    }


def _title(documents: PackedDocuments, group: Ranks) -> str:
    cost = f", row cost {group.row_cost:,}" if group.row_cost else ""
    return f"{documents.total:,} tokens in {documents.num_documents:,} documents, ratio {group.ratio:,}{cost}"


def _print_comparisons(documents: PackedDocuments, group: Ranks, comparisons: Sequence[Mapping[str, Any]]) -> None:
    console = stdout()
    console.print(f"{_title(documents, group)}; longest {int(documents.lengths.max()):,}")
    for comparison in comparisons:
        size, local = comparison["ranks"], documents.total // comparison["ranks"]
        console.print()
        console.print(
            comparison_table(comparison["rows"], f"{size:,} {'ranks' if size > 1 else 'rank'} of {local:,} rows")
        )
        console.print(
            f"greedy, hybrid: blocks of {comparison['block_size']:,}; "
            f"hybrid: zigzag from {comparison['zigzag_min_length']:,} rows",
            style="dim",
        )
        for row in comparison["rows"]:
            if "skipped" in row:
                console.print(f"{row['name']}: not planned, {row['skipped']}", style="dim", markup=False)
    console.print("\nover best, over fewest: against what no plan can beat (hpfun bounds)", style="dim")
