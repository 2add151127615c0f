"""Rows of a batch as indices on a device: what of a tensor goes where, and where padding goes.

Cached by plan and device, since fields share one plan. Rule BATCH-12 of ``specs/batch.md``.
"""

from typing import Any

import attrs
import numpy as np
import torch

from hpfun.batch import BatchPlan, BatchView, restore_index
from hpfun_torch.convert import kept_per_device

_WITHOUT_KERNELS = frozenset(
    getattr(torch, name)
    for name in ("uint16", "uint32", "uint64", *(name for name in dir(torch) if name.startswith("float8_")))
)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
KEPT = 8  # plans change with every batch; those of one batch are asked for by each of its fields


@attrs.frozen(eq=False)
class PlacedRows:
    """``count`` rows, of which those at ``targets`` are the rows ``sources`` of another tensor; int64 on the device."""

    count: int
    sources: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, sources: np.ndarray, device: torch.device) -> "PlacedRows":
        """Rows for each source, -1 for padding."""
        targets = np.flatnonzero(sources >= 0)
        return cls(len(sources), index(sources[targets], device), index(targets, device))

    def place(self, tensor: torch.Tensor, dim: int, fill: Any) -> torch.Tensor:
        """The rows of ``tensor`` along ``dim`` at their places, ``fill`` elsewhere: a number, or one for each row."""
        rows = tensor.index_select(dim, self.sources)
        if len(self.targets) == self.count:
            return rows
        at = dim % tensor.ndim
        shape = (*tensor.shape[:at], self.count, *tensor.shape[at + 1 :])
        if isinstance(fill, torch.Tensor):
            around = [1] * tensor.ndim
            around[at] = self.count
            placed = fill.to(tensor.dtype).view(around).expand(shape).clone(memory_format=torch.contiguous_format)
        else:
            placed = tensor.new_full(shape, fill)
        if tensor.dtype in _WITHOUT_KERNELS:  # bits move as those of an integer
            bits = _INTEGERS[tensor.dtype.itemsize]
            placed.view(bits).index_copy_(dim, self.targets, rows.view(bits))
            return placed
        return placed.index_copy_(dim, self.targets, rows)


def index(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array of a plan on the device."""
    return torch.from_numpy(values.copy()).to(device)


@kept_per_device(KEPT)
def view_rows(view: BatchView, device: torch.device) -> PlacedRows:
    """A CP rank's rows of the batch as it came."""
    return PlacedRows.of(view.sources, device)


@kept_per_device(KEPT)
def view_positions(view: BatchView, device: torch.device) -> torch.Tensor:
    """Each row's place in its padded document; int64 ``[local]``."""
    return index(view.position_ids, device)


@kept_per_device(KEPT)
def token_rows(plan: BatchPlan, device: torch.device) -> torch.Tensor:
    """The row of each token in all shards, one after the other; int64 ``[tokens]``."""
    return index(restore_index(plan), device)
