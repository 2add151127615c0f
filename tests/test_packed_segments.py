"""Segments of rows that stay at home: of a shard, cut shorter, and packed for an operator."""

import pickle

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import (
    CsaTndPlan,
    IndexerSegment,
    PackedDocuments,
    PackedSequence,
    csa_tnd_plan,
    document_prefix_route,
    from_json,
    indexer_route,
    indexer_segments,
    split_segments,
    to_json,
)
from hpfun.strategies import packed_documents
from tests.oracles import sequence as loops
from tests.refusals import refused

PACK = (0, 5, 8, 16)
NO_COUNT = [0, -1, True, False, 2.0, np.float64(2), np.bool_(True), "2", None, (2,), 2**63]


def numbers(segments):
    return [tuple(segment) for segment in segments]


@st.composite
def shards(draw):
    """(documents, first row, rows, ratio) of any stretch of any pack."""
    documents = draw(packed_documents())
    start = draw(st.integers(0, documents.total - 1))
    length = draw(st.integers(1, documents.total - start))
    return documents, start, length, draw(st.integers(1, 5) | st.integers(1, documents.total + 2))


def seen_by(segments, ratio):
    """For every row of the segments, in their order, the keys that it sees."""
    return [
        [segment.key_start + key for key in range(segment.visible(row, ratio))]
        for segment in segments
        for row in range(segment.query_start, segment.query_stop)
    ]


# segments of a shard


@pytest.mark.rule("SEGMENT-4")
@pytest.mark.parametrize(
    ("start", "length", "ratio", "expected"),
    [
        (0, 16, 2, [(0, 5, 0, 2, 1), (5, 8, 2, 3, 1), (8, 16, 3, 7, 0)]),
        (4, 8, 2, [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1), (4, 8, 3, 5, 0)]),
        (4, 4, 2, [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1)]),
        (5, 3, 2, [(0, 3, 2, 3, 1)]),
        (7, 1, 4, [(0, 1, 1, 1, 3)]),
        (12, 4, 4, [(0, 4, 1, 3, 0)]),
        (0, 4, 9, [(0, 4, 0, 0, 4)]),
        (4, 4, 1, [(0, 1, 0, 5, 0), (1, 4, 5, 8, 0)]),
    ],
)
def test_worked_segments_of_a_shard(start, length, ratio, expected):
    segments = indexer_segments(PACK, start, length, ratio)
    assert numbers(segments) == expected
    assert type(segments) is tuple
    assert all(type(segment) is IndexerSegment for segment in segments)
    assert PackedSequence(PACK, start, length, 16).segments(ratio) == segments


@pytest.mark.rule("SEGMENT-4")
@given(shards())
def test_a_shard_has_one_segment_for_every_document_that_meets_it(shard):
    documents, start, length, ratio = shard
    boundaries = documents.boundaries.tolist()
    segments = indexer_segments(documents, start, length, ratio)
    assert numbers(segments) == loops.segments(boundaries, start, length, ratio)
    inside = loops.documents_of(boundaries)[start : start + length]
    assert len(segments) == len(set(inside))
    assert seen_by(segments, ratio) == loops.visible_keys(boundaries, ratio)[start : start + length]


@pytest.mark.rule("SEGMENT-4")
@given(packed_documents(multiple_of=4), st.integers(1, 5), st.integers(0, 3))
def test_the_segments_of_a_shard_are_those_of_a_worker_that_scores_its_own_rows(documents, ratio, rank):
    local = documents.total // 4
    route = indexer_route(documents.lengths, 4, rank, ratio, "none")
    assert indexer_segments(documents, rank * local, local, ratio) == route.segments


@pytest.mark.rule("SEGMENT-4")
@given(packed_documents(multiple_of=3), st.integers(1, 5), st.integers(0, 2))
def test_the_keys_of_a_shard_lie_in_its_prefix_bank(documents, ratio, rank):
    local = documents.total // 3
    route = document_prefix_route(documents, local, 3, rank, ratio)
    for segment in indexer_segments(documents, rank * local, local, ratio):
        if segment.key_start < segment.key_stop:
            assert route.global_start <= segment.key_start <= segment.key_stop <= route.global_stop


