"""Degrees of parallelism against sizes of models and meshes: what fits, what does not, and the way out of it."""

from fractions import Fraction
from itertools import product

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoConfig

from hpfun import from_json, strategies, to_json
from hpfun.errors import collect, refuse_all
from hpfun.sharding import (
    MeshShape,
    ModelFacts,
    ShardingRequest,
    check_degrees,
    check_mesh,
    check_model,
    legal_degrees,
    sequence_alignment,
    validate_parallel_sizes,
)
from tests.odd_values import no_counts
from tests.oracles import sharding as loops
from tests.refusals import refused

BOTH = ("zigzag", "contiguous")
OVER_TP = {"HP-SHARD-002", "HP-SHARD-003", "HP-SHARD-004"}


def model(heads=None, kv=None, **more):
    return ModelFacts(num_attention_heads=heads, num_key_value_heads=kv, **{"cp_layouts": BOTH, **more})


def mesh_of(**axes):
    return MeshShape(axes=tuple(axes.items()))


def told(violations):
    return [(violation.code, violation.where) for violation in violations]


def facts_of(violations, code):
    (found,) = [dict(violation.facts) for violation in violations if violation.code == code]
    return found


MISFIT = model(28, 4, moe_intermediate_size=770, num_experts=60)


# --- reports ---


@pytest.mark.rule("SHARD-1", "SHARD-2")
def test_five_misfits_are_five_violations_in_one_report():
    request = ShardingRequest(tp_size=8, ep_size=8, cp_size=4, seq_len=1004, sequence_parallel=False)
    found = check_model(MISFIT, request)
    assert told(found) == [
        ("HP-SHARD-002", "num_attention_heads"),
        ("HP-SHARD-003", "num_key_value_heads"),
        ("HP-SHARD-004", "moe_intermediate_size"),
        ("HP-SHARD-005", "num_experts"),
        ("HP-SHARD-008", "seq_len"),
    ]
    assert [dict(violation.facts) for violation in found] == [
        {"heads": 28, "tp": 8, "legal": (1, 2)},
        {"kv": 4, "tp": 8, "legal": (1, 2)},
        {"name": "moe_intermediate_size", "width": 770, "tp": 8, "legal": (1, 2)},
        {"experts": 60, "ep": 8, "legal": (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)},
        {"seq_len": 1004, "alignment": 8, "below": 1000, "above": 1008},
    ]


@pytest.mark.rule("SHARD-1")
@given(strategies.model_facts(), strategies.sharding_requests(), strategies.mesh_shapes())
def test_all_that_is_wrong_is_told_once_in_the_order_of_code_and_place(facts, request, mesh):
    options = attrs.asdict(request)
    found = check_degrees(facts, mesh, **options)
    assert told(found) == sorted(loops.model_misfits(facts, request) | loops.mesh_misfits(mesh, request))
    assert all(violation.suggestion for violation in found)
    assert check_degrees(facts, **options) == check_model(facts, request)
    assert told(check_mesh(mesh, request)) == sorted(loops.mesh_misfits(mesh, request))


@pytest.mark.rule("SHARD-1")
def test_what_cannot_be_read_is_told_with_what_does_not_fit():
    sizes = {"num_attention_heads": 28, "num_experts": 6}
    found = check_degrees(sizes, tp_size=8, cp_size=True, ep_size=4)
    assert told(found) == [
        ("HP-SHARD-002", "num_attention_heads"),
        ("HP-SHARD-005", "num_experts"),
        ("HP-SHARD-009", "cp_size"),
    ]
    found = check_degrees({**sizes, "num_experts": 6.5}, tp_size=8, cp_size=True, ep_size=4)
    assert told(found) == [
        ("HP-SHARD-002", "num_attention_heads"),
        ("HP-SHARD-009", "cp_size"),
        ("HP-SHARD-009", "num_experts"),
    ]


OPTIONS = {
    "tp_size": range(1, 9),
    "cp_size": range(1, 5),
    "ep_size": range(1, 9),
    "sequence_parallel": (False, True),
    "seq_len": (None, *range(1, 49)),
    "cp_layout": BOTH,
    "kv_replicate": (False, True),
}
SIZES = {
    "num_attention_heads": range(1, 33),
    "num_key_value_heads": range(1, 9),
    "num_experts": range(9),
    "moe_intermediate_size": range(1, 33),
    "cp_layouts": ((), ("zigzag",), ("contiguous",), BOTH),
}


