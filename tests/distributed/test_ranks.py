"""The pool of local ranks itself."""

import pytest
import torch.distributed as dist

from hpfun_torch.ranks import RankError, RankPool
from tests.distributed import on_ranks
from tests.refusals import refused


@pytest.mark.rule("RANKS-1")
def test_a_function_runs_on_every_rank_and_answers_in_order(ranks):
    assert ranks(3).run(dist.get_rank) == [0, 1, 2]


@pytest.mark.rule("RANKS-2")
def test_a_silent_rank_ends_the_pool_and_the_next_call_works():
    with RankPool(2) as pool:
        assert pool.run(on_ranks.sleeps_on_rank, -1, 0) == [0, 1]
        with refused("HP-RANKS-001") as caught:
            pool.run(on_ranks.sleeps_on_rank, 1, 60, timeout_s=1)
        assert caught.error.facts["silent_ranks"] == (1,)
        assert pool.run(on_ranks.sleeps_on_rank, -1, 0, timeout_s=30) == [0, 1]


@pytest.mark.rule("RANKS-3")
def test_what_a_rank_raises_reaches_the_caller(ranks):
    with refused("HP-DOC-001"):
        ranks(2).run(on_ranks.fails_on_rank, 1, "plan error")
    with pytest.raises(RankError, match="on purpose"):
        ranks(2).run(on_ranks.fails_on_rank, 1, "crash")
    assert ranks(2).run(dist.get_rank) == [0, 1]
    with pytest.raises(RankError, match="pickle"):
        ranks(2).run(on_ranks.answers_a_function)


@pytest.mark.rule("RANKS-3")
def test_the_cause_is_told_and_not_a_peers_timeout(monkeypatch):
    monkeypatch.setattr("hpfun_torch.ranks.GRACE_S", 1.0)
    with RankPool(2, group_timeout_s=20) as pool:
        with pytest.raises(RankError, match="on purpose"):
            pool.run(on_ranks.leaves_a_collective, 1)
        assert pool.run(dist.get_rank) == [0, 1]
