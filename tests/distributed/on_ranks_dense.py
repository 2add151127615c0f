"""What ranks do in the tests of dense attention under context parallelism."""

from unittest.mock import patch

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import attempt
from hpfun.batch import BatchTopology, plan_batch
from hpfun_torch import dense
from hpfun_torch.integrations.transformers import (
    ContextParallelOptions,
    disable,
    enable_context_parallel,
    prepare_batch,
    sum_gradients,
)
from hpfun_torch.integrations.transformers import dense as plug
from tests import dense_models
from tests.distributed.on_ranks_attention import Recorder


def on(family, options, dtype=torch.float64):
    """A tiny model of a family under context parallelism."""
    return enable_context_parallel(dense_models.tiny(family, dtype), None, ContextParallelOptions(**options))


def packed(model, lengths, share=1.0, seed=2):
    ids = dense_models.token_ids(sum(lengths), seed)
    return prepare_batch(model, ids, np.cumsum((0, *lengths)), dense_models.goals_of(ids, share))


def train_step(family, lengths, options, share=1.0, how=None):
    """Logits, the tokens that they are of, the loss and the summed gradients; ``how`` has dtype, tile and bug."""
    how = {"dtype": "float64", "tile": dense.TILE_ROWS, "bug": None} | (how or {})
    real = plug.dense_context
    with patch.object(plug, "dense_context", lambda *given: attrs.evolve(real(*given), tile_rows=how["tile"])):
        model = on(family, options, getattr(torch, how["dtype"]))
        batch = packed(model, lengths, share)
    if how["bug"]:
        model._forward_pre_hooks.clear()  # which would see it
        batch |= BUGS[how["bug"]](batch)
    output = model(**batch)
    return learned(model, batch["context_parallel"].view.sources, output.logits, output.loss)


def learned(model, sources, logits, own_loss, group=None):
    """Logits, the tokens that they are of, and the loss and the gradients summed over the group's ranks."""
    own_loss.backward()
    sum_gradients(model, group)
    loss = own_loss.detach().clone()
    dist.all_reduce(loss, group=group)
    grads = dense_models.gradients(model) if dist.get_rank() == 0 else {}
    return {
        "sources": sources,
        "logits": logits[0].detach().numpy(),
        "loss": float(loss),
        "grads": {name: grad.numpy() for name, grad in grads.items()},
    }


def _mean_per_rank(batch):
    own = int((batch["shift_labels"] != dense_models.IGNORED).sum())
    return {"num_items_in_batch": max(own, 1) * dist.get_world_size()}


def _positions_not_cut(batch):
    places = batch["position_ids"]
    return {"position_ids": torch.arange(places.shape[-1]).expand_as(places)}


def _label_at_the_edge_lost(batch):
    ends = np.diff(batch["context_parallel"].view.positions, append=-1) != 1
    goals = batch["shift_labels"].masked_fill(torch.from_numpy(ends), dense_models.IGNORED)
    count = (goals != dense_models.IGNORED).sum()
    dist.all_reduce(count)
    return {"shift_labels": goals, "num_items_in_batch": int(count)}


BUGS = {
    "mean per rank": _mean_per_rank,
    "positions not cut": _positions_not_cut,
    "label at the edge lost": _label_at_the_edge_lost,
}


def attention(lengths, layout, window, heads, tile, seed, through=dense.dense_attention):
    """This rank's tokens, rows of attention, and gradients of query, key and value."""
    plan = plan_batch(lengths, BatchTopology(dist.get_world_size()), layout=layout)
    context = attrs.evolve(dense.dense_context(plan), tile_rows=tile)
    sources = context.view.sources
    there = torch.from_numpy(sources >= 0)
    own = []
    for whole in attention_inputs(sum(lengths), heads, seed):
        rows = torch.zeros(context.local_rows, *whole.shape[1:], dtype=whole.dtype)
        rows[there] = whole[sources[sources >= 0]]
        own.append(rows.requires_grad_())
    output = through(*own[:3], context, window=window)
    (output * own[3].detach()).sum().backward()
    padding = max((float(rows.grad[~there].abs().sum()) for rows in own[:3]), default=0.0)
    found = (output.detach(), *(rows.grad for rows in own[:3]))
    return sources[sources >= 0], [rows[there].numpy() for rows in found], padding


