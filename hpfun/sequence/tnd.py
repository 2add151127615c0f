"""The packed (TND) layout of segments for fused operators: rows and keys end to end, lengths as running sums.

Fused operators take no sequence without a key, so rows of such segments are left out and get -1 back. Rules
SEGMENT-6 and SEGMENT-7 of ``specs/indexer.md``; running sums without a leading 0 are what the TND layout of Ascend's
operators takes.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from hpfun._fields import content_digest, integers_field, plan_value, readonly
from hpfun.compression.offsets import check_ratio
from hpfun.errors import refusal
from hpfun.intervals import expand
from hpfun.sequence.segments import read_segments

_CODE = "HP-INDEX-010"


@plan_value
class CsaTndPlan:
    """Packed sequences, one per segment that has a key; made by ``csa_tnd_plan``.

    Sequence i takes the rows ``[query_starts[i], query_stops[i])`` and the bank's keys ``[key_starts[i],
    key_stops[i])``; ``residuals[i]`` counts the tokens behind its last whole key. All int64 ``[num_sequences]``.
    Anything else is HP-INDEX-010.
    """

    query_starts: Any = integers_field(_CODE)
    query_stops: Any = integers_field(_CODE)
    key_starts: Any = integers_field(_CODE)
    key_stops: Any = integers_field(_CODE)
    residuals: Any = integers_field(_CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        parts = (self.query_starts, self.query_stops, self.key_starts, self.key_stops, self.residuals)
        entries = tuple(map(len, parts))
        if len(set(entries)) != 1 or not entries[0]:
            raise refusal(_CODE, "query_starts", f"{entries} entries", "build plans with csa_tnd_plan", entries=entries)
        empty = (self.query_starts >= self.query_stops) | (self.key_starts >= self.key_stops) | (self.residuals < 0)
        empty |= (self.query_starts < 0) | (self.key_starts < 0)
        if empty.any():
            at = int(empty.argmax())
            numbers = tuple(int(part[at]) for part in parts)
            raise refusal(_CODE, "query_starts", f"sequence {at}, {numbers}, has no row or no key", sequence=numbers)

    @cached_property
    def query_rows(self) -> np.ndarray:
        """Rows that take part, in packed order; int64."""
        return readonly(expand(self.query_starts, self.query_stops))

    @cached_property
    def key_rows(self) -> np.ndarray:
        """The bank's keys in packed order; int64, a key once for every segment that sees its document."""
        return readonly(expand(self.key_starts, self.key_stops))

    @cached_property
    def cu_query_lengths(self) -> np.ndarray:
        """Running sum of the sequences' rows, without a leading 0; int64 ``[num_sequences]``."""
        return readonly(np.cumsum(self.query_stops - self.query_starts))

    @cached_property
    def cu_key_lengths(self) -> np.ndarray:
        """Running sum of the sequences' keys, without a leading 0; int64 ``[num_sequences]``."""
        return readonly(np.cumsum(self.key_stops - self.key_starts))

    def query(self, rows: Any) -> Any:
        """The rows of ``rows [rows, ...]`` (NumPy array or tensor) that take part, in packed order."""
        return rows if self.covers_queries(len(rows)) else rows[self.query_rows.copy()]

    def key(self, keys: Any) -> Any:
        """The keys of ``keys [bank, ...]`` (NumPy array or tensor) in packed order."""
        return keys[self.key_rows.copy()]

    def covers_queries(self, count: int) -> bool:
        """Whether exactly the rows ``0..count - 1`` take part, in order: then nothing need be taken or restored."""
        starts, stops = self.query_starts, self.query_stops
        return bool(starts[0] == 0 and stops[-1] == count and (starts[1:] == stops[:-1]).all())

    def restore(self, ids: Any, out: Any) -> Any:
        """Fill ``out [rows, k]`` with the packed rows' ids, -1 in all other rows, and return it."""
        out[...] = -1
        out[self.query_rows.copy()] = ids
        return out

    def bank_ids(self, ids: np.ndarray) -> np.ndarray:
        """Ids ``[packed rows, k]`` that count in each row's own key range, as ids in the bank; -1 stays."""
        firsts = np.repeat(self.key_starts, self.query_stops - self.query_starts)
        return np.where(ids < 0, ids, ids + firsts[:, None])


def csa_tnd_plan(segments: Iterable[object], ratio: int) -> CsaTndPlan | None:
    """The packed layout of a worker's segments, or None where no segment has a key.

    Takes ``IndexerSegment`` or its five numbers. Raises HP-COMPRESS-001 and HP-INDEX-010.

    >>> plan = csa_tnd_plan([(0, 3, 0, 0, 3), (3, 5, 3, 4, 2)], ratio=4)
    >>> plan.query_rows.tolist(), plan.key_rows.tolist(), plan.cu_query_lengths.tolist(), plan.covers_queries(5)
    ([3, 4], [3], [2], False)
    """
    check_ratio(ratio)
    taking = [tuple(part) for part in read_segments(segments) if part.key_start < part.key_stop]
    taking = [part for part in taking if part[0] < part[1]]
    if not taking:
        return None
    starts, stops, firsts, lasts, residuals = zip(*taking, strict=True)
    return CsaTndPlan(starts, stops, firsts, lasts, residuals)
