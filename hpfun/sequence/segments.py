"""Segments of rows that stay at home: one per document that meets a shard, and the same cut into shorter ones.

Rules SEGMENT-4 and SEGMENT-5 of ``specs/indexer.md``.
"""

from collections.abc import Iterable

import numpy as np

from hpfun.compression.offsets import check_ratio, key_offsets
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.segments import IndexerSegment
from hpfun.shards import check_stretch, positive, read_boundaries


def indexer_segments(boundaries: object, local_start: int, local_length: int, ratio: int) -> tuple[IndexerSegment, ...]:
    """The segments of the rows ``[local_start, local_start + local_length)`` of a pack, one per document.

    Query rows count from ``local_start``, keys in the bank of all documents. ``boundaries`` are cumulative document
    ends with a leading 0, or ``PackedDocuments``. Raises HP-ROUTE-001 and 003 to 005, HP-COMPRESS-001.

    >>> [tuple(segment) for segment in indexer_segments((0, 5, 8, 16), 4, 8, 2)]
    [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1), (4, 8, 3, 5, 0)]
    """
    documents, ratio = read_boundaries(boundaries), check_ratio(ratio)
    start, stop = check_stretch(documents, local_start, local_length)
    first, last = documents.documents_at((start, stop - 1)).tolist()
    inside = np.arange(first, last + 1)
    starts = np.maximum(documents.boundaries[inside], start)
    stops = np.minimum(documents.boundaries[inside + 1], stop)
    return document_segments(documents, ratio, inside, starts, stops)


def document_segments(
    documents: PackedDocuments, ratio: int, inside: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> tuple[IndexerSegment, ...]:
    """Segments of global rows ``[starts, stops)``, each inside the document that ``inside`` names, end to end."""
    ends = np.cumsum(stops - starts)
    seen = stops - documents.boundaries[inside]
    keys = key_offsets(documents, ratio)[inside]
    columns = (ends - (stops - starts), ends, keys, keys + seen // ratio, seen % ratio)
    return tuple(IndexerSegment(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def split_segments(segments: Iterable[object], ratio: int, max_rows: int) -> tuple[IndexerSegment, ...]:
    """The segments cut every ``max_rows`` rows from their own start; every row sees the keys that it saw.

    Takes ``IndexerSegment`` or its five numbers. Raises HP-COMPRESS-001, HP-ROUTE-001 (``max_rows``) and HP-INDEX-010.

    >>> [tuple(part) for part in split_segments([(0, 9, 6, 14, 1)], ratio=2, max_rows=4)]
    [(0, 4, 6, 12, 0), (4, 8, 6, 14, 0), (8, 9, 6, 14, 1)]
    """
    ratio, most = check_ratio(ratio), positive(max_rows, "max_rows")
    parts = []
    for segment in read_segments(segments):
        keys, tokens = segment.key_start, (segment.key_stop - segment.key_start) * ratio + segment.residual
        for start in range(segment.query_start, segment.query_stop, most):
            stop = min(start + most, segment.query_stop)
            seen = tokens - (segment.query_stop - stop)
            parts.append(IndexerSegment(start, stop, keys, keys + seen // ratio, seen % ratio))
    return tuple(parts)


def read_segments(segments: Iterable[object]) -> tuple[IndexerSegment, ...]:
    """``IndexerSegment`` values of segments given as such or by their five numbers; HP-INDEX-010."""
    found = []
    for at, part in enumerate(segments if isinstance(segments, Iterable) else (segments,)):
        if isinstance(part, (tuple, list)) and len(part) == 5:
            part = IndexerSegment(*part)
        if not isinstance(part, IndexerSegment):
            kind = type(part).__name__
            raise refusal("HP-INDEX-010", f"segments[{at}]", f"needs an IndexerSegment, got {kind}", type=kind)
        found.append(part)
    return tuple(found)
