"""The one way a test says "this is refused": by code, and by what the error carries."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpfun import CODES, PlanError


class Refusal:
    """Filled when the block ends: the error that it raised."""

    error: PlanError


@contextmanager
def refused(code: str) -> Iterator[Refusal]:
    """The block raises a ``PlanError`` with ``code``; its parts are all there.

    ``tests/test_trace.py`` reads the codes that stand in calls of this function.
    """
    caught = Refusal()
    with pytest.raises(PlanError) as info:
        yield caught
    error = caught.error = info.value
    assert error.code == code
    assert error.violations
    assert all(violation.code in CODES for violation in error.violations)
    assert all(violation.message and "\n" not in violation.message for violation in error.violations)
    assert code in str(error)
