"""Candidate blocks against loops over single keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun.attention import attention_segments, candidate_keys, reachable_blocks
from tests.oracles import attention_plan as loops
from tests.refusals import refused


@st.composite
def rows_and_blocks(draw):
    """Per row (blocks, key start, key stop, minimum), and the keys of a block."""
    width = draw(st.integers(0, 4))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, 20))
        stop = start + draw(st.integers(0, 30))
        blocks = draw(st.lists(st.integers(-1, 12), min_size=width, max_size=width))
        rows.append((blocks, start, stop, draw(st.integers(-2, stop + 3))))
    return rows, width, draw(st.integers(1, 9))


@pytest.mark.rule("ATTN-8")
def test_worked_blocks():
    assert reachable_blocks([5, 5, 0, 0, 0], [9, 5, 8, 9, 1]).tolist() == [1, 0, 1, 2, 1]
    assert reachable_blocks([5], [9], 3).tolist() == [2]
    assert reachable_blocks([0], [64]).tolist() == [8]


@pytest.mark.rule("ATTN-8")
@pytest.mark.parametrize("block", range(1, 6))
def test_all_small_rows_reach_the_blocks_of_their_visible_keys(block):
    rows = [(start, stop) for start in range(6) for stop in range(start, 14)]
    found = reachable_blocks(*zip(*rows, strict=True), block)
    assert found.tolist() == [loops.block_count(start, stop, block) for start, stop in rows]
    assert found.dtype == np.int64
    assert not found.flags.writeable
    for (start, stop), count in zip(rows, found.tolist(), strict=True):
        if count:  # the newest block, which is always a candidate, holds the newest key
            (keys,) = candidate_keys([[count - 1]], [start], [stop], block).tolist()
            assert stop - 1 in keys
            (beyond,) = candidate_keys([[count]], [start], [stop], block).tolist()
            assert set(beyond) == {-1}


@pytest.mark.rule("ATTN-9")
def test_worked_candidates():
    assert candidate_keys([[0, 1]], [5], [9], 3).tolist() == [[5, 6, 7, 8, -1, -1]]
    assert candidate_keys([[0, 1]], [5], [9], 3, [7]).tolist() == [[-1, -1, 7, 8, -1, -1]]
    assert candidate_keys([[1, -1, 0]], [5], [9], 3).tolist() == [[8, -1, -1, -1, -1, -1, 5, 6, 7]]
    assert candidate_keys([[0]], [0], [20]).tolist() == [list(range(8))]


@pytest.mark.rule("ATTN-9")
@given(rows_and_blocks())
def test_candidates_are_the_visible_keys_of_their_blocks(drawn):
    rows, width, block = drawn
    blocks = np.array([row[0] for row in rows], dtype=np.int32).reshape(len(rows), width)
    starts, stops, minima = ([row[at] for row in rows] for at in (1, 2, 3))
    found = candidate_keys(blocks, starts, stops, block)
    assert found.shape == (len(rows), width * block)
    assert found.tolist() == [loops.candidates(row[0], row[1], row[2], block) for row in rows]
    assert found.dtype == np.int64
    assert not found.flags.writeable
    found = candidate_keys(blocks, starts, stops, block, minima)
    assert found.tolist() == [loops.candidates(row[0], row[1], row[2], block, row[3]) for row in rows]


@pytest.mark.rule("ATTN-8", "ATTN-9")
def test_all_reachable_blocks_together_are_all_visible_keys():
    starts, stops = attention_segments((0, 21, 40), 20, 2, 1, 0, 1).key_ranges()
    counts = reachable_blocks(starts, stops, 4)
    blocks = [[number if number < count else -1 for number in range(int(counts.max()))] for count in counts.tolist()]
    found = candidate_keys(blocks, starts, stops, 4)
    for row, keys in enumerate(found.tolist()):
        assert [key for key in keys if key >= 0] == list(range(int(starts[row]), int(stops[row])))


@pytest.mark.rule("ATTN-9")
def test_blocks_far_beyond_have_no_keys():
    far = [[2**61, 2**63 - 1, -(2**61), 0]]  # times 8, some are 0 again in int64
    assert candidate_keys(far, [0], [3], 8).tolist() == [[-1] * 24 + [0, 1, 2] + [-1] * 5]


@pytest.mark.rule("ATTN-9")
@pytest.mark.parametrize(
    ("where", "bad"),
    [
        ("blocks", [0]),
        ("blocks", [[0], [0]]),
        ("blocks", [[0.0]]),
        ("blocks", [[True]]),
        ("blocks", [[0], [0, 1]]),
        ("blocks", None),
        ("blocks", [[2**64 - 1]]),
        ("key_starts", [0.0]),
        ("key_starts", [True]),
        ("key_starts", 0),
        ("key_starts", [[0]]),
        ("key_starts", [2**63]),
        ("key_stops", [3, 3]),
        ("key_stops", ["3"]),
        ("key_stops", [-1]),
        ("block_keys", 0),
        ("block_keys", True),
        ("block_keys", 8.0),
        ("minimum_key_indices", [0, 0]),
        ("minimum_key_indices", []),
        ("minimum_key_indices", [0.5]),
        ("minimum_key_indices", 0),
    ],
    ids=repr,
)
def test_what_is_no_row_no_block_and_no_minimum_is_refused(where, bad):
    arguments = {"blocks": [[0]], "key_starts": [0], "key_stops": [3], "block_keys": 8, "minimum_key_indices": [0]}
    assert candidate_keys(**arguments).tolist() == [[0, 1, 2, -1, -1, -1, -1, -1]]
    with refused("HP-ATTN-004") as caught:
        candidate_keys(**{**arguments, where: bad})
    assert caught.error.where == where


@pytest.mark.rule("ATTN-8")
@pytest.mark.parametrize(("starts", "stops"), [([-1], [3]), ([4], [3]), ([0, 0], [3])])
def test_keys_that_run_backwards_or_start_before_the_bank_are_refused(starts, stops):
    with refused("HP-ATTN-004") as caught:
        reachable_blocks(starts, stops)
    assert caught.error.where == "key_stops"
