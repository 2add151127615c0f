"""The cheapest items whose gains reach a sum: a 0-1 knapsack, seen from the side that must be reached.

Lists of (gain, cost) pairs in which none is worse than another in both solve it exactly, and fast where items are
alike. The greedy choice is that of Csirik, Frenk, Labbe and Zhang (1991), heuristics for the 0-1 min-knapsack. Rule
RECOMPUTE-39 of ``specs/recompute.md``.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def greedy(items: Sequence[tuple[int, int]], needed: int) -> tuple[int, ...]:
    """Places of (gain, cost) items of at least the needed gain, cheap ones per gain first.

    Costs at most twice the least; all items together must have the gain.

    >>> greedy([(12, 17), (16, 9), (19, 11)], 19)
    (1, 2)
    """
    if needed <= 0:
        return ()
    order = sorted(range(len(items)), key=lambda at: (Fraction(items[at][1], items[at][0]), at))
    candidates: list[tuple[int, int, tuple[int, ...]]] = []
    taken: list[int] = []
    gain = cost = 0
    for at in order:
        with_it = gain + items[at][0]
        if with_it < needed:
            taken.append(at)
            gain, cost = with_it, cost + items[at][1]
            continue
        candidates.append((cost + items[at][1], -with_it, tuple(sorted((*taken, at)))))
    return min(candidates)[2]


def exact(items: Sequence[tuple[int, int]], needed: int, most_cost: int, limit: int) -> tuple[int, ...] | None:
    """The cheapest items of the needed gain, then the greatest gain, then the smallest indices; None beyond ``limit``.

    After each item the lists hold what is worth remembering, by falling gain and so by falling cost. Of two
    choices of equal gain and cost, the one that took the first item in which they differ comes first among index
    tuples (gains are positive, so neither contains the other); ``rank`` keeps that order. ``most_cost`` is a cost that
    is known to be enough.

    >>> exact([(12, 17), (16, 9), (19, 11)], 19, most_cost=20, limit=100)
    (2,)
    """
    gains = costs = ranks = np.zeros(1, dtype=np.int64)
    steps: list[tuple[np.ndarray, np.ndarray]] = []  # where each remembered choice came from, and whether it took
    left = sum(gain for gain, _ in items)
    for gain, cost in items:
        left -= gain
        came = np.tile(np.arange(len(gains)), 2)
        took = np.repeat((False, True), len(gains))
        new_gains, new_costs = gains[came] + took * gain, costs[came] + took * cost
        new_ranks = ranks[came] * 2 + took
        order = np.lexsort((-new_ranks, new_costs, -new_gains))
        sorted_costs = new_costs[order]
        cheaper = np.ones(len(order), dtype=bool)
        cheaper[1:] = sorted_costs[1:] < np.minimum.accumulate(sorted_costs)[:-1]
        cheaper &= (sorted_costs <= most_cost) & (new_gains[order] + left >= needed)
        kept = order[cheaper]
        if len(kept) > limit:
            return None
        gains, costs = new_gains[kept], new_costs[kept]
        ranks = np.argsort(np.argsort(new_ranks[kept]))  # dense, so that doubling never overflows
        steps.append((came[kept].astype(np.int32), took[kept]))
    at = int(np.lexsort((-gains, costs))[0])
    found = []
    for index in reversed(range(len(steps))):
        came, took = steps[index]
        if took[at]:
            found.append(index)
        at = int(came[at])
    return tuple(reversed(found))
