"""The operators on CUDA tensors: the formulas of the CPU's backend, which use no operator that CUDA lacks.

They stay until a measured kernel replaces one of them. Rule OPS-9 of ``specs/executors.md``.
"""

from typing import Any

import torch

from hpfun_torch.ops import cpu


def lightning_indexer(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Ids of the best keys, as ``hpfun_torch.ops.lightning_indexer`` says. Raises HP-OPS-001 and 003."""
    return cpu.lightning_indexer(*args, **kwargs)


def sparse_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to window and selected keys, as ``hpfun_torch.ops.sparse_attention`` says. Raises HP-OPS-001."""
    return cpu.sparse_attention(*args, **kwargs)


def indexer_kl(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The indexer's loss, as ``hpfun_torch.ops.indexer_kl`` says. Raises HP-OPS-001."""
    return cpu.indexer_kl(*args, **kwargs)


def packed_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to the window, as ``hpfun_torch.ops.packed_attention`` says. Raises HP-OPS-001."""
    return cpu.packed_attention(*args, **kwargs)
