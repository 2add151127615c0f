"""Estimates, and the choice of regions under a byte budget."""

from fractions import Fraction

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import strategies
from hpfun.recompute import BudgetResult, RegionSize, choose_regions, estimate, frontier
from hpfun.recompute.budget import MOST_TOTAL
from tests.oracles import recompute as loops
from tests.refusals import refused


def sizes_of(*parts):
    return tuple(
        RegionSize(fqn=str(at), saved_bytes=saved, input_bytes=inputs, excluded_bytes=excluded, replay_flops=flops)
        for at, (saved, inputs, excluded, flops) in enumerate(parts)
    )


FOUR = sizes_of((100, 10, 0, 7), (100, 10, 30, 5), (60, 10, 0, 4), (60, 10, 0, 6))


@pytest.mark.rule("RECOMPUTE-38", "RECOMPUTE-39")
@pytest.mark.parametrize(
    ("budget", "roots", "kept", "peak", "flops"),
    [
        (320, "", 320, 320, 0),
        (250, "0", 230, 230, 7),
        (200, "02", 180, 180, 11),
        (150, "012", 120, 120, 16),
        (100, "0123", 70, 120, 22),
    ],
)
def test_four_regions_under_five_budgets(budget, roots, kept, peak, flops):
    found = choose_regions(FOUR, budget)
    assert found.roots == tuple(roots)
    assert (found.estimate.kept_bytes, found.estimate.peak_bytes, found.estimate.replay_flops) == (kept, peak, flops)
    assert (found.method, found.bound) == ("exact", 1)


@pytest.mark.rule("RECOMPUTE-39")
def test_a_budget_out_of_reach_names_the_least():
    with refused("HP-RECOMPUTE-039") as caught:
        choose_regions(FOUR, 60)
    assert dict(caught.error.facts) == {"budget": 60, "least": 70}
    assert choose_regions(FOUR, 60, swap_inputs=True).estimate.kept_bytes <= 60


@pytest.mark.rule("RECOMPUTE-38")
def test_inputs_that_are_swapped_count_on_the_host():
    found = estimate(FOUR, tuple("0123"), swap_inputs=True)
    assert (found.kept_bytes, found.peak_bytes, found.host_bytes) == (30, 100, 40)


@st.composite
def choices(draw):
    sizes = draw(strategies.region_sizes())
    return sizes, [size.fqn for size in sizes if draw(st.booleans())], draw(st.booleans())


@pytest.mark.rule("RECOMPUTE-38")
@given(choices())
def test_an_estimate_is_what_a_forward_and_a_backward_count(choice):
    sizes, roots, swap = choice
    found = estimate(sizes, roots, swap_inputs=swap)
    counted = (found.kept_bytes, found.peak_bytes, found.host_bytes, found.replay_flops)
    assert counted == loops.estimate(sizes, roots, swap)
    assert [row.fqn for row in found.rows] == [size.fqn for size in sizes]
    assert [row.fqn for row in found.rows if row.recomputed] == roots
    assert sum(row.held_bytes for row in found.rows) == found.kept_bytes
    assert max((row.live_bytes for row in found.rows), default=0) == found.peak_bytes


@pytest.mark.rule("RECOMPUTE-38")
@given(choices(), st.data())
def test_one_more_root_keeps_no_more_and_replays_no_less(choice, data):
    sizes, roots, swap = choice
    useful = [size.fqn for size in sizes if size.saved_bytes >= loops.held(size, swap)]
    if not useful:
        return
    more = estimate(sizes, (*roots, data.draw(st.sampled_from(useful))), swap_inputs=swap)
    before = estimate(sizes, roots, swap_inputs=swap)
    assert more.kept_bytes <= before.kept_bytes
    assert more.replay_flops >= before.replay_flops


@pytest.mark.rule("RECOMPUTE-39")
@given(strategies.region_sizes(max_regions=12, most=12), st.integers(0, 200), st.booleans())
@example(sizes_of((2, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)), 3, False)  # of equal flops the fewest bytes
@example(sizes_of((2, 0, 0, 1), (2, 0, 0, 1), (2, 0, 0, 1)), 4, False)  # of equals the smallest indices
@example(sizes_of((4, 0, 0, 2), (1, 0, 0, 1), (3, 0, 0, 1), (4, 0, 0, 2)), 8, False)
def test_the_exact_choice_is_that_of_brute_force(sizes, budget, swap):
    best = loops.best_choice(sizes, budget, swap)
    if best is None:
        with refused("HP-RECOMPUTE-039") as caught:
            choose_regions(sizes, budget, swap_inputs=swap)
        least = sum(min(size.saved_bytes, loops.held(size, swap)) for size in sizes)
        assert dict(caught.error.facts) == {"budget": budget, "least": least}
        return
    found = choose_regions(sizes, budget, swap_inputs=swap)
    flops, kept, indices = best
    assert found.roots == tuple(sizes[at].fqn for at in indices)
    assert (found.estimate.replay_flops, found.estimate.kept_bytes) == (flops, kept)
    assert (found.method, found.bound) == ("exact", 1)


