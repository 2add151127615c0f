"""State that layers share in one forward: published once, read by later layers, dropped behind the last of them.

A replay publishes and releases nothing, and reads what its own forward read, whatever other micro-batches did
meanwhile. Rules ATTN-24 to ATTN-26 of ``specs/attention.md``.
"""

from typing import Any

from hpfun.attention import LayerSharing, sharing_events
from hpfun.errors import refusal
from hpfun.recompute import release_plan
from hpfun_torch.recompute import checkpoint_exclude_wrapper, is_recomputing, publish_once


class SharedLayerState:
    """Keys, index keys and choices of one forward of one model; make one per forward.

    >>> state = SharedLayerState(LayerSharing(compress_ratios=(4, 4), kv_sources=(0,), index_sources=(0,)))
    >>> state.publish("topk", 0, "ids"); state.publish("keys", 0, "keys")
    >>> state.read("topk", 1), state.release(0), state.release(1), len(state)
    ('ids', None, None, 0)
    """

    def __init__(self, sharing: LayerSharing):
        self._sharing = sharing
        self._released = dict(release_plan(*sharing_events(sharing)))
        self._store: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Entries that are held."""
        return len(self._store)

    def publish(self, kind: str, layer: int, value: Any) -> None:
        """Keep what a layer made, once: a second time is HP-STATE-002; in a replay nothing happens."""
        publish_once(self._store, (kind, layer), value)

    def read(self, kind: str, layer: int) -> Any:
        """What the source of a layer published: ``keys``, ``index_keys`` or ``topk``; HP-STATE-003 if it is gone."""
        source = self._sharing.index_source(layer) if kind == "topk" else self._sharing.key_source(layer)
        return _read(self._store, kind, source, layer)

    def release(self, layer: int) -> None:
        """Drop what no layer behind this one reads; called at its end. In a replay nothing happens."""
        if not is_recomputing():
            for entry in self._released.get(layer, ()):
                self._store.pop(entry, None)


def _read_entry(store: dict[Any, Any], kind: str, source: int | None, layer: int) -> Any:
    if (kind, source) not in store:
        raise refusal(
            "HP-STATE-003",
            kind,
            f"layer {layer} reads what layer {source} has not published, or what was released",
            "publish in the source layer, and give every forward a state of its own",
            layer=layer,
            source=source,
        )
    return store[kind, source]


# a replay is given what its own forward read
_read = checkpoint_exclude_wrapper(_read_entry, name="shared layer state")
