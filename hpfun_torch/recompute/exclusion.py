"""An exclusion runs once: its replay gives again what its forward gave.

The forward of an exclusion runs outside the checkpoint's hooks and outside a selective policy, so its own graph is
kept like any other and has gradients as without a checkpoint. Its outputs are recorded, detached, on the
invocations around it, and the replay gets them back. Rules RECOMPUTE-20 to RECOMPUTE-34 of ``specs/recompute.md``.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _pop_mode, _push_mode

from hpfun.errors import refusal
from hpfun_torch.recompute.forward import ReplacedForward, named
from hpfun_torch.recompute.invocation import Phase, inside_exclusion, open_phases
from hpfun_torch.recompute.placeholder import Likeness, Placeholder


class Exclusion(ReplacedForward):
    """What stands in place of a forward, or of a function, that replays do not run."""

    kind = "exclude"

    def __init__(self, inner: Callable[..., Any], module: torch.nn.Module | None, name: str, save_output: bool):
        super().__init__(inner, module, name)
        self.save_output = save_output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run, record, or give what was recorded, as the phases around the call say."""
        phases = open_phases()
        if not phases or not self.active:
            return self.inner(*args, **kwargs)
        calls = [(phase, phase.next_call(self)) for phase in phases]
        replaying = [(phase, ordinal) for phase, ordinal in calls if phase.replaying]
        if replaying:
            phase, ordinal = replaying[-1]
            record = self._recorded(phase, ordinal)
            learned = tuple(self.module.parameters()) if self.module is not None else ()
            given = (args, kwargs, learned)
            result = record.replayed(self.name, ordinal, phase.invocation.preserve_rng_state, given)
        else:
            result, record = self._run(phases, args, kwargs)
        for phase, ordinal in calls:
            if not phase.replaying:
                phase.invocation.records[self, ordinal] = record
        return result

    def _recorded(self, phase: Phase, ordinal: int) -> "Record":
        records = phase.invocation.records
        record = records.get((self, ordinal))
        if record is None:
            known = sum(exclusion is self for exclusion, _ in records)
            raise refusal(
                "HP-RECOMPUTE-032",
                self.name,
                f"call {ordinal} in the replay of {phase.invocation.region or 'a region'}, the forward made {known}",
                "remove branches on is_recomputing, and on what changes meanwhile, around the call",
                wrapper=self.name,
                ordinal=ordinal,
                recorded=known,
            )
        return record

    def _run(self, phases: tuple[Phase, ...], args: Any, kwargs: Any) -> tuple[Any, "Record"]:
        watch = any(phase.invocation.preserve_rng_state for phase in phases)
        devices = _devices((args, kwargs)) if watch else ()
        before = _random_states(devices) if watch else {}
        modes = [mode for phase in phases for mode in phase.modes]
        versions = [_version(leaf) for leaf in pytree.tree_leaves((args, kwargs))]
        # packing a detached tensor frees a graph that no backward runs: an output packed as itself is a cycle
        hooks = torch.autograd.graph.saved_tensors_hooks(_pack, partial(_unpack, self.name))
        with inside_exclusion(), _without(modes), hooks:
            result = self.inner(*args, **kwargs)
        after = _random_states(devices) if watch else {}
        changed = {device: after[device] for device in after if _bits(after[device]) != _bits(before[device])}
        given = zip(pytree.tree_leaves((args, kwargs)), versions, strict=True)
        written = {at: leaf.detach() for at, (leaf, version) in enumerate(given) if _version(leaf) != version}
        return result, Record(self.name, result, self.save_output, changed, written)


