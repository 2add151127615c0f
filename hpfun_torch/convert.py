"""Row lists of a plan as what a device needs to move them: slices where rows run on, an index where not.

Cached per exchange and device, since layers and steps repeat plans. Rules EXECUTOR-4 and EXECUTOR-5 of
``specs/executors.md``.
"""

from functools import lru_cache
from typing import Any

import attrs
import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from hpfun import RowExchange, transpose
from hpfun.intervals import runs

RUN_ROWS = 16  # mean rows a run must have for slices to beat one gather


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


@attrs.frozen(eq=False)
class DeviceExchange:
    """A ``RowExchange`` ready for one device; ``before_own`` received rows come from lower ranks.

    ``local_sources`` and ``local_targets`` are empty where the own rows run on from the sent and received ones on
    both sides: then they are part of ``send`` and ``receive``, and all rows go through the collective uncopied.
    """

    send: Rows
    receive: Rows
    local_sources: Rows
    local_targets: Rows
    input_splits: list[int]
    output_splits: list[int]
    before_own: int
    full: bool
    adds: bool


def device_exchange(exchange: RowExchange, device: torch.device) -> DeviceExchange:
    """The exchange's rows on ``device``; made outside inference mode, so that training may use them later."""
    if _get_current_dispatch_mode() is not None:  # a fake or tracing mode: its tensors must not stay behind
        return _made(exchange, device)
    return _kept(exchange, device)


@lru_cache(maxsize=256)
def _kept(exchange: RowExchange, device: torch.device) -> DeviceExchange:
    return _made(exchange, device)


def _made(exchange: RowExchange, device: torch.device) -> DeviceExchange:
    with torch.inference_mode(mode=False):
        send, receive = exchange.send_rows, exchange.receive_rows
        input_splits, output_splits = exchange.input_splits.tolist(), exchange.output_splits.tolist()
        sources, targets = exchange.local_sources, exchange.local_targets
        together = (exchange.sources_by_rank, exchange.targets_by_rank)
        if exchange.required and exchange.hits_once and len(sources) and all(map(_runs_on, together)):
            input_splits[exchange.rank] = output_splits[exchange.rank] = len(sources)
            (send, receive), sources, targets = together, sources[:0], targets[:0]
        local_sources, local_targets = _paired(sources, targets, device)
        return DeviceExchange(
            send=_rows(send, device),
            receive=_rows(receive, device),
            local_sources=local_sources,
            local_targets=local_targets,
            input_splits=input_splits,
            output_splits=output_splits,
            before_own=exchange.received_before_own,
            full=exchange.num_unwritten == 0,
            adds=not exchange.hits_once,
        )


@lru_cache(maxsize=256)
def backward_exchange(exchange: RowExchange) -> RowExchange:
    """The transpose, kept, since every step's backward needs it."""
    return transpose(exchange)


def _runs_on(rows: np.ndarray) -> bool:
    return bool((np.diff(rows) == 1).all())


def _rows(rows: np.ndarray, device: torch.device) -> Rows:
    starts, stops = runs(rows)
    if len(starts) * RUN_ROWS <= len(rows) or len(starts) == 1:
        return Rows(len(rows), tuple(zip(starts.tolist(), stops.tolist(), strict=True)), None)
    return _gathered(rows, device)


def _gathered(rows: np.ndarray, device: torch.device) -> Rows:
    return Rows(len(rows), None, torch.from_numpy(rows.copy()).to(device))


def _paired(sources: np.ndarray, targets: np.ndarray, device: torch.device) -> tuple[Rows, Rows]:
    """Sources and targets of local copies, cut where either stops running on, so that slices pair up."""
    cuts = np.flatnonzero((np.diff(sources) != 1) | (np.diff(targets) != 1)) + 1
    edges = np.concatenate(([0], cuts, [len(sources)]))
    if (len(edges) - 1) * RUN_ROWS > len(sources):
        return _gathered(sources, device), _gathered(targets, device)
    lengths = np.diff(edges)
    pair = []
    for part in (sources, targets):
        starts = part[edges[:-1]]
        pair.append(Rows(len(part), tuple(zip(starts.tolist(), (starts + lengths).tolist(), strict=True)), None))
    return pair[0], pair[1]
