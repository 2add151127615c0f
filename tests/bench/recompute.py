"""Recompute: planning a large model, choices against their optimum, regions against torch's own checkpoint."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from hpfun.recompute import (
    LayerSelection,
    RecomputePolicy,
    RegionSize,
    choose_regions,
    plan_recompute,
)
from hpfun_torch.recompute import apply_recompute, read_modules
from hpfun_torch.recompute.configs import meta_model
from tests.bench.measure import Figure, best_of, best_of_two
from tests.real_models import tiny_llama, tokens
from tests.test_recompute_measure import CHOICES, estimated_and_given_out

LAYERS, ATTENTION = ("model.layers.*",), ("model.layers.*.self_attn",)
CASES = 2000


def figures() -> Iterator[Figure]:
    yield from planning()
    yield from choices()
    yield from steps()
    yield from memory()


def planning() -> Iterator[Figure]:
    model = meta_model("deepseek_v3")
    policy = RecomputePolicy(region_patterns=LAYERS, exclude_patterns=(*ATTENTION, "*.gate"))
    seconds = best_of(lambda: plan_recompute(read_modules(model), policy, LayerSelection(layer_count=61)))
    yield Figure("DeepSeek-V3, 1,215 modules: reading and planning, seconds", seconds, 1.0, unit="s")


def random_sizes(generator: np.random.Generator, count: int) -> tuple[RegionSize, ...]:
    saved, flops = generator.integers(1, 2**31, (2, count)).tolist()
    return tuple(
        RegionSize(fqn=f"{at}", saved_bytes=held, input_bytes=held // 8, excluded_bytes=0, replay_flops=work)
        for at, (held, work) in enumerate(zip(saved, flops, strict=True))
    )


def choices() -> Iterator[Figure]:
    generator, worst = np.random.default_rng(0), 1.0
    for _ in range(CASES):
        sizes = random_sizes(generator, int(generator.integers(1, 13)))
        least = sum(size.input_bytes for size in sizes)
        budget = int(generator.integers(least, sum(size.saved_bytes for size in sizes) + 1))
        exact = choose_regions(sizes, budget).estimate.replay_flops
        greedy = choose_regions(sizes, budget, exact_limit=0).estimate.replay_flops
        worst = max(worst, greedy / exact if exact else 1.0)
    yield Figure(f"greedy choice / exact choice, worst of {CASES:,} random models", worst, 2.0)
    sizes = random_sizes(generator, 100)
    half = sum(size.saved_bytes for size in sizes) // 2
    seconds = best_of(lambda: choose_regions(sizes, half))
    method = choose_regions(sizes, half).method
    yield Figure("choosing among 100 regions without two alike, seconds", seconds, 5.0, {"method": method}, unit="s")


def steps() -> Iterator[Figure]:
    batch = tokens(2, 256)
    ours, excluded, torchs = tiny_llama(), tiny_llama(), tiny_llama()
    for model, exclude in ((ours, ()), (excluded, ATTENTION)):
        policy = RecomputePolicy(region_patterns=LAYERS, exclude_patterns=exclude)
        apply_recompute(model, plan_recompute(read_modules(model), policy, LayerSelection(layer_count=3)))
    for layer in torchs.model.layers:
        forward = layer.forward
        layer.forward = lambda *a, forward=forward, **k: checkpoint(forward, *a, use_reentrant=False, **k)

    def step(model: torch.nn.Module) -> None:
        model(**batch).loss.backward()

    one, other = best_of_two(lambda: step(ours), lambda: step(torchs), times=15)
    yield Figure("training step of a tiny Llama, regions / torch's checkpoint", one / other, 1.15)
    one, other = best_of_two(lambda: step(excluded), lambda: step(torchs), times=15)
    yield Figure("the same with attention excluded / torch's checkpoint", one / other, 1.0)


def memory() -> Iterator[Figure]:
    worst = 0.0
    for roots, exclusions in CHOICES.values():
        estimated, kept = estimated_and_given_out(tiny_llama, roots, exclusions, length=256)
        worst = max(worst, abs(estimated / kept - 1))
    yield Figure("estimated bytes kept / bytes from the allocator, 7 choices: greatest error", worst, 0.05)
