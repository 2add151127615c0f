"""hpfun_torch: executes hpfun's plans with torch.distributed collectives and attention operators."""

from hpfun_torch.agree import Agreed, agree
from hpfun_torch.exchange import exchange_rows, start_exchange
from hpfun_torch.handle import Handle
from hpfun_torch.indexer import (
    IndexerInputExchange,
    balanced_indexer_select,
    launch_indexer_inputs,
    project_worker_queries,
)

__all__ = [
    "Agreed",
    "Handle",
    "IndexerInputExchange",
    "agree",
    "balanced_indexer_select",
    "exchange_rows",
    "launch_indexer_inputs",
    "project_worker_queries",
    "start_exchange",
]
