"""A call of a model under context parallelism: what it may ask for, and the context that travels along with it.

Rule HF-4 of ``specs/attention.md``.
"""

from collections.abc import Iterator
from typing import Any

import torch

from hpfun import Violation
from hpfun.errors import refusal, refuse_all
from hpfun_torch.attention import ContextParallelAttention
from hpfun_torch.integrations.transformers.state import Enabled, enabled

CONTEXT = "context_parallel"  # the keyword by which the context travels through the model


def context_of(kwargs: dict[str, Any]) -> ContextParallelAttention:
    """The context among a layer's keywords; HP-HF-003 where there is none."""
    context = kwargs.get(CONTEXT)
    if not isinstance(context, ContextParallelAttention):
        kind = type(context).__name__
        advice = "call the model with what prepare_batch gives, or take context parallelism off with disable"
        raise refusal("HP-HF-003", CONTEXT, f"needs a ContextParallelAttention, got {kind}", advice, type=kind)
    return context


@torch.compiler.disable  # asks plans; graphs are of what layers compute
def check_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A forward pre-hook of the model: HP-HF-003 for what a rank of a group cannot answer, all violations at once.

    No rank asks the others: where one alone is called wrongly, it raises and they meet the group's timeout.
    """
    context, state = context_of(kwargs), enabled(model)
    config = {name: getattr(model.config, name, False) for name in _PARTIAL}
    refuse_all(_refused(args, config | kwargs, context, state))


_PARTIAL = (
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
)  # outputs that would be of one rank's rows
_NEEDED = ("input_ids", "position_ids")


def _refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], context: ContextParallelAttention, state: Enabled
) -> Iterator[Violation]:
    def no(where: str, message: str, advice: str, **facts: object) -> Violation:
        return Violation("HP-HF-003", where, message, facts, advice)

    local = context.plan.local_rows
    if args:
        yield no("args", f"{len(args)} arguments by place", "pass model(**prepare_batch(...))", count=len(args))
    if context.plan.config != state.config or context.group is not state.group:
        advice = "prepare the batch for the model that is called"
        yield no(CONTEXT, "a batch that was prepared for another model or group", advice, plan=context.plan.digest)
    if kwargs.get("use_cache") is not False or kwargs.get("past_key_values") is not None:
        yield no("use_cache", "a key cache", "pass use_cache=False; generate with the model disabled", use_cache=True)
    for name in _PARTIAL:
        if kwargs.get(name):
            advice = "leave it out"
            if name == "output_router_logits":
                advice = "take logits of the gates with hooks, and load_balancing_loss of this package"
            yield no(name, f"{name} is of one rank's rows", advice, option=name)
    if kwargs.get("inputs_embeds") is not None:
        yield no("inputs_embeds", "embeddings in place of ids", "pass input_ids", option="inputs_embeds")
    if not (type(kept := kwargs.get("logits_to_keep", 0)) is int and kept == 0):
        yield no("logits_to_keep", "logits of some rows", "leave it out", option="logits_to_keep")
    places = kwargs.get("position_ids")
    if isinstance(places, torch.Tensor) and places.shape == (1, local) and places.device.type == "cpu":
        wrong = int((places[0] != torch.from_numpy(context.route.positions.copy())).sum())
        if wrong:  # on other devices the answer would have to be waited for
            advice = "pass what one prepare_batch gave"
            yield no("position_ids", f"{wrong} are not those of the batch's documents", advice, rows=wrong)
    for name in _NEEDED:
        tensor = kwargs.get(name)
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
        if shape != (1, local):
            advice = "pack the documents into one row, and pass what prepare_batch gives"
            yield no(name, f"needs [1, {local}], got {shape}", advice, shape=shape, local=local)
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, dict) or any(part is not None for part in mask.values()) or not mask:
        kind = type(mask).__name__
        yield no("attention_mask", f"a mask of kind {kind}", "documents are the mask: pass cu_seq_lens", type=kind)
