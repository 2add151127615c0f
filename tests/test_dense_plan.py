"""Blocks and routes of dense attention: what each row sees, against loops over tokens."""

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import document_prefix_route, from_json, sliding_window_route, strategies, to_json
from hpfun.batch import BatchTopology, batch_view, plan_batch
from hpfun.batch.layouts import LAYOUTS
from hpfun.dense import CausalBlocks, DenseRoute, causal_blocks, dense_route, split_blocks
from tests.oracles import dense as oracle
from tests.refusals import refused


def seen_by_row(blocks):
    """The keys of each row of the bank order, row by row, as blocks are read."""
    firsts = np.concatenate(([0], np.cumsum(blocks.bank_lengths)))
    found = []
    for block in blocks:
        assert block.row_start == len(found)
        rows = block.row_stop - block.row_start
        for row in range(rows):
            stop = block.key_stop - (rows - 1 - row)
            start = max(block.key_start, stop - blocks.window) if blocks.window else block.key_start
            found.append([int(firsts[block.document]) + key for key in range(start, stop)])
    return found


def assert_sees(plan, rank, window, blocks, bank):
    """Every row of the rank sees what the loop over tokens says; ``bank`` are the positions of its rows."""
    expected = oracle.seen(plan.padded_lengths.tolist(), window)
    got = [[bank[key] for key in keys] for keys in seen_by_row(blocks)]
    assert got == [expected[position] for position in batch_view(plan, rank).positions.tolist()]


def bank_of(plan, route):
    """Positions of the rows of a rank's bank."""
    return range(plan.padded_length) if route.bank is None else range(route.bank.global_start, route.bank.global_stop)


def packs(total):
    """All lists of document lengths of up to ``total`` tokens."""
    for tokens in range(1, total + 1):
        for cuts in itertools.product((False, True), repeat=tokens - 1):
            ends = [at + 1 for at, cut in enumerate(cuts) if cut]
            yield tuple(np.diff([0, *ends, tokens]).tolist())


@pytest.mark.rule("DENSE-1", "DENSE-2")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_every_small_pack_each_row_sees_its_document_up_to_itself(layout):
    for lengths, size, window in itertools.product(packs(6), (1, 2, 3), (0, 1, 2, 4)):
        plan = plan_batch(lengths, BatchTopology(size), layout=layout)
        for rank in range(size):
            route = dense_route(plan, rank, window)
            for most in (None, 1, 2):
                blocks = route.blocks if most is None else split_blocks(route.blocks, most)
                assert_sees(plan, rank, window, blocks, bank_of(plan, route))


@pytest.mark.rule("DENSE-1", "DENSE-2")
@given(strategies.dense_routes(), st.integers(1, 30))
def test_splitting_keeps_what_rows_see_and_bounds_rows_and_keys(route, most):
    blocks = split_blocks(route.blocks, most)
    assert seen_by_row(blocks) == seen_by_row(route.blocks)
    rows, keys = blocks.mask_extent
    assert rows <= most
    whole = {(b.row_start, b.row_stop) for b in route.blocks if b.triangular}
    assert whole <= {(b.row_start, b.row_stop) for b in blocks if b.triangular}
    for block in blocks:
        height, width = block.row_stop - block.row_start, block.key_stop - block.key_start
        assert block.triangular == (height == width and (not blocks.window or width <= blocks.window))
        if not block.triangular:
            assert height <= most
            assert width <= keys
        if blocks.window:
            assert width <= height + blocks.window - 1
    assert split_blocks(blocks, most) == blocks


@pytest.mark.rule("DENSE-1")
def test_joined_chunks_are_one_block_and_a_bank_may_start_inside_a_document():
    plan = plan_batch((8, 4), BatchTopology(2), layout="zigzag")
    assert [tuple(block)[:5] for block in dense_route(plan, 1).blocks] == [(0, 4, 0, 0, 6), (4, 6, 1, 0, 3)]
    view = batch_view(plan_batch((5, 3), BatchTopology(2)), 1)
    assert [tuple(block)[:5] for block in causal_blocks(view, 2, 8, window=3)] == [(0, 1, 0, 0, 3), (1, 4, 1, 0, 3)]


