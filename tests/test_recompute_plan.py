"""Recompute plans: layers, regions, exclusions, steps, and everything that is refused."""

from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import PlanError, attempt, from_json, strategies, to_json
from hpfun.recompute import (
    LayerContainer,
    LayerSelection,
    ModuleInfo,
    RecomputeOptions,
    RecomputePlan,
    RecomputePolicy,
    WrapStep,
    find_layers,
    plan_recompute,
    select_exclusions,
    select_layers,
    select_roots,
)
from tests.models import decoder, module, vision_and_text
from tests.oracles import recompute as loops
from tests.refusals import refused

LAYERS = "model.layers.*"
ATTENTION = "model.layers.*.self_attn"


def policy(*regions, exclude=(), **more):
    return RecomputePolicy(region_patterns=regions or (LAYERS,), exclude_patterns=exclude, **more)


def first(count):
    return LayerSelection(layer_count=count)


def named(*fqns):
    return LayerSelection(region_fqns=fqns)


def plan_of(modules=None, regions=(LAYERS,), exclude=(), selection=None, options=None, **more):
    modules = decoder() if modules is None else modules
    return plan_recompute(modules, policy(*regions, exclude=exclude, **more), selection or first(2), options)


@pytest.mark.rule("RECOMPUTE-6", "RECOMPUTE-12")
def test_the_plan_for_two_layers_without_their_attention():
    plan = plan_of(exclude=(ATTENTION,))
    assert plan.roots == plan.layers == ("model.layers.0", "model.layers.1")
    assert [(step.fqn, step.parent_fqn, step.child_name, step.kind) for step in plan.wrap_order] == [
        ("model.layers.0.self_attn", "model.layers.0", "self_attn", "exclude"),
        ("model.layers.1.self_attn", "model.layers.1", "self_attn", "exclude"),
        ("model.layers.0", "model.layers", "0", "root"),
        ("model.layers.1", "model.layers", "1", "root"),
    ]
    assert plan.notes == ()


@pytest.mark.rule("RECOMPUTE-1")
@given(st.none() | st.just(2), st.none() | st.just((0,)), st.none() | st.just(("a",)))
def test_layers_are_selected_in_one_way(count, indices, fqns):
    given_ways = [way for way in (count, indices, fqns) if way is not None]
    if len(given_ways) == 1:
        LayerSelection(layer_count=count, layer_indices=indices, region_fqns=fqns)
        return
    with refused("HP-RECOMPUTE-001") as caught:
        LayerSelection(layer_count=count, layer_indices=indices, region_fqns=fqns)
    assert len(caught.error.facts["given"]) == len(given_ways)


@pytest.mark.rule("RECOMPUTE-2")
@pytest.mark.parametrize("count", [True, -1, 1.0, "1"])
def test_a_bad_count_is_refused(count):
    with refused("HP-RECOMPUTE-002"):
        LayerSelection(layer_count=count)


@pytest.mark.rule("RECOMPUTE-2")
@given(strategies.module_trees(), st.integers(0, 10))
def test_a_count_takes_the_first_layers_over_all_containers(modules, count):
    containers = find_layers(modules)
    layers = [layer for _, found in loops.containers(modules) for layer in found]
    if count > len(layers):
        with refused("HP-RECOMPUTE-002") as caught:
            select_layers(containers, first(count))
        assert dict(caught.error.facts) == {"count": count, "layers": len(layers)}
        return
    assert list(select_layers(containers, first(count))) == layers[:count]


@pytest.mark.rule("RECOMPUTE-2")
@pytest.mark.parametrize("modules", [decoder(), (module("", 0), module("body", 1))])
def test_no_layer_is_a_plan_of_nothing(modules):
    plan = plan_recompute(modules, RecomputePolicy(region_patterns=("*",), exclude_patterns=("nothing",)), first(0))
    assert (plan.layers, plan.roots, plan.exclusions, plan.wrap_order) == ((), (), (), ())


@pytest.mark.rule("RECOMPUTE-3")
@pytest.mark.parametrize("indices", [(1, 1), (-1,), (True,), (1.0,), 1, "1"])
def test_bad_indices_are_refused(indices):
    with refused("HP-RECOMPUTE-003"):
        LayerSelection(layer_indices=indices)


@pytest.mark.rule("RECOMPUTE-3")
@given(st.lists(st.integers(0, 5), min_size=1, unique=True))
def test_indices_give_layers_in_registration_order(indices):
    selection = LayerSelection(layer_indices=indices)
    if max(indices) > 3:
        with refused("HP-RECOMPUTE-003") as caught:
            select_layers(find_layers(decoder()), selection)
        assert caught.error.facts == {"indices": tuple(sorted(i for i in indices if i > 3)), "max": 3}
        return
    assert select_layers(find_layers(decoder()), selection) == tuple(f"model.layers.{i}" for i in sorted(indices))


