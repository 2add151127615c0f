"""A shard of a packed sequence: document boundaries as an own snapshot, and the stretch that a rank holds.

Rule SEQ-11 of ``specs/sequence.md``.
"""

from functools import cached_property
from typing import Any

import attrs

from hpfun._fields import content_digest, plan_value
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.segments import IndexerSegment
from hpfun.sequence.segments import indexer_segments
from hpfun.shards import check_stretch, positive, read_boundaries


@plan_value
class PackedSequence:
    """Rows ``[local_start, local_start + local_length)`` of a pack of ``global_length`` tokens.

    ``cu_seq_lens`` (integers, NumPy array or CPU tensor: cumulative document ends with a leading 0) is kept as an
    int64 snapshot, so a caller may reuse its buffer. Raises HP-ROUTE-001 and 003 to 005.

    >>> shard = PackedSequence([0, 5, 8, 16], local_start=4, local_length=4, global_length=16)
    >>> [tuple(segment) for segment in shard.segments(ratio=2)]
    [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1)]
    """

    cu_seq_lens: Any = attrs.field(converter=lambda values: read_boundaries(values, "cu_seq_lens").boundaries)
    local_start: int
    local_length: int
    global_length: int

    digest = content_digest

    def __attrs_post_init__(self):
        total, end = positive(self.global_length, "global_length"), int(self.cu_seq_lens[-1])
        if end != total:
            message = f"end at {end}, the pack has {total} tokens"
            raise refusal("HP-ROUTE-005", "cu_seq_lens", message, end=end, global_length=total)
        start, stop = check_stretch(self.documents, self.local_start, self.local_length)
        for name, value in (("local_start", start), ("local_length", stop - start), ("global_length", total)):
            object.__setattr__(self, name, value)

    @cached_property
    def documents(self) -> PackedDocuments:
        """The documents of the pack."""
        return PackedDocuments.from_cu_seq_lens(self.cu_seq_lens)

    @property
    def local_stop(self) -> int:
        """The row behind the last one of the shard."""
        return self.local_start + self.local_length

    def segments(self, ratio: int) -> tuple[IndexerSegment, ...]:
        """``indexer_segments`` of the shard; HP-COMPRESS-001."""
        return indexer_segments(self.documents, self.local_start, self.local_length, ratio)
