"""Greedy balance: longest processing time first over fixed blocks (Graham, 1969).

Rules GREEDY-1 to GREEDY-4 of ``specs/indexer.md``.
"""

import heapq

import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.assigned import Assigned, stretch_works
from hpfun.indexer.options import DEFAULT_BLOCK_SIZE, IndexerOptions


def document_blocks(documents: PackedDocuments, which: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Global ``starts`` and ``stops`` of the blocks of the documents ``which``, cut from their own starts.

    >>> starts, stops = document_blocks(PackedDocuments((5, 3)), np.array([0, 1]), 2)
    >>> starts.tolist(), stops.tolist()
    ([0, 2, 4, 5, 7], [2, 4, 5, 7, 8])
    """
    lengths = documents.lengths[which]
    counts = -(-lengths // block_size)
    index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(documents.boundaries[which], counts) + index * block_size
    return starts, np.minimum(starts + block_size, np.repeat(documents.boundaries[which + 1], counts))


def place_heaviest_first(
    works: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    loads: np.ndarray,
    rows: np.ndarray,
    capacity: int | None,
) -> np.ndarray:
    """Worker of each task: by falling work, then start, each to the worker with the least (load, rows, rank).

    ``loads`` and ``rows`` ``[size]`` are what the workers hold already. Raises HP-INDEX-006 where a task fits
    on no worker within ``capacity`` rows.
    """
    heap = list(zip(loads.tolist(), rows.tolist(), range(len(loads)), strict=True))
    heapq.heapify(heap)
    workers = np.empty(len(works), dtype=np.int64)
    order = np.lexsort((starts, -works))
    for task, work, length in zip(order.tolist(), works[order].tolist(), lengths[order].tolist(), strict=True):
        full = []
        while capacity is not None and heap and heap[0][1] + length > capacity:
            full.append(heapq.heappop(heap))
        if not heap:
            room = (capacity or 0) - min(worker[1] for worker in full)
            raise refusal(
                "HP-INDEX-006",
                "capacity",
                f"a task of {length} rows fits on no worker with at most {capacity} rows",
                f"the most room left is {room} rows; raise capacity or lower block_size",
                capacity=capacity,
                task_rows=length,
                room=room,
            )
        load, held, worker = heap[0]
        workers[task] = worker
        heapq.heapreplace(heap, (load + work, held + length, worker))
        for entry in full:
            heapq.heappush(heap, entry)
    return workers


def greedy(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode greedy."""
    idle = np.zeros(size, dtype=np.int64)
    return place_blocks(documents, np.arange(documents.num_documents), ratio, options, idle, idle)


def place_blocks(
    documents: PackedDocuments,
    which: np.ndarray,
    ratio: int,
    options: IndexerOptions,
    loads: np.ndarray,
    rows: np.ndarray,
) -> Assigned:
    """The blocks of the documents ``which``, placed on workers that hold ``loads`` and ``rows`` already."""
    block_size = options.block_size or DEFAULT_BLOCK_SIZE
    # without an explicit capacity: the least that can never fail (if every worker were too full for a block,
    # more rows than the pack has would be placed)
    capacity = options.capacity or documents.total // len(loads) + block_size - 1
    starts, stops = document_blocks(documents, which, block_size)
    works = stretch_works(documents, starts, stops, ratio, options.row_cost)
    return Assigned(starts, stops, place_heaviest_first(works, starts, stops - starts, loads, rows, capacity))
