"""Regions and exclusions: equal gradients, one body call, random numbers, lifetimes, and what is refused.

Every comparison is bit for bit, with the same module run without any checkpoint.
"""

import copy
import gc
import pickle
import weakref
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import CheckpointError, CheckpointPolicy, create_selective_checkpoint_contexts

from hpfun import PlanError
from hpfun_torch.handle import Handle
from hpfun_torch.recompute import (
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    current_invocation,
    is_recomputing,
    publish_once,
)
from tests.refusals import refused


class Counted(torch.nn.Module):
    """A part of a block that counts its calls."""

    def __init__(self, body, calls, name):
        super().__init__()
        self.body = body
        self.calls = calls
        self.name = name

    def forward(self, *args, **kwargs):
        self.calls[self.name] = self.calls.get(self.name, 0) + 1
        return self.body(*args, **kwargs)


class Block(torch.nn.Module):
    """before, inner, behind; with dropout everywhere, so that a shifted random stream shows."""

    def __init__(self, calls, dropout=0.5):
        super().__init__()

        def part():
            return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Dropout(dropout))

        self.before = Counted(part(), calls, "before")
        self.inner = Counted(part(), calls, "inner")
        self.behind = Counted(part(), calls, "behind")

    def forward(self, x):
        return self.behind(self.inner(self.before(x)) * x)


def make(kind=Block, **more):
    torch.manual_seed(0)
    calls = {}
    return kind(calls, **more), calls


def run(block, backwards=1, inputs=None):
    """Loss, gradients of input and parameters, and the random state behind."""
    torch.manual_seed(7)
    x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_() if inputs is None else inputs
    loss = block(x).square().sum()
    for count in range(backwards, 0, -1):
        loss.backward(retain_graph=count > 1)
    found = [loss.detach(), x.grad.clone(), *(p.grad.clone() for p in block.parameters() if p.grad is not None)]
    return [*found, torch.get_rng_state()]


def same(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.rule("RECOMPUTE-20", "RECOMPUTE-21", "RECOMPUTE-24")
@pytest.mark.parametrize("early_stop", [True, False])
def test_gradients_are_equal_and_the_excluded_body_runs_once(early_stop):
    expected = run(make()[0])
    block, calls = make()
    checkpoint_exclude_wrapper(block.inner)
    checkpoint_wrapper(block, early_stop=early_stop)
    same(run(block), expected)
    assert calls == {"before": 2, "inner": 1, "behind": 2}


@pytest.mark.rule("RECOMPUTE-20")
def test_an_exclusion_without_gradient_and_discrete_choices():
    def choose(x):
        return x.topk(3, dim=-1).indices

    class Choosing(Block):
        def forward(self, x):
            ids = self.choice(x)
            return self.behind(self.before(x)) * torch.zeros_like(x).scatter(-1, ids, 1.0)

    plain = make(Choosing)[0]
    plain.choice = choose
    block, _ = make(Choosing)
    block.choice = checkpoint_exclude_wrapper(choose)
    same(run(checkpoint_wrapper(block)), run(plain))


@pytest.mark.rule("RECOMPUTE-24")
def test_without_random_states_the_masks_would_differ():
    expected = run(make()[0])
    block, _ = make()
    checkpoint_exclude_wrapper(block.inner)
    checkpoint_wrapper(block, preserve_rng_state=False)
    found = run(block)
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])


@pytest.mark.rule("RECOMPUTE-22")
def test_two_calls_of_one_exclusion_in_a_region_keep_their_results_apart():
    class Twice(Block):
        def forward(self, x):
            first = self.inner(self.before(x))
            return self.behind(self.inner(first * x) * first)

    expected = run(make(Twice)[0])
    block, calls = make(Twice)
    checkpoint_exclude_wrapper(block.inner)
    same(run(checkpoint_wrapper(block)), expected)
    assert calls["inner"] == 2


