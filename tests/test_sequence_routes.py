"""Banks of sliding windows and document prefixes, and the routes that fill them."""

import pickle
from typing import NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpfun
import hpfun.sequence
from hpfun import (
    PackedDocuments,
    RowExchange,
    RowRuns,
    SequenceBankPlan,
    SequenceDispatchRoute,
    bank_route,
    compression_halo_plan,
    document_compression_plan,
    document_prefix_plan,
    document_prefix_route,
    from_json,
    indexer_segments,
    simulate_exchange,
    sliding_window_plan,
    sliding_window_route,
    to_json,
)
from hpfun.strategies import group_sizes, packed_documents, sequence_routes
from tests import laws
from tests.oracles import sequence as loops
from tests.refusals import refused

PACK = (0, 5, 8, 16)
BIG = 2**63 - 1


class Case(NamedTuple):
    """One call of a family: its documents, its shards and its window or ratio."""

    documents: PackedDocuments
    local: int
    size: int
    number: int

    @property
    def boundaries(self):
        return self.documents.boundaries.tolist()

    @property
    def arguments(self):
        return self.documents, self.local, self.size, self.number


@st.composite
def cases(draw, max_size=6):
    size = draw(group_sizes(max_size))
    documents = draw(packed_documents(multiple_of=size))
    number = draw(st.integers(1, 6) | st.integers(1, documents.total + 2))
    return Case(documents, documents.total // size, size, number)


def edges(plan):
    """(start, stop) of every bank."""
    return list(zip(plan.bank_starts.tolist(), plan.owner_offsets[1:].tolist(), strict=True))


def routes_of(plan):
    return [bank_route(plan, rank) for rank in range(plan.size)]


def check_delivery(plan, owners, banks):
    """Routes of a plan bring every rank its bank, from rows that are numbered through the layout."""
    routes = routes_of(plan)
    shards = [np.array(loops.own_rows(owners, rank), dtype=np.int64) for rank in range(plan.size)]
    arrived = simulate_exchange([route.exchange for route in routes], shards, fill=-1)
    assert [rows.tolist() for rows in arrived] == banks
    assert [(route.global_start, route.global_stop) for route in routes] == edges(plan)
    assert [route.local_length for route in routes] == [len(shard) for shard in shards]


# the worked tables of the design


@pytest.mark.rule("SEQ-1", "SEQ-2")
@pytest.mark.parametrize(
    ("boundaries", "local", "window", "banks"),
    [
        (PACK, 4, 4, [(0, 4), (1, 8), (8, 12), (9, 16)]),
        (PACK, 4, 6, [(0, 4), (0, 8), (8, 12), (8, 16)]),
        (PACK, 4, 1, [(0, 4), (4, 8), (8, 12), (12, 16)]),
        ((0, 16), 2, 5, [(0, 2), (0, 4), (0, 6), (2, 8), (4, 10), (6, 12), (8, 14), (10, 16)]),
        ((0, 37, 88, 128), 64, 4, [(0, 64), (61, 128)]),
        ((0, 1), 1, 7, [(0, 1)]),
        ((0, 1, 2, 3), 1, 7, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_worked_windows(boundaries, local, window, banks):
    plan = sliding_window_plan(boundaries, local, len(banks), window)
    assert edges(plan) == banks
    assert plan.kind == "window"
    routes = [sliding_window_route(boundaries, local, len(banks), rank, window) for rank in range(len(banks))]
    assert [(route.global_start, route.global_stop) for route in routes] == banks
    assert [route.local_length for route in routes] == [local] * len(banks)


@pytest.mark.rule("SEQ-3")
@pytest.mark.parametrize(
    ("ratio", "owned", "banks"),
    [
        (1, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]], [(0, 4), (0, 8), (8, 12), (8, 16)]),
        (2, [[0, 1], [2], [3, 4], [5, 6]], [(0, 2), (0, 3), (3, 5), (3, 7)]),
        (4, [[0], [], [1], [2]], [(0, 1), (0, 1), (1, 2), (1, 3)]),
        (9, [[], [], [], []], [(0, 0), (0, 0), (0, 0), (0, 0)]),
    ],
)
def test_worked_prefixes(ratio, owned, banks):
    plan = document_prefix_plan(PACK, 4, 4, ratio)
    assert edges(plan) == banks
    assert plan.kind == "prefix"
    offsets = plan.owner_offsets.tolist()
    assert [list(range(offsets[rank], offsets[rank + 1])) for rank in range(4)] == owned
    routes = [document_prefix_route(PACK, 4, 4, rank, ratio) for rank in range(4)]
    assert [(route.global_start, route.global_stop) for route in routes] == banks
    assert [route.local_length for route in routes] == [len(keys) for keys in owned]


@pytest.mark.rule("SEQ-2", "SEQ-4")
def test_the_worked_halo_of_two_predecessors():
    exchange = sliding_window_route((0, 16), 2, 8, 2, 5).exchange
    assert exchange.output_splits.tolist() == [2, 2, 0, 0, 0, 0, 0, 0]
    assert exchange.input_splits.tolist() == [0, 0, 0, 2, 2, 0, 0, 0]
    assert exchange.send_rows.tolist() == [0, 1, 0, 1]
    assert exchange.receive_rows.tolist() == [0, 1, 2, 3]
    assert exchange.local_sources.tolist() == [0, 1]
    assert exchange.local_targets.tolist() == [4, 5]
    assert exchange.required


@pytest.mark.rule("SEQ-4")
def test_a_halo_ends_inside_a_shard_whose_last_rows_it_takes():
    exchanges = [sliding_window_route((0, 12), 4, 3, rank, 7).exchange for rank in range(3)]
    assert exchanges[0].send_rows.tolist() == [0, 1, 2, 3, 2, 3]  # all to rank 1, which asks for 6, two to rank 2
    assert exchanges[0].input_splits.tolist() == [0, 4, 2]
    assert exchanges[2].output_splits.tolist() == [2, 4, 0]


@pytest.mark.rule("SEQ-5")
@pytest.mark.parametrize("window", range(1, 9))
def test_nothing_is_required_where_a_shard_edge_is_a_document_edge(window):
    plan = sliding_window_plan(PACK, 8, 2, window)
    assert edges(plan) == [(0, 8), (8, 16)]
    assert not plan.required
    assert plan.moved_rows == 0
    assert [route.exchange.required for route in routes_of(plan)] == [False, False]


@pytest.mark.rule("SEQ-5")
def test_a_rank_that_moves_nothing_is_told_that_the_group_moves_something():
    routes = routes_of(sliding_window_plan(PACK, 4, 4, 4))
    assert not len(routes[2].exchange.receive_rows)
    assert [route.exchange.required for route in routes] == [True] * 4


# definitions, on packs of any shape


@pytest.mark.rule("SEQ-1", "SEQ-2", "SEQ-4")
@given(cases())
def test_a_window_bank_is_own_rows_and_the_rows_of_the_own_document_that_they_attend_to(case):
    banks = [loops.window_bank(case.boundaries, case.local, rank, case.number) for rank in range(case.size)]
    plan = sliding_window_plan(*case.arguments)
    assert edges(plan) == [loops.bank_edges(bank) for bank in banks]
    check_delivery(plan, loops.holders(case.boundaries, case.local), banks)


@pytest.mark.rule("SEQ-3", "SEQ-4")
@given(cases())
def test_a_prefix_bank_is_own_keys_and_the_keys_that_own_tokens_see(case):
    banks = [loops.prefix_needed(case.boundaries, case.local, rank, case.number) for rank in range(case.size)]
    plan = document_prefix_plan(*case.arguments)
    starts = [loops.prefix_start(case.boundaries, case.local, rank, case.number) for rank in range(case.size)]
    assert plan.bank_starts.tolist() == starts
    check_delivery(plan, loops.key_owners(case.boundaries, case.number, case.local), banks)


@pytest.mark.rule("SEQ-2")
@given(cases())
def test_no_halo_has_a_row_of_another_document(case):
    documents = loops.documents_of(case.boundaries)
    keys = [document for document, _ in loops.all_keys(case.boundaries, case.number)]
    for rank in range(case.size):
        first = documents[rank * case.local]
        window = sliding_window_route(case.documents, case.local, case.size, rank, case.number)
        assert {documents[row] for row in range(window.global_start, rank * case.local)} <= {first}
        prefix = document_prefix_route(case.documents, case.local, case.size, rank, case.number)
        halo = prefix.global_stop - prefix.local_length
        assert {keys[key] for key in range(prefix.global_start, halo)} <= {first}


@pytest.mark.rule("SEQ-4")
@given(cases(), st.sampled_from([sliding_window_plan, document_prefix_plan, compression_halo_plan]))
def test_received_slots_come_first_in_rank_order_and_every_slot_is_written_once(case, family):
    if family is compression_halo_plan:
        plan = compression_halo_plan(case.documents, case.number, case.local, case.size, True)
    else:
        plan = family(*case.arguments)
    owners = [rank for rank in range(plan.size) for _ in range(int(plan.own_rows[rank]))]
    for rank, route in enumerate(routes_of(plan)):
        exchange = route.exchange
        halo = int(plan.halo_rows[rank])
        assert exchange.receive_rows.tolist() == list(range(halo))
        assert exchange.local_targets.tolist() == list(range(halo, halo + route.local_length))
        assert exchange.local_sources.tolist() == list(range(route.local_length))
        assert exchange.num_unwritten == 0
        sources = [source for source in range(plan.size) for _ in range(int(exchange.output_splits[source]))]
        assert sources == [owners[route.global_start + slot] for slot in range(halo)]
        assert exchange.output_splits[rank:].tolist() == [0] * (plan.size - rank)


@pytest.mark.rule("SEQ-5")
@given(cases())
def test_required_is_one_answer_and_true_exactly_if_some_rank_needs_a_row_of_another(case):
    held_by = loops.holders(case.boundaries, case.local)
    banks = [loops.window_bank(case.boundaries, case.local, rank, case.number) for rank in range(case.size)]
    plan = sliding_window_plan(*case.arguments)
    needed = loops.moved_rows(held_by, banks)
    assert (plan.moved_rows, plan.required) == (needed, needed > 0)
    assert [route.exchange.required for route in routes_of(plan)] == [needed > 0] * case.size
    keys = loops.key_owners(case.boundaries, case.number, case.local)
    banks = [loops.prefix_needed(case.boundaries, case.local, rank, case.number) for rank in range(case.size)]
    plan = document_prefix_plan(*case.arguments)
    needed = loops.moved_rows(keys, banks)
    assert (plan.moved_rows, plan.required) == (needed, needed > 0)
    assert [route.exchange.required for route in routes_of(plan)] == [needed > 0] * case.size


@pytest.mark.rule("SEQ-6")
@given(cases(max_size=5))
def test_the_routes_of_all_ranks_keep_every_law_of_exchanges(case):
    for plan in (sliding_window_plan(*case.arguments), document_prefix_plan(*case.arguments)):
        laws.all_laws([route.exchange for route in routes_of(plan)])


@pytest.mark.rule("SEQ-6")
@given(st.data())
def test_any_bank_plan_has_routes_that_keep_the_laws_and_fill_the_banks(data):
    own = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    offsets = [sum(own[:rank]) for rank in range(len(own) + 1)]
    starts = [data.draw(st.integers(0, low)) for low in offsets[:-1]]
    plan = SequenceBankPlan("window", offsets, starts)
    laws.all_laws([route.exchange for route in routes_of(plan)])
    owners = [rank for rank, rows in enumerate(own) for _ in range(rows)]
    check_delivery(plan, owners, [list(range(start, stop)) for start, stop in edges(plan)])


@pytest.mark.rule("SEQ-8")
@given(cases())
def test_a_plan_knows_the_bank_sizes_of_all_routes(case):
    for plan in (sliding_window_plan(*case.arguments), document_prefix_plan(*case.arguments)):
        routes = routes_of(plan)
        assert plan.size == case.size
        assert plan.own_rows.tolist() == [route.local_length for route in routes]
        assert plan.bank_rows.tolist() == [route.exchange.num_target_rows for route in routes]
        assert plan.halo_rows.tolist() == [len(route.exchange.receive_rows) for route in routes]
        assert plan.moved_rows == sum(len(route.exchange.send_rows) for route in routes)
        for numbers in (plan.owner_offsets, plan.bank_starts, plan.own_rows, plan.halo_rows, plan.bank_rows):
            assert numbers.dtype == np.int64
            assert not numbers.flags.writeable


@pytest.mark.rule("SEQ-9")
@given(cases())
def test_every_row_of_a_halo_is_needed_by_an_own_row(case):
    documents = loops.documents_of(case.boundaries)
    seen = loops.visible_keys(case.boundaries, case.number)
    for rank in range(case.size):
        own = range(rank * case.local, (rank + 1) * case.local)
        attended = {row for token in own for row in loops.window_rows(documents, token, case.number)}
        window = sliding_window_route(case.documents, case.local, case.size, rank, case.number)
        assert set(range(window.global_start, own.start)) <= attended
        visible = {key for token in own for key in seen[token]}
        prefix = document_prefix_route(case.documents, case.local, case.size, rank, case.number)
        assert set(range(prefix.global_start, prefix.global_stop - prefix.local_length)) <= visible


@pytest.mark.rule("SEQ-7")
@given(cases(), st.data())
def test_boundaries_as_list_tuple_array_and_documents_give_equal_routes(case, data):
    rank = data.draw(st.integers(0, case.size - 1))
    ends = case.boundaries
    forms = [
        ends,
        tuple(ends),
        np.array(ends),
        np.array(ends, dtype=np.int32),
        np.array(ends, dtype=np.uint64),
        [np.int64(end) for end in ends],
        case.documents,
        PackedDocuments(case.documents.lengths.tolist()),
    ]
    for route in (sliding_window_route, document_prefix_route):
        answers = [route(form, case.local, case.size, rank, case.number) for form in forms]
        answers.append(
            route(ends, np.int64(case.local), np.int32(case.size), np.int64(rank), number_of(np.uint8, case.number))
        )
        assert len({answer.digest for answer in answers}) == 1
        assert all(answer == answers[0] for answer in answers)
    for plan in (sliding_window_plan, document_prefix_plan):
        assert len({plan(form, case.local, case.size, case.number) for form in forms}) == 1


def number_of(kind, value):
    """``value`` as a NumPy scalar, where it fits."""
    return kind(value) if value <= np.iinfo(kind).max else value


@pytest.mark.rule("SEQ-7")
def test_boundaries_that_change_after_the_call_change_no_route():
    ends = np.array(PACK)
    route = sliding_window_route(ends, 4, 4, 1, 4)
    before = route.digest
    ends[1] = 4
    assert route.global_start == 1
    assert pickle.loads(pickle.dumps(route)).digest == before
    assert sliding_window_route(ends, 4, 4, 1, 4).global_start == 4
    assert sliding_window_route(PACK, 4, 4, 1, 4) == route


@pytest.mark.rule("SEQ-7", "SEQ-8")
@given(cases(), st.data())
def test_plans_and_routes_come_back_from_json_and_pickle(case, data):
    rank = data.draw(st.integers(0, case.size - 1))
    for plan in (sliding_window_plan(*case.arguments), document_prefix_plan(*case.arguments)):
        for value in (plan, bank_route(plan, rank)):
            for again in (from_json(to_json(value)), pickle.loads(pickle.dumps(value))):
                assert type(again) is type(value)
                assert again == value
                assert hash(again) == hash(value)
                assert again.digest == value.digest
                assert to_json(again) == to_json(value)


@pytest.mark.rule("SEQ-7")
def test_other_banks_have_other_digests():
    plans = [sliding_window_plan(PACK, 4, 4, window) for window in (1, 2, 3, 4, 5)]
    plans += [document_prefix_plan(PACK, 4, 4, ratio) for ratio in (1, 2, 3, 4)]
    assert len({plan.digest for plan in plans}) == len(plans)
    routes = [bank_route(plans[3], rank) for rank in range(4)]
    assert len({route.digest for route in routes}) == 4
    assert sliding_window_plan(PACK, 4, 4, 5) == sliding_window_plan(PACK, 4, 4, 99)
    window, prefix = sliding_window_plan((0, 4), 4, 1, 1), document_prefix_plan((0, 4), 4, 1, 1)
    assert window.bank_starts.tolist() == prefix.bank_starts.tolist()
    assert window != prefix


@pytest.mark.rule("SEQ-4", "SEQ-8")
def test_a_halo_of_a_trillion_rows_is_a_few_numbers():
    local = 2**40
    for rank, route in enumerate(routes_of(sliding_window_plan((0, 5, 4 * local), local, 4, 2 * local))):
        assert route.global_start == max(0 if rank == 0 else 5, rank * local - 2 * local + 1)
        assert len(to_json(route)) < 1000
    prefix = document_prefix_route((0, 4 * local), local, 4, 3, 1)
    assert (prefix.global_start, prefix.global_stop, prefix.local_length) == (0, 4 * local, local)
    assert prefix.exchange.output_splits.tolist() == [local, local, local, 0]


@pytest.mark.rule("SEQ-1", "SEQ-3")
def test_the_greatest_window_and_ratio_are_numbers_like_others():
    whole = [(0, 4), (0, 8), (8, 12), (8, 16)]
    assert edges(sliding_window_plan(PACK, 4, 4, BIG)) == whole
    assert document_prefix_plan(PACK, 4, 4, BIG).bank_rows.tolist() == [0, 0, 0, 0]


@pytest.mark.rule("SEQ-6")
@given(sequence_routes())
def test_a_route_s_exchange_is_the_value_that_its_own_fields_construct(routes):
    for exchange in (route.exchange for route in routes):
        kept = {field.name: vars(exchange)[field.name] for field in attrs.fields(RowExchange)}
        again = RowExchange(**kept)
        assert again == exchange
        assert {name: type(part) for name, part in vars(exchange).items() if name in kept} == {
            name: type(vars(again)[name]) for name in kept
        }
        assert np.array_equal(again._packed, exchange._packed)
        assert all(not vars(part)["starts"].flags.writeable for part in kept.values() if isinstance(part, RowRuns))


@pytest.mark.rule("SEQ-5", "SEQ-8")
def test_moved_rows_beyond_int64_are_counted_in_full():
    plan = document_prefix_plan((0, 2**62), 2**58, 16, 1)
    assert plan.moved_rows == 120 * 2**58
    assert plan.required
    assert bank_route(plan, 15).exchange.required


@pytest.mark.rule("SEQ-4")
def test_one_rank_owns_its_whole_bank():
    for route in (sliding_window_route(PACK, 16, 1, 0, 4), document_prefix_route(PACK, 16, 1, 0, 1)):
        assert route.exchange.local_sources.tolist() == list(range(16))
        assert not route.exchange.required
        assert len(route.exchange.send_rows) == len(route.exchange.receive_rows) == 0


def test_the_package_and_its_part_give_the_same_names():
    for name in hpfun.sequence.__all__:
        assert getattr(hpfun, name) is getattr(hpfun.sequence, name)
        assert name in hpfun.__all__


# what went wrong in the field


@pytest.mark.rule("SEQ-1")
@pytest.mark.parametrize("window", range(1, 7))
def test_a_window_reaches_one_row_less_than_its_width_to_the_left(window):
    # huggingface/transformers#39408: the row itself counts
    route = sliding_window_route((0, 12), 6, 2, 1, window)
    assert 6 - route.global_start == window - 1
    assert len(route.exchange.receive_rows) == window - 1


@pytest.mark.rule("SEQ-2")
def test_a_window_wider_than_a_shard_hops_over_several_ranks():
    # tenstorrent/tt-metal#51438: only the neighbour was asked
    exchange = sliding_window_route((0, 16), 2, 8, 7, 8).exchange
    assert exchange.output_splits.tolist() == [0, 0, 0, 1, 2, 2, 2, 0]
    first = sliding_window_route((0, 16), 2, 8, 0, 8).exchange
    assert first.input_splits.tolist() == [0, 2, 2, 2, 1, 0, 0, 0]


@pytest.mark.rule("SEQ-2")
def test_a_halo_neither_leaks_over_a_document_edge_nor_restarts_at_a_shard_edge():
    # PrimeIntellect-ai/prime-rl#3003, axolotl-ai-cloud/axolotl#3608
    banks = edges(sliding_window_plan(PACK, 4, 4, 16))
    assert banks[2] == (8, 12)  # its first token starts document 2
    assert banks[3] == (8, 16)  # goes on with it, over the edge between ranks 2 and 3
    assert edges(sliding_window_plan((0, 6, 12), 4, 3, 3)) == [(0, 4), (2, 8), (6, 12)]
    assert edges(document_prefix_plan((0, 6, 12), 4, 3, 2)) == [(0, 2), (0, 4), (3, 6)]


@pytest.mark.rule("SEQ-3")
def test_a_query_does_not_see_the_key_of_its_own_incomplete_block():
    # vllm-project/tpu-inference#3536: visible is (p + 1) // ratio
    for ratio in (2, 3, 4):
        for rank in range(4):
            route = document_prefix_route(PACK, 4, 4, rank, ratio)
            for segment in indexer_segments(PACK, 4 * rank, 4, ratio):
                for row in range(segment.query_start, segment.query_stop):
                    token = 4 * rank + row
                    position = token - max(start for start in PACK if start <= token)
                    assert segment.visible(row, ratio) == (position + 1) // ratio
                assert route.global_start <= segment.key_start <= segment.key_stop <= route.global_stop


@pytest.mark.rule("SEQ-5", "SEQ-6")
@pytest.mark.parametrize(
    ("boundaries", "local", "size", "ratio"),
    [
        (PACK, 4, 4, 4),  # rank 1 owns no key
        (PACK, 4, 4, 9),  # nobody does
        (tuple(range(9)), 2, 4, 2),  # every document is shorter than the ratio
        ((0, 3, 8), 1, 8, 4),  # one key, on rank 6
    ],
)
def test_ranks_without_a_key_and_packs_without_any_are_normal(boundaries, local, size, ratio):
    plan = document_prefix_plan(boundaries, local, size, ratio)
    assert 0 in plan.own_rows
    laws.all_laws([route.exchange for route in routes_of(plan)])
    owners = loops.key_owners(boundaries, ratio, local)
    check_delivery(plan, owners, [loops.prefix_needed(boundaries, local, rank, ratio) for rank in range(size)])


@pytest.mark.rule("SEQ-6")
@given(cases())
def test_splits_of_all_ranks_are_each_other_s_transpose(case):
    # pytorch/pytorch#117486: splits that are not hang instead of failing
    for plan in (sliding_window_plan(*case.arguments), document_prefix_plan(*case.arguments)):
        exchanges = [route.exchange for route in routes_of(plan)]
        sent = np.stack([exchange.input_splits for exchange in exchanges])
        received = np.stack([exchange.output_splits for exchange in exchanges])
        assert np.array_equal(sent, received.T)


# bad input


FAMILIES = {
    "window plan": lambda ends, local, size, rank, number: sliding_window_plan(ends, local, size, number),
    "window route": sliding_window_route,
    "prefix plan": lambda ends, local, size, rank, number: document_prefix_plan(ends, local, size, number),
    "prefix route": document_prefix_route,
    "halo plan": lambda ends, local, size, rank, number: compression_halo_plan(ends, number, local, size),
    "compression plan": lambda ends, local, size, rank, number: document_compression_plan(
        ends, number, local, size, rank
    ),
}
ROUTES = ["window route", "prefix route", "compression plan"]
NO_COUNT = [0, -1, True, False, 2.0, np.float64(2), np.bool_(True), "2", None, (2,), 2**63]


def ask(family, ends=PACK, local=4, size=4, rank=0, number=2):
    """What a family says about arguments that are legal unless given."""
    return FAMILIES[family](ends, local, size, rank, number)


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("family", FAMILIES)
def test_legal_arguments_are_not_refused(family):
    ask(family)


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_shard_lengths_and_group_sizes_that_are_no_positive_ints_are_refused(family, bad):
    for name in ("local", "size"):
        with refused("HP-ROUTE-001") as caught:
            ask(family, **{name: bad})
        assert caught.error.where == {"local": "local_length", "size": "size"}[name]


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_windows_that_are_no_positive_ints_are_refused(bad):
    for family in ("window plan", "window route"):
        with refused("HP-ROUTE-001") as caught:
            ask(family, number=bad)
        assert caught.error.where == "window"


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_ratios_that_are_no_positive_ints_are_refused(bad):
    for family in ("prefix plan", "prefix route", "halo plan", "compression plan"):
        with refused("HP-COMPRESS-001") as caught:
            ask(family, number=bad)
        assert caught.error.where == "ratio"


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", [4, -1, 2**63, True, False, 1.0, np.float32(1), "1", None], ids=repr)
@pytest.mark.parametrize("family", ROUTES)
def test_ranks_outside_the_group_are_refused(family, bad):
    with refused("HP-ROUTE-002") as caught:
        ask(family, rank=bad)
    assert caught.error.where == "rank"
    plan = sliding_window_plan(PACK, 4, 4, 2)
    with refused("HP-ROUTE-002"):
        bank_route(plan, bad)


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(
    "bad",
    [
        (),
        [0],
        [16],
        [5, 8, 16],
        [-1, 5, 16],
        [0.0, 5.0, 8.0, 16.0],
        [0, 5, True, 16],
        [False, 5, 8, 16],
        [0, 5.0, 16],
        [0, None, 16],
        [0, 2**63],
        np.array([0.0, 16.0]),
        np.array([[0, 16]]),
        np.array([False, True]),
        np.array(16),
        np.array([0, 2**63], dtype=np.uint64),
        "0,16",
        {0: 0, 16: 16},
        {0, 16},
        16,
        None,
    ],
    ids=repr,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_boundaries_that_are_no_integers_from_0_are_refused(family, bad):
    with refused("HP-ROUTE-003") as caught:
        ask(family, bad)
    assert caught.error.where == "boundaries"


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", [(0, 5, 5, 16), (0, 0, 16), (0, 8, 5, 16), (0, 16, 16), (0, -16), (0, 5, -8, 16)])
@pytest.mark.parametrize("family", FAMILIES)
def test_boundaries_that_do_not_rise_are_refused(family, bad):
    with refused("HP-ROUTE-004") as caught:
        ask(family, bad)
    assert caught.error.where == "boundaries"
    assert caught.error.facts["value"] <= caught.error.facts["before"]


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(
    ("ends", "local", "size"),
    [
        ((0, 5, 8, 15), 4, 4),
        ((0, 5, 8, 17), 4, 4),
        (PACK, 4, 5),
        (PACK, 8, 4),
        (PACK, 2**40, 2**40),  # the product is beyond int64
        (PACK, 1, 2**62),  # refused before anything as long as the group is made
        (PackedDocuments((5, 3, 7)), 4, 4),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_boundaries_that_do_not_end_where_the_shards_end_are_refused(family, ends, local, size):
    with refused("HP-ROUTE-005") as caught:
        ask(family, ends, local, size)
    assert caught.error.facts["expected"] == local * size


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(
    ("bad", "legal"),
    [
        ({"kind": "ring"}, {"kind": "prefix"}),
        ({"kind": None}, {"kind": "halo"}),
        ({"owner_offsets": [1, 8, 16]}, {"owner_offsets": [0, 8, 16]}),
        ({"owner_offsets": [0, 8, 6]}, {"owner_offsets": [0, 8, 8]}),
        ({"owner_offsets": [0, 16]}, {"owner_offsets": [0, 16, 16]}),
        ({"owner_offsets": [0.0, 8.0, 16.0]}, {"owner_offsets": np.array([0, 8, 16])}),
        ({"owner_offsets": 16}, {}),
        ({"bank_starts": [0, 9]}, {"bank_starts": [0, 8]}),
        ({"bank_starts": [-1, 8]}, {"bank_starts": [0, 0]}),
        ({"bank_starts": [0]}, {}),
        ({"bank_starts": [False, True]}, {}),
        ({"bank_starts": [], "owner_offsets": [0]}, {"bank_starts": [0], "owner_offsets": [0, 0]}),
    ],
)
def test_a_bank_plan_whose_parts_do_not_fit_is_refused(bad, legal):
    fields = {"kind": "window", "owner_offsets": [0, 8, 16], "bank_starts": [0, 5]}
    SequenceBankPlan(**{**fields, **legal})
    with refused("HP-ROUTE-008"):
        SequenceBankPlan(**{**fields, **bad})


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(
    "bad",
    [
        {"local_length": 5},
        {"local_length": -1},
        {"local_length": 4.0},
        {"global_start": 2},
        {"global_start": -1},
        {"global_start": True},
        {"global_stop": 9},
        {"global_stop": 0},
        {"exchange": None},
    ],
)
def test_a_route_whose_parts_do_not_fit_is_refused(bad):
    route = sliding_window_route(PACK, 4, 4, 1, 4)
    assert attrs.evolve(route, global_start=4, global_stop=11).bank_rows == 7
    with refused("HP-ROUTE-008"):
        attrs.evolve(route, **bad)


@pytest.mark.rule("SEQ-10")
def test_a_route_with_a_reducing_exchange_is_refused():
    route = sliding_window_route(PACK, 4, 4, 1, 1)
    with refused("HP-ROUTE-008"):
        attrs.evolve(route, exchange=hpfun.transpose(route.exchange))


@pytest.mark.rule("SEQ-10")
def test_a_route_whose_bank_is_smaller_than_its_own_rows_is_refused():
    lossy = RowExchange(
        size=4,
        rank=1,
        num_source_rows=4,
        num_target_rows=2,
        send_rows=[],
        input_splits=[0] * 4,
        output_splits=[0] * 4,
        receive_rows=[],
        local_sources=[0, 1],
        local_targets=[0, 1],
        required=False,
    )
    with refused("HP-ROUTE-008"):
        SequenceDispatchRoute(4, 4, 6, lossy)


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", [None, 4, PACK, PackedDocuments((16,))], ids=repr)
def test_what_is_no_bank_plan_has_no_route(bad):
    with refused("HP-ROUTE-008"):
        bank_route(bad, 0)
    with refused("HP-ROUTE-008"):
        bank_route(sliding_window_route(PACK, 4, 4, 1, 1), 0)
