"""Balanced selection: query rows to their workers, scores there, ids back to their owners.

Rules SELECT-1 to SELECT-8 of ``specs/executors.md``.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hpfun import IndexerRoute, RowExchange
from hpfun._fields import integer
from hpfun.errors import PlanError, Violation, refusal
from hpfun_torch.agree import Check, settle, signature
from hpfun_torch.checks import check_group
from hpfun_torch.convert import backward_exchange
from hpfun_torch.exchange import start_exchange
from hpfun_torch.handle import Handle

Positions = tuple[torch.Tensor, torch.Tensor]
Inputs = tuple[torch.Tensor, torch.Tensor, Positions]
_NAMES = ("query_residual", "weights", "position_embeddings.cos", "position_embeddings.sin")


class IndexerInputExchange:
    """Query rows on their way to the workers; made by ``launch_indexer_inputs``.

    ``wait()`` once, for the worker's tensors; then ``launch_result(ids)`` once, for a handle whose ``wait()`` gives
    the owner's ids. Whatever the caller does in between runs while the rows travel.
    """

    def __init__(self, inputs: Handle[Inputs], route: IndexerRoute, group: dist.ProcessGroup | None, check: Check):
        self._inputs = inputs
        self._route = route
        self._group = group
        self._check: Check = check
        self._launch = Handle(lambda: None, "launch_result")

    def wait(self) -> Inputs:
        """``(query_residual [1, Q, q_rank], weights [1, Q, heads], (cos, sin) [1, Q, rope])`` of the Q worker rows.

        A second wait is HP-STATE-001.
        """
        return self._inputs.wait()

    def launch_result(self, ids: torch.Tensor) -> Handle[torch.Tensor]:
        """Start sending the ids ``[Q, k]`` or ``[1, Q, k]`` home; ``wait()`` gives ``[1, local, k]`` int32.

        Raises HP-INDEX-008 for another shape or a dtype that is not integer, HP-STATE-001 at a second launch.
        """
        count = self._route.query_count
        settle(lambda: _check_ids(ids, count), lambda _: {"ids": f"k = {ids.shape[-1]}"}, self._group, self._check)
        self._launch.wait()
        rows = ids.detach().reshape(count, ids.shape[-1]).to(torch.int32)
        home = backward_exchange(self._route.exchange)
        with torch.no_grad():
            pending = start_exchange(rows, home, self._group)

        def finish() -> torch.Tensor:
            with torch.no_grad():
                return pending.wait()[None]

        return Handle(finish, "result")


def launch_indexer_inputs(
    query_residual: torch.Tensor,
    weights: torch.Tensor,
    position_embeddings: Positions,
    *,
    route: IndexerRoute,
    group: dist.ProcessGroup | None,
    check: Check = "off",
) -> IndexerInputExchange:
    """Start moving query rows to their workers and return at once.

    ``query_residual [1, local, q_rank]``, ``weights [1, local, heads]``, cos and sin ``[1, local, rope]``, on one
    device. Tensors of one dtype travel side by side in one collective per dtype, so nothing is rounded. No
    gradient flows. Raises HP-INDEX-008 (all violations at once) and HP-EXCHANGE-009 before any collective; with
    ``check="always"`` on every rank, and HP-AGREE-003 where routes of different plans or unlike tensors meet.
    """
    tensors = [query_residual, weights, *position_embeddings]
    settle(
        lambda: (check_group(route.exchange, group, check), _check_inputs(tensors, route.exchange.num_source_rows)),
        lambda _: {
            "required": str(route.exchange.required),
            "plan_digest": route.plan_digest,
            **{name: signature(tensor, 1) for name, tensor in zip(_NAMES, tensors, strict=True)},
        },
        group,
        check,
    )
    return IndexerInputExchange(_start_together(tensors, route.exchange, group), route, group, check)


def _start_together(
    tensors: list[torch.Tensor], exchange: RowExchange, group: dist.ProcessGroup | None
) -> Handle[Inputs]:
    """Start moving the four inputs, those of one dtype side by side."""
    kinds: dict[torch.dtype, list[int]] = {}
    for at, tensor in enumerate(tensors):
        kinds.setdefault(tensor.dtype, []).append(at)
    pending = []
    with torch.no_grad():
        for places in kinds.values():
            packed = torch.cat([tensors[at].detach() for at in places], dim=-1)
            pending.append((places, start_exchange(packed, exchange, group, dim=1)))
    widths = [tensor.shape[-1] for tensor in tensors]

    def finish() -> Inputs:
        moved: list[Any] = [None] * len(widths)
        with torch.no_grad():
            for places, handle in pending:
                parts = handle.wait().split([widths[at] for at in places], dim=-1)
                for at, part in zip(places, parts, strict=True):
                    moved[at] = part
        return moved[0], moved[1], (moved[2], moved[3])

    return Handle(finish, "inputs")


def balanced_indexer_select(
    query_residual: torch.Tensor,
    weights: torch.Tensor,
    position_embeddings: Positions,
    *,
    selector: Callable[..., torch.Tensor],
    route: IndexerRoute,
    group: dist.ProcessGroup | None,
    check: Check = "off",
) -> torch.Tensor:
    """Ids of the keys selected for this rank's rows, scored wherever the plan says; int32 ``[1, local, k]``.

    Shapes as for ``launch_indexer_inputs``. ``selector(query_residual, weights, (cos, sin), segments)`` gets the
    worker's rows and returns ids ``[1, query_count, k]``, k equal on all ranks; it is called once on every rank, also
    with 0 rows. Equal to selecting without moving rows, id by id. Raises HP-INDEX-008.
    """
    inputs = launch_indexer_inputs(query_residual, weights, position_embeddings, route=route, group=group, check=check)
    moved = inputs.wait()
    with torch.no_grad():  # a selector that fails on one rank fails all, where every rank is asked
        ids = settle(lambda: selector(*moved, route.segments), lambda _: {}, group, check)
    return inputs.launch_result(ids).wait()


def project_worker_queries(
    weight_fn: Callable[[torch.Tensor], torch.Tensor],
    rows: torch.Tensor,
    owner_query_length: int,
    num_calls: int | None = None,
) -> torch.Tensor:
    """Project worker rows ``[..., Q, in]`` in chunks of exactly ``owner_query_length`` rows, as the owner would.

    The matrix shape, and with it the rounding, is then the owner's. ``num_calls`` is ``route.projection_calls``,
    equal on all ranks, so that parameters gathered inside ``weight_fn`` are gathered equally often; leave it out
    only where nothing is gathered: then it is as many as these rows need, at least one. The row axis of
    ``weight_fn``'s result is that of its argument. Raises HP-INDEX-008.

    >>> project_worker_queries(lambda part: part * 2, torch.ones(5, 3), owner_query_length=4).shape
    torch.Size([5, 3])
    """
    length = integer(owner_query_length, "owner_query_length", "HP-INDEX-008", least=1)
    calls = _projection_calls(rows, length, num_calls)
    axis = rows.ndim - 2
    count = rows.shape[axis]
    done = []
    for call in range(calls):
        part = rows.narrow(axis, min(call * length, count), max(0, min(length, count - call * length)))
        missing = length - part.shape[axis]
        if missing:
            padding = rows.new_zeros((*rows.shape[:axis], missing, rows.shape[-1]))
            part = torch.cat((part, padding), dim=axis)
        projected = weight_fn(part)
        if projected.ndim <= axis or projected.shape[axis] != length:
            shape = tuple(projected.shape)
            message = f"gave shape {list(shape)} for {length} rows on axis {axis}"
            raise refusal("HP-INDEX-008", "weight_fn", message, shape=shape, owner_query_length=length, axis=axis)
        done.append(projected.narrow(axis, 0, length - missing))
    return torch.cat(done, dim=axis)


def _projection_calls(rows: Any, length: int, num_calls: int | None) -> int:
    """How often to call, or HP-INDEX-008 where that does not cover ``rows [..., Q, in]``."""
    if not isinstance(rows, torch.Tensor):
        kind = type(rows).__name__
        raise refusal("HP-INDEX-008", "rows", f"needs a tensor, got {kind}", type=kind)
    count = rows.shape[-2] if rows.ndim >= 2 else 0
    calls = max(1, -(-count // length))
    if num_calls is not None:
        calls = integer(num_calls, "num_calls", "HP-INDEX-008", least=1)
    if rows.ndim < 2 or calls * length < count:
        raise refusal(
            "HP-INDEX-008",
            "rows",
            f"{calls} calls of {length} rows do not cover rows of shape {tuple(rows.shape)}",
            "pass num_calls=route.projection_calls of the route that moved these rows",
            shape=tuple(rows.shape),
            num_calls=calls,
            owner_query_length=length,
        )
    return calls


def _check_inputs(tensors: list[Any], local: int) -> None:
    found = []
    kinds = tuple(type(tensor).__name__ for tensor in tensors)
    if len(tensors) != len(_NAMES) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        message = f"needs the tensors {', '.join(_NAMES)}, got {', '.join(kinds)}"
        raise refusal("HP-INDEX-008", "position_embeddings", message, types=kinds)
    for name, tensor in zip(_NAMES, tensors, strict=True):
        shape = tuple(tensor.shape)
        if len(shape) != 3 or shape[:2] != (1, local):
            facts = {"shape": shape, "local": local}
            found.append(Violation("HP-INDEX-008", name, f"needs shape [1, {local}, width], got {list(shape)}", facts))
    devices = tuple(sorted({str(tensor.device) for tensor in tensors}))
    if len(devices) > 1:
        found.append(Violation("HP-INDEX-008", "query_residual", f"tensors lie on {devices}", {"devices": devices}))
    if found:
        raise PlanError(*found)


def _check_ids(ids: Any, count: int) -> None:
    if not isinstance(ids, torch.Tensor):
        kind = type(ids).__name__
        raise refusal("HP-INDEX-008", "ids", f"needs a tensor, got {kind}", type=kind, query_count=count)
    shape = tuple(ids.shape)
    if shape[:-1] not in ((count,), (1, count)) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise refusal(
            "HP-INDEX-008",
            "ids",
            f"needs integer ids of shape [{count}, k], got {list(shape)} {ids.dtype}",
            "return one row of ids per worker row from the selector",
            shape=shape,
            dtype=str(ids.dtype),
            query_count=count,
        )
