"""Decoder layout: the token intervals of one parent rank, and how its tensors are sliced.

Rules BATCH-31 to BATCH-33 of ``specs/batch.md``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers, named_plan_value
from hpfun.batch.plan import BatchPlan, check_plan
from hpfun.errors import PlanError, refusal
from hpfun.rows import cut, joined, runs_of

_CODE = "HP-ENCODER-004"
Intervals = tuple[tuple[int, int], ...]


@named_plan_value
class DecoderSequenceLayout:
    """The positions of the padded pack that one parent rank holds, in the order of its rows.

    ``intervals`` are half-open; ``global_start`` and ``global_stop`` are the one interval of a contiguous layout, None
    in zigzag. Of the CP shard of ``cp_local_length`` rows they are ``[cp_local_start, cp_local_stop)``: all, or with
    sequence parallelism an equal part. Made by ``build`` or ``decoder_layout``. Raises HP-ENCODER-004.
    """

    sequence_parallel: bool
    cp_rank: int = integer_field(_CODE, least=0)
    cp_size: int = integer_field(_CODE, least=1)
    tp_rank: int = integer_field(_CODE, least=0)
    tp_size: int = integer_field(_CODE, least=1)
    cp_local_length: int = integer_field(_CODE, least=1)
    global_sequence_length: int = integer_field(_CODE, least=1)
    cp_local_start: int = integer_field(_CODE, least=0)
    cp_local_stop: int = integer_field(_CODE, least=1)
    global_start: int | None = attrs.field(converter=lambda value: _place(value, "global_start"))
    global_stop: int | None = attrs.field(converter=lambda value: _place(value, "global_stop"))
    intervals: Intervals = attrs.field(converter=lambda pairs: _pairs(pairs))

    digest = content_digest

    def __attrs_post_init__(self):
        check_coordinates(self.cp_rank, self.cp_size, self.tp_rank, self.tp_size)
        start, stop = _own_part(self.cp_local_length, self.tp_rank, self.tp_size, self.sequence_parallel)
        rows = sum(last - first for first, last in self.intervals)
        expected: dict[str, tuple[Any, Any]] = {
            "cp_local_start": (self.cp_local_start, start),
            "cp_local_stop": (self.cp_local_stop, stop),
            "global_sequence_length": (self.global_sequence_length, self.cp_size * self.cp_local_length),
            "intervals": (rows, stop - start),
        }
        if self.global_start is not None or self.global_stop is not None:
            first = self.cp_rank * self.cp_local_length
            expected["global_start"] = (self.global_start, first + start)
            expected["global_stop"] = (self.global_stop, first + stop)
            expected["intervals"] = (self.intervals, ((first + start, first + stop),))
        for name, (actual, needed) in expected.items():
            if actual != needed:
                raise _misfit(self, name, actual, needed)
        _check_apart(self.intervals, self.global_sequence_length)

    @classmethod
    def build(
        cls,
        *,
        cp_rank: int,
        cp_size: int,
        cp_local_length: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        sequence_parallel: bool = False,
        shard: Sequence[tuple[int, int]] | None = None,
    ) -> "DecoderSequenceLayout":
        """The layout of one parent rank from sizes; ``shard`` are the intervals of its CP rank, contiguous by default.

        Raises HP-ENCODER-004 for a coordinate outside the sizes, a shard without rows, or one that sequence
        parallelism does not divide.

        >>> layout = DecoderSequenceLayout.build(cp_rank=1, cp_size=2, cp_local_length=4, tp_size=2, tp_rank=1)
        >>> layout.intervals, layout.global_start
        (((4, 8),), 4)
        """
        cp_rank, tp_rank = check_coordinates(cp_rank, cp_size, tp_rank, tp_size)
        local = integer(cp_local_length, "cp_local_length", _CODE, least=1, most=INT64_MAX // cp_size)
        start, stop = _own_part(local, tp_rank, tp_size, sequence_parallel)
        held = ((cp_rank * local, (cp_rank + 1) * local),) if shard is None else _pairs(shard)
        _check_shard(held, cp_rank, tp_rank, local, cp_size * local)
        intervals = _cut(held, start, stop)
        whole = intervals[0] if shard is None else (None, None)
        return cls(
            sequence_parallel=sequence_parallel,
            cp_rank=cp_rank,
            cp_size=cp_size,
            tp_rank=tp_rank,
            tp_size=tp_size,
            cp_local_length=local,
            global_sequence_length=cp_size * local,
            cp_local_start=start,
            cp_local_stop=stop,
            global_start=whole[0],
            global_stop=whole[1],
            intervals=intervals,
        )

    @property
    def num_rows(self) -> int:
        """Rows of this rank's hidden states."""
        return self.cp_local_stop - self.cp_local_start

    def check_rows(self, extent: int, *, whole_shard: bool, where: str) -> None:
        """HP-ENCODER-004 unless a tensor has the rows of the CP shard, or of this rank's part of it."""
        expected = self.cp_local_length if whole_shard else self.num_rows
        if extent != expected:
            raise _misfit(self, where, extent, expected)


