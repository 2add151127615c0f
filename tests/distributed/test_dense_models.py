"""Dense models of transformers, split over ranks: loss, logits and all gradients are those of each document alone."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpfun import document_prefix_plan, sequence_report, sliding_window_plan
from hpfun.batch import BatchTopology, plan_batch
from tests import dense_models
from tests.dense_models import FAMILIES, PACKED, WINDOW, differences
from tests.distributed import on_ranks_dense as on_ranks
from tests.oracles import batch as loops
from tests.oracles import dense as oracle

LOSS, LOGITS, GRADIENTS = 1e-12, 1e-11, 1e-11  # absolute; of the greatest; of the greatest of the parameter
LAYOUTS = ("contiguous", "zigzag")
EDGES = (
    (1, 1, 1, 1),  # no label at all
    (1, 2, 1, 3, 1),  # documents shorter than the group
    (5,),  # a rank with padding alone
    (16,),  # a document over all ranks
    (3, 33),
)


@lru_cache(maxsize=64)
def reference(family, lengths, share=1.0, dtype="float64"):
    """Logits, loss and gradients of each document alone, in one process."""
    model = dense_models.tiny(family, getattr(torch, dtype))
    ids = dense_models.token_ids(sum(lengths))
    logits, loss = dense_models.alone(model, lengths, ids, dense_models.goals_of(ids, share))
    return logits.numpy(), loss, {name: grad.numpy() for name, grad in dense_models.gradients(model).items()}


def assert_equal(ranks, size, family, lengths, options, share=1.0, tile=512):
    answers = ranks(size).run(on_ranks.train_step, family, lengths, options, share, {"tile": tile})
    loss, logits, grads = differences(answers, reference(family, lengths, share))
    assert loss < LOSS
    assert logits < LOGITS
    assert grads < GRADIENTS


@pytest.mark.rule("HF-15", "HF-16", "HF-17")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_batch_gives_what_each_document_gives_alone(ranks, family, layout, size):
    assert_equal(ranks, size, family, PACKED, {"layout": layout}, share=0.6)
    assert_equal(ranks, size, family, PACKED, {"layout": layout}, tile=4)


@pytest.mark.rule("HF-15", "HF-16", "HF-18")
@pytest.mark.parametrize("lengths", EDGES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen3_window", "qwen3_vl"])
def test_layouts_at_the_edge_give_the_same(ranks, family, layout, lengths):
    assert_equal(ranks, 4, family, lengths, {"layout": layout})


@pytest.mark.rule("HF-15", "HF-16")
@settings(max_examples=16)
@given(
    st.sampled_from(FAMILIES),
    st.lists(st.integers(1, 60), min_size=1, max_size=6).map(tuple),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.sampled_from((1.0, 0.3)),
    st.sampled_from((2, 4)),
    st.sampled_from((3, 512)),
)
@example("llama", (2,), "zigzag", False, 1.0, 2, 3)  # no query learns: its gradient is rounding
def test_any_pack_gives_the_same(ranks, family, lengths, layout, recompute, share, size, tile):
    assert_equal(ranks, size, family, lengths, {"layout": layout, "recompute": recompute}, share, tile=tile)


@pytest.mark.rule("HF-15")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_in_float32_with_the_loss_and_norms_of_transformers_too(ranks, family, layout):
    answers = ranks(4).run(on_ranks.train_step, family, PACKED, {"layout": layout}, 1.0, {"dtype": "float32"})
    loss, logits, grads = differences(answers, reference(family, PACKED, dtype="float32"))
    assert loss < 1e-5
    assert logits < 1e-5
    assert grads < 1e-4


@pytest.mark.rule("HF-17", "HF-18")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_vl"])
@pytest.mark.parametrize("bug", list(on_ranks.BUGS))
def test_a_bug_in_the_batch_is_noticed(ranks, family, layout, bug):
    answers = ranks(2).run(on_ranks.train_step, family, PACKED, {"layout": layout}, 0.6, {"bug": bug})
    loss, _, grads = differences(answers, reference(family, PACKED, 0.6))
    assert loss > 1e5 * LOSS
    assert grads > 1e-2  # the loss alone may be near, where labels are spread evenly


@pytest.mark.rule("HF-20")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "qwen3_window", "qwen3_vl"])
def test_recompute_changes_nothing_and_replays_the_transfer_unless_attention_is_excluded(ranks, family, layout):
    options = {"layout": layout}
    for how, replays in (({"recompute": True}, 1), ({"recompute": True, "exclude": ("*.self_attn",)}, 0)):
        assert_equal(ranks, 4, family, PACKED, options | how)
        counts = ranks(4).run(on_ranks.collectives, family, PACKED, options | how)
        assert {(forward, backward) for forward, backward, _ in counts} == {(3, 3 + 3 * replays)}
    plain = ranks(4).run(on_ranks.collectives, family, PACKED, options)
    assert {(forward, backward) for forward, backward, _ in plain} == {(3, 3)}
    assert max(ranks(4).run(on_ranks.two_in_flight, family, options | {"recompute": True}, (PACKED, (60, 36)))) < 1e-12


@pytest.mark.rule("DENSE-5")
@pytest.mark.parametrize("family", ["llama", "qwen3_window"])
def test_in_a_contiguous_layout_only_rows_of_the_bank_travel_once_a_layer(ranks, family):
    plan = plan_batch(PACKED, BatchTopology(4))
    shards = (plan.cu_seq_lens, plan.local_length, 4)
    prefix = sequence_report(document_prefix_plan(*shards, 1))
    window = sequence_report(sliding_window_plan(*shards, WINDOW))
    layers = (prefix, *((window, window) if family == "qwen3_window" else (prefix, prefix)))
    for rank, (_, _, received) in enumerate(ranks(4).run(on_ranks.collectives, family, PACKED, {})):
        assert received == [report.halo_rows[rank] for report in layers]
    assert prefix.moved_rows < prefix.all_gather_rows / 2


@pytest.mark.rule("DENSE-5")
@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5).map(tuple),
    st.sampled_from(LAYOUTS),
    st.sampled_from((0, 1, 5, 100)),
    st.sampled_from(((1, 1), (4, 2))),
    st.sampled_from((2, 4)),
)
@example((3, 5), "contiguous", 0, (1, 1), 2)
def test_keys_of_others_that_the_rows_see_travel_once_a_call(ranks, lengths, layout, window, heads, size):
    pack = lengths, size, 1, False, layout
    documents, shards = loops.padded(*pack)[0], loops.shards(*pack)
    seen = oracle.seen(list(map(len, documents)), window)
    expected = []
    for rows in shards:
        own = {row.position for row in rows}
        expected.append(len({key for position in own for key in seen[position]} - own))
    calls = 1 if layout == "zigzag" or any(expected) else 0
    for needed, (there, back, received) in zip(
        expected, ranks(size).run(on_ranks.travels, lengths, layout, window, heads), strict=True
    ):
        assert (there, back) == (calls, calls)
        assert received == ([] if layout == "zigzag" or not calls else [needed])


@pytest.mark.rule("DENSE-6")
@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5).map(tuple),
    st.sampled_from(LAYOUTS),
    st.sampled_from((0, 1, 5, 100)),
    st.sampled_from(((1, 1), (4, 2), (3, 3))),
    st.sampled_from((1, 3, 512)),
    st.sampled_from((2, 4)),
    st.integers(0, 99),
)
def test_attention_and_its_gradients_are_those_of_the_loop_over_tokens(
    ranks, lengths, layout, window, heads, tile, size, seed
):
    inputs = on_ranks.attention_inputs(sum(lengths), heads, seed)
    expected = oracle.attention(lengths, *inputs[:3], inputs[3], window)
    for sources, found, padding in ranks(size).run(on_ranks.attention, lengths, layout, window, heads, tile, seed):
        assert padding == 0
        for got, whole in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, whole[sources], rtol=0, atol=1e-12)


@pytest.mark.rule("HF-19")
@pytest.mark.parametrize("options", [{}, {"layout": "zigzag", "recompute": True}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_disable_leaves_the_model_as_it_was(ranks, family, options):
    assert ranks(2).run(on_ranks.round_trip, family, options) == [("hpfun_context_parallel", True, True, True)] * 2


@pytest.mark.rule("HF-19", "HF-21")
@pytest.mark.parametrize(
    ("what", "code"),
    [("dropout", "HP-HF-002"), ("balance", "HP-HF-002"), ("images", "HP-HF-003"), ("shape", "HP-HF-003")],
)
def test_what_one_rank_finds_all_ranks_raise(ranks, what, code):
    assert ranks(4).run(on_ranks.refused_on_ranks, what, 2) == [(code, (2,))] * 4
    assert ranks(4).run(on_ranks.refused_on_ranks, what, -1) == [("", None)] * 4


@pytest.mark.rule("HF-19")
@pytest.mark.parametrize("what", ["layout", "tokens"])
def test_ranks_with_another_layout_or_other_tokens_all_raise(ranks, what):
    assert ranks(4).run(on_ranks.refused_on_ranks, what, 2) == [("HP-AGREE-001", None)] * 4


@pytest.mark.rule("HF-9", "HF-19")
def test_where_one_rank_cannot_switch_no_model_changes(ranks):
    assert ranks(2).run(on_ranks.failed_switch, 1) == [("HP-AGREE-002", (1,), True)] * 2