@pytest.mark.rule("SHARD-1")
@pytest.mark.parametrize("field", [*OPTIONS, *SIZES])
@given(facts=strategies.model_facts(), request=strategies.sharding_requests(), mesh=strategies.mesh_shapes())
@example(facts=ModelFacts(), request=ShardingRequest(cp_size=2, seq_len=6), mesh=mesh_of(cp=2))
@example(facts=model(8, 2), request=ShardingRequest(tp_size=4, ep_size=4), mesh=mesh_of(tp=4, ep=4))
def test_what_is_told_beside_a_bad_field_holds_whatever_the_field_becomes(field, facts, request, mesh):
    options, sizes = attrs.asdict(request), attrs.asdict(facts)
    given_sizes, given_options = (dict(sizes, **{field: "bad"}), options) if field in SIZES else (sizes, options)
    if field in OPTIONS:
        given_options = dict(options, **{field: "bad"})
    found = told(check_degrees(given_sizes, mesh, **given_options))
    assert [where for code, where in found if code == "HP-SHARD-009"] == [field]
    for value in {**OPTIONS, **SIZES}[field]:
        if field in SIZES:
            mended = check_degrees(dict(sizes, **{field: value}), mesh, **options)
        else:
            mended = check_degrees(sizes, mesh, **dict(options, **{field: value}))
        assert set(found) - {("HP-SHARD-009", field)} <= set(told(mended))


def test_an_option_that_does_not_exist_is_a_type_error():
    with pytest.raises(TypeError, match="tp"):
        check_degrees(ModelFacts(), tp=2)


# --- degrees and sizes ---


@pytest.mark.rule("SHARD-2")
@pytest.mark.parametrize(
    ("counts", "legal"),
    [
        ((40, 8), (1, 2, 4, 8)),
        ((28, 4), (1, 2, 4)),
        ((32, 4, 768), (1, 2, 4)),
        ((64, 1), (1,)),
        ((60,), (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)),
    ],
)
def test_legal_degrees_divide_all_counts(counts, legal):
    assert legal_degrees(*counts) == legal


@pytest.mark.rule("SHARD-2")
def test_legal_degrees_of_all_small_counts_are_those_that_deal_evenly():
    for counts in product(range(1, 25), repeat=2):
        assert list(legal_degrees(*counts)) == loops.degrees(counts, min(counts))
    assert legal_degrees(2**31 - 1) == (1, 2**31 - 1)
    with refused("HP-SHARD-009"):
        legal_degrees()
    with refused("HP-SHARD-009") as caught:
        legal_degrees(4, 0, 2.0)
    assert [violation.where for violation in caught.error.violations] == ["counts[1]", "counts[2]"]


@pytest.mark.rule("SHARD-2")
def test_heads_that_do_not_divide_are_refused():
    with refused("HP-SHARD-002") as caught:
        validate_parallel_sizes({"num_attention_heads": 28, "num_key_value_heads": 8}, tp=8)
    assert dict(caught.error.facts) == {"heads": 28, "tp": 8, "legal": (1, 2, 4)}
    assert caught.error.where == "num_attention_heads"


@pytest.mark.rule("SHARD-2", "SHARD-3", "SHARD-4", "SHARD-5")
def test_small_models_fit_exactly_the_degrees_that_deal_evenly():
    for heads, kv, width, experts in product((4, 6, None), (2, 3, None), (4, 9, None), (0, 4, 6)):
        facts = model(heads, kv, moe_intermediate_size=width, num_experts=experts)
        for tp, ep, replicate in product(range(1, 7), range(1, 5), (False, True)):
            request = ShardingRequest(tp_size=tp, ep_size=ep, kv_replicate=replicate)
            found = check_model(facts, request)
            assert set(told(found)) == loops.model_misfits(facts, request)
            counts = [count for count in (heads, width if ep > 1 else None) if count is not None]
            for violation in found:
                if violation.code in OVER_TP:
                    legal = [degree for degree in loops.degrees(counts, 12) if loops.kv_fits(kv, degree, replicate)]
                    if not counts:
                        legal = [degree for degree in legal if loops.deals_evenly(kv, degree)]
                else:
                    legal = loops.degrees([experts], 12) if experts else [1]
                assert list(violation.facts["legal"]) == legal


