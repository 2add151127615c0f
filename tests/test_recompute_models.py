"""Recompute on models of transformers: bit-equal training of tiny ones, plans for full ones on the meta device."""

import time
from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hpfun import diff, explain, from_json, to_json  # noqa: E402
from hpfun.recompute import (  # noqa: E402
    LayerSelection,
    RecomputeOptions,
    RecomputePolicy,
    find_layers,
    plan_recompute,
)
from hpfun_torch.recompute import (  # noqa: E402
    apply_recompute,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    read_modules,
)
from tests.real_models import meta_model, tiny_llama, tiny_v4, tokens  # noqa: E402
from tests.test_recompute_regions import saving_products  # noqa: E402

LAYERS = "model.layers.*"
ATTENTION = "model.layers.*.self_attn"
INDEXER = "model.layers.*.self_attn.compressor.indexer"
CASES = {
    "llama, attention": (tiny_llama, (ATTENTION,)),
    "v4, attention": (tiny_v4, (ATTENTION,)),
    "v4, indexer": (tiny_v4, (INDEXER,)),
}


def batches(count):
    return [{**tokens(), "input_ids": (tokens()["input_ids"] * (number + 1) + number) % 64} for number in range(count)]


def train(model, order=("F0", "B0"), retain=False, double=False):
    """Losses and gradients of all parameters after a schedule of forwards and backwards."""
    torch.manual_seed(7)
    losses, given = {}, batches(3)
    for event in order:
        number = int(event[1])
        if event[0] == "F":
            losses[number] = model(**given[number]).loss
        elif double:
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            found = torch.autograd.grad(losses[number], trained, create_graph=True, allow_unused=True)
            sum(gradient.square().sum() for gradient in found if gradient is not None).backward()
        else:
            losses[number].backward(retain_graph=retain)
            if retain:
                losses[number].backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return [losses[number].detach() for number in sorted(losses)], gradients, torch.get_rng_state()


@cache
def plain(make, *schedule, **more):
    return train(make(), *schedule, **more)


def same(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    assert list(one[1]) == list(other[1])
    for name, gradient in one[1].items():
        assert (gradient is None) == (other[1][name] is None), name
        assert gradient is None or torch.equal(gradient, other[1][name]), name
    assert any(gradient is not None and gradient.any() for gradient in one[1].values())
    assert torch.equal(one[2], other[2])


def excluded(make, exclude, unsaved=(), counted=True, options=None, **more):
    """A model with all layers recomputed; the calls of each excluded body are counted."""
    model, calls = make(), {}
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=exclude, unsaved_patterns=unsaved)
    plan = plan_recompute(read_modules(model), policy, LayerSelection(layer_count=3), options)
    for fqn in plan.exclusions:
        module = model.get_submodule(fqn)

        def body(*args, inner=module.forward, fqn=fqn, **kwargs):
            calls[fqn] = calls.get(fqn, 0) + 1
            return inner(*args, **kwargs)

        module.forward = body
    return model, calls, apply_recompute(model, plan, **more)


SCHEDULES = {
    "one batch": ((("F0", "B0"),), {}),
    "two in flight": ((("F0", "F1", "B0", "B1"),), {}),
    "three, last in first out": ((("F0", "F1", "F2", "B2", "B1", "B0"),), {}),
    "graph kept": ((("F0", "B0"),), {"retain": True}),
    "double backward": ((("F0", "B0"),), {"double": True}),
}


@pytest.mark.rule("RECOMPUTE-20", "RECOMPUTE-21", "RECOMPUTE-23", "RECOMPUTE-25", "RECOMPUTE-36")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_training_is_equal_bit_for_bit(case, schedule):
    (make, exclude), (order, more) = CASES[case], SCHEDULES[schedule]
    model, calls, applied = excluded(make, exclude)
    assert len(calls) == 0
    assert len(applied.plan.exclusions) == (2 if exclude == (INDEXER,) else 3)
    same(train(model, *order, **more), plain(make, *order, **more))
    forwards = sum(event[0] == "F" for event in order[0])
    assert calls == dict.fromkeys(applied.plan.exclusions, forwards)


