"""Sizes of regions, by running a model's forward once and looking at what autograd saves.

Works on the meta device as well, where nothing is computed and nothing is allocated. What estimates need is that
sizes add up, so memory that two regions hold counts in one of them: in the first that gets it as an input, else
in the first that saves it. Rule RECOMPUTE-40 of ``specs/recompute.md``.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hpfun._fields import names
from hpfun.errors import refusal
from hpfun.matching import inside, nearest
from hpfun.recompute import RegionSize
from hpfun.wording import listed
from hpfun_torch.recompute.flops import flop_counter
from hpfun_torch.recompute.forward import FORWARD, ReplacedForward, wrapped_as
from hpfun_torch.recompute.modules import logical_modules


@attrs.frozen
class Measured:
    """Sizes of regions; flops of their forwards, exclusions included; and bytes that are kept outside of them."""

    sizes: tuple[RegionSize, ...]
    forward_flops: int
    outside_bytes: int


def measure_sizes(
    model: torch.nn.Module,
    batch: Any,
    roots: Sequence[str],
    *,
    exclusions: Sequence[str] = (),
    unsaved: Sequence[str] = (),
) -> tuple[RegionSize, ...]:
    """What each region keeps for its backward, in the order in which the forward reaches them.

    ``batch`` is a mapping of keyword arguments, a tuple of arguments, or one argument; the model runs once, with
    gradients and as it is (training or not). ``exclusions`` are left out of the replay, those that the model has
    already too; of ``unsaved`` ones the outputs are not kept. Parameters and buffers are no activations. A region that
    the forward does not reach has size 0 and comes last. Flops are matrix products and attention.
    Raises HP-RECOMPUTE-007 for names that the model does not have, HP-RECOMPUTE-013 for roots that are wrapped.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    >>> size = measure_sizes(model, torch.ones(8, 4), ("1",))[0]
    >>> size.saved_bytes, size.input_bytes
    (128, 128)
    """
    return measure_regions(model, batch, roots, exclusions, unsaved).sizes


def measure_regions(
    model: torch.nn.Module, batch: Any, roots: Sequence[str], exclusions: Sequence[str], unsaved: Sequence[str] = ()
) -> Measured:
    """What ``measure_sizes`` gives, and what else the same forward tells."""
    roots, exclusions, unsaved = (
        names(given, where, "HP-RECOMPUTE-007")
        for given, where in ((roots, "roots"), (exclusions, "exclusions"), (unsaved, "unsaved"))
    )
    modules = logical_modules(model)
    missing = [fqn for fqn in (*roots, *exclusions, *unsaved) if fqn not in modules]
    if missing:
        near = nearest(missing[0], modules)
        raise refusal(
            "HP-RECOMPUTE-007",
            "roots",
            f"the model has no {missing[0]}",
            f"nearest: {listed(near)}",
            pattern=missing[0],
            nearest=near,
        )
    for fqn in roots:
        if wrapped_as(modules[fqn][0]) != "none":
            kind = wrapped_as(modules[fqn][0])
            advice = "Applied.remove() first: sizes are those of the plain model"
            raise refusal("HP-RECOMPUTE-013", "roots", f"{fqn} is wrapped as {kind}", advice, fqn=fqn, kind=kind)
    here = frozenset(roots)
    already = [
        fqn for fqn, (outer, _) in modules.items() if wrapped_as(outer) == "exclude" and inside(fqn, here) is not None
    ]
    excluded = dict.fromkeys((*exclusions, *unsaved, *already), True)
    excluded |= dict.fromkeys(unsaved, False)
    excluded |= {fqn: vars(modules[fqn][0])[FORWARD].save_output for fqn in already}
    ledger = _Ledger(model)
    with flop_counter() as ledger.flops:
        watches = [_Watch(ledger, modules[fqn][0], fqn, "root", True) for fqn in roots]
        watches += [_Watch(ledger, modules[fqn][0], fqn, "exclude", save) for fqn, save in excluded.items()]
        try:
            with torch.enable_grad(), ledger.hooks(None):
                result = _call(model, batch)
        finally:
            for watch in reversed(watches):
                watch.restore()
    sizes = ledger.sizes(roots)
    outside = ledger.outside()
    del result  # until here it keeps alive what a backward would need, and nothing else does
    return Measured(sizes, ledger.forward_flops, outside)


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


class _Packed:
    """A saved tensor; gone with the graph that saved it, as that of scores is of which only the best ids are used."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.detach()


