"""What ranks do in the tests of attention under context parallelism."""

import contextlib
import copy
import gc
import sys
import weakref
from unittest.mock import patch

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import attempt
from hpfun.attention import AttentionConfig, LayerSharing
from hpfun_torch import agree, demo_attention, dispatch_sequence, gather_sequence, ops, transfer
from hpfun_torch.attention import (
    IndexerFunctions,
    LayerFunctions,
    SharedLayerState,
    attend_layer,
    compress,
    indexer_kl_loss,
    prepare,
    select,
)
from hpfun_torch.attention import layer as layers
from hpfun_torch.integrations.transformers import (
    ContextParallelOptions,
    disable,
    enable_context_parallel,
    load_balancing_loss,
    prepare_batch,
    sparse,
    sum_gradients,
)
from hpfun_torch.recompute import checkpoint_wrapper
from tests import cp_models


class Recorder:
    """The order in which a block starts collectives and waits for them, and what it notes itself."""

    def __init__(self):
        self.events = []

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for place, name in ((dist, "all_to_all_single"), (transfer, "all_gather")):
            self.stack.enter_context(patch.object(place, name, self._recorded(getattr(place, name))))
        return self

    def __exit__(self, *error):
        self.stack.close()

    def _recorded(self, real):
        def call(*args, **kwargs):
            number = sum(event.startswith("start") for event in self.events)
            self.events.append(f"start {number}")
            work = real(*args, **kwargs)
            return _Work(work, number, self.events) if kwargs.get("async_op") else work

        return call

    @property
    def started(self):
        return sum(event.startswith("start") for event in self.events)


class _Work:
    def __init__(self, work, number, events):
        self.work, self.number, self.events = work, number, events

    def wait(self):
        self.events.append(f"wait {self.number}")
        self.work.wait()


def on(family, options, changes=None):
    """A tiny model of a family under context parallelism."""
    return enable_context_parallel(cp_models.tiny(family, **(changes or {})), None, ContextParallelOptions(**options))


def packed(model, lengths, seed=2):
    return prepare_batch(model, cp_models.token_ids(sum(lengths), seed), np.cumsum((0, *lengths)))


def train_step(family, lengths, options, changes=None, mutant=None):
    """Logits, loss and summed gradients of this rank's part of a pack."""
    with MUTANTS[mutant]() if mutant else contextlib.nullcontext():
        model = on(family, options, changes)
        output = model(**packed(model, lengths))
        output.loss.backward()
    return _told(model, output)


def _told(model, output):
    sum_gradients(model)
    loss = output.loss.detach().clone()
    dist.all_reduce(loss)
    first = dist.get_rank() == 0
    grads = cp_models.gradients(model) if first else {}
    return {
        "logits": output.logits[0].detach().float().numpy(),
        "loss": float(loss),
        "grads": {name: grad.float().numpy() for name, grad in grads.items()},
    }


def _other_route(change):
    real = sparse.attention_route
    return patch.object(sparse, "attention_route", lambda plan, rank: change(real(plan, rank)))


def _other_keys(change):
    return _other_route(lambda r: attrs.evolve(r, keys={ratio: change(keys) for ratio, keys in r.keys.items()}))


def _narrow_window():
    def narrow(segments):
        return attrs.evolve(segments, window=segments.window - 1)

    def change(route):
        keys = {ratio: attrs.evolve(part, segments=narrow(part.segments)) for ratio, part in route.keys.items()}
        return attrs.evolve(route, rows=narrow(route.rows), keys=keys)

    return _other_route(change)


def _no_block_before():
    """The first block of each rank forgets the block before it, which lies on the rank before."""
    module = sys.modules["hpfun_torch.attention.compress"]  # the package has a function of that name
    real = module.compression_blocks

    def forgetful(bank, plan, dim=0, fill=0):
        blocks = real(bank, plan, dim, fill)
        if not plan.num_blocks or plan.block_positions[0] == 0:
            return blocks
        first = torch.cat((torch.full_like(blocks[:1, : plan.ratio], fill), blocks[:1, plan.ratio :]), dim=1)
        return torch.cat((first, blocks[1:]))

    return patch.object(module, "compression_blocks", forgetful)


