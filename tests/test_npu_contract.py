"""The adapters to Ascend's operators without a device: every call is made, against the operators' schemas.

The kernels behind the schemas are formulas (``tests/npu/kernels.py``); results and gradients are compared with loops
over rows. ``make npu-contract`` runs this file on the schemas of the wheel.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpfun.attention import AttentionSegments, attention_segments  # noqa: E402
from hpfun_torch import ops  # noqa: E402
from hpfun_torch.ops import npu  # noqa: E402
from hpfun_torch.ops.npu import lengths, limits  # noqa: E402
from tests.npu import kernels, register, schemas  # noqa: E402
from tests.oracles.attention import attend, attend_packed, kl  # noqa: E402
from tests.oracles.lightning import selected_ids  # noqa: E402
from tests.refusals import refused  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
HALF = torch.float16


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """CPU tensors go to the NPU's adapters, whose operators have CPU kernels."""
    register.register()
    kernels.CALLS.clear()
    monkeypatch.setitem(ops.BACKENDS, "cpu", "hpfun_torch.ops.npu")


def normal(*shape, seed=0, dtype=HALF, grad=False):
    random = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=random) / 2).to(dtype).requires_grad_(grad)


def ranges(pair):
    return list(zip(*(part.tolist() for part in pair), strict=True))


def close(got, expected, digits=2e-3):
    """Equal within the rounding of 16 bits; -inf where it is expected."""
    got, expected = got.detach().double(), expected.detach().double()
    assert got.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite])
    if finite.any():
        most = max(1.0, float(expected[finite].abs().max()))
        assert float((got[finite] - expected[finite]).abs().max()) <= digits * most


def compare(function, oracle, inputs):
    """Outputs, and the gradients of the first output by all inputs that have one, weighted alike."""
    got, expected = function(), oracle()
    for mine, theirs in zip(got, expected, strict=True):
        close(mine, theirs)
    random = torch.Generator().manual_seed(9)
    weight = torch.randn(expected[0].shape, generator=random).to(got[0].dtype)
    leaves = [part for part in inputs if part is not None and part.requires_grad]
    mine = torch.autograd.grad((got[0] * weight).sum(), leaves)
    theirs = torch.autograd.grad((expected[0] * weight.double()).sum(), leaves)
    for one, other in zip(mine, theirs, strict=True):
        close(one, other, 4e-3)


def seen_ids(segments, queries, topk, seed=0, empty=()):
    """Random ids of visible keys, in no order, with -1 between them."""
    random = np.random.default_rng(seed)
    out = np.full((queries, topk), -1)
    for t, (first, last) in enumerate(ranges(segments.key_ranges())):
        count = min(last - first, topk)
        places = np.sort(random.permutation(topk)[:count])
        out[t, places] = 0 if t in empty else random.permutation(np.arange(first, last))[:count]
        if t in empty:
            out[t] = -1
    return torch.from_numpy(out)


# the lightning indexer


def selected_by_loops(query, key, weights, parts, topk):
    visible = [(0, 0)] * len(query)
    for start, stop, first, last, _ in parts:
        for t in range(start, stop):
            visible[t] = (first, max(0, last - first - (stop - 1 - t)))
    return selected_ids(query.tolist(), key.tolist(), weights.tolist(), visible, topk)


