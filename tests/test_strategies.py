"""The strategies give valid values only, and reach the edges that break routers."""

import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hpfun
import hpfun.attention
import hpfun.batch
import hpfun.dense
import hpfun.sharding
from hpfun import IndexerMode, indexer_task_plan, strategies
from tests import laws


class Found(Exception):
    """Raised at the first value with the edge."""


def reaches(strategy, condition, tries=2000):
    """Whether a value with the condition comes up; the first one ends the search, nothing is shrunk."""

    @settings(
        max_examples=tries,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def look(value):
        if condition(value):
            raise Found

    try:
        look()
    except Found:
        return True
    return False


@given(st.integers(1, 6), st.integers(1, 20), st.data())
def test_lengths_divide_and_keep_their_limits(max_documents, max_length, data):
    multiple = data.draw(st.integers(1, max_documents * max_length))
    values = data.draw(strategies.lengths(max_documents, max_length, multiple))
    assert 1 <= len(values) <= max_documents
    assert all(type(value) is int and 1 <= value <= max_length for value in values)
    assert sum(values) % multiple == 0


def test_lengths_that_cannot_divide_are_an_error_at_once():
    with pytest.raises(ValueError, match="multiple_of is 7"):
        strategies.lengths(max_documents=2, max_length=3, multiple_of=7)


@given(st.integers(1, 40), st.data())
def test_group_sizes_cut_the_rows_evenly(rows, data):
    assert rows % data.draw(strategies.group_sizes(8, rows=rows)) == 0


@given(strategies.indexer_requests())
def test_every_request_has_a_plan(request):
    plan = indexer_task_plan(**request)
    assert plan.size == request["size"]
    assert plan.options.mode == request["mode"]


@given(strategies.indexer_routes())
def test_routes_are_those_of_all_ranks_and_keep_the_laws(routes):
    exchanges = [route.exchange for route in routes]
    assert [part.rank for part in exchanges] == list(range(len(routes)))
    laws.all_laws(exchanges)


@given(strategies.sequence_routes())
def test_sequence_routes_are_those_of_all_ranks_and_keep_the_laws(routes):
    exchanges = [route.exchange for route in routes]
    assert [part.rank for part in exchanges] == list(range(len(routes)))
    laws.all_laws(exchanges)


@given(strategies.compression_plans())
def test_compression_plans_are_those_of_all_ranks(plans):
    assert [plan.halo.exchange.rank for plan in plans] == list(range(plans[0].halo.exchange.size))
    assert {plan.max_blocks for plan in plans} == {max(plan.num_blocks for plan in plans)}
    hpfun.check_exchanges([plan.halo.exchange for plan in plans])


@given(strategies.sequence_requests())
def test_every_sequence_request_has_banks(request):
    plan = hpfun.sliding_window_plan(**request, window=3)
    assert (plan.size, plan.total_rows) == (request["size"], request["boundaries"].total)


@given(strategies.row_exchanges())
def test_row_exchanges_are_those_of_all_ranks(exchanges):
    hpfun.check_exchanges(exchanges)


@given(st.booleans(), st.data())
def test_reduce_and_permutation_are_as_asked(reduce, data):
    exchanges = data.draw(strategies.row_exchanges(reduce=reduce, permutation=True))
    assert {part.reduce for part in exchanges} == {reduce}
    assert all(part.is_permutation for part in exchanges)


def falling(exchange):
    """Whether two rows from one rank arrive in falling slots."""
    ends = exchange.output_splits.cumsum()
    stretches = [exchange.receive_rows[end - n : end] for end, n in zip(ends, exchange.output_splits, strict=True)]
    return any((stretch[1:] < stretch[:-1]).any() for stretch in stretches)


EXCHANGE_EDGES = {
    "a group of one": lambda ranks: len(ranks) == 1,
    "a group of four": lambda ranks: len(ranks) == 4,
    "no rank sends anything, rows stay": lambda ranks: (
        len(ranks) > 1 and not ranks[0].required and any(len(x.local_sources) for x in ranks)
    ),
    "nothing at all": lambda ranks: len(ranks) > 1 and not any(len(x.targets) for x in ranks),
    "a rank without source rows in a busy group": lambda ranks: (
        ranks[0].required and any(x.num_source_rows == 0 for x in ranks)
    ),
    "a rank without target rows in a busy group": lambda ranks: (
        ranks[0].required and any(x.num_target_rows == 0 for x in ranks)
    ),
    "an idle rank in a busy group": lambda ranks: (
        ranks[0].required and any(not len(x.send_rows) and not len(x.receive_rows) for x in ranks)
    ),
    "slots left to fill": lambda ranks: not ranks[0].reduce and any(x.num_unwritten and len(x.targets) for x in ranks),
    "an unused source row": lambda ranks: any(len(set(x.sources.tolist())) < x.num_source_rows for x in ranks),
    "a row sent twice": lambda ranks: any(len(set(x.send_rows.tolist())) < len(x.send_rows) for x in ranks),
    "a row sent and kept": lambda ranks: any(set(x.send_rows.tolist()) & set(x.local_sources.tolist()) for x in ranks),
    "a slot added to from two ranks": lambda ranks: any(
        x.reduce and len(set(x.receive_rows.tolist())) < len(x.receive_rows) for x in ranks
    ),
    "rows in falling slots between two ranks": lambda ranks: any(map(falling, ranks)),
    "a permutation that moves": lambda ranks: ranks[0].required and all(x.is_permutation for x in ranks),
}


@pytest.mark.parametrize("edge", EXCHANGE_EDGES)
def test_row_exchanges_reach(edge):
    assert reaches(strategies.row_exchanges(), EXCHANGE_EDGES[edge])


def local(plan):
    """Rows of one shard."""
    return plan.local_rows


PLAN_EDGES = {
    "one document of one token": lambda plan: plan.documents.total == 1,
    "a document shorter than the group": lambda plan: int(plan.documents.lengths.min()) < plan.size,
    "a document longer than a shard": lambda plan: int(plan.documents.lengths.max()) > local(plan),
    "a group of one": lambda plan: plan.size == 1,
    "one row a rank": lambda plan: plan.size > 1 and local(plan) == 1,
    "no work at all": lambda plan: int(plan.loads.sum()) == 0,
    "a worker without rows": lambda plan: int(plan.row_counts.min()) == 0,
    "a worker with more rows than a shard": lambda plan: int(plan.row_counts.max()) > local(plan),
    "nothing moves though balancing": lambda plan: plan.options.mode != "none" and plan.moved_rows == 0,
    "a capacity that binds": lambda plan: (
        plan.options.capacity is not None and int(plan.row_counts.max()) == plan.options.capacity
    ),
    "a tolerance": lambda plan: plan.options.tolerance_ppm > 0 and plan.moved_rows > 0,
    "a row cost": lambda plan: plan.options.row_cost > 0,
    "nodes that do not divide the group": lambda plan: (
        plan.options.ranks_per_node is not None and plan.size % plan.options.ranks_per_node != 0
    ),
    **{f"mode {mode.value} that moves": None for mode in IndexerMode if mode is not IndexerMode.NONE},
}


@pytest.mark.parametrize("edge", PLAN_EDGES)
def test_task_plans_reach(edge):
    condition = PLAN_EDGES[edge]
    if condition is None:
        name = edge.split()[1]
        assert reaches(
            strategies.indexer_task_plans(), lambda plan: plan.options.mode.value == name and plan.moved_rows > 0
        )
    else:
        assert reaches(strategies.indexer_task_plans(), condition)


def spans_ranks(plan):
    """Whether a bank takes rows of more than one rank in front of its own."""
    return max(hpfun.sequence_report(plan).senders.tolist()) > 1


BANK_EDGES = {
    "a group of one": lambda plan: plan.size == 1,
    "no row moves": lambda plan: plan.size > 1 and not plan.required,
    "a window that spans ranks": lambda plan: plan.kind == "window" and spans_ranks(plan),
    "a prefix that spans ranks": lambda plan: plan.kind == "prefix" and spans_ranks(plan),
    "a halo that spans ranks": lambda plan: plan.kind == "halo" and spans_ranks(plan),
    "a rank without keys in a busy group": lambda plan: plan.required and int(plan.own_rows.min()) == 0,
    "no key at all": lambda plan: plan.total_rows == 0,
    "banks whose starts fall": lambda plan: bool((plan.bank_starts[1:] < plan.bank_starts[:-1]).any()),
    "one row a rank": lambda plan: plan.size > 1 and set(plan.own_rows.tolist()) == {1},
}


@pytest.mark.parametrize("edge", BANK_EDGES)
def test_bank_plans_reach(edge):
    assert reaches(strategies.sequence_bank_plans(), BANK_EDGES[edge])


COMPRESSION_EDGES = {
    "overlap": lambda plans: plans[0].overlap,
    "no overlap": lambda plans: not plans[0].overlap,
    "a rank without blocks in a busy group": lambda plans: (
        plans[0].halo.exchange.required and any(plan.num_blocks == 0 for plan in plans)
    ),
    "no block at all": lambda plans: plans[0].max_blocks == 0,
    "a block that lacks the one before": lambda plans: any((plan.block_rows == -1).any() for plan in plans),
    "a halo longer than a shard": lambda plans: any(plan.halo.halo_rows > plan.halo.local_length for plan in plans),
}


@pytest.mark.parametrize("edge", COMPRESSION_EDGES)
def test_compression_plans_reach(edge):
    assert reaches(strategies.compression_plans(), COMPRESSION_EDGES[edge])


VALUE_EDGES = {
    "no row": (strategies.row_runs, lambda runs: len(runs) == 0),
    "rows twice": (strategies.row_runs, lambda runs: len(set(runs.rows.tolist())) < len(runs)),
    "falling rows": (strategies.row_runs, lambda runs: (np.diff(runs.rows) < 0).any()),
    "a shard inside a document": (strategies.packed_sequences, lambda shard: len(shard.segments(1)) == 1),
    "a whole pack": (strategies.packed_sequences, lambda shard: shard.local_length == shard.global_length > 1),
    "rows that take no part": (strategies.csa_tnd_plans, lambda plan: int(plan.query_starts[0]) > 0),
    "a residual": (strategies.csa_tnd_plans, lambda plan: int(plan.residuals.max()) > 0),
    "bytes beyond int64": (strategies.sequence_reports, lambda report: report.moved_bytes > 2**63),
    "no byte": (strategies.sequence_reports, lambda report: report.moved_rows > 0 == report.bytes_per_row),
}


@pytest.mark.parametrize("edge", VALUE_EDGES)
def test_sequence_values_reach(edge):
    strategy, condition = VALUE_EDGES[edge]
    assert reaches(strategy(), condition)


def moves_keys(plan):
    """Whether some rank's keys go to another."""
    return any(plan.prefix_plan(ratio).required for ratio in plan.config.sharing.ratios)


ATTENTION_EDGES = {
    "a group of one": lambda plan: plan.size == 1,
    "keys that move": lambda plan: plan.size > 1 and moves_keys(plan),
    "rows that are shared out": lambda plan: (
        plan.balanced and any(plan.indexer_plan(ratio).moved_rows for ratio in plan.config.choosing_ratios)
    ),
    "balance with nothing to choose": lambda plan: plan.balanced and not plan.config.choosing_ratios,
    "two ratios that choose": lambda plan: len(plan.config.choosing_ratios) > 1,
    "no window": lambda plan: plan.window_plan() is None,
    "a window wider than the pack": lambda plan: plan.config.window > plan.documents.total,
    "blocks that overlap": lambda plan: len(plan.config.overlapping_ratios) > 0,
    "shared keys": lambda plan: (
        plan.config.sharing.kv_sources is not None
        and len(plan.config.sharing.kv_sources) < plan.config.sharing.num_layers
    ),
    "a choice that is reused": lambda plan: any(
        plan.config.sharing.index_source(layer) not in (None, layer) for layer in range(plan.config.sharing.num_layers)
    ),
    "a dense layer among choosing ones": lambda plan: (
        len(plan.config.sharing.dense_layers) > 0 and len(plan.config.sharing.index_sources) > 0
    ),
}


@pytest.mark.parametrize("edge", ATTENTION_EDGES)
def test_attention_plans_reach(edge):
    assert reaches(strategies.attention_plans(), ATTENTION_EDGES[edge])


@given(strategies.overlap_options())
def test_overlap_options_have_a_schedule(options):
    assert hpfun.attention.overlap_schedule(options).events[-1] == "compute attention"


BATCH_EDGES = {
    "no token": lambda plan: plan.num_tokens == 0,
    "a document without tokens": lambda plan: len(plan.dropped_documents) > 0 and plan.num_tokens > 0,
    "a rank with padding alone": lambda plan: (
        plan.num_tokens > 0 and plan.real_rows(plan.topology.cp_size - 1) == 0 and plan.topology.cp_size > 1
    ),
    "no padding": lambda plan: plan.num_tokens == plan.padded_length > 2,
    "padding inside zigzag documents": lambda plan: plan.layout == "zigzag" and plan.padding.count > len(plan.lengths),
    "parts for tensor-parallel ranks": lambda plan: plan.topology.row_parts == 3,
    "a document over all ranks": lambda plan: plan.topology.cp_size == 4 and len(plan.padded_lengths) == 1,
    "more alignment than required": lambda plan: plan.alignment > 12 * plan.topology.cp_size,
}


@pytest.mark.parametrize("edge", BATCH_EDGES)
def test_batch_plans_reach(edge):
    assert reaches(strategies.batch_plans(), BATCH_EDGES[edge])


SHARDING_EDGES = {
    "a dense model": (strategies.model_facts, lambda facts: not facts.num_experts),
    "experts of a width": (strategies.model_facts, lambda facts: facts.num_experts and facts.moe_intermediate_size),
    "grouped heads": (
        strategies.model_facts,
        lambda facts: (facts.num_attention_heads or 0) > (facts.num_key_value_heads or 99),
    ),
    "no layout": (strategies.model_facts, lambda facts: facts.cp_layouts == ()),
    "a mesh of one rank": (strategies.mesh_shapes, lambda mesh: mesh.axes == ()),
    "an axis of experts": (strategies.mesh_shapes, lambda mesh: (mesh.size("ep") or 1) > 1),
    "cp inside of tp": (strategies.mesh_shapes, lambda mesh: [axis for axis, _ in mesh.axes] == ["tp", "cp"]),
    "all degrees": (
        strategies.sharding_requests,
        lambda request: min(request.tp_size, request.cp_size, request.ep_size) > 1 and request.seq_len is not None,
    ),
}


@pytest.mark.parametrize("edge", SHARDING_EDGES)
def test_sharding_values_reach(edge):
    strategy, condition = SHARDING_EDGES[edge]
    assert reaches(strategy(), condition)


DENSE_EDGES = {
    "keys from other ranks": lambda route: route.received_rows > 0 and route.bank is not None,
    "a gathered group": lambda route: route.bank is None and route.received_rows > 0,
    "a window that hides keys": lambda route: 0 < route.blocks.window < int(route.blocks.key_stops.max()),
    "a block without a mask among others": lambda route: (
        0 < int(route.blocks.triangular.sum()) < len(list(route.blocks))
    ),
    "a rank of one document": lambda route: len(route.blocks.bank_lengths) == 1,
}


@pytest.mark.parametrize("edge", DENSE_EDGES)
def test_dense_routes_reach(edge):
    assert reaches(strategies.dense_routes(), DENSE_EDGES[edge])


def test_every_public_value_has_a_strategy():
    values = {
        name
        for package in (hpfun, hpfun.recompute, hpfun.attention, hpfun.batch, hpfun.sharding, hpfun.dense)
        for name in package.__all__
        if inspect.isclass(getattr(package, name)) and hasattr(getattr(package, name), "digest")
    }
    produced = set()

    @settings(max_examples=2000, database=None, derandomize=True, deadline=None)
    @given(strategies.plan_values())
    def collect(value):
        produced.add(type(value).__name__)

    collect()
    assert values <= produced
