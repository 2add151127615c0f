"""Compression of documents into keys: who makes which key of which rows, at any ratio and across shard edges."""

import pickle
from typing import NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpfun
import hpfun.compression
from hpfun import (
    DocumentCompressionPlan,
    PackedDocuments,
    bank_route,
    compressed_document_offsets,
    compressed_owner_offsets,
    compressed_positions,
    compression_halo_plan,
    document_compression_plan,
    document_prefix_plan,
    from_json,
    indexer_segments,
    simulate_exchange,
    sliding_window_route,
    to_json,
)
from hpfun.strategies import group_sizes, packed_documents
from tests import laws
from tests.oracles import sequence as loops
from tests.refusals import refused

PACK = (0, 5, 8, 16)
NO_COUNT = [0, -1, True, False, 2.0, np.float64(2), np.bool_(True), "2", None, (2,), 2**63]


class Case(NamedTuple):
    """One pack, its shards, a ratio and whether blocks overlap."""

    documents: PackedDocuments
    ratio: int
    local: int
    size: int
    overlap: bool

    @property
    def boundaries(self):
        return self.documents.boundaries.tolist()

    @property
    def plans(self):
        return plans_of(self.documents, self.ratio, self.local, self.size, self.overlap)

    def blocks(self, rank):
        return loops.blocks(self.boundaries, self.ratio, self.local, rank)


def plans_of(boundaries, ratio, local, size, overlap=False):
    """The plans of all ranks."""
    return [document_compression_plan(boundaries, ratio, local, size, rank, overlap) for rank in range(size)]