ORDERS = [
    ("F1", "F2", "B1", "B2"),
    ("F1", "F2", "B2", "B1"),
    ("F1", "B1", "F2", "B2"),
    ("F1", "F2", "F3", "B2", "B3", "B1"),
]


@pytest.mark.rule("RECOMPUTE-23")
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_replay_reads_what_its_own_forward_read(order):
    def trained(wrap):
        torch.manual_seed(0)
        weight = torch.randn(6, 6, requires_grad=True)
        shared, selections = {}, []

        def select(x):
            selections.append(1)
            return (x @ weight.detach()).topk(2, dim=-1).indices

        def read():
            return shared["ids"]

        if wrap:
            select, read = checkpoint_exclude_wrapper(select), checkpoint_exclude_wrapper(read)

        def layer(x):
            if not is_recomputing():
                shared["ids"] = select(x)
            return ((x @ weight).tanh() * torch.zeros_like(x).scatter(-1, read(), 1.0)).exp()

        layer = checkpoint_wrapper(layer) if wrap else layer
        losses = {}
        for event in order:
            if event[0] == "F":
                x = torch.sin(torch.arange(24.0).view(4, 6) * int(event[1]) ** 2)
                losses[event[1]] = layer(x).sum()
            else:
                losses[event[1]].backward()
        return weight.grad, len(selections)

    (plain, calls), (replayed, calls_wrapped) = trained(False), trained(True)
    assert torch.equal(plain, replayed)
    assert calls == calls_wrapped == len(order) // 2


@pytest.mark.rule("RECOMPUTE-23", "RECOMPUTE-29")
def test_a_read_that_is_no_exclusion_reads_the_newest_and_state_of_the_forward_does_not():
    shared, read, own = {}, [], []

    def layer(x):
        if not is_recomputing():
            shared["ids"] = current_invocation().state["ids"] = int(x[0])
        read.append(shared["ids"])
        own.append(current_invocation().state["ids"])
        return (x * x).exp()

    region = checkpoint_wrapper(layer)
    losses = [region(torch.tensor([float(number)], requires_grad=True)) for number in (1, 2)]
    for loss in losses:
        loss.backward()
    assert read == [1, 2, 2, 2]
    assert own == [1, 2, 1, 2]


@pytest.mark.rule("RECOMPUTE-25")
def test_a_graph_that_is_kept_is_replayed_again_and_then_freed():
    expected = run(make()[0], backwards=3)
    block, calls = make()
    checkpoint_exclude_wrapper(block.inner)
    same(run(checkpoint_wrapper(block), backwards=3), expected)
    assert calls["inner"] == 1
    assert calls["behind"] == 4


class Held:
    """Watches the records of a region: output of an exclusion, by a weak reference to an object beside it."""


@pytest.mark.rule("RECOMPUTE-25")
@pytest.mark.parametrize("after", ["backward", "dropped", "kept"])
@pytest.mark.parametrize("saved_output", [True, False])
def test_records_live_as_long_as_the_graph(after, saved_output):
    weak = []

    def body(x):
        held = Held()
        weak.append(weakref.ref(held))
        # the graph of the body saves its own output in one case: as itself it would be a cycle
        return (x.exp() if saved_output else x * 2), held

    inner = checkpoint_exclude_wrapper(body)
    region = checkpoint_wrapper(lambda x: inner(x)[0].sin().exp())
    gc.disable()
    try:
        loss = region(torch.ones(3, requires_grad=True)).sum()
        assert weak[0]() is not None
        if after == "backward":
            loss.backward()
        elif after == "kept":
            loss.backward(retain_graph=True)
            assert weak[0]() is not None
            loss.backward()
        else:
            del loss
        assert weak[0]() is None
    finally:
        gc.enable()


