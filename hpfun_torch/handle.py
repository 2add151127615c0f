"""A handle: something under way, waited for exactly once.

Rule EXECUTOR-7 of ``specs/executors.md``.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from hpfun.errors import PlanError, refusal

T = TypeVar("T")


class Handle(Generic[T]):
    """The pending result of a launched transfer; ``wait`` gives it once and drops every buffer.

    >>> handle = Handle(lambda: 42, "demo")
    >>> handle.wait()
    42
    """

    def __init__(self, finish: Callable[[], T], name: str):
        self._finish: Callable[[], T] | None = finish
        self._name = name

    def wait(self) -> T:
        """The result; a second wait is HP-STATE-001."""
        finish, self._finish = self._finish, None
        if finish is None:
            raise spent(self._name, "waited")
        return finish()


def spent(name: str, what: str) -> PlanError:
    """HP-STATE-001: ``name`` was started or waited already."""
    advice = "keep the result of the first wait"
    return refusal("HP-STATE-001", name, f"this handle was {what} already", advice, handle=name)
