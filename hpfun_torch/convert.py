"""Row lists of a plan as what a device needs to move them: slices where rows run on, an index where not.

Cached per exchange and device, since layers and steps repeat plans. Rules EXECUTOR-4 and EXECUTOR-5 of
``specs/executors.md``.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import attrs
import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hpfun import RowExchange, RowRuns, transpose
from hpfun.rows import RowList, cut, rows_of, runs_of

T = TypeVar("T")
RUN_ROWS = 16  # mean rows a run must have for slices to beat one gather
_NONE = (np.zeros(0, dtype=np.int64),) * 2


@attrs.frozen(eq=False)
class Rows:
    """Rows of a tensor's first axis: half-open ``spans`` if they run on, else an ``index`` on the device."""

    count: int
    spans: tuple[tuple[int, int], ...] | None
    index: Any

    @property
    def span(self) -> tuple[int, int] | None:
        """The one span that holds all rows in order, if there is one."""
        return self.spans[0] if self.spans is not None and len(self.spans) == 1 else None

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows of ``tensor``: a view for one span, else a copy."""
        if self.count == 0:
            return tensor[:0]
        if self.span is not None:
            return tensor[self.span[0] : self.span[1]]
        if self.spans is not None:
            return torch.cat([tensor[start:stop] for start, stop in self.spans])
        return tensor.index_select(0, self.index)

    def put(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``values`` into the rows of ``tensor``, each row once."""
        if self.spans is None:
            tensor.index_copy_(0, self.index, values)
            return
        at = 0
        for start, stop in self.spans:
            tensor[start:stop].copy_(values[at : at + stop - start])
            at += stop - start

    def add(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Add ``values`` to the rows of ``tensor``, one span after the other."""
        if self.spans is None:
            tensor.index_add_(0, self.index, values.to(tensor.dtype))
            return
        at = 0
        for start, stop in self.spans:
            tensor[start:stop].add_(values[at : at + stop - start])
            at += stop - start


@attrs.frozen(eq=False)
class DeviceExchange:
    """A ``RowExchange`` ready for one device.

    Where rows add up, ``lower`` and ``higher`` are the parts of ``receive`` from each lower and each higher rank: added
    one after the other they meet in a fixed order, on every device if no rank sends two rows to one slot.
    ``local_sources`` and ``local_targets`` are empty where the own rows run on from the sent and received ones on
    both sides: then they are part of ``send`` and ``receive``, and all rows go through the collective uncopied.
    """

    send: Rows
    receive: Rows
    lower: tuple[Rows, ...]
    higher: tuple[Rows, ...]
    local_sources: Rows
    local_targets: Rows
    input_splits: list[int]
    output_splits: list[int]
    full: bool
    adds: bool


def kept_per_device(most: int = 256) -> Callable[[Callable[[Any, torch.device], T]], Callable[[Any, torch.device], T]]:
    """Decorates ``make(value, device)``: called once for equal arguments, since layers and steps repeat plans.

    The ``most`` last ones are kept.

    Made outside inference mode, so that training may use it later, and not kept under a fake or tracing mode, whose
    tensors must not stay behind.
    """

    def decorate(make: Callable[[Any, torch.device], T]) -> Callable[[Any, torch.device], T]:
        def made(value: Any, device: torch.device) -> T:
            with torch.inference_mode(mode=False):
                return make(value, device)

        kept = lru_cache(maxsize=most)(made)

        @wraps(make)
        def get(value: Any, device: torch.device) -> T:
            return kept(value, device) if _get_current_dispatch_mode() is None else made(value, device)

        return get

    return decorate


@kept_per_device()
def device_exchange(exchange: RowExchange, device: torch.device) -> DeviceExchange:
    """The exchange's rows on ``device``."""
    send, receive = exchange.row_list("send_rows"), exchange.row_list("receive_rows")
    input_splits, output_splits = exchange.input_splits.tolist(), exchange.output_splits.tolist()
    sources, targets = exchange.row_list("local_sources"), exchange.row_list("local_targets")
    few = sum(map(_num_runs, (send, receive, sources, targets))) <= 8  # one run of all has at most two in a part
    if few and exchange.required and exchange.hits_once and len(sources):
        together = exchange.sources_by_rank, exchange.targets_by_rank
        if all(isinstance(part, RowRuns) and len(part.starts) == 1 for part in together):
            input_splits[exchange.rank] = output_splits[exchange.rank] = len(sources)
            (send, receive), sources, targets = together, *_NONE
    local_sources, local_targets = _paired(sources, targets, device)
    lower, higher = _by_source(exchange, device) if not exchange.hits_once else ((), ())
    return DeviceExchange(
        send=device_rows(send, device),
        receive=device_rows(receive, device),
        lower=lower,
        higher=higher,
        local_sources=local_sources,
        local_targets=local_targets,
        input_splits=input_splits,
        output_splits=output_splits,
        full=exchange.num_unwritten == 0,
        adds=not exchange.hits_once,
    )


@lru_cache(maxsize=256)
def backward_exchange(exchange: RowExchange) -> RowExchange:
    """The transpose, kept, since every step's backward needs it."""
    return transpose(exchange)


def device_rows(rows: RowList, device: torch.device) -> Rows:
    """A row list as slices where it runs on for long, else as an index on the device."""
    if _scattered(rows):
        return _gathered(rows, device)
    spans = rows.spans if isinstance(rows, RowRuns) else tuple((row, row + 1) for row in rows.tolist())
    return Rows(len(rows), spans, None)


def _by_source(exchange: RowExchange, device: torch.device) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Slots of what each lower and each higher rank sends; ranks that send nothing are left out."""
    lower, higher, rest = [], [], exchange.row_list("receive_rows")
    for source in np.flatnonzero(exchange.output_splits).tolist():
        part, rest = cut(rest, int(exchange.output_splits[source]))
        (lower if source < exchange.rank else higher).append(device_rows(part, device))
    return tuple(lower), tuple(higher)


def _gathered(rows: RowList, device: torch.device) -> Rows:
    return Rows(len(rows), None, torch.from_numpy(rows_of(rows).copy()).to(device))


def _paired(sources: RowList, targets: RowList, device: torch.device) -> tuple[Rows, Rows]:
    """Sources and targets of local copies, cut where either stops running on, so that slices pair up."""
    if _scattered(sources) or _scattered(targets):
        return _gathered(sources, device), _gathered(targets, device)
    edges = np.union1d(_edges(sources), _edges(targets))
    if (len(edges) - 1) * RUN_ROWS > len(sources) and len(edges) > 2:
        return _gathered(sources, device), _gathered(targets, device)
    return _sliced(sources, edges), _sliced(targets, edges)


def _scattered(rows: RowList) -> bool:
    """Whether one gather beats slices, as seen without a look at the rows."""
    return _num_runs(rows) > 1 and _num_runs(rows) * RUN_ROWS > len(rows)


def _num_runs(rows: RowList) -> int:
    return len(rows.starts) if isinstance(rows, RowRuns) else len(rows)


def _edges(rows: RowList) -> np.ndarray:
    """Places in the list where rows stop running on, both ends included."""
    starts, stops = runs_of(rows)
    return np.concatenate(([0], np.cumsum(stops - starts)))


def _sliced(rows: RowList, edges: np.ndarray) -> Rows:
    """The list as spans between ``edges``, which are among the places where its rows stop running on, or more."""
    starts, _ = runs_of(rows)
    own = _edges(rows)
    run = np.searchsorted(own, edges[:-1], side="right") - 1
    firsts = starts[run] + (edges[:-1] - own[run])
    return Rows(len(rows), tuple(zip(firsts.tolist(), (firsts + np.diff(edges)).tolist(), strict=True)), None)
