"""Transfers: rows on the first axis go out, arrive and are placed; no gradients, no questions.

Three of them: the movement that an exchange describes, the gather of all ranks' rows, and the sum that is its
transpose. What is eager and what is compiled call the same. Rules EXECUTOR-1 to EXECUTOR-6 and GATHER-1, 3 and 4 of
``specs/executors.md``.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun_torch.agree import all_gather
from hpfun_torch.convert import DeviceExchange, device_exchange

Lengths = tuple[int, ...]


def start_exchange(rows: torch.Tensor, exchange: RowExchange, group: Any, fill: float) -> Callable[[], torch.Tensor]:
    """Start the transfer and make the local copies behind it; the result is the second half."""
    plan = device_exchange(exchange, rows.device)
    rows = _plain(rows)
    target = _empty_target(rows, exchange, plan, fill)
    work = received = None
    if exchange.required:
        in_place = plan.receive.span is not None and not plan.adds
        shape = (plan.receive.count, *rows.shape[1:])
        received = plan.receive.take(target) if in_place else rows.new_empty(shape)
        sent = plan.send.take(rows)
        work = dist.all_to_all_single(received, sent, plan.output_splits, plan.input_splits, group=group, async_op=True)
    if not plan.adds:
        _copy_local(rows, target, plan)

    def finish() -> torch.Tensor:
        if work is not None:
            work.wait()
        if plan.adds:
            return _added(rows, received, target, plan)
        if received is not None and plan.receive.span is None:
            plan.receive.put(target, received)
        return target

    return finish


def _empty_target(rows: torch.Tensor, exchange: RowExchange, plan: DeviceExchange, fill: float) -> torch.Tensor:
    shape = (exchange.num_target_rows, *rows.shape[1:])
    if plan.adds:
        return rows.new_zeros(shape, dtype=_summed(rows.dtype))
    if plan.full:
        return rows.new_empty(shape)
    return rows.new_full(shape, 0 if exchange.reduce else fill)


def _copy_local(rows: torch.Tensor, target: torch.Tensor, plan: DeviceExchange) -> None:
    sources, targets = plan.local_sources, plan.local_targets
    if sources.spans is None or targets.spans is None:
        targets.put(target, sources.take(rows))
        return
    for (start, stop), (to, end) in zip(sources.spans, targets.spans, strict=True):
        target[to:end].copy_(rows[start:stop])


def _added(rows: torch.Tensor, received: Any, target: torch.Tensor, plan: DeviceExchange) -> torch.Tensor:
    """What arrives, added up slot by slot in rank order, the own rows at their rank's place."""
    at = 0
    for part in plan.lower:
        part.add(target, received[at : at + part.count])
        at += part.count
    plan.local_targets.add(target, plan.local_sources.take(rows))
    for part in plan.higher:
        part.add(target, received[at : at + part.count])
        at += part.count
    return target.to(rows.dtype)


def start_gather(rows: torch.Tensor, lengths: Lengths, group: Any) -> Callable[[], torch.Tensor]:
    """Start bringing ``lengths[rank]`` rows of every rank to all; the result is the second half."""
    if len(lengths) == 1 or not max(lengths):
        copy = rows.clone(memory_format=torch.contiguous_format)
        return lambda: copy
    longest = max(lengths)
    padded = _plain(rows)
    if len(rows) < longest:
        padded = torch.cat((padded, rows.new_zeros((longest - len(rows), *rows.shape[1:]))))
    gathered = rows.new_empty((len(lengths) * longest, *rows.shape[1:]))
    work = all_gather(gathered, padded, group=group, async_op=True)

    def finish() -> torch.Tensor:
        work.wait()
        if min(lengths) == longest:
            return gathered
        return torch.cat([part[:count] for part, count in zip(gathered.split(longest), lengths, strict=True)])

    return finish


def reduce_rows(rows: torch.Tensor, lengths: Lengths, group: Any) -> torch.Tensor:
    """The sum over ranks of their ``[sum(lengths), ...]`` rows, of which this rank gets its own, in rank order."""
    if len(lengths) == 1 or not max(lengths):
        return rows.clone(memory_format=torch.contiguous_format)
    rank = dist.get_rank(group)
    own = lengths[rank]
    received = rows.new_empty((len(lengths) * own, *rows.shape[1:]))
    dist.all_to_all_single(received, _plain(rows), [own] * len(lengths), list(lengths), group=group)
    parts = received.view(len(lengths), own, *rows.shape[1:])
    total = parts[0].to(_summed(rows.dtype), copy=True)
    for part in parts[1:]:
        total += part
    return total.to(rows.dtype)


def _plain(rows: torch.Tensor) -> torch.Tensor:
    """The rows as backends send them: contiguous, with no conjugation or sign left to do."""
    return rows.resolve_conj().resolve_neg().contiguous()


def _summed(dtype: torch.dtype) -> torch.dtype:
    """What values of a dtype are added up in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