@pytest.mark.rule("SEGMENT-4")
@given(shards())
def test_boundaries_as_list_array_and_documents_give_equal_segments(shard):
    documents, start, length, ratio = shard
    ends = documents.boundaries
    forms = [ends.tolist(), tuple(ends.tolist()), ends, ends.astype(np.int32), documents]
    assert len({indexer_segments(form, start, length, ratio) for form in forms}) == 1
    assert indexer_segments(ends, np.int64(start), np.int64(length), np.int64(ratio)) == indexer_segments(
        ends, start, length, ratio
    )
    for segment in indexer_segments(ends, start, length, ratio):
        assert from_json(to_json(segment)) == segment


@pytest.mark.rule("SEGMENT-4")
def test_a_row_does_not_see_the_key_of_its_own_incomplete_block():
    # vllm-project/tpu-inference#3536: visible is (p + 1) // ratio
    (segment,) = indexer_segments((0, 12), 0, 12, 4)
    assert [segment.visible(row, 4) for row in range(12)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


# splits


@pytest.mark.rule("SEGMENT-5")
def test_worked_splits():
    parts = split_segments(((0, 9, 6, 14, 1), (9, 17, 16, 20, 0)), 2, 4)
    assert numbers(parts) == [
        (0, 4, 6, 12, 0),
        (4, 8, 6, 14, 0),
        (8, 9, 6, 14, 1),
        (9, 13, 16, 18, 0),
        (13, 17, 16, 20, 0),
    ]
    assert type(parts) is tuple
    assert all(type(part) is IndexerSegment for part in parts)
    assert numbers(split_segments([(0, 4, 0, 1, 1)], 4, 2)) == [(0, 2, 0, 0, 3), (2, 4, 0, 1, 1)]
    assert split_segments([], 2, 4) == ()


@pytest.mark.rule("SEGMENT-5")
@given(shards(), st.integers(1, 9))
def test_split_segments_show_every_row_what_it_saw_and_none_is_longer(shard, most):
    documents, start, length, ratio = shard
    segments = indexer_segments(documents, start, length, ratio)
    parts = split_segments(segments, ratio, most)
    assert seen_by(parts, ratio) == seen_by(segments, ratio)
    rows = [row for part in parts for row in range(part.query_start, part.query_stop)]
    assert rows == list(range(length))
    assert all(1 <= part.query_stop - part.query_start <= most for part in parts)
    assert {part.residual for part in parts} <= set(range(ratio))
    shown = [loops.segment_sees(tuple(part), row, ratio) for part in parts for row in range(*tuple(part)[:2])]
    assert shown == loops.visible_keys(documents.boundaries.tolist(), ratio)[start : start + length]
    for segment in segments:
        pieces = [part for part in parts if segment.query_start <= part.query_start < segment.query_stop]
        assert len(pieces) == -(-(segment.query_stop - segment.query_start) // most)
        assert {part.key_start for part in pieces} == {segment.key_start}


@pytest.mark.rule("SEGMENT-5")
@given(shards(), st.integers(1, 5))
def test_splits_of_tuples_iterators_and_splits_are_the_same(shard, most):
    documents, start, length, ratio = shard
    segments = indexer_segments(documents, start, length, ratio)
    parts = split_segments(segments, ratio, most)
    assert split_segments(numbers(segments), ratio, most) == parts
    assert split_segments(iter(segments), ratio, most) == parts
    assert split_segments(parts, ratio, most) == parts
    assert split_segments(split_segments(segments, ratio, 3 * most), ratio, most) == parts
    assert split_segments(segments, ratio, length) == segments


# the packed layout


@pytest.mark.rule("SEGMENT-6")
def test_worked_packing():
    plan = csa_tnd_plan(indexer_segments(PACK, 0, 16, 4), 4)  # (0,5,0,1,1) (5,8,1,1,3) (8,16,1,3,0)
    assert plan.query_rows.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15]
    assert plan.key_rows.tolist() == [0, 1, 2]
    assert plan.cu_query_lengths.tolist() == [5, 13]
    assert plan.cu_key_lengths.tolist() == [1, 3]
    assert plan.residuals.tolist() == [1, 0]
    assert plan.key_starts.tolist() == [0, 1]
    assert not plan.covers_queries(16)


@pytest.mark.rule("SEGMENT-6")
def test_a_key_is_packed_once_for_every_segment_that_sees_it():
    plan = csa_tnd_plan(split_segments([(0, 9, 6, 14, 1)], 2, 4), 2)
    assert plan.key_rows.tolist() == [*range(6, 12), *range(6, 14), *range(6, 14)]
    assert plan.cu_key_lengths.tolist() == [6, 14, 22]
    assert plan.cu_query_lengths.tolist() == [4, 8, 9]
    assert plan.covers_queries(9)


@pytest.mark.rule("SEGMENT-6")
@given(shards(), st.integers(1, 9))
def test_the_packed_layout_takes_rows_and_keys_of_segments_with_a_key_end_to_end(shard, most):
    documents, start, length, ratio = shard
    segments = split_segments(indexer_segments(documents, start, length, ratio), ratio, most)
    expected, plan = loops.packed(numbers(segments)), csa_tnd_plan(segments, ratio)
    if not expected["query_rows"]:
        assert plan is None
        return
    for name, field in (
        ("query_rows", plan.query_rows),
        ("key_rows", plan.key_rows),
        ("query_ends", plan.cu_query_lengths),
        ("key_ends", plan.cu_key_lengths),
        ("residuals", plan.residuals),
        ("key_starts", plan.key_starts),
    ):
        assert field.tolist() == expected[name]
        assert field.dtype == np.int64
        assert not field.flags.writeable
    for count in (length - 1, length, length + 1):
        assert plan.covers_queries(count) == (expected["query_rows"] == list(range(count)))
    x = np.arange(3 * length).reshape(length, 3)
    bank = -np.arange(2.0 * documents.total).reshape(-1, 2)
    assert plan.query(x).tolist() == [x[row].tolist() for row in expected["query_rows"]]
    assert plan.key(bank).tolist() == [bank[key].tolist() for key in expected["key_rows"]]
    assert csa_tnd_plan(numbers(segments), ratio) == plan
    assert csa_tnd_plan(iter(segments), ratio) == plan


@pytest.mark.rule("SEGMENT-6")
@pytest.mark.parametrize(
    "segments",
    [
        [],
        [(0, 4, 0, 0, 3)],
        [(0, 4, 2, 2, 0), (4, 5, 2, 2, 1)],
        [(3, 3, 0, 2, 0)],  # keys, and nobody to see them
        indexer_segments(tuple(range(9)), 0, 8, 2),
        indexer_segments(PACK, 0, 16, 9),
    ],
)
def test_without_a_row_that_has_a_key_there_is_no_packed_layout(segments):
    assert csa_tnd_plan(segments, 9) is None


@pytest.mark.rule("SEGMENT-6")
@pytest.mark.parametrize(
    ("segments", "count", "covers"),
    [
        ([(0, 2, 0, 1, 0), (2, 5, 1, 3, 0)], 5, True),
        ([(0, 2, 0, 1, 0), (2, 5, 1, 3, 0)], 4, False),
        ([(0, 2, 0, 1, 0), (2, 5, 1, 3, 0)], 6, False),
        ([(1, 3, 0, 1, 0)], 3, False),
        ([(1, 3, 0, 1, 0)], 2, False),
        ([(2, 5, 0, 1, 0), (0, 2, 1, 2, 0)], 5, False),
        ([(2, 5, 0, 1, 0), (0, 2, 1, 2, 0)], 2, False),
        ([(0, 2, 0, 1, 0), (3, 5, 1, 3, 0)], 5, False),
        ([(0, 3, 0, 1, 0), (2, 5, 1, 3, 0)], 5, False),
        ([(0, 2, 0, 1, 0), (2, 3, 1, 1, 0), (3, 5, 1, 2, 0)], 5, False),
        ([(0, 2, 0, 1, 0), (2, 2, 1, 4, 0), (2, 5, 1, 2, 0)], 5, True),
    ],
)
def test_queries_are_covered_where_the_packed_rows_are_all_rows_in_order(segments, count, covers):
    plan = csa_tnd_plan(segments, 1)
    assert plan.covers_queries(count) is covers
    assert (plan.query_rows.tolist() == list(range(count))) == covers


# ids on the way back


@pytest.mark.rule("SEGMENT-7")
@given(shards(), st.integers(1, 9))
def test_restore_gives_packed_rows_their_ids_and_all_others_nothing(shard, most):
    documents, start, length, ratio = shard
    segments = split_segments(indexer_segments(documents, start, length, ratio), ratio, most)
    plan = csa_tnd_plan(segments, ratio)
    if plan is None:
        return
    packed = loops.packed(numbers(segments))
    count = len(packed["query_rows"])
    ids = np.arange(100, 100 + 2 * count, dtype=np.int32).reshape(count, 2)
    out = np.full((length, 2), 7, dtype=np.int32)
    assert plan.restore(ids, out) is out
    expected = [[-1, -1] for _ in range(length)]
    for nth, row in enumerate(packed["query_rows"]):
        expected[row] = ids[nth].tolist()
    assert out.tolist() == expected
    assert out.dtype == np.int32


@pytest.mark.rule("SEGMENT-7")
@given(shards(), st.integers(1, 9), st.data())
def test_ids_of_a_row_s_own_key_range_become_ids_of_the_bank_and_no_id_stays_none(shard, most, data):
    documents, start, length, ratio = shard
    segments = split_segments(indexer_segments(documents, start, length, ratio), ratio, most)
    plan = csa_tnd_plan(segments, ratio)
    if plan is None:
        return
    firsts = loops.packed(numbers(segments))["firsts"]
    ids = np.array([[data.draw(st.integers(-1, 5)), -1, 0] for _ in firsts], dtype=np.int64)
    before = ids.copy()
    expected = [[i if i == -1 else i + first for i in row] for row, first in zip(ids.tolist(), firsts, strict=True)]
    assert plan.bank_ids(ids).tolist() == expected
    assert np.array_equal(ids, before)


@pytest.mark.rule("SEGMENT-7")
@given(shards(), st.integers(1, 9))
def test_packed_keys_by_their_bank_ids_are_the_keys_that_the_rows_see(shard, most):
    documents, start, length, ratio = shard
    boundaries = documents.boundaries.tolist()
    segments = split_segments(indexer_segments(documents, start, length, ratio), ratio, most)
    seen = loops.visible_keys(boundaries, ratio)[start : start + length]
    plan = csa_tnd_plan(segments, ratio)
    if plan is None:
        assert not any(seen)
        return
    widest = max(len(keys) for keys in seen)
    ids = np.array([[j if j < len(seen[row]) else -1 for j in range(widest)] for row in plan.query_rows.tolist()])
    out = plan.restore(plan.bank_ids(ids.reshape(-1, widest)), np.zeros((length, widest), dtype=np.int64))
    assert [[key for key in row if key >= 0] for row in out.tolist()] == seen


@pytest.mark.rule("SEGMENT-6", "SEGMENT-7")
def test_tensors_are_packed_and_restored_like_arrays():
    torch = pytest.importorskip("torch")
    for segments in ([(0, 2, 0, 1, 0), (2, 3, 1, 1, 1), (3, 6, 1, 3, 0)], [(0, 2, 0, 1, 0), (2, 6, 1, 3, 0)]):
        plan = csa_tnd_plan(segments, 2)
        rows, bank = torch.arange(12, dtype=torch.float16).reshape(6, 2), torch.arange(6.0).reshape(3, 2)
        assert torch.equal(plan.query(rows), rows[torch.tensor(plan.query_rows.tolist())])
        assert torch.equal(plan.key(bank), bank[torch.tensor(plan.key_rows.tolist())])
        assert plan.query(rows).dtype == torch.float16
        ids = torch.arange(2 * len(plan.query_rows), dtype=torch.int32).reshape(-1, 2)
        out = torch.full((6, 2), 9, dtype=torch.int32)
        assert plan.restore(ids, out) is out
        assert out.tolist() == plan.restore(ids.numpy(), np.full((6, 2), 9)).tolist()


@pytest.mark.rule("SEGMENT-6")
@given(shards())
def test_packed_plans_come_back_from_json_and_pickle(shard):
    documents, start, length, ratio = shard
    plan = csa_tnd_plan(indexer_segments(documents, start, length, ratio), ratio)
    if plan is None:
        return
    for again in (from_json(to_json(plan)), pickle.loads(pickle.dumps(plan))):
        assert type(again) is CsaTndPlan
        assert again == plan
        assert again.digest == plan.digest
        assert hash(again) == hash(plan)
        assert again.query_rows.tolist() == plan.query_rows.tolist()
        assert to_json(again) == to_json(plan)


# the snapshot


@pytest.mark.rule("SEQ-11")
def test_a_packed_sequence_keeps_the_boundaries_that_it_was_given():
    ends = np.array(PACK)
    view = ends[:]
    shard = PackedSequence(view, 4, 4, 16)
    before = shard.digest
    ends[1] = 4
    assert shard.cu_seq_lens.tolist() == list(PACK)
    assert shard.documents == PackedDocuments((5, 3, 8))
    assert numbers(shard.segments(2)) == [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1)]
    assert shard.digest == before == PackedSequence(PACK, 4, 4, 16).digest
    assert shard.cu_seq_lens.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        shard.cu_seq_lens[1] = 4
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        shard.local_start = 0


