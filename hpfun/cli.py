"""The ``hpfun`` command: plans, comparisons and bounds of a batch on the command line.

Results go to stdout; notes, progress and errors to stderr. With ``--json`` stdout holds one JSON object and
nothing else. Exit status: 0 done, 2 an input was refused (one coded line per violation), 1 anything else.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np

try:
    from cyclopts import App, CycloptsError, Group, Parameter, Token
    from rich import box
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(f"hpfun: {missing.name} is not installed; pip install 'hpfun[cli]'") from None

from hpfun import __version__
from hpfun.documents import PackedDocuments
from hpfun.errors import PlanError, refusal
from hpfun.explain import explain as in_words
from hpfun.indexer.bounds import makespan_lower_bound, moved_rows_lower_bound
from hpfun.indexer.options import BLOCK_MODES, CAPACITY_MODES, DEFAULT_BLOCK_SIZE, IndexerMode
from hpfun.indexer.route import plan_route
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan
from hpfun.report import compare_rows, comparison_table, draw_plans, in_units
from hpfun.serial import to_json
from hpfun.workloads import MOST_BYTES, WORKLOADS, documents_of, file_bytes, pack, read_value, workload

DEFAULT_TOKENS = 131_072
# a plan of more tasks takes gigabytes and minutes, and no rank could follow it
MOST_TASKS = 2**22
MOST_RANKS = 2**20
PICTURES = (".png", ".svg", ".pdf")


def _count(hint: Any, tokens: Sequence[Token]) -> int:
    # the library's own converter would round 3.5 to 4
    text = tokens[0].value.replace("_", "").replace(",", "")
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 100):
        raise ValueError(f"{tokens[0].value[:40]!r} is not an integer")
    return int(text)


Count = Annotated[int, Parameter(converter=_count)]
INPUT, PLAN, OUTPUT = Group("Input", sort_key=1), Group("Plan", sort_key=2), Group("Output", sort_key=3)


@Parameter(name="*", group=INPUT)
@dataclass(frozen=True)
class Input:
    """Where the documents come from."""

    tokens: Annotated[Count | None, Parameter(name=["--tokens", "--total"])] = None
    """Tokens of the pack. A workload is built to it (131,072 if not given), a file is cut to it."""
    fit: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Cut the pack to the largest multiple of the ranks."""
    cap: Count | None = None
    """Cut documents that are longer than this many tokens."""
    seed: Count = 0
    """Seed of the workload published."""
    lengths: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Read the file as lengths, whatever it starts with."""
    cu_seq_lens: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Read the file as cumulative ends, whatever it starts with."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Ranks:
    """The group, and what a row costs."""

    ranks: str = "8"
    """Ranks of the group; several as 8,32,128."""
    ratio: Count = 1
    """Tokens behind one key."""
    row_cost: Count = 0
    """What a row costs besides its scores, in scored pairs."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Balance:
    """Options of the balance modes."""

    block_size: Count | None = None
    """Rows of a block, for greedy and hybrid."""
    zigzag_min_length: Count | None = None
    """Rows from which hybrid cuts a document in zigzag."""
    capacity: Count | None = None
    """Most rows on one worker, for greedy, hybrid and locality."""
    tolerance_ppm: Count = 0
    """How far above the mean load locality may stay, in millionths."""
    ranks_per_node: Count | None = None
    """Ranks of a node, inside which locality moves rows first."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Bytes:
    """What a moved row weighs."""

    bytes_out: Count = 0
    """Bytes of a moved row on its way to the worker."""
    bytes_back: Count = 0
    """Bytes of its result on the way home."""


Source = Annotated[str, Parameter(allow_leading_hyphen=True)]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)]
Mode = Annotated[str, Parameter(group=PLAN)]
_INPUT, _RANKS, _BALANCE, _BYTES = Input(), Ranks(), Balance(), Bytes()

app = App(
    name="hpfun",
    help="Who scores what: plans for packed training batches, split over many ranks.\n\n"
    "SOURCE is a JSON, CSV or text file of document lengths or cu_seq_lens (- for standard input), or one of two "
    "workloads: stdlib (the source files of Python's standard library) and published (a published histogram of "
    "training documents).",
    help_epilogue="Try: hpfun compare published --ranks 8,32",
    version=__version__,
    result_action="return_value",
)


@app.command(sort_key=2)
def plan(
    source: Source,
    /,
    *,
    mode: Mode = "locality",
    given: Input = _INPUT,
    group: Ranks = _RANKS,
    balance: Balance = _BALANCE,
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
    sizes = _sizes(group.ranks)
    documents = _documents(source, given, sizes)
    plans = [_plan(documents, size, group, balance, mode) for size in sizes]
    if out is not None:
        for made in plans:
            path = _numbered(out, made.size, len(plans))
            path.write_text(to_json(made) + "\n", encoding="utf-8")
            _note(f"Wrote {path}: {len(made.task_starts):,} tasks.")
    if as_json:
        texts = [to_json(made) for made in plans]
        print(texts[0] if len(texts) == 1 else f'{{"plans":[{",".join(texts)}]}}')
    else:
        print("\n\n".join(map(in_words, plans)))


@app.command(sort_key=1)
def compare(
    source: Source,
    /,
    *,
    given: Input = _INPUT,
    group: Ranks = _RANKS,
    balance: Balance = _BALANCE,
    weights: Bytes = _BYTES,
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
    if picture is not None and picture.suffix.lower() not in PICTURES:
        message = f"cannot draw a {picture.suffix or 'file without suffix'}"
        raise refusal("HP-INPUT-002", "--picture", message, f"use {', '.join(PICTURES)}", suffix=picture.suffix)
    sizes = _sizes(group.ranks)
    documents = _documents(source, given, sizes)
    _warm_up()
    comparisons = []
    with _progress("Planning", len(sizes) * len(IndexerMode)) as step:
        for size in sizes:
            common = _common_options(documents.total // size, balance)
            plans, seconds, skipped = _all_modes(documents, size, group, balance, common, step)
            rows = {row["name"]: row for row in compare_rows(plans, weights.bytes_out, weights.bytes_back, seconds)}
            rows |= {name: {"name": name, "skipped": reason} for name, reason in skipped.items()}
            comparisons.append({"ranks": size, **common, "rows": [rows[mode.value] for mode in IndexerMode]})
            if picture is not None:
                path = _numbered(picture, size, len(sizes))
                draw_plans(plans, path)
                _note(f"Drew {path}.")
    if as_json:
        _print_json(**_batch_figures(documents, group), comparisons=comparisons)
    else:
        _print_comparisons(documents, group, comparisons)


@app.command(sort_key=3)
def explain(
    source: Source,
    /,
    *,
    rank: Annotated[Count | None, Parameter(group=OUTPUT)] = None,
    mode: Mode = "locality",
    given: Input = _INPUT,
    group: Ranks = _RANKS,
    balance: Balance = _BALANCE,
    as_json: Json = False,
) -> None:
    """Say in words what a plan does, or what one rank does in it.

    Parameters
    ----------
    source
        A plan that hpfun plan wrote, or what hpfun plan takes.
    rank
        Explain the route of this rank.
    mode
        none, zigzag, greedy, hybrid or locality; a saved plan has its own.
    as_json
        Print the figures, or with --rank the route, as one JSON object.
    """
    value = None if source in WORKLOADS else _read(source, given)
    if isinstance(value, IndexerTaskPlan):
        plans = [value]
    else:
        sizes = _sizes(group.ranks)
        documents = _documents(source, given, sizes, value)
        plans = [_plan(documents, size, group, balance, mode) for size in sizes]
    routes = [] if rank is None else [plan_route(made, rank) for made in plans]
    if not as_json:
        print("\n\n".join(map(in_words, routes or plans)))
    elif rank is None:
        _print_json(plans=[row for made in plans for row in compare_rows({made.options.mode.value: made})])
    else:
        texts = [to_json(route) for route in routes]
        print(texts[0] if len(texts) == 1 else f'{{"routes":[{",".join(texts)}]}}')


@app.command(sort_key=4)
def bounds(source: Source, /, *, given: Input = _INPUT, group: Ranks = _RANKS, as_json: Json = False) -> None:
    """Say what no plan can beat: the least busiest load, and the fewest moved rows at it.

    Parameters
    ----------
    source
        A file of lengths or cu_seq_lens, - for standard input, or stdlib or published.
    as_json
        Print the bounds as one JSON object.
    """
    sizes = _sizes(group.ranks)
    documents = _documents(source, given, sizes)
    rows = [_bounds(documents, size, group) for size in sizes]
    if as_json:
        _print_json(**_batch_figures(documents, group), bounds=rows)
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
    _stdout().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status: 0 done, 2 for refused input, 1 for anything else.

    >>> main(["bounds", "published", "--ranks", "8", "--tokens", "131072", "--json"])  # doctest: +ELLIPSIS
    {"tokens": 131072, "documents": ..., "ratio": 1, "row_cost": 0, "bounds": [{"ranks": 8, ...}]}
    0
    """
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(tokens, exit_on_error=False, error_console=_stderr())
        sys.stdout.flush()
    except PlanError as error:
        _print_refusal(error, "--json" in tokens)
        return 2
    except CycloptsError:  # told already
        return 1
    except BrokenPipeError:  # whoever read our output has left, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as missing:
        _note(f"hpfun: {missing.name} is not installed; pip install 'hpfun[report]'")
        return 1
    except (OSError, MemoryError, KeyboardInterrupt) as error:
        _note(f"hpfun: {type(error).__name__}: {error}".rstrip(": "))
        return 1
    return 0


