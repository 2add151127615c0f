"""Dense causal attention under context parallelism: keys and values in one collective, then block by block.

A block whose rows start their document is causal by itself; the others go in tiles of rows, each with the last
columns of one mask of a tile's height, so that no tensor has as many elements as there are rows times keys. Rules
DENSE-5 to DENSE-9 of ``specs/dense.md``; the operator is torch's ``scaled_dot_product_attention``.
"""

from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from hpfun.batch import BatchPlan, BatchView, batch_view
from hpfun.batch.plan import check_plan
from hpfun.dense import CausalBlock, CausalBlocks, DenseRoute, dense_route, split_blocks
from hpfun.errors import Violation, refusal, refuse_all
from hpfun_torch.checks import check_member, group_size
from hpfun_torch.dispatch import dispatch_sequence
from hpfun_torch.gather import gather_sequence

TILE_ROWS = 512
VIEWED = ("cpu",)  # devices whose kernels take a view of a mask as it is
_CODE = "HP-OPS-001"


@attrs.frozen(eq=False)
class DenseContext:
    """One batch's dense attention under context parallelism; made by ``dense_context``, read by every layer.

    ``plan`` is equal on all ranks, ``view`` this rank's part of it. Routes and masks are made for each window once.
    """

    plan: BatchPlan
    view: BatchView
    group: dist.ProcessGroup | None
    tile_rows: int = TILE_ROWS
    _kept: dict[Any, Any] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def local_rows(self) -> int:
        """Rows of this rank."""
        return self.plan.local_length

    @property
    def positions(self) -> np.ndarray:
        """Each row's place in its padded document; int64 ``[local]``."""
        return self.view.position_ids

    def route(self, window: int = 0) -> DenseRoute:
        """This rank's route for layers with that window."""
        return self._once(("route", window), lambda: dense_route(self.plan, self.view.cp_rank, window))

    def tiles(self, window: int = 0) -> CausalBlocks:
        """The blocks of the route, those that need a mask cut into tiles."""
        return self._once(("tiles", window), lambda: split_blocks(self.route(window).blocks, self.tile_rows))

    def mask(self, window: int, like: torch.Tensor) -> torch.Tensor:
        """What is added to the scores of the tallest and widest tile: 0 or -inf, in the dtype of ``like``.

        A tile's own mask is its last rows and columns: who sees what is counted from the last row and key.
        """
        tiles = self.tiles(window)
        return self._once(("mask", window, like.dtype, like.device), lambda: _mask(tiles, like))

    def order(self, device: torch.device) -> torch.Tensor:
        """Rows of the ranks' shards, one after the other, by position, on a device; int64 ``[padded length]``."""
        return self._once(("order", device), lambda: torch.from_numpy(self.route().order.copy()).to(device))

    def _once(self, name: Any, make: Any) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def dense_context(plan: BatchPlan, group: dist.ProcessGroup | None = None) -> DenseContext:
    """What dense attention layers of a batch share on this rank of ``group``; asks no other rank.

    Give every rank the same plan (``agree``). Raises HP-BATCH-007 for what is no plan, HP-EXCHANGE-009 outside the
    group and HP-BATCH-009 for a plan of another number of ranks.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> dense_context(plan_batch((3, 5), BatchTopology(1))).tiles().num_rows
    8
    """
    check_member(group)
    size, topology = group_size(group), check_plan(plan).topology
    if topology.cp_size != size:
        facts = {"cp_size": topology.cp_size, "tp_size": topology.tp_size}
        message = f"a plan for {topology.cp_size} ranks in a group of {size}"
        raise refusal("HP-BATCH-009", "plan", message, "plan for the ranks of the group", **facts)
    return DenseContext(plan, batch_view(plan, dist.get_rank(group) if size > 1 else 0), group)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    context: DenseContext,
    *,
    scale: float | None = None,
    window: int = 0,
) -> torch.Tensor:
    """Attention of every row of this rank to the rows of its document up to itself, or to the last ``window`` of them.

    ``query [local, H, D]``, ``key`` and ``value [local, G, D]`` with G dividing H; ``scale`` is ``D ** -0.5`` by
    default. Gives ``[local, H, D]``. Every rank of the group calls it, in the same order. Differentiable once; under
    autocast keys travel in its dtype. The operator is called once for each document of the rank, twice in zigzag, and
    for each tile. Peak memory is that of a mask ``[tile, keys]`` where torch has a fused kernel, as on the CPU. Raises
    HP-OPS-001.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> context = dense_context(plan_batch((2, 2), BatchTopology(1)))
    >>> rows = torch.tensor([2.0, 4.0, 6.0, 8.0])[:, None, None]
    >>> dense_attention(torch.zeros(4, 1, 1), rows, rows, context).flatten().tolist()
    [2.0, 3.0, 6.0, 7.0]
    """
    _check(query, key, value, context)
    query, key, value = map(_as_computed, (query, key, value))
    route, tiles = context.route(window), context.tiles(window)
    bank = _bank(torch.cat((key, value), dim=-1), route, context)
    documents = bank.split(tiles.bank_lengths.tolist())
    mask = context.mask(window, query)
    found = [
        _attend(rows, documents[tile.document][tile.key_start : tile.key_stop], mask, tile, scale)
        for rows, tile in zip(query.split(tiles.row_lengths.tolist()), tiles, strict=True)
    ]
    return torch.cat(found)


