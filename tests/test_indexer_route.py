"""Routes and segments: which rows go where, in which order, and which keys they see."""

import numpy as np
import pytest
from hypothesis import given

from hpfun import (
    IndexerRoute,
    IndexerSegment,
    check_exchanges,
    indexer_route,
    indexer_task_plan,
    plan_route,
    simulate_exchange,
    transpose,
)
from tests.oracles import indexer as loops
from tests.refusals import refused
from tests.test_indexer_plan import plans, workers_of


def routes_of(plan):
    return [plan_route(plan, rank) for rank in range(plan.size)]


@pytest.mark.rule("ROUTE-1", "ROUTE-2", "ROUTE-3")
@given(plans())
def test_rows_go_by_rank_then_row_into_slots_by_row_and_kept_rows_never_travel(plan):
    workers = workers_of(plan)
    for rank, route in enumerate(routes_of(plan)):
        expected, exchange = loops.route(workers, plan.size, rank), route.exchange
        assert exchange.send_rows.tolist() == [row for _, row in expected["send_rows"]]
        assert exchange.receive_rows.tolist() == [slot for _, slot in expected["receive_rows"]]
        for splits, pairs in (
            (exchange.input_splits, expected["send_rows"]),
            (exchange.output_splits, expected["receive_rows"]),
        ):
            assert splits.tolist() == [sum(1 for other, _ in pairs if other == r) for r in range(plan.size)]
        assert list(zip(exchange.local_sources, exchange.local_targets, strict=True)) == expected["local"]
        assert exchange.num_source_rows == plan.local_rows
        assert route.query_count == exchange.num_target_rows == len(expected["scored"])
        assert exchange.is_permutation


@pytest.mark.rule("ROUTE-2")
@given(plans())
def test_every_worker_slot_is_written_exactly_once_and_ids_come_home(plan):
    routes = routes_of(plan)
    exchanges = [route.exchange for route in routes]
    check_exchanges(exchanges)
    shards = np.arange(plan.documents.total).reshape(plan.size, -1)
    workers = workers_of(plan)
    scored = simulate_exchange(exchanges, list(shards), fill=-1)
    for rank, rows in enumerate(scored):
        assert rows.tolist() == [row for row, worker in enumerate(workers) if worker == rank]
    home = simulate_exchange([transpose(exchange) for exchange in exchanges], scored)
    assert np.array_equal(np.stack(home), shards)


@pytest.mark.rule("ROUTE-4")
@given(plans())
def test_all_ranks_enter_the_collective_or_none(plan):
    moves = loops.moved_rows(workers_of(plan), plan.size) > 0
    assert [route.exchange.required for route in routes_of(plan)] == [moves] * plan.size


@pytest.mark.rule("ROUTE-4")
def test_a_rank_that_sends_and_receives_nothing_still_enters():
    # rank 0 sheds one row of 4 pairs, and one rank takes it: two ranks have nothing to do
    routes = routes_of(indexer_task_plan((4, 1, 1, 1, 1, 2, 1, 1, 2, 1, 1), 4, 1, "locality"))
    idle = [route for route in routes if not len(route.exchange.send_rows) and not len(route.exchange.receive_rows)]
    assert idle
    assert all(route.exchange.required for route in routes)
    for mode in ("none", "zigzag"):
        assert not any(r.exchange.required for r in routes_of(indexer_task_plan((1, 1, 1, 1), 4, 1, mode)))


@pytest.mark.rule("ROUTE-5")
@given(plans())
def test_projection_calls_are_equal_on_all_ranks_and_at_least_one(plan):
    counts = loops.row_counts(workers_of(plan), plan.size)
    local = plan.documents.total // plan.size
    calls = 1
    while calls * local < max(counts):
        calls += 1
    for rank, route in enumerate(routes_of(plan)):
        assert route.query_count == counts[rank]
        assert route.max_query_count == max(counts)
        assert route.projection_calls == calls
        assert route.plan_digest == plan.digest