def attention_inputs(total, heads, seed):
    """Query, key, value and the gradient of the output of a whole pack; float64."""
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randn(total, count, 6, generator=random, dtype=torch.float64) for count in (*heads, heads[1], heads[0])
    ]


def collectives(family, lengths, options):
    """Collectives of forward and of backward, and rows of keys that this rank got in the forward, by layer."""
    model = on(family, options)
    batch = packed(model, lengths)
    return _travels(lambda: model(**batch).loss)


def travels(lengths, layout, window, heads):
    """Collectives of one call of attention and of its backward, and rows of keys that this rank got in the call."""
    context = dense.dense_context(plan_batch(lengths, BatchTopology(dist.get_world_size()), layout=layout))
    own = [torch.ones(context.local_rows, count, 2).requires_grad_() for count in (*heads, heads[1])]
    return _travels(lambda: dense.dense_attention(*own, context, window=window).sum())


def _travels(forward):
    rows = []
    real = dist.all_to_all_single

    def counting(output, given, splits, *others, **named):
        rows.append(sum(splits) - splits[dist.get_rank()])
        return real(output, given, splits, *others, **named)

    with patch.object(dist, "all_to_all_single", counting), Recorder() as there:
        loss = forward()
    received = list(rows)
    with Recorder() as back:
        loss.backward()
    return there.started, back.started, received


def two_in_flight(family, options, packs):
    """Greatest difference of gradients of two packs: forwards before backwards, and one after the other."""
    found = []
    for order in ("FFBB", "FBFB"):
        model = on(family, options)
        if order == "FFBB":
            for loss in [model(**packed(model, lengths, seed=seed)).loss for seed, lengths in enumerate(packs)]:
                loss.backward()
        else:
            for seed, lengths in enumerate(packs):
                model(**packed(model, lengths, seed=seed)).loss.backward()
        found.append(dense_models.gradients(model))
    return max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0])


def round_trip(family, options):
    """Whether a disabled model gives what it gave, with what of it is not as it was."""
    model = dense_models.tiny(family)
    ids = dense_models.token_ids(12)[None]
    before = model(input_ids=ids, use_cache=False).logits
    config, hooks = model.config.get_text_config(), len(model._forward_pre_hooks)
    names = (config._attn_implementation, model.config._attn_implementation)
    enable_context_parallel(model, None, ContextParallelOptions(**options))
    model(**packed(model, (5, 7))).loss.backward()
    on = config._attn_implementation
    disable(model)
    after = model(input_ids=ids, use_cache=False).logits
    same = (config._attn_implementation, model.config._attn_implementation) == names
    return on, same, torch.equal(before, after), len(model._forward_pre_hooks) == hooks


def refused_on_ranks(what, wrong):
    """Code and failing ranks of what rank ``wrong`` alone gets wrong, and whether all ranks then give one loss."""
    here = dist.get_rank() == wrong
    model = dense_models.tiny("llama" if what != "images" else "qwen3_vl")
    options = ContextParallelOptions()
    if here and what == "dropout":
        model.config.attention_dropout = 0.5
    if here and what == "layout":
        options = ContextParallelOptions(layout="zigzag")
    if here and what == "balance":
        options = ContextParallelOptions(balance="locality")
    found, outcome = attempt(enable_context_parallel, model, None, options)
    if not outcome.ok:
        return outcome.code, outcome.facts.get("failing_ranks")
    ids = dense_models.token_ids(12)
    if here and what == "images":
        ids[3] = 60
    if here and what == "tokens":
        ids[3] += 1
    ends = (0, 5, 11) if here and what == "shape" else (0, 5, 12)
    _, outcome = attempt(prepare_batch, found, ids, ends)
    return outcome.code, outcome.facts.get("failing_ranks")


def failed_switch(wrong):
    """Code and failing ranks where rank ``wrong`` alone cannot switch, and whether this rank's model is as before."""
    model = dense_models.tiny("llama")

    def state():
        overridden = [name for name, module in model.named_modules() if "forward" in vars(module)]
        return overridden, model.config._attn_implementation, len(model._forward_pre_hooks)

    def broken(*args, **kwargs):
        raise ValueError("no")

    before = state()
    if dist.get_rank() == wrong:
        model.set_attn_implementation = broken
    _, outcome = attempt(enable_context_parallel, model, None, ContextParallelOptions(recompute=True))
    return outcome.code, outcome.facts.get("failing_ranks"), state() == before
