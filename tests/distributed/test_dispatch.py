"""Banks over real processes: values, gradients by every road, counted bytes, refusals, deferred launches, graphs."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpfun import sliding_window_plan, sliding_window_route
from hpfun.strategies import sequence_bank_plans
from hpfun_torch import DeferredBankLaunch, Handle, dispatch_sequence, start_dispatch
from hpfun_torch.ranks import RankPool
from tests.distributed import on_ranks_sequence as on_ranks
from tests.distributed.on_ranks_sequence import plan_of
from tests.refusals import refused

DTYPES = ("float32", "float64", "bfloat16", "int64", "uint8")
# a window over three earlier ranks, a document over all ranks, blocks that straddle two shards
WIDE = plan_of("window", (0, 3, 40, 48), 4, 31)
WHOLE = plan_of("prefix", (0, 40), 4, 1)
STRADDLING = plan_of("halo", (0, 21, 40), 4, 8)
# nothing crosses a shard edge
AT_HOME = plan_of("window", (0, 10, 20, 30, 40), 4, 8)


def test_the_examples_are_what_they_are_meant_to_be():
    assert WIDE.halo_rows.tolist() == [0, 9, 21, 30]
    assert WHOLE.halo_rows.tolist() == [0, 10, 20, 30]
    assert STRADDLING.halo_rows.tolist() == [0, 10, 0, 9]
    assert not AT_HOME.required


@pytest.mark.rule("DISPATCH-1")
@settings(max_examples=40)
@given(sequence_bank_plans(max_size=4), st.integers(-3, 2), st.sampled_from(DTYPES))
def test_a_bank_is_that_stretch_of_the_whole_sequence_along_any_dim(ranks, plan, dim, dtype):
    assert all(ranks(plan.size).run(on_ranks.bank_is_a_slice, plan, dim, dtype))


@pytest.mark.rule("DISPATCH-1")
@pytest.mark.parametrize("plan", [WIDE, WHOLE, STRADDLING, AT_HOME])
def test_banks_over_several_predecessors_arrive_whole(ranks, plan):
    assert all(ranks(4).run(on_ranks.bank_is_a_slice, plan, 1, "float32"))


@pytest.mark.rule("DISPATCH-2", "EXECUTOR-8")
@pytest.mark.parametrize("plan", [WIDE, WHOLE, STRADDLING, AT_HOME])
def test_gradients_by_every_road_equal_plain_indexing(ranks, plan):
    for answer in ranks(4).run(on_ranks.gradients_of_banks, plan, 3):
        second = answer["roads"].pop("second")
        np.testing.assert_allclose(second, answer["second"], rtol=1e-12, atol=1e-12)
        assert set(answer["roads"]) == {"backward", "started", "grad", "vjp", "functional_call"}
        for road in answer["roads"].values():
            np.testing.assert_allclose(road, answer["expected"], rtol=1e-13, atol=1e-13)


@pytest.mark.rule("DISPATCH-2")
@settings(max_examples=40)
@given(sequence_bank_plans(max_size=2), st.integers(0, 100))
def test_gradients_of_any_plan_equal_plain_indexing(ranks, plan, seed):
    for answer in ranks(plan.size).run(on_ranks.gradients_of_banks, plan, seed):
        np.testing.assert_allclose(answer["roads"]["backward"], answer["expected"], rtol=1e-13, atol=1e-13)


@pytest.mark.rule("DISPATCH-2")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_of_copies_add_up_in_rank_order(ranks, dtype):
    # rank 0's last row is in all four banks; in bfloat16 256 + 1 is 256, so the sum must run in float32
    plan = plan_of("prefix", (0, 4), 4, 1)
    values = [256.0, 1.0, 1.0, 2.0] if dtype == "bfloat16" else [1.0, -(2.0**24), 2.0**24, 0.0]
    sums = ranks(4).run(on_ranks.sums_of_banks, plan, values, dtype)
    # (1 - 2^24) + 2^24 is 1 in float32, and 0 in the order 2, 0, 1
    assert sums[0] == [260.0 if dtype == "bfloat16" else 1.0]


@pytest.mark.rule("DISPATCH-3")
@pytest.mark.parametrize("plan", [WIDE, WHOLE, STRADDLING, AT_HOME])
def test_exactly_the_halo_travels_and_nothing_where_there_is_none(ranks, plan):
    answers = ranks(4).run(on_ranks.moved_bytes, plan, 6)
    assert [answer[1] for answer in answers] == (plan.halo_rows * 24).tolist()
    assert sum(answer[0] for answer in answers) == plan.moved_rows * 24
    events = ["start 0", "wait 0", "start 1", "wait 1"] if plan.required else []
    assert [answer[2] for answer in answers] == [events] * 4


@pytest.mark.rule("DISPATCH-4")
@pytest.mark.parametrize(("kind", "code"), [("rows", "HP-ROUTE-006"), ("dim", "HP-ROUTE-007")])
def test_with_check_always_every_rank_raises_what_one_rank_found(ranks, kind, code):
    answers = ranks(4).run(on_ranks.bad_bank, WIDE, 2, "always", kind)
    assert [answer[0] for answer in answers] == [code] * 4
    assert all(answer[1]["failing_ranks"] == (2,) and answer[2] < 5 for answer in answers)
    assert [answer[0] for answer in ranks(4).run(on_ranks.bad_bank, WIDE, -1, "always", kind)] == [""] * 4


@pytest.mark.rule("DISPATCH-4")
def test_with_check_off_the_bad_rank_raises_and_its_peers_meet_the_timeout():
    plan = plan_of("window", (0, 8), 2, 3)
    with RankPool(2, group_timeout_s=2.0) as pool:
        answers = pool.run(on_ranks.bad_bank, plan, 0, "off", "rows", timeout_s=30)
    assert [answer[0] for answer in answers] == ["HP-ROUTE-006", "HP-AGREE-002"]
    assert answers[0][2] < 1 < 1.5 <= answers[1][2]


@pytest.mark.rule("DISPATCH-4")
def test_a_tensor_route_or_dim_that_does_not_fit_is_refused():
    route = sliding_window_route((0, 4, 8), 4, 2, 1, 3)
    with refused("HP-ROUTE-006") as caught:
        dispatch_sequence(torch.ones(5, 2), route)
    assert (caught.error.facts["rows"], caught.error.facts["expected"]) == (5, 4)
    for wrong in (route.exchange, None):
        with refused("HP-ROUTE-006"):
            dispatch_sequence(torch.ones(4, 2), wrong)
    with refused("HP-ROUTE-006"):
        start_dispatch([1.0, 2.0, 3.0, 4.0], route)
    for dim in (2, -3, True):
        with refused("HP-ROUTE-007") as caught:
            dispatch_sequence(torch.ones(4, 2), route, dim=dim)
        assert caught.error.facts["axes"] == 2
    with refused("HP-EXCHANGE-009"):
        dispatch_sequence(torch.ones(4, 2), sliding_window_route((0, 8), 4, 2, 1, 3))


@pytest.mark.rule("DISPATCH-4")
def test_a_dispatch_is_waited_once():
    handle = start_dispatch(torch.ones(4, 2), sliding_window_route((0, 4, 8), 4, 2, 1, 3))
    handle.wait()
    with refused("HP-STATE-001") as caught:
        handle.wait()
    assert caught.error.facts["handle"] == "start_dispatch"


@pytest.mark.rule("DISPATCH-5")
def test_a_deferred_launch_starts_once_when_told_or_at_the_wait_and_lets_its_input_go(ranks):
    for answer in ranks(4).run(on_ranks.deferred, WIDE):
        assert answer["events"] == ["prepared", "start 0", "between", "wait 0"]
        assert answer["codes"] == ["HP-STATE-001"] * 2
        assert answer["started"] == (False, True)
        assert answer["waited"] == ["start 0", "wait 0"]
        assert answer["alive"] == (True, False)
        assert answer["gathered"] == (48, 2)


@pytest.mark.rule("DISPATCH-5")
def test_a_deferred_launch_says_what_it_was_asked_twice():
    later = DeferredBankLaunch(lambda: Handle(lambda: 1, "inner"))
    later.start()
    with refused("HP-STATE-001") as caught:
        later.start()
    assert caught.error.facts["handle"] == "DeferredBankLaunch"
    assert later.wait() == 1
    with refused("HP-STATE-001") as caught:
        later.wait()
    assert caught.error.facts["handle"] == "DeferredBankLaunch"


@pytest.mark.rule("DISPATCH-5")
def test_a_start_that_failed_says_why_and_can_be_tried_again():
    answers = iter((ZeroDivisionError("on purpose"), 5))

    def launch():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return Handle(lambda: answer, "inner")

    later = DeferredBankLaunch(launch)
    with pytest.raises(ZeroDivisionError):
        later.start()
    assert not later.started
    assert later.wait() == 5


LAYOUTS = [
    ("window", (0, 10, 16), 4),
    ("window", (0, 16), 9),
    ("prefix", (0, 11, 24), 1),
    ("halo", (0, 40), 6),
    ("window", (0, 10, 22, 24), 12),
    ("prefix", (0, 30, 32), 2),
    ("window", (0, 22, 44), 3),  # nobody needs a row of another
]


@pytest.mark.rule("EXECUTOR-12")
def test_a_graph_takes_every_layout_without_a_break_and_without_another_graph(ranks):
    for graphs in ranks(2).run(on_ranks.compiled_banks, LAYOUTS, "aot_eager", True):
        assert graphs == [1] * len(LAYOUTS)


@pytest.mark.rule("EXECUTOR-12")
def test_without_dynamic_each_of_three_sizes_costs_one_graph_and_then_layouts_are_free(ranks):
    more = [("window", (0, 9, 60), 25), ("prefix", (0, 8, 58), 3), ("halo", (0, 62), 10), ("window", (0, 24, 48), 3)]
    for graphs in ranks(2).run(on_ranks.compiled_banks, [*LAYOUTS, *more], "aot_eager", None):
        assert graphs[0] == 1
        assert graphs[-len(more) - 1 :] == [graphs[-1]] * (len(more) + 1)
        assert graphs[-1] <= 4  # rows here, rows of the bank and the packed layout, each once


@pytest.mark.rule("EXECUTOR-12")
def test_a_compiled_dispatch_refuses_a_tensor_that_does_not_fit(ranks):
    assert ranks(2).run(on_ranks.compiled_refusal, (0, 10, 16)) == ["HP-ROUTE-006"] * 2


@pytest.mark.rule("EXECUTOR-12", "EXECUTOR-10")
@pytest.mark.parametrize(("kind", "code"), [("dim", "HP-ROUTE-007"), ("requires_grad", "HP-AGREE-003")])
def test_a_compiled_call_with_check_always_raises_on_every_rank_what_one_rank_found(ranks, kind, code):
    assert ranks(2).run(on_ranks.compiled_outcomes, plan_of("window", (0, 16), 2, 4), 1, kind) == [[code] * 2] * 2


@pytest.mark.rule("EXECUTOR-12")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles C++")
def test_inductor_keeps_the_order_of_collectives_on_every_rank(ranks):
    # the two ranks run different programs: one of them would be sorted otherwise
    (first, same), (second, likewise) = ranks(2).run(on_ranks.order_in_inductor, (2, 1024))
    assert same
    assert likewise
    # what one rank sends in its n-th collective the other receives in its own n-th, forward and backward
    assert [(received, sent) for sent, received in first] == second
    assert len(set(first)) == 4


@pytest.mark.rule("EXECUTOR-1", "DISPATCH-1", "GATHER-1")
def test_lazily_conjugated_rows_travel_as_what_they_stand_for(ranks):
    assert all(ranks(4).run(on_ranks.conjugated, WIDE))


@pytest.mark.rule("EXECUTOR-11")
def test_a_gradient_is_needed_or_not_as_the_start_saw_it(ranks):
    assert ranks(4).run(on_ranks.waited_without_grad, WIDE) == [(True, True)] * 4


@pytest.mark.rule("EXECUTOR-12")
def test_scattered_rows_do_not_pass_through_a_graph(ranks):
    assert ranks(1).run(on_ranks.compiled_scattered) == ["HP-EXCHANGE-008"]


@pytest.mark.rule("SEQ-1")
def test_the_window_of_a_query_counts_the_query_itself():
    plan = sliding_window_plan((0, 16), 4, 4, 4)
    assert plan.bank_starts.tolist() == [0, 1, 5, 9]
