"""Compression blocks over real processes: every whole block once, its rows, the block before, gradients."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from hpfun import PackedDocuments, document_compression_plan
from hpfun.strategies import packed_documents
from hpfun_torch import compressed_positions, compression_blocks, map_blocks
from tests.distributed import on_ranks_sequence as on_ranks
from tests.refusals import refused


def expected_blocks(lengths, ratio, overlap):
    """All blocks of a pack in order, rows as numbers, -1 for those that a first block lacks."""
    found, start = [], 0
    for length in lengths:
        for block in range(length // ratio):
            rows = list(range(start + block * ratio, start + (block + 1) * ratio))
            before = [row - ratio if block else -1 for row in rows] if overlap else []
            found.append(before + rows)
        start += length
    return found


@pytest.mark.rule("COMPRESS-11", "COMPRESS-3")
@settings(max_examples=40)
@given(packed_documents(multiple_of=4), st.integers(2, 9), st.booleans(), st.integers(0, 1))
@example(PackedDocuments((40,)), 16, True, 0)
@example(PackedDocuments((5, 3, 8)), 4, True, 1)
def test_over_all_ranks_every_whole_block_comes_out_once_with_its_rows(ranks, pack, ratio, overlap, dim):
    boundaries = tuple(pack.boundaries.tolist())
    answers = ranks(4).run(on_ranks.blocks_of, boundaries, ratio, overlap, dim)
    if answers[0] is None:
        assert answers == [None] * 4
        return
    blocks = expected_blocks(pack.lengths.tolist(), ratio, overlap)
    assert [block for answer in answers for block in answer["rows"]] == blocks
    uses = np.bincount([row for block in blocks for row in block if row >= 0], minlength=pack.total)
    assert [use for answer in answers for use in answer["uses"]] == uses.tolist()


@pytest.mark.rule("COMPRESS-11")
def test_blocks_that_run_on_are_a_view_of_the_bank():
    plan = document_compression_plan((0, 10), 4, 10, 1, 0)
    bank = torch.arange(30.0).view(10, 3)
    blocks = compression_blocks(bank, plan)
    assert blocks.shape == (2, 4, 3)
    assert blocks.data_ptr() == bank.data_ptr()


@pytest.mark.rule("COMPRESS-12")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("lengths", [(402,), (100, 3, 97, 200), (5, 3, 8, 9, 15), (1, 2, 3)])
def test_a_function_of_blocks_is_mapped_over_all_of_them(lengths, overlap):
    pack = PackedDocuments(lengths)
    plan = document_compression_plan(pack, 4, pack.total, 1, 0, overlap)
    values, gates = torch.randn(2, 3, pack.total, dtype=torch.float64).requires_grad_().unbind()

    def pooled(values, gates):
        return (gates.softmax(dim=1) * values).sum(dim=1)

    mapped = map_blocks(pooled, plan, values, gates, dim=1)
    expected = pooled(*(compression_blocks(part.movedim(1, 0), plan) for part in (values, gates)))
    assert torch.equal(mapped, expected)
    weights = torch.randn_like(expected)
    for one, two in zip(
        *(torch.autograd.grad((out * weights).sum(), (values, gates)) for out in (mapped, expected)), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-13, atol=1e-13)


@pytest.mark.rule("COMPRESS-12")
def test_blocks_that_run_on_for_long_are_mapped_as_views():
    plan = document_compression_plan((0, 101, 200), 4, 200, 1, 0)
    bank, seen = torch.randn(200, 3), []

    def first_rows(blocks):
        seen.append((len(blocks), blocks.data_ptr() - bank.data_ptr()))
        return blocks[:, 0]

    map_blocks(first_rows, plan, bank)
    assert seen == [(25, 0), (24, 101 * 12)]
    short = document_compression_plan((0, 5, 11, 16), 4, 16, 1, 0)
    seen.clear()
    map_blocks(first_rows, short, bank[:16])
    assert [count for count, _ in seen] == [3]
    with refused("HP-ROUTE-006"):
        map_blocks(first_rows, plan, bank[:199])


@pytest.mark.rule("COMPRESS-11")
def test_a_bank_that_does_not_fit_is_refused():
    plan = document_compression_plan((0, 10), 4, 5, 2, 1)
    with refused("HP-ROUTE-006") as caught:
        compression_blocks(torch.ones(5, 2), plan)
    assert caught.error.facts["expected"] == 6
    with refused("HP-ROUTE-006"):
        compression_blocks(torch.ones(6, 2), None)
    with refused("HP-ROUTE-006"):
        map_blocks(torch.sum, plan)
    with refused("HP-ROUTE-007"):
        compression_blocks(torch.ones(6, 2), plan, dim=2)


@pytest.mark.rule("COMPRESS-9")
def test_rotary_rows_stand_at_the_first_token_of_each_block_in_their_own_dtype():
    plan = document_compression_plan((0, 5, 8, 16), 2, 4, 4, 3, overlap=True)
    table = torch.arange(16, dtype=torch.bfloat16).view(1, 8, 2)
    cos, sin = compressed_positions(plan, table, -table)
    assert cos.dtype == torch.bfloat16
    assert cos.tolist() == [[[8.0, 9.0], [12.0, 13.0]]]
    assert torch.equal(sin, -cos)
    with refused("HP-COMPRESS-003"):
        compressed_positions(plan, table[:, :6], table[:, :6])
    with refused("HP-COMPRESS-004"):
        compressed_positions(None, table, table)


@pytest.mark.rule("COMPRESS-11")
def test_places_met_under_fake_tensors_or_in_inference_serve_training():
    plan = document_compression_plan((0, 5, 11, 16), 3, 16, 1, 0)
    with FakeTensorMode(), torch.inference_mode():
        assert compression_blocks(torch.ones(16, 2), plan).shape == (4, 3, 2)
    with torch.inference_mode():
        compression_blocks(torch.ones(16, 2), plan)
    bank = torch.ones(16, 2, requires_grad=True)
    compression_blocks(bank, plan).sum().backward()
    assert bank.grad.sum() == 24
    compiled = torch.compile(lambda rows: compression_blocks(rows, plan) * 2, backend="aot_eager")
    assert torch.equal(compiled(bank), compression_blocks(bank, plan) * 2)
