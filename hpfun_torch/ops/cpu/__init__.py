"""The operators in plain tensor operations: what everyone can run, and what other devices are compared with."""

from hpfun_torch.ops.cpu.attention import packed_attention, sparse_attention
from hpfun_torch.ops.cpu.indexer import lightning_indexer
from hpfun_torch.ops.cpu.kl import indexer_kl

__all__ = ["indexer_kl", "lightning_indexer", "packed_attention", "sparse_attention"]
