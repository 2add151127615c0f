"""The frontier of memory and time as a picture: bytes kept against work replayed.

Needs matplotlib, of the extra ``report``, which is imported where it is used.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hpfun.errors import refusal
from hpfun.recompute.budget import BudgetResult
from hpfun.report import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#2b7bba", "#f4a340", "#3b3b3b", "#7a9e3f")
_GIB = 2**30


def draw_frontiers(
    frontiers: Mapping[str, Sequence[BudgetResult]],
    forward_flops: int,
    path: str | Path | BinaryIO,
    budget_bytes: int | None = None,
    dpi: int = 160,
) -> None:
    """Write ``frontiers_figure`` to a file or path, whose suffix says the format; equal input gives equal PNG files."""
    save_figure(frontiers_figure(frontiers, forward_flops, budget_bytes), path, dpi)


def frontiers_figure(
    frontiers: Mapping[str, Sequence[BudgetResult]], forward_flops: int, budget_bytes: int | None = None
) -> "Figure":
    """A matplotlib figure with a line per frontier, by its name: what each number of bytes costs at least.

    Left to right bytes kept between forward and backward, in GiB; upwards replayed work as a share of
    ``forward_flops``, the flops of all regions' forwards. A budget is a vertical line. Raises HP-INPUT-003 where
    there is nothing to draw.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    if not frontiers or not all(frontiers.values()) or forward_flops < 1:
        raise refusal("HP-INPUT-003", "frontiers", "nothing to draw", "pass what frontier gives", plans=len(frontiers))
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes = figure.subplots()
        for at, (name, choices) in enumerate(frontiers.items()):
            ordered = sorted(choices, key=lambda found: found.estimate.kept_bytes)
            kept = [found.estimate.kept_bytes / _GIB for found in ordered]
            share = [100 * found.estimate.replay_flops / forward_flops for found in ordered]
            colour = _COLOURS[at % len(_COLOURS)]
            axes.step(kept, share, where="post", color=colour, linewidth=1.6, label=name)
            axes.plot(kept, share, ".", color=colour, markersize=4)
        if budget_bytes is not None:
            axes.axvline(budget_bytes / _GIB, color="#888888", linewidth=1, linestyle="--")
            axes.annotate(
                f" budget {budget_bytes / _GIB:.3g} GiB",
                (budget_bytes / _GIB, 0.98),
                va="top",
                fontsize=9,
                xycoords=("data", "axes fraction"),
                color="#555555",
            )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("activations kept between forward and backward, GiB")
        axes.set_ylabel("replayed work, % of the forward")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.legend(frameon=False, loc="upper right")
    return figure
