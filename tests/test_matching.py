"""Names of modules and patterns for them."""

from difflib import SequenceMatcher
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun.matching import ancestors, inside, lies_in, matches, nearest, parent_and_child

PARTS = st.sampled_from(["layers", "0", "1", "10", "mlp", "Mlp", "up"])
NAMES = st.lists(PARTS, max_size=4).map(".".join)


@pytest.mark.rule("MATCH-1")
@given(
    st.lists(NAMES, unique=True), st.sampled_from(["", "*", "layers.?", "*.mlp", "layers.[01].*", "layers.1", "*.M*"])
)
def test_a_pattern_matches_as_fnmatch_does_on_the_whole_name(names, pattern):
    assert list(matches(pattern, names)) == [name for name in names if fnmatchcase(name, pattern)]


@pytest.mark.rule("MATCH-1")
def test_case_counts_and_a_star_crosses_dots():
    names = ("layers.1.mlp", "layers.1.mlp.up", "Layers.1.mlp")
    assert matches("layers.*.mlp", names) == ("layers.1.mlp",)
    assert matches("*.up", names) == ("layers.1.mlp.up",)
    assert matches("layers.1", names) == ()


@pytest.mark.rule("MATCH-2")
@given(NAMES, st.lists(NAMES, unique=True, max_size=6), st.integers(1, 4))
def test_the_nearest_names_are_the_most_alike_ones(name, names, most):
    def likeness(other):
        return SequenceMatcher(None, other, name, autojunk=False).ratio()

    found = nearest(name, names, most)
    assert len(found) == min(most, len(names))
    assert [likeness(other) for other in found] == sorted(map(likeness, names), reverse=True)[: len(found)]


@given(NAMES, NAMES)
def test_names_lie_below_their_ancestors(name, outer):
    assert lies_in(name, outer) == (outer in (name, *ancestors(name)))
    assert inside(name, (outer,)) == (outer if lies_in(name, outer) else None)
    if name:
        parent, child = parent_and_child(name)
        assert ancestors(name)[0] == parent
        assert name == (f"{parent}.{child}" if parent else child)
