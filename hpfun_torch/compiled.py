"""Row movement as operators that ``torch.compile`` takes into a graph whole, forward and backward.

A layout goes in as data: the packed exchange is a tensor input, row counts are sizes. So a new layout needs no new
graph. Row counts of 0 and 1, a tensor of another rank, dtype or ``dim``, and another group do, since a compiler
specialises on them. The operators count as effects in a fixed order, so that no compiler puts the collectives of one
rank in another order than those of its peers. Rules EXECUTOR-12 and GATHER-6 of ``specs/executors.md``.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun.errors import refusal
from hpfun.exchange import unpack_exchange
from hpfun_torch import transfer
from hpfun_torch.agree import Check
from hpfun_torch.checks import Movement, check_gather, check_movement, group_size, needs_gradient
from hpfun_torch.convert import backward_exchange
from hpfun_torch.inductor_order import keep_order


def group_name(group: dist.ProcessGroup | None) -> str:
    """A group by name, as operators take it; "" is the default group."""
    return "" if group is None else group.group_name


def named_group(name: str) -> dist.ProcessGroup | None:
    """The group of that name."""
    return dist.distributed_c10d._resolve_process_group(dist.distributed_c10d.GroupName(name)) if name else None


def exchange_in_graph(tensor: torch.Tensor, movement: Movement) -> torch.Tensor:
    """``move_rows`` as one operator; HP-EXCHANGE-008, while tracing, for long scattered lists."""
    exchange, group, dim, fill, check, codes = movement
    if exchange._packed is None:
        advice = "call it outside the compiled function"
        raise refusal("HP-EXCHANGE-008", "exchange", "its rows are scattered, and cannot pass through a graph", advice)
    packed = torch.as_tensor(exchange._packed)
    # whether a gradient is needed is known while tracing, and not inside an operator
    options = (False, float(fill), group_name(group), check, *codes, needs_gradient(tensor))
    return torch.ops.hpfun.exchange_rows(tensor, packed, exchange.num_target_rows, dim, *options)


@lru_cache(maxsize=256)
def _unpacked(content: bytes, backwards: bool) -> RowExchange:
    if backwards:
        return backward_exchange(_unpacked(content, False))
    return unpack_exchange(np.frombuffer(content, dtype=np.int64))


def _resized(tensor: torch.Tensor, dim: int, num_rows: int) -> torch.Tensor:
    """A tensor like the result of a movement; a ``dim`` that does not exist is refused when the graph runs."""
    at = dim if -tensor.ndim <= dim < tensor.ndim else 0
    rows = tensor.movedim(at, 0)
    return rows.new_empty((num_rows, *rows.shape[1:])).movedim(0, at)


@torch.library.custom_op("hpfun::exchange_rows", mutates_args=())
def _exchange_rows(
    tensor: torch.Tensor,
    packed: torch.Tensor,
    num_rows: int,
    dim: int,
    backwards: bool,
    fill: float,
    group: str,
    check: str,
    code: str,
    dim_code: str,
    needs_grad: bool,
) -> torch.Tensor:
    exchange, ranks = _unpacked(packed.numpy().tobytes(), backwards), named_group(group)
    movement = Movement(exchange, ranks, dim, fill, cast(Check, check), (code, dim_code))
    check_movement(tensor, movement, needs_grad)
    return transfer.start_exchange(tensor.movedim(dim, 0), exchange, ranks, fill)().movedim(0, dim)


@_exchange_rows.register_fake
def _(tensor, packed, num_rows, dim, backwards, fill, group, check, code, dim_code, needs_grad):
    keep_order(torch.ops.hpfun.exchange_rows.default)
    return _resized(tensor, dim, num_rows)


def _keep_exchange(ctx, inputs, output):
    tensor, ctx.packed, _, ctx.dim, ctx.backwards, _, ctx.group, _, *ctx.codes, _ = inputs
    ctx.num_rows = tensor.shape[ctx.dim]


def _exchange_back(ctx, grad):
    options = (not ctx.backwards, 0.0, ctx.group, "off", *ctx.codes, needs_gradient(grad))
    back = torch.ops.hpfun.exchange_rows(grad, ctx.packed, ctx.num_rows, ctx.dim, *options)
    return back, *[None] * 10


def gather_in_graph(
    tensor: torch.Tensor, lengths: Any, group: dist.ProcessGroup | None, dim: int, check: str
) -> torch.Tensor:
    """``gather_sequence`` as one operator.

    With ``lengths`` as Python ints the number of gathered rows is known to the graph; else it is a size that the
    graph learns when it runs.
    """
    total = None
    if isinstance(lengths, np.ndarray):
        lengths = torch.as_tensor(lengths)
    elif isinstance(lengths, Sequence):
        total = sum(lengths)
        lengths = torch.tensor(lengths, dtype=torch.int64)
    options = (group_name(group), check, needs_gradient(tensor))
    return torch.ops.hpfun.gather_rows(tensor, lengths, total, dim, *options)[0]


@torch.library.custom_op("hpfun::gather_rows", mutates_args=())
def _gather_rows(
    tensor: torch.Tensor,
    lengths: torch.Tensor | None,
    total: int | None,
    dim: int,
    group: str,
    check: str,
    needs_grad: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    ranks = named_group(group)
    counts = check_gather(tensor, ranks, dim, lengths, cast(Check, check), needs_grad)
    gathered = transfer.start_gather(tensor.movedim(dim, 0), counts, ranks)()
    return gathered.movedim(0, dim), torch.tensor(counts, dtype=torch.int64)


@_gather_rows.register_fake
def _(tensor, lengths, total, dim, group, check, needs_grad):
    keep_order(torch.ops.hpfun.gather_rows.default)
    if total is None:
        total = torch.library.get_ctx().new_dynamic_size()
    return _resized(tensor, dim, total), torch.empty(group_size(named_group(group)), dtype=torch.int64)


@torch.library.custom_op("hpfun::reduce_rows", mutates_args=())
def _reduce_rows(tensor: torch.Tensor, lengths: torch.Tensor, num_rows: int, dim: int, group: str) -> torch.Tensor:
    rows = transfer.reduce_rows(tensor.movedim(dim, 0), tuple(lengths.tolist()), named_group(group))
    return rows.movedim(0, dim)


@_reduce_rows.register_fake
def _(tensor, lengths, num_rows, dim, group):
    keep_order(torch.ops.hpfun.reduce_rows.default)
    return _resized(tensor, dim, num_rows)


def _keep_gather(ctx, inputs, output):
    tensor, _, _, ctx.dim, ctx.group, _, _ = inputs
    ctx.lengths, ctx.num_rows = output[1], tensor.shape[ctx.dim]


def _gather_back(ctx, grad, _):
    back = torch.ops.hpfun.reduce_rows(grad, ctx.lengths, ctx.num_rows, ctx.dim, ctx.group)
    return back, *[None] * 6


def _keep_reduce(ctx, inputs, output):
    tensor, ctx.lengths, _, ctx.dim, ctx.group = inputs
    ctx.num_rows = tensor.shape[ctx.dim]


def _reduce_back(ctx, grad):
    options = (ctx.group, "off", needs_gradient(grad))
    back = torch.ops.hpfun.gather_rows(grad, ctx.lengths, ctx.num_rows, ctx.dim, *options)[0]
    return back, None, None, None, None


for _operator, _keep, _back in (
    (_exchange_rows, _keep_exchange, _exchange_back),
    (_gather_rows, _keep_gather, _gather_back),
    (_reduce_rows, _keep_reduce, _reduce_back),
):
    _operator.register_autograd(_back, setup_context=_keep)
    torch.library._register_effectful_op(_operator._qualname, torch.library.EffectType.ORDERED)
