"""Outcome of one rank's planning, merged over the ranks of a group.

Planning may fail on one rank only (its batch was bad). The others must learn it instead of waiting, so the
failure travels as a value. Rules AGREE-3 and AGREE-4 of ``specs/executors.md``.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

import attrs

from hpfun._fields import content_digest, kind_field, plan_value
from hpfun.errors import PlanError, Violation, refusal
from hpfun.wording import listed


@plan_value
class Outcome:
    """What happened on one rank: fine, or the code, place, facts and prose of the failure.

    ``others`` are the further violations of the same failure.
    """

    ok: bool = kind_field(bool, "HP-SERIAL-002", default=True)
    code: str = kind_field(str, "HP-SERIAL-002", default="")
    where: str = kind_field(str, "HP-SERIAL-002", default="")
    facts: Mapping[str, Any] = attrs.field(factory=dict, converter=lambda facts: _frozen_facts(facts))
    message: str = kind_field(str, "HP-SERIAL-002", default="")
    suggestion: str = kind_field(str, "HP-SERIAL-002", default="")
    others: "tuple[Outcome, ...]" = attrs.field(default=(), converter=lambda others: _failures(others))

    digest = content_digest

    @classmethod
    def of(cls, error: BaseException) -> "Outcome":
        """The outcome of a failure; anything but a ``PlanError`` becomes HP-AGREE-002."""
        if isinstance(error, PlanError):
            first, *others = (
                cls(False, broken.code, broken.where, broken.facts, broken.message, broken.suggestion)
                for broken in error.violations
            )
            return attrs.evolve(first, others=tuple(others))
        name = type(error).__name__
        return cls(False, "HP-AGREE-002", "", {"type": name, "message": str(error)[:500]}, f"{name}: {error}"[:500])

    def error(self) -> PlanError:
        """The failure as an exception, to be raised."""
        return PlanError(
            *(Violation(one.code, one.where, one.message, one.facts, one.suggestion) for one in (self, *self.others))
        )


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Outcome]:
    """Call ``function``; its result and ``Outcome()``, or None and the outcome of its failure.

    >>> from hpfun import PackedDocuments
    >>> attempt(PackedDocuments, (5, 3))[1].ok, attempt(PackedDocuments, ())[1].code
    (True, 'HP-DOC-001')
    """
    try:
        return function(*args, **kwargs), Outcome()
    except Exception as error:  # noqa: BLE001 - any failure must reach the other ranks
        return None, Outcome.of(error)


def merge_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """The lowest failing rank's outcome, its facts extended by ``failing_ranks``; fine if all are.

    >>> merge_outcomes([Outcome(), attempt(int, "x")[1]]).facts["failing_ranks"]
    (1,)
    """
    failing = tuple(rank for rank, outcome in enumerate(outcomes) if not outcome.ok)
    if not failing:
        return Outcome()
    first = outcomes[failing[0]]
    found = f"{first.message} (on rank{'s' if len(failing) > 1 else ''} {listed(failing)} of the group)"
    return attrs.evolve(first, message=found, facts={**first.facts, "failing_ranks": failing})


def _failures(others: Any) -> "tuple[Outcome, ...]":
    found = tuple(others) if isinstance(others, (tuple, list)) else (others,)
    for one in found:
        if type(one) is not Outcome or one.ok or one.others:
            raise refusal("HP-SERIAL-002", "others", f"needs failures, got {one!r:.60}", type=type(one).__name__)
    return found


def _frozen_facts(facts: object) -> Mapping[str, Any]:
    if not isinstance(facts, Mapping):
        kind = type(facts).__name__
        raise refusal("HP-SERIAL-002", "facts", f"needs a mapping, got {kind}", type=kind)
    return MappingProxyType({str(name): _sendable(value) for name, value in facts.items()})


def _sendable(value: object) -> object:
    """Facts cross ranks as JSON: keep integers, text, sequences and mappings, describe the rest."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Integral):  # numpy's
        return int(value)
    if isinstance(value, (tuple, list)):
        return tuple(_sendable(entry) for entry in value)
    if isinstance(value, Mapping):
        return {str(name): _sendable(entry) for name, entry in value.items()}
    return repr(value)[:200]