@pytest.mark.rule("RECOMPUTE-25")
def test_a_forward_without_backward_frees_its_tensors():
    freed = []
    block, _ = make()
    checkpoint_exclude_wrapper(block.inner)
    for part in block.inner.body:  # a tanh saves its own output: kept as itself, that is a cycle nobody can collect
        part.register_forward_hook(lambda module, given, result: freed.append(weakref.ref(result)))
    loss = checkpoint_wrapper(block)(torch.ones(4, 6, requires_grad=True)).sum()
    del loss
    gc.collect()
    assert [reference() for reference in freed] == [None] * 3


@pytest.mark.rule("RECOMPUTE-26")
@pytest.mark.parametrize("where", ["region in region", "exclusion in exclusion", "region in exclusion", "deep"])
def test_nested_regions_and_exclusions(where):
    class Outer(torch.nn.Module):
        def __init__(self, calls):
            super().__init__()
            self.first, self.block = torch.nn.Linear(6, 6), Block(calls)
            self.last = torch.nn.Linear(6, 6)

        def forward(self, x):
            return self.last(torch.tanh(self.block(self.first(x).tanh())))

    expected = run(make(Outer)[0])
    outer, calls = make(Outer)
    if where == "region in region":
        checkpoint_exclude_wrapper(outer.block.inner)
        checkpoint_wrapper(outer.block)
    elif where == "exclusion in exclusion":
        checkpoint_exclude_wrapper(outer.block.inner)
        checkpoint_exclude_wrapper(outer.block)
    elif where == "region in exclusion":
        checkpoint_exclude_wrapper(outer.block.inner)
        outer.block.forward = checkpoint_exclude_wrapper(checkpoint_wrapper(outer.block.forward))
    else:
        checkpoint_exclude_wrapper(outer.block.inner.body[0])
        outer.block.inner.forward = checkpoint_exclude_wrapper(checkpoint_wrapper(outer.block.inner.forward))
        checkpoint_wrapper(outer.block)
    checkpoint_wrapper(outer)
    same(run(outer), expected)
    assert calls["inner"] == {"deep": 2}.get(where, 1)


@pytest.mark.rule("RECOMPUTE-26")
def test_an_exclusion_that_is_also_called_inside_another_is_counted_outside_alone():
    def loss(x, wrap):
        inner = wrap(torch.exp)
        outer = wrap(lambda part: inner(part) + 1)
        return lambda part: (outer(part.sin()) * inner(part.cos()) * part).exp()

    plain, x = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    loss(plain, lambda body: body)(plain).sum().backward()
    checkpoint_wrapper(loss(x, checkpoint_exclude_wrapper))(x).sum().backward()
    assert torch.equal(x.grad, plain.grad)


@pytest.mark.rule("RECOMPUTE-26")
def test_a_backward_inside_a_region_replays_the_region_in_it():
    calls = []

    def choose(x):
        calls.append(1)
        return (x > x.mean()).float()

    plain, x = torch.linspace(0, 1, 3).requires_grad_(), torch.linspace(0, 1, 3).requires_grad_()
    with_slope(plain, choose, through_choice).sum().backward()
    excluded, region = checkpoint_exclude_wrapper(choose), checkpoint_wrapper(through_choice)
    checkpoint_wrapper(with_slope, early_stop=False)(x, excluded, region).sum().backward()
    assert torch.equal(x.grad, plain.grad)
    assert len(calls) == 2


def with_slope(x, choose, inner):
    """A layer that takes a gradient itself."""
    (slope,) = torch.autograd.grad(inner(x, choose).sum(), x)
    return (x * slope).exp() * slope


def through_choice(x, choose):
    return (choose(x.sin()) * x).sin()


@pytest.mark.rule("RECOMPUTE-43")
@pytest.mark.parametrize("nested", [True, False])
def test_a_gradient_through_an_exclusion_inside_a_replay_is_refused(nested):
    excluded, x = checkpoint_exclude_wrapper(torch.exp), torch.linspace(0, 1, 3).requires_grad_()
    inner = checkpoint_wrapper(through_choice) if nested else through_choice
    loss = checkpoint_wrapper(with_slope)(x, excluded, inner).sum()
    with refused("HP-RECOMPUTE-034") as caught:
        loss.backward()
    assert dict(caught.error.facts) == {"wrapper": "exp"}
    # not in a replay of its own, which only gives what was saved
    plain, again = torch.linspace(0, 1, 3).requires_grad_(), torch.linspace(0, 1, 3).requires_grad_()
    with_slope(plain, torch.exp, through_choice).sum().backward()
    with_slope(again, excluded, checkpoint_wrapper(through_choice)).sum().backward()
    assert torch.equal(plain.grad, again.grad)


