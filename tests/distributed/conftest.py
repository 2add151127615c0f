"""One pool of ranks per session and size; all tests on it run in one worker process."""

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from hpfun_torch.ranks import RankPool  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/distributed" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], RankPool]]:
    """Pools by size, started when first asked for."""
    pools: dict[int, RankPool] = {}

    def pool(size: int) -> RankPool:
        if size not in pools:
            pools[size] = RankPool(size)
        return pools[size]

    yield pool
    for started in pools.values():
        started.close()
