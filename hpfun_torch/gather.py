"""Sequence gather: every rank's rows on every rank, and backwards each rank's sum of the gradients of its rows.

For what all ranks need in full, such as the index keys; where a rank needs a part, a bank moves less. Rules GATHER-1
to GATHER-6 of ``specs/executors.md``.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from hpfun_torch import transfer
from hpfun_torch.agree import Check
from hpfun_torch.checks import check_gather, refuse_functorch
from hpfun_torch.compiled import gather_in_graph
from hpfun_torch.handle import Handle


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
    counts = check_gather(tensor, group, dim, lengths, check)
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
    counts = check_gather(tensor, group, dim, lengths, check)
    refuse_functorch(tensor, "gather_sequence")
    rows, with_grad = tensor.movedim(dim, 0), torch.is_grad_enabled()
    pending = transfer.start_gather(rows.detach(), counts, group)

    def finish() -> torch.Tensor:
        with torch.set_grad_enabled(with_grad):  # of the start, wherever the wait stands
            return _Gather.apply(rows, counts, group, pending).movedim(0, dim)

    return Handle(finish, "start_gather")


class _Gather(torch.autograd.Function):
    """Rows on the first axis; ``finish`` is the second half of a transfer that was started before."""

    @staticmethod
    def forward(rows, lengths, group, finish):
        return (finish or transfer.start_gather(rows, lengths, group))()

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
        return transfer.reduce_rows(rows, lengths, group)

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
