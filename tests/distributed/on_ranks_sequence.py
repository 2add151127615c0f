"""Functions of the sequence family that the tests run on every rank of a pool; results are plain values."""

import gc
import time
import weakref
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounterWithBackend

from hpfun import (
    RowExchange,
    SequenceBankPlan,
    SequenceDispatchRoute,
    attempt,
    bank_route,
    compression_halo_plan,
    document_compression_plan,
    document_prefix_plan,
    sliding_window_plan,
)
from hpfun_torch import (
    DeferredBankLaunch,
    compression_blocks,
    dispatch_sequence,
    exchange_rows,
    gather_sequence,
    start_dispatch,
    start_gather,
)
from tests.distributed.on_ranks import Recorder, own

WIDTH = 3


def whole(rows: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The rows of all ranks, equal on all of them."""
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(rows, WIDTH, generator=random, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, (rows, WIDTH), generator=random).to(dtype)


def route_of(plan: SequenceBankPlan) -> tuple[SequenceDispatchRoute, slice]:
    """This rank's route, and its own rows."""
    rank = dist.get_rank()
    return bank_route(plan, rank), slice(int(plan.owner_offsets[rank]), int(plan.owner_offsets[rank + 1]))


def bank_is_a_slice(plan: SequenceBankPlan, dim: int, dtype: str) -> bool:
    """Whether the bank, by both roads, is that stretch of the whole sequence, rows along ``dim`` of three axes."""
    route, mine = route_of(plan)
    rows = whole(plan.total_rows, 0, getattr(torch, dtype))
    expected = rows[route.global_start : route.global_stop, None].movedim(0, dim)
    shard = rows[mine, None].movedim(0, dim)
    once = dispatch_sequence(shard, route, dim=dim)
    started = start_dispatch(shard, route, None, dim).wait()
    return torch.equal(once, expected) and torch.equal(started, expected) and once.dtype == expected.dtype


def _loss(bank: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (factor * bank.sin()).sum()


def _roads(move: Any, start: Any, shard: torch.Tensor, factor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradient of ``sum(factor * sin(bank))`` by every road, and a second derivative."""
    roads = {}
    for name, road in (("backward", move), ("started", lambda rows: start(rows).wait())):
        rows = shard.clone().requires_grad_()
        _loss(road(rows), factor).backward()
        roads[name] = rows.grad
    roads["grad"] = torch.func.grad(lambda rows: _loss(move(rows), factor))(shard)
    bank, back = torch.func.vjp(move, shard)
    (roads["vjp"],) = back(factor * bank.cos())
    weight = {"weight": torch.eye(WIDTH, dtype=shard.dtype)}
    layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=shard.dtype)
    called = torch.func.grad(lambda rows: _loss(move(torch.func.functional_call(layer, weight, (rows,))), factor))(
        shard
    )
    roads["functional_call"] = called
    twice = shard.clone().requires_grad_()
    (first,) = torch.autograd.grad(_loss(move(twice), factor), twice, create_graph=True)
    (roads["second"],) = torch.autograd.grad(first.sum(), twice)
    tangent = torch.arange(shard.numel(), dtype=shard.dtype).view(shard.shape)
    moved, pushed = torch.func.jvp(move, (shard,), (tangent,))
    assert torch.equal(moved, move(shard))
    assert torch.equal(pushed, move(tangent))
    both = torch.func.vmap(move)(torch.stack((shard, -shard)))
    assert torch.equal(both, torch.stack((move(shard), move(-shard))))
    return roads


def gradients_of_banks(plan: SequenceBankPlan, seed: int) -> dict[str, Any]:
    """Gradients of this rank's rows, each with what plain indexing gives in one process."""
    route, mine = route_of(plan)
    rows = whole(plan.total_rows, seed)
    factors = [whole(int(count), seed + 1 + rank) for rank, count in enumerate(plan.bank_rows)]
    roads = _roads(
        lambda part: dispatch_sequence(part, route), lambda part: start_dispatch(part, route), rows[mine], own(factors)
    )
    alone = rows.clone().requires_grad_()
    stops = plan.owner_offsets[1:].tolist()
    banks = [alone[start:stop] for start, stop in zip(plan.bank_starts.tolist(), stops, strict=True)]
    loss = sum(_loss(bank, factor) for bank, factor in zip(banks, factors, strict=True))
    (first,) = torch.autograd.grad(loss, alone, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), alone)
    return {"roads": roads, "expected": first[mine].detach(), "second": second[mine]}


def moved_bytes(plan: SequenceBankPlan, width: int) -> tuple[int, int, list[str]]:
    """Bytes that this rank gives to and takes from other ranks in a dispatch, counted at the collective."""
    route, _ = route_of(plan)
    rank = dist.get_rank()
    counted = [0, 0]
    real = dist.all_to_all_single

    def counting(received: torch.Tensor, sent: torch.Tensor, outputs: Any, inputs: Any, **options: Any) -> Any:
        for at, (tensor, splits) in enumerate(((sent, inputs), (received, outputs))):
            assert sum(splits) == len(tensor)
            per_row = tensor[:1].numel() * tensor.element_size()
            counted[at] += per_row * sum(count for peer, count in enumerate(splits) if peer != rank)
        return real(received, sent, outputs, inputs, **options)

    with Recorder() as recorder:
        dispatch_sequence(torch.ones(route.local_length, width, requires_grad=True), route).sum().backward()
    with patch.object(dist, "all_to_all_single", counting):
        dispatch_sequence(torch.ones(route.local_length, width), route)
    return counted[0], counted[1], recorder.events


def sums_of_banks(plan: SequenceBankPlan, values: list[float], dtype: str) -> list[float]:
    """Gradients of the own rows where every bank's gradient is its rank's value."""
    route, _ = route_of(plan)
    rows = torch.ones(route.local_length, 1, dtype=getattr(torch, dtype), requires_grad=True)
    dispatch_sequence(rows, route).backward(torch.full((route.bank_rows, 1), own(values), dtype=rows.dtype))
    return rows.grad[:, 0].tolist()


def bad_bank(plan: SequenceBankPlan, bad_rank: int, check: str, kind: str) -> tuple[str, dict[str, Any], float]:
    route, _ = route_of(plan)
    odd = dist.get_rank() == bad_rank
    rows = torch.ones(route.local_length + (odd and kind == "rows"), 2)
    start = time.monotonic()
    _, outcome = attempt(dispatch_sequence, rows, route, None, 5 if odd and kind == "dim" else 0, check=check)
    return outcome.code, dict(outcome.facts), time.monotonic() - start


def deferred(plan: SequenceBankPlan) -> dict[str, Any]:
    """What a deferred launch does, step by step, and whether its input is let go."""
    route, _ = route_of(plan)
    rows = torch.ones(route.local_length, 2)
    expected = dispatch_sequence(rows, route)
    with Recorder() as recorder:
        later = DeferredBankLaunch(start_dispatch, rows, route, None, 0)
        recorder.events.append("prepared")
        later.start()
        recorder.events.append("between")
        assert torch.equal(later.wait(), expected)
    codes = [attempt(spent)[1].code for spent in (later.start, later.wait)]
    with Recorder() as waited:
        never = DeferredBankLaunch(start_dispatch, rows, route)
        before = never.started
        assert torch.equal(never.wait(), expected)
    held = torch.ones(route.local_length, 2)
    kept = weakref.ref(held)
    release = DeferredBankLaunch(start_gather, held, None, 0, [route.local_length] * dist.get_world_size())
    del held
    gc.collect()
    alive = kept() is not None
    release.start()
    gathered = release.wait()
    gc.collect()
    return {
        "events": recorder.events,
        "codes": codes,
        "started": (before, never.started),
        "waited": waited.events,
        "alive": (alive, kept() is not None),
        "gathered": tuple(gathered.shape),
    }


def gather_is_all(lengths: list[int], dim: int, dtype: str, told: bool) -> bool:
    """Whether gathered rows, by both roads, are the whole sequence, rows along ``dim`` of three axes."""
    rows = whole(sum(lengths), 1, getattr(torch, dtype))
    shard = own(rows.split(lengths))[:, None].movedim(0, dim)
    known = lengths if told else None
    once = gather_sequence(shard, None, dim, known)
    started = start_gather(shard, None, dim, known).wait()
    return all(torch.equal(got, rows[:, None].movedim(0, dim)) for got in (once, started))


def gradients_of_gather(lengths: list[int], seed: int) -> dict[str, Any]:
    rows = whole(sum(lengths), seed)
    factors = [whole(sum(lengths), seed + 1 + rank) for rank in range(len(lengths))]
    roads = _roads(
        lambda part: gather_sequence(part, None, 0, lengths),
        lambda part: start_gather(part, None, 0, lengths),
        own(rows.split(lengths)),
        own(factors),
    )
    alone = rows.clone().requires_grad_()
    (first,) = torch.autograd.grad(sum(_loss(alone, factor) for factor in factors), alone, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), alone)
    return {"roads": roads, "expected": own(first.detach().split(lengths)), "second": own(second.split(lengths))}


def sums_of_gather(values: list[float], dtype: str) -> list[float]:
    """Gradients of one own row where every rank's gradient is its value."""
    size = dist.get_world_size()
    rows = torch.ones(1, 1, dtype=getattr(torch, dtype), requires_grad=True)
    gather_sequence(rows).backward(torch.full((size, 1), own(values), dtype=rows.dtype))
    assert rows.grad.dtype == rows.dtype
    return rows.grad[:, 0].tolist()


def gathers_counted(lengths: list[int], told: bool) -> list[tuple[int, str]]:
    """Rows and dtype of every all-gather that a gather makes."""
    found = []
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    real = getattr(dist, name)

    def counting(gathered: torch.Tensor, sent: torch.Tensor, **options: Any) -> Any:
        found.append((len(sent), str(sent.dtype)))
        return real(gathered, sent, **options)

    with patch.object(dist, name, counting):
        gather_sequence(torch.ones(own(lengths), 2), None, 0, lengths if told else None)
    return found


def bad_gather(lengths: list[int], bad_rank: int, check: str, kind: str) -> tuple[str, float]:
    odd = dist.get_rank() == bad_rank
    rows = torch.ones(
        own(lengths) + (odd and kind == "rows"), 2, dtype=torch.float64 if odd and kind == "dtype" else None
    )
    told = [count + 1 for count in lengths] if odd and kind == "lengths" else lengths
    if odd and kind == "negative":  # not its own entry
        told = [count if rank == bad_rank else -1 for rank, count in enumerate(lengths)]
    start = time.monotonic()
    _, outcome = attempt(gather_sequence, rows, None, 7 if odd and kind == "dim" else 0, told, check)
    return outcome.code, time.monotonic() - start


def blocks_of(boundaries: tuple[int, ...], ratio: int, overlap: bool, dim: int) -> dict[str, Any] | None:
    """This rank's blocks of the rows 0, 1, 2, ..., and how often each own row is used by any rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    local = boundaries[-1] // size
    plan = document_compression_plan(boundaries, ratio, local, size, rank, overlap)
    if plan is None:
        return None
    rows = torch.arange(rank * local, (rank + 1) * local, dtype=torch.float64)[:, None].requires_grad_()
    bank = dispatch_sequence(rows.movedim(0, dim), plan.halo, None, dim)
    blocks = compression_blocks(bank, plan, dim, fill=-1)
    flat = blocks.squeeze(0 if dim == 1 else -1)
    blocks.sum().backward()
    return {"rows": flat.detach().tolist(), "uses": rows.grad[:, 0].tolist()}


def plan_of(kind: str, boundaries: tuple[int, ...], size: int, reach: int) -> SequenceBankPlan:
    local = boundaries[-1] // size
    if kind == "window":
        return sliding_window_plan(boundaries, local, size, reach)
    if kind == "prefix":
        return document_prefix_plan(boundaries, local, size, reach)
    return compression_halo_plan(boundaries, reach, local, size, overlap=True)


def compiled_banks(layouts: list[tuple[str, tuple[int, ...], int]], backend: str, dynamic: bool | None) -> list[int]:
    """Graphs made so far after each layout; every bank and gradient is compared with the eager one."""
    torch._dynamo.reset()
    rank, size = dist.get_rank(), dist.get_world_size()
    counter = CompileCounterWithBackend(backend)

    def step(rows: torch.Tensor, route: SequenceDispatchRoute) -> torch.Tensor:
        handle = start_dispatch(rows * 2, route, None, 1)
        return dispatch_sequence(rows, route, None, 1) * handle.wait()

    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=dynamic)
    graphs = []
    for kind, boundaries, reach in layouts:
        route = bank_route(plan_of(kind, boundaries, size, reach), rank)
        _compare(compiled, step, route.local_length, route)
        graphs.append(counter.frame_count)
    return graphs


def compiled_gathers(layouts: list[list[int]], told: bool, backend: str, dynamic: bool | None) -> list[int]:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    def step(rows: torch.Tensor, lengths: Any) -> torch.Tensor:
        handle = start_gather(rows * 2, None, 1, lengths)
        return gather_sequence(rows, None, 1, lengths) * handle.wait()

    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=dynamic)
    graphs = []
    for lengths in layouts:
        _compare(compiled, step, own(lengths), torch.tensor(lengths) if told else None)
        graphs.append(counter.frame_count)
    return graphs


def _compare(compiled: Any, step: Any, rows: int, layout: Any) -> None:
    # five and seven: sizes that no row count of the layouts has, which the compiler would take for the same size
    shard = torch.randn(5, rows, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(dist.get_rank()))
    results = []
    for function in (compiled, step):
        leaf = shard.clone().requires_grad_()
        bank = function(leaf, layout)
        factor = torch.arange(bank.numel(), dtype=torch.float64).view(bank.shape)
        (bank * factor).sum().backward()
        results.append((bank.detach(), leaf.grad))
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)


def compiled_refusal(boundaries: tuple[int, ...]) -> str:
    """A compiled dispatch of a tensor with a row too many."""
    torch._dynamo.reset()
    rank, size = dist.get_rank(), dist.get_world_size()
    route = bank_route(plan_of("window", boundaries, size, 1), rank)
    step = torch.compile(lambda rows: dispatch_sequence(rows, route), fullgraph=True, backend="aot_eager")
    return attempt(step, torch.ones(route.local_length + 1, 2))[1].code


def compiled_scattered() -> str:
    """A compiled movement of rows too many and too scattered to pass through a graph."""
    torch._dynamo.reset()
    rows = list(range(0, 200))[::-1]
    exchange = RowExchange(1, 0, 200, 200, [], [0], [0], [], rows, range(200), required=False)
    step = torch.compile(lambda tensor: exchange_rows(tensor, exchange), backend="aot_eager")
    assert torch.equal(exchange_rows(torch.arange(200), exchange), torch.arange(200).flip(0))
    return attempt(step, torch.ones(200, 2))[1].code


def conjugated(plan: SequenceBankPlan) -> bool:
    """Whether lazily conjugated rows, and gradients, travel as what they stand for."""
    route, mine = route_of(plan)
    rows = torch.complex(whole(plan.total_rows, 1), whole(plan.total_rows, 2))
    bank = rows[route.global_start : route.global_stop].conj().resolve_conj()
    leaf = rows[mine].clone().requires_grad_()
    after = dispatch_sequence(leaf, route).conj()
    after.abs().sum().backward()
    gathered = gather_sequence(rows[mine].conj())
    same = torch.equal(dispatch_sequence(rows[mine].conj(), route), bank) and torch.equal(after.detach(), bank)
    return same and torch.equal(gathered, rows.conj().resolve_conj()) and leaf.grad is not None


def waited_without_grad(plan: SequenceBankPlan) -> tuple[bool, bool]:
    """Whether results started with and waited without gradients have them."""
    route, _ = route_of(plan)
    rows = torch.ones(route.local_length, 2, requires_grad=True)
    handles = (start_dispatch(rows, route), start_gather(rows))
    with torch.no_grad():
        results = [handle.wait() for handle in handles]
    sum(result.sum() for result in results).backward()
    return tuple(result.requires_grad for result in results)


def compiled_outcomes(plan: SequenceBankPlan, bad_rank: int, kind: str) -> list[str]:
    """Codes of a compiled dispatch and gather with ``check="always"`` where one rank's argument is odd."""
    torch._dynamo.reset()
    route, _ = route_of(plan)
    odd = dist.get_rank() == bad_rank
    dim = 5 if odd and kind == "dim" else 0
    rows = torch.ones(route.local_length, 2, requires_grad=odd and kind == "requires_grad")
    roads = (
        lambda tensor: dispatch_sequence(tensor, route, None, dim, "always"),
        lambda tensor: gather_sequence(tensor, None, dim, None, "always"),
    )
    return [attempt(torch.compile(road, fullgraph=True, backend="aot_eager"), rows)[1].code for road in roads]


def order_in_inductor(reaches: tuple[int, int]) -> tuple[list[tuple[int, int]], bool]:
    """Rows from and to the other of two ranks by each collective of inductor's code, forward and backward."""
    torch._dynamo.reset()
    rank, local = dist.get_rank(), 1024
    routes = [bank_route(plan_of("window", (0, 2 * local), 2, reach), rank) for reach in reaches]
    real, order = dist.all_to_all_single, []

    def recorded(received: torch.Tensor, sent: torch.Tensor, *splits: Any, **options: Any) -> Any:
        order.append((splits[0][1 - rank], splits[1][1 - rank]))
        return real(received, sent, *splits, **options)

    def step(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return dispatch_sequence(one, routes[0]).sin().sum() + dispatch_sequence(two, routes[1]).cos().sum() * 2

    leaves = [whole(local, rank + at).requires_grad_() for at in range(2)]
    with patch.object(dist, "all_to_all_single", recorded):
        torch.compile(step, fullgraph=True, backend="inductor", dynamic=False)(*leaves).backward()
    eager = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    step(*eager).backward()
    same = all(torch.allclose(one.grad, two.grad) for one, two in zip(leaves, eager, strict=True))
    return order, same
