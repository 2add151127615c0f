"""Which regions to recompute so that what is kept fits a byte budget, at the least replayed work.

A region's saved tensors are kept from forward to backward, or its inputs are and the rest is computed again. Which
regions to choose is a knapsack problem (``hpfun.recompute.knapsack``). Rules RECOMPUTE-38 to RECOMPUTE-40 of
``specs/recompute.md``.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import attrs

from hpfun._fields import (
    choice_field,
    content_digest,
    integer,
    integer_field,
    kind_field,
    named_plan_value,
    names,
    names_field,
    values_field,
)
from hpfun.errors import Violation, refusal, refuse_all
from hpfun.matching import nearest
from hpfun.recompute.knapsack import exact, greedy
from hpfun.wording import in_bytes, listed

MOST_TOTAL = 2**62
EXACT_LIMIT = 200_000
FRONTIER_POINTS = 65
METHODS = ("exact", "greedy")


@named_plan_value
class RegionSize:
    """What one region keeps and costs; bytes and flops, none negative (HP-RECOMPUTE-038).

    ``saved_bytes`` are kept from forward to backward without recompute, ``input_bytes`` are the region's inputs,
    ``excluded_bytes`` what its exclusions keep in any case: saved tensors and outputs. ``replay_flops`` is the
    work of a replay, without what is excluded.

    >>> RegionSize(fqn="h.0", saved_bytes=100, input_bytes=10, excluded_bytes=30, replay_flops=5).saved_bytes
    100
    """

    fqn: str = kind_field(str, "HP-RECOMPUTE-038")
    saved_bytes: int = integer_field("HP-RECOMPUTE-038", least=0, most=MOST_TOTAL)
    input_bytes: int = integer_field("HP-RECOMPUTE-038", least=0, most=MOST_TOTAL)
    excluded_bytes: int = integer_field("HP-RECOMPUTE-038", least=0, most=MOST_TOTAL)
    replay_flops: int = integer_field("HP-RECOMPUTE-038", least=0, most=MOST_TOTAL)

    digest = content_digest

    def __attrs_post_init__(self):
        if self.excluded_bytes > self.saved_bytes:
            raise refusal(
                "HP-RECOMPUTE-038",
                "excluded_bytes",
                f"{self.excluded_bytes} of {self.saved_bytes} saved",
                "what is excluded is part of what is saved",
                excluded_bytes=self.excluded_bytes,
                saved_bytes=self.saved_bytes,
            )


@named_plan_value
class EstimateRow:
    """One region in an estimate: bytes it holds on the device and on the host, and what its backward adds.

    ``live_bytes`` is what all regions hold on the device while this one runs backward.
    """

    fqn: str = kind_field(str, "HP-RECOMPUTE-038")
    recomputed: bool = kind_field(bool, "HP-RECOMPUTE-038")
    held_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    host_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    transient_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    live_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    replay_flops: int = integer_field("HP-RECOMPUTE-038", least=0)

    digest = content_digest


@named_plan_value
class Estimate:
    """Bytes of activations and replayed flops of one choice of roots; rows in forward order."""

    kept_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    peak_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    host_bytes: int = integer_field("HP-RECOMPUTE-038", least=0)
    replay_flops: int = integer_field("HP-RECOMPUTE-038", least=0)
    rows: tuple[EstimateRow, ...] = values_field(EstimateRow, "HP-RECOMPUTE-038")

    digest = content_digest


def _bound(value: Any) -> Fraction:
    try:
        found = Fraction(value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        found = Fraction(0)
    if found < 1 or isinstance(value, (bool, float)):
        got = repr(value)[:60]
        raise refusal("HP-RECOMPUTE-038", "bound", f"got {got}", "pass a Fraction of at least 1", got=got)
    return found


@named_plan_value
class BudgetResult:
    """Roots that fit a budget, and how far from the least replayed flops they may be: at most ``bound`` times."""

    roots: tuple[str, ...] = names_field("HP-RECOMPUTE-038")
    estimate: Estimate = kind_field(Estimate, "HP-RECOMPUTE-038")
    method: str = choice_field(METHODS, "HP-RECOMPUTE-038")
    bound: Fraction = attrs.field(converter=_bound)

    digest = content_digest


def estimate(sizes: Sequence[RegionSize], roots: Sequence[str], *, swap_inputs: bool = False) -> Estimate:
    """Bytes that stay, bytes at the peak of the backward, and replayed flops, if ``roots`` are recomputed.

    ``sizes`` are in forward order. ``kept_bytes`` are held between forward and backward; the peak is the greatest
    of: what regions up to one hold, and what that one's replay brings back. With ``swap_inputs`` the inputs of
    recomputed regions count as ``host_bytes``. Raises HP-RECOMPUTE-007 for a root without a size and
    HP-RECOMPUTE-038 for sizes that do not add up.

    >>> sizes = [RegionSize(fqn=f, saved_bytes=100, input_bytes=10, excluded_bytes=0, replay_flops=7) for f in "ab"]
    >>> found = estimate(sizes, ("a",))
    >>> found.kept_bytes, found.peak_bytes, found.replay_flops
    (110, 110, 7)
    """
    sizes = _checked(sizes)
    asked = names(roots, "roots", "HP-RECOMPUTE-007")
    chosen = frozenset(asked)
    known = dict.fromkeys(size.fqn for size in sizes)
    refuse_all(_no_size(root, tuple(known)) for root in dict.fromkeys(asked) if root not in known)
    rows: list[EstimateRow] = []
    held_so_far = 0
    for size in sizes:
        recomputed = size.fqn in chosen
        held = _held(size, swap_inputs) if recomputed else size.saved_bytes
        transient = max(0, size.saved_bytes - held) if recomputed else 0
        held_so_far += held
        rows.append(
            EstimateRow(
                fqn=size.fqn,
                recomputed=recomputed,
                held_bytes=held,
                host_bytes=size.input_bytes if recomputed and swap_inputs else 0,
                transient_bytes=transient,
                live_bytes=held_so_far + transient,
                replay_flops=size.replay_flops if recomputed else 0,
            )
        )
    return Estimate(
        kept_bytes=held_so_far,
        peak_bytes=max((row.live_bytes for row in rows), default=0),
        host_bytes=sum(row.host_bytes for row in rows),
        replay_flops=sum(row.replay_flops for row in rows),
        rows=tuple(rows),
    )


def choose_regions(
    sizes: Sequence[RegionSize], budget_bytes: int, *, swap_inputs: bool = False, exact_limit: int = EXACT_LIMIT
) -> BudgetResult:
    """The roots with the least replayed flops whose kept bytes fit the budget; of equals the fewest bytes.

    Exact while no more than ``exact_limit`` choices need to be remembered, which layers that are alike never need;
    beyond that greedy, at most ``bound`` = 2 times the least. Raises HP-RECOMPUTE-038 for sizes, budgets and limits
    that are no integers in range, and HP-RECOMPUTE-039 with the least reachable bytes.

    >>> sizes = [RegionSize(fqn=f, saved_bytes=100, input_bytes=10, excluded_bytes=0, replay_flops=7) for f in "ab"]
    >>> found = choose_regions(sizes, 150)
    >>> found.roots, found.estimate.kept_bytes, found.method
    (('a',), 110, 'exact')
    """
    sizes = _checked(sizes)
    budget = integer(budget_bytes, "budget_bytes", "HP-RECOMPUTE-038", least=0, most=MOST_TOTAL)
    limit = integer(exact_limit, "exact_limit", "HP-RECOMPUTE-038", least=0)
    gains = [size.saved_bytes - _held(size, swap_inputs) for size in sizes]
    useful = [at for at, gain in enumerate(gains) if gain > 0]
    items = [(gains[at], sizes[at].replay_flops) for at in useful]
    all_saved, most_gain = sum(size.saved_bytes for size in sizes), sum(gain for gain, _ in items)
    needed = all_saved - budget
    if most_gain < needed:
        raise refusal(
            "HP-RECOMPUTE-039",
            "budget_bytes",
            f"{in_bytes(budget)}; with every useful region recomputed {in_bytes(all_saved - most_gain)} are kept",
            _way_out(sizes, budget, swap_inputs),
            budget=budget,
            least=all_saved - most_gain,
        )
    near = greedy(items, needed)
    least = exact(items, needed, sum(items[at][1] for at in near), limit)
    chosen = [useful[at] for at in (near if least is None else least)]
    roots = tuple(sizes[at].fqn for at in chosen)
    return BudgetResult(
        roots=roots,
        estimate=estimate(sizes, roots, swap_inputs=swap_inputs),
        method="greedy" if least is None else "exact",
        bound=Fraction(2 if least is None else 1),
    )


def _way_out(sizes: Sequence[RegionSize], budget: int, swap_inputs: bool) -> str:
    """What reaches a budget that was not reached: only what helps."""
    ways = ["raise the budget"]
    swapped = sum(min(size.saved_bytes, _held(size, True)) for size in sizes)
    if not swap_inputs and swapped <= budget:
        ways.append("swap inputs to the host")
    excluded = sum(size.excluded_bytes for size in sizes)
    if excluded:
        ways.append(f"exclude less, which keeps {in_bytes(excluded)}")
    return ", or ".join(ways)


def frontier(
    sizes: Sequence[RegionSize], *, swap_inputs: bool = False, points: int = FRONTIER_POINTS
) -> tuple[BudgetResult, ...]:
    """What memory costs in time: the choices at evenly spaced budgets, from the fewest bytes to all, without doubles.

    The first recomputes all that frees anything, the last nothing that costs anything. Raises HP-RECOMPUTE-038.

    >>> sizes = [RegionSize(fqn=f, saved_bytes=100, input_bytes=10, excluded_bytes=0, replay_flops=7) for f in "ab"]
    >>> [(found.estimate.kept_bytes, found.estimate.replay_flops) for found in frontier(sizes)]
    [(20, 14), (110, 7), (200, 0)]
    """
    sizes = _checked(sizes)
    points = integer(points, "points", "HP-RECOMPUTE-038", least=2, most=10_000)
    most = sum(size.saved_bytes for size in sizes)
    least = sum(min(size.saved_bytes, _held(size, swap_inputs)) for size in sizes)
    budgets = sorted({least + (most - least) * at // (points - 1) for at in range(points)})
    found = {choice.roots: choice for choice in (choose_regions(sizes, at, swap_inputs=swap_inputs) for at in budgets)}
    return tuple(found.values())


def _held(size: RegionSize, swap_inputs: bool) -> int:
    """Device bytes of a recomputed region between its forward and its backward."""
    return size.excluded_bytes + (0 if swap_inputs else size.input_bytes)


def _checked(sizes: Sequence[RegionSize]) -> tuple[RegionSize, ...]:
    found = tuple(sizes)
    violations: list[Violation] = []
    wrong = [at for at, size in enumerate(found) if type(size) is not RegionSize]
    if wrong:
        kind = type(found[wrong[0]]).__name__
        raise refusal(
            "HP-RECOMPUTE-038", "sizes", f"entry {wrong[0]} is {kind}, not RegionSize", index=wrong[0], type=kind
        )
    fqns = [size.fqn for size in found]
    twice = tuple(sorted(fqn for fqn, times in Counter(fqns).items() if times > 1))
    if twice:
        violations.append(
            Violation("HP-RECOMPUTE-038", "sizes", f"regions given twice: {listed(twice)}", {"fqns": twice})
        )
    for name in ("saved_bytes", "input_bytes", "replay_flops"):
        total = sum(getattr(size, name) for size in found)
        if total > MOST_TOTAL:
            facts = {"total": total, "most": MOST_TOTAL}
            violations.append(
                Violation("HP-RECOMPUTE-038", f"sizes.{name}", f"the total is {total}", facts, "use larger units")
            )
    refuse_all(violations)
    return found


def _no_size(root: str, known: Sequence[str]) -> Violation:
    near = nearest(root, known)
    return Violation(
        "HP-RECOMPUTE-007",
        "roots",
        f"{root} has no size",
        {"pattern": root, "nearest": near},
        f"nearest: {listed(near)}" if near else "pass sizes",
    )
