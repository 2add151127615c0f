"""The page on testing one's own router runs as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "specs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_run_one_after_the_other():
    assert len(BLOCKS) == 6
    names = {"__name__": "page"}
    for at, block in enumerate(BLOCKS):
        exec(compile(block, f"{PAGE.name}, block {at + 1}", "exec"), names)


def test_a_router_that_swaps_two_slots_fails_the_test_of_the_page():
    names = {"__name__": "page"}
    for block in BLOCKS:
        exec(block, names)
    test = BLOCKS[1].replace("[deal(", "[swapped(")
    assert test != BLOCKS[1]
    with pytest.raises(AssertionError):
        exec(test, names)
