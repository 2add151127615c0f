"""Banks: which rows each rank needs around its own, and the exchange that brings them.

A bank is one interval of a physical layout that ends with the rank's own rows; what stands before them, its halo,
lies on earlier ranks. Windows, document prefixes and compression halos differ only in where banks start. Rules
SEQ-4 to SEQ-6 and SEQ-8 of ``specs/sequence.md``.
"""

from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from hpfun._fields import (
    choice_field,
    content_digest,
    integer_field,
    integers_field,
    kind_field,
    known_valid,
    plan_value,
    readonly,
)
from hpfun.errors import refusal
from hpfun.exchange import RowExchange
from hpfun.intervals import overlap_rows
from hpfun.packing import packed_fields
from hpfun.rows import RowList, RowRuns, row_list
from hpfun.shards import check_rank

KINDS = ("window", "prefix", "halo")
_CODE = "HP-ROUTE-008"
_NO_ROWS = readonly(np.zeros(0, np.int64))


@plan_value
class SequenceBankPlan:
    """The banks of all ranks; made by ``sliding_window_plan``, ``document_prefix_plan``, ``compression_halo_plan``.

    Rank p owns the rows ``[owner_offsets[p], owner_offsets[p + 1])`` and its bank starts at ``bank_starts[p]`` and
    ends with its own rows; int64 ``[size + 1]`` and ``[size]``. ``kind`` says what the rows are for: a ``window`` of
    tokens, the ``prefix`` of a document in compressed keys, the token ``halo`` of compression. Anything else is
    HP-ROUTE-008.
    """

    kind: str = choice_field(KINDS, _CODE)
    owner_offsets: Any = integers_field(_CODE)
    bank_starts: Any = integers_field(_CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        owners, starts = self.owner_offsets, self.bank_starts
        if len(owners) != len(starts) + 1 or len(starts) == 0:
            message = f"{len(owners)} owner offsets and {len(starts)} bank starts"
            raise refusal(_CODE, "owner_offsets", message, offsets=len(owners), starts=len(starts))
        if owners[0] != 0 or (owners[1:] < owners[:-1]).any():
            raise refusal(_CODE, "owner_offsets", "do not start at 0 and rise", first=int(owners[0]))
        wrong = (starts > owners[:-1]) | (starts < 0)
        if wrong.any():
            at = int(wrong.argmax())
            facts = {"rank": at, "start": int(starts[at]), "own": int(owners[at])}
            message = f"bank {at} starts at {starts[at]}, own rows at {owners[at]}"
            raise refusal(_CODE, "bank_starts", message, "a bank ends with its own rows", **facts)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.bank_starts)

    @property
    def total_rows(self) -> int:
        """Rows of all ranks together."""
        return int(self.owner_offsets[-1])

    @cached_property
    def own_rows(self) -> np.ndarray:
        """Rows that each rank owns; int64 ``[size]``."""
        return readonly(np.diff(self.owner_offsets))

    @cached_property
    def halo_rows(self) -> np.ndarray:
        """Rows of each bank that earlier ranks own; int64 ``[size]``."""
        return readonly(self.owner_offsets[:-1] - self.bank_starts)

    @cached_property
    def bank_rows(self) -> np.ndarray:
        """Rows of each bank; int64 ``[size]``."""
        return readonly(self.owner_offsets[1:] - self.bank_starts)

    @cached_property
    def moved_rows(self) -> int:
        """Rows that travel between ranks, a row once for every rank that it goes to."""
        return sum(self.halo_rows.tolist())

    @cached_property
    def required(self) -> bool:
        """Whether the group enters a collective: some rank needs a row of another."""
        return bool(self.halo_rows.any())

    @cached_property
    def _edges(self) -> tuple[list[int], list[int], list[int], list[int] | None]:
        """Owner offsets and bank starts, the first sender of each rank, and where its receivers end, if banks rise."""
        first = np.searchsorted(self.owner_offsets, self.bank_starts, side="right") - 1
        first = np.minimum(first, np.arange(self.size)).tolist()
        rising = bool((self.bank_starts[1:] >= self.bank_starts[:-1]).all())
        ends = np.searchsorted(self.bank_starts, self.owner_offsets[1:]).tolist() if rising else None
        return self.owner_offsets.tolist(), self.bank_starts.tolist(), first, ends


