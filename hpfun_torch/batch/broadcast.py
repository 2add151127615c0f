"""Broadcast of a batch to the tensor-parallel ranks: one of them reads it, the others get it.

A header of fixed size tells every rank how many bytes follow, so all make the same calls, also where the source failed.
Rules BATCH-34 and BATCH-36 to BATCH-38 of ``specs/batch.md``.
"""

from typing import Any

import torch
import torch.distributed as dist

from hpfun import attempt, from_json, to_json
from hpfun.errors import refusal
from hpfun_torch.agree import backend_device
from hpfun_torch.batch.payload import pack, unpack
from hpfun_torch.batch.shard import PLAN, Batch, check_mapping
from hpfun_torch.checks import check_member, group_size

VERSION = 1  # of header and payload


class TPBatchBroadcaster:
    """Brings the batch of rank 0 of ``group`` to all its ranks, its tensors on ``device``.

    ``group`` None is the group of all processes; where there is none, nothing is sent. Raises HP-BATCH-009 for a group
    without an initialised ``torch.distributed``, HP-EXCHANGE-009 outside the group.

    >>> TPBatchBroadcaster().broadcast({"input_ids": torch.tensor([[7]])})
    {'input_ids': tensor([[7]])}
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"):
        if group is not None and not dist.is_initialized():
            advice = "call torch.distributed.init_process_group first"
            facts = {"cp_size": None, "tp_size": None}
            raise refusal("HP-BATCH-009", "group", "torch.distributed is not initialised", advice, **facts)
        check_member(group)
        self._group = group
        self._device = torch.device(device)

    def broadcast(self, batch: Batch | None) -> dict[str, Any]:
        """The batch of rank 0, on every rank; every rank calls it, the others with None.

        A batch maps names to tensors of any dtype and shape, None, bool, int, float, text, and lists and dicts of
        those. Costs two broadcasts, of 32 bytes and of the names, and one of all tensors where there are bytes of them.
        Whatever is wrong with the batch of rank 0, every rank raises: HP-BATCH-010 (None), HP-BATCH-011 (other values),
        HP-BATCH-008 (a shard). HP-BATCH-010 on a rank that has a batch of its own, when all calls are made.
        """
        if group_size(self._group) == 1:
            return supplied(batch, self._device)
        if dist.get_rank(self._group) == 0:
            return self._send(batch)
        return self._receive(batch)

    def _send(self, batch: Batch | None) -> dict[str, Any]:
        def prepared() -> tuple[dict[str, Any], str, torch.Tensor]:
            own = supplied(batch, self._device)
            manifest, payload = pack(own, backend_device(self._group))
            return own, to_json(manifest), payload

        found, outcome = attempt(prepared)
        own, text, payload = found or ({}, to_json(outcome), torch.empty(0, dtype=torch.uint8))
        told = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        header = torch.tensor([0 if outcome.ok else 1, len(told), len(payload), VERSION])
        for part in (header, told, payload):
            self._pass_on(part)
        if not outcome.ok:
            raise outcome.error()
        return own

    def _receive(self, batch: Batch | None) -> dict[str, Any]:
        header = self._pass_on(torch.empty(4, dtype=torch.int64))
        status, text_bytes, payload_bytes, version = header.tolist()
        text, payload = (self._pass_on(torch.empty(n, dtype=torch.uint8)) for n in (text_bytes, payload_bytes))
        if version != VERSION:
            message = f"rank 0 sends batches of version {version}, this rank reads {VERSION}"
            raise refusal("HP-SERIAL-001", "header", message, "run one version", got=version, known=VERSION)
        found = from_json(text.cpu().numpy().tobytes())
        if status:
            raise found.error()
        if batch is not None:
            raise _unexpected(dist.get_rank(self._group), "has a batch, rank 0 sends it one", "pass None")
        return unpack(found, payload, self._device)

    def _pass_on(self, part: torch.Tensor) -> torch.Tensor:
        """What rank 0 has; nothing is called for nothing."""
        moved = part.to(backend_device(self._group))
        if len(moved):
            dist.broadcast(moved, group=self._group, group_src=0)
        return moved


def supplied(batch: Batch | None, device: torch.device) -> dict[str, Any]:
    """The batch of the rank that reads it, its tensors on ``device``; HP-BATCH-010, 011 or 008 for what is none."""
    if batch is None:
        raise _unexpected(0, "has no batch", "pass the batch on the first rank of each tensor-parallel group")
    check_mapping(batch)
    if PLAN in batch:
        raise refusal("HP-BATCH-008", PLAN, "the batch is a shard already", "pass it before it is cut")
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _unexpected(tp_rank: int, message: str, advice: str) -> Exception:
    return refusal("HP-BATCH-010", "batch", f"TP rank {tp_rank} {message}", advice, tp_rank=tp_rank)
