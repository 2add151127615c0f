"""Context parallelism of dense models of transformers in one process: what is switched, and what is refused."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpfun import PackedDocuments  # noqa: E402
from hpfun.batch import BatchTopology, batch_view, plan_batch, shift_labels  # noqa: E402
from hpfun_torch.batch.rows import PlacedRows  # noqa: E402
from hpfun_torch.dense import dense_context  # noqa: E402
from hpfun_torch.integrations.transformers import (  # noqa: E402
    ContextParallelOptions,
    disable,
    enable_context_parallel,
    prepare_batch,
    shifted_labels,
)
from hpfun_torch.integrations.transformers import dense as plug  # noqa: E402
from tests import cp_models, dense_models  # noqa: E402
from tests.dense_models import FAMILIES, tiny  # noqa: E402
from tests.refusals import refused  # noqa: E402

IDS, ENDS = dense_models.token_ids(12), (0, 5, 12)
NAME = "hpfun_context_parallel"


def enabled(family="llama", **options):
    return enable_context_parallel(tiny(family), None, ContextParallelOptions(**options))


def on(model):
    return model.config.get_text_config()._attn_implementation


@pytest.mark.rule("HF-15")
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_process_without_a_group_is_a_group_of_one(family, layout):
    model, plain = enabled(family, layout=layout), tiny(family)
    output = model(**prepare_batch(model, IDS, ENDS))
    output.loss.backward()
    _, loss = dense_models.alone(plain, (5, 7), IDS, IDS)
    assert float(output.loss.detach()) == pytest.approx(loss, abs=1e-12)
    for name, grad in dense_models.gradients(plain).items():
        torch.testing.assert_close(dense_models.gradients(model)[name], grad, rtol=0, atol=1e-12)


@pytest.mark.rule("HF-16")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_mask_is_built_and_the_context_reaches_the_function(family):
    model = enabled(family)
    batch = prepare_batch(model, IDS, ENDS)
    seen = []
    decoder = model.get_submodule("model.language_model" if family == "qwen3_vl" else "model")
    for layer in decoder.layers:
        layer.self_attn.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    model(**batch)
    assert len(seen) == 3
    for kwargs in seen:
        assert kwargs["attention_mask"] is None
        assert kwargs["context_parallel"] is batch["context_parallel"]


@pytest.mark.rule("HF-16")
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"softcap": 5.0}, "softcap"),
        ({"s_aux": torch.ones(4)}, "s_aux"),
        ({"position_bias": torch.ones(1)}, "position_bias"),
        ({"is_causal": False}, "is_causal"),
    ],
    ids=str,
)
def test_scores_that_would_be_changed_are_refused(change, where):
    model = enabled("qwen3")
    with refused("HP-HF-003") as caught:
        model(**prepare_batch(model, IDS, ENDS), **change)
    assert caught.error.where == where


@pytest.mark.rule("HF-16")
def test_a_mask_or_dropout_that_comes_as_far_as_the_function_is_refused():
    context = dense_context(plan_batch((4,), BatchTopology(1)))
    rows = torch.ones(1, 2, 4, 6)
    for change in ({"attention_mask": torch.ones(1, 1, 4, 4)}, {"dropout": 0.5}):
        with refused("HP-HF-003") as caught:
            plug.context_parallel_attention(None, rows, rows, rows, context_parallel=context, **change)
        assert [caught.error.where] == list(change)
    with refused("HP-HF-003") as caught:
        plug.context_parallel_attention(None, rows, rows, rows)
    assert caught.error.where == "context_parallel"


@pytest.mark.rule("HF-17")
def test_positions_of_qwen3_vl_are_those_of_each_document():
    model = enabled("qwen3_vl", layout="zigzag")
    places = prepare_batch(model, IDS, ENDS)["position_ids"]
    # documents of 5 and 7 tokens, padded to 6 and 8
    assert places.shape == (4, 1, 14)
    assert places[:, 0].tolist() == [[*range(6), *range(8)]] * 4


@pytest.mark.rule("HF-17")
def test_rope_positions_are_the_models_own():
    model = enabled("qwen3_vl")
    real = model.model.get_rope_index

    def doubled(ids, **kwargs):
        places, deltas = real(ids, **kwargs)
        return 2 * places, deltas

    model.model.get_rope_index = doubled
    places = prepare_batch(model, IDS, ENDS)["position_ids"][:, 0].tolist()
    text = [*range(5), *range(7)]
    assert places == [text] + [[2 * place for place in text]] * 3


@pytest.mark.rule("HF-17", "HF-18")
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5), st.sampled_from(["contiguous", "zigzag"]), st.integers(1, 4)
)
def test_what_is_cut_is_what_the_view_says(lengths, layout, size):
    plan = plan_batch(lengths, BatchTopology(size), layout=layout)
    ids = torch.arange(100, 100 + plan.num_tokens)
    documents = PackedDocuments(lengths)
    shifted = shifted_labels(documents, ids)
    assert shifted.tolist() == shift_labels(ids.numpy(), lengths).tolist()
    whole = torch.full((plan.padded_length,), -1)
    for rank in range(size):
        view = batch_view(plan, rank)
        rows = torch.from_numpy(view.positions.copy())
        own = PlacedRows.of(view.sources, ids.device)
        whole[rows] = own.place(ids, 0, 7)
        goals = own.place(shifted, 0, -100)
        for row, source in enumerate(view.sources.tolist()):
            assert int(goals[row]) == (int(shifted[source]) if source >= 0 else -100)
    expected = [int(ids[source]) if source >= 0 else 7 for source in plan.sources.tolist()]
    assert whole.tolist() == expected


@pytest.mark.rule("HF-18")
def test_padding_has_the_pad_token_no_label_and_goes_on_counting():
    model = enabled(layout="zigzag")
    batch = prepare_batch(model, IDS, ENDS, pad_token_id=9)
    assert batch["input_ids"].tolist() == [[*IDS[:5].tolist(), 9, *IDS[5:].tolist(), 9]]
    assert batch["position_ids"].tolist() == [[*range(6), *range(8)]]
    goals = [*IDS[1:5].tolist(), -100, -100, *IDS[6:].tolist(), -100, -100]
    assert batch["shift_labels"].tolist() == [goals]
    assert batch["num_items_in_batch"] == 10
    model(**batch).loss.backward()
    before = model.model.embed_tokens.weight.grad.clone()
    model.zero_grad()
    model(**prepare_batch(model, IDS, ENDS, pad_token_id=8)).loss.backward()
    assert torch.equal(model.model.embed_tokens.weight.grad, before)


@pytest.mark.rule("HF-19")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoders_function_alone_is_switched_and_switched_back(family):
    model = tiny(family)
    before = copy.deepcopy(model.state_dict())
    enable_context_parallel(model)
    assert on(model) == NAME
    if family == "qwen3_vl":
        assert model.config.vision_config._attn_implementation == model.config._attn_implementation == "sdpa"
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with refused("HP-HF-004"):
        enable_context_parallel(model)
    disable(model)
    assert on(model) == "sdpa"
    with refused("HP-HF-004"):
        disable(model)
    eager = tiny(family)
    eager.set_attn_implementation("eager")
    assert on(disable(enable_context_parallel(eager))) == "eager"


@pytest.mark.rule("HF-19")
def test_models_that_share_a_config_are_not_both_switched():
    model = tiny("llama")
    other = transformers.LlamaForCausalLM(model.config)
    enable_context_parallel(model)
    with refused("HP-HF-004") as caught:
        enable_context_parallel(other)
    assert caught.error.where == "model.config"
    with refused("HP-HF-003"):
        other(input_ids=IDS[None], use_cache=False)
    disable(model)
    assert other(input_ids=IDS[None], use_cache=False).logits.shape == (1, 12, 64)


@pytest.mark.rule("HF-19")
def test_a_function_that_was_switched_since_is_refused():
    model = enabled()
    batch = prepare_batch(model, IDS, ENDS)
    model.set_attn_implementation("sdpa")
    with refused("HP-HF-003") as caught:
        model(**batch)
    assert caught.error.where == "config._attn_implementation"
    with refused("HP-HF-004") as caught:
        disable(model)
    assert caught.error.facts["type"] == "sdpa"
    model.set_attn_implementation(NAME)
    disable(model)


@pytest.mark.rule("HF-19")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_of_an_enabled_model_works_by_itself(family):
    model = enabled(family)
    other = copy.deepcopy(model)
    expected = model(**prepare_batch(model, IDS, ENDS)).logits
    disable(model)
    assert (on(model), on(other)) == ("sdpa", NAME)
    assert torch.equal(other(**prepare_batch(other, IDS, ENDS)).logits, expected)
    disable(other)


@pytest.mark.rule("HF-20")
@pytest.mark.parametrize("before", [False, True])
def test_the_models_own_checkpointing_is_right_too(before):
    found = []
    for checkpointing in (False, True):
        model = tiny("llama")
        if checkpointing and before:
            model.gradient_checkpointing_enable()
        enable_context_parallel(model)
        if checkpointing and not before:
            model.gradient_checkpointing_enable()
        model(**prepare_batch(model, IDS, ENDS)).loss.backward()
        found.append(dense_models.gradients(model))
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=0, atol=1e-14)


@pytest.mark.rule("HF-20")
def test_regions_are_the_layers_of_the_decoder():
    model = enabled("qwen3_vl", recompute=True)
    layers = tuple(f"model.language_model.layers.{layer}" for layer in range(3))
    recompute = vars(model)["_hpfun_context_parallel"].recompute
    assert recompute.plan.roots == layers
    disable(model)


@pytest.mark.rule("HF-21")
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"balance": "locality"}),
        ("qwen3", {"overlapped": True}),
        ("qwen3_vl", {"overlapped": True, "indexer_priority": True}),
        ("v4", {"layout": "zigzag"}),
    ],
    ids=str,
)
def test_options_that_do_nothing_for_a_model_are_refused(family, options):
    model = cp_models.tiny(family) if family == "v4" else tiny(family)
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model, None, ContextParallelOptions(**options))
    assert [violation.where for violation in caught.error.violations] == [f"options.{name}" for name in options]


@pytest.mark.rule("HF-21")
def test_an_unknown_layout_is_refused():
    for layout in ("ring", None):
        with refused("HP-BATCH-004") as caught:
            ContextParallelOptions(layout=layout)
        assert caught.error.where == "options.layout"


@pytest.mark.rule("HF-21")
def test_models_that_cannot_be_split_are_refused():
    for change in (
        {"attention_dropout": 0.1},
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ):
        for family in ("llama", "qwen3"):
            with refused("HP-HF-002"):
                enable_context_parallel(tiny(family, **change))
    model = tiny("llama")
    model.config.is_causal = False
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert caught.error.where == "config.is_causal"
    model = tiny("qwen3")
    attention = model.model.layers[1].self_attn
    attention.__class__ = type("Wrapped", (type(attention),), {})
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert dict(caught.error.facts) == {"layer": 1, "type": "Wrapped"}
    assert on(model) == "sdpa"
    with refused("HP-HF-001"):
        enable_context_parallel(tiny("qwen3_vl").model)


@pytest.mark.rule("HF-21")
@pytest.mark.parametrize("family", ["llama", "qwen3_vl"])
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"use_cache": True}, "use_cache"),
        ({"past_key_values": transformers.DynamicCache()}, "use_cache"),
        ({"output_attentions": True}, "output_attentions"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"position_ids": torch.arange(12)[None]}, "position_ids"),
        ({"position_ids": None}, "position_ids"),
        ({"attention_mask": torch.ones(1, 12)}, "attention_mask"),
        ({"attention_mask": {"full_attention": None}}, "attention_mask"),
        ({"input_ids": IDS.expand(2, -1)}, "input_ids"),
        ({"inputs_embeds": torch.ones(1, 12, 24)}, "inputs_embeds"),
        ({"pixel_values": torch.ones(4, 96)}, "pixel_values"),
        ({"image_grid_thw": torch.ones(1, 3)}, "image_grid_thw"),
        ({"logits_to_keep": 3}, "logits_to_keep"),
        ({"context_parallel": None}, "context_parallel"),
    ],
    ids=str,
)
def test_calls_that_a_rank_cannot_answer_are_refused(family, change, where):
    model = enabled(family)
    with refused("HP-HF-003") as caught:
        model(**(prepare_batch(model, IDS, ENDS) | change))
    assert caught.error.where == where


@pytest.mark.rule("HF-21")
def test_batches_of_another_kind_or_with_images_and_outputs_of_a_text_config_are_refused():
    model, sparse = enabled("qwen3_vl"), enable_context_parallel(cp_models.tiny("v4"))
    with refused("HP-HF-003") as caught:
        model(**prepare_batch(sparse, IDS, ENDS))
    assert caught.error.where == "context_parallel"
    with refused("HP-HF-003") as caught:
        prepare_batch(model, IDS.index_fill(0, torch.tensor([3, 7]), 61), ENDS)
    assert dict(caught.error.facts) == {"count": 2}
    model.config.text_config.output_hidden_states = True
    with refused("HP-HF-003") as caught:
        model(**prepare_batch(model, IDS, ENDS))
    assert caught.error.where == "output_hidden_states"


@pytest.mark.rule("HF-15")
@pytest.mark.parametrize("family", ["llama", "qwen3_window"])
def test_a_compiled_model_gives_what_it_gives(family):
    torch._dynamo.reset()
    model = enabled(family)
    batch = prepare_batch(model, IDS, ENDS)
    plain = model(**batch)
    plain.loss.backward()
    grads = dense_models.gradients(model)
    model.zero_grad()
    compiled = torch.compile(model, backend="eager")(**batch)
    compiled.loss.backward()
    torch.testing.assert_close(compiled.logits, plain.logits, rtol=1e-12, atol=1e-12)
    for name, grad in dense_models.gradients(model).items():
        torch.testing.assert_close(grad, grads[name], rtol=1e-10, atol=1e-12)


@pytest.mark.rule("HF-15")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_under_autocast_runs_and_has_the_loss(family):
    model = enable_context_parallel(tiny(family, torch.float32))
    batch = prepare_batch(model, IDS, ENDS)
    expected = float(model(**batch).loss.detach())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
        loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=0.05)


@pytest.mark.rule("HF-19")
def test_generation_works_once_it_is_off():
    model = enabled("qwen3")
    with refused("HP-HF-003"):
        model.generate(IDS[None], max_new_tokens=2)
    disable(model)
    assert model.generate(IDS[None], max_new_tokens=2, do_sample=False).shape == (1, 14)


@pytest.mark.rule("HF-21")
def test_a_layer_that_would_not_read_the_switch_is_refused():
    model = tiny("llama")
    model.model.layers[2] = copy.deepcopy(model.model.layers[1])  # with a config of its own
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert caught.error.where == "layers.2.self_attn.config"
    model = tiny("llama")
    model.model.layers[1].self_attn.forward = model.model.layers[1].self_attn.forward  # as kernel libraries do
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert caught.error.where == "layers.1.self_attn"
    model = tiny("llama")
    model.set_attn_implementation = lambda name: None  # transformers warns where a model cannot switch
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert caught.error.where == "model"


@pytest.mark.rule("HF-4", "HF-21")
@pytest.mark.parametrize("name", ["shift_labels", "num_items_in_batch"])
def test_labels_without_their_count_or_shift_are_refused(name):
    model = enabled()
    batch = prepare_batch(model, IDS, ENDS)
    del batch[name]
    with refused("HP-HF-003") as caught:
        model(**batch)
    assert caught.error.where == name
    for other in ("labels", "shift_labels", "num_items_in_batch"):
        batch.pop(other, None)
    assert model(**batch).loss is None


@pytest.mark.rule("HF-8")
@pytest.mark.parametrize("ids", [IDS.to(torch.complex64), IDS > 3, IDS.float()], ids=["complex", "bool", "float"])
def test_ids_are_integers_and_so_is_their_padding(ids):
    with refused("HP-HF-003"):
        prepare_batch(enabled(), ids, ENDS)
    with refused("HP-HF-003") as caught:
        prepare_batch(enabled(), IDS.int(), ENDS, pad_token_id=2**40)
    assert caught.error.where == "pad_token_id"
    with refused("HP-HF-003") as caught:  # which the embedding would not find, on ranks with padding alone
        prepare_batch(enabled(), IDS, ENDS, pad_token_id=enabled().config.vocab_size)
    assert caught.error.where == "pad_token_id"


@pytest.mark.rule("HF-8")
@pytest.mark.parametrize("family", ["llama", "v4"])
def test_documents_without_tokens_are_left_out(family):
    made = cp_models.tiny("v4") if family == "v4" else tiny(family)
    model = enable_context_parallel(made)
    batch, plain = (prepare_batch(model, IDS, ends) for ends in ((0, 0, 5, 5, 12, 12, 12), ENDS))
    for name in ("input_ids", "position_ids", "labels"):
        assert torch.equal(batch[name], plain[name])
    assert batch["context_parallel"].plan == plain["context_parallel"].plan
    with refused("HP-ROUTE-004"):
        prepare_batch(model, IDS, (0, 5, 3, 12))