@pytest.mark.rule("ROUTE-5")
def test_a_worker_without_rows_calls_the_projection_as_often_as_the_fullest():
    plan = indexer_task_plan((6, 1, 1), 4, 1, "zigzag", row_cost=0)
    assert plan.row_counts.tolist() == loops.row_counts(loops.assign_zigzag((6, 1, 1), 4, 1), 4)
    assert 0 in plan.row_counts
    assert [route.projection_calls for route in routes_of(plan)] == [3, 3, 3, 3]
    nine = indexer_task_plan((5, 3, 8), 2, 1, "locality")
    assert [route.projection_calls for route in routes_of(nine)] == [2, 2]


@pytest.mark.rule("SEGMENT-1", "SEGMENT-2", "SEGMENT-3")
@given(plans())
def test_by_their_segments_worker_rows_see_exactly_their_keys(plan):
    lengths = plan.documents.lengths.tolist()
    keys = loops.visible_keys(lengths, plan.ratio)
    rows = loops.rows_of(lengths)
    first_keys = [sum(length // plan.ratio for length in lengths[:document]) for document in range(len(lengths))]
    for rank, route in enumerate(routes_of(plan)):
        tasks, slot = plan.worker_tasks(rank), 0
        assert len(route.segments) == len(tasks)
        for task, segment in zip(tasks, route.segments, strict=True):
            assert segment.query_start == slot
            assert segment.query_stop == slot + task.stop - task.start
            n = rows[task.stop - 1][1] + 1
            assert segment.key_start == first_keys[task.document]
            assert segment.key_stop == first_keys[task.document] + n // plan.ratio
            assert segment.residual == n % plan.ratio
            for row in range(task.start, task.stop):
                count = segment.visible(slot + row - task.start, plan.ratio)
                assert [segment.key_start + j for j in range(count)] == keys[row]
            assert segment.visible(np.arange(slot, segment.query_stop), plan.ratio).tolist() == [
                len(keys[row]) for row in range(task.start, task.stop)
            ]
            slot = segment.query_stop
        assert slot == route.query_count


@pytest.mark.rule("SEGMENT-1", "SEGMENT-2", "SEGMENT-3")
@pytest.mark.parametrize(
    ("size", "ratio", "rank", "segments"),
    [
        (2, 1, 0, [(0, 2, 0, 2, 0), (2, 3, 5, 8, 0), (3, 5, 8, 12, 0), (5, 7, 8, 16, 0)]),
        (4, 2, 0, [(0, 2, 3, 7, 0)]),
        (4, 2, 2, [(0, 3, 0, 2, 1), (3, 5, 3, 4, 0)]),
        (4, 2, 3, [(0, 2, 0, 1, 0), (2, 3, 2, 3, 1), (3, 5, 3, 5, 0)]),
    ],
)
def test_worked_segments(size, ratio, rank, segments):
    route = indexer_route((5, 3, 8), size, rank, ratio, "greedy", block_size=2)
    assert [tuple(segment) for segment in route.segments] == segments


@pytest.mark.rule("ROUTE-1", "ROUTE-2")
def test_the_worked_route_of_two_ranks():
    routes = routes_of(indexer_task_plan((5, 3, 8), 2, 1, "greedy", block_size=2))
    assert routes[0].exchange.send_rows.tolist() == [2, 3, 4, 5, 6]
    assert routes[0].exchange.receive_rows.tolist() == [3, 4, 5, 6]
    assert routes[0].exchange.local_targets.tolist() == [0, 1, 2]
    assert routes[1].exchange.receive_rows.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.rule("ROUTE-3")
@pytest.mark.parametrize("mode", ["none", "zigzag", "locality"])
def test_one_rank_keeps_everything(mode):
    route = indexer_route((5, 3, 8), 1, 0, 2, mode)
    assert route.exchange.local_sources.tolist() == list(range(16))
    assert route.exchange.local_targets.tolist() == list(range(16))
    assert not route.exchange.required
    assert route.exchange.input_splits.tolist() == [0]


@pytest.mark.rule("SEGMENT-1")
def test_a_segment_or_route_of_other_numbers_is_refused():
    for field in range(5):
        for bad in (-1, True, 1.0):
            numbers = [0, 2, 0, 2, 0]
            numbers[field] = bad
            with refused("HP-INDEX-010"):
                IndexerSegment(*numbers)
    route = indexer_route((5, 3, 8), 2, 0, 1, "none")
    with refused("HP-INDEX-010") as caught:
        IndexerRoute(route.exchange, -1, route.segments, 8, route.plan_digest)
    assert caught.error.where == "query_count"
