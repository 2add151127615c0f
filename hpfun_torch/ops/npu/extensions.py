"""Operators of other packages: a function in the place of one of our adapters.

The wheel's operators know no ratio and no scores summed over a group. A package whose operators do brings its own
adapter; nothing about their schemas is said here.
"""

from collections.abc import Callable
from typing import Any

from hpfun.errors import refusal
from hpfun_torch.ops.contract import CONTRACTS

_EXTENSIONS: dict[str, Callable[..., Any]] = {}


def register_extension(name: str, function: Callable[..., Any] | None) -> None:
    """Let ``function`` run the operator ``name`` on NPU tensors from now on; None gives it back to our adapter.

    The function takes what ``hpfun_torch.ops.<name>`` takes, after the contract was checked; limits are its own.
    Raises HP-OPS-001 for an unknown name or what is no function.
    """
    if name not in CONTRACTS:
        known = tuple(CONTRACTS)
        raise refusal("HP-OPS-001", "name", f"{name!r} is no operator", f"use one of {known}", got=name, known=known)
    if function is None:
        _EXTENSIONS.pop(name, None)
    elif callable(function):
        _EXTENSIONS[name] = function
    else:
        kind = type(function).__name__
        raise refusal("HP-OPS-001", "function", f"a {kind} is no function", "pass a function", value=kind, type=kind)


def extension(name: str) -> Callable[..., Any] | None:
    """The function registered for an operator, or None."""
    return _EXTENSIONS.get(name)
