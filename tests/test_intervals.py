"""Half-open intervals against loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun.intervals import expand, overlap_rows, runs, shard_pieces

BOUNDS = st.tuples(st.integers(-20, 20), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
INTERVALS = st.lists(BOUNDS, max_size=8)


def arrays(intervals):
    """Starts and stops as int64 arrays."""
    pairs = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@pytest.mark.rule("INTERVAL-1")
@given(INTERVALS)
def test_expand_lists_the_integers_of_each_interval_in_turn(intervals):
    expected = [row for start, stop in intervals for row in range(start, stop)]
    rows = expand(*arrays(intervals))
    assert rows.tolist() == expected
    assert rows.dtype == np.int64


@pytest.mark.rule("INTERVAL-1")
@given(st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 700)), max_size=5))
def test_long_intervals_expand_alike(pairs):
    intervals = [(start, start + count) for start, count in pairs]
    expected = [row for start, stop in intervals for row in range(start, stop)]
    assert expand(*arrays(intervals)).tolist() == expected


@pytest.mark.rule("INTERVAL-1")
def test_expand_of_all_pairs_of_small_intervals():
    small = [(start, stop) for start in range(4) for stop in range(start, 4)]
    for pair in itertools.product(small, repeat=2):
        assert expand(*arrays(pair)).tolist() == [row for start, stop in pair for row in range(start, stop)]


@pytest.mark.rule("INTERVAL-2")
@given(st.lists(st.integers(-6, 6), max_size=20))
def test_runs_expand_to_the_rows_again_and_none_can_be_joined(rows):
    starts, stops = runs(np.array(rows, dtype=np.int64))
    assert expand(starts, stops).tolist() == rows
    assert (starts < stops).all()
    assert (starts[1:] != stops[:-1]).all()
    breaks = sum(after != before + 1 for before, after in itertools.pairwise(rows))
    assert len(starts) == (breaks + 1 if rows else 0)
    assert starts.dtype == stops.dtype == np.int64


@pytest.mark.rule("INTERVAL-2")
def test_falling_rows_are_runs_of_one():
    starts, stops = runs(np.array([3, 2, 2]))
    assert (starts.tolist(), stops.tolist()) == ([3, 2, 2], [4, 3, 3])


@pytest.mark.rule("INTERVAL-3")
@given(st.lists(st.tuples(BOUNDS, BOUNDS), max_size=8))
def test_overlap_counts_the_shared_integers(pairs):
    expected = [len(set(range(*one)) & set(range(*other))) for one, other in pairs]
    got = overlap_rows(*arrays([one for one, _ in pairs]), *arrays([other for _, other in pairs]))
    assert got.tolist() == expected


@pytest.mark.rule("INTERVAL-4")
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=6), st.integers(1, 9))
def test_pieces_are_the_intervals_cut_at_shard_edges_and_nowhere_else(intervals, local):
    expected = []
    for at, (start, count) in enumerate(intervals):
        for row in range(start, start + count):
            if row > start and row // local == (row - 1) // local:
                expected[-1][3] += 1
            else:
                expected.append([at, row // local, row, row + 1])
    pieces = shard_pieces(*arrays([(start, start + count) for start, count in intervals]), local)
    assert [list(piece) for piece in zip(*(part.tolist() for part in pieces), strict=True)] == expected
