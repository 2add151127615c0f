"""Batch plans, views and layouts: every token on one rank, in one place, for both layouts."""

import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import PackedDocuments, from_json, simulate_exchange, to_json
from hpfun.batch import (
    BatchTopology,
    batch_figures,
    batch_view,
    causal_work,
    decoder_layout,
    label_counts,
    plan_batch,
    position_rows,
    relayout,
    required_global_alignment,
    restore_index,
)
from hpfun.batch.layouts import LAYOUTS
from hpfun.strategies import batch_plans, batch_requests, batch_views, document_lengths
from tests import laws
from tests.oracles import batch as loops
from tests.refusals import refused

# worked by hand: lengths, cp, layout, then cu_seq_lens, sources per rank, q and kv lengths per rank
WORKED = [
    ((3, 5), 2, "contiguous", [0, 3, 8], [[0, 1, 2, 3], [4, 5, 6, 7]], [([3, 1], [3, 1]), ([4], [5])]),
    (
        (3, 5),
        2,
        "zigzag",
        [0, 4, 12],
        [[0, -1, 3, 4, -1, -1], [1, 2, 5, 6, 7, -1]],
        [([2, 4], [4, 8]), ([2, 4], [3, 6])],
    ),
    ((7,), 2, "zigzag", [0, 8], [[0, 1, 6, -1], [2, 3, 4, 5]], [([4], [8]), ([4], [6])]),
    (
        (5,),
        4,
        "contiguous",
        [0, 5, 8],
        [[0, 1], [2, 3], [4, -1], [-1, -1]],
        [([2], [2]), ([2], [4]), ([1, 1], [5, 1]), ([2], [3])],
    ),
    (
        (4, 0, 6),
        2,
        "contiguous",
        [0, 4, 10, 12],
        [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, -1, -1]],
        [([4, 2], [4, 2]), ([4, 2], [6, 2])],
    ),
    (
        (5, 3, 8),
        4,
        "contiguous",
        [0, 5, 8, 16],
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        [([4], [4]), ([1, 3], [5, 3]), ([4], [4]), ([4], [8])],
    ),
]


def numbers(topology):
    return topology.cp_size, topology.tp_size, topology.sequence_parallel


def check(plan, lengths):
    """Everything of a plan and its views beside the loops."""
    topology, (cp, tp, sp) = plan.topology, numbers(plan.topology)
    documents, dropped = loops.padded(lengths, cp, tp, sp, plan.layout, plan.alignment)
    shards = loops.shards(lengths, cp, tp, sp, plan.layout, plan.alignment)
    assert plan.lengths.tolist() == [length for length in lengths if length]
    assert plan.dropped_documents.tolist() == dropped
    assert plan.padded_lengths.tolist() == list(map(len, documents))
    assert plan.cu_seq_lens.tolist() == [sum(map(len, documents[:at])) for at in range(len(documents) + 1)]
    assert plan.sources.tolist() == [token for document in documents for token in document]
    assert plan.position_ids.tolist() == [place for document in documents for place in range(len(document))]
    assert [shard.spans for shard in plan.shards] == [loops.intervals([row[0] for row in rows]) for rows in shards]
    assert plan.local_length == len(shards[0])
    flat = [row[4] for rows in shards for row in rows]
    assert restore_index(plan).tolist() == [flat.index(token) for token in range(sum(lengths))]
    assert causal_work(plan).tolist() == [sum(row[2] + 1 for row in rows if row[4] >= 0) for rows in shards]
    for rank, rows in enumerate(shards):
        check_rank(plan, rank, rows)
    return topology, shards


def check_rank(plan, rank, rows):
    tp, parts = plan.topology.tp_size, plan.topology.row_parts
    for tp_rank in range(tp):
        view = batch_view(plan, rank, tp_rank)
        part = len(rows) // parts
        start = tp_rank * part if parts > 1 else 0
        own = [row[0] for row in rows][start : start + part]
        assert view.sp_slice == (start, start + part)
        assert view.intervals == decoder_layout(plan, rank, tp_rank).intervals == loops.intervals(own)
    assert view.positions.tolist() == [row[0] for row in rows]
    assert view.position_ids.tolist() == [row[2] for row in rows]
    assert view.sources.tolist() == [row[4] for row in rows]
    assert view.real_rows == sum(row[4] >= 0 for row in rows)
    held = sorted({row[1] for row in rows})
    assert view.documents.tolist() == held
    assert view.q_lengths.tolist() == [sum(row[1] == number for row in rows) for number in held]
    assert view.kv_lengths.tolist() == [1 + max(row[2] for row in rows if row[1] == number) for number in held]


