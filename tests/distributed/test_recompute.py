"""Recompute over real processes: one plan for all ranks, and collectives that are not replayed."""

import pytest
import torch

from hpfun import bank_route, sliding_window_plan, to_json
from hpfun.recompute import LayerSelection, RecomputeOptions, RecomputePolicy, plan_recompute
from hpfun_torch.recompute import read_modules
from tests.distributed import on_ranks_recompute as on_ranks
from tests.refusals import refused


def plan_text(exclude=("?.0",), options=None):
    model = torch.nn.ModuleDict({str(at): torch.nn.Sequential(torch.nn.Linear(2, 2)) for at in range(3)})
    policy = RecomputePolicy(region_patterns=("?",), exclude_patterns=exclude)
    return to_json(plan_recompute(read_modules(model), policy, LayerSelection(region_fqns=("",)), options))


def answers(ranks, plans, small_rank=None):
    got = ranks(4).run(on_ranks.applied, plans, small_rank)
    assert all(spent < 5 for *_, spent in got)
    assert len({code for code, *_ in got}) == 1
    assert len({str(sorted(facts.items())) for _, facts, *_ in got}) == 1
    return got[0][0], got[0][1], [kinds for _, _, kinds, _ in got]


@pytest.mark.rule("RECOMPUTE-35")
def test_equal_plans_are_applied_on_all_ranks(ranks):
    code, _, kinds = answers(ranks, [plan_text()] * 4)
    assert code == ""
    assert all(found.count("checkpoint") == found.count("exclude") == 3 for found in kinds)


@pytest.mark.rule("RECOMPUTE-35")
def test_a_rank_with_another_plan_stops_all_before_anything_is_wrapped(ranks):
    code, facts, kinds = answers(ranks, [plan_text()] * 2 + [plan_text(exclude=("1.0",))] + [plan_text()])
    assert code == "HP-RECOMPUTE-035"
    assert facts["ranks"] == (2,)
    assert facts["first_difference"] == "wrap_order[0.0]"
    assert facts["values"] == ("exclude, save_output=True",) * 2 + ("-",) + ("exclude, save_output=True",)
    assert {kind for found in kinds for kind in found} == {"none"}
    with refused("HP-RECOMPUTE-035"):
        ranks(2).run(on_ranks.raise_applied, [plan_text(), plan_text(exclude=())])
    _, facts, _ = answers(ranks, [plan_text()] * 3 + [plan_text(options=RecomputeOptions(swap_inputs=True))])
    assert (facts["ranks"], facts["first_difference"]) == ((3,), "options.swap_inputs")


@pytest.mark.rule("RECOMPUTE-35")
def test_a_rank_that_cannot_apply_its_plan_stops_all(ranks):
    code, facts, kinds = answers(ranks, [plan_text()] * 4, small_rank=1)
    assert code == "HP-RECOMPUTE-017"
    assert facts["failing_ranks"] == (1,)
    assert {kind for found in kinds for kind in found} == {"none"}


@pytest.mark.rule("RECOMPUTE-20", "RECOMPUTE-21", "RECOMPUTE-36")
@pytest.mark.parametrize("size", [2, 4])
def test_an_excluded_collective_runs_once_and_gradients_are_equal(ranks, size):
    plan = sliding_window_plan((0, 5 * size, 8 * size), 8, size, window=6)
    exchanges = [bank_route(plan, rank).exchange for rank in range(size)]
    plain, excluded, replayed = (
        ranks(size).run(on_ranks.trained, exchanges, how) for how in ("plain", "excluded", "replayed")
    )
    for rank in range(size):
        assert all(map(torch.equal, plain[rank][0], excluded[rank][0]))
    # of each micro-batch one forward and one backward, and where it is replayed one more
    assert [started for _, started, _ in plain] == [started for _, started, _ in excluded] == [4] * size
    assert [calls for *_, calls in excluded] == [2] * size
    assert [started for _, started, _ in replayed] == [6] * size
