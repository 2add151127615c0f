"""The indexer's KL loss under context parallelism: each rank's part for its own rows, whose sum is the loss.

Rule ATTN-37 of ``specs/attention.md``.
"""

import torch

from hpfun.errors import refusal
from hpfun_torch import ops
from hpfun_torch.attention.context import ContextParallelAttention


def indexer_kl_loss(
    context: ContextParallelAttention,
    layer: int,
    index_query: torch.Tensor,
    index_keys: torch.Tensor,
    weights: torch.Tensor,
    selected: torch.Tensor,
    query: torch.Tensor,
    key_bank: torch.Tensor,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """This rank's part of the mean over all rows of all ranks; add the parts up over the ranks.

    ``index_query [local, heads, dim]``, ``weights [local, heads]`` and ``query [local, H, D]`` are the owner's;
    ``index_keys`` are the keys of its bank, or those of all ranks, of which it takes the matching rows; ``selected``
    int ``[local, k]`` counts rows of the bank, ``key_bank [bank, D]``. Gradients flow to ``index_query``,
    ``index_keys`` and ``weights`` alone. Raises HP-ATTN-002 for index keys of another number.
    """
    keys = context.keys(layer)
    if keys is None:
        raise refusal("HP-ATTN-002", "layer", f"layer {layer} has no keys", layer=layer, kind=context.kind(layer))
    held, every = keys.bank.bank_rows, sum(keys.key_counts)
    if len(index_keys) == every != held:
        index_keys = index_keys[keys.bank.global_start : keys.bank.global_stop]
    if len(index_keys) != held:
        message = f"{len(index_keys)} index keys, the bank has {held}, all ranks {every}"
        facts = {"keys": len(index_keys), "bank": held, "all": every}
        raise refusal("HP-ATTN-002", "index_keys", message, "pass the bank, or all ranks' keys", **facts)
    return ops.indexer_kl(
        index_query,
        index_keys,
        weights,
        selected,
        query,
        key_bank,
        segments=keys.segments,
        scale=scale,
        sinks=sinks,
        num_queries=context.num_queries,
    )
