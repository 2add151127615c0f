"""Dispatch: a rank's rows become the bank that its route describes, halo rows of earlier ranks in front.

Rules DISPATCH-1 to DISPATCH-5 of ``specs/executors.md``.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from hpfun import SequenceDispatchRoute
from hpfun.errors import refusal
from hpfun_torch.agree import Check
from hpfun_torch.checks import Movement
from hpfun_torch.exchange import move_rows, start_rows
from hpfun_torch.handle import Handle, spent

T = TypeVar("T")
_CODES = ("HP-ROUTE-006", "HP-ROUTE-007")


def dispatch_sequence(
    tensor: torch.Tensor,
    route: SequenceDispatchRoute,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    check: Check = "off",
) -> torch.Tensor:
    """This rank's bank: ``route.local_length`` rows along ``dim`` in, ``route.bank_rows`` out.

    Any other shape and dtype, the same on all ranks; only halo rows travel, and none where no rank has a halo.
    Differentiable any number of times and through ``torch.func``; a row's gradient is the sum over all banks that it
    is in, added in rank order, 16-bit ones in float32. ``torch.compile`` takes it whole.

    Raises HP-ROUTE-006 (tensor or route), HP-ROUTE-007 (``dim``) and HP-EXCHANGE-009 (group) before any collective.
    With ``check="always"`` every rank raises what any rank found, or HP-AGREE-003 where tensors are unlike; with
    ``"off"`` the peers of a failing rank meet the group's timeout.

    >>> from hpfun import sliding_window_route
    >>> dispatch_sequence(torch.ones(4, 2), sliding_window_route((0, 4, 8), 4, 2, rank=1, window=3)).shape
    torch.Size([4, 2])
    """
    return move_rows(tensor, _movement(route, group, dim, check))


def start_dispatch(
    tensor: torch.Tensor,
    route: SequenceDispatchRoute,
    group: dist.ProcessGroup | None = None,
    dim: int = 0,
    check: Check = "off",
) -> Handle[torch.Tensor]:
    """``dispatch_sequence`` in two halves: the transfer starts now, ``wait()`` gives the bank once.

    Do not write to ``tensor`` before the wait. In a compiled graph the whole transfer runs here. Raises what
    ``dispatch_sequence`` raises, and HP-STATE-001 at a second wait.
    """
    return start_rows(tensor, _movement(route, group, dim, check), "start_dispatch", "dispatch_sequence")


class DeferredBankLaunch(Generic[T]):
    """A transfer that is prepared now and started later, once: ``start_dispatch``, ``start_gather`` or the like.

    ``launch`` is called with the other arguments at ``start()``, or at ``wait()`` if nobody started it; from then on
    only the transfer holds its inputs. ``wait()`` gives the result once; a second start or wait is HP-STATE-001, a
    start that failed can be tried again. Ranks start their launches in one order.

    >>> later = DeferredBankLaunch(lambda x: Handle(lambda: x + 1, "demo"), 41)
    >>> later.started, later.wait(), later.started
    (False, 42, True)
    """

    def __init__(self, launch: Callable[..., Handle[T]], *arguments: Any, **options: Any):
        self._launch: tuple[Callable[..., Handle[T]], tuple[Any, ...], dict[str, Any]] | None
        self._launch = (launch, arguments, options)
        self._handle: Handle[T] | None = None

    @property
    def started(self) -> bool:
        """Whether the transfer was started."""
        return self._launch is None

    def start(self) -> None:
        """Start the transfer; HP-STATE-001 if it was started already."""
        if self._launch is None:
            raise spent("DeferredBankLaunch", "started")
        prepared, self._launch = self._launch, None
        launch, arguments, options = prepared
        try:
            self._handle = launch(*arguments, **options)
        except BaseException:
            self._launch = prepared  # nothing was started
            raise

    def wait(self) -> T:
        """The result, started now if it was not; HP-STATE-001 at a second wait."""
        if self._launch is not None:
            self.start()
        handle, self._handle = self._handle, None
        if handle is None:
            raise spent("DeferredBankLaunch", "waited")
        return handle.wait()


def _movement(route: Any, group: dist.ProcessGroup | None, dim: int, check: Check) -> Movement:
    if not isinstance(route, SequenceDispatchRoute):
        kind = type(route).__name__
        raise refusal("HP-ROUTE-006", "route", f"needs a SequenceDispatchRoute, got {kind}", type=kind)
    return Movement(route.exchange, group, dim, 0, check, _CODES)