def following(violation, facts, mesh, request):
    """Models, meshes and requests in which the violation is mended in each way that its facts name."""
    told = violation.facts
    if violation.code in OVER_TP:
        yield from ((facts, mesh, attrs.evolve(request, tp_size=tp)) for tp in told["legal"])
    elif "legal" in told:
        yield from ((facts, mesh, attrs.evolve(request, ep_size=ep)) for ep in told["legal"])
    elif violation.code == "HP-SHARD-007":
        axes = {**dict(told["mesh"]), told["axis"]: told["asked"]}
        yield facts, mesh_of(**axes), request
    elif violation.code == "HP-SHARD-008":
        lengths = [length for length in (told["below"], told["above"]) if length is not None]
        yield from ((facts, mesh, attrs.evolve(request, seq_len=length)) for length in lengths)
    else:
        layouts = [attrs.evolve(request, cp_layout=layout) for layout in told["supported"]]
        yield from ((facts, mesh, other) for other in [*layouts, attrs.evolve(request, cp_size=1)])


@pytest.mark.rule("SHARD-1", "SHARD-2", "SHARD-8", "SHARD-39")
@given(strategies.model_facts(), strategies.sharding_requests(), strategies.mesh_shapes())
def test_every_way_out_leads_out(facts, request, mesh):
    for violation in check_degrees(facts, mesh, **attrs.asdict(request)):
        codes = OVER_TP if violation.code in OVER_TP else {violation.code}
        codes = {"HP-SHARD-005", "HP-SHARD-006"} if codes & {"HP-SHARD-005", "HP-SHARD-006"} else codes
        ways = list(following(violation, facts, mesh, request))
        assert ways
        for sizes, shape, other in ways:
            left = check_degrees(sizes, shape, **attrs.asdict(other))
            if violation.code == "HP-SHARD-007":
                assert (violation.code, violation.where) not in told(left)
            else:
                assert not codes & {violation.code for violation in left}


@pytest.mark.rule("SHARD-2")
def test_legal_degrees_of_experts_fit_the_model_and_the_mesh():
    mesh = mesh_of(dp_shard=2, cp=2, tp=3)
    found = check_degrees(model(num_experts=6), mesh, cp_size=2, tp_size=3, ep_size=8)
    assert told(found) == [("HP-SHARD-005", "num_experts"), ("HP-SHARD-006", "ep_size")]
    assert [violation.facts["legal"] for violation in found] == [(1, 2, 3, 6), (1, 2, 3, 6)]
    (alone,) = check_mesh(mesh, ShardingRequest(cp_size=2, tp_size=3, ep_size=8))
    assert alone.facts["legal"] == (1, 2, 3, 4, 6, 12)


@pytest.mark.rule("SHARD-3")
def test_key_value_heads_divide_or_are_replicated_equally_often():
    facts = model(8, 2)
    with refused("HP-SHARD-003") as caught:
        refuse_all(check_model(facts, ShardingRequest(tp_size=4)))
    assert dict(caught.error.facts) == {"kv": 2, "tp": 4, "legal": (1, 2)}
    assert "kv_replicate=True" in caught.error.suggestion
    assert check_model(facts, ShardingRequest(tp_size=4, kv_replicate=True)) == ()
    assert check_model(facts, ShardingRequest(tp_size=2, kv_replicate=True)) == ()
    assert facts_of(check_model(model(6, 2), ShardingRequest(tp_size=3, kv_replicate=True)), "HP-SHARD-003") == {
        "kv": 2,
        "tp": 3,
        "legal": (1, 2, 6),
    }


@pytest.mark.rule("SHARD-3")
@given(strategies.model_facts(), strategies.sharding_requests())
@example(model(6, 2), ShardingRequest(tp_size=4))
def test_replication_is_advised_exactly_where_it_mends_all_that_tensor_parallelism_cuts(facts, request):
    over_tp = [found for found in check_model(facts, request) if found.code in OVER_TP]
    replicated = check_model(facts, attrs.evolve(request, kv_replicate=True))
    mends = not OVER_TP & {violation.code for violation in replicated}
    for violation in over_tp:
        advised = "kv_replicate" in violation.suggestion
        assert advised == (violation.code == "HP-SHARD-003" and mends)


@pytest.mark.rule("SHARD-4")
def test_widths_that_tensor_parallelism_cuts_divide():
    facts = model(8, 4, intermediate_size=6, moe_intermediate_size=770, num_experts=4)
    found = check_model(facts, ShardingRequest(tp_size=4, ep_size=2))
    assert told(found) == [("HP-SHARD-004", "intermediate_size"), ("HP-SHARD-004", "moe_intermediate_size")]
    assert [(violation.facts["width"], violation.facts["legal"]) for violation in found] == [(6, (1, 2)), (770, (1, 2))]
    assert told(check_model(facts, ShardingRequest(tp_size=4))) == [("HP-SHARD-004", "intermediate_size")]
    with refused("HP-SHARD-004") as caught:
        validate_parallel_sizes(facts, tp=4, ep=2)
    assert dict(caught.error.facts) == {"name": "moe_intermediate_size", "width": 770, "tp": 4, "legal": (1, 2)}
    assert len(caught.error.violations) == 1
    validate_parallel_sizes(facts, tp=4)


