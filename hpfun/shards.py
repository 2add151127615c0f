"""Arguments that every sequence route takes: document boundaries, equal shards, a rank of the group.

Rule SEQ-10 of ``specs/sequence.md``.
"""

from hpfun._fields import INT64_MAX, integer
from hpfun.documents import PackedDocuments
from hpfun.errors import Violation, collect, in_order, refusal


def positive(value: object, where: str, code: str = "HP-ROUTE-001") -> int:
    """``value`` as an int of at least 1 that fits into int64, or ``code``."""
    return integer(value, where, code, least=1, most=INT64_MAX)


def check_rank(rank: object, size: int, code: str = "HP-ROUTE-002") -> int:
    """``rank`` as an int inside ``0..size - 1``, or ``code``."""
    rank = integer(rank, "rank", code)
    if not 0 <= rank < size:
        message = f"rank {rank} is outside a group of {size}"
        raise refusal(code, "rank", message, f"use 0..{size - 1}", rank=rank, size=size)
    return rank


def read_boundaries(boundaries: object, where: str = "boundaries") -> PackedDocuments:
    """The documents of cumulative ends with a leading 0, or those given as ``PackedDocuments``.

    Raises HP-ROUTE-003 for anything that is no such list, HP-ROUTE-004 where it does not strictly increase.
    """
    if isinstance(boundaries, PackedDocuments):
        return boundaries
    return PackedDocuments.from_boundaries(boundaries, where, "HP-ROUTE-003", "HP-ROUTE-004")


def check_shards(boundaries: object, local_length: object, size: object) -> tuple[PackedDocuments, int, int]:
    """Documents, rows of a shard and size of a group whose equal shards hold exactly these documents.

    Raises HP-ROUTE-001 for lengths and sizes that are not positive ints, HP-ROUTE-003 to 005 for boundaries, all
    at once.
    """
    violations: list[Violation] = []
    local = collect(violations, positive, local_length, "local_length")
    ranks = collect(violations, positive, size, "size")
    documents = collect(violations, read_boundaries, boundaries)
    if local is None or ranks is None or documents is None:
        raise in_order(violations)
    total = documents.total
    if total != local * ranks:
        message = f"end at {total}, {ranks} shards of {local} rows hold {local * ranks}"
        advice = "pad or cut the pack to whole shards"
        facts = {"end": total, "local_length": local, "size": ranks, "expected": local * ranks}
        raise refusal("HP-ROUTE-005", "boundaries", message, advice, **facts)
    return documents, local, ranks


def check_stretch(documents: PackedDocuments, local_start: object, local_length: object) -> tuple[int, int]:
    """First row and end of a stretch of the pack; HP-ROUTE-001 for other kinds, HP-ROUTE-005 outside the pack."""
    start = integer(local_start, "local_start", "HP-ROUTE-001")
    stop = start + positive(local_length, "local_length")
    if start < 0 or stop > documents.total:
        facts = {"local_start": start, "local_stop": stop, "global_length": documents.total}
        message = f"rows {start}..{stop} of a pack of {documents.total}"
        raise refusal("HP-ROUTE-005", "local_length", message, "pass a shard of this pack", **facts)
    return start, stop
