"""Sequence gather: every rank's rows on every rank, and backwards each rank's sum of the gradients of its rows.

For what all ranks need in full, such as the index keys; where a rank needs a part, a bank moves less. Rules GATHER-1
to GATHER-6 of ``specs/executors.md``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpfun._fields import integers
from hpfun.errors import refusal
from hpfun_torch.agree import Check, all_gather, backend_device, settle, signature
from hpfun_torch.compiled import gather_in_graph
from hpfun_torch.exchange import check_dim, plain, refuse_functorch
from hpfun_torch.handle import Handle

Lengths = tuple[int, ...]


def gather_sequence(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    lengths: Sequence[int] | torch.Tensor | None = None,
    check: Check = "off",
) -> torch.Tensor:
    """All ranks' rows along ``dim``, in rank order, on every rank; shards may differ in length, 0 included.

    Any trailing shape and dtype, the same on all ranks. ``lengths`` says how many rows each rank has (``np.diff`` of
    owner offsets, say); without it the ranks ask one another, one int each. Shards are padded to the longest for the
    transfer. Differentiable any number of times and through ``torch.func``; the gradient of a row is the sum of all
    ranks' gradients, added in rank order, 16-bit ones in float32.

    Raises HP-ROUTE-006 (rows, lengths) and HP-ROUTE-007 (``dim``) before any transfer of rows. With
    ``check="always"`` every rank raises what any rank found, and HP-AGREE-003 where ranks differ in dtype, other
    extents, ``lengths`` or the need of a gradient.

    >>> gather_sequence(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if torch.compiler.is_compiling():
        return gather_in_graph(tensor, lengths, group, dim, check)
    counts = _checked(tensor, group, dim, lengths, check)
    return _Gather.apply(tensor.movedim(dim, 0), counts, group, None).movedim(0, dim)


def start_gather(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    lengths: Sequence[int] | torch.Tensor | None = None,
    check: Check = "off",
) -> Handle[torch.Tensor]:
    """``gather_sequence`` in two halves: the transfer starts now, ``wait()`` gives the result once.

    Do not write to ``tensor`` before the wait. In a compiled graph the whole transfer runs here. Raises what
    ``gather_sequence`` raises, and HP-STATE-001 at a second wait.
    """
    if torch.compiler.is_compiling():
        gathered = gather_in_graph(tensor, lengths, group, dim, check)
        return Handle(lambda: gathered, "start_gather")
    counts = _checked(tensor, group, dim, lengths, check)
    refuse_functorch(tensor, "gather_sequence")
    rows, with_grad = tensor.movedim(dim, 0), torch.is_grad_enabled()
    pending = _start_gather(rows.detach(), counts, group)

    def finish() -> torch.Tensor:
        with torch.set_grad_enabled(with_grad):  # of the start, wherever the wait stands
            return _Gather.apply(rows, counts, group, pending).movedim(0, dim)

    return Handle(finish, "start_gather")


class _Gather(torch.autograd.Function):
    """Rows on the first axis; ``finish`` is the second half of a transfer that was started before."""

    @staticmethod
    def forward(rows, lengths, group, finish):
        return (finish or _start_gather(rows, lengths, group))()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.lengths, ctx.group, _ = inputs

    @staticmethod
    def backward(ctx, grad):  # ty: ignore[incompatible-method-override]
        return _Reduce.apply(grad, ctx.lengths, ctx.group), None, None, None

    @staticmethod
    def jvp(ctx, rows, *others):  # ty: ignore[incompatible-method-override]
        return _Gather.apply(rows, ctx.lengths, ctx.group, None)

    @staticmethod
    def vmap(info, in_dims, rows, lengths, group, finish):  # ty: ignore[incompatible-method-override]
        # trailing axes are free, so a batch axis is one more of them
        return _Gather.apply(rows.movedim(in_dims[0], -1), lengths, group, finish), -1


class _Reduce(torch.autograd.Function):
    """The transpose of ``_Gather``: every rank's gradient of all rows in, the sum for the own rows out."""

    @staticmethod
    def forward(rows, lengths, group):
        return run_reduce(rows, lengths, group)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.lengths, ctx.group = inputs

    @staticmethod
    def backward(ctx, grad):  # ty: ignore[incompatible-method-override]
        return _Gather.apply(grad, ctx.lengths, ctx.group, None), None, None

    @staticmethod
    def jvp(ctx, rows, *others):  # ty: ignore[incompatible-method-override]
        return _Reduce.apply(rows, ctx.lengths, ctx.group)

    @staticmethod
    def vmap(info, in_dims, rows, lengths, group):  # ty: ignore[incompatible-method-override]
        return _Reduce.apply(rows.movedim(in_dims[0], -1), lengths, group), -1


def run_gather(
    tensor: torch.Tensor, lengths: Any, group: Any, dim: int, check: Check, needs_grad: bool
) -> tuple[torch.Tensor, Lengths]:
    """The gather as a compiled graph calls it, checked like every other, and the row counts of all ranks."""
    counts = _checked(tensor, group, dim, lengths, check, needs_grad)
    return _start_gather(tensor.movedim(dim, 0), counts, group)().movedim(0, dim), counts


def _start_gather(rows: torch.Tensor, lengths: Lengths, group: Any) -> Callable[[], torch.Tensor]:
    if len(lengths) == 1 or not max(lengths):
        copy = rows.clone(memory_format=torch.contiguous_format)
        return lambda: copy
    longest = max(lengths)
    padded = plain(rows)
    if len(rows) < longest:
        padded = torch.cat((padded, rows.new_zeros((longest - len(rows), *rows.shape[1:]))))
    gathered = rows.new_empty((len(lengths) * longest, *rows.shape[1:]))
    work = all_gather(gathered, padded, group=group, async_op=True)

    def finish() -> torch.Tensor:
        work.wait()
        if min(lengths) == longest:
            return gathered
        return torch.cat([part[:count] for part, count in zip(gathered.split(longest), lengths, strict=True)])

    return finish


def run_reduce(rows: torch.Tensor, lengths: Lengths, group: Any) -> torch.Tensor:
    """The sum over ranks of their ``[sum(lengths), ...]`` rows, of which this rank gets its own, in rank order."""
    if len(lengths) == 1 or not max(lengths):
        return rows.clone(memory_format=torch.contiguous_format)
    rank = dist.get_rank(group)
    own = lengths[rank]
    received = rows.new_empty((len(lengths) * own, *rows.shape[1:]))
    dist.all_to_all_single(received, plain(rows), [own] * len(lengths), list(lengths), group=group)
    narrow = rows.dtype in (torch.float16, torch.bfloat16)
    parts = received.view(len(lengths), own, *rows.shape[1:])
    total = parts[0].to(torch.float32) if narrow else parts[0].clone()
    for part in parts[1:]:
        total += part
    return total.to(rows.dtype)


def _checked(tensor: Any, group: Any, dim: Any, lengths: Any, check: Check, needs_grad: bool = False) -> Lengths:
    """Rows of every rank; everything that can be wrong is found here, before rows move."""
    kept: list[Lengths | None] = []

    def describe() -> dict[str, str]:
        grad = needs_grad or (tensor.requires_grad and torch.is_grad_enabled())
        described = {"tensor": signature(tensor, dim), "requires_grad": str(grad)}
        return {**described, "lengths": str(kept[0])}

    settle(lambda: kept.append(_check(tensor, group, dim, lengths)), describe, group, check)
    if kept[0] is not None:
        return kept[0]
    rows = tensor.shape[dim]
    if _size(group) == 1:
        return (rows,)
    own = torch.tensor([rows], device=backend_device(group))
    found = torch.empty(_size(group), dtype=torch.int64, device=own.device)
    all_gather(found, own, group=group)
    return tuple(found.tolist())


def _check(tensor: Any, group: Any, dim: Any, lengths: Any) -> Lengths | None:
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise refusal("HP-ROUTE-006", "tensor", f"needs a tensor, got {kind}", type=kind)
    check_dim(tensor, dim, "HP-ROUTE-007")
    if lengths is None:
        return None
    counts = tuple(integers(lengths, "lengths", "HP-ROUTE-006").tolist())
    size, rows = _size(group), tensor.shape[dim]
    rank = dist.get_rank(group) if size > 1 else 0
    if len(counts) != size or min(counts) < 0 or counts[rank] != rows:
        own = counts[rank] if rank < len(counts) else None
        message = f"{len(counts)} lengths, {own} for rank {rank} of {size}, whose tensor has {rows} rows"
        facts = {"entries": len(counts), "size": size, "rank": rank, "rows": rows, "expected": own}
        raise refusal("HP-ROUTE-006", "lengths", message, "pass every rank's rows, in rank order", **facts)
    return counts


def _size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1