@pytest.mark.rule("SHARD-5")
@pytest.mark.parametrize(("experts", "ep", "legal"), [(6, 4, (1, 2, 3, 6)), (0, 2, (1,)), (None, 2, (1,))])
def test_experts_are_there_and_divide(experts, ep, legal):
    with refused("HP-SHARD-005") as caught:
        refuse_all(check_model(model(num_experts=experts), ShardingRequest(ep_size=ep)))
    assert dict(caught.error.facts) == {"experts": experts, "ep": ep, "legal": legal}
    assert check_model(model(num_experts=experts), ShardingRequest()) == ()


@pytest.mark.rule("SHARD-8")
@pytest.mark.parametrize(
    ("cp", "tp", "zigzag", "contiguous"), [(4, 4, 16, 16), (4, 2, 8, 8), (2, 3, 12, 6), (8, 2, 16, 16), (1, 4, 4, 4)]
)
def test_alignments_with_sequence_parallelism(cp, tp, zigzag, contiguous):
    assert sequence_alignment(cp, tp, True, "zigzag") == zigzag
    assert sequence_alignment(cp, tp, True, "contiguous") == contiguous


@pytest.mark.rule("SHARD-8")
def test_the_alignment_is_the_shortest_sequence_with_equal_parts():
    assert sequence_alignment(2, 1, False, "zigzag") == 4
    for cp, tp, parallel, layout in product(range(1, 7), range(1, 7), (False, True), BOTH):
        step = sequence_alignment(cp, tp, parallel, layout)
        assert step == loops.alignment(cp, tp, parallel, layout)
        assert all(loops.equal_parts(step * times, cp, tp, parallel, layout) for times in (2, 3))


@pytest.mark.rule("SHARD-8")
def test_a_fixed_length_is_a_multiple_of_the_alignment():
    with refused("HP-SHARD-008") as caught:
        validate_parallel_sizes({}, cp=4, seq_len=1004)
    assert dict(caught.error.facts) == {"seq_len": 1004, "alignment": 8, "below": 1000, "above": 1008}
    short = facts_of(check_model(model(), ShardingRequest(cp_size=2, seq_len=3)), "HP-SHARD-008")
    assert short == {"seq_len": 3, "alignment": 4, "below": None, "above": 4}
    for length, (cp, tp) in product(range(1, 25), ((1, 1), (1, 3), (2, 1), (2, 3))):
        for parallel, layout in product((False, True), BOTH):
            options = {"sequence_parallel": parallel, "cp_layout": layout}
            found = check_model(model(), ShardingRequest(cp_size=cp, tp_size=tp, seq_len=length, **options))
            assert (found == ()) == loops.equal_parts(length, cp, tp, parallel, layout)


@pytest.mark.rule("SHARD-39")
def test_a_layout_that_the_attention_does_not_run_is_refused():
    facts = model(arch="toy", cp_layouts=("contiguous",))
    with refused("HP-SHARD-039") as caught:
        refuse_all(check_model(facts, ShardingRequest(cp_size=2)))
    assert dict(caught.error.facts) == {"arch": "toy", "cp": 2, "cp_layout": "zigzag", "supported": ("contiguous",)}
    assert check_model(facts, ShardingRequest(cp_size=2, cp_layout="contiguous")) == ()
    assert check_model(facts, ShardingRequest()) == ()
    for layout in BOTH:
        request = ShardingRequest(cp_size=2, cp_layout=layout)
        assert told(check_model(ModelFacts(), request)) == [("HP-SHARD-039", "cp_layout")]


@pytest.mark.rule("SHARD-2", "SHARD-3", "SHARD-4", "SHARD-5", "SHARD-8")
@given(strategies.model_facts(), st.data())
def test_a_request_that_was_drawn_for_a_model_fits_it(facts, data):
    assert check_model(facts, data.draw(strategies.sharding_requests(facts))) == ()


# --- degrees and the mesh ---