def _later_positions():
    return _other_keys(lambda keys: attrs.evolve(keys, positions=keys.positions + 1))


def _sees_more():
    """A row sees a key one token before its last: the segments' rows move up by one, where the bank has more."""

    def change(keys):
        part = keys.segments
        more = part.residuals + 1
        wraps = (more == part.ratio) & (part.key_stops < keys.bank.bank_rows)
        residuals = np.where(wraps, 0, np.minimum(more, part.ratio - 1))
        return attrs.evolve(keys, segments=attrs.evolve(part, key_stops=part.key_stops + wraps, residuals=residuals))

    return _other_keys(change)


def _no_remote_gradient():
    real = layers.start_dispatch

    def start(rows, route, group=None, **options):
        handle = real(rows, route, group, **options)
        wait = handle.wait

        class Dropping:
            def wait(self):
                bank = wait()
                return torch.cat((bank[: route.halo_rows].detach(), bank[route.halo_rows :]))

        return Dropping()

    return patch.object(layers, "start_dispatch", start)


MUTANTS = {
    "window minus one": _narrow_window,
    "a missing overlap block": _no_block_before,
    "block position plus one": _later_positions,
    "visible one token early": _sees_more,
    "a dropped remote gradient": _no_remote_gradient,
}


def collectives(family, lengths, options):
    """Collectives that forward and backward start, and what the forward's schedule launches."""
    model = on(family, options)
    batch = packed(model, lengths)
    with Recorder() as forward:
        loss = model(**batch).loss
    with Recorder() as backward:
        loss.backward()
    context = batch["context_parallel"]
    planned = [context.schedule(layer).launches for layer in range(context.plan.config.sharing.num_layers)]
    return forward.started, backward.started, planned


def two_in_flight(family, options, packs):
    """Gradients of two packs: both forwards before both backwards, and one after the other."""
    found = []
    for order in ("FFBB", "FBFB"):
        model = on(family, options)
        losses = [None, None]
        if order == "FFBB":
            losses = [model(**packed(model, lengths, seed)).loss for seed, lengths in enumerate(packs)]
            for loss in losses:
                loss.backward()
        else:
            for seed, lengths in enumerate(packs):
                model(**packed(model, lengths, seed)).loss.backward()
        found.append(cp_models.gradients(model))
    return max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0])


def freed(family, lengths, options):
    """Whether what a step held is gone after it, though nobody collects garbage: context, layers' runs, outputs."""
    model = on(family, options)
    batch = packed(model, lengths)
    seen = []
    real = layers._Run.attention

    def watched(run):
        real(run)
        seen.extend((weakref.ref(run), weakref.ref(run.output)))

    gc.collect()
    gc.disable()
    try:
        with patch.object(layers._Run, "attention", watched):
            output = model(**batch)
            output.loss.backward()
        context = weakref.ref(batch["context_parallel"])
        del output, batch
        return [ref() is None for ref in (context, *seen)]
    finally:
        gc.enable()


CONFIG = AttentionConfig(
    sharing=LayerSharing(compress_ratios=(0, 4), index_sources=(1,)), window=8, topk=4, overlapping_ratios=(4,)
)


