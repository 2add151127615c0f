"""Segments: which keys of the gathered bank each stretch of a worker's rows may see.

Rules SEGMENT-1 to SEGMENT-3 of ``specs/indexer.md``.
"""

from collections.abc import Iterator
from typing import Any

from hpfun._fields import content_digest, integer_field, plan_value
from hpfun.errors import refusal


@plan_value
class IndexerSegment:
    """Worker rows ``[query_start, query_stop)`` of one document, and its keys up to the last row's.

    Row i sees the keys ``key_start + [0, visible(i, ratio))``. ``residual`` counts the tokens behind the last
    whole key. Unpacks into its five fields.

    >>> segment = IndexerSegment(3, 5, 3, 4, 0)
    >>> [segment.visible(row, ratio=2) for row in (3, 4)]
    [0, 1]
    """

    query_start: int = integer_field("HP-INDEX-010", least=0)
    query_stop: int = integer_field("HP-INDEX-010", least=0)
    key_start: int = integer_field("HP-INDEX-010", least=0)
    key_stop: int = integer_field("HP-INDEX-010", least=0)
    residual: int = integer_field("HP-INDEX-010", least=0)

    digest = content_digest

    def __attrs_post_init__(self):
        if self.query_start > self.query_stop or self.key_start > self.key_stop:
            raise refusal("HP-INDEX-010", "query_stop", f"{tuple(self)} runs backwards", segment=tuple(self))

    def visible(self, rows: Any, ratio: int) -> Any:
        """Number of keys that a row (int or array, ``query_start`` to ``query_stop - 1``) sees."""
        return ((self.key_stop - self.key_start) * ratio + self.residual - (self.query_stop - 1 - rows)) // ratio

    def __iter__(self) -> Iterator[int]:
        return iter((self.query_start, self.query_stop, self.key_start, self.key_stop, self.residual))