@pytest.mark.rule("RECOMPUTE-4")
@given(strategies.module_trees())
def test_containers_are_those_of_the_definition(modules):
    assert [(found.fqn, list(found.layers)) for found in find_layers(modules)] == loops.containers(modules)


def marked_list(owner_marked=True, member_marks=(True, True), number=10):
    return [
        module("m", 1, has_marker=owner_marked),
        module("m.h", number, is_list=True),
        *(module(f"m.h.{at}", number + 1 + at, has_marker=mark) for at, mark in enumerate(member_marks)),
    ]


@pytest.mark.rule("RECOMPUTE-4")
def test_what_is_no_container():
    root = module("", 0, has_marker=False)
    assert find_layers([root, *marked_list()])[0].layers == ("m.h.0", "m.h.1")
    assert find_layers([root, *marked_list(owner_marked=False)]) == ()
    assert find_layers([root, *marked_list(member_marks=(True, False))]) == ()
    assert find_layers([root, *marked_list(member_marks=())]) == ()
    plain = [attrs.evolve(m, is_list=False) for m in marked_list()]
    assert find_layers([root, *plain]) == ()


@pytest.mark.rule("RECOMPUTE-4")
def test_a_shared_container_counts_once_and_layers_are_not_entered():
    twice = [*marked_list(), module("n", 2, has_marker=True), *marked_list()[1:]]
    twice[5:] = [attrs.evolve(m, fqn=m.fqn.replace("m.", "n.")) for m in twice[5:]]
    assert [found.fqn for found in find_layers([module("", 0), *twice])] == ["m.h"]
    nested = [*marked_list(), module("m.h.0.sub", 20, is_list=True), module("m.h.0.sub.0", 21, has_marker=True)]
    assert [found.fqn for found in find_layers([module("", 0), *nested])] == ["m.h"]


@pytest.mark.rule("RECOMPUTE-5")
def test_a_model_without_layers_names_its_lists():
    modules = (module("", 0), module("body", 1, is_list=True), module("body.0", 2))
    for selection in (first(1), LayerSelection(layer_indices=(0,))):
        with refused("HP-RECOMPUTE-005") as caught:
            plan_recompute(modules, policy("body.*"), selection)
        assert dict(caught.error.facts) == {"owners": (), "lists": ("body",)}
    assert plan_recompute(modules, policy("body.*"), named("body.0")).roots == ("body.0",)


@pytest.mark.rule("RECOMPUTE-6", "RECOMPUTE-8")
@given(strategies.recompute_requests())
def test_roots_and_exclusions_are_the_outermost_matches(request):
    modules, asked, layers = request["modules"], request["policy"], ()
    layers = select_layers(find_layers(modules), request["selection"])
    roots = loops.outermost(modules, asked.region_patterns, layers)
    plan, outcome = attempt(plan_recompute, **request)
    if not outcome.ok:
        found = [*outcome.others, outcome]
        assert {violation.code[-3:] for violation in found} <= {"007", "008", "009", "010"}
        patterns = [violation.facts["pattern"] for violation in found if violation.code == "HP-RECOMPUTE-008"]
        assert not any(loops.outermost(modules, (pattern,), roots) for pattern in patterns)
        same = [violation.facts["fqn"] for violation in found if violation.code == "HP-RECOMPUTE-009"]
        assert set(same) <= set(roots)
        around = [violation.facts["fqn"] for violation in found if violation.code == "HP-RECOMPUTE-010"]
        assert all(any(loops.below(root, fqn) for root in roots) for fqn in around)
        assert patterns or same or around or not roots
        return
    assert list(plan.roots) == roots
    excluded = (*asked.exclude_patterns, *asked.unsaved_patterns)
    assert list(plan.exclusions) == loops.outermost(modules, excluded, roots)


@pytest.mark.rule("RECOMPUTE-6")
def test_a_match_of_another_pattern_inside_a_match_is_noted():
    plan = plan_of(regions=("model.layers.*.mlp", LAYERS))
    assert plan.roots == ("model.layers.0", "model.layers.1")
    assert plan.notes == ("model.layers.0.mlp inside model.layers.0", "model.layers.1.mlp inside model.layers.1")


