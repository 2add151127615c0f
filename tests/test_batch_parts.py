"""Lengths, labels, loss scales, fields, decoder slices and manifests of a batch."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import explain, from_json, to_json
from hpfun.batch import (
    OMNI_CP_TOKEN_FIELDS,
    BatchManifest,
    BatchTopology,
    DecoderSequenceLayout,
    Entry,
    FieldSpec,
    LossScale,
    batch_view,
    check_fields,
    decoder_layout,
    describe_batch,
    label_counts,
    lengths_from_cu,
    lengths_from_positions,
    loss_scale,
    plan_batch,
    shift_labels,
    token_mask_slice,
    truncate,
)
from hpfun.strategies import batch_manifests, batch_plans, document_lengths, loss_scales, plain_values
from tests.odd_values import NO_INTEGERS, is_count, no_counts
from tests.oracles import batch as loops
from tests.refusals import refused


@pytest.mark.rule("BATCH-6")
@given(document_lengths())
def test_lengths_come_back_from_their_ends(lengths):
    ends = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    assert lengths_from_cu(ends, sum(lengths)) == lengths
    assert lengths_from_cu(np.array(ends, np.int32), sum(lengths)) == lengths


@pytest.mark.rule("BATCH-6")
@pytest.mark.parametrize(
    ("ends", "total", "first", "last"),
    [([1, 8], 8, 1, 8), ([0, 5, 3, 8], 8, 0, 8), ([0, 7], 8, 0, 7), ([0, 9], 8, 0, 9), ([], 0, None, None)],
)
def test_ends_that_do_not_cover_the_tokens_are_refused(ends, total, first, last):
    with refused("HP-BATCH-002") as caught:
        lengths_from_cu(ends, total)
    assert caught.error.facts == {"first": first, "last": last, "sequence_length": total}


@pytest.mark.rule("BATCH-6")
@pytest.mark.parametrize("ends", [None, [0.0, 8.0], "08", [[0, 8]], [0, True]])
def test_what_lists_no_ends_is_refused(ends):
    with refused("HP-BATCH-002"):
        lengths_from_cu(ends, 8)


@pytest.mark.rule("BATCH-10")
@given(document_lengths())
def test_lengths_come_back_from_positions(lengths):
    places = [place for length in lengths for place in range(length)]
    assert lengths_from_positions(places) == tuple(length for length in lengths if length)


@pytest.mark.rule("BATCH-10")
@pytest.mark.parametrize(
    ("positions", "expected"),
    [([0, 1, 2, 0, 0, 1], (3, 1, 2)), ([], ()), ([5, 6, 9, 8], (2, 1, 1)), ([0, 0, 0], (1, 1, 1))],
)
def test_a_document_starts_where_positions_do_not_count_on(positions, expected):
    assert lengths_from_positions(positions) == expected


@pytest.mark.rule("BATCH-10")
def test_positions_of_several_rows_are_refused():
    with refused("HP-BATCH-002") as caught:
        lengths_from_positions(np.zeros((3, 1, 8), np.int64))
    assert caught.error.where == "position_ids"


@pytest.mark.rule("BATCH-43")
@pytest.mark.parametrize(
    ("limit", "expected"),
    [(5, ((5,), ())), (9, ((9,), ((5, 9),))), (12, ((12,), ((5, 9),))), (99, ((12,), ((5, 9),))), (0, ((), ()))],
)
def test_worked_cuts(limit, expected):
    assert truncate((12,), [(5, 9)], limit) == expected


@pytest.mark.rule("BATCH-43")
def test_empty_documents_behind_the_cut_are_left_out_with_the_others():
    assert truncate((4, 0, 8, 0), [], 4) == ((4,), ())
    assert truncate((4, 0, 8, 0), [], 5) == ((4, 0, 1), ())
    assert truncate((4, 0, 8, 0), [], 12) == ((4, 0, 8, 0), ())


@pytest.mark.rule("BATCH-43")
def test_a_cut_inside_a_span_names_the_largest_legal_length():
    with refused("HP-BATCH-006") as caught:
        truncate((12,), [(5, 9)], 7)
    assert caught.error.facts == {"span": (5, 9), "max_length": 7, "largest_legal": 5}
    with refused("HP-BATCH-006") as caught:  # the way out leads into another span
        truncate((12,), [(5, 9), (2, 6)], 7)
    assert caught.error.facts["largest_legal"] == 2


@pytest.mark.rule("BATCH-43")
@given(document_lengths(), st.data())
def test_a_batch_is_cut_as_loops_cut_it(lengths, data):
    total = sum(lengths)
    ends = st.integers(0, total)
    pairs = st.tuples(ends, ends).filter(lambda pair: pair[0] < pair[1])
    spans = data.draw(st.lists(pairs, max_size=3)) if total else []
    limit = data.draw(st.integers(0, total + 3))
    expected = loops.cut(lengths, spans, limit)
    if isinstance(expected, int):
        with refused("HP-BATCH-006") as caught:
            truncate(lengths, spans, limit)
        assert caught.error.facts["largest_legal"] == expected
    else:
        assert truncate(lengths, spans, limit) == expected


@pytest.mark.rule("BATCH-43")
@pytest.mark.parametrize(
    ("lengths", "spans", "limit"),
    [
        ((3, -1), [], 2),
        ((3,), [(1, 4)], 2),
        ((3,), [(1, 1)], 2),
        ((3,), [(-1, 1)], 2),
        ((3,), [(1,)], 2),
        ((3,), 5, 2),
        ((2**62, 2**62), [], 3),
        ((3,), [], -1),
    ],
)
def test_what_is_no_length_and_no_span_is_refused(lengths, spans, limit):
    with refused("HP-BATCH-002"):
        truncate(lengths, spans, limit)


@pytest.mark.rule("BATCH-25")
@given(document_lengths(), st.integers(1, 5), st.integers(-100, 0))
def test_labels_are_shifted_inside_documents(lengths, depth, ignore):
    labels = list(range(7, 7 + sum(lengths)))
    got = shift_labels(labels, lengths, depth=depth, ignore=ignore)
    assert got.tolist() == loops.shifted(labels, lengths, depth, ignore)
    assert got.dtype == np.int64
    assert not got.flags.writeable


@pytest.mark.rule("BATCH-25")
def test_worked_labels():
    labels = [11, 12, 13, 21, 22, 23, 24, 25]
    assert shift_labels(labels, (3, 5)).tolist() == [12, 13, -100, 22, 23, 24, 25, -100]
    assert shift_labels(labels, (3, 5), depth=2).tolist() == [13, -100, -100, 23, 24, 25, -100, -100]
    assert shift_labels([], ()).tolist() == []
    # the label of a shard's last row lies on the next shard: shifting after the cut loses it
    whole = shift_labels(range(1, 9), (8,))
    assert whole[:4].tolist() == [2, 3, 4, 5]
    assert shift_labels(range(1, 5), (4,)).tolist() == [2, 3, 4, -100]


@pytest.mark.rule("BATCH-25")
@pytest.mark.parametrize("labels", [range(4), range(9), [0.5] * 8, [[1] * 8]])
def test_labels_of_a_shard_or_of_no_token_are_refused(labels):
    with refused("HP-BATCH-003") as caught:
        shift_labels(labels, (3, 5))
    assert caught.error.where == "labels"
    with refused("HP-BATCH-002"):
        shift_labels(range(8), (9, -1))
    with refused("HP-BATCH-003"):
        shift_labels(range(8), (3, 5), ignore=2**70)


@pytest.mark.rule("BATCH-30")
@pytest.mark.parametrize("depth", [0, -1, True, 1.0])
def test_a_depth_below_one_is_refused(depth):
    with refused("HP-BATCH-012"):
        shift_labels(range(8), (8,), depth=depth)
    with refused("HP-BATCH-012"):
        label_counts(plan_batch((8,), BatchTopology(2)), depth)


@pytest.mark.rule("BATCH-28", "BATCH-29")
@pytest.mark.parametrize(
    ("sums", "counts", "expected", "mean_of_means"),
    [([6, 4], [3, 1], 2.5, 3.0), ([1, 0, 0, 0], [1, 0, 0, 0], 1.0, 0.25), ([0, 0], [0, 0], 0.0, 0.0)],
)
def test_worked_losses(sums, counts, expected, mean_of_means):
    scale = loss_scale(counts, reduction="sum", group_size=len(counts))
    assert sum(part * scale.factor / scale.divisor for part in sums) == expected
    averaged = loss_scale(counts, reduction="mean", group_size=len(counts))
    parts = [part * averaged.factor / averaged.divisor for part in sums]
    assert sum(parts) / len(parts) == expected
    means = [part / max(count, 1) for part, count in zip(sums, counts, strict=True)]
    assert sum(means) / len(means) == mean_of_means


@pytest.mark.rule("BATCH-28", "BATCH-29")
@given(st.lists(st.lists(st.integers(0, 50), max_size=5), min_size=1, max_size=5), st.randoms())
def test_the_loss_does_not_depend_on_how_labels_are_spread(parts, random):
    losses = [loss for part in parts for loss in part]
    spread = [[] for _ in parts]
    for loss in losses:
        random.choice(spread).append(loss)
    for held in (parts, spread):
        for reduction in ("sum", "mean"):
            scale = loss_scale(list(map(len, held)), reduction=reduction, group_size=len(held))
            total = sum(sum(part) * scale.factor for part in held) / scale.divisor
            total = total / len(held) if reduction == "mean" else total
            assert total == pytest.approx(sum(losses) / max(len(losses), 1))


@pytest.mark.rule("BATCH-30")
@given(
    st.lists(st.integers(0, 9), max_size=4)
    | st.lists(st.integers(-1, 9) | NO_INTEGERS, max_size=4)
    | NO_INTEGERS.filter(lambda value: type(value) is not list),
    st.none() | st.integers(1, 4) | no_counts(1),
    st.sampled_from(("sum", "mean", "mean", "Sum", "max", None, 1, ["sum"])) | st.text(max_size=5),
)
def test_counts_are_one_for_each_rank_and_reductions_two(counts, size, reduction):
    ranks = len(counts) if size is None and isinstance(counts, list) else size
    fits = {
        "valid_by_rank": isinstance(counts, list) and all(is_count(one, 0) for one in counts),
        "group_size": is_count(ranks, 1),
        "reduction": type(reduction) is str and reduction in ("sum", "mean"),
    }
    fits["valid_by_rank"] &= not fits["group_size"] or (isinstance(counts, list) and len(counts) == ranks)
    wrong = [name for name, fit in fits.items() if not fit]
    if not wrong:
        scale = loss_scale(counts, reduction=reduction, group_size=ranks)
        assert (scale.valid_by_rank.tolist(), scale.total, scale.divisor) == (counts, sum(counts), max(sum(counts), 1))
        assert scale.factor == (ranks if reduction == "mean" else 1)
        return
    with refused("HP-BATCH-012") as caught:
        loss_scale(counts, reduction=reduction, group_size=ranks)
    assert caught.error.where in wrong
    if wrong == ["reduction"]:
        assert caught.error.facts == {"counts": tuple(counts), "reduction": repr(reduction)[:60]}


@pytest.mark.rule("BATCH-30")
@given(
    st.lists(st.integers(-2, 5), min_size=1, max_size=4), *[st.sampled_from((-1, 0, 0, 0, 1))] * 2, st.integers(0, 4)
)
def test_a_scale_is_that_of_its_counts(counts, more, above, factor):
    total = sum(counts) + more
    divisor = max(sum(counts), 1) + above
    parts = {"valid_by_rank": counts, "total": total, "divisor": divisor, "factor": factor}
    if min(counts) >= 0 == more == above and factor in (1, len(counts)):
        assert LossScale(**parts) == loss_scale(
            counts, reduction="sum" if factor == 1 else "mean", group_size=len(counts)
        )
    else:
        with refused("HP-BATCH-012"):
            LossScale(**parts)


@pytest.mark.rule("BATCH-30")
@given(batch_plans(), st.integers(1, 30) | no_counts(1))
def test_a_depth_is_a_count_of_tokens(plan, depth):
    labels = range(plan.num_tokens)
    if is_count(depth, 1):
        assert shift_labels(labels, plan.lengths, depth=depth, ignore=-1).tolist().count(-1) == sum(
            min(depth, length) for length in plan.lengths.tolist()
        )
        assert label_counts(plan, depth).sum() == sum(max(length - depth, 0) for length in plan.lengths.tolist())
        return
    for call in (lambda: shift_labels(labels, plan.lengths, depth=depth), lambda: label_counts(plan, depth)):
        with refused("HP-BATCH-012") as caught:
            call()
        assert caught.error.where == "depth"


@pytest.mark.rule("BATCH-30")
@pytest.mark.parametrize("counts", [[3], [3, 1, 0], [3, -1], [3, 1.0], [3, True], None, []])
def test_counts_that_are_none_are_refused(counts):
    with refused("HP-BATCH-012"):
        loss_scale(counts, reduction="sum", group_size=2)


@pytest.mark.rule("BATCH-30")
def test_another_reduction_or_group_is_refused():
    with refused("HP-BATCH-012") as caught:
        loss_scale([3, 1], reduction="max", group_size=2)
    assert caught.error.where == "reduction"
    assert caught.error.facts["counts"] == (3, 1)
    for size in (0, 2.0):
        with refused("HP-BATCH-012"):
            loss_scale([3, 1], reduction="sum", group_size=size)
    for total, divisor, factor in ((3, 3, 1), (4, 3, 1), (4, 0, 1), (4, 4, 7)):
        with refused("HP-BATCH-012"):
            LossScale([3, 1], total, divisor, factor)
    with refused("HP-BATCH-012"):
        LossScale([-1, 3], 2, 2, 1)
    with refused("HP-BATCH-012"):
        loss_scale([3, 1], reduction=np.array(["sum", "mean"]), group_size=2)
    with refused("HP-BATCH-012") as caught:
        loss_scale([0] * 69 + [-1], reduction="sum", group_size=70)
    assert "-1" in str(caught.error)


@given(loss_scales())
def test_a_scale_divides_by_one_where_nothing_counts(scale):
    assert scale.divisor == max(1, scale.total) == max(1, int(scale.valid_by_rank.sum()))
    assert scale.factor in (1, len(scale.valid_by_rank))


@pytest.mark.rule("BATCH-11")
def test_fields_that_do_not_fit_are_all_named():
    shapes = {"input_ids": (8,), "labels": (1, 7), "position_ids": (4, 1, 8), "loss_mask": (1, 8)}
    with refused("HP-BATCH-003") as caught:
        check_fields(OMNI_CP_TOKEN_FIELDS, shapes, 8)
    assert caught.error.facts == {"fields": ("input_ids", "labels"), "actual": ((8,), (1, 7)), "expected": 8}
    with refused("HP-BATCH-003") as caught:
        check_fields(OMNI_CP_TOKEN_FIELDS, {}, 8)
    assert caught.error.facts["fields"] == ("input_ids",)
    for shape in ((2, 8), (1, 9), (1, 8, 1), ()):
        with refused("HP-BATCH-003"):
            check_fields(OMNI_CP_TOKEN_FIELDS, {"input_ids": shape}, 8)
    check_fields((FieldSpec("x", -1), FieldSpec("y", 0)), {"x": (2, 8), "y": (8, 3)}, 8)
    for shape in ((), (8, 1), 8):
        with refused("HP-BATCH-003"):
            check_fields((FieldSpec("x", -1),), {"x": shape}, 8)


@pytest.mark.rule("BATCH-12")
def test_the_default_fields_pad_with_what_counts_nowhere():
    assert {spec.name: (spec.sequence_dim, spec.pad, spec.required) for spec in OMNI_CP_TOKEN_FIELDS} == {
        "input_ids": (1, 0, True),
        "labels": (1, -100, False),
        "loss_mask": (1, 0, False),
        "attention_mask": (1, 0, False),
        "mm_token_type_ids": (1, 0, False),
        "loss_weights": (1, 0.0, False),
        "visual_pos_masks": (1, False, False),
        "position_ids": (-1, "position", False),
    }
    assert FieldSpec("mine", 1).pad == 0
    assert [type(FieldSpec("x", 1, pad).pad) for pad in (np.int64(3), np.float32(0.5), np.bool_(1))] == [
        int,
        float,
        bool,
    ]
    for bad in (
        {"pad": "zero"},
        {"pad": None},
        {"pad": np.array([1, 2])},
        {"pad": Fraction(1, 2)},
        {"sequence_dim": 1.0},
        {"name": 3},
        {"required": 1},
    ):
        with refused("HP-BATCH-003"):
            FieldSpec(**({"name": "mine", "sequence_dim": 1} | bad))


@pytest.mark.rule("BATCH-31")
@given(batch_plans(), st.data())
def test_a_layout_from_sizes_is_that_of_the_plan(plan, data):
    topology = plan.topology
    cp_rank = data.draw(st.integers(0, topology.cp_size - 1))
    tp_rank = data.draw(st.integers(0, topology.tp_size - 1))
    layout = decoder_layout(plan, cp_rank, tp_rank)
    assert layout.num_rows == plan.local_length // topology.row_parts
    start, stop = layout.cp_local_start, layout.cp_local_stop
    positions = [at for first, last in layout.intervals for at in range(first, last)]
    assert positions == batch_view(plan, cp_rank).positions.tolist()[start:stop]
    if plan.layout == "contiguous":
        assert (layout.global_start, layout.global_stop) == (positions[0], positions[-1] + 1)
    else:
        assert layout.global_start is None
        assert layout.global_stop is None
    assert from_json(to_json(layout)) == layout
    layout.check_rows(stop - start, whole_shard=False, where="hidden")
    layout.check_rows(plan.local_length, whole_shard=True, where="tensor")


SIZES = {"cp_rank": 1, "cp_size": 2, "cp_local_length": 4, "tp_rank": 1, "tp_size": 2, "sequence_parallel": True}


@pytest.mark.rule("BATCH-31")
@pytest.mark.parametrize(
    "bad",
    [
        {"cp_rank": 2},
        {"cp_rank": -1},
        {"tp_rank": 2},
        {"tp_size": 0},
        {"cp_size": True},
        {"cp_local_length": 0},
        {"cp_local_length": 5},
        {"sequence_parallel": 1},
        {"shard": ((0, 3),)},
        {"shard": ((3, 3), (4, 8))},
        {"shard": ((-4, 0),)},
        {"shard": ()},
        {"shard": ((100, 104),)},
        {"shard": ((0, 2), (0, 2))},
        {"shard": ((0, 100),)},
        {"shard": 5},
        {"shard": ((1, 2, 3),)},
    ],
    ids=str,
)
def test_a_layout_that_cannot_be_is_refused(bad):
    assert DecoderSequenceLayout.build(**SIZES).intervals == ((6, 8),)
    with refused("HP-ENCODER-004"):
        DecoderSequenceLayout.build(**(SIZES | bad))


@pytest.mark.rule("BATCH-31")
@pytest.mark.parametrize(
    "bad",
    [
        {"cp_local_start": 0},
        {"cp_local_stop": 3},
        {"global_sequence_length": 9},
        {"global_start": 5},
        {"global_stop": None},
        {"intervals": ((5, 8),)},
        {"intervals": ((4, 5), (6, 7))},
        {"intervals": ((2, 4),), "global_start": 2, "global_stop": 4},
        {"intervals": ((8, 10),), "global_start": None, "global_stop": None},
        {"intervals": ((4, 5), (4, 5)), "global_start": None, "global_stop": None},
        {"global_start": 6.0},
    ],
    ids=str,
)
def test_a_layout_whose_parts_do_not_fit_is_refused(bad):
    layout = DecoderSequenceLayout.build(**SIZES)
    fields = {name: getattr(layout, name) for name in ("global_start", "global_stop", "global_sequence_length")}
    fields |= {"cp_local_start": 2, "cp_local_stop": 4, "intervals": layout.intervals}
    assert DecoderSequenceLayout(**SIZES, **fields) == layout
    with refused("HP-ENCODER-004"):
        DecoderSequenceLayout(**SIZES, **(fields | bad))


@pytest.mark.rule("BATCH-32")
@pytest.mark.parametrize(("extent", "whole"), [(4, False), (2, True), (0, False), (8, True)])
def test_tensors_of_another_length_are_refused(extent, whole):
    layout = DecoderSequenceLayout.build(**SIZES)
    with refused("HP-ENCODER-004") as caught:
        layout.check_rows(extent, whole_shard=whole, where="hidden")
    expected = {"actual": extent, "expected": 4 if whole else 2, "cp_rank": 1, "tp_rank": 1, "interval": ((6, 8),)}
    assert caught.error.facts == expected
    assert caught.error.where == "hidden"


@pytest.mark.rule("BATCH-33")
@given(st.integers(0, 9), st.integers(0, 30), st.integers(1, 4), st.data())
def test_a_mask_is_used_as_it_is_or_cut_for_the_rank(hidden, mask, tp_size, data):
    rank = data.draw(st.integers(0, tp_size - 1))
    assert token_mask_slice(None, hidden, rank, tp_size) is None
    if mask == hidden:
        assert token_mask_slice(mask, hidden, rank, tp_size) == (0, hidden)
    elif mask == hidden * tp_size:
        assert token_mask_slice(mask, hidden, rank, tp_size) == (rank * hidden, rank * hidden + hidden)
    else:
        with refused("HP-BATCH-014") as caught:
            token_mask_slice(mask, hidden, rank, tp_size)
        assert caught.error.facts == {"mask": mask, "hidden": hidden, "tp_size": tp_size}


@pytest.mark.rule("BATCH-33")
def test_worked_masks():
    assert token_mask_slice(8, 4, 1, 2) == (4, 8)
    assert token_mask_slice(4, 4, 1, 2) == (0, 4)
    with refused("HP-BATCH-014"):
        token_mask_slice(6, 4, 1, 2)
    with refused("HP-ENCODER-004"):
        token_mask_slice(8, 4, 2, 2)
    with refused("HP-BATCH-014"):
        token_mask_slice(8.0, 4, 1, 2)


@pytest.mark.rule("BATCH-35")
def test_a_worked_manifest():
    manifest = describe_batch(
        {
            "scalar": ("int32", (), 4),
            "pixel_values": ("bfloat16", (5, 3), 2),
            "mask": ("bool", (1, 6), 1),
            "labels": ("int64", (1, 6), 8),
            "input_ids": ("int64", (1, 6), 8),
            "empty": ("float32", (0, 96), 4),
        }
    )
    assert {entry.name: (entry.offset, entry.nbytes) for entry in manifest.entries} == {
        "empty": (0, 0),
        "input_ids": (0, 48),
        "labels": (48, 48),
        "mask": (96, 6),
        "pixel_values": (112, 30),
        "scalar": (144, 4),
    }
    assert manifest.payload_bytes == 148
    assert manifest.entries[-1].shape == ()
    assert describe_batch({}) == BatchManifest((), 0)


@pytest.mark.rule("BATCH-35")
@given(batch_manifests())
def test_tensors_lie_apart_in_the_order_of_their_names(manifest):
    names = [entry.name for entry in manifest.entries]
    assert names == sorted(set(names))
    end = 0
    for entry in manifest.entries:
        if entry.nbytes:
            assert entry.offset % 16 == 0
            assert 0 <= entry.offset - end < 16
            end = entry.offset + entry.nbytes
    assert manifest.payload_bytes == end


def same(a, b):
    """Equal to the bit and to the type: 1 is neither True nor 1.0, and NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@pytest.mark.rule("BATCH-37")
