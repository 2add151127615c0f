"""Figures and picture of batch plans."""

import io

import numpy as np
import pytest
from hypothesis import given

from hpfun.batch import BatchTopology, batch_figures, plan_batch
from hpfun.batch.report import relative_work
from hpfun.batch_report import batches_figure, draw_batches, strip_ranks
from hpfun.strategies import batch_plans
from tests.oracles import batch as loops
from tests.plans import numbers
from tests.refusals import refused


@pytest.mark.rule("BATCH-46")
@given(batch_plans())
def test_figures_are_what_counting_gives(plan):
    topology, lengths = plan.topology, plan.lengths.tolist()
    shards = loops.shards(lengths, *numbers(topology), plan.layout, plan.alignment)
    real = [[row for row in rows if row.token >= 0] for rows in shards]
    work = [sum(row.place + 1 for row in rows) for rows in real]
    labels = [0] * topology.cp_size
    ends = np.cumsum(lengths).tolist()
    for rank, rows in enumerate(real):
        labels[rank] = sum(row.token + 1 not in ends for row in rows)
    found = batch_figures(plan)
    assert found["padded"] == sum(map(len, shards))
    assert found["padding"] == found["padded"] - sum(lengths)
    assert found["rows"] == len(shards[0])
    assert (found["real_rows_min"], found["real_rows_max"]) == (min(map(len, real)), max(map(len, real)))
    assert (found["labels_min"], found["labels_max"]) == (min(labels), max(labels))
    assert found["work_max"] == max(work)
    if sum(work):
        assert found["work_imbalance"] == pytest.approx(max(work) / (sum(work) / len(work)))
        assert relative_work(plan).max() == pytest.approx(found["work_imbalance"])
    else:
        assert found["work_imbalance"] is None
    assert found["key_rows_moved"] == sum(needed(shards, rank, plan.layout) for rank in range(topology.cp_size))


def needed(shards, rank, layout):
    """Rows of other ranks that a rank's attention brings: all, or those of its first row's document before it."""
    if layout == "zigzag":
        return sum(len(rows) for other, rows in enumerate(shards) if other != rank)
    first = shards[rank][0]
    return sum(row.document == first.document for rows in shards[:rank] for row in rows)


@given(batch_plans())
def test_a_column_per_position_shows_the_rank_that_holds_it(plan):
    positions, ranks = strip_ranks(plan, columns=plan.padded_length)
    assert positions.tolist() == list(range(plan.padded_length))
    for rank, shard in enumerate(plan.shards):
        assert np.flatnonzero(ranks == rank).tolist() == sorted(shard.rows.tolist())


@pytest.fixture(scope="module")
def plans():
    layouts = ("contiguous", "zigzag")
    return {name: plan_batch((50, 3, 300, 40), BatchTopology(4), layout=name) for name in layouts}


def test_a_panel_has_its_work_and_its_padding(plans):
    figure = batches_figure(plans)
    for (held, work), (name, plan) in zip(
        zip(figure.axes[::2], figure.axes[1::2], strict=True), plans.items(), strict=True
    ):
        title = held.get_title(loc="left")
        assert title.startswith(f"{name}: busiest rank {relative_work(plan).max():.3f}x")
        assert f"{plan.padded_length - plan.num_tokens} tokens of padding" in title
        assert [bar.get_height() for bar in work.patches] == pytest.approx(relative_work(plan).tolist())


def test_equal_plans_give_equal_pictures_and_none_gives_a_code(plans, tmp_path):
    pictures = []
    for _ in range(2):
        image = io.BytesIO()
        draw_batches(plans, image, dpi=40)
        pictures.append(image.getvalue())
    assert pictures[0] == pictures[1]
    draw_batches({"many": plan_batch((5000, 3), BatchTopology(100))}, tmp_path / "many.svg")
    assert "svg" in (tmp_path / "many.svg").read_text()
    draw_batches({"empty": plan_batch((), BatchTopology(2))}, tmp_path / "empty.png")
    with refused("HP-INPUT-003"):
        batches_figure({})
