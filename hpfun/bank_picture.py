"""Banks as a picture: which rows each rank owns, which it needs from others, and how many those are.

Needs matplotlib, of the extra ``report``, which is imported where it is used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from hpfun._fields import integers
from hpfun.errors import refusal
from hpfun.report import MARKED_RANKS, in_units, save_figure
from hpfun.sequence.bank import SequenceBankPlan
from hpfun.sequence.report import SequenceReport, sequence_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 1600  # points of the layout that a line shows, as in the picture of task plans
_LINES = 256  # ranks that a panel shows; of more, as many evenly spaced ones
_NARROWEST = 5  # columns of a stretch that would be too narrow to see, where lines are marked
_SPACED_RANKS = 24  # lines that have a gap between them
_MARKED_STARTS = 200
NOTHING, OWN, NEAR, FAR = range(4)  # what a point of a panel is
_COLOURS = ("#ffffff", "#3b3b3b", "#f4a340", "#2b7bba")
_INK = "#303030"


def draw_banks(
    plans: Mapping[str, SequenceBankPlan],
    path: str | Path | BinaryIO,
    starts: Mapping[str, object] | None = None,
    bytes_per_row: Mapping[str, int] | None = None,
    dpi: int = 160,
) -> None:
    """Write ``banks_figure`` to a file or path, whose suffix says the format; equal plans give equal PNG files."""
    save_figure(banks_figure(plans, starts, bytes_per_row), path, dpi)


def banks_figure(
    plans: Mapping[str, SequenceBankPlan],
    starts: Mapping[str, object] | None = None,
    bytes_per_row: Mapping[str, int] | None = None,
) -> "Figure":
    """A matplotlib figure with a panel per plan: who needs whose rows.

    Left, a line per rank, the rows of the plan's layout from left to right: its own rows dark, those it receives
    from the rank before in one colour and from ranks further away in another. What is too narrow to see is widened
    to the left. Right, how many rows each rank receives. ``starts`` says, by plan, the rows at which documents begin,
    ticked if they are few; ``bytes_per_row``, by plan, what a row weighs. Raises HP-INPUT-003 where no plan is given,
    HP-ROUTE-001 and 003 for bad widths and starts.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    if not plans:
        raise refusal("HP-INPUT-003", "plans", "nothing to draw", "pass at least one plan", plans=0)
    widths = bytes_per_row or {}
    ticks = {name: integers(rows, "starts", "HP-ROUTE-003") for name, rows in (starts or {}).items()}
    heights = [float(np.clip(0.8 + 0.06 * plan.size, 1.1, 2.0)) for plan in plans.values()]
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(10, 0.6 + 0.75 * len(plans) + sum(heights)), layout="constrained")
        axes = figure.subplots(len(plans), 2, squeeze=False, width_ratios=(2.6, 1), height_ratios=heights, sharey="row")
        for (layout, halos), (name, plan) in zip(axes, plans.items(), strict=True):
            report = sequence_report(plan, widths.get(name, 0))
            _draw_layout(layout, plan, ticks.get(name, np.zeros(0, np.int64)))
            layout.set_title(_title(name, report), loc="left", fontsize=10.5)
            _draw_halos(halos, plan)
        axes[-1, 0].set_xlabel("row of the layout")
        axes[-1, 1].set_xlabel("rows received")
        _draw_legend(figure, any(0 < len(rows) <= _MARKED_STARTS for rows in ticks.values()))
    return figure


