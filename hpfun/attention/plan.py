"""The attention plan of a batch: every route that the layers of a model need, for all ranks, and one rank's view.

Rules ATTN-14 to ATTN-16 and ATTN-19 of ``specs/attention.md``.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from hpfun._fields import content_digest, integer, integer_field, integers_field, kind_field, named_plan_value, readonly
from hpfun.attention.schedule import OverlapOptions, OverlapSchedule, overlap_schedule
from hpfun.attention.segments import AttentionSegments, attention_segments
from hpfun.attention.sharing import LayerSharing
from hpfun.compression import DocumentCompressionPlan, document_compression_plan
from hpfun.compression.blocks import blocks_at
from hpfun.documents import PackedDocuments
from hpfun.errors import Violation, collect, in_order, refusal, refuse_all
from hpfun.indexer.options import IndexerMode, IndexerOptions
from hpfun.indexer.route import IndexerRoute, plan_route
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan
from hpfun.sequence import (
    SequenceBankPlan,
    SequenceDispatchRoute,
    bank_route,
    document_prefix_plan,
    sliding_window_plan,
)
from hpfun.shards import check_rank, read_boundaries

_CODE = "HP-ATTN-002"


@named_plan_value
class AttentionConfig:
    """What a model's attention needs to know of itself.

    ``sharing`` has the layers' ratios and sources, ``window`` the rows of the sliding window with the row itself (0:
    none), ``topk`` the keys that a row chooses (0: no layer chooses), ``overlapping_ratios`` the ratios whose blocks
    are read with the block before. Raises HP-ATTN-002, all violations at once.

    >>> AttentionConfig(sharing=LayerSharing(compress_ratios=(0, 0)), window=128).topk
    0
    """

    sharing: LayerSharing = kind_field(LayerSharing, _CODE)
    window: int = integer_field(_CODE, least=0)
    topk: int = integer_field(_CODE, least=0, most=2**31 - 1, default=0)
    overlapping_ratios: Any = integers_field(_CODE, default=())

    digest = content_digest

    def __attrs_post_init__(self):
        found = []
        chosen = len(self.sharing.index_sources)
        if bool(chosen) != bool(self.topk):
            facts = {"topk": self.topk, "index_sources": chosen}
            found.append(Violation(_CODE, "topk", f"topk {self.topk} and {chosen} layers that choose", facts))
        lonely = int((self.sharing.compress_ratios == 0).sum())
        if lonely and not self.window:
            facts = {"window": self.window, "layers": lonely}
            found.append(Violation(_CODE, "window", f"no window for {lonely} layers without keys", facts))
        ratios = self.overlapping_ratios
        if (ratios[1:] <= ratios[:-1]).any():
            facts = {"ratios": tuple(ratios.tolist())}
            found.append(Violation(_CODE, "overlapping_ratios", "do not rise", facts, "list each once, ascending"))
        foreign = tuple(r for r in self.overlapping_ratios.tolist() if r not in self.sharing.ratios or r < 2)
        if foreign:
            facts = {"ratios": foreign, "known": self.sharing.ratios}
            found.append(Violation(_CODE, "overlapping_ratios", f"no blocks of ratios {foreign}", facts))
        refuse_all(found)

    @property
    def choosing_ratios(self) -> tuple[int, ...]:
        """Ratios at which some layer chooses keys, ascending."""
        return tuple(sorted(set(self.sharing.compress_ratios[self.sharing.index_sources].tolist())))


@named_plan_value
class AttentionPlan:
    """All ranks' routes for one batch; made by ``attention_plan``.

    ``documents`` on ``size`` ranks of equal contiguous shards, for the layers of ``config``, selection shared out by
    ``balance``, transfers ``overlapped`` with computations, those of the indexer first with ``indexer_priority``.
    Everything else is derived. Raises HP-ATTN-002, HP-DOC-003, and where rows are shared out what
    ``indexer_task_plan`` raises.
    """

    documents: PackedDocuments = kind_field(PackedDocuments, _CODE)
    size: int = integer_field(_CODE, least=1)
    config: AttentionConfig = kind_field(AttentionConfig, _CODE)
    balance: IndexerOptions = kind_field(IndexerOptions, _CODE)
    overlapped: bool = kind_field(bool, _CODE, default=False)
    indexer_priority: bool = kind_field(bool, _CODE, default=False)

    digest = content_digest

    def __attrs_post_init__(self):
        self.documents.shard_rows(self.size)
        if self.indexer_priority and not self.overlapped:
            raise refusal(_CODE, "indexer_priority", "nothing overlaps", "set overlapped too", overlapped=False)
        if self.balanced:
            for ratio in self.config.choosing_ratios:
                self.indexer_plan(ratio)

    @property
    def local_rows(self) -> int:
        """Rows of each shard."""
        return self.documents.total // self.size

    @property
    def balanced(self) -> bool:
        """Whether rows are scored by other ranks than their owners."""
        return self.balance.mode is not IndexerMode.NONE

    def schedule(self, layer: int) -> OverlapSchedule:
        """In which order a layer computes and communicates, on all ranks; HP-ATTN-003 for a layer that is none."""
        sharing = self.config.sharing
        kind = sharing.kind(layer)
        return _schedule(
            kind=kind,
            window=self.config.window > 0,
            own_keys=sharing.key_source(layer) == layer,
            halo=bool(sharing.compress_ratios[layer] > 1),
            balanced=self.balanced and kind == "select",
            overlapped=self.overlapped,
            indexer_priority=self.indexer_priority,
        )

    def window_plan(self) -> SequenceBankPlan | None:
        """The window banks of all ranks; None where no layer has a window."""
        window = self.config.window
        return sliding_window_plan(self.documents, self.local_rows, self.size, window) if window else None

    def prefix_plan(self, ratio: int) -> SequenceBankPlan:
        """The key banks of all ranks for a ratio."""
        return document_prefix_plan(self.documents, self.local_rows, self.size, ratio)

    def indexer_plan(self, ratio: int) -> IndexerTaskPlan:
        """Who scores which rows at a ratio; raises what ``indexer_task_plan`` raises."""
        options = {field.name: getattr(self.balance, field.name) for field in attrs.fields(IndexerOptions)}
        return indexer_task_plan(self.documents, self.size, ratio, **options)


@lru_cache(maxsize=64)
def _schedule(**options: Any) -> OverlapSchedule:
    """The schedule, made once for equal options: a model's layers share a few."""
    return overlap_schedule(OverlapOptions(**options))


