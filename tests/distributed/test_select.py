"""Balanced selection over real processes equals selection in one process, id by id."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import check_exchanges, indexer_route, indexer_task_plan, to_json
from hpfun.strategies import indexer_requests
from hpfun_torch import balanced_indexer_select, launch_indexer_inputs, project_worker_queries
from tests.distributed import on_ranks
from tests.refusals import refused

PACK = (37, 1, 3, 30, 25)
MODES = {
    "none": {},
    "zigzag": {},
    "greedy": {"block_size": 5},
    "hybrid": {"block_size": 3, "zigzag_min_length": 30},
    "locality": {},
}


def check(answers, mode):
    assert all(answer["equal"] for answer in answers)
    assert all(answer["dtype"] == "torch.int32" and not answer["grad"] for answer in answers)
    assert all(len(answer["calls"]) == 1 for answer in answers)
    # one collective for float32, one for float64, one for the ids; none where nothing moves
    moved = answers[0]["moved"]
    order = ["start 0", "start 1", "wait 0", "wait 1", "start 2", "wait 2"]
    assert all(answer["collectives"] == (order if moved else []) for answer in answers), mode


@pytest.mark.rule("SELECT-1", "SELECT-2", "SELECT-3", "SELECT-4", "SELECT-8")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("ratio", "topk"), [(1, 8), (4, 3), (50, 2)])
def test_owners_get_the_ids_of_one_process(ranks, mode, size, ratio, topk):
    for integers in (True, False):
        answers = ranks(size).run(on_ranks.selected, PACK, ratio, topk, mode, MODES[mode], 0, integers)
        check(answers, mode)
        assert all(answer["shape"] == (1, 96 // size, topk) for answer in answers)


@pytest.mark.rule("SELECT-1", "SELECT-3")
@given(indexer_requests(max_size=4), st.integers(1, 6), st.integers(0, 5))
@example({"lengths": (4, 4), "size": 4, "ratio": 9, "mode": "locality"}, 2, 0)
@example({"lengths": (60, 1, 1, 1, 1), "size": 4, "ratio": 1, "mode": "greedy", "block_size": 16}, 2, 0)
def test_any_request_selects_what_one_process_selects(ranks, request, topk, seed):
    options = {key: value for key, value in request.items() if key not in ("lengths", "size", "ratio", "mode")}
    arguments = (request["lengths"], request["ratio"], topk, str(request["mode"]), options, seed, True)
    check(ranks(request["size"]).run(on_ranks.selected, *arguments), request["mode"])


@pytest.mark.rule("SELECT-1")
def test_selection_over_long_documents_equals_one_process(ranks):
    lengths = (1500, 200, 3, 4096 - 1703)
    answers = ranks(4).run(on_ranks.selected, lengths, 1, 64, "locality", {}, 1, False)
    check(answers, "locality")
    assert answers[0]["moved"] > 0


@pytest.mark.rule("SELECT-2")
def test_rows_arrive_bit_for_bit_in_their_own_dtype(ranks):
    assert all(ranks(4).run(on_ranks.moved_inputs, PACK, "locality"))


@pytest.mark.rule("SELECT-5")
def test_rows_travel_while_the_caller_projects(ranks):
    events = ["start 0", "projection", "wait 0", "start 1", "attention", "wait 1"]
    for got, codes in ranks(4).run(on_ranks.overlap_events, PACK):
        assert got == events
        assert codes == ["HP-STATE-001"] * 3


@pytest.mark.rule("SELECT-6")
@pytest.mark.parametrize("mode", ["none", "locality", "greedy", "zigzag"])
def test_a_worker_projects_as_the_owner_does_bit_for_bit(ranks, mode):
    options = {"block_size": 100} if mode == "greedy" else {}
    answers = ranks(4).run(on_ranks.projected, (4000, *[4] * 24), mode, options)
    assert all(equal for equal, _, _ in answers)
    assert len({calls for _, calls, _ in answers}) == 1
    assert all(calls == planned for _, calls, planned in answers)


@pytest.mark.rule("SELECT-6")
def test_projection_pads_to_whole_chunks_and_calls_at_least_once():
    shapes = []

    def project(rows):
        shapes.append(tuple(rows.shape))
        return rows.reshape(*rows.shape[:-1], 1, rows.shape[-1]) * 2

    rows = torch.arange(12.0).view(1, 6, 2)
    got = project_worker_queries(project, rows, 4, num_calls=3)
    assert shapes == [(1, 4, 2)] * 3
    assert torch.equal(got, (rows * 2).view(1, 6, 1, 2))
    shapes.clear()
    assert project_worker_queries(project, torch.ones(0, 2), 4).shape == (0, 1, 2)
    assert shapes == [(4, 2)]


@pytest.mark.rule("SELECT-7")
def test_projection_refuses_calls_that_do_not_cover_the_rows():
    with refused("HP-INDEX-008") as caught:
        project_worker_queries(lambda rows: rows, torch.ones(9, 2), 4, num_calls=2)
    assert caught.error.facts["num_calls"] == 2
    for length in (0, True, 1.5):
        with refused("HP-INDEX-008"):
            project_worker_queries(lambda rows: rows, torch.ones(9, 2), length)
    with refused("HP-INDEX-008"):
        project_worker_queries(lambda rows: rows, torch.ones(9), 4)


@pytest.mark.rule("SELECT-7")
def test_inputs_that_do_not_fit_are_refused_all_at_once():
    route = indexer_route((4, 4), 1, 0, 1, "none")
    good = torch.ones(1, 8, 2)
    with refused("HP-INDEX-008") as caught:
        launch_indexer_inputs(torch.ones(2, 8, 2), good, (good[0], torch.ones(1, 7, 2)), route=route, group=None)
    places = [violation.where for violation in caught.error.violations]
    assert places == ["query_residual", "position_embeddings.cos", "position_embeddings.sin"]
    assert caught.error.facts["local"] == 8
    meta = torch.ones(1, 8, 2, device="meta")
    with refused("HP-INDEX-008") as caught:
        launch_indexer_inputs(good, meta, (good, good), route=route, group=None)
    assert caught.error.facts["devices"] == ("cpu", "meta")
    for ids in (torch.ones(1, 8, 2), torch.ones(8, 2, dtype=torch.bool), torch.ones(2, 8, 2, dtype=torch.int64)):
        with refused("HP-INDEX-008") as caught:
            balanced_indexer_select(good, good, (good, good), selector=lambda *_, ids=ids: ids, route=route, group=None)
        assert caught.error.facts["query_count"] == 8


@pytest.mark.rule("SELECT-7")
def test_with_check_always_one_bad_rank_fails_all(ranks):
    answers = ranks(4).run(on_ranks.bad_inputs, PACK, 2, "always")
    assert [(code, failing) for code, failing, _ in answers] == [("HP-INDEX-008", 1)] * 4
    assert all(spent < 5 for _, _, spent in answers)


@pytest.mark.rule("SELECT-7")
def test_with_check_always_a_selector_that_fails_on_one_rank_fails_all(ranks):
    answers = ranks(4).run(on_ranks.selector_fails, PACK, 2)
    assert [code for code, _ in answers] == ["HP-AGREE-002"] * 4
    assert all(spent < 5 for _, spent in answers)


@pytest.mark.rule("SELECT-7")
def test_odd_arguments_are_refused_with_a_code():
    route = indexer_route((4, 4), 1, 0, 1, "none")
    good = torch.ones(1, 8, 2)
    for positions in ((good,), (good, good, good), (good, [1.0])):
        with refused("HP-INDEX-008"):
            launch_indexer_inputs(good, good, positions, route=route, group=None)
    with refused("HP-INDEX-008"):
        project_worker_queries(lambda rows: rows, [[1.0]], 4)
    with refused("HP-INDEX-008"):
        project_worker_queries(lambda rows: rows[:1], torch.ones(4, 2), 4)
    pending = launch_indexer_inputs(good, good, (good, good), route=route, group=None)
    pending.wait()
    with refused("HP-INDEX-008"):
        pending.launch_result([1, 2])
    ids = torch.zeros(8, 3, dtype=torch.int64)
    assert pending.launch_result(ids).wait().shape == (1, 8, 3)  # a refused call spends nothing


@pytest.mark.rule("ROUTE-1")
def test_routes_made_on_each_rank_keep_the_laws_together(ranks):
    for mode, options in MODES.items():
        text = to_json(indexer_task_plan(PACK, 4, 1, mode, **options))
        for routes in ranks(4).run(on_ranks.routes_of, text):
            check_exchanges([route.exchange for route in routes])
