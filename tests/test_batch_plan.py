"""Batch plans, views and layouts: every token on one rank, in one place, for both layouts."""

import os
import subprocess
import sys
from itertools import pairwise, product

import attrs
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
    shift_labels,
)
from hpfun.batch.layouts import LAYOUTS
from hpfun.strategies import batch_plans, batch_requests, batch_topologies, batch_views, document_lengths
from tests import laws
from tests.odd_values import NO_INTEGERS, is_count, no_counts
from tests.oracles import batch as loops
from tests.plans import numbers
from tests.refusals import refused

IGNORED = -100


def by_rank(read):
    return lambda plan: [read(batch_view(plan, rank)) for rank in range(plan.topology.cp_size)]


def interval_lists(plan):
    ranks = product(range(plan.topology.cp_size), range(plan.topology.tp_size))
    return [decoder_layout(plan, *rank).intervals for rank in ranks]


def next_tokens(plan):
    """The labels of every rank where tokens are 100, 101, ... and each is the label of the one before."""
    whole = np.append(shift_labels(range(100, 100 + plan.num_tokens), plan.lengths), IGNORED)  # -1 reads the last
    return [whole[batch_view(plan, rank).sources].tolist() for rank in range(plan.topology.cp_size)]


FIGURES = {
    "alignment": lambda plan: plan.alignment,
    "padded": lambda plan: plan.padded_length,
    "ends": lambda plan: plan.cu_seq_lens.tolist(),
    "places": lambda plan: plan.position_ids.tolist(),
    "dropped": lambda plan: plan.dropped_documents.tolist(),
    "restore": lambda plan: restore_index(plan).tolist(),
    "work": lambda plan: causal_work(plan).tolist(),
    "work with padding": lambda plan: causal_work(plan, padding=True).tolist(),
    "label counts": lambda plan: label_counts(plan).tolist(),
    "labels": next_tokens,
    "spans": lambda plan: [shard.spans for shard in plan.shards],
    "intervals": interval_lists,
    "sources": by_rank(lambda view: view.sources.tolist()),
    "tokens": by_rank(lambda view: view.sources[view.sources >= 0].tolist()),
    "real rows": by_rank(lambda view: view.real_rows),
    "keys": by_rank(lambda view: (view.q_lengths.tolist(), view.kv_lengths.tolist())),
}
# worked by hand: lengths, (cp, tp, sequence parallelism), layout, figures
WORKED = [
    (
        (3, 5),
        (2,),
        "contiguous",
        {
            "alignment": 4,
            "padded": 8,
            "ends": [0, 3, 8],
            "places": [0, 1, 2, 0, 1, 2, 3, 4],
            "sources": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "labels": [[101, 102, IGNORED, 104], [105, 106, 107, IGNORED]],
            "label counts": [3, 3],
            "keys": [([3, 1], [3, 1]), ([4], [5])],
        },
    ),
    (
        (3, 5),
        (2,),
        "zigzag",
        {
            "ends": [0, 4, 12],
            "sources": [[0, -1, 3, 4, -1, -1], [1, 2, 5, 6, 7, -1]],
            "real rows": [3, 5],
            "labels": [[101, IGNORED, 104, 105, IGNORED, IGNORED], [102, IGNORED, 106, 107, IGNORED, IGNORED]],
            "restore": [0, 6, 7, 2, 3, 8, 9, 10],
            "keys": [([2, 4], [4, 8]), ([2, 4], [3, 6])],
            "work": [4, 17],
            "work with padding": [23, 23],
        },
    ),
    (
        (7,),
        (2,),
        "zigzag",
        {
            "padded": 8,
            "ends": [0, 8],
            "sources": [[0, 1, 6, -1], [2, 3, 4, 5]],
            "real rows": [3, 4],
            "restore": [0, 1, 4, 5, 6, 7, 2],
            "keys": [([4], [8]), ([4], [6])],
            "label counts": [2, 4],
        },
    ),
    ((13,), (4,), "zigzag", {"real rows": [2, 3, 4, 4], "label counts": [2, 2, 4, 4]}),
    (
        (698,),
        (4,),
        "zigzag",
        {"padded": 704, "real rows": [170, 176, 176, 176], "label counts": [169, 176, 176, 176]},
    ),
    (
        (5,),
        (4,),
        "contiguous",
        {
            "padded": 8,
            "ends": [0, 5, 8],
            "places": [0, 1, 2, 3, 4, 0, 1, 2],
            "sources": [[0, 1], [2, 3], [4, -1], [-1, -1]],
            "real rows": [2, 2, 1, 0],
            "keys": [([2], [2]), ([2], [4]), ([1, 1], [5, 1]), ([2], [3])],
        },
    ),
    (
        (3,),
        (8, 2, True),
        "contiguous",
        {"alignment": 16, "padded": 16, "ends": [0, 3, 16], "real rows": [2, 1, 0, 0, 0, 0, 0, 0]},
    ),
    ((3,), (8, 2, True), "zigzag", {"padded": 16, "tokens": [[0], [1], [2], [], [], [], [], []]}),
    (
        (4, 0, 6),
        (2,),
        "contiguous",
        {
            "ends": [0, 4, 10, 12],
            "dropped": [1],
            "sources": [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, -1, -1]],
            "keys": [([4, 2], [4, 2]), ([4, 2], [6, 2])],
        },
    ),
    (np.diff([0, 8, 16, 16, 16]), (2,), "contiguous", {"ends": [0, 8, 16], "dropped": [2, 3]}),
    ((4, 12), (2,), "contiguous", {"work": [20, 68]}),
    (
        (4, 12),
        (2,),
        "zigzag",
        {"spans": [((0, 1), (3, 7), (13, 16)), ((1, 3), (7, 13))], "work": [44, 44]},
    ),
    (
        (16,),
        (4,),
        "zigzag",
        {
            "spans": [((0, 2), (14, 16)), ((2, 4), (12, 14)), ((4, 6), (10, 12)), ((6, 10),)],
            "work": [34, 34, 34, 34],
            "restore": [0, 1, 4, 5, 8, 9, 12, 13, 14, 15, 10, 11, 6, 7, 2, 3],
        },
    ),
    ((7, 9), (4,), "contiguous", {"spans": [((0, 4),), ((4, 8),), ((8, 12),), ((12, 16),)]}),
    (
        (5, 3, 8),
        (4,),
        "contiguous",
        {
            "ends": [0, 5, 8, 16],
            "sources": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
            "keys": [([4], [4]), ([1, 3], [5, 3]), ([4], [4]), ([4], [8])],
            "work": [10, 11, 10, 26],
            "labels": [
                [101, 102, 103, 104],
                [IGNORED, 106, 107, IGNORED],
                [109, 110, 111, 112],
                [113, 114, 115, IGNORED],
            ],
        },
    ),
    ((5, 3, 8), (2,), "contiguous", {"padded": 16}),
    ((5, 3, 8), (2,), "zigzag", {"padded": 20, "ends": [0, 8, 12, 20]}),
    ((8,), (2, 2, True), "contiguous", {"intervals": [((0, 2),), ((2, 4),), ((4, 6),), ((6, 8),)]}),
    ((8,), (2, 2, True), "zigzag", {"intervals": [((0, 2),), ((6, 8),), ((2, 4),), ((4, 6),)]}),
    (
        (4, 12),
        (2, 2, True),
        "zigzag",
        {"intervals": [((0, 1), (3, 6)), ((6, 7), (13, 16)), ((1, 3), (7, 9)), ((9, 13),)]},
    ),
    ((5,), (1,), "contiguous", {"alignment": 2, "padded": 6}),
]


