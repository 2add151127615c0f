"""Kinds of models: what is done to them and their batches in one way or another, as a table of functions.

Two kinds: sparse attention of the DeepSeek family, and ordinary dense attention. Everything else is the same for both.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from hpfun import Violation

Modules = tuple[torch.nn.Module, ...]


@attrs.frozen(kw_only=True, eq=False)
class Kind:
    """What differs between kinds of attention.

    ``context`` is the class of a batch's context, which has ``plan``, ``group``, ``local_rows`` and ``positions``;
    ``mask`` what a model is called with so that it builds none; ``idle`` the options that do nothing here, with their
    only value. ``read(model, modules)`` gives what ranks must have in common, with a ``digest``, or raises HP-HF-001
    or 002. ``put_on(model, modules)`` switches attention over and gives what ``take_off(model, modules, before)``
    needs to switch it back; ``changed(model, state)`` names what attention has become in between.
    ``plan(state, documents, size)`` plans a batch, ``part(plan, documents, rank, group)`` is a rank's context and the
    tokens of its rows; ``misfits(model, state, context)`` are what makes a call wrong for this kind alone.
    """

    context: type
    mask: Any
    idle: dict[str, Any]
    read: Callable[[Any, Modules], Any]
    put_on: Callable[[Any, Modules], Any]
    take_off: Callable[[Any, Modules, Any], None]
    changed: Callable[[Any, Any], str | None]
    plan: Callable[..., Any]
    part: Callable[..., "Part"]
    misfits: Callable[[Any, Any, Any], Iterator[Violation]]


def replaced(where: str, layer: int, module: torch.nn.Module, known: Collection[type]) -> Violation | None:
    """HP-HF-002 for attention that would not be switched: of another class, or with a forward of its own."""
    own = "forward" in vars(module)
    if type(module) in known and not own:
        return None
    kind = type(module).__name__
    message = f"attention of class {kind}{' with another forward' if own else ''}"
    advice = "enable context parallelism before anything wraps or replaces attention"
    return Violation("HP-HF-002", where, message, {"layer": layer, "type": kind}, advice)


class Part(NamedTuple):
    """A rank's part of a batch: its context, and the token of each of its rows, -1 for padding; int64 ``[local]``."""

    context: Any
    sources: np.ndarray


@attrs.frozen(kw_only=True, eq=False)
class Family:
    """A class of models: its kind, the module that has its decoder, and its positions if they are of several rows.

    ``positions(model, ids, documents)`` gives them for a whole pack, ``[rows, 1, tokens]``.
    """

    kind: Kind
    decoder: str = "model"
    position_rows: int = 0
    positions: Callable[..., torch.Tensor] | None = None

    def position_shape(self, local: int) -> tuple[int, ...]:
        """Shape of a rank's position ids."""
        return (self.position_rows, 1, local) if self.position_rows else (1, local)
