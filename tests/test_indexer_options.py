"""Options of a balance mode: what belongs to which, and what is refused."""

import numpy as np
import pytest

from hpfun import (
    IndexerMode,
    IndexerOptions,
    indexer_plan_report,
    indexer_task_plan,
    moved_rows_lower_bound,
    resolve_indexer_balance_block_size,
    validate_indexer_hybrid_threshold,
)
from hpfun.indexer.locality import balance_target
from tests.refusals import refused

MODES = ("none", "zigzag", "greedy", "hybrid", "locality")
NO_POSITIVE_INTEGERS = [
    (0, {"value": 0}),
    (-1, {"value": -1}),
    (True, {"type": "bool"}),
    (np.True_, {"type": "bool"}),
    (2.0, {"type": "float"}),
    ("2", {"type": "str"}),
]


def needs(mode):
    return {"zigzag_min_length": 4} if mode == "hybrid" else {}


def facts_of(caught):
    facts = dict(caught.error.facts)
    if str(facts.get("type", "")).startswith("bool"):
        facts["type"] = "bool"  # numpy 1 and 2 name their own bool differently
    return facts


@pytest.mark.rule("OPTION-1")
def test_the_modes_are_exactly_five_names():
    assert {mode.value for mode in IndexerMode} == set(MODES)
    for mode in MODES:
        assert IndexerOptions(mode, **needs(mode)).mode is IndexerMode(mode)
        assert IndexerOptions(IndexerMode(mode), **needs(mode)) == IndexerOptions(mode, **needs(mode))


@pytest.mark.rule("OPTION-1")
@pytest.mark.parametrize("mode", ["Greedy", "", "NONE", None, True, 1, b"none", ["none"], ("none",), {}])
def test_every_other_mode_is_refused_by_every_function_that_takes_one(mode):
    for call in (
        lambda: resolve_indexer_balance_block_size(mode, None),
        lambda: validate_indexer_hybrid_threshold(mode, None),
        lambda: IndexerOptions(mode),
        lambda: indexer_task_plan((5, 3, 8), 2, 1, mode),
    ):
        with refused("HP-INDEX-003") as caught:
            call()
        assert caught.error.facts["known"] == MODES
        assert caught.error.facts["got"] == repr(mode)


@pytest.mark.rule("OPTION-2")
def test_block_size_is_2048_by_default_and_belongs_to_greedy_and_hybrid():
    for mode in ("greedy", "hybrid"):
        assert resolve_indexer_balance_block_size(mode) == 2048
        assert resolve_indexer_balance_block_size(mode, 1) == 1
        assert type(resolve_indexer_balance_block_size(mode, np.int32(7))) is int
    for mode in ("none", "zigzag", "locality"):
        assert resolve_indexer_balance_block_size(mode) is None
        with refused("HP-INDEX-004") as caught:
            resolve_indexer_balance_block_size(mode, 2)
        assert caught.error.facts["mode"] == mode
        assert caught.error.facts["modes"] == ("greedy", "hybrid")


@pytest.mark.rule("OPTION-2")
@pytest.mark.parametrize("mode", ["greedy", "hybrid"])
@pytest.mark.parametrize(("value", "facts"), NO_POSITIVE_INTEGERS)
def test_a_block_size_that_is_no_positive_integer_is_refused(mode, value, facts):
    with refused("HP-INDEX-004") as caught:
        resolve_indexer_balance_block_size(mode, value)
    assert caught.error.where == "block_size"
    assert facts.items() <= facts_of(caught).items()


@pytest.mark.rule("OPTION-3")
@pytest.mark.parametrize("mode", ["greedy", "hybrid"])
def test_a_block_larger_than_a_shard_is_refused_and_names_the_shard(mode):
    assert indexer_task_plan((5, 3, 8), 2, 1, mode, block_size=8, **needs(mode)).options.block_size == 8
    for given in ({"block_size": 9}, {}):
        with refused("HP-INDEX-004") as caught:
            indexer_task_plan((5, 3, 8), 2, 1, mode, **given, **needs(mode))
        assert caught.error.facts == {"block_size": given.get("block_size", 2048), "local": 8}


@pytest.mark.rule("OPTION-4")
def test_hybrid_alone_has_a_threshold_and_must_have_it():
    assert validate_indexer_hybrid_threshold("hybrid", 1) == 1
    assert type(validate_indexer_hybrid_threshold("hybrid", np.int64(65536))) is int
    for call in (
        lambda: validate_indexer_hybrid_threshold("hybrid"),
        lambda: indexer_task_plan((5, 3, 8), 2, 1, "hybrid", block_size=2),
    ):
        with refused("HP-INDEX-005") as caught:
            call()
        assert caught.error.facts == {"mode": "hybrid"}
    for mode in ("none", "zigzag", "greedy", "locality"):
        assert validate_indexer_hybrid_threshold(mode) is None
        with refused("HP-INDEX-005") as caught:
            validate_indexer_hybrid_threshold(mode, 4)
        assert caught.error.facts["modes"] == ("hybrid",)


