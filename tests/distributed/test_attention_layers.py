"""Layers over processes: the order of their transfers, index heads of two ranks, shared keys and choices."""

import numpy as np
import pytest

from hpfun.attention import sharing_events
from hpfun.recompute import release_plan
from tests.distributed import on_ranks_attention as on_ranks

PACK = (37, 1, 3, 30, 25)
WAYS = [
    {"balance": balance, "overlapped": overlapped, "indexer_priority": priority}
    for balance in ("none", "locality", "zigzag")
    for overlapped, priority in ((False, False), (True, False), (True, True))
]
ALL_TO_ALL = ("halo", "inputs", "index_keys", "keys", "window", "result")


def as_recorded(events, select_starts):
    """A schedule in the recorder's words: transfers by number in launch order, computations that the layer notes."""
    launched = [event.split()[1] for event in events if event.startswith("launch")]
    words = []
    for event in events:
        action, name = event.split()
        if action == "launch":
            words.append(f"start {launched.index(name)}")
        elif action == "wait":
            words.append(f"wait {launched.index(name)}")
        elif name in ("attention", "select"):
            continue  # the library's own; projection of own rows is part of the choice
        else:
            words.append(event)
        if name == select_starts:
            words.append("compute worker_projection")
    return words


@pytest.mark.rule("ATTN-34", "ATTN-27")
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_computations_and_transfers_happen_in_the_order_of_the_schedule_on_every_rank(ranks, options):
    for events, planned, *_ in ranks(4).run(on_ranks.launch_order, PACK, options):
        if options["balance"] == "none":
            at = planned.index("compute select")
            planned = (*planned[:at], "compute worker_projection", *planned[at + 1 :])
        expected = as_recorded(planned, None)
        # a worker of more rows than an owner has projects in several calls
        calls = [event for at, event in enumerate(events) if not at or event != events[at - 1]]
        assert calls == expected


@pytest.mark.rule("ATTN-35")
def test_transfers_are_under_way_while_the_owner_projects(ranks):
    events = ranks(4).run(on_ranks.launch_order, PACK, WAYS[5])[0][0]
    inputs, keys = (f"start {number}" for number in (1, 2))
    at = events.index("compute attention_projections")
    assert events.index(inputs) < events.index(keys) < at < events.index("wait 1") < events.index("wait 2")


@pytest.mark.rule("ATTN-28")
def test_balance_and_overlap_change_no_id_and_no_output(ranks):
    whole = [ranks(1).run(on_ranks.launch_order, PACK, {})[0][2:]]
    for options in WAYS:
        found = [answer[2:] for answer in ranks(4).run(on_ranks.launch_order, PACK, options)]
        outputs = np.concatenate([output for output, _ in found])
        np.testing.assert_allclose(outputs, whole[0][0], rtol=1e-10, atol=1e-12)
        counts = np.concatenate([(selected >= 0).sum(1) for _, selected in found])
        assert (counts == (whole[0][1] >= 0).sum(1)).all()


@pytest.mark.rule("ATTN-30")
@pytest.mark.parametrize("seed", range(3))
def test_index_heads_of_two_ranks_choose_what_all_heads_choose(ranks, seed):
    for same, chosen in ranks(2).run(on_ranks.ids_of_head_halves, (70, 5, 53), seed):
        assert same
        assert chosen > 100


@pytest.mark.rule("ATTN-37")
@pytest.mark.parametrize("everywhere", [False, True])
def test_parts_of_the_indexers_loss_and_their_gradients_are_those_of_one_process(ranks, everywhere):
    whole, wanted = ranks(1).run(on_ranks.kl_parts, PACK, False)[0]
    answers = ranks(4).run(on_ranks.kl_parts, PACK, everywhere)
    assert sum(part for part, _ in answers) == pytest.approx(whole, rel=1e-12)
    for at, grad in enumerate(wanted):
        np.testing.assert_allclose(np.concatenate([found[at] for _, found in answers]), grad, rtol=1e-9, atol=1e-12)


@pytest.mark.rule("ATTN-24", "ATTN-25", "ATTN-36")
@pytest.mark.parametrize("options", [WAYS[0], WAYS[4], WAYS[8]], ids=str)
def test_layers_that_share_keys_and_choices_give_the_same_split_and_replayed(ranks, options):
    whole = ranks(1).run(on_ranks.shared_layers, PACK, {}, False)[0]
    for checkpointed in (False, True):
        answers = ranks(4).run(on_ranks.shared_layers, PACK, options, checkpointed)
        np.testing.assert_allclose(np.concatenate([answer[0] for answer in answers]), whole[0], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(np.concatenate([answer[1] for answer in answers]), whole[1], rtol=1e-8, atol=1e-10)
        for mine, alone in zip(answers[0][2], whole[2], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=1e-8, atol=1e-9)
        assert all(answer[3] == [0, 0] for answer in answers)


@pytest.mark.rule("ATTN-26")
def test_shared_state_is_dropped_behind_its_last_reader():
    released = dict(release_plan(*sharing_events(on_ranks.SHARED)))
    assert released[1] == (("index_keys", 0), ("keys", 0), ("topk", 1))
    assert released[3] == (("keys", 2), ("topk", 2))
