"""A region: a module whose forward is run again in the backward, without its exclusions.

Always the non-reentrant checkpoint of ``torch.utils.checkpoint``; this module adds the invocation that exclusions
need, and inputs that wait on the host. Rules RECOMPUTE-18 to RECOMPUTE-21 of ``specs/recompute.md``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from hpfun.recompute import RecomputeOptions
from hpfun_torch.recompute.caches import without_cache
from hpfun_torch.recompute.forward import MARKER, ReplacedForward, named
from hpfun_torch.recompute.invocation import Invocation

SMALL_BYTES = 1024  # a transfer of less costs more than the memory is worth


class Region(ReplacedForward):
    """What stands in place of a forward that is run again in the backward."""

    kind = "checkpoint"

    def __init__(
        self,
        inner: Callable[..., Any],
        module: torch.nn.Module | None,
        name: str,
        options: RecomputeOptions,
        context_fn: Callable[[], Any] | None,
    ):
        super().__init__(inner, module, name)
        self.options = options
        self.context_fn = context_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Checkpoint one call."""
        if not self.active:
            return self.inner(*args, **kwargs)
        options = self.options
        how: dict[str, Any] = {
            "use_reentrant": False,
            "preserve_rng_state": options.preserve_rng_state,
            "early_stop": options.early_stop,
        }
        if options.enable_compile:  # a graph takes a plain checkpoint, or the modes of a selective policy
            if self.context_fn is not None:
                how["context_fn"] = self.context_fn
            return checkpoint(self.inner, *args, **how, **kwargs)
        if not torch.is_grad_enabled():
            return self.inner(*args, **kwargs)
        kwargs = without_cache(self.module, MARKER, kwargs)
        # tensors in tuples and keywords are inputs like others; lists and mappings stay the objects that they are
        leaves, tree = pytree.tree_flatten((args, tuple(kwargs.values())), is_leaf=_is_no_tuple)
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[at] for at in places]
        for at in places:
            leaves[at] = None
        names, inner = tuple(kwargs), self.inner

        def run(*given: torch.Tensor) -> Any:
            values = list(leaves)
            for at, tensor in zip(places, given, strict=True):
                values[at] = tensor
            positional, named_values = pytree.tree_unflatten(values, tree)
            return inner(*positional, **dict(zip(names, named_values, strict=True)))

        invocation = Invocation(self.name, options.preserve_rng_state, options.verify)
        policy = self.context_fn
        hooks = (
            torch.autograd.graph.saved_tensors_hooks(lambda tensor: _to_host(tensor), _to_device)
            if options.swap_inputs
            else nullcontext()
        )
        with hooks:
            return checkpoint(
                run, *tensors, context_fn=lambda: invocation.contexts(policy() if policy else None), **how
            )


def checkpoint_wrapper(
    module: Any,
    *,
    swap_inputs: bool = False,
    context_fn: Callable[[], Any] | None = None,
    preserve_rng_state: bool = True,
    early_stop: bool = True,
    verify: bool = False,
    enable_compile: bool = False,
    name: str | None = None,
) -> Any:
    """The module itself, with a forward that the backward runs again; or a function in place of the given one.

    ``swap_inputs`` keeps the inputs on the host: floating ones of at least 1 KiB on an accelerator. ``context_fn`` is
    that of ``torch.utils.checkpoint``, for selective policies. ``verify`` runs replays to their end and compares
    them with the forward. ``enable_compile`` is for wrappers inside a compiled function. Raises HP-RECOMPUTE-013 for a
    module that is an exclusion.

    >>> layer = checkpoint_wrapper(torch.nn.Linear(2, 2))
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'bias']
    """
    options = RecomputeOptions(
        swap_inputs=swap_inputs,
        enable_compile=enable_compile,
        preserve_rng_state=preserve_rng_state,
        early_stop=early_stop,
        verify=verify,
    )
    return as_region(module, options, context_fn, name)


def as_region(module: Any, options: RecomputeOptions, context_fn: Callable[[], Any] | None, name: str | None) -> Any:
    """``checkpoint_wrapper`` with the options of a plan."""
    return named(module, Region.kind, lambda inner, held, told: Region(inner, held, told, options, context_fn), name)


def _is_no_tuple(value: object) -> bool:
    return type(value) is not tuple


def goes_to_host(tensor: torch.Tensor, device_type: str) -> bool:
    """Whether an input on such a device waits on the host: small ones are not worth it, ids and masks stay.

    >>> [goes_to_host(torch.ones(rows), device) for rows, device in ((256, "cuda"), (255, "cuda"), (256, "cpu"))]
    [True, False, False]
    """
    return tensor.is_floating_point() and tensor.nbytes >= SMALL_BYTES and device_type not in ("cpu", "meta")


def _to_host(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
    if not goes_to_host(tensor, tensor.device.type):
        return tensor.device, tensor
    host = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, pin_memory=True)
    return tensor.device, host.copy_(tensor)


def _to_device(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
    device, tensor = packed
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)