@pytest.mark.rule("RECOMPUTE-7", "MATCH-2")
def test_regions_that_are_not_there_are_refused_with_the_nearest():
    with refused("HP-RECOMPUTE-007") as caught:
        plan_of(regions=("model.layer.*", LAYERS))
    assert caught.error.facts["pattern"] == "model.layer.*"
    assert caught.error.facts["nearest"][0] == "model.layers.0"
    with refused("HP-RECOMPUTE-007") as caught:
        plan_of(regions=("lm_head",))
    assert caught.error.facts["nearest"] == ("lm_head",)
    with refused("HP-RECOMPUTE-007") as caught:
        plan_of(selection=named("model.layer.1", "model.layers.2"))
    assert caught.error.facts["nearest"][0] == "model.layers.1"
    with refused("HP-RECOMPUTE-007"):
        select_roots(decoder(), ("model.layers.0",), policy("nothing"))
    with refused("HP-RECOMPUTE-007"):
        RecomputePolicy(region_patterns=())
    with refused("HP-RECOMPUTE-007"):
        RecomputePolicy(region_patterns="model.*")


@pytest.mark.rule("RECOMPUTE-8")
def test_each_pattern_without_an_exclusion_is_refused():
    with refused("HP-RECOMPUTE-008") as caught:
        plan_of(exclude=(ATTENTION, "*.atn", "model.layers.3.*"))
    facts = [(v.facts["pattern"], v.facts["outside"]) for v in caught.error.violations]
    below = tuple(f"model.layers.3.{part}" for part in ("self_attn", "self_attn.q_proj", "mlp"))
    assert facts == [("*.atn", ()), ("model.layers.3.*", below)]
    with refused("HP-RECOMPUTE-008"):
        select_exclusions(decoder(), ("model.layers.0",), policy(exclude=("lm_head",)))
    with refused("HP-RECOMPUTE-008"):
        RecomputePolicy(region_patterns=("*",), exclude_patterns=(1,))


@pytest.mark.rule("RECOMPUTE-9")
def test_a_root_is_no_exclusion():
    with refused("HP-RECOMPUTE-009") as caught:
        plan_of(exclude=("model.layers.1",))
    assert caught.error.facts["fqn"] == "model.layers.1"
    shared = [*decoder()[:-1], module("model.layers.0.twin", decoder()[7].module_id)]
    assert decoder()[7].fqn == "model.layers.1"
    with refused("HP-RECOMPUTE-009") as caught:
        plan_of(shared, exclude=("*.twin",))
    assert dict(caught.error.facts) == {"fqn": "model.layers.0.twin", "root": "model.layers.1"}


@pytest.mark.rule("RECOMPUTE-10")
def test_an_exclusion_contains_no_root():
    with refused("HP-RECOMPUTE-010") as caught:
        plan_of(regions=("*.mlp",), exclude=("model.layers.0",))
    assert dict(caught.error.facts) == {"fqn": "model.layers.0", "roots": ("model.layers.0.mlp",)}
    shared = [*decoder(), module("model.layers.0.box", 90), module("model.layers.0.box.twin", decoder()[7].module_id)]
    with refused("HP-RECOMPUTE-010") as caught:
        plan_of(shared, exclude=("*.box",))
    assert dict(caught.error.facts) == {"fqn": "model.layers.0.box", "roots": ("model.layers.1",)}


@pytest.mark.rule("RECOMPUTE-10")
def test_an_exclusion_inside_an_exclusion_is_dropped_and_noted():
    plan = plan_of(exclude=(ATTENTION, "*.q_proj"))
    assert plan.exclusions == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert plan.notes[0] == "model.layers.0.self_attn.q_proj inside model.layers.0.self_attn"
    assert len(plan.notes) == 2


@pytest.mark.rule("RECOMPUTE-11")
def test_a_module_with_two_names_has_a_step_for_each():
    modules = [*decoder(2), module("twin", decoder(2)[6].module_id)]
    assert modules[6].fqn == "model.layers.0.mlp"
    plan = plan_of(modules, exclude=("*.mlp",))
    assert [step.fqn for step in plan.wrap_order if step.kind == "exclude"] == [
        "model.layers.0.mlp",
        "model.layers.1.mlp",
        "twin",
    ]
    assert plan.exclusions == ("model.layers.0.mlp", "model.layers.1.mlp")
    assert plan.notes == ("twin is model.layers.0.mlp under another name: exclude too",)


