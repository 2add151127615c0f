"""What ranks do in the tests of recompute: plans that differ, and regions with collectives in them."""

import time
from typing import Any

import torch
import torch.distributed as dist

from hpfun import PlanError, RowExchange, from_json
from hpfun_torch import exchange_rows
from hpfun_torch.recompute import apply_recompute, checkpoint_exclude_wrapper, checkpoint_wrapper, read_modules
from tests.distributed.on_ranks import Recorder, own


def applied(plans: list[str], small_rank: int | None) -> tuple[str, dict[str, Any], list[str], float]:
    """Apply this rank's plan, on ``small_rank`` to a model that lacks modules; code, facts, wraps left, seconds."""
    rank = dist.get_rank()
    count = 1 if rank == small_rank else 3
    model = torch.nn.ModuleDict({str(at): torch.nn.Sequential(torch.nn.Linear(2, 2)) for at in range(count)})
    start = time.monotonic()
    code, facts = "", {}
    try:
        apply_recompute(model, from_json(plans[rank]), group=dist.group.WORLD)
    except PlanError as error:
        code, facts = error.code, dict(error.facts)
    return code, facts, [module.wrapped for module in read_modules(model)], time.monotonic() - start


def raise_applied(plans: list[str]) -> None:
    """Apply this rank's plan, and let what is raised travel."""
    model = torch.nn.ModuleDict({str(at): torch.nn.Sequential(torch.nn.Linear(2, 2)) for at in range(3)})
    apply_recompute(model, from_json(own(plans)), group=dist.group.WORLD)


class Attention(torch.nn.Module):
    """Brings rows of other ranks, which is a collective, and chooses among them."""

    def __init__(self, exchange: RowExchange):
        super().__init__()
        self.exchange = exchange
        self.project = torch.nn.Linear(6, 6)
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        bank = exchange_rows(self.project(rows), self.exchange)
        best = (rows @ bank.T).topk(2, dim=-1).indices
        return bank[best].sum(dim=1)


class Layer(torch.nn.Module):
    """Attention between two projections."""

    def __init__(self, exchange: RowExchange):
        super().__init__()
        self.before, self.attention = torch.nn.Linear(6, 6), Attention(exchange)
        self.behind = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.3), torch.nn.Tanh())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.behind(self.attention(self.before(rows).tanh()))


def trained(exchanges: list[RowExchange], how: str) -> tuple[list[torch.Tensor], int, int]:
    """Gradients of two micro-batches in flight; collectives that were started, and calls of the attention."""
    torch.manual_seed(dist.get_rank())
    exchange = own(exchanges)
    layer = Layer(exchange)
    if how == "excluded":
        checkpoint_exclude_wrapper(layer.attention)
    if how != "plain":
        checkpoint_wrapper(layer)
    rows = [torch.randn(exchange.num_source_rows, 6, requires_grad=True) for _ in range(2)]
    torch.manual_seed(dist.get_rank() + 10)
    with Recorder() as recorder:
        losses = [layer(part).square().sum() for part in rows]
        for loss in losses:
            loss.backward()
    gradients = [*(part.grad for part in rows), *(parameter.grad for parameter in layer.parameters())]
    return gradients, sum(event.startswith("start") for event in recorder.events), layer.attention.calls
