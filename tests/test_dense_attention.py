"""Dense attention in one process: numbers, memory, and what is refused."""

import pathlib
import subprocess
import sys
from unittest.mock import patch

import attrs
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from hpfun.batch import BatchTopology, batch_view, plan_batch  # noqa: E402
from hpfun_torch import dense  # noqa: E402
from hpfun_torch.dense import DenseContext, dense_attention, dense_context  # noqa: E402
from tests.oracles import dense as oracle  # noqa: E402
from tests.refusals import refused  # noqa: E402


def rows_of(total, heads, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(total, count, 6, generator=random, dtype=dtype).requires_grad_() for count in heads]


def step(context, rows, window):
    """Output and gradients as arrays, of the square of the output summed."""
    for part in rows:
        part.grad = None
    output = dense_attention(*rows, context, window=window)
    output.square().sum().backward()
    return [output.detach(), *(part.grad for part in rows)]


@pytest.mark.rule("DENSE-6")
@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.sampled_from((0, 1, 4, 100)),
    st.sampled_from(((1, 1), (4, 2), (3, 3), (4, 1))),
    st.sampled_from((1, 2, 5, 512)),
)
def test_it_is_the_loop_over_tokens(lengths, window, heads, tile):
    lengths = (*lengths, 1 + sum(lengths) % 2)  # a pack that one rank need not pad
    if sum(lengths) % 2:
        lengths = (*lengths, 1)
    context = attrs.evolve(dense_context(plan_batch(lengths, BatchTopology(1))), tile_rows=tile)
    rows = rows_of(sum(lengths), (*heads, heads[1]))
    found = step(context, rows, window)
    expected = oracle.attention(lengths, *(part.detach() for part in rows), 2 * found[0], window)
    for got, whole in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), whole, rtol=0, atol=1e-12)


@pytest.mark.rule("DENSE-6")
def test_tiles_as_accelerators_need_them_give_the_same():
    context = attrs.evolve(dense_context(plan_batch((23, 9), BatchTopology(1))), tile_rows=4)
    rows = rows_of(32, (4, 2, 2))
    expected = step(context, rows, 5)
    with patch.object(dense, "VIEWED", ()):
        found = step(context, rows, 5)
    for got, other in zip(found, expected, strict=True):
        torch.testing.assert_close(got, other, rtol=0, atol=0)


MEMORY = """
import re, sys
import torch
from hpfun.batch import BatchTopology, batch_view, plan_batch
from hpfun_torch import dense
rows = 16384
# the second of two ranks of one document: 16,384 rows that see up to 32,768 keys
plan = plan_batch((2 * rows,), BatchTopology(2))
context = dense.DenseContext(plan, batch_view(plan, 1), None)
random = torch.Generator().manual_seed(0)
window = int(sys.argv[1])
keys = context.route(window).blocks.num_keys
query, bank = (torch.randn(count, 1, 8, generator=random).requires_grad_() for count in (rows, keys))
dense._bank = lambda own, route, group: torch.cat((bank, bank), dim=-1)
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
before = peak()
dense.dense_attention(query, query, query, context, window=window).square().sum().backward()
print(peak() - before)
"""


@pytest.mark.rule("DENSE-7")
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="peaks are read from /proc")
@pytest.mark.parametrize("window", [0, 8192])
def test_memory_stays_far_below_a_number_for_every_row_and_key(window):
    done = subprocess.run([sys.executable, "-c", MEMORY, str(window)], capture_output=True, text=True, check=True)
    # one float for every row and key would be 2,048 MiB
    assert float(done.stdout) < 300


