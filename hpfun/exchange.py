"""RowExchange: the one value that moves rows between ranks.

One rank's part of a movement of rows from source shards to target slots. Every family that moves rows
ends here, so there is one validator, one transpose, one simulator and one executor. Rules EXCHANGE-1 to
EXCHANGE-13 of ``specs/exchange.md``.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers_field, plan_value, readonly
from hpfun.errors import PlanError, Violation, refusal
from hpfun.packing import ROW_LISTS, packed_fields, unpacked_fields
from hpfun.rows import AS_ROW_LIST, RowList, chained, coverage, cut, expands, extremes


@plan_value
class RowExchange:
    """One rank's sends, receipts and local copies; all rows int64, all arrays read-only.

    ``send_rows`` lists source rows by destination rank, ``receive_rows`` the target slot of every received
    row by source rank, and ``input_splits`` and ``output_splits`` ``[size]`` say how many of each (own entry
    0). Rows from one rank to another stand in the same order on both sides. ``local_sources[i]`` goes to
    ``local_targets[i]``. ``required`` is false only if no rank of the group sends anything.

    A placing exchange (``reduce`` false) writes every slot at most once; a reducing one, made by
    ``transpose``, adds up what arrives in a slot. Raises HP-EXCHANGE-001 to 006, all violations at once.

    A row list is any sequence of integers or a ``RowRuns``. One whose rows run on is kept as intervals
    (``row_list(name)``) and expands to rows each time it is read. ``packed`` is the whole value as one array for
    compiled graphs, or None where rows are scattered.
    """

    size: int = integer_field("HP-EXCHANGE-001", least=1)
    rank: int = integer_field("HP-EXCHANGE-001", least=0)
    num_source_rows: int = integer_field("HP-EXCHANGE-001", least=0)
    num_target_rows: int = integer_field("HP-EXCHANGE-001", least=0)
    send_rows: Any = attrs.field(converter=AS_ROW_LIST)
    input_splits: Any = integers_field("HP-EXCHANGE-002")
    output_splits: Any = integers_field("HP-EXCHANGE-002")
    receive_rows: Any = attrs.field(converter=AS_ROW_LIST)
    local_sources: Any = attrs.field(converter=AS_ROW_LIST)
    local_targets: Any = attrs.field(converter=AS_ROW_LIST)
    required: bool
    reduce: bool = False

    digest = content_digest
    _packed: ClassVar[np.ndarray | None] = None

    def __attrs_post_init__(self):
        violations = _violations(self)
        if violations:
            raise PlanError(*violations)
        vars(self)["_packed"] = packed_fields(vars(self))

    def __repr__(self) -> str:
        parts = (f"{a.name}={vars(self)[a.name]!r}" for a in attrs.fields(RowExchange))
        return f"RowExchange({', '.join(parts)})"  # lists as they are kept: they may be long

    def row_list(self, name: str) -> RowList:
        """The row list of that name as it is kept: an array, or ``RowRuns`` where rows run on."""
        return vars(self)[name]

    @property
    def sources(self) -> np.ndarray:
        """Every source row that is read, sent ones first; int64."""
        return np.concatenate((self.send_rows, self.local_sources))

    @property
    def targets(self) -> np.ndarray:
        """Every target slot that is hit, received ones first; int64."""
        return np.concatenate((self.receive_rows, self.local_targets))

    @property
    def received_before_own(self) -> int:
        """Rows that come from lower ranks: the first ones of ``receive_rows``."""
        return int(self.output_splits[: self.rank].sum())

    @property
    def sources_by_rank(self) -> RowList:
        """Every source row that is read, by destination rank, those that stay at the own rank's place."""
        before, behind = cut(self.row_list("send_rows"), int(self.input_splits[: self.rank].sum()))
        return chained(before, self.row_list("local_sources"), behind)

    @property
    def targets_by_rank(self) -> RowList:
        """Every target slot that is hit, by source rank, the local ones at the own rank's place."""
        before, behind = cut(self.row_list("receive_rows"), self.received_before_own)
        return chained(before, self.row_list("local_targets"), behind)

    @cached_property
    def hits_once(self) -> bool:
        """Whether no target slot is hit twice: then adding up is placing."""
        return not self.reduce or self._distinct(*_TARGETS) == self._listed(*_TARGETS)

    @cached_property
    def num_unwritten(self) -> int:
        """Target slots that nothing reaches: the executor's ``fill`` stays there."""
        hit = self._distinct(*_TARGETS) if self.reduce else self._listed(*_TARGETS)
        return self.num_target_rows - hit

    @cached_property
    def is_permutation(self) -> bool:
        """Whether each source row is used exactly once and each slot hit exactly once on this rank."""
        sides = ((_SOURCES, self.num_source_rows), (_TARGETS, self.num_target_rows))
        return all(self._listed(*names) == extent == self._distinct(*names) for names, extent in sides)

    def _listed(self, *names: str) -> int:
        return sum(len(self.row_list(name)) for name in names)

    def _distinct(self, *names: str) -> int:
        extent = self.num_source_rows if names == _SOURCES else self.num_target_rows
        return coverage([self.row_list(name) for name in names], extent)[0]


