"""What the attention of a Hugging Face model is, read from its config, and what cannot be split over ranks.

Rules HF-1 and HF-2 of ``specs/attention.md``.
"""

from collections.abc import Iterator
from typing import Any

from hpfun import Violation
from hpfun.attention import AttentionConfig, LayerSharing
from hpfun.errors import refusal, refuse_all

_SELECTS, _DENSE = "compressed_sparse_attention", "heavily_compressed_attention"
MODEL_TYPES = ("deepseek_v4", "deepseek_v32", "glm_moe_dsa")
_GROWING_ROPES = ("dynamic", "longrope")  # their angles depend on the longest position of the call


def attention_config(config: Any) -> AttentionConfig:
    """The attention of a DeepSeek-V4, DeepSeek-V3.2 or GLM-MoE-DSA config of transformers; HP-HF-001 for another.

    >>> from transformers import GlmMoeDsaConfig
    >>> found = attention_config(GlmMoeDsaConfig(num_hidden_layers=6, index_topk_freq=2))
    >>> found.topk, found.sharing.index_sources.tolist()
    (2048, [0, 1, 3, 5])
    """
    kind = getattr(config, "model_type", type(config).__name__)
    if kind == "deepseek_v4":
        return _v4(config)
    if kind in MODEL_TYPES:
        count = config.num_hidden_layers
        types = getattr(config, "indexer_types", None) or ["full"] * count
        full = [layer for layer, mode in enumerate(types[:count]) if mode == "full"]
        sharing = LayerSharing(compress_ratios=[1] * count, index_sources=full)
        return AttentionConfig(sharing=sharing, window=0, topk=config.index_topk)
    known = ", ".join(MODEL_TYPES)
    raise refusal(
        "HP-HF-001", "model", f"model type {kind!r:.40} is none of {known}", model_type=kind, known=MODEL_TYPES
    )


def _v4(config: Any) -> AttentionConfig:
    ratios = [config.compress_rates.get(kind, 0) for kind in config.layer_types]
    selecting = [layer for layer, kind in enumerate(config.layer_types) if kind == _SELECTS]
    dense = [layer for layer, kind in enumerate(config.layer_types) if kind == _DENSE]
    return AttentionConfig(
        sharing=LayerSharing(compress_ratios=ratios, index_sources=selecting, dense_layers=dense),
        window=config.sliding_window,
        topk=config.index_topk if selecting else 0,
        overlapping_ratios=[config.compress_rates[_SELECTS]] if selecting else [],
    )


def check_model_config(config: Any) -> None:
    """HP-HF-002 for what context parallelism would get wrong in silence, all violations at once."""
    refuse_all(_unsupported(config))


def _unsupported(config: Any) -> Iterator[Violation]:
    if config.attention_dropout:
        facts = {"attention_dropout": config.attention_dropout}
        message = f"attention dropout of {config.attention_dropout}"
        yield Violation("HP-HF-002", "config.attention_dropout", message, facts, "set it to 0")
    parameters = config.rope_parameters or {}
    for rope in (parameters, *(part for part in parameters.values() if isinstance(part, dict))):
        kind = rope.get("rope_type")
        if kind in _GROWING_ROPES:
            message = f"rope of type {kind}, whose angles depend on the longest position of a call"
            yield Violation("HP-HF-002", "config.rope_parameters", message, {"rope_type": kind}, "use default or yarn")
    if getattr(config, "compress_rates", None) and len(set(config.compress_rates.values())) < len(
        config.compress_rates
    ):
        facts = {"compress_rates": tuple(config.compress_rates.values())}
        message = f"one rate for both kinds of compression: {facts['compress_rates']}"
        yield Violation("HP-HF-002", "config.compress_rates", message, facts, "give each kind a rate of its own")
