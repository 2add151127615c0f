"""What people pass as sizes, flags and names: read, or refused as HP-SHARD-009 with the nearest legal values.

A degree comes from a command line, a launcher or a job's YAML, and a bad one seldom comes alone. So a value's
fields name their reader (``read_field``), all readers run before the value is refused, and who wants to go on
with the fields that are fine can (``read_value``). Rule SHARD-9 of ``specs/sharding.md``.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Real
from typing import Any, TypeVar

import attrs
import numpy as np

from hpfun.errors import PlanError, Violation, collect, refusal, refuse_all
from hpfun.matching import nearest

CP_LAYOUTS = ("zigzag", "contiguous")
MOST = 2**31 - 1  # of a size or a degree: divisors are searched up to its root
_READER = "reader"
_SHOWN = 60

Reader = Callable[[object, str], Any]
T = TypeVar("T")


def unread(where: str, value: object, needed: str, choices: tuple, advice: str = "") -> PlanError:
    """The refusal of a value; the field is the part of ``where`` in front of an index."""
    got = repr(value)[:_SHOWN]
    return refusal(
        "HP-SHARD-009",
        where,
        f"needs {needed}, got {got}",
        advice or f"use {' or '.join(map(repr, choices))}",
        field=where.partition("[")[0],
        value=value if type(value) is int else got,
        choices=choices,
    )


def positive(value: object, where: str) -> int:
    """An int from 1 to ``MOST``.

    >>> positive(2.5, "tp_size")
    Traceback (most recent call last):
    hpfun.errors.PlanError: [HP-SHARD-009] at `tp_size`: needs an integer from 1 to 2147483647, got 2.5; use 2 or 3
    """
    return _integer(value, where, 1)


def count(value: object, where: str) -> int | None:
    """An int from 0 to ``MOST``, or None where the model does not say."""
    return None if value is None else _integer(value, where, 0)


def positive_or_none(value: object, where: str) -> int | None:
    """An int from 1 to ``MOST``, or None."""
    return None if value is None else _integer(value, where, 1)


def flag(value: object, where: str) -> bool:
    """A bool, and nothing that passes for one."""
    if type(value) is not bool:
        raise unread(where, value, "True or False", (False, True))
    return value


def text(value: object, where: str) -> str:
    """A string."""
    if type(value) is not str:
        raise unread(where, value, "a string", (), "pass a string")
    return value


def cp_layout(value: object, where: str) -> str:
    """The name of a layout of context parallelism; what is none is refused with the known ones."""
    if type(value) is not str or value not in CP_LAYOUTS:
        likely = nearest(value[:_SHOWN], CP_LAYOUTS, most=1) if type(value) is str else CP_LAYOUTS[:1]
        raise unread(where, value, f"one of {', '.join(CP_LAYOUTS)}", CP_LAYOUTS, f"use {likely[0]!r}")
    return value


def cp_layouts(value: object, where: str) -> tuple[str, ...]:
    """Names of layouts, in the order given."""
    return tuple(cp_layout(entry, f"{where}[{at}]") for at, entry in enumerate(entries(value, where)))


def entries(value: object, where: str) -> tuple:
    """A sequence; a string, a mapping or a set, which would pass for one, is refused."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping, Set)):
        raise unread(where, value, "a sequence", (), "pass a tuple")
    return tuple(value)


def instance(value: T, kind: type[T], where: str) -> T:
    """A value of that class, as the first argument of a check."""
    if type(value) is not kind:
        raise unread(where, value, f"a {kind.__name__}", (kind.__name__,), f"pass a {kind.__name__}")
    return value


def read_field(reader: Reader, **more: Any) -> Any:
    """An attrs field with its reader; ``more`` goes to ``attrs.field``."""
    return attrs.field(metadata={_READER: reader}, **more)


def read_all(given: Mapping[str, tuple[Reader, object]]) -> tuple[dict[str, Any], tuple[Violation, ...]]:
    """What can be read, by name, and a violation for each that cannot.

    >>> fine, wrong = read_all({"tp": (positive, 2), "cp": (positive, True), "ep": (positive, -2)})
    >>> fine, [violation.where for violation in wrong]
    ({'tp': 2}, ['cp', 'ep'])
    """
    fine, wrong = {}, []
    for name, (reader, value) in given.items():
        before = len(wrong)
        found = collect(wrong, reader, value, name)
        if len(wrong) == before:
            fine[name] = found
    return fine, tuple(wrong)


def read_value(kind: type[T], options: Mapping[str, object]) -> tuple[T, tuple[Violation, ...]]:
    """A value of the options that can be read, the others left at their defaults, and a violation for each of those."""
    readers = {field.name: field.metadata[_READER] for field in attrs.fields(kind)}
    known = {name: (readers[name], value) for name, value in options.items() if name in readers}
    fine, wrong = read_all(known)
    unknown = {name: value for name, value in options.items() if name not in readers}
    return kind(**unknown, **fine), wrong  # an unknown option is a TypeError, as of any function


def keep_read(value: object) -> None:
    """Replace the fields of a value under construction by what their readers make of them; all refusals are one."""
    parts = {a.name: (a.metadata[_READER], getattr(value, a.name)) for a in attrs.fields(type(value))}
    fine, wrong = read_all(parts)
    refuse_all(by_place(wrong))
    for name, part in fine.items():
        object.__setattr__(value, name, part)


def by_place(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Violations in the order of code and place, which is that of every report of this family (SHARD-1)."""
    return tuple(sorted(violations, key=lambda violation: (violation.code, violation.where)))


def _integer(value: object, where: str, least: int) -> int:
    number = int(value) if isinstance(value, np.integer) else value
    if type(number) is not int or not least <= number <= MOST:
        raise unread(where, number, f"an integer from {least} to {MOST}", _nearest_integers(number, least))
    return number


def _nearest_integers(value: object, least: int) -> tuple[int, ...]:
    """The legal integer below and above a number, or a number in quotes; one if they are the same."""
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,18}", value):
        value = int(value)
    if isinstance(value, np.bool_):
        value = bool(value)
    if not isinstance(value, Real) or not math.isfinite(value):
        return (least,)
    return tuple(sorted({min(max(int(part(value)), least), MOST) for part in (math.floor, math.ceil)}))
