"""The Lightning Indexer in plain tensor operations: scores, visibility and top-k, chunk by chunk.

``score(t, j) = sum over heads of weight[t, h] * relu(query[t, h] . key[j])`` in float32, as DeepSeek-V3.2 defines
it. Rules OPS-1 to OPS-7 of ``specs/executors.md``. Written for the CPU and what everyone can run; it uses no
operator that other devices lack.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import pad

from hpfun import IndexerSegment
from hpfun._fields import integer
from hpfun.errors import PlanError, Violation, refusal

ROWS = 256  # query rows scored at once
KEYS = 1024  # keys of one matrix product: its result stays in a core's cache
SPAN = 16384  # keys whose scores are held at once; longer ranges are merged span by span
_MOST = 2**31 - 1  # ids are int32
GRAIN = 64  # products are padded to whole grains: BLAS rounds slivers of a few rows or keys differently


@torch.no_grad()
def lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    segments: Iterable[IndexerSegment],
    ratio: int,
    topk: int,
) -> torch.Tensor:
    """Ids of the ``topk`` best keys of every query row, ascending, -1 at the tail; int32 ``[Q, topk]``.

    ``query [Q, heads, dim]``, ``key [K, dim]``, ``weights [Q, heads]``, any floating dtype, one device. Row i of a
    segment sees the segment's keys as ``IndexerSegment.visible`` says; rows in no segment see none. Order is
    (score descending, lower id), exactly, ties included. A row's ids depend on that row and its keys alone, not
    on the rows beside it. Peak extra memory is a few times ``ROWS * SPAN`` floats, whatever Q and K are.

    Raises HP-OPS-001 (shapes, dtypes, devices, ranges; all at once) and HP-OPS-002 (a score is NaN).

    >>> one = torch.ones(3, 1, 1)
    >>> lightning_indexer(one, torch.tensor([[1.0], [3.0], [2.0]]), torch.ones(3, 1), [(0, 3, 0, 3, 0)], 1, 2).tolist()
    [[0, -1], [0, 1], [1, 2]]
    """
    parts = [_segment(part, at) for at, part in enumerate(segments)]
    ratio = integer(ratio, "ratio", "HP-OPS-001", least=1, most=_MOST)
    topk = integer(topk, "topk", "HP-OPS-001", least=1, most=_MOST)
    _check(query, key, weights, parts, ratio)
    ids = torch.full((query.shape[0], topk), -1, dtype=torch.int32, device=query.device)
    for part in parts:
        rows = torch.arange(part.query_start, part.query_stop, device=query.device)
        visible = part.visible(rows, ratio)
        scored = _first_beyond(part, ratio, topk)
        _take_all(ids, part, visible[: scored - part.query_start], topk)
        for start in range(scored, part.query_stop, ROWS):
            stop = min(start + ROWS, part.query_stop)
            seen = visible[start - part.query_start : stop - part.query_start]
            ids[start:stop] = part.key_start + _best(
                query[start:stop], key[part.key_start :], weights[start:stop], seen, topk
            )
    return ids


def _first_beyond(part: IndexerSegment, ratio: int, topk: int) -> int:
    """The first row of a segment that sees more than ``topk`` keys; visibility never falls along a segment."""
    # visible(i) > topk  <=>  (key_stop - key_start) * ratio + residual - (query_stop - 1 - i) >= (topk + 1) * ratio
    reach = (part.key_stop - part.key_start) * ratio + part.residual - (part.query_stop - 1)
    return min(max((topk + 1) * ratio - reach, part.query_start), part.query_stop)


def _take_all(ids: torch.Tensor, part: IndexerSegment, visible: torch.Tensor, topk: int) -> None:
    """Rows that see at most ``topk`` keys have nothing to choose: no score is needed."""
    for start in range(0, len(visible), ROWS):
        seen = visible[start : start + ROWS, None]
        order = torch.arange(topk, device=ids.device, dtype=torch.int32)
        at = part.query_start + start
        ids[at : at + len(seen)] = torch.where(order < seen, order + part.key_start, -1)


def _best(query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor, visible: torch.Tensor, topk: int):
    """Ids, relative to ``key``, of the best keys of a chunk of rows that all see more than ``topk``."""
    rows = len(query)
    heads = pad(query.float().transpose(0, 1), (0, 0, 0, -rows % GRAIN)).contiguous()
    each = pad(weights.float(), (0, 0, 0, -rows % GRAIN))
    kept_scores = query.new_empty((rows, 0), dtype=torch.float32)
    kept_ids = visible.new_empty((rows, 0))
    most = int(visible[-1])
    for start in range(0, most, SPAN):
        stop = min(start + SPAN, most)
        scores = _scores(heads, each, key[start : start + SPAN], stop - start)[:rows]
        order = torch.arange(start, stop, device=key.device)
        scores.masked_fill_(order >= visible[:, None], -torch.inf)
        if start:
            scores = torch.cat((kept_scores, scores), dim=1)
        chosen = _choose(scores, topk)
        kept_scores = scores.gather(1, chosen) if stop < most else kept_scores
        kept_ids = torch.cat((kept_ids, order.expand(rows, -1)), dim=1).gather(1, chosen) if start else chosen
    return kept_ids.int()


def _segment(part: Any, at: int) -> IndexerSegment:
    if isinstance(part, IndexerSegment):
        return part
    try:
        return IndexerSegment(*part)
    except TypeError:
        raise refusal(
            "HP-OPS-001", f"segments[{at}]", f"{part!r:.60} has no five fields", got=repr(part)[:60]
        ) from None


def _scores(heads: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, count: int) -> torch.Tensor:
    """Index scores of all rows (whole grains) with the first ``count`` keys; float32."""
    scores = heads.new_zeros((heads.shape[1], count))
    for start in range(0, count, KEYS):
        stop = min(start + KEYS, count)
        whole = stop + -(stop - start) % GRAIN
        block = key[start:whole].float()
        block = pad(block, (0, 0, 0, whole - start - len(block))).t()
        for head, weight in zip(heads, weights.unbind(1), strict=True):
            with torch.autocast(head.device.type, enabled=False):  # ids must not depend on who calls
                product = torch.mm(head, block).relu_()
            scores[:, start:stop].addcmul_(product[:, : stop - start], weight[:, None])
    return scores


def _choose(scores: torch.Tensor, topk: int) -> torch.Tensor:
    """Columns of the ``topk`` greatest scores of each row, ascending; equal scores by lower column.

    ``torch.topk`` breaks ties as it likes, so only its values are used: everything above the last of them, and
    of what equals it the first few.
    """
    if scores.shape[1] <= topk:
        return torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    last = scores.topk(topk, dim=1, sorted=False).values.amin(1, keepdim=True)
    chosen = scores > last
    room = topk - chosen.sum(1, keepdim=True)
    equal = scores == last
    if bool((equal.sum(1, keepdim=True) > room).any()):
        equal &= equal.cumsum(1, dtype=torch.int32) <= room
    chosen |= equal
    columns = chosen.nonzero()[:, 1]
    if len(columns) != len(scores) * topk:
        raise refusal("HP-OPS-002", "query", "a score is NaN", "look for NaN or infinity in query, key and weights")
    return columns.view(len(scores), topk)


def _check(query: Any, key: Any, weights: Any, parts: list[IndexerSegment], ratio: int) -> None:
    found = []

    def refuse(where: str, message: str, **facts: object) -> None:
        found.append(Violation("HP-OPS-001", where, message, facts))

    for name, tensor, axes in (("query", query, 3), ("key", key, 2), ("weights", weights, 2)):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != axes or not tensor.is_floating_point():
            got = (
                (tuple(tensor.shape), str(tensor.dtype)) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            )
            refuse(name, f"needs {axes} axes of a floating dtype, got {got}", axes=axes, got=got)
    if found:
        raise PlanError(*found)
    if key.shape[1] != query.shape[2] or weights.shape != query.shape[:2]:
        shapes = {"query": tuple(query.shape), "key": tuple(key.shape), "weights": tuple(weights.shape)}
        refuse("query", f"shapes do not fit: {shapes}", **shapes)
    devices = {str(tensor.device) for tensor in (query, key, weights)}
    if len(devices) > 1:
        refuse("query", f"tensors on several devices: {sorted(devices)}", devices=tuple(sorted(devices)))
    free = 0
    for at, part in sorted(enumerate(parts), key=lambda entry: entry[1].query_start):
        overlaps, free = part.query_start < free, max(free, part.query_stop)
        outside = part.query_stop > query.shape[0] or part.key_stop > key.shape[0]
        if overlaps or outside or part.residual >= ratio:
            refuse(
                f"segments[{at}]",
                f"{tuple(part)} does not fit {query.shape[0]} queries, {key.shape[0]} keys, ratio {ratio}",
                segment=tuple(part),
                queries=query.shape[0],
                keys=key.shape[0],
            )
    if found:
        raise PlanError(*found)
