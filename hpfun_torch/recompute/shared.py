"""State that layers share in one forward: written once, and not again by a replay.

Rules RECOMPUTE-28 and RECOMPUTE-29 of ``specs/recompute.md``.
"""

from collections.abc import Hashable, MutableMapping
from typing import Any

from hpfun.errors import refusal
from hpfun_torch.recompute.invocation import is_recomputing


def publish_once(store: MutableMapping[Any, Any], key: Hashable, value: Any) -> bool:
    """Put ``value`` into ``store`` unless the code is being replayed; whether it was put.

    ``store`` belongs to one forward of the model; a key that is there already is HP-STATE-002, so entries that were
    released may come again in the next forward only with a store of its own. A replay must not *read* the store
    either, since another micro-batch may have written it: read it in an exclusion.

    >>> store = {}
    >>> publish_once(store, ("topk", 1), (3, 5)), store
    (True, {('topk', 1): (3, 5)})
    """
    if is_recomputing():
        return False
    if key in store:
        layer = key[1] if isinstance(key, tuple) and len(key) == 2 else None
        raise refusal(
            "HP-STATE-002",
            "key",
            f"{key!r:.60} is published already",
            "publish once in a forward, and give every forward a store of its own",
            key=key if isinstance(key, (str, int)) else repr(key)[:60],
            layer=layer,
        )
    store[key] = value
    return True
