"""Compression blocks of one rank: which rows of its halo and shard make which keys.

A block that straddles ranks is compressed once, by the rank of its last token, which takes the other rows as a
halo. With overlap a block is read together with the block before it, as DeepSeek-V4's compressed sparse attention
does. Rules COMPRESS-3 to COMPRESS-9 of ``specs/compression.md``.
"""

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpfun._fields import content_digest, integer_field, integers_field, kind_field, plan_value, readonly
from hpfun.compression.offsets import check_ratio, key_offsets, owner_offsets
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.shards import check_rank, check_shards

_CODE = "HP-COMPRESS-004"


@plan_value
class DocumentCompressionPlan:
    """One rank's compression blocks; made by ``document_compression_plan``.

    ``halo`` brings the raw rows in front of the shard. Block i starts at row ``block_starts[i]`` of halo and shard
    together, at the in-document position ``block_positions[i]``, in document ``block_documents[i]``; all int64
    ``[num_blocks]``, in rising order. ``max_blocks`` is the most blocks on any rank of the group. Fields that do not
    fit together are HP-COMPRESS-004.
    """

    halo: SequenceDispatchRoute = kind_field(SequenceDispatchRoute, _CODE)
    ratio: int = integer_field(_CODE, least=1)
    overlap: bool = kind_field(bool, _CODE)
    max_blocks: int = integer_field(_CODE, least=0)
    block_starts: Any = integers_field(_CODE)
    block_positions: Any = integers_field(_CODE)
    block_documents: Any = integers_field(_CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        starts, positions = self.block_starts, self.block_positions
        entries = (len(starts), len(positions), len(self.block_documents))
        if len(set(entries)) != 1 or entries[0] > self.max_blocks:
            message = f"{entries} entries, at most {self.max_blocks} blocks"
            raise refusal(_CODE, "block_starts", message, entries=entries, max_blocks=self.max_blocks)
        first = starts - self.ratio * (self.overlap * (positions > 0))
        wrong = (first < 0) | (starts > self.halo.bank_rows - self.ratio) | (positions % self.ratio != 0)
        wrong |= (starts < 0) | (positions < 0) | (self.block_documents < 0)
        wrong[1:] |= starts[1:] < starts[:-1] + self.ratio
        if wrong.any():
            at = int(wrong.argmax())
            facts = {"block": at, "start": int(starts[at]), "position": int(positions[at])}
            message = f"block {at} at row {starts[at]}, position {positions[at]}, does not fit"
            raise refusal(_CODE, "block_starts", message, "build plans with document_compression_plan", **facts)

    @property
    def num_blocks(self) -> int:
        """Blocks, and so keys, of this rank."""
        return len(self.block_starts)

    @property
    def width(self) -> int:
        """Rows that a block is made of: ``ratio``, with overlap twice as many."""
        return self.ratio * (1 + self.overlap)

    @cached_property
    def block_rows(self) -> np.ndarray:
        """Rows of each block in halo and shard, -1 where there is none; int64 ``[num_blocks, width]``.

        With overlap the first ``ratio`` columns are the block before, which the first block of a document lacks.
        """
        if not self.num_blocks:
            return readonly(np.zeros((0, min(self.width, 2**40)), dtype=np.int64))  # NumPy counts no wider columns
        rows = self.block_starts[:, None] + np.arange(self.ratio)
        if self.overlap:
            before = np.where(self.block_positions[:, None] > 0, rows - self.ratio, -1)
            rows = np.concatenate((before, rows), axis=1)
        return readonly(rows)


def compression_halo_plan(
    boundaries: object, ratio: int, local_length: int, size: int, overlap: bool = False
) -> SequenceBankPlan:
    """The token banks from which all ranks compress their blocks: shards with the rows that blocks need before them.

    Raises HP-ROUTE-001 and 003 to 005, HP-COMPRESS-001 and 002.

    >>> compression_halo_plan((0, 5, 8, 16), 4, 4, 4, overlap=True).halo_rows.tolist()
    [0, 0, 0, 4]
    """
    documents, local, size = check_shards(boundaries, local_length, size)
    return _halo_plan(documents, check_ratio(ratio), local, size, _check_overlap(overlap))


def document_compression_plan(
    boundaries: object, ratio: int, local_length: int, size: int, rank: int, overlap: bool = False
) -> DocumentCompressionPlan | None:
    """One rank's blocks, or None where shards can simply be reshaped to blocks.

    ``boundaries`` are cumulative document ends with a leading 0, or ``PackedDocuments``; each of ``size`` ranks holds
    ``local_length`` tokens. No plan is needed at ratio 1, and without overlap where shards and documents are whole
    blocks; the answer is the same on all ranks. Raises HP-ROUTE-001 to 005, HP-COMPRESS-001 and 002.

    >>> plan = document_compression_plan((0, 5, 8, 16), 2, 4, 4, rank=3, overlap=True)
    >>> plan.block_rows.tolist(), plan.block_positions.tolist(), plan.halo.global_start
    ([[0, 1, 2, 3], [2, 3, 4, 5]], [4, 6], 10)
    """
    documents, local, size = check_shards(boundaries, local_length, size)
    ratio, overlap, rank = check_ratio(ratio), _check_overlap(overlap), check_rank(rank, size)
    whole = not overlap and local % ratio == 0 and not (documents.boundaries % ratio).any()
    if ratio == 1 or whole:
        return None
    halo = bank_route(_halo_plan(documents, ratio, local, size, overlap), rank)
    owners = owner_offsets(documents, ratio, local, size)
    inside, positions = blocks_at(documents, ratio, np.arange(owners[rank], owners[rank + 1]))
    return DocumentCompressionPlan(
        halo=halo,
        ratio=ratio,
        overlap=overlap,
        max_blocks=int(np.diff(owners).max()),
        block_starts=readonly(documents.boundaries[inside] + positions - halo.global_start),
        block_positions=readonly(positions),
        block_documents=readonly(inside),
    )


def compressed_positions(plan: DocumentCompressionPlan, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Rotary rows of a rank's keys: cos and sin at the position of each block's first token, in their own dtype.

    ``cos`` and ``sin`` are NumPy tables ``[..., positions, width]`` by in-document position; gives ``[...,
    num_blocks, width]``. Raises HP-COMPRESS-003 where they are unlike or too short.

    >>> plan = document_compression_plan((0, 10), 4, 5, 2, rank=1)
    >>> table = np.arange(10.0)[:, None]
    >>> compressed_positions(plan, table, -table)[0].tolist()
    [[4.0]]
    """
    check_rotary_tables(plan, cos, sin)
    rows = plan.block_positions.copy()  # some array types want to be able to write it
    return cos[..., rows, :], sin[..., rows, :]


def check_rotary_tables(plan: DocumentCompressionPlan, cos: Any, sin: Any) -> None:
    """HP-COMPRESS-003 unless both have one shape ``[..., positions, width]`` with every position of the plan."""
    if not isinstance(plan, DocumentCompressionPlan):
        kind = type(plan).__name__
        advice = "without a plan, key i of a shard of whole blocks stands at the position of its row i * ratio"
        raise refusal(_CODE, "plan", f"needs a DocumentCompressionPlan, got {kind}", advice, type=kind)
    shapes = tuple(tuple(getattr(table, "shape", ())) for table in (cos, sin))
    needed = int(plan.block_positions.max()) + 1 if plan.num_blocks else 0
    if len(shapes[0]) < 2 or shapes[0] != shapes[1] or shapes[0][-2] < needed:
        message = f"cos and sin of shapes {shapes[0]} and {shapes[1]}, the blocks need {needed} positions"
        advice = "pass tables [..., positions, width] by in-document position"
        raise refusal("HP-COMPRESS-003", "cos", message, advice, shapes=shapes, needed=needed)


def _check_overlap(overlap: object) -> bool:
    if not isinstance(overlap, bool):
        kind = type(overlap).__name__
        raise refusal("HP-COMPRESS-002", "overlap", f"needs a bool, got {kind} {overlap!r:.40}", type=kind)
    return overlap


def blocks_at(documents: PackedDocuments, ratio: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Document and in-document position of the first token of each key, by its number among all keys."""
    offsets = key_offsets(documents, ratio)
    inside = np.searchsorted(offsets, keys, side="right") - 1
    return inside, (keys - offsets[inside]) * ratio


@lru_cache(maxsize=32)
def _halo_plan(documents: PackedDocuments, ratio: int, local: int, size: int, overlap: bool) -> SequenceBankPlan:
    """The plan, computed once for equal arguments: the ranks of a host share it."""
    owners = owner_offsets(documents, ratio, local, size)
    firsts = np.arange(size + 1) * local
    starts = firsts[:-1].copy()
    busy = np.flatnonzero(owners[1:] > owners[:-1])
    inside, positions = blocks_at(documents, ratio, owners[busy])
    if overlap:
        positions = np.maximum(positions - ratio, 0)
    starts[busy] = np.minimum(starts[busy], documents.boundaries[inside] + positions)
    return SequenceBankPlan("halo", readonly(firsts), readonly(starts))
