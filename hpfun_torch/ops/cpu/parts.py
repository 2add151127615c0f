"""What a chunk of rows attends to: stretches of banks that its rows share, and keys that each row chose for itself.

Chunks are as long as their tensors stay small, so that no tensor has a number for every row and key. Rules OPS-20 and
OPS-24 of ``specs/executors.md``.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from hpfun.attention import AttentionSegments
from hpfun_torch.convert import kept_per_device

ELEMENTS = 2**22  # numbers in a chunk's largest tensors together
ROWS = 256  # the most rows of a chunk


class Banks(NamedTuple):
    """What is attended to; a value of None is the first channels of its key."""

    window: torch.Tensor | None
    window_value: torch.Tensor | None
    key: torch.Tensor | None
    value: torch.Tensor | None
    sinks: torch.Tensor | None


@attrs.frozen(eq=False)
class Ranges:
    """Starts and stops of each row's window rows and keys: tensors on one device, and the same on the host.

    The host's decide shapes, so that nothing waits for a device.
    """

    window: tuple[torch.Tensor, torch.Tensor]
    key: tuple[torch.Tensor, torch.Tensor]
    host_window: tuple[np.ndarray, np.ndarray]
    host_key: tuple[np.ndarray, np.ndarray]
    rows: tuple[tuple[int, int], ...]


@kept_per_device(most=16)
def ranges_of(segments: AttentionSegments, device: torch.device) -> Ranges:
    """The segments' ranges on ``device``."""
    window, key = segments.window_ranges(), segments.key_ranges()
    starts, stops, window_starts, window_stops = (torch.from_numpy(array).to(device) for array in (*key, *window))
    rows = tuple(zip(segments.query_starts.tolist(), segments.query_stops.tolist(), strict=True))
    return Ranges((window_starts, window_stops), (starts, stops), window, key, rows)


class Part(NamedTuple):
    """What one chunk of rows attends to: keys and values, where they lie in their bank, and who sees what.

    Shared by all rows of the chunk: ``key [n, D]``, ``place`` a slice, ``seen [C, n]``. Chosen row by row: ``key
    [C, n, D]``, ``place [C, n]``.
    """

    key: torch.Tensor
    value: torch.Tensor
    place: slice | torch.Tensor
    seen: torch.Tensor
    bank: str


def chunks(
    banks: Banks, selected: torch.Tensor | None, ranges: Ranges, heads: int, width: int, dtype: torch.dtype
) -> Iterator[Any]:
    """Slices of rows, and the parts that each attends to, in ``dtype``; rows of one segment, in order."""
    for first, last in ranges.rows:
        start = first
        while start < last:
            stop = min(start + _chunk_rows(banks, selected, ranges, start, last, heads), last)
            rows = slice(start, stop)
            yield rows, list(_parts(banks, selected, ranges, rows, width, dtype))
            start = stop


def _chunk_rows(banks: Banks, selected: Any, ranges: Ranges, start: int, last: int, heads: int) -> int:
    """As many rows as keep a chunk's tensors within ``ELEMENTS``."""
    numbers = 1
    if banks.window is not None:
        numbers += heads * int(ranges.host_window[1][last - 1] - ranges.host_window[0][last - 1])
    if selected is not None and banks.key is not None:
        numbers += selected.shape[1] * (heads + banks.key.shape[1])
    elif banks.key is not None:
        numbers += heads * int(ranges.host_key[1][last - 1] - ranges.host_key[0][last - 1])
    return max(1, min(ROWS, ELEMENTS // numbers))


def _parts(banks: Banks, selected: Any, ranges: Ranges, rows: slice, width: int, dtype: Any) -> Iterator[Part]:
    if banks.window is not None:
        given = (banks.window, banks.window_value, ranges.window, ranges.host_window)
        yield from _shared(*given, rows, width, dtype, "window")
    if banks.key is None:
        return
    if selected is None:
        yield from _shared(banks.key, banks.value, ranges.key, ranges.host_key, rows, width, dtype, "key")
        return
    ids = selected[rows].long()
    place = ids.clamp(min=0)
    if len(banks.key):
        key = banks.key[place.reshape(-1)].to(dtype).unflatten(0, place.shape)
        yield Part(key, key[..., :width], place, ids >= 0, "key")


def _shared(
    bank: torch.Tensor, value: Any, seen_by: Any, on_host: Any, rows: slice, width: int, dtype: Any, name: str
) -> Iterator[Part]:
    """One stretch of a bank for all rows of a chunk, each of which sees its own part of it."""
    low, high = int(on_host[0][rows].min()), int(on_host[1][rows].max())
    if low >= high:
        return
    starts, stops = (edges[rows] for edges in seen_by)
    order = torch.arange(low, high, device=bank.device)
    seen = (order >= starts[:, None]) & (order < stops[:, None])
    key = bank[low:high].to(dtype)
    values = key[:, :width] if value is None else value[low:high].to(dtype)
    yield Part(key, values, slice(low, high), seen, name)


def exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without autocast: sums run in the dtype that it says, whoever calls."""

    @wraps(function)
    def run(first: torch.Tensor, *others: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *others)

    return run


def sum_dtype(tensor: torch.Tensor) -> torch.dtype:
    """What sums run in."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
