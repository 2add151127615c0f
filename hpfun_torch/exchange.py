"""Executes a ``RowExchange`` on tensors: gather, one all-to-all, place; and backwards the transpose.

The only executor of row movement. It holds no arithmetic on offsets: which rows, how many, and whether there
is a collective at all stand in the exchange. Rules EXECUTOR-1 to EXECUTOR-12 of ``specs/executors.md``.
"""

from collections.abc import Callable
from numbers import Integral, Number
from typing import Any

import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun.errors import PlanError, Violation, refusal
from hpfun_torch.agree import Check, settle, signature
from hpfun_torch.compiled import exchange_in_graph
from hpfun_torch.convert import DeviceExchange, backward_exchange, device_exchange
from hpfun_torch.handle import Handle

_CODES = ("HP-EXCHANGE-008", "HP-EXCHANGE-008")


def exchange_rows(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    fill: float = 0,
    check: Check = "off",
) -> torch.Tensor:
    """Move rows between ranks: ``num_source_rows`` along ``dim`` in, ``num_target_rows`` out.

    Any trailing shape and any dtype that the group's backend moves, the same on all ranks. Every rank of
    ``group`` calls it, or, where ``exchange.required`` is false, no collective happens and ``group`` is not
    touched. A placing exchange leaves ``fill`` in slots that nothing reaches; a reducing one adds up in rank
    order, 16-bit values in float32.
    Differentiable any number of times, and through ``torch.func``; backward is the transposed exchange.

    Raises HP-EXCHANGE-008 (tensor) and HP-EXCHANGE-009 (group) before any collective. With ``check="always"`` one
    small all-gather makes every rank raise what any rank found, and HP-AGREE-003 where dtypes, trailing shapes,
    ``required`` or the need of a gradient differ; with ``"off"`` the peers of a failing rank meet the group's timeout.

    >>> swap = RowExchange(1, 0, 2, 2, [], [0], [0], [], [0, 1], [1, 0], required=False)
    >>> exchange_rows(torch.tensor([[1.0], [2.0]]), swap).tolist()
    [[2.0], [1.0]]
    """
    return move_rows(tensor, exchange, group, dim, fill, check, _CODES)


def start_exchange(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    fill: float = 0,
    check: Check = "off",
) -> Handle[torch.Tensor]:
    """``exchange_rows`` in two halves: the transfer starts now, ``wait()`` gives the result once.

    Do not write to ``tensor`` before the wait: rows that run on are sent from where they lie. Differentiable;
    ``torch.func`` transforms go through ``exchange_rows`` only. Raises what ``exchange_rows`` raises, and
    HP-STATE-001 at a second wait.
    """
    return start_rows(tensor, exchange, group, dim, fill, check, _CODES, "start_exchange")


def move_rows(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: dist.ProcessGroup | None,
    dim: int,
    fill: float,
    check: Check,
    codes: tuple[str, str],
) -> torch.Tensor:
    """``exchange_rows`` with the codes of a family: for a tensor, and for a ``dim``, that do not fit."""
    if torch.compiler.is_compiling():
        return exchange_in_graph(tensor, exchange, group, dim, fill, check, codes)
    _checked(tensor, exchange, group, dim, fill, check, codes)
    return _Exchange.apply(tensor.movedim(dim, 0), exchange, group, fill, None).movedim(0, dim)


def start_rows(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: dist.ProcessGroup | None,
    dim: int,
    fill: float,
    check: Check,
    codes: tuple[str, str],
    name: str,
) -> Handle[torch.Tensor]:
    """``start_exchange`` with the codes and the handle's name of a family."""
    if torch.compiler.is_compiling():
        moved = move_rows(tensor, exchange, group, dim, fill, check, codes)
        return Handle(lambda: moved, name)
    _checked(tensor, exchange, group, dim, fill, check, codes)
    refuse_functorch(tensor, name.replace("start_exchange", "exchange_rows"))
    rows, with_grad = tensor.movedim(dim, 0), torch.is_grad_enabled()
    pending = _start(rows.detach(), exchange, group, fill)

    def finish() -> torch.Tensor:
        with torch.set_grad_enabled(with_grad):  # of the start, wherever the wait stands
            return _Exchange.apply(rows, exchange, group, fill, pending).movedim(0, dim)

    return Handle(finish, name)


