"""Context parallelism put onto a model of transformers, and taken off again.

Attention modules change their class, or the config its attention function, and nothing else of the model changes:
parameters, names and ``state_dict`` stay. Rules HF-9 to HF-11 and HF-15 of ``specs/attention.md``.
"""

from collections.abc import Iterator
from typing import Any, cast

import attrs
import torch.distributed as dist

from hpfun import IndexerOptions, Outcome, Violation, attempt
from hpfun.batch.layouts import LAYOUTS
from hpfun.errors import refusal, refuse_all
from hpfun.recompute import LayerSelection, RecomputePolicy, plan_recompute
from hpfun.serial import digest
from hpfun_torch.agree import compare
from hpfun_torch.checks import check_member
from hpfun_torch.integrations.transformers.call import check_call
from hpfun_torch.integrations.transformers.families import family_of
from hpfun_torch.integrations.transformers.kinds import Family, Modules
from hpfun_torch.integrations.transformers.state import Enabled, enabled, is_enabled, mark, unmark
from hpfun_torch.recompute import Applied, apply_recompute, read_modules


@attrs.frozen(kw_only=True)
class ContextParallelOptions:
    """``layout``: which rows a rank has, ``contiguous`` or ``zigzag``, of dense models; the next three of sparse ones.

    ``balance``: a mode or ``IndexerOptions``; ``overlapped``, ``indexer_priority``: when transfers are waited for.
    ``recompute``: layers are recomputed in backward, all but their choices of keys, ``exclude`` (patterns of module
    names) and what lies in them. Raises what ``IndexerOptions`` raises, HP-BATCH-004 for another layout, and HP-HF-002
    for what does nothing alone.
    """

    layout: str = "contiguous"
    balance: str | IndexerOptions = "none"
    overlapped: bool = False
    indexer_priority: bool = False
    recompute: bool = False
    exclude: tuple[str, ...] = ()

    def __attrs_post_init__(self):
        if self.layout not in LAYOUTS:
            got = repr(self.layout)[:60]
            advice = f"use {' or '.join(LAYOUTS)}"
            raise refusal("HP-BATCH-004", "options.layout", f"got {got}", advice, layout=got, known=LAYOUTS)
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

    For ``DeepseekV4ForCausalLM``, ``DeepseekV32ForCausalLM``, ``GlmMoeDsaForCausalLM``, ``LlamaForCausalLM``,
    ``Qwen3ForCausalLM`` and, for text, ``Qwen3VLForConditionalGeneration``, before anything wraps them; parameters are
    whole on every rank, and their gradients are parts to be added up (``sum_gradients``). Every rank calls it. Raises
    HP-HF-001 for another model, HP-HF-002 for one whose attention cannot be split and options that do nothing for it,
    HP-HF-004 where it is on already, HP-EXCHANGE-009 outside the group, and what ``apply_recompute`` raises; what one
    rank finds, all raise, and options or configs that differ are HP-AGREE-001. The model is then as it was.
    """
    options = ContextParallelOptions() if options is None else options
    check_member(group)
    found, outcome = attempt(_checked, model, options)
    told = {} if found is None else _described(found[1], options)
    compare(outcome, digest(told) if told else "", told, group, "HP-AGREE-001", "options")
    family, config, modules, recompute = cast(tuple[Family, Any, Modules, Any], found)  # or compare had raised
    switched, outcome = attempt(_switched, model, family, modules, recompute)
    _agree_on_switch(model, family, modules, switched, outcome, group)
    applied, before = cast(tuple[Applied | None, Any], switched)
    hook = model.register_forward_pre_hook(check_call, with_kwargs=True)
    mark(model, Enabled(group, options, family, config, hook, applied, modules, before))
    return model


def disable(model: Any) -> Any:
    """The model as it was before ``enable_context_parallel``; HP-HF-004 where it is not on, or wrapped since.

    Batches that were prepared for it are of no use then: the plain model would attend to a rank's rows alone.
    """
    state = enabled(model)
    changed = state.family.kind.changed(model, state)
    if changed:
        message = f"its attention has become {changed} since"
        raise refusal("HP-HF-004", "model", message, "take what was wrapped around it off first", type=changed)
    if state.recompute is not None:
        state.recompute.remove()
    state.hook.remove()
    state.family.kind.take_off(model, state.modules, state.before)
    unmark(model)
    return model


def _checked(model: Any, options: ContextParallelOptions) -> tuple[Family, Any, Modules, Any]:
    """The model's family, its attention, the modules that have it, and its recompute plan; or why not."""
    if not isinstance(options, ContextParallelOptions):
        kind = type(options).__name__
        raise refusal("HP-HF-002", "options", f"needs ContextParallelOptions, got {kind}", "pass them", type=kind)
    family = family_of(model)
    if is_enabled(model):
        kind = type(model).__name__
        raise refusal(
            "HP-HF-004", "model", f"context parallelism is on already at this {kind}", "disable it", type=kind
        )
    refuse_all(_without_effect(family, options))
    count = model.config.get_text_config().num_hidden_layers
    modules = tuple(layer.self_attn for layer in model.get_submodule(family.decoder).layers[:count])
    config = family.kind.read(model, modules)
    recompute = None
    if options.recompute:
        layers = tuple(f"{family.decoder}.layers.{layer}" for layer in range(count))
        policy = RecomputePolicy(region_patterns=layers, exclude_patterns=options.exclude)
        recompute = plan_recompute(read_modules(model), policy, LayerSelection(region_fqns=layers))
    return family, config, modules, recompute


def _without_effect(family: Family, options: ContextParallelOptions) -> Iterator[Violation]:
    for name, only in family.kind.idle.items():
        given = getattr(options, name)
        if given != only:
            facts = {"option": name, "only": only}
            yield Violation("HP-HF-002", f"options.{name}", "does nothing for this model", facts, f"leave it {only!r}")


def _switched(model: Any, family: Family, modules: Modules, recompute: Any) -> tuple[Applied | None, Any]:
    """Regions and attention put on, both or none; and what takes attention off again."""
    applied = None if recompute is None else apply_recompute(model, recompute)
    try:
        return applied, family.kind.put_on(model, modules)
    except BaseException:
        if applied is not None:
            applied.remove()
        raise


def _agree_on_switch(model: Any, family: Family, modules: Modules, switched: Any, outcome: Outcome, group: Any) -> None:
    """Where a rank could not switch, all switch back."""
    applied, before = switched or (None, None)
    try:
        told = {} if applied is None else {"recompute": digest(applied.plan)}
        compare(outcome, digest(told), told, group, "HP-AGREE-001", "recompute")
    except BaseException:
        if switched is not None:
            family.kind.take_off(model, modules, before)
        if applied is not None:
            applied.remove()
        raise


def _described(config: Any, options: ContextParallelOptions) -> dict[str, str]:
    fields = {f"options.{field.name}": repr(getattr(options, field.name)) for field in attrs.fields(type(options))}
    return {"config": config.digest, **fields}
