"""Segments of sparse attention: which window rows and which compressed keys each of a rank's rows may attend to.

A rank's rows fall into segments, one per document that meets its shard. A row attends to the rows of its window, cut
at the start of its document, and to compressed keys of its document whose tokens it has all seen. Rules ATTN-1 to
ATTN-3 of ``specs/attention.md``.
"""

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers_field, plan_value, readonly
from hpfun.compression.offsets import key_offsets
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.segments import IndexerSegment
from hpfun.sequence.prefix import document_prefix_plan
from hpfun.sequence.window import sliding_window_plan
from hpfun.shards import check_rank, check_shards

_CODE = "HP-ATTN-002"
_ARRAYS = (
    "query_starts",
    "query_stops",
    "window_starts",
    "window_stops",
    "key_starts",
    "key_stops",
    "residuals",
)


@plan_value
class AttentionSegments:
    """The segments of one rank's rows; made by ``attention_segments``.

    Rows ``[query_starts[i], query_stops[i])`` of the shard belong to one document. Its rows in the window bank are
    ``[window_starts[i], window_stops[i])``, the last of which is the segment's last row; its keys in the key bank are
    ``[key_starts[i], key_stops[i])``, as many as that row sees, and ``residuals[i]`` tokens lie behind the last of
    them. All int64 ``[num_segments]``. ``window`` 0 means no window, ``ratio`` 0 no keys. Anything else is HP-ATTN-002.
    """

    query_starts: Any = integers_field(_CODE)
    query_stops: Any = integers_field(_CODE)
    window_starts: Any = integers_field(_CODE)
    window_stops: Any = integers_field(_CODE)
    key_starts: Any = integers_field(_CODE)
    key_stops: Any = integers_field(_CODE)
    residuals: Any = integers_field(_CODE)
    window: int = integer_field(_CODE, least=0)
    ratio: int = integer_field(_CODE, least=0)

    digest = content_digest

    def __attrs_post_init__(self):
        parts = [getattr(self, name) for name in _ARRAYS]
        entries = tuple(map(len, parts))
        if len(set(entries)) != 1 or not entries[0]:
            message = f"{entries} entries"
            raise refusal(_CODE, "query_starts", message, "build them with attention_segments", entries=entries)
        starts, stops = self.query_starts, self.query_stops
        rows = stops - starts
        wrong = (starts < 0) | (rows < 1) | (self.window_starts < 0) | (self.key_starts < 0)
        wrong[1:] |= starts[1:] < stops[:-1]
        held = self.window_stops - self.window_starts
        wrong |= (held < rows) if self.window else (held != 0)
        seen = (self.key_stops - self.key_starts) * self.ratio + self.residuals
        if self.ratio:
            wrong |= (self.key_stops < self.key_starts) | (self.residuals < 0) | (self.residuals >= self.ratio)
            wrong |= seen < rows
        else:
            wrong |= (self.key_stops != self.key_starts) | (self.residuals != 0)
        if wrong.any():
            at = int(wrong.argmax())
            numbers = tuple(int(part[at]) for part in parts)
            message = f"segment {at}, {numbers}, does not fit window {self.window} and ratio {self.ratio}"
            facts = {"segment": numbers, "window": self.window, "ratio": self.ratio}
            raise refusal(_CODE, "query_starts", message, "build them with attention_segments", **facts)

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.query_starts)

    @property
    def num_rows(self) -> int:
        """Rows that the segments reach over, from row 0."""
        return int(self.query_stops[-1])

    def window_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop, in the window bank, of the rows that each row attends to; int64 ``[num_rows]`` each.

        Rows in no segment, and all rows where there is no window, have an empty range.

        >>> attention_segments((0, 5, 8), 4, 2, rank=1, window=3, ratio=0).window_ranges()[0].tolist()
        [0, 3, 3, 3]
        """
        starts = np.zeros(self.num_rows, dtype=np.int64)
        stops = starts.copy()
        for first, last, low, high in self._stretches("window_starts", "window_stops"):
            ends = high - (last - 1 - np.arange(first, last)) if self.window else np.zeros(last - first, dtype=np.int64)
            stops[first:last] = ends
            starts[first:last] = np.maximum(ends - self.window, low) if self.window else ends
        return starts, stops

    def key_ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop, in the key bank, of the keys that each row sees; int64 ``[num_rows]`` each.

        >>> attention_segments((0, 5, 8), 4, 2, rank=1, window=0, ratio=2).key_ranges()[1].tolist()
        [2, 2, 3, 3]
        """
        starts = np.zeros(self.num_rows, dtype=np.int64)
        stops = starts.copy()
        if not self.ratio:
            return starts, stops
        for first, last, low, high in self._stretches("key_starts", "key_stops"):
            tokens = (high - low) * self.ratio + int(self.residuals[np.searchsorted(self.query_starts, first)])
            starts[first:last] = low
            stops[first:last] = low + (tokens - (last - 1 - np.arange(first, last))) // self.ratio
        return starts, stops

    @cached_property
    def indexer(self) -> tuple[IndexerSegment, ...]:
        """The same rows and keys as segments of the indexer; none where there are no keys."""
        if not self.ratio:
            return ()
        columns = (self.query_starts, self.query_stops, self.key_starts, self.key_stops, self.residuals)
        return tuple(IndexerSegment(*row) for row in zip(*(column.tolist() for column in columns), strict=True))

    def _stretches(self, low: str, high: str) -> Any:
        parts = (self.query_starts, self.query_stops, getattr(self, low), getattr(self, high))
        return zip(*(part.tolist() for part in parts), strict=True)


