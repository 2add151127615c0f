"""The Lightning Indexer operator: exact ids, ties included, whatever stands beside a row, in bounded memory."""

import itertools
import weakref

import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hpfun import PackedDocuments, indexer_route  # noqa: E402
from hpfun.strategies import lengths  # noqa: E402
from hpfun_torch.ops import lightning_indexer  # noqa: E402
from hpfun_torch.ops.cpu import indexer as cpu  # noqa: E402
from tests.oracles.lightning import selected_ids  # noqa: E402
from tests.refusals import refused  # noqa: E402


def visible_keys(pack: tuple[int, ...], ratio: int) -> list[tuple[int, int]]:
    answer, first = [], 0
    for length in pack:
        answer += [(first, (position + 1) // ratio) for position in range(length)]
        first += length // ratio
    return answer


def tensors(pack, ratio, heads, dim, seed, integers=True, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    total, keys = sum(pack), sum(length // ratio for length in pack)
    shapes = ((total, heads, dim), (keys, dim), (total, heads))
    if integers:
        return [torch.randint(-1, 2, shape, generator=random).to(dtype) for shape in shapes]
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


def whole(pack, ratio):
    return indexer_route(pack, 1, 0, ratio, "none").segments


@pytest.mark.rule("OPS-1", "OPS-2", "OPS-3", "OPS-5")
@given(
    lengths(max_length=20), st.integers(1, 5), st.integers(1, 9), st.sampled_from(("float32", "float16", "bfloat16"))
)
@example((20, 1, 7), 1, 3, "float32")
def test_ids_equal_loops_over_tokens_with_ties(pack, ratio, topk, dtype):
    query, key, weights = tensors(pack, ratio, 2, 3, seed=len(pack), dtype=getattr(torch, dtype))
    got = lightning_indexer(query, key, weights, whole(pack, ratio), ratio, topk)
    expected = selected_ids(query.tolist(), key.tolist(), weights.tolist(), visible_keys(pack, ratio), topk)
    assert got.tolist() == expected
    assert got.dtype == torch.int32


@pytest.mark.rule("OPS-1")
def test_ids_equal_a_full_einsum_and_stable_sort_on_real_scores():
    query, key, weights = tensors((3000,), 1, 4, 32, seed=1, integers=False)
    scores = torch.einsum(
        "qhk,qh->qk", torch.einsum("qhd,kd->qhk", query.double(), key.double()).relu(), weights.double()
    )
    scores.masked_fill_(torch.arange(3000) > torch.arange(3000)[:, None], -torch.inf)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :64].sort(dim=1).values
    got = lightning_indexer(query, key, weights, [(0, 3000, 0, 3000, 0)], 1, 64)
    rows = torch.arange(64, 3000)
    # float32 may swap two keys whose scores agree to seven digits; float64 says how rarely that is
    assert (got[rows] != best[rows]).any(1).float().mean() < 0.01


@pytest.mark.rule("OPS-2", "OPS-4")
@pytest.mark.parametrize(("rows", "keys", "span"), [(16, 8, 32), (256, 1024, 64), (7, 1024, 4096), (256, 64, 40)])
def test_chunks_and_spans_change_no_id(monkeypatch, rows, keys, span):
    pack = (300, 5, 170)
    exact, rounded = tensors(pack, 1, 4, 16, 3), tensors(pack, 1, 4, 16, 3, integers=False)
    before = [lightning_indexer(*inputs, whole(pack, 1), 1, 24) for inputs in (exact, rounded)]
    monkeypatch.setattr(cpu, "ROWS", rows)
    monkeypatch.setattr(cpu, "KEYS", keys)
    monkeypatch.setattr(cpu, "SPAN", span)
    after = [lightning_indexer(*inputs, whole(pack, 1), 1, 24) for inputs in (exact, rounded)]
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@pytest.mark.rule("OPS-4")
@settings(max_examples=25)
@given(st.lists(st.integers(1, 1199), max_size=5, unique=True), st.booleans())
def test_a_row_has_the_same_ids_in_any_segment_cut(cuts, integers):
    query, key, weights = tensors((1200,), 1, 2, 32, 5, integers=integers)
    edges = [0, *sorted(cuts), 1200]
    parts = [(a, b, 0, b, 0) for a, b in itertools.pairwise(edges)]
    assert torch.equal(
        lightning_indexer(query, key, weights, parts, 1, 20),
        lightning_indexer(query, key, weights, [(0, 1200, 0, 1200, 0)], 1, 20),
    )


@pytest.mark.rule("OPS-4")
def test_a_row_alone_has_the_ids_it_has_among_others():
    query, key, weights = tensors((2000,), 1, 4, 64, 6, integers=False)
    among = lightning_indexer(query, key, weights, [(0, 2000, 0, 2000, 0)], 1, 50)
    for row in (50, 51, 777, 1999):
        alone = lightning_indexer(query[row : row + 1], key, weights[row : row + 1], [(0, 1, 0, row + 1, 0)], 1, 50)
        assert torch.equal(alone[0], among[row])


@pytest.mark.rule("OPS-3", "OPS-5")
def test_ids_count_from_the_start_of_the_bank_and_rows_outside_see_nothing():
    query, key, weights = tensors((12,), 1, 1, 2, 0)
    got = lightning_indexer(query, key, weights, [(2, 4, 6, 8, 0)], 1, 3)
    assert got[2:4].tolist() == [[6, -1, -1], [6, 7, -1]]
    assert (got[[0, 1, *range(4, 12)]] == -1).all()
    assert lightning_indexer(query, key[:0], weights, [(0, 12, 0, 0, 5)], 20, 2).tolist() == [[-1, -1]] * 12


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that live at once and were made inside the block."""

    def __init__(self):
        super().__init__()
        self.live: dict[int, list[int]] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                entry = self.live.setdefault(storage.data_ptr(), [storage.nbytes(), 0])
                if entry[1] == 0:
                    self.now += entry[0]
                entry[1] += 1
                weakref.finalize(tensor, self.drop, storage.data_ptr())
        self.peak = max(self.peak, self.now)
        return result

    def drop(self, pointer):
        entry = self.live.get(pointer)
        if entry is not None:
            entry[1] -= 1
            if entry[1] == 0:
                self.now -= entry[0]
                del self.live[pointer]


@pytest.mark.rule("OPS-6")
def test_memory_does_not_grow_with_queries_or_keys(monkeypatch):
    monkeypatch.setattr(cpu, "SPAN", 256)
    monkeypatch.setattr(cpu, "ROWS", 64)
    monkeypatch.setattr(cpu, "KEYS", 128)
    peaks = []
    for total in (768, 2304):
        query, key, weights = tensors((total,), 1, 2, 8, 0)
        with LiveBytes() as memory:
            lightning_indexer(query, key, weights, [(0, total, 0, total, 0)], 1, 16)
        # inputs are seen as views, ids are the result; int64 row numbers are the one thing per query
        given_bytes = sum(part.untyped_storage().nbytes() for part in (query, key, weights))
        peaks.append(memory.peak - given_bytes - total * (16 * 4 + 4 * 8))
    full = 2304 * 2304 * 4
    assert peaks[1] <= peaks[0] * 1.1
    assert peaks[1] < full / 10


@pytest.mark.rule("OPS-1", "OPS-4")
def test_ids_do_not_depend_on_autocast_around_the_call():
    query, key, weights = tensors((300,), 1, 4, 32, 8, integers=False)
    plain = lightning_indexer(query, key, weights, [(0, 300, 0, 300, 0)], 1, 20)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lightning_indexer(query, key, weights, [(0, 300, 0, 300, 0)], 1, 20), plain)


@pytest.mark.rule("OPS-7")
@pytest.mark.parametrize(
    "parts", [[(0, 3, 0, 2, 5)], [(0, 3, 0, 2, 1)], [(0, 4, 0, 6, 0), (3, 6, 0, 6, 0)], [(0, 6, 0)], [7]]
)
def test_segments_that_see_past_their_keys_or_overlap_are_refused(parts):
    query, key, weights = tensors((6,), 1, 2, 3, 0)
    with refused("HP-OPS-001"):
        lightning_indexer(query, key, weights, parts, 1, 2)


@pytest.mark.rule("OPS-7")
def test_what_does_not_fit_is_refused_all_at_once():
    query, key, weights = tensors((6,), 1, 2, 3, 0)
    with refused("HP-OPS-001") as caught:
        lightning_indexer(query[0], key.int(), weights, [], 1, 2)
    assert [violation.where for violation in caught.error.violations] == ["query", "key"]
    with refused("HP-OPS-001") as caught:
        lightning_indexer(query, key[:, :2], weights.to("meta"), [(0, 7, 0, 6, 0), (0, 6, 0, 9, 0)], 1, 2)
    places = [violation.where for violation in caught.error.violations]
    assert places == ["query", "query", "segments[0]", "segments[1]"]
    for ratio, topk in ((0, 1), (1, 0), (True, 1), (1, 2.0), (2**70, 1), (1, 2**40)):
        with refused("HP-OPS-001"):
            lightning_indexer(query, key, weights, [], ratio, topk)
    key[3, 1] = torch.nan
    with refused("HP-OPS-003"):
        lightning_indexer(query + 1, key, weights + 2, [(0, 6, 0, 6, 0)], 1, 2)


@pytest.mark.rule("OPS-1", "OPS-3")
def test_documents_of_every_kind_in_one_pack():
    pack = (1, 700, 3, 260)
    query, key, weights = tensors(pack, 3, 2, 4, 9)
    documents = PackedDocuments(pack)
    got = lightning_indexer(query, key, weights, whole(pack, 3), 3, 40)
    expected = selected_ids(query.tolist(), key.tolist(), weights.tolist(), visible_keys(pack, 3), 40)
    assert got.shape == (documents.total, 40)
    assert got.tolist() == expected