@pytest.mark.rule("RECOMPUTE-12")
@given(strategies.recompute_plans())
def test_exclusions_come_before_roots_and_deep_ones_before_others(plan):
    steps = plan.wrap_order
    for before, after in pairwise(steps):
        assert (before.kind, after.kind) != ("root", "exclude")
        if before.kind == after.kind:
            assert (-before.fqn.count("."), before.fqn) < (-after.fqn.count("."), after.fqn)
    for step in steps:
        assert ".".join(filter(None, (step.parent_fqn, step.child_name))) == step.fqn
        assert "." not in step.child_name
    assert {step.fqn for step in steps} >= {*plan.roots, *plan.exclusions}


@pytest.mark.rule("RECOMPUTE-12")
def test_of_each_kind_the_deepest_come_first():
    regions = ("model.layers.0", "model.layers.1.mlp", "lm_head")
    exclude = ("model.layers.0.mlp", "model.layers.0.self_attn.q_proj")
    plan = plan_of(regions=regions, exclude=exclude, selection=named(""))
    assert [step.fqn for step in plan.wrap_order] == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.mlp",
        "model.layers.1.mlp",
        "model.layers.0",
        "lm_head",
    ]


@pytest.mark.rule("RECOMPUTE-9")
def test_a_root_whose_output_is_not_to_be_kept_is_refused_as_a_root():
    with refused("HP-RECOMPUTE-009"):
        plan_of(unsaved_patterns=("model.layers.0",))


@pytest.mark.rule("RECOMPUTE-13")
def test_what_is_wrapped_the_same_way_is_left_out():
    wrapped = decoder(model_layers_0="checkpoint", model_layers_1="checkpoint", model_layers_0_self_attn="exclude")
    plan = plan_of(wrapped, exclude=(ATTENTION,))
    assert [step.fqn for step in plan.wrap_order] == ["model.layers.1.self_attn"]
    assert plan.roots == ("model.layers.0", "model.layers.1")
    assert plan.notes[0] == "model.layers.0.self_attn is wrapped already"


@pytest.mark.rule("RECOMPUTE-13")
def test_what_is_wrapped_the_other_way_is_refused():
    wrapped = decoder(model_layers_0="exclude", model_layers_1_self_attn="checkpoint")
    with refused("HP-RECOMPUTE-013") as caught:
        plan_of(wrapped, exclude=(ATTENTION,))
    assert [dict(violation.facts) for violation in caught.error.violations] == [
        {"fqn": "model.layers.1.self_attn", "kind": "checkpoint"},
        {"fqn": "model.layers.0", "kind": "exclude"},
    ]


@pytest.mark.rule("RECOMPUTE-14")
def test_the_model_is_no_region():
    with refused("HP-RECOMPUTE-014"):
        plan_of(regions=("*",), selection=named(""))
    with refused("HP-RECOMPUTE-014"):
        select_roots(decoder(), ("",), policy("*"))
    with refused("HP-RECOMPUTE-014"):
        WrapStep(fqn="", parent_fqn="", child_name="", kind="root")
    assert plan_of(selection=named("")).roots == tuple(f"model.layers.{layer}" for layer in range(4))


@pytest.mark.rule("RECOMPUTE-15")
def test_all_violations_come_at_once():
    with refused("HP-RECOMPUTE-007") as caught:
        plan_of(
            decoder(model_layers_1="exclude"),
            regions=(LAYERS, "model.layer.*"),
            exclude=("*.atn", "model.layers.0", "model.layers"),
            options=RecomputeOptions(enable_compile=True),
        )
    assert [violation.code[-3:] for violation in caught.error.violations] == ["007", "008", "009", "010", "013", "018"]


@pytest.mark.rule("RECOMPUTE-18")
def test_a_compiled_function_encloses_plain_regions_only():
    plan = plan_of(options=RecomputeOptions(enable_compile=True, swap_inputs=True))
    assert plan.options == RecomputeOptions(enable_compile=True)
    assert len(plan.notes) == 1
    empty = plan_of(selection=first(0), options=RecomputeOptions(enable_compile=True, swap_inputs=True))
    assert (empty.options, len(empty.notes)) == (plan.options, 1)
    with refused("HP-RECOMPUTE-018") as caught:
        plan_of(exclude=(ATTENTION,), options=RecomputeOptions(enable_compile=True))
    assert caught.error.facts["fqns"] == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    with refused("HP-RECOMPUTE-018"):
        attrs.evolve(plan_of(exclude=(ATTENTION,)), options=RecomputeOptions(enable_compile=True))


def test_verify_runs_replays_to_their_end():
    assert not RecomputeOptions(verify=True, early_stop=True).early_stop
    assert RecomputeOptions().early_stop


