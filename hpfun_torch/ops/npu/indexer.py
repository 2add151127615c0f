"""The Lightning Indexer by ``npu_lightning_indexer``: packed layout, right-down causal, ids of the bank."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from hpfun import IndexerSegment
from hpfun.sequence import CsaTndPlan, csa_tnd_plan
from hpfun_torch.ops.contract import check_lightning_indexer
from hpfun_torch.ops.npu.extensions import extension
from hpfun_torch.ops.npu.lengths import cumulative_without_zero
from hpfun_torch.ops.npu.limits import HALF, Limit, check_limits, dtypes

_RATIO = "register an extension for lightning_indexer that knows ratios, or use the CPU's operator"
_GROUP = "register an extension for lightning_indexer that sums scores, or use the CPU's operator"
LIMITS = (
    Limit("dtype", "query", HALF, "cast query, key and weights to one of them"),
    Limit("query heads", "query", (64,)),
    Limit("head dim", "query", (128,)),
    Limit("topk", "topk", (*range(1, 2049), *range(3072, 8193, 1024)), "use at most 2048, or a multiple of 1024"),
    Limit("ratio", "ratio", (1,), _RATIO),
    Limit("reduce_scores", "reduce_scores", (False,), _GROUP),
)


@torch.no_grad()
def lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    segments: Iterable[IndexerSegment],
    ratio: int,
    topk: int,
    *,
    reduce_scores: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Ids of the best keys, as ``hpfun_torch.ops.lightning_indexer`` says; which of equal scores, the operator decides.

    Row i of q rows on k keys sees k - (q - 1 - i) keys, which is ratio 1; rows that see none are left out of the call.
    Raises HP-OPS-001 and 002.
    """
    parts, ratio, topk = check_lightning_indexer(query, key, weights, segments, ratio, topk, reduce_scores)
    other = extension("lightning_indexer")
    if other is not None:
        return other(query, key, weights, parts, ratio, topk, reduce_scores=reduce_scores)
    got = {
        "dtype": dtypes(query, key, weights),
        "query heads": query.shape[1],
        "head dim": query.shape[2],
        "topk": topk,
        "ratio": ratio,
        "reduce_scores": reduce_scores is not None,
    }
    check_limits("npu_lightning_indexer", LIMITS, got)
    out = torch.full((query.shape[0], topk), -1, dtype=torch.int32, device=query.device)
    plan = csa_tnd_plan([_seeing(part) for part in parts], ratio)
    if plan is None:
        return out
    with torch.autocast(query.device.type, enabled=False):  # ids must not depend on who calls
        found, _ = torch.ops.npu.npu_lightning_indexer(
            plan.query(query).contiguous(),
            plan.key(key)[:, None].contiguous(),
            plan.query(weights).contiguous(),
            actual_seq_lengths_query=cumulative_without_zero(plan.query_stops - plan.query_starts, query.device),
            actual_seq_lengths_key=cumulative_without_zero(plan.key_stops - plan.key_starts, query.device),
            layout_query="TND",
            layout_key="TND",
            sparse_count=topk,
            sparse_mode=3,
        )
    return plan.restore(_bank_ids(found[:, 0], plan), out)


def _seeing(part: IndexerSegment) -> tuple[int, int, int, int, int]:
    """The segment from its first row that sees a key on; what a row sees is counted from the segment's end."""
    start, stop, first, last, residual = part
    return max(start, stop - (last - first)), stop, first, last, residual


def _bank_ids(found: torch.Tensor, plan: CsaTndPlan) -> torch.Tensor:
    """Ids of the bank, ascending, -1 at the tail; what is no key that the row sees is the operator's filling."""
    rows, keys = plan.query_stops - plan.query_starts, plan.key_stops - plan.key_starts
    behind = np.repeat(np.cumsum(rows), rows) - 1 - np.arange(rows.sum())
    seen = torch.from_numpy(np.repeat(keys, rows) - behind).to(found.device)[:, None]
    first = torch.from_numpy(np.repeat(plan.key_starts, rows)).to(found.device)[:, None]
    beyond = torch.iinfo(torch.int32).max
    ids = torch.where((found >= 0) & (found < seen), found + first, beyond).sort(dim=1).values
    return torch.where(ids == beyond, -1, ids).int()
