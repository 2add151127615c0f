"""simulate_exchange against deliveries row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import RowExchange, simulate_exchange, transpose
from hpfun.strategies import row_exchanges
from tests import laws
from tests.oracles import exchange as oracle
from tests.refusals import refused
from tests.test_exchange import ring


@pytest.mark.rule("EXCHANGE-8", "EXCHANGE-9")
@given(row_exchanges(), st.data())
def test_the_simulator_delivers_as_moving_row_by_row_does(exchanges, data):
    values = st.integers(-99, 99)
    shards = [data.draw(st.lists(values, min_size=x.num_source_rows, max_size=x.num_source_rows)) for x in exchanges]
    arrays = [np.array(shard, dtype=np.int64) for shard in shards]
    got = simulate_exchange(exchanges, arrays, fill=-1)
    assert [target.tolist() for target in got] == oracle.deliver(exchanges, shards, fill=-1)
    assert all(array.tolist() == shard for array, shard in zip(arrays, shards, strict=True))


@pytest.mark.rule("EXCHANGE-8")
@given(row_exchanges())
def test_slots_that_nothing_reaches_keep_fill_or_zero(exchanges):
    targets = simulate_exchange(exchanges, laws.numbered_shards(exchanges), fill=-1)
    for part, target in zip(exchanges, targets, strict=True):
        left = oracle.untouched(part)
        assert part.num_unwritten == len(left)
        assert [at for at, value in enumerate(target) if value <= 0] == left
        assert all(target[slot] == (0 if part.reduce else -1) for slot in left)


@pytest.mark.rule("EXCHANGE-8")
def test_one_written_slot_of_three():
    part = RowExchange(1, 0, 1, 3, [], [0], [0], [], [0], [1], required=False)
    assert part.num_unwritten == 2
    assert simulate_exchange([part], [np.array([7])], fill=-1)[0].tolist() == [-1, 7, -1]
    assert simulate_exchange([part], [np.array([7])])[0].tolist() == [0, 7, 0]


@pytest.mark.rule("EXCHANGE-2", "EXCHANGE-9")
def test_the_example_of_the_specification():
    there = simulate_exchange(ring(), [np.array([1, 2]), np.array([3, 4])])
    assert [shard.tolist() for shard in there] == [[4, 1], [2, 3]]
    back = simulate_exchange([transpose(part) for part in ring()], there)
    assert [shard.tolist() for shard in back] == [[1, 2], [3, 4]]


@pytest.mark.rule("EXCHANGE-2")
def test_the_kth_row_sent_goes_to_the_kth_slot_listed():
    parts = [
        RowExchange(2, 0, 6, 0, [5, 3], [0, 2], [0, 0], [], [], [], required=True),
        RowExchange(2, 1, 0, 2, [], [0, 0], [2, 0], [0, 1], [], [], required=True),
    ]
    assert simulate_exchange(parts, [np.arange(6), np.arange(0)])[1].tolist() == [5, 3]


@pytest.mark.rule("EXCHANGE-9")
@given(row_exchanges())
def test_trailing_axes_travel_with_their_row(exchanges):
    flat = laws.numbered_shards(exchanges)
    deep = [np.stack((shard, 10 * shard), axis=1).reshape(-1, 2, 1) for shard in flat]
    for one, other in zip(simulate_exchange(exchanges, flat), simulate_exchange(exchanges, deep), strict=True):
        assert other.shape == (len(one), 2, 1)
        assert other[:, 0, 0].tolist() == one.tolist()
        assert other[:, 1, 0].tolist() == (10 * one).tolist()


@pytest.mark.rule("EXCHANGE-9")
@pytest.mark.parametrize("owner", range(3))
def test_reducing_adds_in_rank_order_with_the_own_rank_at_its_place(owner):
    """Floats tell the order: 1e16 - 1e16 + 1 is 1, and 0 if the 1 meets a large number first."""
    others = [int(rank != owner) for rank in range(3)]
    copies = []
    for rank in range(3):
        if rank == owner:
            part = RowExchange(3, rank, 1, 1, [0, 0], others, [0] * 3, [], [0], [0], required=True)
        else:
            from_owner = [int(source == owner) for source in range(3)]
            part = RowExchange(3, rank, 0, 1, [], [0] * 3, from_owner, [0], [], [], required=True)
        copies.append(part)
    shards = [np.array([1e16]), np.array([-1e16]), np.array([1.0])]
    assert simulate_exchange([transpose(part) for part in copies], shards)[owner].tolist() == [1.0]


@pytest.mark.rule("EXCHANGE-9")
@pytest.mark.parametrize(
    ("shard", "facts"),
    [
        (np.zeros(3), {"rank": 1, "expected": 2, "shape": (3,)}),
        (np.zeros((1, 2)), {"rank": 1, "expected": 2, "shape": (1, 2)}),
        (np.zeros(()), {"rank": 1, "expected": 2, "shape": ()}),
    ],
)
def test_a_shard_has_the_planned_rows(shard, facts):
    with refused("HP-EXCHANGE-008") as refusal:
        simulate_exchange(ring(), [np.zeros(2), shard])
    assert refusal.error.where == "shards[1]"
    assert refusal.error.facts == facts


@pytest.mark.rule("EXCHANGE-9")
def test_every_rank_has_a_shard():
    with refused("HP-EXCHANGE-008") as refusal:
        simulate_exchange(ring(), [np.zeros(2)])
    assert refusal.error.where == "shards"
    assert refusal.error.facts == {"shards": 1, "size": 2}


@pytest.mark.rule("EXCHANGE-9")
@pytest.mark.parametrize("other", [np.zeros((2, 3)), np.zeros((2, 1)), np.zeros((2, 2, 2))])
def test_shards_with_other_trailing_axes_are_refused(other):
    with refused("HP-EXCHANGE-008") as refusal:
        simulate_exchange(ring(), [np.zeros((2, 2)), other])
    assert refusal.error.where == "shards[1]"


@pytest.mark.rule("EXCHANGE-9")
def test_exchanges_that_disagree_are_not_run():
    with refused("HP-EXCHANGE-007"):
        simulate_exchange(ring()[:1], [np.zeros(2)])


def test_shards_of_different_dtypes_are_refused():
    still = [RowExchange(2, r, 1, 1, [], [0, 0], [0, 0], [], [0], [0], required=False) for r in range(2)]
    with refused("HP-EXCHANGE-008") as caught:
        simulate_exchange(still, [np.array([1]), np.array([1.5])])
    assert caught.error.facts["dtypes"] == ("int64", "float64")
