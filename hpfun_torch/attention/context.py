"""What all attention layers of a batch share: the plan, this rank's routes, the group.

Rules ATTN-20 and ATTN-21 of ``specs/attention.md``.
"""

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import attempt
from hpfun.attention import (
    AttentionConfig,
    AttentionPlan,
    AttentionRoute,
    KeyRoute,
    OverlapSchedule,
    attention_plan,
    attention_route,
)
from hpfun.errors import refusal
from hpfun_torch.agree import agree
from hpfun_torch.checks import check_member, group_size
from hpfun_torch.convert import kept_per_device


@attrs.frozen(eq=False)
class ContextParallelAttention:
    """One batch's attention under context parallelism; made by ``prepare``, read by every layer.

    ``plan`` is equal on all ranks, ``route`` this rank's view of it. Equal layouts give the same routes, and with them
    the tensors that devices keep of them.
    """

    plan: AttentionPlan
    route: AttentionRoute
    group: dist.ProcessGroup | None

    @property
    def num_queries(self) -> int:
        """Rows of all ranks together."""
        return self.plan.documents.total

    @property
    def local_rows(self) -> int:
        """Rows of this rank."""
        return self.plan.local_rows

    @property
    def positions(self) -> np.ndarray:
        """Each row's place in its document; int64 ``[local]``."""
        return self.route.positions

    def kind(self, layer: int) -> str:
        """``window``, ``dense``, ``select`` or ``reuse``."""
        return self.plan.config.sharing.kind(layer)

    def keys(self, layer: int) -> KeyRoute | None:
        """The route of the keys that a layer attends to; None for a layer with a window alone."""
        ratio = int(self.plan.config.sharing.compress_ratios[layer])
        return self.route.keys[ratio] if ratio else None

    def schedule(self, layer: int) -> OverlapSchedule:
        """The order of a layer's computations and transfers."""
        return self.plan.schedule(layer)


@kept_per_device(most=32)
def key_positions(keys: KeyRoute, device: torch.device) -> torch.Tensor:
    """In-document positions of the first tokens of this rank's keys, on a device; int64 ``[own keys]``."""
    return torch.from_numpy(keys.positions.copy()).to(device)


def prepare(
    cu_seq_lens: object,
    config: AttentionConfig,
    group: dist.ProcessGroup | None = None,
    *,
    balance: object = "none",
    overlapped: bool = False,
    indexer_priority: bool = False,
) -> ContextParallelAttention:
    """Plan the attention of one batch, and agree on it; every rank calls it once per batch.

    ``cu_seq_lens`` are cumulative document ends of the whole pack with a leading 0 (integers, array, CPU tensor), or
    ``PackedDocuments``; ``balance`` is a mode or ``IndexerOptions``. The ranks exchange 48 bytes each: what fails on
    one fails on all with one code, plans that differ are HP-AGREE-001. Raises what ``attention_plan`` raises, and
    HP-EXCHANGE-009 outside the group.

    >>> from hpfun.attention import LayerSharing
    >>> config = AttentionConfig(sharing=LayerSharing(compress_ratios=(0, 4), index_sources=(1,)), window=8, topk=2)
    >>> context = prepare((0, 5, 16), config)
    >>> context.kind(0), context.kind(1), context.keys(1).key_counts
    ('window', 'select', (3,))
    """
    if not isinstance(config, AttentionConfig):
        kind = type(config).__name__
        advice = "read it with hpfun_torch.integrations.transformers.attention_config"
        raise refusal("HP-ATTN-002", "config", f"needs an AttentionConfig, got {kind}", advice, type=kind)
    check_member(group)
    size = group_size(group)
    plan, outcome = attempt(
        attention_plan, cu_seq_lens, size, config, balance, overlapped=overlapped, indexer_priority=indexer_priority
    )
    agreed = agree(plan, group, outcome)
    rank = dist.get_rank(group) if size > 1 else 0
    return ContextParallelAttention(agreed.plan, attention_route(agreed.plan, rank), group)