class Record:
    """Outputs of one call of an exclusion, and what else the replay must find as the forward left it.

    That is the random states behind the call where it drew numbers, and the arguments, by their place, that it
    wrote into: the replay must pass the same memory, since nobody writes into it again.
    """

    def __init__(
        self,
        name: str,
        result: Any,
        save_output: bool,
        random_states: dict[torch.device, torch.Tensor],
        written: dict[int, torch.Tensor],
    ):
        leaves, self.tree = pytree.tree_flatten(result)
        for leaf in leaves:
            _check_opaque(name, leaf)
        self.leaves = [_Kept(leaf, save_output) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.random_states = random_states
        self.written = {at: (argument, _version(argument)) for at, argument in written.items()}

    def replayed(self, name: str, ordinal: int, restore_random: bool, given: Any) -> Any:
        """The outputs again, through which no gradient can pass.

        ``given`` are the arguments in the replay and the parameters of the excluded module: what a gradient could be
        asked for. Of what a function finds elsewhere nothing is known.

        Raises HP-RECOMPUTE-030 if an output was changed meanwhile, or if the replay made an argument anew that the
        forward had changed.
        """
        self._check_written(name, ordinal, given)
        leaves = [leaf.again(name, ordinal) if isinstance(leaf, _Kept) else leaf for leaf in self.leaves]
        learning = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        sources = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if learning and sources:
            outputs = _Barrier.apply(name, len(learning), *(leaves[at] for at in learning), *sources)
            for at, output in zip(learning, outputs, strict=True):
                leaves[at] = output
        if restore_random:
            for device, state in self.random_states.items():
                _set_random_state(device, state)
        return pytree.tree_unflatten(leaves, self.tree)

    def _check_written(self, name: str, ordinal: int, given: Any) -> None:
        if not self.written:
            return
        leaves = pytree.tree_leaves(given)
        for at, (forward, version) in self.written.items():
            replay = leaves[at] if at < len(leaves) else None
            same = isinstance(replay, torch.Tensor) and replay.data_ptr() == forward.data_ptr()
            if not same or _version(forward) != version:
                raise refusal(
                    "HP-RECOMPUTE-030",
                    name,
                    f"call {ordinal} writes into its argument {at}, which the replay finds "
                    f"{'written into again' if same else 'made anew'}",
                    "give what the region reads as an output; keep what it does not read out of the arguments",
                    wrapper=name,
                    ordinal=ordinal,
                    argument=at,
                )


class _Kept:
    """One output tensor, or its shape alone."""

    def __init__(self, output: torch.Tensor, save_output: bool):
        self.requires_grad = output.requires_grad
        self.tensor = output.detach() if save_output else None
        self.version = _version(output) if save_output else None
        self.like = Likeness.of(output)

    def again(self, name: str, ordinal: int) -> torch.Tensor:
        if self.tensor is None:
            return Placeholder(self.like, self.requires_grad, name)
        if self.version is not None and self.tensor._version != self.version:
            raise refusal(
                "HP-RECOMPUTE-030",
                name,
                f"an output of call {ordinal} was changed in place after the forward",
                "clone it before the operation in place",
                wrapper=name,
                ordinal=ordinal,
                versions=(self.version, self.tensor._version),
            )
        return self.tensor.detach().requires_grad_(self.requires_grad)


class _Barrier(torch.autograd.Function):
    """Outputs of a replay, tied to the arguments of the call, so that a gradient that asks for these is noticed.

    The backward of a region uses what its replay saves and never the replay's graph. Only a gradient that the region
    itself takes runs through it, and it would miss all that the exclusion computed.
    """

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.name = name
        return tuple(tensor.detach() for tensor in tensors[:count])  # selective policies ignore detach

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        raise refusal(
            "HP-RECOMPUTE-034",
            ctx.name,
            "a gradient that is taken inside the region reaches it in the replay, where it did not run",
            "exclude the gradient's computation as a whole, or replay this part",
            wrapper=ctx.name,
        )


def checkpoint_exclude_wrapper(module_or_fn: Any, *, save_output: bool = True, name: str | None = None) -> Any:
    """The module itself, or a function in place of the given one, which replays do not run again.

    In a replay the outputs of the forward come back, bit for bit, with random states as they were behind it. Outside
    of regions nothing changes. Outputs that are no tensors come back as the same objects. With ``save_output=False``
    only their shapes are kept, and nothing outside of other exclusions may read them in the replay. ``name`` is what
    errors say. Raises HP-RECOMPUTE-013 for a module that is a region; calls raise HP-RECOMPUTE-030 to 034.

    >>> topk = checkpoint_exclude_wrapper(lambda scores: scores.topk(2).indices)
    >>> topk(torch.tensor([1.0, 3.0, 2.0])).tolist()
    [1, 2]
    """
    return named(
        module_or_fn, Exclusion.kind, lambda inner, module, told: Exclusion(inner, module, told, save_output), name
    )


def _check_opaque(name: str, leaf: Any) -> None:
    """HP-RECOMPUTE-036 for an object with tensors of the graph in it: kept as it is, it would never be freed."""
    if isinstance(leaf, torch.Tensor):
        return
    parts = list(getattr(leaf, "__dict__", {}).values())
    parts += [getattr(leaf, slot, None) for slot in getattr(type(leaf), "__slots__", ()) if isinstance(slot, str)]
    if any(isinstance(part, torch.Tensor) and part.requires_grad for part in pytree.tree_leaves(parts)):
        kind = type(leaf).__name__
        raise refusal(
            "HP-RECOMPUTE-036",
            name,
            f"an output is a {kind} with tensors that have gradients",
            "give tensors in tuples, lists or mappings, or register the type with torch.utils._pytree",
            wrapper=name,
            type=kind,
        )


def _version(leaf: Any) -> int | None:
    """How often a tensor was written into; None for other things and where nobody counts."""
    return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else None


def _pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    return tensor.detach(), _version(tensor)


def _unpack(name: str, packed: tuple[torch.Tensor, int | None]) -> torch.Tensor:
    """What the body saved; autograd compares versions itself, but not of what hooks keep."""
    tensor, version = packed
    if _version(tensor) != version:
        raise refusal(
            "HP-RECOMPUTE-030",
            name,
            "a tensor that its backward needs was changed in place meanwhile",
            "clone it before the operation in place",
            wrapper=name,
            versions=(version, _version(tensor)),
        )
    return tensor


@contextmanager
def _without(modes: list[Any]) -> Generator[None]:
    """Without these dispatch modes; the others stay."""
    if not modes:
        yield
        return
    with _disable_current_modes() as disabled:
        kept = [mode for mode in reversed(disabled) if mode not in modes]
        for mode in kept:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in kept:
                _pop_mode()


def _devices(values: Any) -> tuple[torch.device, ...]:
    """Accelerators of the tensors among the values."""
    found = {leaf.device for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)}
    return tuple(device for device in found if device.type not in ("cpu", "meta"))


_CPU = torch.device("cpu")


def _random_states(devices: tuple[torch.device, ...]) -> dict[torch.device, torch.Tensor]:
    return {_CPU: torch.get_rng_state()} | {
        device: torch.get_device_module(device).get_rng_state(device) for device in devices
    }


def _bits(state: torch.Tensor) -> bytes:
    """Outside of all modes: a policy would take this for an operator of the region."""
    with _disable_current_modes():
        return state.numpy().tobytes()


def _set_random_state(device: torch.device, state: torch.Tensor) -> None:
    if device == _CPU:
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)
