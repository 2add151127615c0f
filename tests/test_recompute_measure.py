"""Sizes of regions: by hand, and against what the allocator gave out."""

import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

from hpfun.recompute import (  # noqa: E402
    LayerSelection,
    RecomputePolicy,
    choose_regions,
    estimate,
    plan_recompute,
)
from hpfun_torch.recompute import (  # noqa: E402
    apply_recompute,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    measure_sizes,
    read_modules,
)
from hpfun_torch.recompute.configs import measure_model, meta_model  # noqa: E402
from hpfun_torch.recompute.measure import measure_regions  # noqa: E402
from tests.real_models import tiny_llama, tiny_v4, tokens  # noqa: E402
from tests.refusals import refused  # noqa: E402

FQNS = tuple(f"model.layers.{layer}" for layer in range(3))


class Pair(torch.nn.Module):
    """Two products with a tanh between."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.b(self.a(x).tanh())


def parts(size):
    return size.saved_bytes, size.input_bytes, size.excluded_bytes, size.replay_flops


@pytest.mark.rule("RECOMPUTE-40")
def test_sizes_that_can_be_counted_by_hand():
    """8 rows of 4 floats are 128 bytes: the input, the tanh; a product is 2 * 8 * 4 * 4 flops."""
    model, x = torch.nn.Sequential(Pair()), torch.ones(8, 4, requires_grad=True)
    assert parts(measure_sizes(model, x, ("0",))[0]) == (256, 128, 0, 512)
    # the body of b saves the tanh, its output is cached: 256, but without b only the input is kept anyway
    assert parts(measure_sizes(model, (x,), ("0",), exclusions=("0.b",))[0]) == (256, 128, 256, 256)
    assert parts(measure_sizes(model, (x,), ("0",), unsaved=("0.b",))[0]) == (256, 128, 128, 256)
    # a saves the region's input, which counts as that
    assert parts(measure_sizes(model, (x,), ("0",), unsaved=("0.a",))[0]) == (256, 128, 0, 256)


@pytest.mark.rule("RECOMPUTE-40")
def test_what_two_regions_hold_counts_in_one():
    model, x = torch.nn.Sequential(torch.nn.Tanh(), Pair(), torch.nn.Linear(4, 4)), torch.ones(8, 4, requires_grad=True)
    first, second, third = measure_sizes(model, x, ("0", "1", "2"))
    assert parts(first) == (0, 128, 0, 0)  # its output is kept by the second
    assert parts(second) == (256, 128, 0, 512)
    assert parts(third) == (128, 128, 0, 256)


@pytest.mark.rule("RECOMPUTE-40")
def test_an_input_of_two_regions_counts_as_kept_once():
    class Masked(torch.nn.Module):
        def forward(self, x, mask):
            return (x + mask).tanh()

    model = torch.nn.ModuleList([Masked(), Masked()])
    model.forward = lambda x, mask: model[1](model[0](x, mask), mask)
    x, mask = torch.ones(8, 4, requires_grad=True), torch.zeros(8, 4)
    first, second = measure_sizes(model, (x, mask), ("0", "1"))
    assert parts(first) == (128, 256, 0, 0)  # the mask, which no region saves; its tanh is the input of the second
    assert parts(second) == (256, 128, 0, 0)


@pytest.mark.rule("RECOMPUTE-40")
def test_parameters_are_no_activations_and_regions_that_do_not_run_have_no_size():
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 4), "idle": torch.nn.Linear(4, 4)})
    model.forward = lambda *, x, scale: model["used"](x) * scale["by"]
    found = measure_sizes(model, {"x": torch.ones(8, 4), "scale": {"by": 2.0}}, ("idle", "used"))
    assert [size.fqn for size in found] == ["used", "idle"]
    assert parts(found[1]) == (0, 0, 0, 0)
    assert parts(found[0]) == (128, 128, 0, 256)


@pytest.mark.rule("RECOMPUTE-40")
def test_exclusions_that_the_model_has_count_as_such():
    model, x = torch.nn.Sequential(Pair()), torch.ones(8, 4, requires_grad=True)
    given = measure_sizes(model, x, ("0",), exclusions=("0.b",))
    checkpoint_exclude_wrapper(model[0].b)
    assert measure_sizes(model, x, ("0",)) == given
    assert measure_sizes(torch.nn.Sequential(model), x, ("0.0",))[0].excluded_bytes == 256


@pytest.mark.rule("RECOMPUTE-40")
def test_exclusions_that_the_model_has_without_outputs_count_so():
    model, x = torch.nn.Sequential(Pair()), torch.ones(8, 4, requires_grad=True)
    given = measure_sizes(model, x, ("0",), unsaved=("0.b",))
    checkpoint_exclude_wrapper(model[0].b, save_output=False)
    assert measure_sizes(model, x, ("0",)) == given


@pytest.mark.rule("RECOMPUTE-40")
def test_what_a_dropped_graph_saved_does_not_count():
    class Choosing(torch.nn.Module):
        def forward(self, x):
            return x * (x.exp().sin() > 0.5)  # of the scores the choice alone is used

    model, x = torch.nn.Sequential(Choosing()), torch.ones(8, 4, requires_grad=True)
    assert parts(measure_sizes(model, x, ("0",))[0]) == (32, 128, 0, 0)


@pytest.mark.rule("RECOMPUTE-40")
def test_tensors_of_several_parts_weigh_what_their_parts_hold():
    model = torch.nn.Sequential(torch.nn.Identity())
    ends, columns, values = torch.arange(5), torch.arange(4), torch.ones(4)
    given = {
        4 * 16 + 4 * 4: torch.sparse_coo_tensor(torch.stack((columns, columns)), values, (4, 4)),
        5 * 8 + 4 * 8 + 4 * 4: torch.sparse_csr_tensor(ends, columns, values, (4, 4)),
        2 * 4 * 4: TwoTensor(torch.ones(4), torch.zeros(4)),  # as a DTensor holds its local part
    }
    for weight, tensor in given.items():
        assert measure_sizes(model, tensor, ("0",))[0].input_bytes == weight


def test_nothing_is_left_on_the_model():
    model = tiny_llama()
    before = [dict(vars(module)) for module in model.modules()]
    measure_sizes(model, tokens(), FQNS, exclusions=[f"{fqn}.self_attn" for fqn in FQNS])
    assert [list(vars(module)) for module in model.modules()] == [list(held) for held in before]


def test_bad_names_and_wrapped_roots_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with refused("HP-RECOMPUTE-007") as caught:
        measure_sizes(model, torch.ones(1, 4), ("0.x",))
    assert caught.error.facts["nearest"][0] == "0"
    checkpoint_wrapper(model[0])
    with refused("HP-RECOMPUTE-013"):
        measure_sizes(model, torch.ones(1, 4), ("0",))


def test_on_the_meta_device_sizes_are_those_of_the_real_device():
    real, meta = tiny_llama(), tiny_llama().to("meta")
    batch = {**tokens(), "attention_mask": torch.zeros(2, 1, 32, 32)}  # the model looks into shorter ones
    on_meta = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    assert measure_sizes(meta, on_meta, FQNS) == measure_sizes(real, batch, FQNS)


def given_out(call):
    """Bytes that the CPU allocator gave out and did not take back during a call."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    events = recorded.profiler.kineto_results.events()
    del result
    return sum(event.nbytes() for event in events if event.name() == "[memory]")


