"""All small packs against the loops: every composition up to 9 tokens, group size, window, ratio and overlap.

A route follows from the plan of all banks alone (SEQ-8), so every plan is compared, and the routes once for each
plan that differs; up to 6 tokens all laws are asked, and up to 5 the public calls of single routes are compared.
"""

import pytest

from hpfun import (
    PackedDocuments,
    bank_route,
    compressed_document_offsets,
    compressed_owner_offsets,
    compression_halo_plan,
    csa_tnd_plan,
    document_compression_plan,
    document_prefix_plan,
    document_prefix_route,
    indexer_segments,
    sliding_window_plan,
    sliding_window_route,
    split_segments,
)
from tests import laws
from tests.oracles import sequence as loops
from tests.oracles.indexer import compositions, divisors

GROUPS = [(total, size) for total in range(1, 10) for size in divisors(total)]
LAWFUL = 6  # tokens up to which all laws are asked


def packs(total):
    """Every pack of ``total`` tokens: (documents as a value, boundaries as a list)."""
    for lengths in compositions(total):
        yield PackedDocuments(lengths), [sum(lengths[:n]) for n in range(len(lengths) + 1)]


def ratios(boundaries):
    """Every ratio up to one more than the tokens."""
    return range(1, boundaries[-1] + 2)


def check_plan(plan, kind, owners, starts, stops):
    size = len(starts)
    assert plan.kind == kind
    assert plan.size == size
    assert plan.owner_offsets.tolist() == loops.owner_offsets(owners, size)
    assert plan.bank_starts.tolist() == starts
    assert plan.own_rows.tolist() == [owners.count(rank) for rank in range(size)]
    assert plan.bank_rows.tolist() == [stop - start for start, stop in zip(starts, stops, strict=True)]
    moved = [
        sum(1 for row in range(start, stop) if owners[row] != rank)
        for rank, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]
    assert plan.halo_rows.tolist() == moved
    assert plan.moved_rows == sum(moved)
    assert plan.required == any(moved)


def check_route(route, rank, owners, banks, start):
    expected, exchange = loops.exchange(owners, banks, rank), route.exchange
    assert (route.global_start, route.global_stop) == (start, start + len(banks[rank]))
    assert route.local_length == exchange.num_source_rows == owners.count(rank)
    assert exchange.num_target_rows == len(banks[rank])
    assert exchange.send_rows.tolist() == [row for _, row in expected["send"]]
    assert exchange.receive_rows.tolist() == [slot for _, slot in expected["receive"]]
    for splits, pairs in (
        (exchange.input_splits, expected["send"]),
        (exchange.output_splits, expected["receive"]),
    ):
        assert splits.tolist() == [sum(1 for other, _ in pairs if other == peer) for peer in range(len(banks))]
    assert list(zip(exchange.local_sources.tolist(), exchange.local_targets.tolist(), strict=True)) == expected["local"]
    assert exchange.receive_rows.tolist() == list(range(len(expected["receive"])))
    assert exchange.required == (loops.moved_rows(owners, banks) > 0)


def check_routes(plan, owners, starts, stops, seen):
    """Routes of a plan that was not there before; ``seen`` collects what was."""
    key = (tuple(owners), tuple(starts))
    if key in seen:
        return
    seen.add(key)
    banks = [list(range(start, stop)) for start, stop in zip(starts, stops, strict=True)]
    routes = [bank_route(plan, rank) for rank in range(plan.size)]
    for rank, route in enumerate(routes):
        check_route(route, rank, owners, banks, starts[rank])
    if len(owners) <= LAWFUL:
        laws.all_laws([route.exchange for route in routes])


@pytest.mark.rule("SEQ-1", "SEQ-2", "SEQ-4", "SEQ-5", "SEQ-6", "SEQ-8")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_window_banks_are_what_the_loops_say_on_every_small_pack(total, size):
    local, seen = total // size, set()
    for documents, boundaries in packs(total):
        owners = loops.holders(boundaries, local)
        for window in range(1, total + 2):
            edges = [loops.bank_edges(loops.window_bank(boundaries, local, rank, window)) for rank in range(size)]
            starts, stops = [start for start, _ in edges], [stop for _, stop in edges]
            plan = sliding_window_plan(documents, local, size, window)
            check_plan(plan, "window", owners, starts, stops)
            check_routes(plan, owners, starts, stops, seen)
    assert seen


@pytest.mark.rule("SEQ-3", "SEQ-4", "SEQ-5", "SEQ-6", "SEQ-8", "COMPRESS-1", "COMPRESS-2")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_document_prefixes_are_what_the_loops_say_on_every_small_pack(total, size):
    local, seen = total // size, set()
    for documents, boundaries in packs(total):
        for ratio in ratios(boundaries):
            owners = loops.key_owners(boundaries, ratio, local)
            starts = [loops.prefix_start(boundaries, local, rank, ratio) for rank in range(size)]
            needed = [loops.prefix_needed(boundaries, local, rank, ratio) for rank in range(size)]
            stops = [start + len(keys) for start, keys in zip(starts, needed, strict=True)]
            assert needed == [list(range(start, stop)) for start, stop in zip(starts, stops, strict=True)]
            assert compressed_document_offsets(documents, ratio).tolist() == loops.document_offsets(boundaries, ratio)
            offsets = loops.owner_offsets(owners, size)
            assert compressed_owner_offsets(documents, ratio, local).tolist() == offsets
            plan = document_prefix_plan(documents, local, size, ratio)
            check_plan(plan, "prefix", owners, starts, stops)
            check_routes(plan, owners, starts, stops, seen)
    assert seen


