"""Tiny dense models, and what one process makes of a pack: the documents alone.

In float64 the norms and the loss of transformers would round to float32; here they do not, so that two ways to the
same number agree to a few units of the last place.
"""

import types

import numpy as np
import torch
import transformers

VOCABULARY = 64
IGNORED = -100
FAMILIES = ("llama", "qwen3", "qwen3_window", "qwen3_vl")
WINDOW = 7
PACKED = (37, 1, 3, 30, 25)


def tiny(family, dtype=torch.float64, **changes):
    """A model of a family with all its parameters at random, norms and biases too."""
    torch.manual_seed(0)
    config = _CONFIGS[family](changes)
    kind = getattr(transformers, _MODELS[family])
    model = kind._from_config(config, attn_implementation="sdpa").to(dtype)
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else 0.2 * noise)
    if dtype == torch.float64:
        model.loss_function = exact_loss
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(_exact_norm, module)
    return model.train()


_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
_WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 24,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 2],
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2], "mrope_interleaved": True}
_MARKS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
_CONFIGS = {
    "llama": lambda changes: transformers.LlamaConfig(**_COMMON | changes),
    "qwen3": lambda changes: transformers.Qwen3Config(**_COMMON | changes),
    "qwen3_window": lambda changes: transformers.Qwen3Config(**_COMMON | _WINDOWED | changes),
    "qwen3_vl": lambda changes: transformers.Qwen3VLConfig(
        text_config=_COMMON | {"rope_parameters": _ROPE} | changes, vision_config=_VISION, **_MARKS
    ),
}
_MODELS = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_window": "Qwen3ForCausalLM",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
}


def exact_loss(logits, labels, vocab_size, num_items_in_batch=None, shift_labels=None, **kwargs):
    """The causal loss of transformers without its rounding."""
    goals = shift_labels.view(-1)
    entropy = torch.nn.functional.cross_entropy
    return entropy(logits.view(-1, vocab_size), goals, ignore_index=IGNORED, reduction="sum") / num_items_in_batch


def _exact_norm(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def token_ids(total, seed=2):
    """Text: no id of an image or video."""
    return torch.randint(0, 60, (total,), generator=torch.Generator().manual_seed(seed))


def goals_of(ids, share=1.0, seed=3):
    """Labels of which some are ignored, so that ranks have different numbers of them."""
    ignored = torch.rand(len(ids), generator=torch.Generator().manual_seed(seed)) >= share
    return ids.masked_fill(ignored, IGNORED)


def alone(model, lengths, ids, labels, inputs=None):
    """Logits of all tokens from each document alone, and the mean loss over all labels; backward done.

    ``inputs`` are more keywords for each document, such as its images.
    """
    parts = list(zip(ids.split(lengths), labels.split(lengths), inputs or [{} for _ in lengths], strict=True))
    count = max(sum(int((own[1:] != IGNORED).sum()) for _, own, _ in parts), 1)
    found, total = [], 0.0
    for own, goals, more in parts:
        logits = model(input_ids=own[None], use_cache=False, **more).logits[0]
        found.append(logits.detach())
        if len(own) > 1:
            loss = torch.nn.functional.cross_entropy(logits[:-1], goals[1:], ignore_index=IGNORED, reduction="sum")
            (loss / count).backward()
            total += float(loss.detach()) / count
    return torch.cat(found), total


def gradients(model):
    """Every parameter's gradient; None counts as zero."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def differences(answers, expected):
    """Of all ranks together: of the loss; of logits and gradients by the greatest, of all logits and the parameter."""
    logits, loss, grads = expected
    got = np.empty_like(logits)
    for answer in answers:
        there = answer["sources"] >= 0
        got[answer["sources"][there]] = answer["logits"][there]
    found = answers[0]["grads"]
    assert set(found) == set(grads)
    # a parameter that learns nothing at all, but for rounding, must learn nothing here
    least = 1e-4 * max(np.abs(grad).max() for grad in grads.values()) or 1e-12
    worst = max(np.abs(found[name] - grad).max() / max(np.abs(grad).max(), least) for name, grad in grads.items())
    return abs(answers[0]["loss"] - loss), np.abs(got - logits).max() / np.abs(logits).max(), worst
