"""What a model computes twice to save memory: regions, exclusions, wrap order, and the choice under a byte budget."""

from hpfun.recompute.budget import (
    BudgetResult,
    Estimate,
    EstimateRow,
    RegionSize,
    choose_regions,
    estimate,
    frontier,
)
from hpfun.recompute.plan import RecomputeOptions, RecomputePlan, WrapStep, plan_recompute
from hpfun.recompute.policy import (
    LayerContainer,
    LayerSelection,
    ModuleInfo,
    RecomputePolicy,
    find_layers,
    select_exclusions,
    select_layers,
    select_roots,
)
from hpfun.recompute.release import Entry, Read, release_plan, replay_trace

__all__ = [
    "BudgetResult",
    "Entry",
    "Estimate",
    "EstimateRow",
    "LayerContainer",
    "LayerSelection",
    "ModuleInfo",
    "Read",
    "RecomputeOptions",
    "RecomputePlan",
    "RecomputePolicy",
    "RegionSize",
    "WrapStep",
    "choose_regions",
    "estimate",
    "find_layers",
    "frontier",
    "plan_recompute",
    "release_plan",
    "replay_trace",
    "select_exclusions",
    "select_layers",
    "select_roots",
]