class _Ledger:
    """Which region saved which storage, while a forward runs; inputs and kept outputs stay alive, as in a region."""

    def __init__(self, model: torch.nn.Module):
        kept = (*model.parameters(), *model.buffers())
        self.permanent = {_key(part) for tensor in kept for part in _parts(tensor)}
        self.storages: dict[int, torch.UntypedStorage] = {}  # alive, so that no identity comes twice
        self.packed: list[tuple[weakref.ref[_Packed], str | None, bool]] = []  # region, whether excluded
        self.inputs: dict[str, set[int]] = {}
        self.saved: dict[str, set[int]] = {}
        self.excluded: dict[str, set[int]] = {}
        self.work: dict[str, int] = {}
        self.forward_flops = 0
        self.flops: Any = None
        self.region: str | None = None
        self.exclusion = False

    def note(self, tensors: Any, *where: set[int]) -> None:
        """The storages of all tensors in a value."""
        leaves = (leaf for leaf in pytree.tree_leaves(tensors) if isinstance(leaf, torch.Tensor))
        for tensor in (part for leaf in leaves for part in _parts(leaf)):
            if _key(tensor) not in self.permanent:
                self.storages[_key(tensor)] = tensor.untyped_storage()
                for keys in where:
                    keys.add(_key(tensor))

    def enter_region(self, fqn: str, call: Callable[[], Any], given: Any) -> Any:
        """One call of a region, unless it is part of another."""
        if self.region is not None:
            return call()
        self.saved.setdefault(fqn, set())
        self.excluded.setdefault(fqn, set())
        self.note(given, self.inputs.setdefault(fqn, set()))
        before = self.flops.get_total_flops()
        self.region = fqn
        try:
            with self.hooks(fqn):
                return call()
        finally:
            self.region = None
            done = self.flops.get_total_flops() - before
            self.work[fqn] = self.work.get(fqn, 0) + done
            self.forward_flops += done

    def hooks(self, fqn: str | None) -> torch.autograd.graph.saved_tensors_hooks:
        """Notes what is saved, for a region or outside of all."""

        def pack(tensor: torch.Tensor) -> _Packed:
            packed = _Packed(tensor)
            self.packed.append((weakref.ref(packed), fqn, self.exclusion))
            return packed

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor)

    def outside(self) -> int:
        """Bytes that are saved outside of the regions alone."""
        keys: set[int] = set()
        for reference, fqn, _ in self.packed:
            packed = reference()
            if packed is not None and fqn is None:
                self.note(packed.tensor, keys)
        held = (*self.inputs.values(), *self.saved.values(), *self.excluded.values())
        return self._bytes(keys.difference(*held))

    def enter_exclusion(self, save_output: bool, call: Callable[[], Any]) -> Any:
        """One call of an exclusion in a region, unless it is part of another."""
        if self.region is None or self.exclusion:
            return call()
        before = self.flops.get_total_flops()
        self.exclusion = True
        try:
            result = call()
        finally:
            self.exclusion = False
            self.work[self.region] = self.work.get(self.region, 0) - self.flops.get_total_flops() + before
        if save_output:
            self.note(result, self.excluded[self.region])
        return result

    def sizes(self, roots: Sequence[str]) -> tuple[RegionSize, ...]:
        """What is alive of all that was seen, each storage in one region."""
        for reference, fqn, exclusion in self.packed:
            packed = reference()
            if packed is not None and fqn is not None:
                self.note(packed.tensor, self.saved[fqn], *((self.excluded[fqn],) if exclusion else ()))
        owner: dict[int, str] = {}
        for keys_of in (self.inputs, self.saved, self.excluded):
            for fqn, keys in keys_of.items():
                for key in keys:
                    owner.setdefault(key, fqn)
        # an input of several regions, such as a mask, stays as long as one of them is recomputed: as if always
        times = Counter(key for keys in self.inputs.values() for key in keys)
        any_saved = set().union({key for key, count in times.items() if count > 1}, *self.saved.values())
        owned: dict[str, set[int]] = {}
        for key, region in owner.items():
            owned.setdefault(region, set()).add(key)
        found = []
        for fqn in (*self.saved, *(root for root in roots if root not in self.saved)):
            own = owned.get(fqn, set())
            inputs = self.inputs.get(fqn, set())
            saved = self._bytes(own & any_saved)
            found.append(
                RegionSize(
                    fqn=fqn,
                    saved_bytes=saved,
                    input_bytes=self._bytes(own & inputs),
                    # outputs that are cached but would not be saved may come to more: then nothing is gained
                    excluded_bytes=min(saved, self._bytes(own & self.excluded.get(fqn, set()) - inputs)),
                    replay_flops=self.work.get(fqn, 0),
                )
            )
        return tuple(found)

    def _bytes(self, keys: set[int]) -> int:
        return sum(self.storages[key].nbytes() for key in keys)


class _Watch(ReplacedForward):
    """A forward that tells the ledger when it is entered."""

    kind = "watched"

    def __init__(self, ledger: _Ledger, module: torch.nn.Module, fqn: str, role: str, save_output: bool):
        super().__init__(module.forward, module, fqn)
        self.ledger = ledger
        self.role = role
        self.save_output = save_output
        vars(module)[FORWARD] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward as part of a region or an exclusion."""
        if self.role == "root":
            return self.ledger.enter_region(self.name, lambda: self.inner(*args, **kwargs), (args, kwargs))
        return self.ledger.enter_exclusion(self.save_output, lambda: self.inner(*args, **kwargs))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor consists of: a DTensor's local one, a sparse one's values."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