@pytest.mark.rule("SHARD-6")
def test_experts_spread_evenly_over_the_ranks_of_the_dense_region():
    mesh = mesh_of(dp_shard=2, cp=2, tp=1)
    with refused("HP-SHARD-006") as caught:
        refuse_all(check_mesh(mesh, ShardingRequest(cp_size=2, ep_size=3)))
    assert dict(caught.error.facts) == {"dp_shard": 2, "cp": 2, "tp": 1, "ep": 3, "legal": (1, 2, 4)}
    assert check_mesh(mesh, ShardingRequest(cp_size=2, ep_size=4)) == ()
    assert check_mesh(mesh_of(pp=3, dp_replicate=3, dp_shard=2), ShardingRequest(ep_size=3)) != ()


@pytest.mark.rule("SHARD-6")
def test_an_axis_of_experts_has_their_degree():
    mesh = mesh_of(dp_shard=2, ep=3)
    assert check_mesh(mesh, ShardingRequest(ep_size=3)) == ()
    for ep in (1, 2):
        (found,) = check_mesh(mesh, ShardingRequest(ep_size=ep))
        assert (found.code, found.where) == ("HP-SHARD-007", "mesh.ep")
        assert dict(found.facts) == {"axis": "ep", "asked": ep, "mesh": (("dp_shard", 2), ("ep", 3))}


@pytest.mark.rule("SHARD-7")
def test_axes_that_are_asked_for_are_there():
    mesh = mesh_of(dp_shard=2, cp=2)
    with refused("HP-SHARD-007") as caught:
        refuse_all(check_mesh(mesh, ShardingRequest(cp_size=4, tp_size=2)))
    assert told(caught.error.violations) == [("HP-SHARD-007", "mesh.cp"), ("HP-SHARD-007", "mesh.tp")]
    assert dict(caught.error.facts) == {"axis": "cp", "asked": 4, "mesh": (("dp_shard", 2), ("cp", 2))}
    assert caught.error.suggestion == "build the mesh dp_shard 2, cp 4, tp 2"
    (found,) = check_mesh(mesh_of(dp_shard=2, tp=2), ShardingRequest(cp_size=2, tp_size=2))
    assert found.suggestion == "build the mesh dp_shard 2, cp 2, tp 2"
    assert check_mesh(mesh, ShardingRequest()) == ()


@pytest.mark.rule("SHARD-6", "SHARD-7")
def test_experts_go_by_the_mesh_that_is_to_be_built():
    mesh = mesh_of(dp_shard=2, cp=2)
    assert told(check_mesh(mesh, ShardingRequest(tp_size=2, ep_size=8))) == [("HP-SHARD-007", "mesh.tp")]
    assert "HP-SHARD-006" in dict(told(check_mesh(mesh, ShardingRequest(tp_size=3, ep_size=8))))


