"""Context parallelism of transformers' models in one process: what is read from configs, and what is refused."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hpfun import PackedDocuments  # noqa: E402
from hpfun_torch.integrations.transformers import (  # noqa: E402
    ContextParallelOptions,
    attention_config,
    disable,
    enable_context_parallel,
    load_balancing_loss,
    prepare_batch,
    shifted_labels,
)
from tests import cp_models  # noqa: E402
from tests.refusals import refused  # noqa: E402

IDS, ENDS = cp_models.token_ids(12), (0, 5, 12)


def enabled(family="v4", **options):
    return enable_context_parallel(cp_models.tiny(family), None, ContextParallelOptions(**options))


@pytest.mark.rule("HF-1")
def test_configs_of_the_releases_are_read():
    v4 = attention_config(transformers.AutoConfig.for_model("deepseek_v4"))
    assert (v4.window, v4.topk, v4.overlapping_ratios.tolist()) == (128, 512, [4])
    assert v4.sharing.compress_ratios[:5].tolist() == [128, 128, 128, 4, 128]
    assert v4.sharing.index_sources[:2].tolist() == [3, 5]
    v32 = attention_config(transformers.AutoConfig.for_model("deepseek_v32"))
    assert (v32.window, v32.topk) == (0, 2048)
    assert set(v32.sharing.compress_ratios.tolist()) == {1}
    assert v32.sharing.index_sources.tolist() == list(range(len(v32.sharing.compress_ratios)))
    glm = attention_config(transformers.GlmMoeDsaConfig(index_topk_freq=4, index_skip_topk_offset=3))
    assert glm.sharing.index_sources[:5].tolist() == [0, 1, 2, 6, 10]


@pytest.mark.rule("HF-1")
def test_other_models_are_refused():
    with refused("HP-HF-001") as caught:
        attention_config(transformers.LlamaConfig())
    assert caught.error.facts["model_type"] == "llama"
    with refused("HP-HF-001"):
        enable_context_parallel(cp_models.tiny("v4").model)


@pytest.mark.rule("HF-2")
def test_what_cannot_be_split_is_refused_all_at_once():
    model = cp_models.tiny("v4")
    model.config.attention_dropout = 0.1
    model.config.rope_parameters["compress"]["rope_type"] = "dynamic"
    model.config.compress_rates["heavily_compressed_attention"] = 4
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    places = [violation.where for violation in caught.error.violations]
    assert places == ["config.attention_dropout", "config.rope_parameters", "config.compress_rates"]
    with refused("HP-INDEX-003"):
        ContextParallelOptions(balance="best")
    with refused("HP-HF-002") as caught:
        ContextParallelOptions(indexer_priority=True, exclude=("*.mlp",))
    assert [violation.where for violation in caught.error.violations] == ["options.indexer_priority", "options.exclude"]
    with refused("HP-HF-002"):
        enable_context_parallel(cp_models.tiny("v4"), None, {"balance": "locality"})
    with refused("HP-EXCHANGE-009"):
        enable_context_parallel(cp_models.tiny("v4"), ContextParallelOptions())


@pytest.mark.rule("HF-4")
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"use_cache": True}, "use_cache"),
        ({"use_cache": None}, "use_cache"),
        ({"past_key_values": transformers.DynamicCache()}, "use_cache"),
        ({"output_attentions": True}, "output_attentions"),
        ({"output_router_logits": True}, "output_router_logits"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"position_ids": torch.arange(12)[None]}, "position_ids"),
        ({"attention_mask": torch.ones(1, 12)}, "attention_mask"),
        ({"attention_mask": None}, "attention_mask"),
        ({"input_ids": IDS.expand(2, -1)}, "input_ids"),
        ({"position_ids": torch.arange(5)[None]}, "position_ids"),
        ({"context_parallel": None}, "context_parallel"),
        ({"position_ids": None}, "position_ids"),
        ({"attention_mask": {}}, "attention_mask"),
        ({"attention_mask": {"indexed_attention": torch.ones(1, 12)}}, "attention_mask"),
        ({"inputs_embeds": torch.ones(1, 12, 32)}, "inputs_embeds"),
        ({"logits_to_keep": 3}, "logits_to_keep"),
    ],
    ids=str,
)
def test_calls_that_a_rank_cannot_answer_are_refused(change, where):
    model = enabled()
    batch = prepare_batch(model, IDS, ENDS)
    with refused("HP-HF-003") as caught:
        model(**(batch | change))
    assert caught.error.where == where


@pytest.mark.rule("HF-4")
def test_a_call_without_a_batch_and_generation_are_refused():
    model = enabled("glm")
    for call in (lambda: model(input_ids=IDS[None]), lambda: model.generate(IDS[None], max_new_tokens=2)):
        with refused("HP-HF-003"):
            call()
    disable(model)
    assert model.generate(IDS[None], max_new_tokens=2, do_sample=False).shape == (1, 14)


@pytest.mark.rule("HF-4")
@pytest.mark.parametrize("family", ["v4"])
def test_the_balance_loss_of_one_rank_is_refused_where_the_config_asks_for_it(family):
    model = cp_models.tiny(family, output_router_logits=True)
    enable_context_parallel(model)
    with refused("HP-HF-003") as caught:
        model(**prepare_batch(model, IDS, ENDS))
    assert caught.error.where == "output_router_logits"


@pytest.mark.rule("HF-4")
def test_a_batch_of_another_model_is_refused():
    model, other = enabled(), enabled("v4", balance="locality")
    assert model(**prepare_batch(other, IDS, ENDS)).loss > 0  # alike: balance is the batch's own matter
    narrow = enable_context_parallel(cp_models.tiny("v4", index_topk=3))
    with refused("HP-HF-003") as caught:
        narrow(**prepare_batch(model, IDS, ENDS))
    assert caught.error.where == "context_parallel"


@pytest.mark.rule("HF-2")
def test_attention_that_would_stay_as_it_is_or_lose_an_adapter_is_refused():
    model = cp_models.tiny("v4")
    kind = type(model.model.layers[2].self_attn)
    model.model.layers[2].self_attn.__class__ = type("Wrapped", (kind,), {})
    with refused("HP-HF-002") as caught:
        enable_context_parallel(model)
    assert dict(caught.error.facts) == {"layer": 2, "type": "Wrapped"}
    assert type(model.model.layers[0].self_attn) is kind
    adapted = cp_models.tiny("glm")
    adapted.model.layers[1].self_attn.kv_b_proj.__class__ = type("Adapted", (torch.nn.Linear,), {})
    adapted.model.layers[2].self_attn.kv_b_proj.register_forward_hook(lambda *_: None)
    with refused("HP-HF-002") as caught:
        enable_context_parallel(adapted)
    assert [violation.where for violation in caught.error.violations] == [
        "model.layers.1.self_attn.kv_b_proj",
        "model.layers.2.self_attn.kv_b_proj",
    ]


@pytest.mark.rule("HF-11")
def test_what_was_wrapped_since_has_to_come_off_first():
    model = enabled()
    attention = model.model.layers[0].self_attn
    kind = type(attention)
    attention.__class__ = type("Wrapped", (kind,), {})
    with refused("HP-HF-004") as caught:
        disable(model)
    assert caught.error.facts["type"] == "Wrapped"
    attention.__class__ = kind
    disable(model)


@pytest.mark.rule("HF-3", "HF-5")
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_a_compiled_model_gives_what_it_gives(family):
    torch._dynamo.reset()
    model = enabled(family)
    batch = prepare_batch(model, IDS, ENDS)
    plain = model(**batch)
    plain.loss.backward()
    grads = cp_models.gradients(model)
    model.zero_grad()
    compiled = torch.compile(model, backend="eager")(**batch)
    compiled.loss.backward()
    torch.testing.assert_close(compiled.logits, plain.logits, rtol=1e-4, atol=1e-5)
    for name, grad in cp_models.gradients(model).items():
        torch.testing.assert_close(grad, grads[name], rtol=1e-3, atol=1e-6)


@pytest.mark.rule("HF-3", "HF-5")
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_a_step_under_autocast_runs_and_has_the_loss(family):
    model = enabled(family, balance="locality")
    batch = prepare_batch(model, IDS, ENDS)
    expected = float(model(**batch).loss.detach())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
        loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=0.05)


@pytest.mark.rule("HF-6")
def test_ids_of_32_bits_do_as_well():
    model = enabled()
    expected = model(**prepare_batch(model, IDS, ENDS)).loss
    assert torch.equal(model(**prepare_batch(model, IDS.int(), ENDS)).loss, expected)


@pytest.mark.rule("HF-6")
def test_labels_are_shifted_inside_documents():
    shifted = shifted_labels(PackedDocuments((1, 4, 2)), torch.tensor([7, 1, 2, -100, 4, 5, 6]))
    assert shifted.tolist() == [-100, 2, -100, 4, -100, 6, -100]


@pytest.mark.rule("HF-6", "HF-7")
def test_labels_of_the_caller_count_and_those_of_no_token_do_not():
    model = enabled()
    labels = IDS.clone()
    labels[:8] = -100
    batch = prepare_batch(model, IDS[None], ENDS, labels[None])
    assert batch["num_items_in_batch"] == 4
    assert batch["shift_labels"][0, 7:].tolist() == [*IDS[8:].tolist(), -100]
    everywhere = prepare_batch(model, IDS, ENDS)
    assert everywhere["num_items_in_batch"] == 10
    none = prepare_batch(model, IDS, ENDS, torch.full_like(IDS, -100))
    assert none["num_items_in_batch"] == 1
    assert float(model(**none).loss.detach()) == 0


@pytest.mark.rule("HF-8")
def test_packs_that_do_not_fit_are_refused():
    model = enabled()
    for ids, ends, code in (
        (IDS[:-1], ENDS, "HP-HF-003"),
        (IDS.float(), ENDS, "HP-HF-003"),
        (IDS.view(2, 6), ENDS, "HP-HF-003"),
        ([1, 2], ENDS, "HP-HF-003"),
        (IDS, (0, 5, 3, 12), "HP-ROUTE-004"),
        (IDS, (1, 12), "HP-ROUTE-003"),
    ):
        with refused(code):
            prepare_batch(model, ids, ends)
    for labels, pad in ((IDS[:-1], 0), (None, None)):
        with refused("HP-HF-003"):
            prepare_batch(model, IDS, ENDS, labels, pad_token_id=pad)


@pytest.mark.rule("HF-9", "HF-11")
def test_it_is_put_on_once_and_taken_off_once():
    model = cp_models.tiny("v32")
    with refused("HP-HF-004"):
        prepare_batch(model, IDS, ENDS)
    enable_context_parallel(model)
    with refused("HP-HF-004"):
        enable_context_parallel(model)
    wrapper = torch.nn.Module()
    wrapper.module = model
    with refused("HP-HF-004") as caught:
        prepare_batch(wrapper, IDS, ENDS)
    assert "module" in caught.error.suggestion
    disable(model)
    with refused("HP-HF-004"):
        disable(model)


@pytest.mark.rule("HF-9")
@pytest.mark.parametrize("family", cp_models.FAMILIES)
def test_names_and_state_stay_and_the_state_of_an_enabled_model_loads_into_a_plain_one(family):
    model = enabled(family, recompute=True)
    plain = cp_models.tiny(family)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert not plain.load_state_dict(model.state_dict()).missing_keys


@pytest.mark.rule("HF-9")
def test_a_copy_of_an_enabled_model_works_by_itself():
    model = enabled()
    other = copy.deepcopy(model)
    batch = prepare_batch(other, IDS, ENDS)
    assert torch.equal(other(**batch).logits, model(**prepare_batch(model, IDS, ENDS)).logits)
    disable(other)
    assert type(other.model.layers[0].self_attn).__name__ == "DeepseekV4Attention"
    assert type(model.model.layers[0].self_attn).__name__ == "ContextParallelV4Attention"
    again = pickle.loads(pickle.dumps(disable(model)))
    assert torch.equal(
        again(input_ids=IDS[None], use_cache=False).logits, other(input_ids=IDS[None], use_cache=False).logits
    )


@pytest.mark.rule("HF-10")
@pytest.mark.parametrize("before", [False, True])
def test_the_models_own_checkpointing_is_right_too(before):
    found = []
    for checkpointing in (False, True):
        model = cp_models.tiny("v4")
        if checkpointing and before:
            model.gradient_checkpointing_enable()
        enable_context_parallel(model)
        if checkpointing and not before:
            model.gradient_checkpointing_enable()
        model(**prepare_batch(model, IDS, ENDS)).loss.backward()
        found.append(cp_models.gradients(model))
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-6, atol=1e-7)


@pytest.mark.rule("HF-13")
def test_the_balance_loss_counts_the_rows_that_it_is_told_and_needs_a_layer():
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(10, 4, generator=random)
    some = torch.arange(10) < 6
    torch.testing.assert_close(load_balancing_loss([logits], 4, 2, rows=some), load_balancing_loss([logits[:6]], 4, 2))
    with refused("HP-HF-003"):
        load_balancing_loss([], 4, 2)