@pytest.mark.rule("SEQ-4", "COMPRESS-6", "SEQ-8", "SEQ-9")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_compression_halos_are_what_the_loops_say_on_every_small_pack(total, size, overlap):
    local, seen = total // size, set()
    for documents, boundaries in packs(total):
        owners = loops.holders(boundaries, local)
        for ratio in ratios(boundaries):
            starts = [loops.halo_start(boundaries, ratio, local, rank, overlap) for rank in range(size)]
            stops = [(rank + 1) * local for rank in range(size)]
            plan = compression_halo_plan(documents, ratio, local, size, overlap)
            check_plan(plan, "halo", owners, starts, stops)
            check_routes(plan, owners, starts, stops, seen)
    assert seen


@pytest.mark.rule("COMPRESS-3", "COMPRESS-4", "COMPRESS-5", "COMPRESS-7", "COMPRESS-8", "COMPRESS-9")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_compression_plans_are_what_the_loops_say_on_every_small_pack(total, size, overlap):
    local = total // size
    for documents, boundaries in packs(total):
        for ratio in ratios(boundaries):
            plans = [document_compression_plan(documents, ratio, local, size, rank, overlap) for rank in range(size)]
            if not loops.needs_plan(boundaries, ratio, local, overlap):
                assert plans == [None] * size
                continue
            blocks = [loops.blocks(boundaries, ratio, local, rank) for rank in range(size)]
            most = max(len(mine) for mine in blocks)
            for rank, (plan, mine) in enumerate(zip(plans, blocks, strict=True)):
                assert plan.num_blocks == len(mine)
                assert plan.max_blocks == most
                assert plan.width == (2 * ratio if overlap else ratio)
                assert plan.block_rows.shape == (len(mine), plan.width)
                assert plan.block_rows.tolist() == loops.block_rows(boundaries, ratio, local, rank, overlap)
                assert plan.block_positions.tolist() == [position for _, _, position, _ in mine]
                assert plan.block_documents.tolist() == [document for _, _, _, document in mine]
                assert plan.halo.local_length == local
                assert plan.halo.global_start == loops.halo_start(boundaries, ratio, local, rank, overlap)
                assert plan.halo.global_stop == (rank + 1) * local


@pytest.mark.rule("SEQ-7", "SEQ-8", "COMPRESS-6")
@pytest.mark.parametrize(("total", "size"), [group for group in GROUPS if group[0] < LAWFUL])
def test_the_route_of_a_rank_is_the_plan_s_on_every_small_pack(total, size):
    local = total // size
    for _, boundaries in packs(total):
        for number in range(1, total + 2):
            window = sliding_window_plan(boundaries, local, size, number)
            prefix = document_prefix_plan(boundaries, local, size, number)
            halos = {
                overlap: compression_halo_plan(boundaries, number, local, size, overlap) for overlap in (False, True)
            }
            for rank in range(size):
                assert sliding_window_route(boundaries, local, size, rank, number) == bank_route(window, rank)
                assert document_prefix_route(boundaries, local, size, rank, number) == bank_route(prefix, rank)
                for overlap, halo in halos.items():
                    plan = document_compression_plan(boundaries, number, local, size, rank, overlap)
                    assert plan is None or plan.halo == bank_route(halo, rank)


@pytest.mark.rule("SEGMENT-4", "SEGMENT-5", "SEGMENT-6")
@pytest.mark.parametrize("total", range(1, 8))
def test_segments_are_what_the_loops_say_on_every_small_pack_and_shard(total):
    for documents, boundaries in packs(total):
        for ratio in range(1, total + 2):
            seen = loops.visible_keys(boundaries, ratio)
            for start in range(total):
                for length in range(1, total - start + 1):
                    expected = loops.segments(boundaries, start, length, ratio)
                    got = indexer_segments(documents, start, length, ratio)
                    assert [tuple(segment) for segment in got] == expected
                    rows = [(segment, row) for segment in got for row in range(segment.query_start, segment.query_stop)]
                    assert [
                        [segment.key_start + key for key in range(segment.visible(row, ratio))] for segment, row in rows
                    ] == seen[start : start + length]
                    packed, plan = loops.packed(expected), csa_tnd_plan(got, ratio)
                    assert (plan is None) == (not packed["query_rows"])
                    if plan is not None:
                        assert plan.query_rows.tolist() == packed["query_rows"]
                        assert plan.key_rows.tolist() == packed["key_rows"]


@pytest.mark.rule("SEGMENT-5")
@pytest.mark.parametrize("total", range(1, 9))
def test_split_segments_show_every_row_its_keys_on_every_small_pack(total):
    for documents, boundaries in packs(total):
        for ratio in range(1, total + 2):
            seen = loops.visible_keys(boundaries, ratio)
            start = total // 3
            segments = indexer_segments(documents, start, total - start, ratio)
            for most in range(1, total - start + 2):
                parts = split_segments(segments, ratio, most)
                shown = [
                    loops.segment_sees(tuple(part), row, ratio)
                    for part in parts
                    for row in range(part.query_start, part.query_stop)
                ]
                assert shown == seen[start:]
                assert max(part.query_stop - part.query_start for part in parts) <= most
