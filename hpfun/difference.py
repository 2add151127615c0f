"""Where two values differ: one ``Change`` for each place, as a path with dots.

Rule REPORT-5 of ``specs/indexer.md``.
"""

import enum
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import attrs
import numpy as np

from hpfun._fields import content_digest, kind_field, plan_value
from hpfun.serial import digest, field_digests

TEXT_SHOWN = 60


@plan_value
class Change:
    """At ``path``, one value has ``before`` and the other ``after``.

    Numbers, texts and None stand as they are; arrays and what is long are told by size and digest. What one value
    does not have at all is None.
    """

    path: str = kind_field(str, "HP-SERIAL-002")
    before: Any = None
    after: Any = None

    digest = content_digest


def diff(one: object, other: object) -> tuple[Change, ...]:
    """The places in which two values of one type differ, sorted by path; () exactly if they are equal.

    Fields have dots between them, members of a sequence of values stand in brackets, by their name if they have one.

    >>> from hpfun import indexer_task_plan
    >>> found = diff(indexer_task_plan((5, 3, 8), 2, 1, "none"), indexer_task_plan((5, 3, 8), 2, 2, "none"))
    >>> [(change.path, change.before, change.after) for change in found]
    [('ratio', 1, 2)]
    """
    if type(one) is not type(other):
        return (Change("type", type(one).__name__, type(other).__name__),)
    return tuple(sorted(_changes("", one, other), key=attrgetter("path")))


def in_brief(value: object) -> int | str | None:
    """A part of a value as a ``Change`` tells it.

    >>> in_brief(3), in_brief((1, 2)), in_brief(np.arange(3))[:11]
    (3, '(1, 2)', '3 entries, ')
    """
    if isinstance(value, enum.Enum):
        return in_brief(value.value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, np.ndarray):
        return f"{len(value)} entries, {digest(value)[:12]}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN - 20]}... {digest(text)[:12]}"


def _changes(path: str, one: Any, other: Any) -> Iterator[Change]:
    if type(one) is type(other) and attrs.has(type(one)):
        ours, theirs = field_digests(one), field_digests(other)
        for name in ours:
            if ours[name] != theirs[name]:
                yield from _changes(f"{path}.{name}" if path else name, getattr(one, name), getattr(other, name))
        return
    ours, theirs = _members(one), _members(other)
    if ours is None or theirs is None or (list(ours) != list(theirs) and ours.keys() == theirs.keys()):
        yield Change(path or "value", in_brief(one), in_brief(other))
        return
    for name in sorted({*ours, *theirs}):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None or digest(a) != digest(b):
            yield from _changes(f"{path}[{name}]", a, b)


def _members(value: object) -> dict[str, Any] | None:
    """Values and names of a sequence, by name or place; None for other things, and where names are not unique."""
    if not isinstance(value, tuple) or not all(type(member) is str or attrs.has(type(member)) for member in value):
        return None
    found = {
        member if type(member) is str else str(getattr(member, "fqn", at)): member for at, member in enumerate(value)
    }
    return found if len(found) == len(value) else None