_SOURCES, _TARGETS = ("send_rows", "local_sources"), ("receive_rows", "local_targets")
expands(RowExchange, *ROW_LISTS)


def _least_and_total(splits: np.ndarray) -> tuple[int, int]:
    """The least count and the exact sum, also where int64 would wrap."""
    if len(splits) > 512 and int(splits.max()) <= INT64_MAX // len(splits):
        return int(splits.min()), int(splits.sum())
    counts = splits.tolist()  # exact, and for a small group quicker than two reductions
    return min(counts, default=0), sum(counts)


def _violations(x: RowExchange) -> list[Violation]:
    return [*_group_violations(x), *_count_violations(x), *_row_violations(x)]


def _group_violations(x: RowExchange) -> Iterator[Violation]:
    """HP-EXCHANGE-001: the rank and the two flags."""
    if x.rank >= x.size:
        facts = {"rank": x.rank, "size": x.size}
        yield Violation("HP-EXCHANGE-001", "rank", f"rank {x.rank} of a group of {x.size}", facts)
    for name in ("required", "reduce"):
        flag = getattr(x, name)
        if not isinstance(flag, bool):
            yield Violation("HP-EXCHANGE-001", name, f"needs a bool, got {flag!r:.40}", {"type": type(flag).__name__})


def _count_violations(x: RowExchange) -> Iterator[Violation]:
    """HP-EXCHANGE-002 and 003: one count per rank, and lists as long as their counts and partners."""
    kept = vars(x)
    for name, listed in (("input_splits", "send_rows"), ("output_splits", "receive_rows")):
        splits, rows = kept[name], len(kept[listed])
        least, total = _least_and_total(splits)
        if len(splits) != x.size or least < 0 or (x.rank < len(splits) and splits[x.rank] != 0):
            own = int(splits[x.rank]) if x.rank < len(splits) else None
            message = f"needs {x.size} counts, 0 at rank {x.rank}, got {splits[:16].tolist()}"
            facts = {"entries": len(splits), "size": x.size, "rank": x.rank, "own": own}
            yield Violation("HP-EXCHANGE-002", name, message, facts)
        elif total != rows:
            facts = {"sum": total, "rows": rows}
            yield Violation("HP-EXCHANGE-003", name, f"sums to {total}, the list has {rows} rows", facts)
    sources, targets = len(kept["local_sources"]), len(kept["local_targets"])
    if sources != targets:
        facts = {"sources": sources, "targets": targets}
        yield Violation("HP-EXCHANGE-003", "local_sources", "and local_targets differ in length", facts)


def _row_violations(x: RowExchange) -> Iterator[Violation]:
    """HP-EXCHANGE-004 to 006: rows inside shard and target, none twice that may not be, none sent if not required."""
    kept, inside = vars(x), True
    for names, extent in ((_SOURCES, x.num_source_rows), (_TARGETS, x.num_target_rows)):
        for name in names:
            rows = kept[name]
            if len(rows) == 0:
                continue
            least, most = extremes(rows)
            if least < 0 or most >= extent:
                inside = False
                bad = least if least < 0 else most
                facts = {"row": bad, "extent": extent}
                yield Violation("HP-EXCHANGE-004", name, f"row {bad} is outside 0..{extent - 1}", facts)
    if inside:
        once, extent = (_SOURCES, x.num_source_rows) if x.reduce else (_TARGETS, x.num_target_rows)
        _, times, row = coverage([kept[name] for name in once], extent)
        if times > 1:
            facts = {"row": row, "times": times}
            yield Violation("HP-EXCHANGE-005", once[0], f"row {row} occurs {times} times", facts)
    sent, received = len(kept["send_rows"]), len(kept["receive_rows"])
    if not x.required and (sent or received):
        facts = {"sent": sent, "received": received}
        yield Violation("HP-EXCHANGE-006", "required", "is false, but rows are sent or received", facts)


def unpack_exchange(packed: np.ndarray) -> RowExchange:
    """The exchange that ``packed`` holds; it is constructed and so validated anew.

    >>> there = RowExchange(1, 0, 3, 2, [], [0], [0], [], [2, 0], [0, 1], required=False)
    >>> unpack_exchange(there._packed) == there
    True
    """
    return RowExchange(**unpacked_fields(packed))


