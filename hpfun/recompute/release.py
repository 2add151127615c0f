"""When shared state between layers can be dropped, and which state a replay reads.

A layer publishes an entry (compressed keys, top-k choices), later layers read it. A replay that reads shared state
by itself reads the newest, whichever micro-batch that is; a read that is excluded from the replay gives what its
own forward read. Rules RECOMPUTE-23, RECOMPUTE-29 and RECOMPUTE-37 of ``specs/recompute.md``.
"""

from collections.abc import Iterable, Sequence

from hpfun._fields import content_digest, integer, integer_field, named_plan_value
from hpfun.errors import Violation, refusal, refuse_all

Entry = tuple[str, int]  # what it is, and the layer that publishes it


def release_plan(
    publishes: Iterable[Entry], reads: Iterable[tuple[int, Entry]], *, replayed: Iterable[int] = ()
) -> tuple[tuple[int, tuple[Entry, ...]], ...]:
    """After which layer each entry is dropped: its last reader, or its publisher if nobody reads it.

    ``publishes`` are entries (kind, source layer), ``reads`` are pairs (layer, entry), ``replayed`` the layers
    whose reads a replay runs again. The result is sorted by layer, and each layer's entries as well. Raises
    HP-STATE-002 for an entry that is published twice, and HP-RECOMPUTE-037 for a read before the entry is
    published, or of one that nobody publishes, or by a layer whose replay would find it gone.

    >>> release_plan([("topk", 1), ("keys", 1)], [(1, ("topk", 1)), (2, ("topk", 1))])
    ((1, (('keys', 1),)), (2, (('topk', 1),)))
    """
    violations: list[Violation] = []
    last: dict[Entry, int] = {}
    for given in publishes:
        entry = _entry(given)
        if entry in last:
            violations.append(
                Violation(
                    "HP-STATE-002",
                    "publishes",
                    f"{entry} is published twice",
                    {"key": entry[0], "layer": entry[1]},
                    "publish an entry once in a forward",
                )
            )
        last[entry] = entry[1]
    again = frozenset(integer(layer, "replayed", "HP-RECOMPUTE-037", least=0) for layer in replayed)
    known = frozenset(last)
    for layer, given in reads:
        entry = _entry(given)
        layer = integer(layer, "reads", "HP-RECOMPUTE-037", least=0)
        if entry not in known:
            violations.append(_bad_read(entry, layer, "nobody publishes it", "publish it"))
        elif layer < entry[1]:
            violations.append(_bad_read(entry, layer, "it is published later", "read it in a later layer"))
        else:
            last[entry] = max(last[entry], layer)
            if layer in again:
                violations.append(
                    _bad_read(entry, layer, "its replay would find it released", "exclude the read from the replay")
                )
    refuse_all(violations)
    by_layer: dict[int, list[Entry]] = {}
    for entry, layer in last.items():
        by_layer.setdefault(layer, []).append(entry)
    return tuple((layer, tuple(sorted(by_layer[layer]))) for layer in sorted(by_layer))


@named_plan_value
class Read:
    """In the replay of ``micro_batch``, shared state was that of micro-batch ``read_from``."""

    micro_batch: int = integer_field("HP-RECOMPUTE-037", least=0)
    read_from: int = integer_field("HP-RECOMPUTE-037", least=0)

    digest = content_digest


def replay_trace(events: Sequence[tuple[str, int]], *, excluded: bool = False) -> tuple[Read, ...]:
    """What each replay of a schedule reads from shared state: one ``Read`` for every backward.

    ``events`` are ("F", micro-batch) and ("B", micro-batch) in time order. Without ``excluded`` a replay reads what
    was published last; with it, what its own forward read. Raises HP-RECOMPUTE-037 for a backward without a
    forward before it, for a second forward or backward of one micro-batch, and for other events.

    >>> schedule = [("F", 1), ("F", 2), ("B", 1), ("B", 2)]
    >>> [read.read_from for read in replay_trace(schedule)]
    [2, 2]
    >>> [read.read_from for read in replay_trace(schedule, excluded=True)]
    [1, 2]
    """
    newest: int | None = None
    pending: set[int] = set()
    seen: set[int] = set()
    found: list[Read] = []
    for at, event in enumerate(events):
        kind, given = event if isinstance(event, (tuple, list)) and len(event) == 2 else (event, -1)
        micro_batch = integer(given, f"events[{at}]", "HP-RECOMPUTE-037", least=0)
        legal = {"F": micro_batch not in seen, "B": micro_batch in pending}.get(kind, False)
        if not legal:
            raise refusal(
                "HP-RECOMPUTE-037",
                f"events[{at}]",
                f"{kind!r:.20} of micro-batch {micro_batch} cannot come here",
                "every micro-batch has one F and then one B",
                event=(str(kind)[:20], micro_batch),
                pending=tuple(sorted(pending)),
            )
        if kind == "F":
            newest = micro_batch
            seen.add(micro_batch)
            pending.add(micro_batch)
        else:
            pending.remove(micro_batch)
            read_from = micro_batch if excluded or newest is None else newest
            found.append(Read(micro_batch=micro_batch, read_from=read_from))
    return tuple(found)


def _entry(given: object) -> Entry:
    if not isinstance(given, (tuple, list)) or len(given) != 2 or type(given[0]) is not str:
        got = repr(given)[:60]
        raise refusal("HP-RECOMPUTE-037", "entry", f"got {got}", "pass (kind, source layer)", entry=got)
    return given[0], integer(given[1], "entry", "HP-RECOMPUTE-037", least=0)


def _bad_read(entry: Entry, layer: int, why: str, advice: str) -> Violation:
    return Violation(
        "HP-RECOMPUTE-037",
        "reads",
        f"layer {layer} reads {entry[0]} of layer {entry[1]}: {why}",
        {"entry": entry, "layers": (entry[1], layer)},
        advice,
    )
