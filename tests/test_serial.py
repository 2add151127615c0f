"""Canonical JSON, reading it again, and digests."""

import json
import os
import subprocess
import sys

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpfun import (
    Outcome,
    PackedDocuments,
    PackedSequence,
    PlanError,
    RowExchange,
    RowRuns,
    SequenceReport,
    bank_route,
    csa_tnd_plan,
    digest,
    document_compression_plan,
    from_json,
    indexer_plan_report,
    indexer_task_plan,
    plan_route,
    sliding_window_plan,
    to_json,
)
from hpfun import strategies as hps
from hpfun.batch import Entry
from hpfun.serial import field_digests
from tests.refusals import refused
from tests.test_exchange import exchange

KINDS = {
    "PackedDocuments": hps.packed_documents(),
    "RowExchange": hps.row_exchanges().flatmap(st.sampled_from),
    "Outcome": hps.outcomes(),
    "IndexerOptions": hps.indexer_options(),
    "IndexerTask": hps.indexer_tasks(),
    "IndexerSegment": hps.indexer_segments(),
    "IndexerTaskPlan": hps.indexer_task_plans(),
    "IndexerRoute": hps.indexer_routes().flatmap(st.sampled_from),
    "IndexerPlanReport": hps.indexer_plan_reports(),
    "RowRuns": hps.row_runs(),
    "SequenceBankPlan": hps.sequence_bank_plans(),
    "SequenceDispatchRoute": hps.sequence_routes().flatmap(st.sampled_from),
    "SequenceReport": hps.sequence_reports(),
    "DocumentCompressionPlan": hps.compression_plans().flatmap(st.sampled_from),
    "PackedSequence": hps.packed_sequences(),
    "CsaTndPlan": hps.csa_tnd_plans(),
}
DOCUMENTS = '{"lengths":[5,3,8],"schema":1,"type":"PackedDocuments"}'


def document_text(**changes):
    """The text of three documents with some members changed; None drops one."""
    members = {**json.loads(DOCUMENTS), **changes}
    return json.dumps({name: value for name, value in members.items() if value is not None})


@pytest.mark.rule("SERIAL-2")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=20)
def test_what_is_read_equals_what_was_written(kind, data):
    value = data.draw(KINDS[kind])
    assert type(value).__name__ == kind
    again = from_json(to_json(value))
    assert again == value
    assert again.digest == value.digest
    assert to_json(again) == to_json(value)


@pytest.mark.rule("SERIAL-2")
def test_bytes_are_read_like_text():
    assert from_json(DOCUMENTS.encode()) == PackedDocuments((5, 3, 8))


@pytest.mark.rule("SERIAL-2")
@pytest.mark.parametrize("number", [0.1, -0.0, 1e-320, float("inf"), float("nan"), 2.0**70])
def test_floats_survive_to_the_bit(number):
    entry = Entry("x", "value", value=(number, {"y": number}))
    again = from_json(to_json(entry))
    assert again == entry
    assert [part.hex() for part in (again.value[0], again.value[1]["y"])] == [number.hex()] * 2
    assert (Entry("x", "value", value=0.0) == Entry("x", "value", value=number)) == (number.hex() == "0x0.0p+0")


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize("text", ["1.5x", 3, None, "0x1p9999"])
def test_floats_that_are_none_are_refused(text):
    told = to_json(Entry("x", "value", value=0.5)).replace('"0x1.0000000000000p-1"', json.dumps(text))
    with refused("HP-SERIAL-002") as refusal:
        from_json(told)
    assert refusal.error.where == "json.value"


@pytest.mark.rule("SERIAL-2")
def test_integers_beyond_floats_survive():
    big = PackedDocuments([2**53 + 1, 2**61 + 1])
    assert from_json(to_json(big)).lengths.tolist() == [2**53 + 1, 2**61 + 1]


@pytest.mark.rule("SERIAL-2")
def test_numpy_integers_in_facts_survive():
    outcome = from_json(to_json(Outcome(False, "HP-DOC-001", "x", {"rows": np.int64(2**53 + 1)})))
    assert outcome.facts == {"rows": 2**53 + 1}
    assert type(outcome.facts["rows"]) is int


@pytest.mark.rule("SERIAL-2")
@pytest.mark.parametrize("facts", [{"type": "bool"}, {"type": "PackedDocuments"}, {"schema": 2}, {"rows": (1, 2)}])
def test_facts_may_have_any_name(facts):
    outcome = Outcome(False, "HP-DOC-001", "lengths", facts, "broken")
    assert from_json(to_json(outcome)) == outcome


