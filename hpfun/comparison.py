"""The five balance modes on one batch: all plans with legal options, their planning times, and what was left out.

Block size and hybrid threshold have no value that suits every shard; those chosen here are part of the answer.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.errors import PlanError
from hpfun.indexer.options import BLOCK_MODES, CAPACITY_MODES, DEFAULT_BLOCK_SIZE, IndexerMode
from hpfun.indexer.tasks import IndexerTaskPlan, indexer_task_plan

# a plan of more tasks takes gigabytes and minutes, and no rank could follow it
MOST_TASKS = 2**22


@attrs.frozen
class ModePlans:
    """Plans and planning seconds by mode, why a mode was skipped, and the options that were chosen."""

    plans: Mapping[str, IndexerTaskPlan]
    seconds: Mapping[str, float]
    skipped: Mapping[str, str]
    block_size: int
    zigzag_min_length: int


def plan_all_modes(
    documents: PackedDocuments,
    size: int,
    ratio: int = 1,
    *,
    block_size: int | None = None,
    zigzag_min_length: int | None = None,
    capacity: int | None = None,
    tolerance_ppm: int = 0,
    row_cost: int = 0,
    ranks_per_node: int | None = None,
    step: Callable[[], object] = lambda: None,
) -> ModePlans:
    """A plan in every mode, each with those of the options that it has; ``step()`` is called after each.

    By default blocks have 2048 rows or a shard's, and hybrid cuts documents from a shard's rows in zigzag. A mode
    that would need more than ``MOST_TASKS`` tasks, or that alone cannot keep its options (HP-INDEX-006, 009), is
    skipped with the reason; any other error of ``indexer_task_plan`` is raised.

    >>> made = plan_all_modes(PackedDocuments((5, 3, 8)), 2)
    >>> sorted(made.plans), made.block_size, dict(made.skipped)
    (['greedy', 'hybrid', 'locality', 'none', 'zigzag'], 8, {})
    """
    local = documents.shard_rows(size)
    block = block_size if block_size is not None else min(DEFAULT_BLOCK_SIZE, local)
    # a document below a shard's rows is spread well enough by its blocks
    threshold = zigzag_min_length if zigzag_min_length is not None else local
    plans, seconds, skipped = {}, {}, {}
    for mode in IndexerMode:
        options: dict[str, Any] = {"row_cost": row_cost}
        if mode in BLOCK_MODES:
            options["block_size"] = block
        if mode is IndexerMode.HYBRID:
            options["zigzag_min_length"] = threshold
        if mode in CAPACITY_MODES:
            options["capacity"] = capacity
        if mode is IndexerMode.LOCALITY:
            options |= {"tolerance_ppm": tolerance_ppm, "ranks_per_node": ranks_per_node}
        tasks = tasks_at_most(documents, size, mode, max(block, 1), threshold)
        started = time.perf_counter()
        if tasks > MOST_TASKS:
            skipped[mode.value] = f"some {tasks:,} tasks, more than {MOST_TASKS:,}"
        else:
            try:
                plans[mode.value] = indexer_task_plan(documents, size, ratio, mode, **options)
                seconds[mode.value] = time.perf_counter() - started
            except PlanError as error:
                # what holds for this mode alone is part of the comparison; anything else ends it
                if mode is IndexerMode.NONE or error.code not in ("HP-INDEX-006", "HP-INDEX-009"):
                    raise
                skipped[mode.value] = error.violations[0].line()
        step()
    return ModePlans(plans, seconds, skipped, block, threshold)


def tasks_at_most(documents: PackedDocuments, size: int, mode: str, block_size: int = 1, threshold: int = 1) -> int:
    """About how many tasks a plan will have, and rarely more; known before it is made.

    >>> tasks_at_most(PackedDocuments((100, 3)), 4, "zigzag"), tasks_at_most(PackedDocuments((100, 3)), 4, "greedy", 10)
    (9, 11)
    """
    if mode in (IndexerMode.NONE, IndexerMode.LOCALITY):
        return documents.num_documents + 3 * size
    threshold = 2 * size if mode == IndexerMode.ZIGZAG else max(threshold, 2 * size)
    long = documents.lengths >= threshold if mode != IndexerMode.GREEDY else np.zeros(documents.num_documents, bool)
    short = documents.lengths[~long]
    blocks = len(short) if mode == IndexerMode.ZIGZAG else int((-(-short // block_size)).sum())
    return int(long.sum()) * 2 * size + blocks


def warm_up() -> None:
    """Plan a tiny batch in every mode, so that the times that follow are those of planning, not of a start."""
    plan_all_modes(PackedDocuments((5, 3, 8)), 2)
