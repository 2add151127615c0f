"""Greedy balance: longest processing time first over fixed blocks (Graham, 1969).

Rules GREEDY-1 to GREEDY-4 of ``specs/indexer.md``.
"""

import heapq
import math

import numpy as np

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.indexer.assigned import Assigned, stretch_works
from hpfun.indexer.options import DEFAULT_BLOCK_SIZE, IndexerOptions

Entry = tuple[float, int, int]  # load, rows, rank; loads are ints, the infinite one is nobody's
NOBODY: Entry = (math.inf, 0, -1)


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


class _Workers:
    """Workers in heaps by the rows that still fit on them; all with room for the widest task share one heap.

    A tree holds the least entry of every range of rooms, so that looking past full workers costs a logarithm
    of the widest task and not a walk over the group.
    """

    def __init__(self, loads: list[int], rows: list[int], capacity: int | None, widest: int):
        # without a capacity everybody has room, and nobody is ever looked past
        self.capacity, self.widest = capacity, 0 if capacity is None else widest
        self.heaps: list[list[Entry]] = [[] for _ in range(self.widest + 1)]
        self.least_of = [NOBODY] * (2 * self.widest)
        for entry in zip(loads, rows, range(len(loads)), strict=True):
            self.add(entry)

    def take(self, length: int) -> Entry:
        """Remove and return the least (load, rows, rank) with room for ``length`` rows, or ``NOBODY``."""
        roomy = self.heaps[self.widest]
        best = roomy[0] if roomy else NOBODY
        if length < self.widest:
            low, high = length + self.widest, 2 * self.widest
            while low < high:
                if low & 1:
                    best = min(best, self.least_of[low])
                    low += 1
                if high & 1:
                    high -= 1
                    best = min(best, self.least_of[high])
                low, high = low // 2, high // 2
        if best is not NOBODY:
            room = self.room(best)
            heapq.heappop(self.heaps[room])
            self.renew(room)
        return best

    def add(self, entry: Entry) -> None:
        room = self.room(entry)
        heapq.heappush(self.heaps[room], entry)
        self.renew(room)

    def room(self, entry: Entry) -> int:
        """Rows that fit on a worker, at most ``widest``, at least 0."""
        return self.widest if self.capacity is None else max(min(self.capacity - entry[1], self.widest), 0)

    def renew(self, room: int) -> None:
        if room < self.widest:
            at = room + self.widest
            self.least_of[at] = self.heaps[room][0] if self.heaps[room] else NOBODY
            while at > 1:
                at //= 2
                self.least_of[at] = min(self.least_of[2 * at], self.least_of[2 * at + 1])


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
    found = _Workers(loads.tolist(), rows.tolist(), capacity, int(lengths.max(initial=1)))
    workers = np.empty(len(works), dtype=np.int64)
    order = np.lexsort((starts, -works))
    for task, work, length in zip(order.tolist(), works[order].tolist(), lengths[order].tolist(), strict=True):
        load, held, worker = found.take(length)
        if worker < 0:
            raise refusal(
                "HP-INDEX-006",
                "capacity",
                f"a task of {length} rows fits on no worker with at most {capacity} rows",
                "raise capacity or lower block_size",
                capacity=capacity,
                task_rows=length,
                room=max(room for room, heap in enumerate(found.heaps) if heap),
            )
        workers[task] = worker
        found.add((load + work, held + length, worker))
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
