"""Laws that every family's exchanges keep: each takes the exchanges of all ranks, in rank order.

``all_laws(exchanges)`` runs every one of them; a family's tests call it on what the family plans.
"""

import pickle
from collections import Counter

import numpy as np

from hpfun import check_exchanges, from_json, simulate_exchange, to_json, transpose
from tests.oracles import exchange as oracle


def numbered_shards(exchanges, start=1):
    """One shard a rank; every row of the group has its own number, none is 0."""
    counts = [exchange.num_source_rows for exchange in exchanges]
    ends = np.cumsum([start, *counts])
    return [np.arange(low, low + count, dtype=np.int64) for low, count in zip(ends[:-1], counts, strict=True)]


def bounds(exchanges):
    """Rows lie inside the source shard, slots inside the target."""
    for exchange in exchanges:
        assert all(0 <= row < exchange.num_source_rows for row in exchange.sources.tolist())
        assert all(0 <= slot < exchange.num_target_rows for slot in exchange.targets.tolist())


def coverage(exchanges):
    """Placing writes no slot twice and reducing reads no row twice; written and unwritten slots are all slots."""
    for exchange in exchanges:
        once = exchange.sources if exchange.reduce else exchange.targets
        assert max(Counter(once.tolist()).values(), default=0) <= 1
        assert exchange.num_unwritten == len(oracle.untouched(exchange))
        assert len(set(exchange.targets.tolist())) + exchange.num_unwritten == exchange.num_target_rows


def conservation(exchanges):
    """As many rows are sent as are received, and what arrives is what was read: nothing is made, nothing lost."""
    assert sum(len(x.send_rows) for x in exchanges) == sum(len(x.receive_rows) for x in exchanges)
    shards = numbered_shards(exchanges)
    read = Counter(int(shards[x.rank][row]) for x in exchanges for row in x.sources)
    moved = Counter(int(shards[source][row]) for source, row, _, _ in oracle.moves(exchanges))
    assert read == moved
    if exchanges[0].reduce:
        total = sum(int(target.sum()) for target in simulate_exchange(exchanges, shards))
        assert total == sum(number * times for number, times in read.items())
    else:
        arrived = Counter(number for target in simulate_exchange(exchanges, shards) for number in target.tolist())
        del arrived[0]
        assert arrived == read


def splits_agree(exchanges):
    """What rank a sends to b is what b expects from a, and nobody sends to itself."""
    for a in exchanges:
        assert a.input_splits.sum() == len(a.send_rows)
        assert a.output_splits.sum() == len(a.receive_rows)
        assert a.input_splits[a.rank] == a.output_splits[a.rank] == 0
        for b in exchanges:
            assert a.input_splits[b.rank] == b.output_splits[a.rank]
    check_exchanges(exchanges)


def required_is_equal(exchanges):
    """``required`` is one answer for the whole group: whether any rank sends anything."""
    assert {exchange.required for exchange in exchanges} == {any(len(x.send_rows) for x in exchanges)}


def one_rank_stays_local(exchanges):
    """A group of one moves rows inside its own memory only."""
    if len(exchanges) == 1:
        assert len(exchanges[0].send_rows) == len(exchanges[0].receive_rows) == 0
        assert not exchanges[0].required


def transposing_twice_is_the_original(exchanges):
    """``transpose`` is its own inverse, and its results fit together as well."""
    back = [transpose(exchange) for exchange in exchanges]
    check_exchanges(back)
    assert [x.reduce for x in back] == [not x.reduce for x in exchanges]
    assert [transpose(exchange) for exchange in back] == list(exchanges)


def json_round_trip(exchanges):
    """Text and back is the same value, and the same text again."""
    for exchange in exchanges:
        again = from_json(to_json(exchange))
        assert again == exchange
        assert again.digest == exchange.digest
        assert to_json(again) == to_json(exchange)


def pickle_round_trip(exchanges):
    """A pickled exchange is the same value, with arrays that stay as they are."""
    for exchange in exchanges:
        again = pickle.loads(pickle.dumps(exchange))
        assert again == exchange
        assert hash(again) == hash(exchange)
        assert not again.send_rows.flags.writeable


def a_permutation_comes_back(exchanges):
    """Where every rank permutes, forward then transposed is the identity."""
    if all(exchange.is_permutation for exchange in exchanges):
        shards = numbered_shards(exchanges)
        there = simulate_exchange(exchanges, shards)
        home = simulate_exchange([transpose(exchange) for exchange in exchanges], there)
        assert [shard.tolist() for shard in home] == [shard.tolist() for shard in shards]


def transpose_is_adjoint(exchanges):
    """<A x, y> == <x, A^T y> exactly, on integers."""
    x = numbered_shards(exchanges)
    y = [3 * np.arange(exchange.num_target_rows, dtype=np.int64) - 5 + exchange.rank for exchange in exchanges]
    forward = simulate_exchange(exchanges, x)
    backward = simulate_exchange([transpose(exchange) for exchange in exchanges], y)
    assert _dot(forward, y) == _dot(x, backward)


def simulator_delivers_like_the_oracle(exchanges):
    """The simulator and the row-by-row oracle leave the same rows, ``fill`` included."""
    shards = numbered_shards(exchanges)
    expected = oracle.deliver(exchanges, [shard.tolist() for shard in shards], fill=-7)
    assert [target.tolist() for target in simulate_exchange(exchanges, shards, fill=-7)] == expected


LAWS = (
    bounds,
    coverage,
    conservation,
    splits_agree,
    required_is_equal,
    one_rank_stays_local,
    transposing_twice_is_the_original,
    json_round_trip,
    pickle_round_trip,
    a_permutation_comes_back,
    transpose_is_adjoint,
    simulator_delivers_like_the_oracle,
)


def all_laws(exchanges):
    """Every law, on the exchanges of all ranks."""
    for law in LAWS:
        law(exchanges)


def _dot(left, right):
    return sum(int(a @ b) for a, b in zip(left, right, strict=True))
