"""Work of the indexer: exact integers, forwards and backwards."""

import signal
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import indexer_task_plan, makespan_lower_bound, moved_rows_lower_bound
from hpfun.indexer.work import row_work, rows_seeing, rows_within, work_before, work_seeing
from tests.oracles import indexer as loops
from tests.refusals import refused


@contextmanager
def at_most(seconds):
    """A loop that never ends fails the test instead of stopping the suite."""

    def give_up(*_):
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


RATIOS = st.integers(1, 9)
COSTS = st.integers(0, 5)


@pytest.mark.rule("WORK-1")
@given(st.integers(1, 60), RATIOS)
def test_a_row_sees_the_keys_that_end_at_or_before_it(length, ratio):
    keys = [len(seen) for seen in loops.visible_keys((length,), ratio)]
    assert [row_work(position, ratio) for position in range(length)] == keys
    assert row_work(np.arange(length), ratio).tolist() == keys


@pytest.mark.rule("WORK-2")
@given(st.integers(0, 80), RATIOS, COSTS)
def test_the_first_rows_score_what_they_score_one_by_one(rows, ratio, row_cost):
    total = sum(loops.row_costs((rows,), ratio, row_cost)) if rows else 0
    assert work_before(rows, ratio, row_cost) == total
    assert work_before(np.array([rows]), ratio, row_cost).tolist() == [total]


@pytest.mark.rule("WORK-3")
@given(st.integers(1, 60), RATIOS, COSTS)
def test_every_row_costs_row_cost_on_top_of_its_keys(length, ratio, row_cost):
    expected = [len(seen) + row_cost for seen in loops.visible_keys((length,), ratio)]
    assert [row_work(position, ratio, row_cost) for position in range(length)] == expected
    assert work_before(length, ratio, row_cost) == sum(expected)
    plan = indexer_task_plan((length,), 1, ratio, "none", row_cost=row_cost)
    assert plan.loads.tolist() == [sum(expected)]


@pytest.mark.rule("WORK-4")
@given(st.integers(0, 500), RATIOS, COSTS)
@example(0, 1, 0)
@example(3, 2, 0)
def test_rows_within_are_the_most_rows_that_the_work_pays_for(work, ratio, row_cost):
    rows = int(rows_within(np.array([work]), ratio, row_cost)[0])
    assert work_before(rows, ratio, row_cost) <= work < work_before(rows + 1, ratio, row_cost)


@pytest.mark.rule("WORK-4")
@given(st.integers(0, 2**61), st.integers(1, 2**20), st.integers(0, 2**20))
@example(2**53 + 1, 1, 0)
@example(2**61, 1, 0)
def test_rows_within_are_exact_beyond_what_floats_can_count(work, ratio, row_cost):
    rows = int(rows_within(np.array([work]), ratio, row_cost)[0])
    assert work_before(rows, ratio, row_cost) <= work < work_before(rows + 1, ratio, row_cost)


@pytest.mark.rule("WORK-4", "WORK-5")
@pytest.mark.parametrize("lengths", [(1, 3_037_000_499), (3_037_000_499, 1)])
def test_the_longest_legal_document_is_planned_in_no_time(lengths):
    with at_most(seconds=20):
        plan = indexer_task_plan(lengths, 4, 1, "locality")
    assert sum(plan.loads.tolist()) == 3_037_000_499 * 3_037_000_500 // 2 + 1
    assert plan.imbalance < 1.001


@pytest.mark.rule("WORK-4")
@given(st.integers(-1, 40), RATIOS, COSTS)
def test_rows_seeing_and_their_work_are_what_counting_gives(keys, ratio, row_cost):
    costs = loops.row_costs(((keys + 2) * ratio,), ratio, row_cost)
    seeing = [cost for cost in costs if cost - row_cost <= keys]
    assert int(rows_seeing(keys, ratio)) == len(seeing)
    if keys >= 0:
        assert work_seeing(keys, ratio, row_cost) == sum(seeing)


