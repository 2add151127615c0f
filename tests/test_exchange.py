"""RowExchange: what one rank's part must be, what all parts must be together, and the transpose."""

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import (
    PlanError,
    RowExchange,
    check_exchanges,
    exchange_bytes,
    simulate_exchange,
    traffic_matrix,
    transpose,
)
from hpfun.rows import rows_of
from hpfun.strategies import row_exchanges
from tests import laws
from tests.oracles import exchange as oracle
from tests.refusals import refused

FIELDS = {
    "size": 2,
    "rank": 0,
    "num_source_rows": 2,
    "num_target_rows": 2,
    "send_rows": [1],
    "input_splits": [0, 1],
    "output_splits": [0, 1],
    "receive_rows": [0],
    "local_sources": [0],
    "local_targets": [1],
    "required": True,
}


def exchange(**changes):
    """Rank 0 of the two-rank example of the specification, with some fields changed."""
    return RowExchange(**{**FIELDS, **changes})


def ring(size=2):
    """Every rank sends its row 1 to the next one and keeps its row 0."""
    ranks = []
    for rank in range(size):
        to, source = [0] * size, [0] * size
        to[(rank + 1) % size] = source[(rank - 1) % size] = 1
        ranks.append(RowExchange(size, rank, 2, 2, [1], to, source, [0], [0], [1], required=True))
    return ranks


@pytest.mark.rule(
    "EXCHANGE-1",
    "EXCHANGE-2",
    "EXCHANGE-3",
    "EXCHANGE-4",
    "EXCHANGE-5",
    "EXCHANGE-6",
    "EXCHANGE-7",
    "EXCHANGE-8",
    "EXCHANGE-9",
    "EXCHANGE-12",
    "SERIAL-2",
    "VALUE-4",
)
@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
@given(exchanges=row_exchanges())
def test_every_exchange_keeps_the_law(law, exchanges):
    law(exchanges)


@pytest.mark.rule("EXCHANGE-7")
@given(row_exchanges(permutation=True))
def test_a_permutation_transposed_is_its_inverse(exchanges):
    assert all(part.is_permutation and part.num_unwritten == 0 for part in exchanges)
    laws.a_permutation_comes_back(exchanges)


@pytest.mark.rule("EXCHANGE-7")
@given(row_exchanges())
def test_a_permutation_uses_each_row_and_hits_each_slot_once(exchanges):
    for part in exchanges:
        rows = sorted([*part.send_rows.tolist(), *part.local_sources.tolist()])
        slots = sorted([*part.receive_rows.tolist(), *part.local_targets.tolist()])
        bijective = rows == list(range(part.num_source_rows)) and slots == list(range(part.num_target_rows))
        assert part.is_permutation == bijective


@pytest.mark.rule("EXCHANGE-3")
def test_a_source_row_may_be_used_often_or_never():
    part = exchange(send_rows=[0], local_sources=[0])
    assert part.sources.tolist() == [0, 0]
    assert not part.is_permutation


@pytest.mark.rule("EXCHANGE-4")
def test_a_reducing_exchange_adds_up_what_arrives_in_a_slot():
    copies = [
        RowExchange(2, 0, 1, 1, [0], [0, 1], [0, 0], [], [0], [0], required=True),
        RowExchange(2, 1, 0, 1, [], [0, 0], [1, 0], [0], [], [], required=True),
    ]
    back = [transpose(part) for part in copies]
    assert [part.reduce for part in back] == [True, True]
    assert [shard.tolist() for shard in simulate_exchange(back, [np.array([10]), np.array([20])])] == [[30], []]


@pytest.mark.rule("EXCHANGE-5")
def test_transpose_swaps_each_pair_of_fields():
    part = exchange(num_source_rows=5, send_rows=[4], local_sources=[3])
    back = transpose(part)
    swapped = {
        "num_source_rows": "num_target_rows",
        "send_rows": "receive_rows",
        "input_splits": "output_splits",
        "local_sources": "local_targets",
    }
    for one, other in {**swapped, **{v: k for k, v in swapped.items()}}.items():
        assert np.array_equal(getattr(back, one), getattr(part, other))
    assert (back.size, back.rank, back.required, back.reduce) == (2, 0, True, True)
    assert transpose(back) == part