@pytest.mark.rule("BATCH-7", "BATCH-8", "BATCH-9", "BATCH-13", "BATCH-24")
@pytest.mark.parametrize(("lengths", "cp", "layout", "ends", "sources", "keys"), WORKED)
def test_worked_batches(lengths, cp, layout, ends, sources, keys):
    plan = plan_batch(lengths, BatchTopology(cp), layout=layout)
    views = [batch_view(plan, rank) for rank in range(cp)]
    assert plan.cu_seq_lens.tolist() == ends
    assert [view.sources.tolist() for view in views] == sources
    assert [(view.q_lengths.tolist(), view.kv_lengths.tolist()) for view in views] == keys


def test_padding_is_one_document_and_ends_where_others_repeat():
    assert plan_batch(np.diff([0, 8, 16, 16, 16]), BatchTopology(2)).cu_seq_lens.tolist() == [0, 8, 16]
    plan = plan_batch((3,), BatchTopology(8, 2, True))
    assert plan.cu_seq_lens.tolist() == [0, 3, 16]
    zigzag = plan_batch((3,), BatchTopology(8, 2, True), layout="zigzag")
    real = [[token for token in batch_view(zigzag, rank).sources.tolist() if token >= 0] for rank in range(8)]
    assert real == [[0], [1], [2], [], [], [], [], []]


@pytest.mark.rule("BATCH-17", "BATCH-18")
def test_worked_shards():
    plan = plan_batch((4, 12), BatchTopology(2), layout="zigzag")
    assert [shard.spans for shard in plan.shards] == [((0, 1), (3, 7), (13, 16)), ((1, 3), (7, 13))]
    plan = plan_batch((16,), BatchTopology(4), layout="zigzag")
    assert [shard.spans for shard in plan.shards] == [
        ((0, 2), (14, 16)),
        ((2, 4), (12, 14)),
        ((4, 6), (10, 12)),
        ((6, 10),),
    ]
    assert restore_index(plan).tolist() == [0, 1, 4, 5, 8, 9, 12, 13, 14, 15, 10, 11, 6, 7, 2, 3]
    plan = plan_batch((7, 9), BatchTopology(4))
    assert [shard.spans for shard in plan.shards] == [((0, 4),), ((4, 8),), ((8, 12),), ((12, 16),)]


@pytest.mark.rule("BATCH-2")
@pytest.mark.parametrize(
    ("cp", "tp", "sp", "expected"),
    [
        (4, 4, True, 16),
        (4, 2, True, 8),
        (2, 3, True, 12),
        (8, 2, True, 16),
        (1, 4, True, 4),
        (2, 1, True, 4),
        (1, 1, True, 2),
    ],
)
def test_worked_alignments(cp, tp, sp, expected):
    assert required_global_alignment(BatchTopology(cp, tp, sp)) == expected
    assert required_global_alignment(BatchTopology(cp, tp, False)) == 2 * cp


@pytest.mark.rule("BATCH-2")
@pytest.mark.parametrize(("cp", "tp", "sp"), list(product(range(1, 9), range(1, 9), (True, False))))
def test_the_alignment_is_the_least_that_serves_both_layouts(cp, tp, sp):
    assert required_global_alignment(BatchTopology(cp, tp, sp)) == loops.alignment(cp, tp, sp)


def compositions(total):
    if not total:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in compositions(total - first)]


SMALL = [lengths for total in range(9) for lengths in compositions(total)]
EMPTY = [(0,), (0, 0), (0, 3), (2, 0), (1, 0, 2), (0, 1, 0, 0, 4, 0)]


@pytest.mark.rule("BATCH-3", "BATCH-4", "BATCH-7", "BATCH-19", "BATCH-22", "BATCH-24")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("cp", range(1, 5))
def test_all_small_batches_are_laid_out_as_loops_lay_them_out(cp, tp, sp, layout):
    topology = BatchTopology(cp, tp, sp)
    for lengths in SMALL + EMPTY:
        check(plan_batch(lengths, topology, layout=layout), lengths)


@pytest.mark.rule("BATCH-3", "BATCH-4", "BATCH-17", "BATCH-18", "BATCH-19", "BATCH-22", "BATCH-24")
@given(batch_requests())
def test_batches_are_laid_out_as_loops_lay_them_out(request):
    plan = plan_batch(**request)
    _, shards = check(plan, request["lengths"])
    assert plan.local_length % plan.topology.row_parts == 0
    assert plan.padded_length % plan.alignment == 0
    assert sorted(row[0] for rows in shards for row in rows) == list(range(plan.padded_length))


