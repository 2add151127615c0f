"""Hypothesis strategies for every public value, to property-test planners, routers and executors.

Each strategy gives values that exist, so they are valid; together they reach the edges that break routers:
documents of one token, documents longer than a shard, ranks without rows, groups of one, movements that stay
at home. ``specs/testing.md`` shows a test of a user's own router. Needs the extra ``testing``; no other module
imports this one.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.attention_strategies import (
    attention_configs,
    attention_plans,
    attention_segments,
    attention_values,
    layer_sharings,
    overlap_options,
    overlap_schedules,
)
from hpfun.batch_strategies import (
    batch_manifests,
    batch_plans,
    batch_requests,
    batch_topologies,
    batch_values,
    batch_views,
    decoder_layouts,
    document_lengths,
    field_specs,
    loss_scales,
    plain_values,
)
from hpfun.dense_strategies import causal_blocks, dense_routes, dense_values
from hpfun.difference import Change, diff
from hpfun.errors import CODES, PlanError, Violation
from hpfun.exchange import RowExchange, transpose
from hpfun.indexer.options import BLOCK_MODES, CAPACITY_MODES, IndexerMode, IndexerOptions
from hpfun.indexer.report import IndexerPlanReport, indexer_plan_report
from hpfun.indexer.route import IndexerRoute, plan_route
from hpfun.indexer.segments import IndexerSegment
from hpfun.indexer.tasks import IndexerTask, IndexerTaskPlan, indexer_task_plan
from hpfun.outcome import Outcome
from hpfun.pack_strategies import group_sizes, lengths, packed_documents
from hpfun.recompute_strategies import (
    budget_results,
    estimates,
    module_trees,
    recompute_plans,
    recompute_requests,
    recompute_values,
    region_sizes,
    schedules,
)
from hpfun.sequence_strategies import (
    compression_plans,
    csa_tnd_plans,
    packed_sequences,
    row_runs,
    sequence_bank_plans,
    sequence_reports,
    sequence_requests,
    sequence_routes,
)
from hpfun.sharding_strategies import mesh_shapes, model_facts, sharding_requests, sharding_values

__all__ = [
    "attention_configs",
    "attention_plans",
    "attention_segments",
    "attention_values",
    "batch_manifests",
    "batch_plans",
    "batch_requests",
    "batch_topologies",
    "batch_values",
    "batch_views",
    "budget_results",
    "causal_blocks",
    "changes",
    "compression_plans",
    "csa_tnd_plans",
    "decoder_layouts",
    "dense_routes",
    "dense_values",
    "document_lengths",
    "estimates",
    "field_specs",
    "group_sizes",
    "indexer_modes",
    "indexer_options",
    "indexer_plan_reports",
    "indexer_requests",
    "indexer_routes",
    "indexer_segments",
    "indexer_task_plans",
    "indexer_tasks",
    "layer_sharings",
    "lengths",
    "loss_scales",
    "mesh_shapes",
    "model_facts",
    "module_trees",
    "outcomes",
    "overlap_options",
    "overlap_schedules",
    "packed_documents",
    "packed_sequences",
    "plain_values",
    "plan_errors",
    "plan_values",
    "recompute_plans",
    "recompute_requests",
    "recompute_values",
    "region_sizes",
    "row_exchanges",
    "row_runs",
    "schedules",
    "sequence_bank_plans",
    "sequence_reports",
    "sequence_requests",
    "sequence_routes",
    "sharding_requests",
    "sharding_values",
    "violations",
]

Move = tuple[int, int, int, int]  # source rank, source row, target rank, target slot


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


@st.composite
def row_exchanges(
    draw: st.DrawFn,
    max_size: int = 4,
    max_rows: int = 6,
    reduce: bool | None = None,
    permutation: bool | None = None,
) -> list[RowExchange]:
    """The exchanges of all ranks of one random movement, in rank order.

    Placing, with slots left to ``fill``, source rows used often or never, ranks without rows, movements that
    stay at home, and any order between two ranks; with ``reduce`` true such movements transposed, with None
    both. With ``permutation`` true every source row goes to exactly one slot and every slot is written, with
    false anything goes, with None both.

    >>> from hypothesis import find
    >>> busy = find(row_exchanges(max_size=2, max_rows=1), lambda exchanges: exchanges[0].required)
    >>> [(exchange.rank, exchange.size, exchange.required) for exchange in busy]
    [(0, 2, True), (1, 2, True)]
    """
    size = draw(group_sizes(max_size))
    permutation = draw(st.booleans()) if permutation is None else permutation
    counts = st.lists(st.integers(0, max_rows), min_size=size, max_size=size)
    sources = draw(counts)
    targets = draw(st.permutations(sources)) if permutation else draw(counts)
    moves = draw(_permuted_moves(sources, targets) if permutation else _any_moves(sources, targets))
    order = draw(st.permutations(range(len(moves))))
    exchanges = _exchanges(sources, targets, [moves[at] for at in order])
    backwards = draw(st.booleans()) if reduce is None else reduce
    return [transpose(exchange) for exchange in exchanges] if backwards else exchanges


def violations() -> SearchStrategy[Violation]:
    """Violations of any known code, with facts of every kind that facts may be.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(violations())
    ... def a_line_starts_with_the_code(violation):
    ...     assert violation.line().startswith(f"[{violation.code}]")
    >>> a_line_starts_with_the_code()
    """
    names = st.sampled_from(["size", "rank", "rows", "shape", "type"])
    number = st.integers(-(2**70), 2**70)
    fact = number | st.booleans() | st.text(max_size=8) | st.tuples(number, number)
    facts = st.dictionaries(names, fact | st.dictionaries(names, fact, max_size=2), max_size=4)
    places = st.sampled_from(["", "rank", "exchange.send_rows", "shards[3]"])
    return st.builds(
        Violation,
        code=st.sampled_from(sorted(CODES)),
        where=places,
        message=st.sampled_from(["broken", "got 3, legal is 0..2"]),
        facts=facts,
        suggestion=st.sampled_from(["", "pass rank=0"]),
    )


def plan_errors() -> SearchStrategy[PlanError]:
    """Errors with one or more violations.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(plan_errors())
    ... def the_code_is_the_first_violation_s(error):
    ...     assert error.code == error.violations[0].code
    >>> the_code_is_the_first_violation_s()
    """
    return st.lists(violations(), min_size=1, max_size=3).map(lambda found: PlanError(*found))


def outcomes() -> SearchStrategy[Outcome]:
    """Outcomes of one rank: fine, refused, or failed with another exception.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(outcomes())
    ... def only_failures_have_a_code(outcome):
    ...     assert outcome.ok == (outcome.code == "")
    >>> only_failures_have_a_code()
    """
    others = st.sampled_from([ZeroDivisionError("division by zero"), KeyError("name")])
    return st.just(Outcome()) | plan_errors().map(Outcome.of) | others.map(Outcome.of)


def changes() -> SearchStrategy[Change]:
    """Differences of two packs, or of the options of two plans.

    >>> from hypothesis import find
    >>> find(changes(), lambda change: change.path == "lengths").before[:9]
    '1 entries'
    """
    pairs = st.tuples(packed_documents(), packed_documents()) | st.tuples(indexer_options(), indexer_options())
    return pairs.map(lambda pair: diff(*pair)).filter(bool).flatmap(st.sampled_from)


def plan_values() -> SearchStrategy[Any]:
    """Any public plan value: what JSON, digests and pickles must carry.

    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, deadline=None)
    ... @given(plan_values())
    ... def a_digest_is_64_hex_digits(value):
    ...     assert len(value.digest) == 64
    >>> a_digest_is_64_hex_digits()
    """
    return st.one_of(
        packed_documents(),
        row_exchanges().flatmap(st.sampled_from),
        outcomes(),
        indexer_options(),
        indexer_tasks(),
        indexer_segments(),
        indexer_task_plans(),
        indexer_routes().flatmap(st.sampled_from),
        indexer_plan_reports(),
        row_runs(),
        sequence_bank_plans(),
        sequence_routes().flatmap(st.sampled_from),
        compression_plans().flatmap(st.sampled_from),
        packed_sequences(),
        csa_tnd_plans(),
        sequence_reports(),
        recompute_values(),
        attention_values(),
        batch_values(),
        sharding_values(),
        dense_values(),
        changes(),
    )


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


@st.composite
def _any_moves(draw: st.DrawFn, sources: Sequence[int], targets: Sequence[int]) -> list[Move]:
    rows = [(rank, row) for rank, count in enumerate(sources) for row in range(count)]
    at_home = draw(st.booleans())
    moves: list[Move] = []
    for target, count in enumerate(targets):
        near = [row for row in rows if not at_home or row[0] == target]
        slot_sources = st.sampled_from([None, *near])
        for slot, source in enumerate(draw(st.lists(slot_sources, min_size=count, max_size=count))):
            if source is not None:
                moves.append((*source, target, slot))
    return moves


@st.composite
def _permuted_moves(draw: st.DrawFn, sources: Sequence[int], targets: Sequence[int]) -> list[Move]:
    rows = [(rank, row) for rank, count in enumerate(sources) for row in range(count)]
    slots = [(rank, slot) for rank, count in enumerate(targets) for slot in range(count)]
    return [(*row, *slot) for row, slot in zip(rows, draw(st.permutations(slots)), strict=True)]


def _exchanges(sources: Sequence[int], targets: Sequence[int], moves: Sequence[Move]) -> list[RowExchange]:
    """The placing exchanges of ``moves``; two ranks list the rows between them as ``moves`` does."""
    size = len(sources)
    required = any(source != target for source, _, target, _ in moves)
    exchanges = []
    for rank in range(size):
        sent = [[m[1] for m in moves if m[0] == rank and m[2] == peer != rank] for peer in range(size)]
        received = [[m[3] for m in moves if m[2] == rank and m[0] == peer != rank] for peer in range(size)]
        kept = [m for m in moves if m[0] == m[2] == rank]
        exchanges.append(
            RowExchange(
                size=size,
                rank=rank,
                num_source_rows=sources[rank],
                num_target_rows=targets[rank],
                send_rows=[row for rows in sent for row in rows],
                input_splits=[len(rows) for rows in sent],
                output_splits=[len(slots) for slots in received],
                receive_rows=[slot for slots in received for slot in slots],
                local_sources=[m[1] for m in kept],
                local_targets=[m[3] for m in kept],
                required=required,
            )
        )
    return exchanges
