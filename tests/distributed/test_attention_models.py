"""Models of transformers, split over ranks: logits and all gradients are those of one process, document by document."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import cp_models
from tests.distributed import on_ranks_attention as on_ranks

LOGITS, GRADIENTS = 1e-4, 1e-3  # absolute; of the greatest of the parameter
PACKED = (37, 1, 3, 30, 25)
PLAIN, BALANCED = {}, {"balance": "locality"}
OVERLAPPED = {"balance": "zigzag", "overlapped": True, "indexer_priority": True}


@lru_cache(maxsize=64)
def reference(family, lengths):
    """Logits, loss and gradients of each document alone, in one process."""
    model = cp_models.tiny(family)
    ids = cp_models.token_ids(sum(lengths))
    logits, loss = cp_models.alone(model, lengths, ids, max(sum(lengths) - len(lengths), 1))
    return logits.numpy(), loss, {name: grad.numpy() for name, grad in cp_models.gradients(model).items()}


def differences(answers, family, lengths):
    """Greatest differences of logits, and of gradients by the parameter's greatest."""
    logits, _, grads = reference(family, lengths)
    got = np.concatenate([answer["logits"] for answer in answers])[: sum(lengths)]
    found = answers[0]["grads"]
    assert set(found) == set(grads)
    # a parameter that learns nothing at all must learn nothing here
    worst = max(np.abs(found[name] - grad).max() / (np.abs(grad).max() or 1e-12) for name, grad in grads.items())
    return np.abs(got - logits).max(), worst


def assert_equal(ranks, family, size, lengths, options):
    answers = ranks(size).run(on_ranks.train_step, family, lengths, options)
    logits, grads = differences(answers, family, lengths)
    assert logits < LOGITS
    assert grads < GRADIENTS
    assert answers[0]["loss"] == pytest.approx(reference(family, lengths)[1], abs=1e-4)


@pytest.mark.rule("HF-3", "HF-5", "HF-6", "ATTN-33")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("options", [PLAIN, BALANCED, OVERLAPPED, {"overlapped": True}], ids=str)
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_a_packed_batch_gives_what_each_document_gives_alone(ranks, family, options, size):
    assert_equal(ranks, family, size, PACKED, options)


@pytest.mark.rule("HF-3", "HF-5", "HF-7")
@pytest.mark.parametrize(
    "lengths",
    [
        (16,),  # four rows a rank: a window over all ranks, no key of ratio 16 before the last row
        (2, 1, 1, 12),
        (50, 30, 20),  # shards of 25, which no ratio divides
        (33, 64),  # not whole shards: a document of padding
        (250, 6),
        (5, 3),  # ranks without any key, and one without a label
        (1, 1, 1, 1),  # no label at all
    ],
    ids=str,
)
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_layouts_at_the_edge_give_the_same(ranks, family, lengths):
    assert_equal(ranks, family, 4, lengths, BALANCED)


@pytest.mark.rule("HF-3", "HF-5")
@settings(max_examples=12)
@given(
    st.sampled_from(cp_models.FAMILIES),
    st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple),
    st.sampled_from((PLAIN, BALANCED, OVERLAPPED)),
    st.sampled_from((2, 4)),
)
def test_any_pack_gives_the_same(ranks, family, lengths, options, size):
    assert_equal(ranks, family, size, lengths, options)


@pytest.mark.rule("HF-3")
def test_one_process_without_a_group_is_a_group_of_one():
    answer = _alone_in_this_process("v4", PACKED)
    logits, grads = differences([answer], "v4", PACKED)
    assert logits < LOGITS
    assert grads < GRADIENTS


def _alone_in_this_process(family, lengths):
    model = on_ranks.on(family, BALANCED)
    output = model(**on_ranks.packed(model, lengths))
    output.loss.backward()
    grads = {name: grad.numpy() for name, grad in cp_models.gradients(model).items()}
    return {"logits": output.logits[0].detach().numpy(), "loss": output.loss.item(), "grads": grads}


@pytest.mark.rule("HF-3")
@pytest.mark.parametrize("mutant", list(on_ranks.MUTANTS))
def test_a_mutant_of_the_plan_is_noticed(ranks, mutant):
    answers = ranks(4).run(on_ranks.train_step, "v4", PACKED, PLAIN, None, mutant)
    logits, grads = differences(answers, "v4", PACKED)
    if mutant == "a dropped remote gradient":
        assert logits < LOGITS  # logits alone would notice nothing
    else:
        assert logits > LOGITS
    assert grads > GRADIENTS


