"""Hypothesis strategies for movements of rows: the exchanges of all ranks.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from hpfun.exchange import RowExchange, transpose
from hpfun.pack_strategies import group_sizes

Move = tuple[int, int, int, int]  # source rank, source row, target rank, target slot


@st.composite
def row_exchanges(
    draw: st.DrawFn,
    max_size: int = 4,
    max_rows: int = 6,
    reduce: bool | None = None,
    permutation: bool | None = None,
) -> list[RowExchange]:
    """The exchanges of all ranks of one random movement, in rank order.

    Placing, with slots left to ``fill``, source rows used often or never, ranks without rows, movements that
    stay at home, and any order between two ranks; with ``reduce`` true such movements transposed, with None
    both. With ``permutation`` true every source row goes to exactly one slot and every slot is written, with
    false anything goes, with None both.

    >>> from hypothesis import find
    >>> busy = find(row_exchanges(max_size=2, max_rows=1), lambda exchanges: exchanges[0].required)
    >>> [(exchange.rank, exchange.size, exchange.required) for exchange in busy]
    [(0, 2, True), (1, 2, True)]
    """
    size = draw(group_sizes(max_size))
    permutation = draw(st.booleans()) if permutation is None else permutation
    counts = st.lists(st.integers(0, max_rows), min_size=size, max_size=size)
    sources = draw(counts)
    targets = draw(st.permutations(sources)) if permutation else draw(counts)
    moves = draw(_permuted_moves(sources, targets) if permutation else _any_moves(sources, targets))
    order = draw(st.permutations(range(len(moves))))
    exchanges = _exchanges(sources, targets, [moves[at] for at in order])
    backwards = draw(st.booleans()) if reduce is None else reduce
    return [transpose(exchange) for exchange in exchanges] if backwards else exchanges


@st.composite
def _any_moves(draw: st.DrawFn, sources: Sequence[int], targets: Sequence[int]) -> list[Move]:
    rows = [(rank, row) for rank, count in enumerate(sources) for row in range(count)]
    at_home = draw(st.booleans())
    moves: list[Move] = []
    for target, count in enumerate(targets):
        near = [row for row in rows if not at_home or row[0] == target]
        slot_sources = st.sampled_from([None, *near])
        for slot, source in enumerate(draw(st.lists(slot_sources, min_size=count, max_size=count))):
            if source is not None:
                moves.append((*source, target, slot))
    return moves


@st.composite
def _permuted_moves(draw: st.DrawFn, sources: Sequence[int], targets: Sequence[int]) -> list[Move]:
    rows = [(rank, row) for rank, count in enumerate(sources) for row in range(count)]
    slots = [(rank, slot) for rank, count in enumerate(targets) for slot in range(count)]
    return [(*row, *slot) for row, slot in zip(rows, draw(st.permutations(slots)), strict=True)]


def _exchanges(sources: Sequence[int], targets: Sequence[int], moves: Sequence[Move]) -> list[RowExchange]:
    """The placing exchanges of ``moves``; two ranks list the rows between them as ``moves`` does."""
    size = len(sources)
    required = any(source != target for source, _, target, _ in moves)
    exchanges = []
    for rank in range(size):
        sent = [[m[1] for m in moves if m[0] == rank and m[2] == peer != rank] for peer in range(size)]
        received = [[m[3] for m in moves if m[2] == rank and m[0] == peer != rank] for peer in range(size)]
        kept = [m for m in moves if m[0] == m[2] == rank]
        exchanges.append(
            RowExchange(
                size=size,
                rank=rank,
                num_source_rows=sources[rank],
                num_target_rows=targets[rank],
                send_rows=[row for rows in sent for row in rows],
                input_splits=[len(rows) for rows in sent],
                output_splits=[len(slots) for slots in received],
                receive_rows=[slot for slots in received for slot in slots],
                local_sources=[m[1] for m in kept],
                local_targets=[m[3] for m in kept],
                required=required,
            )
        )
    return exchanges
