"""Recompute plans and estimates in words; ``hpfun.explain`` calls these.

Rule RECOMPUTE-41 of ``specs/recompute.md``.
"""

from collections.abc import Sequence

from hpfun.matching import ancestors, inside
from hpfun.recompute.budget import BudgetResult, Estimate
from hpfun.recompute.plan import RecomputePlan
from hpfun.wording import counted, in_bytes, listed

ROWS_SHOWN = 16


def plan_in_words(plan: RecomputePlan) -> str:
    """What a plan wraps, how regions are run, and its notes."""
    options = [name for name in ("swap_inputs", "enable_compile", "verify") if getattr(plan.options, name)]
    options += [f"no {name}" for name in ("preserve_rng_state", "early_stop") if not getattr(plan.options, name)]
    lines = [
        f"Recompute plan: {counted(len(plan.layers), 'layer')} selected, {counted(len(plan.roots), 'region')} "
        f"recomputed,\n{counted(len(plan.exclusions), 'exclusion')} not replayed, "
        f"{counted(len(plan.wrap_order), 'wrap')}{'; ' if options else ''}{', '.join(options)}."
    ]
    for name, fqns in (("layers", plan.layers), ("regions", plan.roots), ("exclusions", plan.exclusions)):
        lines += [f"  {name}:"] * bool(fqns) + [f"    {group}" for group in folded(fqns)]
    lines += ["Notes:"] * bool(plan.notes) + [f"  {note}" for note in plan.notes[:ROWS_SHOWN]]
    if len(plan.notes) > ROWS_SHOWN:
        lines.append(f"  ... {counted(len(plan.notes) - ROWS_SHOWN, 'more note')}")
    return "\n".join(lines)


def module_in_words(plan: RecomputePlan, fqn: str) -> str:
    """What happens to one module in forward and backward; a plan knows names, not which modules there are."""
    roots, exclusions = frozenset(plan.roots), frozenset(plan.exclusions)
    root, exclusion = inside(fqn, roots), inside(fqn, exclusions)
    if exclusion is not None:
        saved = {step.fqn: step.save_output for step in plan.wrap_order}.get(exclusion, True)
        which = "an exclusion" if exclusion == fqn else f"in the exclusion {exclusion}"
        kept = "its outputs are kept" if saved else "its outputs are not kept, nothing may read them in a replay"
        return f"{fqn}: {which} of the region {root}; runs once, {kept}."
    if root is not None:
        which = "a region" if root == fqn else f"in the region {root}"
        within = [name for name in plan.exclusions if fqn in ancestors(name)]
        without = f", without {listed(within)}" if within else ""
        return f"{fqn}: {which}; runs in the forward and again in the backward{without}."
    below = [name for name in plan.roots if fqn in ancestors(name)]
    if below:
        return f"{fqn or 'the model'}: no region itself; {counted(len(below), 'region')} below it: {listed(below)}."
    return f"{fqn}: in no region of this plan."


def estimate_in_words(value: Estimate) -> str:
    """Totals, and one line a region."""
    recomputed = sum(row.recomputed for row in value.rows)
    host = f", {in_bytes(value.host_bytes)} on the host" if value.host_bytes else ""
    lines = [
        f"{recomputed} of {counted(len(value.rows), 'region')} recomputed: {in_bytes(value.kept_bytes)} kept{host},",
        f"{in_bytes(value.peak_bytes)} at the peak of the backward, {value.replay_flops:,} flops replayed.",
        f"{'held':>12}{'in backward':>14}{'flops':>22}  region",
    ]
    for row in value.rows[:ROWS_SHOWN]:
        flops = f"{row.replay_flops:,}" if row.recomputed else "-"
        lines.append(f"{in_bytes(row.held_bytes):>12}{in_bytes(row.live_bytes):>14}{flops:>22}  {row.fqn}")
    if len(value.rows) > ROWS_SHOWN:
        lines.append(f"{'...':>12}  {counted(len(value.rows) - ROWS_SHOWN, 'more region')}")
    return "\n".join(lines)


def choice_in_words(value: BudgetResult) -> str:
    """How the choice was made, and its estimate."""
    how = "no choice replays less" if value.method == "exact" else f"at most {value.bound} times the least replay"
    return f"{value.method.capitalize()} choice: {how}.\n{estimate_in_words(value.estimate)}"


def folded(fqns: Sequence[str]) -> list[str]:
    """Names with runs of their numbers folded: h.0 and h.1 become h.0-1.

    >>> folded(("h.0.mlp", "h.1.mlp", "h.3.mlp", "norm"))
    ['h.0-1.mlp', 'h.3.mlp', 'norm']
    """
    runs: list[list[str | int]] = []  # before the number, first, last, after it
    for fqn in fqns:
        parts = fqn.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
        if at is None:
            runs.append([fqn, -1, -1, ""])
            continue
        before, number = "".join(f"{part}." for part in parts[:at]), int(parts[at])
        after = "".join(f".{part}" for part in parts[at + 1 :])
        run = next((run for run in runs if (run[0], run[2], run[3]) == (before, number - 1, after)), None)
        if run is None or number == 0:
            runs.append([before, number, number, after])
        else:
            run[2] = number
    shown = [
        f"{before}{after}" if first == -1 else f"{before}{first}{'' if first == last else f'-{last}'}{after}"
        for before, first, last, after in runs
    ]
    return shown if len(shown) <= ROWS_SHOWN else [*shown[:ROWS_SHOWN], f"... {len(shown) - ROWS_SHOWN} more"]
