"""Plans side by side: the figures of a comparison, its table, and a picture of who scores what.

The figures exist once, as plain data; tables, JSON and notebooks take them from here. Libraries of the extras
``cli`` (rich) and ``report`` (matplotlib) are imported where they are used, so the figures need neither.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from hpfun.errors import refusal
from hpfun.indexer.report import indexer_plan_report
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan
from hpfun.indexer.work import row_work

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import JustifyMethod
    from rich.table import Table

MARKED_RANKS = 64
_COLUMNS = 1600  # points of the pack that a strip shows: about the pixels of a README's picture
_MARKED_DOCUMENTS = 200
_GREY, _INK = "#b8b8b8", "#303030"


def compare_rows(
    plans: Mapping[str, IndexerTaskPlan],
    bytes_out: int = 0,
    bytes_back: int = 0,
    planning_seconds: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """One row of figures per plan, as data that JSON can hold.

    ``bytes_out`` and ``bytes_back`` are bytes per moved row on each way. ``imbalance`` is greatest load over
    mean; ``makespan_gap`` and ``moved_gap`` say how far load and moved rows are above the least possible (0.0 is
    optimal, None is no finite share); ``bytes`` is both ways together; ``planning_ms`` is None where no time is
    given. Raises HP-INDEX-011 for bad byte counts.

    >>> (row,) = compare_rows({"locality": indexer_task_plan((5, 3, 8), 2, 1, "locality")}, bytes_out=100)
    >>> row["mode"], row["max_load"], row["moved_rows"], row["bytes"], row["moved_gap"]
    ('locality', 29, 1, 100, 0.0)
    """
    seconds = planning_seconds or {}
    rows = []
    for name, plan in plans.items():
        report = indexer_plan_report(plan, bytes_out, bytes_back)
        rows.append(
            {
                "name": name,
                "mode": report.mode,
                "ranks": report.size,
                "tokens": report.tokens,
                "max_load": report.max_load,
                "imbalance": report.imbalance,
                "makespan_gap": report.makespan_gap,
                "moved_rows": report.moved_rows,
                "moved_share": report.moved_share,
                "moved_gap": report.moved_rows_gap if math.isfinite(report.moved_rows_gap) else None,
                "bytes": report.bytes_out + report.bytes_back,
                "tasks_max": int(report.tasks.max()),
                "tasks_mean": float(report.tasks.mean()),
                "peers_max": int(report.peers.max()),
                "planning_ms": seconds[name] * 1000 if name in seconds else None,
            }
        )
    return rows


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> "Table":
    """The rows of ``compare_rows`` as a rich table of at most 80 columns.

    A row of ``name`` and ``skipped`` alone (the reason, in words) stands for a plan that was not made.
    """
    headings = (
        "busiest\n/ mean",
        "over\nbest",
        "rows\nmoved",
        "over\nfewest",
        "bytes\nmoved",
        "tasks\nmax",
        "tasks\nmean",
        "peers\nmax",
        "plan\nms",
    )
    table = figures_table(title, {"mode": "left", **dict.fromkeys(headings, "right")})
    for row in rows:
        table.add_row(row["name"], *(["-"] * 9 if "skipped" in row else _cells(row)))
    return table


def figures_table(title: str, columns: "Mapping[str, JustifyMethod]") -> "Table":
    """An empty rich table in the one look that all comparisons have; ``columns`` are headings with their alignment."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    for heading, justify in columns.items():
        table.add_column(heading, justify=justify, no_wrap=True)
    return table


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['imbalance']:.{4 if row['imbalance'] < 100 else 1}f}",
        _gap(row["makespan_gap"]),
        f"{row['moved_share']:.1%}",
        _gap(row["moved_gap"]),
        in_units(row["bytes"]) if row["bytes"] else "-",
        in_units(row["tasks_max"]),
        f"{row['tasks_mean']:.1f}" if row["tasks_mean"] < 10_000 else in_units(int(row["tasks_mean"])),
        in_units(row["peers_max"]),
        "-" if row["planning_ms"] is None else f"{row['planning_ms']:.{1 if row['planning_ms'] < 100 else 0}f}",
    )


