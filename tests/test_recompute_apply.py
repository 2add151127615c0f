"""Plans on models: what is refused before anything changes, hooks, and taking a plan off again."""

import pytest

torch = pytest.importorskip("torch")

from hpfun.recompute import LayerSelection, RecomputeOptions, RecomputePolicy, plan_recompute  # noqa: E402
from hpfun_torch.recompute import (  # noqa: E402
    apply_recompute,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    read_modules,
)
from tests.refusals import refused  # noqa: E402


def model_of(count=3):
    return torch.nn.ModuleDict(
        {str(at): torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for at in range(count)}
    )


def plan_of(model, exclude=("?.0",), hook=None, options=None):
    policy = RecomputePolicy(region_patterns=("?",), exclude_patterns=exclude, on_applied=hook)
    return plan_recompute(read_modules(model), policy, LayerSelection(region_fqns=("",)), options)


def wrapped(model):
    return [module.wrapped for module in read_modules(model)]


@pytest.mark.rule("RECOMPUTE-13")
def test_applying_twice_changes_nothing_and_removing_restores():
    model = model_of()
    plan = plan_of(model)
    first = apply_recompute(model, plan)
    assert first.wrapped == ("0.0", "1.0", "2.0", "0", "1", "2")
    forwards = [vars(module).get("forward") for module in model.modules()]
    second = apply_recompute(model, plan)
    assert second.wrapped == ()
    assert [vars(module).get("forward") for module in model.modules()] == forwards
    second.remove()
    assert "checkpoint" in wrapped(model)
    first.remove()
    assert set(wrapped(model)) == {"none"}
    assert not any("forward" in vars(module) for module in model.modules())
    assert apply_recompute(model, plan).wrapped == first.wrapped


@pytest.mark.rule("RECOMPUTE-13")
def test_a_forward_of_the_users_own_comes_back():
    model = model_of()

    def forward(x):
        return x

    model["1"].forward = forward
    apply_recompute(model, plan_of(model)).remove()
    assert model["1"].forward is forward


@pytest.mark.rule("RECOMPUTE-13")
def test_a_wrap_that_others_wrapped_since_does_nothing_once_it_is_removed():
    model, calls = model_of(1), []
    model["0"][1].register_forward_hook(lambda *_: calls.append(1))
    applied = apply_recompute(model, plan_of(model, exclude=("0.0",)))
    ours = model["0"].forward
    model["0"].forward = lambda x: ours(x)
    applied.remove()
    model["0"](torch.ones(1, 4)).sum().backward()
    assert len(calls) == 1


@pytest.mark.rule("RECOMPUTE-18")
def test_a_module_that_is_compiled_in_place_encloses_its_wrap():
    model = model_of(2)
    plan = plan_of(model)
    model["1"].compile(backend="eager")
    with refused("HP-RECOMPUTE-018") as caught:
        apply_recompute(model, plan)
    assert caught.error.facts["fqns"] == ("1",)
    assert set(wrapped(model)) == {"none"}
    apply_recompute(model, plan_of(model, exclude=(), options=RecomputeOptions(enable_compile=True)))


@pytest.mark.rule("RECOMPUTE-13", "RECOMPUTE-15")
def test_what_does_not_fit_is_refused_and_nothing_changes():
    model = model_of()
    plan = plan_of(model, hook="log")
    smaller = model_of(2)
    checkpoint_exclude_wrapper(smaller["1"])
    before = wrapped(smaller)
    with refused("HP-RECOMPUTE-013") as caught:
        apply_recompute(smaller, plan)
    codes = [violation.code[-3:] for violation in caught.error.violations]
    assert codes == ["013", "017", "017", "017"]
    assert dict(caught.error.facts) == {"fqn": "1", "kind": "exclude"}
    assert [dict(v.facts).get("fqn") for v in caught.error.violations[1:]] == ["2.0", "2", None]
    assert wrapped(smaller) == before


@pytest.mark.rule("RECOMPUTE-13")
def test_an_object_that_would_be_region_and_exclusion_is_refused():
    model = model_of()
    plan = plan_of(model)
    model["0"][0] = model["2"]
    with refused("HP-RECOMPUTE-013"):
        apply_recompute(model, plan)
    assert set(wrapped(model)) == {"none"}


def test_what_is_no_model_or_no_plan_is_refused():
    model = model_of()
    with refused("HP-RECOMPUTE-017"):
        apply_recompute(model, "plan")
    with refused("HP-RECOMPUTE-017"):
        apply_recompute("model", plan_of(model))
    with refused("HP-RECOMPUTE-017"):
        read_modules(None)


@pytest.mark.rule("RECOMPUTE-17")
def test_the_hook_runs_once_after_all_wraps():
    model, seen = model_of(), []
    plan = plan_of(model, hook="log")
    with refused("HP-RECOMPUTE-017") as caught:
        apply_recompute(model, plan, hooks={"other": print})
    assert dict(caught.error.facts) == {"hook": "log", "hooks": ("other",)}
    apply_recompute(model, plan, hooks={"log": lambda module, _: seen.append(wrapped(module))})
    assert [kinds.count("none") for kinds in seen] == [4]
    assert len(seen) == 1


@pytest.mark.rule("RECOMPUTE-17")
def test_a_hook_that_fails_leaves_the_model_as_it_was():
    model = model_of()

    def broken(module, plan):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        apply_recompute(model, plan_of(model, hook="log"), hooks={"log": broken})
    assert set(wrapped(model)) == {"none"}


def test_the_options_of_a_plan_reach_its_regions():
    model = model_of()
    options = RecomputeOptions(swap_inputs=True, verify=True, preserve_rng_state=False)
    apply_recompute(model, plan_of(model, options=options))
    assert model["0"].forward.options == options
    assert model["0"][0].forward.name == "0.0"


@pytest.mark.rule("RECOMPUTE-4")
def test_markers_and_lists_are_read():
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([checkpoint_wrapper(torch.nn.Linear(2, 2))])
    model.gradient_checkpointing = False
    found = [(module.fqn, module.is_list, module.has_marker, module.wrapped) for module in read_modules(model)]
    assert found == [
        ("", False, True, "none"),
        ("layers", True, False, "none"),
        ("layers.0", False, False, "checkpoint"),
    ]
