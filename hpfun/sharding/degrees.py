"""Arithmetic of degrees: which ones divide all counts, and which sequence lengths divide over them.

Rules SHARD-2 (``legal``) and SHARD-8 of ``specs/sharding.md``.
"""

import math

from hpfun.errors import refuse_all
from hpfun.sharding.reading import cp_layout as layout_name
from hpfun.sharding.reading import flag, positive, read_all, unread


def legal_degrees(*counts: int) -> tuple[int, ...]:
    """The degrees that divide every count, ascending: the divisors of their greatest common one.

    Counts are positive; HP-SHARD-009 otherwise, and where there is none, since every degree would be legal then.
    Takes as long as the square root of the result's last entry.

    >>> legal_degrees(28, 4), legal_degrees(32, 4, 768)
    ((1, 2, 4), (1, 2, 4))
    """
    if not counts:
        raise unread("counts", counts, "at least one count", (1,), "pass what the degree has to divide")
    given, wrong = read_all({f"counts[{at}]": (positive, count) for at, count in enumerate(counts)})
    refuse_all(wrong)
    common = math.gcd(*given.values())
    low = [degree for degree in range(1, math.isqrt(common) + 1) if common % degree == 0]
    return tuple(sorted({*low, *(common // degree for degree in low)}))


def sequence_alignment(cp: int, tp: int, sequence_parallel: bool, cp_layout: str) -> int:
    """Rows of which a sequence's length is a multiple, so that all ranks hold equal parts of it.

    Zigzag cuts a sequence into 2 * cp parts, contiguous into cp; sequence parallelism cuts what a rank of cp holds
    again by tp. A single rank of cp has no pair of parts. Raises HP-SHARD-009.

    >>> sequence_alignment(2, 3, True, "zigzag"), sequence_alignment(2, 3, True, "contiguous")
    (12, 6)
    >>> sequence_alignment(2, 3, False, "zigzag"), sequence_alignment(1, 3, True, "zigzag")
    (4, 3)
    """
    given = {"cp": (positive, cp), "tp": (positive, tp)}
    switches = {"sequence_parallel": (flag, sequence_parallel), "cp_layout": (layout_name, cp_layout)}
    fine, wrong = read_all({**given, **switches})
    refuse_all(wrong)
    parts = 2 * fine["cp"] if fine["cp_layout"] == "zigzag" and fine["cp"] > 1 else fine["cp"]
    return math.lcm(parts, fine["cp"] * fine["tp"]) if fine["sequence_parallel"] else parts
