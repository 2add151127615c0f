"""Context parallelism put onto a model of transformers, and taken off again.

Attention modules change their class, and nothing else of the model changes: parameters, names and ``state_dict`` stay.
Rules HF-9 to HF-11 of ``specs/attention.md``.
"""

from typing import Any, cast

import attrs
import torch
import torch.distributed as dist

from hpfun import IndexerOptions, Outcome, Violation, attempt
from hpfun.attention import AttentionConfig
from hpfun.errors import refusal, refuse_all
from hpfun.recompute import LayerSelection, RecomputePolicy, plan_recompute
from hpfun.serial import digest
from hpfun_torch.agree import compare
from hpfun_torch.checks import check_member
from hpfun_torch.integrations.transformers.call import check_call
from hpfun_torch.integrations.transformers.configs import attention_config, check_model_config
from hpfun_torch.integrations.transformers.dsa import ContextParallelGlmAttention, ContextParallelV32Attention
from hpfun_torch.integrations.transformers.state import Enabled, enabled, is_enabled, mark, unmark
from hpfun_torch.integrations.transformers.v4 import ContextParallelV4Attention
from hpfun_torch.recompute import Applied, apply_recompute, read_modules

_CLASSES = {
    kind.__mro__[1]: kind
    for kind in (ContextParallelV4Attention, ContextParallelV32Attention, ContextParallelGlmAttention)
}
_MODELS = ("DeepseekV4ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


@attrs.frozen(kw_only=True)
class ContextParallelOptions:
    """``balance``: a mode or ``IndexerOptions``; ``overlapped``, ``indexer_priority``: when transfers are waited for.

    ``recompute``: layers are recomputed in backward, all but their choices of keys, ``exclude`` (patterns of module
    names) and what lies in them. Raises what ``IndexerOptions`` raises, and HP-HF-002 for what does nothing alone.
    """

    balance: str | IndexerOptions = "none"
    overlapped: bool = False
    indexer_priority: bool = False
    recompute: bool = False
    exclude: tuple[str, ...] = ()

    def __attrs_post_init__(self):
        if not isinstance(self.balance, IndexerOptions):
            IndexerOptions(self.balance)
        idle = (
            ("indexer_priority", self.indexer_priority and not self.overlapped, "overlapped=True"),
            ("exclude", bool(self.exclude) and not self.recompute, "recompute=True"),
        )
        refuse_all(
            Violation("HP-HF-002", f"options.{name}", "does nothing by itself", {"needs": needs}, f"set {needs} too")
            for name, alone, needs in idle
            if alone
        )


def enable_context_parallel(
    model: Any, group: dist.ProcessGroup | None = None, options: ContextParallelOptions | None = None
) -> Any:
    """The model, from now on to be called on every rank of ``group`` with what ``prepare_batch`` gives.

    For ``DeepseekV4ForCausalLM``, ``DeepseekV32ForCausalLM`` and ``GlmMoeDsaForCausalLM``, before anything wraps them;
    parameters are whole on every rank, and their gradients are parts to be added up (``sum_gradients``). Every rank
    calls it. Raises HP-HF-001 for another model, HP-HF-002 for one whose attention cannot be split, HP-HF-004 where it
    is on already, HP-EXCHANGE-009 outside the group, and what ``apply_recompute`` raises; what one rank finds, all
    raise, and options or configs that differ are HP-AGREE-001. The model is then as it was.
    """
    options = ContextParallelOptions() if options is None else options
    check_member(group)
    found, outcome = attempt(_checked, model, options)
    told = {} if found is None else _described(found[0], options)
    compare(outcome, digest(told) if told else "", told, group, "HP-AGREE-001", "options")
    config, modules, recompute = cast(tuple[AttentionConfig, Any, Any], found)  # or compare had raised
    applied, outcome = attempt(_recomputed, model, recompute)
    _agree_on_recompute(applied, outcome, group)
    for module in modules:
        module.__class__ = _CLASSES[type(module)]
    hook = model.register_forward_pre_hook(check_call, with_kwargs=True)
    mark(model, Enabled(group, options, config, hook, applied, modules))
    return model


def disable(model: Any) -> Any:
    """The model as it was before ``enable_context_parallel``; HP-HF-004 where it is not on, or wrapped since."""
    state = enabled(model)
    wrapped = [type(module).__name__ for module in state.modules if type(module) not in _CLASSES.values()]
    if wrapped:
        message = f"its attention has become {wrapped[0]} since"
        raise refusal("HP-HF-004", "model", message, "take what was wrapped around it off first", type=wrapped[0])
    if state.recompute is not None:
        state.recompute.remove()
    state.hook.remove()
    for module in state.modules:
        module.__class__ = type(module).__mro__[1]
    unmark(model)
    return model


def _checked(model: Any, options: ContextParallelOptions) -> tuple[AttentionConfig, tuple[torch.nn.Module, ...], Any]:
    """The model's attention, the modules that change, and its recompute plan; or why not."""
    if not isinstance(options, ContextParallelOptions):
        kind = type(options).__name__
        raise refusal("HP-HF-002", "options", f"needs ContextParallelOptions, got {kind}", "pass them", type=kind)
    kind = type(model).__name__
    if kind not in _MODELS:
        known = ", ".join(_MODELS)
        advice = f"pass one of {known}, before anything wraps it"
        raise refusal("HP-HF-001", "model", f"got {kind}", advice, type=kind, known=_MODELS)
    if is_enabled(model):
        raise refusal(
            "HP-HF-004", "model", f"context parallelism is on already at this {kind}", "disable it", type=kind
        )
    check_model_config(model.config)
    modules = tuple(layer.self_attn for layer in model.model.layers[: model.config.num_hidden_layers])
    refuse_all(violation for at, module in enumerate(modules) for violation in _unsplittable(at, module))
    recompute = None
    if options.recompute:
        policy = RecomputePolicy(region_patterns=("model.layers.*",), exclude_patterns=options.exclude)
        chosen = LayerSelection(layer_count=model.config.num_hidden_layers)
        recompute = plan_recompute(read_modules(model), policy, chosen)
    return attention_config(model.config), modules, recompute


def _unsplittable(layer: int, module: Any) -> Any:
    """What would be left out in silence: attention of another class, a projection that is read by its weight alone."""
    where, kind = f"model.layers.{layer}.self_attn", type(module).__name__
    if type(module) not in _CLASSES:
        advice = "enable context parallelism before anything wraps or replaces attention"
        yield Violation("HP-HF-002", where, f"attention of class {kind}", {"layer": layer, "type": kind}, advice)
        return
    up = getattr(module, "kv_b_proj", None)
    if up is not None and (type(up) is not torch.nn.Linear or up._forward_hooks or up._forward_pre_hooks):
        facts = {"layer": layer, "type": type(up).__name__}
        message = f"kv_b_proj is a {facts['type']}{'' if type(up) is not torch.nn.Linear else ' with hooks'}"
        yield Violation(
            "HP-HF-002", f"{where}.kv_b_proj", message, facts, "merge adapters: its weight is multiplied in"
        )


def _recomputed(model: Any, recompute: Any) -> Applied | None:
    return None if recompute is None else apply_recompute(model, recompute)


def _agree_on_recompute(applied: Applied | None, outcome: Outcome, group: Any) -> None:
    """Where a rank could not put the regions on, all take them off again."""
    try:
        told = {} if applied is None else {"recompute": digest(applied.plan)}
        compare(outcome, digest(told), told, group, "HP-AGREE-001", "recompute")
    except BaseException:
        if applied is not None:
            applied.remove()
        raise


def _described(config: AttentionConfig, options: ContextParallelOptions) -> dict[str, str]:
    fields = {f"options.{field.name}": repr(getattr(options, field.name)) for field in attrs.fields(type(options))}
    return {"config": config.digest, **fields}