@pytest.mark.rule("WORK-5")
@pytest.mark.parametrize("mode", ["none", "zigzag", "greedy", "hybrid", "locality"])
@pytest.mark.parametrize("tokens", [2**16, 2**17, 256_000_000])
def test_work_beyond_2_to_31_and_2_to_53_stays_exact(mode, tokens):
    options = {"greedy": {"block_size": 2**14}, "hybrid": {"block_size": 2**14, "zigzag_min_length": tokens}}
    plan = indexer_task_plan((tokens,), 4, 1, mode, **options.get(mode, {}))
    total = tokens * (tokens + 1) // 2
    assert sum(plan.loads.tolist()) == total
    for rank in range(4):
        tasks = plan.worker_tasks(rank)
        exact = [(t.stop * (t.stop + 1) - t.start * (t.start + 1)) // 2 for t in tasks]
        assert [t.work for t in tasks] == exact
        assert plan.loads[rank] == sum(exact)
    assert makespan_lower_bound((tokens,), 4, 1) == -(-total // 4)


@pytest.mark.rule("WORK-5")
def test_a_single_document_of_256_million_rows_scores_this_many_pairs():
    plan = indexer_task_plan((256_000_000,), 2, 1, "none")
    assert sum(plan.loads.tolist()) == 32_768_000_128_000_000
    assert plan.loads.tolist() == [8_192_000_064_000_000, 24_576_000_064_000_000]


@pytest.mark.rule("WORK-5")
@pytest.mark.parametrize(
    ("lengths", "ratio", "row_cost"),
    [
        ((2**32,), 1, 0),
        ((2**31,) * 2, 1, 0),
        ((2**31,) * 4, 1, 0),
        ((2**40,), 1, 2**30),
        ((8,), 2**62, 0),
        ((8,), 2**70, 0),
        ((8,), 1, 2**70),
        ((2**62,), 1, 0),
    ],
)
def test_work_beyond_the_integer_range_is_refused(lengths, ratio, row_cost):
    calls = (
        lambda: indexer_task_plan(lengths, 1, ratio, "none", row_cost=row_cost),
        lambda: indexer_task_plan(lengths, 1, ratio, "locality", row_cost=row_cost),
        lambda: makespan_lower_bound(lengths, 1, ratio, row_cost),
        lambda: moved_rows_lower_bound(lengths, 1, ratio, 1, row_cost),
    )
    for call in calls:
        with refused("HP-INDEX-009") as caught:
            call()
        assert caught.error.facts["most"] == 2**62
        assert caught.error.facts["longest"] == max(lengths)
        assert caught.error.facts["work"] >= 2**62


@pytest.mark.rule("WORK-5")
@pytest.mark.parametrize(("lengths", "legal"), [((3_037_000_499,), True), ((3_037_000_500,), False)])
def test_the_last_legal_total_is_below_2_to_62(lengths, legal):
    assert (lengths[0] * (lengths[0] + 1) // 2 < 2**62) == legal
    if legal:
        assert indexer_task_plan(lengths, 1, 1, "locality").loads.tolist() == [lengths[0] * (lengths[0] + 1) // 2]
    else:
        with refused("HP-INDEX-009"):
            indexer_task_plan(lengths, 1, 1, "locality")


@pytest.mark.rule("WORK-5")
def test_many_documents_beside_a_long_one_are_counted_exactly_and_not_refused():
    # the number of documents times the longest one's work would be beyond the range, their sum is not
    lengths = (2**31, *([1] * 2**10))
    plan = indexer_task_plan(lengths, 2, 1, "locality")
    assert sum(plan.loads.tolist()) == 2**31 * (2**31 + 1) // 2 + 2**10


@pytest.mark.rule("WORK-5")
def test_zigzag_refuses_cuts_beyond_the_integer_range():
    lengths = (2**61, 2**61)
    with refused("HP-INDEX-009") as caught:
        indexer_task_plan(lengths, 8, 2**60, "zigzag")
    assert caught.error.facts["longest"] == 2**61