def _bank(rows: torch.Tensor, route: DenseRoute, context: DenseContext) -> torch.Tensor:
    """Keys and values that the rank's rows see: the one place where layouts differ."""
    if route.bank is not None:
        return dispatch_sequence(rows, route.bank, context.group)
    lengths = [route.local_rows] * group_size(context.group)
    return gather_sequence(rows, context.group, lengths=lengths).index_select(0, context.order(rows.device))


def _attend(
    rows: torch.Tensor, bank: torch.Tensor, mask: torch.Tensor, tile: CausalBlock, scale: float | None
) -> torch.Tensor:
    """Attention of a tile's rows ``[rows, H, D]`` to its keys and values ``[keys, G, 2 D]``."""

    def attend(rows: torch.Tensor, bank: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        key, value = bank.transpose(0, 1)[None].chunk(2, dim=-1)
        return scaled_dot_product_attention(
            rows.transpose(0, 1)[None],
            key,
            value,
            attn_mask=seen,
            is_causal=seen is None,
            scale=scale,
            enable_gqa=rows.shape[1] != bank.shape[1],
        )[0].transpose(0, 1)

    if tile.triangular:
        return attend(rows, bank, None)
    seen = mask[-len(rows) :, -len(bank) :]
    if seen.device.type in VIEWED:  # what backward keeps is a view of the one mask
        return attend(rows, bank, seen)

    # kernels of accelerators want masks of their own, which backward then makes again
    def again(*parts: torch.Tensor) -> torch.Tensor:
        return attend(*parts, seen.contiguous())

    return checkpoint(again, rows, bank, use_reentrant=False, preserve_rng_state=False)  # nothing is drawn


def _mask(tiles: CausalBlocks, like: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(mode=False):  # training may use it later
        rows, keys = tiles.mask_extent
        seen = torch.ones(rows, keys, dtype=torch.bool, device=like.device).tril(keys - rows)
        if tiles.window:
            seen = seen.triu(keys - rows - tiles.window + 1)
        return torch.zeros(rows, keys, dtype=like.dtype, device=like.device).masked_fill_(
            seen.logical_not_(), -torch.inf
        )


def _as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """In the dtype in which autocast would compute, so that this is what travels."""
    return tensor.to(_dtype(tensor))


def _dtype(tensor: torch.Tensor) -> torch.dtype:
    kind = tensor.device.type
    casts = torch.is_autocast_enabled(kind) and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else tensor.dtype


def _check(query: Any, key: Any, value: Any, context: Any) -> None:
    """HP-OPS-001 for tensors that do not fit, all at once."""
    if not isinstance(context, DenseContext):
        kind = type(context).__name__
        raise refusal(_CODE, "context", f"needs a DenseContext, got {kind}", "make one with dense_context", type=kind)
    tensors, violations = {"query": query, "key": key, "value": value}, []
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
        if shape is None or len(shape) != 3 or shape[0] != context.local_rows or not tensor.is_floating_point():
            message = f"needs floats [{context.local_rows}, heads, width], got {shape}"
            facts = {"got": str(shape), "rows": context.local_rows}
            violations.append(Violation(_CODE, name, message, facts, "pass the rows of this rank"))
    refuse_all(violations)
    width, heads = query.shape[2], key.shape[1]
    empty = 0 in (width, heads, query.shape[1])
    if key.shape != value.shape or key.shape[2] != width or empty or query.shape[1] % heads:
        shapes = {name: str(list(tensor.shape)) for name, tensor in tensors.items()}
        raise refusal(_CODE, "key", f"shapes do not fit: {shapes}", "key heads divide those of the query", **shapes)
    dtypes = {name: str(_dtype(tensor)) for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1:
        raise refusal(_CODE, "key", f"dtypes differ: {dtypes}", "cast them to one", **dtypes)
