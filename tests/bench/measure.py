"""How a ratio is measured: two things in one run, in turn, best of several; and what it may be at most."""

import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class Figure:
    """One measured figure with its limit; ``holds`` is what the exit status goes by."""

    name: str
    value: float
    limit: float
    detail: dict[str, Any] = attrs.field(factory=dict)
    unit: str = "x"

    @property
    def holds(self) -> bool:
        return self.value <= self.limit


def peak_mib() -> float:
    """Most memory that this program has held, MiB; unlike ``ru_maxrss`` it does not start at its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def best_of(function: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of ``times`` calls."""
    return min(timed(function) for _ in range(times))


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def best_of_two(one: Callable[[], object], other: Callable[[], object], times: int = 5) -> tuple[float, float]:
    """Fastest seconds of each, called in turn so that a slow moment of the machine hits both."""
    pairs = [(timed(one), timed(other)) for _ in range(times)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)
