"""All small packs against the loops: every composition, group size and ratio, not a sample of them.

Plans up to 10 tokens, routes and node sizes up to 8, every block size and threshold up to 7.
"""

import pytest

from hpfun import indexer_task_plan, makespan_lower_bound, moved_rows_lower_bound, plan_route
from tests.oracles import indexer as loops
from tests.plans import worker_of_rows

GROUPS = [(total, size) for total in range(1, 11) for size in loops.divisors(total)]


def packs(total):
    """Every pack of ``total`` tokens, at every ratio that differs."""
    for lengths in loops.compositions(total):
        for ratio in sorted({1, 2, 3, 4, total + 1}):
            yield lengths, ratio


def check_plan(plan, workers, lengths, row_cost=0):
    costs = loops.row_costs(lengths, plan.ratio, row_cost)
    expected = loops.tasks(lengths, workers, plan.size)
    for rank in range(plan.size):
        got = plan.worker_tasks(rank)
        assert [(task.document, task.start, task.stop) for task in got] == expected[rank]
        assert [task.work for task in got] == [sum(costs[start:stop]) for _, start, stop in expected[rank]]
    assert plan.loads.tolist() == loops.loads(workers, costs, plan.size)
    assert plan.row_counts.tolist() == loops.row_counts(workers, plan.size)
    assert plan.moved_rows == loops.moved_rows(workers, plan.size)


def check_routes(plan, workers, lengths):
    keys = loops.visible_keys(lengths, plan.ratio)
    for rank in range(plan.size):
        route, expected = plan_route(plan, rank), loops.route(workers, plan.size, rank)
        exchange = route.exchange
        sent, received = expected["send_rows"], expected["receive_rows"]
        assert exchange.send_rows.tolist() == [row for _, row in sent]
        assert exchange.receive_rows.tolist() == [slot for _, slot in received]
        for splits, pairs in ((exchange.input_splits, sent), (exchange.output_splits, received)):
            assert splits.tolist() == [sum(1 for other, _ in pairs if other == r) for r in range(plan.size)]
        assert list(zip(exchange.local_sources.tolist(), exchange.local_targets.tolist(), strict=True)) == sorted(
            expected["local"], key=lambda pair: pair[1]
        )
        assert exchange.required == (loops.moved_rows(workers, plan.size) > 0)
        assert route.query_count == len(expected["scored"]) == exchange.num_target_rows
        slot = 0
        for segment in route.segments:
            query_start, query_stop, key_start, _, _ = segment
            assert query_start == slot
            for row in range(query_start, query_stop):
                seen = [key_start + j for j in range(segment.visible(row, plan.ratio))]
                assert seen == keys[expected["scored"][row]]
            slot = query_stop
        assert slot == route.query_count


def check(plan, workers, lengths):
    check_plan(plan, workers, lengths)
    if sum(lengths) <= 8:
        check_routes(plan, workers, lengths)


@pytest.mark.rule("PLAN-1", "PLAN-3", "PLAN-4", "PLAN-7", "ROUTE-1", "ROUTE-2", "ROUTE-3", "ROUTE-4", "SEGMENT-1")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_none_is_what_the_loops_say_on_every_small_pack(total, size):
    for lengths, ratio in packs(total):
        check(indexer_task_plan(lengths, size, ratio, "none"), loops.assign_none(lengths, size), lengths)


@pytest.mark.rule("ZIGZAG-1", "ZIGZAG-2", "ZIGZAG-3", "SEGMENT-2", "SEGMENT-3", "WORK-1", "WORK-2")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_zigzag_is_what_the_loops_say_on_every_small_pack(total, size):
    for lengths, ratio in packs(total):
        check(indexer_task_plan(lengths, size, ratio, "zigzag"), loops.assign_zigzag(lengths, size, ratio), lengths)


@pytest.mark.rule("GREEDY-1", "GREEDY-2", "GREEDY-3", "ROUTE-1", "ROUTE-2")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_greedy_is_what_the_loops_say_on_every_small_pack(total, size):
    block = min(2, total // size)
    for lengths, ratio in packs(total):
        plan = indexer_task_plan(lengths, size, ratio, "greedy", block_size=block)
        check(plan, loops.assign_greedy(lengths, size, ratio, block), lengths)


@pytest.mark.rule("HYBRID-1")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_hybrid_is_what_the_loops_say_on_every_small_pack(total, size):
    block = min(2, total // size)
    for lengths, ratio in packs(total):
        threshold = sorted(lengths)[len(lengths) // 2]
        plan = indexer_task_plan(lengths, size, ratio, "hybrid", block_size=block, zigzag_min_length=threshold)
        check(plan, loops.assign_hybrid(lengths, size, ratio, block, threshold), lengths)


@pytest.mark.rule("GREEDY-1", "HYBRID-1")
@pytest.mark.parametrize(("total", "size"), [group for group in GROUPS if group[0] <= 7])
def test_every_block_size_and_threshold_is_what_the_loops_say(total, size):
    for lengths, ratio in packs(total):
        for block in range(1, total // size + 1):
            plan = indexer_task_plan(lengths, size, ratio, "greedy", block_size=block)
            check_plan(plan, loops.assign_greedy(lengths, size, ratio, block), lengths)
            for threshold in sorted({*lengths, max(lengths) + 1}):
                plan = indexer_task_plan(lengths, size, ratio, "hybrid", block_size=block, zigzag_min_length=threshold)
                check_plan(plan, loops.assign_hybrid(lengths, size, ratio, block, threshold), lengths)


@pytest.mark.rule("LOCAL-1", "LOCAL-2", "LOCAL-3", "LOCAL-5", "LOCAL-6", "LOCAL-9", "PLAN-1")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_locality_keeps_its_rules_on_every_small_pack(total, size):
    for lengths, ratio in packs(total):
        plan = indexer_task_plan(lengths, size, ratio, "locality")
        workers = worker_of_rows(plan)
        assert loops.broken_locality_rules(workers, lengths, size, ratio) == [], (lengths, ratio)
        check(plan, workers, lengths)


@pytest.mark.rule("LOCAL-7")
@pytest.mark.parametrize(("total", "size"), [group for group in GROUPS if group[0] <= 8])
def test_locality_with_nodes_keeps_its_rules_on_every_small_pack(total, size):
    for lengths in loops.compositions(total):
        for node in range(1, size + 1):
            plan = indexer_task_plan(lengths, size, 1, "locality", ranks_per_node=node)
            broken = loops.broken_locality_rules(worker_of_rows(plan), lengths, size, 1, ranks_per_node=node)
            assert broken == [], (lengths, node)


@pytest.mark.rule("BOUND-1", "BOUND-2")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_bounds_are_what_the_loops_say_on_every_small_pack(total, size):
    for lengths, ratio in packs(total):
        least = makespan_lower_bound(lengths, size, ratio)
        assert least == loops.makespan_lower_bound(lengths, size, ratio)
        for makespan in (max(least - 1, 0), least):
            assert moved_rows_lower_bound(lengths, size, ratio, makespan) == loops.moved_rows_lower_bound(
                lengths, size, ratio, makespan
            )