@plan_value
class SequenceDispatchRoute:
    """One rank's bank and the exchange that fills it.

    The rank owns ``local_length`` rows of the physical layout; its bank covers the rows ``[global_start,
    global_stop)``, row ``global_start + i`` in slot i. Ids that count rows of the layout shift by ``global_start``.
    Fields that do not fit together are HP-ROUTE-008.
    """

    local_length: int = integer_field(_CODE, least=0)
    global_start: int = integer_field(_CODE, least=0)
    global_stop: int = integer_field(_CODE, least=0)
    exchange: RowExchange = kind_field(RowExchange, _CODE)

    digest = content_digest

    def __attrs_post_init__(self):
        rows = (self.exchange.num_source_rows, self.exchange.num_target_rows)
        fits = rows == (self.local_length, self.bank_rows) and self.halo_rows >= 0 and not self.exchange.reduce
        if not fits:
            message = f"an exchange of {rows[0]} into {rows[1]} rows, {self.local_length} local in {self.bank_rows}"
            facts = {"source_rows": rows[0], "target_rows": rows[1], "local_length": self.local_length}
            raise refusal(_CODE, "exchange", message, "build routes with bank_route", **facts)

    @property
    def bank_rows(self) -> int:
        """Rows of the bank."""
        return self.global_stop - self.global_start

    @property
    def halo_rows(self) -> int:
        """Rows of the bank in front of the own ones, received from earlier ranks."""
        return self.bank_rows - self.local_length


def bank_route(plan: SequenceBankPlan, rank: int) -> SequenceDispatchRoute:
    """One rank's route of a plan; O(size), whatever the number of rows.

    Raises HP-ROUTE-002 for a rank outside the group and HP-ROUTE-008 for what is no plan.

    >>> route = bank_route(SequenceBankPlan("window", [0, 4, 8], [0, 2]), 1)
    >>> route.global_start, route.exchange.receive_rows.tolist(), route.exchange.local_targets.tolist()
    (2, [0, 1], [2, 3, 4, 5])
    """
    if not isinstance(plan, SequenceBankPlan):
        kind = type(plan).__name__
        raise refusal(_CODE, "plan", f"needs a SequenceBankPlan, got {kind}", type=kind)
    rank = check_rank(rank, plan.size)
    owners, starts, first, _ = plan._edges
    low, high, start = owners[rank], owners[rank + 1], starts[rank]
    own, halo = high - low, low - start
    input_splits, sent = _sent(plan, rank, low, high)
    output_splits = np.zeros(plan.size, dtype=np.int64)
    if halo:
        edges = np.maximum(plan.owner_offsets[first[rank] : rank + 1], start)
        output_splits[first[rank] : rank] = edges[1:] - edges[:-1]
    fields = {
        "size": plan.size,
        "rank": rank,
        "num_source_rows": own,
        "num_target_rows": halo + own,
        "send_rows": _tails(own, sent),
        "input_splits": readonly(input_splits),
        "output_splits": readonly(output_splits),
        "receive_rows": _stretch(0, halo),
        "local_sources": _stretch(0, own),
        "local_targets": _stretch(halo, halo + own),
        "required": plan.required,
        "reduce": False,
    }
    exchange = known_valid(RowExchange, **fields, _packed=packed_fields(fields))
    bank = {"local_length": own, "global_start": start, "global_stop": high}
    return known_valid(SequenceDispatchRoute, **bank, exchange=exchange)


def _sent(plan: SequenceBankPlan, rank: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a rank sends to each rank, and those counts that are not 0."""
    ends = plan._edges[3]
    if ends is None:
        counts = overlap_rows(plan.bank_starts, plan.owner_offsets[:-1], low, high)
        return counts, counts[counts > 0]
    counts = np.zeros(plan.size, dtype=np.int64)
    if ends[rank] <= rank + 1 or low == high:
        return counts, counts[:0]
    # whoever needs rows of this shard needs them up to its end
    sent = high - np.maximum(plan.bank_starts[rank + 1 : ends[rank]], low)
    counts[rank + 1 : ends[rank]] = sent
    return counts, sent


def _tails(own: int, counts: np.ndarray) -> RowList:
    """The last rows of a shard, so many for each receiver: whoever needs rows of it needs them up to its end."""
    if len(counts) < 2:
        return _stretch(own - int(counts[0]), own) if len(counts) else _NO_ROWS
    runs = {"starts": readonly(own - counts), "stops": readonly(np.full(len(counts), own))}
    return row_list(known_valid(RowRuns, **runs), "send_rows")


@lru_cache(maxsize=4096)
def _stretch(start: int, stop: int) -> RowList:
    return row_list(RowRuns([start], [stop]), "rows") if start < stop else _NO_ROWS
