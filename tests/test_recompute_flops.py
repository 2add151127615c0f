"""Flops of what torch's counter does not know."""

import pytest

torch = pytest.importorskip("torch")

from hpfun_torch.recompute.flops import flop_counter  # noqa: E402


def counted(call):
    with flop_counter() as counter:
        call()
    return counter.get_total_flops()


def test_a_row_is_multiplied_with_one_expert():
    rows, experts = torch.ones(12, 16, dtype=torch.bfloat16), torch.ones(3, 16, 8, dtype=torch.bfloat16)
    ends = torch.tensor([4, 4, 12], dtype=torch.int32)
    assert counted(lambda: torch._grouped_mm(rows, experts, offs=ends)) == 2 * 12 * 16 * 8


def test_attention_on_the_cpu_is_two_products():
    query, key = torch.ones(2, 3, 8, 16), torch.ones(2, 3, 32, 16)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert counted(lambda: attend(query, key, key)) == 2 * 2 * (2 * 3 * 8 * 32 * 16)
