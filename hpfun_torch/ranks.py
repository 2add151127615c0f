"""A pool of local processes, one per rank, that run functions over a gloo group.

For demos, tests and trying things out on one machine: start the pool once, then a call costs milliseconds.
Rules RANKS-1 to RANKS-3 of ``specs/executors.md``.
"""

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hpfun.errors import refusal

_PRELOAD = ["torch", "torch.distributed", "hpfun_torch"]


class RankError(RuntimeError):
    """A function raised something on a rank; the text is that rank's traceback."""


class RankPool:
    """``size`` processes with one gloo group; ``run`` calls a function on all of them.

    Functions and arguments travel by pickle, so functions stand at the top of a module. A call that does not
    come back in time ends the processes with HP-RANKS-001, and the next call starts fresh ones.

    >>> with RankPool(2) as pool:
    ...     pool.run(torch.distributed.get_rank)
    [0, 1]
    """

    def __init__(self, size: int, threads: int = 1, group_timeout_s: float = 60.0):
        self.size = size
        self._threads = threads
        self._group_timeout_s = group_timeout_s
        self._ranks: list[tuple[Any, Connection]] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """``function(*args)`` on every rank; the results in rank order.

        Raises HP-RANKS-001 where a rank does not answer within ``timeout_s``, and what the lowest failing rank
        raised (a ``PlanError`` as it is, anything else as ``RankError`` with its traceback).
        """
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, args))
        results = self._collect(timeout_s)
        for result in results:
            if isinstance(result, _Failure):
                raise result.error if result.error is not None else RankError(result.text)
        return results

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._ranks:
            pipe.close()
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
        self._ranks = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        store = os.path.join(tempfile.mkdtemp(prefix="ranks-"), "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (theirs, store, rank, self.size, self._threads, self._group_timeout_s)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def _collect(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        for rank, (_, pipe) in enumerate(self._ranks):
            try:
                if pipe.poll(max(0.0, deadline - time.monotonic())):
                    results[rank] = pipe.recv()
            except (EOFError, ConnectionError):
                break
        silent = tuple(rank for rank in range(self.size) if rank not in results)
        if silent:
            self.close()
            raise refusal(
                "HP-RANKS-001",
                "ranks",
                f"no answer from ranks {silent} within {timeout_s:g} s; the processes were ended",
                "look for a collective that not every rank enters",
                silent_ranks=silent,
                timeout_s=repr(timeout_s),
            )
        return [results[rank] for rank in range(self.size)]


class _Failure:
    def __init__(self, error: BaseException):
        from hpfun import PlanError

        self.error = error if isinstance(error, PlanError) else None
        self.text = "".join(traceback.format_exception(error))


def _serve(pipe: Connection, store: str, rank: int, size: int, threads: int, timeout_s: float) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    torch.set_num_threads(threads)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, ConnectionError):
            break
        try:
            answer = function(*args)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            answer = _Failure(error)
        pipe.send(answer)
    dist.destroy_process_group()