@pytest.mark.rule("BATCH-3")
@given(batch_plans())
def test_the_padded_length_is_the_smallest_multiple_that_fits(plan):
    needed = int((plan.cu_seq_lens[-1] - plan.padding.count) if plan.layout == "contiguous" else 0)
    if plan.layout == "zigzag":
        step = 2 * plan.topology.cp_size
        needed = sum(-(-length // step) * step for length in plan.lengths.tolist())
    assert needed <= plan.padded_length
    assert plan.padded_length - plan.alignment < max(needed, 1)


@pytest.mark.rule("BATCH-8", "BATCH-9")
@given(batch_plans())
def test_padding_is_at_the_end_of_documents_and_in_one_more(plan):
    assert len(plan.padded_lengths) - len(plan.lengths) in (0, 1)
    assert (np.diff(plan.cu_seq_lens) > 0).all()
    own = plan.padded_lengths[: len(plan.lengths)] - plan.lengths
    assert not own.any() if plan.layout == "contiguous" else (own < 2 * plan.topology.cp_size).all()
    if plan.layout == "zigzag":
        assert not (plan.padded_lengths % (2 * plan.topology.cp_size)).any()


@pytest.mark.rule("BATCH-20")
@given(batch_plans())
@example(plan_batch((4, 12), BatchTopology(2), layout="zigzag"))
def test_in_zigzag_all_ranks_have_the_same_causal_work(plan):
    work = causal_work(plan, padding=True)
    assert work.sum() == sum(length * (length + 1) // 2 for length in plan.padded_lengths.tolist())
    if plan.layout == "zigzag":
        assert len(set(work.tolist())) == 1


@pytest.mark.rule("BATCH-20")
def test_worked_causal_work():
    for layout, expected in (("contiguous", [20, 68]), ("zigzag", [44, 44])):
        assert causal_work(plan_batch((4, 12), BatchTopology(2), layout=layout)).tolist() == expected
    assert causal_work(plan_batch((5, 3, 8), BatchTopology(4))).tolist() == [10, 11, 10, 26]
    padded = plan_batch((3, 5), BatchTopology(2), layout="zigzag")
    assert causal_work(padded).tolist() == [4, 17]
    assert causal_work(padded, padding=True).tolist() == [23, 23]
    work = causal_work(plan_batch((1000, 24, 3000, 72), BatchTopology(8)))
    assert round(work.max() / work.mean(), 2) == 1.96


@pytest.mark.rule("BATCH-22")
@given(batch_plans(), st.data())
def test_shards_in_a_row_give_the_batch_back(plan, data):
    batch = np.arange(plan.num_tokens) + 100
    parts = []
    for cp_rank, tp_rank in product(range(plan.topology.cp_size), range(plan.topology.row_parts)):
        view = batch_view(plan, cp_rank, tp_rank)
        start, stop = view.sp_slice
        parts.append(
            np.where(view.sources >= 0, batch[view.sources], -1)[start:stop] if len(batch) else view.sources[start:stop]
        )
    assert np.concatenate(parts)[restore_index(plan)].tolist() == batch.tolist()


@st.composite
def plan_pairs(draw):
    """Two plans of the same documents, of any layouts and topologies."""
    lengths = draw(document_lengths())
    requests = [draw(batch_requests()) | {"lengths": lengths} for _ in range(2)]
    return [plan_batch(**request) for request in requests]


@pytest.mark.rule("BATCH-23")
@given(plan_pairs())
def test_relayout_moves_each_token_to_its_new_row_and_nothing_else(plans):
    before, after = plans
    size = max(plan.topology.cp_size for plan in plans)
    exchanges = [relayout(before, after, rank) for rank in range(size)]
    laws.all_laws(exchanges)

    def shards(plan):
        views = [batch_view(plan, rank).sources for rank in range(plan.topology.cp_size)]
        return views + [np.zeros(0, np.int64)] * (size - len(views))

    moved = simulate_exchange(exchanges, shards(before), fill=-1)
    for got, expected in zip(moved, shards(after), strict=True):
        assert got.tolist() == expected.tolist()
    kept = sum(len(exchange.local_sources) for exchange in exchanges)
    assert kept + sum(len(exchange.send_rows) for exchange in exchanges) == before.num_tokens


@pytest.mark.rule("BATCH-23")
@given(batch_plans())
def test_relayout_to_the_same_plan_moves_nothing(plan):
    for rank in range(plan.topology.cp_size):
        exchange = relayout(plan, plan, rank)
        assert not exchange.required
        assert exchange.local_sources.tolist() == exchange.local_targets.tolist()


@pytest.mark.rule("BATCH-23")
def test_worked_relayouts():
    found = {}
    for lengths in ((8,), (3, 5)):
        plans = [plan_batch(lengths, BatchTopology(2), layout=layout) for layout in LAYOUTS]
        for rank in range(2):
            x = relayout(*plans, rank)
            found[lengths, rank] = (x.local_sources, x.local_targets, x.send_rows, x.receive_rows, x.input_splits)
    assert {key: tuple(part.tolist() for part in parts) for key, parts in found.items()} == {
        ((8,), 0): ([0, 1], [0, 1], [2, 3], [2, 3], [0, 2]),
        ((8,), 1): ([0, 1], [2, 3], [2, 3], [0, 1], [2, 0]),
        ((3, 5), 0): ([0, 3], [0, 2], [1, 2], [3], [0, 2]),
        ((3, 5), 1): ([1, 2, 3], [2, 3, 4], [0], [0, 1], [1, 0]),
    }


@pytest.mark.rule("BATCH-23")
def test_plans_of_other_documents_have_no_relayout():
    plans = [plan_batch(lengths, BatchTopology(2)) for lengths in ((3, 5), (5, 3))]
    with refused("HP-BATCH-007") as caught:
        relayout(*plans, 0)
    assert caught.error.facts["digests"] == tuple(plan.digest for plan in plans)
    with refused("HP-BATCH-007"):
        relayout(plans[0], plans[0].digest, 0)
    with refused("HP-ROUTE-002"):
        relayout(plans[0], plans[0], 2)


@pytest.mark.rule("BATCH-27")
@given(batch_plans(), st.integers(1, 4))
def test_labels_are_counted_once_over_the_cp_ranks(plan, depth):
    cp, tp, sp = numbers(plan.topology)
    lengths = plan.lengths.tolist()
    labels = loops.shifted(list(range(sum(lengths))), lengths, depth, -100)
    shards = loops.shards(lengths, cp, tp, sp, plan.layout, plan.alignment)
    expected = [sum(row[4] >= 0 and labels[row[4]] != -100 for row in rows) for rows in shards]
    assert label_counts(plan, depth).tolist() == expected
    assert sum(expected) == sum(max(length - depth, 0) for length in lengths)


@pytest.mark.rule("BATCH-27")
@pytest.mark.parametrize(
    ("lengths", "cp", "layout", "expected"),
    [
        ((3, 5), 2, "contiguous", [3, 3]),
        ((7,), 2, "zigzag", [2, 4]),
        ((13,), 4, "zigzag", [2, 2, 4, 4]),
        ((698,), 4, "zigzag", [169, 176, 176, 176]),
    ],
)
def test_worked_label_counts(lengths, cp, layout, expected):
    assert label_counts(plan_batch(lengths, BatchTopology(cp), layout=layout)).tolist() == expected


@pytest.mark.rule("BATCH-44")
@given(batch_requests())
def test_equal_batches_have_equal_plans(request):
    lengths = request.pop("lengths")
    plans = [plan_batch(form(lengths), **request) for form in (list, tuple, lambda values: np.array(values, np.int32))]
    assert len({plan.digest for plan in plans}) == 1
    assert from_json(to_json(plans[0])) == plans[0]
    if lengths and min(lengths):
        assert plan_batch(PackedDocuments(lengths), **request) == plans[0]
    for other in (
        {"layout": next(name for name in LAYOUTS if name != request["layout"])},
        {"alignment": 2 * plans[0].alignment},
    ):
        assert plan_batch(lengths, **(request | other)).digest != plans[0].digest


@pytest.mark.rule("BATCH-44")
def test_digests_are_equal_in_every_process():
    code = (
        "from hpfun.batch import BatchTopology, batch_view, plan_batch\n"
        "plan = plan_batch((3, 0, 5), BatchTopology(2, 2, True), layout='zigzag')\n"
        "print(plan.digest, batch_view(plan, 1, 1).digest)"
    )
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("0", "1")]
    command = [sys.executable, "-c", code]
    told = [subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout for env in environments]
    assert told[0] == told[1]


@pytest.mark.rule("BATCH-5")
def test_a_capacity_counts_padding():
    assert plan_batch((5, 3, 8), BatchTopology(2), capacity=16).padded_length == 16
    with refused("HP-BATCH-013") as caught:
        plan_batch((5, 3, 8), BatchTopology(2), layout="zigzag", capacity=16)
    assert caught.error.facts == {"padded": 20, "raw": 16, "capacity": 16}
    assert plan_batch((5, 3, 8), BatchTopology(2), layout="zigzag", capacity=20).padded_length == 20


@pytest.mark.rule("BATCH-5")
@given(batch_requests(), st.integers(1, 100))
def test_a_plan_fits_its_capacity_or_is_refused(request, capacity):
    padded = plan_batch(**request).padded_length
    if padded <= capacity:
        assert plan_batch(**request, capacity=capacity).padded_length == padded
    else:
        with refused("HP-BATCH-013"):
            plan_batch(**request, capacity=capacity)


@pytest.mark.rule("BATCH-1")
@pytest.mark.parametrize(
    ("name", "value"),
    [("cp_size", 0), ("cp_size", True), ("tp_size", 2.0), ("tp_size", -1), ("dp_size", None), ("sequence_parallel", 1)],
)
def test_a_topology_of_other_sizes_is_refused(name, value):
    with refused("HP-BATCH-001") as caught:
        BatchTopology(**({"cp_size": 2, "tp_size": 2, "sequence_parallel": True} | {name: value}))
    assert caught.error.where == name
    assert caught.error.facts["name"] == name
    assert caught.error.facts["value"] == repr(value)


@pytest.mark.rule("BATCH-1")
def test_all_wrong_sizes_are_told_at_once():
    with refused("HP-BATCH-001") as caught:
        BatchTopology(0, -1, "yes", 0)
    assert [violation.where for violation in caught.error.violations] == [
        "cp_size",
        "tp_size",
        "dp_size",
        "sequence_parallel",
    ]


@pytest.mark.rule("BATCH-1")
@pytest.mark.parametrize("alignment", [0, 6, True, 4.0, -4])
def test_an_alignment_is_a_multiple_of_the_required_one(alignment):
    assert plan_batch((5,), BatchTopology(2), alignment=8).padded_length == 8
    with refused("HP-BATCH-001") as caught:
        plan_batch((5,), BatchTopology(2), alignment=alignment)
    assert caught.error.where == "alignment"


@pytest.mark.rule("BATCH-1")
def test_what_is_no_topology_and_no_capacity_is_refused():
    with refused("HP-BATCH-001"):
        plan_batch((5,), 2)
    with refused("HP-BATCH-001"):
        plan_batch((5,), BatchTopology(2), capacity=0)
    with refused("HP-BATCH-001"):
        plan_batch((5,), BatchTopology(2**31 - 1, 2**31 - 3, True))


@pytest.mark.rule("ERROR-6")
def test_all_that_is_wrong_with_a_plan_is_told_at_once():
    with refused("HP-BATCH-001") as caught:
        plan_batch((3, -1), BatchTopology(4), layout="ring", alignment=3)
    told = [("HP-BATCH-001", "alignment"), ("HP-BATCH-002", "lengths"), ("HP-BATCH-004", "layout")]
    assert [(violation.code, violation.where) for violation in caught.error.violations] == told
    with refused("HP-BATCH-001") as caught:
        plan_batch((3, -1), 2, layout="ring", alignment=0, capacity=0)
    assert [(violation.code, violation.where) for violation in caught.error.violations] == [
        ("HP-BATCH-001", "topology"),
        ("HP-BATCH-001", "alignment"),
        ("HP-BATCH-001", "capacity"),
        ("HP-BATCH-002", "lengths"),
        ("HP-BATCH-004", "layout"),
    ]


@pytest.mark.rule("BATCH-6")
@pytest.mark.parametrize("lengths", [(3, -1), (3.0,), 3, "35", None, (2**62, 2**62), PackedDocuments((2**62,)), [[3]]])
def test_lengths_that_count_no_tokens_are_refused(lengths):
    with refused("HP-BATCH-002") as caught:
        plan_batch(lengths, BatchTopology(2))
    assert caught.error.where == "lengths"


@pytest.mark.rule("BATCH-7")
def test_a_plan_lists_documents_that_exist():
    plan = plan_batch((0, 3, 0), BatchTopology(2))
    for dropped in ((2, 0), (0, 3), (-1,), (1, 1)):
        with refused("HP-BATCH-002"):
            type(plan)(plan.topology, plan.layout, plan.alignment, plan.lengths, dropped)
    with refused("HP-BATCH-002"):
        type(plan)(plan.topology, plan.layout, plan.alignment, (3, 0))


@pytest.mark.rule("BATCH-21")
@pytest.mark.parametrize("layout", ["ring", "", None, "Zigzag"])
def test_an_unknown_layout_is_refused(layout):
    with refused("HP-BATCH-004") as caught:
        plan_batch((5,), BatchTopology(2), layout=layout)
    assert caught.error.facts == {"layout": repr(layout), "known": ("contiguous", "zigzag")}


@given(batch_views())
def test_views_travel_as_json_and_read_the_same(view):
    again = from_json(to_json(view))
    assert again == view
    assert again.sources.tolist() == view.sources.tolist()
    for name in ("sources", "positions", "position_ids", "q_lengths", "kv_lengths", "documents"):
        assert not getattr(view, name).flags.writeable
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            getattr(view, name).flags.writeable = True


@given(batch_plans())
def test_arrays_of_a_plan_cannot_be_written(plan):
    for name in ("sources", "position_ids", "cu_seq_lens", "lengths", "padded_lengths"):
        array = getattr(plan, name)
        assert array.dtype == np.int64
        with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.rule("BATCH-31")
@pytest.mark.parametrize(("cp_rank", "tp_rank"), [(2, 0), (-1, 0), (0, 2), (0, -1), (True, 0), (0, 1.0)])
def test_a_rank_outside_the_topology_is_refused(cp_rank, tp_rank):
    plan = plan_batch((5,), BatchTopology(2, 2))
    for function in (batch_view, decoder_layout):
        with refused("HP-ENCODER-004") as caught:
            function(plan, cp_rank, tp_rank)
        assert {"actual", "expected", "cp_rank", "tp_rank", "interval"} <= set(caught.error.facts)
    with refused("HP-BATCH-007"):
        batch_view("plan", 0)


@pytest.mark.rule("BATCH-20")
def test_work_of_long_documents_is_exact_or_refused():
    longest = 4_200_000_000  # its square is beyond int64, half of it is not
    work = causal_work(plan_batch((longest,), BatchTopology(2), layout="zigzag"))
    assert work.tolist() == [longest * (longest + 1) // 4] * 2
    assert causal_work(plan_batch((longest - 1,), BatchTopology(1))).tolist() == [longest * (longest - 1) // 2]
    with refused("HP-BATCH-013"):
        causal_work(plan_batch((5_000_000_000,), BatchTopology(1)))


@pytest.mark.rule("BATCH-22")
@given(batch_plans())
def test_rows_of_positions_are_those_of_the_shards_in_a_row(plan):
    held = [position for shard in plan.shards for position in shard.rows.tolist()]
    assert position_rows(plan)[held].tolist() == list(range(plan.padded_length))


def test_pieces_of_a_view_cannot_be_written():
    view = batch_view(plan_batch((8, 8), BatchTopology(2)), 0)
    for part in view.pieces:
        assert not part.flags.writeable


@pytest.mark.rule("BATCH-23")
@pytest.mark.parametrize("function", [restore_index, position_rows, causal_work, label_counts, batch_figures])
def test_what_is_no_plan_has_no_rows_and_no_figures(function):
    for value in (None, (3, 5), BatchTopology(2)):
        with refused("HP-BATCH-007"):
            function(value)
    with refused("HP-BATCH-007"):
        decoder_layout(None, 0)
    with refused("HP-BATCH-001"):
        required_global_alignment(None)


@pytest.mark.rule("BATCH-1")
def test_an_alignment_beyond_int64_says_what_is_wrong():
    with refused("HP-BATCH-001") as caught:
        plan_batch((1,) * 10, BatchTopology(2), alignment=2**60)
    assert "int64" in str(caught.error)
    assert plan_batch((1,) * 10, BatchTopology(2), alignment=2**40).padded_length == 2**40


def test_ten_thousand_ranks_are_planned_in_seconds():
    plan = plan_batch((100_000,) * 10, BatchTopology(10_000), layout="zigzag")
    assert batch_view(plan, 9_999).real_rows == 100
    assert position_rows(plan).max() == plan.padded_length - 1
    assert batch_figures(plan)["real_rows_max"] == 100
    assert "shards" not in vars(plan)  # nothing asks for those of all ranks
