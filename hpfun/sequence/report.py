"""A bank plan in figures: what each rank holds and who its peers are, beside what an all-gather or a ring would move.

Counted on the plan's intervals, so a plan of 10,000 ranks is reported at once, without any rank's route. Rule SEQ-12
of ``specs/sequence.md``.
"""

from functools import cached_property
from typing import Any

import numpy as np

from hpfun._fields import (
    INT64_MAX,
    choice_field,
    content_digest,
    integer,
    integer_field,
    integers_field,
    plan_value,
    readonly,
)
from hpfun.errors import refusal
from hpfun.sequence.bank import KINDS, SequenceBankPlan

_CODE = "HP-ROUTE-008"
_ADVICE = "build reports with sequence_report"
_RANK_FIELDS = ("own_rows", "halo_rows", "senders", "receivers")


@plan_value
class SequenceReport:
    """Rows, peers and bytes of a bank plan, and of the two movements that need no plan; made by ``sequence_report``.

    Per rank, int64 ``[size]``: ``own_rows`` that it owns, ``halo_rows`` that it receives, ``senders`` that it
    receives from, ``receivers`` that it sends to. A row weighs ``bytes_per_row`` bytes. Fields that do not fit
    together are HP-ROUTE-008.
    """

    kind: str = choice_field(KINDS, _CODE)
    bytes_per_row: int = integer_field(_CODE, least=0, most=None)
    own_rows: Any = integers_field(_CODE)
    halo_rows: Any = integers_field(_CODE)
    senders: Any = integers_field(_CODE)
    receivers: Any = integers_field(_CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        entries = tuple(len(getattr(self, name)) for name in _RANK_FIELDS)
        if len(set(entries)) != 1 or not entries[0]:
            raise refusal(_CODE, "own_rows", f"{entries} entries", _ADVICE, entries=entries)
        for name in _RANK_FIELDS:
            if (getattr(self, name) < 0).any():
                least = int(getattr(self, name).min())
                raise refusal(_CODE, name, f"got {least}, legal is 0 or more", least=least)
        if self.total_rows > INT64_MAX:
            raise refusal(_CODE, "own_rows", f"{self.total_rows} rows are beyond int64", rows=self.total_rows)
        ranks = np.arange(self.size)
        wrong = self.halo_rows > np.cumsum(self.own_rows) - self.own_rows
        wrong |= (self.senders > np.minimum(ranks, self.halo_rows)) | ((self.senders == 0) != (self.halo_rows == 0))
        wrong |= self.receivers > np.where(self.own_rows > 0, self.size - 1 - ranks, 0)
        if wrong.any():
            at = int(wrong.argmax())
            numbers = {name: int(getattr(self, name)[at]) for name in _RANK_FIELDS}
            message = f"rank {at} cannot have {', '.join(f'{name} {number}' for name, number in numbers.items())}"
            raise refusal(_CODE, "halo_rows", message, _ADVICE, rank=at, **numbers)
        pairs = (sum(self.senders.tolist()), sum(self.receivers.tolist()))
        if pairs[0] != pairs[1]:
            message = f"{pairs[0]} senders and {pairs[1]} receivers of all ranks together"
            raise refusal(_CODE, "senders", message, "each pair has one of each", senders=pairs[0], receivers=pairs[1])

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.own_rows)

    @cached_property
    def total_rows(self) -> int:
        """Rows of all ranks together."""
        return sum(self.own_rows.tolist())

    @cached_property
    def bank_rows(self) -> np.ndarray:
        """Rows of each bank, own and received ones; int64 ``[size]``."""
        return readonly(self.own_rows + self.halo_rows)

    @cached_property
    def peers(self) -> np.ndarray:
        """Ranks that each rank receives rows from or sends rows to; int64 ``[size]``."""
        return readonly(self.senders + self.receivers)  # disjoint: the former are lower ranks, the latter higher ones

    @property
    def max_bank_rows(self) -> int:
        """Rows of the largest bank."""
        return int(self.bank_rows.max())

    @cached_property
    def moved_rows(self) -> int:
        """Rows that travel between ranks, a row once for every rank that it goes to."""
        return sum(self.halo_rows.tolist())

    @property
    def moved_bytes(self) -> int:
        """Bytes that travel between ranks."""
        return self.moved_rows * self.bytes_per_row

    @property
    def all_gather_rows(self) -> int:
        """Rows that would travel if every rank got all rows of the others."""
        return (self.size - 1) * self.total_rows

    @property
    def all_gather_bytes(self) -> int:
        """Bytes that would travel if every rank got all rows of the others."""
        return self.all_gather_rows * self.bytes_per_row

    @cached_property
    def ring_rows(self) -> int:
        """Rows that would travel in a causal ring, which knows no documents: every shard to every later rank."""
        return sum(rows * (self.size - 1 - rank) for rank, rows in enumerate(self.own_rows.tolist()))

    @property
    def ring_bytes(self) -> int:
        """Bytes that would travel in a causal ring."""
        return self.ring_rows * self.bytes_per_row

    @property
    def share_of_all_gather(self) -> float:
        """Moved rows over those of an all-gather, 0 to 1; 0.0 where nothing could move."""
        return self.moved_rows / self.all_gather_rows if self.all_gather_rows else 0.0

    @property
    def share_of_ring(self) -> float:
        """Moved rows over those of a causal ring, 0 to 1; 0.0 where nothing could move."""
        return self.moved_rows / self.ring_rows if self.ring_rows else 0.0


def sequence_report(plan: SequenceBankPlan, bytes_per_row: int = 0) -> SequenceReport:
    """Banks, peers and bytes of a plan, with ``bytes_per_row`` bytes a row; O(size log size).

    Raises HP-ROUTE-001 for a width that is no int of at least 0 and HP-ROUTE-008 for what is no plan.

    >>> from hpfun import sliding_window_plan
    >>> report = sequence_report(sliding_window_plan((0, 5, 8, 16), 4, 4, window=6), bytes_per_row=100)
    >>> report.bank_rows.tolist(), report.senders.tolist(), report.peers.tolist()
    ([4, 8, 4, 8], [0, 1, 0, 1], [1, 1, 1, 1])
    >>> report.moved_bytes, report.ring_bytes, report.all_gather_bytes
    (800, 2400, 4800)
    """
    if not isinstance(plan, SequenceBankPlan):
        kind = type(plan).__name__
        raise refusal(_CODE, "plan", f"needs a SequenceBankPlan, got {kind}", type=kind)
    width = integer(bytes_per_row, "bytes_per_row", "HP-ROUTE-001", least=0)
    senders, receivers = _peers(plan)
    return SequenceReport(plan.kind, width, plan.own_rows, plan.halo_rows, senders, receivers)


def _peers(plan: SequenceBankPlan) -> tuple[np.ndarray, np.ndarray]:
    """Ranks that each rank receives from and sends to; int64 ``[size]`` each.

    A halo lies on consecutive ranks, from the owner of its first row up to the rank before its own; those of them
    that own a row are its senders. So both are counted on the ends of the stretches.
    """
    owning = plan.own_rows > 0
    before = np.concatenate(([0], np.cumsum(owning)))
    needing = np.flatnonzero(plan.halo_rows)
    firsts = np.searchsorted(plan.owner_offsets, plan.bank_starts[needing], side="right") - 1
    senders = np.zeros(plan.size, dtype=np.int64)
    senders[needing] = before[needing] - before[firsts]
    opened = np.bincount(firsts, minlength=plan.size) - np.bincount(needing, minlength=plan.size)
    return readonly(senders), readonly(np.where(owning, np.cumsum(opened), 0))