@pytest.mark.rule("OPS-12", "OPS-13", "OPS-15")
@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=4))
def test_ids_are_those_of_the_bank_ascending_with_the_filling_behind(cuts):
    parts, row, bank = [], 0, 3
    for gap, rows, keys in cuts:  # rows between segments, segments without keys, fewer keys than rows
        parts.append((row + gap, row + gap + rows, bank, bank + keys, 0))
        row, bank = row + gap + rows, bank + max(0, keys - 1)  # banks of neighbours overlap
    random = torch.Generator().manual_seed(row)
    keys = max(part[3] for part in parts)
    query = torch.zeros(row + 1, 64, 128, dtype=HALF)
    query[:, :2, :2] = torch.randint(-1, 2, (row + 1, 2, 2), generator=random).to(HALF)
    key = torch.zeros(keys, 128, dtype=HALF)
    key[:, :2] = torch.randperm(2 * keys, generator=random).view(keys, 2).to(HALF)
    weights = torch.ones(row + 1, 64, dtype=HALF) * 3
    kernels.CALLS.clear()
    got = ops.lightning_indexer(query, key, weights, parts, 1, 3)
    expected = selected_by_loops(query[:, :2, :2], key[:, :2], weights[:, :2], parts, 3)
    assert got.dtype == torch.int32
    for mine, theirs in zip(got.tolist(), expected, strict=True):
        assert len(mine) == 3
        assert sum(j >= 0 for j in mine) == sum(j >= 0 for j in theirs)
    scores = torch.einsum("qhd,kd->qhk", query.double(), key.double()).relu().sum(1) * 3
    for t, (mine, theirs) in enumerate(zip(got.tolist(), expected, strict=True)):
        kept = [j for j in mine if j >= 0]
        assert mine == [*sorted(set(kept)), *[-1] * (3 - len(kept))]
        wanted = [j for j in theirs if j >= 0]
        assert sorted(scores[t, kept].tolist()) == sorted(scores[t, wanted].tolist())  # equal scores: any of them
    assert set(kernels.CALLS) <= {"npu_lightning_indexer"}


@pytest.mark.rule("OPS-14")
def test_ids_do_not_depend_on_autocast_and_carry_no_gradient():
    query, key, weights = normal(4, 64, 128, grad=True), normal(4, 128), normal(4, 64)
    parts = [(0, 4, 0, 4, 0)]
    plain = ops.lightning_indexer(query, key, weights, parts, 1, 2)
    with torch.autocast("cpu", torch.bfloat16):  # the kernel asserts that it is off
        assert torch.equal(ops.lightning_indexer(query, key, weights, parts, 1, 2), plain)
    assert not plain.requires_grad


# sparse attention