@pytest.mark.rule("SERIAL-1")
def test_the_text_is_sorted_dense_and_names_type_and_schema():
    assert to_json(PackedDocuments((5, 3, 8))) == DOCUMENTS


@pytest.mark.rule("SERIAL-1")
@given(hps.plan_values())
def test_the_text_is_canonical(value):
    text = to_json(value)
    members = json.loads(text)
    assert text == json.dumps(members, sort_keys=True, separators=(",", ":"))
    assert members["type"] == type(value).__name__
    assert members["schema"] == 1
    assert set(members) == {"type", "schema", *(field.name for field in attrs.fields(type(value)))}


@pytest.mark.rule("SERIAL-1")
def test_equal_values_made_in_different_ways_have_one_text():
    one = Outcome(False, "HP-DOC-001", "x", {"a": 1, "b": 2})
    other = Outcome(False, "HP-DOC-001", "x", {"b": 2, "a": 1})
    assert one == other
    assert to_json(one) == to_json(other)


@pytest.mark.rule("SERIAL-3")
@pytest.mark.parametrize(
    ("text", "where"),
    [
        (document_text(lengths=[0]), "json.lengths"),
        (document_text(lengths=[1.5]), "json.lengths"),
        (document_text(lengths=[True]), "json.lengths"),
        (document_text(lengths="83"), "json.lengths"),
        (document_text(lengths=[[5]]), "json.lengths"),
        (document_text(lengths=[2**70]), "json.lengths"),
    ],
)
def test_reading_validates_like_any_construction(text, where):
    with refused("HP-DOC-001") as refusal:
        from_json(text)
    assert refusal.error.where == where


@pytest.mark.rule("SERIAL-3")
def test_reading_reports_every_violation_with_its_place():
    members = json.loads(to_json(exchange()))
    with refused("HP-EXCHANGE-004") as refusal:
        from_json(json.dumps({**members, "send_rows": [9], "required": False}))
    found = [(violation.code, violation.where) for violation in refusal.error.violations]
    assert found == [("HP-EXCHANGE-004", "json.send_rows"), ("HP-EXCHANGE-006", "json.required")]


@pytest.mark.rule("SERIAL-3")
def test_a_nested_value_is_named_by_its_path():
    members = json.loads(to_json(indexer_task_plan((5, 3, 8), 2, 1, "none")))
    members["documents"]["lengths"] = []
    with refused("HP-DOC-001") as refusal:
        from_json(json.dumps(members))
    assert refusal.error.where == "json.documents.lengths"


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nonsense",
        '{"a":1,"a":2}',
        '{"lengths":[NaN],"schema":1,"type":"PackedDocuments"}',
        b"\xff\xfe\xff",
        "[" * 100_000,
        None,
        7,
    ],
)
def test_what_is_not_json_is_refused(text):
    with refused("HP-SERIAL-001") as refusal:
        from_json(text)
    assert refusal.error.where == "json"
    assert refusal.error.facts == {}


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize(
    ("text", "got"),
    [
        (document_text(schema=2), "2"),
        (document_text(schema=1.0), "1.0"),
        (document_text(schema=0), "0"),
        (document_text(schema=None), "None"),
        (document_text(schema=True), "True"),
        (document_text(schema="1"), "'1'"),
        ("[1,2]", "None"),
        ("null", "None"),
    ],
)
def test_another_schema_version_is_refused(text, got):
    with refused("HP-SERIAL-001") as refusal:
        from_json(text)
    assert refusal.error.where == "json.schema"
    assert refusal.error.facts == {"got": got, "known": 1}


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize("kind", ["Documents", 3, [1], None])
def test_an_unknown_type_is_refused(kind):
    with refused("HP-SERIAL-002") as refusal:
        from_json(document_text(type=kind))
    assert refusal.error.where == "json"
    assert "PackedDocuments" in refusal.error.facts["known"]
    assert list(refusal.error.facts["known"]) == sorted(refusal.error.facts["known"])


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize(
    ("text", "missing", "unknown"),
    [
        (document_text(more=1), (), ("more",)),
        (document_text(lengths=None), ("lengths",), ()),
        (document_text(lengths=None, length=[1]), ("lengths",), ("length",)),
    ],
)
def test_fields_are_exactly_those_of_the_type(text, missing, unknown):
    with refused("HP-SERIAL-002") as refusal:
        from_json(text)
    assert refusal.error.where == "json"
    assert refusal.error.facts == {"missing": missing, "unknown": unknown}


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize("value", [1.5, object(), b"x", 1.5j, [1.5], [1, 2], 3, None, "text"])
def test_only_plan_values_are_written(value):
    with refused("HP-SERIAL-002") as refusal:
        to_json(value)
    assert "type" in refusal.error.facts


