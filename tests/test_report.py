"""Figures, table and picture of plans side by side."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from hpfun import indexer_plan_report, indexer_task_plan
from hpfun.report import (
    compare_rows,
    comparison_table,
    draw_plans,
    in_units,
    plans_figure,
    relative_loads,
    strip_workers,
)
from hpfun.workloads import workload
from tests.refusals import refused


@pytest.fixture(scope="module")
def plans():
    documents = workload("published", 65_536, seed=1).documents
    options = {"none": {}, "zigzag": {}, "greedy": {"block_size": 512}, "locality": {}}
    return {mode: indexer_task_plan(documents, 8, 1, mode, **chosen) for mode, chosen in options.items()}


def test_rows_are_the_figures_of_the_reports(plans):
    rows = compare_rows(plans, 100, 4, {"zigzag": 0.5})
    assert [row["name"] for row in rows] == list(plans)
    for row, plan in zip(rows, plans.values(), strict=True):
        report = indexer_plan_report(plan, 100, 4)
        assert row["imbalance"] == report.imbalance
        assert row["makespan_gap"] == report.makespan_gap
        assert row["moved_share"] == report.moved_share
        assert row["bytes"] == 104 * plan.moved_rows
        assert row["tasks_mean"] == pytest.approx(len(plan.task_starts) / 8)
        assert row["peers_max"] == report.peers.max()
    assert [row["planning_ms"] for row in rows] == [None, 500.0, None, None]


def test_rows_are_json_even_where_a_gap_is_infinite():
    plan = indexer_task_plan((1, 1, 1, 1), 2, 1, "greedy", block_size=1)
    assert plan.moved_rows > 0
    (row,) = compare_rows({"greedy": plan})
    assert row["moved_gap"] is None
    json.dumps(row, allow_nan=False)


def test_bad_byte_counts_are_refused(plans):
    with refused("HP-INDEX-011"):
        compare_rows(plans, bytes_out=-1)


def test_the_table_shows_every_row_in_80_columns(plans):
    rows = [*compare_rows(plans, 10**9, 10**9, dict.fromkeys(plans, 12.5)), {"name": "hybrid", "skipped": "too many"}]
    console = Console(width=80, file=io.StringIO())
    console.print(comparison_table(rows, "8 ranks"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in text
    for mode, plan in plans.items():
        line = next(line for line in text.splitlines() if line.strip().startswith(mode))
        assert f"{plan.imbalance:.4f}" in line
        assert f"{plan.moved_rows / plan.documents.total:.1%}" in line
        assert "12500" in line
    assert "hybrid" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (99_949, "99.9k"), (99_950, "100k"), (999_499, "999k"), (999_500, "1.0M")],
)
def test_counts_are_written_with_units(number, text):
    assert in_units(number) == text


def test_the_strip_shows_the_worker_of_every_row(plans):
    for plan in plans.values():
        workers = np.empty(plan.documents.total, dtype=np.int64)
        for worker in range(plan.size):
            for task in plan.worker_tasks(worker):
                workers[task.start : task.stop] = worker
        rows, shown = strip_workers(plan, 1000)
        assert len(rows) == 1000
        assert (shown == workers[rows]).all()
    small = indexer_task_plan((5, 3, 8), 2, 1, "none")
    assert strip_workers(small)[0].tolist() == list(range(16))


def test_loads_before_are_the_owners_and_loads_after_the_plan_s(plans):
    before, after = relative_loads(plans["locality"])
    assert before.max() == pytest.approx(plans["none"].imbalance)
    assert after.max() == pytest.approx(plans["locality"].imbalance)
    assert before.mean() == pytest.approx(after.mean()) == pytest.approx(1)
    assert relative_loads(indexer_task_plan((1, 1), 2, 8, "none"))[0].tolist() == [0, 0]


def test_a_panel_has_the_strip_the_edges_and_the_bars(plans):
    figure = plans_figure(plans)
    panels = figure.axes[: 2 * len(plans)]
    for (work, loads), (name, plan) in zip(zip(panels[::2], panels[1::2], strict=True), plans.items(), strict=True):
        title = work.get_title(loc="left")
        assert title.startswith(f"{name}: busiest worker {plan.imbalance:.3f}x the mean")
        assert f"{plan.moved_rows / plan.documents.total:.1%} of rows move" in title
        profile, strip = (image.get_array() for image in work.images)
        _, workers = strip_workers(plan)
        same = (strip[0, 1:] == strip[0, :-1]).all(axis=-1)
        assert (same == (workers[1:] == workers[:-1])).all()
        seen = (profile[..., 3] > 0).sum(axis=0)
        assert seen.max() > 0.9 * len(profile)
        bars = np.array([bar.get_height() for bar in loads.patches])
        assert bars.tolist() == np.concatenate(relative_loads(plan)).tolist()
        assert loads.get_ylim() == panels[1].get_ylim()
    edges = panels[0].collections[-1].get_segments()
    assert [segment[0][0] for segment in edges] == [8192 * rank for rank in range(1, 8)]


def test_more_ranks_than_marked_are_drawn_as_an_outline(plans):
    _, loads = plans_figure({"locality": plans["locality"]}, max_ranks=4).axes[:2]
    assert len(loads.patches) == 2  # two outlines instead of two bars a rank


def test_a_picture_is_written_and_is_the_same_every_time(plans, tmp_path):
    for name in ("one.png", "two.png"):
        draw_plans(plans, tmp_path / name)
    image = (tmp_path / "one.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert image == (tmp_path / "two.png").read_bytes()
    assert b"Software" not in image
    draw_plans({"none": plans["none"]}, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").stat().st_size > 1000


def test_nothing_to_draw_is_refused():
    with refused("HP-INPUT-003"):
        plans_figure({})