def decoder_layout(plan: BatchPlan, cp_rank: int, tp_rank: int = 0) -> DecoderSequenceLayout:
    """The token intervals of one parent rank of a plan; HP-ENCODER-004 for one outside its topology.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> plan = plan_batch((8,), BatchTopology(2, 2, sequence_parallel=True), layout="zigzag")
    >>> [decoder_layout(plan, 0, tp_rank).intervals for tp_rank in range(2)]
    [((0, 2),), ((6, 8),)]
    """
    topology = check_plan(plan).topology
    cp_rank, tp_rank = check_coordinates(cp_rank, topology.cp_size, tp_rank, topology.tp_size)
    return DecoderSequenceLayout.build(
        cp_rank=cp_rank,
        cp_size=topology.cp_size,
        cp_local_length=plan.local_length,
        tp_rank=tp_rank,
        tp_size=topology.tp_size,
        sequence_parallel=topology.sequence_parallel,
        shard=None if plan.layout == "contiguous" else joined(*plan.pieces(cp_rank)[1:]).spans,
    )


def token_mask_slice(mask_length: int | None, hidden_length: int, tp_rank: int, tp_size: int) -> tuple[int, int] | None:
    """Which tokens of a mask belong to a rank's hidden states, ``[start, stop)``; None without a mask.

    A mask as long as the hidden states is used as it is, one of all TP ranks' rows is cut. Raises HP-BATCH-014 for any
    other length, HP-ENCODER-004 for a rank outside the group.

    >>> token_mask_slice(8, 4, tp_rank=1, tp_size=2), token_mask_slice(4, 4, 1, 2), token_mask_slice(None, 4, 1, 2)
    ((4, 8), (0, 4), None)
    """
    _, tp_rank = check_coordinates(0, 1, tp_rank, tp_size)
    hidden = integer(hidden_length, "hidden_length", "HP-BATCH-014", least=0)
    if mask_length is None:
        return None
    mask = integer(mask_length, "mask_length", "HP-BATCH-014", least=0)
    if mask == hidden:
        return 0, hidden
    if mask == hidden * tp_size:
        return tp_rank * hidden, (tp_rank + 1) * hidden
    message = f"{mask} tokens for {hidden} rows on each of {tp_size} ranks"
    advice = f"pass a mask of {hidden} or of {hidden * tp_size} tokens"
    raise refusal("HP-BATCH-014", "mask_length", message, advice, mask=mask, hidden=hidden, tp_size=tp_size)