@pytest.mark.rule("SERIAL-5")
def test_only_plan_values_are_digested():
    with refused("HP-SERIAL-002") as refusal:
        digest(1.5j)
    assert refusal.error.facts == {"type": "complex"}


@pytest.mark.rule("SERIAL-5")
@pytest.mark.parametrize("depth", [200, 480, 900, 5000])
def test_text_nested_too_deep_is_refused(depth):
    with pytest.raises(PlanError):
        from_json(f'{{"lengths":{"[" * depth}{"]" * depth},"schema":1,"type":"PackedDocuments"}}')


def a_value_or_a_coded_error(text):
    """``from_json`` either refuses with a ``PlanError`` or gives a value that is whole."""
    try:
        value = from_json(text)
    except PlanError:
        return
    assert len(value.digest) == 64
    assert from_json(to_json(value)) == value


LEAVES = st.sampled_from([None, True, 1.5, -1, 0, 3, 2**70, 1e400, "", "x", "\ud800", [], [1], [[1]], [None], {}])
NESTED = st.sampled_from([{"a": 1}, {"type": "PackedDocuments"}, json.loads(DOCUMENTS), [json.loads(DOCUMENTS)]])


def paths(value, path=()):
    """Every place of a JSON value."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield from paths(entry, (*path, name))


@pytest.mark.rule("SERIAL-3", "SERIAL-5")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_member_replaced_gives_a_value_or_a_coded_error(kind, data):
    members = json.loads(to_json(data.draw(KINDS[kind])))
    path = data.draw(st.sampled_from([path for path in paths(members) if path]))
    holder = members
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = data.draw(LEAVES | NESTED)
    a_value_or_a_coded_error(json.dumps(members))


PLAN = indexer_task_plan((5, 3, 8), 2, 1, "locality", capacity=16)
BANKS = sliding_window_plan((0, 5, 8, 16), 4, 4, 6)
SAMPLES = {
    "PackedDocuments": PLAN.documents,
    "RowExchange": exchange(),
    "Outcome": Outcome(False, "HP-DOC-001", "lengths", {"document": 3}, "broken"),
    "IndexerOptions": PLAN.options,
    "IndexerTask": PLAN.worker_tasks(0)[0],
    "IndexerSegment": plan_route(PLAN, 0).segments[0],
    "IndexerTaskPlan": PLAN,
    "IndexerRoute": plan_route(PLAN, 0),
    "IndexerPlanReport": indexer_plan_report(PLAN),
    "RowRuns": RowRuns([4, 0], [7, 2]),
    "SequenceBankPlan": BANKS,
    "SequenceDispatchRoute": bank_route(BANKS, 1),
    "SequenceReport": SequenceReport("window", 100, [4, 4, 4, 4], [0, 4, 0, 4], [0, 1, 0, 1], [1, 0, 1, 0]),
    "DocumentCompressionPlan": document_compression_plan((0, 5, 8, 16), 2, 4, 4, 3, overlap=True),
    "PackedSequence": PackedSequence((0, 5, 8, 16), 4, 8, 16),
    "CsaTndPlan": csa_tnd_plan(plan_route(PLAN, 0).segments, 1),
}
IMPOSTORS = [None, True, False, 1.5, -1, 0, 3, 2**70, 1e400, "", "x", [], [1], [[1]], [None], {}, {"a": 1}]
MEMBERS = [(kind, field.name) for kind, value in SAMPLES.items() for field in attrs.fields(type(value))]


@pytest.mark.rule("SERIAL-3", "VALUE-1")
@pytest.mark.parametrize(("kind", "name"), MEMBERS)
def test_a_field_that_is_read_has_the_kind_it_always_has(kind, name):
    members = json.loads(to_json(SAMPLES[kind]))
    normal = getattr(SAMPLES[kind], name)
    for impostor in IMPOSTORS:
        try:
            value = from_json(json.dumps({**members, name: impostor}))
        except PlanError:
            continue
        got = getattr(value, name)
        optional = kind == "IndexerOptions" and (normal is None or got is None)
        assert type(got) is type(normal) or optional, impostor
        assert from_json(to_json(value)) == value


@pytest.mark.rule("SERIAL-3", "SERIAL-5")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_characters_changed_give_a_value_or_a_coded_error(kind, data):
    text = to_json(data.draw(KINDS[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        kept = data.draw(st.sampled_from([0, 1]))
        text = text[:at] + data.draw(st.sampled_from(list('0179-.e,:"[]{}tnx\\ '))) + text[at + kept :]
    a_value_or_a_coded_error(text)


@pytest.mark.rule("SERIAL-3", "SERIAL-5")
@given(st.text(max_size=30) | st.binary(max_size=30))
def test_any_text_gives_a_value_or_a_coded_error(text):
    a_value_or_a_coded_error(text)


def test_text_that_utf8_cannot_encode_has_a_digest():
    """Messages of failures may hold such text: undecodable file names arrive as lone surrogates."""
    assert len(Outcome(False, "HP-AGREE-002", message="file \udcff").digest) == 64


@pytest.mark.rule("SERIAL-4")
def test_digests_are_the_same_in_every_version_of_schema_1():
    assert digest(PackedDocuments((5, 3, 8))) == "18bfb1877f09a53908e7df3e38c562f9f89f2d0c3c5342567a4af9ce5544e192"
    assert exchange().digest == "b18e04630a9459499eea517dbbf787ce0d198207649742e2ce09790ce4b5314a"


SCRIPT = """
from hpfun import *
values = [PackedDocuments((5, 3, 8)), Outcome(False, "HP-DOC-001", "x", {"b": 2, "a": (1, 2), "c": "t"})]
for mode in ("none", "zigzag", "greedy", "hybrid", "locality"):
    options = {"block_size": 2} if mode in ("greedy", "hybrid") else {}
    options |= {"zigzag_min_length": 6} if mode == "hybrid" else {}
    plan = indexer_task_plan((5, 3, 8), 2, 1, mode, **options)
    values += [plan, plan_route(plan, 1), indexer_plan_report(plan)]
