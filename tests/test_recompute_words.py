"""Recompute plans and estimates in words."""

import pytest
from hypothesis import given

from hpfun import PackedDocuments, explain, strategies
from hpfun.recompute import LayerSelection, RecomputeOptions, RecomputePolicy, choose_regions, estimate, plan_recompute
from tests.models import decoder, vision_and_text
from tests.refusals import refused
from tests.test_recompute_budget import FOUR


def plan_of(modules=None, exclude=("*.self_attn",), unsaved=(), options=None, count=2):
    policy = RecomputePolicy(region_patterns=("model.*",), exclude_patterns=exclude, unsaved_patterns=unsaved)
    modules = decoder() if modules is None else modules
    return plan_recompute(modules, policy, LayerSelection(layer_count=count), options)


@pytest.mark.rule("RECOMPUTE-41")
def test_a_plan_says_what_it_wraps_and_what_it_leaves_out():
    plan = plan_of(exclude=("*.self_attn", "*.q_proj"), options=RecomputeOptions(swap_inputs=True, early_stop=False))
    text = explain(plan)
    assert "2 layers selected, 2 regions recomputed" in text
    assert "2 exclusions not replayed, 4 wraps; swap_inputs, no early_stop" in text
    assert "    model.layers.0-1\n" in text
    assert "    model.layers.0-1.self_attn\n" in text
    assert "model.layers.0.self_attn.q_proj inside model.layers.0.self_attn" in text


@pytest.mark.rule("RECOMPUTE-41")
def test_a_count_says_what_it_takes_of_each_container():
    text = explain(plan_of(vision_and_text(), exclude=(), count=4))
    assert "takes 3 of 3 in model.visual.blocks, 1 of 2 in model.text.layers" in text


@pytest.mark.rule("RECOMPUTE-41")
@pytest.mark.parametrize(
    ("fqn", "says"),
    [
        ("model.layers.0", "a region; runs in the forward and again in the backward, without model.layers.0.self_attn"),
        ("model.layers.0.mlp", "in the region model.layers.0; runs in the forward and again"),
        ("model.layers.0.self_attn", "an exclusion of the region model.layers.0; runs once, its outputs are kept"),
        ("model.layers.1.self_attn.q_proj", "in the exclusion model.layers.1.self_attn of the region model.layers.1"),
        ("model", "no region itself; 2 regions below it: model.layers.0, model.layers.1"),
        ("", "the model: no region itself"),
        ("model.layers.2", "in no region of this plan"),
        ("lm_head", "in no region of this plan"),
    ],
)
def test_a_module_is_told_whether_it_is_replayed(fqn, says):
    assert says in explain(plan_of(), fqn)


@pytest.mark.rule("RECOMPUTE-41")
def test_outputs_that_are_not_kept_are_told():
    assert "its outputs are not kept" in explain(plan_of(unsaved=("*.mlp",)), "model.layers.0.mlp")


@pytest.mark.rule("RECOMPUTE-41")
@given(strategies.recompute_plans())
def test_every_plan_and_each_of_its_modules_has_words(plan):
    text = explain(plan)
    assert f"{len(plan.exclusions)} exclusion" in text
    assert all(note in text for note in plan.notes[:16])
    for fqn in (*plan.roots, *plan.exclusions):
        assert explain(plan, fqn).startswith(f"{fqn}: ")


@pytest.mark.rule("RECOMPUTE-41")
def test_an_estimate_says_its_numbers():
    text = explain(estimate(FOUR, ("0", "2"), swap_inputs=True))
    assert "2 of 4 regions recomputed: 160 B kept, 20 B on the host," in text
    assert "11 flops replayed" in text
    assert len(text.splitlines()) == 3 + 4
    assert "Exact choice: no choice replays less." in explain(choose_regions(FOUR, 200))
    assert "Greedy choice: at most 2 times" in explain(choose_regions(FOUR, 200, exact_limit=0))


def test_other_values_say_nothing_of_modules():
    with refused("HP-SERIAL-002"):
        explain(PackedDocuments((5, 3)), "model")
