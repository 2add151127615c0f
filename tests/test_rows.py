"""Row lists: one value whichever form it was given in, cut and chained, counted by intervals and by rows."""

from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import RowExchange, RowRuns, bank_route, document_prefix_plan, sliding_window_plan
from hpfun.exchange import unpack_exchange
from hpfun.rows import chained, coverage, cut, row_list, rows_of
from hpfun.strategies import row_exchanges
from tests.refusals import refused

# stretches of rows, so that lists of runs, of single rows and of both appear
STRETCHES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=6)
ROWS = STRETCHES.map(lambda parts: [row for start, count in parts for row in range(start, start + count)])


def fewest_intervals(rows):
    """Intervals by looking at one row after the other."""
    found = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1][1] = row + 1
        else:
            found.append([row, row + 1])
    return found


def moving(rows, **lists):
    """A one-rank exchange that copies ``rows`` to the first slots."""
    return RowExchange(1, 0, 100, len(rows), [], [0], [0], [], lists.get("sources", rows), range(len(rows)), False)


@pytest.mark.rule("ROWS-1")
@given(ROWS)
def test_runs_list_the_rows_of_their_intervals_in_order(rows):
    intervals = fewest_intervals(rows)
    runs = RowRuns([start for start, _ in intervals], [stop for _, stop in intervals])
    assert runs.rows.tolist() == rows
    assert len(runs) == runs.count == len(rows)
    assert runs.spans == tuple(map(tuple, intervals))


@pytest.mark.rule("ROWS-1")
@pytest.mark.parametrize(
    ("starts", "stops"),
    [([3], [3]), ([3], [2]), ([0, 2], [2, 5]), ([0], []), ([0.0], [2]), ([-(2**62), 5], [2**62 + 4, 2**63 - 1])],
)
def test_intervals_that_are_empty_adjacent_or_too_long_are_refused(starts, stops):
    with refused("HP-EXCHANGE-004"):
        RowRuns(starts, stops)


@pytest.mark.rule("ROWS-1")
def test_many_intervals_are_checked_as_few_are():
    starts = np.arange(0, 400, 4)
    assert len(RowRuns(starts, starts + 2)) == 200
    for stops in (starts + 4, np.where(starts == 200, starts, starts + 2)):
        with refused("HP-EXCHANGE-004") as caught:
            RowRuns(starts, stops)
        assert caught.error.facts["index"] == (1 if stops[0] == 4 else 50)


@pytest.mark.rule("ROWS-2")
@given(ROWS)
@example([5])
@example([5, 6])
@example([1, 2, 4])
def test_a_list_is_kept_as_intervals_exactly_if_they_are_at_most_half_as_many(rows):
    kept = row_list(rows, "rows")
    intervals = fewest_intervals(rows)
    assert isinstance(kept, RowRuns) == (0 < 2 * len(intervals) <= len(rows))
    assert rows_of(kept).tolist() == rows
    assert rows_of(kept).dtype == np.int64


@pytest.mark.rule("ROWS-2")
@given(ROWS)
def test_equal_lists_make_equal_exchanges_in_whatever_form_they_were_given(rows):
    intervals = fewest_intervals(rows)
    runs = RowRuns([start for start, _ in intervals], [stop for _, stop in intervals])
    as_rows, as_runs = moving(rows), moving(rows, sources=runs)
    assert as_rows == as_runs
    assert hash(as_rows) == hash(as_runs)
    assert as_runs.local_sources.tolist() == rows
    assert not as_runs.local_sources.flags.writeable
    assert attrs.evolve(as_runs, required=False) == as_rows


@pytest.mark.rule("ROWS-2")
def test_a_row_at_the_end_of_int64_stays_an_array():
    assert isinstance(row_list([2**63 - 2, 2**63 - 1], "rows"), np.ndarray)


@pytest.mark.rule("ROWS-3")
@given(ROWS, st.data())
def test_a_list_cut_anywhere_and_chained_is_the_list(rows, data):
    kept = row_list(rows, "rows")
    at = data.draw(st.integers(0, len(rows)))
    head, tail = cut(kept, at)
    assert rows_of(head).tolist() == rows[:at]
    assert rows_of(tail).tolist() == rows[at:]
    assert rows_of(chained(head, tail)).tolist() == rows
    assert type(chained(head, tail)) is type(kept)


@pytest.mark.rule("ROWS-4")
@given(st.lists(ROWS, max_size=3), st.integers(1, 5))
@example([[7, 9], [0, 1, 2, 6, 7, 8]], 1)
@example([[3] * 3, list(range(100))], 40)
def test_coverage_is_what_counting_gives(lists, stretched):
    # stretched, the same shape of overlaps has many rows in few intervals
    lists = [[row * stretched + i for row in rows for i in range(stretched)] for rows in lists]
    times = Counter(row for rows in lists for row in rows)
    most = max(times.values(), default=0)
    lowest = min((row for row, count in times.items() if count == most), default=0)
    kept = [row_list(rows, "rows") for rows in lists]
    assert coverage(kept, 18 * stretched) == (len(times), most, lowest)
    assert coverage([rows_of(part) for part in kept], 18 * stretched) == (len(times), most, lowest)
    assert coverage(kept, 10**12) == (len(times), most, lowest)


@pytest.mark.rule("EXCHANGE-13")
@given(row_exchanges())
def test_a_packed_exchange_unpacks_to_the_equal_value(exchanges):
    for exchange in exchanges:
        assert exchange._packed.dtype == np.int64
        again = unpack_exchange(exchange._packed.copy())
        assert again == exchange
        assert np.array_equal(again._packed, exchange._packed)


@pytest.mark.rule("EXCHANGE-13")
@pytest.mark.parametrize(
    "plan", [document_prefix_plan((0, 400), 4, 100, 4), sliding_window_plan((0, 200), 1, 200, 100)]
)
def test_banks_always_pack_however_many_receivers_get_a_row_each(plan):
    assert all(bank_route(plan, rank).exchange._packed is not None for rank in range(plan.size))


@pytest.mark.rule("EXCHANGE-13")
def test_a_long_scattered_list_does_not_pack():
    assert moving(list(range(0, 66))[::-1])._packed is not None
    assert moving(list(range(0, 67))[::-1])._packed is None
    assert moving(list(range(100)))._packed is not None