@pytest.mark.rule("SEQ-11")
def test_a_packed_sequence_keeps_the_boundaries_of_a_tensor_too():
    torch = pytest.importorskip("torch")
    for dtype in (torch.int32, torch.int64):
        ends = torch.tensor(PACK, dtype=dtype)
        shard = PackedSequence(ends, 4, 4, 16)
        ends.zero_()
        assert shard.cu_seq_lens.tolist() == list(PACK)
        assert shard == PackedSequence(list(PACK), 4, 4, 16)


@pytest.mark.rule("SEQ-11")
@given(shards())
def test_packed_sequences_are_equal_by_content_and_come_back_from_json_and_pickle(shard):
    documents, start, length, ratio = shard
    ends = documents.boundaries
    forms = [ends.tolist(), tuple(ends.tolist()), ends, ends.astype(np.int32), documents]
    values = [PackedSequence(form, start, length, documents.total) for form in forms]
    values.append(PackedSequence(ends, np.int64(start), np.int32(length), np.int64(documents.total)))
    assert len({value.digest for value in values}) == 1
    value = values[0]
    assert value.documents == documents
    assert value.segments(ratio) == indexer_segments(documents, start, length, ratio)
    for again in (from_json(to_json(value)), pickle.loads(pickle.dumps(value))):
        assert again == value
        assert hash(again) == hash(value)
        assert to_json(again) == to_json(value)


