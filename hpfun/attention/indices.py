"""Sparse indices: for each row, the rows of its window and its chosen keys as places in one bank.

The bank is the window bank with the key bank behind it, so a chosen key moves by the number of window rows, and -1,
no key, stays -1. Rule ATTN-7 of ``specs/attention.md``.
"""

import numpy as np

from hpfun._fields import INT64_MAX, integer, readonly
from hpfun.attention.ids import id_matrix
from hpfun.attention.segments import AttentionSegments
from hpfun.errors import refusal

_CODE = "HP-ATTN-002"


def window_indices(segments: AttentionSegments) -> np.ndarray:
    """Rows of the window bank that each row attends to, ascending, -1 in front; int64 ``[num_rows, window]``.

    >>> from hpfun.attention import attention_segments
    >>> window_indices(attention_segments((0, 5, 8), 4, 2, rank=1, window=3, ratio=0)).tolist()
    [[0, 1, 2], [-1, -1, 3], [-1, 3, 4], [3, 4, 5]]
    """
    starts, stops = _checked(segments).window_ranges()
    rows = stops[:, None] - np.arange(segments.window, 0, -1)
    return readonly(np.where(rows >= starts[:, None], rows, -1))


def sparse_indices(segments: AttentionSegments, selected: object, window_rows: int) -> np.ndarray:
    """Window rows followed by selected keys; int64 ``[num_rows, window + k]``.

    ``selected`` are rows of the key bank, integers ``[num_rows, k]`` with -1 for none; ``window_rows`` is the length
    of the window bank. Raises HP-ATTN-002 for ids of another shape or beyond what a row sees, and for a bank that is
    shorter than the windows.

    >>> from hpfun.attention import attention_segments
    >>> segments = attention_segments((0, 5, 8), 4, 2, rank=1, window=2, ratio=2)
    >>> sparse_indices(segments, [[1], [-1], [2], [2]], window_rows=5).tolist()
    [[0, 1, 6], [-1, 2, -1], [2, 3, 7], [3, 4, 7]]
    """
    needed = int(_checked(segments).window_stops.max())  # a shorter bank would lend its last places to keys
    held = integer(window_rows, "window_rows", _CODE, least=needed, most=INT64_MAX // 2)
    ids = id_matrix(selected, segments.num_rows, "selected", _CODE)
    starts, stops = segments.key_ranges()
    outside = (ids != -1) & ((ids < starts[:, None]) | (ids >= stops[:, None]))
    if outside.any():
        row, column = (int(at) for at in np.argwhere(outside)[0])
        seen = (int(starts[row]), int(stops[row]))
        message = f"row {row} chose key {ids[row, column]}, it sees [{seen[0]}, {seen[1]})"
        raise refusal(_CODE, "selected", message, row=row, key=int(ids[row, column]), sees=seen)
    chosen = np.where(ids < 0, -1, ids + held)
    return readonly(np.concatenate((window_indices(segments), chosen), axis=1))


def _checked(segments: object) -> AttentionSegments:
    if not isinstance(segments, AttentionSegments):
        kind = type(segments).__name__
        raise refusal(_CODE, "segments", f"needs AttentionSegments, got {kind}", type=kind)
    return segments