@pytest.mark.rule("BATCH-3", "BATCH-7", "BATCH-8", "BATCH-9", "BATCH-13", "BATCH-17", "BATCH-18")
@pytest.mark.rule("BATCH-20", "BATCH-22", "BATCH-24", "BATCH-25", "BATCH-27", "BATCH-31")
@pytest.mark.parametrize(("lengths", "sizes", "layout", "figures"), WORKED, ids=str)
def test_worked_batches(lengths, sizes, layout, figures):
    plan = plan_batch(lengths, BatchTopology(*sizes), layout=layout)
    assert {name: FIGURES[name](plan) for name in figures} == figures


def check(plan, lengths):
    """Everything of a plan and its views beside the loops."""
    topology, (cp, tp, sp) = plan.topology, numbers(plan.topology)
    documents, dropped = loops.padded(lengths, cp, tp, sp, plan.layout, plan.alignment)
    shards = loops.shards(lengths, cp, tp, sp, plan.layout, plan.alignment)
    assert plan.lengths.tolist() == [length for length in lengths if length]
    assert plan.dropped_documents.tolist() == dropped
    assert plan.padded_lengths.tolist() == list(map(len, documents))
    assert plan.cu_seq_lens.tolist() == loops.ends(documents)
    assert plan.sources.tolist() == [token for document in documents for token in document]
    assert plan.position_ids.tolist() == [place for document in documents for place in range(len(document))]
    assert [shard.spans for shard in plan.shards] == [
        loops.intervals([row.position for row in rows]) for rows in shards
    ]
    assert plan.local_length == len(shards[0])
    flat = [row.token for rows in shards for row in rows]
    assert restore_index(plan).tolist() == [flat.index(token) for token in range(sum(lengths))]
    assert causal_work(plan).tolist() == [sum(row.place + 1 for row in rows if row.token >= 0) for rows in shards]
    for rank, rows in enumerate(shards):
        check_rank(plan, rank, rows)
    return topology, shards


