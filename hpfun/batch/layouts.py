"""Layouts: which pieces of the padded pack a rank holds, contiguous or in zigzag.

Contiguous gives rank r the r-th of ``cp_size`` equal stretches. Zigzag cuts every document in ``2 * cp_size`` equal
chunks and gives rank r the r-th from the front and the r-th from the back, so that causal work is equal. Rules BATCH-17
to BATCH-19 of ``specs/batch.md``; zigzag is the load balance of ring attention in Megatron-LM and torch's context
parallelism.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hpfun.intervals import expand


class Pieces(NamedTuple):
    """Consecutive rows of one document on one rank, in the order of its rows: positions ``[starts, stops)``; int64."""

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray


def _contiguous(cu_seq_lens: np.ndarray, cp_size: int, cp_rank: int) -> Pieces:
    local = int(cu_seq_lens[-1]) // cp_size
    low, high = cp_rank * local, (cp_rank + 1) * local
    first = np.searchsorted(cu_seq_lens, low, side="right") - 1
    last = np.searchsorted(cu_seq_lens, high, side="left")
    edges = np.clip(cu_seq_lens[first : last + 1], low, high)
    return Pieces(np.arange(first, last), edges[:-1], edges[1:])


def _zigzag(cu_seq_lens: np.ndarray, cp_size: int, cp_rank: int) -> Pieces:
    starts, stops = _zigzag_shards(cu_seq_lens, cp_size, np.array([cp_rank]))
    return Pieces(np.arange(starts.size) // 2, starts[0], stops[0])


def _contiguous_shards(cu_seq_lens: np.ndarray, cp_size: int, cp_ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    local = int(cu_seq_lens[-1]) // cp_size
    return cp_ranks[:, None] * local, (cp_ranks[:, None] + 1) * local


def _zigzag_shards(cu_seq_lens: np.ndarray, cp_size: int, cp_ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    firsts, ranks = cu_seq_lens[:-1], cp_ranks[:, None]
    chunks = (cu_seq_lens[1:] - firsts) // (2 * cp_size)
    starts = np.stack((firsts + ranks * chunks, firsts + (2 * cp_size - 1 - ranks) * chunks), axis=-1)
    shape = len(cp_ranks), 2 * len(chunks)
    return starts.reshape(shape), (starts + chunks[:, None]).reshape(shape)


def _contiguous_rows(cu_seq_lens: np.ndarray, cp_size: int) -> np.ndarray:
    return np.arange(int(cu_seq_lens[-1]))


def _zigzag_rows(cu_seq_lens: np.ndarray, cp_size: int) -> np.ndarray:
    """Chunk k of a document is on rank k or, from the back, on rank 2 * cp - 1 - k, behind the documents before it."""
    firsts, numbers = cu_seq_lens[:-1], np.arange(2 * cp_size)
    chunks = (cu_seq_lens[1:] - firsts) // (2 * cp_size)
    ranks = np.minimum(numbers, 2 * cp_size - 1 - numbers) * (int(cu_seq_lens[-1]) // cp_size)
    starts = ranks + (firsts // cp_size)[:, None] + chunks[:, None] * (numbers >= cp_size)
    return expand(starts.ravel(), (starts + chunks[:, None]).ravel())


class Layout(NamedTuple):
    """How a layout lays out documents that end at ``cu_seq_lens [documents + 1]``.

    ``pieces(cu_seq_lens, cp_size, cp_rank)`` of one rank; ``shards(cu_seq_lens, cp_size, cp_ranks)`` of several, as
    starts and stops int64 ``[ranks, pieces]``; ``rows(cu_seq_lens, cp_size)`` of each position in all ranks' shards,
    one after the other.
    """

    pieces: Callable[[np.ndarray, int, int], Pieces]
    shards: Callable[[np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]
    rows: Callable[[np.ndarray, int], np.ndarray]


BY_NAME: Mapping[str, Layout] = MappingProxyType(
    {
        "contiguous": Layout(_contiguous, _contiguous_shards, _contiguous_rows),
        "zigzag": Layout(_zigzag, _zigzag_shards, _zigzag_rows),
    }
)
LAYOUTS = tuple(BY_NAME)
