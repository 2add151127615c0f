"""What ``check="off"`` leaves to the group's timeout: the peers of a rank with a bad tensor."""

import pytest

from hpfun_torch.ranks import RankPool
from tests.distributed import on_ranks
from tests.distributed.test_exchange_rows import shift


@pytest.mark.rule("EXECUTOR-10")
def test_with_check_off_the_peers_end_at_the_groups_timeout():
    with RankPool(2, group_timeout_s=2.0) as pool:
        answers = pool.run(on_ranks.bad_tensor, shift(2, 4, 1), 1, "off", "rows", timeout_s=30)
    # the peer's transfer fails inside torch.distributed, after the timeout and not before
    assert [answer[0] for answer in answers] == ["HP-AGREE-002", "HP-EXCHANGE-008"]
    assert answers[0][2] >= 1.5
    assert answers[1][2] < 1