def check_rank(plan, rank, rows):
    tp, parts = plan.topology.tp_size, plan.topology.row_parts
    for tp_rank in range(tp):
        view = batch_view(plan, rank, tp_rank)
        part = len(rows) // parts
        start = tp_rank * part if parts > 1 else 0
        own = [row.position for row in rows][start : start + part]
        assert view.sp_slice == (start, start + part)
        assert view.intervals == decoder_layout(plan, rank, tp_rank).intervals == loops.intervals(own)
    assert view.positions.tolist() == [row.position for row in rows]
    assert view.position_ids.tolist() == [row.place for row in rows]
    assert view.sources.tolist() == [row.token for row in rows]
    assert view.real_rows == sum(row.token >= 0 for row in rows)
    held = sorted({row.document for row in rows})
    assert view.documents.tolist() == held
    assert view.q_lengths.tolist() == [sum(row.document == number for row in rows) for number in held]
    assert view.kv_lengths.tolist() == [1 + max(row.place for row in rows if row.document == number) for number in held]


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
def test_the_alignment_of_all_small_groups_is_the_least_that_serves_both_layouts():
    for sizes in product(range(1, 9), range(1, 9), (True, False)):
        assert required_global_alignment(BatchTopology(*sizes)) == loops.alignment(*sizes)


@pytest.mark.rule("BATCH-2")
@given(batch_topologies(max_cp=60, max_tp=30), st.sampled_from(LAYOUTS), st.data())
def test_the_alignment_of_any_group_gives_equal_parts_and_nothing_less_does(topology, layout, data):
    least = required_global_alignment(topology)
    assert least == loops.alignment(*numbers(topology))
    plan = plan_batch((1,), topology, layout=layout)
    assert (plan.alignment, plan.padded_length) == (least, least)
    with refused("HP-BATCH-001") as caught:
        plan_batch((1,), topology, layout=layout, alignment=data.draw(st.integers(1, least - 1)))
    assert caught.error.facts["required"] == least


def compositions(total):
    if not total:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in compositions(total - first)]


SMALL = [lengths for total in range(9) for lengths in compositions(total)]
EMPTY = [(0,), (0, 0), (0, 3), (2, 0), (1, 0, 2), (0, 1, 0, 0, 4, 0)]