CHOICES = {
    "nothing": ((), ()),
    "one layer": (FQNS[1:2], ()),
    "two layers": (FQNS[:2], ()),
    "all layers": (FQNS, ()),
    "all without attention": (FQNS, tuple(f"{fqn}.self_attn" for fqn in FQNS)),
    "one without mlp": (FQNS[1:2], (f"{FQNS[1]}.mlp",)),
    "all without norms": (FQNS, tuple(f"{fqn}.input_layernorm" for fqn in FQNS)),
}


@pytest.mark.rule("RECOMPUTE-38", "RECOMPUTE-40")
@pytest.mark.parametrize("choice", CHOICES)
def test_an_estimate_is_what_the_allocator_gives_out(choice):
    estimated, kept = estimated_and_given_out(tiny_llama, *CHOICES[choice], length=256)
    assert kept == pytest.approx(estimated, rel=0.05)


INDEXERS = tuple(f"{fqn}.self_attn.compressor.indexer" for fqn in FQNS[1:])


@pytest.mark.rule("RECOMPUTE-40")
@pytest.mark.parametrize("exclusions", [(), INDEXERS, tuple(f"{fqn}.self_attn" for fqn in FQNS)])
def test_of_scores_whose_graph_is_dropped_nothing_is_estimated(exclusions):
    estimated, kept = estimated_and_given_out(tiny_v4, FQNS, exclusions, length=128)
    assert kept == pytest.approx(estimated, rel=0.05)