AXES = st.fixed_dictionaries(
    {}, optional={name: st.integers(1, 6) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")}
)


@pytest.mark.rule("SHARD-6", "SHARD-7")
@given(AXES, st.integers(1, 4), st.integers(1, 4), st.integers(1, 96), st.booleans())
@example({"dp_shard": 2, "cp": 2}, 2, 2, 8, False)
def test_meshes_fit_what_has_its_axes_and_deals_experts_evenly(axes, cp, tp, ep, built):
    axes |= {"cp": cp, "tp": tp} if built else {}
    mesh, request = mesh_of(**axes), ShardingRequest(cp_size=cp, tp_size=tp, ep_size=ep)
    found = check_mesh(mesh, request)
    assert told(found) == sorted(loops.mesh_misfits(mesh, request))
    misfit = ("HP-SHARD-006", "ep_size")
    for violation in found:
        if violation.code == misfit[0]:  # the degrees that it names are those that fit, and no others
            degrees = [attrs.evolve(request, ep_size=size) for size in range(1, 1 + 6**3)]
            fits = [other.ep_size for other in degrees if misfit not in loops.mesh_misfits(mesh, other)]
            assert violation.facts["legal"] == tuple(fits)


@pytest.mark.rule("SHARD-6", "SHARD-7")
def test_small_meshes_fit_exactly_what_deals_evenly():
    sizes = (None, 1, 2, 3)
    for dp, cp, tp, ep in product(sizes, sizes, sizes, (None, 1, 2)):
        axes = {"dp_shard": dp, "cp": cp, "tp": tp, "ep": ep}
        mesh = mesh_of(**{name: size for name, size in axes.items() if size is not None})
        for asked_cp, asked_tp, asked_ep in product((1, 2, 3), (1, 2), (1, 2, 4)):
            request = ShardingRequest(cp_size=asked_cp, tp_size=asked_tp, ep_size=asked_ep)
            assert told(check_mesh(mesh, request)) == sorted(loops.mesh_misfits(mesh, request))


def test_a_mesh_of_more_ranks_than_there_are_is_still_judged():
    most = 2**31 - 1
    (found,) = check_mesh(mesh_of(dp_shard=most, cp=most, tp=most), ShardingRequest(ep_size=2))
    assert found.facts["legal"] == (1, most, most**2, most**3)


# --- input ---


@pytest.mark.rule("SHARD-9")
@pytest.mark.parametrize(
    ("value", "choices"),
    [
        (-2, (1,)),
        (0, (1,)),
        (True, (1,)),
        (False, (1,)),
        (np.bool_(True), (1,)),
        (np.int64(-2), (1,)),
        (2.0, (2,)),
        (2.5, (2, 3)),
        (np.float32(0.5), (1,)),
        (Fraction(7, 2), (3, 4)),
        ("8", (8,)),
        ("eight", (1,)),
        (None, (1,)),
        (float("nan"), (1,)),
        (float("inf"), (1,)),
        (2**40, (2**31 - 1,)),
        ((2,), (1,)),
    ],
)
def test_a_degree_that_is_none_is_refused_with_the_nearest_ones(value, choices):
    with refused("HP-SHARD-009") as caught:
        ShardingRequest(tp_size=value)
    assert caught.error.where == caught.error.facts["field"] == "tp_size"
    assert caught.error.facts["choices"] == choices
    assert caught.error.facts["value"] in (value, repr(value))
    assert from_json(to_json(ShardingRequest(tp_size=choices[0]))).tp_size == choices[0]


GOOD_SIZES = st.integers(1, 2**31 - 1)
BAD_SIZES = st.one_of(no_counts(1).filter(lambda value: value is not None), st.integers(2**31), st.floats(-9, 99))
READ = {  # what each field takes, and what not
    **dict.fromkeys(("tp_size", "cp_size", "ep_size"), (GOOD_SIZES, BAD_SIZES)),
    "seq_len": (GOOD_SIZES | st.none(), BAD_SIZES),
    **dict.fromkeys(
        ("sequence_parallel", "loss_parallel", "kv_replicate"),
        (st.booleans(), no_counts(2).filter(lambda value: type(value) is not bool)),
    ),
    "cp_layout": (st.sampled_from(BOTH), no_counts(1) | st.sampled_from(("ring", "Zigzag", ""))),
}


@pytest.mark.rule("SHARD-9")
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(READ, st.booleans())), st.data())
def test_all_that_cannot_be_read_is_told_with_the_nearest_that_can(drawn, data):
    given = {name: data.draw(READ[name][bad]) for name, bad in drawn.items()}
    wrong = [name for name, bad in sorted(drawn.items()) if bad]
    if not wrong:
        request = ShardingRequest(**given)
        assert {name: getattr(request, name) for name in given} == given
        return
    with refused("HP-SHARD-009") as caught:
        ShardingRequest(**given)
    assert told(caught.error.violations) == [("HP-SHARD-009", name) for name in wrong]
    for violation in caught.error.violations:
        value, choices = given[violation.where], violation.facts["choices"]
        if type(value) is float and abs(value) < 100 and violation.where.endswith(("size", "len")):
            below = [size for size in range(1, 101) if size <= value] or [1]
            above = [size for size in range(1, 101) if size >= value]
            assert choices == tuple(sorted({below[-1], above[0]}))
        assert all(value != choice or type(value) is not type(choice) for choice in choices)


@pytest.mark.rule("SHARD-9")
def test_two_bad_degrees_are_two_violations_though_their_product_is_good():
    with refused("HP-SHARD-009") as caught:
        ShardingRequest(tp_size=-2, ep_size=-2)
    assert told(caught.error.violations) == [("HP-SHARD-009", "ep_size"), ("HP-SHARD-009", "tp_size")]
    with refused("HP-SHARD-009") as caught:
        validate_parallel_sizes({}, tp=-2, ep=-2)
    assert told(caught.error.violations) == [("HP-SHARD-009", "ep"), ("HP-SHARD-009", "tp")]


@pytest.mark.rule("SHARD-9")
def test_an_unknown_layout_is_refused_at_degree_one():
    for layout, nearest in (("head-tail", None), ("zig-zag", "zigzag"), ("Contiguous", "contiguous"), (None, "zigzag")):
        with refused("HP-SHARD-009") as caught:
            ShardingRequest(cp_size=1, cp_layout=layout)
        assert caught.error.facts["choices"] == BOTH
        assert nearest is None or repr(nearest) in caught.error.suggestion


@pytest.mark.rule("SHARD-9")
@pytest.mark.parametrize("field", ["sequence_parallel", "loss_parallel", "kv_replicate"])
@pytest.mark.parametrize("value", [1, 0, None, "true", np.bool_(True)])
def test_flags_are_bools(field, value):
    with refused("HP-SHARD-009") as caught:
        ShardingRequest(**{field: value})
    assert (caught.error.where, caught.error.facts["choices"]) == (field, (False, True))


@pytest.mark.rule("SHARD-9")
def test_numpy_integers_are_integers():
    request = ShardingRequest(tp_size=np.int64(4), seq_len=np.uint8(8))
    assert (type(request.tp_size), type(request.seq_len)) == (int, int)
    assert request == ShardingRequest(tp_size=4, seq_len=8)


@pytest.mark.rule("SHARD-9")
@pytest.mark.parametrize(
    ("axes", "places"),
    [
        ((("tp", True), ("cp", -2), ("ep", 2.0)), ["axes[0]", "axes[1]", "axes[2]"]),
        ((("dp_shard", -2), ("tp", -2)), ["axes[0]", "axes[1]"]),
        ((("tp", 2), ("tp", 2)), ["axes[1]"]),
        ((("tp", 2), ("cp", 2), ("tp", 4)), ["axes[2]"]),
        ((("tp", 2, 2), (2, "tp"), "tp"), ["axes[0]", "axes[1]", "axes[2]"]),
        ({"tp": 2}, ["axes"]),
        ("tp", ["axes"]),
        (None, ["axes"]),
    ],
)
def test_axes_of_a_mesh_have_a_name_each_and_a_size(axes, places):
    with refused("HP-SHARD-009") as caught:
        MeshShape(axes=axes)
    assert [violation.where for violation in caught.error.violations] == places
    assert {violation.facts["field"] for violation in caught.error.violations} == {"axes"}
    assert all(violation.suggestion for violation in caught.error.violations)


@pytest.mark.rule("SHARD-9")
def test_all_bad_sizes_of_a_model_are_told_at_once():
    with refused("HP-SHARD-009") as caught:
        ModelFacts(arch=3, num_attention_heads=0, num_experts=-1, cp_layouts=("zigzag", "ring"), vocab_size=1.5)
    places = [violation.where for violation in caught.error.violations]
    assert places == ["arch", "cp_layouts[1]", "num_attention_heads", "num_experts", "vocab_size"]
    assert ModelFacts(num_experts=0).num_experts == 0
    with refused("HP-SHARD-009"):
        ModelFacts(cp_layouts="zigzag")


@pytest.mark.rule("SHARD-9")
def test_what_is_no_value_of_the_family_is_refused():
    request, facts, mesh = ShardingRequest(), ModelFacts(), mesh_of(tp=1)
    for call in (
        lambda: check_model({}, request),
        lambda: check_model(facts, {}),
        lambda: check_mesh({"tp": 1}, request),
        lambda: check_mesh(mesh, facts),
        lambda: check_degrees(facts, {"tp": 1}),
        lambda: validate_parallel_sizes(object()),
        lambda: sequence_alignment(0, 1, True, "zigzag"),
    ):
        with refused("HP-SHARD-009"):
            call()
    with refused("HP-SHARD-009") as caught:
        sequence_alignment(True, 2.0, 1, "ring")
    assert {violation.where for violation in caught.error.violations} == {
        "cp",
        "tp",
        "sequence_parallel",
        "cp_layout",
    }


# --- sizes by name ---


def test_a_mapping_without_a_single_size_is_refused():
    with refused("HP-SHARD-009") as caught:
        validate_parallel_sizes({"heads": 28, "kv_heads": 4}, tp=8)
    assert caught.error.where == "model_sizes"
    assert "num_attention_heads" in caught.error.facts["choices"]
    assert ModelFacts.of({}) == ModelFacts()


def test_sizes_have_other_names_in_other_models():
    assert ModelFacts.of({"num_experts": None, "n_routed_experts": 8, "num_local_experts": 2}).num_experts == 8
    assert ModelFacts.of({"num_experts": 4, "n_routed_experts": 8}).num_experts == 4
    facts = ModelFacts.of({"num_local_experts": 4, "intermediate_size": 12})
    assert (facts.moe_intermediate_size, facts.intermediate_size) == (12, 12)
    facts = ModelFacts.of({"num_local_experts": 4, "intermediate_size": 12, "moe_intermediate_size": 6})
    assert (facts.moe_intermediate_size, facts.intermediate_size) == (6, 12)
    assert ModelFacts.of({"intermediate_size": 12}).moe_intermediate_size is None
    assert ModelFacts.of(facts) is facts


