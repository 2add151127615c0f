"""What every frozen value needs: integers that are integers, arrays that stay as they are.

The traps handled here once: ``bool`` passes for ``int``; ``[]`` becomes float64; ``==`` on arrays
gives an array; an array inside a frozen class can still be written. Rules VALUE-1 to VALUE-5 of
``specs/exchange.md``.
"""

import operator
from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

import attrs
import numpy as np

from hpfun import serial
from hpfun.errors import refusal

INT64_MAX = 2**63 - 1
T = TypeVar("T")


def integer(value: object, where: str, code: str, *, least: int | None = None, most: int | None = None) -> int:
    """``value`` as a Python int; bools, floats and everything else are refused with ``code``."""
    # most are plain ints, and that is quickly seen
    if type(value) is not int and (isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer))):
        raise refusal(
            code,
            where,
            f"needs an integer, got {type(value).__name__} {value!r:.60}",
            "pass an int (bools and floats are refused)",
            value=repr(value)[:60],
            type=type(value).__name__,
        )
    number = int(value)
    if (least is not None and number < least) or (most is not None and number > most):
        legal = f"{'-inf' if least is None else least}..{'inf' if most is None else most}"
        raise refusal(code, where, f"got {number}, legal is {legal}", value=number, least=least, most=most)
    return number