def run_exchange(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: Any,
    dim: int,
    fill: float,
    check: Check,
    codes: tuple[str, str],
    needs_grad: bool,
) -> torch.Tensor:
    """The exchange as a compiled graph calls it, checked like every other."""
    _checked(tensor, exchange, group, dim, fill, check, codes, needs_grad)
    return _start(tensor.movedim(dim, 0), exchange, group, fill)().movedim(0, dim)


class _Exchange(torch.autograd.Function):
    """Rows on the first axis; ``finish`` is the second half of a transfer that was started before."""

    @staticmethod
    def forward(rows, exchange, group, fill, finish):
        return (finish or _start(rows, exchange, group, fill))()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.exchange, ctx.group, _, _ = inputs

    @staticmethod
    def backward(ctx, grad):  # ty: ignore[incompatible-method-override]
        return _Exchange.apply(grad, backward_exchange(ctx.exchange), ctx.group, 0, None), None, None, None, None

    @staticmethod
    def jvp(ctx, rows, *others):  # ty: ignore[incompatible-method-override]
        return _Exchange.apply(rows, ctx.exchange, ctx.group, 0, None)  # linear, but for what fill puts in

    @staticmethod
    def vmap(info, in_dims, rows, exchange, group, fill, finish):  # ty: ignore[incompatible-method-override]
        # trailing axes are free, so a batch axis is one more of them
        return _Exchange.apply(rows.movedim(in_dims[0], -1), exchange, group, fill, finish), -1


def _start(rows: torch.Tensor, exchange: RowExchange, group: Any, fill: float) -> Callable[[], torch.Tensor]:
    """Start the transfer and make the local copies behind it; the result is the second half."""
    plan = device_exchange(exchange, rows.device)
    rows = plain(rows)
    target = _empty_target(rows, exchange, plan, fill)
    work = received = None
    if exchange.required:
        in_place = plan.receive.span is not None and not plan.adds
        shape = (plan.receive.count, *rows.shape[1:])
        received = plan.receive.take(target) if in_place else rows.new_empty(shape)
        sent = plan.send.take(rows)
        work = dist.all_to_all_single(received, sent, plan.output_splits, plan.input_splits, group=group, async_op=True)
    if not plan.adds:
        _copy_local(rows, target, plan)

    def finish() -> torch.Tensor:
        if work is not None:
            work.wait()
        if plan.adds:
            return _added(rows, received, target, plan)
        if received is not None and plan.receive.span is None:
            plan.receive.put(target, received)
        return target

    return finish


def _empty_target(rows: torch.Tensor, exchange: RowExchange, plan: DeviceExchange, fill: float) -> torch.Tensor:
    shape = (exchange.num_target_rows, *rows.shape[1:])
    if plan.adds:
        narrow = rows.dtype in (torch.float16, torch.bfloat16)
        return rows.new_zeros(shape, dtype=torch.float32 if narrow else rows.dtype)
    if plan.full:
        return rows.new_empty(shape)
    return rows.new_full(shape, 0 if exchange.reduce else fill)


def _copy_local(rows: torch.Tensor, target: torch.Tensor, plan: DeviceExchange) -> None:
    sources, targets = plan.local_sources, plan.local_targets
    if sources.spans is None or targets.spans is None:
        targets.put(target, sources.take(rows))
        return
    for (start, stop), (to, end) in zip(sources.spans, targets.spans, strict=True):
        target[to:end].copy_(rows[start:stop])


def _added(rows: torch.Tensor, received: Any, target: torch.Tensor, plan: DeviceExchange) -> torch.Tensor:
    """What arrives, added up slot by slot in rank order, the own rows at their rank's place."""
    at = 0
    for part in plan.lower:
        part.add(target, received[at : at + part.count])
        at += part.count
    plan.local_targets.add(target, plan.local_sources.take(rows))
    for part in plan.higher:
        part.add(target, received[at : at + part.count])
        at += part.count
    return target.to(rows.dtype)


