"""Packed documents: the lengths of the documents that stand one after the other in one batch.

Everything else (boundaries, which document a row is in, where a shard cuts) follows from the lengths.
Rules DOC-1 to DOC-5 of ``specs/vocabulary.md``.
"""

from functools import cached_property
from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integers, plan_value, readonly
from hpfun.errors import refusal


def check_lengths(values: object, where: str, code: str) -> np.ndarray:
    """``values`` as read-only int64 lengths, non-empty and all positive, or an error with ``code``."""
    lengths = integers(values, where, code)
    if len(lengths) == 0:
        raise refusal(code, where, "no document", "pass at least one length")
    at = int(lengths.argmin())
    if lengths[at] <= 0:
        advice = "for cu_seq_lens use PackedDocuments.from_cu_seq_lens" if lengths[0] == 0 else "drop empty documents"
        raise refusal(
            code, where, f"document {at} has {lengths[at]} tokens", advice, document=at, length=int(lengths[at])
        )
    # the float sum is only a filter; the refusal itself is decided on exact integers
    if float(lengths.sum(dtype=np.float64)) > 2.0**62 and sum(lengths.tolist()) > INT64_MAX:
        raise refusal(code, where, "the total does not fit into int64", most=INT64_MAX)
    return lengths


@plan_value
class PackedDocuments:
    """Documents of one packed batch, by length in tokens and in pack order.

    ``lengths`` is any sequence of integers, a numpy array or a CPU tensor; an owned, read-only int64
    snapshot is kept, so later changes of the argument change nothing. Raises HP-DOC-001.

    >>> pack = PackedDocuments((5, 3, 8))
    >>> pack.total, pack.boundaries.tolist(), pack.documents_at([0, 4, 5, 15]).tolist()
    (16, [0, 5, 8, 16], [0, 0, 1, 2])
    """

    lengths: Any = attrs.field(converter=lambda values: check_lengths(values, "lengths", "HP-DOC-001"))

    digest = content_digest

    @classmethod
    def from_lengths(cls, lengths: object) -> "PackedDocuments":
        """From document lengths; the same as the constructor."""
        return cls(lengths)

    @classmethod
    def from_cu_seq_lens(cls, cu_seq_lens: object) -> "PackedDocuments":
        """From cumulative document ends with a leading 0, as attention kernels take them.

        Raises HP-DOC-002 where they do not start at 0 or do not strictly increase.

        >>> PackedDocuments.from_cu_seq_lens([0, 5, 8, 16]).lengths.tolist()
        [5, 3, 8]
        """
        return cls.from_boundaries(cu_seq_lens, "cu_seq_lens", "HP-DOC-002", "HP-DOC-002")

    @classmethod
    def from_boundaries(cls, ends: object, where: str, code: str, rise_code: str) -> "PackedDocuments":
        """From cumulative ends in an argument ``where``; ``code`` for what is no such list, ``rise_code`` if it falls.

        >>> PackedDocuments.from_boundaries([0, 5, 8], "boundaries", "HP-ROUTE-003", "HP-ROUTE-004").lengths.tolist()
        [5, 3]
        """
        bounds = integers(ends, where, code)
        if len(bounds) < 2 or bounds[0] != 0:
            first = int(bounds[0]) if len(bounds) else None
            message = f"{len(bounds)} entries, the first is {'missing' if first is None else first}"
            advice = "start with 0, then one end per document; lengths are PackedDocuments(lengths)"
            raise refusal(code, where, message, advice, entries=len(bounds), first=first)
        falls = bounds[1:] <= bounds[:-1]
        if falls.any():
            at = int(falls.argmax()) + 1
            facts = {"index": at, "value": int(bounds[at]), "before": int(bounds[at - 1])}
            message = f"entry {at} is {bounds[at]}, after {bounds[at - 1]}"
            raise refusal(rise_code, where, message, "drop empty documents", **facts)
        return cls(readonly(np.diff(bounds)))

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    @property
    def total(self) -> int:
        """Tokens of the whole pack."""
        return int(self.boundaries[-1])

    @cached_property
    def boundaries(self) -> np.ndarray:
        """Cumulative document ends with a leading 0; int64 ``[num_documents + 1]``."""
        ends = np.zeros(len(self.lengths) + 1, dtype=np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        return readonly(ends)

    def documents_at(self, rows: Any) -> np.ndarray:
        """Document of each global row; int64, the shape of ``rows``."""
        return np.searchsorted(self.boundaries, rows, side="right") - 1

    def shard_rows(self, size: int, code: str = "HP-DOC-003") -> int:
        """Rows of one of ``size`` equal shards; ``code`` unless size is a positive int that divides the tokens.

        >>> PackedDocuments((5, 3, 8)).shard_rows(4)
        4
        """
        size = integer(size, "size", code, least=1)
        if self.total % size:
            raise refusal(
                code,
                "size",
                f"{self.total} tokens do not divide by {size} ranks",
                f"pad by {-self.total % size} tokens or cut {self.total % size}",
                tokens=self.total,
                size=size,
                remainder=self.total % size,
            )
        return self.total // size
