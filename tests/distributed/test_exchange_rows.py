"""Row exchange over real processes: against the simulator, against plain indexing, and where it must refuse."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import RowExchange, simulate_exchange, transpose
from hpfun.strategies import row_exchanges
from hpfun_torch import Handle, exchange_rows, start_exchange
from hpfun_torch.convert import device_exchange
from tests.distributed import on_ranks
from tests.refusals import refused

DTYPES = ("float32", "float64", "bfloat16", "int64", "int32", "uint8")


def shift(size: int, rows: int, moved: int) -> list[RowExchange]:
    """Each rank's last ``moved`` rows go in front of the next rank's own rows; rank 0 gets none."""
    exchanges = []
    for rank in range(size):
        sends, receives = rank + 1 < size, rank > 0
        exchanges.append(
            RowExchange(
                size,
                rank,
                rows,
                rows + moved * receives,
                range(rows - moved * sends, rows),
                [moved * (sends and to == rank + 1) for to in range(size)],
                [moved * (receives and source == rank - 1) for source in range(size)],
                range(moved * receives),
                range(rows),
                range(moved * receives, rows + moved * receives),
                required=True,
            )
        )
    return exchanges


def integer_shards(exchanges: list[RowExchange], width: int = 3) -> list[np.ndarray]:
    return [(np.arange(x.num_source_rows * width).reshape(-1, width) * 7 + 31 * x.rank) % 100 for x in exchanges]


def halves() -> list[RowExchange]:
    """Two ranks swap their last two rows; on rank 0 the own rows run on into the sent ones, on rank 1 they do not."""
    swap = [([0, 2], [0, 2]), ([2, 0], [2, 0])]
    return [
        RowExchange(2, rank, 4, 4, [2, 3], *splits, [2, 3], [0, 1], [0, 1], required=True)
        for rank, splits in enumerate(swap)
    ]


def blocks(size: int, rows: int) -> list[RowExchange]:
    """Piece b of rank a, ``rows`` rows, becomes piece a of rank b: everything runs on, everywhere."""
    exchanges = []
    for rank in range(size):
        others = [row for row in range(size * rows) if row // rows != rank]
        own = range(rank * rows, (rank + 1) * rows)
        splits = [rows * (to != rank) for to in range(size)]
        exchanges.append(
            RowExchange(size, rank, size * rows, size * rows, others, splits, splits, others, own, own, required=True)
        )
    return exchanges


def copies() -> list[RowExchange]:
    """Rank 0's one row stays and goes to both slots of rank 1 too."""
    return [
        RowExchange(2, 0, 1, 1, [0, 0], [0, 2], [0, 0], [], [0], [0], required=True),
        RowExchange(2, 1, 2, 2, [], [0, 0], [2, 0], [1, 0], [], [], required=True),
    ]


@pytest.mark.rule("EXECUTOR-1")
@given(row_exchanges(), st.sampled_from(DTYPES), st.sampled_from((0, 1, -1)), st.integers(0, 5))
@example(shift(4, 40, 20), "float32", 0, 0)
@example(halves(), "int64", 0, 0)
@example(blocks(3, 2), "float32", 1, 0)
@example([transpose(x) for x in blocks(3, 2)], "float32", 1, 0)
@example([transpose(x) for x in copies()], "int64", 0, 0)
def test_every_rank_gets_what_the_simulator_says(ranks, exchanges, dtype, dim, fill):
    shards = integer_shards(exchanges)
    got = ranks(len(exchanges)).run(on_ranks.exchanged, exchanges, shards, fill, dim, dtype)
    for one, two in zip(got, simulate_exchange(exchanges, shards, fill), strict=True):
        # a sum wraps in uint8 and is rounded once in bfloat16; placing does neither
        rounded = torch.from_numpy(two).double().bfloat16().double().numpy() if dtype == "bfloat16" else two
        np.testing.assert_array_equal(one, two % 256 if dtype == "uint8" else rounded)


@pytest.mark.rule("EXECUTOR-1")
@given(row_exchanges(permutation=True, reduce=False))
def test_a_permutation_and_its_transpose_bring_every_row_home(ranks, exchanges):
    assert all(ranks(len(exchanges)).run(on_ranks.round_trip, exchanges))


