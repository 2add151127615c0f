"""Ids of keys or blocks by row: integers ``[rows, n]``, -1 for none, as rules ATTN-7 and ATTN-9 take them."""

import numpy as np

from hpfun._fields import INT64_MAX
from hpfun.errors import refusal


def id_matrix(values: object, rows: int, where: str, code: str) -> np.ndarray:
    """``values`` as int64 ``[rows, n]``; ``code`` for another shape, other kinds, or numbers that int64 lacks."""
    try:
        ids = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, or a tensor that is not on the CPU
        kind = type(values).__name__
        raise refusal(code, where, f"a {kind} that numpy cannot read", type=kind) from None
    if ids.ndim != 2 or len(ids) != rows or (ids.size and ids.dtype.kind not in "iu"):
        message = f"needs integers [{rows}, n], got {ids.dtype} {ids.shape}"
        raise refusal(code, where, message, shape=ids.shape, dtype=str(ids.dtype), rows=rows)
    if ids.dtype == np.uint64 and ids.size and int(ids.max()) > INT64_MAX:
        raise refusal(code, where, "a number does not fit into int64", value=int(ids.max()), most=INT64_MAX)
    return ids.astype(np.int64)