@pytest.mark.rule("RECOMPUTE-26", "RECOMPUTE-27", "RECOMPUTE-31", "RECOMPUTE-33")
@pytest.mark.parametrize("way", ["nested", "selective policy", "outputs not kept", "verified"])
@pytest.mark.parametrize("case", CASES)
def test_training_is_equal_in_other_ways(case, way):
    make, exclude = CASES[case]
    more = {}
    if way == "selective policy":
        more["context_fn"] = saving_products
    elif way == "outputs not kept":  # what only the attention reads, which is excluded itself
        exclude, more["unsaved"] = (ATTENTION,), ("model.layers.*.input_layernorm",)
    elif way == "verified":
        more["options"] = RecomputeOptions(verify=True)
    model, calls, applied = excluded(make, exclude, **more)
    if way == "nested":
        for layer in model.model.layers:
            checkpoint_wrapper(layer.mlp)
        model.model.forward = checkpoint_wrapper(model.model.forward)
    same(train(model, ("F0", "F1", "B0", "B1")), plain(make, ("F0", "F1", "B0", "B1")))
    assert calls == dict.fromkeys(applied.plan.exclusions, 2)


@pytest.mark.rule("RECOMPUTE-16", "RECOMPUTE-17")
@pytest.mark.parametrize("make", [tiny_llama, tiny_v4])
def test_names_stay_and_the_models_own_checkpointing_is_off_meanwhile(make):
    before = make()
    names = [name for name, _ in before.named_parameters()]
    modules = [name for name, _ in before.named_modules()]
    model = make()
    model.activation_checkpointing_enable()
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=(ATTENTION,), on_applied="note")
    plan, hooked = plan_recompute(read_modules(model), policy, LayerSelection(layer_count=2)), []
    applied = apply_recompute(model, plan, hooks={"note": lambda *given: hooked.append(given)})
    assert hooked == [(model, plan)]
    assert [name for name, _ in model.named_parameters()] == names
    assert [name for name, _ in model.named_modules()] == modules
    assert list(model.state_dict()) == list(before.state_dict())
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    again = apply_recompute(model, plan, hooks={"note": lambda *given: hooked.append(given)})
    assert (again.wrapped, len(hooked)) == ((), 1)
    assert [module.wrapped for module in read_modules(model)].count("checkpoint") == 2
    applied.remove()
    assert {module.wrapped for module in read_modules(model)} == {"none"}
    assert model.model.layers[0].gradient_checkpointing


@pytest.mark.rule("RECOMPUTE-44")
@pytest.mark.parametrize("make", [tiny_llama, tiny_v4])
@pytest.mark.parametrize("exclude", [(), (ATTENTION,)])
def test_layers_in_training_go_without_their_cache(make, exclude):
    def step(model):
        torch.manual_seed(7)
        found = model(**{**tokens(), "use_cache": True, "attention_mask": torch.ones(2, 32)})
        found.loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    expected = step(make())
    model, calls, _ = excluded(make, exclude)
    with pytest.warns(UserWarning, match="past_key_values"):
        gradients = step(model)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    assert set(calls.values()) <= {1}


CONTAINERS = {
    "llama": {"model.layers": 32},
    "qwen3_moe": {"model.layers": 24},
    "deepseek_v3": {"model.layers": 61},
    "gpt2": {"transformer.h": 12},
    "gpt_oss": {"model.layers": 36},
    "deepseek_v4": {"model.layers": 43},
    "qwen3_vl": {"model.visual.blocks": 27, "model.language_model.layers": 32},
    "qwen3_vl_moe": {"model.visual.blocks": 27, "model.language_model.layers": 24},
}


@cache
def modules_of(model_type):
    return read_modules(meta_model(model_type))


@pytest.mark.rule("RECOMPUTE-4")
@pytest.mark.parametrize("model_type", CONTAINERS)
def test_layers_of_real_models(model_type):
    found = find_layers(modules_of(model_type))
    assert {container.fqn: len(container.layers) for container in found} == CONTAINERS[model_type]


