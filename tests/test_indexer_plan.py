"""The task plan: what it holds, what it refuses, and that it is the same everywhere."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import (
    IndexerOptions,
    IndexerTask,
    IndexerTaskPlan,
    PackedDocuments,
    from_json,
    indexer_route,
    indexer_task_plan,
    makespan_lower_bound,
    moved_rows_lower_bound,
    plan_route,
    to_json,
)
from tests.oracles import indexer as loops
from tests.refusals import refused

ROOT = Path(__file__).resolve().parents[1]
MODES = ("none", "zigzag", "greedy", "hybrid", "locality")


def options_of(mode):
    return {"greedy": {"block_size": 2}, "hybrid": {"block_size": 2, "zigzag_min_length": 6}}.get(mode, {})


@st.composite
def plans(draw):
    size = draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=8))
    lengths.append(-sum(lengths) % size or size)
    mode = draw(st.sampled_from(MODES))
    options = options_of(mode)
    if "block_size" in options:
        options["block_size"] = draw(st.integers(1, sum(lengths) // size))
    options["row_cost"] = draw(st.integers(0, 3))
    return indexer_task_plan(tuple(lengths), size, draw(st.integers(1, 5)), mode, **options)


def workers_of(plan):
    workers = [None] * plan.documents.total
    for rank in range(plan.size):
        for task in plan.worker_tasks(rank):
            workers[task.start : task.stop] = [rank] * (task.stop - task.start)
    return workers


@pytest.mark.rule("PLAN-1")
@given(plans())
def test_every_row_is_in_exactly_one_task_and_no_task_crosses_a_document(plan):
    rows = loops.rows_of(plan.documents.lengths.tolist())
    seen = []
    for rank in range(plan.size):
        for task in plan.worker_tasks(rank):
            stretch = range(task.start, task.stop)
            assert {rows[row][0] for row in stretch} == {task.document}
            seen += stretch
    assert sorted(seen) == list(range(plan.documents.total))


@pytest.mark.rule("PLAN-3")
@given(plans())
def test_tasks_of_a_worker_stand_by_start_and_neighbours_are_merged(plan):
    lengths = plan.documents.lengths.tolist()
    for rank, expected in enumerate(loops.tasks(lengths, workers_of(plan), plan.size)):
        assert [(task.document, task.start, task.stop) for task in plan.worker_tasks(rank)] == expected


@pytest.mark.rule("PLAN-4")
@given(plans())
def test_loads_rows_moves_and_imbalance_are_what_counting_gives(plan):
    lengths, workers = plan.documents.lengths.tolist(), workers_of(plan)
    costs = loops.row_costs(lengths, plan.ratio, plan.options.row_cost)
    loads = loops.loads(workers, costs, plan.size)
    assert plan.loads.tolist() == loads
    assert plan.row_counts.tolist() == loops.row_counts(workers, plan.size)
    assert plan.moved_rows == loops.moved_rows(workers, plan.size)
    assert plan.imbalance == (max(loads) * plan.size / sum(loads) if sum(loads) else 1.0)
    assert [sum(task.work for task in plan.worker_tasks(rank)) for rank in range(plan.size)] == loads


@pytest.mark.rule("PLAN-4")
def test_imbalance_is_one_where_there_is_no_work():
    for mode in MODES:
        plan = indexer_task_plan((2, 2, 2, 2), 4, 3, mode, **options_of(mode))
        assert plan.loads.tolist() == [0, 0, 0, 0]
        assert plan.imbalance == 1.0


@pytest.mark.rule("PLAN-7")
@given(plans())
def test_in_mode_none_every_owner_scores_its_own_rows(plan):
    alone = indexer_task_plan(plan.documents, plan.size, plan.ratio, "none")
    assert workers_of(alone) == loops.owners(alone.documents.total, alone.size)
    assert alone.moved_rows == 0


GOOD = {"task_starts": [0, 5, 8], "task_stops": [5, 8, 16], "task_workers": [0, 0, 1]}


def built(documents=(5, 3, 8), size=2, ratio=1, **arrays):
    return IndexerTaskPlan(PackedDocuments(documents), size, ratio, IndexerOptions("none"), **{**GOOD, **arrays})


@pytest.mark.rule("PLAN-2")
def test_arrays_that_cover_the_pack_make_the_plan():
    assert built() == indexer_task_plan((5, 3, 8), 2, 1, "none")


@pytest.mark.rule("PLAN-2")
@pytest.mark.parametrize(
    ("arrays", "where"),
    [
        ({"task_starts": [], "task_stops": [], "task_workers": []}, "task_starts"),
        ({"task_starts": [0, 5]}, "task_starts"),
        ({"task_workers": [0, 0]}, "task_starts"),
        ({"task_starts": [0, 5], "task_stops": [5, 8], "task_workers": [0, 0]}, "task_starts"),  # a row missing
        ({"task_starts": [1, 5, 8]}, "task_starts"),
        ({"task_stops": [5, 8, 15]}, "task_starts"),
        ({"task_stops": [5, 8, 17]}, "task_starts"),
        ({"task_stops": [6, 8, 16]}, "task_starts"),  # a row twice
        ({"task_starts": [-1, 5, 8]}, "task_starts"),
        (
            {"task_starts": [0, 5, 5, 8], "task_stops": [5, 5, 8, 16], "task_workers": [0, 0, 0, 1]},
            "task_starts",
        ),  # an empty task
        ({"task_starts": [0, 8], "task_stops": [8, 16], "task_workers": [0, 1]}, "task_stops"),  # crosses
        ({"task_workers": [0, 1, 0]}, "task_workers"),
        ({"task_workers": [-1, 0, 1]}, "task_workers"),
        ({"task_workers": [0, 0, 2]}, "task_workers"),
        ({"task_starts": [5, 0, 8], "task_stops": [8, 5, 16]}, "task_workers"),  # not by start
        ({"task_starts": [0.0, 5.0, 8.0]}, "task_starts"),
        ({"task_stops": [True, 8, 16]}, "task_stops"),
        ({"task_workers": None}, "task_workers"),
    ],
)
def test_arrays_that_do_not_cover_the_pack_in_order_are_refused(arrays, where):
    with refused("HP-INDEX-010") as caught:
        built(**arrays)
    assert caught.error.where == where


@pytest.mark.rule("PLAN-2", "PLAN-3")
def test_neighbours_of_one_document_on_one_worker_that_are_not_merged_are_refused():
    with refused("HP-INDEX-010"):
        built(task_starts=[0, 2, 5, 8], task_stops=[2, 5, 8, 16], task_workers=[0, 0, 0, 1])


@pytest.mark.rule("PLAN-2")
def test_a_plan_of_other_types_is_refused():
    with refused("HP-INDEX-010") as caught:
        IndexerTaskPlan((5, 3, 8), 2, 1, IndexerOptions("none"), **GOOD)
    assert caught.error.facts["types"] == ("tuple", "IndexerOptions")
    with refused("HP-INDEX-010"):
        IndexerTaskPlan(PackedDocuments((5, 3, 8)), 2, 1, "none", **GOOD)
    with refused("HP-INDEX-010"):
        IndexerTask(0, 3, 0, -1)


@pytest.mark.rule("PLAN-2", "PLAN-5")
@given(plans())
def test_a_plan_survives_json_pickle_and_copies(plan):
    for twin in (from_json(to_json(plan)), pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan), copy.copy(plan)):
        assert twin == plan
        assert twin.digest == plan.digest
        assert hash(twin) == hash(plan)
        with pytest.raises(ValueError, match="read-only"):
            twin.task_starts[0] = 1


@pytest.mark.rule("PLAN-5")
@pytest.mark.parametrize("mode", MODES)
def test_every_form_of_the_arguments_gives_the_same_plan(mode):
    plan = indexer_task_plan((5, 3, 8), 2, 1, mode, **options_of(mode))
    for lengths in ([5, 3, 8], np.array([5, 3, 8], dtype=np.int32), PackedDocuments((5, 3, 8)), iter((5, 3, 8))):
        twin = indexer_task_plan(lengths, np.int64(2), np.uint8(1), mode, **options_of(mode))
        assert twin == plan
        assert twin.digest == plan.digest
    assert plan != indexer_task_plan((5, 3, 8), 2, 2, mode, **options_of(mode))
    assert (type(plan.size), type(plan.ratio)) == (int, int)


@pytest.mark.rule("PLAN-5")
def test_plans_of_one_digest_come_from_every_process_whatever_its_hash_seed():
    program = (
        "from hpfun import indexer_task_plan as plan, plan_route\n"
        "for mode, options in [('none', {}), ('zigzag', {}), ('greedy', {'block_size': 3}),\n"
        "    ('hybrid', {'block_size': 3, 'zigzag_min_length': 12}), ('locality', {}),\n"
        "    ('locality', {'ranks_per_node': 2, 'tolerance_ppm': 500})]:\n"
        "    made = plan((5, 3, 8, 1, 1, 1, 14, 3, 12), 4, 2, mode, **options)\n"
        "    print(made.digest, *(plan_route(made, rank).digest for rank in range(4)))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(answers) == 1
    assert len(answers.pop().split()) == 6 * 5


BAD_LENGTHS = [
    ((), {}),
    ((0,), {"document": 0, "length": 0}),
    ((5, -3, 8), {"document": 1, "length": -3}),
    ((5, True), {"index": 1, "type": "bool"}),
    ((5.0, 3), {"index": 0, "type": "float"}),
    (np.array([5.0]), {"dtype": "float64"}),
    (np.array([2**63], dtype=np.uint64), {"value": 2**63}),
    ((2**62, 2**62), {"most": 2**63 - 1}),
    (16, {"type": "int"}),
    ("58", {"type": "str"}),
]


@pytest.mark.rule("PLAN-6")
@pytest.mark.parametrize(("lengths", "facts"), BAD_LENGTHS)
def test_bad_lengths_are_refused_by_plans_routes_and_bounds(lengths, facts):
    for call in (
        lambda: indexer_task_plan(lengths, 1, 1, "none"),
        lambda: indexer_route(lengths, 1, 0, 1, "none"),
        lambda: makespan_lower_bound(lengths, 1, 1),
        lambda: moved_rows_lower_bound(lengths, 1, 1, 3),
    ):
        with refused("HP-INDEX-001") as caught:
            call()
        assert caught.error.where == "lengths"
        assert facts.items() <= dict(caught.error.facts).items()


@pytest.mark.rule("PLAN-6")
@pytest.mark.parametrize(
    ("size", "ratio", "where", "facts"),
    [
        (3, 1, "size", {"tokens": 16, "size": 3, "remainder": 1}),
        (32, 1, "size", {"tokens": 16, "size": 32, "remainder": 16}),
        (0, 1, "size", {"value": 0}),
        (-4, 1, "size", {"value": -4}),
        (True, 1, "size", {"type": "bool"}),
        (2.0, 1, "size", {"type": "float"}),
        (None, 1, "size", {"type": "NoneType"}),
        (2, 0, "ratio", {"value": 0}),
        (2, -1, "ratio", {"value": -1}),
        (2, True, "ratio", {"type": "bool"}),
        (2, 1.0, "ratio", {"type": "float"}),
        (2, "1", "ratio", {"type": "str"}),
    ],
)
def test_a_size_or_ratio_out_of_range_is_refused(size, ratio, where, facts):
    for call in (
        lambda: indexer_task_plan((5, 3, 8), size, ratio, "none"),
        lambda: makespan_lower_bound((5, 3, 8), size, ratio),
        lambda: moved_rows_lower_bound((5, 3, 8), size, ratio, 3),
        lambda: built(size=size, ratio=ratio),
    ):
        with refused("HP-INDEX-002") as caught:
            call()
        assert caught.error.where == where
        assert facts.items() <= dict(caught.error.facts).items()


@pytest.mark.rule("PLAN-6")
@pytest.mark.parametrize(
    ("rank", "facts"),
    [
        (2, {"rank": 2, "size": 2}),
        (-1, {"rank": -1, "size": 2}),
        (True, {"type": "bool"}),
        (0.0, {"type": "float"}),
        (None, {"type": "NoneType"}),
    ],
)
def test_a_rank_outside_the_group_is_refused(rank, facts):
    plan = indexer_task_plan((5, 3, 8), 2, 1, "none")
    for call in (
        lambda: plan.worker_tasks(rank),
        lambda: plan_route(plan, rank),
        lambda: indexer_route((5, 3, 8), 2, rank, 1, "none"),
    ):
        with refused("HP-INDEX-007") as caught:
            call()
        assert caught.error.where == "rank"
        assert facts.items() <= dict(caught.error.facts).items()


@pytest.mark.rule("PLAN-6")
def test_a_numpy_rank_is_a_rank():
    plan = indexer_task_plan((5, 3, 8), 2, 1, "none")
    assert plan.worker_tasks(np.int64(1)) == plan.worker_tasks(1)
    assert plan_route(plan, np.int8(1)) == plan_route(plan, 1)