@pytest.mark.rule("RECOMPUTE-39")
@given(strategies.region_sizes(max_regions=10, most=12), st.integers(0, 120), st.booleans())
@example(sizes_of((12, 0, 0, 17), (16, 0, 0, 9), (19, 0, 0, 11)), 28, False)
def test_the_greedy_choice_fits_and_stays_within_its_bound(sizes, budget, swap):
    best = loops.best_choice(sizes, budget, swap)
    if best is None:
        return
    found = choose_regions(sizes, budget, swap_inputs=swap, exact_limit=0)
    assert found.estimate.kept_bytes <= budget
    assert found.estimate.replay_flops <= found.bound * best[0]
    # with nothing to choose from there is one empty choice, which even no memory holds
    assert found.method == "greedy" or not any(size.saved_bytes > loops.held(size, swap) for size in sizes)


@pytest.mark.rule("RECOMPUTE-39")
def test_the_worst_greedy_choice_known():
    sizes = sizes_of((12, 0, 0, 17), (16, 0, 0, 9), (19, 0, 0, 11))
    needed = 47 - 19
    assert choose_regions(sizes, needed).estimate.replay_flops == 11
    found = choose_regions(sizes, needed, exact_limit=0)
    assert (found.estimate.replay_flops, found.method, found.bound) == (20, "greedy", 2)


@pytest.mark.rule("RECOMPUTE-39")
def test_many_regions_that_are_alike_are_chosen_exactly():
    sizes = sizes_of(*[(10**9, 10**7, 10**6, 3 * 10**12)] * 500, *[(10**8, 10**7, 0, 10**11)] * 500)
    found = choose_regions(sizes, sum(size.saved_bytes for size in sizes) // 3)
    assert found.method == "exact"
    large, small = (10**9 - 10**7 - 10**6, 3 * 10**12), (10**8 - 10**7, 10**11)
    needed = 550 * 10**9 - 550 * 10**9 // 3
    counted = min(
        (large[1] * count + small[1] * max(0, -(-(needed - large[0] * count) // small[0])))
        for count in range(501)
        if large[0] * count + small[0] * 500 >= needed
    )
    assert found.estimate.replay_flops == counted


@pytest.mark.parametrize(
    "change",
    [{"saved_bytes": -1}, {"saved_bytes": True}, {"input_bytes": 1.0}, {"replay_flops": "1"}, {"excluded_bytes": 101}],
)
def test_bad_sizes_are_refused(change):
    with refused("HP-RECOMPUTE-038"):
        attrs.evolve(FOUR[0], **change)


def test_sizes_that_do_not_add_up_are_refused():
    with refused("HP-RECOMPUTE-038") as caught:
        estimate((*FOUR, FOUR[0]), ())
    assert caught.error.facts["fqns"] == ("0",)
    with refused("HP-RECOMPUTE-038"):
        estimate(sizes_of((MOST_TOTAL, 0, 0, 0), (1, 0, 0, 0)), ())
    with refused("HP-RECOMPUTE-038"):
        choose_regions((1, 2), 3)
    for budget in (-1, 1.5, True):
        with refused("HP-RECOMPUTE-038"):
            choose_regions(FOUR, budget)
    with refused("HP-RECOMPUTE-038"):
        choose_regions(FOUR, 320, exact_limit=-1)


def test_roots_without_a_size_are_refused_with_the_nearest():
    with refused("HP-RECOMPUTE-007") as caught:
        estimate(FOUR, ("0", "33", "5"))
    assert [violation.facts["pattern"] for violation in caught.error.violations] == ["33", "5"]
    assert caught.error.facts["nearest"][0] == "3"
    with refused("HP-RECOMPUTE-007"):
        estimate(FOUR, (root for root in ("typo",)))


@pytest.mark.rule("RECOMPUTE-42")
def test_a_choice_has_a_method_and_a_bound():
    found = choose_regions(FOUR, 200)
    for change in ({"method": "best"}, {"bound": Fraction(1, 2)}, {"bound": 1.5}, {"bound": True}, {"estimate": None}):
        with refused("HP-RECOMPUTE-038"):
            attrs.evolve(found, **change)
    assert isinstance(found, BudgetResult)


@pytest.mark.rule("RECOMPUTE-39")
@given(strategies.region_sizes(), st.booleans())
def test_a_frontier_falls_from_the_fewest_bytes_to_all(sizes, swap):
    found = frontier(sizes, swap_inputs=swap)
    kept = [choice.estimate.kept_bytes for choice in found]
    flops = [choice.estimate.replay_flops for choice in found]
    assert kept == sorted(set(kept))
    assert flops == sorted(flops, reverse=True)
    least = sum(min(size.saved_bytes, loops.held(size, swap)) for size in sizes)
    assert kept[0] == loops.best_choice(sizes, least, swap)[1] == least
    assert flops[-1] == 0
