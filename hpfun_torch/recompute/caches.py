"""Key caches in training: a replay would append to them again, so layers of transformers go without.

Layers drop their cache themselves when the model's own checkpointing is on; a plan switches that off, and so does
it here in their place. Rule RECOMPUTE-44 of ``specs/recompute.md``.
"""

import warnings
from typing import Any

import torch

CACHES = ("past_key_values", "past_key_value", "layer_past")


def without_cache(module: torch.nn.Module | None, marker: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for a region: those given, without a cache if the module is a layer in training.

    >>> layer = torch.nn.Identity()
    >>> layer.gradient_checkpointing = False
    >>> with warnings.catch_warnings(action="ignore"):
    ...     without_cache(layer, "gradient_checkpointing", {"past_key_values": {}, "use_cache": True, "scale": 2})
    {'past_key_values': None, 'use_cache': False, 'scale': 2}
    """
    if module is None or not module.training or not hasattr(module, marker):
        return arguments
    if getattr(module, "_can_checkpoint_with_cache", False):  # it reads the cache and does not write it
        return arguments
    changes: dict[str, Any] = {name: None for name in CACHES if arguments.get(name) is not None}
    if arguments.get("use_cache"):
        changes["use_cache"] = False
    if not changes:
        return arguments
    told = " and ".join(changes)
    warnings.warn(f"{told} switched off: a replay would write the key cache again; pass use_cache=False", stacklevel=4)
    return {**arguments, **changes}
