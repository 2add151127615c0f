"""Row movement as operators that ``torch.compile`` takes into a graph whole, forward and backward.

A layout goes in as data: the packed exchange is a tensor input, row counts are sizes. So a new layout needs no new
graph. Row counts of 0 and 1, a tensor of another rank, dtype or ``dim``, and another group do, since a compiler
specialises on them. Rules EXECUTOR-12 and GATHER-6 of ``specs/executors.md``.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun.errors import refusal
from hpfun.exchange import unpack_exchange
from hpfun_torch.agree import Check
from hpfun_torch.convert import backward_exchange


def group_name(group: dist.ProcessGroup | None) -> str:
    """A group by name, as operators take it; "" is the default group."""
    return "" if group is None else group.group_name


def named_group(name: str) -> dist.ProcessGroup | None:
    """The group of that name."""
    return dist.distributed_c10d._resolve_process_group(dist.distributed_c10d.GroupName(name)) if name else None


def exchange_in_graph(
    rows: torch.Tensor,
    exchange: RowExchange,
    group: dist.ProcessGroup | None,
    fill: float,
    check: str,
    code: str,
) -> torch.Tensor:
    """``exchange_rows`` along the first axis, as one operator; HP-EXCHANGE-008 for scattered rows."""
    if exchange.packed is None:
        advice = "call it outside the compiled function"
        raise refusal("HP-EXCHANGE-008", "exchange", "its rows are scattered, and cannot pass through a graph", advice)
    packed = torch.as_tensor(exchange.packed)
    return torch.ops.hpfun.exchange_rows(
        rows, packed, exchange.num_target_rows, False, float(fill), group_name(group), check, code
    )


@lru_cache(maxsize=256)
def _unpacked(content: bytes, backwards: bool) -> RowExchange:
    if backwards:
        return backward_exchange(_unpacked(content, False))
    return unpack_exchange(torch.frombuffer(bytearray(content), dtype=torch.int64).numpy())


@torch.library.custom_op("hpfun::exchange_rows", mutates_args=())
def _exchange_rows(
    rows: torch.Tensor,
    packed: torch.Tensor,
    num_rows: int,
    backwards: bool,
    fill: float,
    group: str,
    check: str,
    code: str,
) -> torch.Tensor:
    from hpfun_torch.exchange import run_exchange  # it routes compiled calls to this module

    exchange = _unpacked(packed.numpy().tobytes(), backwards)
    return run_exchange(rows, exchange, named_group(group), fill, cast(Check, check), code)


@_exchange_rows.register_fake
def _(rows, packed, num_rows, backwards, fill, group, check, code):
    return rows.new_empty((num_rows, *rows.shape[1:]))


def _keep_exchange(ctx, inputs, output):
    rows, ctx.packed, _, ctx.backwards, _, ctx.group, ctx.check, ctx.code = inputs
    ctx.num_rows = rows.shape[0]


def _exchange_back(ctx, grad):
    back = torch.ops.hpfun.exchange_rows(
        grad, ctx.packed, ctx.num_rows, not ctx.backwards, 0.0, ctx.group, "off", ctx.code
    )
    return back, None, None, None, None, None, None, None


_exchange_rows.register_autograd(_exchange_back, setup_context=_keep_exchange)


def gather_in_graph(
    rows: torch.Tensor, lengths: Sequence[int] | torch.Tensor | None, group: dist.ProcessGroup | None, check: str
) -> torch.Tensor:
    """``gather_sequence`` along the first axis, as one operator.

    With ``lengths`` as Python ints the number of gathered rows is known to the graph; else it is a size that the
    graph learns when it runs.
    """
    total = None
    if lengths is not None and not isinstance(lengths, torch.Tensor):
        total = sum(lengths)
        lengths = torch.tensor(lengths, dtype=torch.int64)
    return torch.ops.hpfun.gather_rows(rows, lengths, total, group_name(group), check)[0]


@torch.library.custom_op("hpfun::gather_rows", mutates_args=())
def _gather_rows(
    rows: torch.Tensor, lengths: torch.Tensor | None, total: int | None, group: str, check: str
) -> tuple[torch.Tensor, torch.Tensor]:
    from hpfun_torch.gather import run_gather

    given = None if lengths is None else tuple(lengths.tolist())
    gathered, found = run_gather(rows, given, named_group(group), cast(Check, check))
    return gathered, torch.tensor(found, dtype=torch.int64)


@_gather_rows.register_fake
def _(rows, lengths, total, group, check):
    if total is None:
        total = torch.library.get_ctx().new_dynamic_size()
    size = dist.get_world_size(named_group(group))
    return rows.new_empty((total, *rows.shape[1:])), torch.empty(size, dtype=torch.int64)


@torch.library.custom_op("hpfun::reduce_rows", mutates_args=())
def _reduce_rows(rows: torch.Tensor, lengths: torch.Tensor, num_rows: int, group: str) -> torch.Tensor:
    from hpfun_torch.gather import run_reduce

    return run_reduce(rows, tuple(lengths.tolist()), named_group(group))


@_reduce_rows.register_fake
def _(rows, lengths, num_rows, group):
    return rows.new_empty((num_rows, *rows.shape[1:]))


def _keep_gather(ctx, inputs, output):
    rows, _, _, ctx.group, _ = inputs
    ctx.lengths, ctx.num_rows = output[1], rows.shape[0]


def _gather_back(ctx, grad, _):
    return torch.ops.hpfun.reduce_rows(grad, ctx.lengths, ctx.num_rows, ctx.group), None, None, None, None


def _keep_reduce(ctx, inputs, output):
    rows, ctx.lengths, _, ctx.group = inputs
    ctx.num_rows = rows.shape[0]


def _reduce_back(ctx, grad):
    back = torch.ops.hpfun.gather_rows(grad, ctx.lengths, ctx.num_rows, ctx.group, "off")[0]
    return back, None, None, None


_gather_rows.register_autograd(_gather_back, setup_context=_keep_gather)
_reduce_rows.register_autograd(_reduce_back, setup_context=_keep_reduce)
