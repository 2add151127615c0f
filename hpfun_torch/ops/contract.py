"""What each operator takes, stated once: named axes, dtypes, one device, ranges; every backend checks against it.

An axis has one extent wherever its name stands. A check raises all violations at once as HP-OPS-001, and gives what
the backends need in its plain form. Rules OPS-7 and OPS-8 of ``specs/executors.md``.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch

from hpfun import IndexerSegment
from hpfun._fields import integer
from hpfun.attention import AttentionSegments
from hpfun.errors import Violation, collect, refusal, refuse_all

CODE = "HP-OPS-001"
MOST = 2**31 - 1  # ids are int32


@attrs.frozen
class Argument:
    """One tensor of an operator: its axes by name; of a floating dtype, or of integers; may be None where optional."""

    name: str
    axes: tuple[str, ...]
    integers: bool = False
    optional: bool = False


@attrs.frozen
class Contract:
    """The tensors of one operator."""

    operator: str
    arguments: tuple[Argument, ...]


LIGHTNING_INDEXER = Contract(
    "lightning_indexer",
    (
        Argument("query", ("queries", "index heads", "index dim")),
        Argument("key", ("keys", "index dim")),
        Argument("weights", ("queries", "index heads")),
    ),
)
SPARSE_ATTENTION = Contract(
    "sparse_attention",
    (
        Argument("query", ("queries", "heads", "dim")),
        Argument("window_bank", ("window rows", "dim"), optional=True),
        Argument("key_bank", ("keys", "dim"), optional=True),
        Argument("selected", ("queries", "topk"), integers=True, optional=True),
        Argument("sinks", ("heads",), optional=True),
    ),
)
INDEXER_KL = Contract(
    "indexer_kl",
    (
        Argument("index_query", ("queries", "index heads", "index dim")),
        Argument("index_key", ("keys", "index dim")),
        Argument("weights", ("queries", "index heads")),
        Argument("selected", ("queries", "topk"), integers=True),
        Argument("query", ("queries", "heads", "dim")),
        Argument("key_bank", ("keys", "dim")),
        Argument("sinks", ("heads",), optional=True),
    ),
)
PACKED_ATTENTION = Contract(
    "packed_attention",
    (
        Argument("query", ("queries", "heads", "dim")),
        Argument("key", ("keys", "key heads", "dim")),
        Argument("value", ("keys", "key heads", "value dim")),
        Argument("sinks", ("heads",), optional=True),
    ),
)
CONTRACTS = {part.operator: part for part in (LIGHTNING_INDEXER, SPARSE_ATTENTION, INDEXER_KL, PACKED_ATTENTION)}


def check_lightning_indexer(
    query: Any, key: Any, weights: Any, segments: Iterable[Any], ratio: Any, topk: Any, reduce_scores: Any = None
) -> tuple[list[IndexerSegment], int, int]:
    """The segments as values, ratio and topk as ints; raises HP-OPS-001, all at once."""
    found: list[Violation] = []
    parts = [collect(found, _segment, part, at) for at, part in enumerate(segments)]
    whole = collect(found, integer, ratio, "ratio", CODE, least=1, most=MOST)
    most = collect(found, integer, topk, "topk", CODE, least=1, most=MOST)
    _check_callable(found, reduce_scores)
    tensors = {"query": query, "key": key, "weights": weights}
    if _check_tensors(found, LIGHTNING_INDEXER, tensors) and whole is not None and None not in parts:
        found.extend(_misplaced(parts, query.shape[0], key.shape[0], whole))
    refuse_all(found)
    return [part for part in parts if part is not None], whole or 0, most or 0


def check_sparse_attention(
    query: Any,
    window_bank: Any,
    key_bank: Any,
    selected: Any,
    *,
    segments: Any,
    scale: Any,
    sinks: Any = None,
    value_width: Any = None,
) -> int:
    """The value width as an int; raises HP-OPS-001, all at once."""
    found: list[Violation] = []
    tensors = {
        "query": query,
        "window_bank": window_bank,
        "key_bank": key_bank,
        "selected": selected,
        "sinks": sinks,
    }
    fits = _check_tensors(found, SPARSE_ATTENTION, tensors)
    if _check_segments(found, segments) and fits:
        rows = {"window_bank": segments.window, "key_bank": segments.ratio}
        for name, wanted in rows.items():
            if (tensors[name] is None) != (wanted == 0):
                state = "missing" if tensors[name] is None else "given"
                _refuse(found, name, f"is {state}, and the segments say {wanted}", given=state, segments=wanted)
        _check_reach(found, segments, query, window_bank, key_bank)
    if selected is not None and key_bank is None:
        _refuse(found, "selected", "ids without a key bank", given="selected", segments=0)
    if fits:
        _check_ids(found, selected, key_bank)
    _check_scale(found, scale)
    width = query.shape[2] if fits else MOST
    if value_width is not None:
        width = collect(found, integer, value_width, "value_width", CODE, least=1, most=width) or width
    refuse_all(found)
    return width


def check_indexer_kl(
    index_query: Any,
    index_key: Any,
    weights: Any,
    selected: Any,
    query: Any,
    key_bank: Any,
    *,
    segments: Any,
    scale: Any,
    sinks: Any = None,
    num_queries: Any = None,
) -> int:
    """The number of queries to average over, at least 1; raises HP-OPS-001, all at once."""
    found: list[Violation] = []
    given = (index_query, index_key, weights, selected, query, key_bank, sinks)
    names = (argument.name for argument in INDEXER_KL.arguments)
    fits = _check_tensors(found, INDEXER_KL, dict(zip(names, given, strict=True)))
    if _check_segments(found, segments) and fits:
        if segments.ratio == 0:
            _refuse(found, "key_bank", "is given, and the segments say 0", given="given", segments=0)
        _check_reach(found, segments, query, None, key_bank)
    if fits:
        _check_ids(found, selected, key_bank)
    _check_scale(found, scale)
    count = max(1, index_query.shape[0]) if fits else 1
    if num_queries is not None:
        count = collect(found, integer, num_queries, "num_queries", CODE, least=1) or count
    refuse_all(found)
    return count


def check_packed_attention(query: Any, key: Any, value: Any, *, segments: Any, scale: Any, sinks: Any = None) -> None:
    """Raises HP-OPS-001, all at once."""
    found: list[Violation] = []
    fits = _check_tensors(found, PACKED_ATTENTION, {"query": query, "key": key, "value": value, "sinks": sinks})
    if _check_segments(found, segments) and fits:
        if segments.window == 0:
            _refuse(found, "key", "is given, and the segments have no window", given="given", segments=0)
        _check_reach(found, segments, query, key, None, window="key")
    if fits and (key.shape[1] == 0 or query.shape[1] % key.shape[1]):
        heads = {"heads": query.shape[1], "key_heads": key.shape[1]}
        _refuse(found, "key", f"{key.shape[1]} heads do not divide {query.shape[1]}", **heads)
    _check_scale(found, scale)
    refuse_all(found)


def _refuse(found: list[Violation], where: str, message: str, **facts: object) -> None:
    found.append(Violation(CODE, where, message, facts, "pass the tensors of one worker and its own segments"))


def _segment(part: Any, at: int) -> IndexerSegment:
    if isinstance(part, IndexerSegment):
        return part
    try:
        return IndexerSegment(*part)
    except TypeError:
        raise refusal(CODE, f"segments[{at}]", f"{part!r:.60} has no five fields", got=repr(part)[:60]) from None


def _check_callable(found: list[Violation], reduce_scores: Any) -> None:
    if reduce_scores is not None and not callable(reduce_scores):
        kind = type(reduce_scores).__name__
        _refuse(found, "reduce_scores", f"needs a function of the scores, got {kind}", value=kind, type=kind)


def _check_tensors(found: list[Violation], contract: Contract, tensors: Mapping[str, Any]) -> bool:
    """Whether each tensor is one of its kind; then shapes and devices are compared too."""
    before = len(found)
    given = [part for part in contract.arguments if tensors[part.name] is not None or not part.optional]
    for part in given:
        _check_kind(found, part, tensors[part.name])
    if len(found) > before:
        return False
    first = given[0].name
    extents: dict[str, set[int]] = {}
    for part in given:
        for axis, extent in zip(part.axes, tensors[part.name].shape, strict=True):
            extents.setdefault(axis, set()).add(extent)
    several = sorted(axis for axis, seen in extents.items() if len(seen) > 1)
    if several:
        shapes = {part.name: tuple(tensors[part.name].shape) for part in given}
        _refuse(found, first, f"shapes differ in {', '.join(several)}: {shapes}", **shapes)
    devices = {str(tensors[part.name].device) for part in given}
    if len(devices) > 1:
        _refuse(found, first, f"tensors on several devices: {sorted(devices)}", devices=tuple(sorted(devices)))
    return True


def _check_kind(found: list[Violation], part: Argument, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        got: Any = type(tensor).__name__
        fits = False
    else:
        got = (tuple(tensor.shape), str(tensor.dtype))
        whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        fits = tensor.ndim == len(part.axes) and (whole if part.integers else tensor.is_floating_point())
    if not fits:
        kind = "integers" if part.integers else "a floating dtype"
        _refuse(found, part.name, f"needs {len(part.axes)} axes of {kind}, got {got}", axes=len(part.axes), got=got)


def _misplaced(parts: list[Any], queries: int, keys: int, ratio: int) -> Iterable[Violation]:
    free = 0
    for at, part in sorted(enumerate(parts), key=lambda entry: entry[1].query_start):
        overlaps, free = part.query_start < free, max(free, part.query_stop)
        outside = part.query_stop > queries or part.key_stop > keys
        if overlaps or outside or part.residual >= ratio:
            message = f"{tuple(part)} does not fit {queries} queries, {keys} keys, ratio {ratio}"
            facts = {"segment": tuple(part), "queries": queries, "keys": keys}
            yield Violation(CODE, f"segments[{at}]", message, facts)


def _check_segments(found: list[Violation], segments: Any) -> bool:
    if isinstance(segments, AttentionSegments):
        return True
    kind = type(segments).__name__
    _refuse(found, "segments", f"needs AttentionSegments, got {kind}", value=repr(segments)[:60], type=kind)
    return False


def _check_reach(
    found: list[Violation], segments: AttentionSegments, query: Any, rows: Any, keys: Any, window: str = "window_bank"
) -> None:
    """The segments lie inside the tensors that they speak of."""
    reaches = (
        ("query", query, segments.num_rows),
        (window, rows, int(segments.window_stops.max())),
        ("key_bank", keys, int(segments.key_stops.max())),
    )
    for name, tensor, reach in reaches:
        if tensor is not None and reach > tensor.shape[0]:
            held = tensor.shape[0]
            _refuse(found, name, f"has {held} rows, the segments reach to {reach}", rows=held, expected=reach)


def _check_ids(found: list[Violation], selected: Any, key_bank: Any) -> None:
    # on other devices the answer would have to be waited for
    if selected is None or key_bank is None or selected.device.type != "cpu" or selected.numel() == 0:
        return
    low, high = int(selected.min()), int(selected.max())
    if low < -1 or high >= key_bank.shape[0]:
        facts = {"value": low if low < -1 else high, "least": -1, "most": key_bank.shape[0] - 1}
        _refuse(found, "selected", f"ids from {low} to {high}, legal is -1 to {facts['most']}", **facts)


def _check_scale(found: list[Violation], scale: Any) -> None:
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        facts = {"value": repr(scale)[:60], "type": type(scale).__name__}
        _refuse(found, "scale", f"needs a finite number, got {scale!r:.60}", **facts)
