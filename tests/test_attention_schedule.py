"""In which order layers compute, launch and wait: every combination of options, and malformed lists of events."""

from itertools import product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun.attention import OverlapOptions, OverlapSchedule, check_schedules, overlap_schedule
from hpfun.attention.schedule import COMPUTATIONS, KINDS, TRANSFERS
from hpfun.strategies import overlap_schedules
from tests.oracles import attention_plan as loops
from tests.refusals import refused

NAMES = ("window", "own_keys", "halo", "balanced", "overlapped", "indexer_priority")
EVENTS = [f"compute {name}" for name in COMPUTATIONS]
EVENTS += [f"{action} {name}" for action in ("launch", "wait") for name in TRANSFERS]


def misplaced(kind, switches):
    """Switches that do not fit a layer."""
    wrong = []
    if switches["balanced"] and kind != "select":
        wrong.append("balanced")
    if switches["indexer_priority"] and not switches["overlapped"]:
        wrong.append("indexer_priority")
    if kind == "window" and not switches["window"]:
        wrong.append("window")
    return wrong


def every_choice():
    """Kind and switches of every combination, those that do not fit included."""
    for kind in KINDS:
        for values in product((False, True), repeat=len(NAMES)):
            yield kind, dict(zip(NAMES, values, strict=True))


OPTIONS = [OverlapOptions(kind=kind, **switches) for kind, switches in every_choice() if not misplaced(kind, switches)]


@pytest.mark.rule("ATTN-10")
def test_the_worked_layer():
    options = OverlapOptions(kind="select", balanced=True, overlapped=True)
    assert overlap_schedule(options).events == (
        *("compute compression_inputs", "launch halo", "compute residual", "launch inputs", "wait halo"),
        *("compute compression", "launch index_keys", "launch keys", "compute attention_projections", "launch window"),
        *("wait inputs", "compute worker_projection", "wait index_keys", "compute select", "launch result"),
        *("wait keys", "wait window", "wait result", "compute attention"),
    )


@pytest.mark.rule("ATTN-10")
def test_every_schedule_has_what_its_options_ask_for_and_nothing_else():
    for options in OPTIONS:
        events = overlap_schedule(options).events
        asked = (options.kind, options.window, options.own_keys, options.halo, options.balanced)
        assert set(events) == loops.events_asked_for(*asked)
        assert len(set(events)) == len(events)


@pytest.mark.rule("ATTN-10")
def test_in_every_schedule_rows_are_made_moved_and_read_in_this_order():
    for options in OPTIONS:
        events = overlap_schedule(options).events
        assert loops.broken_orders(events) == []
        assert events[-1] == "compute attention"
        assert loops.well_formed(events, COMPUTATIONS, TRANSFERS)


@pytest.mark.rule("ATTN-11")
def test_without_overlap_each_transfer_is_waited_for_at_once():
    for options in OPTIONS:
        if not options.overlapped:
            events = overlap_schedule(options).events
            for at, event in enumerate(events):
                action, _, name = event.partition(" ")
                if action == "launch":
                    assert events[at + 1] == f"wait {name}"


@pytest.mark.rule("ATTN-11")
def test_with_overlap_transfers_run_across_the_computations_of_the_table():
    for options in OPTIONS:
        schedule = overlap_schedule(options)
        late = options.indexer_priority and options.kind == "select"
        for event in schedule.events:
            running = schedule.under_way(event)
            assert list(running) == loops.under_way(schedule.events, event)
            if event.startswith("compute"):
                meant = loops.meant_to_run(schedule.events, event, late) if options.overlapped else []
                assert list(running) == meant


@pytest.mark.rule("ATTN-11")
def test_overlap_alone_changes_no_order_of_launches():
    for options in OPTIONS:
        launches = overlap_schedule(options).launches
        plain = overlap_schedule(attrs.evolve(options, overlapped=False, indexer_priority=False)).launches
        if options.indexer_priority and options.kind == "select":
            banks = tuple(name for name in ("keys", "window") if name in plain)
            others = tuple(name for name in plain if name not in banks)
            at = others.index("result") if "result" in others else len(others)
            assert launches == (*others[:at], *banks, *others[at:])
        else:
            assert launches == plain


@pytest.mark.rule("ATTN-11")
def test_with_priority_banks_travel_behind_the_choice():
    options = OverlapOptions(kind="select", balanced=True, overlapped=True, indexer_priority=True)
    events = overlap_schedule(options).events
    assert events[-9:] == (
        *("wait index_keys", "launch keys", "launch window", "compute select", "launch result"),
        *("wait keys", "wait window", "wait result", "compute attention"),
    )


@pytest.mark.rule("ATTN-12")
def test_under_way_of_another_event_is_refused():
    schedule = overlap_schedule(OverlapOptions(kind="window"))
    for event in ("launch keys", "window", None, 3):
        with refused("HP-ATTN-005") as caught:
            schedule.under_way(event)
        assert caught.error.facts["events"] == schedule.events


# events that are no schedule


@pytest.mark.rule("ATTN-12")
def test_all_short_lists_of_events_are_schedules_or_refused():
    alphabet = ("launch keys", "wait keys", "launch window", "wait window", "compute select")
    for length in range(5):
        for events in product(alphabet, repeat=length):
            if loops.well_formed(events, COMPUTATIONS, TRANSFERS):
                assert OverlapSchedule(events).events == events
            else:
                with refused("HP-ATTN-006"):
                    OverlapSchedule(events)


