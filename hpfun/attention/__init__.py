"""Sparse attention under context parallelism: who attends to what, and in which order transfers run."""

from hpfun.attention.candidates import candidate_keys, reachable_blocks
from hpfun.attention.indices import sparse_indices, window_indices
from hpfun.attention.plan import (
    AttentionConfig,
    AttentionPlan,
    AttentionRoute,
    KeyRoute,
    attention_plan,
    attention_route,
)
from hpfun.attention.schedule import OverlapOptions, OverlapSchedule, check_schedules, overlap_schedule
from hpfun.attention.segments import AttentionSegments, attention_segments
from hpfun.attention.sharing import LayerSharing, sharing_events, skip_sharing

__all__ = [
    "AttentionConfig",
    "AttentionPlan",
    "AttentionRoute",
    "AttentionSegments",
    "KeyRoute",
    "LayerSharing",
    "OverlapOptions",
    "OverlapSchedule",
    "attention_plan",
    "attention_route",
    "attention_segments",
    "candidate_keys",
    "check_schedules",
    "overlap_schedule",
    "reachable_blocks",
    "sharing_events",
    "skip_sharing",
    "sparse_indices",
    "window_indices",
]