def _gap(share: float | None) -> str:
    """A gap in percent; from ten times on, as a multiple."""
    if share is None:
        return "inf"
    return f"{share:+.2%}" if share < 1 else f"{share + 1:.1f}x"


def in_units(number: int) -> str:
    """A count in at most five characters, with decimal units.

    >>> in_units(999), in_units(131_072), in_units(12_345_678)
    ('999', '131k', '12.3M')
    """
    scaled, unit = float(number), ""
    for unit in ("", "k", "M", "G", "T", "P"):
        if scaled < 999.5 or unit == "P":
            break
        scaled /= 1000
    return f"{number}" if not unit else f"{scaled:.{1 if scaled < 99.95 else 0}f}{unit}"


def draw_plans(
    plans: Mapping[str, IndexerTaskPlan],
    path: str | Path | BinaryIO,
    max_ranks: int = MARKED_RANKS,
    dpi: int = 160,
) -> None:
    """Write ``plans_figure`` to a file or path, whose suffix says the format; equal plans give equal PNG files."""
    save_figure(plans_figure(plans, max_ranks), path, dpi)


def save_figure(figure: "Figure", path: str | Path | BinaryIO, dpi: int) -> None:
    """Write a figure to a file or path, whose suffix says the format; equal figures give equal PNG files."""
    kind = Path(path).suffix.lower() if isinstance(path, (str, Path)) else ".png"
    # a PNG has no date; the version of the library that wrote it would be all that changes
    figure.savefig(path, dpi=dpi, metadata={"Software": None} if kind == ".png" else None)