def bank_lines(plan: SequenceBankPlan, lines: int = _LINES, columns: int = _COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Evenly spaced ranks, at most ``lines``, and what each needs: int64 ``[ranks]`` and ``[ranks, columns]``.

    A point is ``NOTHING``, ``OWN``, ``NEAR`` (received from the rank before) or ``FAR`` (from an earlier one).

    >>> from hpfun import sliding_window_plan
    >>> bank_lines(sliding_window_plan((0, 16), 4, 4, 7), columns=16)[1].tolist()[2]
    [0, 0, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0]
    """
    ranks = np.linspace(0, plan.size - 1, min(lines, plan.size)).round().astype(np.int64)
    scale = columns / max(plan.total_rows, 1)
    own, stop, near = plan.owner_offsets[ranks], plan.owner_offsets[ranks + 1], _near_rows(plan)[ranks]
    far = plan.halo_rows[ranks] - near
    narrowest = 0 if scale >= 1 else _NARROWEST if plan.size <= MARKED_RANKS else 2
    ends = np.where(stop > own, np.ceil(stop * scale), own * scale)
    owns = np.where(stop > own, np.minimum(own * scale, ends - narrowest), ends)
    nears = np.where(near > 0, np.minimum((own - near) * scale, owns - narrowest), owns)
    fars = np.where(far > 0, np.minimum((own - near - far) * scale, nears - narrowest), nears)
    points = np.full((len(ranks), columns), NOTHING)
    at = np.arange(columns)
    for what, low, high in ((FAR, fars, nears), (NEAR, nears, owns), (OWN, owns, ends)):
        points[(at >= np.floor(low)[:, None]) & (at < np.floor(high)[:, None])] = what
    return ranks, points


def _near_rows(plan: SequenceBankPlan) -> np.ndarray:
    """Rows that each rank receives from the rank before it; int64 ``[size]``."""
    return np.minimum(plan.halo_rows, np.concatenate(([0], plan.own_rows[:-1])))


def _title(name: str, report: SequenceReport) -> str:
    if not report.moved_rows:
        return f"{name}: no row moves"
    weight = f" ({in_units(report.moved_bytes)} bytes)" if report.bytes_per_row else ""
    rows = "1 row moves" if report.moved_rows == 1 else f"{in_units(report.moved_rows)} rows move"
    shares = (_percent(report.share_of_all_gather), _percent(report.share_of_ring))
    return f"{name}: {rows}{weight}, {shares[0]} of an all-gather, {shares[1]} of a ring"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0995 else f"{100 * share:.2g}%" if share >= 0.0001 else "<0.01%"


def _draw_layout(axes: "Axes", plan: SequenceBankPlan, starts: np.ndarray) -> None:
    from matplotlib.colors import to_rgba_array
    from matplotlib.ticker import MaxNLocator

    _, points = bank_lines(plan)
    if plan.size <= _SPACED_RANKS:
        gap = np.full_like(points, NOTHING)
        points = np.stack((points,) * 5 + (gap,), axis=1).reshape(-1, points.shape[1])
    picture = (to_rgba_array(_COLOURS) * 255).astype(np.uint8)[points]
    total, size = max(plan.total_rows, 1), plan.size
    axes.imshow(picture, extent=(0, total, size - 0.5, -0.5), aspect="auto", interpolation="nearest")
    top = -0.5
    if 0 < len(starts) <= _MARKED_STARTS:
        top -= 0.09 * size
        axes.vlines(starts, top, -0.5 - 0.02 * size, colors=_INK, linewidth=0.6)
    axes.set(xlim=(0, total), ylim=(size - 0.5, top), ylabel="rank")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: in_units(int(value)).replace(".0", ""))
    axes.spines[["top", "right"]].set_visible(False)


def _draw_halos(axes: "Axes", plan: SequenceBankPlan) -> None:
    from matplotlib.ticker import MaxNLocator

    near = _near_rows(plan)
    far = plan.halo_rows - near
    ranks = np.arange(plan.size)
    if plan.size <= MARKED_RANKS:
        height = 0.84 if plan.size <= _SPACED_RANKS else 1
        axes.barh(ranks, near, height=height, color=_COLOURS[NEAR])
        axes.barh(ranks, far, left=near, height=height, color=_COLOURS[FAR])
    else:
        edges = np.arange(plan.size + 1) - 0.5
        axes.stairs(near + far, edges, baseline=near, fill=True, orientation="horizontal", color=_COLOURS[FAR])
        axes.stairs(near, edges, fill=True, orientation="horizontal", color=_COLOURS[NEAR])
    axes.set_xlim(0, max(int(plan.halo_rows.max()), 1) * 1.04)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: in_units(int(value)).replace(".0", ""))
    axes.tick_params(labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_legend(figure: "Figure", ticked: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels = {OWN: "own rows", NEAR: "received from the rank before", FAR: "received from ranks further away"}
    entries: list[Any] = [Patch(color=_COLOURS[what], label=label) for what, label in labels.items()]
    if ticked:
        entries.append(Line2D([], [], color=_INK, linewidth=0.8, marker="|", linestyle="", label="document starts"))
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries), frameon=False, fontsize=8.5)
