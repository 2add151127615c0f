"""Batches over real processes: bits that arrive, counted collectives, failures that reach all, rows that come home."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun.batch import BatchTopology, plan_batch
from tests.distributed import on_ranks_batch as on_ranks
from tests.dtypes import DTYPES
from tests.oracles import batch as loops
from tests.plans import numbers
from tests.refusals import refused

PAIRS = BatchTopology(2, 2)
SHARED = BatchTopology(2, 2, sequence_parallel=True)
FOUR = BatchTopology(4)
TENSORS = st.tuples(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 2**20),
    st.sampled_from(("plain", "strided", "turned")),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=6,
)
LENGTHS = [3, 5, 4, 1]


def whole_batch():
    total = sum(LENGTHS)
    ids = torch.arange(100, 100 + total)[None]
    ends = torch.tensor([0, *np.cumsum(LENGTHS).tolist()])
    return {"input_ids": ids, "labels": ids.clone(), "cu_seq_lens": ends, "grids": [[1, 4, 4]], "epoch": 3}


@pytest.mark.rule("BATCH-37", "BATCH-36")
@given(st.dictionaries(st.text(), TENSORS, max_size=4), st.dictionaries(st.text(), PLAIN, max_size=3))
@example({}, {})
@example({"scalar": ("bool", (), 1, "plain"), "empty": ("float64", (0, 3), 1, "plain")}, {"a": float("nan"), "b": -0.0})
@example({"complex": ("complex64", (2, 3), 1, "conjugated"), "zero": ("int8", (0,), 1, "plain")}, {"none": None})
@example({"one": ("int16", (1,), 0, "plain"), "no": ("int16", (0,), 0, "strided")}, {})
@example({"bits": ("float8_e8m0fnu", (2, 3, 4), 1, "turned")}, {"type": {"type": [True, 1, 1.0, "1", []]}})
def test_what_arrives_is_to_the_bit_what_was_sent(ranks, tensors, values):
    bytes_sent = sum(int(np.prod(shape)) for name, (_, shape, _, _) in tensors.items() if name not in values)
    for arrived, calls in ranks(2).run(on_ranks.broadcast_arrives, tensors, values):
        assert arrived
        assert calls == ["broadcast"] * (3 if bytes_sent else 2)


@pytest.mark.rule("BATCH-37")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_arrives(ranks, dtype):
    tensors = {form: (dtype, (3, 5), 7, form) for form in ("plain", "strided", "turned")} | {
        "s": (dtype, (), 1, "plain")
    }
    assert all(arrived for arrived, _ in ranks(2).run(on_ranks.broadcast_arrives, tensors, {}))


@pytest.mark.rule("BATCH-36")
def test_a_header_of_four_numbers_says_how_many_bytes_follow(ranks):
    answers = ranks(2).run(on_ranks.broadcast_of, "fine")
    for code, _, calls, _ in answers:
        assert code == ""
        assert calls[0] == ("broadcast", 32)
        assert calls[2] == ("broadcast", 48)
        assert calls == answers[0][2]
        assert len(calls) == 3
    versions = ranks(2).run(on_ranks.broadcast_of, "version")
    assert [code for code, *_ in versions] == ["", "HP-SERIAL-001"]
    assert all(len(calls) == 3 for _, _, calls, _ in versions)


@pytest.mark.rule("BATCH-34", "BATCH-38", "BATCH-36")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("list", "HP-BATCH-011"),
        ("object", "HP-BATCH-011"),
        ("tuple", "HP-BATCH-011"),
        ("shard", "HP-BATCH-008"),
        ("crash", "HP-AGREE-002"),
    ],
)
def test_what_is_wrong_at_the_source_every_rank_raises_after_two_broadcasts(ranks, kind, code):
    answers = ranks(3).run(on_ranks.broadcast_of, kind)
    for got, facts, calls, spent in answers:
        assert got == code
        assert facts == answers[0][1]
        assert [name for name, _ in calls] == ["broadcast"] * 2
        assert spent < 5


@pytest.mark.rule("BATCH-34", "BATCH-36")
@given(st.sets(st.integers(0, 2)))
@example(set())
@example({1, 2})
@example({0, 1})
def test_a_batch_of_rank_0_alone_arrives_and_any_other_is_told(ranks, holders):
    answers = ranks(3).run(on_ranks.broadcast_of, "good", holders)
    for rank, (code, facts, calls, _) in enumerate(answers):
        wrong = 0 not in holders or rank in holders - {0}
        assert code == ("HP-BATCH-010" if wrong else "")
        assert not wrong or facts["tp_rank"] == (rank if 0 in holders else 0)
        assert len(calls) == (3 if 0 in holders else 2)


NO_PARTS = st.sampled_from((1j, b"bytes", Fraction(1, 2), {1, 2}, (1, 2), (), range(3), {1: 2}, np.float32(1), object))


@pytest.mark.rule("BATCH-37", "BATCH-38")
@given(
    st.dictionaries(st.text(max_size=3), PLAIN, max_size=2),
    st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.recursive(NO_PARTS, lambda odd: st.tuples(PLAIN, odd).map(list) | odd.map(lambda part: {"in": part})),
        min_size=1,
        max_size=2,
    ),
)
def test_what_cannot_travel_every_rank_refuses_with_the_same_facts(ranks, values, odd):
    answers = ranks(3).run(on_ranks.broadcast_with, {**values, **odd})
    assert {code for code, _, _ in answers} == {"HP-BATCH-011"}
    assert all(facts == answers[0][1] for _, facts, _ in answers)
    assert all([name for name, _ in calls] == ["broadcast"] * 2 for *_, calls in answers)


@pytest.mark.rule("BATCH-34")
def test_every_group_has_its_own_source(ranks):
    assert ranks(4).run(on_ranks.broadcast_in_pairs, PAIRS) == [[0], [0], [2], [2]]


@pytest.mark.rule("BATCH-40")
def test_groups_are_those_of_the_topology_or_refused(ranks):
    assert ranks(4).run(on_ranks.coordinates_of, PAIRS) == [
        {"at": (0, 0), "parent": [0, 1, 2, 3], "tp": [0, 1], "cp": [0, 2]},
        {"at": (0, 1), "parent": [0, 1, 2, 3], "tp": [0, 1], "cp": [1, 3]},
        {"at": (1, 0), "parent": [0, 1, 2, 3], "tp": [2, 3], "cp": [0, 2]},
        {"at": (1, 1), "parent": [0, 1, 2, 3], "tp": [2, 3], "cp": [1, 3]},
    ]
    replicas = ranks(4).run(on_ranks.coordinates_of, BatchTopology(2, dp_size=2))
    assert [(one["at"], one["parent"], one["cp"]) for one in replicas] == [
        ((0, 0), [0, 1], [0, 1]),
        ((1, 0), [0, 1], [0, 1]),
        ((0, 0), [2, 3], [2, 3]),
        ((1, 0), [2, 3], [2, 3]),
    ]
    for codes in ranks(4).run(on_ranks.misfitting_groups, PAIRS):
        assert codes.pop("good") == ""
        # ranks 0 and 3 have the same number in both groups, so theirs cannot tell
        assert codes.pop("swapped") in ("", "HP-BATCH-009")
        assert set(codes.values()) == {"HP-BATCH-009"}
    assert [c["swapped"] for c in ranks(4).run(on_ranks.misfitting_groups, PAIRS)][1:3] == ["HP-BATCH-009"] * 2


@pytest.mark.rule("BATCH-40")
@pytest.mark.parametrize(
    "topology",
    [BatchTopology(1, 4), FOUR, BatchTopology(1, 2, True, 2), BatchTopology(1, dp_size=4), PAIRS],
)
def test_a_group_of_one_is_that_rank_and_not_all(ranks, topology):
    for sizes, ratio in ranks(4).run(on_ranks.sums_over_groups, topology):
        assert sizes == (topology.parent_size, topology.tp_size, topology.cp_size)
        assert ratio == topology.cp_size


@pytest.mark.rule("BATCH-11", "BATCH-25", "BATCH-29", "BATCH-3")
@given(st.sampled_from((-1, -7)), st.integers(0, 9), st.integers(1, 3), st.sampled_from(("sum", "mean")))
def test_fields_alignment_and_reduction_are_those_that_were_asked_for(ranks, ignore, pad, times, reduction):
    batch = whole_batch()
    labels = [ignore if at % 3 == 1 else at for at in range(sum(LENGTHS))]
    mine = [[at, -at] for at in range(sum(LENGTHS))]
    batch |= {"labels": torch.tensor([labels]), "mine": torch.tensor(mine)}
    shifted = loops.shifted(labels, LENGTHS, ignore=ignore)
    rows = loops.shards(LENGTHS, *numbers(PAIRS), "zigzag", 4 * times)
    counts = [loops.counted(shifted, part, ignore) for part in rows]
    answers = ranks(4).run(on_ranks.prepared_with, PAIRS, batch, ignore, pad, 4 * times, reduction)
    for rank, (found, scale) in enumerate(answers):
        part = rows[rank // 2]
        assert found == {
            "labels": [loops.held(shifted, part, ignore)],
            "mine": loops.held(mine, part, [pad, pad]),
            "num_items_in_batch": sum(counts),
        }
        assert scale == (counts, 2 if reduction == "mean" else 1)


@pytest.mark.rule("BATCH-26", "BATCH-39")
@pytest.mark.parametrize("topology", [PAIRS, SHARED, FOUR, BatchTopology(1, 4)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_every_rank_gets_its_rows_with_shifted_labels_for_four_collectives(ranks, topology, layout):
    batch = whole_batch()
    shifted = loops.shifted(batch["labels"][0].tolist(), LENGTHS)
    rows = loops.shards(LENGTHS, *numbers(topology), layout)
    documents, _ = loops.padded(LENGTHS, *numbers(topology), layout)
    plan = plan_batch(LENGTHS, topology, layout=layout)
    for rank, (got, calls) in enumerate(ranks(4).run(on_ranks.prepared, topology, layout, batch)):
        mine = rows[rank // topology.tp_size]
        assert got == {
            "input_ids": [loops.held(batch["input_ids"][0].tolist(), mine, 0)],
            "labels": [loops.held(shifted, mine, -100)],
            "position_ids": [[row.place for row in mine]],
            "cu_seq_lens": loops.ends(documents),
            "grids": [[1, 4, 4]],
            "epoch": 3,
            "labels_shifted": True,
            "loss_scale": [loops.counted(shifted, part) for part in rows],
            "num_items_in_batch": sum(LENGTHS) - len(LENGTHS),
            "batch_plan": plan.digest,
        }
        names = ["broadcast"] * 3 if topology.tp_size > 1 else []
        assert [name for name, _ in calls] == [*names, "all_gather"]
        assert calls[-1] == ("all_gather", 48)


@pytest.mark.rule("BATCH-39", "BATCH-38", "BATCH-34")
@pytest.mark.parametrize(
    ("kind", "bad", "code"),
    [
        ("none", 0, "HP-BATCH-010"),
        ("none", 2, "HP-BATCH-010"),
        ("second", 3, "HP-BATCH-010"),
        ("object", 2, "HP-BATCH-011"),
        ("boundaries", 0, "HP-BATCH-002"),
        ("fields", 2, "HP-BATCH-003"),
        ("shard", 2, "HP-BATCH-008"),
        ("capacity", 1, "HP-BATCH-013"),
        ("lengths", 2, "HP-BATCH-007"),
        ("tokens", 2, "HP-BATCH-007"),
        ("labels", 2, "HP-BATCH-007"),
        ("layout", 3, "HP-BATCH-007"),
        ("lonely", 1, "HP-BATCH-007"),
        ("shifted", 2, "HP-BATCH-007"),
        ("count", 2, "HP-BATCH-007"),
        ("reduction", 3, "HP-BATCH-007"),
        ("pad", 1, "HP-BATCH-007"),
        ("crash", 2, "HP-AGREE-002"),
    ],
)
def test_what_one_rank_finds_all_raise_and_the_groups_work_on(ranks, kind, bad, code):
    answers = ranks(4).run(on_ranks.prepared_with_failure, PAIRS, kind, bad, whole_batch())
    assert [answer["code"] for answer in answers] == [code] * 4
    assert all(answer["facts"] == answers[0]["facts"] for answer in answers)
    assert all(answer["spent"] < 5 for answer in answers)
    for rank, answer in enumerate(answers):
        assert answer["calls"][-2] == ("all_gather", 48)
        shard = list(range(100, 108)) if rank < 2 else [*range(108, 113), 0, 0, 0]
        assert answer["after"] == ([shard], 22)
    facts = answers[0]["facts"]
    if code == "HP-BATCH-007":
        field = {
            "lengths": "plan",
            "tokens": "input_ids",
            "labels": "labels",
            "layout": "layout",
            "lonely": "runtime_inputs",
            "shifted": "loss_scale",
            "count": "num_items_in_batch",
            "reduction": "loss_scale",
            "pad": "fields",
        }[kind]
        assert field in facts["fields"]
        assert len(set(facts["digests"])) == 2
        assert (facts["digests"][0] == facts["digests"][bad]) is (bad == 0)
    elif kind in ("second", "capacity"):
        assert facts["failing_ranks"] == (bad,)
    else:  # the source's TP ranks learn it in the broadcast
        first = bad // 2 * 2
        assert facts["failing_ranks"] == (first, first + 1)


FAILING = {
    "none": "HP-BATCH-010",
    "boundaries": "HP-BATCH-002",
    "fields": "HP-BATCH-003",
    "shard": "HP-BATCH-008",
    "crash": "HP-AGREE-002",
}
DIFFERENT = {"lengths": "plan", "tokens": "input_ids", "labels": "labels"}


@pytest.mark.rule("BATCH-39")
@given(st.lists(st.sampled_from(("good", "good", *FAILING, *DIFFERENT)), min_size=4, max_size=4))
@example(["good"] * 4)
@example(["good", "boundaries", "none", "good"])
@example(["good", "good", "labels", "good"])
def test_the_lowest_failing_rank_speaks_for_all_and_then_those_that_differ(ranks, kinds):
    answers = ranks(4).run(on_ranks.prepared_with_kinds, FOUR, kinds, whole_batch())
    failing = tuple(rank for rank, kind in enumerate(kinds) if kind in FAILING)
    code = FAILING[kinds[failing[0]]] if failing else "HP-BATCH-007" if len(set(kinds)) > 1 else ""
    for got, facts in answers:
        assert (got, facts) == (code, answers[0][1])
    facts = answers[0][1]
    if failing:
        assert facts["failing_ranks"] == failing
    elif code:
        assert [facts["digests"].index(digest) for digest in facts["digests"]] == list(map(kinds.index, kinds))
        assert set(facts["fields"]) >= {DIFFERENT[kind] for kind in kinds if kind in DIFFERENT and kind != kinds[0]}


@pytest.mark.rule("BATCH-41")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("adapter declared", "HP-DATA-001"),
        ("adapter made", "HP-DATA-001"),
        ("adapter crash", "HP-AGREE-002"),
        ("adapter", ""),
    ],
)
def test_an_adapter_that_fails_on_one_rank_fails_on_all(ranks, kind, code):
    for answer in ranks(4).run(on_ranks.prepared_with_failure, PAIRS, kind, 1, whole_batch()):
        assert answer["code"] == code
        assert answer["spent"] < 5
        assert answer["after"][1] == 22


def test_codes_of_ranks_are_raised_here_too(ranks):
    pool, batch = ranks(4), whole_batch()
    with refused("HP-BATCH-010"):
        pool.run(on_ranks.raise_prepared, PAIRS, "second", 1, batch)
    with refused("HP-BATCH-011"):
        pool.run(on_ranks.raise_prepared, PAIRS, "object", 2, batch)
    with refused("HP-BATCH-007") as caught:
        pool.run(on_ranks.raise_prepared, PAIRS, "lengths", 2, batch)
    assert len(caught.error.facts["digests"]) == 4


@pytest.mark.rule("BATCH-22")
@given(st.lists(st.integers(1, 9), max_size=4), st.sampled_from(("contiguous", "zigzag")), st.integers(-2, 1))
@example([3, 5], "zigzag", 0)
@example([], "contiguous", 1)
def test_gathered_rows_are_the_batch_and_gradients_are_sums_over_ranks(ranks, lengths, layout, dim):
    for topology, parts in ((FOUR, False), (PAIRS, False), (SHARED, True), (SHARED, False)):
        for same, gradient, expected in ranks(4).run(on_ranks.gathered_tokens, topology, lengths, layout, dim, parts):
            assert same
            np.testing.assert_allclose(gradient, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.rule("BATCH-28")
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("lengths", "ignored"), [([35, 16], 24), ([5], 0), ([3, 1, 1], 0), ([9, 4], 13)])
def test_losses_of_ranks_add_up_to_that_of_one_process(ranks, layout, lengths, ignored):
    for topology in (FOUR, BatchTopology(2, dp_size=2)):
        for answer in ranks(4).run(on_ranks.losses, topology, lengths, layout, ignored):
            assert answer["loss_off"] < 1e-12
            assert answer["gradient_off"] < 1e-11
            if lengths == [35, 16]:
                assert answer["control_off"] > 1e-2
            if sum(lengths) == ignored:
                assert answer["loss"] == 0