def synthetic(context, layer, note, seed=0, heads=2, dim=4, index_heads=16):
    """Functions of a layer on random rows, each of which notes its name."""
    random = torch.Generator().manual_seed(seed)
    rows = context.plan.local_rows
    low = context.route.rank * rows

    def take(*shape):
        return torch.randn(context.num_queries, *shape, generator=random, dtype=torch.float64)[low : low + rows]

    query, bank = take(heads, dim), take(dim).requires_grad_()
    raw, index_raw = take(4 * dim), take(4 * dim)
    residual, weights, positions = take(6)[None], take(index_heads)[None], (take(dim)[None], take(dim)[None])
    matrix = torch.randn(6, index_heads * dim, generator=random, dtype=torch.float64)
    keys = context.keys(layer)

    def noted(name, value):
        def call(*args):
            note(f"compute {name}")
            return value(*args)

        return call

    def make(rows):
        own, index = rows.split([4 * dim, 4 * dim], dim=-1)
        made = [
            compress(part[:, : 2 * dim], part[:, 2 * dim :], keys.compression, ratio=keys.ratio)
            for part in (own, index)
        ]
        return made[0], made[1].detach()

    indexer = IndexerFunctions(
        project=noted("worker_projection", lambda part: part @ matrix),
        rotate=lambda flat, at: flat[0].unflatten(-1, (index_heads, dim)) + at[0][0][:, None],
    )
    return LayerFunctions(
        project=noted("attention_projections", lambda: (query, bank)),
        compression_inputs=noted("compression_inputs", lambda: torch.cat((raw, index_raw), dim=-1)),
        compress=noted("compression", make),
        index_rows=noted("residual", lambda: (residual, weights, positions)),
        indexer=indexer,
    )


def launch_order(lengths, options):
    """Events of a choosing layer as they happened, as its schedule has them, and its output."""
    context = prepare(np.cumsum((0, *lengths)), CONFIG, **options)
    with Recorder() as recorder:
        found = attend_layer(context, 1, synthetic(context, 1, recorder.events.append), scale=0.5)
    return recorder.events, context.schedule(1).events, found.output.detach().numpy(), found.selected.numpy()


def ids_of_head_halves(lengths, seed):
    """Ids of 16 index heads, and of 8 on each of two ranks whose scores are added up; integers, so exactly."""
    random = torch.Generator().manual_seed(seed)
    rank, total = dist.get_rank(), sum(lengths)
    alone = dist.new_group([rank], use_local_synchronization=True)
    context = prepare(np.cumsum((0, *lengths)), CONFIG, alone)

    def whole(*shape):
        return torch.randint(-3, 4, (total, *shape), generator=random).float()

    residual, weights = whole(16, 4), whole(16)
    keys = whole(4)[: sum(context.keys(1).key_counts)]
    functions = IndexerFunctions(project=lambda rows: rows, rotate=lambda flat, at: flat[0].unflatten(-1, (-1, 4)))
    nothing = (torch.zeros(1, total, 1), torch.zeros(1, total, 1))

    def reduce_scores(scores):
        dist.all_reduce(scores)
        return scores

    def ids(heads, hook):
        part = residual[:, heads].flatten(1)[None]
        return select(context, 1, part, weights[None, :, heads], nothing, keys, functions, reduce_scores=hook)

    half = slice(rank * 8, rank * 8 + 8)
    return bool((ids(slice(None), None) == ids(half, reduce_scores)).all()), int((ids(half, None) >= 0).sum())


SHARED = LayerSharing(compress_ratios=(4, 4, 4, 4), kv_sources=(0, 2), index_sources=(0, 1, 2))


