"""The picture of banks: its points are the rows that ranks own and need."""

import numpy as np
import pytest
from hypothesis import given

from hpfun import bank_route, compression_halo_plan, document_prefix_plan, sequence_report, sliding_window_plan
from hpfun import strategies as hps
from hpfun.bank_picture import FAR, NEAR, NOTHING, OWN, bank_lines, banks_figure, draw_banks
from hpfun.workloads import workload
from tests.refusals import refused

DOCUMENTS = workload("published", 65_536, seed=1).documents


@pytest.fixture(scope="module")
def plans():
    return {
        "window 128": sliding_window_plan(DOCUMENTS, 8192, 8, 128),
        "prefix": document_prefix_plan(DOCUMENTS, 8192, 8, 4),
        "halo": compression_halo_plan(DOCUMENTS, 4, 8192, 8, overlap=True),
    }


@given(hps.sequence_bank_plans())
def test_a_column_per_row_shows_every_row_as_what_it_is(plan):
    ranks, points = bank_lines(plan, columns=max(plan.total_rows, 1))
    assert ranks.tolist() == list(range(plan.size))
    owners = [rank for rank in range(plan.size) for _ in range(plan.own_rows[rank])]
    for rank in range(plan.size):
        route = bank_route(plan, rank)
        for row, owner in enumerate(owners):
            needed = route.global_start <= row < route.global_stop
            expected = OWN if owner == rank else NEAR if owner == rank - 1 else FAR
            assert points[rank, row] == (expected if needed else NOTHING)


def test_a_halo_of_a_few_rows_is_still_seen(plans):
    for plan in plans.values():
        _, points = bank_lines(plan)
        assert ((points == NEAR).sum(axis=1) > 0).tolist() == (plan.halo_rows > 0).tolist()
        assert ((points == OWN).sum(axis=1) > 100).all()


def test_of_many_ranks_evenly_spaced_ones_are_shown():
    plan = sliding_window_plan((0, 8 * 10_000), 8, 10_000, 3)
    ranks, points = bank_lines(plan)
    assert (ranks[0], ranks[-1]) == (0, 9999)
    assert len(ranks) == len(points) == 256
    assert set(np.diff(ranks).tolist()) == {39, 40}
    assert (points == OWN).any(axis=1).all()


def test_a_panel_has_its_figures_and_the_rows_received(plans):
    starts = {"window 128": DOCUMENTS.boundaries[:-1]}
    figure = banks_figure(plans, starts, {"window 128": 100})
    panels = figure.axes[: 2 * len(plans)]
    for (layout, halos), (name, plan) in zip(zip(panels[::2], panels[1::2], strict=True), plans.items(), strict=True):
        report = sequence_report(plan)
        title = layout.get_title(loc="left")
        assert title.startswith(f"{name}: ")
        assert "bytes" in title if name == "window 128" else "bytes" not in title
        assert f"{100 * report.share_of_all_gather:.2g}% of an all-gather" in title or "<0.01%" in title
        bars = np.array([bar.get_width() for bar in halos.patches]).reshape(2, plan.size)
        assert bars.sum(axis=0).tolist() == plan.halo_rows.tolist()
        assert layout.get_ylim() == halos.get_ylim()
    ticks = panels[0].collections[-1].get_segments()
    assert [segment[0][0] for segment in ticks] == DOCUMENTS.boundaries[:-1].tolist()
    assert not panels[2].collections


def test_where_nothing_moves_the_title_says_so():
    layout, _ = banks_figure({"window": sliding_window_plan((0, 4, 8), 4, 2, 3)}).axes[:2]
    assert layout.get_title(loc="left") == "window: no row moves"
    layout, _ = banks_figure({"no keys": document_prefix_plan((0, 4, 8), 4, 2, 9)}).axes[:2]
    assert layout.get_title(loc="left") == "no keys: no row moves"
    layout, _ = banks_figure({"one": sliding_window_plan((0, 8), 4, 2, 2)}).axes[:2]
    assert layout.get_title(loc="left") == "one: 1 row moves, 12.5% of an all-gather, 25.0% of a ring"


def test_more_ranks_than_marked_are_drawn_as_an_outline():
    _, halos = banks_figure({"window": sliding_window_plan((0, 4 * 100), 4, 100, 9)}).axes[:2]
    assert len(halos.patches) == 2


def test_a_picture_is_written_and_is_the_same_every_time(plans, tmp_path):
    for name in ("one.png", "two.png"):
        draw_banks(plans, tmp_path / name, {"prefix": [0, 3]})
    image = (tmp_path / "one.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert image == (tmp_path / "two.png").read_bytes()
    assert b"Software" not in image
    draw_banks({"halo": plans["halo"]}, tmp_path / "halo.svg")
    assert (tmp_path / "halo.svg").stat().st_size > 1000


def test_nothing_to_draw_is_refused(plans):
    with refused("HP-INPUT-003"):
        banks_figure({})
    with refused("HP-ROUTE-001"):
        banks_figure(plans, bytes_per_row={"prefix": -1})
    with refused("HP-ROUTE-003"):
        banks_figure(plans, {"prefix": [0.5]})
