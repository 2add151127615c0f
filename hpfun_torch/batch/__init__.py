"""Batches prepared for context and tensor parallelism: sent, planned, agreed on, cut, and put together again."""

from hpfun_torch.batch.broadcast import TPBatchBroadcaster
from hpfun_torch.batch.decoder import gather_tokens, localize, validate_hidden
from hpfun_torch.batch.groups import BatchGroups, batch_groups
from hpfun_torch.batch.labels import global_loss, shift_batch_labels, valid_by_rank
from hpfun_torch.batch.prepare import OmniParallelBatch, RuntimeContext, RuntimeInputAdapter
from hpfun_torch.batch.rule import BatchRule, batch_lengths
from hpfun_torch.batch.shard import CPBatchSharder

__all__ = [
    "BatchGroups",
    "BatchRule",
    "CPBatchSharder",
    "OmniParallelBatch",
    "RuntimeContext",
    "RuntimeInputAdapter",
    "TPBatchBroadcaster",
    "batch_groups",
    "batch_lengths",
    "gather_tokens",
    "global_loss",
    "localize",
    "shift_batch_labels",
    "valid_by_rank",
    "validate_hidden",
]
