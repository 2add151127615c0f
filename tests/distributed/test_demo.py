"""The demo: selection, banks and gradients over processes, against one process."""

import attrs
import pytest
import torch

from hpfun import PackedDocuments
from hpfun_torch import demo, demo_attention, demo_batch, demo_routes
from tests.distributed import on_ranks_attention as on_ranks
from tests.refusals import refused

PACK = PackedDocuments((900, 40, 1, 59, 1000))


@pytest.mark.rule("SELECT-9")
def test_the_demo_finds_the_ids_of_one_process_and_balances_the_rows():
    found = demo.compare_selection(PACK, 4, seed=3)
    assert set(found) == {"none", "locality"}
    assert [one.rows for one in found["none"]] == [500] * 4
    assert sum(one.rows for one in found["locality"]) == 2000
    assert len({one.rows for one in found["locality"]}) > 1


@pytest.mark.rule("SELECT-9")
def test_the_demo_refuses_one_wrong_id(monkeypatch):
    right = demo.select_alone

    def wrong(documents: PackedDocuments, local: int, seed: int) -> torch.Tensor:
        ids = right(documents, local, seed)
        ids[777, 5] += 1
        return ids

    monkeypatch.setattr(demo, "select_alone", wrong)
    with refused("HP-RANKS-002") as caught:
        demo.compare_selection(PACK, 4, seed=3)
    assert caught.error.where == "rank 1"
    assert caught.error.facts["rows"] == 1


@pytest.mark.rule("DISPATCH-6")
@pytest.mark.parametrize("part", ["window", "keys", "grad"])
def test_the_demo_of_routes_refuses_one_wrong_row(monkeypatch, part):
    right = demo_routes.banks_alone

    def wrong(documents: PackedDocuments, seed: int) -> list[demo_routes.Banks]:
        banks = right(documents, seed)
        values = getattr(banks[2], part).copy()
        values[7, 5] += 1e-9
        return [*banks[:2], attrs.evolve(banks[2], **{part: values}), *banks[3:]]

    demo_routes.check_banks(PACK, seed=3)
    monkeypatch.setattr(demo_routes, "banks_alone", wrong)
    with refused("HP-RANKS-002") as caught:
        demo_routes.check_banks(PACK, seed=3)
    assert caught.error.where == "rank 2"
    assert caught.error.facts["rows"] == 1


@pytest.mark.rule("HF-14")
def test_the_demo_of_attention_trains_as_one_process_and_refuses_another_loss(ranks):
    source = demo_attention.source_tokens(2 * demo_attention.TOKENS)
    assert sum(source.lengths) == len(source.ids) == 2048
    alone = list(demo_attention.train_alone(source, 2))
    split = ranks(4).run(demo_attention.train_on_rank, source, "locality", 2)[0]
    demo_attention.check_losses(split, alone)
    assert split == pytest.approx(alone, abs=1e-4)
    with refused("HP-RANKS-002") as caught:
        demo_attention.check_losses([split[0], split[1] + 0.01], alone)
    assert caught.error.facts["steps"] == (1,)


@pytest.mark.rule("HF-14")
def test_the_demo_of_attention_compares_choices(ranks, monkeypatch):
    monkeypatch.setattr(demo_attention, "REPEATS", 1)
    found = demo_attention.compare_selection(ranks(4), PACK)
    assert len(found.plain) == len(found.balanced) == 4
    assert found.gain == max(found.plain) / max(found.balanced)
    monkeypatch.setattr(demo_attention, "select_on_rank", on_ranks.another_choice)
    with refused("HP-RANKS-002") as caught:
        demo_attention.compare_selection(ranks(4), PACK)
    assert caught.error.facts["rows"] == 4


def test_a_wrong_call_says_how_to_call_it(capsys):
    assert demo.main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.rule("BATCH-22", "BATCH-27")
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_demo_of_batches_cuts_and_restores_and_refuses_a_lost_label(ranks, layout):
    source = demo_attention.source_tokens(2001)
    answers = ranks(4).run(demo_batch.cut_on_rank, source, layout)
    demo_batch.check_cuts(answers, source, layout)
    assert {answer["rows"] for answer in answers} == {answers[0]["rows"]}
    for change in ({"labels": answers[2]["labels"] - 1}, {"whole": False}):
        with refused("HP-RANKS-002") as caught:
            demo_batch.check_cuts([*answers[:2], answers[2] | change, answers[3]], source, layout)
        assert caught.error.facts["mode"] == layout


@pytest.mark.rule("HF-16")
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_demo_of_batches_trains_as_one_process(ranks, layout):
    source = demo_attention.source_tokens(2 * demo_attention.TOKENS)
    alone = list(demo_batch.train_alone(source, 2))
    split = ranks(4).run(demo_batch.train_on_rank, source, layout, 2)[0]
    assert split == pytest.approx(alone, abs=1e-5)
