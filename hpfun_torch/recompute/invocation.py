"""One run of a region: its forward, its replays, and what exclusions inside it gave.

A checkpoint call makes an ``Invocation``, and two context managers around it say on a stack of phases whether its
forward or a replay is running. What a replay needs hangs on the invocation, which the graph keeps: backward may
run in other threads, and two micro-batches may be in flight. Rules RECOMPUTE-22 to RECOMPUTE-26 of
``specs/recompute.md``.
"""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hpfun.errors import refusal


class Invocation:
    """One call of a region; the same object in its forward and in all its replays, and gone with its graph.

    ``state`` is for users: what a layer's forward wants to find again in the replay of this very forward.
    """

    def __init__(self, region: str = "", preserve_rng_state: bool = True, verify: bool = False):
        self.region = region
        self.preserve_rng_state = preserve_rng_state
        self.verify = verify
        self.state: dict[Any, Any] = {}
        self.records: dict[tuple[Any, int], Any] = {}  # by exclusion and the ordinal of its call

    def contexts(self, policy: tuple[AbstractContextManager, AbstractContextManager] | None = None) -> tuple[Any, Any]:
        """What to enter around the forward and around each replay; ``policy`` are a selective policy's own."""
        forward, replay = policy or (nullcontext(), nullcontext())
        return _Entry(self, False, forward), _Entry(self, True, replay)


class Phase:
    """A forward or a replay that is running: the invocation, the calls of each exclusion so far, the policy's modes."""

    def __init__(self, invocation: Invocation, replaying: bool):
        self.invocation = invocation
        self.replaying = replaying
        self.calls: dict[Any, int] = {}
        self.modes: tuple[Any, ...] = ()

    def next_call(self, exclusion: Any) -> int:
        """The ordinal of a call of this exclusion in this phase, from 0."""
        ordinal = self.calls.get(exclusion, 0)
        self.calls[exclusion] = ordinal + 1
        return ordinal


_EXCLUDED = object()  # stands on the stack while the body of an exclusion runs
_STACK: ContextVar[tuple[Any, ...]] = ContextVar("hpfun_recompute_phases", default=())


def is_recomputing() -> bool:
    """Whether the code that asks is being replayed: then it must not publish, count or communicate again.

    >>> is_recomputing()
    False
    """
    return any(entry is not _EXCLUDED and entry.replaying for entry in _STACK.get())


def current_invocation() -> Invocation | None:
    """The run of the innermost region around the code that asks; None outside of regions.

    >>> current_invocation() is None
    True
    """
    phases = [entry for entry in _STACK.get() if entry is not _EXCLUDED]
    return phases[-1].invocation if phases else None


def open_phases() -> tuple[Phase, ...]:
    """The phases around the code that asks, up to the nearest exclusion whose body is running; innermost last."""
    stack = _STACK.get()
    start = max((at + 1 for at, entry in enumerate(stack) if entry is _EXCLUDED), default=0)
    return stack[start:]


@contextmanager
def inside_exclusion() -> Generator[None]:
    """Around the body of an exclusion: what it calls is part of it."""
    token = _STACK.set((*_STACK.get(), _EXCLUDED))
    try:
        yield
    finally:
        _STACK.reset(token)


class _Entry:
    """Pushes a phase; may be entered again, since a graph that is kept is replayed once for each backward."""

    def __init__(self, invocation: Invocation, replaying: bool, policy: AbstractContextManager):
        self.invocation = invocation
        self.replaying = replaying
        self.policy = policy
        self.open: list[tuple[Phase, Token]] = []

    def __enter__(self) -> Phase:
        phase = Phase(self.invocation, self.replaying)
        self.open.append((phase, _STACK.set((*_STACK.get(), phase))))
        before = _get_current_dispatch_mode_stack()
        try:
            self.policy.__enter__()
        except BaseException:
            self._pop()
            raise
        phase.modes = tuple(mode for mode in _get_current_dispatch_mode_stack() if mode not in before)
        return phase

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        phase = self._pop()
        suppressed = self.policy.__exit__(kind, error, trace)
        if kind is None and self.replaying and self.invocation.verify:
            _compare_calls(self.invocation, phase)
        return suppressed

    def _pop(self) -> Phase:
        phase, token = self.open.pop()
        _STACK.reset(token)
        return phase


def _compare_calls(invocation: Invocation, replay: Phase) -> None:
    """HP-RECOMPUTE-033 unless the replay called each exclusion as often as the forward."""
    forward: dict[Any, int] = {}
    for exclusion, _ in invocation.records:
        forward[exclusion] = forward.get(exclusion, 0) + 1
    for exclusion, calls in forward.items():
        if replay.calls.get(exclusion, 0) != calls:
            found = replay.calls.get(exclusion, 0)
            raise refusal(
                "HP-RECOMPUTE-033",
                invocation.region,
                f"{exclusion.name}: {calls} calls in the forward, {found} in the replay",
                "remove branches on is_recomputing around the call",
                wrapper=exclusion.name,
                forward=calls,
                replay=found,
            )