def integers(values: object, where: str, code: str) -> np.ndarray:
    """``values`` as an owned, read-only, one-dimensional int64 array.

    Takes any integer sequence, numpy array or CPU tensor (through ``__array__``); refuses bools,
    floats, other dimensions and numbers beyond int64, with ``code``.
    """
    if isinstance(values, np.ndarray):
        if values.dtype == np.int64 and values.ndim == 1 and type(values.base) is bytes:
            return values  # made by `readonly`: nobody can change it, so it need not be copied
        array = values
    elif hasattr(values, "__array__"):
        try:
            array = np.asarray(values)
        except (TypeError, RuntimeError) as error:
            raise refusal(
                code,
                where,
                f"a {type(values).__name__} that numpy cannot read: {error}"[:200],
                "move it to the CPU first",
                type=type(values).__name__,
            ) from None
    else:
        array = _sequence(values, where, code)
    if array.ndim != 1:
        raise refusal(code, where, f"needs one dimension, got shape {array.shape}", shape=array.shape)
    if array.dtype.kind not in "iu" and array.size:
        raise refusal(
            code,
            where,
            f"needs integers, got {array.dtype}",
            "pass ints (bools and floats are refused)",
            dtype=str(array.dtype),
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > INT64_MAX:
        raise refusal(code, where, "a number does not fit into int64", value=int(array.max()), most=INT64_MAX)
    return readonly(array.astype(np.int64))


def _sequence(values: object, where: str, code: str) -> np.ndarray:
    """A Python sequence as an integer array, checked entry by entry for impostors."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, bytearray, Mapping, Set)):
        raise refusal(
            code, where, f"needs a sequence of integers, got {type(values).__name__}", type=type(values).__name__
        )
    entries = list(values)
    for kind in set(map(type, entries)):
        if kind is int or issubclass(kind, np.integer):
            continue
        at = next(i for i, entry in enumerate(entries) if type(entry) is kind)
        raise refusal(
            code,
            where,
            f"entry {at} is {kind.__name__} {entries[at]!r:.60}",
            "pass ints (bools and floats are refused)",
            index=at,
            value=repr(entries[at])[:60],
            type=kind.__name__,
        )
    try:
        return np.array(list(map(operator.index, entries)), dtype=np.int64)
    except OverflowError:
        at = next(i for i, entry in enumerate(entries) if not -INT64_MAX - 1 <= entry <= INT64_MAX)
        raise refusal(
            code, where, f"entry {at} does not fit into int64", index=at, value=int(entries[at]), most=INT64_MAX
        ) from None


def readonly(array: np.ndarray) -> np.ndarray:
    """A copy in immutable memory: no older view of ``array`` reaches it and no flag makes it writable."""
    if array.ndim == 1 and array.size:
        return np.frombuffer(array.tobytes(), array.dtype)  # the same, and quicker
    return np.ndarray(array.shape, array.dtype, buffer=array.tobytes())


def sealed(array: np.ndarray) -> np.ndarray:
    """``array``, which the caller made and nobody else holds, read-only and not copied.

    No flag makes it writable, but unlike with ``readonly`` its memory could be; who looks for it finds it.
    """
    return np.frombuffer(array.data.toreadonly(), array.dtype) if array.size else readonly(array)


def integer_field(code: str, least: int | None = None, most: int | None = INT64_MAX, **more: Any) -> Any:
    """An attrs field that holds a Python int from ``least`` to ``most``; ``more`` goes to ``attrs.field``."""
    convert = attrs.Converter(
        lambda value, field: integer(value, field.name, code, least=least, most=most), takes_field=True
    )
    return attrs.field(converter=convert, **more)


def integers_field(code: str, **more: Any):
    """An attrs field that holds a read-only int64 array; ``more`` goes to ``attrs.field``."""
    convert = attrs.Converter(lambda value, field: integers(value, field.name, code), takes_field=True)
    return attrs.field(converter=convert, **more)


def kind_field(kind: type[T], code: str, **more: Any) -> Any:
    """An attrs field that holds a ``kind`` and nothing that passes for one; ``more`` goes to ``attrs.field``."""

    def check(value: object, field: attrs.Attribute) -> object:
        if type(value) is not kind:
            got = type(value).__name__
            raise refusal(code, field.name, f"needs {kind.__name__}, got {got}", type=got)
        return value

    return attrs.field(converter=attrs.Converter(check, takes_field=True), **more)


def choice_field(choices: tuple[str, ...], code: str, **more: Any) -> Any:
    """An attrs field that holds one of a few names; ``more`` goes to ``attrs.field``."""

    def check(value: object, field: attrs.Attribute) -> str:
        if type(value) is not str or value not in choices:
            got = repr(value)[:60]
            raise refusal(code, field.name, f"got {got}", f"use one of {', '.join(choices)}", got=got, known=choices)
        return value

    return attrs.field(converter=attrs.Converter(check, takes_field=True), **more)


def names(values: object, where: str, code: str) -> tuple[str, ...]:
    """``values`` as a tuple of strings; one string, which would pass for a sequence of letters, is refused."""
    if isinstance(values, str) or not isinstance(values, Iterable) or isinstance(values, (Mapping, Set)):
        got = f"{type(values).__name__} {values!r:.60}"
        raise refusal(code, where, f"needs a sequence of names, got {got}", f"pass ({values!r:.60},)", value=got)
    found = tuple(values)
    for index, name in enumerate(found):
        if type(name) is not str:
            got = repr(name)[:60]
            raise refusal(code, where, f"entry {index} is {got}, not a name", "pass strings", index=index, value=got)
    return found


def names_field(code: str, **more: Any) -> Any:
    """An attrs field that holds a tuple of strings; ``more`` goes to ``attrs.field``."""
    convert = attrs.Converter(lambda value, field: names(value, field.name, code), takes_field=True)
    return attrs.field(converter=convert, **more)


def values_field(kind: type, code: str, **more: Any) -> Any:
    """An attrs field that holds a tuple of ``kind``."""

    def check(values: object, field: attrs.Attribute) -> tuple:
        found = tuple(values) if isinstance(values, Iterable) else (values,)
        for index, value in enumerate(found):
            if type(value) is not kind:
                got = type(value).__name__
                message = f"entry {index} is {got}, not {kind.__name__}"
                raise refusal(code, field.name, message, index=index, type=got)
        return found

    return attrs.field(converter=attrs.Converter(check, takes_field=True), **more)


@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    field_specifiers=(
        attrs.field,
        integer_field,
        integers_field,
        kind_field,
        choice_field,
        names_field,
        values_field,
    ),
)
def plan_value(cls: type[T]) -> type[T]:
    """A frozen value that compares, hashes and pickles by content, and that JSON can name.

    The class says ``digest = content_digest``; equality and hash go by it, so values with arrays can be
    keys. Unpickling and copying construct anew, so arrays stay read-only.
    """
    return _plan_value(cls, kw_only=False)


@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    kw_only_default=True,
    field_specifiers=(
        attrs.field,
        integer_field,
        integers_field,
        kind_field,
        choice_field,
        names_field,
        values_field,
    ),
)
def named_plan_value(cls: type[T]) -> type[T]:
    """A ``plan_value`` whose fields are passed by name alone."""
    return _plan_value(cls, kw_only=True)


def _plan_value(cls: type[T], kw_only: bool) -> type[T]:
    made = attrs.define(frozen=True, eq=False, slots=False, kw_only=kw_only)(cls)
    made.__eq__ = _equal  # type: ignore[method-assign]
    made.__hash__ = _hash  # type: ignore[method-assign]
    made.__reduce__ = _reduce  # type: ignore[method-assign]
    serial.register(made)
    return made


def known_valid(cls: type[T], **fields: object) -> T:
    """A plan value of fields that are proven valid and in their kept form; nothing is converted or asked again.

    For planners that make one value per rank, where asking would cost more than planning.
    """
    value = object.__new__(cls)
    vars(value).update(fields)
    return value


@property
def content_digest(self) -> str:
    """Content digest: 64 hex digits, equal in every process for equal values; computed once."""
    found = self.__dict__.get("_digest")
    if found is None:
        found = self.__dict__["_digest"] = serial.digest(self)
    return found


def _equal(self, other):
    if type(self) is not type(other):
        return NotImplemented
    return self is other or self.digest == other.digest


def _hash(self):
    return hash(self.digest)


def _reduce(self):
    return (_rebuild, (type(self), {a.name: _picklable(vars(self)[a.name]) for a in attrs.fields(type(self))}))


def _picklable(value: object) -> object:
    """A mapping proxy does not pickle; constructors make one of a dict again."""
    if type(value) is tuple:
        return tuple(map(_picklable, value))
    return {k: _picklable(v) for k, v in value.items()} if isinstance(value, MappingProxyType) else value


def _rebuild(cls, fields):
    return cls(**fields)
