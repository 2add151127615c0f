"""Dense route: how the keys of dense attention come to a rank, and which of them its rows see.

In a contiguous layout a rank gets what of its first document, or of its window, stands on earlier ranks; in zigzag
every rank has an early and a late part of each document, so the keys of the whole group are gathered and put in the
order of positions. Rules DENSE-3 and DENSE-4 of ``specs/dense.md``.
"""

from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integers_field, kind_field, named_plan_value, readonly
from hpfun.batch import BatchPlan, batch_view, position_rows
from hpfun.dense.blocks import CausalBlocks, causal_blocks
from hpfun.errors import refusal
from hpfun.sequence import SequenceDispatchRoute, document_prefix_route, sliding_window_route

_CODE = "HP-ATTN-002"


@named_plan_value
class DenseRoute:
    """One rank's keys and the blocks of its rows over them; made by ``dense_route``.

    Either ``bank`` is the route of the keys that the rank holds, or ``order`` the row of each position in the ranks'
    shards one after the other, int64 ``[padded length]``, which are gathered. Raises HP-ATTN-002.
    """

    blocks: CausalBlocks = kind_field(CausalBlocks, _CODE)
    bank: SequenceDispatchRoute | None = attrs.field(default=None)
    order: Any = integers_field(_CODE, default=())

    digest = content_digest

    def __attrs_post_init__(self):
        if self.bank is not None and type(self.bank) is not SequenceDispatchRoute:
            kind = type(self.bank).__name__
            raise refusal(_CODE, "bank", f"needs a SequenceDispatchRoute, got {kind}", "pass one", type=kind)
        rows = len(self.order) if self.bank is None else self.bank.bank_rows
        if (self.bank is not None and len(self.order)) or rows != self.blocks.num_keys:
            message = f"{rows} rows for blocks over {self.blocks.num_keys} keys"
            facts = {"rows": rows, "keys": self.blocks.num_keys, "order": len(self.order)}
            raise refusal(_CODE, "bank", message, "build routes with dense_route", **facts)
        if len(self.order) and not _is_permutation(self.order):
            facts = {"rows": rows, "keys": self.blocks.num_keys, "order": len(self.order)}
            raise refusal(_CODE, "order", "does not list each row once", "build routes with dense_route", **facts)

    @property
    def local_rows(self) -> int:
        """Rows of the rank's shard."""
        return self.blocks.num_rows

    @property
    def received_rows(self) -> int:
        """Rows of keys that come from other ranks."""
        return self.blocks.num_keys - self.local_rows


def dense_route(plan: BatchPlan, cp_rank: int, window: int = 0) -> DenseRoute:
    """One rank's route of a batch plan, for layers with a sliding window of ``window`` rows or, at 0, without.

    Costs O(documents) in a contiguous layout, O(padded length) in zigzag. Raises HP-BATCH-007 for what is no plan,
    HP-ENCODER-004 for a rank outside of it and HP-ATTN-002 for a window that is no int of at least 0.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> route = dense_route(plan_batch((5, 3), BatchTopology(2)), 1)
    >>> route.received_rows, [tuple(block) for block in route.blocks]
    (4, [(0, 1, 0, 0, 5, False), (1, 4, 1, 0, 3, True)])
    >>> dense_route(plan_batch((5, 3), BatchTopology(2)), 1, window=3).received_rows
    2
    """
    view, window = batch_view(plan, cp_rank), integer(window, "window", _CODE, least=0, most=INT64_MAX)
    if plan.layout == "contiguous":
        shards = (plan.cu_seq_lens, plan.local_length, plan.topology.cp_size, view.cp_rank)
        bank = sliding_window_route(*shards, window) if window else document_prefix_route(*shards, 1)
        return DenseRoute(blocks=causal_blocks(view, bank.global_start, bank.global_stop, window), bank=bank)
    return DenseRoute(blocks=causal_blocks(view, window=window), order=readonly(position_rows(plan)))


def _is_permutation(order: np.ndarray) -> bool:
    inside = int(order.min()) >= 0 and int(order.max()) < len(order)
    return inside and bool((np.bincount(order, minlength=len(order)) == 1).all())