@attrs.frozen
class KeyRoute:
    """One rank's part in the keys of one ratio.

    ``compression`` has its blocks, None where the shard is reshaped; ``positions`` int64 are in-document positions of
    the first tokens of its keys, ``key_counts`` the keys of every rank. ``bank`` brings the keys of its documents,
    ``segments`` say which row sees which. ``indexer`` is its part of balanced selection, None without.
    """

    ratio: int
    overlap: bool
    compression: DocumentCompressionPlan | None
    positions: Any = attrs.field(eq=np.ndarray.tobytes)  # read-only, so it may stand in a hash
    key_counts: tuple[int, ...]
    bank: SequenceDispatchRoute
    segments: AttentionSegments
    indexer: IndexerRoute | None

    @property
    def num_keys(self) -> int:
        """Keys that this rank makes."""
        return len(self.positions)

    @property
    def halo(self) -> bool:
        """Whether some rank needs rows of another to make its keys."""
        return self.compression is not None and self.compression.halo.exchange.required


@attrs.frozen
class AttentionRoute:
    """One rank's view of an ``AttentionPlan``: the window, and a ``KeyRoute`` per ratio.

    ``positions`` int64 ``[local_rows]`` are its rows' places in their documents. ``rows`` are the segments of layers
    without keys.
    """

    plan_digest: str
    size: int
    rank: int
    local_rows: int
    positions: Any = attrs.field(eq=np.ndarray.tobytes)  # read-only, so it may stand in a hash
    window: SequenceDispatchRoute | None
    rows: AttentionSegments
    keys: Mapping[int, KeyRoute] = attrs.field(eq=False, converter=lambda keys: MappingProxyType(dict(keys)))


