"""A batch cut for its ranks in one process: fields, plans, labels, losses, decoder rows and bytes."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun.batch import (
    OMNI_CP_TOKEN_FIELDS,
    BatchTopology,
    FieldSpec,
    decoder_layout,
    loss_scale,
    plan_batch,
)
from hpfun_torch.batch import (
    BatchGroups,
    BatchRule,
    CPBatchSharder,
    OmniParallelBatch,
    TPBatchBroadcaster,
    batch_groups,
    batch_lengths,
    gather_tokens,
    global_loss,
    localize,
    shift_batch_labels,
    valid_by_rank,
    validate_hidden,
)
from hpfun_torch.batch.payload import pack, unpack
from tests.dtypes import DTYPES
from tests.oracles import batch as loops
from tests.plans import numbers
from tests.refusals import refused

LENGTHS = st.lists(st.integers(0, 9), max_size=5)
LAYOUTS = st.sampled_from(("contiguous", "zigzag"))
TOPOLOGIES = st.builds(BatchTopology, st.integers(1, 4), st.integers(1, 3), st.booleans())
CPU = torch.device("cpu")


def batch_of(lengths, dtype=torch.int64):
    """A batch with every kind of listed field, some unlisted ones, and ends of its documents."""
    total = sum(lengths)
    tokens = torch.arange(100, 100 + total)[None]
    return {
        "input_ids": tokens.to(dtype),
        "labels": tokens + 1000,
        "loss_weights": tokens.to(torch.bfloat16) / 4,
        "visual_pos_masks": tokens % 3 == 0,
        "position_ids": torch.stack([torch.tensor(loops.places(lengths), dtype=torch.int64)[None]] * 4),
        "cu_seq_lens": torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32),
        "pixel_values": torch.ones(3, 5),
        "names": ["a", "b"],
    }


def rows_of(lengths, topology, layout, rank):
    return loops.shards(lengths, *numbers(topology), layout)[rank]


@pytest.mark.rule("BATCH-12", "BATCH-13", "BATCH-15")
@given(LENGTHS, TOPOLOGIES, LAYOUTS, st.sampled_from((torch.int64, torch.int32, torch.uint8)), st.booleans())
@example([3, 5], BatchTopology(2), "zigzag", torch.int64, False)
@example([5], BatchTopology(4), "contiguous", torch.int64, True)
@example([], BatchTopology(2), "zigzag", torch.int32, True)
def test_every_field_of_every_rank_is_what_loops_over_tokens_cut(lengths, topology, layout, dtype, ruled):
    plan = plan_batch(lengths, topology, layout=layout)
    batch = batch_of(lengths, dtype)
    before = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    for rank in range(topology.cp_size):
        shard = CPBatchSharder(BatchRule(topology, layout) if ruled else plan, cp_rank=rank).shard(batch)
        assert shard["batch_plan"] == plan
        if topology.cp_size == 1 and plan.padded_length == sum(lengths):
            continue
        rows = rows_of(lengths, topology, layout, rank)
        for name, pad in (("input_ids", 0), ("labels", -100), ("loss_weights", 0.0), ("visual_pos_masks", False)):
            assert shard[name].dtype == batch[name].dtype
            assert shard[name].tolist() == [loops.held(batch[name][0].tolist(), rows, pad)], name
        assert shard["position_ids"].tolist() == [[[row.place for row in rows]]] * 4
        documents, _ = loops.padded(lengths, *numbers(topology), layout)
        assert shard["cu_seq_lens"].tolist() == loops.ends(documents)
        assert shard["cu_seq_lens"].dtype == torch.int32
    for name, value in before.items():  # and the given batch is as it was
        assert torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] is value


@pytest.mark.rule("BATCH-12")
def test_padding_takes_the_place_of_no_real_row_and_unlisted_fields_are_the_same_objects():
    batch = batch_of([3, 5])
    fields = (*OMNI_CP_TOKEN_FIELDS, FieldSpec("hidden", 0, -7))
    batch["hidden"] = torch.arange(16.0).view(8, 2).requires_grad_()
    sharder = CPBatchSharder(plan_batch([3, 5], BatchTopology(2), layout="zigzag"), fields, 0)
    shard = sharder.shard(batch)
    assert shard["input_ids"].tolist() == [[100, 0, 103, 104, 0, 0]]
    assert shard["hidden"].tolist() == [[0, 1], [-7, -7], [6, 7], [8, 9], [-7, -7], [-7, -7]]
    assert shard["pixel_values"] is batch["pixel_values"]
    assert shard["names"] is batch["names"]
    shard["hidden"].sum().backward()
    assert batch["hidden"].grad[:, 0].tolist() == [1, 0, 0, 1, 1, 0, 0, 0]
    shard["position_ids"].add_(9)  # what a user writes into is nobody else's
    assert sharder.shard(batch)["position_ids"][0, 0].tolist() == [0, 3, 0, 1, 6, 7]
    del batch["position_ids"]
    sharder.shard(batch)["position_ids"].add_(9)
    assert sharder.shard(batch)["position_ids"].tolist() == [[0, 3, 0, 1, 6, 7]]


def fits(name, axis, value, total):
    """Whether a part of a batch has a row for each token: tried, not computed."""
    if value is None:
        return name != "input_ids"
    if name == "input_ids":
        return isinstance(value, torch.Tensor) and list(value.shape) == [1, total]
    try:
        return len(value.movedim(axis, 0)) == total
    except (AttributeError, IndexError, TypeError):
        return False


@pytest.mark.rule("BATCH-11")
@given(LENGTHS, TOPOLOGIES, LAYOUTS, st.data())
@example([3, 5], BatchTopology(2), "contiguous", None)
def test_each_field_has_a_row_for_each_token_or_is_named(lengths, topology, layout, data):
    total, batch = sum(lengths), batch_of(lengths)
    batch |= {"loss_mask": torch.ones(1, total), "attention_mask": None, "mine": torch.ones(total, 2)}
    fields = (*OMNI_CP_TOKEN_FIELDS, FieldSpec("mine", -2))
    shapes = st.lists(st.sampled_from((1, total, total + 1)), max_size=3).map(torch.zeros)
    others = shapes | st.just(None) | st.just([0] * total)
    names = st.sampled_from([spec.name for spec in fields])
    batch |= data.draw(st.dictionaries(names, others, max_size=3)) if data else {}
    wrong = [spec.name for spec in fields if not fits(spec.name, spec.sequence_dim, batch.get(spec.name), total)]
    sharder = CPBatchSharder(plan_batch(lengths, topology, layout=layout), fields)
    if not wrong:
        assert sharder.shard(batch).keys() == batch.keys() | {"batch_plan"}
        return
    with refused("HP-BATCH-003") as caught:
        sharder.shard(batch)
    actual = [batch[name] if batch[name] is None else tuple(getattr(batch[name], "shape", ())) for name in wrong]
    assert caught.error.facts == {"fields": tuple(wrong), "actual": tuple(actual), "expected": total}
    assert len(caught.error.violations) == 1


@pytest.mark.rule("BATCH-11")
def test_all_fields_that_do_not_fit_are_named_at_once():
    plan = plan_batch([3, 5], BatchTopology(2))
    batch = batch_of([3, 5]) | {"labels": torch.zeros(1, 7), "attention_mask": torch.zeros(8), "loss_mask": [1] * 8}
    with refused("HP-BATCH-003") as caught:
        CPBatchSharder(plan).shard(batch)
    assert set(caught.error.facts["fields"]) == {"labels", "attention_mask", "loss_mask"}
    assert caught.error.facts["expected"] == 8
    for ids in (torch.zeros(2, 8), torch.zeros(8), torch.zeros(1, 8, 1), None):
        with refused("HP-BATCH-003"):
            CPBatchSharder(plan).shard(batch_of([3, 5]) | {"input_ids": ids})
    assert "labels" not in CPBatchSharder(plan).shard({"input_ids": torch.zeros(1, 8)})
    assert CPBatchSharder(plan).shard(batch_of([3, 5]) | {"labels": None})["labels"] is None


@pytest.mark.rule("BATCH-12")
@pytest.mark.parametrize(
    ("dtype", "pad"),
    [
        *((torch.uint8, -100), (torch.int8, 200), (torch.int64, 0.5), (torch.bool, 2), (torch.int32, float("nan"))),
        *((torch.float16, -1e9), (torch.float32, 1e40), (torch.float64, 10**400), (torch.float8_e4m3fn, float("inf"))),
    ],
)
def test_padding_that_a_dtype_cannot_hold_is_refused(dtype, pad):
    fields = (FieldSpec("input_ids", 1), FieldSpec("mask", 1, pad))
    with refused("HP-BATCH-003") as caught:
        CPBatchSharder(plan_batch([3], BatchTopology(2)), fields).shard(
            {"input_ids": torch.zeros(1, 3), "mask": torch.zeros(1, 3, dtype=dtype)}
        )
    assert caught.error.facts["fields"] == ("mask",)
    with refused("HP-BATCH-003"):
        CPBatchSharder(plan_batch([3], BatchTopology(2)), ("input_ids",))


@pytest.mark.rule("BATCH-12")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_dtype_keep_their_bits_beside_padding(dtype):
    kind = getattr(torch, dtype)
    bits = torch.randint(0, 2 if kind == torch.bool else 256, (5 * kind.itemsize,), dtype=torch.uint8)
    batch = {"input_ids": torch.zeros(1, 5), "mine": bits.view(kind)[None]}
    fields = (FieldSpec("input_ids", 1), FieldSpec("mine", 1, 1))
    shard = CPBatchSharder(plan_batch([5], BatchTopology(2)), fields, cp_rank=1).shard(batch)
    expected = torch.cat((bits.view(kind)[4:], torch.full((3,), 1).to(kind)))
    assert shard["mine"].dtype == kind
    assert shard["mine"][0].view(torch.uint8).tolist() == expected.view(torch.uint8).tolist()


@pytest.mark.rule("BATCH-12")
def test_padding_may_be_without_end_where_the_dtype_is():
    fields = (FieldSpec("input_ids", 1), FieldSpec("mask", 1, float("-inf")))
    batch = {"input_ids": torch.zeros(1, 3), "mask": torch.zeros(1, 3, dtype=torch.float16)}
    shard = CPBatchSharder(plan_batch([3], BatchTopology(2)), fields, cp_rank=1).shard(batch)
    assert shard["mask"].tolist() == [[0.0, float("-inf")]]


@pytest.mark.rule("BATCH-11")
@pytest.mark.parametrize(
    ("fields", "where"),
    [
        (None, "fields"),
        (FieldSpec("input_ids", 1), "fields"),
        ((*OMNI_CP_TOKEN_FIELDS, FieldSpec("labels", 1, -1)), f"fields[{len(OMNI_CP_TOKEN_FIELDS)}]"),
        *(((FieldSpec("labels", 1, pad),), "fields[0]") for pad in (-0.5, float("nan"), "position", True)),
    ],
    ids=str,
)
def test_fields_are_specs_named_once_with_labels_that_are_classes(fields, where):
    plan, batch = plan_batch([3, 5], BatchTopology(2)), batch_of([3, 5])
    for call in (lambda: CPBatchSharder(plan, fields), lambda: shift_batch_labels(batch, plan, fields)):
        with refused("HP-BATCH-003") as caught:
            call()
        assert caught.error.where == where


@pytest.mark.rule("BATCH-25", "BATCH-27")
@pytest.mark.parametrize("pad", [-1, -1.0])
def test_labels_that_count_are_those_unlike_the_padding_of_labels(pad):
    fields = [FieldSpec("labels", 1, pad) if spec.name == "labels" else spec for spec in OMNI_CP_TOKEN_FIELDS]
    labels = torch.tensor([[-1, -1, -1, 13, 14, 15]])
    shifted = shift_batch_labels({"input_ids": labels, "labels": labels}, plan_batch([6], BatchTopology(2)), fields)
    assert shifted["labels"].tolist() == [[-1, -1, 13, 14, 15, -1]]
    assert shifted["loss_scale"].valid_by_rank.tolist() == [2, 1]


@pytest.mark.rule("BATCH-11")
def test_what_is_no_batch_is_refused_and_ids_that_nobody_lists_may_be_none():
    plan = plan_batch([3], BatchTopology(2))
    for batch in (None, [1], 7):
        with refused("HP-BATCH-011"):
            CPBatchSharder(plan).shard(batch)
    sharder = CPBatchSharder(plan, (FieldSpec("inputs_embeds", 1),), cp_rank=1)
    embedded = torch.arange(6.0).view(1, 3, 2)
    for ids in (None, [1, 2, 3]):
        shard = sharder.shard({"input_ids": ids, "inputs_embeds": embedded})
        assert shard["inputs_embeds"].tolist() == [[[4.0, 5.0], [0.0, 0.0]]]
        assert shard["input_ids"] is ids


@pytest.mark.rule("BATCH-14")
@given(LENGTHS, st.integers(1, 6), st.sampled_from((1, 1, 2)), st.integers(1, 3), st.booleans(), LAYOUTS, st.booleans())
@example([3, 5], 1, 1, 1, False, "contiguous", True)
@example([4, 4], 1, 2, 1, False, "contiguous", True)
def test_a_batch_comes_back_in_its_parts_where_one_rank_needs_no_padding(lengths, times, cp, tp, sp, layout, ruled):
    lengths, topology = [length * times for length in lengths], BatchTopology(cp, tp, sp)
    plan, batch = plan_batch(lengths, topology, layout=layout), batch_of(lengths)
    documents, _ = loops.padded(lengths, cp, tp, sp, layout)
    whole = cp == 1 and not any(token < 0 for document in documents for token in document)
    sharder = CPBatchSharder(BatchRule(topology, layout) if ruled else plan)
    shard = sharder.shard(batch)
    assert shard.keys() == batch.keys() | {"batch_plan"}
    assert shard["batch_plan"] == plan
    assert [shard[name] is value for name, value in batch.items()] == [
        whole or name in ("pixel_values", "names") for name in batch
    ]
    with refused("HP-BATCH-003"):  # which is looked at where nothing is cut, too
        sharder.shard(batch | {"labels": torch.zeros(1, sum(lengths) + 1)})


@pytest.mark.rule("BATCH-14")
def test_one_rank_without_padding_gets_the_batch_as_it_is_with_the_plan():
    batch = batch_of([3, 5])
    shard = CPBatchSharder(BatchRule(BatchTopology(1))).shard(batch)
    assert shard.keys() - batch.keys() == {"batch_plan"}
    assert all(shard[name] is value for name, value in batch.items())
    assert CPBatchSharder(BatchRule(BatchTopology(1))).shard(batch_of([3]))["input_ids"].shape == (1, 4)
    assert CPBatchSharder(BatchRule(BatchTopology(2))).shard(batch)["input_ids"].shape == (1, 4)
    with refused("HP-BATCH-003"):
        CPBatchSharder(BatchRule(BatchTopology(1))).shard(batch | {"labels": torch.zeros(1, 7)})


@pytest.mark.rule("BATCH-15")
def test_a_batch_that_another_plan_cut_is_refused_and_one_of_the_same_plan_stays():
    plan, other = (plan_batch([3, 5], BatchTopology(2), layout=layout) for layout in ("contiguous", "zigzag"))
    batch = batch_of([3, 5])
    shard = CPBatchSharder(plan).shard(batch)
    with refused("HP-BATCH-007") as caught:
        CPBatchSharder(other).shard(shard)
    assert caught.error.facts["digests"] == (plan.digest, other.digest)
    again = CPBatchSharder(plan).shard(shard)
    assert again is not shard
    assert all(again[name] is value for name, value in shard.items())
    with refused("HP-BATCH-007"):
        CPBatchSharder(plan).shard(batch | {"batch_plan": "mine"})
    with refused("HP-BATCH-003"):  # a whole batch that says that it was cut
        CPBatchSharder(plan).shard(batch | {"batch_plan": plan})
    with refused("HP-ENCODER-004"):
        CPBatchSharder(plan, cp_rank=2).shard(batch)


@pytest.mark.rule("BATCH-16")
@given(LENGTHS, TOPOLOGIES, LAYOUTS)
@example([16], BatchTopology(4), "zigzag")
def test_positions_that_a_batch_lacks_are_those_of_whole_documents(lengths, topology, layout):
    plan = plan_batch(lengths, topology, layout=layout)
    batch = {"input_ids": torch.zeros(1, sum(lengths), dtype=torch.int64)}
    for rank in range(topology.cp_size):
        shard = CPBatchSharder(plan, cp_rank=rank).shard(batch)
        if topology.cp_size > 1 or plan.padded_length > sum(lengths):
            places = [row.place for row in rows_of(lengths, topology, layout, rank)]
            assert shard["position_ids"].tolist() == [places]
            assert shard["position_ids"].dtype == torch.int64


@pytest.mark.rule("BATCH-16")
def test_multimodal_positions_are_cut_as_they_are():
    positions = torch.randint(0, 50, (3, 1, 8))
    batch = batch_of([3, 5]) | {"position_ids": positions}
    shard = CPBatchSharder(plan_batch([3, 5], BatchTopology(2)), cp_rank=1).shard(batch)
    assert torch.equal(shard["position_ids"], positions[..., 4:])


def test_ends_keep_their_dtype_and_lists_become_int32():
    batch = batch_of([3, 5])
    rule = BatchRule(BatchTopology(4), "zigzag")
    for given_ends, dtype in ((torch.tensor([0, 3, 8]), torch.int64), ([0, 3, 8], torch.int32)):
        shard = CPBatchSharder(rule, cp_rank=3).shard(batch | {"cu_seq_lens": given_ends})
        assert shard["cu_seq_lens"].dtype == dtype
        assert shard["cu_seq_lens"].tolist() == [0, 8, 16]
    del batch["cu_seq_lens"]
    assert "cu_seq_lens" not in CPBatchSharder(rule).shard(batch)


@given(LENGTHS.map(lambda lengths: [length for length in lengths if length]))
def test_a_rule_reads_lengths_from_ends_or_else_from_positions(lengths):
    batch = batch_of(lengths)
    assert batch_lengths(batch) == tuple(lengths)
    del batch["cu_seq_lens"]
    assert batch_lengths(batch) == tuple(lengths)
    batch["position_ids"] = batch["position_ids"][0]
    assert batch_lengths(batch) == tuple(lengths)


def test_a_rule_refuses_what_says_nothing_or_too_little_of_documents():
    batch = batch_of([3, 5])
    with refused("HP-BATCH-002"):
        batch_lengths(batch | {"cu_seq_lens": torch.tensor([0, 3, 7])})
    with refused("HP-BATCH-002"):
        batch_lengths({"input_ids": batch["input_ids"]})
    for positions in (torch.zeros(3, 1, 8), torch.zeros(1, 7), torch.zeros(2, 8), torch.zeros(8), [0]):
        with refused("HP-BATCH-003"):
            batch_lengths({"input_ids": batch["input_ids"], "position_ids": positions})
    with refused("HP-BATCH-003"):
        batch_lengths({})
    with refused("HP-BATCH-013"):
        BatchRule(BatchTopology(2), "zigzag", capacity=8)(batch)
    with refused("HP-BATCH-004"):
        BatchRule(BatchTopology(2), "ring")
    with refused("HP-BATCH-001"):
        BatchRule(BatchTopology(2), alignment=6)


@pytest.mark.rule("BATCH-26")
@given(LENGTHS, TOPOLOGIES, LAYOUTS)
@example([8], BatchTopology(2), "contiguous")
@example([13], BatchTopology(4), "zigzag")
def test_labels_are_shifted_once_and_counted_by_rank(lengths, topology, layout):
    plan = plan_batch(lengths, topology, layout=layout)
    batch = batch_of(lengths)
    batch["labels"][:, ::4] = -100
    expected = loops.shifted(batch["labels"][0].tolist(), lengths)
    once = shift_batch_labels(batch, plan)
    assert once["labels"].tolist() == [expected]
    counts = tuple(loops.counted(expected, rows) for rows in loops.shards(lengths, *numbers(topology), layout))
    assert tuple(once["loss_scale"].valid_by_rank.tolist()) == counts
    assert once["num_items_in_batch"] == max(sum(counts), 1)
    assert valid_by_rank(plan, once["labels"]) == counts
    again = shift_batch_labels({name: once[name] for name in (*batch, "labels_shifted")}, plan)
    assert torch.equal(again["labels"], once["labels"])
    assert again["loss_scale"] == once["loss_scale"]


@pytest.mark.rule("BATCH-26")
def test_labels_of_a_shard_are_not_shifted():
    plan = plan_batch([8], BatchTopology(2))
    batch = {"input_ids": torch.zeros(1, 8), "labels": torch.arange(1, 9)[None], "num_items_in_batch": 70}
    shifted = shift_batch_labels(batch, plan)
    assert CPBatchSharder(plan).shard(shifted)["labels"].tolist() == [[2, 3, 4, 5]]  # not [2, 3, 4, -100]
    assert shifted["num_items_in_batch"] == 70  # counted by the user, over more batches than this
    for shard in (CPBatchSharder(plan).shard(batch), CPBatchSharder(plan).shard(shifted)):
        with refused("HP-BATCH-008"):
            shift_batch_labels(shard, plan)
    with refused("HP-BATCH-003"):
        shift_batch_labels(batch | {"labels": torch.zeros(1, 7)}, plan)
    bare = {"input_ids": batch["input_ids"]}
    assert shift_batch_labels(bare, plan) == bare
    assert shift_batch_labels(batch, plan, (FieldSpec("input_ids", 1),)) == batch


@pytest.mark.rule("BATCH-28")
@pytest.mark.parametrize(
    ("sums", "valid", "loss", "means"),
    [([6.0, 4.0], [3, 1], 2.5, 3.0), ([1.0, 0, 0, 0], [1, 0, 0, 0], 1.0, 0.25), ([0.0, 0.0], [0, 0], 0.0, None)],
)
def test_a_loss_is_divided_once_by_all_labels(sums, valid, loss, means):
    for reduction, size in (("sum", 1), ("mean", len(sums))):
        scale = loss_scale(valid, reduction=reduction, group_size=len(sums))
        parts = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in sums]
        total = sum(global_loss(part, scale) for part in parts) / size
        total.backward()
        assert total.item() == loss
        gradients = [part.grad.item() for part in parts]
        assert gradients == [gradients[0]] * len(parts)
        assert np.isfinite(gradients).all()
    if means is not None:  # the control: a mean of means is something else
        assert sum(part / max(count, 1) for part, count in zip(sums, valid, strict=True)) / len(sums) == means != loss


@pytest.mark.rule("BATCH-32")
@given(LENGTHS, TOPOLOGIES, LAYOUTS, st.integers(-2, 1))
def test_a_tensor_parallel_rank_gets_its_part_of_a_shard_as_a_copy(lengths, topology, layout, dim):
    plan = plan_batch(lengths, topology, layout=layout)
    shard = torch.arange(plan.local_length * 3).view(plan.local_length, 3).movedim(0, dim)
    parts = [localize(decoder_layout(plan, 0, rank), shard, dim) for rank in range(topology.tp_size)]
    for rank, part in enumerate(parts):
        assert part.is_contiguous()
        assert part.untyped_storage().data_ptr() != shard.untyped_storage().data_ptr()
        validate_hidden(decoder_layout(plan, 0, rank), part, dim)
    shared = topology.row_parts > 1
    assert torch.equal(torch.cat(parts, dim), shard) if shared else all(torch.equal(part, shard) for part in parts)


@pytest.mark.rule("BATCH-32")
def test_tensors_of_other_rows_than_planned_are_refused():
    layout = decoder_layout(plan_batch([8], BatchTopology(2, 2, sequence_parallel=True)), 1, 1)
    for rows in (2, 3, 5, 8):
        with refused("HP-ENCODER-004") as caught:
            localize(layout, torch.ones(1, rows))
        assert (caught.error.facts["actual"], caught.error.facts["expected"]) == (rows, 4)
    for rows in (1, 3, 4, 8):
        with refused("HP-ENCODER-004") as caught:
            validate_hidden(layout, torch.ones(1, rows, 6))
        assert (caught.error.facts["actual"], caught.error.facts["expected"]) == (rows, 2)
    validate_hidden(layout, torch.ones(1, 2, 6))
    with refused("HP-ENCODER-004"):
        localize(layout, torch.ones(4), 1)
    with refused("HP-ENCODER-004"):
        validate_hidden(layout, [1, 2])


@pytest.mark.rule("BATCH-40")
@given(st.builds(BatchTopology, st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(1, 2)))
def test_several_ranks_need_a_process_group(topology):
    calls = [(lambda: OmniParallelBatch(topology, BatchGroups(), "cpu"), topology.parent_size)]
    calls.append((lambda: batch_groups(topology), topology.parent_size * topology.dp_size))
    for call, size in calls:
        if size == 1:
            call()
            continue
        with refused("HP-BATCH-009") as caught:
            call()
        assert caught.error.facts == {"cp_size": topology.cp_size, "tp_size": topology.tp_size}


@pytest.mark.rule("BATCH-23", "BATCH-25")
@pytest.mark.parametrize("value", [None, (3, 5), BatchTopology(2)], ids=str)
def test_what_is_no_plan_is_refused(value):
    for call in (
        lambda: gather_tokens(value, torch.ones(1, 8)),
        lambda: shift_batch_labels(batch_of([3, 5]), value),
        lambda: CPBatchSharder(value).shard(batch_of([3, 5])),
    ):
        with refused("HP-BATCH-007"):
            call()


@pytest.mark.rule("BATCH-40")
def test_what_needs_a_group_by_itself_is_refused_without_one():
    with refused("HP-BATCH-009"):
        TPBatchBroadcaster(object())
    with refused("HP-BATCH-009") as caught:
        OmniParallelBatch(BatchTopology(1), None, "cpu")
    assert caught.error.where == "groups"
    with refused("HP-BATCH-013"):  # which no batch fits
        OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", capacity=1)
    with refused("HP-BATCH-009"):
        gather_tokens(plan_batch([8], BatchTopology(2)), torch.ones(1, 4))
    with refused("HP-ENCODER-004"):
        gather_tokens(plan_batch([8], BatchTopology(2)), torch.ones(1, 3))


class Inputs:
    """Adapter of runtime inputs: names that it declares, inputs that it makes."""

    def __init__(self, names, made):
        self.names, self.made = names, made

    def runtime_input_fields(self):
        return self.names

    def build_runtime_inputs(self, batch, context):
        assert batch["batch_plan"] is context.plan
        assert context.view.plan is context.plan
        assert "batch_plan" not in context.whole
        return self.made


NAMES = st.lists(
    st.sampled_from(("images", "routes", "input_ids", "loss_mask", "batch_plan", "labels_shifted")), max_size=3
)


@pytest.mark.rule("BATCH-41")
@given(NAMES | st.just(["images", "routes"]), NAMES | st.just(["routes"]), st.booleans())
def test_a_runtime_input_is_declared_once_and_in_no_batch(names, made, mapped):
    given = dict.fromkeys(made, 7) if mapped else list(made)
    omni = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", Inputs(names, given))
    before = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu").prepare(batch_of([3, 5]))
    wrong = [name for name in names if name in before or names.count(name) > 1]
    wrong = wrong or (["no mapping"] if not mapped else [name for name in given if name in before or name not in names])
    if not wrong:
        got = omni.prepare(batch_of([3, 5]))
        assert got.keys() == before.keys() | set(made)
        assert all(got[name] == 7 for name in made)
        return
    with refused("HP-DATA-001") as caught:
        omni.prepare(batch_of([3, 5]))
    assert caught.error.facts["keys"] == (() if wrong == ["no mapping"] else tuple(dict.fromkeys(wrong)))


@pytest.mark.rule("BATCH-41")
@pytest.mark.parametrize("names", ["images", None, 3])
def test_what_an_adapter_declares_are_names(names):
    omni = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", Inputs(names, {}))
    with refused("HP-DATA-001") as caught:
        omni.prepare(batch_of([3, 5]))
    assert caught.error.facts == {"keys": (), "type": type(names).__name__}


@pytest.mark.rule("BATCH-41")
@pytest.mark.parametrize(
    ("names", "made", "keys"),
    [
        (["input_ids"], {}, ("input_ids",)),
        (["images"], {"pixel_values": 1}, ("pixel_values",)),
        (["images", "batch_plan"], {}, ("batch_plan",)),
        (["num_items_in_batch"], {}, ("num_items_in_batch",)),
        (["images", "routes", "images"], {}, ("images",)),
        (["images"], {"images": 1, "routes": 2}, ("routes",)),
        (["images"], [("images", 1)], ()),
    ],
)
def test_runtime_inputs_have_names_of_their_own_and_one_owner(names, made, keys):
    with refused("HP-DATA-001") as caught:
        OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", Inputs(names, made)).prepare(batch_of([3, 5]))
    assert caught.error.facts["keys"] == keys


@pytest.mark.rule("BATCH-41")
def test_runtime_inputs_join_the_batch():
    omni = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", Inputs(["images"], {"images": 7}), layout="zigzag")
    batch = omni.prepare(batch_of([3, 4]))
    assert batch["images"] == 7
    assert batch["input_ids"].tolist() == [[100, 101, 102, 0, 103, 104, 105, 106]]


@pytest.mark.rule("BATCH-26", "BATCH-34")
def test_one_process_prepares_a_batch_too():
    omni = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", reduction="mean")
    batch = omni.prepare(batch_of([3, 5]))
    assert batch["labels"].tolist() == [[1101, 1102, -100, 1104, 1105, 1106, 1107, -100]]
    assert (batch["num_items_in_batch"], batch["labels_shifted"]) == (6, True)
    del batch["batch_plan"], batch["loss_scale"]
    assert torch.equal(omni.prepare(batch)["labels"], batch["labels"])
    with refused("HP-BATCH-008"):
        omni.prepare(omni.prepare(batch_of([3, 5])))
    with refused("HP-BATCH-010"):
        omni.prepare(None)
    with refused("HP-BATCH-011"):
        omni.prepare([1, 2])
    with refused("HP-BATCH-012"):
        OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu", reduction="max")


@pytest.mark.rule("BATCH-35")
def test_bytes_lie_where_the_manifest_says():
    batch = {
        "pixel_values": torch.zeros(5, 3, dtype=torch.bfloat16),
        "scalar": torch.tensor(7, dtype=torch.int32),
        "mask": torch.ones(1, 6, dtype=torch.bool),
        "input_ids": torch.arange(6)[None],
        "labels": torch.arange(6)[None],
        "empty": torch.zeros(0, 96),
    }
    manifest, payload = pack(batch, CPU)
    places = {entry.name: (entry.offset, entry.nbytes) for entry in manifest.entries}
    expected = {"empty": (0, 0), "input_ids": (0, 48), "labels": (48, 48), "mask": (96, 6), "pixel_values": (112, 30)}
    assert places == expected | {"scalar": (144, 4)}
    assert list(places) == sorted(batch)
    assert payload.shape == (148,)
    assert payload[0:48].view(torch.int64).tolist() == [0, 1, 2, 3, 4, 5]
    assert payload[96:112].tolist() == [1] * 6 + [0] * 10
    got = unpack(manifest, payload, CPU)
    assert got["scalar"].shape == ()
    assert got["empty"].shape == (0, 96)
    assert len({value.untyped_storage().data_ptr() for value in got.values() if value.numel()}) == 5


@pytest.mark.rule("BATCH-37")
@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        ("int64", (1,), 8),
        object(),
        {1: 2},
        [torch.ones(1)],
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        np.ones(2),
        {"a": {"b": b"bytes"}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_named(value):
    with refused("HP-BATCH-011") as caught:
        pack({"input_ids": torch.zeros(1, 2), "odd": value}, CPU)
    assert caught.error.where.startswith("odd")
    assert all(name in caught.error.facts for name in ("name", "type"))


@pytest.mark.rule("BATCH-37")
def test_tensors_that_lie_or_count_in_odd_ways_arrive_as_they_read():
    numbers = torch.tensor([[1 + 2j, 3 - 4j]])
    batch = {
        "conjugated": numbers.conj(),
        "negated": numbers.conj().imag,
        "one": torch.arange(2.0)[1::2],
        "wide": torch.ones(1).expand(3),
    }
    got = unpack(*pack(batch, CPU), CPU)
    assert got["conjugated"].tolist() == [[1 - 2j, 3 + 4j]]
    assert got["negated"].tolist() == [[-2, 4]]
    assert got["one"].tolist() == [1]
    assert got["wide"].tolist() == [1, 1, 1]


@pytest.mark.rule("BATCH-37")
@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
def test_quantized_tensors_cannot_travel():
    with refused("HP-BATCH-011"):
        pack({"odd": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, CPU)