def refuse_functorch(tensor: torch.Tensor, instead: str) -> None:
    """HP-EXCHANGE-008 where a ``torch.func`` transform would have to reach through a handle."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise refusal("HP-EXCHANGE-008", "tensor", "torch.func transforms do not reach a handle", f"use {instead}")


def plain(rows: torch.Tensor) -> torch.Tensor:
    """The rows as backends send them: contiguous, with no conjugation or sign left to do."""
    return rows.resolve_conj().resolve_neg().contiguous()


def _checked(
    tensor: torch.Tensor,
    exchange: RowExchange,
    group: Any,
    dim: int,
    fill: float,
    check: Check,
    codes: tuple[str, str],
    needs_grad: bool = False,
) -> None:
    """Everything that can be wrong is found here, before any collective."""

    def verify() -> None:
        _check_tensor(tensor, exchange, dim, codes)
        if isinstance(fill, bool) or not isinstance(fill, Number):
            kind = type(fill).__name__
            raise refusal(codes[0], "fill", f"needs a number, got {kind} {fill!r:.40}", type=kind)
        check_group(exchange, group, check)

    settle(
        verify,
        lambda: {"tensor": signature(tensor, dim), **collective_facts(exchange, tensor, needs_grad)},
        group,
        check,
    )


def collective_facts(exchange: RowExchange, tensor: torch.Tensor, needs_grad: bool = False) -> dict[str, str]:
    """What decides whether a rank enters a collective, forward and backward; the same on all ranks."""
    grad = needs_grad or (tensor.requires_grad and torch.is_grad_enabled())
    return {"required": str(exchange.required), "reduce": str(exchange.reduce), "requires_grad": str(grad)}


def check_dim(tensor: torch.Tensor, dim: Any, code: str) -> None:
    """``code`` unless ``dim`` is an axis of the tensor."""
    if isinstance(dim, bool) or not isinstance(dim, Integral) or not -tensor.ndim <= dim < tensor.ndim:
        message = f"dim {dim!r} of a tensor with {tensor.ndim} axes"
        raise refusal(code, "dim", message, dim=repr(dim)[:40], axes=tensor.ndim)


def _check_tensor(tensor: Any, exchange: RowExchange, dim: Any, codes: tuple[str, str]) -> None:
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise refusal(codes[0], "tensor", f"needs a tensor, got {kind}", type=kind)
    if not isinstance(exchange, RowExchange):
        kind = type(exchange).__name__
        raise refusal(codes[0], "exchange", f"needs a RowExchange, got {kind}", type=kind)
    check_dim(tensor, dim, codes[1])
    rows = tensor.shape[dim]
    if rows != exchange.num_source_rows:
        raise refusal(
            codes[0],
            "tensor",
            f"{rows} rows along dim {dim}, the exchange has {exchange.num_source_rows}",
            "pass this rank's shard, or the dim that counts its rows",
            rows=rows,
            expected=exchange.num_source_rows,
            dim=dim,
            rank=exchange.rank,
        )


def check_group(exchange: RowExchange, group: Any, check: Check = "off") -> None:
    """HP-EXCHANGE-009 unless ``group`` is the one of the exchange; not asked where nobody communicates."""
    if not exchange.required and check == "off":
        return
    if not dist.is_initialized() and exchange.size == 1:
        return
    if not dist.is_initialized():
        raise PlanError(
            Violation(
                "HP-EXCHANGE-009",
                "group",
                f"rank {exchange.rank} of {exchange.size} needs a collective, but torch.distributed is not initialised",
                {"size": exchange.size, "rank": exchange.rank, "group_size": None, "group_rank": None},
                "call torch.distributed.init_process_group first",
            )
        )
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if (size, rank) != (exchange.size, exchange.rank):
        raise refusal(
            "HP-EXCHANGE-009",
            "group",
            f"this is rank {rank} of {size}, the exchange is for rank {exchange.rank} of {exchange.size}",
            "pass the group that the plan was made for, and this rank's own exchange",
            size=exchange.size,
            rank=exchange.rank,
            group_size=size,
            group_rank=rank,
        )
