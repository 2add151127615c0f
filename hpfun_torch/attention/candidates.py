"""Hierarchical selection: a first layer finds blocks of keys worth a look, later layers score those alone.

A block's score is the greatest of its visible keys'; the newest block that a row reaches is always chosen. Rules
ATTN-31 and ATTN-32 of ``specs/attention.md``.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import pad

from hpfun.attention import AttentionSegments
from hpfun.attention.candidates import BLOCK_KEYS
from hpfun_torch.ops.cpu.indexer import choose
from hpfun_torch.ops.cpu.parts import exactly, ranges_of

ELEMENTS, ROWS = 2**22, 256  # of a chunk: numbers of its largest tensor, rows
Reduce = Callable[[torch.Tensor], torch.Tensor] | None


@torch.no_grad()
def candidate_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    segments: AttentionSegments,
    num_blocks: int,
    *,
    block_keys: int = BLOCK_KEYS,
    minimum_key_indices: torch.Tensor | None = None,
    query_offset: int = 0,
    reduce_scores: Reduce = None,
) -> torch.Tensor:
    """The ``num_blocks`` best blocks of each row's keys, ascending, -1 at the tail; int32 ``[Q, num_blocks]``.

    ``query [Q, heads, dim]`` are the rows from ``query_offset`` on of those of ``segments``, ``key [K, dim]`` the key
    bank, ``weights [Q, heads]``. Block b of a row is the ``block_keys`` keys from ``b * block_keys`` on, counted from
    its document's first. ``minimum_key_indices [Q]`` are the first keys that rows may see. Equal scores go to the lower
    block; the newest reachable block is chosen whatever its score.
    """
    ranges = ranges_of(segments, query.device)
    taken = torch.full((len(query), num_blocks), -1, dtype=torch.int32, device=query.device)
    for first, last in ranges.rows:
        most = int(ranges.host_key[1][last - 1] - ranges.host_key[0][last - 1])
        step = max(1, min(ROWS, ELEMENTS // max(1, most * query.shape[1])))
        stop = min(last, query_offset + len(query))
        for at in range(max(first, query_offset), stop if most else 0, step):
            own = slice(at, min(at + step, stop))
            rows = slice(own.start - query_offset, own.stop - query_offset)
            low, high = int(ranges.host_key[0][first]), int(ranges.host_key[1][own.stop - 1])
            if low == high:
                continue
            scores = _scores(query[rows], key[low:high], weights[rows], reduce_scores)
            order = torch.arange(low, high, device=query.device)
            seen = order < ranges.key[1][own, None]
            if minimum_key_indices is not None:
                seen &= order >= minimum_key_indices[rows, None]
            best = pad(scores.masked_fill_(~seen, -torch.inf), (0, -(high - low) % block_keys), value=-torch.inf)
            best = best.unflatten(1, (-1, block_keys)).amax(-1)
            newest = -((ranges.key[0][own] - ranges.key[1][own]) // block_keys) - 1
            some = (newest >= 0).nonzero()[:, 0]
            best[some, newest[some]] = torch.inf
            taken[rows] = _best(best, num_blocks)
    return taken


@torch.no_grad()
def candidate_ids(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    blocks: torch.Tensor,
    segments: AttentionSegments,
    topk: int,
    reduce_scores: Reduce = None,
    *,
    block_keys: int = BLOCK_KEYS,
    minimum_key_indices: torch.Tensor | None = None,
    query_offset: int = 0,
) -> torch.Tensor:
    """The ``topk`` best keys of each row's candidate blocks, ascending, -1 at the tail; int32 ``[Q, topk]``.

    Arguments as in ``candidate_blocks``, whose result ``blocks [Q, n]`` is. With all reachable blocks it is what
    ``lightning_indexer`` gives.
    """
    ranges = ranges_of(segments, query.device)
    starts, stops = (edges[query_offset : query_offset + len(query), None] for edges in ranges.key)
    order = torch.arange(block_keys, device=query.device)
    ids = (starts[..., None] + blocks.long()[..., None] * block_keys + order).flatten(1)
    seen = (ids >= starts) & (ids < stops)  # a block of -1 lies in front of the document
    if minimum_key_indices is not None:
        seen &= ids >= minimum_key_indices[:, None]
    taken = torch.full((len(query), topk), -1, dtype=torch.int32, device=query.device)
    if not len(key):
        return taken
    step = max(1, ELEMENTS // max(1, ids.shape[1] * (key.shape[1] + query.shape[1])))
    for at in range(0, len(query), step):
        rows = slice(at, at + step)
        place = ids[rows].clamp(0, len(key) - 1)
        scores = _scores(query[rows], key[place.reshape(-1)].unflatten(0, place.shape), weights[rows], reduce_scores)
        scores.masked_fill_(~seen[rows], -torch.inf)
        columns = _best(scores, topk).long()
        found = ids[rows].gather(1, columns.clamp(min=0))
        taken[rows] = torch.where(columns < 0, -1, found).int()
    return taken


@exactly
def _scores(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, reduce_scores: Reduce) -> torch.Tensor:
    """Index scores ``[C, n]`` of rows with keys ``[n, dim]``, or ``[C, n, dim]`` of their own; float32."""
    active = (query.float() @ keys.float().mT).relu_()
    scores = torch.einsum("chn,ch->cn", active, weights.float())
    return scores if reduce_scores is None else reduce_scores(scores)


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Columns of the best ``count`` finite scores, ascending, -1 at the tail; equal scores by lower column."""
    width = min(count, scores.shape[1])
    columns = choose(scores, width)
    found = torch.where(scores.gather(1, columns) == -torch.inf, scores.shape[1], columns).sort(dim=1).values
    found = torch.where(found == scores.shape[1], -1, found)
    return pad(found, (0, count - width), value=-1).int()
