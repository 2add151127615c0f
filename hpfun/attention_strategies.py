"""Hypothesis strategies for what sparse attention plans with: segments, layers that share, schedules, whole plans.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.attention import segments as segments_of
from hpfun.attention.plan import AttentionConfig, AttentionPlan, attention_plan
from hpfun.attention.schedule import KINDS, OverlapOptions, OverlapSchedule, overlap_schedule
from hpfun.attention.segments import AttentionSegments
from hpfun.attention.sharing import LayerSharing
from hpfun.indexer.options import BLOCK_MODES, IndexerMode, IndexerOptions
from hpfun.sequence_strategies import sequence_requests

_RATIOS = (0, 1, 2, 3, 4)


@st.composite
def attention_segments(draw: st.DrawFn, max_size: int = 6, max_length: int = 24) -> AttentionSegments:
    """Segments of one rank, with windows and keys or without; both reach beyond the longest document.

    >>> from hypothesis import find
    >>> find(attention_segments(), lambda segments: segments.num_segments == 2 and segments.window > 1).num_rows
    2
    """
    request = draw(sequence_requests(max_size, max_length))
    numbers = st.integers(0, 5) | st.integers(0, max_length + 1)
    rank = draw(st.integers(0, request["size"] - 1))
    return segments_of.attention_segments(**request, rank=rank, window=draw(numbers), ratio=draw(numbers))


@st.composite
def layer_sharings(draw: st.DrawFn, max_layers: int = 6) -> LayerSharing:
    """Layers of several ratios, dense and choosing ones, with keys of their own or shared.

    >>> from hypothesis import find
    >>> sharing = find(layer_sharings(), lambda sharing: sharing.kv_sources is not None and sharing.num_layers == 2)
    >>> sharing.num_layers
    2
    """
    ratios = draw(st.lists(st.sampled_from(_RATIOS), min_size=1, max_size=max_layers))
    shared = draw(st.booleans())
    keys: dict[int, int] = {}  # newest source by ratio
    choices: dict[int, int] = {}
    sources, choosing, dense = [], [], []
    for layer, ratio in enumerate(ratios):
        if not ratio:
            continue
        if ratio not in keys or draw(st.booleans()):
            keys[ratio] = layer
            sources.append(layer)
        if draw(st.integers(0, 3)) == 3:
            dense.append(layer)
            continue
        stale = ratio not in choices or (shared and choices[ratio] < keys[ratio])
        if stale or draw(st.booleans()):
            choices[ratio] = layer
            choosing.append(layer)
    return LayerSharing(
        compress_ratios=ratios,
        kv_sources=sources if shared else None,
        index_sources=choosing,
        dense_layers=dense,
    )


@st.composite
def attention_configs(draw: st.DrawFn, max_layers: int = 6) -> AttentionConfig:
    """What models tell of their attention: layers, window, number of choices, blocks that overlap.

    >>> from hypothesis import find
    >>> find(attention_configs(), lambda config: len(config.overlapping_ratios) > 0).overlapping_ratios.tolist()
    [2]
    """
    sharing = draw(layer_sharings(max_layers))
    blocks = [ratio for ratio in sharing.ratios if ratio > 1]
    chosen = draw(st.sets(st.sampled_from(blocks))) if blocks else ()
    alone = bool((sharing.compress_ratios == 0).any())  # such layers need a window
    return AttentionConfig(
        sharing=sharing,
        window=draw(st.integers(int(alone), 12)),
        topk=draw(st.integers(1, 5)) if len(sharing.index_sources) else 0,
        overlapping_ratios=sorted(chosen),
    )


@st.composite
def attention_plans(
    draw: st.DrawFn, max_size: int = 4, max_length: int = 16, modes: SearchStrategy[IndexerMode] | None = None
) -> AttentionPlan:
    """Plans of any configuration, with rows scored at home or shared out in every mode.

    >>> from hypothesis import find
    >>> find(attention_plans(), lambda plan: plan.balanced and bool(plan.config.choosing_ratios)).config.topk
    1
    """
    request = draw(sequence_requests(max_size, max_length))
    mode = draw(modes or st.sampled_from(list(IndexerMode)))
    options: dict[str, Any] = {"row_cost": draw(st.sampled_from((0, 0, 3)))}
    if mode in BLOCK_MODES:
        options["block_size"] = draw(st.integers(1, request["local_length"]))
    if mode is IndexerMode.HYBRID:
        options["zigzag_min_length"] = draw(st.integers(1, max_length))
    config = draw(attention_configs())
    return attention_plan(request["boundaries"], request["size"], config, IndexerOptions(mode, **options))


@st.composite
def overlap_options(draw: st.DrawFn) -> OverlapOptions:
    """Options of layers of every kind.

    >>> from hypothesis import find
    >>> find(overlap_options(), lambda options: options.balanced and options.indexer_priority).kind
    'select'
    """
    kind, overlapped = draw(st.sampled_from(KINDS)), draw(st.booleans())
    return OverlapOptions(
        kind=kind,
        window=kind == "window" or draw(st.booleans()),
        own_keys=draw(st.booleans()),
        halo=draw(st.booleans()),
        balanced=kind == "select" and draw(st.booleans()),
        overlapped=overlapped,
        indexer_priority=overlapped and draw(st.booleans()),
    )


def overlap_schedules() -> SearchStrategy[OverlapSchedule]:
    """Schedules of layers of every kind.

    >>> from hypothesis import find
    >>> find(overlap_schedules(), lambda schedule: "wait result" in schedule.events).launches[-1]
    'result'
    """
    return overlap_options().map(overlap_schedule)


def attention_values() -> SearchStrategy[Any]:
    """Any plan value of ``hpfun.attention``."""
    return st.one_of(
        attention_segments(),
        layer_sharings(),
        attention_configs(),
        attention_plans(),
        overlap_options(),
        overlap_schedules(),
    )
