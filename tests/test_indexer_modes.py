"""Modes zigzag, greedy and hybrid: worked examples, and the loops on packs beyond the small ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import indexer_task_plan
from tests.oracles import indexer as loops
from tests.refusals import refused

HYBRID = {"block_size": 2, "zigzag_min_length": 6}
TABLE = [
    ((5, 3, 8), 2, 1, "none", {}, [[(0, 0, 5), (1, 5, 8)], [(2, 8, 16)]], [21, 36]),
    (
        (5, 3, 8),
        2,
        1,
        "zigzag",
        {},
        [[(0, 0, 1), (0, 3, 5), (2, 8, 10), (2, 14, 16)], [(0, 1, 3), (1, 5, 8), (2, 10, 14)]],
        [28, 29],
    ),
    (
        (5, 3, 8),
        2,
        1,
        "greedy",
        {"block_size": 2},
        [[(0, 0, 2), (1, 7, 8), (2, 10, 12), (2, 14, 16)], [(0, 2, 5), (1, 5, 7), (2, 8, 10), (2, 12, 14)]],
        [28, 29],
    ),
    (
        (5, 3, 8),
        4,
        2,
        "greedy",
        {"block_size": 2},
        [[(2, 14, 16)], [(1, 5, 7), (2, 12, 14)], [(0, 2, 5), (2, 8, 10)], [(0, 0, 2), (1, 7, 8), (2, 10, 12)]],
        [7, 6, 6, 5],
    ),
    (
        (5, 3, 8),
        2,
        1,
        "hybrid",
        HYBRID,
        [[(0, 2, 4), (1, 5, 7), (2, 8, 10), (2, 14, 16)], [(0, 0, 2), (0, 4, 5), (1, 7, 8), (2, 10, 14)]],
        [28, 29],
    ),
    (
        (16,),
        4,
        1,
        "zigzag",
        {},
        [[(0, 0, 2), (0, 14, 16)], [(0, 2, 4), (0, 12, 14)], [(0, 4, 6), (0, 10, 12)], [(0, 6, 10)]],
        [34, 34, 34, 34],
    ),
    ((1, 1, 1, 1), 4, 1, "zigzag", {}, [[(0, 0, 1)], [(1, 1, 2)], [(2, 2, 3)], [(3, 3, 4)]], [1, 1, 1, 1]),
    (
        (5, 3, 8),
        4,
        2,
        "zigzag",
        {},
        [
            [(0, 0, 5), (2, 8, 9), (2, 15, 16)],
            [(1, 5, 8), (2, 9, 10), (2, 14, 15)],
            [(2, 10, 11), (2, 13, 14)],
            [(2, 11, 13)],
        ],
        [10, 6, 4, 4],
    ),
    (
        (7, 9),
        2,
        4,
        "greedy",
        {"block_size": 3},
        [[(0, 0, 3), (0, 6, 7), (1, 13, 16)], [(0, 3, 6), (1, 7, 13)]],
        [6, 6],
    ),
]


def tasks(plan):
    return [[(t.document, t.start, t.stop) for t in plan.worker_tasks(rank)] for rank in range(plan.size)]


def checked(plan, lengths, workers, row_cost=0):
    assert tasks(plan) == loops.tasks(lengths, workers, plan.size)
    assert plan.loads.tolist() == loops.loads(workers, loops.row_costs(lengths, plan.ratio, row_cost), plan.size)


@pytest.mark.rule(
    "ZIGZAG-1", "ZIGZAG-2", "ZIGZAG-3", "HYBRID-1", "GREEDY-1", "GREEDY-2", "GREEDY-3", "PLAN-3", "PLAN-7"
)
@pytest.mark.parametrize(("lengths", "size", "ratio", "mode", "options", "expected", "loads"), TABLE)
def test_worked_examples_have_these_tasks_and_these_loads(lengths, size, ratio, mode, options, expected, loads):
    plan = indexer_task_plan(lengths, size, ratio, mode, **options)
    assert tasks(plan) == expected
    assert plan.loads.tolist() == loads


@st.composite
def packs(draw):
    size = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=8))
    lengths.append(-sum(lengths) % size or size)
    return tuple(lengths), size, draw(st.integers(1, 5)), draw(st.integers(0, 3))


@pytest.mark.rule("ZIGZAG-1", "ZIGZAG-2", "ZIGZAG-3")
@given(packs())
def test_zigzag_cuts_long_documents_and_then_places_short_ones_heaviest_first(pack):
    lengths, size, ratio, row_cost = pack
    plan = indexer_task_plan(lengths, size, ratio, "zigzag", row_cost=row_cost)
    checked(plan, lengths, loops.assign_zigzag(lengths, size, ratio, row_cost), row_cost)


@pytest.mark.rule("ZIGZAG-2")
@given(packs())
def test_zigzag_leaves_a_document_below_two_rows_a_rank_whole(pack):
    lengths, size, ratio, row_cost = pack
    plan = indexer_task_plan(lengths, size, ratio, "zigzag", row_cost=row_cost)
    pieces = [task[0] for worker in tasks(plan) for task in worker]
    for document, length in enumerate(lengths):
        if length < 2 * size:
            assert pieces.count(document) == 1
        else:
            assert pieces.count(document) == 2 * size - 1  # the two middle chunks meet on the last worker


@pytest.mark.rule("GREEDY-1", "GREEDY-2", "GREEDY-3", "GREEDY-4")
@given(packs(), st.data())
def test_greedy_places_the_heaviest_block_first_on_the_least_loaded_worker(pack, data):
    lengths, size, ratio, row_cost = pack
    local = sum(lengths) // size
    block = data.draw(st.integers(1, local), label="block_size")
    plan = indexer_task_plan(lengths, size, ratio, "greedy", block_size=block, row_cost=row_cost)
    checked(plan, lengths, loops.assign_greedy(lengths, size, ratio, block, None, row_cost), row_cost)
    assert max(plan.row_counts.tolist()) <= local + block - 1


@pytest.mark.rule("GREEDY-3", "GREEDY-4", "HYBRID-1")
@given(packs(), st.data())
def test_a_capacity_is_kept_or_the_plan_is_refused(pack, data):
    lengths, size, ratio, row_cost = pack
    local = sum(lengths) // size
    block = data.draw(st.integers(1, local), label="block_size")
    capacity = data.draw(st.integers(1, local + block), label="capacity")
    threshold = data.draw(st.none() | st.integers(1, 25), label="zigzag_min_length")
    mode = "greedy" if threshold is None else "hybrid"

    def plan():
        return indexer_task_plan(lengths, size, ratio, mode, block, threshold, capacity, row_cost=row_cost)

    try:
        workers = loops.assign_hybrid(lengths, size, ratio, block, threshold, capacity, row_cost)
    except loops.DoesNotFit:
        with refused("HP-INDEX-006") as caught:
            plan()
        assert caught.error.facts["capacity"] == capacity
    else:
        checked(plan(), lengths, workers, row_cost)


@pytest.mark.rule("HYBRID-1")
@given(packs(), st.data())
def test_hybrid_is_zigzag_for_long_documents_then_greedy_on_top(pack, data):
    lengths, size, ratio, row_cost = pack
    block = data.draw(st.integers(1, sum(lengths) // size), label="block_size")
    threshold = data.draw(st.sampled_from(lengths) | st.integers(1, 30), label="zigzag_min_length")
    plan = indexer_task_plan(lengths, size, ratio, "hybrid", block, threshold, row_cost=row_cost)
    checked(plan, lengths, loops.assign_hybrid(lengths, size, ratio, block, threshold, None, row_cost), row_cost)


@pytest.mark.rule("GREEDY-4")
def test_a_capacity_too_small_for_the_blocks_says_how_much_room_is_left():
    with refused("HP-INDEX-006") as caught:
        indexer_task_plan((5, 3, 8), 2, 1, "greedy", block_size=3, capacity=7)
    assert caught.error.facts == {"capacity": 7, "task_rows": 3, "room": 1}
    assert indexer_task_plan((5, 3, 8), 2, 1, "greedy", block_size=3, capacity=9).row_counts.tolist() == [9, 7]


@pytest.mark.rule("HYBRID-1", "GREEDY-4")
def test_a_capacity_that_zigzag_alone_exceeds_is_refused():
    # 9 rows in 8 chunks: the last chunk has two rows, and worker 0 has the first one too
    with refused("HP-INDEX-006") as caught:
        indexer_task_plan((7, 9), 4, 1, "hybrid", block_size=1, zigzag_min_length=8, capacity=2)
    assert caught.error.facts == {"capacity": 2, "rows": 3, "worker": 0}


@pytest.mark.rule("GREEDY-1")
def test_a_block_of_2048_rows_is_too_coarse_for_a_short_shard_and_the_plan_shows_it():
    lengths = (32_768, *([2_048] * 48))
    size = 32
    coarse = indexer_task_plan(lengths, size, 1, "greedy")
    fine = indexer_task_plan(lengths, size, 1, "greedy", block_size=64)
    assert coarse.options.block_size == 2048
    assert coarse.imbalance > 1.9
    assert fine.imbalance < 1.01
    assert indexer_task_plan(lengths, size, 1, "locality").imbalance < 1.001


@pytest.mark.rule("ZIGZAG-2", "GREEDY-1", "HYBRID-1", "PLAN-1")
@pytest.mark.parametrize("mode", ["none", "zigzag", "greedy", "hybrid", "locality"])
@pytest.mark.parametrize(
    ("lengths", "size"),
    [
        ((3, 2, 3), 4),  # shorter than the group
        ((1, 6, 1), 4),  # one token long
        ((8,), 4),  # as long as the pack
        ((3, 4, 1), 8),  # one row a rank
        ((3, 4, 1), 1),  # one rank
        ((1,), 1),
    ],
)
def test_documents_and_groups_at_the_edge_are_normal(mode, lengths, size):
    options = {"greedy": {"block_size": 1}, "hybrid": {"block_size": 1, "zigzag_min_length": 1}}.get(mode, {})
    plan = indexer_task_plan(lengths, size, 1, mode, **options)
    total = sum(lengths)
    if mode == "none":
        workers = loops.assign_none(lengths, size)
    elif mode == "zigzag":
        workers = loops.assign_zigzag(lengths, size, 1)
    elif mode == "locality":
        workers = [None] * total
        for rank in range(size):
            for task in plan.worker_tasks(rank):
                workers[task.start : task.stop] = [rank] * (task.stop - task.start)
        assert loops.broken_locality_rules(workers, lengths, size, 1) == []
    else:
        workers = loops.assign_hybrid(lengths, size, 1, 1, options.get("zigzag_min_length"))
    checked(plan, lengths, workers)
    assert sum(plan.row_counts.tolist()) == total
