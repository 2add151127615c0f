"""Which layers of a model make compressed keys and choices of keys, and which reuse those of an earlier layer.

A layer with a ratio attends to compressed keys. A **key source** makes them, and its index keys; an **index source**
chooses, and the layers behind it, up to the next source of that ratio, reuse. Models without sharing have sources
everywhere. Rules ATTN-4 to ATTN-6 and ATTN-17 of ``specs/attention.md``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from hpfun._fields import content_digest, integer, integers, integers_field, named_plan_value
from hpfun.errors import Violation, refusal, refuse_all
from hpfun.recompute.release import Entry

_CODE = "HP-ATTN-003"


def _optional(value: object, field: attrs.Attribute) -> Any:
    return None if value is None else integers(value, field.name, _CODE)


@named_plan_value
class LayerSharing:
    """Per layer its ratio, and which layers are sources.

    ``compress_ratios`` int64 ``[layers]``: tokens behind a key, 0 for a layer with a window alone, 1 for raw keys.
    ``kv_sources`` are layers whose keys the later ones of that ratio read, None where every layer has its own;
    ``index_sources`` are layers that choose keys; ``dense_layers`` attend to all visible keys and choose none. All
    ascending. Where keys are shared, a key source that is not dense chooses anew. Each layer that reads has a source
    of its own ratio at or before it. Anything else is HP-ATTN-003, all violations at once.

    >>> sharing = LayerSharing(compress_ratios=(0, 4, 4, 4), kv_sources=(1,), index_sources=(1, 3))
    >>> sharing.key_source(3), sharing.index_source(2), sharing.index_source(0)
    (1, 1, None)
    """

    compress_ratios: Any = integers_field(_CODE)
    kv_sources: Any = attrs.field(default=None, converter=attrs.Converter(_optional, takes_field=True))
    index_sources: Any = integers_field(_CODE, default=())
    dense_layers: Any = integers_field(_CODE, default=())

    digest = content_digest

    def __attrs_post_init__(self):
        if not len(self.compress_ratios):
            raise refusal(_CODE, "compress_ratios", "no layer", "name the ratio of each layer", layers=0)
        found = [
            Violation(_CODE, f"compress_ratios[{layer}]", f"got {ratio}", {"layer": layer, "ratio": ratio})
            for layer, ratio in enumerate(self.compress_ratios.tolist())
            if ratio < 0
        ]
        for name in ("kv_sources", "index_sources", "dense_layers"):
            found += self._listed(name)
        refuse_all(found)
        refuse_all(self._misfits())

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.compress_ratios)

    @property
    def ratios(self) -> tuple[int, ...]:
        """The ratios that occur, ascending, without 0."""
        return tuple(sorted(set(self.compress_ratios.tolist()) - {0}))

    def key_source(self, layer: int) -> int | None:
        """The layer whose compressed keys a layer reads; None where it reads none."""
        ratio = int(self.compress_ratios[self._layer(layer)])
        if not ratio:
            return None
        return layer if self.kv_sources is None else self._latest(self.kv_sources, layer, ratio)

    def index_source(self, layer: int) -> int | None:
        """The layer whose choice a layer reads; None where it chooses from nothing."""
        ratio = int(self.compress_ratios[self._layer(layer)])
        if not ratio or layer in self.dense_layers:
            return None
        return self._latest(self.index_sources, layer, ratio)

    def kind(self, layer: int) -> str:
        """What a layer does: ``window``, ``dense``, ``select`` or ``reuse``, as in ``OverlapOptions``."""
        if self.compress_ratios[self._layer(layer)] == 0:
            return "window"
        if layer in self.dense_layers:
            return "dense"
        return "select" if layer in self.index_sources else "reuse"

    def _layer(self, layer: int) -> int:
        return integer(layer, "layer", _CODE, least=0, most=self.num_layers - 1)

    def _latest(self, sources: np.ndarray, layer: int, ratio: int) -> int | None:
        fitting = sources[(sources <= layer) & (self.compress_ratios[sources] == ratio)]
        return int(fitting[-1]) if len(fitting) else None

    def _listed(self, name: str) -> Iterable[Violation]:
        """What is wrong with one list of layers."""
        layers = getattr(self, name)
        if layers is None:
            return
        for at, layer in enumerate(layers.tolist()):
            facts = {"layer": layer, "layers": self.num_layers}
            if not 0 <= layer < self.num_layers:
                yield Violation(_CODE, f"{name}[{at}]", f"layer {layer} of {self.num_layers}", facts)
            elif self.compress_ratios[layer] == 0:
                message = f"layer {layer} has ratio 0, so no keys"
                yield Violation(_CODE, f"{name}[{at}]", message, facts, "give it a ratio, or leave it out")
            if at and layer <= layers[at - 1]:
                facts = {"layer": layer, "before": int(layers[at - 1])}
                yield Violation(
                    _CODE, f"{name}[{at}]", f"layer {layer} after {layers[at - 1]}", facts, "list ascending"
                )

    def _misfits(self) -> Iterable[Violation]:
        """Sources that do not choose, layers without a source."""
        dense = set(self.dense_layers.tolist())
        both = dense & set(self.index_sources.tolist())
        for layer in sorted(both):
            message = f"layer {layer} attends to all visible keys"
            yield Violation(_CODE, "index_sources", message, {"layer": layer}, "drop it from one of the two lists")
        shared = [] if self.kv_sources is None else self.kv_sources.tolist()
        for layer in sorted(set(shared) - dense - set(self.index_sources.tolist())):
            message = f"layer {layer} makes new keys and reuses a choice among older ones"
            yield Violation(_CODE, "kv_sources", message, {"layer": layer}, "make it an index source too")
        yield from self._stale(shared, dense)
        for layer, ratio in enumerate(self.compress_ratios.tolist()):
            if ratio and self.key_source(layer) is None:
                yield self._orphan("kv_sources", layer, ratio)
            if ratio and layer not in dense and self.index_source(layer) is None:
                yield self._orphan("index_sources", layer, ratio)

    def _stale(self, shared: list[int], dense: set[int]) -> Iterable[Violation]:
        """First layers behind a dense key source that take a choice among older keys than they read."""
        for source in sorted(set(shared) & dense):
            ratio = int(self.compress_ratios[source])
            behind = [layer for layer in np.flatnonzero(self.compress_ratios == ratio).tolist() if layer > source]
            first = next((layer for layer in behind if layer not in dense), None)
            if first is None or self.key_source(first) != source or first in self.index_sources:
                continue
            if (choice := self.index_source(first)) is not None:
                message = f"layer {first} reads keys of layer {source} and a choice among older ones, of layer {choice}"
                facts = {"layer": first, "keys": source, "choice": choice}
                yield Violation(_CODE, "index_sources", message, facts, f"make layer {first} an index source")

    @staticmethod
    def _orphan(name: str, layer: int, ratio: int) -> Violation:
        message = f"layer {layer} of ratio {ratio} has no source of that ratio at or before it"
        facts = {"layer": layer, "ratio": ratio}
        return Violation(_CODE, name, message, facts, "let the first layer of a ratio be a source")


def skip_sharing(num_layers: int, frequency: int = 1, offset: int = 2, ratio: int = 1) -> LayerSharing:
    """Layers with keys of their own that choose every ``frequency`` layers from ``offset - 1`` on, as GLM-5 does.

    The layers before ``offset`` choose each for themselves. Raises HP-ATTN-003.

    >>> skip_sharing(7, frequency=3).index_sources.tolist()
    [0, 1, 4]
    """
    count = integer(num_layers, "num_layers", _CODE, least=1)
    every = integer(frequency, "frequency", _CODE, least=1)
    first = integer(offset, "offset", _CODE, least=1)
    choosing = [layer for layer in range(count) if max(layer - first + 1, 0) % every == 0]
    return LayerSharing(compress_ratios=[integer(ratio, "ratio", _CODE, least=1)] * count, index_sources=choosing)


def sharing_events(sharing: LayerSharing) -> tuple[tuple[Entry, ...], tuple[tuple[int, Entry], ...]]:
    """What layers publish and read, as ``release_plan`` takes it.

    Entries are ``("keys", source)``, ``("index_keys", source)`` and ``("topk", source)``. Index keys are published by
    key sources and read by index sources.

    >>> from hpfun.recompute import release_plan
    >>> sharing = LayerSharing(compress_ratios=(4, 4, 4), kv_sources=(0,), index_sources=(0, 2))
    >>> release_plan(*sharing_events(sharing))
    ((1, (('topk', 0),)), (2, (('index_keys', 0), ('keys', 0), ('topk', 2))))
    """
    if not isinstance(sharing, LayerSharing):
        kind = type(sharing).__name__
        raise refusal(_CODE, "sharing", f"needs a LayerSharing, got {kind}", type=kind)
    layers = range(sharing.num_layers)
    keys = [sharing.key_source(layer) for layer in layers]
    chosen = [sharing.index_source(layer) for layer in layers]
    publishes: list[Entry] = []
    reads: list[tuple[int, Entry]] = []
    for layer in layers:
        if keys[layer] == layer:
            publishes.append(("keys", layer))
            if _is_chosen_from(layer, keys, chosen):
                publishes.append(("index_keys", layer))
        if (source := keys[layer]) is not None:
            reads.append((layer, ("keys", source)))
            if chosen[layer] == layer:
                reads.append((layer, ("index_keys", source)))
        if chosen[layer] == layer:
            publishes.append(("topk", layer))
        if (choice := chosen[layer]) is not None:
            reads.append((layer, ("topk", choice)))
    return tuple(publishes), tuple(reads)


def _is_chosen_from(layer: int, keys: Sequence[int | None], chosen: Sequence[int | None]) -> bool:
    """Whether some index source reads the index keys of this layer."""
    return any(source == at and keys[at] == layer for at, source in enumerate(chosen))