def test_sizes_of_the_text_go_before_those_beside_it():
    text = {"model_type": "toy_text", "num_attention_heads": 8, "n_routed_experts": 4}
    facts = ModelFacts.of({"model_type": "toy", "text_config": text, "num_attention_heads": 3, "vocab_size": 9})
    assert facts == ModelFacts(arch="toy", num_attention_heads=8, num_experts=4, vocab_size=9)
    assert ModelFacts.of({"text_config": None, "vocab_size": 9}) == ModelFacts(vocab_size=9)


def powers(most):
    return {2**power for power in range(most.bit_length())}


MODELS = {
    "llama": ((32, 32, 11008, None, None), powers(32)),
    "qwen3_moe": ((32, 4, 6144, 768, 128), {1, 2, 4}),
    "deepseek_v3": ((128, 128, 18432, 2048, 256), powers(128)),
    "deepseek_v4": ((64, 1, None, 2048, 256), {1}),
    "qwen3_vl": ((32, 32, 22016, None, None), powers(32)),
    "qwen3_vl_moe": ((16, 16, 5632, 1408, 60), powers(16)),
    "gpt2": ((12, None, None, None, None), {1, 2, 3, 4, 6, 12}),
    "gpt_oss": ((64, 8, 2880, 2880, 128), powers(8)),
}


@pytest.mark.rule("SHARD-2", "SHARD-3", "SHARD-4")
@pytest.mark.parametrize("name", MODELS)
def test_real_models_fit_their_degrees(name):
    (heads, kv, width, expert_width, experts), legal = MODELS[name]
    config = AutoConfig.for_model(name).to_dict()
    facts = ModelFacts.of(config)
    assert (facts.arch, facts.num_attention_heads, facts.num_key_value_heads) == (name, heads, kv)
    assert (facts.intermediate_size, facts.moe_intermediate_size, facts.num_experts) == (width, expert_width, experts)
    ep = 2 if experts else 1
    fits = {tp for tp in range(1, 300) if not check_model(facts, ShardingRequest(tp_size=tp, ep_size=ep))}
    assert fits == legal
    for tp in legal:
        validate_parallel_sizes(config, tp=tp, ep=ep, cp=2, seq_len=4096)


@pytest.mark.rule("SHARD-3")
def test_one_key_value_head_for_many_ranks():
    facts = ModelFacts.of(AutoConfig.for_model("deepseek_v4").to_dict())
    assert told(check_model(facts, ShardingRequest(tp_size=4))) == [("HP-SHARD-003", "num_key_value_heads")]
    fits = {tp for tp in range(1, 300) if not check_model(facts, ShardingRequest(tp_size=tp, kv_replicate=True))}
    assert fits == powers(64)


# --- validate_parallel_sizes ---


@pytest.mark.rule("SHARD-1", "SHARD-2", "SHARD-3", "SHARD-4", "SHARD-5", "SHARD-8", "BATCH-42")
@given(
    strategies.model_facts(), st.integers(1, 8), st.integers(1, 4), st.integers(1, 8), st.none() | st.integers(1, 64)
)
def test_sizes_are_validated_without_the_dense_width_and_the_layouts(facts, tp, cp, ep, seq_len):
    seen = attrs.evolve(facts, intermediate_size=None, cp_layouts=BOTH)
    request = ShardingRequest(tp_size=tp, cp_size=cp, ep_size=ep, seq_len=seq_len, sequence_parallel=False)
    expected = sorted(loops.model_misfits(seen, request))
    for sizes in (facts, attrs.asdict(seen)):
        found = []
        collect(found, validate_parallel_sizes, sizes, tp=tp, cp=cp, ep=ep, seq_len=seq_len)
        assert told(found) == expected


@pytest.mark.rule("SHARD-1")
def test_validation_tells_bad_input_with_what_does_not_fit():
    sizes = {"num_attention_heads": 28.0, "num_key_value_heads": 4, "num_experts": 60}
    with refused("HP-SHARD-003") as caught:
        validate_parallel_sizes(sizes, tp=8, cp=0, ep=8, seq_len=1004)
    assert told(caught.error.violations) == [
        ("HP-SHARD-003", "num_key_value_heads"),
        ("HP-SHARD-005", "num_experts"),
        ("HP-SHARD-009", "cp"),
        ("HP-SHARD-009", "num_attention_heads"),
    ]
