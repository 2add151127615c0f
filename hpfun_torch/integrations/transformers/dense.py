"""The kind of ordinary causal models: their attention function is another, by the registry of transformers.

Rules HF-15 to HF-20 of ``specs/attention.md``.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextAttention

from hpfun import PackedDocuments, Violation
from hpfun.batch import BatchPlan, BatchTopology, plan_batch
from hpfun.errors import refusal, refuse_all
from hpfun.serial import digest
from hpfun_torch.dense import DenseContext, dense_attention, dense_context
from hpfun_torch.integrations.transformers.call import context_of
from hpfun_torch.integrations.transformers.configs import check_model_config
from hpfun_torch.integrations.transformers.kinds import Kind, Modules, Part, replaced

NAME = "hpfun_context_parallel"  # the attention function, in configs and registries of transformers
_CLASSES = (LlamaAttention, Qwen3Attention, Qwen3VLTextAttention)
_TERMS = ("softcap", "s_aux", "position_bias", "cache")  # what a score may have besides a product and a window


@attrs.frozen
class DenseConfig:
    """What ranks must have in common of a dense model: its type and each layer's window, 0 for none."""

    model_type: str
    windows: tuple[int, ...]

    @property
    def digest(self) -> str:
        """Of the content, 64 hex digits."""
        return digest([self.model_type, list(self.windows)])


@torch.compiler.disable  # asks plans and communicates; what is around it compiles
def context_parallel_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: ``[1, heads, local, width]`` in, ``[1, local, heads, width]`` out.

    The context comes in ``kwargs``. HP-HF-003 for a call without one, and for what changes scores in another way.
    """
    context = context_of(kwargs, DenseContext)
    asked = {name: kwargs.get(name) for name in _TERMS} | {"attention_mask": attention_mask}
    given = [name for name, part in asked.items() if part is not None]
    given += [name for name, wrong in (("dropout", dropout), ("is_causal", is_causal is False)) if wrong]
    if given:
        message = f"attention with {', '.join(given)}"
        raise refusal("HP-HF-003", given[0], message, "leave it out, or disable it", option=given[0])
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    return dense_attention(*rows, context, scale=scaling, window=sliding_window or 0)[None], None


def no_mask(*args: Any, **kwargs: Any) -> None:
    """A mask function of transformers: blocks of documents need none."""


ALL_ATTENTION_FUNCTIONS.register(NAME, context_parallel_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, no_mask)


def _read(model: Any, modules: Modules) -> DenseConfig:
    config = model.config.get_text_config()
    check_model_config(config)
    if config._attn_implementation == NAME:
        message, kind = "is that of a model where it is on, or a copy of it", type(model).__name__
        raise refusal("HP-HF-004", "model.config", message, "disable that model first", type=kind)
    refuse_all(_unsplittable(config, modules))
    windows = tuple(int(getattr(module, "sliding_window", None) or 0) for module in modules)
    return DenseConfig(config.model_type, windows)


def _unsplittable(config: Any, modules: Modules) -> Iterator[Violation]:
    """Attention that would be another, or left out, in silence."""
    if getattr(config, "is_causal", None) is False or not all(getattr(part, "is_causal", True) for part in modules):
        yield Violation(
            "HP-HF-002", "config.is_causal", "attention to later rows", {"is_causal": False}, "set it to True"
        )
    for layer, module in enumerate(modules):
        where = f"layers.{layer}.self_attn"
        other = replaced(where, layer, module, _CLASSES)
        if other is not None:
            yield other
        elif module.config is not config:
            facts, advice = {"layer": layer, "type": type(module).__name__}, "give every layer the config of the model"
            yield Violation("HP-HF-002", f"{where}.config", "is another than the model's", facts, advice)


def _put_on(model: Any, modules: Modules) -> str:
    """Switches the decoder alone, not an encoder of images; gives the name of what was on."""
    before = model.config.get_text_config()._attn_implementation
    _switch(model, NAME)
    found = _implementation(modules)
    if found != NAME:  # transformers warns where a model cannot switch
        _switch(model, before)
        facts = {"type": type(model).__name__}
        raise refusal("HP-HF-002", "model", f"its attention stays {found}", "use a model that can switch", **facts)
    return before


def _take_off(model: Any, modules: Modules, before: str) -> None:
    _switch(model, before)


def _switch(model: Any, name: str) -> None:
    config = model.config.get_text_config()
    inner = next((part for part in model.config.sub_configs if getattr(model.config, part) is config), None)
    model.set_attn_implementation(name if inner is None else {inner: name})


def _changed(model: Any, state: Any) -> str | None:
    found = _implementation(state.modules)
    return None if found == NAME else found


def _implementation(modules: Modules) -> str:
    """The attention function that all layers read from their config, or the first other one."""
    configs: list[Any] = [module.config for module in modules]
    return next((str(config._attn_implementation) for config in configs if config._attn_implementation != NAME), NAME)


def _plan(state: Any, documents: PackedDocuments, size: int) -> BatchPlan:
    return plan_batch(documents, BatchTopology(size), layout=state.options.layout)


def _part(plan: BatchPlan, documents: PackedDocuments, rank: int, group: Any) -> Part:
    context = dense_context(plan, group)
    return Part(context, context.view.sources)


def _misfits(model: Any, state: Any, context: DenseContext) -> Iterator[Violation]:
    changed = _changed(model, state)
    if changed:
        facts = {"type": changed}
        message, advice = f"is {changed}, of one rank's rows alone", "leave it, or disable context parallelism first"
        yield Violation("HP-HF-003", "config._attn_implementation", message, facts, advice)


DENSE = Kind(
    context=DenseContext,
    mask=None,
    idle={"balance": "none", "overlapped": False, "indexer_priority": False},
    read=_read,
    put_on=_put_on,
    take_off=_take_off,
    changed=_changed,
    plan=_plan,
    part=_part,
    misfits=_misfits,
)


def rope_positions(model: Any, ids: torch.Tensor, documents: PackedDocuments) -> torch.Tensor:
    """Positions of a pack of text for Qwen3-VL, ``[4, 1, tokens]``: of the text, and the model's own three rows.

    Each document's are made alone. HP-HF-003 for tokens that stand for images or videos.
    """
    marks = [model.config.image_token_id, model.config.video_token_id]
    count = int(torch.isin(ids, ids.new_tensor(marks)).sum())
    if count:
        advice = "text alone is split over ranks so far"
        raise refusal("HP-HF-003", "input_ids", f"{count} tokens of images or videos", advice, count=count)
    found = []
    for own in ids.split(documents.lengths.tolist()):
        text = torch.arange(len(own), device=ids.device)[None, None]
        rope, _ = model.model.get_rope_index(own[None], mm_token_type_ids=torch.zeros_like(own)[None])
        found.append(torch.cat((text, rope.to(text.dtype))))
    return torch.cat(found, dim=-1)
