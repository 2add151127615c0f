"""The task plan: which worker scores which rows, for all ranks of the group.

A task is a stretch of rows of one document. The plan holds all of them as arrays, in worker order, and
everything that people ask of a plan (loads, moved rows, one rank's view) is derived from those arrays. Rules
PLAN-1 to PLAN-7 of ``specs/indexer.md``.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpfun._fields import content_digest, integer, integer_field, integers_field, plan_value, readonly
from hpfun.compression.offsets import key_offsets
from hpfun.documents import PackedDocuments, check_lengths
from hpfun.errors import Violation, collect, in_order, refusal
from hpfun.indexer.assigned import Assigned, stretch_works
from hpfun.indexer.greedy import greedy
from hpfun.indexer.locality import locality
from hpfun.indexer.options import IndexerMode, IndexerOptions
from hpfun.indexer.work import check_work_range
from hpfun.indexer.zigzag import hybrid, zigzag
from hpfun.intervals import overlap_rows
from hpfun.shards import check_rank


@plan_value
class IndexerTask:
    """Global rows ``[start, stop)`` of one document, and the pairs that they score."""

    document: int = integer_field("HP-INDEX-010", least=0)
    start: int = integer_field("HP-INDEX-010", least=0)
    stop: int = integer_field("HP-INDEX-010", least=1)
    work: int = integer_field("HP-INDEX-010", least=0)

    digest = content_digest

    def __attrs_post_init__(self):
        if self.start >= self.stop:
            raise refusal("HP-INDEX-010", "stop", f"rows {self.start}..{self.stop}", start=self.start, stop=self.stop)


@plan_value
class IndexerTaskPlan:
    """Who scores which rows, on all ranks; made by ``indexer_task_plan``.

    ``task_starts``, ``task_stops`` (global rows) and ``task_workers`` are int64 arrays in worker order, then by
    start, neighbours of one document merged. Together the tasks cover every row once and none crosses a
    document; anything else is HP-INDEX-010.
    """

    documents: PackedDocuments
    size: int
    ratio: int
    options: IndexerOptions
    task_starts: Any = integers_field("HP-INDEX-010")
    task_stops: Any = integers_field("HP-INDEX-010")
    task_workers: Any = integers_field("HP-INDEX-010")

    digest = content_digest

    def __attrs_post_init__(self):
        if not isinstance(self.documents, PackedDocuments) or not isinstance(self.options, IndexerOptions):
            kinds = (type(self.documents).__name__, type(self.options).__name__)
            raise refusal(
                "HP-INDEX-010", "documents", f"needs PackedDocuments and IndexerOptions, got {kinds}", types=kinds
            )
        local = check_group(self.documents, self.size, self.ratio)
        object.__setattr__(self, "size", self.documents.total // local)
        object.__setattr__(self, "ratio", int(self.ratio))
        check_work_range(self.documents, self.ratio, self.options.row_cost)
        _check_cover(self)

    @property
    def local_rows(self) -> int:
        """Rows that each rank owns."""
        return self.documents.total // self.size

    @cached_property
    def task_documents(self) -> np.ndarray:
        """Document of each task; int64."""
        return readonly(self.documents.documents_at(self.task_starts))

    @cached_property
    def task_works(self) -> np.ndarray:
        """Pairs that each task scores, row cost included; int64."""
        works = stretch_works(self.documents, self.task_starts, self.task_stops, self.ratio, self.options.row_cost)
        return readonly(works)

    @cached_property
    def task_order(self) -> np.ndarray:
        """Index of the tasks by start: the order of the rows; int64."""
        return readonly(np.argsort(self.task_starts, kind="stable"))

    @cached_property
    def worker_offsets(self) -> np.ndarray:
        """Worker w has tasks ``[worker_offsets[w], worker_offsets[w + 1])``; int64 ``[size + 1]``."""
        return readonly(np.searchsorted(self.task_workers, np.arange(self.size + 1)))

    @property
    def key_offsets(self) -> np.ndarray:
        """First key of each document in the gathered bank, and the number of keys; int64 ``[num_documents + 1]``."""
        return key_offsets(self.documents, self.ratio)

    @cached_property
    def loads(self) -> np.ndarray:
        """Pairs that each worker scores; int64 ``[size]``."""
        return readonly(self._per_worker(self.task_works))

    @cached_property
    def row_counts(self) -> np.ndarray:
        """Rows that each worker scores; int64 ``[size]``."""
        return readonly(self._per_worker(self.task_stops - self.task_starts))

    @cached_property
    def home_rows(self) -> np.ndarray:
        """Rows of each task that its worker owns; int64."""
        low = self.task_workers * self.local_rows
        return readonly(overlap_rows(self.task_starts, self.task_stops, low, low + self.local_rows))

    @property
    def moved_rows(self) -> int:
        """Rows whose worker is not their owner."""
        return self.documents.total - int(self.home_rows.sum())

    @property
    def imbalance(self) -> float:
        """Greatest load over mean load; 1.0 if there is no work."""
        total = int(self.loads.sum())
        return int(self.loads.max()) * self.size / total if total else 1.0

    def worker_tasks(self, rank: int) -> tuple[IndexerTask, ...]:
        """Tasks of one worker, by start; HP-INDEX-007 for a rank outside the group.

        >>> plan = indexer_task_plan((5, 3, 8), 2, 1, "none")
        >>> [(task.document, task.start, task.stop, task.work) for task in plan.worker_tasks(0)]
        [(0, 0, 5, 15), (1, 5, 8, 6)]
        """
        rank = check_rank(rank, self.size, "HP-INDEX-007")
        mine = slice(self.worker_offsets[rank], self.worker_offsets[rank + 1])
        parts = (self.task_documents, self.task_starts, self.task_stops, self.task_works)
        return tuple(IndexerTask(*task) for task in zip(*(part[mine].tolist() for part in parts), strict=True))

    def _per_worker(self, amounts: np.ndarray) -> np.ndarray:
        ends = np.concatenate(([0], np.cumsum(amounts)))
        return ends[self.worker_offsets[1:]] - ends[self.worker_offsets[:-1]]


def check_group(documents: PackedDocuments, size: int, ratio: int) -> int:
    """Rows of one shard; HP-INDEX-002 unless size and ratio are positive ints and size divides the tokens."""
    local = documents.shard_rows(size, "HP-INDEX-002")
    integer(ratio, "ratio", "HP-INDEX-002", least=1)
    return local


def read_documents(lengths: object) -> PackedDocuments:
    """``lengths`` as ``PackedDocuments`` (or that value itself), or HP-INDEX-001."""
    if isinstance(lengths, PackedDocuments):
        return lengths
    return PackedDocuments(check_lengths(lengths, "lengths", "HP-INDEX-001"))


def _check_cover(plan: IndexerTaskPlan) -> None:
    starts, stops, workers = plan.task_starts, plan.task_stops, plan.task_workers

    def refuse(where: str, message: str, **facts: object):
        return refusal("HP-INDEX-010", where, message, "build plans with indexer_task_plan", **facts)

    if not len(starts) == len(stops) == len(workers) or not len(starts):
        raise refuse(
            "task_starts", "task arrays differ in length or are empty", lengths=(len(starts), len(stops), len(workers))
        )
    order = plan.task_order
    ordered, ends = starts[order], stops[order]
    if (
        ordered[0] != 0
        or ends[-1] != plan.documents.total
        or (ordered[1:] != ends[:-1]).any()
        or (stops <= starts).any()
    ):
        raise refuse(
            "task_starts",
            "tasks do not cover every row once",
            rows=int((stops - starts).sum()),
            tokens=plan.documents.total,
        )
    crossing = np.flatnonzero(stops > plan.documents.boundaries[plan.task_documents + 1])
    if len(crossing):
        at = int(crossing[0])
        raise refuse(
            "task_stops", f"task {at} crosses a document end", task=at, start=int(starts[at]), stop=int(stops[at])
        )
    same = workers[1:] == workers[:-1]
    meets = same & (starts[1:] == stops[:-1]) & (plan.task_documents[1:] == plan.task_documents[:-1])
    if meets.any():
        at = int(meets.argmax()) + 1
        raise refuse("task_starts", f"task {at} is not merged with its neighbour", task=at, start=int(starts[at]))
    if (
        workers[0] < 0
        or workers[-1] >= plan.size
        or (workers[1:] < workers[:-1]).any()
        or (same & (starts[1:] < stops[:-1])).any()
    ):
        raise refuse("task_workers", "tasks are not in order of worker, then start", size=plan.size)


def _owners_keep(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> Assigned:
    """Tasks of mode none: each shard's rows stay where they are."""
    local = documents.total // size
    cuts = np.union1d(documents.boundaries, np.arange(0, documents.total, local))
    return Assigned(cuts[:-1], cuts[1:], cuts[:-1] // local)


_PLANNERS: dict[IndexerMode, Callable[[PackedDocuments, int, int, IndexerOptions], Assigned]] = {
    IndexerMode.NONE: _owners_keep,
    IndexerMode.ZIGZAG: zigzag,
    IndexerMode.GREEDY: greedy,
    IndexerMode.HYBRID: hybrid,
    IndexerMode.LOCALITY: locality,
}


def indexer_task_plan(
    lengths: object,
    size: int,
    ratio: int,
    mode: str,
    block_size: int | None = None,
    zigzag_min_length: int | None = None,
    capacity: int | None = None,
    tolerance_ppm: int = 0,
    row_cost: int = 0,
    ranks_per_node: int | None = None,
) -> IndexerTaskPlan:
    """Who scores which rows of a packed batch, for ``size`` ranks of equal contiguous shards.

    ``lengths`` are document lengths in tokens (or ``PackedDocuments``), ``ratio`` the tokens behind one key,
    ``mode`` one of none, zigzag, greedy, hybrid, locality; the other options as in ``IndexerOptions``. Equal
    arguments give equal plans in every process. Raises HP-INDEX-001 to 006, 009 and 011; what is wrong with several
    arguments is one error.

    >>> plan = indexer_task_plan((5, 3, 8), 2, 1, "locality")
    >>> plan.loads.tolist(), plan.moved_rows
    ([29, 28], 1)
    """
    violations: list[Violation] = []
    documents = collect(violations, read_documents, lengths)
    local = None if documents is None else collect(violations, check_group, documents, size, ratio)
    given = (mode, block_size, zigzag_min_length, capacity, tolerance_ppm, row_cost, ranks_per_node)
    options = collect(violations, IndexerOptions, *given)
    if documents is None or local is None or options is None:
        raise in_order(violations)
    if options.block_size is not None and options.block_size > local:
        given = "" if block_size is not None else " (the default)"
        raise refusal(
            "HP-INDEX-004",
            "block_size",
            f"a block of {options.block_size} rows{given} is larger than a shard of {local}",
            f"pass block_size={local} or less",
            block_size=options.block_size,
            local=local,
        )
    return _plan(documents, documents.total // local, int(ratio), options)


@lru_cache(maxsize=16)
def _plan(documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions) -> IndexerTaskPlan:
    """The plan, computed once for equal arguments: the layers of a step and the ranks of a host share it."""
    check_work_range(documents, ratio, options.row_cost)
    return _assemble(documents, size, ratio, options, _PLANNERS[options.mode](documents, size, ratio, options))


def _assemble(
    documents: PackedDocuments, size: int, ratio: int, options: IndexerOptions, assigned: Assigned
) -> IndexerTaskPlan:
    """Bring tasks into worker order and merge neighbours of one document on one worker."""
    order = np.lexsort((assigned.starts, assigned.workers))
    starts, stops, workers = assigned.starts[order], assigned.stops[order], assigned.workers[order]
    meets = (stops[:-1] == starts[1:]) & (workers[:-1] == workers[1:])
    same = documents.documents_at(starts)
    meets &= same[:-1] == same[1:]
    head, tail = np.concatenate(([True], ~meets)), np.concatenate((~meets, [True]))
    return IndexerTaskPlan(documents, size, ratio, options, *map(readonly, (starts[head], stops[tail], workers[head])))