@pytest.mark.rule("RECOMPUTE-43")
def test_a_gradient_of_the_parameters_of_an_exclusion_inside_a_replay_is_refused():
    linear = checkpoint_exclude_wrapper(torch.nn.Linear(3, 3, bias=False))

    def layer(x):
        (slope,) = torch.autograd.grad(linear(x.detach()).exp().sum(), linear.weight)
        return (x * slope.sum(0)).exp()

    with refused("HP-RECOMPUTE-034"):
        checkpoint_wrapper(layer)(torch.ones(3, requires_grad=True)).sum().backward()


@pytest.mark.rule("RECOMPUTE-20", "RECOMPUTE-25")
@pytest.mark.parametrize("nested", [False, True])
def test_gradients_of_gradients_are_equal(nested):
    def second(wrap):
        block, calls = make(dropout=0.0)
        if wrap:
            checkpoint_exclude_wrapper(block.inner)
            checkpoint_wrapper(block)
        outer = checkpoint_wrapper(block.__call__) if wrap and nested else block
        x = torch.linspace(-1, 1, 24).view(4, 6).requires_grad_()
        (gradient,) = torch.autograd.grad(outer(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        return [gradient.detach(), x.grad, *(parameter.grad for parameter in block.parameters())], calls

    plain, _ = second(False)
    replayed, calls = second(True)
    same(replayed, plain)
    assert calls["inner"] == 1


class Products(torch.nn.Module):
    """Three products, the middle one to be excluded."""

    def __init__(self, calls):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(6, 6, bias=False) for _ in range(3))
        self.calls = calls

    def forward(self, x):
        return torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x))))))


