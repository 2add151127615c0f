"""Everything that can be wrong with a call, found before any collective starts.

Rules EXECUTOR-9 and EXECUTOR-10, DISPATCH-4 and GATHER-5 of ``specs/executors.md``.
"""

from collections.abc import Sequence
from numbers import Integral, Number
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun._fields import integers
from hpfun.errors import PlanError, Violation, refusal
from hpfun_torch.agree import Check, all_gather, backend_device, settle, signature
from hpfun_torch.transfer import Lengths


class Movement(NamedTuple):
    """How the rows of a tensor move; a tuple, since those pass through compilers.

    ``codes`` are a family's: for a tensor or another argument, and for a ``dim``, that do not fit.
    """

    exchange: RowExchange
    group: dist.ProcessGroup | None
    dim: int
    fill: float
    check: Check
    codes: tuple[str, str] = ("HP-EXCHANGE-008", "HP-EXCHANGE-008")


def check_movement(tensor: torch.Tensor, movement: Movement, needs_grad: bool | None = None) -> None:
    """The code of what does not fit; with ``check="always"``, on every rank.

    ``needs_grad`` says whether a gradient is needed where the tensor itself cannot say it, inside an operator.
    """
    exchange, group, dim, fill, check, codes = movement

    def verify() -> None:
        _check_tensor(tensor, exchange, dim, codes)
        if isinstance(fill, bool) or not isinstance(fill, Number):
            kind = type(fill).__name__
            raise refusal(codes[0], "fill", f"needs a number, got {kind} {fill!r:.40}", type=kind)
        check_group(exchange, group, check)

    def describe(_: None) -> dict[str, str]:
        facts = {"required": str(exchange.required), "reduce": str(exchange.reduce)}
        return {"tensor": signature(tensor, dim), **facts, "requires_grad": str(_needs(tensor, needs_grad))}

    settle(verify, describe, group, check)


def check_gather(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None,
    dim: int,
    lengths: Sequence[int] | torch.Tensor | None,
    check: Check,
    needs_grad: bool | None = None,
) -> Lengths:
    """Rows of every rank, which they tell one another unless ``lengths`` says it; HP-ROUTE-006 and 007."""

    def describe(counts: Lengths | None) -> dict[str, str]:
        facts = {"lengths": str(counts), "requires_grad": str(_needs(tensor, needs_grad))}
        return {"tensor": signature(tensor, dim), **facts}

    counts = settle(lambda: _given_lengths(tensor, group, dim, lengths), describe, group, check)
    if counts is not None:
        return counts
    size, rows = group_size(group), tensor.shape[dim]
    if size == 1:
        return (rows,)
    own = torch.tensor([rows], device=backend_device(group))
    found = torch.empty(size, dtype=torch.int64, device=own.device)
    all_gather(found, own, group=group)
    return tuple(found.tolist())


def group_size(group: dist.ProcessGroup | None) -> int:
    """Number of ranks of a group; 1 where nothing is initialised."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


def check_member(group: dist.ProcessGroup | None) -> None:
    """HP-EXCHANGE-009 on a rank that is not in the group, or for what is none."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        kind = type(group).__name__
        facts = {"size": None, "rank": None, "group_size": None, "group_rank": None}
        raise refusal("HP-EXCHANGE-009", "group", f"needs a process group or None, got {kind}", "pass a group", **facts)
    if group is not None and dist.is_initialized() and dist.get_rank(group) < 0:
        rank = dist.get_rank()
        advice = "call it on the ranks of the group alone"
        facts = {"size": None, "rank": rank, "group_size": None, "group_rank": -1}
        raise refusal("HP-EXCHANGE-009", "group", f"rank {rank} is not in it", advice, **facts)


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Whether what is made of the tensor now will ask for a gradient."""
    return tensor.requires_grad and torch.is_grad_enabled()


def refuse_functorch(tensor: torch.Tensor, instead: str) -> None:
    """HP-EXCHANGE-008 where a ``torch.func`` transform would have to reach through a handle."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise refusal("HP-EXCHANGE-008", "tensor", "torch.func transforms do not reach a handle", f"use {instead}")


def check_dim(tensor: torch.Tensor, dim: Any, code: str) -> None:
    """``code`` unless ``dim`` is an axis of the tensor."""
    if isinstance(dim, bool) or not isinstance(dim, Integral) or not -tensor.ndim <= dim < tensor.ndim:
        message = f"dim {dim!r} of a tensor with {tensor.ndim} axes"
        raise refusal(code, "dim", message, dim=repr(dim)[:40], axes=tensor.ndim)


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


def _needs(tensor: torch.Tensor, told: bool | None) -> bool:
    return needs_gradient(tensor) if told is None else told


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


def _given_lengths(tensor: Any, group: Any, dim: Any, lengths: Any) -> Lengths | None:
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise refusal("HP-ROUTE-006", "tensor", f"needs a tensor, got {kind}", type=kind)
    check_dim(tensor, dim, "HP-ROUTE-007")
    if lengths is None:
        return None
    counts = tuple(integers(lengths, "lengths", "HP-ROUTE-006").tolist())
    size, rows = group_size(group), tensor.shape[dim]
    rank = dist.get_rank(group) if size > 1 else 0
    if len(counts) != size or min(counts) < 0 or counts[rank] != rows:
        own = counts[rank] if rank < len(counts) else None
        message = f"{len(counts)} lengths, {own} for rank {rank} of {size}, whose tensor has {rows} rows"
        facts = {"entries": len(counts), "size": size, "rank": rank, "rows": rows, "expected": own}
        raise refusal("HP-ROUTE-006", "lengths", message, "pass every rank's rows, in rank order", **facts)
    return counts