@pytest.mark.rule("EXECUTOR-2", "EXECUTOR-8")
@given(row_exchanges(max_size=2), st.integers(0, 100))
@example(shift(2, 5, 3), 0)
def test_gradients_by_every_road_equal_plain_indexing(ranks, exchanges, seed):
    random = np.random.default_rng(seed)
    shards = [random.normal(size=(x.num_source_rows, 2)) for x in exchanges]
    factors = [random.normal(size=(x.num_target_rows, 2)) for x in exchanges]
    got = ranks(len(exchanges)).run(on_ranks.gradients, exchanges, shards, factors)
    # loss = sum factor * sin(target), so the target's gradient is factor * cos(target), and rows get it back
    targets = simulate_exchange(exchanges, shards)
    back = [transpose(x) for x in exchanges]
    expected = simulate_exchange(back, [f * np.cos(t) for f, t in zip(factors, targets, strict=True)])
    # the second derivative of the same loss in the direction of ones
    ones = simulate_exchange(exchanges, [np.ones_like(shard) for shard in shards])
    bent = [-f * np.sin(t) * o for f, t, o in zip(factors, targets, ones, strict=True)]
    second = simulate_exchange(back, bent)
    for answer, first, then in zip(got, expected, second, strict=True):
        for road in ("backward", "started", "vjp", "grad"):
            np.testing.assert_allclose(answer[road], first, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(answer["second"], then, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(answer["functional_call"], answer["expected_call"], rtol=1e-12, atol=1e-12)
        assert answer["vmap"]


@pytest.mark.rule("EXECUTOR-3")
def test_no_rank_enters_a_collective_where_nothing_moves(ranks):
    still = [RowExchange(2, rank, 3, 3, [], [0, 0], [0, 0], [], [2, 0], [0, 1], required=False) for rank in range(2)]
    assert ranks(2).run(on_ranks.collectives_of_exchange, still, 2) == [[], []]
    moving = shift(2, 3, 1)
    events = ["start 0", "wait 0", "start 1", "wait 1"]
    assert ranks(2).run(on_ranks.collectives_of_exchange, moving, 2) == [events, events]


@pytest.mark.rule("EXECUTOR-3")
def test_without_a_group_an_exchange_that_stays_at_home_works():
    still = RowExchange(4, 3, 2, 3, [], [0] * 4, [0] * 4, [], [1], [2], required=False)
    assert exchange_rows(torch.tensor([1.0, 2.0]), still, fill=-1).tolist() == [-1.0, -1.0, 2.0]


@pytest.mark.rule("EXECUTOR-4")
def test_rows_that_run_on_are_sent_and_received_in_place(ranks):
    # rank 0 receives nothing and rank 3 sends nothing; everywhere else both ends are views
    assert ranks(4).run(on_ranks.in_place_parts, shift(4, 40, 20))[1:3] == [(True, True), (True, True)]
    # here the own rows lie between the others, and go through the collective with them
    assert ranks(4).run(on_ranks.in_place_parts, blocks(4, 3)) == [(True, True)] * 4
    scattered = [
        RowExchange(2, r, 4, 4, [0, 2], [2 * r, 2 - 2 * r], [2 * r, 2 - 2 * r], [1, 3], [1, 3], [0, 2], required=True)
        for r in range(2)
    ]
    assert ranks(2).run(on_ranks.in_place_parts, scattered) == [(False, False)] * 2


@pytest.mark.rule("EXECUTOR-5")
def test_device_rows_are_made_once_and_serve_training_after_inference(ranks):
    mixed = [
        RowExchange(2, r, 4, 4, [2, 0], [2 * r, 2 - 2 * r], [2 * r, 2 - 2 * r], [3, 1], [1, 3], [2, 0], required=True)
        for r in range(2)
    ]
    assert all(ranks(2).run(on_ranks.trained_after_inference, mixed))
    one, two = shift(2, 9, 1)[0], shift(2, 9, 1)[0]
    assert one is not two
    cpu = torch.device("cpu")
    with torch.inference_mode():
        made = device_exchange(one, cpu)
    assert device_exchange(two, cpu) is made
    scattered = RowExchange(1, 0, 3, 3, [], [0], [0], [], [2, 0, 1], [0, 2, 1], required=False)
    with torch.inference_mode():
        assert not device_exchange(scattered, cpu).local_sources.index.is_inference()


def gathered_sum(target: int) -> list[RowExchange]:
    """Three ranks' one row each, added up in the one slot of rank ``target``."""
    exchanges = []
    for rank in range(3):
        at_home = rank == target
        exchanges.append(
            RowExchange(
                3,
                rank,
                1,
                1,
                [] if at_home else [0],
                [int(not at_home and to == target) for to in range(3)],
                [int(at_home and source != target) for source in range(3)],
                [0, 0] if at_home else [],
                [0] if at_home else [],
                [0] if at_home else [],
                required=True,
                reduce=True,
            )
        )
    return exchanges


@pytest.mark.rule("EXECUTOR-6")
def test_16_bit_rows_add_up_in_float32(ranks):
    # in bfloat16 256 + 1 is 256 again, and so it would stay
    assert ranks(3).run(on_ranks.sum_in_bfloat16, gathered_sum(1), [[256.0], [1.0], [1.0]])[1] == [258.0]


@pytest.mark.rule("EXECUTOR-6")
@pytest.mark.parametrize("target", [0, 1, 2])
def test_sums_run_in_rank_order_with_the_own_rank_at_its_place(ranks, target):
    # (1 - 2^24) + 2^24 is 1 in float32; with the last two or the first and last swapped 2^24 + 1 loses the 1
    shards = [np.array([value]) for value in (1.0, -(2.0**24), 2.0**24)]
    assert ranks(3).run(on_ranks.exchanged, gathered_sum(target), shards, 0, 0, "float32")[target].tolist() == [1.0]


@pytest.mark.rule("EXECUTOR-7")
def test_a_handle_is_waited_once_and_then_holds_nothing():
    still = RowExchange(1, 0, 2, 2, [], [0], [0], [], [0, 1], [0, 1], required=False)
    handle = start_exchange(torch.ones(2, 3), still)
    handle.wait()
    with refused("HP-STATE-001") as caught:
        handle.wait()
    assert caught.error.facts["handle"] == "start_exchange"
    failing = Handle(lambda: 1 // 0, "failing")
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    with refused("HP-STATE-001"):
        failing.wait()
    assert failing._finish is None


@pytest.mark.rule("EXECUTOR-11")
def test_the_transfer_is_under_way_between_start_and_wait(ranks):
    assert ranks(2).run(on_ranks.order_of_started_exchange, shift(2, 4, 2))[0] == [
        "start 0",
        "local copies",
        "between",
        "wait 0",
    ]


@pytest.mark.rule("EXECUTOR-9")
def test_a_tensor_or_dim_that_does_not_fit_is_refused():
    still = RowExchange(1, 0, 2, 2, [], [0], [0], [], [0, 1], [0, 1], required=False)
    with refused("HP-EXCHANGE-008") as caught:
        exchange_rows(torch.ones(3, 2), still)
    assert caught.error.facts["rows"] == 3
    assert caught.error.facts["expected"] == 2
    for dim in (2, -3, True, 0.0, "rows"):
        with refused("HP-EXCHANGE-008") as caught:
            exchange_rows(torch.ones(2, 2), still, dim=dim)
        assert caught.error.facts["axes"] == 2
    with refused("HP-EXCHANGE-008"):
        exchange_rows([[1.0], [2.0]], still)
    with refused("HP-EXCHANGE-008"):
        exchange_rows(torch.ones(2, 2), None)
    with refused("HP-EXCHANGE-008"):
        exchange_rows(torch.ones(2, 2), still, check="Off")
    for fill in ("0", None, True):
        with refused("HP-EXCHANGE-008"):
            exchange_rows(torch.ones(2, 2), still, fill=fill)
    with refused("HP-EXCHANGE-008"):
        torch.func.grad(lambda rows: start_exchange(rows, still).wait().sum())(torch.ones(2, 2))
    assert exchange_rows(torch.ones(2, 2), still, dim=np.int64(0)).shape == (2, 2)


@pytest.mark.rule("EXECUTOR-9")
def test_a_group_that_the_exchange_was_not_planned_for_is_refused(ranks):
    with refused("HP-EXCHANGE-009") as caught:
        exchange_rows(torch.ones(4), shift(2, 4, 1)[0])
    assert caught.error.facts["group_size"] is None
    assert ranks(2).run(on_ranks.wrong_group, 3) == ["HP-EXCHANGE-009"] * 2


@pytest.mark.rule("EXECUTOR-10")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("rows", "HP-EXCHANGE-008"),
        ("group", "HP-EXCHANGE-009"),
        ("dtype", "HP-AGREE-003"),
        ("width", "HP-AGREE-003"),
        ("required", "HP-AGREE-003"),
        ("requires_grad", "HP-AGREE-003"),
    ],
)
def test_with_check_always_every_rank_raises_what_one_rank_found(ranks, kind, code):
    answers = ranks(4).run(on_ranks.bad_tensor, shift(4, 4, 1), 2, "always", kind)
    assert [answer[0] for answer in answers] == [code] * 4
    assert all(answer[2] < 5 for answer in answers)
    assert len({str(sorted(answer[1].items())) for answer in answers}) == 1
    # and the group works on
    assert [a[0] for a in ranks(4).run(on_ranks.bad_tensor, shift(4, 4, 1), -1, "always", kind)] == [""] * 4


@pytest.mark.rule("EXECUTOR-10")
def test_with_check_off_the_bad_rank_raises_before_the_collective(ranks):
    # on an exchange that stays at home, so that nobody is left waiting
    still = [RowExchange(2, r, 2, 2, [], [0, 0], [0, 0], [], [0, 1], [0, 1], required=False) for r in range(2)]
    answers = ranks(2).run(on_ranks.bad_tensor, still, 1, "off", "rows")
    assert [answer[0] for answer in answers] == ["", "HP-EXCHANGE-008"]
