"""Agreement over real processes: one answer for all, in time, and a group that works on."""

import pytest
import torch

from hpfun import attempt, indexer_task_plan, to_json
from hpfun_torch import agree
from tests.distributed import on_ranks
from tests.refusals import refused

LENGTHS = (37, 1, 3, 30, 25)


def plan_text(ratio: int = 1, mode: str = "locality", lengths: tuple[int, ...] = LENGTHS) -> str:
    return to_json(indexer_task_plan(lengths, 4, ratio, mode))


def answers(ranks, texts, failing=None):
    got = ranks(4).run(on_ranks.agreed, texts, failing or {})
    assert all(spent < 5 for _, _, spent in got)
    assert len({code for code, _, _ in got}) == 1
    assert len({str(sorted(facts.items())) for _, facts, _ in got}) == 1
    return got[0][0], got[0][1]


@pytest.mark.rule("AGREE-1", "AGREE-6")
def test_equal_plans_agree_on_their_digest_and_after_a_refusal_too(ranks):
    digest = indexer_task_plan(LENGTHS, 4, 1, "locality").digest
    assert answers(ranks, [plan_text()] * 4) == (digest, {})
    assert answers(ranks, [plan_text()] * 3 + [plan_text(2)])[0] == "HP-AGREE-001"
    assert answers(ranks, [plan_text()] * 4) == (digest, {})


@pytest.mark.rule("AGREE-1")
def test_a_route_stands_for_its_plan(ranks):
    assert len(set(ranks(4).run(on_ranks.agreed_route, LENGTHS))) == 1


@pytest.mark.rule("AGREE-2")
def test_every_rank_learns_which_fields_differ_and_how(ranks):
    texts = [plan_text()] * 3 + [plan_text(ratio=2, mode="none")]
    code, facts = answers(ranks, texts)
    assert code == "HP-AGREE-001"
    assert {"ratio", "options.mode"} <= set(facts["fields"])
    assert facts["values"]["ratio"] == ("1", "1", "1", "2")
    assert facts["odd_ranks"] == (3,)
    code, facts = answers(ranks, [plan_text()] * 3 + [plan_text(lengths=(36, 2, 3, 30, 25))])
    assert "documents.lengths" in facts["fields"]
    assert "ratio" not in facts["fields"]


@pytest.mark.rule("AGREE-3", "AGREE-4")
@pytest.mark.parametrize(("kind", "code"), [("plan error", "HP-INDEX-002"), ("crash", "HP-AGREE-002")])
def test_a_rank_that_failed_fails_all_with_its_code(ranks, kind, code):
    got, facts = answers(ranks, [plan_text()] * 4, {1: kind, 3: kind})
    assert got == code
    assert facts["failing_ranks"] == (1, 3)
    if kind == "plan error":
        assert facts["remainder"] == 2
    else:
        assert facts["type"] == "ZeroDivisionError"


@pytest.mark.rule("AGREE-3")
def test_the_lowest_failing_rank_speaks_for_all(ranks):
    assert answers(ranks, [plan_text()] * 4, {1: "plan error", 3: "crash"})[0] == "HP-INDEX-002"
    assert answers(ranks, [plan_text()] * 4, {0: "crash", 3: "plan error"})[0] == "HP-AGREE-002"


@pytest.mark.rule("AGREE-3")
@pytest.mark.parametrize(("kind", "code"), [("no plan", "HP-SERIAL-002"), ("odd facts", "HP-DOC-001")])
def test_what_cannot_be_compared_fails_on_every_rank(ranks, kind, code):
    got = ranks(2).run(on_ranks.agree_on_nonsense, kind)
    assert [one for one, _ in got] == [code] * 2
    assert all(spent < 5 for _, spent in got)


@pytest.mark.rule("AGREE-3")
def test_a_failure_outweighs_a_difference(ranks):
    texts = [plan_text(), plan_text(2), plan_text(), plan_text()]
    assert answers(ranks, texts, {2: "plan error"})[0] == "HP-INDEX-002"


@pytest.mark.rule("AGREE-5")
def test_a_used_plan_against_a_new_one_is_refused_on_every_rank(ranks):
    used, new = plan_text(), plan_text(ratio=3)
    assert answers(ranks, [used] * 4)[0] not in ("HP-AGREE-001", "")
    assert answers(ranks, [new, used, used, used])[0] == "HP-AGREE-001"
    assert answers(ranks, [used, new, used, used])[0] == "HP-AGREE-001"


@pytest.mark.rule("AGREE-3", "AGREE-4")
def test_one_process_without_a_group_agrees_with_itself():
    plan = indexer_task_plan((4,), 1, 1, "none")
    assert agree(plan).digest == plan.digest
    plan, outcome = attempt(indexer_task_plan, (), 1, 1, "none")
    with refused("HP-INDEX-001"):
        agree(plan, None, outcome)
    _, outcome = attempt(torch.ones, "x")
    with refused("HP-AGREE-002") as caught:
        agree(None, None, outcome)
    assert caught.error.facts["type"] == "TypeError"


def test_a_difference_of_one_process_cannot_be_but_codes_are_raised_here_too(ranks):
    texts = [plan_text()] * 3 + [plan_text(2)]
    with refused("HP-AGREE-001"):
        ranks(4).run(on_ranks.raise_agreed, texts)
    with refused("HP-AGREE-003"):
        ranks(2).run(on_ranks.raise_different_tensors)
