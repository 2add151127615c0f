"""Batch plan: a packed batch padded and laid out over context-parallel ranks, once for all per-token tensors.

A *source* is a token of the batch as it came, a *position* one of the padded pack. Rules BATCH-2 to BATCH-9, BATCH-19
and BATCH-21 of ``specs/batch.md``.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from hpfun._fields import content_digest, integers, integers_field, plan_value, readonly, sealed
from hpfun.batch.layouts import BY_NAME, LAYOUTS, Pieces
from hpfun.documents import PackedDocuments
from hpfun.errors import Violation, collect, in_order, refusal, refuse_all
from hpfun.intervals import expand
from hpfun.rows import RowRuns, joined
from hpfun.sharding.degrees import sequence_alignment
from hpfun.topology import BatchTopology, at_least_one


def required_global_alignment(topology: BatchTopology) -> int:
    """What the padded length is a multiple of: two chunks for each CP rank, and equal parts for its TP ranks.

    The same for both layouts, so that a batch can change its layout without more padding than zigzag's own; so it is
    a multiple of the ``sequence_alignment`` of either. Raises HP-BATCH-001.

    >>> [required_global_alignment(BatchTopology(cp, tp, True)) for cp, tp in ((4, 4), (4, 2), (2, 3), (1, 1))]
    [16, 8, 12, 2]
    """
    group = _topology(topology)
    sizes = group.cp_size, group.tp_size, group.sequence_parallel
    return math.lcm(2 * group.cp_size, sequence_alignment(*sizes, "contiguous"))


def layout_name(value: object) -> str:
    """``value`` as the name of a layout; HP-BATCH-004."""
    if type(value) is str and value in LAYOUTS:
        return value
    got = repr(value)[:60]
    raise refusal("HP-BATCH-004", "layout", f"got {got}", f"use {' or '.join(LAYOUTS)}", layout=got, known=LAYOUTS)


@plan_value
class BatchPlan:
    """Where every token of a packed batch lies on every CP rank; made by ``plan_batch``.

    ``lengths`` are the tokens of the documents that have some, int64; ``dropped_documents`` the numbers that those
    without had in the list that was planned. The padded length is a multiple of ``alignment``. All else follows.
    Raises HP-BATCH-001, 002 and 004.
    """

    topology: BatchTopology = attrs.field(converter=lambda value: _topology(value))
    layout: str = attrs.field(converter=layout_name)
    alignment: int = attrs.field(converter=lambda value: at_least_one(value, "alignment"))
    lengths: Any = attrs.field(converter=lambda values: document_lengths(values, least=1))
    dropped_documents: Any = integers_field("HP-BATCH-002", default=())

    digest = content_digest

    def __attrs_post_init__(self):
        refuse_all(
            (*_alignment_violations(self.alignment, self.topology, len(self.lengths)), *_dropped_violations(self))
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch as it came."""
        return int(self.lengths.sum())

    @cached_property
    def padded_lengths(self) -> np.ndarray:
        """Tokens of the documents with their padding; where more is needed, one more document of padding; int64."""
        step = 2 * self.topology.cp_size if self.layout == "zigzag" else 1
        padded = -(-self.lengths // step) * step
        used = int(padded.sum())
        missing = -used % self.alignment if used else self.alignment
        return readonly(np.append(padded, missing) if missing else padded)

    @cached_property
    def cu_seq_lens(self) -> np.ndarray:
        """Cumulative ends of the padded documents with a leading 0; int64, strictly rising."""
        return readonly(np.concatenate(([0], np.cumsum(self.padded_lengths))))

    @property
    def padded_length(self) -> int:
        """Tokens of the padded pack."""
        return int(self.cu_seq_lens[-1])

    @property
    def local_length(self) -> int:
        """Rows of one CP rank's shard."""
        return self.padded_length // self.topology.cp_size

    @cached_property
    def padding(self) -> RowRuns:
        """The positions that hold no token, as intervals."""
        return joined(self.cu_seq_lens[:-1] + self.real_lengths, self.cu_seq_lens[1:])

    @cached_property
    def position_ids(self) -> np.ndarray:
        """Place of each position in its padded document; int64 ``[padded_length]``."""
        return sealed(expand(np.zeros_like(self.padded_lengths), self.padded_lengths))

    @cached_property
    def sources(self) -> np.ndarray:
        """The token at each position, -1 for padding; int64 ``[padded_length]``."""
        sources = expand(self.first_sources, self.first_sources + self.padded_lengths)
        sources[expand(self.padding.starts, self.padding.stops)] = -1
        return sealed(sources)

    @cached_property
    def first_sources(self) -> np.ndarray:
        """First token of each padded document, the number of all tokens for one of padding; int64."""
        firsts = np.concatenate(([0], np.cumsum(self.lengths)))
        return readonly(firsts[: len(self.padded_lengths)])

    @cached_property
    def real_lengths(self) -> np.ndarray:
        """Tokens of each padded document, 0 for one of padding; int64."""
        real = np.zeros(len(self.padded_lengths), np.int64)
        real[: len(self.lengths)] = self.lengths
        return readonly(real)

    @cached_property
    def shards(self) -> tuple[RowRuns, ...]:
        """The positions of each CP rank, in the order of its rows, as intervals."""
        size = self.topology.cp_size
        return tuple(map(joined, *BY_NAME[self.layout].shards(self.cu_seq_lens, size, np.arange(size))))

    def pieces(self, cp_rank: int) -> Pieces:
        """The consecutive rows of each document on a rank, in the order of its rows."""
        return BY_NAME[self.layout].pieces(self.cu_seq_lens, self.topology.cp_size, cp_rank)

    def real_rows(self, cp_rank: int, ahead: int = 0) -> int:
        """Rows of a rank with a token that has ``ahead`` more behind it in its document; costs O(documents)."""
        documents, starts, stops = self.pieces(cp_rank)
        ends = self.cu_seq_lens[:-1] + np.maximum(self.real_lengths - ahead, 0)
        return int(np.maximum(np.minimum(stops, ends[documents]) - starts, 0).sum())


def check_plan(value: object, where: str = "plan") -> BatchPlan:
    """``value`` as it is, or HP-BATCH-007 for what is no batch plan."""
    if isinstance(value, BatchPlan):
        return value
    kind = type(value).__name__
    raise refusal("HP-BATCH-007", where, f"needs a BatchPlan, got {kind}", "pass a plan", digests=(), type=kind)


def plan_batch(
    lengths: object,
    topology: BatchTopology,
    *,
    layout: str = "contiguous",
    alignment: int | None = None,
    capacity: int | None = None,
) -> BatchPlan:
    """The plan of a packed batch of documents of ``lengths`` tokens, 0 included.

    ``lengths`` is a sequence of integers, an array, a CPU tensor or ``PackedDocuments``; ``alignment`` a multiple of
    what the topology requires, that by default; ``capacity`` the most padded tokens. Costs O(documents): arrays over
    tokens are made when first read. Raises HP-BATCH-001, 002 and 004, all violations at once, and HP-BATCH-013.

    >>> plan = plan_batch((3, 5), BatchTopology(2), layout="zigzag")
    >>> plan.padded_length, plan.cu_seq_lens.tolist(), [shard.spans for shard in plan.shards]
    (12, [0, 4, 12], [((0, 1), (3, 6), (10, 12)), ((1, 3), (6, 10))])
    """
    found: list[Violation] = []
    group = collect(found, _topology, topology)
    every = collect(found, document_lengths, lengths)
    collect(found, layout_name, layout)
    least = required_global_alignment(group) if group else 1
    multiple = least if alignment is None else collect(found, at_least_one, alignment, "alignment")
    most = None if capacity is None else collect(found, at_least_one, capacity, "capacity")
    if group is not None and multiple is not None:
        found += _alignment_violations(multiple, group, 0 if every is None else len(every))
    if group is None or every is None or multiple is None or found:
        raise in_order(found)
    plan = BatchPlan(group, layout, multiple, readonly(every[every > 0]), readonly(np.flatnonzero(every == 0)))
    if most is not None and plan.padded_length > most:
        raw, padded = plan.num_tokens, plan.padded_length
        message = f"{raw} tokens are {padded} with padding, the capacity is {most}"
        advice = f"allow {padded}, or leave documents out"
        raise refusal("HP-BATCH-013", "capacity", message, advice, padded=padded, raw=raw, capacity=most)
    return plan


def document_lengths(values: object, least: int = 0) -> np.ndarray:
    """``values`` as int64 lengths, each at least ``least``; HP-BATCH-002."""
    lengths = integers(values.lengths if isinstance(values, PackedDocuments) else values, "lengths", "HP-BATCH-002")
    if len(lengths) and int(lengths.min()) < least:
        at = int(lengths.argmin())
        message = f"document {at} has {lengths[at]} tokens"
        facts = {"document": at, "length": int(lengths[at]), "least": least}
        raise refusal("HP-BATCH-002", "lengths", message, "pass tokens of documents, not their ends", **facts)
    if float(lengths.sum(dtype=np.float64)) > 2.0**61:
        raise refusal("HP-BATCH-002", "lengths", "more tokens than int64 counts with padding", "", most=2**61)
    return lengths


def _topology(value: object) -> BatchTopology:
    if isinstance(value, BatchTopology):
        return value
    facts = {"name": "topology", "value": repr(value)[:60], "required": "a BatchTopology"}
    raise refusal("HP-BATCH-001", "topology", f"needs a BatchTopology, got {facts['value']}", "pass one", **facts)


def _alignment_violations(alignment: int, topology: BatchTopology, documents: int) -> Iterator[Violation]:
    needed = required_global_alignment(topology)
    largest = (2**62) // (documents + 1)
    if alignment % needed == 0 and alignment <= largest:
        return
    facts = {"name": "alignment", "value": alignment, "required": needed}
    if alignment > largest:
        message = f"{alignment} positions for each of {documents} documents are beyond int64"
        advice = "use fewer ranks" if needed > largest else f"use a smaller multiple of {needed}"
    else:
        message, advice = f"got {alignment}, the topology needs {needed}", f"use a multiple of {needed}"
    yield Violation("HP-BATCH-001", "alignment", message, facts, advice)


def _dropped_violations(plan: BatchPlan) -> Iterator[Violation]:
    dropped, count = plan.dropped_documents, len(plan.lengths) + len(plan.dropped_documents)
    if len(dropped) and (dropped[0] < 0 or dropped[-1] >= count or (np.diff(dropped) <= 0).any()):
        message = f"are not rising numbers of {count} documents"
        yield Violation("HP-BATCH-002", "dropped_documents", message, {"documents": count, "dropped": len(dropped)})
