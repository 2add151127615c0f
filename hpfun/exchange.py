"""RowExchange: the one value that moves rows between ranks.

One rank's part of a movement of rows from source shards to target slots. Every family that moves rows
ends here, so there is one validator, one transpose, one simulator and one executor. Rules EXCHANGE-1 to
EXCHANGE-12 of ``specs/exchange.md``.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers_field, plan_value, readonly
from hpfun.errors import PlanError, Violation, refusal


@plan_value
class RowExchange:
    """One rank's sends, receipts and local copies; all rows int64, all arrays read-only.

    ``send_rows`` lists source rows by destination rank, ``receive_rows`` the target slot of every received
    row by source rank, and ``input_splits`` and ``output_splits`` ``[size]`` say how many of each (own entry
    0). Rows from one rank to another stand in the same order on both sides. ``local_sources[i]`` goes to
    ``local_targets[i]``. ``required`` is false only if no rank of the group sends anything.

    A placing exchange (``reduce`` false) writes every slot at most once; a reducing one, made by
    ``transpose``, adds up what arrives in a slot. Raises HP-EXCHANGE-001 to 006, all violations at once.
    """

    size: int = integer_field("HP-EXCHANGE-001", least=1)
    rank: int = integer_field("HP-EXCHANGE-001", least=0)
    num_source_rows: int = integer_field("HP-EXCHANGE-001", least=0)
    num_target_rows: int = integer_field("HP-EXCHANGE-001", least=0)
    send_rows: Any = integers_field("HP-EXCHANGE-004")
    input_splits: Any = integers_field("HP-EXCHANGE-002")
    output_splits: Any = integers_field("HP-EXCHANGE-002")
    receive_rows: Any = integers_field("HP-EXCHANGE-004")
    local_sources: Any = integers_field("HP-EXCHANGE-004")
    local_targets: Any = integers_field("HP-EXCHANGE-004")
    required: bool
    reduce: bool = False

    digest = content_digest

    def __attrs_post_init__(self):
        violations = _violations(self)
        if violations:
            raise PlanError(*violations)

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
    def sources_by_rank(self) -> np.ndarray:
        """Every source row that is read, by destination rank, those that stay at the own rank's place; int64."""
        return _inserted(self.send_rows, self.local_sources, int(self.input_splits[: self.rank].sum()))

    @property
    def targets_by_rank(self) -> np.ndarray:
        """Every target slot that is hit, by source rank, the local ones at the own rank's place; int64."""
        return _inserted(self.receive_rows, self.local_targets, self.received_before_own)

    @cached_property
    def hits_once(self) -> bool:
        """Whether no target slot is hit twice: then adding up is placing."""
        return not self.reduce or len(_hits(self.targets, self.num_target_rows)[0]) == len(self.targets)

    @cached_property
    def num_unwritten(self) -> int:
        """Target slots that nothing reaches: the executor's ``fill`` stays there."""
        return self.num_target_rows - len(_hits(self.targets, self.num_target_rows)[0])

    @cached_property
    def is_permutation(self) -> bool:
        """Whether each source row is used exactly once and each slot hit exactly once on this rank."""
        sides = ((self.sources, self.num_source_rows), (self.targets, self.num_target_rows))
        return all(len(rows) == extent == len(_hits(rows, extent)[0]) for rows, extent in sides)


def _inserted(rows: np.ndarray, own: np.ndarray, at: int) -> np.ndarray:
    return np.concatenate((rows[:at], own, rows[at:]))


def _total(splits: np.ndarray) -> int:
    """The exact sum of counts, also where int64 would wrap."""
    if len(splits) and int(splits.max()) > INT64_MAX // len(splits):
        return sum(splits.tolist())
    return int(splits.sum())


def _hits(rows: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur, ascending, and how often; at a cost of the rows, not of the extent."""
    if extent > 8 * len(rows) + 1024:
        return np.unique(rows, return_counts=True)
    times = np.bincount(rows)
    found = np.flatnonzero(times)
    return found, times[found]


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
    for name, rows in (("input_splits", x.send_rows), ("output_splits", x.receive_rows)):
        splits = getattr(x, name)
        if len(splits) != x.size or (splits < 0).any() or (x.rank < len(splits) and splits[x.rank] != 0):
            own = int(splits[x.rank]) if x.rank < len(splits) else None
            message = f"needs {x.size} counts, 0 at rank {x.rank}, got {splits[:16].tolist()}"
            facts = {"entries": len(splits), "size": x.size, "rank": x.rank, "own": own}
            yield Violation("HP-EXCHANGE-002", name, message, facts)
        elif _total(splits) != len(rows):
            facts = {"sum": _total(splits), "rows": len(rows)}
            yield Violation("HP-EXCHANGE-003", name, f"sums to {facts['sum']}, the list has {len(rows)} rows", facts)
    if len(x.local_sources) != len(x.local_targets):
        facts = {"sources": len(x.local_sources), "targets": len(x.local_targets)}
        yield Violation("HP-EXCHANGE-003", "local_sources", "and local_targets differ in length", facts)


def _row_violations(x: RowExchange) -> Iterator[Violation]:
    """HP-EXCHANGE-004 to 006: rows inside shard and target, none twice that may not be, none sent if not required."""
    inside = True
    for name, extent in (
        ("send_rows", x.num_source_rows),
        ("local_sources", x.num_source_rows),
        ("receive_rows", x.num_target_rows),
        ("local_targets", x.num_target_rows),
    ):
        rows = getattr(x, name)
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= extent):
            inside = False
            bad = int(rows.min()) if rows.min() < 0 else int(rows.max())
            facts = {"row": bad, "extent": extent}
            yield Violation("HP-EXCHANGE-004", name, f"row {bad} is outside 0..{extent - 1}", facts)
    if inside:
        once, extent = (x.sources, x.num_source_rows) if x.reduce else (x.targets, x.num_target_rows)
        found, times = _hits(once, extent)
        if len(times) and times.max() > 1:
            row, most = int(found[times.argmax()]), int(times.max())
            where = "send_rows" if x.reduce else "receive_rows"
            facts = {"row": row, "times": most}
            yield Violation("HP-EXCHANGE-005", where, f"row {row} occurs {most} times", facts)
    if not x.required and (len(x.send_rows) or len(x.receive_rows)):
        facts = {"sent": len(x.send_rows), "received": len(x.receive_rows)}
        yield Violation("HP-EXCHANGE-006", "required", "is false, but rows are sent or received", facts)


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
        send_rows=exchange.receive_rows,
        input_splits=exchange.output_splits,
        output_splits=exchange.input_splits,
        receive_rows=exchange.send_rows,
        local_sources=exchange.local_targets,
        local_targets=exchange.local_sources,
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
