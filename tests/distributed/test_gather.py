"""Sequence gather over real processes: uneven shards, sums in rank order, counted collectives, refusals, graphs."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun_torch import gather_sequence, start_gather
from tests.distributed import on_ranks_sequence as on_ranks
from tests.refusals import refused

LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@pytest.mark.rule("GATHER-1")
@given(LENGTHS, st.integers(-3, 2), st.sampled_from(("float32", "bfloat16", "int64", "uint8")), st.booleans())
@example([0, 3, 0, 1], 1, "float32", False)
@example([0, 0], 0, "float32", False)
@example([4, 4, 4], 2, "float32", True)
def test_every_rank_gets_all_rows_in_rank_order_along_any_dim(ranks, lengths, dim, dtype, told):
    assert all(ranks(len(lengths)).run(on_ranks.gather_is_all, lengths, dim, dtype, told))


@pytest.mark.rule("GATHER-2", "EXECUTOR-8")
@pytest.mark.parametrize("lengths", [[3, 3, 3, 3], [5, 0, 1, 2]])
def test_gradients_by_every_road_are_the_sums_over_all_ranks(ranks, lengths):
    for answer in ranks(4).run(on_ranks.gradients_of_gather, lengths, 5):
        np.testing.assert_allclose(answer["roads"].pop("second"), answer["second"], rtol=1e-12, atol=1e-12)
        for road in answer["roads"].values():
            np.testing.assert_allclose(road, answer["expected"], rtol=1e-13, atol=1e-13)


@pytest.mark.rule("GATHER-3")
def test_gradients_add_up_in_rank_order_and_16_bit_ones_in_float32(ranks):
    # (1 - 2^24) + 2^24 is 1 in float32 and in no other order of these three
    assert ranks(3).run(on_ranks.sums_of_gather, [1.0, -(2.0**24), 2.0**24], "float32") == [[1.0]] * 3
    assert ranks(3).run(on_ranks.sums_of_gather, [256.0, 1.0, 1.0], "bfloat16") == [[258.0]] * 3


@pytest.mark.rule("GATHER-4")
def test_known_lengths_save_the_question_and_nothing_is_gathered_of_nothing(ranks):
    pool = ranks(3)
    assert pool.run(on_ranks.gathers_counted, [2, 5, 0], True) == [[(5, "torch.float32")]] * 3
    asked = [(1, "torch.int64"), (5, "torch.float32")]
    assert pool.run(on_ranks.gathers_counted, [2, 5, 0], False) == [asked] * 3
    assert pool.run(on_ranks.gathers_counted, [0, 0, 0], True) == [[]] * 3


@pytest.mark.rule("GATHER-5")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("rows", "HP-ROUTE-006"),
        ("lengths", "HP-ROUTE-006"),
        ("negative", "HP-ROUTE-006"),
        ("dim", "HP-ROUTE-007"),
        ("dtype", "HP-AGREE-003"),
    ],
)
def test_with_check_always_every_rank_raises_what_one_rank_found(ranks, kind, code):
    answers = ranks(3).run(on_ranks.bad_gather, [2, 5, 0], 1, "always", kind)
    assert [answer[0] for answer in answers] == [code] * 3
    assert all(answer[1] < 5 for answer in answers)
    assert [answer[0] for answer in ranks(3).run(on_ranks.bad_gather, [2, 5, 0], -1, "always", kind)] == [""] * 3


@pytest.mark.rule("GATHER-5")
def test_rows_lengths_and_dims_that_do_not_fit_are_refused():
    for lengths in ([3], [2, 2], [-1], [2.0], []):
        with refused("HP-ROUTE-006"):
            gather_sequence(torch.ones(2, 3), lengths=lengths)
    with refused("HP-ROUTE-006"):
        gather_sequence([1.0])
    for dim in (2, -3, False):
        with refused("HP-ROUTE-007"):
            start_gather(torch.ones(2, 3), dim=dim)
    with refused("HP-EXCHANGE-008"):
        torch.func.grad(lambda rows: start_gather(rows).wait().sum())(torch.ones(2, 2))
    handle = start_gather(torch.ones(2, 3))
    assert handle.wait().shape == (2, 3)
    with refused("HP-STATE-001"):
        handle.wait()


@pytest.mark.rule("GATHER-6")
@pytest.mark.parametrize("told", [False, True])
def test_a_graph_takes_every_number_of_rows_from_two_on(ranks, told):
    layouts = [[3, 4], [9, 2], [6, 6], [2, 9], [4, 3]]
    for graphs in ranks(2).run(on_ranks.compiled_gathers, layouts, told, "aot_eager", True):
        assert graphs == [1] * len(layouts)
    # an empty shard and one of a single row are graphs of their own
    (first, second) = ranks(2).run(on_ranks.compiled_gathers, [[3, 4], [0, 4], [1, 4], [0, 3]], told, "aot_eager", True)
    assert first == [1, 2, 3, 3]
    assert second == [1, 1, 1, 1]
