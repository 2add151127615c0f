"""A pool of local processes, one per rank, that run functions over a gloo group.

For demos, tests and trying things out on one machine: start the pool once, then a call costs milliseconds.
Rules RANKS-1 to RANKS-3 of ``specs/executors.md``.
"""

import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from hpfun.errors import PlanError, refusal

GRACE_S = 15.0  # for the other ranks, once one has failed
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
        self._folder: str | None = None

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """``function(*args)`` on every rank; the results in rank order.

        Raises what the first failing rank raised (a ``PlanError`` as it is, anything else as ``RankError`` with its
        traceback), and HP-RANKS-001 where a rank does not answer within ``timeout_s``.
        """
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, args))
        answers = self._collect(timeout_s)
        failures = [answer for answer in answers.values() if isinstance(answer, _Failure)]
        silent = tuple(rank for rank in range(self.size) if rank not in answers)
        if silent or any(failure.error is None for failure in failures):
            self.close()  # a rank may hang in a collective that another left: this group is of no more use
        if failures:  # in the order of arrival, so the first is the cause and not a peer's timeout
            raise failures[0].error if failures[0].error is not None else RankError(failures[0].text)
        if silent:
            raise refusal(
                "HP-RANKS-001",
                "ranks",
                f"no answer from ranks {silent} within {timeout_s:g} s; the processes were ended",
                "look for a collective that not every rank enters",
                silent_ranks=silent,
                timeout_s=repr(timeout_s),
            )
        return [answers[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._ranks:
            pipe.close()
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
        self._ranks = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        store = os.path.join(self._folder, "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (theirs, store, rank, self.size, self._threads, self._group_timeout_s)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def _collect(self, timeout_s: float) -> dict[int, Any]:
        """Answers by rank in the order in which they came, until all are there or time is up."""
        deadline = time.monotonic() + timeout_s
        waiting: dict[Any, int] = {pipe: rank for rank, (_, pipe) in enumerate(self._ranks)}
        answers: dict[int, Any] = {}
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                own: Any = pipe
                try:
                    answers[rank] = own.recv()
                except (EOFError, ConnectionError):
                    deadline = time.monotonic()  # a rank died: nobody will hear from it
                    continue
                if isinstance(answers[rank], _Failure):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers


class _Failure:
    def __init__(self, error: BaseException):
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
            pipe.send(function(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            pipe.send(_Failure(error))
    dist.destroy_process_group()
