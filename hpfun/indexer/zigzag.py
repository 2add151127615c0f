"""Zigzag balance: each long document in ``2 * size`` chunks, an early and a late one for every worker.

The pairing is that of zigzag ring attention; rules ZIGZAG-1 to ZIGZAG-3 and HYBRID-1 of ``specs/indexer.md``.
"""

import numpy as np

from hpfun._fields import INT64_MAX
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.assigned import Assigned, join, stretch_works
from hpfun.indexer.greedy import place_blocks, place_heaviest_first
from hpfun.indexer.options import IndexerOptions
from hpfun.indexer.work import work_before


def zigzag_chunks(documents: PackedDocuments, which: np.ndarray, size: int) -> Assigned:
    """Tasks of the documents ``which``, cut at ``L * i // (2 * size)``; worker k gets chunks k and 2*size-1-k.

    Raises HP-INDEX-009 where length times ranks is beyond int64.

    >>> tasks = zigzag_chunks(PackedDocuments((5, 8)), np.array([1]), 2)
    >>> tasks.starts.tolist(), tasks.stops.tolist(), tasks.workers.tolist()
    ([5, 7, 9, 11], [7, 9, 11, 13], [0, 1, 1, 0])
    """
    chunks = 2 * size
    longest = int(documents.lengths.max())
    if longest * chunks > INT64_MAX:
        message = "document length times ranks is beyond int64"
        raise refusal("HP-INDEX-009", "size", message, "split the batch", longest=longest, size=size)
    cuts = documents.lengths[which, None] * np.arange(chunks + 1) // chunks + documents.boundaries[which, None]
    index = np.arange(chunks)
    workers = np.broadcast_to(np.minimum(index, chunks - 1 - index), (len(which), chunks))
    return Assigned(cuts[:, :-1].ravel(), cuts[:, 1:].ravel(), workers.ravel())


def zigzag(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode zigzag: long documents in chunks, short ones whole."""
    short, tasks, loads, rows = _cut_long(documents, size, ratio, options, 2 * size)
    starts, lengths = documents.boundaries[short], documents.lengths[short]
    works = work_before(lengths, ratio, options.row_cost)
    workers = place_heaviest_first(works, starts, lengths, loads, rows, None)
    return join((tasks, Assigned(starts, starts + lengths, workers)))


def hybrid(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode hybrid: long documents in zigzag, then blocks of the others as in greedy."""
    threshold = max(options.zigzag_min_length or 0, 2 * size)
    short, tasks, loads, rows = _cut_long(documents, size, ratio, options, threshold)
    most = int(rows.max())
    if options.capacity is not None and most > options.capacity:
        raise refusal(
            "HP-INDEX-006",
            "capacity",
            f"zigzag alone puts {most} rows on worker {rows.argmax()}",
            f"raise capacity to {most} or more, or raise zigzag_min_length",
            capacity=options.capacity,
            rows=most,
            worker=int(rows.argmax()),
        )
    return join((tasks, place_blocks(documents, short, ratio, options, loads, rows)))


def _cut_long(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions, threshold: int):
    """The documents below ``threshold``, the chunks of the others, and what those put on each worker."""
    long = documents.lengths >= threshold
    tasks = zigzag_chunks(documents, np.flatnonzero(long), size)
    loads, rows = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    np.add.at(loads, tasks.workers, stretch_works(documents, tasks.starts, tasks.stops, ratio, options.row_cost))
    np.add.at(rows, tasks.workers, tasks.stops - tasks.starts)
    return np.flatnonzero(~long), tasks, loads, rows