cuts = (0, 5, 8, 16)
for banks in (sliding_window_plan(cuts, 4, 4, 6), document_prefix_plan(cuts, 4, 4, 2)):
    values += [banks, bank_route(banks, 1), sequence_report(banks, 100)]
values += [document_compression_plan(cuts, 2, 4, 4, 3, True), PackedSequence(cuts, 4, 8, 16)]
values += [csa_tnd_plan(indexer_segments(cuts, 4, 8, 2), 2)]
for value in values:
    print(value.digest, to_json(value))
"""


@pytest.mark.rule("SERIAL-4")
def test_text_and_digest_do_not_depend_on_the_hash_seed():
    results = set()
    for seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        results.add(done.stdout)
    assert len(results) == 1
    assert results.pop().count("\n") == 26


@pytest.mark.rule("SERIAL-4", "VALUE-3")
@given(hps.plan_values(), hps.plan_values())
def test_digests_are_equal_exactly_if_texts_are(one, other):
    assert (one.digest == other.digest) == (to_json(one) == to_json(other))


@pytest.mark.rule("SERIAL-4")
def test_digests_tell_apart_what_looks_alike():
    alike = [
        Outcome(facts={"a": 1, "b": 2}),
        Outcome(facts={"a": 12}),
        Outcome(facts={"a": "1", "b": "2"}),
        Outcome(facts={"a": (1, 2)}),
        Outcome(facts={"a": ((1, 2),)}),
        Outcome(facts={"a": ((1,), 2)}),
        Outcome(facts={"a": True}),
        Outcome(facts={"a": "True"}),
        Outcome(facts={"a": None}),
        Outcome(facts={"ab": ""}),
        Outcome(facts={"a": "b"}),
        Outcome(),
    ]
    assert len({outcome.digest for outcome in alike}) == len(alike)
    empty = {"send_rows": [], "input_splits": [0, 0], "receive_rows": [], "output_splits": [0, 0]}
    assert exchange(**empty, num_source_rows=1).digest != exchange(**empty, num_target_rows=3).digest


@pytest.mark.rule("SERIAL-4")
def test_field_digests_say_which_field_differs():
    ours, theirs = field_digests(exchange()), field_digests(exchange(local_sources=[1]))
    assert [name for name in ours if ours[name] != theirs[name]] == ["local_sources"]
    assert list(ours) == [field.name for field in attrs.fields(RowExchange)]
