"""Hypothesis strategies for every public value, to property-test planners, routers and executors.

Each strategy gives values that exist, so they are valid; together they reach the edges that break routers:
documents of one token, documents longer than a shard, ranks without rows, groups of one, movements that stay
at home. ``specs/testing.md`` shows a test of a user's own router. Needs the extra ``testing``; no other module
imports this one.
"""

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
from hpfun.exchange_strategies import row_exchanges
from hpfun.indexer_strategies import (
    indexer_modes,
    indexer_options,
    indexer_plan_reports,
    indexer_requests,
    indexer_routes,
    indexer_segments,
    indexer_task_plans,
    indexer_tasks,
)
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
