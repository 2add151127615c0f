"""Hypothesis strategies for the balance of the indexer: requests, plans, routes, and their parts.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.errors import PlanError
from hpfun.indexer.options import BLOCK_MODES, CAPACITY_MODES, IndexerMode, IndexerOptions
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute, plan_route
from hpfun.indexer.segments import IndexerSegment
from hpfun.indexer.tasks import IndexerTask, IndexerTaskPlan, indexer_task_plan
from hpfun.pack_strategies import group_sizes, lengths


def indexer_modes() -> SearchStrategy[IndexerMode]:
    """The balance modes of the indexer; shrinks towards ``none``.

    >>> from hypothesis import find
    >>> find(indexer_modes(), lambda mode: True).value
    'none'
    """
    return st.sampled_from(list(IndexerMode))


@st.composite
def indexer_requests(
    draw: st.DrawFn, modes: SearchStrategy[IndexerMode] | None = None, max_size: int = 6, max_length: int = 24
) -> dict[str, Any]:
    """Keyword arguments that ``indexer_task_plan`` accepts: every mode, every option that belongs to it.

    >>> from hypothesis import find
    >>> request = find(indexer_requests(), lambda request: request["mode"] == "hybrid")
    >>> sum(request["lengths"]) % request["size"], {"block_size", "zigzag_min_length"} <= set(request)
    (0, True)
    """
    mode = draw(modes or indexer_modes())
    size = draw(group_sizes(max_size))
    request: dict[str, Any] = {
        "lengths": draw(lengths(max_length=max_length, multiple_of=size)),
        "size": size,
        "ratio": draw(st.integers(1, 5)),
        "mode": mode.value,
    }
    local = sum(request["lengths"]) // size
    _draw_options(draw, request, mode, local, size)
    if mode in CAPACITY_MODES and draw(st.booleans()):
        # where rows do not fit, give room for all of them: only the planner knows how tight is possible
        tight = {**request, "capacity": draw(st.integers(local, size * local))}
        request["capacity"] = tight["capacity"] if _plans(tight) else size * local
    return request


def indexer_options() -> SearchStrategy[IndexerOptions]:
    """Resolved options of every mode.

    >>> from hypothesis import find
    >>> find(indexer_options(), lambda options: options.mode == "greedy").block_size > 0
    True
    """
    return indexer_task_plans().map(lambda plan: plan.options)


def indexer_task_plans(
    modes: SearchStrategy[IndexerMode] | None = None, max_size: int = 6, max_length: int = 24
) -> SearchStrategy[IndexerTaskPlan]:
    """Task plans of every mode; arguments as in ``indexer_requests``.

    >>> from hypothesis import find
    >>> find(indexer_task_plans(), lambda plan: plan.moved_rows > 0).size > 1
    True
    """
    return indexer_requests(modes, max_size, max_length).map(lambda request: indexer_task_plan(**request))


def indexer_routes(
    modes: SearchStrategy[IndexerMode] | None = None, max_size: int = 6, max_length: int = 24
) -> SearchStrategy[list[IndexerRoute]]:
    """The routes of all ranks of one plan, in rank order; arguments as in ``indexer_requests``.

    >>> from hypothesis import find
    >>> routes = find(indexer_routes(), lambda routes: routes[0].exchange.required)
    >>> len(routes) == routes[0].exchange.size
    True
    """
    plans = indexer_task_plans(modes, max_size, max_length)
    return plans.map(lambda plan: [plan_route(plan, rank) for rank in range(plan.size)])


def indexer_tasks() -> SearchStrategy[IndexerTask]:
    """Single tasks, as plans hold them.

    >>> from hypothesis import find
    >>> find(indexer_tasks(), lambda task: task.document == 1).start > 0
    True
    """
    plans = indexer_task_plans()
    return plans.flatmap(lambda plan: st.sampled_from([t for r in range(plan.size) for t in plan.worker_tasks(r)]))


def indexer_segments() -> SearchStrategy[IndexerSegment]:
    """Single segments, as routes hold them.

    >>> from hypothesis import find
    >>> find(indexer_segments(), lambda segment: segment.residual == 1).query_stop > 0
    True
    """
    segments = indexer_routes().map(lambda routes: [segment for route in routes for segment in route.segments])
    return segments.flatmap(st.sampled_from)


def indexer_plan_reports() -> SearchStrategy[IndexerPlanReport]:
    """Reports on task plans.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(indexer_plan_reports())
    ... def no_report_is_better_than_its_bound(report):
    ...     assert report.makespan_gap >= 0
    >>> no_report_is_better_than_its_bound()
    """
    width = st.integers(0, 2**20)
    return st.builds(indexer_plan_report, indexer_task_plans(), width, width)


def _draw_options(draw: st.DrawFn, request: dict[str, Any], mode: IndexerMode, local: int, size: int) -> None:
    if mode in BLOCK_MODES:  # always given: the default block is larger than the shards of a small pack
        request["block_size"] = draw(st.integers(1, local))
    if mode is IndexerMode.HYBRID:
        request["zigzag_min_length"] = draw(st.integers(1, 2 * max(request["lengths"])))
    if mode is IndexerMode.LOCALITY:
        if draw(st.booleans()):
            request["tolerance_ppm"] = draw(st.integers(0, 10**6))
        if draw(st.booleans()):
            request["ranks_per_node"] = draw(st.integers(1, size))
    if draw(st.booleans()):
        request["row_cost"] = draw(st.integers(0, 8))


def _plans(request: dict[str, Any]) -> bool:
    try:
        indexer_task_plan(**request)
    except PlanError as error:
        if error.code != "HP-INDEX-006":
            raise
        return False
    return True