def _print_refusal(error: PlanError, as_json: bool) -> None:
    if not as_json:
        _note("\n".join(violation.line() for violation in error.violations))
        return
    parts = [{**attrs.asdict(v, recurse=False), "facts": dict(v.facts)} for v in error.violations]
    _print_json(error={**parts[0], "violations": parts})


def _print_json(**parts: Any) -> None:
    print(json.dumps(parts, allow_nan=False, default=repr))


def _stdout() -> Console:
    return Console(highlight=False)


def _stderr() -> Console:
    return Console(stderr=True, highlight=False)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


@contextmanager
def _progress(title: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal's stderr that vanishes when done; yields what advances it."""
    console = _stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount=1: bar.advance(task, amount)


def _numbered(path: Path, size: int, count: int) -> Path:
    return path if count == 1 else path.with_name(f"{path.stem}-{size}{path.suffix}")


def _sizes(text: str) -> list[int]:
    """The group sizes of ``--ranks``; HP-INDEX-002 for anything but positive integers up to ``MOST_RANKS``."""
    sizes = []
    for part in text.split(","):
        word = part.strip().replace("_", "")
        if not (word.isascii() and word.isdigit() and 0 < int(word[:10]) <= MOST_RANKS and len(word) <= 10):
            message = f"got {part[:40]!r}, legal is 1..{MOST_RANKS}"
            raise refusal("HP-INDEX-002", "--ranks", message, "as in 8 or 8,32,128", got=part[:40], most=MOST_RANKS)
        sizes.append(int(word))
    return list(dict.fromkeys(sizes))


def _read(source: str, given: Input) -> Any:
    """The documents or the saved value of a file, or of standard input."""
    if given.lengths and given.cu_seq_lens:
        raise refusal("HP-INPUT-002", "--lengths", "excludes --cu-seq-lens", "pass one of them")
    form = "lengths" if given.lengths else "cu_seq_lens" if given.cu_seq_lens else None
    if source == "-":
        return read_value(sys.stdin.buffer.read(MOST_BYTES + 1), "stdin", form)
    return read_value(file_bytes(source), Path(source).name, form)


def _documents(source: str, given: Input, sizes: Sequence[int], value: Any = None) -> PackedDocuments:
    """The pack that the input options describe, divisible by all group sizes; notes say what was cut."""
    if source in WORKLOADS:
        total = DEFAULT_TOKENS if given.tokens is None else given.tokens
        with _progress(f"Reading {source}", total) as step:
            done = 0

            def reached(tokens: int, _: int | None) -> None:
                nonlocal done
                step(tokens - done)
                done = tokens

            documents = workload(source, total, given.seed, given.cap, reached).documents
    else:
        documents = documents_of(_read(source, given) if value is None else value, Path(source).name)
        if given.cap is not None:
            if given.cap < 1:
                raise refusal("HP-INPUT-003", "--cap", f"got {given.cap}, legal is 1 or more", cap=given.cap)
            documents = PackedDocuments(np.minimum(documents.lengths, min(given.cap, documents.total)))
        if given.tokens is not None:
            documents = _cut(documents, given.tokens)
    rest = documents.total % math.lcm(*sizes)
    if not rest:
        return documents
    if given.fit and rest < documents.total:
        return _cut(documents, documents.total - rest)
    size = next((size for size in sizes if documents.total % size), sizes[0])
    raise refusal(
        "HP-INDEX-002",
        "--ranks",
        f"{documents.total} tokens do not divide by {size} ranks",
        "pass fewer ranks" if rest == documents.total else f"pass --fit to cut {rest}, or pad",
        tokens=documents.total,
        size=size,
        remainder=documents.total % size,
    )


def _cut(documents: PackedDocuments, total: int) -> PackedDocuments:
    packed = pack(documents, total)
    if documents.total > total:
        _note(
            f"Kept {total:,} of {documents.total:,} tokens: {packed.used:,} of {documents.num_documents:,} documents, "
            f"the last one shortened by {packed.cut_tokens:,}."
        )
    return packed.documents


def _common_options(local: int, balance: Balance) -> dict[str, int]:
    """Block size and threshold that are legal for shards of ``local`` rows, unless the user has chosen."""
    block = balance.block_size if balance.block_size is not None else min(DEFAULT_BLOCK_SIZE, local)
    # a document below a shard's rows is spread well enough by its blocks
    threshold = balance.zigzag_min_length if balance.zigzag_min_length is not None else local
    return {"block_size": block, "zigzag_min_length": threshold}


def _mode_options(mode: IndexerMode, balance: Balance, common: Mapping[str, int]) -> dict[str, Any]:
    """Those options that a mode has."""
    options: dict[str, Any] = {}
    if mode in BLOCK_MODES:
        options["block_size"] = common["block_size"]
    if mode is IndexerMode.HYBRID:
        options["zigzag_min_length"] = common["zigzag_min_length"]
    if mode in CAPACITY_MODES:
        options["capacity"] = balance.capacity
    if mode is IndexerMode.LOCALITY:
        options |= {"tolerance_ppm": balance.tolerance_ppm, "ranks_per_node": balance.ranks_per_node}
    return options


def tasks_at_most(documents: PackedDocuments, size: int, mode: str, block_size: int = 1, threshold: int = 1) -> int:
    """About how many tasks a plan will have, and rarely more; known before it is made.

    >>> tasks_at_most(PackedDocuments((100, 3)), 4, "zigzag"), tasks_at_most(PackedDocuments((100, 3)), 4, "greedy", 10)
    (9, 11)
    """
    if mode in (IndexerMode.NONE, IndexerMode.LOCALITY):
        return documents.num_documents + 3 * size
    threshold = 2 * size if mode == IndexerMode.ZIGZAG else max(threshold, 2 * size)
    long = documents.lengths >= threshold if mode != IndexerMode.GREEDY else np.zeros(documents.num_documents, bool)
    short = documents.lengths[~long]
    return int(long.sum()) * 2 * size + (
        len(short) if mode == IndexerMode.ZIGZAG else int((-(-short // block_size)).sum())
    )


def _warm_up() -> None:
    """Plan a tiny batch in every mode, so that the times that follow are those of planning, not of a start."""
    for mode in IndexerMode:
        indexer_task_plan((5, 3, 8), 2, 1, mode, **_mode_options(mode, _BALANCE, _common_options(2, _BALANCE)))


def _all_modes(
    documents: PackedDocuments,
    size: int,
    group: Ranks,
    balance: Balance,
    common: Mapping[str, int],
    step: Callable[[int], None],
) -> tuple[dict[str, IndexerTaskPlan], dict[str, float], dict[str, str]]:
    """Plans and planning seconds by mode, and why a mode was skipped."""
    plans, seconds, skipped = {}, {}, {}
    for mode in IndexerMode:
        options = _mode_options(mode, balance, common)
        tasks = tasks_at_most(documents, size, mode, max(common["block_size"], 1), common["zigzag_min_length"])
        started = time.perf_counter()
        if tasks > MOST_TASKS:
            skipped[mode.value] = f"some {tasks:,} tasks, more than {MOST_TASKS:,}"
        else:
            try:
                plans[mode.value] = indexer_task_plan(
                    documents, size, group.ratio, mode, row_cost=group.row_cost, **options
                )
                seconds[mode.value] = time.perf_counter() - started
            except PlanError as error:
                # what holds for this mode alone is part of the comparison; anything else ends it
                if mode is IndexerMode.NONE or error.code not in ("HP-INDEX-006", "HP-INDEX-009"):
                    raise
                skipped[mode.value] = error.violations[0].line()
        step(1)
    return plans, seconds, skipped


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
    console = _stdout()
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


if __name__ == "__main__":
    sys.exit(main())
