"""Bounds: equal to their definition, and beaten by no plan at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import indexer_task_plan, makespan_lower_bound, moved_rows_lower_bound
from tests.oracles import indexer as loops


@st.composite
def packs(draw):
    size = draw(st.integers(1, 7))
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    lengths.append(-sum(lengths) % size or size)
    return tuple(lengths), size, draw(st.integers(1, 6)), draw(st.integers(0, 4))


@pytest.mark.rule("BOUND-1")
@given(packs())
def test_the_makespan_bound_is_the_mean_rounded_up_or_the_heaviest_row(pack):
    lengths, size, ratio, row_cost = pack
    assert makespan_lower_bound(*pack) == loops.makespan_lower_bound(lengths, size, ratio, row_cost)


@pytest.mark.rule("BOUND-2")
@given(packs(), st.integers(0, 200))
def test_the_moved_rows_bound_takes_the_most_expensive_rows_of_every_shard(pack, makespan):
    lengths, size, ratio, row_cost = pack
    assert moved_rows_lower_bound(lengths, size, ratio, makespan, row_cost) == loops.moved_rows_lower_bound(
        lengths, size, ratio, makespan, row_cost
    )


@pytest.mark.rule("BOUND-1")
@pytest.mark.parametrize(("lengths", "size", "bound"), [((5, 3, 8), 2, 29), ((1, 1, 6), 8, 6), ((16,), 1, 136)])
def test_worked_makespan_bounds(lengths, size, bound):
    assert makespan_lower_bound(lengths, size, 1) == bound


@pytest.mark.rule("BOUND-2")
@pytest.mark.parametrize(("makespan", "bound"), [(29, 1), (28, 1), (36, 0), (35, 1), (27, 2), (0, 16), (2**70, 0)])
def test_worked_moved_rows_bounds(makespan, bound):
    assert moved_rows_lower_bound((5, 3, 8), 2, 1, makespan) == bound


@pytest.mark.rule("BOUND-1", "BOUND-2")
@pytest.mark.parametrize(
    ("lengths", "size"), [((6,), 2), ((6,), 3), ((1, 5), 2), ((2, 1, 3), 3), ((8,), 2), ((3, 5), 2), ((1, 4, 1), 3)]
)
@pytest.mark.parametrize("ratio", [1, 2])
def test_no_assignment_of_rows_to_workers_beats_a_bound(lengths, size, ratio):
    costs = loops.row_costs(lengths, ratio)
    makespan = makespan_lower_bound(lengths, size, ratio)
    fewest = {}
    for workers in loops.all_assignments(sum(lengths), size):
        worst = max(loops.loads(workers, costs, size))
        assert worst >= makespan
        moved = loops.moved_rows(workers, size)
        fewest[worst] = min(fewest.get(worst, moved), moved)
    for worst, moved in fewest.items():
        assert moved >= moved_rows_lower_bound(lengths, size, ratio, worst)


@pytest.mark.rule("BOUND-1", "BOUND-2")
@given(packs(), st.sampled_from(["none", "zigzag", "greedy", "hybrid", "locality"]))
def test_no_plan_of_any_mode_beats_a_bound(pack, mode):
    lengths, size, ratio, row_cost = pack
    options = {"greedy": {"block_size": 1}, "hybrid": {"block_size": 1, "zigzag_min_length": 9}}.get(mode, {})
    plan = indexer_task_plan(lengths, size, ratio, mode, row_cost=row_cost, **options)
    greatest = max(plan.loads.tolist())
    assert greatest >= makespan_lower_bound(*pack)
    assert plan.moved_rows >= moved_rows_lower_bound(lengths, size, ratio, greatest, row_cost)
