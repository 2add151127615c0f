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


def context_of(kwargs: dict[str, Any], needed: type = ContextParallelAttention) -> Any:
    """The context among a layer's keywords; HP-HF-003 where there is none of that class."""
    context = kwargs.get(CONTEXT)
    if not isinstance(context, needed):
        kind = type(context).__name__
        advice = "call the model with what prepare_batch gives, or take context parallelism off with disable"
        raise refusal("HP-HF-003", CONTEXT, f"needs a {needed.__name__}, got {kind}", advice, type=kind)
    return context


@torch.compiler.disable  # asks plans; graphs are of what layers compute
def check_call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A forward pre-hook of the model: HP-HF-003 for what a rank of a group cannot answer, all violations at once.

    No rank asks the others: where one alone is called wrongly, it raises and they meet the group's timeout.
    """
    state = enabled(model)
    context = context_of(kwargs, state.family.kind.context)
    configs = (model.config, model.config.get_text_config())
    defaults = {name: any(getattr(config, name, False) for config in configs) for name in _PARTIAL}
    refuse_all((*state.family.kind.misfits(model, state, context), *_refused(args, defaults | kwargs, context, state)))


# outputs that would be of one rank's rows
_PARTIAL = ("output_attentions", "output_hidden_states", "output_router_logits")
_IMAGES = ("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw", "mm_encoder_outputs")
_ADVICE = {"output_router_logits": "take logits of the gates with hooks, and load_balancing_loss of this package"}


def _no(where: str, message: str, advice: str, **facts: object) -> Violation:
    return Violation("HP-HF-003", where, message, facts, advice)


def _refused(args: tuple[Any, ...], kwargs: dict[str, Any], context: Any, state: Enabled) -> Iterator[Violation]:
    if args:
        yield _no("args", f"{len(args)} arguments by place", "pass model(**prepare_batch(...))", count=len(args))
    if context.group is not state.group:
        advice = "prepare the batch for the model that is called"
        yield _no(CONTEXT, "a batch that was prepared for another group", advice, plan=context.plan.digest)
    if kwargs.get("use_cache") is not False or kwargs.get("past_key_values") is not None:
        yield _no("use_cache", "a key cache", "pass use_cache=False; generate with the model disabled", use_cache=True)
    for name in _PARTIAL:
        if kwargs.get(name):
            yield _no(name, f"{name} is of one rank's rows", _ADVICE.get(name, "leave it out"), option=name)
    for name in _IMAGES:
        if kwargs.get(name) is not None:
            yield _no(name, "images or videos", "text alone is split over ranks so far", option=name)
    if kwargs.get("inputs_embeds") is not None:
        yield _no("inputs_embeds", "embeddings in place of ids", "pass input_ids", option="inputs_embeds")
    if not (type(kept := kwargs.get("logits_to_keep", 0)) is int and kept == 0):
        yield _no("logits_to_keep", "logits of some rows", "leave it out", option="logits_to_keep")
    if kwargs.get("labels") is not None:  # shifted already: the model would shift them again, and average
        for name in ("shift_labels", "num_items_in_batch"):
            if kwargs.get(name) is None:
                yield _no(name, f"labels without {name}", "pass all that prepare_batch gave", option=name)
    yield from _misshapen(kwargs, context, state)


def _misshapen(kwargs: dict[str, Any], context: Any, state: Enabled) -> Iterator[Violation]:
    """Ids, positions and masks that are not those of the rank's rows."""
    local, family = context.local_rows, state.family
    places, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
    shapes = {"input_ids": (1, local), "position_ids": family.position_shape(local)}
    fits = isinstance(places, torch.Tensor) and places.shape == shapes["position_ids"]
    if fits and places.device.type == "cpu":  # on other devices the answer would have to be waited for
        wrong = int((places.reshape(-1, local)[0] != torch.from_numpy(context.positions.copy())).sum())
        if wrong:
            advice = "pass what one prepare_batch gave"
            yield _no("position_ids", f"{wrong} are not those of the batch's documents", advice, rows=wrong)
    for name, expected in shapes.items():
        tensor = kwargs.get(name)
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
        if shape != expected:
            advice = "pack the documents into one row, and pass what prepare_batch gives"
            yield _no(name, f"needs {list(expected)}, got {shape}", advice, shape=shape, local=local)
    given = mask.values() if isinstance(mask, dict) and mask else (mask,)
    if isinstance(mask, dict) != isinstance(family.kind.mask, dict) or any(part is not None for part in given):
        kind = type(mask).__name__
        yield _no("attention_mask", f"a mask of kind {kind}", "documents are the mask: pass cu_seq_lens", type=kind)