@pytest.mark.rule("EXCHANGE-10")
@given(row_exchanges(), st.integers(0, 2**40))
def test_traffic_counts_the_bytes_between_each_pair_of_ranks(exchanges, width):
    expected = [[0] * len(exchanges) for _ in exchanges]
    for source, _, target, _ in oracle.moves(exchanges):
        if source != target:
            expected[source][target] += width
    assert traffic_matrix(exchanges, width).tolist() == expected
    assert [exchange_bytes(part, width) for part in exchanges] == [sum(row) for row in expected]


@pytest.mark.rule("EXCHANGE-10")
def test_traffic_is_counted_in_rows_by_default_and_cannot_be_written():
    matrix = traffic_matrix(ring(3))
    assert matrix.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert matrix.dtype == np.int64
    assert not matrix.flags.writeable


@pytest.mark.rule("EXCHANGE-10")
@pytest.mark.parametrize("width", [-1, True, 1.0])
def test_bytes_per_row_is_a_count(width):
    for call in (lambda: traffic_matrix(ring(), width), lambda: exchange_bytes(ring()[0], width)):
        with refused("HP-EXCHANGE-001") as refusal:
            call()
        assert refusal.error.where == "bytes_per_row"


@pytest.mark.rule("EXCHANGE-10")
@pytest.mark.parametrize("width", [2**62, 2**63, 10**30])
def test_bytes_beyond_int64_are_refused_not_wrapped(width):
    parts = [
        RowExchange(2, 0, 4, 0, range(4), [0, 4], [0, 0], [], [], [], required=True),
        RowExchange(2, 1, 0, 4, [], [0, 0], [4, 0], range(4), [], [], required=True),
    ]
    assert exchange_bytes(parts[0], width) == 4 * width
    with refused("HP-EXCHANGE-001"):
        traffic_matrix(parts, width)


@pytest.mark.rule("EXCHANGE-12")
def test_a_group_of_one_cannot_send():
    alone = {"size": 1, "input_splits": [0], "output_splits": [0]}
    part = exchange(**alone, send_rows=[], receive_rows=[], required=False)
    assert part.sources.tolist() == [0]
    check_exchanges([part])
    with refused("HP-EXCHANGE-003"):
        exchange(**alone)
    with refused("HP-EXCHANGE-002"):
        exchange(**{**alone, "input_splits": [1], "output_splits": [1]})
    with refused("HP-EXCHANGE-007"):
        check_exchanges([attrs.evolve(part, required=True)])


@pytest.mark.rule("EXCHANGE-1")
@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("size", 0, {"value": 0, "least": 1}),
        ("rank", -1, {"value": -1, "least": 0}),
        ("num_source_rows", -1, {"value": -1, "least": 0}),
        ("num_target_rows", True, {"value": "True", "type": "bool"}),
        ("rank", 2, {"rank": 2, "size": 2}),
        ("required", 1, {"type": "int"}),
        ("reduce", None, {"type": "NoneType"}),
    ],
)
def test_sizes_ranks_counts_and_flags_are_in_range(name, value, facts):
    with refused("HP-EXCHANGE-001") as refusal:
        exchange(**{name: value})
    assert refusal.error.where == name
    assert facts.items() <= refusal.error.facts.items()


@pytest.mark.rule("EXCHANGE-1")
@pytest.mark.parametrize("name", ["input_splits", "output_splits"])
@pytest.mark.parametrize(
    ("splits", "own"),
    [([1], 1), ([], None), ([0, 1, 0], 0), ([1, 0], 1), ([0, -1], 0), ([-1, 2], -1)],
)
def test_splits_have_one_count_a_rank_and_none_for_the_own(name, splits, own):
    with refused("HP-EXCHANGE-002") as refusal:
        exchange(**{name: splits})
    assert refusal.error.where == name
    assert refusal.error.facts == {"entries": len(splits), "size": 2, "rank": 0, "own": own}


@pytest.mark.rule("EXCHANGE-1")
@pytest.mark.parametrize(
    ("changes", "where", "facts"),
    [
        ({"input_splits": [0, 2]}, "input_splits", {"sum": 2, "rows": 1}),
        ({"output_splits": [0, 0]}, "output_splits", {"sum": 0, "rows": 1}),
        ({"receive_rows": []}, "output_splits", {"sum": 1, "rows": 0}),
        ({"local_targets": []}, "local_sources", {"sources": 1, "targets": 0}),
    ],
)
def test_row_lists_are_as_long_as_their_splits_and_partners(changes, where, facts):
    with refused("HP-EXCHANGE-003") as refusal:
        exchange(**changes)
    assert refusal.error.where == where
    assert refusal.error.facts == facts