@pytest.mark.rule("DENSE-3")
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(0, 40),
    st.sampled_from(LAYOUTS),
)
def test_banks_are_those_of_sequence_routes_and_orders_undo_the_layout(lengths, size, window, layout):
    plan = plan_batch(lengths, BatchTopology(size), layout=layout)
    shards = [batch_view(plan, rank).positions for rank in range(size)]
    for rank in range(size):
        route = dense_route(plan, rank, window)
        assert route.local_rows == plan.local_length
        if layout == "contiguous":
            given = (plan.cu_seq_lens, plan.local_length, size, rank)
            expected = sliding_window_route(*given, window) if window else document_prefix_route(*given, 1)
            assert route.bank == expected
            assert route.received_rows == expected.halo_rows
        else:
            assert np.concatenate(shards)[route.order].tolist() == list(range(plan.padded_length))
            assert route.received_rows == plan.padded_length - plan.local_length


@pytest.mark.rule("DENSE-3")
def test_the_order_of_the_page():
    plan = plan_batch((8,), BatchTopology(2), layout="zigzag")
    assert dense_route(plan, 0).order.tolist() == [0, 1, 4, 5, 6, 7, 2, 3]


@pytest.mark.rule("DENSE-4")
@given(strategies.dense_values())
def test_values_come_back_from_json_equal(value):
    assert from_json(to_json(value)) == value


@pytest.mark.rule("DENSE-4")
def test_what_is_no_plan_rank_or_window_is_refused():
    plan = plan_batch((5, 3), BatchTopology(2))
    with refused("HP-BATCH-007"):
        dense_route((5, 3), 0)
    with refused("HP-ENCODER-004"):
        dense_route(plan, 2)
    for window in (-1, 1.5, True):
        with refused("HP-ATTN-002"):
            dense_route(plan, 0, window)
    with refused("HP-ATTN-002"):
        split_blocks(dense_route(plan, 0).blocks, 0)


BLOCKS = {"bank_lengths": [5, 3], "documents": [0, 1], "row_lengths": [1, 3], "key_starts": [0, 0], "key_stops": [5, 3]}


@pytest.mark.rule("DENSE-4")
@pytest.mark.parametrize(
    "change",
    [
        {"documents": [0]},
        {"documents": [0, 2]},
        {"documents": [-1, 1]},
        {"row_lengths": [0, 3]},
        {"row_lengths": [1, 4]},
        {"key_starts": [-1, 0]},
        {"key_starts": [0, 1]},
        {"key_stops": [6, 3]},
        {"bank_lengths": [5, 0]},
        {"window": -1},
        {"bank_lengths": [5.0, 3.0]},
    ],
    ids=str,
)
def test_blocks_whose_parts_do_not_fit_are_refused(change):
    assert len(list(CausalBlocks(**BLOCKS))) == 2
    with refused("HP-ATTN-002"):
        CausalBlocks(**(BLOCKS | change))


@pytest.mark.rule("DENSE-4")
def test_routes_whose_parts_do_not_fit_are_refused():
    plan = plan_batch((5, 3), BatchTopology(2))
    route = dense_route(plan, 1)
    for change in ({"bank": None}, {"bank": 3}, {"order": range(8)}, {"bank": dense_route(plan, 0).bank}):
        with refused("HP-ATTN-002"):
            attrs.evolve(route, **change)
    with refused("HP-ATTN-002"):
        DenseRoute(blocks=route, bank=route.bank)


@pytest.mark.rule("DENSE-1")
def test_a_bank_without_a_key_that_a_row_sees_is_refused():
    view = batch_view(plan_batch((11,), BatchTopology(4)), 2)
    assert causal_blocks(view, 0, 12).num_keys == 12
    assert causal_blocks(view, 6, 12, window=3).num_keys == 6
    for start, stop, window in ((1, 12, 0), (0, 11, 0), (7, 12, 3)):
        with refused("HP-ATTN-002") as caught:
            causal_blocks(view, start, stop, window)
        assert caught.error.where == "bank_start"
    for start, stop in (("x", 12), (-1, 12), (0, 99), (9, 4), (0, 12.0)):
        with refused("HP-ATTN-002"):
            causal_blocks(view, start, stop)


@pytest.mark.rule("DENSE-4")
@pytest.mark.parametrize("order", [[7] * 8, [0, 1, 2, 3, 4, 5, 6, 8], [-1, 1, 2, 3, 4, 5, 6, 7]])
def test_an_order_lists_each_row_once(order):
    route = dense_route(plan_batch((8,), BatchTopology(2), layout="zigzag"), 0)
    with refused("HP-ATTN-002") as caught:
        attrs.evolve(route, order=order)
    assert caught.error.where == "order"