def shared_layers(lengths, options, checkpointed):
    """A model whose layers share keys and choices: output, gradients, entries held at the end, collectives."""
    config = AttentionConfig(sharing=SHARED, window=4, topk=3, overlapping_ratios=(4,))
    context = prepare(np.cumsum((0, *lengths)), config, **options)
    torch.manual_seed(0)
    model = _SharedModel(checkpointed).double()
    rows = torch.randn(context.num_queries, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    low = context.route.rank * context.plan.local_rows
    own = rows[low : low + context.plan.local_rows].clone().requires_grad_()
    with Recorder() as forward:
        states = [SharedLayerState(SHARED) for _ in range(2)]
        outputs = [model(own * (1 + at), context, state) for at, state in enumerate(states)]
    for output in outputs:
        output.square().sum().backward()
    held = [len(state) for state in states]
    sum_gradients(model)
    grads = [grad.numpy() for grad in cp_models.gradients(model).values()]
    return outputs[1].detach().numpy(), own.grad.numpy(), grads, held, forward.started


class _SharedModel(torch.nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.layers = torch.nn.ModuleList(_SharedLayer(layer) for layer in range(4))
        if checkpointed:
            for layer in self.layers:
                checkpoint_wrapper(layer)

    def forward(self, rows, context, state):
        for layer in self.layers:
            rows = layer(rows, context, state)
        return rows


class _SharedLayer(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.query, self.row, self.out = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.made = torch.nn.Linear(8, 32, bias=False)
        self.index = torch.nn.Linear(8, 32, bias=False)

    def forward(self, rows, context, state):
        keys = context.keys(self.layer)

        def make(bank):
            halves = bank.split(32, dim=-1)
            own, index = (compress(part[:, :16], part[:, 16:], keys.compression, ratio=keys.ratio) for part in halves)
            return own, index.detach()

        def index_rows():
            zeros = rows.new_zeros(1, len(rows), 1)
            return rows.detach()[None], rows.new_ones(1, len(rows), 2), (zeros, zeros)

        functions = LayerFunctions(
            project=lambda: (self.query(rows).unflatten(-1, (1, 8)), self.row(rows)),
            compression_inputs=lambda: torch.cat((self.made(rows), self.index(rows).detach()), dim=-1),
            compress=make,
            index_rows=index_rows,
            indexer=IndexerFunctions(
                project=lambda part: torch.cat((part, -part), dim=-1),
                rotate=lambda flat, at: flat[0].unflatten(-1, (2, 8)),
            ),
        )
        found = attend_layer(context, self.layer, functions, scale=0.3, state=state)
        return rows + self.out(found.output[:, 0])


def aux_loss(lengths, top_k):
    """Part of the balance loss and its gradient, with this rank's rows of the gates' logits."""
    random = torch.Generator().manual_seed(0)
    whole = [torch.randn(sum(lengths), 4, generator=random) for _ in range(3)]
    size, rank = dist.get_world_size(), dist.get_rank()
    local = sum(lengths) // size
    own = [logits[rank * local : (rank + 1) * local].clone().requires_grad_() for logits in whole]
    loss = load_balancing_loss(own, 4, top_k)
    loss.backward()
    return float(loss.detach()), [logits.grad.numpy() for logits in own]


def sums(values):
    """Summed gradients of three parameters: with one on every rank, on some, on none."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    rank = dist.get_rank()
    parameters[0].grad = torch.full((2,), float(values[rank]))
    if rank == 1:
        parameters[1].grad = torch.ones(2)
    sum_gradients(parameters)
    return [None if parameter.grad is None else parameter.grad.tolist() for parameter in parameters]


def refused_on_ranks(what, bad):
    """Code, failing ranks and facts where one rank is wrong; then whether the group still works."""
    wrong = dist.get_rank() == bad
    model = cp_models.tiny("v32")

    def run():
        if what == "model":
            return enable_context_parallel(torch.nn.Linear(1, 1) if wrong else model)
        if what == "dropout":
            model.config.attention_dropout = 0.1 if wrong else 0.0
            return enable_context_parallel(model)
        if what == "options":
            return enable_context_parallel(model, None, ContextParallelOptions(overlapped=wrong))
        if what == "recompute":
            if wrong:
                model.model.layers[1].compile()  # a region cannot be put around what is compiled
            return enable_context_parallel(model, None, ContextParallelOptions(recompute=True))
        if what == "twice":
            enable_context_parallel(model)
            if wrong:
                return enable_context_parallel(model)
            return enable_context_parallel(cp_models.tiny("v32"))
        enable_context_parallel(model)
        ids = cp_models.token_ids(16)
        if what == "tokens":
            ids = ids + wrong
        if what == "shape" and wrong:
            ids = ids[:-1]
        return prepare_batch(model, ids, (0, 16, 12) if what == "boundaries" and wrong else (0, 12, 16))

    _, outcome = attempt(run)
    kinds = {type(layer.self_attn).__name__ for layer in model.model.layers}
    error = None if outcome.ok else outcome.error()
    works = agree(CONFIG).size == dist.get_world_size()
    if what == "recompute" and error:
        assert kinds == {"DeepseekV32Attention"}  # on no rank is it half on
        assert not model._forward_pre_hooks
        assert "forward" not in vars(model.model.layers[0])
    return (error.code, dict(error.facts).get("failing_ranks"), works) if error else ("", None, works)


def round_trip(family):
    """Whether a model is as it was after enable and disable: classes, hooks, state, and its own answer."""
    model = cp_models.tiny(family).eval()
    ids = cp_models.token_ids(12)[None]
    before, kinds = model(input_ids=ids, use_cache=False).logits, [type(module) for module in model.modules()]
    names = list(model.state_dict())
    enable_context_parallel(model, None, ContextParallelOptions(recompute=True))
    changed = sum(type(module) not in kinds for module in model.modules())
    kept = list(model.state_dict()) == names
    disable(model)
    same = [type(module) for module in model.modules()] == kinds
    after = model(input_ids=ids, use_cache=False).logits
    return changed, kept, same, bool(torch.equal(before, after)), len(model._forward_pre_hooks)


def another_choice(documents, balance, seed):
    """The demo's choice, with another key in one row of every rank where rows are shared out."""
    ids, spent = demo_attention.select_on_rank(documents, balance, seed)
    if balance != "none":
        ids[3, 0] += 1
    return ids, spent


def outside_of_a_group():
    """Code on the ranks that are not in the group; those that are enable and copy a model."""
    group = dist.new_group([0, 1])
    if dist.get_rank() > 1:
        _, outcome = attempt(lambda: enable_context_parallel(cp_models.tiny("v32"), group))
        return outcome.code
    model = copy.deepcopy(enable_context_parallel(cp_models.tiny("v32"), group))
    batch = prepare_batch(model, cp_models.token_ids(16), (0, 16))
    return float(model(**batch).loss.detach())


def kl_parts(lengths, everywhere):
    """This rank's part of the indexer's loss, and gradients of its index queries, own index keys and weights.

    With ``everywhere`` index keys are gathered from all ranks, otherwise the bank is brought.
    """
    config = AttentionConfig(sharing=LayerSharing(compress_ratios=(2,), index_sources=(0,)), window=0, topk=3)
    context = prepare(np.cumsum((0, *lengths)), config)
    keys, local, rank = context.keys(0), context.plan.local_rows, context.route.rank
    random = torch.Generator().manual_seed(0)

    def part(count, first, *shape):
        whole = torch.randn(sum(lengths), *shape, generator=random, dtype=torch.float64)
        return whole[first : first + count].clone().requires_grad_()

    first = sum(keys.key_counts[:rank])
    index = part(local, rank * local, 2, 3), part(keys.num_keys, first, 3), part(local, rank * local, 2)
    query, own = part(local, rank * local, 2, 4), part(keys.num_keys, first, 4)
    bank, index_bank = (dispatch_sequence(rows, keys.bank) for rows in (own, index[1]))
    chosen = ops.lightning_indexer(index[0], index_bank.detach(), index[2], keys.segments.indexer, 2, 3)
    student = gather_sequence(index[1], lengths=keys.key_counts) if everywhere else index_bank
    loss = indexer_kl_loss(context, 0, index[0], student, index[2], chosen, query, bank, scale=0.5)
    loss.backward()
    assert query.grad is None
    assert own.grad is None or not own.grad.any()
    return float(loss.detach()), [tensor.grad.numpy() for tensor in index]