def whole(boundaries, local, rank, window, ratio):
    segments = attention_segments(boundaries, local, boundaries[-1] // local, rank, window, ratio)
    return segments, int(segments.window_stops.max()), int(segments.key_stops.max())


@pytest.mark.rule("OPS-12", "OPS-14")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_selected_attention_of_576_channels(rank, dtype):
    segments, _, keys = whole((0, 3, 7, 8), 4, rank, 0, 1)
    query, bank = normal(4, 2, 576, dtype=dtype, grad=True), normal(keys, 576, dtype=dtype, grad=True)
    ids = seen_ids(segments, 4, 3, empty=(1,))
    options = {"segments": segments, "scale": 0.1, "value_width": 512}
    if dtype == torch.bfloat16:  # eight times coarser
        out, lse = ops.sparse_attention(query, None, bank, ids, **options)
        wanted = attend(query, None, bank, ids, [], [], 0.1, None, 512)
        close(out, wanted[0], 2e-2)
        close(lse, wanted[1], 2e-2)
        return
    compare(
        lambda: ops.sparse_attention(query, None, bank, ids, **options),
        lambda: attend(query, None, bank, ids, [], [], 0.1, None, 512),
        (query, bank),
    )
    assert kernels.CALLS == ["npu_sparse_flash_attention", "npu_sparse_flash_attention_grad"]


MLA_CASES = [
    # ratio, topk, boundaries: the window alone; one that cuts, and all keys; chosen keys of a document and of its end
    (0, None, (0, 3, 12)),
    (128, None, (0, 130, 260)),
    (4, 512, (0, 3, 12)),
    (1, 512, (0, 5, 12)),
]


@pytest.mark.rule("OPS-12", "OPS-14", "OPS-15")
@pytest.mark.parametrize(("ratio", "topk", "boundaries"), MLA_CASES)
@pytest.mark.parametrize("sink", [False, True])
def test_window_and_compressed_keys_of_512_channels(ratio, topk, boundaries, sink):
    local = boundaries[-1] // 2
    segments, rows, keys = whole(boundaries, local, 1, 128, ratio)
    if ratio == 128:  # loops take long: the last rows of the shard alone
        segments = AttentionSegments([0], [3], [0], [rows], [0], [keys], [127], 128, 128)
        local = 4
    query, near = normal(local, 2, 512, grad=True), normal(rows, 512, grad=True)
    far = normal(keys, 512, seed=1, grad=True) if ratio else None
    sinks = normal(2, dtype=torch.float32, grad=True) if sink else None
    ids = None if topk is None else seen_ids(segments, local, topk)
    options = {"segments": segments, "scale": 0.05, "sinks": sinks}
    compare(
        lambda: ops.sparse_attention(query, near, far, ids, **options),
        lambda: attend(
            query, near, far, ids, ranges(segments.window_ranges()), ranges(segments.key_ranges()), 0.05, sinks
        ),
        (query, near, far, sinks),
    )
    assert kernels.CALLS == ["sparse_flash_mla_metadata", "sparse_flash_mla", "sparse_flash_mla_grad"]


# packed attention


@pytest.mark.rule("OPS-12", "OPS-14", "OPS-15")
@pytest.mark.parametrize("window", [2, 8])
@pytest.mark.parametrize("sink", [False, True])
def test_packed_attention_with_grouped_heads(window, sink):
    segments, rows, _ = whole((0, 3, 8), 4, 1, window, 0)
    query = normal(5, 4, 6, dtype=torch.float32, grad=True)  # one row more than the segments have
    key, value = (normal(rows + 1, 2, n, dtype=torch.float32, grad=True) for n in (6, 5))
    sinks = normal(4, dtype=torch.float32, grad=True) if sink else None
    compare(
        lambda: ops.packed_attention(query, key, value, segments=segments, scale=0.4, sinks=sinks),
        lambda: attend_packed(query, key, value, ranges(segments.window_ranges()), 0.4, sinks),
        (query, key, value, sinks),
    )
    assert kernels.CALLS == ["npu_fusion_attention_v2", "npu_fusion_attention_grad_v2"]


# the indexer's loss


@pytest.mark.rule("OPS-12", "OPS-14")
@pytest.mark.parametrize("num_queries", [None, 40])
def test_loss_of_the_indexer_and_its_gradients(num_queries):
    segments, _, keys = whole((0, 3, 6), 3, 1, 0, 1)
    index = [normal(3, 64, 128, grad=True), normal(keys, 128, grad=True), normal(3, 64, grad=True)]
    query, bank = normal(3, 2, 576), normal(keys, 576)
    ids = seen_ids(segments, 3, 512, empty=(1,))
    tensors = (*index, ids, query, bank)
    # one scalar, weighted by what the kernel does not know
    compare(
        lambda: (8 * ops.indexer_kl(*tensors, segments=segments, scale=0.1, num_queries=num_queries),),
        lambda: (8 * kl(*tensors, 0.1, None, num_queries),),
        index,
    )
    assert kernels.CALLS == ["npu_sparse_flash_attention", "npu_sparse_lightning_indexer_grad_kl_loss"]


@pytest.mark.rule("OPS-15")
def test_rows_outside_every_segment_attend_to_nothing():
    keys_only = AttentionSegments([2], [3], [0], [0], [1], [4], [0], 0, 1)
    query, bank = normal(4, 2, 576, grad=True), normal(5, 576, grad=True)
    ids = torch.tensor([[-1, -1], [-1, -1], [3, 1], [-1, -1]])
    compare(
        lambda: ops.sparse_attention(query, None, bank, ids, segments=keys_only, scale=0.1, value_width=512),
        lambda: attend(query, None, bank, ids, [], [], 0.1, None, 512),
        (query, bank),
    )


# conventions, limits, dispatch


@pytest.mark.rule("OPS-12")
def test_each_convention_of_lengths_in_its_form():
    counts, here = np.array([2, 0, 3]), torch.device("cpu")
    assert lengths.host_lengths(counts) == [2, 2, 5]
    for function, expected in (
        (lengths.cumulative_without_zero, [2, 2, 5]),
        (lengths.cumulative_with_zero, [0, 2, 2, 5]),
    ):
        found = function(counts, here)
        assert (found.tolist(), found.dtype) == (expected, torch.int32)


def dsa(**changes):
    segments = attention_segments((0, 4), 4, 1, 0, 0, changes.pop("ratio", 1))
    dim, heads, dtype = changes.pop("dim", 576), changes.pop("heads", 2), changes.pop("dtype", HALF)
    ids = torch.zeros(4, changes.pop("topk", 2), dtype=torch.int64) if changes.pop("ids", True) else None
    options = {"segments": segments, "scale": 1.0, "value_width": 512, **changes}
    return ops.sparse_attention(normal(4, heads, dim, dtype=dtype), None, normal(4, dim, dtype=dtype), ids, **options)


def mla(**changes):
    window, ratio, topk = changes.pop("window", 128), changes.pop("ratio", 4), changes.pop("topk", 512)
    rows = changes.pop("rows", 200)
    segments = attention_segments((0, rows), rows, 1, 0, window, ratio)
    dim, heads, dtype = changes.pop("dim", 512), changes.pop("heads", 1), changes.pop("dtype", HALF)
    parts = normal(rows, heads, dim, dtype=dtype), normal(rows, dim, dtype=dtype), normal(rows, dim, dtype=dtype)
    return ops.sparse_attention(*parts, torch.full((rows, topk), -1), segments=segments, scale=1.0, **changes)


def indexer(**changes):
    heads, dim, dtype = changes.get("heads", 64), changes.get("dim", 128), changes.get("dtype", HALF)
    tensors = normal(4, heads, dim, dtype=dtype), normal(4, dim), normal(4, heads)
    ratio, topk, reduce_scores = changes.get("ratio", 1), changes.get("topk", 2), changes.get("reduce_scores")
    return ops.lightning_indexer(*tensors, [(0, 4, 0, 4, 0)], ratio, topk, reduce_scores=reduce_scores)


def packed(**changes):
    segments = attention_segments((0, 4), 4, 1, 0, 4, 0)
    if "documents" in changes:
        count = changes["documents"]
        segments = attention_segments(tuple(range(count + 1)), count, 1, 0, 4, 0)
    rows, dtype = segments.num_rows, changes.get("dtype", torch.float32)
    heads, dim, width = changes.get("heads", 1), changes.get("dim", 4), changes.get("width", 4)
    parts = (normal(rows, n, d, dtype=dtype) for n, d in ((heads, dim), (1, dim), (1, width)))
    return ops.packed_attention(*parts, segments=segments, scale=1.0)


def loss(**changes):
    segments = attention_segments((0, 4), 4, 1, 0, 0, changes.get("ratio", 1))
    heads, dim, wide = changes.get("index_heads", 64), changes.get("index_dim", 128), changes.get("dim", 576)
    many, keys, dtype = changes.get("heads", 2), changes.get("keys", 4), changes.get("dtype", HALF)
    tensors = normal(4, heads, dim, dtype=dtype), normal(keys, dim), normal(4, heads)
    ids = torch.full((4, changes.get("topk", 512)), -1)
    rest = ids, normal(4, many, wide), normal(keys, wide)
    return ops.indexer_kl(*tensors, *rest, segments=segments, scale=1.0, sinks=changes.get("sinks"))


BROKEN = [
    (indexer, {"dtype": torch.float32}, "dtype"),
    (indexer, {"heads": 32}, "query heads"),
    (indexer, {"dim": 64}, "head dim"),
    (indexer, {"topk": 2049}, "topk"),
    (indexer, {"topk": 9216}, "topk"),
    (indexer, {"ratio": 2}, "ratio"),
    (indexer, {"reduce_scores": abs}, "reduce_scores"),
    (dsa, {"dtype": torch.float32}, "dtype"),
    (dsa, {"heads": 3}, "heads"),
    (dsa, {"dim": 577}, "dim"),
    (dsa, {"value_width": 500}, "value_width"),
    (dsa, {"ratio": 2}, "ratio"),
    (dsa, {"ids": False}, "selected"),
    (dsa, {"topk": 0}, "topk"),
    (dsa, {"sinks": torch.zeros(2)}, "sinks"),
    (mla, {"dtype": torch.float32}, "dtype"),
    (mla, {"heads": 129}, "heads"),
    (mla, {"dim": 513, "value_width": 512}, "dim"),
    (mla, {"value_width": 256}, "value_width"),
    (mla, {"window": 64}, "window"),
    (mla, {"window": 64, "rows": 100}, "window"),
    (mla, {"window": 256}, "window"),
    (mla, {"ratio": 2}, "ratio"),
    (mla, {"topk": 511}, "topk"),
    (mla, {"topk": 0}, "topk"),
    (packed, {"dtype": torch.float64}, "dtype"),
    (packed, {"heads": 257}, "heads"),
    (packed, {"dim": 769}, "dim"),
    (packed, {"width": 5}, "value dim at most dim"),
    (packed, {"documents": 2049}, "sequences"),
    (loss, {"dtype": torch.float32}, "dtype"),
    (loss, {"index_heads": 32}, "index heads"),
    (loss, {"index_dim": 64}, "index dim"),
    (loss, {"heads": 3}, "heads"),
    (loss, {"dim": 575}, "dim"),
    (loss, {"ratio": 2}, "ratio"),
    (loss, {"topk": 3}, "topk"),
    (loss, {"topk": 513}, "topk"),
    (loss, {"sinks": torch.zeros(2)}, "sinks"),
]


@pytest.mark.rule("OPS-11")
@pytest.mark.parametrize(("call", "changes", "quantity"), BROKEN)
def test_a_limit_is_refused_before_the_operator_is_called(call, changes, quantity):
    with refused("HP-OPS-002") as caught:
        call(**changes)
    (violation,) = caught.error.violations
    facts = violation.facts
    assert (facts["quantity"], facts["got"] in facts["legal"]) == (quantity, False)
    assert violation.suggestion
    assert kernels.CALLS == []


@pytest.mark.rule("OPS-11")
def test_all_broken_limits_are_refused_at_once_and_at_their_edges_none():
    with refused("HP-OPS-002") as caught:
        indexer(heads=32, dim=64, topk=2500, ratio=2)
    quantities = [violation.facts["quantity"] for violation in caught.error.violations]
    assert quantities == ["query heads", "head dim", "topk", "ratio"]
    for call, changes in ((indexer, {"topk": 2048}), (indexer, {"topk": 8192}), (packed, {"dim": 768, "width": 768})):
        call(**changes)
    loss(topk=4)
    loss(keys=600, topk=512)
    with refused("HP-OPS-002"):
        loss(keys=600, topk=511)
    assert 5 in limits.Span(5, 6)
    assert 7 not in limits.Span(5, 6)


@pytest.mark.rule("OPS-16")
def test_an_extension_takes_an_operator_over():
    seen = []

    def other(query, key, weights, segments, ratio, topk, *, reduce_scores):
        seen.append((ratio, topk, [tuple(part) for part in segments]))
        return "ids"

    npu.register_extension("lightning_indexer", other)
    try:
        assert indexer(ratio=4, heads=2) == "ids"
        assert seen == [(4, 2, [(0, 4, 0, 4, 0)])]
        with refused("HP-OPS-001"):  # the contract comes first
            indexer(ratio=0)
    finally:
        npu.register_extension("lightning_indexer", None)
    with refused("HP-OPS-002"):
        indexer(ratio=4)
    for name, function in (("indexer", other), ("indexer_kl", 7)):
        with refused("HP-OPS-001"):
            npu.register_extension(name, function)


class OnAnotherDevice(torch.Tensor):
    device = SimpleNamespace(type="npu")


@pytest.mark.rule("OPS-9")
def test_the_device_of_the_query_chooses_the_backend(monkeypatch):
    monkeypatch.undo()
    ones = torch.ones(2, 1, 1)
    assert ops.select_backend(ones).__name__ == "hpfun_torch.ops.cpu"
    with refused("HP-OPS-004") as caught:
        ops.lightning_indexer(ones.to("meta"), ones, ones, [], 1, 1)
    assert caught.error.facts["device"] == "meta"
    elsewhere = ones.as_subclass(OnAnotherDevice)
    monkeypatch.setitem(ops.NEEDED, "npu", ("no_such_package", "pip install hpfun[npu]"))
    with refused("HP-OPS-004") as caught:
        ops.select_backend(elsewhere)
    assert (caught.error.facts["package"], caught.error.suggestion) == ("no_such_package", "pip install hpfun[npu]")
    monkeypatch.setitem(ops.NEEDED, "npu", ("json", ""))
    assert ops.select_backend(elsewhere) is npu
    monkeypatch.setattr(OnAnotherDevice, "device", SimpleNamespace(type="cuda"))
    assert ops.select_backend(elsewhere).__name__ == "hpfun_torch.ops.cuda"


@pytest.mark.rule("OPS-9")
def test_cuda_has_the_formulas_of_the_cpu():
    from hpfun_torch.ops import cpu, cuda

    one = torch.ones(3, 1, 1)
    arguments = (one, torch.tensor([[1.0], [3.0], [2.0]]), torch.ones(3, 1), [(0, 3, 0, 3, 0)], 1, 2)
    assert torch.equal(cuda.lightning_indexer(*arguments), cpu.lightning_indexer(*arguments))


LAZY = """
import sys, torch
from hpfun_torch import ops
one = torch.ones(3, 1, 1)
ops.lightning_indexer(one, one[:, 0], one[:, 0], [(0, 3, 0, 3, 0)], 1, 2)
print(*[name for name in sys.modules if name in ("torch_npu", "hpfun_torch.ops.npu", "hpfun_torch.ops.cuda")])
"""


@pytest.mark.rule("OPS-10")
def test_nothing_of_an_npu_is_loaded_for_cpu_tensors():
    alone = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # torch itself loads no device's package
    run = [sys.executable, "-c", LAZY]
    done = subprocess.run(run, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.rule("OPS-8")
def test_what_breaks_the_contract_is_refused_all_at_once():
    segments = attention_segments((0, 4), 4, 1, 0, 2, 1)
    query, bank = normal(3, 2, 8), normal(4, 8)
    tensors = (torch.ones(4, 2, 8), torch.ones(4, 8), torch.ones(4, 8))
    with refused("HP-OPS-001") as caught:
        ops.sparse_attention(
            query, bank, normal(3, 7), torch.full((3, 1), 9), segments=segments, scale=float("nan"), value_width=9
        )
    places = [violation.where for violation in caught.error.violations]
    assert places == ["query", "query", "key_bank", "selected", "scale", "value_width"]
    calls = (
        lambda: ops.sparse_attention(*tensors, None, segments=7, scale=1.0),
        lambda: ops.sparse_attention(tensors[0], None, *tensors[2:], None, segments=segments, scale=1.0),
        lambda: ops.sparse_attention(*tensors[:2], None, None, segments=segments, scale=1.0),
        lambda: ops.sparse_attention(*tensors, None, segments=attention_segments((0, 4), 4, 1, 0, 0, 1), scale=1.0),
        lambda: ops.sparse_attention(*tensors, tensors[2], segments=segments, scale=1.0),
        lambda: ops.sparse_attention(*tensors, torch.full((4, 1), -2), segments=segments, scale=1.0),
        lambda: ops.packed_attention(query, query, query, segments=segments, scale=1.0),
        lambda: ops.packed_attention(tensors[0], *[normal(4, 3, 8)] * 2, segments=segments, scale=1.0),
        lambda: ops.indexer_kl(*tensors, None, tensors[0], tensors[1], segments=segments, scale=1.0),
        lambda: ops.lightning_indexer(*tensors, [], 1, 1, reduce_scores=3),
        lambda: ops.packed_attention(7, tensors[1], None, segments=segments, scale=True),
    )
    for call in calls:
        with refused("HP-OPS-001"):
            call()
    assert kernels.CALLS == []


# the wheel


@pytest.mark.skipif(not register.WHEEL, reason="the wheel is not installed")
@pytest.mark.parametrize("schema", schemas.NPU, ids=register.name_of)
def test_schemas_are_those_of_the_wheel(schema):
    name = register.name_of(schema)
    assert torch._C.parse_schema(f"npu::{schema}") == getattr(torch.ops.npu, name).default._schema


@pytest.mark.skipif("npu-stubs" not in os.environ.get("LD_LIBRARY_PATH", ""), reason="the wheel is not on stubs")
def test_a_stub_that_would_compute_reports_an_error():
    stubs = ctypes.CDLL("libhccl.so")
    assert stubs.aclrtGetDevice() == 0
    for name in ("aclopCompileAndExecute", "rtKernelLaunch", "aclrtMemcpy"):
        assert getattr(stubs, name)() != 0
