"""Models of transformers: tiny ones that run, and full ones on the meta device."""

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 64


def tiny_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).train()


def tiny_v4():
    """Both kinds of compressed attention, and both kinds of routing."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING["deepseek_v4"](
        vocab_size=VOCABULARY,
        hidden_size=32,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=16,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        index_n_heads=2,
        index_head_dim=16,
        index_topk=2,
        sliding_window=8,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention", "compressed_sparse_attention"],
        mlp_layer_types=["hash_moe", "moe", "moe"],
        hc_mult=2,
        partial_rotary_factor=0.5,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()


def tokens(rows=2, length=32):
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids, "use_cache": False}


def meta_model(model_type):
    config = CONFIG_MAPPING[model_type]()
    kind = transformers.AutoModelForImageTextToText if "vl" in model_type else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)
