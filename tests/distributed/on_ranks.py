"""Functions that the tests run on every rank of a pool; results are plain values.

They stand at the top of a module because they travel by name.
"""

import time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from hpfun import (
    IndexerRoute,
    Outcome,
    PackedDocuments,
    RowExchange,
    attempt,
    from_json,
    indexer_route,
    indexer_task_plan,
    plan_route,
    transpose,
)
from hpfun_torch import (
    agree,
    balanced_indexer_select,
    exchange_rows,
    launch_indexer_inputs,
    project_worker_queries,
    start_exchange,
    transfer,
)
from hpfun_torch.convert import device_exchange
from hpfun_torch.ops import lightning_indexer

HEADS, DIM, RANK_WIDTH, ROPE = 4, 16, 24, 8


class Recorder:
    """Counts and orders the collectives that a block starts and waits for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __enter__(self) -> "Recorder":
        real = dist.all_to_all_single
        events = self.events

        class Work:
            def __init__(self, work: Any, number: int):
                self.work, self.number = work, number

            def wait(self) -> None:
                events.append(f"wait {self.number}")
                self.work.wait()

        def recorded(*args: Any, **kwargs: Any) -> Any:
            number = sum(event.startswith("start") for event in events)
            events.append(f"start {number}")
            work = real(*args, **kwargs)
            return Work(work, number) if kwargs.get("async_op") else work

        self._patch = patch.object(dist, "all_to_all_single", recorded)
        self._patch.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._patch.__exit__(*exc)


def own(values: list[Any]) -> Any:
    """This rank's entry."""
    return values[dist.get_rank()]


def exchanged(exchanges: list[RowExchange], shards: list[np.ndarray], fill: float, dim: int, dtype: str) -> np.ndarray:
    tensor = torch.from_numpy(own(shards)).to(getattr(torch, dtype)).movedim(0, dim)
    result = exchange_rows(tensor, own(exchanges), dim=dim, fill=fill)
    started = start_exchange(tensor, own(exchanges), dim=dim, fill=fill).wait()
    assert torch.equal(result, started)
    return result.movedim(dim, 0).to(torch.float64).numpy()


def gradients(exchanges: list[RowExchange], shards: list[np.ndarray], factors: list[np.ndarray]) -> dict[str, Any]:
    """Value and gradient of ``sum(factor * sin(exchanged))`` by every road there is."""
    exchange, factor = own(exchanges), torch.from_numpy(own(factors))

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return (factor * exchange_rows(rows, exchange).sin()).sum()

    rows = torch.from_numpy(own(shards)).requires_grad_()
    loss(rows).backward()
    pending = start_exchange(started := rows.detach().clone().requires_grad_(), exchange)
    (factor * pending.wait().sin()).sum().backward()
    output, back = torch.func.vjp(lambda part: exchange_rows(part, exchange), rows.detach())
    (by_vjp,) = back(factor * output.cos())
    by_grad = torch.func.grad(loss)(rows.detach())
    scale = torch.nn.Linear(1, 1, bias=False).double()

    def through_module(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return loss(torch.func.functional_call(scale, weights, (rows.detach()[..., None],))[..., 0])

    weights = {"weight": torch.ones(1, 1, dtype=torch.float64)}
    by_call = torch.func.grad(through_module)(weights)["weight"]
    twice = rows.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(twice), twice, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), twice)
    stacked = torch.func.vmap(lambda part: exchange_rows(part, exchange))(torch.stack((rows.detach(), -rows.detach())))
    return {
        "backward": rows.grad,
        "started": started.grad,
        "vjp": by_vjp,
        "grad": by_grad,
        "second": second,
        "functional_call": by_call,
        "expected_call": (rows.grad * rows.detach()).sum(),
        "vmap": torch.equal(stacked, torch.stack((output, -output))),
    }


def collectives_of_exchange(exchanges: list[RowExchange], width: int) -> list[str]:
    exchange = own(exchanges)
    with Recorder() as recorder:
        rows = torch.ones(exchange.num_source_rows, width, requires_grad=True)
        exchange_rows(rows, exchange).sum().backward()
    return recorder.events


def order_of_started_exchange(exchanges: list[RowExchange]) -> list[str]:
    exchange = own(exchanges)
    real = transfer._copy_local

    def copied(*args: Any) -> None:
        recorder.events.append("local copies")
        real(*args)

    with Recorder() as recorder, patch.object(transfer, "_copy_local", copied):
        handle = start_exchange(torch.ones(exchange.num_source_rows, 2), exchange)
        recorder.events.append("between")
        handle.wait()
    return recorder.events


def sum_in_bfloat16(exchanges: list[RowExchange], values: list[list[float]]) -> list[float]:
    rows = torch.tensor(own(values), dtype=torch.bfloat16)[:, None]
    result = exchange_rows(rows, own(exchanges))
    assert result.dtype == torch.bfloat16
    return result[:, 0].tolist()


def in_place_parts(exchanges: list[RowExchange]) -> tuple[bool, bool]:
    """Whether sent rows are a view of the source and received ones a view of the result."""
    exchange = own(exchanges)
    seen: dict[str, torch.Tensor] = {}
    real = dist.all_to_all_single

    def spy(received: torch.Tensor, sent: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.update(received=received, sent=sent)
        return real(received, sent, *args, **kwargs)

    rows = torch.arange(exchange.num_source_rows * 2.0).view(-1, 2)
    with patch.object(dist, "all_to_all_single", spy):
        result = exchange_rows(rows, exchange)
    pointers = {part.untyped_storage().data_ptr() for part in (rows, result)}
    return tuple(seen[name].untyped_storage().data_ptr() in pointers for name in ("sent", "received"))


def bad_tensor(exchanges: list[RowExchange], bad_rank: int, check: str, kind: str) -> tuple[str, dict[str, Any], float]:
    exchange = own(exchanges)
    odd = dist.get_rank() == bad_rank
    rows = exchange.num_source_rows + (1 if odd and kind == "rows" else 0)
    dtype = torch.float64 if odd and kind == "dtype" else torch.float32
    width = 3 if odd and kind == "width" else 2
    tensor = torch.ones(rows, width, dtype=dtype, requires_grad=odd and kind == "requires_grad")
    if odd and kind == "group":
        exchange = exchanges[dist.get_rank() - 1]
    if odd and kind == "required":
        still = [0] * exchange.size
        exchange = RowExchange(exchange.size, exchange.rank, rows, rows, [], still, still, [], [], [], required=False)
    start = time.monotonic()
    _, outcome = attempt(exchange_rows, tensor, exchange, check=check)
    return outcome.code, dict(outcome.facts), time.monotonic() - start


def wrong_group(size: int) -> str:
    exchange = RowExchange(
        size, 0, 1, 1, [0], [0, 1, *[0] * (size - 2)], [0, 1, *[0] * (size - 2)], [0], [], [], required=True
    )
    return attempt(exchange_rows, torch.ones(1, 2), exchange)[1].code


def agreed(texts: list[str], failing: dict[int, str]) -> tuple[str, dict[str, Any], float]:
    """``agree`` on this rank's plan (as JSON); ranks in ``failing`` raise instead of planning."""
    rank = dist.get_rank()

    def planned() -> Any:
        if failing.get(rank) == "plan error":
            return indexer_task_plan((5, 3), 3, 1, "none")
        if failing.get(rank) == "crash":
            raise ZeroDivisionError("the data loader broke")
        return from_json(texts[rank])

    plan, outcome = attempt(planned)
    start = time.monotonic()
    result, judged = attempt(agree, plan, None, outcome)
    spent = time.monotonic() - start
    assert judged.ok == (result is not None)
    return judged.code or result.digest, dict(judged.facts), spent


def agree_on_nonsense(kind: str) -> tuple[str, float]:
    """Rank 1 brings something that is no plan; the others wait for it in vain, or not."""
    plan: Any = indexer_task_plan((4, 4), dist.get_world_size(), 1, "none")
    outcome = Outcome()
    if dist.get_rank() == 1:
        plan = object() if kind == "no plan" else plan
        outcome = Outcome(False, "HP-DOC-001", facts={"x": 1.5}) if kind == "odd facts" else outcome
    start = time.monotonic()
    _, judged = attempt(agree, plan, None, outcome)
    return judged.code, time.monotonic() - start


def agreed_route(lengths: tuple[int, ...]) -> str:
    return agree(indexer_route(lengths, dist.get_world_size(), dist.get_rank(), 1, "locality")).digest


def inputs_of(lengths: tuple[int, ...], ratio: int, seed: int, integers: bool) -> dict[str, torch.Tensor]:
    """The whole batch's tensors, equal on all ranks; small integers make every score exact and full of ties."""
    random = torch.Generator().manual_seed(seed)
    documents = PackedDocuments(lengths)
    total, keys = documents.total, int((documents.lengths // ratio).sum())
    shapes = {
        "residual": (total, HEADS * DIM),
        "weights": (total, HEADS),
        "key": (keys, DIM),
        "cos": (total, ROPE),
        "sin": (total, ROPE),
    }
    if integers:
        return {name: torch.randint(-2, 3, shape, generator=random).float() for name, shape in shapes.items()}
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def selected(
    lengths: tuple[int, ...], ratio: int, topk: int, mode: str, options: dict[str, Any], seed: int, integers: bool
) -> dict[str, Any]:
    """Balanced selection of this rank's rows, and the ids that one process gives them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = indexer_task_plan(lengths, size, ratio, mode, **options)
    route = plan_route(plan, rank)
    parts = inputs_of(lengths, ratio, seed, integers)
    mine = {name: part[rank * plan.local_rows : (rank + 1) * plan.local_rows][None] for name, part in parts.items()}
    residual = mine["residual"].requires_grad_()
    calls = []

    def selector(residual, weights, positions, segments):
        calls.append(residual.shape[1])
        assert positions[0].dtype == torch.float64
        assert positions[0].shape == (1, route.query_count, ROPE)
        assert segments == route.segments
        query = residual[0].view(-1, HEADS, DIM)
        return lightning_indexer(query, parts["key"], weights[0], segments, ratio, topk)[None]

    with Recorder() as recorder:
        ids = balanced_indexer_select(
            residual,
            mine["weights"],
            (mine["cos"].double(), mine["sin"].double()),
            selector=selector,
            route=route,
            group=None,
        )
    whole = indexer_route(lengths, 1, 0, ratio, "none")
    query = parts["residual"].view(-1, HEADS, DIM)
    expected = lightning_indexer(query, parts["key"], parts["weights"], whole.segments, ratio, topk)
    return {
        "equal": torch.equal(ids[0], expected[rank * plan.local_rows : (rank + 1) * plan.local_rows]),
        "shape": tuple(ids.shape),
        "dtype": str(ids.dtype),
        "grad": ids.requires_grad,
        "calls": calls,
        "collectives": recorder.events,
        "moved": plan.moved_rows,
    }


def moved_inputs(lengths: tuple[int, ...], mode: str) -> bool:
    """Whether every worker row arrives bit for bit, each tensor in its own dtype."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = indexer_task_plan(lengths, size, 1, mode)
    route = plan_route(plan, rank)
    total = plan.documents.total
    random = torch.Generator().manual_seed(7)
    whole = [
        torch.randn(1, total, 24, generator=random).bfloat16(),
        torch.randn(1, total, 4, generator=random),
        torch.randn(1, total, 8, generator=random),
        torch.randn(1, total, 8, generator=random),
    ]
    local = [part[:, rank * plan.local_rows : (rank + 1) * plan.local_rows] for part in whole]
    got = launch_indexer_inputs(local[0], local[1], (local[2], local[3]), route=route, group=None).wait()
    rows = [row for task in plan.worker_tasks(rank) for row in range(task.start, task.stop)]
    arrived = (got[0], got[1], *got[2])
    return all(
        torch.equal(one, two[:, rows]) and one.dtype == two.dtype for one, two in zip(arrived, whole, strict=True)
    )


def overlap_events(lengths: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Order of starts and waits around the caller's own work, and the codes of spent handles."""
    rank, size = dist.get_rank(), dist.get_world_size()
    route = indexer_route(lengths, size, rank, 1, "locality")
    local = route.exchange.num_source_rows
    rows = [torch.ones(1, local, width) for width in (6, 4, 2, 2)]
    codes = []
    with Recorder() as recorder:
        inputs = launch_indexer_inputs(rows[0], rows[1], (rows[2], rows[3]), route=route, group=None)
        recorder.events.append("projection")
        inputs.wait()
        result = inputs.launch_result(torch.zeros(route.query_count, 3, dtype=torch.int64))
        recorder.events.append("attention")
        home = result.wait()
    assert home.shape == (1, local, 3)
    assert home.dtype == torch.int32
    for spent in (
        inputs.wait,
        result.wait,
        lambda: inputs.launch_result(home[0, :0].expand(0, 3).new_zeros(route.query_count, 3)),
    ):
        codes.append(attempt(spent)[1].code)
    return recorder.events, codes


def selector_fails(lengths: tuple[int, ...], bad_rank: int) -> tuple[str, float]:
    """With ``check="always"`` a selector that raises on one rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    route = indexer_route(lengths, size, rank, 1, "locality")
    rows = [torch.ones(1, route.exchange.num_source_rows, width) for width in (6, 4, 2, 2)]

    def selector(*inputs: Any) -> torch.Tensor:
        if rank == bad_rank:
            raise ZeroDivisionError("on purpose")
        return torch.zeros(1, route.query_count, 3, dtype=torch.int32)

    start = time.monotonic()
    _, outcome = attempt(
        balanced_indexer_select,
        rows[0],
        rows[1],
        (rows[2], rows[3]),
        selector=selector,
        route=route,
        group=None,
        check="always",
    )
    return outcome.code, time.monotonic() - start


def trained_after_inference(exchanges: list[RowExchange]) -> bool:
    """An exchange first met in inference mode serves a training step."""
    exchange = own(exchanges)
    with torch.inference_mode():
        exchange_rows(torch.ones(exchange.num_source_rows, 2), exchange)
    with FakeTensorMode():
        device_exchange(exchange, torch.device("cpu"))
    rows = torch.ones(exchange.num_source_rows, 2, requires_grad=True)
    exchange_rows(rows, exchange).sum().backward()
    return rows.grad is not None


def projected(lengths: tuple[int, ...], mode: str, options: dict[str, Any]) -> tuple[bool, int, int]:
    """The worker's projection of moved rows against the owner's own, bit for bit, through one functional call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = indexer_task_plan(lengths, size, 1, mode, **options)
    route = plan_route(plan, rank)
    torch.manual_seed(3)
    module = torch.nn.Linear(RANK_WIDTH, HEADS * DIM, bias=False)
    weights = dict(module.named_parameters())
    calls = []

    def project(rows: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(rows.shape))
        return torch.func.functional_call(module, weights, (rows,))

    whole = torch.randn(plan.documents.total, RANK_WIDTH, generator=torch.Generator().manual_seed(5))
    local = whole[rank * plan.local_rows : (rank + 1) * plan.local_rows]
    with torch.no_grad():
        owned = torch.func.functional_call(module, weights, (local,))
        moved = exchange_rows(local, route.exchange)
        worked = project_worker_queries(project, moved, plan.local_rows, route.projection_calls)
        expected = exchange_rows(owned, route.exchange)
    assert set(calls) == {(plan.local_rows, RANK_WIDTH)}
    return torch.equal(worked, expected), len(calls), route.projection_calls


def bad_inputs(lengths: tuple[int, ...], bad_rank: int, check: str) -> tuple[str, int, float]:
    """One rank passes rows of another shard size."""
    rank, size = dist.get_rank(), dist.get_world_size()
    route = indexer_route(lengths, size, rank, 1, "locality")
    local = route.exchange.num_source_rows + (1 if rank == bad_rank else 0)
    rows = [torch.ones(1, local, width) for width in (6, 4, 2, 2)]
    start = time.monotonic()

    def launch() -> object:
        return launch_indexer_inputs(rows[0], rows[1], (rows[2], rows[3]), route=route, group=None, check=check).wait()

    _, outcome = attempt(launch)
    return outcome.code, len(outcome.facts.get("failing_ranks", ())), time.monotonic() - start


def sleeps_on_rank(rank: int, seconds: float) -> int:
    if dist.get_rank() == rank:
        time.sleep(seconds)
    return dist.get_rank()


def answers_a_function() -> object:
    return lambda: None


def leaves_a_collective(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ZeroDivisionError("on purpose")
    dist.barrier()


def fails_on_rank(rank: int, kind: str) -> int:
    if dist.get_rank() == rank:
        if kind == "plan error":
            PackedDocuments(())
        raise ZeroDivisionError("on purpose")
    return dist.get_rank()


def routes_of(plan_text: str) -> list[IndexerRoute]:
    """Every rank's route of a plan that came as JSON, gathered as objects."""
    plan = from_json(plan_text)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, plan_route(plan, dist.get_rank()))
    return gathered


def round_trip(exchanges: list[RowExchange]) -> bool:
    """A permutation and its transpose bring every row home."""
    exchange = own(exchanges)
    rows = torch.arange(float(exchange.num_source_rows)) + 1000 * dist.get_rank()
    return torch.equal(exchange_rows(exchange_rows(rows, exchange), transpose(exchange)), rows)


def raise_agreed(texts: list[str]) -> None:
    agree(from_json(own(texts)))


def raise_different_tensors() -> None:
    rank = dist.get_rank()
    other = [int(to != rank) for to in range(2)]
    exchange = RowExchange(2, rank, 1, 1, [0], other, other, [0], [], [], required=True)
    exchange_rows(torch.ones(1, 2 + rank), exchange, check="always")
