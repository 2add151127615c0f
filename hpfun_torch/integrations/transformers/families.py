"""The models that context parallelism knows, by the name of their class."""

from typing import Any

from hpfun.errors import refusal
from hpfun_torch.integrations.transformers.dense import DENSE, rope_positions
from hpfun_torch.integrations.transformers.kinds import Family
from hpfun_torch.integrations.transformers.sparse import SPARSE

FAMILIES = {
    "DeepseekV4ForCausalLM": Family(kind=SPARSE),
    "DeepseekV32ForCausalLM": Family(kind=SPARSE),
    "GlmMoeDsaForCausalLM": Family(kind=SPARSE),
    "LlamaForCausalLM": Family(kind=DENSE),
    "Qwen3ForCausalLM": Family(kind=DENSE),
    "Qwen3VLForConditionalGeneration": Family(
        kind=DENSE, decoder="model.language_model", position_rows=4, positions=rope_positions
    ),
}


def family_of(model: Any) -> Family:
    """The family of a model; HP-HF-001 for another model, or one that is wrapped."""
    kind = type(model).__name__
    if kind not in FAMILIES:
        known = tuple(FAMILIES)
        advice = f"pass one of {', '.join(known)}, before anything wraps it"
        raise refusal("HP-HF-001", "model", f"got {kind}", advice, type=kind, known=known)
    return FAMILIES[kind]
