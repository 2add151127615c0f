"""Mode locality: rows stay unless they must move; all of its rules, checked by loops over rows."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import attempt, indexer_task_plan, moved_rows_lower_bound
from hpfun.indexer.locality import balance_target
from tests.oracles import indexer as loops
from tests.plans import worker_of_rows
from tests.refusals import refused


@st.composite
def packs(draw):
    size = draw(st.integers(1, 7))
    lengths = draw(st.lists(st.integers(1, 12) | st.integers(1, 60), min_size=1, max_size=8))
    lengths.append(-sum(lengths) % size or size)
    return tuple(draw(st.permutations(lengths))), size, draw(st.integers(1, 6)), draw(st.integers(0, 4))


TOLERANCES = st.sampled_from([0, 0, 1, 999, 20_000, 300_000, 5_000_000])


@pytest.mark.rule("LOCAL-1", "LOCAL-2", "LOCAL-3", "LOCAL-4", "LOCAL-5", "LOCAL-6", "LOCAL-9")
@given(packs(), TOLERANCES)
@example(((5, 3, 8), 2, 1, 0), 0)
@example(((1, 1, 6), 8, 1, 0), 0)
@example(((1, 5), 2, 3, 0), 0)
@example(((1, 1, 1, 2, 3), 2, 2, 0), 0)
@example(((2, 4, 1, 1), 4, 2, 0), 0)
@example(((1, 1, 1, 1, 4), 2, 1, 0), 0)
def test_rows_stay_home_unless_they_must_move_and_then_move_smoothly(pack, tolerance_ppm):
    lengths, size, ratio, row_cost = pack
    plan = indexer_task_plan(lengths, size, ratio, "locality", tolerance_ppm=tolerance_ppm, row_cost=row_cost)
    broken = loops.broken_locality_rules(
        worker_of_rows(plan), lengths, size, ratio, tolerance_ppm=tolerance_ppm, row_cost=row_cost
    )
    assert broken == []


@pytest.mark.rule("LOCAL-7", "LOCAL-5", "LOCAL-6")
@given(packs(), TOLERANCES, st.integers(1, 8))
def test_rows_move_inside_a_node_before_they_leave_it(pack, tolerance_ppm, ranks_per_node):
    lengths, size, ratio, row_cost = pack
    options = {"tolerance_ppm": tolerance_ppm, "row_cost": row_cost, "ranks_per_node": ranks_per_node}
    plan = indexer_task_plan(lengths, size, ratio, "locality", **options)
    assert loops.broken_locality_rules(worker_of_rows(plan), lengths, size, ratio, **options) == []


@pytest.mark.rule("LOCAL-8", "LOCAL-5", "LOCAL-6")
@given(packs(), TOLERANCES, st.none() | st.integers(1, 4), st.integers(0, 12))
@example(((4, 4), 2, 1, 0), 0, None, -3)
@example(((8,), 1, 1, 0), 0, None, -1)
def test_no_worker_scores_more_rows_than_the_capacity(pack, tolerance_ppm, ranks_per_node, extra):
    lengths, size, ratio, row_cost = pack
    options = {
        "tolerance_ppm": tolerance_ppm,
        "row_cost": row_cost,
        "ranks_per_node": ranks_per_node,
        "capacity": sum(lengths) // size + extra,
    }
    plan, outcome = attempt(indexer_task_plan, lengths, size, ratio, "locality", **options)
    if outcome.ok:
        assert loops.broken_locality_rules(worker_of_rows(plan), lengths, size, ratio, **options) == []
    else:
        assert outcome.code == "HP-INDEX-006"
        assert outcome.facts["capacity"] == options["capacity"]


@pytest.mark.rule("LOCAL-8")
@pytest.mark.parametrize(("capacity", "fits"), [(8, False), (9, True)])
def test_one_row_more_than_a_shard_is_needed_to_take_one_row(capacity, fits):
    if fits:
        assert indexer_task_plan((5, 3, 8), 2, 1, "locality", capacity=capacity).row_counts.tolist() == [9, 7]
        return
    with refused("HP-INDEX-006") as caught:
        indexer_task_plan((5, 3, 8), 2, 1, "locality", capacity=capacity)
    assert caught.error.facts == {"capacity": 8, "local": 8, "homeless_rows": 1}


@pytest.mark.rule("LOCAL-8")
@pytest.mark.parametrize("lengths", [(4, 4), (1, 1, 1, 1, 1, 1, 1, 1), (8,)])
def test_a_capacity_below_a_shard_is_refused_also_where_nothing_moves(lengths):
    for size in (1, 2):
        with refused("HP-INDEX-006") as caught:
            indexer_task_plan(lengths, size, 1, "locality", capacity=8 // size - 1)
        assert caught.error.facts["local"] == 8 // size


@pytest.mark.rule("LOCAL-8")
def test_a_full_receiver_hands_on_to_the_next():
    # target 23: rank 0 sheds its rows of 7 and 8 pairs, and every other rank lacks 15
    lengths = (8, *([1] * 24))
    free = indexer_task_plan(lengths, 4, 1, "locality", tolerance_ppm=500_000)
    tight = indexer_task_plan(lengths, 4, 1, "locality", tolerance_ppm=500_000, capacity=9)
    assert max(free.row_counts.tolist()) == 10
    assert max(tight.row_counts.tolist()) == 9
    assert tight.moved_rows == free.moved_rows


@pytest.mark.rule("LOCAL-7")
def test_nodes_that_can_help_themselves_exchange_nothing():
    plan = indexer_task_plan((2, 6, 2, 6), 4, 1, "locality", ranks_per_node=2)
    assert plan.loads.tolist() == [12, 12, 12, 12]
    assert all(worker // 2 == row // 8 for row, worker in enumerate(worker_of_rows(plan)))


@pytest.mark.rule("LOCAL-7")
def test_without_nodes_rows_cross_that_nodes_keep_inside():
    # ranks 0 and 3 shed one row each, and with this tolerance rank 1 has room for both
    lengths = (8, *([1] * 16), 8)
    for ranks_per_node, takers in ((None, {1}), (4, {1}), (2, {1, 2})):
        plan = indexer_task_plan(lengths, 4, 1, "locality", tolerance_ppm=500_000, ranks_per_node=ranks_per_node)
        assert plan.moved_rows == 2
        assert {worker for row, worker in enumerate(worker_of_rows(plan)) if worker != row // 8} == takers


@pytest.mark.rule("LOCAL-5")
def test_a_target_far_beyond_the_mean_does_not_overflow():
    # the needs of the 63 receivers add up to more than int64 holds, though every load fits
    size, local, ratio = 64, 2**50, 2**40 + 1
    lengths = [2**40] * (63 * 2**10) + [local]
    for tolerance_ppm in (0, 20_000_000, 62_999_999):
        plan = indexer_task_plan(lengths, size, ratio, "locality", tolerance_ppm=tolerance_ppm)
        total = sum(plan.loads.tolist())
        target = balance_target(total, size, tolerance_ppm)
        assert max(plan.loads.tolist()) <= target + local // ratio
        assert plan.moved_rows <= moved_rows_lower_bound(lengths, size, ratio, target)


@pytest.mark.rule("LOCAL-5", "LOCAL-6")
@pytest.mark.parametrize("tokens", [2**20, 256_000_000])
def test_one_long_document_is_balanced_and_moves_no_more_than_it_must(tokens):
    for size in (8, 32, 128):
        plan = indexer_task_plan((tokens,), size, 1, "locality")
        assert plan.imbalance < 1.001
        target = balance_target(tokens * (tokens + 1) // 2, size)
        assert plan.moved_rows <= moved_rows_lower_bound((tokens,), size, 1, target)
        others = indexer_task_plan((tokens,), size, 1, "zigzag")
        assert plan.moved_rows < 0.3 * others.moved_rows


@pytest.mark.rule("LOCAL-1")
@given(packs())
def test_a_balanced_pack_moves_nothing(pack):
    _, size, ratio, row_cost = pack
    plan = indexer_task_plan((6,) * size, size, ratio, "locality", row_cost=row_cost)
    assert plan.moved_rows == 0
    assert worker_of_rows(plan) == loops.owners(6 * size, size)


@pytest.mark.rule("LOCAL-8")
def test_a_receiver_that_lacks_little_takes_a_row_before_the_plan_is_refused():
    # two rows of 14 and 13 pairs go: one to rank 0, and, since a rank has room for one only, one to rank 1
    plan = indexer_task_plan((1, 1, 1, 3, 14, 1), 3, 1, "locality", capacity=8)
    assert plan.row_counts.tolist() == [8, 8, 5]
    assert max(plan.loads.tolist()) <= 39 + 14
