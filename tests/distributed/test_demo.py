"""The demo's selection: real projections and keys gathered over processes, against one process."""

import pytest
import torch

from hpfun import PackedDocuments
from hpfun_torch import demo
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


def test_a_wrong_call_says_how_to_call_it(capsys):
    assert demo.main([]) == 2
    assert "usage" in capsys.readouterr().err
