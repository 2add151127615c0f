"""What was done to a model under context parallelism, kept at the model itself."""

import copy
from typing import Any

import attrs
import torch.distributed as dist

from hpfun.errors import refusal
from hpfun_torch.integrations.transformers.kinds import Family, Modules
from hpfun_torch.recompute import Applied

_STATE = "_hpfun_context_parallel"


@attrs.frozen(eq=False)
class Enabled:
    """What ``enable_context_parallel`` did: ``modules`` have the attention, ``hook`` checks every call.

    ``config`` is what the ranks have in common, ``before`` what its kind needs to switch attention back.
    """

    group: dist.ProcessGroup | None
    options: Any
    family: Family
    config: Any
    hook: Any
    recompute: Applied | None
    modules: Modules
    before: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> "Enabled":
        """Of a copied model: its own modules, the same group, which cannot be copied."""
        memo[id(self.group)] = self.group
        memo[id(self.family)] = self.family
        parts = {field.name: getattr(self, field.name) for field in attrs.fields(Enabled)}
        return Enabled(**{name: copy.deepcopy(part, memo) for name, part in parts.items()})


def is_enabled(model: Any) -> bool:
    """Whether context parallelism is on at a model."""
    return _STATE in getattr(model, "__dict__", {})


def enabled(model: Any) -> Enabled:
    """What is on at a model; HP-HF-004 where nothing is."""
    if not is_enabled(model):
        kind = type(model).__name__
        inside = is_enabled(getattr(model, "module", None))
        advice = "it is on at its `module`: pass that" if inside else "enable it, or leave it as it is"
        raise refusal("HP-HF-004", "model", f"context parallelism is not on at this {kind}", advice, type=kind)
    return model.__dict__[_STATE]


def mark(model: Any, state: Enabled) -> None:
    """Keep ``state`` at the model, beside its parameters and buffers."""
    model.__dict__[_STATE] = state


def unmark(model: Any) -> None:
    """Forget it."""
    del model.__dict__[_STATE]
