"""Outcome of one rank, merged over ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import Outcome, PackedDocuments, PlanError, Violation, attempt, from_json, merge_outcomes, to_json
from hpfun.strategies import outcomes, plan_errors
from tests.refusals import refused


def test_a_result_comes_with_a_fine_outcome():
    value, outcome = attempt(PackedDocuments, lengths=(5, 3))
    assert value == PackedDocuments((5, 3))
    assert outcome == Outcome()
    assert outcome.ok


def test_a_refusal_becomes_an_outcome_with_its_parts():
    value, outcome = attempt(PackedDocuments, (5, 0))
    assert value is None
    assert not outcome.ok
    assert (outcome.code, outcome.where, outcome.facts) == ("HP-DOC-001", "lengths", {"document": 1, "length": 0})
    assert outcome.suggestion == "drop empty documents"


def test_an_unexpected_exception_becomes_a_coded_outcome():
    value, outcome = attempt(int, "x")
    assert value is None
    assert (outcome.ok, outcome.code, outcome.where) == (False, "HP-AGREE-002", "")
    assert outcome.facts["type"] == "ValueError"
    with refused("HP-AGREE-002"):
        raise outcome.error()


def test_long_messages_are_cut():
    outcome = Outcome.of(RuntimeError("x" * 10_000))
    assert len(outcome.facts["message"]) == 500
    assert len(outcome.message) == 500


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_must_stop_the_process_is_not_caught(error):
    def stop():
        raise error

    with pytest.raises(error):
        attempt(stop)


@given(plan_errors())
def test_an_error_that_crosses_ranks_says_the_same(error):
    again = from_json(to_json(Outcome.of(error))).error()
    assert type(again) is PlanError
    assert str(again) == str(error)
    for told, first in zip(again.violations, error.violations, strict=True):
        assert (told.code, told.where, told.suggestion) == (first.code, first.where, first.suggestion)
        for name, fact in first.facts.items():
            assert told.facts[name] == fact or list(told.facts[name]) == list(fact)


def test_facts_that_json_cannot_carry_are_described():
    facts = {"shape": (2, [3, None]), "value": 1.5, "kind": int, "long": bytes(1000), "by_rank": {0: (1, 2.5)}}
    outcome = Outcome.of(PlanError(Violation("HP-DOC-001", "a", "broken", facts)))
    assert outcome.facts["shape"] == (2, (3, None))
    assert outcome.facts["value"] == "1.5"
    assert outcome.facts["kind"] == "<class 'int'>"
    assert len(outcome.facts["long"]) == 200
    assert outcome.facts["by_rank"] == {"0": (1, "2.5")}
    assert from_json(to_json(outcome)) == outcome


@given(st.lists(outcomes(), max_size=5))
def test_the_lowest_failing_rank_speaks_for_the_group(ranks):
    merged = merge_outcomes(ranks)
    failing = [rank for rank, outcome in enumerate(ranks) if not outcome.ok]
    if not failing:
        assert merged == Outcome()
        return
    first = ranks[failing[0]]
    assert merged.facts == {**first.facts, "failing_ranks": tuple(failing)}
    kept = (first.code, first.where, first.suggestion)
    assert (merged.ok, merged.code, merged.where, merged.suggestion) == (False, *kept)
    assert merged.message.startswith(first.message)
    assert all(str(rank) in merged.message.removeprefix(first.message) for rank in failing[:6])


def test_merging_changes_no_outcome():
    bad = attempt(PackedDocuments, ())[1]
    merge_outcomes([Outcome(), bad])
    assert "failing_ranks" not in bad.facts


def test_all_ranks_merge_to_the_same():
    parts = [Outcome(), attempt(PackedDocuments, ())[1], attempt(PackedDocuments, (0,))[1]]
    assert merge_outcomes(parts).digest == merge_outcomes([from_json(to_json(part)) for part in parts]).digest
