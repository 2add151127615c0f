"""Recompute plans, executed: regions that run again in the backward, and exclusions in them that do not."""

from hpfun_torch.recompute.apply import Applied, apply_recompute
from hpfun_torch.recompute.exclusion import checkpoint_exclude_wrapper
from hpfun_torch.recompute.invocation import Invocation, current_invocation, is_recomputing
from hpfun_torch.recompute.measure import measure_sizes
from hpfun_torch.recompute.modules import read_modules
from hpfun_torch.recompute.region import checkpoint_wrapper
from hpfun_torch.recompute.shared import publish_once

__all__ = [
    "Applied",
    "Invocation",
    "apply_recompute",
    "checkpoint_exclude_wrapper",
    "checkpoint_wrapper",
    "current_invocation",
    "is_recomputing",
    "measure_sizes",
    "publish_once",
    "read_modules",
]
