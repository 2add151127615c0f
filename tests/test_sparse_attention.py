"""Sparse attention and the indexer's loss on the CPU: the definition row by row, gradients, and memory."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpfun.attention import attention_segments  # noqa: E402
from hpfun.strategies import lengths  # noqa: E402
from hpfun_torch.ops import cpu  # noqa: E402
from hpfun_torch.ops.cpu import parts as module  # noqa: E402
from tests.oracles.attention import attend, attend_packed, kl  # noqa: E402
from tests.refusals import refused  # noqa: E402


def ranges(segments):
    """Window rows and visible keys of each row, as the oracle takes them."""
    pairs = (zip(*found, strict=True) for found in (segments.window_ranges(), segments.key_ranges()))
    return [[(int(start), int(stop)) for start, stop in rows] for rows in pairs]


def inputs(segments, seed, heads, width, topk, sink, dense, dtype=torch.float64):
    """Random query, banks, choices (with repeats) and sinks that fit the segments."""
    random = torch.Generator().manual_seed(seed)
    rows = segments.num_rows

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

    window = draw(int(segments.window_stops.max()), width) if segments.window else None
    keys = draw(int(segments.key_stops.max()), width) if segments.ratio else None
    chosen = None
    if keys is not None and not dense:
        starts, stops = (torch.from_numpy(edges.copy()) for edges in segments.key_ranges())
        place = torch.rand(rows, topk, generator=random)
        chosen = (starts[:, None] + place * (stops - starts)[:, None]).floor().long()
        chosen = torch.where((torch.rand(rows, topk, generator=random) < 0.3) | (stops == starts)[:, None], -1, chosen)
    return draw(rows, heads, width), window, keys, chosen, draw(heads) if sink else None


def shards(pack, size, rank, window, ratio):
    total = -(-sum(pack) // size) * size
    pack = (*pack, total - sum(pack)) if total > sum(pack) else pack
    return attention_segments(np.cumsum((0, *pack)), total // size, size, rank % size, window, ratio)


@pytest.mark.rule("OPS-20", "OPS-21", "OPS-22")
@settings(max_examples=40)
@given(
    lengths(max_length=12),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([(3, 2), (7, 1), (0, 3), (5, 0), (0, 1)]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 99),
)
@example((12, 1, 9), 2, 1, (7, 2), False, True, 2, 0)
def test_output_and_gradients_equal_loops_over_rows(pack, size, rank, shape, sink, dense, value_width, seed):
    segments = shards(pack, size, rank, *shape)
    query, window, keys, chosen, sinks = inputs(segments, seed, 2, 3, 4, sink, dense)
    options = {"scale": 0.7, "sinks": sinks, "value_width": value_width}
    got, sums = cpu.sparse_attention(query, window, keys, chosen, segments=segments, **options)
    expected, expected_sums = attend(query, window, keys, chosen, *ranges(segments), 0.7, sinks, value_width)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-10, atol=1e-12)
    asked = [tensor for tensor in (query, window, keys, sinks) if tensor is not None]
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = torch.autograd.grad((got * weight).sum(), asked)
    plain = (expected * weight).sum()
    wanted = (
        torch.autograd.grad(plain, asked, allow_unused=True, materialize_grads=True)
        if plain.requires_grad
        else [torch.zeros_like(tensor) for tensor in asked]
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.rule("OPS-20")
@pytest.mark.parametrize("dense", [True, False])
def test_chunks_change_nothing_but_rounding(monkeypatch, dense):
    segments = shards((300, 40), 2, 0, 16, 4)
    given_ = inputs(segments, 0, 2, 8, 6, True, dense)

    def run():
        got, _ = cpu.sparse_attention(*given_[:4], segments=segments, scale=0.5, sinks=given_[4])
        return got, *torch.autograd.grad(got.square().sum(), [given_[0], *given_[1:3], given_[4]])

    before = run()
    for rows, elements in ((7, 2**22), (256, 2**10), (1, 2**22)):
        monkeypatch.setattr(module, "ROWS", rows)
        monkeypatch.setattr(module, "ELEMENTS", elements)
        for one, other in zip(run(), before, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.rule("OPS-21")
def test_a_row_with_nothing_to_attend_to_gives_zero_and_no_gradient():
    segments = shards((8,), 1, 0, 0, 4)
    query, _, keys, chosen, sinks = inputs(segments, 0, 2, 3, 2, True, False)
    for sink in (None, sinks):
        got, sums = cpu.sparse_attention(query, None, keys, chosen, segments=segments, scale=1.0, sinks=sink)
        assert not got[:3].any()
        assert torch.equal(sums[:3], torch.full((3, 2), -torch.inf) if sink is None else sinks.detach().expand(3, 2))
        grad = torch.autograd.grad(got.sum(), query)[0]
        assert not grad[:3].any()
        assert grad.isfinite().all()


@pytest.mark.rule("OPS-23")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_run_in_float32_whatever_the_dtype(dtype):
    segments = shards((64,), 1, 0, 16, 4)
    query, window, keys, chosen, sinks = inputs(segments, 3, 2, 8, 6, True, False, dtype)
    got, sums = cpu.sparse_attention(query, window, keys, chosen, segments=segments, scale=0.4, sinks=sinks)
    expected, _ = attend(query, window, keys, chosen, *ranges(segments), 0.4, sinks)
    assert (got.dtype, sums.dtype) == (dtype, torch.float32)
    # one rounding of the output
    torch.testing.assert_close(got.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6)
    found = torch.autograd.grad(got.float().sum(), [query, window, keys, sinks])
    wanted = torch.autograd.grad(expected.sum(), [query, window, keys, sinks])
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        scale = float(other.abs().max())
        torch.testing.assert_close(
            one.double() / scale, other.double() / scale, rtol=0, atol=4 * torch.finfo(dtype).eps
        )


@pytest.mark.rule("OPS-23")
def test_autocast_changes_nothing_and_wider_sinks_learn_in_their_own_dtype():
    segments = shards((64,), 1, 0, 16, 4)
    query, window, keys, chosen, _ = inputs(segments, 3, 2, 8, 6, False, False, torch.bfloat16)
    sinks = torch.randn(2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    asked = [query, window, keys, sinks]
    index = [tensor.detach().clone().requires_grad_() for tensor in (query, keys, query[..., 0])]

    def run():
        got, sums = cpu.sparse_attention(query, window, keys, chosen, segments=segments, scale=0.4, sinks=sinks)
        loss = cpu.indexer_kl(*index, chosen, query, keys, segments=segments, scale=0.4)
        return (
            got,
            sums,
            loss,
            *torch.autograd.grad(got.float().square().sum(), asked),
            *torch.autograd.grad(loss, index),
        )

    plain = run()
    with torch.autocast("cpu", torch.bfloat16):
        for one, other in zip(run(), plain, strict=True):
            assert torch.equal(one, other)
    assert plain[6].dtype == torch.float32
    assert not torch.equal(plain[6], plain[6].bfloat16().float())


@pytest.mark.rule("OPS-22")
def test_transforms_of_functions_go_through_it_and_a_second_gradient_is_refused():
    segments = shards((20,), 1, 0, 4, 2)
    query, window, keys, chosen, sinks = (
        tensor if tensor is None or not tensor.requires_grad else tensor.detach()
        for tensor in inputs(segments, 1, 2, 3, 3, True, False)
    )

    def loss(query, window, keys, sinks):
        found, _ = cpu.sparse_attention(query, window, keys, chosen, segments=segments, scale=0.3, sinks=sinks)
        return found.square().sum()

    by_transform = torch.func.grad(loss, argnums=(0, 1, 2, 3))(query, window, keys, sinks)
    leaves = [tensor.clone().requires_grad_() for tensor in (query, window, keys, sinks)]
    grads = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    for one, other in zip(by_transform, grads, strict=True):
        assert torch.equal(one, other)
    with refused("HP-OPS-005"):
        torch.autograd.grad(grads[0].sum(), leaves)


@pytest.mark.rule("OPS-20")
@settings(max_examples=15)
@given(lengths(max_length=10), st.integers(1, 3), st.integers(0, 2), st.booleans(), st.sampled_from([1, 2]))
def test_packed_attention_equals_loops_over_rows(pack, size, rank, sink, groups):
    segments = shards(pack, size, rank, 4, 0)
    random = torch.Generator().manual_seed(len(pack))
    rows, held = segments.num_rows, int(segments.window_stops.max())
    tensors = [
        torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()
        for shape in ((rows, 2, 3), (held, groups, 3), (held, groups, 5), *([(2,)] if sink else []))
    ]
    sinks = tensors[3] if sink else None
    got, sums = cpu.packed_attention(*tensors[:3], segments=segments, scale=0.4, sinks=sinks)
    expected, expected_sums = attend_packed(*tensors[:3], ranges(segments)[0], 0.4, sinks)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-10, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(got.square().sum(), tensors),
        torch.autograd.grad(expected.square().sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


MEMORY = """
import re, sys, torch
from hpfun.attention import attention_segments
from hpfun_torch import ops
rows, keys, what = 8192, 32768, sys.argv[1]
random = torch.Generator().manual_seed(0)
# the last of 16 ranks of one document: 8,192 rows that see all of 32,768 keys of 4 tokens
segments = attention_segments((0, 4 * keys), rows, 16, 15, 128, 4)
query = torch.randn(rows, 1, 16, generator=random).requires_grad_()
window = torch.randn(rows + 127, 16, generator=random).requires_grad_()
bank = torch.randn(keys, 16, generator=random).requires_grad_()
chosen = torch.randint(0, keys - 2048, (rows, 128), generator=random, dtype=torch.int32)
index = (query.detach().clone().requires_grad_(), bank.detach().clone().requires_grad_())
weights = torch.rand(rows, 1, generator=random).requires_grad_()
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
before = peak()
if what == "kl":
    ops.indexer_kl(*index, weights, chosen, query, bank, segments=segments, scale=0.2).backward()
