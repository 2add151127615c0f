"""``hpfun recompute``: which regions of a real model to recompute under a budget of bytes.

The model is built from its config on the meta device, by ``hpfun_torch``; the choice itself needs sizes alone.
"""

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich import box
from rich.table import Table

from hpfun.cli_options import (
    INPUT,
    OUTPUT,
    PLAN,
    Count,
    Json,
    check_picture,
    note,
    print_json,
    progress_bar,
    stdout,
    write_text,
)
from hpfun.errors import refusal
from hpfun.matching import inside, matches
from hpfun.recompute.budget import BudgetResult, RegionSize, choose_regions, estimate, frontier
from hpfun.recompute.picture import draw_frontiers
from hpfun.recompute.plan import RecomputeOptions, RecomputePlan, plan_recompute
from hpfun.recompute.policy import (
    LayerContainer,
    LayerSelection,
    ModuleInfo,
    RecomputePolicy,
    find_layers,
    select_layers,
)
from hpfun.recompute.words import folded
from hpfun.serial import to_json
from hpfun.wording import counted, in_bytes, listed

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[KMGTP]?i?B)?")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def recompute(
    model_config: str,
    /,
    *,
    budget: Annotated[str, Parameter(group=PLAN)] = "50%",
    regions: Annotated[tuple[str, ...], Parameter(name="--region", group=PLAN, show_default=False)] = (),
    exclude: Annotated[tuple[str, ...], Parameter(name="--exclude", group=PLAN, show_default=False)] = (),
    swap_inputs: Annotated[bool, Parameter(negative="", show_default=False, group=PLAN)] = False,
    tokens: Annotated[Count, Parameter(group=INPUT)] = 4096,
    dtype: Annotated[str, Parameter(group=INPUT)] = "bfloat16",
    out: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    picture: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Choose the regions of a model to recompute, so that what is kept fits a budget at the least extra work.

    Sizes are those of one document on one device, nothing sharded, with fused attention; parameters, gradients and
    the loss are not in them. Needs torch and transformers, no accelerator and no weights.

    Parameters
    ----------
    model_config
        A config.json of transformers, a folder with one, or a model type with its defaults, as deepseek_v3.
    budget
        Bytes that regions may keep, as 40GiB, 500MB or a number, or a share of all, as 50%.
    regions
        Pattern of modules that are regions; may be given again. All layers if not given.
    exclude
        Pattern of modules that are not replayed; may be given again.
    swap_inputs
        Keep the inputs of recomputed regions on the host.
    tokens
        Tokens of the document.
    dtype
        bfloat16, float16 or float32.
    out
        Write the plan as JSON, for apply_recompute.
    picture
        Draw what memory costs in time as PNG, SVG or PDF.
    as_json
        Print sizes, choice and plan as one JSON object.
    """
    check_picture(picture)
    if tokens < 1:
        raise refusal("HP-INPUT-003", "--tokens", f"got {tokens}, legal is 1 or more", tokens=tokens)
    with progress_bar("Measuring", 2) as step:
        modules, containers, measured = _measured(model_config, tokens, dtype, regions, exclude, step)
    sizes, forward = measured.sizes, measured.forward_flops
    reached = tuple(size for size in sizes if size.saved_bytes or size.input_bytes)
    if not reached:
        message = f"a document of text reaches none of {counted(len(sizes), 'region')}"
        advice = "measure such regions with measure_sizes and a batch of their own"
        raise refusal("HP-RECOMPUTE-007", "--region", message, advice, pattern=tuple(regions), nearest=())
    everything = sum(size.saved_bytes for size in reached)
    limit = _bytes(budget, everything)
    choice = choose_regions(reached, limit, swap_inputs=swap_inputs)
    plan = _plan(modules, containers, choice.roots, regions, exclude, RecomputeOptions(swap_inputs=swap_inputs))
    counts = _counts(containers, reached, limit, swap_inputs)
    if out is not None:
        write_text(out, to_json(plan) + "\n")
        note(f"Wrote {out}: {counted(len(plan.wrap_order), 'wrap')}.")
    if picture is not None:
        lines = {"inputs on the host" if swap else "inputs on the device": swap for swap in (False, True)}
        draw_frontiers(
            {name: frontier(reached, swap_inputs=swap) for name, swap in lines.items()},
            forward,
            picture,
            limit,
        )
        note(f"Drew {picture}.")
    if as_json:
        named = {"config": model_config, "tokens": tokens, "dtype": dtype, "all_bytes": everything}
        named |= {"outside_bytes": measured.outside_bytes, "budget_bytes": limit, "forward_flops": forward}
        print_json(**named, **_figures(sizes, choice, counts, plan))
        return
    _print_table(f"{model_config}: {tokens:,} tokens, {dtype}", reached, choice, swap_inputs)
    _print_totals(reached, everything, limit, forward, choice)
    notes = [f"Outside of the regions {in_bytes(measured.outside_bytes)} are kept in any case."]
    notes += _count_note(counts, forward)
    idle = [size.fqn for size in sizes if size not in reached]
    if idle:
        notes.append(f"Not reached by a document of text, and so left out: {listed(folded(idle), 2)}.")
    for text in notes:
        stdout().print(text, style="dim")


def _measured(
    config: str, tokens: int, dtype: str, regions: Sequence[str], exclude: Sequence[str], step: Any
) -> tuple[tuple[ModuleInfo, ...], tuple[LayerContainer, ...], Any]:
    """Modules, layers and sizes of all regions that there could be."""
    from hpfun_torch.recompute import read_modules
    from hpfun_torch.recompute.configs import measure_model, meta_model

    model = meta_model(config, dtype)
    step(1)
    modules = read_modules(model)
    containers = find_layers(modules)
    layers = tuple(layer for container in containers for layer in container.layers)
    whole = _plan(modules, containers, ("",) if regions else layers, regions, exclude, RecomputeOptions())
    measured = measure_model(model, tokens, whole.roots, whole.exclusions)
    step(1)
    return modules, containers, measured


def _plan(
    modules: Sequence[ModuleInfo],
    containers: Sequence[LayerContainer],
    roots: Sequence[str],
    regions: Sequence[str],
    exclude: Sequence[str],
    options: RecomputeOptions,
) -> RecomputePlan:
    """The plan for these regions; exclude patterns that match nothing in a choice of them are left out."""
    fqns = [module.fqn for module in modules]
    here, layers = frozenset(roots), {layer for container in containers for layer in container.layers}
    if not roots and not layers:
        selection = LayerSelection(layer_count=1)  # which is refused, with what was seen
    else:
        selection = LayerSelection(region_fqns=tuple(roots)) if roots else LayerSelection(layer_count=0)
    every = here >= layers or "" in here
    kept = [p for p in exclude if every or any(inside(fqn, here) is not None for fqn in matches(p, fqns))]
    policy = RecomputePolicy(
        region_patterns=tuple(regions) or tuple(f"{container.fqn}.*" for container in containers) or ("*",),
        exclude_patterns=tuple(kept) if roots else (),
    )
    return plan_recompute(modules, policy, selection, options)


def _bytes(text: str, everything: int) -> int:
    """Bytes of ``40GiB``, ``500 MB``, ``1000`` or ``50%`` of everything; HP-RECOMPUTE-038."""
    found = _BYTES.fullmatch(text.strip().replace("_", "").replace(",", ""))
    if found is None:
        raise refusal("HP-RECOMPUTE-038", "--budget", f"got {text[:40]!r}", "as in 40GiB, 500MB or 50%", got=text[:40])
    number, unit = Fraction(found[1]), found[2] or "B"
    if unit == "%":
        return int(number * everything / 100)
    prefix = unit.removesuffix("B").removesuffix("i")
    return int(number * (1024 if "i" in unit else 1000) ** _UNITS[prefix])


def _counts(
    containers: Sequence[LayerContainer], sizes: Sequence[RegionSize], limit: int, swap_inputs: bool
) -> dict[str, Any] | None:
    """The smallest ``layer_count`` that fits, and what it takes; None where regions are no layers or none fits."""
    known = {size.fqn for size in sizes}
    layers = [layer for container in containers for layer in container.layers]
    if not known.issubset(layers):
        return None
    for count in range(len(layers) + 1):
        taken = select_layers(containers, LayerSelection(layer_count=count))
        found = estimate(sizes, [layer for layer in taken if layer in known], swap_inputs=swap_inputs)
        if found.kept_bytes <= limit:
            parts = {each.fqn: (len(set(each.layers) & set(taken)), len(each.layers)) for each in containers}
            totals = {"kept_bytes": found.kept_bytes, "replay_flops": found.replay_flops}
            return {"layer_count": count, "takes": parts, **totals}
    return None


def _count_note(counts: dict[str, Any] | None, forward: int) -> list[str]:
    if counts is None:
        return []
    parts = [f"{taken} of {total} in {name}" for name, (taken, total) in counts["takes"].items()]
    return [
        f"The smallest layer_count that fits is {counts['layer_count']}: it takes {listed(parts)}, keeps "
        f"{in_bytes(counts['kept_bytes'])} and replays {_share(counts['replay_flops'], forward)}."
    ]


def _share(flops: int, forward: int) -> str:
    return f"{flops / 1e12:.3g} TFLOP" + (f", {flops / forward:.1%} of the forward" if forward else "")


def _figures(
    sizes: Sequence[RegionSize], choice: BudgetResult, counts: dict[str, Any] | None, plan: RecomputePlan
) -> dict[str, Any]:
    found = choice.estimate
    names = ("fqn", "saved_bytes", "input_bytes", "excluded_bytes", "replay_flops")
    totals = ("kept_bytes", "peak_bytes", "host_bytes", "replay_flops")
    return {
        **{name: getattr(found, name) for name in totals},
        "method": choice.method,
        "bound": str(choice.bound),
        "roots": choice.roots,
        "layer_count": counts,
        "sizes": [{name: getattr(size, name) for name in names} for size in sizes],
        "plan": json.loads(to_json(plan)),
    }


def _print_table(title: str, sizes: Sequence[RegionSize], choice: BudgetResult, swap_inputs: bool) -> None:
    """A line for regions that are alike and alike chosen, in the order of the first of each."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("regions", overflow="fold")
    for heading in ("number", "kept\neach", "recomputed\neach", "replay\neach", "chosen"):
        table.add_column(heading, justify="right", no_wrap=True)
    chosen = frozenset(choice.roots)
    groups: dict[tuple[int, int, int, bool], list[str]] = {}
    for size in sizes:
        held = size.excluded_bytes + (0 if swap_inputs else size.input_bytes)
        groups.setdefault((size.saved_bytes, held, size.replay_flops, size.fqn in chosen), []).append(size.fqn)
    for (saved, held, flops, taken), fqns in groups.items():
        name = listed(folded(fqns), 3)
        cells = (in_bytes(saved), in_bytes(held), f"{flops / 1e12:.3g} TF", "yes" if taken else "-")
        table.add_row(name, f"{len(fqns):,}", *cells)
    stdout().print(table)


def _print_totals(sizes: Sequence[RegionSize], everything: int, limit: int, forward: int, choice: BudgetResult) -> None:
    found = choice.estimate
    host = f", {in_bytes(found.host_bytes)} on the host" if found.host_bytes else ""
    how = "no choice replays less" if choice.method == "exact" else f"at most {choice.bound} times the least"
    stdout().print(
        f"{counted(len(choice.roots), 'region')} of {len(sizes)} recomputed: {in_bytes(found.kept_bytes)} kept of "
        f"{in_bytes(everything)}{host} (budget {in_bytes(limit)}),\n{in_bytes(found.peak_bytes)} at the peak of the "
        f"backward, {_share(found.replay_flops, forward)} replayed; {how}."
    )