@pytest.mark.rule("EXCHANGE-1")
def test_splits_whose_sum_wraps_around_int64_are_refused():
    quarter = 2**62
    with refused("HP-EXCHANGE-003") as refusal:
        RowExchange(5, 0, 0, 0, [], [0] + [quarter] * 4, [0] * 5, [], [], [], required=False)
    assert refusal.error.where == "input_splits"


@pytest.mark.rule("EXCHANGE-1")
@pytest.mark.parametrize(
    ("name", "rows", "row"),
    [
        ("send_rows", [2], 2),
        ("send_rows", [-1], -1),
        ("local_sources", [5], 5),
        ("receive_rows", [2], 2),
        ("local_targets", [-3], -3),
    ],
)
def test_rows_lie_inside_the_shard_and_the_target(name, rows, row):
    with refused("HP-EXCHANGE-004") as refusal:
        exchange(**{name: rows})
    assert refusal.error.where == name
    assert refusal.error.facts == {"row": row, "extent": 2}


@pytest.mark.rule("EXCHANGE-1", "VALUE-1")
@pytest.mark.parametrize("rows", [[True], [1.0], ["1"], 1, [[1]], np.array([1.0])])
def test_row_lists_hold_integers(rows):
    with refused("HP-EXCHANGE-004") as refusal:
        exchange(send_rows=rows)
    assert refusal.error.where == "send_rows"


@pytest.mark.rule("EXCHANGE-3")
def test_a_slot_is_not_written_twice():
    with refused("HP-EXCHANGE-005") as refusal:
        exchange(local_targets=[0])
    assert refusal.error.where == "receive_rows"
    assert refusal.error.facts == {"row": 0, "times": 2}


@pytest.mark.rule("EXCHANGE-4")
def test_a_reducing_exchange_reads_no_row_twice_but_hits_a_slot_often():
    part = exchange(local_targets=[0], reduce=True)
    assert part.targets.tolist() == [0, 0]
    with refused("HP-EXCHANGE-005") as refusal:
        exchange(local_sources=[1], reduce=True)
    assert refusal.error.where == "send_rows"
    assert refusal.error.facts == {"row": 1, "times": 2}


@pytest.mark.rule("EXCHANGE-6")
@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, {"sent": 1, "received": 1}),
        ({"send_rows": [], "input_splits": [0, 0]}, {"sent": 0, "received": 1}),
        ({"receive_rows": [], "output_splits": [0, 0]}, {"sent": 1, "received": 0}),
    ],
)
def test_an_exchange_that_is_not_required_moves_nothing_between_ranks(changes, facts):
    with refused("HP-EXCHANGE-006") as refusal:
        exchange(**changes, required=False)
    assert refusal.error.where == "required"
    assert refusal.error.facts == facts


@pytest.mark.rule("EXCHANGE-11")
def test_one_error_reports_every_violation_of_an_exchange():
    with refused("HP-EXCHANGE-001") as refusal:
        exchange(
            rank=2,
            reduce=1,
            input_splits=[0, 1, 0],
            output_splits=[0, 2],
            local_sources=[0, 7],
            receive_rows=[-1],
            required=False,
        )
    found = [(violation.code, violation.where) for violation in refusal.error.violations]
    assert found == [
        ("HP-EXCHANGE-001", "rank"),
        ("HP-EXCHANGE-001", "reduce"),
        ("HP-EXCHANGE-002", "input_splits"),
        ("HP-EXCHANGE-003", "output_splits"),
        ("HP-EXCHANGE-003", "local_sources"),
        ("HP-EXCHANGE-004", "local_sources"),
        ("HP-EXCHANGE-004", "receive_rows"),
        ("HP-EXCHANGE-006", "required"),
    ]


@pytest.mark.rule("EXCHANGE-6", "EXCHANGE-11")
def test_one_error_reports_every_rank_that_disagrees():
    parts = ring(3)
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges([parts[0], parts[2], transpose(parts[2])])
    assert [(v.where, dict(v.facts)) for v in refusal.error.violations] == [
        ("[1]", {"rank": 2, "size": 3}),
        ("[2].reduce", {"rank": 2, "value": True}),
    ]


