"""Hypothesis strategies for models as lists of modules, recompute plans, and sizes of regions.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from operator import itemgetter
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.errors import PlanError
from hpfun.matching import ancestors
from hpfun.recompute.budget import BudgetResult, Estimate, RegionSize, choose_regions, estimate
from hpfun.recompute.plan import RecomputeOptions, RecomputePlan, plan_recompute
from hpfun.recompute.policy import LayerSelection, ModuleInfo, RecomputePolicy, find_layers
from hpfun.recompute.release import replay_trace

_PARTS = ("attn", "attn.indexer", "mlp", "norm")


@st.composite
def module_trees(draw: st.DrawFn, max_containers: int = 2, max_layers: int = 4) -> tuple[ModuleInfo, ...]:
    """All modules of a model in registration order: containers of layers, some of them shared or without layers.

    >>> from hypothesis import find
    >>> from hpfun.recompute import find_layers
    >>> modules = find(module_trees(), lambda modules: len(find_layers(modules)) == 2)
    >>> modules[0].fqn
    ''
    """
    found = [ModuleInfo(fqn="", type_name="Model", is_list=False, has_marker=draw(st.booleans()), module_id=0)]
    shared = draw(st.booleans())  # one norm for all layers

    def add(fqn: str, type_name: str, is_list: bool = False, has_marker: bool = False, same: int | None = None) -> None:
        number = len(found) if same is None else same
        found.append(ModuleInfo(fqn=fqn, type_name=type_name, is_list=is_list, has_marker=has_marker, module_id=number))

    norm: int | None = None
    for owner in ("visual", "text")[: draw(st.integers(1, max_containers))]:
        add(owner, "Part", has_marker=draw(st.sampled_from((True, True, False))))
        add(f"{owner}.layers", "ModuleList", is_list=True)
        marked = draw(st.sampled_from((True, True, True, False)))
        for layer in range(draw(st.integers(0, max_layers))):
            add(f"{owner}.layers.{layer}", "Layer", has_marker=marked)
            for part in _PARTS:
                same = norm if shared and part == "norm" else None
                add(f"{owner}.layers.{layer}.{part}", part.capitalize(), same=same)
                norm = found[-1].module_id if part == "norm" else norm
    add("head", "Linear")
    return tuple(found)


@st.composite
def recompute_requests(draw: st.DrawFn) -> dict[str, Any]:
    """Keyword arguments that ``plan_recompute`` takes: a model, a policy, layers of it, and options.

    >>> from hypothesis import find
    >>> find(recompute_requests(), lambda request: request["selection"].layer_count == 2)["policy"].region_patterns
    ('*',)
    """
    modules = draw(module_trees())
    layers = [layer for container in find_layers(modules) for layer in container.layers]
    below = [module.fqn for module in modules if module.fqn and any(name in layers for name in ancestors(module.fqn))]
    ways: list[SearchStrategy[LayerSelection]] = [st.just(LayerSelection(layer_count=0))]
    if layers:
        ways.append(st.integers(1, len(layers)).map(lambda count: LayerSelection(layer_count=count)))
        indices = st.lists(st.sampled_from(range(len(layers))), min_size=1, unique=True)
        ways.append(indices.map(lambda chosen: LayerSelection(layer_indices=tuple(chosen))))
        ways.append(
            st.lists(st.sampled_from([*layers, *below]), min_size=1, unique=True).map(
                lambda chosen: LayerSelection(region_fqns=tuple(chosen))
            )
        )
    exclude: SearchStrategy[Any] = st.just(())
    if layers:
        exclude = st.sampled_from(((), ("*.layers.*.attn",), ("*.indexer",), ("*.attn", "*.indexer")))
    swap, verify, compiled = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    patterns = draw(exclude)
    return {
        "modules": modules,
        "policy": RecomputePolicy(
            region_patterns=draw(
                st.sampled_from((("*",), ("*.layers.?",), ("*.mlp", "*.layers.*"))) if layers else st.just(("*",))
            ),
            exclude_patterns=patterns,
            unsaved_patterns=draw(st.sampled_from(((), patterns[:1]))),
            on_applied=draw(st.sampled_from((None, "log"))),
        ),
        "selection": draw(st.one_of(ways)),
        "options": RecomputeOptions(swap_inputs=swap, verify=verify, enable_compile=compiled and not patterns),
    }


def recompute_plans() -> SearchStrategy[RecomputePlan]:
    """Plans of all kinds: with and without exclusions, of shared modules, of nothing.

    >>> from hypothesis import find
    >>> find(recompute_plans(), lambda plan: len(plan.exclusions) == 2).wrap_order[0].kind
    'exclude'
    """
    return recompute_requests().map(_planned).filter(lambda plan: plan is not None)  # ty: ignore[invalid-explicit-return]


def _planned(request: dict[str, Any]) -> RecomputePlan | None:
    try:
        return plan_recompute(**request)
    except PlanError:  # selected names above or beside what the patterns of exclusions match
        return None


@st.composite
def region_sizes(draw: st.DrawFn, max_regions: int = 8, most: int = 40) -> tuple[RegionSize, ...]:
    """Sizes of the regions of a model in forward order; alike, different, and without anything to gain.

    >>> from hypothesis import find
    >>> len(find(region_sizes(), lambda sizes: len(sizes) > 2))
    3
    """
    found = []
    for number in range(draw(st.integers(0, max_regions))):
        if found and draw(st.booleans()):
            saved, inputs, excluded, flops = draw(st.sampled_from(found))[1:]
        else:
            saved, inputs, flops = (draw(st.integers(0, most)) for _ in range(3))
            excluded = draw(st.integers(0, saved))
        found.append((f"layers.{number}", saved, inputs, excluded, flops))
    return tuple(
        RegionSize(fqn=fqn, saved_bytes=saved, input_bytes=inputs, excluded_bytes=excluded, replay_flops=flops)
        for fqn, saved, inputs, excluded, flops in found
    )


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    """Estimates of any choice of regions, with inputs on the device or the host.

    >>> from hypothesis import find
    >>> find(estimates(), lambda found: found.host_bytes > 0).rows[0].recomputed
    True
    """
    sizes = draw(region_sizes())
    roots = draw(st.lists(st.sampled_from([size.fqn for size in sizes]), unique=True)) if sizes else []
    return estimate(sizes, roots, swap_inputs=draw(st.booleans()))


@st.composite
def budget_results(draw: st.DrawFn) -> BudgetResult:
    """Choices under a budget that can be reached, exact and greedy.

    >>> from hypothesis import find
    >>> find(budget_results(), lambda found: found.method == "greedy" and len(found.roots) > 0).bound
    Fraction(2, 1)
    """
    sizes, swap = draw(region_sizes()), draw(st.booleans())
    ends = [
        estimate(sizes, roots, swap_inputs=swap).kept_bytes
        for roots in ([], [size.fqn for size in sizes if _gains(size, swap)])
    ]
    budget = draw(st.integers(min(ends), max(ends) + 1))
    return choose_regions(sizes, budget, swap_inputs=swap, exact_limit=draw(st.sampled_from((0, 200_000))))


def _gains(size: RegionSize, swap_inputs: bool) -> bool:
    return size.saved_bytes > size.excluded_bytes + (0 if swap_inputs else size.input_bytes)


@st.composite
def schedules(draw: st.DrawFn, max_micro_batches: int = 5) -> tuple[tuple[str, int], ...]:
    """Forwards and backwards of micro-batches in any order in which each backward follows its forward.

    >>> from hypothesis import find
    >>> find(schedules(), lambda events: len(events) == 4 and events[1][0] == "F")[2][0]
    'B'
    """
    count = draw(st.integers(0, max_micro_batches))
    order = draw(st.permutations([number for number in range(count) for _ in range(2)]))
    seen: set[int] = set()
    return tuple(("B" if number in seen else (seen.add(number) or "F"), number) for number in order)


def recompute_values() -> SearchStrategy[Any]:
    """Any value of ``hpfun.recompute``."""
    return st.one_of(
        module_trees().flatmap(st.sampled_from),
        module_trees().map(find_layers).filter(bool).flatmap(st.sampled_from),
        *(recompute_requests().map(itemgetter(name)) for name in ("policy", "selection", "options")),
        recompute_plans(),
        recompute_plans().map(lambda plan: plan.wrap_order).filter(bool).flatmap(st.sampled_from),
        region_sizes().filter(bool).flatmap(st.sampled_from),
        estimates(),
        estimates().map(lambda found: found.rows).filter(bool).flatmap(st.sampled_from),
        budget_results(),
        schedules().map(replay_trace).filter(bool).flatmap(st.sampled_from),
    )
