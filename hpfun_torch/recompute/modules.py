"""A model as the list of modules that plans are made of; on the meta device it costs no memory.

Names are those that a user knows: what ``torch``'s own checkpoint wrapper and ``torch.compile`` put between a parent
and its child is left out. Rules RECOMPUTE-4 and RECOMPUTE-13 of ``specs/recompute.md``.
"""

import torch

from hpfun.errors import refusal
from hpfun.recompute import ModuleInfo
from hpfun_torch.recompute.forward import MARKER, wrapped_as

_CHECKPOINTED = "_checkpoint_wrapped_module"
_BETWEEN = (_CHECKPOINTED, "_orig_mod")


def read_modules(model: torch.nn.Module) -> tuple[ModuleInfo, ...]:
    """All modules of a model in registration order, an object with two names twice.

    Raises HP-RECOMPUTE-017 for what is no module.

    >>> [(module.fqn, module.type_name) for module in read_modules(torch.nn.Sequential(torch.nn.ReLU()))]
    [('', 'Sequential'), ('0', 'ReLU')]
    """
    found = []
    for fqn, (outer, inner) in logical_modules(model).items():
        found.append(
            ModuleInfo(
                fqn=fqn,
                type_name=type(inner).__name__,
                is_list=isinstance(inner, torch.nn.ModuleList),
                has_marker=any(MARKER in vars(module) or hasattr(type(module), MARKER) for module in (outer, inner)),
                wrapped=wrapped_kind(outer),
                module_id=id(inner),
            )
        )
    return tuple(found)


def wrapped_kind(module: torch.nn.Module) -> str:
    """``checkpoint``, ``exclude`` or ``none``; torch's own checkpoint wrapper is a checkpoint."""
    return "checkpoint" if _CHECKPOINTED in module._modules else wrapped_as(module)


def logical_modules(model: torch.nn.Module) -> dict[str, tuple[torch.nn.Module, torch.nn.Module]]:
    """Each name with the module that a parent calls by it, and the one that does the work, mostly the same."""
    if not isinstance(model, torch.nn.Module):
        got = type(model).__name__
        raise refusal("HP-RECOMPUTE-017", "model", f"got {got}", "pass a torch.nn.Module", type=got)
    found: dict[str, tuple[torch.nn.Module, torch.nn.Module]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        fqn = ".".join(part for part in name.split(".") if part not in _BETWEEN)
        found[fqn] = (found[fqn][0] if fqn in found else module, module)
    return found
