"""Sparse attention under context parallelism, executed: compression, selection, attention, loss, shared state."""

from hpfun_torch.attention.candidates import candidate_blocks, candidate_ids
from hpfun_torch.attention.compress import compress
from hpfun_torch.attention.context import ContextParallelAttention, key_positions, prepare
from hpfun_torch.attention.layer import Attended, LayerFunctions, attend_layer
from hpfun_torch.attention.loss import indexer_kl_loss
from hpfun_torch.attention.select import IndexerFunctions, Selection, select
from hpfun_torch.attention.state import SharedLayerState
from hpfun_torch.ops import sparse_attention

__all__ = [
    "Attended",
    "ContextParallelAttention",
    "IndexerFunctions",
    "LayerFunctions",
    "Selection",
    "SharedLayerState",
    "attend_layer",
    "candidate_blocks",
    "candidate_ids",
    "compress",
    "indexer_kl_loss",
    "key_positions",
    "prepare",
    "select",
    "sparse_attention",
]