def estimated_and_given_out(make, roots, exclusions, length):
    """Bytes kept by the layers of a model with three, as estimated and as the allocator tells."""
    model, batch = make(), tokens(2, length)
    sizes = measure_sizes(model, batch, FQNS, exclusions=exclusions)
    bare = make()
    bare.model.layers = torch.nn.ModuleList()
    outside = given_out(lambda: bare(**batch).loss)
    if roots:
        policy = RecomputePolicy(region_patterns=("model.layers.?",), exclude_patterns=exclusions)
        apply_recompute(model, plan_recompute(read_modules(model), policy, LayerSelection(region_fqns=roots)))
    model(**batch).loss.backward()
    return estimate(sizes, roots).kept_bytes, given_out(lambda: model(**batch).loss) - outside


@pytest.mark.rule("RECOMPUTE-39")
def test_half_of_the_bytes_of_a_real_model_needs_half_of_its_layers():
    roots = tuple(f"model.layers.{layer}" for layer in range(32))
    sizes = measure_model(meta_model("llama"), 4096, roots).sizes
    assert len({parts(size) for size in sizes[1:]}) == 1  # the first one has the shared inputs as well
    budget = sum(size.saved_bytes for size in sizes) // 2
    found = choose_regions(sizes, budget)
    assert found.method == "exact"
    assert 15 <= len(found.roots) <= 18  # recomputed layers keep their inputs
    assert found.estimate.kept_bytes <= budget


def test_experts_count_as_many_rows_as_are_routed():
    model = meta_model("deepseek_v3")
    dense, routed = measure_model(model, 128, ("model.layers.0.mlp", "model.layers.60.mlp")).sizes
    config = model.config
    products = 3 * 2 * 128 * config.hidden_size
    assert dense.replay_flops == products * config.intermediate_size
    shared = config.n_shared_experts + config.num_experts_per_tok
    gate = 2 * 128 * config.hidden_size * config.n_routed_experts
    assert routed.replay_flops == products * config.moe_intermediate_size * shared + gate


def test_a_model_that_does_not_run_on_the_meta_device_is_refused():
    with refused("HP-RECOMPUTE-017") as caught:
        measure_model(meta_model("bert"), 1000, ())
    assert "BertLMHeadModel" in caught.error.facts["type"]
    assert caught.error.suggestion == "pass --tokens 512"


@pytest.mark.rule("RECOMPUTE-40")
def test_work_of_exclusions_and_bytes_outside_are_told():
    model, x = torch.nn.Sequential(torch.nn.Tanh(), Pair()), torch.ones(8, 4, requires_grad=True)
    found = measure_regions(model, x, ("1",), ("1.b",))
    assert (found.forward_flops, found.sizes[0].replay_flops) == (512, 256)
    assert found.outside_bytes == 0  # the tanh is the region's input
    assert measure_regions(model, x, ("1.b",), ()).outside_bytes == 128