def plans_figure(plans: Mapping[str, IndexerTaskPlan], max_ranks: int = MARKED_RANKS) -> "Figure":
    """A matplotlib figure with a panel per plan: who scores what, and the loads before and after.

    Left, the pack from left to right: the height is the keys that a row sees, so an area is work; the colour
    is the worker, by rank from dark to light, so that rows at home form one even ramp. The strip below gives
    every row the same height. Right, each worker's load as a multiple of the mean, before in grey. Shard edges
    and single bars are drawn for at most ``max_ranks`` ranks. Raises HP-INPUT-003 where no plan is given.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    if not plans:
        raise refusal("HP-INPUT-003", "plans", "nothing to draw", "pass at least one plan", plans=0)
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(10, 0.75 + 1.55 * len(plans)), layout="constrained")
        axes = figure.subplots(len(plans), 2, squeeze=False, width_ratios=(2.6, 1), sharey="col")
        for (work, loads), (name, plan) in zip(axes, plans.items(), strict=True):
            _draw_work(work, name, plan, max_ranks)
            _draw_loads(loads, plan, max_ranks)
        for work, loads in axes[:-1]:
            work.tick_params(labelbottom=False)
            loads.tick_params(labelbottom=False)
        axes[-1, 0].set_xlabel("row of the pack")
        axes[-1, 1].set_xlabel("worker (rank)")
        _draw_legend(figure, max(plan.size for plan in plans.values()) <= max_ranks)
    return figure


def strip_workers(plan: IndexerTaskPlan, columns: int = _COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Rows at the middle of equal columns of the pack, and their workers; int64, at most ``columns`` each.

    >>> rows, workers = strip_workers(indexer_task_plan((5, 3, 8), 2, 1, "none"), columns=4)
    >>> rows.tolist(), workers.tolist()
    ([2, 6, 10, 14], [0, 0, 1, 1])
    """
    total = plan.documents.total
    columns = min(columns, total)
    # Python integers where the product could leave int64
    rows = np.array([(2 * column + 1) * total // (2 * columns) for column in range(columns)], dtype=np.int64)
    order = plan.task_order
    return rows, plan.task_workers[order][np.searchsorted(plan.task_starts[order], rows, side="right") - 1]


def _draw_work(axes: "Axes", name: str, plan: IndexerTaskPlan, max_ranks: int) -> None:
    rows, workers = strip_workers(plan)
    colours = (rank_colours(plan.size) * 255).astype(np.uint8)[workers]
    documents = plan.documents
    heights = row_work(rows - documents.boundaries[documents.documents_at(rows)], plan.ratio, plan.options.row_cost)
    top = max(int(row_work(documents.lengths.max() - 1, plan.ratio, plan.options.row_cost)), 1)
    levels = (np.arange(240) + 0.5) / 240 * top
    picture = np.where((levels[:, None] < heights)[:, :, None], colours, np.array((255, 255, 255, 0), dtype=np.uint8))
    axes.imshow(picture, extent=(0, documents.total, 0, top), origin="lower", aspect="auto", interpolation="nearest")
    strip = (-0.30 * top, -0.12 * top)
    axes.imshow(
        colours[None], extent=(0, documents.total, *strip), origin="lower", aspect="auto", interpolation="nearest"
    )
    if documents.num_documents <= _MARKED_DOCUMENTS:
        axes.vlines(documents.boundaries, -0.12 * top, -0.05 * top, colors=_INK, linewidth=0.6)
    if plan.size <= max_ranks:
        edges = np.arange(1, plan.size) * plan.local_rows
        axes.vlines(edges, strip[0], top, colors=_INK, linewidth=0.5, linestyles=(0, (1, 3)))
    axes.set(
        xlim=(0, documents.total),
        ylim=(-0.34 * top, 1.05 * top),
        ylabel="cost of a row" if plan.options.row_cost else "keys a row sees",
    )
    axes.set_yticks([0, top], ["0", in_units(top)])
    axes.xaxis.set_major_formatter(lambda value, _: in_units(int(value)).replace(".0", ""))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(
        f"{name}: busiest worker {plan.imbalance:.3f}x the mean, {plan.moved_rows / documents.total:.1%} of rows move",
        loc="left",
        fontsize=10.5,
    )


def _draw_loads(axes: "Axes", plan: IndexerTaskPlan, max_ranks: int) -> None:
    from matplotlib.ticker import MaxNLocator

    before, after = relative_loads(plan)
    if plan.size <= max_ranks:
        ranks = np.arange(plan.size)
        axes.bar(ranks, before, width=0.94, color=_GREY, label="before")
        axes.bar(ranks, after, width=0.6, color=rank_colours(plan.size), label="after")
    else:
        edges = np.arange(plan.size + 1) - 0.5
        axes.stairs(before, edges, fill=True, color=_GREY, label="before")
        axes.stairs(after, edges, color=_INK, label="after")
    axes.axhline(1, color=_INK, linewidth=0.9, linestyle="--")
    axes.set(xlim=(-0.7, plan.size - 0.3), ylabel="load / mean")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def relative_loads(plan: IndexerTaskPlan) -> tuple[np.ndarray, np.ndarray]:
    """Loads of the ranks as multiples of the mean, before (each rank scores its own rows) and after; float64.

    >>> [loads.round(2).tolist() for loads in relative_loads(indexer_task_plan((5, 3, 8), 2, 1, "locality"))]
    [[0.74, 1.26], [1.02, 0.98]]
    """
    home = indexer_task_plan(plan.documents, plan.size, plan.ratio, "none", row_cost=plan.options.row_cost)
    mean = max(int(plan.loads.sum()) / plan.size, 1e-300)
    return home.loads / mean, plan.loads / mean


def rank_colours(size: int) -> np.ndarray:
    """A colour per rank, float64 ``[size, 4]``: viridis, whose order survives colour blindness and grey print.

    >>> rank_colours(3).shape
    (3, 4)
    """
    from matplotlib import colormaps

    return colormaps["viridis"](np.linspace(0, 0.96, size))


def _draw_legend(figure: "Figure", marked: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ramp = rank_colours(5)
    entries: list[Any] = [
        Patch(color=ramp[0], label="colour is the worker: first rank"),
        Patch(color=ramp[2], label="middle rank"),
        Patch(color=ramp[-1], label="last rank"),
        Patch(color=_GREY, label="load before"),
        Line2D([], [], color=_INK, linewidth=0.9, linestyle="--", label="mean load"),
    ]
    if marked:
        entries.append(Line2D([], [], color=_INK, linewidth=0.8, linestyle=(0, (1, 3)), label="shard edges"))
    else:
        entries.append(Line2D([], [], color=_INK, linewidth=1.2, label="load after"))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries), frameon=False, fontsize=8.5)