@pytest.mark.rule("OPTION-4")
@pytest.mark.parametrize(("value", "facts"), NO_POSITIVE_INTEGERS)
def test_a_threshold_that_is_no_positive_integer_is_refused(value, facts):
    with refused("HP-INDEX-005") as caught:
        validate_indexer_hybrid_threshold("hybrid", value)
    assert caught.error.where == "zigzag_min_length"
    assert facts.items() <= facts_of(caught).items()


@pytest.mark.rule("OPTION-5")
def test_capacity_belongs_to_the_modes_that_place_rows():
    for mode in ("greedy", "hybrid", "locality"):
        options = IndexerOptions(mode, capacity=np.int16(9), **needs(mode))
        assert type(options.capacity) is int
    for mode in ("none", "zigzag"):
        with refused("HP-INDEX-006") as caught:
            IndexerOptions(mode, capacity=9)
        assert caught.error.facts["modes"] == ("greedy", "hybrid", "locality")


@pytest.mark.rule("OPTION-5")
@pytest.mark.parametrize("mode", ["greedy", "hybrid", "locality"])
@pytest.mark.parametrize(("value", "facts"), NO_POSITIVE_INTEGERS)
def test_a_capacity_that_is_no_positive_integer_is_refused(mode, value, facts):
    with refused("HP-INDEX-006") as caught:
        IndexerOptions(mode, capacity=value, **needs(mode))
    assert caught.error.where == "capacity"
    assert facts.items() <= facts_of(caught).items()


@pytest.mark.rule("OPTION-6")
def test_tolerance_and_nodes_belong_to_locality_and_row_cost_to_every_mode():
    for mode in MODES:
        assert type(IndexerOptions(mode, row_cost=np.uint8(3), **needs(mode)).row_cost) is int
        assert IndexerOptions(mode, tolerance_ppm=0, **needs(mode)).tolerance_ppm == 0
        for given in ({"tolerance_ppm": 1}, {"ranks_per_node": 8}):
            if mode == "locality":
                assert IndexerOptions(mode, **given)
                continue
            with refused("HP-INDEX-011") as caught:
                IndexerOptions(mode, **given, **needs(mode))
            assert caught.error.where == next(iter(given))
            assert caught.error.facts["modes"] == ("locality",)


@pytest.mark.rule("OPTION-6")
@pytest.mark.parametrize("name", ["row_cost", "tolerance_ppm", "ranks_per_node"])
@pytest.mark.parametrize(("value", "facts"), NO_POSITIVE_INTEGERS[1:])
def test_a_number_option_out_of_range_is_refused(name, value, facts):
    with refused("HP-INDEX-011") as caught:
        IndexerOptions("locality", **{name: value})
    assert caught.error.where == name
    assert facts.items() <= facts_of(caught).items()


@pytest.mark.rule("OPTION-6")
def test_a_node_of_no_rank_is_refused():
    with refused("HP-INDEX-011") as caught:
        IndexerOptions("locality", ranks_per_node=0)
    assert caught.error.facts["value"] == 0


@pytest.mark.rule("OPTION-6")
@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_makespan_and_bytes_out_of_range_are_refused(value):
    with refused("HP-INDEX-011") as caught:
        moved_rows_lower_bound((5, 3, 8), 2, 1, value)
    assert caught.error.where == "makespan"
    plan = indexer_task_plan((5, 3, 8), 2, 1, "none")
    for name in ("bytes_per_row_out", "bytes_per_row_back"):
        with refused("HP-INDEX-011") as caught:
            indexer_plan_report(plan, **{name: value})
        assert caught.error.where == name


@pytest.mark.rule("OPTION-6", "LOCAL-7")
def test_a_node_larger_than_any_group_is_one_node():
    plan = indexer_task_plan((5, 3, 8), 2, 1, "locality", ranks_per_node=2**70)
    assert plan.loads.tolist() == [29, 28]


@pytest.mark.rule("LOCAL-4")
@pytest.mark.parametrize(
    ("total", "size", "ppm", "target"),
    [
        (57, 2, 0, 29),
        (56, 2, 0, 28),
        (1_000_000, 8, 1000, 125_125),
        (0, 4, 500, 0),
        (2**60 + 1, 2**20, 0, 2**40 + 1),
        (2**60, 3, 1, -(-(2**60) * 1_000_001 // 3_000_000)),
    ],
)
def test_the_target_is_the_mean_plus_the_tolerance_rounded_up(total, size, ppm, target):
    assert balance_target(total, size, ppm) == target
