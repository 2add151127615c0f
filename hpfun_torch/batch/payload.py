"""A batch as bytes: a manifest that says what there is, and one buffer with all tensors; no pickle.

Rules BATCH-35 and BATCH-37 of ``specs/batch.md``.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from hpfun.batch import BatchManifest, describe_batch
from hpfun.batch.manifest import Entry


def pack(batch: Mapping[str, Any], device: torch.device) -> tuple[BatchManifest, torch.Tensor]:
    """The manifest of a batch, and its tensors' bytes as uint8 on ``device``, where the manifest says.

    Raises HP-BATCH-011 for what cannot travel, all of it at once.

    >>> manifest, payload = pack({"ids": torch.tensor([1, 2]), "epoch": 3}, torch.device("cpu"))
    >>> [entry.name for entry in manifest.entries], payload.shape
    (['epoch', 'ids'], torch.Size([16]))
    """
    manifest = describe_batch({name: _spec(value) for name, value in batch.items()})
    payload = torch.zeros(manifest.payload_bytes, dtype=torch.uint8, device=device)
    for entry in manifest.entries:
        if entry.nbytes:
            payload[entry.offset : entry.offset + entry.nbytes].copy_(as_bytes(batch[entry.name]))
    return manifest, payload


def unpack(manifest: BatchManifest, payload: torch.Tensor, device: torch.device) -> dict[str, Any]:
    """The batch that was packed, its tensors on ``device``, each in memory of its own."""
    return {entry.name: _value(entry, payload, device) for entry in manifest.entries}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor in row-major order as uint8 ``[bytes]``."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # an axis of 1 may keep any stride and is contiguous all the same, but not to a view of another dtype
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def checksum(tensor: torch.Tensor) -> str:
    """sha256 of the elements of a tensor as 64 hex digits: what ranks compare that must hold the same."""
    return hashlib.sha256(as_bytes(tensor).cpu().numpy().tobytes()).hexdigest()


def _spec(value: Any) -> Any:
    """What ``describe_batch`` takes; a tuple, which it would take for a tensor's, and odd tensors as what they are."""
    if not isinstance(value, torch.Tensor):
        return (value,) if type(value) is tuple else value
    strided = value.layout == torch.strided and not value.is_nested
    if not strided or value.is_quantized or value.is_meta:
        return value
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), value.element_size()


def _value(entry: Entry, payload: torch.Tensor, device: torch.device) -> Any:
    if entry.kind == "value":
        return entry.plain
    dtype = getattr(torch, entry.dtype)
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=dtype, device=device)
    part = payload[entry.offset : entry.offset + entry.nbytes]
    # a copy: a view of the payload would keep the pixels in memory as long as the labels
    return part.to(device, copy=True).view(dtype).view(entry.shape)