@pytest.mark.rule("EXCHANGE-1", "EXCHANGE-11")
def test_splits_of_sender_and_receiver_agree():
    parts = ring(3)
    empty = RowExchange(3, 1, 2, 2, [], [0] * 3, [0] * 3, [], [0], [1], required=True)
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges([parts[0], empty, parts[2]])
    assert [(v.where, dict(v.facts)) for v in refusal.error.violations] == [
        ("[0].input_splits", {"source": 0, "target": 1, "sent": 1, "expected": 0}),
        ("[1].input_splits", {"source": 1, "target": 2, "sent": 0, "expected": 1}),
    ]


@pytest.mark.rule("EXCHANGE-6")
def test_an_idle_group_is_not_required():
    idle = [RowExchange(2, rank, 1, 1, [], [0, 0], [0, 0], [], [0], [0], required=False) for rank in range(2)]
    check_exchanges(idle)
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges([attrs.evolve(part, required=True) for part in idle])
    assert (refusal.error.where, dict(refusal.error.facts)) == ("required", {"sent": 0})
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges([attrs.evolve(idle[0], required=True), idle[1]])
    assert (refusal.error.where, dict(refusal.error.facts)) == ("[1].required", {"rank": 1, "value": False})


@pytest.mark.rule("EXCHANGE-6")
def test_a_group_has_at_least_one_exchange():
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges([])
    assert refusal.error.where == "exchanges"


@pytest.mark.rule("EXCHANGE-6")
def test_ranks_of_a_smaller_group_are_refused():
    with refused("HP-EXCHANGE-007") as refusal:
        check_exchanges(ring(3)[:2])
    assert [dict(v.facts) for v in refusal.error.violations] == [{"rank": 0, "size": 3}, {"rank": 1, "size": 3}]


@pytest.mark.rule("EXCHANGE-2", "EXCHANGE-9")
@given(row_exchanges(reduce=False))
def test_swapping_two_slots_on_the_receiving_side_swaps_what_arrives(exchanges):
    for part in exchanges:
        if part.output_splits.max() >= 2:
            break
    else:
        return
    first = int(np.concatenate(([0], np.cumsum(part.output_splits)))[int(part.output_splits.argmax())])
    slots = part.receive_rows.copy()
    slots[[first, first + 1]] = slots[[first + 1, first]]
    swapped = [attrs.evolve(p, receive_rows=slots) if p is part else p for p in exchanges]
    shards = laws.numbered_shards(exchanges)
    expected = [target.copy() for target in simulate_exchange(exchanges, shards)]
    expected[part.rank][slots[[first, first + 1]]] = expected[part.rank][slots[[first + 1, first]]]
    got = simulate_exchange(swapped, shards)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_huge_empty_target_costs_nothing():
    """The check for slots written twice depends on the rows that are listed, not on the extent."""
    part = exchange(num_target_rows=2**50, num_source_rows=2**50)
    assert part.num_unwritten == 2**50 - 2
    assert not part.is_permutation
    assert transpose(part).num_unwritten == 2**50 - 2


def test_extents_beyond_int64_are_refused():
    with pytest.raises(PlanError):
        exchange(num_target_rows=10**30)


def test_traffic_of_nobody_is_refused():
    with refused("HP-EXCHANGE-007"):
        traffic_matrix([])


@pytest.mark.rule("EXCHANGE-2")
@given(row_exchanges())
def test_rows_by_rank_have_the_own_ones_at_the_own_ranks_place(exchanges):
    for x in exchanges:
        for by_rank, sent, own, splits in (
            (x.sources_by_rank, x.send_rows, x.local_sources, x.input_splits),
            (x.targets_by_rank, x.receive_rows, x.local_targets, x.output_splits),
        ):
            rows, expected = sent.tolist(), []
            for rank in range(x.size):
                expected += own.tolist() if rank == x.rank else [rows.pop(0) for _ in range(splits[rank])]
            assert rows_of(by_rank).tolist() == expected
        assert x.hits_once == (len(set(x.targets.tolist())) == len(x.targets))


@pytest.mark.rule("EXCHANGE-1")
@pytest.mark.parametrize("size", [5, 600])
def test_counts_whose_sum_wraps_to_the_rows_of_the_list_are_refused(size):
    counts = np.zeros(size, dtype=np.int64)
    counts[1:5] = 2**62
    with refused("HP-EXCHANGE-003") as caught:
        RowExchange(size, 0, 0, 0, [], counts, [0] * size, [], [], [], required=True)
    assert caught.error.facts["sum"] == 2**64
