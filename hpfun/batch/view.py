"""Batch view: one CP and TP rank's part of a batch plan.

Rules BATCH-4, BATCH-13, BATCH-24 and BATCH-31 of ``specs/batch.md``.
"""

from functools import cached_property

import attrs
import numpy as np

from hpfun._fields import content_digest, plan_value, readonly
from hpfun.batch.decoder import DecoderSequenceLayout, check_coordinates, decoder_layout
from hpfun.batch.layouts import Pieces
from hpfun.batch.plan import BatchPlan, check_plan
from hpfun.intervals import expand


@plan_value
class BatchView:
    """What one rank holds of a batch; made by ``batch_view``.

    Arrays have a row for each of the ``local_length`` rows of the CP shard, the same on all its TP ranks; ``sp_slice``
    and ``intervals`` are this TP rank's part. Raises HP-ENCODER-004 for a rank outside the topology.
    """

    plan: BatchPlan = attrs.field(converter=check_plan)
    cp_rank: int
    tp_rank: int = 0

    digest = content_digest

    def __attrs_post_init__(self):
        topology = self.plan.topology
        coordinates = check_coordinates(self.cp_rank, topology.cp_size, self.tp_rank, topology.tp_size)
        for name, value in zip(("cp_rank", "tp_rank"), coordinates, strict=True):
            object.__setattr__(self, name, value)

    @cached_property
    def layout(self) -> DecoderSequenceLayout:
        """The positions of this TP rank, as the encoder side asks for them."""
        return decoder_layout(self.plan, self.cp_rank, self.tp_rank)

    @property
    def sp_slice(self) -> tuple[int, int]:
        """This TP rank's rows of the shard, ``[start, stop)``: all without sequence parallelism."""
        return self.layout.cp_local_start, self.layout.cp_local_stop

    @property
    def intervals(self) -> tuple[tuple[int, int], ...]:
        """This TP rank's positions, in the order of its rows."""
        return self.layout.intervals

    @cached_property
    def pieces(self) -> Pieces:
        """Consecutive rows of one document each."""
        return Pieces(*map(readonly, self.plan.pieces(self.cp_rank)))

    @cached_property
    def positions(self) -> np.ndarray:
        """Each row's place in the padded pack; int64 ``[local]``."""
        return readonly(expand(self.pieces.starts, self.pieces.stops))

    @cached_property
    def position_ids(self) -> np.ndarray:
        """Each row's place in its padded document; int64 ``[local]``."""
        return readonly(self.positions - self._by_row(self.plan.cu_seq_lens[:-1]))

    @cached_property
    def sources(self) -> np.ndarray:
        """Each row's token in the batch as it came, -1 for padding; int64 ``[local]``."""
        there = self.position_ids < self._by_row(self.plan.real_lengths)
        return readonly(np.where(there, self.position_ids + self._by_row(self.plan.first_sources), -1))

    @property
    def real_rows(self) -> int:
        """Rows that are no padding."""
        return self.plan.real_rows(self.cp_rank)

    @cached_property
    def documents(self) -> np.ndarray:
        """The padded documents of which the rank has rows, rising; int64."""
        return readonly(np.unique(self.pieces.documents))

    @cached_property
    def q_lengths(self) -> np.ndarray:
        """Rows of each of these documents; int64."""
        rows = np.bincount(self.pieces.documents, self.pieces.stops - self.pieces.starts)  # exact below 2**53
        return readonly(rows[self.documents].astype(np.int64))

    @cached_property
    def kv_lengths(self) -> np.ndarray:
        """Keys of each of these documents from its first through the rank's last row; int64."""
        lasts = np.flatnonzero(np.diff(self.pieces.documents, append=-1))
        return readonly(self.pieces.stops[lasts] - self.plan.cu_seq_lens[self.documents])

    def _by_row(self, of_documents: np.ndarray) -> np.ndarray:
        return np.repeat(of_documents[self.pieces.documents], self.pieces.stops - self.pieces.starts)


def batch_view(plan: BatchPlan, cp_rank: int, tp_rank: int = 0) -> BatchView:
    """One rank's part of a plan; costs O(documents) and, for what is read of it, O(local rows).

    Raises HP-BATCH-007 for what is no plan and HP-ENCODER-004 for a rank outside its topology.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> view = batch_view(plan_batch((3, 5), BatchTopology(2), layout="zigzag"), cp_rank=0)
    >>> view.sources.tolist(), view.q_lengths.tolist(), view.kv_lengths.tolist()
    ([0, -1, 3, 4, -1, -1], [2, 4], [4, 8])
    """
    return BatchView(plan, cp_rank, tp_rank)
