"""An exchange as one array: what passes through compiled graphs, where a value cannot.

A traced program takes an array as an input, as it takes tensors, so a new layout is new data and no new program.
Rule EXCHANGE-13 of ``specs/exchange.md``.
"""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpfun.rows import RowRuns, joined, spans_of

ROW_LISTS = ("send_rows", "receive_rows", "local_sources", "local_targets")
_NUMBERS = ("size", "rank", "num_source_rows", "num_target_rows", "required", "reduce")
_FEW_ROWS = 64  # single rows that may stand as intervals of one, besides two for every rank


def packed_fields(fields: Mapping[str, Any]) -> np.ndarray | None:
    """The fields of a ``RowExchange``, as it keeps them, in one int64 array; None where a list is scattered.

    First six numbers, then the number of intervals of each row list, both splits, and starts and stops of each
    list. The array is writable, because tracers refuse arrays over foreign memory; only ``unpack_exchange`` reads it,
    and that checks what it finds.
    """
    lists = [fields[name] for name in ROW_LISTS]
    few = _FEW_ROWS + 2 * fields["size"]
    if not all(isinstance(part, RowRuns) or len(part) <= few for part in lists):
        return None
    ends = [end for part in lists for end in (spans_of(part) if len(part) else (part, part))]
    head = struct.pack("=10q", *(fields[name] for name in _NUMBERS), *map(len, ends[::2]))
    content = b"".join([head, *(part.tobytes() for part in (fields["input_splits"], fields["output_splits"], *ends))])
    return np.frombuffer(bytearray(content), dtype=np.int64)


def unpacked_fields(packed: np.ndarray) -> dict[str, Any]:
    """Arguments for ``RowExchange`` from the array that ``packed_fields`` made."""
    numbers = dict(zip(_NUMBERS, packed[: len(_NUMBERS)].tolist(), strict=True))
    counts = packed[len(_NUMBERS) : len(_NUMBERS) + len(ROW_LISTS)].tolist()
    lengths = [numbers["size"], numbers["size"], *(count for count in counts for _ in range(2))]
    inputs, outputs, *ends, _ = np.split(packed[len(_NUMBERS) + len(ROW_LISTS) :], np.cumsum(lengths))
    lists = [joined(starts, stops) for starts, stops in zip(ends[::2], ends[1::2], strict=True)]
    numbers |= {name: bool(numbers[name]) for name in ("required", "reduce")}
    return {**numbers, "input_splits": inputs, "output_splits": outputs, **dict(zip(ROW_LISTS, lists, strict=True))}
