"""Candidate blocks: runs of keys that a first layer finds worth a look, so that later layers score those alone.

A document's keys fall into blocks of ``block_keys``, counted from its first key. The newest block that a row reaches
is always a candidate. Rules ATTN-8 and ATTN-9 of ``specs/attention.md``.
"""

import numpy as np

from hpfun._fields import INT64_MAX, integer, integers, readonly
from hpfun.attention.ids import id_matrix
from hpfun.errors import refusal

BLOCK_KEYS = 8
_CODE = "HP-ATTN-004"


def reachable_blocks(key_starts: object, key_stops: object, block_keys: int = BLOCK_KEYS) -> np.ndarray:
    """Number of blocks of which each row sees at least one key; int64 ``[rows]``.

    Row i sees the keys ``[key_starts[i], key_stops[i])``. The newest of n reachable blocks is n - 1. Raises
    HP-ATTN-004.

    >>> reachable_blocks([0, 0, 5], [0, 9, 13]).tolist()
    [0, 2, 1]
    """
    starts, stops, block = _ranges(key_starts, key_stops, block_keys)
    return readonly(-(-(stops - starts) // block))


def candidate_keys(
    blocks: object,
    key_starts: object,
    key_stops: object,
    block_keys: int = BLOCK_KEYS,
    minimum_key_indices: object = None,
) -> np.ndarray:
    """The keys of each row's candidate blocks that it may see, -1 for the others; int64 ``[rows, n * block_keys]``.

    ``blocks`` are integers ``[rows, n]``, -1 for none. ``minimum_key_indices`` ``[rows]`` are the first keys that the
    rows may see, where that is not the first of the document. Raises HP-ATTN-004.

    >>> candidate_keys([[0, 1], [0, -1]], [5, 5], [9, 7], block_keys=3).tolist()
    [[5, 6, 7, 8, -1, -1], [5, 6, -1, -1, -1, -1]]
    """
    starts, stops, block = _ranges(key_starts, key_stops, block_keys)
    chosen = id_matrix(blocks, len(starts), "blocks", _CODE)
    least = starts
    if minimum_key_indices is not None:
        where = "minimum_key_indices"
        minimum = integers(minimum_key_indices, where, _CODE)
        if len(minimum) != len(starts):
            message = f"{len(minimum)} numbers for {len(starts)} rows"
            raise refusal(_CODE, where, message, entries=len(minimum), rows=len(starts))
        least = np.maximum(starts, minimum)
    reached = (chosen >= 0) & (chosen < -(-(stops - starts) // block)[:, None])  # beyond, products leave int64
    first = starts[:, None] + np.where(reached, chosen, 0) * block
    keys = first[:, :, None] + np.arange(block)
    inside = reached[:, :, None] & (keys >= least[:, None, None]) & (keys < stops[:, None, None])
    return readonly(np.where(inside, keys, -1).reshape(len(starts), chosen.shape[1] * block))


def _ranges(key_starts: object, key_stops: object, block_keys: object) -> tuple[np.ndarray, np.ndarray, int]:
    block = integer(block_keys, "block_keys", _CODE, least=1, most=INT64_MAX)
    starts, stops = integers(key_starts, "key_starts", _CODE), integers(key_stops, "key_stops", _CODE)
    if len(starts) != len(stops):
        message = f"{len(starts)} starts and {len(stops)} stops"
        raise refusal(_CODE, "key_stops", message, starts=len(starts), stops=len(stops))
    wrong = (starts < 0) | (stops < starts)
    if wrong.any():
        row = int(wrong.argmax())
        message = f"row {row} sees the keys [{starts[row]}, {stops[row]})"
        raise refusal(_CODE, "key_stops", message, row=row, start=int(starts[row]), stop=int(stops[row]))
    return starts, stops, block
