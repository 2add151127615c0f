"""When shared state is dropped, and what replays read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import strategies
from hpfun.recompute import release_plan, replay_trace
from tests.oracles import recompute as loops
from tests.refusals import refused


@pytest.mark.rule("RECOMPUTE-37")
def test_six_layers_of_shared_keys_and_choices():
    # ratios (0, 2, 2, 2, 2, 2); compressed keys come from layers 1 and 4, choices and their keys from 1, 3 and 4
    publishes = [("compressed_kv", 1), ("index_key", 1), ("topk", 1), ("topk", 3)]
    publishes += [("compressed_kv", 4), ("index_key", 4), ("topk", 4)]
    reads = [(layer, ("compressed_kv", 1)) for layer in (1, 2, 3)] + [(layer, ("compressed_kv", 4)) for layer in (4, 5)]
    reads += [(layer, ("index_key", 1)) for layer in (1, 3)] + [(4, ("index_key", 4))]
    reads += [(1, ("topk", 1)), (2, ("topk", 1)), (3, ("topk", 3)), (4, ("topk", 4)), (5, ("topk", 4))]
    assert release_plan(publishes, reads) == (
        (2, (("topk", 1),)),
        (3, (("compressed_kv", 1), ("index_key", 1), ("topk", 3))),
        (4, (("index_key", 4),)),
        (5, (("compressed_kv", 4), ("topk", 4))),
    )


ENTRIES = st.tuples(st.sampled_from(["keys", "topk"]), st.integers(0, 4))


@pytest.mark.rule("RECOMPUTE-37")
@given(st.lists(ENTRIES, unique=True), st.lists(st.tuples(st.integers(0, 6), ENTRIES)), st.sets(st.integers(0, 6)))
def test_entries_are_dropped_at_their_last_reader(publishes, reads, replayed):
    bad = [(layer, entry) for layer, entry in reads if entry not in publishes or layer < entry[1] or layer in replayed]
    if bad:
        with refused("HP-RECOMPUTE-037") as caught:
            release_plan(publishes, reads, replayed=replayed)
        told = [violation.facts["layers"][1] for violation in caught.error.violations]
        assert told == [layer for layer, _ in bad]
        return
    found = release_plan(publishes, reads, replayed=replayed)
    layer_of = {entry: layer for layer, entries in found for entry in entries}
    assert layer_of == loops.releases(publishes, reads)
    assert list(found) == sorted(found)
    assert all(list(entries) == sorted(entries) and entries for _, entries in found)


@pytest.mark.rule("RECOMPUTE-37")
def test_a_replayed_reader_must_be_excluded():
    with refused("HP-RECOMPUTE-037") as caught:
        release_plan([("topk", 1)], [(2, ("topk", 1))], replayed=(2,))
    assert dict(caught.error.facts) == {"entry": ("topk", 1), "layers": (1, 2)}
    assert release_plan([("topk", 1)], [(2, ("topk", 1))], replayed=(3,)) == ((2, (("topk", 1),)),)


@pytest.mark.rule("RECOMPUTE-37")
@pytest.mark.parametrize("entry", ["topk", ("topk",), (1, "topk"), ("topk", True), ("topk", -1)])
def test_what_is_no_entry_is_refused(entry):
    with refused("HP-RECOMPUTE-037"):
        release_plan([entry], [])
    with refused("HP-RECOMPUTE-037"):
        release_plan([], [(1, entry)])


@pytest.mark.rule("RECOMPUTE-37")
def test_an_entry_is_published_once():
    with refused("HP-STATE-002") as caught:
        release_plan([("topk", 1), ("topk", 1)], [])
    assert dict(caught.error.facts) == {"key": "topk", "layer": 1}


@pytest.mark.rule("RECOMPUTE-23")
def test_two_micro_batches_in_flight():
    events = [("F", 1), ("F", 2), ("B", 1), ("B", 2)]
    assert [(read.micro_batch, read.read_from) for read in replay_trace(events)] == [(1, 2), (2, 2)]
    assert [read.read_from for read in replay_trace(events, excluded=True)] == [1, 2]


@pytest.mark.rule("RECOMPUTE-23")
@given(strategies.schedules())
def test_a_replay_reads_the_newest_or_with_an_exclusion_its_own(events):
    backwards = [at for at, (kind, _) in enumerate(events) if kind == "B"]
    newest = [[number for kind, number in events[:at] if kind == "F"][-1] for at in backwards]
    assert [read.read_from for read in replay_trace(events)] == newest
    own = [events[at][1] for at in backwards]
    assert [read.read_from for read in replay_trace(events, excluded=True)] == own
    assert [read.micro_batch for read in replay_trace(events)] == own


@pytest.mark.parametrize(
    "events",
    [[("B", 1)], [("F", 1), ("F", 1)], [("F", 1), ("B", 1), ("B", 1)], [("X", 1)], ["F"], [("F", True)], [("F", 1, 2)]],
)
def test_events_that_cannot_be_are_refused(events):
    with refused("HP-RECOMPUTE-037"):
        replay_trace(events)