class Largest(TorchDispatchMode):
    """The most elements that a tensor of a block has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        for part in torch.utils._pytree.tree_leaves(result):
            if isinstance(part, torch.Tensor):
                self.elements = max(self.elements, part.numel())
        return result


@pytest.mark.rule("DENSE-7")
@settings(max_examples=30)
@given(
    st.lists(st.integers(64, 100), min_size=1, max_size=2),
    st.sampled_from(("contiguous", "zigzag")),
    st.integers(0, 1),
    st.sampled_from((0, 1, 40)),
    st.integers(1, 8),
)
def test_no_tensor_has_a_number_for_every_row_and_key(lengths, layout, rank, window, tile):
    plan = plan_batch(lengths, BatchTopology(2), layout=layout)
    context = DenseContext(plan, batch_view(plan, rank), None, tile)
    rows, keys = plan.local_length, int(context.tiles(window).bank_lengths.sum())
    query = rows_of(rows, (1,))[0]
    bank = torch.randn(keys, 1, 12, dtype=torch.float64).requires_grad_()
    with patch.object(dense, "_bank", lambda *given: bank), Largest() as largest:
        dense_attention(query, query, query, context, window=window).square().sum().backward()
    # a tile's mask and the bank; of a whole document's rows and keys there would be 64 x 64 and more
    assert largest.elements <= max((tile + 1) * (max(lengths) + 4), 12 * plan.padded_length) < 64 * 64


HEADS = st.tuples(st.integers(0, 6), st.integers(0, 3))
ROWS = st.sampled_from((8, 8, 8, 4))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


@pytest.mark.rule("DENSE-8")
@given(
    ROWS,
    HEADS,
    st.sampled_from((0, 2, 2, 2, 3)),
    st.sampled_from(DTYPES),
    st.dictionaries(
        st.sampled_from(("query", "key", "value")),
        st.none() | st.sampled_from(DTYPES) | st.tuples(ROWS, HEADS.map(max), st.integers(1, 3)) | st.just((8, 2)),
        max_size=1,
    ),
)
def test_tensors_fit_or_are_refused(rows, heads, width, dtype, odd):
    context = dense_context(plan_batch((5, 3), BatchTopology(1)))
    shapes = {"query": (rows, heads[0], width), "key": (rows, heads[1], width), "value": (rows, heads[1], width)}
    tensors = {name: torch.ones(shape, dtype=dtype) for name, shape in shapes.items()}
    for name, how in odd.items():
        tensors[name] = torch.ones(how, dtype=dtype) if isinstance(how, tuple) else how and tensors[name].to(how)
    if fits(**tensors):
        assert dense_attention(*tensors.values(), context).shape == tensors["query"].shape
        return
    with refused("HP-OPS-001"):
        dense_attention(*tensors.values(), context)


def fits(query, key, value):
    """Whether eight rows of query heads can be dealt to the key heads, and scores computed."""
    parts = (query, key, value)
    if any(part is None or part.dtype == torch.int64 or part.dim() != 3 or len(part) != 8 for part in parts):
        return False
    if not query.dtype == key.dtype == value.dtype or not query.shape[2] == key.shape[2] == value.shape[2] > 0:
        return False
    dealt = [times * key.shape[1] for times in range(1, 7)]
    return key.shape[1] == value.shape[1] > 0 and query.shape[1] in dealt


@pytest.mark.rule("DENSE-8")
@given(st.integers(1, 4), st.integers(1, 2))
def test_a_plan_is_for_the_ranks_of_the_group(cp, tp):
    plan = plan_batch((5, 3), BatchTopology(cp, tp))
    if cp == 1:
        assert dense_context(plan).plan == plan
        return
    with refused("HP-BATCH-009") as caught:
        dense_context(plan)
    assert caught.error.facts == {"cp_size": cp, "tp_size": tp}


@pytest.mark.rule("DENSE-8")
def test_tensors_that_do_not_fit_are_refused():
    context = dense_context(plan_batch((5, 3), BatchTopology(1)))
    query, key, value = rows_of(8, (4, 2, 2))
    for tensors in (
        (query, key, value[:4]),
        (query[:, :3], key, value),
        (query, key[:, :0], value[:, :0]),
        (query, key[..., :3], value[..., :3]),
        (query, key, value[..., :3]),
        (query[0], key, value),
        (query.long(), key, value),
        (query, key.half(), value.half()),
        (query, key, value.bfloat16()),
        (query[:, :0], key, value),
        (query[..., :0], key[..., :0], value[..., :0]),
        (None, key, value),
    ):
        with refused("HP-OPS-001"):
            dense_attention(*tensors, context)
    with refused("HP-OPS-001") as caught:
        dense_attention(query[:4], key[:4], value[:4], context)
    assert [violation.where for violation in caught.error.violations] == ["query", "key", "value"]
    with refused("HP-OPS-001"):
        dense_attention(query, key, value, context.plan)
    with refused("HP-BATCH-009"):
        dense_context(plan_batch((5, 3), BatchTopology(2)))
    with refused("HP-BATCH-007"):
        dense_context((5, 3))


@pytest.mark.rule("DENSE-9")
@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 9).map(lambda half: 2 * half), min_size=1, max_size=3),
    st.sampled_from(("contiguous", "zigzag")),
    st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    st.sampled_from((torch.bfloat16, torch.float16)),
)
@example([4], "contiguous", torch.float64, torch.bfloat16)
def test_under_autocast_keys_travel_in_its_dtype(lengths, layout, dtype, cast):
    context = dense_context(plan_batch(lengths, BatchTopology(1), layout=layout))
    rows = rows_of(sum(lengths), (4, 2, 2), dtype=dtype)
    seen = []
    real = dense._bank

    def bank(moved, *given):
        seen.append(moved.dtype)
        return real(moved, *given)

    plain = step(context, rows, 0)
    with patch.object(dense, "_bank", bank), torch.autocast("cpu", cast):
        found = step(context, rows, 0)
    assert seen == [torch.float64 if dtype == torch.float64 else cast]
    for got, other in zip(found, plain, strict=True):
        torch.testing.assert_close(got.to(other.dtype), other, rtol=0.1, atol=0.1)


@pytest.mark.rule("DENSE-7")
def test_a_mask_that_was_made_for_inference_serves_training():
    plan = plan_batch((64,), BatchTopology(2))
    context = DenseContext(plan, batch_view(plan, 1), None, 8)
    rows = rows_of(32, (1, 1, 1))
    bank = torch.randn(64, 1, 12, dtype=torch.float64)
    with patch.object(dense, "_bank", lambda *given: bank):
        with torch.inference_mode():
            dense_attention(*rows, context)
        dense_attention(*rows, context).sum().backward()
    assert rows[0].grad.abs().sum() > 0