@pytest.mark.rule("BATCH-3", "BATCH-4", "BATCH-7", "BATCH-19", "BATCH-22", "BATCH-24")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tp", "sp"), [(1, False), (1, True), (2, False), (2, True)])
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
    assert sorted(row.position for rows in shards for row in rows) == list(range(plan.padded_length))


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
def test_work_of_contiguous_documents_may_be_near_twice_the_mean():
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
            rows = (x.local_sources, x.local_targets, x.send_rows, x.receive_rows)
            found[lengths, rank] = (*rows, x.input_splits, x.output_splits)
    assert {key: tuple(part.tolist() for part in parts) for key, parts in found.items()} == {
        ((8,), 0): ([0, 1], [0, 1], [2, 3], [2, 3], [0, 2], [0, 2]),
        ((8,), 1): ([0, 1], [2, 3], [2, 3], [0, 1], [2, 0], [2, 0]),
        ((3, 5), 0): ([0, 3], [0, 2], [1, 2], [3], [0, 2], [0, 1]),
        ((3, 5), 1): ([1, 2, 3], [2, 3, 4], [0], [0, 1], [1, 0], [2, 0]),
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
    labels = loops.shifted(list(range(sum(lengths))), lengths, depth)
    shards = loops.shards(lengths, cp, tp, sp, plan.layout, plan.alignment)
    expected = [loops.counted(labels, rows) for rows in shards]
    assert label_counts(plan, depth).tolist() == expected
    assert sum(expected) == sum(max(length - depth, 0) for length in lengths)


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
@given(
    st.fixed_dictionaries(
        {name: st.integers(1, 2**31 - 1) | no_counts(1) for name in ("cp_size", "tp_size", "dp_size")}
        | {"sequence_parallel": st.booleans() | st.integers(0, 1) | st.none() | st.text(max_size=3)}
    )
)
def test_a_topology_is_of_sizes_and_a_flag_or_each_other_part_is_told(parts):
    wrong = [name for name in ("cp_size", "tp_size", "dp_size") if not is_count(parts[name], 1)]
    wrong += ["sequence_parallel"] if type(parts["sequence_parallel"]) is not bool else []
    if not wrong:
        assert attrs.asdict(BatchTopology(**parts)) == parts
        return
    with refused("HP-BATCH-001") as caught:
        BatchTopology(**parts)
    told = [(one.code, one.where, one.facts["name"], one.facts["value"]) for one in caught.error.violations]
    assert told == [("HP-BATCH-001", name, name, repr(parts[name])[:60]) for name in wrong]


@pytest.mark.rule("BATCH-1")
@given(batch_requests(), st.data())
def test_an_alignment_is_a_multiple_of_the_required_one_and_a_capacity_a_count(request, data):
    needed = loops.alignment(*numbers(request["topology"]))
    times = st.integers(1, 3).map(lambda times: times * needed)
    alignment = data.draw(
        times | st.integers(-needed, 3 * needed) | no_counts(1).filter(lambda value: value is not None)
    )
    capacity = data.draw(st.integers(10**6, 2**40) | no_counts(1))
    fits = is_count(alignment, 1) and alignment % needed == 0
    wrong = [] if fits else ["alignment"]
    wrong += [] if capacity is None or is_count(capacity, 1) else ["capacity"]
    request = request | {"alignment": alignment, "capacity": capacity}
    if not wrong:
        assert plan_batch(**request).alignment == alignment
        return
    with refused("HP-BATCH-001") as caught:
        plan_batch(**request)
    told = {one.where: one.facts for one in caught.error.violations}
    assert sorted(told) == wrong
    assert all(facts["name"] == name for name, facts in told.items())
    if is_count(alignment, 1) and not fits:
        assert (told["alignment"]["value"], told["alignment"]["required"]) == (alignment, needed)


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
@given(batch_requests(), st.lists(st.integers(-1, 9), max_size=4) | st.sets(st.integers(0, 6), max_size=4).map(sorted))
def test_documents_without_tokens_are_listed_and_leave_no_trace(request, listed):
    plan, lengths = plan_batch(**request), request["lengths"]
    assert plan.dropped_documents.tolist() == [at for at, length in enumerate(lengths) if not length]
    alone = plan_batch(**request | {"lengths": [length for length in lengths if length]})
    for name in ("lengths", "cu_seq_lens", "sources", "position_ids"):
        assert getattr(plan, name).tolist() == getattr(alone, name).tolist()
    assert all(start < stop for start, stop in pairwise(plan.cu_seq_lens.tolist()))
    parts, count = (plan.topology, plan.layout, plan.alignment), len(plan.lengths) + len(listed)
    if listed == sorted(set(listed) & set(range(count))):
        assert type(plan)(*parts, plan.lengths, listed).dropped_documents.tolist() == listed
    else:
        with refused("HP-BATCH-002") as caught:
            type(plan)(*parts, plan.lengths, listed)
        assert caught.error.where == "dropped_documents"
        assert caught.error.facts == {"documents": count, "dropped": len(listed)}
    if not all(lengths):
        with refused("HP-BATCH-002") as caught:
            type(plan)(*parts, lengths)
        assert caught.error.facts["document"] == lengths.index(0)


@pytest.mark.rule("BATCH-7")
def test_a_plan_lists_documents_that_exist():
    plan = plan_batch((0, 3, 0), BatchTopology(2))
    for dropped in ((2, 0), (0, 3), (-1,), (1, 1)):
        with refused("HP-BATCH-002"):
            type(plan)(plan.topology, plan.layout, plan.alignment, plan.lengths, dropped)
    with refused("HP-BATCH-002"):
        type(plan)(plan.topology, plan.layout, plan.alignment, (3, 0))


@pytest.mark.rule("BATCH-21")
@given(
    batch_requests(),
    st.sampled_from(LAYOUTS).flatmap(
        lambda name: st.sampled_from((name, name, name.title(), name.upper(), f"{name} ", name[:-1], [name], (name,)))
    )
    | st.text(max_size=80)
    | NO_INTEGERS,
)
@example({"lengths": (5,), "topology": BatchTopology(2)}, "ring")
@example({"lengths": (5,), "topology": BatchTopology(1)}, np.str_("zigzag"))
def test_a_layout_has_one_of_two_names(request, layout):
    request = request | {"layout": layout}
    if type(layout) is str and layout in ("contiguous", "zigzag"):
        assert plan_batch(**request).layout == layout
        return
    with refused("HP-BATCH-004") as caught:
        plan_batch(**request)
    assert caught.error.facts == {"layout": repr(layout)[:60], "known": ("contiguous", "zigzag")}


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
