"""A handle: something under way, waited for exactly once.

Rule EXECUTOR-7 of ``specs/executors.md``.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from hpfun.errors import refusal

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
            raise refusal(
                "HP-STATE-001",
                self._name,
                "this handle was waited already",
                "keep the result of the first wait",
                handle=self._name,
            )
        return finish()