@st.composite
def cases(draw, max_size=6):
    size = draw(group_sizes(max_size))
    documents = draw(packed_documents(multiple_of=size))
    ratio = draw(st.integers(1, 6) | st.integers(1, documents.total + 2))
    return Case(documents, ratio, documents.total // size, size, draw(st.booleans()))


def planned():
    """Cases that need a plan."""
    return cases().filter(lambda case: loops.needs_plan(case.boundaries, case.ratio, case.local, case.overlap))


def rows_of_blocks(plan):
    """Global rows of every block of a plan, -1 kept."""
    rows = plan.block_rows
    return np.where(rows < 0, -1, rows + plan.halo.global_start).tolist()


# the worked tables of the design


@pytest.mark.rule("COMPRESS-1")
@pytest.mark.parametrize(
    ("ratio", "offsets"),
    [(1, [0, 5, 8, 16]), (2, [0, 2, 3, 7]), (3, [0, 1, 2, 4]), (4, [0, 1, 1, 3]), (8, [0, 0, 0, 1]), (9, [0, 0, 0, 0])],
)
def test_worked_document_offsets(ratio, offsets):
    found = compressed_document_offsets(PACK, ratio)
    assert found.tolist() == offsets
    assert found.dtype == np.int64
    assert not found.flags.writeable


@pytest.mark.rule("COMPRESS-2")
@pytest.mark.parametrize(
    ("ratio", "local", "offsets"),
    [
        (1, 4, [0, 4, 8, 12, 16]),
        (2, 4, [0, 2, 3, 5, 7]),
        (4, 4, [0, 1, 1, 2, 3]),
        (9, 4, [0, 0, 0, 0, 0]),
        (4, 8, [0, 1, 3]),
        (4, 16, [0, 3]),
        (4, 2, [0, 0, 1, 1, 1, 1, 2, 2, 3]),
    ],
)
def test_worked_owner_offsets(ratio, local, offsets):
    found = compressed_owner_offsets(PACK, ratio, local)
    assert found.tolist() == offsets
    assert found.dtype == np.int64
    assert not found.flags.writeable


@pytest.mark.rule("COMPRESS-4", "COMPRESS-5", "COMPRESS-9")
@pytest.mark.parametrize(
    ("ratio", "halo", "rows", "positions"),
    [
        (4, 4, [[8, 9, 10, 11, 12, 13, 14, 15]], [4]),
        (2, 2, [[10, 11, 12, 13], [12, 13, 14, 15]], [4, 6]),
    ],
)
def test_worked_blocks_with_overlap(ratio, halo, rows, positions):
    plan = document_compression_plan(PACK, ratio, 4, 4, 3, overlap=True)
    assert rows_of_blocks(plan) == rows
    assert plan.block_positions.tolist() == positions
    assert plan.block_documents.tolist() == [2] * len(rows)
    assert (plan.halo.global_start, plan.halo.global_stop) == (12 - halo, 16)
    assert len(plan.halo.exchange.receive_rows) == halo
    assert plan.width == 2 * ratio


@pytest.mark.rule("COMPRESS-3", "COMPRESS-4", "COMPRESS-9")
def test_the_worked_document_of_ten_tokens():
    first, second = plans_of((0, 10), 4, 5, 2)
    assert first.block_rows.tolist() == [[0, 1, 2, 3]]
    assert second.block_rows.tolist() == [[0, 1, 2, 3]]
    assert (first.halo.global_start, second.halo.global_start) == (0, 4)
    assert (first.block_positions.tolist(), second.block_positions.tolist()) == ([0], [4])
    assert rows_of_blocks(second) == [[4, 5, 6, 7]]  # rows 8 and 9 make no key


@pytest.mark.rule("COMPRESS-5", "COMPRESS-6")
def test_the_worked_halos():
    assert compression_halo_plan(PACK, 4, 4, 4).halo_rows.tolist() == [0, 0, 0, 0]
    assert compression_halo_plan(PACK, 4, 4, 4, overlap=True).halo_rows.tolist() == [0, 0, 0, 4]
    assert compression_halo_plan(PACK, 2, 4, 4).halo_rows.tolist() == [0, 0, 0, 0]
    assert compression_halo_plan(PACK, 2, 4, 4, overlap=True).halo_rows.tolist() == [0, 0, 0, 2]
    assert compression_halo_plan(PACK, 3, 4, 4).halo_rows.tolist() == [0, 0, 0, 1]
    assert compression_halo_plan(PACK, 3, 4, 4, overlap=True).halo_rows.tolist() == [0, 0, 0, 4]
    assert compression_halo_plan((0, 16), 4, 4, 4).kind == "halo"
    assert compression_halo_plan((0, 15), 4, 5, 3).halo_rows.tolist() == [0, 1, 2]
    assert compression_halo_plan((0, 15), 4, 5, 3, overlap=True).halo_rows.tolist() == [0, 5, 6]


# definitions, on packs of any shape


@pytest.mark.rule("COMPRESS-1", "COMPRESS-2")
@given(cases())
def test_offsets_count_keys_by_document_and_by_the_rank_of_their_last_token(case):
    offsets = compressed_document_offsets(case.documents, case.ratio)
    assert offsets.tolist() == loops.document_offsets(case.boundaries, case.ratio)
    owners = loops.key_owners(case.boundaries, case.ratio, case.local)
    found = compressed_owner_offsets(case.documents, case.ratio, case.local)
    assert found.tolist() == loops.owner_offsets(owners, case.size)
    assert (
        found.tolist() == document_prefix_plan(case.documents, case.local, case.size, case.ratio).owner_offsets.tolist()
    )


@pytest.mark.rule("COMPRESS-3")
@given(planned())
def test_every_whole_block_is_compressed_once_and_a_tail_never(case):
    made = [tuple(rows[-case.ratio :]) for plan in case.plans for rows in rows_of_blocks(plan)]
    assert made == [key for _, key in loops.all_keys(case.boundaries, case.ratio)]
    owners = compressed_owner_offsets(case.documents, case.ratio, case.local)
    assert [plan.num_blocks for plan in case.plans] == np.diff(owners).tolist()


@pytest.mark.rule("COMPRESS-4", "COMPRESS-5")
@given(planned())
def test_the_rows_of_a_block_are_found_in_what_the_halo_brings(case):
    plans = case.plans
    shards = list(np.arange(case.documents.total).reshape(case.size, -1))
    banks = simulate_exchange([plan.halo.exchange for plan in plans], shards, fill=-1)
    for rank, (plan, bank) in enumerate(zip(plans, banks, strict=True)):
        got = np.where(plan.block_rows < 0, -1, bank[plan.block_rows]).tolist()
        nothing = (-1,) * case.ratio
        expected = [list((before or nothing) + key if case.overlap else key) for key, before, _, _ in case.blocks(rank)]
        assert got == expected
        assert plan.block_rows.tolist() == loops.block_rows(case.boundaries, case.ratio, case.local, rank, case.overlap)
        assert plan.block_rows.dtype == np.int64
        assert plan.block_rows.shape == (plan.num_blocks, plan.width)
        assert not plan.block_rows.flags.writeable


@pytest.mark.rule("COMPRESS-5")
@given(planned().filter(lambda case: case.overlap))
def test_the_first_half_is_the_block_before_in_the_document_and_the_first_block_has_none(case):
    for plan in case.plans:
        halves = np.array(rows_of_blocks(plan), dtype=np.int64).reshape(-1, 2, case.ratio)
        for (before, block), position in zip(halves.tolist(), plan.block_positions.tolist(), strict=True):
            assert before == ([row - case.ratio for row in block] if position else [-1] * case.ratio)


@pytest.mark.rule("COMPRESS-6")
@given(cases())
def test_a_halo_is_what_the_blocks_need_short_and_inside_one_document(case):
    plan = compression_halo_plan(case.documents, case.ratio, case.local, case.size, case.overlap)
    documents = loops.documents_of(case.boundaries)
    starts = [
        loops.halo_start(case.boundaries, case.ratio, case.local, rank, case.overlap) for rank in range(case.size)
    ]
    assert plan.bank_starts.tolist() == starts
    most = 2 * case.ratio - 1 if case.overlap else case.ratio - 1
    for rank, start in enumerate(starts):
        first = rank * case.local
        assert plan.halo_rows[rank] <= most
        assert {documents[row] for row in range(start, first)} <= {documents[first]}


@pytest.mark.rule("COMPRESS-6")
@pytest.mark.parametrize("ratio", range(2, 7))
def test_the_longest_halos_are_reached(ratio):
    boundaries, local = (0, 2 * ratio, 4 * ratio - 2), 2 * ratio - 1
    assert compression_halo_plan(boundaries, ratio, local, 2).halo_rows[1] == ratio - 1
    assert compression_halo_plan(boundaries, ratio, local, 2, overlap=True).halo_rows[1] == 2 * ratio - 1


@pytest.mark.rule("COMPRESS-6")
@given(cases(max_size=5))
def test_the_exchanges_of_all_halos_keep_every_law(case):
    plan = compression_halo_plan(case.documents, case.ratio, case.local, case.size, case.overlap)
    exchanges = [bank_route(plan, rank).exchange for rank in range(case.size)]
    laws.all_laws(exchanges)
    if loops.needs_plan(case.boundaries, case.ratio, case.local, case.overlap):
        assert [part.halo.exchange for part in case.plans] == exchanges


@pytest.mark.rule("COMPRESS-7")
@given(cases())
def test_there_is_no_plan_exactly_where_shards_cut_into_the_blocks_themselves(case):
    needed = loops.needs_plan(case.boundaries, case.ratio, case.local, case.overlap)
    assert [plan is not None for plan in case.plans] == [needed] * case.size


@pytest.mark.rule("COMPRESS-7")
@pytest.mark.parametrize(
    ("boundaries", "ratio", "local", "size", "overlap", "needed"),
    [
        (PACK, 1, 4, 4, False, False),
        (PACK, 1, 4, 4, True, False),
        ((0, 8, 16), 4, 4, 4, False, False),
        ((0, 8, 16), 4, 4, 4, True, True),
        ((0, 8, 16), 2, 4, 4, False, False),
        ((0, 8, 16), 8, 4, 4, False, True),  # a block is longer than a shard
        ((0, 6, 16), 4, 4, 4, False, True),  # a document ends inside a block
        ((0, 10), 4, 10, 1, False, True),  # the last one has a tail
        ((0, 12), 4, 6, 2, False, True),  # a block straddles the shard edge
        ((0, 12), 4, 12, 1, False, False),
        ((0, 12), 4, 12, 1, True, True),
    ],
)
def test_worked_plans_that_are_not_needed(boundaries, ratio, local, size, overlap, needed):
    for plan in plans_of(boundaries, ratio, local, size, overlap):
        assert (plan is not None) == needed


@pytest.mark.rule("COMPRESS-8")
@given(planned())
def test_max_blocks_is_the_most_blocks_of_any_rank_on_every_rank(case):
    most = max(len(case.blocks(rank)) for rank in range(case.size))
    assert [plan.max_blocks for plan in case.plans] == [most] * case.size
    assert [plan.num_blocks for plan in case.plans] == [len(case.blocks(rank)) for rank in range(case.size)]


@pytest.mark.rule("COMPRESS-9")
@given(planned())
def test_a_block_has_the_in_document_position_of_its_first_token_and_its_document(case):
    for rank, plan in enumerate(case.plans):
        assert plan.block_positions.tolist() == [position for _, _, position, _ in case.blocks(rank)]
        assert plan.block_documents.tolist() == [document for _, _, _, document in case.blocks(rank)]
        for numbers in (plan.block_positions, plan.block_documents):
            assert numbers.dtype == np.int64
            assert not numbers.flags.writeable


@pytest.mark.rule("COMPRESS-9")
@given(planned(), st.sampled_from([np.float16, np.float32, np.float64, np.int32]), st.sampled_from([(), (1,), (2, 3)]))
def test_rotary_rows_are_those_of_the_positions_in_their_own_precision(case, dtype, leading):
    longest = int(case.documents.lengths.max())
    table = np.arange(np.prod((*leading, longest, 2)), dtype=np.float64).reshape(*leading, longest, 2)
    cos, sin = table.astype(dtype), (-table).astype(dtype)
    for rank, plan in enumerate(case.plans):
        got_cos, got_sin = compressed_positions(plan, cos, sin)
        assert got_cos.dtype == got_sin.dtype == dtype
        assert got_cos.shape == got_sin.shape == (*leading, plan.num_blocks, 2)
        for nth, (_, _, position, _) in enumerate(case.blocks(rank)):
            assert np.array_equal(got_cos[..., nth, :], cos[..., position, :])
            assert np.array_equal(got_sin[..., nth, :], sin[..., position, :])


@pytest.mark.rule("COMPRESS-2", "COMPRESS-4")
@given(cases(), st.data())
def test_boundaries_as_list_array_and_documents_give_equal_plans(case, data):
    rank = data.draw(st.integers(0, case.size - 1))
    ends = case.boundaries
    forms = [ends, tuple(ends), np.array(ends), np.array(ends, dtype=np.int32), case.documents]
    plans = [document_compression_plan(form, case.ratio, case.local, case.size, rank, case.overlap) for form in forms]
    assert all(plan == plans[0] for plan in plans)
    assert len({plan if plan is None else plan.digest for plan in plans}) == 1
    halos = [compression_halo_plan(form, case.ratio, case.local, case.size, case.overlap) for form in forms]
    assert len({halo.digest for halo in halos}) == 1
    for offsets in (
        [compressed_document_offsets(form, case.ratio) for form in forms],
        [compressed_owner_offsets(form, case.ratio, case.local) for form in forms],
    ):
        assert all(np.array_equal(found, offsets[0]) for found in offsets)


@pytest.mark.rule("COMPRESS-4")
@given(planned())
def test_plans_come_back_from_json_and_pickle(case):
    for plan in case.plans:
        for again in (from_json(to_json(plan)), pickle.loads(pickle.dumps(plan))):
            assert type(again) is DocumentCompressionPlan
            assert again == plan
            assert hash(again) == hash(plan)
            assert again.digest == plan.digest
            assert again.block_rows.tolist() == plan.block_rows.tolist()
            assert to_json(again) == to_json(plan)


@pytest.mark.rule("COMPRESS-4", "COMPRESS-5")
def test_other_blocks_have_other_digests():
    plans = [plan for ratio in (2, 3, 4) for overlap in (False, True) for plan in plans_of(PACK, ratio, 4, 4, overlap)]
    assert len({plan.digest for plan in plans}) == len(plans)


@pytest.mark.rule("COMPRESS-1", "COMPRESS-2")
def test_offsets_reach_beyond_32_bits():
    local = 2**40
    assert compressed_document_offsets((0, 5, 4 * local), 4).tolist() == [0, 1, local - 1]
    assert compressed_owner_offsets((0, 4 * local), 4, local).tolist() == [rank * local // 4 for rank in range(5)]
    assert compressed_owner_offsets((0, 4 * local), 2**63 - 1, local).tolist() == [0, 0, 0, 0, 0]
    halo = compression_halo_plan((0, 4 * local), 3, local, 4)
    assert halo.halo_rows.tolist() == [rank * local % 3 for rank in range(4)]


def test_the_package_and_its_part_give_the_same_names():
    for name in hpfun.compression.__all__:
        assert getattr(hpfun, name) is getattr(hpfun.compression, name)
        assert name in hpfun.__all__


# what went wrong in the field


@pytest.mark.rule("COMPRESS-1", "COMPRESS-3")
def test_no_key_has_tokens_of_two_documents():
    # NVIDIA-NeMo/Automodel#2696: (5, 3, 8) at ratio 4 has 1, 0 and 2 keys, not 4
    assert np.diff(compressed_document_offsets(PACK, 4)).tolist() == [1, 0, 2]
    plans = plans_of(PACK, 4, 16, 1)
    assert rows_of_blocks(plans[0]) == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.rule("COMPRESS-2")
def test_no_row_sees_a_key_before_its_rank_has_the_last_token_of_it():
    # vllm-project/tpu-inference#3536: a query saw its own incomplete block
    owners = compressed_owner_offsets(PACK, 4, 4)
    for rank in range(4):
        for segment in indexer_segments(PACK, 4 * rank, 4, 4):
            assert segment.key_stop <= owners[rank + 1]
    last = indexer_segments((0, 8), 4, 3, 4)[0]
    assert (last.visible(2, 4), last.visible(1, 4)) == (1, 1)  # positions 6 and 5: the second block is not whole


@pytest.mark.rule("COMPRESS-2", "COMPRESS-3")
@pytest.mark.parametrize(("local", "size"), [(1, 24), (2, 12), (3, 8), (4, 6), (6, 4), (8, 3), (12, 2), (24, 1)])
def test_a_block_that_straddles_ranks_is_compressed_once_by_the_holder_of_its_last_token(local, size):
    # flagos-ai/Megatron-LM-FL#57: it was compressed twice, or never
    for ratio in (5, 7):
        plans = plans_of((0, 23, 24), ratio, local, size)
        made = {}
        for rank, plan in enumerate(plans):
            for rows in rows_of_blocks(plan):
                assert tuple(rows) not in made
                made[tuple(rows)] = rank
        expected = [tuple(range(first, first + ratio)) for first in range(0, 24 - ratio, ratio)]
        assert sorted(made) == expected
        assert [made[rows] for rows in expected] == [rows[-1] // local for rows in expected]


@pytest.mark.rule("COMPRESS-5", "COMPRESS-6")
def test_overlap_does_not_read_past_the_start_of_a_document():
    # lightseekorg/tokenspeed#1612
    for size in (1, 2, 4, 8, 16):
        for plan in plans_of(PACK, 3, 16 // size, size, overlap=True):
            for rows, position, document in zip(
                rows_of_blocks(plan), plan.block_positions.tolist(), plan.block_documents.tolist(), strict=True
            ):
                if position == 0:
                    assert rows[:3] == [-1, -1, -1]
                assert all(PACK[document] <= row < PACK[document + 1] for row in rows if row >= 0)
    first_of_its_document = document_compression_plan(PACK, 4, 4, 4, 2, overlap=True)
    assert first_of_its_document.halo.global_start == 8
    assert first_of_its_document.block_rows.tolist() == [[-1, -1, -1, -1, 0, 1, 2, 3]]


@pytest.mark.rule("COMPRESS-3", "COMPRESS-8")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("boundaries", "ratio", "counts"),
    [
        (PACK, 4, [1, 0, 1, 1]),
        (PACK, 9, [0, 0, 0, 0]),
        ((0, 1, 3, 8), 6, [0, 0, 0, 0]),
        (tuple(range(9)), 2, [0, 0, 0, 0]),
        ((0, 3, 8), 4, [0, 0, 0, 1]),
    ],
)
def test_ranks_without_a_key_and_packs_without_any_have_plans(boundaries, ratio, counts, overlap):
    plans = plans_of(boundaries, ratio, boundaries[-1] // 4, 4, overlap)
    assert [plan.num_blocks for plan in plans] == counts
    assert {plan.max_blocks for plan in plans} == {max(counts)}
    for plan in plans:
        assert plan.block_rows.shape == (plan.num_blocks, (2 if overlap else 1) * ratio)
    assert len({plan.halo.exchange.required for plan in plans}) == 1
    laws.all_laws([plan.halo.exchange for plan in plans])
    tables = np.zeros((boundaries[-1], 2), dtype=np.float32)
    assert [len(compressed_positions(plan, tables, tables)[0]) for plan in plans] == counts


# bad input


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_ratios_that_are_no_positive_ints_are_refused(bad):
    for ask in (
        lambda: compressed_document_offsets(PACK, bad),
        lambda: compressed_owner_offsets(PACK, bad, 4),
        lambda: compression_halo_plan(PACK, bad, 4, 4),
        lambda: document_compression_plan(PACK, bad, 4, 4, 0),
        lambda: document_compression_plan(PACK, bad, 4, 4, 0, True),
    ):
        with refused("HP-COMPRESS-001") as caught:
            ask()
        assert caught.error.where == "ratio"


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", [0, 1, None, "yes", 1.0, np.bool_(True), []], ids=repr)
def test_an_overlap_that_is_no_bool_is_refused(bad):
    for ask in (
        lambda: compression_halo_plan(PACK, 2, 4, 4, bad),
        lambda: document_compression_plan(PACK, 2, 4, 4, 0, bad),
        lambda: document_compression_plan(PACK, 1, 4, 4, 0, bad),  # no plan is needed, and still
    ):
        with refused("HP-COMPRESS-002") as caught:
            ask()
        assert caught.error.where == "overlap"


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_a_shard_length_of_owner_offsets_that_is_no_positive_int_is_refused(bad):
    with refused("HP-ROUTE-001") as caught:
        compressed_owner_offsets(PACK, 2, bad)
    assert caught.error.where == "local_length"


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("local", [3, 5, 15, 17, 32, 2**62])
def test_owner_offsets_of_shards_that_are_not_whole_are_refused(local):
    with refused("HP-ROUTE-005") as caught:
        compressed_owner_offsets(PACK, 2, local)
    assert caught.error.facts["end"] == 16


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", [[0], [1, 16], [0.0, 16.0], [0, True], "0", None, np.array([[0, 16]])], ids=repr)
def test_offsets_of_boundaries_that_are_none_are_refused(bad):
    for ask in (lambda: compressed_document_offsets(bad, 2), lambda: compressed_owner_offsets(bad, 2, 4)):
        with refused("HP-ROUTE-003"):
            ask()


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", [(0, 5, 5, 16), (0, 8, 5, 16), (0, 0, 16), (0, -16)])
def test_offsets_of_boundaries_that_do_not_rise_are_refused(bad):
    for ask in (lambda: compressed_document_offsets(bad, 2), lambda: compressed_owner_offsets(bad, 2, 4)):
        with refused("HP-ROUTE-004"):
            ask()


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("rank", [4, -1, True, 1.0, None], ids=repr)
def test_a_rank_outside_the_group_is_refused_whether_or_not_a_plan_is_needed(rank):
    for boundaries, ratio in ((PACK, 4), (PACK, 1), ((0, 8, 16), 4)):
        with refused("HP-ROUTE-002"):
            document_compression_plan(boundaries, ratio, 4, 4, rank)


@pytest.mark.rule("COMPRESS-9", "COMPRESS-10")
def test_rotary_tables_that_are_unlike_or_end_before_a_block_are_refused():
    plan = document_compression_plan(PACK, 4, 4, 4, 3)  # one block, at position 4
    table = np.zeros((5, 2), dtype=np.float32)
    assert compressed_positions(plan, table, table)[0].shape == (1, 2)
    for cos, sin in (
        (table[:4], table[:4]),
        (table[:, 0], table[:, 0]),
        (table, table[:, :1]),
        (table, np.zeros((6, 2))),
        (table, table[None]),
        (table, table[:, 0]),
        (table[None, :4], table[None, :4]),
        (np.zeros((9, 4, 2)), np.zeros((9, 4, 2))),
        (np.float32(1), np.float32(1)),
        (None, None),
        (table, None),
    ):
        with refused("HP-COMPRESS-003"):
            compressed_positions(plan, cos, sin)


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize(
    "bad",
    [
        {"halo": None},
        {"ratio": 0},
        {"ratio": 2.0},
        {"ratio": 5},
        {"overlap": 1},
        {"overlap": None},
        {"max_blocks": 0},
        {"max_blocks": -1},
        {"max_blocks": 1.0},
        {"block_positions": [4, 8]},
        {"block_positions": []},
        {"block_positions": [3]},
        {"block_positions": [4.0]},
        {"block_documents": [2, 2]},
        {"block_documents": []},
        {"block_starts": [-1]},
        {"block_starts": [5]},
        {"block_starts": [0]},  # with overlap the block before would start in front of the bank
        {"block_starts": [4, 4], "block_positions": [4, 4], "block_documents": [2, 2], "max_blocks": 2},
    ],
    ids=repr,
)
def test_a_plan_whose_parts_do_not_fit_is_refused(bad):
    plan = document_compression_plan(PACK, 4, 4, 4, 3, overlap=True)
    assert (plan.halo.bank_rows, plan.block_starts.tolist(), plan.block_positions.tolist()) == (8, [4], [4])
    assert attrs.evolve(plan, block_positions=[0], block_starts=[1]).block_rows.tolist() == [[-1] * 4 + [1, 2, 3, 4]]
    with refused("HP-COMPRESS-004"):
        attrs.evolve(plan, **bad)


@pytest.mark.rule("COMPRESS-10")
@pytest.mark.parametrize("bad", [{"block_positions": [-4]}, {"block_documents": [-1]}], ids=repr)
def test_a_plan_with_a_negative_position_or_document_is_refused(bad):
    plan = document_compression_plan(PACK, 4, 4, 4, 3)
    with refused("HP-COMPRESS-004"):
        attrs.evolve(plan, **bad)


@pytest.mark.rule("COMPRESS-10")
def test_a_block_in_front_of_all_rows_is_refused_also_where_its_sum_wraps():
    halo = sliding_window_route((0, 8), 4, 2, 1, 3)
    with refused("HP-COMPRESS-004"):
        DocumentCompressionPlan(halo, 2, True, 1, [-(2**63)], [2], [0])
    with refused("HP-COMPRESS-004"):
        compressed_positions(None, np.ones((4, 2)), np.ones((4, 2)))
