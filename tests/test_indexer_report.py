"""Reports, words and differences of plans."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import (
    Change,
    IndexerOptions,
    PackedDocuments,
    diff,
    explain,
    from_json,
    indexer_plan_report,
    indexer_task_plan,
    plan_route,
    strategies,
    to_json,
)
from hpfun.recompute import LayerContainer
from tests.oracles import indexer as loops
from tests.refusals import refused
from tests.test_indexer_plan import plans, workers_of


@pytest.mark.rule("REPORT-1")
@given(plans())
def test_gaps_are_plan_over_bound_minus_one(plan):
    report = indexer_plan_report(plan)
    lengths = plan.documents.lengths.tolist()
    row_cost = plan.options.row_cost
    workers = workers_of(plan)
    loads = loops.loads(workers, loops.row_costs(lengths, plan.ratio, row_cost), plan.size)
    least = loops.makespan_lower_bound(lengths, plan.size, plan.ratio, row_cost)
    fewest = loops.moved_rows_lower_bound(lengths, plan.size, plan.ratio, max(loads), row_cost)
    moved = loops.moved_rows(workers, plan.size)
    assert (report.max_load, report.makespan_bound) == (max(loads), least)
    assert (report.moved_rows, report.moved_rows_bound) == (moved, fewest)
    assert report.makespan_gap == (max(loads) / least - 1 if least else 0.0)
    if moved == fewest:
        assert report.moved_rows_gap == 0.0
    else:
        assert report.moved_rows_gap == (moved / fewest - 1 if fewest else float("inf"))
    assert report.imbalance == plan.imbalance
    assert report.moved_share == moved / sum(lengths)


@pytest.mark.rule("REPORT-1")
def test_the_worked_locality_plan_is_optimal_in_both():
    report = indexer_plan_report(indexer_task_plan((5, 3, 8), 2, 1, "locality"))
    assert (report.makespan_gap, report.moved_rows_gap) == (0.0, 0.0)
    zigzag = indexer_plan_report(indexer_task_plan((5, 3, 8), 2, 1, "zigzag"))
    assert (zigzag.moved_rows, zigzag.moved_rows_bound, zigzag.moved_rows_gap) == (9, 1, 8.0)


@pytest.mark.rule("REPORT-2")
@given(plans(), st.integers(0, 10_000), st.integers(0, 100))
def test_bytes_are_moved_rows_times_bytes_of_a_row(plan, out, back):
    report = indexer_plan_report(plan, out, back)
    moved = loops.moved_rows(workers_of(plan), plan.size)
    assert (report.bytes_out, report.bytes_back) == (moved * out, moved * back)


@pytest.mark.rule("REPORT-3")
@given(plans())
def test_tasks_received_tasks_and_peers_are_what_counting_gives(plan):
    report = indexer_plan_report(plan)
    workers = workers_of(plan)
    owners = loops.owners(len(workers), plan.size)
    tasks = loops.tasks(plan.documents.lengths.tolist(), workers, plan.size)
    foreign = [
        sum(1 for _, start, stop in tasks[rank] if any(owners[row] != rank for row in range(start, stop)))
        for rank in range(plan.size)
    ]
    assert report.tasks.tolist() == [len(mine) for mine in tasks]
    assert report.received_tasks.tolist() == foreign
    assert report.peers.tolist() == [loops.peers(workers, plan.size, rank) for rank in range(plan.size)]
    assert (report.mode, report.size, report.tokens) == (plan.options.mode.value, plan.size, len(workers))


@pytest.mark.rule("REPORT-4")
@given(plans())
def test_words_say_the_numbers_of_the_value(plan):
    words = explain(plan)
    report = indexer_plan_report(plan)
    assert plan.options.mode.value in words
    table = [line.split() for line in words.splitlines()][-plan.size :]
    for rank in range(plan.size):
        assert [int(cell) for cell in table[rank][:3]] == [rank, plan.row_counts[rank], plan.loads[rank]]
        assert int(table[rank][4]) == report.tasks[rank]
    assert explain(report) in words
    numbers = {int(number) for number in re.findall(r"(?<![\d.])\d+(?![\d.])", explain(report))}
    assert {report.max_load, report.makespan_bound, report.moved_rows, report.moved_rows_bound} <= numbers
    route = plan_route(plan, 0)
    assert re.search(rf"Scores {route.query_count} rows? in {len(route.segments)} segments?:", explain(route))
    assert explain(route.exchange) in explain(route)
    assert str(plan.documents.total) in explain(plan.documents)


@pytest.mark.rule("REPORT-4")
def test_long_values_are_cut_and_say_so():
    plan = indexer_task_plan((1,) * 64, 32, 1, "none")
    assert "16 more workers" in explain(plan)
    assert "48 more segments" in explain(plan_route(indexer_task_plan((1,) * 64, 1, 1, "none"), 0))


@pytest.mark.rule("REPORT-4")
@pytest.mark.parametrize("value", [3, None, "plan", (5, 3, 8)])
def test_a_value_without_words_is_refused(value):
    with refused("HP-SERIAL-002") as caught:
        explain(value)
    assert caught.error.facts["type"] == type(value).__name__


@pytest.mark.rule("REPORT-5")
def test_diff_names_exactly_the_fields_that_differ():
    def plan(lengths=(5, 3, 8), size=2, ratio=1, mode="none", **options):
        return indexer_task_plan(lengths, size, ratio, mode, **options)

    def paths(one, other):
        return tuple(change.path for change in diff(one, other))

    assert diff(plan(), plan()) == ()
    assert diff(plan(), plan(ratio=2)) == (Change("ratio", 1, 2),)
    assert diff(plan(), plan(row_cost=1)) == (Change("options.row_cost", 0, 1),)
    assert paths(plan((8, 8)), plan((16,), mode="none")) == ("documents.lengths",)
    assert diff(plan((8, 8)), plan((8, 8), mode="locality")) == (Change("options.mode", "none", "locality"),)
    assert diff(plan(), PackedDocuments((5, 3, 8))) == (Change("type", "IndexerTaskPlan", "PackedDocuments"),)
    one, other = IndexerOptions("greedy", 2, capacity=9), IndexerOptions("greedy", 3)
    assert diff(one, other) == (Change("block_size", 2, 3), Change("capacity", 9, None))
    moved = plan(mode="zigzag")
    assert paths(plan(), moved) == ("options.mode", "task_starts", "task_stops", "task_workers")
    routes = [plan_route(moved, rank) for rank in range(2)]
    assert {"exchange.rank", "exchange.send_rows", "segments[0].key_stop"} <= set(paths(*routes))


@pytest.mark.rule("REPORT-5")
def test_diff_names_members_by_their_names_and_tells_an_order_as_a_whole():
    def container(*layers):
        return LayerContainer(fqn="h", layers=layers)

    assert diff(container("a", "b"), container("b", "c")) == (
        Change("layers[a]", "a", None),
        Change("layers[c]", None, "c"),
    )
    assert diff(container("a", "b"), container("b", "a")) == (Change("layers", "('a', 'b')", "('b', 'a')"),)


@pytest.mark.rule("REPORT-5")
@given(strategies.plan_values(), strategies.plan_values())
def test_two_values_differ_nowhere_exactly_if_they_are_equal(one, other):
    assert (diff(one, other) == ()) == (one == other)
    assert diff(one, from_json(to_json(one))) == ()
    assert all(isinstance(from_json(to_json(change)), Change) for change in diff(one, other))