def attention_plan(
    cu_seq_lens: object,
    size: int,
    config: AttentionConfig,
    balance: object = "none",
    *,
    overlapped: bool = False,
    indexer_priority: bool = False,
) -> AttentionPlan:
    """The plan of one batch for all ranks.

    ``cu_seq_lens`` are cumulative document ends with a leading 0, or ``PackedDocuments``; ``balance`` is a mode or
    ``IndexerOptions``; ``overlapped`` and ``indexer_priority`` as in ``OverlapOptions``. Raises HP-ROUTE-003 and 004,
    HP-DOC-003, HP-ATTN-002, and what the options raise.

    >>> config = AttentionConfig(sharing=LayerSharing(compress_ratios=(0, 4), index_sources=(1,)), window=8, topk=2)
    >>> plan = attention_plan((0, 5, 16), 2, config, "locality")
    >>> plan.local_rows, plan.indexer_plan(4).imbalance
    (8, 1.1428571428571428)
    """
    violations: list[Violation] = []
    documents = collect(violations, read_boundaries, cu_seq_lens, "cu_seq_lens")
    options = balance if isinstance(balance, IndexerOptions) else collect(violations, IndexerOptions, balance)
    ranks = collect(violations, integer, size, "size", _CODE, least=1)
    if not isinstance(config, AttentionConfig):
        kind = type(config).__name__
        facts = {"type": kind}
        violations.append(Violation(_CODE, "config", f"needs an AttentionConfig, got {kind}", facts))
    if documents is None or options is None or ranks is None or violations:
        raise in_order(violations)
    return AttentionPlan(
        documents=documents,
        size=ranks,
        config=config,
        balance=options,
        overlapped=overlapped,
        indexer_priority=indexer_priority,
    )


def attention_route(plan: AttentionPlan, rank: int) -> AttentionRoute:
    """One rank's routes of a plan; HP-ROUTE-002 for a rank outside the group.

    >>> config = AttentionConfig(sharing=LayerSharing(compress_ratios=(0, 4), index_sources=(1,)), window=8, topk=2)
    >>> route = attention_route(attention_plan((0, 5, 16), 2, config), 1)
    >>> route.positions.tolist(), route.keys[4].positions.tolist(), route.window.global_start
    ([3, 4, 5, 6, 7, 8, 9, 10], [0, 4], 5)
    """
    if not isinstance(plan, AttentionPlan):
        kind = type(plan).__name__
        raise refusal(_CODE, "plan", f"needs an AttentionPlan, got {kind}", type=kind)
    return _route(plan, check_rank(rank, plan.size))


@lru_cache(maxsize=32)
def _route(plan: AttentionPlan, rank: int) -> AttentionRoute:
    """The route, made once for equal plans: a layout that repeats keeps its device tensors too."""
    local, documents = plan.local_rows, plan.documents
    rows = np.arange(rank * local, (rank + 1) * local)
    window = plan.window_plan()
    return AttentionRoute(
        plan_digest=plan.digest,
        size=plan.size,
        rank=rank,
        local_rows=local,
        positions=readonly(rows - documents.boundaries[documents.documents_at(rows)]),
        window=None if window is None else bank_route(window, rank),
        rows=attention_segments(documents, local, plan.size, rank, plan.config.window, 0),
        keys={ratio: _key_route(plan, rank, ratio) for ratio in plan.config.sharing.ratios},
    )


def _key_route(plan: AttentionPlan, rank: int, ratio: int) -> KeyRoute:
    documents, local, size = plan.documents, plan.local_rows, plan.size
    overlap = ratio in plan.config.overlapping_ratios
    prefix = plan.prefix_plan(ratio)
    own = np.arange(prefix.owner_offsets[rank], prefix.owner_offsets[rank + 1])
    shares = plan.balanced and ratio in plan.config.choosing_ratios
    return KeyRoute(
        ratio=ratio,
        overlap=overlap,
        compression=document_compression_plan(documents, ratio, local, size, rank, overlap=overlap),
        positions=readonly(blocks_at(documents, ratio, own)[1]),
        key_counts=tuple(prefix.own_rows.tolist()),
        bank=bank_route(prefix, rank),
        segments=attention_segments(documents, local, size, rank, plan.config.window, ratio),
        indexer=plan_route(plan.indexer_plan(ratio), rank) if shares else None,
    )
