"""Manifest: what a batch is made of, so that it can travel as one payload of bytes without pickle.

Rules BATCH-35 and BATCH-37 of ``specs/batch.md``.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs

from hpfun._fields import (
    INT64_MAX,
    choice_field,
    content_digest,
    integer,
    integer_field,
    kind_field,
    plan_value,
    values_field,
)
from hpfun.errors import PlanError, Violation, collect, in_order, refusal

ALIGNMENT_BYTES = 16  # where tensors start, so that their bytes can be read as any dtype
_CODE = "HP-BATCH-011"
MOST_DEPTH = 32  # of lists and dicts in one another


@plan_value
class Entry:
    """One named part of a batch: a ``tensor`` at ``[offset, offset + nbytes)`` of the payload, or a plain ``value``.

    ``dtype`` is a name; a plain value is None, bool, int, float, text, or tuples and mappings of
    those. Raises HP-BATCH-011.
    """

    name: str = kind_field(str, _CODE)
    kind: str = choice_field(("tensor", "value"), _CODE)
    dtype: str = kind_field(str, _CODE, default="")
    shape: Any = attrs.field(default=(), converter=lambda shape: _shape(shape))
    offset: int = integer_field(_CODE, least=0, default=0)
    nbytes: int = integer_field(_CODE, least=0, default=0)
    value: Any = attrs.field(default=None, converter=lambda value: _frozen(value, "value", (list, tuple)))

    digest = content_digest

    @property
    def plain(self) -> Any:
        """The value with lists and dicts of its own, as it was described."""
        return _thawed(self.value)


@plan_value
class BatchManifest:
    """The parts of a batch, by name, and the bytes of the payload that holds its tensors; made by ``describe_batch``.

    Raises HP-BATCH-011 where names do not rise or tensors overlap.
    """

    entries: tuple[Entry, ...] = values_field(Entry, _CODE)
    payload_bytes: int = integer_field(_CODE, least=0)

    digest = content_digest

    def __attrs_post_init__(self):
        end, before = 0, ""
        for at, entry in enumerate(self.entries):
            if at and entry.name <= before:
                raise refusal(_CODE, f"entries[{at}]", f"{entry.name!r:.60} after {before!r:.60}", name=entry.name)
            before = entry.name
            if entry.kind == "tensor":
                if entry.nbytes and (entry.offset < end or entry.offset % ALIGNMENT_BYTES):
                    message = f"starts at byte {entry.offset}, after byte {end}"
                    raise refusal(_CODE, f"entries[{at}]", message, name=entry.name, offset=entry.offset, end=end)
                end = max(end, entry.offset + entry.nbytes)
        if end != self.payload_bytes:
            message = f"{self.payload_bytes} bytes for tensors that end at {end}"
            raise refusal(_CODE, "payload_bytes", message, name="", payload_bytes=self.payload_bytes, end=end)


def describe_batch(specs: Mapping[str, Any]) -> BatchManifest:
    """The manifest of a batch: names rise, tensors lie at multiples of 16 bytes in that order.

    ``specs`` maps a name to ``(dtype name, shape, bytes of an element)`` for a tensor, or to a plain value: None, bool,
    int, float, text, lists and dicts with text keys of those. A tensor without elements takes no byte. Raises
    HP-BATCH-011 for anything else, all violations at once.

    >>> manifest = describe_batch({"mask": ("bool", (1, 6), 1), "ids": ("int64", (1, 3), 8), "epoch": 2})
    >>> [(entry.name, entry.offset, entry.nbytes) for entry in manifest.entries], manifest.payload_bytes
    ([('epoch', 0, 0), ('ids', 0, 24), ('mask', 32, 6)], 38)
    """
    if not isinstance(specs, Mapping):
        kind = type(specs).__name__
        raise refusal(_CODE, "specs", f"needs a mapping, got {kind}", "pass names and values", name="", type=kind)
    unnamed = next((name for name in specs if type(name) is not str), None)
    if unnamed is not None:
        raise _indescribable(repr(unnamed)[:60], unnamed, "is no name")
    violations: list[Violation] = []
    entries: list[Entry] = []
    end = 0
    for name in sorted(specs):
        entry = collect(violations, _entry, name, specs[name], end)
        if entry is not None:
            entries.append(entry)
            end = max(end, entry.offset + entry.nbytes)
    if violations:
        raise in_order(violations)
    return BatchManifest(tuple(entries), end)


def _entry(name: str, spec: Any, end: int) -> Entry:
    if type(spec) is not tuple:
        return Entry(name, "value", value=_frozen(spec, name, (list,)))
    if len(spec) != 3 or type(spec[0]) is not str:
        raise _indescribable(name, spec, "is no (dtype, shape, bytes of an element)")
    shape = _shape(spec[1])
    nbytes = math.prod(shape) * integer(spec[2], name, _CODE, least=1)
    if nbytes > INT64_MAX:
        raise refusal(_CODE, name, f"{nbytes} bytes are beyond int64", name=name, type="tensor")
    offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES if nbytes else 0
    return Entry(name, "tensor", spec[0], shape, offset, nbytes)


def _shape(extents: Any) -> tuple[int, ...]:
    if not isinstance(extents, Iterable):
        raise _indescribable("shape", extents, "is no shape")
    return tuple(integer(extent, "shape", _CODE, least=0, most=INT64_MAX) for extent in extents)


def _frozen(value: Any, where: str, sequences: tuple[type, ...], depth: int = 0) -> Any:
    """A plain value that nobody can change; ``sequences`` are the types that count as lists."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth == MOST_DEPTH:
        raise _indescribable(where, value, f"is nested more than {MOST_DEPTH} times")
    if type(value) in sequences:
        return tuple(_frozen(part, f"{where}[{at}]", sequences, depth + 1) for at, part in enumerate(value))
    if type(value) in (dict, MappingProxyType) and all(type(key) is str for key in value):
        parts = {key: _frozen(part, f"{where}.{key}", sequences, depth + 1) for key, part in value.items()}
        return MappingProxyType(parts)
    raise _indescribable(where, value, "cannot be described")


def _thawed(value: Any) -> Any:
    if type(value) is tuple:
        return [_thawed(part) for part in value]
    if type(value) is MappingProxyType:
        return {key: _thawed(part) for key, part in value.items()}
    return value


def _indescribable(name: str, value: object, why: str) -> PlanError:
    kind = type(value).__name__
    advice = "pass tensors, or None, bool, int, float, text, and lists and dicts of those"
    return refusal(_CODE, name, f"a {kind} {why}", advice, name=name, type=kind)
