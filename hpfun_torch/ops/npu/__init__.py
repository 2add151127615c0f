"""The operators as calls of Ascend's: limits first, then one adapter an operator.

Nothing here loads ``torch_npu``: the operators are looked up when they are called, so whoever registers their schemas
can run the adapters on other devices, as the tests do. None of this has been run on a device. Rules OPS-10 to OPS-15
of ``specs/executors.md``.
"""

from hpfun_torch.ops.npu.extensions import register_extension
from hpfun_torch.ops.npu.indexer import lightning_indexer
from hpfun_torch.ops.npu.kl import indexer_kl
from hpfun_torch.ops.npu.packed import packed_attention
from hpfun_torch.ops.npu.sparse import sparse_attention

__all__ = ["indexer_kl", "lightning_indexer", "packed_attention", "register_extension", "sparse_attention"]
