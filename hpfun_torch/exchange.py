"""Moves the rows of tensors as a ``RowExchange`` says, and their gradients as its transpose says.

The only executor of row movement: every family hands it a ``Movement``. It holds no arithmetic on offsets; which rows,
how many, and whether there is a collective at all stand in the exchange. Rules EXECUTOR-1 to EXECUTOR-12 of
``specs/executors.md``.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun_torch import transfer
from hpfun_torch.agree import Check
from hpfun_torch.checks import Movement, check_movement, refuse_functorch
from hpfun_torch.compiled import exchange_in_graph
from hpfun_torch.convert import backward_exchange
from hpfun_torch.handle import Handle


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
    return move_rows(tensor, Movement(exchange, group, dim, fill, check))


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
    return start_rows(tensor, Movement(exchange, group, dim, fill, check), "start_exchange", "exchange_rows")


def move_rows(tensor: torch.Tensor, movement: Movement) -> torch.Tensor:
    """The rows of ``tensor`` moved, for every family that has an exchange."""
    if torch.compiler.is_compiling():
        return exchange_in_graph(tensor, movement)
    check_movement(tensor, movement)
    return _moved(tensor, movement, None)


def start_rows(tensor: torch.Tensor, movement: Movement, name: str, instead: str) -> Handle[torch.Tensor]:
    """``move_rows`` in two halves; the handle has this ``name``, and ``instead`` is the call in one piece."""
    if torch.compiler.is_compiling():
        moved = exchange_in_graph(tensor, movement)
        return Handle(lambda: moved, name)
    check_movement(tensor, movement)
    refuse_functorch(tensor, instead)
    rows, with_grad = tensor.movedim(movement.dim, 0).detach(), torch.is_grad_enabled()
    pending = transfer.start_exchange(rows, movement.exchange, movement.group, movement.fill)

    def finish() -> torch.Tensor:
        with torch.set_grad_enabled(with_grad):  # of the start, wherever the wait stands
            return _moved(tensor, movement, pending)

    return Handle(finish, name)


def _moved(tensor: torch.Tensor, movement: Movement, pending: Callable[[], torch.Tensor] | None) -> torch.Tensor:
    exchange, group, dim, fill, *_ = movement
    return _Exchange.apply(tensor.movedim(dim, 0), exchange, group, fill, pending).movedim(0, dim)


class _Exchange(torch.autograd.Function):
    """Rows on the first axis; ``finish`` is the second half of a transfer that was started before."""

    @staticmethod
    def forward(rows, exchange, group, fill, finish):
        return (finish or transfer.start_exchange(rows, exchange, group, fill))()

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