@pytest.mark.rule("RECOMPUTE-41")
def test_a_count_on_a_vision_model_takes_vision_blocks_first_and_says_so():
    policy = RecomputePolicy(region_patterns=("model.*",))
    plan = plan_recompute(modules_of("qwen3_vl"), policy, LayerSelection(layer_count=5))
    assert plan.roots == tuple(f"model.visual.blocks.{block}" for block in range(5))
    assert "takes 5 of 27 in model.visual.blocks, 0 of 32 in model.language_model.layers" in explain(plan)
    other = plan_recompute(modules_of("qwen3_vl"), policy, LayerSelection(layer_count=6))
    assert "roots[model.visual.blocks.5]" in [change.path for change in diff(plan, other)]


@pytest.mark.rule("RECOMPUTE-8")
def test_in_v4_twenty_of_the_layers_own_an_indexer():
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=(INDEXER,))
    plan = plan_recompute(modules_of("deepseek_v4"), policy, LayerSelection(layer_count=43))
    assert len(plan.roots) == 43
    assert len(plan.exclusions) == 20
    assert from_json(to_json(plan)) == plan


def test_planning_deepseek_v3_takes_less_than_a_second():
    modules = modules_of("deepseek_v3")
    assert len(modules) == 1215
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=(ATTENTION, "*.gate"))
    best = min(_seconds(lambda: plan_recompute(modules, policy, LayerSelection(layer_count=61))) for _ in range(5))
    assert best < 1.0


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_wrappers_of_torch_are_left_out_of_names():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as torch_wrapper

    model = tiny_llama()
    model.model.layers[0] = torch_wrapper(model.model.layers[0])
    model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    names = [module.fqn for module in read_modules(tiny_llama())]
    found = {module.fqn: module for module in read_modules(model)}
    assert list(found) == names
    assert found["model.layers.0"].wrapped == "checkpoint"
    assert found["model.layers.0"].type_name == "LlamaDecoderLayer"
    assert find_layers(tuple(found.values())) == find_layers(read_modules(tiny_llama()))
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=("model.layers.1.self_attn",))
    plan = plan_recompute(tuple(found.values()), policy, LayerSelection(layer_count=2))
    assert [step.fqn for step in plan.wrap_order] == ["model.layers.1.self_attn", "model.layers.1"]
    assert plan.notes == ("model.layers.0 is wrapped already",)
    whole = plan_recompute(
        read_modules(tiny_llama()), RecomputePolicy(region_patterns=(LAYERS,)), LayerSelection(layer_count=1)
    )
    assert apply_recompute(model, whole).wrapped == ()
    apply_recompute(model, plan)
    same(train(model), plain_with_names_of(model))


def plain_with_names_of(model):
    losses, gradients, state = plain(tiny_llama, ("F0", "B0"))
    return losses, dict(zip([name for name, _ in model.named_parameters()], gradients.values(), strict=True)), state


@pytest.mark.rule("RECOMPUTE-11")
def test_a_shared_module_is_wrapped_once_under_both_names():
    model = tiny_llama()
    model.model.layers[2].mlp = model.model.layers[0].mlp
    expected = train(model)
    policy = RecomputePolicy(region_patterns=(LAYERS,), exclude_patterns=("model.layers.0.mlp",))
    plan = plan_recompute(read_modules(model), policy, LayerSelection(layer_count=3))
    assert [step.fqn for step in plan.wrap_order[:2]] == ["model.layers.0.mlp", "model.layers.2.mlp"]
    applied = apply_recompute(model, plan)
    assert applied.wrapped[:2] == ("model.layers.0.mlp", "model.layers.0")
    assert model.model.layers[2].mlp.__dict__["forward"] is model.model.layers[0].mlp.__dict__["forward"]
    same(train(model), expected)


def test_exclusions_outside_of_regions_change_nothing():
    model = tiny_llama()
    for layer in model.model.layers:
        checkpoint_exclude_wrapper(layer.self_attn)
    same(train(model), plain(tiny_llama, ("F0", "B0")))
