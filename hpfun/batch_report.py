"""Batch layouts side by side: a table of their figures, and a picture of who holds which tokens and how much work.

Libraries of the extras ``cli`` (rich) and ``report`` (matplotlib) are imported where they are used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from hpfun.batch.labels import label_counts
from hpfun.batch.plan import BatchPlan
from hpfun.batch.report import relative_work
from hpfun.batch.restore import position_rows
from hpfun.errors import refusal
from hpfun.report import MARKED_RANKS, figures_table, in_units, rank_colours, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

_COLUMNS = 1600  # points of the pack that a panel shows, as in the picture of task plans
_MARKED_DOCUMENTS = 200
_LINES = 240
_PADDING, _INK, _GREY = "#d73027", "#303030", "#b8b8b8"
_DOT: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 4, "color": "white", "markeredgecolor": _INK}
_POINT: dict[str, Any] = {"linestyle": "", "marker": ",", "color": _INK}


def layouts_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> "Table":
    """The rows of ``batch_figures`` as a rich table of at most 80 columns, a line below each number of ranks."""
    headings = (
        "padding",
        "rows\neach",
        "real\nleast",
        "busiest\n/ mean",
        "labels\nleast",
        "labels\nmost",
        "keys\nmoved",
    )
    table = figures_table(title, {"CP\nranks": "right", "layout": "left", **dict.fromkeys(headings, "right")})
    for at, row in enumerate(rows):
        ranks = [other["ranks"] for other in rows]
        first, last = at == 0 or ranks[at - 1] != ranks[at], at + 1 == len(rows) or ranks[at + 1] != ranks[at]
        table.add_row(f"{row['ranks']:,}" if first else "", row["layout"], *_cells(row), end_section=last)
    return table


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    share = f" ({row['padding'] / row['tokens']:.2%})" if row["tokens"] else ""
    return (
        f"{in_units(row['padding'])}{share}",
        in_units(row["rows"]),
        in_units(row["real_rows_min"]),
        "-" if row["work_imbalance"] is None else f"{row['work_imbalance']:.3f}",
        in_units(row["labels_min"]),
        in_units(row["labels_max"]),
        in_units(row["key_rows_moved"]),
    )


def draw_batches(plans: Mapping[str, BatchPlan], path: str | Path | BinaryIO, dpi: int = 160) -> None:
    """Write ``batches_figure`` to a file or path, whose suffix says the format; equal plans give equal PNG files."""
    save_figure(batches_figure(plans), path, dpi)


def batches_figure(plans: Mapping[str, BatchPlan]) -> "Figure":
    """A matplotlib figure with a panel per plan: who holds what, and the work and labels of each rank.

    Left, the padded pack from left to right: the height is the keys that a row sees, so an area is work; the colour is
    the CP rank that holds it, padding is red in the strip below. Right, each rank's causal work as a multiple of the
    mean, and its labels as a multiple of their mean. Raises HP-INPUT-003 where no plan is given.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    if not plans:
        raise refusal("HP-INPUT-003", "plans", "nothing to draw", "pass at least one plan", plans=0)
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(10, 0.75 + 1.55 * len(plans)), layout="constrained")
        axes = figure.subplots(len(plans), 2, squeeze=False, width_ratios=(2.6, 1), sharey="col")
        for (held, work), (name, plan) in zip(axes, plans.items(), strict=True):
            _draw_shards(held, name, plan)
            _draw_ranks(work, plan)
        axes[-1, 0].set_xlabel("position in the padded pack")
        axes[-1, 1].set_xlabel("CP rank")
        _draw_legend(figure)
    return figure


def strip_ranks(plan: BatchPlan, columns: int = _COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Positions at the middle of equal columns of the padded pack, and their CP ranks; int64, at most ``columns``.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> strip_ranks(plan_batch((16,), BatchTopology(4), layout="zigzag"), columns=8)[1].tolist()
    [0, 1, 2, 3, 3, 2, 1, 0]
    """
    total = plan.padded_length
    columns = min(columns, total)
    positions = np.array([(2 * column + 1) * total // (2 * columns) for column in range(columns)], dtype=np.int64)
    return positions, position_rows(plan)[positions] // plan.local_length


def _draw_shards(axes: "Axes", name: str, plan: BatchPlan) -> None:
    from matplotlib.colors import to_rgba

    positions, ranks = strip_ranks(plan)
    colours = (rank_colours(plan.topology.cp_size) * 255).astype(np.uint8)[ranks]
    documents = np.searchsorted(plan.cu_seq_lens, positions, side="right") - 1
    places = positions - plan.cu_seq_lens[documents]
    real = places < plan.real_lengths[documents]
    top = max(int(plan.real_lengths.max()), 1)
    levels = (np.arange(_LINES) + 0.5) / _LINES * top
    seen = np.where(real, places + 1, 0)
    picture = np.where((levels[:, None] < seen)[:, :, None], colours, np.array((255, 255, 255, 0), dtype=np.uint8))
    where: Any = {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    axes.imshow(picture, extent=(0, plan.padded_length, 0, top), **where)
    strip = np.where(real[:, None], colours, (np.array(to_rgba(_PADDING)) * 255).astype(np.uint8))
    axes.imshow(strip[None], extent=(0, plan.padded_length, -0.30 * top, -0.12 * top), **where)
    if len(plan.padded_lengths) <= _MARKED_DOCUMENTS:
        axes.vlines(plan.cu_seq_lens, -0.12 * top, -0.05 * top, colors=_INK, linewidth=0.6)
    axes.set(xlim=(0, plan.padded_length), ylim=(-0.34 * top, 1.05 * top), ylabel="keys a row sees")
    axes.set_yticks([0, top], ["0", in_units(top)])
    axes.xaxis.set_major_formatter(lambda value, _: in_units(int(value)).replace(".0", ""))
    axes.spines[["top", "right", "left"]].set_visible(False)
    padding = plan.padded_length - plan.num_tokens
    busiest = relative_work(plan).max()
    axes.set_title(
        f"{name}: busiest rank {busiest:.3f}x the mean, {in_units(padding)} tokens of padding",
        loc="left",
        fontsize=10.5,
    )


def _draw_ranks(axes: "Axes", plan: BatchPlan) -> None:
    from matplotlib.ticker import MaxNLocator

    size = plan.topology.cp_size
    work, labels = relative_work(plan), label_counts(plan)
    spread = labels / max(labels.mean(), 1e-300)
    if size <= MARKED_RANKS:
        axes.bar(np.arange(size), work, width=0.8, color=rank_colours(size))
    else:
        axes.stairs(work, np.arange(size + 1) - 0.5, fill=True, color=_GREY)
    axes.plot(np.arange(size), spread, **(_DOT if size <= MARKED_RANKS else _POINT))
    axes.axhline(1, color=_INK, linewidth=0.9, linestyle="--")
    axes.set(xlim=(-0.7, size - 0.3), ylim=(0, None), ylabel="work / mean")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: "Figure") -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ramp = rank_colours(5)
    entries: list[Any] = [
        Patch(color=ramp[0], label="colour is the rank: first"),
        Patch(color=ramp[2], label="middle"),
        Patch(color=ramp[-1], label="last"),
        Patch(color=_PADDING, label="padding"),
        Line2D([], [], **_DOT, label="labels / mean"),
        Line2D([], [], color=_INK, linewidth=0.9, linestyle="--", label="mean"),
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries), frameon=False, fontsize=8.5)