# bad input


@pytest.mark.rule("SEQ-10", "SEGMENT-4")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_lengths_ratios_and_limits_that_are_no_positive_ints_are_refused(bad):
    for ask in (
        lambda: indexer_segments(PACK, 0, bad, 2),
        lambda: PackedSequence(PACK, 0, bad, 16),
        lambda: PackedSequence(PACK, 0, 4, bad),
        lambda: split_segments([(0, 4, 0, 2, 0)], 2, bad),
        lambda: split_segments([], 2, bad),
    ):
        with refused("HP-ROUTE-001"):
            ask()
    for ask in (
        lambda: indexer_segments(PACK, 0, 4, bad),
        lambda: PackedSequence(PACK, 0, 4, 16).segments(bad),
        lambda: split_segments([(0, 4, 0, 2, 0)], bad, 4),
        lambda: split_segments([], bad, 4),
        lambda: csa_tnd_plan([(0, 4, 0, 2, 0)], bad),
        lambda: csa_tnd_plan([], bad),
    ):
        with refused("HP-COMPRESS-001") as caught:
            ask()
        assert caught.error.where == "ratio"


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(
    "bad", [(), [0], [5, 16], [0.0, 16.0], [0, True], "0,16", None, 16, np.array([[0, 16]])], ids=repr
)
def test_boundaries_that_are_no_integers_from_0_are_refused(bad):
    for ask in (lambda: indexer_segments(bad, 0, 4, 2), lambda: PackedSequence(bad, 0, 4, 16)):
        with refused("HP-ROUTE-003"):
            ask()


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("bad", [(0, 5, 5, 16), (0, 8, 5, 16), (0, 0, 16), (0, -16)])
def test_boundaries_that_do_not_rise_are_refused(bad):
    for ask in (lambda: indexer_segments(bad, 0, 4, 2), lambda: PackedSequence(bad, 0, 4, 16)):
        with refused("HP-ROUTE-004"):
            ask()


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize(("start", "length"), [(13, 4), (16, 1), (0, 17), (2**62, 2**62), (2**63 - 1, 2**63 - 1)])
def test_a_shard_that_ends_outside_the_pack_is_refused(start, length):
    for ask in (lambda: indexer_segments(PACK, start, length, 2), lambda: PackedSequence(PACK, start, length, 16)):
        with refused("HP-ROUTE-005"):
            ask()


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("start", [-1, -4, -(2**62)])
def test_a_shard_that_starts_in_front_of_the_pack_is_refused(start):
    for ask in (lambda: indexer_segments(PACK, start, 8, 2), lambda: PackedSequence(PACK, start, 8, 16)):
        with refused("HP-ROUTE-005"):
            ask()


