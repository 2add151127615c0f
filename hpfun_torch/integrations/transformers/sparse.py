"""The kind of the DeepSeek-style models: attention modules change their class, and nothing else of the model.

Rules HF-2 and HF-9 of ``specs/attention.md``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from hpfun import PackedDocuments, Violation
from hpfun.attention import AttentionConfig, AttentionPlan, attention_plan, attention_route
from hpfun.errors import refuse_all
from hpfun_torch.attention import ContextParallelAttention
from hpfun_torch.integrations.transformers.call import CONTEXT
from hpfun_torch.integrations.transformers.configs import attention_config, check_model_config
from hpfun_torch.integrations.transformers.dsa import ContextParallelGlmAttention, ContextParallelV32Attention
from hpfun_torch.integrations.transformers.kinds import Kind, Modules, Part, replaced
from hpfun_torch.integrations.transformers.v4 import ContextParallelV4Attention

_CLASSES = {
    kind.__mro__[1]: kind
    for kind in (ContextParallelV4Attention, ContextParallelV32Attention, ContextParallelGlmAttention)
}


def _read(model: Any, modules: Modules) -> AttentionConfig:
    check_model_config(model.config)
    refuse_all(violation for at, module in enumerate(modules) for violation in _unsplittable(at, module))
    return attention_config(model.config)


def _unsplittable(layer: int, module: Any) -> Iterator[Violation]:
    """What would be left out in silence: attention of another class, a projection that is read by its weight alone."""
    where = f"model.layers.{layer}.self_attn"
    other = replaced(where, layer, module, _CLASSES)
    if other is not None:
        yield other
        return
    up = getattr(module, "kv_b_proj", None)
    if up is not None and (type(up) is not torch.nn.Linear or up._forward_hooks or up._forward_pre_hooks):
        facts = {"layer": layer, "type": type(up).__name__}
        message = f"kv_b_proj is a {facts['type']}{'' if type(up) is not torch.nn.Linear else ' with hooks'}"
        yield Violation(
            "HP-HF-002", f"{where}.kv_b_proj", message, facts, "merge adapters: its weight is multiplied in"
        )


def _put_on(model: Any, modules: Modules) -> None:
    for module in modules:
        module.__class__ = _CLASSES[type(module)]


def _changed(model: Any, state: Any) -> str | None:
    kinds = [type(module) for module in state.modules]
    return next((kind.__name__ for kind in kinds if kind not in _CLASSES.values()), None)


def _take_off(model: Any, modules: Modules, before: None) -> None:
    for module in modules:
        module.__class__ = type(module).__mro__[1]


def _plan(state: Any, documents: PackedDocuments, size: int) -> AttentionPlan:
    """A pack that the ranks do not divide gets one more document."""
    missing = -documents.total % size
    if missing:
        documents = PackedDocuments((*documents.lengths.tolist(), missing))
    options = state.options
    return attention_plan(
        documents,
        size,
        state.config,
        options.balance,
        overlapped=options.overlapped,
        indexer_priority=options.indexer_priority,
    )


def _part(plan: AttentionPlan, documents: PackedDocuments, rank: int, group: Any) -> Part:
    rows = np.arange(rank * plan.local_rows, (rank + 1) * plan.local_rows)
    context = ContextParallelAttention(plan, attention_route(plan, rank), group)
    return Part(context, np.where(rows < documents.total, rows, -1))


def _misfits(model: Any, state: Any, context: ContextParallelAttention) -> Iterator[Violation]:
    if context.plan.config != state.config:
        facts = {"plan": context.plan.digest}
        advice = "prepare the batch for the model that is called"
        yield Violation("HP-HF-003", CONTEXT, "a batch that was prepared for another model", facts, advice)


SPARSE = Kind(
    context=ContextParallelAttention,
    mask={"indexed_attention": None},  # a mapping: the model then builds no mask
    idle={"layout": "contiguous"},
    read=_read,
    put_on=_put_on,
    take_off=_take_off,
    changed=_changed,
    plan=_plan,
    part=_part,
    misfits=_misfits,
)