def saving_equality():
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.equal.default else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.rule("RECOMPUTE-27")
def test_what_an_exclusion_looks_at_itself_is_no_operator_of_the_region():
    inner = checkpoint_exclude_wrapper(lambda x: x.exp() * torch.rand(3))

    def layer(x):
        return (inner(x) * x * (x * 2 if torch.equal(x, x) else x * 3)).sin().exp()

    found = []
    for context_fn in (None, saving_equality):
        torch.manual_seed(0)
        x = torch.ones(3, requires_grad=True)
        checkpoint_wrapper(layer, context_fn=context_fn)(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
    with FakeTensorMode():
        region = checkpoint_wrapper(lambda x: (inner(x) * x).exp())
        assert region(torch.ones(3, requires_grad=True)).shape == (3,)


def saving_products():
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


@pytest.mark.rule("RECOMPUTE-27")
@pytest.mark.parametrize("excluded", ["a", "b", "c"])
def test_a_selective_policy_does_not_see_what_is_excluded(excluded):
    expected = run(make(Products)[0])
    model, _ = make(Products)
    checkpoint_exclude_wrapper(getattr(model, excluded))
    checkpoint_wrapper(model, context_fn=saving_products)
    same(run(model), expected)


@pytest.mark.rule("RECOMPUTE-27")
def test_modes_that_are_no_policy_see_the_body():
    from torch.utils.flop_counter import FlopCounterMode

    model, _ = make(Products)
    plain = FlopCounterMode(display=False)
    with plain:
        model(torch.ones(4, 6))
    checkpoint_exclude_wrapper(model.b)
    checkpoint_wrapper(model, context_fn=saving_products)
    counted = FlopCounterMode(display=False)
    with counted:
        model(torch.ones(4, 6, requires_grad=True))
    assert counted.get_total_flops() == plain.get_total_flops() > 0


@pytest.mark.rule("RECOMPUTE-28")
def test_an_entry_is_published_once_and_not_by_a_replay():
    store, published = {}, []

    def layer(x):
        published.append(publish_once(store, ("topk", 3), x.detach()))
        return x.exp().exp()

    checkpoint_wrapper(layer)(torch.ones(3, requires_grad=True)).sum().backward()
    assert published == [True, False]
    with refused("HP-STATE-002") as caught:
        publish_once(store, ("topk", 3), 1)
    assert caught.error.facts["layer"] == 3
    assert publish_once(store, "other", 1)


@pytest.mark.rule("RECOMPUTE-30")
@pytest.mark.parametrize("with_gradient", [True, False])
def test_an_output_that_is_changed_in_place_is_refused(with_gradient):
    scale = checkpoint_exclude_wrapper(lambda x: (x if with_gradient else x.detach()) * 2, name="scale")

    def layer(x):
        scaled = scale(x)
        scaled.mul_(3)
        return (scaled * x).exp()

    with refused("HP-RECOMPUTE-030") as caught:
        checkpoint_wrapper(layer)(torch.ones(3, requires_grad=True)).sum().backward()
    assert dict(caught.error.facts) == {"wrapper": "scale", "ordinal": 0, "versions": (0, 1)}


@pytest.mark.rule("RECOMPUTE-30")
def test_an_argument_that_an_exclusion_writes_into_must_be_the_same_memory_in_the_replay():
    def write(buffer, x):
        buffer.add_(x.detach().sum())

    write = checkpoint_exclude_wrapper(write, name="write")
    log = torch.zeros(3)

    def layer(x, buffer):
        write(buffer, x=x)
        return (x * buffer).exp()

    x = torch.ones(3, requires_grad=True)
    checkpoint_wrapper(lambda x: layer(x, log))(x).sum().backward()  # as state of a module would be
    assert log.tolist() == [3.0] * 3  # written once
    with refused("HP-RECOMPUTE-030") as caught:
        checkpoint_wrapper(lambda x: layer(x, torch.zeros(3)))(torch.ones(3, requires_grad=True)).sum().backward()
    assert dict(caught.error.facts) == {"wrapper": "write", "ordinal": 0, "argument": 0}


@pytest.mark.rule("RECOMPUTE-30")
def test_a_buffer_that_the_next_forward_writes_into_is_refused():
    buffer = torch.zeros(3)
    write = checkpoint_exclude_wrapper(lambda buffer, x: (buffer.copy_(x.detach()), None)[1], name="write")

    def layer(x):
        write(buffer, x)
        return (x * buffer.clone()).sin().exp()

    region = checkpoint_wrapper(layer)
    losses = [region(torch.full((3,), float(number), requires_grad=True)).sum() for number in (1, 3)]
    with refused("HP-RECOMPUTE-030") as caught:
        losses[0].backward()
    assert caught.error.facts["argument"] == 0
    losses[1].backward()


@pytest.mark.rule("RECOMPUTE-30")
def test_what_the_body_saved_is_watched_as_autograd_does():
    weight = torch.ones(3, 3, requires_grad=True)
    product = checkpoint_exclude_wrapper(lambda x: x @ weight, name="product")

    def layer(x):
        hidden = x.sin()
        found = product(hidden)
        hidden.add_(5)
        return found.exp() + hidden

    with refused("HP-RECOMPUTE-030") as caught:
        checkpoint_wrapper(layer)(torch.ones(3, requires_grad=True)).sum().backward()
    assert dict(caught.error.facts) == {"wrapper": "product", "versions": (0, 1)}
    loss = checkpoint_wrapper(lambda x: product(x.sin()).exp())(torch.ones(3, requires_grad=True)).sum()
    with torch.no_grad():
        weight.mul_(2)
    with refused("HP-RECOMPUTE-030"):
        loss.backward()


class Opaque:
    """An output that pytree does not know."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.rule("RECOMPUTE-34")
def test_an_object_with_tensors_of_the_graph_is_refused_as_an_output():
    wrap = checkpoint_exclude_wrapper(lambda x: (Opaque(x.exp()), x), name="wrap")
    with refused("HP-RECOMPUTE-036") as caught:
        checkpoint_wrapper(lambda x: wrap(x)[0].tensor.sin().exp())(torch.ones(3, requires_grad=True))
    assert dict(caught.error.facts) == {"wrapper": "wrap", "type": "Opaque"}
    ids = checkpoint_exclude_wrapper(lambda x: Opaque(x.argsort()))
    backward_of(lambda x: (x * ids(x).tensor).exp().exp())


@pytest.mark.rule("RECOMPUTE-31")
def test_outputs_that_are_not_kept_pass_from_exclusion_to_exclusion():
    class Pair(torch.nn.Module):
        def __init__(self, calls):
            super().__init__()
            self.before, self.behind = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.split = Counted(lambda x: (x.tanh(), x.exp()), calls, "split")
            self.join = Counted(lambda a, b: (a * b).exp(), calls, "join")

        def forward(self, x):
            return self.behind(self.join(*self.split(self.before(x)))).tanh()

    expected = run(make(Pair)[0])
    model, calls = make(Pair)
    checkpoint_exclude_wrapper(model.split, save_output=False)
    checkpoint_exclude_wrapper(model.join)
    same(run(checkpoint_wrapper(model)), expected)
    assert calls == {"split": 1, "join": 1}


@pytest.mark.rule("RECOMPUTE-31")
def test_a_placeholder_that_is_read_is_refused():
    inner = checkpoint_exclude_wrapper(lambda x: x.exp(), save_output=False, name="exp")
    with refused("HP-RECOMPUTE-031") as caught:
        checkpoint_wrapper(lambda x: (inner(x) * x).exp())(torch.ones(3, requires_grad=True)).sum().backward()
    assert caught.error.facts["wrapper"] == "exp"
    assert "mul" in caught.error.facts["op"]


@pytest.mark.rule("RECOMPUTE-31")
def test_a_placeholder_has_shape_and_place_and_nothing_else():
    seen = []
    inner = checkpoint_exclude_wrapper(lambda x: x.exp().T, save_output=False)

    def layer(x):
        seen.append(inner(x))
        return x.sin().exp()

    checkpoint_wrapper(layer)(torch.ones(3, 2, requires_grad=True)).sum().backward()
    real, empty = seen
    for name in ("shape", "dtype", "device", "requires_grad"):
        assert getattr(real, name) == getattr(empty, name)
    assert real.stride() == empty.stride()
    assert empty.detach().shape == (2, 3)
    with refused("HP-RECOMPUTE-031"):
        empty.sum()


@pytest.mark.rule("RECOMPUTE-32")
def test_a_call_that_the_forward_did_not_make_is_refused():
    inner = checkpoint_exclude_wrapper(lambda x: x * 2, name="double")

    def layer(x):
        return inner(inner(x) if is_recomputing() else x).exp().exp()

    with refused("HP-RECOMPUTE-032") as caught:
        checkpoint_wrapper(layer)(torch.ones(3, requires_grad=True)).sum().backward()
    assert dict(caught.error.facts) == {"wrapper": "double", "ordinal": 1, "recorded": 1}


def _unpinned(empty, *args, pin_memory, **kwargs):
    assert pin_memory
    return empty(*args, **kwargs)  # there is nothing to pin memory for


def backward_of(layer, **options):
    checkpoint_wrapper(layer, **options)(torch.ones(3, requires_grad=True)).sum().backward()


@pytest.mark.rule("RECOMPUTE-33")
def test_a_verified_replay_makes_all_excluded_calls():
    inner = checkpoint_exclude_wrapper(lambda x: x * 2, name="double")

    def layer(x):
        found = inner(x).exp().exp()
        if not is_recomputing():
            inner(found.detach())
        return found

    backward_of(layer)  # nobody looks
    with refused("HP-RECOMPUTE-033") as caught:
        backward_of(layer, verify=True)
    assert dict(caught.error.facts) == {"wrapper": "double", "forward": 2, "replay": 1}


@pytest.mark.rule("RECOMPUTE-33")
def test_a_verified_replay_is_compared_to_its_end():
    def fewer(x):
        return x.exp() if is_recomputing() else x.exp().exp()

    def wider(x):
        return (torch.cat((x, x)) if is_recomputing() else x).exp()

    def more(x):
        return x.exp().exp() if is_recomputing() else x.exp()

    for layer in (fewer, wider):
        with pytest.raises(CheckpointError):
            backward_of(layer)
    backward_of(more)  # stops at the last tensor that it expects
    for layer in (fewer, wider, more):
        with pytest.raises(CheckpointError):
            backward_of(layer, verify=True)


@pytest.mark.rule("RECOMPUTE-34")
def test_a_handle_is_waited_once_by_excluded_calls_and_twice_by_others():
    def transfer(x):
        return Handle(lambda: x * 2, "rows")

    start = checkpoint_exclude_wrapper(transfer)
    wait = checkpoint_exclude_wrapper(lambda handle: handle.wait())
    x = torch.ones(3, requires_grad=True)
    checkpoint_wrapper(lambda x: wait(start(x)).exp().exp())(x).sum().backward()
    plain = torch.ones(3, requires_grad=True)
    (plain * 2).exp().exp().sum().backward()
    assert torch.equal(x.grad, plain.grad)
    with refused("HP-STATE-001"):
        backward_of(lambda x: start(x).wait().exp().exp())


@pytest.mark.rule("RECOMPUTE-36")
@pytest.mark.parametrize("excluded", [True, False])
def test_a_tie_that_breaks_in_the_replay(excluded):
    chosen = []

    def route(scores):
        return scores.topk(1).indices

    route = checkpoint_exclude_wrapper(route) if excluded else route

    def layer(x):
        scores = (
            torch.tensor([1.0, 1.0000001]) if is_recomputing() else torch.tensor([1.0, 1.0]) - torch.tensor([0, 1e-6])
        )
        chosen.append(int(route(scores)))
        return (x * chosen[-1]).exp().exp()

    backward_of(layer)
    assert chosen == ([0, 0] if excluded else [0, 1])


@pytest.mark.rule("RECOMPUTE-16")
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda block: pickle.loads(pickle.dumps(block))])
def test_a_copy_of_a_wrapped_module_is_its_own(copied):
    block = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
    checkpoint_exclude_wrapper(block[0])
    checkpoint_wrapper(block)
    twin = copied(block)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(torch.ones(2, 6)).any()
    twin(torch.ones(2, 6)).sum().backward()
    assert block[0].weight.grad is None
    assert twin[0].weight.grad is not None
    assert list(twin.state_dict()) == ["0.weight", "0.bias"]


def test_keywords_tuples_and_mutable_arguments_reach_the_region_as_they_are():
    notes = []

    def layer(x, pair, *, scale, log):
        log.append(pair[1][0] is None)
        return x * pair[0] * scale

    scale, x = torch.full((3,), 2.0, requires_grad=True), torch.ones(3, requires_grad=True)
    checkpoint_wrapper(layer)(x, (torch.full((3,), 5.0), (None,)), scale=scale, log=notes).sum().backward()
    assert notes == [True, True]
    assert x.grad.tolist() == [10.0] * 3
    assert scale.grad.tolist() == [5.0] * 3


def test_nothing_is_recorded_without_gradients_or_outside_of_regions():
    inner = checkpoint_exclude_wrapper(lambda x: (current_invocation(), x.exp()))
    region = checkpoint_wrapper(inner)
    with torch.no_grad():
        assert region(torch.ones(3))[0] is None
    assert inner(torch.ones(3))[0] is None
    assert region(torch.ones(3, requires_grad=True))[0] is not None


def test_an_error_in_a_body_leaves_no_phase_behind():
    def broken(x):
        raise KeyError("broken")

    region = checkpoint_wrapper(checkpoint_exclude_wrapper(broken))
    with pytest.raises(KeyError):
        region(torch.ones(3, requires_grad=True))
    assert current_invocation() is None
    assert not is_recomputing()


@pytest.mark.rule("RECOMPUTE-13")
def test_one_module_is_wrapped_in_one_way():
    linear = torch.nn.Linear(2, 2)
    assert checkpoint_wrapper(checkpoint_wrapper(linear)) is linear
    with refused("HP-RECOMPUTE-013") as caught:
        checkpoint_exclude_wrapper(linear)
    assert caught.error.facts["kind"] == "checkpoint"
    with refused("HP-RECOMPUTE-013"):
        checkpoint_wrapper(checkpoint_exclude_wrapper(torch.nn.Linear(2, 2)))
    with refused("HP-RECOMPUTE-017"):
        checkpoint_wrapper(3)
    with refused("HP-RECOMPUTE-012"):
        checkpoint_wrapper(torch.nn.Linear(2, 2), swap_inputs=1)


@pytest.mark.rule("RECOMPUTE-19")
def test_large_floating_inputs_wait_on_the_host(monkeypatch):
    from hpfun_torch.recompute import region

    inputs = {"hidden": torch.ones(256, requires_grad=True), "few": torch.ones(255), "ids": torch.arange(1024)}
    packed = []
    real = region._to_host
    monkeypatch.setattr(region, "_to_host", lambda tensor: packed.append(tensor.shape) or real(tensor))

    def layer(hidden, few, ids):
        return (hidden * few.sum() * ids.sum()).mean().sin().exp()

    for swap in (False, True):
        checkpoint_wrapper(layer, swap_inputs=swap)(**inputs).sum().backward()
    assert packed == [(256,), (255,), (1024,)]  # the inputs alone, not what the region saves
    assert [region.goes_to_host(tensor, "cuda") for tensor in inputs.values()] == [True, False, False]
    assert not region.goes_to_host(inputs["hidden"], "cpu")


@pytest.mark.rule("RECOMPUTE-19")
def test_an_input_on_the_host_keeps_its_layout(monkeypatch):
    from hpfun_torch.recompute import region

    monkeypatch.setattr(region, "goes_to_host", lambda tensor, device: True)
    monkeypatch.setattr(torch, "empty_strided", partial(_unpinned, torch.empty_strided))
    device, host = region._to_host(torch.randn(32, 16).t())
    assert host.stride() == (1, 16)
    assert torch.equal(region._to_device((device, host)), host)


@pytest.mark.rule("RECOMPUTE-18")
def test_a_compiled_function_encloses_regions():
    expected = run(make(Products)[0])
    for context_fn in (None, saving_products):
        model, _ = make(Products)
        checkpoint_wrapper(model, enable_compile=True, context_fn=context_fn)
        same(run(torch.compile(model, backend="aot_eager", fullgraph=True)), expected)


@pytest.mark.rule("RECOMPUTE-18")
def test_compiled_pieces_inside_an_eager_region():
    expected = run(make(Products)[0])
    model, _ = make(Products)
    model.a = torch.compile(model.a, backend="aot_eager")
    checkpoint_exclude_wrapper(model.b)
    same(run(checkpoint_wrapper(model)), expected)


def test_errors_of_replays_are_plan_errors_that_name_the_call():
    inner = checkpoint_exclude_wrapper(torch.exp)
    with pytest.raises(PlanError, match="call 1 in the replay"):
        backward_of(lambda x: inner(inner(x) if is_recomputing() else x).exp().exp())
    assert inner.name == "exp"
    assert partial(checkpoint_exclude_wrapper, save_output=False)(torch.exp)(torch.zeros(1)).tolist() == [1.0]