@pytest.mark.rule("ATTN-12")
@given(overlap_schedules(), st.data())
def test_a_schedule_with_an_event_more_less_or_elsewhere_is_what_the_loops_say(schedule, data):
    events = list(schedule.events)
    change = data.draw(st.sampled_from(("drop", "move", "add")))
    taken = events.pop(data.draw(st.integers(0, len(events) - 1))) if change != "add" else None
    if change != "drop":
        event = data.draw(st.sampled_from(EVENTS)) if change == "add" else taken
        events.insert(data.draw(st.integers(0, len(events))), event)
    if loops.well_formed(events, COMPUTATIONS, TRANSFERS):
        assert OverlapSchedule(events).launches == tuple(e.split()[1] for e in events if e.startswith("launch"))
    else:
        with refused("HP-ATTN-006"):
            OverlapSchedule(events)


@pytest.mark.rule("ATTN-12")
@pytest.mark.parametrize(
    ("events", "told"),
    [
        (("wait keys", "launch keys"), [{"transfer": "keys", "launch": 1, "wait": 0}]),
        (("launch keys",), [{"transfer": "keys", "launch": 0, "wait": None}]),
        (("compute select", "wait keys"), [{"transfer": "keys", "launch": None, "wait": 1}]),
        (("compute keys",), [{"event": "compute keys", "index": 0}]),
        (("launch select",), [{"event": "launch select", "index": 0}]),
        (("compute select ",), [{"event": "compute select ", "index": 0}]),
        (("",), [{"event": "", "index": 0}]),
        (("compute select", "compute select"), [{"event": "compute select", "index": 1}]),
        (("launch keys", "wait keys", "wait keys"), [{"event": "wait keys", "index": 2}]),
        (
            ("launch it", "wait keys", "wait window", "launch window"),
            [
                {"event": "launch it", "index": 0},
                {"transfer": "keys", "launch": None, "wait": 1},
                {"transfer": "window", "launch": 3, "wait": 2},
            ],
        ),
    ],
    ids=repr,
)
def test_what_is_wrong_with_events_is_told_all_at_once(events, told):
    with refused("HP-ATTN-006") as caught:
        OverlapSchedule(events)
    assert [dict(violation.facts) for violation in caught.error.violations] == told


@pytest.mark.rule("ATTN-12")
@pytest.mark.parametrize("bad", ["launch keys", None, 3, (3,), (None,), {"launch keys"}], ids=repr)
def test_what_is_no_list_of_names_is_no_schedule(bad):
    with refused("HP-ATTN-006"):
        OverlapSchedule(bad)


@pytest.mark.rule("ATTN-12")
def test_all_options_that_do_not_fit_are_told_at_once():
    for kind, switches in every_choice():
        wrong = misplaced(kind, switches)
        if wrong:
            with refused("HP-ATTN-005") as caught:
                OverlapOptions(kind=kind, **switches)
            assert [violation.where for violation in caught.error.violations] == wrong
            facts = {"kind": kind, "overlapped": switches["overlapped"]}
            assert all(dict(violation.facts) == facts for violation in caught.error.violations)


@pytest.mark.rule("ATTN-12")
@pytest.mark.parametrize("name", ["kind", *NAMES])
@pytest.mark.parametrize("bad", [None, 1, "yes", ()], ids=repr)
def test_options_of_another_kind_are_refused(name, bad):
    with refused("HP-ATTN-005") as caught:
        OverlapOptions(**{"kind": "select", name: bad})
    assert caught.error.where == name
    with refused("HP-ATTN-005"):
        overlap_schedule(bad)


# all ranks


@pytest.mark.rule("ATTN-13")
def test_ranks_with_one_schedule_agree():
    for options in OPTIONS:
        check_schedules([overlap_schedule(options) for _ in range(3)])
    check_schedules(overlap_schedule(options) for options in OPTIONS[:1])
    check_schedules([])
    # whether a rank waits late does not matter to the others
    check_schedules([overlap_schedule(OverlapOptions(kind="dense", overlapped=late)) for late in (False, True)])


@pytest.mark.rule("ATTN-13")
def test_ranks_that_launch_in_another_order_are_named():
    keys, window = ("launch keys", "wait keys"), ("launch window", "wait window")
    schedules = [OverlapSchedule(events) for events in (keys + window, window + keys, keys + window, keys)]
    with refused("HP-ATTN-006") as caught:
        check_schedules(schedules)
    expected = {"ranks": (1, 3), "launches": ("window", "keys"), "expected": ("keys", "window")}
    assert dict(caught.error.facts) == expected


@pytest.mark.rule("ATTN-13")
@given(st.lists(overlap_schedules(), min_size=1, max_size=4))
def test_schedules_agree_exactly_if_their_launches_are_equal(schedules):
    odd = tuple(rank for rank, schedule in enumerate(schedules) if schedule.launches != schedules[0].launches)
    if odd:
        with refused("HP-ATTN-006") as caught:
            check_schedules(schedules)
        assert caught.error.facts["ranks"] == odd
    else:
        check_schedules(schedules)


@pytest.mark.rule("ATTN-13")
def test_a_rank_without_a_schedule_is_told():
    good = overlap_schedule(OverlapOptions(kind="window"))
    with refused("HP-ATTN-006") as caught:
        check_schedules([good, good.events])
    assert dict(caught.error.facts) == {"rank": 1, "type": "tuple"}
