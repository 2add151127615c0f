"""Attention operators: one function each."""

from hpfun_torch.ops.cpu import lightning_indexer

__all__ = ["lightning_indexer"]
