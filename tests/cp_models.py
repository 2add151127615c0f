"""Tiny models with every kind of attention layer, and what one process makes of a pack: the documents alone."""

import copy

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 64
IGNORED = -100
FAMILIES = ("v4", "v32", "glm")


def tiny(family, **changes):
    """A model of a family with all its parameters and tables at random."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[{"v4": "deepseek_v4", "v32": "deepseek_v32", "glm": "glm_moe_dsa"}[family]](
        **copy.deepcopy({"v4": _V4, "v32": _DSA, "glm": _DSA | _GLM}[family] | changes)
    )
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and ("sinks" in name or "base" in name):
                parameter.normal_(0.0, 0.5, generator=random)
            elif "position_bias" in name:
                parameter.normal_(0.0, 1.0, generator=random)
            elif parameter.ndim > 1:
                parameter.normal_(0.0, 0.15, generator=random)
        for name, buffer in model.named_buffers():
            if "tid2eid" in name:
                buffer.random_(0, config.n_routed_experts, generator=random)
            elif "correction_bias" in name:
                buffer.normal_(0.0, 0.1, generator=random)
    return model.train()


_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "q_lora_rank": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
}
_V4 = _COMMON | {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "o_groups": 2,
    "o_lora_rank": 8,
    "sliding_window": 16,
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "layer_types": [
        "sliding_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "compressed_sparse_attention",
    ],
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    "hc_mult": 2,
    "partial_rotary_factor": 0.5,
}
_DSA = _COMMON | {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "intermediate_size": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GLM = {"num_hidden_layers": 4, "index_topk_freq": 2, "n_group": 1}


def token_ids(total, seed=2):
    return torch.randint(0, VOCABULARY, (total,), generator=torch.Generator().manual_seed(seed))


def alone(model, lengths, ids, count):
    """Logits of all tokens from each document alone; backward of the summed loss over ``count`` labels."""
    found = []
    start = 0
    total = 0.0
    for length in lengths:
        own = ids[start : start + length][None]
        start += length
        output = model(input_ids=own, use_cache=False)
        found.append(output.logits[0])
        if length > 1:
            loss = torch.nn.functional.cross_entropy(output.logits[0, :-1].float(), own[0, 1:], reduction="sum") / count
            loss.backward()
            total += float(loss.detach())
    return torch.cat(found).detach(), total


def gradients(model):
    """Every parameter's gradient; None counts as zero."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }
