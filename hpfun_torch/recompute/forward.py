"""A module's forward, replaced: the module stays where it is, and so do its parameters' names.

A wrapper module would put its own name into every parameter's; here only the instance's ``forward`` changes, so
``state_dict``, ``named_parameters`` and optimizers see nothing. Rule RECOMPUTE-16 of ``specs/recompute.md``.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from hpfun.errors import refusal

FORWARD = "forward"
MARKER = "gradient_checkpointing"  # by which layers of transformers, and their owners, are known


class ReplacedForward:
    """Stands as ``forward`` in a module's own dictionary; copies and pickles along with the module."""

    kind = "none"

    def __init__(self, inner: Callable[..., Any], module: torch.nn.Module | None, name: str):
        functools.update_wrapper(self, inner, updated=())
        self.inner = inner
        self.module = module
        self.name = name
        self.active = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the subclass does around ``inner``."""
        raise NotImplementedError

    def restore(self) -> None:
        """Give the module its forward back; where somebody has wrapped it since, stop doing anything in it."""
        self.active = False
        if self.module is not None and self.module.__dict__.get(FORWARD) is self:
            del self.module.__dict__[FORWARD]
            if getattr(self.inner, "__func__", None) is not type(self.module).forward:
                self.module.__dict__[FORWARD] = self.inner  # it had one of its own before


def wrapped_as(module: torch.nn.Module) -> str:
    """``checkpoint``, ``exclude`` or ``none``: how the module's forward is replaced."""
    forward = module.__dict__.get(FORWARD)
    return forward.kind if isinstance(forward, ReplacedForward) else "none"


def named(
    module_or_fn: Any, kind: str, make: Callable[[Callable[..., Any], Any, str], ReplacedForward], name: str | None
) -> Any:
    """The module with its forward replaced by what ``make`` gives, or that in place of a function.

    A module that is wrapped in the same way stays as it is; one that is wrapped in the other way is HP-RECOMPUTE-013.
    """
    if not isinstance(module_or_fn, torch.nn.Module):
        if not callable(module_or_fn):
            got = type(module_or_fn).__name__
            raise refusal("HP-RECOMPUTE-017", "module", f"got {got}", "pass a module or a function", type=got)
        return make(module_or_fn, None, name or getattr(module_or_fn, "__name__", type(module_or_fn).__name__))
    module = module_or_fn
    told = name or type(module).__name__
    already = wrapped_as(module)
    if already == kind:
        return module
    if already != "none":
        raise refusal(
            "HP-RECOMPUTE-013",
            "module",
            f"{told} is wrapped as {already}",
            "take the other wrapper off first",
            fqn=told,
            kind=already,
        )
    module.__dict__[FORWARD] = make(module.forward, module, told)
    return module
