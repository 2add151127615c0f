"""Plan values to canonical JSON and back, and to digests; no pickle.

Canonical means: one text for one value, in every process (sorted keys, no spaces, integers in full).
Reading constructs the value, so it validates like any other construction. Rules SERIAL-1 to SERIAL-5
of ``specs/exchange.md``.
"""

import enum
import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

import attrs
import numpy as np

from hpfun.errors import PlanError, refusal

SCHEMA = 1
T = TypeVar("T", bound=type)

_MAPPING = "mapping"  # a mapping with keys of its own, such as the facts of an error
_FLOAT = "float"
_TYPES: dict[str, type] = {}  # filled while the package is imported, read only afterwards


def register(kind: T) -> T:
    """Make an attrs class known by its name to ``to_json``, ``from_json`` and ``digest``."""
    _TYPES[kind.__name__] = kind
    return kind


def to_json(value: object) -> str:
    """Canonical JSON of a plan value, with its type and the schema version.

    >>> from hpfun import PackedDocuments, from_json
    >>> text = to_json(PackedDocuments((5, 3, 8)))
    >>> text
    '{"lengths":[5,3,8],"schema":1,"type":"PackedDocuments"}'
    >>> from_json(text) == PackedDocuments((5, 3, 8))
    True
    """
    if type(value).__name__ not in _TYPES:
        kind = type(value).__name__
        raise refusal("HP-SERIAL-002", "value", f"{kind} is not a plan value", "pass a plan value", type=kind)
    return json.dumps({"schema": SCHEMA, **_plain(value)}, sort_keys=True, separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """The value that ``to_json`` wrote, constructed and so validated anew.

    Raises HP-SERIAL-001 (not JSON, or another schema version), HP-SERIAL-002 (unknown type, missing or
    extra field), and the codes of the value's own construction with ``where`` starting at ``json``.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError, TypeError) as error:
        raise refusal("HP-SERIAL-001", "json", f"not readable: {error}"[:200], "pass the text of to_json") from None
    version = data.pop("schema", None) if isinstance(data, dict) else None
    if type(version) is not int or version != SCHEMA:
        raise refusal(
            "HP-SERIAL-001",
            "json.schema",
            f"got {version!r:.40}, this version reads {SCHEMA}",
            "write it again with this version",
            got=repr(version)[:40],
            known=SCHEMA,
        )
    try:
        return _structured(data, "json")
    except RecursionError:
        raise refusal("HP-SERIAL-001", "json", "nested too deep", "pass the text of to_json") from None


def digest(value: object) -> str:
    """sha256 over type, field names and contents, as 64 hex digits; arrays enter as little-endian bytes."""
    state = hashlib.sha256(b"hpfun schema %d" % SCHEMA)
    _feed(state, value)
    return state.hexdigest()


def field_digests(value: object) -> dict[str, str]:
    """Digest of each field of a plan value, by name: what two ranks compare to say where they differ."""
    return {name: digest(part) for name, part in _fields_of(value).items()}


def _fields_of(value: object) -> dict[str, object]:
    # what is kept, not what it reads as: a long list of rows may be a few intervals
    kept = getattr(value, "__dict__", {})
    return {a.name: kept[a.name] if a.name in kept else getattr(value, a.name) for a in attrs.fields(type(value))}


def _plain(value: object) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"type": _FLOAT, "hex": value.hex()}  # to the bit, and not a number as well
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {"type": _MAPPING, "entries": {str(name): _plain(entry) for name, entry in value.items()}}
    if type(value).__name__ in _TYPES:
        return {"type": type(value).__name__, **{n: _plain(v) for n, v in _fields_of(value).items()}}
    raise refusal("HP-SERIAL-002", "value", f"{type(value).__name__} is not a plan value", type=type(value).__name__)


def _structured(data: Any, where: str) -> Any:
    if isinstance(data, list):
        if all(type(entry) is int for entry in data):  # a long array need not be walked twice
            return tuple(data)
        return tuple(_structured(entry, f"{where}[{i}]") for i, entry in enumerate(data))
    if not isinstance(data, dict):
        return data
    name = data.get("type")
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        if name == _MAPPING and where != "json" and isinstance(data.get("entries"), dict) and len(data) == 2:
            return {key: _structured(entry, f"{where}.{key}") for key, entry in data["entries"].items()}
        if name == _FLOAT and where != "json" and set(data) == {"type", "hex"}:
            return _float(data["hex"], where)
        raise refusal("HP-SERIAL-002", where, f"unknown type {name!r:.60}", known=tuple(sorted(_TYPES)))
    expected = {a.name for a in attrs.fields(kind)}
    got = set(data) - {"type"}
    if got != expected:
        raise refusal(
            "HP-SERIAL-002",
            where,
            f"{name} has other fields",
            missing=tuple(sorted(expected - got)),
            unknown=tuple(sorted(got - expected)),
        )
    fields = {key: _structured(data[key], f"{where}.{key}") for key in expected}
    try:
        return kind(**fields)
    except PlanError as error:
        raise error.inside(where) from None


def _float(text: object, where: str) -> float:
    try:
        return float.fromhex(text)  # ty: ignore[invalid-argument-type]
    except (TypeError, ValueError, OverflowError):
        message = f"{text!r:.60} is no hexadecimal float"
        raise refusal("HP-SERIAL-002", where, message, got=repr(text)[:60]) from None


def _feed(state: Any, value: object) -> None:
    """Unambiguous: every part is preceded by its kind and, where it varies, its length."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.kind not in "iu":
            kind = f"{value.ndim}-d {value.dtype} array"
            raise refusal("HP-SERIAL-002", "value", f"a {kind} is no part of a plan", type=kind)
        state.update(b"a%d:" % value.size)
        state.update(np.ascontiguousarray(value, dtype="<i8").data)
    elif isinstance(value, enum.Enum):
        _feed(state, value.value)
    elif isinstance(value, Fraction):
        _feed(state, str(value))
    elif isinstance(value, bool) or value is None:
        state.update(repr(value).encode())
    elif isinstance(value, (int, np.integer)):
        state.update(b"i%d;" % int(value))
    elif isinstance(value, float):
        state.update(b"f%s;" % value.hex().encode())
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")  # file names may hold lone surrogates
        state.update(b"s%d:" % len(raw) + raw)
    elif isinstance(value, (tuple, list)):
        state.update(b"t%d:" % len(value))
        for entry in value:
            _feed(state, entry)
    elif isinstance(value, Mapping):
        state.update(b"m%d:" % len(value))
        for name in sorted(value, key=str):
            _feed(state, str(name))
            _feed(state, value[name])
    elif type(value).__name__ in _TYPES:
        _feed(state, type(value).__name__)
        for name, part in _fields_of(value).items():
            _feed(state, name)
            _feed(state, part)
    else:
        raise refusal(
            "HP-SERIAL-002", "value", f"{type(value).__name__} is not a plan value", type=type(value).__name__
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of a plan")