def transpose(exchange: RowExchange) -> RowExchange:
    """The exchange that runs backwards: sources and targets swapped, placing and reducing swapped.

    Transposing twice gives the original (rule EXCHANGE-5). The transpose of a placing exchange adds up in
    each source row what its copies carry, which is what a gradient needs.

    >>> there = RowExchange(1, 0, 3, 2, [], [0], [0], [], [2, 0], [0, 1], required=False)
    >>> back = transpose(there)
    >>> back.num_target_rows, back.local_targets.tolist(), back.reduce, transpose(back) == there
    (3, [2, 0], True, True)
    """
    return RowExchange(
        size=exchange.size,
        rank=exchange.rank,
        num_source_rows=exchange.num_target_rows,
        num_target_rows=exchange.num_source_rows,
        send_rows=exchange.row_list("receive_rows"),
        input_splits=exchange.output_splits,
        output_splits=exchange.input_splits,
        receive_rows=exchange.row_list("send_rows"),
        local_sources=exchange.row_list("local_targets"),
        local_targets=exchange.row_list("local_sources"),
        required=exchange.required,
        reduce=not exchange.reduce,
    )


def check_exchanges(exchanges: Sequence[RowExchange]) -> None:
    """The laws that all ranks' exchanges keep together; HP-EXCHANGE-007 with every broken one.

    One exchange per rank in rank order, of one size, ``required`` and ``reduce`` alike, each rank's
    ``input_splits[b]`` equal to rank b's ``output_splits``, and not required exactly if nothing is sent.
    """
    found = []

    def refuse(where: str, message: str, **facts: object) -> None:
        found.append(Violation("HP-EXCHANGE-007", where, message, facts))

    size = len(exchanges)
    if size == 0:
        raise refusal("HP-EXCHANGE-007", "exchanges", "none given", "pass one exchange per rank")
    for at, exchange in enumerate(exchanges):
        if exchange.size != size or exchange.rank != at:
            refuse(
                f"[{at}]",
                f"is rank {exchange.rank} of {exchange.size}, not {at} of {size}",
                rank=exchange.rank,
                size=exchange.size,
            )
        for name in ("required", "reduce"):
            if getattr(exchange, name) != getattr(exchanges[0], name):
                refuse(f"[{at}].{name}", "differs from rank 0", rank=at, value=getattr(exchange, name))
    if not found:
        sent = np.stack([exchange.input_splits for exchange in exchanges])
        received = np.stack([exchange.output_splits for exchange in exchanges])
        for source, target in zip(*np.nonzero(sent != received.T), strict=True):
            refuse(
                f"[{source}].input_splits",
                f"sends {sent[source, target]} rows to rank {target}, which expects {received[target, source]}",
                source=int(source),
                target=int(target),
                sent=int(sent[source, target]),
                expected=int(received[target, source]),
            )
        if exchanges[0].required != bool(sent.any()):
            refuse("required", f"is {exchanges[0].required}, rows sent: {sent.sum()}", sent=int(sent.sum()))
    if found:
        raise PlanError(*found)


def traffic_matrix(exchanges: Sequence[RowExchange], bytes_per_row: int = 1) -> np.ndarray:
    """Bytes from rank (first axis) to rank (second axis); int64 ``[size, size]``, diagonal 0.

    Raises HP-EXCHANGE-001 for a row width that is not an int of at least 0 or is beyond int64 in total, and
    HP-EXCHANGE-007 where no exchange is given.
    """
    if not exchanges:
        raise refusal("HP-EXCHANGE-007", "exchanges", "none given", "pass one exchange per rank")
    width = integer(bytes_per_row, "bytes_per_row", "HP-EXCHANGE-001", least=0)
    rows = np.stack([exchange.input_splits for exchange in exchanges])
    most = int(rows.max()) * width
    if most > INT64_MAX:
        raise refusal("HP-EXCHANGE-001", "bytes_per_row", f"{most} bytes are beyond int64", value=width, most=INT64_MAX)
    return readonly(rows * width if most else np.zeros_like(rows))


def exchange_bytes(exchange: RowExchange, bytes_per_row: int) -> int:
    """Bytes that this rank sends to other ranks.

    >>> local = RowExchange(1, 0, 2, 2, [], [0], [0], [], [0, 1], [1, 0], required=False)
    >>> exchange_bytes(local, 128)
    0
    """
    return int(exchange.input_splits.sum()) * integer(bytes_per_row, "bytes_per_row", "HP-EXCHANGE-001", least=0)