elif what == "select":
    ops.lightning_indexer(index[0].detach(), index[1].detach(), weights.detach(), segments.indexer, 4, 128)
else:
    given = None if what == "dense" else chosen
    ops.sparse_attention(query, window, bank, given, segments=segments, scale=0.2)[0].square().sum().backward()
print(peak() - before)
"""


@pytest.mark.rule("OPS-24")
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("what", ["chosen", "dense", "kl", "select"])
def test_memory_stays_far_below_a_number_for_every_row_and_key(what):
    done = subprocess.run([sys.executable, "-c", MEMORY, what], capture_output=True, text=True, check=True)
    # one float for every row and key would be 1,024 MiB
    assert float(done.stdout) < 300


@pytest.mark.rule("OPS-25", "OPS-26")
@settings(max_examples=30)
@given(
    st.integers(1, 9),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from([None, 0.0, 30.0, 200.0]),
    st.integers(0, 99),
)
def test_the_loss_and_its_gradients_equal_autograd_of_the_plain_formula(rows, count, topk, sink, seed):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()

    count += rows  # as many as the rows see, and more
    index = draw(rows, 3, 4), draw(count, 4), draw(rows, 3)
    query, bank = draw(rows, 2, 5), draw(count, 5)
    chosen = torch.randint(-1, count, (rows, topk), generator=random)  # with repeats and gaps
    chosen[0] = -1
    sinks = None if sink is None else torch.full((2,), sink, dtype=torch.float64)
    segments = attention_segments((0, rows), rows, 1, 0, 0, 1)
    got = cpu.indexer_kl(*index, chosen, query, bank, segments=segments, scale=0.6, sinks=sinks)
    expected = kl(*index, chosen, query, bank, 0.6, sinks)
    torch.testing.assert_close(got, expected.detach(), rtol=1e-9, atol=1e-12, check_dtype=False)
    found = torch.autograd.grad(3 * got, index)
    wanted = (
        torch.autograd.grad(3 * expected, index, allow_unused=True, materialize_grads=True)
        if expected.requires_grad
        else [torch.zeros_like(tensor) for tensor in index]
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.rule("OPS-25")
def test_the_gradient_of_the_scores_is_softmax_minus_target():
    segments = attention_segments((0, 1), 1, 1, 0, 0, 1)
    scores = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    weights = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    query, bank = torch.ones(1, 1, 1, dtype=torch.float64), torch.tensor([[2.0], [0.0], [0.0]], dtype=torch.float64)
    keys = scores.clone().requires_grad_()
    loss = cpu.indexer_kl(query, keys, weights, torch.tensor([[0, 1, 2]]), query, bank, segments=segments, scale=1.0)
    target, student = bank[:, 0].softmax(0), scores[:, 0].softmax(0)
    assert float(loss.detach()) == pytest.approx(float((target * (target / student).log()).sum()))
    grad = torch.autograd.grad(loss, keys)[0][:, 0]
    torch.testing.assert_close(grad[1:], (student - target)[1:])  # relu has no slope at the first


@pytest.mark.rule("OPS-27")
def test_rows_without_a_key_count_and_other_tensors_learn_nothing():
    segments = attention_segments((0, 4), 4, 1, 0, 0, 1)
    random = torch.Generator().manual_seed(0)
    index = [torch.randn(*shape, generator=random).requires_grad_() for shape in ((4, 2, 3), (5, 3), (4, 2))]
    query, bank = (torch.randn(*shape, generator=random).requires_grad_() for shape in ((4, 2, 3), (5, 3)))
    chosen = torch.tensor([[0, 1], [-1, -1], [-1, -1], [2, 4]])
    loss = cpu.indexer_kl(*index, chosen, query, bank, segments=segments, scale=1.0)
    part = cpu.indexer_kl(*index, chosen, query, bank, segments=segments, scale=1.0, num_queries=16)
    torch.testing.assert_close(part * 4, loss)
    loss.backward()
    assert query.grad is None
    assert bank.grad is None
    assert not index[0].grad[1:3].any()
    nothing = cpu.indexer_kl(
        *index, torch.full((4, 2), -1), query, bank, segments=segments, scale=1.0, sinks=torch.zeros(2)
    )
    assert nothing == 0
    halved = cpu.indexer_kl(*index, chosen, query, bank, segments=segments, scale=1.0, num_queries=8)
    for one, other in zip(
        torch.autograd.grad(halved, index),
        torch.autograd.grad(cpu.indexer_kl(*index, chosen, query, bank, segments=segments, scale=1.0), index),
        strict=True,
    ):
        torch.testing.assert_close(2 * one, other)
    assert all(not grad.any() for grad in torch.autograd.grad(nothing, index))