@pytest.mark.rule("SEQ-10")
@pytest.mark.parametrize("start", [True, 0.0, None, "0", np.bool_(False)], ids=repr)
def test_a_first_row_that_is_no_int_is_refused(start):
    for ask in (lambda: indexer_segments(PACK, start, 4, 2), lambda: PackedSequence(PACK, start, 4, 16)):
        with refused("HP-ROUTE-001") as caught:
            ask()
        assert caught.error.where == "local_start"


@pytest.mark.rule("SEQ-10", "SEQ-11")
@pytest.mark.parametrize("total", [15, 17, 4, 2**62])
def test_a_packed_sequence_of_another_global_length_is_refused(total):
    with refused("HP-ROUTE-005") as caught:
        PackedSequence(PACK, 0, 4, total)
    assert caught.error.facts["global_length"] == total


@pytest.mark.rule("SEGMENT-5", "SEGMENT-6")
@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        "abc",
        [None],
        [5],
        ["abcde"],
        [(0, 4, 0, 2)],
        [(0, 4, 0, 2, 0, 0)],
        [(0, 4, 0, 2, True)],
        [(0, 4, 0, 2.0, 0)],
        [(-1, 4, 0, 2, 0)],
        [(0, 4, 0, 2, -1)],
        [(4, 0, 0, 2, 0)],
        [(0, 4, 2, 0, 0)],
        [(0, 4, 0, 2, 0), None],
        (0, 4, 0, 2, 0),
    ],
    ids=repr,
)
def test_what_is_no_segment_is_neither_split_nor_packed(bad):
    for ask in (lambda: split_segments(bad, 2, 4), lambda: csa_tnd_plan(bad, 2)):
        with refused("HP-INDEX-010"):
            ask()


@pytest.mark.rule("SEGMENT-6")
@pytest.mark.parametrize(
    "bad",
    [
        {"query_starts": [0]},
        {"query_starts": [-1, 3]},
        {"query_starts": [2, 3]},
        {"key_starts": [-1, 1]},
        {"key_starts": [1, 1]},
        {"key_stops": [1, 1]},
        {"residuals": [0, -1]},
        {"residuals": [0.0, 0.0]},
        {"query_stops": None},
    ],
    ids=repr,
)
def test_a_packed_layout_whose_parts_do_not_fit_is_refused(bad):
    plan = csa_tnd_plan([(0, 2, 0, 1, 0), (3, 5, 1, 3, 0)], 2)
    assert attrs.evolve(plan, query_starts=[1, 3]).query_rows.tolist() == [1, 3, 4]
    with refused("HP-INDEX-010"):
        attrs.evolve(plan, **bad)