def attention_segments(
    boundaries: object, local_length: int, size: int, rank: int, window: int, ratio: int
) -> AttentionSegments:
    """The segments of one rank's rows, in the banks of ``sliding_window_route`` and ``document_prefix_route``.

    ``boundaries`` are cumulative document ends with a leading 0, or ``PackedDocuments``; each of ``size`` ranks owns
    ``local_length`` rows. ``window`` counts the row itself; 0 leaves the window out, ``ratio`` 0 the keys. Raises
    HP-ROUTE-001 to 005, HP-COMPRESS-001 and HP-ATTN-002.

    >>> segments = attention_segments((0, 5, 8), 4, 2, rank=1, window=3, ratio=2)
    >>> segments.query_stops.tolist(), segments.window_starts.tolist(), segments.key_starts.tolist()
    ([1, 4], [0, 3], [0, 2])
    """
    documents, local, size = check_shards(boundaries, local_length, size)
    window = integer(window, "window", _CODE, least=0)
    ratio = integer(ratio, "ratio", "HP-COMPRESS-001", least=0, most=INT64_MAX)
    return _segments(documents, local, size, check_rank(rank, size), min(window, documents.total), ratio)


@lru_cache(maxsize=64)
def _segments(
    documents: PackedDocuments, local: int, size: int, rank: int, window: int, ratio: int
) -> AttentionSegments:
    """The segments, computed once for equal arguments: the layers of a model share them."""
    low, high = rank * local, (rank + 1) * local
    first, last = documents.documents_at(np.array((low, high - 1))).tolist()
    inside = np.arange(first, last + 1)
    begins = documents.boundaries[inside]
    starts, stops = np.maximum(begins, low), np.minimum(documents.boundaries[inside + 1], high)
    none = np.zeros(len(inside), dtype=np.int64)
    window_starts = window_stops = key_starts = key_stops = residuals = none
    if window:
        bank = int(sliding_window_plan(documents, local, size, window).bank_starts[rank])
        window_starts, window_stops = np.maximum(begins, starts - window + 1) - bank, stops - bank
    if ratio:
        bank = int(document_prefix_plan(documents, local, size, ratio).bank_starts[rank])
        seen = stops - begins
        key_starts = key_offsets(documents, ratio)[inside] - bank
        key_stops, residuals = key_starts + seen // ratio, seen % ratio
    arrays = (starts - low, stops - low, window_starts, window_stops, key_starts, key_stops, residuals)
    return AttentionSegments(*map(readonly, arrays), window, ratio)
