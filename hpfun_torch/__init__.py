"""hpfun_torch: executes hpfun's plans with torch.distributed collectives and attention operators."""

from hpfun_torch.agree import Agreed, agree
from hpfun_torch.compression import compressed_positions, compression_blocks, map_blocks
from hpfun_torch.dispatch import DeferredBankLaunch, dispatch_sequence, start_dispatch
from hpfun_torch.exchange import exchange_rows, start_exchange
from hpfun_torch.gather import gather_sequence, start_gather
from hpfun_torch.handle import Handle
from hpfun_torch.indexer import (
    IndexerInputExchange,
    balanced_indexer_select,
    launch_indexer_inputs,
    project_worker_queries,
)

__all__ = [
    "Agreed",
    "DeferredBankLaunch",
    "Handle",
    "IndexerInputExchange",
    "agree",
    "balanced_indexer_select",
    "compressed_positions",
    "compression_blocks",
    "dispatch_sequence",
    "exchange_rows",
    "gather_sequence",
    "launch_indexer_inputs",
    "map_blocks",
    "project_worker_queries",
    "start_dispatch",
    "start_exchange",
    "start_gather",
]
