"""The Lightning Indexer in plain tensor operations: scores, visibility and top-k, chunk by chunk.

``score(t, j) = sum over heads of weight[t, h] * relu(query[t, h] . key[j])`` in float32, as DeepSeek-V3.2 defines
it. Rules OPS-1 to OPS-7 of ``specs/executors.md``. Written for the CPU and what everyone can run; it uses no
operator that other devices lack.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.functional import pad

from hpfun import IndexerSegment
from hpfun.errors import refusal
from hpfun_torch.ops.contract import check_lightning_indexer

ROWS = 256  # query rows scored at once
KEYS = 1024  # keys of one matrix product: its result stays in a core's cache
SPAN = 16384  # keys whose scores are held at once; longer ranges are merged span by span
GRAIN = 64  # products are padded to whole grains: BLAS rounds slivers of a few rows or keys differently


@torch.no_grad()
def lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    segments: Iterable[IndexerSegment],
    ratio: int,
    topk: int,
    *,
    reduce_scores: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Ids of the ``topk`` best keys of every query row, ascending, -1 at the tail; int32 ``[Q, topk]``.

    ``query [Q, heads, dim]``, ``key [K, dim]``, ``weights [Q, heads]``, any floating dtype, one device. Row i of a
    segment sees the segment's keys as ``IndexerSegment.visible`` says; rows in no segment see none. Order is
    (score descending, lower id), exactly, ties included. A row's ids depend on that row and its keys alone, not
    on the rows beside it. ``reduce_scores`` gets each chunk's scores ``[rows, keys]``, the same chunks on every rank
    that has the same segments, and gives their sum over ranks with other heads; it may write into them. Peak extra
    memory is a few times ``ROWS * SPAN`` floats, whatever Q and K are.

    Raises HP-OPS-001 (shapes, dtypes, devices, ranges; all at once) and HP-OPS-003 (a score is NaN).

    >>> one = torch.ones(3, 1, 1)
    >>> lightning_indexer(one, torch.tensor([[1.0], [3.0], [2.0]]), torch.ones(3, 1), [(0, 3, 0, 3, 0)], 1, 2).tolist()
    [[0, -1], [0, 1], [1, 2]]
    """
    parts, ratio, topk = check_lightning_indexer(query, key, weights, segments, ratio, topk)
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
                query[start:stop], key[part.key_start :], weights[start:stop], seen, topk, reduce_scores
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


def _best(
    query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor, visible: torch.Tensor, topk: int, reduce_scores: Any
) -> torch.Tensor:
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
        scores = scores if reduce_scores is None else reduce_scores(scores)
        order = torch.arange(start, stop, device=key.device)
        scores.masked_fill_(order >= visible[:, None], -torch.inf)
        if start:
            scores = torch.cat((kept_scores, scores), dim=1)
        chosen = choose(scores, topk)
        kept_scores = scores.gather(1, chosen) if stop < most else kept_scores
        kept_ids = torch.cat((kept_ids, order.expand(rows, -1)), dim=1).gather(1, chosen) if start else chosen
    return kept_ids.int()


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


def choose(scores: torch.Tensor, topk: int) -> torch.Tensor:
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
        raise refusal("HP-OPS-003", "query", "a score is NaN", "look for NaN or infinity in query, key and weights")
    return columns.view(len(scores), topk)
