"""PlanError: what a refusal carries, how it reads, and how it travels."""

import copy
import pickle
import re

import pytest
from hypothesis import given

import hpfun
from hpfun import (
    CODES,
    IndexerOptions,
    Outcome,
    PackedDocuments,
    PlanError,
    Violation,
    from_json,
    indexer_task_plan,
    merge_outcomes,
    sliding_window_plan,
    to_json,
)
from hpfun.errors import refusal
from hpfun.strategies import plan_errors, violations
from tests.refusals import refused
from tests.test_exchange import exchange


@pytest.mark.rule("ERROR-1")
@given(plan_errors())
def test_an_error_has_all_violations_and_the_parts_of_the_first(error):
    first = error.violations[0]
    assert (error.code, error.where, error.facts, error.suggestion) == (
        first.code,
        first.where,
        first.facts,
        first.suggestion,
    )
    assert error.code in CODES


@pytest.mark.rule("ERROR-1")
def test_two_violations_are_one_error():
    one, other = Violation("HP-DOC-001", "a", "broken", {"x": 1}, "mend"), Violation("HP-DOC-002", "b", "too")
    error = PlanError(one, other)
    assert (error.code, error.where, error.facts, error.suggestion) == ("HP-DOC-001", "a", {"x": 1}, "mend")
    assert error.violations == (one, other)
    assert str(error) == "[HP-DOC-001] at `a`: broken; mend\n[HP-DOC-002] at `b`: too"


@pytest.mark.rule("ERROR-1")
def test_an_error_needs_a_violation():
    with pytest.raises(TypeError):
        PlanError()


@pytest.mark.rule("ERROR-1")
def test_facts_are_a_snapshot_that_cannot_be_written():
    facts = {"x": 1}
    violation = Violation("HP-DOC-001", "a", "broken", facts)
    facts["x"] = 2
    assert violation.facts == {"x": 1}
    with pytest.raises(TypeError):
        violation.facts["x"] = 3


@pytest.mark.rule("ERROR-1")
def test_refusal_gathers_the_parts():
    error = refusal("HP-DOC-001", "a", "broken", "mend", rows=3, size=2)
    assert error.violations == (Violation("HP-DOC-001", "a", "broken", {"rows": 3, "size": 2}, "mend"),)


@pytest.mark.rule("ERROR-2")
@given(violations())
def test_a_violation_reads_as_one_line_with_code_place_message_and_way_out(violation):
    line = violation.line()
    assert "\n" not in line
    assert line.startswith(f"[{violation.code}]")
    assert (f"at `{violation.where}`" in line) == bool(violation.where)
    assert violation.message in line
    assert line.endswith(violation.suggestion or violation.message)


@pytest.mark.rule("ERROR-2")
def test_a_line_without_place_and_advice():
    assert Violation("HP-DOC-001", "", "broken").line() == "[HP-DOC-001]: broken"


@pytest.mark.rule("ERROR-2")
@given(plan_errors())
def test_an_error_reads_as_one_line_a_violation(error):
    assert str(error).split("\n") == [violation.line() for violation in error.violations]


@pytest.mark.rule("ERROR-2")
@pytest.mark.parametrize("text", ["two\nlines", "two\r\nlines"])
def test_text_from_elsewhere_stays_on_one_line(text):
    assert "\n" not in Violation("HP-DOC-001", "a", text).line()
    assert "\n" not in str(Outcome.of(ValueError(text)).error())


@pytest.mark.rule("ERROR-2")
@pytest.mark.parametrize("value", ["a\nb", "x" * 10_000, ["a\nb"] * 1000])
def test_user_input_is_quoted_short_and_on_one_line(value):
    with refused("HP-EXCHANGE-001") as caught:
        exchange(rank=value)
    assert len(str(caught.error)) < 300


@pytest.mark.rule("ERROR-3")
def test_a_plan_error_is_a_value_error():
    assert issubclass(PlanError, ValueError)
    with pytest.raises(ValueError, match=re.escape("[HP-DOC-001] at `lengths`")):
        PackedDocuments(())


@pytest.mark.rule("ERROR-4")
@given(plan_errors())
def test_an_outer_layer_prefixes_every_place(error):
    outer = error.inside("plan")
    assert [v.where for v in outer.violations] == [f"plan.{v.where}" if v.where else "plan" for v in error.violations]
    assert [(v.code, v.message, v.facts, v.suggestion) for v in outer.violations] == [
        (v.code, v.message, v.facts, v.suggestion) for v in error.violations
    ]
    assert error.inside("b").inside("a").where == outer.inside("x").where.replace("x.plan", "a.b")


@pytest.mark.rule("ERROR-4")
def test_reading_json_prefixes_json():
    with refused("HP-DOC-001") as caught:
        from_json('{"lengths":[],"schema":1,"type":"PackedDocuments"}')
    assert caught.error.where == "json.lengths"


@pytest.mark.rule("ERROR-5")
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@given(error=plan_errors())
def test_an_error_survives_pickle_and_copy(again, error):
    twin = again(error)
    assert type(twin) is PlanError
    assert twin.violations == error.violations
    assert str(twin) == str(error)


@pytest.mark.rule("ERROR-1")
def test_codes_are_well_formed_and_each_has_its_rule():
    for code, rule in CODES.items():
        assert re.fullmatch(r"HP-[A-Z]+-\d{3}", code)
        assert rule
        assert rule[-1] not in ".!"
    assert len(set(CODES)) == len(CODES)
    with pytest.raises(TypeError):
        hpfun.CODES["HP-DOC-001"] = "anything"


@pytest.mark.rule("ERROR-6")
def test_all_that_is_wrong_is_told_at_once_in_the_order_of_codes():
    with refused("HP-INDEX-001") as caught:
        indexer_task_plan((5, 0), 3, 1, "best")
    assert [violation.code for violation in caught.error.violations] == ["HP-INDEX-001", "HP-INDEX-003"]
    with refused("HP-INDEX-004") as caught:
        IndexerOptions("none", block_size=8, zigzag_min_length=3, capacity=0, tolerance_ppm=-1, ranks_per_node=2)
    codes = [violation.code[-3:] for violation in caught.error.violations]
    assert codes == ["004", "005", "006", "011", "011"]
    with refused("HP-ROUTE-001") as caught:
        sliding_window_plan((1, 5), 0, True, 3)
    assert [violation.where for violation in caught.error.violations] == ["local_length", "size", "boundaries"]


@pytest.mark.rule("ERROR-6")
@given(plan_errors())
def test_all_violations_cross_the_ranks(error):
    merged = merge_outcomes([Outcome(), from_json(to_json(Outcome.of(error)))])
    told = merged.error()
    assert [violation.code for violation in told.violations] == [violation.code for violation in error.violations]
    assert str(told).replace(" (on rank 1 of the group)", "", 1) == str(error)


@pytest.mark.rule("ERROR-6")
@pytest.mark.parametrize("others", [3, (3,), (Outcome(),), (Outcome.of(KeyError("a")), None)])
def test_further_violations_of_an_outcome_are_failures(others):
    with refused("HP-SERIAL-002"):
        Outcome(False, "HP-DOC-001", others=others)