@given(plain_values())
def test_plain_values_come_back_as_they_were(value):
    manifest = describe_batch({"x": value})
    again = from_json(to_json(manifest))
    assert again == manifest
    assert same(again.entries[0].plain, value)


@pytest.mark.rule("BATCH-37")
@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object(), "x"),
        ({1}, "x"),
        ([1, (2,)], "x[1]"),
        ({"a": {"b": b"raw"}}, "x.a.b"),
        ({"a": [1, {2: 3}]}, "x.a[1]"),
        (np.int64(3), "x"),
        (("int64", (2,)), "x"),
        ((8, (2,), 8), "x"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_cannot_be_described_is_refused(value, where):
    with refused("HP-BATCH-011") as caught:
        describe_batch({"fine": 1, "x": value})
    assert caught.error.where == where
    assert set(caught.error.facts) == {"name", "type"}


@pytest.mark.rule("BATCH-37")
def test_all_that_cannot_be_described_is_told_at_once():
    with refused("HP-BATCH-011") as caught:
        describe_batch({"a": object(), "b": 1, "c": {1}})
    assert [violation.where for violation in caught.error.violations] == ["a", "c"]
    deep = []
    for _ in range(100):
        deep = [deep]
    cyclic = []
    cyclic.append(cyclic)
    for bad in (
        {"x": ("int64", 5, 8)},
        {"x": ("int64", None, 8)},
        {"x": deep},
        {"x": cyclic},
        {1: 2},
        None,
        {"x": ("f", (2**40, 2**40), 8)},
        {"x": ("f", (-1,), 8)},
    ):
        with refused("HP-BATCH-011"):
            describe_batch(bad)


@pytest.mark.rule("BATCH-35")
@pytest.mark.parametrize(
    ("entries", "payload"),
    [
        ([Entry("b", "value"), Entry("a", "value")], 0),
        ([Entry("a", "value"), Entry("a", "value")], 0),
        ([Entry("a", "tensor", "int8", (8,), 0, 8), Entry("b", "tensor", "int8", (8,), 0, 8)], 8),
        ([Entry("a", "tensor", "int8", (8,), 8, 8)], 16),
        ([Entry("a", "tensor", "int8", (8,), 0, 8)], 9),
    ],
)
def test_a_manifest_whose_parts_do_not_fit_is_refused(entries, payload):
    with refused("HP-BATCH-011"):
        BatchManifest(tuple(entries), payload)


@pytest.mark.rule("BATCH-45")
def test_words_say_the_numbers_of_batches():
    plan = plan_batch((3, 0, 5), BatchTopology(2, 2, True), layout="zigzag")
    assert explain(plan).splitlines() == [
        "Batch plan zigzag: 8 tokens in 2 documents over 2 CP ranks x 2 TP ranks.",
        "4 tokens of padding (50.00% more): 12, a multiple of 4.",
        "6 rows a CP rank, 3 a TP rank.",
        "1 document without tokens left out.",
        "  CP rank   real rows    labels      causal pairs   of mean",
        "        0           3         3                 4     0.381",
        "        1           5         3                17     1.619",
    ]
    assert explain(batch_view(plan, 1, 1)).splitlines() == [
        "Rank 1 of 2 CP ranks, zigzag: 6 rows, 5 tokens.",
        "CP rank 1, TP rank 1: rows 3..6 of the shard, of 12 positions",
        "  7..10",
        "  document        rows        keys",
        "         0           2           3",
        "         1           4           6",
    ]
    assert explain(plan_batch((), BatchTopology(1))).splitlines() == [
        "Batch plan contiguous: 0 tokens in 0 documents over 1 CP rank x 1 TP rank.",
        "2 tokens of padding: 2, a multiple of 2.",
        "2 rows a CP rank.",
        "  CP rank   real rows    labels      causal pairs   of mean",
        "        0           0         0                 0         -",
    ]
    assert explain(loss_scale([3, 1], reduction="mean", group_size=2)).splitlines() == [
        "4 labels over 2 ranks, 1 to 3 a rank.",
        "Each rank multiplies the sum of its losses by 2 / 4:",
        "  2 since gradients are averaged over the ranks.",
    ]
    assert explain(loss_scale([0], reduction="sum", group_size=1)).endswith(
        "Each rank divides the sum of its losses by 1."
    )
    assert explain(describe_batch({"a": ("int64", (2, 3), 8), "b": 3})).splitlines() == [
        "1 tensor in 48 bytes, 1 plain value.",
        "  a: int64 [2, 3], 48 bytes from 0",
    ]
    many = plan_batch((40,) * 20, BatchTopology(20), layout="zigzag")
    assert explain(many).splitlines()[-1] == "  ... 4 more CP ranks"
    assert "and 18 more intervals" in explain(decoder_layout(many, 0))
    assert explain(batch_view(many, 0)).splitlines()[-1] == "  ... 4 more documents"


@pytest.mark.rule("BATCH-45")
@given(batch_plans(max_cp=20))
def test_words_fit_a_terminal(plan):
    for value in (plan, batch_view(plan, 0)):
        assert max(map(len, explain(value).splitlines())) <= 80