def test_outputs_of_unsaved_exclusions_are_not_kept():
    plan = plan_of(exclude=("*.self_attn",), unsaved_patterns=("*.mlp",))
    kept = {step.fqn: step.save_output for step in plan.wrap_order}
    assert kept["model.layers.0.self_attn"]
    assert not kept["model.layers.0.mlp"]
    assert kept["model.layers.0"]


@pytest.mark.rule("RECOMPUTE-42")
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"roots": ("model.layers.0", "model.layers.0.mlp")}, "HP-RECOMPUTE-012"),
        ({"roots": ("model.layers.0", "model.layers.0.self_attn")}, "HP-RECOMPUTE-009"),
        ({"roots": ("model.layers.0", "model.layers.0.self_attn.q_proj")}, "HP-RECOMPUTE-010"),
        ({"roots": ("",)}, "HP-RECOMPUTE-014"),
        ({"exclusions": ("lm_head",)}, "HP-RECOMPUTE-012"),
        ({"roots": "model"}, "HP-RECOMPUTE-012"),
        ({"wrap_order": (1,)}, "HP-RECOMPUTE-012"),
        ({"options": None}, "HP-RECOMPUTE-012"),
        ({"on_applied": print}, "HP-RECOMPUTE-012"),
    ],
)
def test_a_plan_whose_parts_do_not_fit_is_refused(change, code):
    plan = plan_of(exclude=(ATTENTION,), selection=first(1))
    with pytest.raises(PlanError) as caught:
        attrs.evolve(plan, **change)
    assert code in {violation.code for violation in caught.value.violations}


@pytest.mark.rule("RECOMPUTE-42")
def test_steps_in_another_order_or_twice_are_refused():
    plan = plan_of(exclude=(ATTENTION,))
    for order in (plan.wrap_order[::-1], (plan.wrap_order[0], *plan.wrap_order)):
        with refused("HP-RECOMPUTE-012"):
            attrs.evolve(plan, wrap_order=order)


@pytest.mark.rule("RECOMPUTE-42")
@pytest.mark.parametrize(
    "change",
    [
        {"parent_fqn": "c"},
        {"child_name": "c"},
        {"kind": "region"},
        {"save_output": 1},
        {"save_output": False},
        {"fqn": 1},
    ],
)
def test_a_step_whose_parts_do_not_fit_is_refused(change):
    with refused("HP-RECOMPUTE-012"):
        attrs.evolve(WrapStep(fqn="a.b", parent_fqn="a", child_name="b", kind="root"), **change)


@pytest.mark.rule("RECOMPUTE-42")
def test_modules_of_other_kinds_or_twice_are_refused():
    for change in ({"wrapped": "both"}, {"is_list": 1}, {"module_id": True}, {"fqn": None}):
        with refused("HP-RECOMPUTE-012"):
            attrs.evolve(module("a", 1), **change)
    with refused("HP-RECOMPUTE-012") as caught:
        plan_of((*decoder(), module("lm_head", 99)))
    assert caught.error.facts["fqns"] == ("lm_head",)
    with refused("HP-RECOMPUTE-012"):
        RecomputePolicy(region_patterns=("*",), on_applied=print)


@given(strategies.recompute_plans())
def test_a_plan_reads_back_from_json_and_is_equal(plan):
    assert from_json(to_json(plan)) == plan


@given(strategies.recompute_requests())
def test_equal_requests_give_equal_plans(request):
    def outcome():
        try:
            return plan_recompute(**request)
        except PlanError as error:
            return str(error)

    assert outcome() == outcome()


def test_names_in_json_of_a_plan_are_the_public_ones():
    fields = {
        kind: {field.name for field in attrs.fields(kind)}
        for kind in (RecomputePlan, WrapStep, ModuleInfo, LayerContainer, RecomputeOptions)
    }
    assert fields[WrapStep] == {"fqn", "parent_fqn", "child_name", "kind", "save_output"}
    assert fields[ModuleInfo] == {"fqn", "type_name", "is_list", "has_marker", "wrapped", "module_id"}
    assert fields[LayerContainer] == {"fqn", "layers"}
    assert {"layers", "roots", "exclusions", "wrap_order", "options", "notes"} <= fields[RecomputePlan]


def test_a_count_over_two_containers_says_what_it_takes():
    plan = plan_recompute(vision_and_text(), policy("model.*"), first(4))
    assert plan.layers[:3] == tuple(f"model.visual.blocks.{block}" for block in range(3))
    assert plan.notes == ("layer_count 4 takes 3 of 3 in model.visual.blocks, 1 of 2 in model.text.layers",)