@pytest.mark.rule("HF-10")
@pytest.mark.parametrize("options", [PLAIN, BALANCED, OVERLAPPED], ids=str)
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_recompute_changes_nothing_and_replays_no_transfer_of_the_choice(ranks, family, options):
    again = options | {"recompute": True}
    assert_equal(ranks, family, 4, PACKED, again)
    plain = ranks(4).run(on_ranks.collectives, family, PACKED, options)
    replayed = ranks(4).run(on_ranks.collectives, family, PACKED, again)
    for (forward, backward, planned), (with_regions, with_replays, _) in zip(plain, replayed, strict=True):
        launched = sum(planned, ())
        if family != "v4":  # ratio 1: no rows come before keys
            launched = tuple(name for name in launched if name != "halo")
        learning = [name for name in launched if name in ("halo", "keys", "window")]
        assert forward == with_regions == len(launched)
        assert backward == len(learning)
        assert with_replays == 2 * len(learning)
        assert set(launched) - set(learning) <= {"index_keys", "inputs", "result"}


@pytest.mark.rule("HF-10")
@pytest.mark.parametrize("family", ["v4", "glm"])
def test_replays_of_two_packs_in_flight_read_their_own_choices(ranks, family):
    packs = (PACKED, (60, 36))
    for options in (BALANCED, OVERLAPPED):
        answers = ranks(4).run(on_ranks.two_in_flight, family, options | {"recompute": True}, packs)
        assert max(answers) < 1e-6


@pytest.mark.rule("HF-10")
def test_what_a_step_held_is_gone_after_it(ranks):
    for family, options in (("v4", OVERLAPPED), ("v4", OVERLAPPED | {"recompute": True}), ("glm", PLAIN)):
        for answer in ranks(2).run(on_ranks.freed, family, PACKED, options):
            assert len(answer) > 8
            assert all(answer)


@pytest.mark.rule("HF-3")
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_in_bfloat16_losses_agree(ranks, family):
    changes = {"dtype": "bfloat16"}
    answers = ranks(4).run(on_ranks.train_step, family, PACKED, BALANCED, changes)
    assert answers[0]["loss"] == pytest.approx(reference(family, PACKED)[1], rel=0.03)


@pytest.mark.rule("HF-12")
def test_gradients_are_summed_where_some_rank_has_one(ranks):
    for answer in ranks(4).run(on_ranks.sums, (1, 2, 3, 4)):
        assert answer == [[10.0, 10.0], [1.0, 1.0], None]


@pytest.mark.rule("HF-13")
@pytest.mark.parametrize("top_k", [1, 2])
def test_parts_of_the_balance_loss_add_up_to_that_of_transformers(ranks, top_k):
    import torch
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import load_balancing_loss_func

    random = torch.Generator().manual_seed(0)
    whole = tuple(torch.randn(16, 4, generator=random).requires_grad_() for _ in range(3))
    expected = load_balancing_loss_func(whole, 4, top_k)
    expected.backward()
    answers = ranks(4).run(on_ranks.aux_loss, (10, 6), top_k)
    assert sum(answer[0] for answer in answers) == pytest.approx(float(expected.detach()), rel=1e-5)
    for layer, logits in enumerate(whole):
        got = np.concatenate([answer[1][layer] for answer in answers])
        np.testing.assert_allclose(got, logits.grad.numpy(), atol=1e-7)


@pytest.mark.rule("HF-1", "HF-2", "HF-8", "HF-9")
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("model", "HP-HF-001"),
        ("dropout", "HP-HF-002"),
        ("shape", "HP-HF-003"),
        ("twice", "HP-HF-004"),
        ("recompute", "HP-RECOMPUTE-018"),
        ("boundaries", "HP-ROUTE-004"),
    ],
)
def test_what_one_rank_finds_all_ranks_raise(ranks, what, code):
    assert ranks(4).run(on_ranks.refused_on_ranks, what, 2) == [(code, (2,), True)] * 4
    assert [answer[0] for answer in ranks(4).run(on_ranks.refused_on_ranks, what, -1)] == [""] * 4


@pytest.mark.rule("HF-8", "HF-9")
@pytest.mark.parametrize("what", ["options", "tokens"])
def test_ranks_with_other_options_or_tokens_all_raise(ranks, what):
    assert ranks(4).run(on_ranks.refused_on_ranks, what, 2) == [("HP-AGREE-001", None, True)] * 4


@pytest.mark.rule("HF-9")
def test_a_rank_outside_of_the_group_is_told_so_and_those_inside_work(ranks):
    answers = ranks(4).run(on_ranks.outside_of_a_group)
    assert answers[2:] == ["HP-EXCHANGE-009"] * 2
    assert sum(answers[:2]) == pytest.approx(reference("v32", (16,))[1], abs=1e-4)


@pytest.mark.rule("HF-11")
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_disable_leaves_the_model_as_it_was(ranks, family):
    layers = cp_models.tiny(family).config.num_hidden_layers
    assert ranks(2).run(on_ranks.round_trip, family) == [(layers, True, True, True, 0)] * 2