def check_coordinates(cp_rank: object, cp_size: object, tp_rank: object, tp_size: object) -> tuple[int, int]:
    """Ranks as Python ints inside their groups, or HP-ENCODER-004."""
    found = []
    for name, rank, size in (("cp_rank", cp_rank, cp_size), ("tp_rank", tp_rank, tp_size)):
        group = integer(size, name.replace("rank", "size"), _CODE, least=1, most=INT64_MAX)
        try:
            found.append(integer(rank, name, _CODE, least=0, most=group - 1))
        except PlanError as error:
            facts = {"actual": repr(rank)[:60], "expected": f"0..{group - 1}", "interval": None}
            coordinates = {"cp_rank": cp_rank, "tp_rank": tp_rank}
            message = error.violations[0].message
            raise refusal(_CODE, name, message, f"use 0..{group - 1}", **facts, **coordinates) from None
    return found[0], found[1]


def _own_part(local: int, tp_rank: int, tp_size: int, sequence_parallel: object) -> tuple[int, int]:
    """The rows of a CP shard that a TP rank holds."""
    if type(sequence_parallel) is not bool:
        kind = type(sequence_parallel).__name__
        raise refusal(_CODE, "sequence_parallel", f"needs a bool, got {kind}", actual=kind, expected="bool")
    if not sequence_parallel:
        return 0, local
    if local % tp_size:
        facts = {"actual": local, "expected": f"a multiple of {tp_size}", "tp_rank": tp_rank}
        message = f"{local} rows do not divide by {tp_size} ranks"
        raise refusal(_CODE, "cp_local_length", message, "use the padded length of a batch plan", **facts)
    part = local // tp_size
    return tp_rank * part, (tp_rank + 1) * part


def _place(value: object, name: str) -> int | None:
    return None if value is None else integer(value, name, _CODE, least=0, most=INT64_MAX)


def _pairs(pairs: Any) -> Intervals:
    ends = [integers(pair, "intervals", _CODE).tolist() for pair in (pairs if isinstance(pairs, Iterable) else [pairs])]
    for pair in ends:
        if len(pair) != 2 or not 0 <= pair[0] < pair[1]:
            facts: dict[str, Any] = {"actual": tuple(pair), "expected": "0 <= start < stop", "interval": tuple(pair)}
            raise refusal(_CODE, "intervals", f"{tuple(pair)} holds no row", "pass (start, stop) pairs", **facts)
    return tuple((start, stop) for start, stop in ends)


def _check_apart(intervals: Intervals, length: int) -> None:
    """HP-ENCODER-004 where a position is outside the pack, or listed twice."""
    before = 0
    for start, stop in sorted(intervals):
        if start < before or stop > length:
            facts: dict[str, Any] = {"actual": (start, stop), "expected": (before, length), "interval": (start, stop)}
            message = f"[{start}, {stop}) where [{before}, {length}) is left"
            raise refusal(_CODE, "intervals", message, "list each position of the pack once", **facts)
        before = stop


def _check_shard(held: Intervals, cp_rank: int, tp_rank: int, local: int, length: int) -> None:
    """HP-ENCODER-004 unless the intervals are as many positions as a CP rank has, each once."""
    _check_apart(held, length)
    rows = sum(last - first for first, last in held)
    if rows != local:
        facts: dict[str, Any] = {"actual": rows, "expected": local, "cp_rank": cp_rank, "tp_rank": tp_rank}
        message, advice = f"{rows} rows, the CP rank has {local}", "pass all intervals of the CP rank"
        raise refusal(_CODE, "shard", message, advice, **facts, interval=held[:4])


def _cut(intervals: Intervals, start: int, stop: int) -> Intervals:
    """The rows ``[start, stop)`` of the rows that the intervals list, adjacent ones joined."""
    head, _ = cut(joined(*np.array(intervals, np.int64).T), stop)
    firsts, lasts = runs_of(cut(head, start)[1])
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _misfit(layout: DecoderSequenceLayout, where: str, actual: object, expected: object) -> PlanError:
    shown = layout.intervals[:4]
    return refusal(
        _CODE,
        where,
        f"{actual}, the plan has {expected}",
        "use the padded length of the batch plan",
        actual=actual,
        expected=expected,
        cp_rank=layout.cp_rank,
        tp_rank=layout.tp_rank,
        interval=shown,
    )
