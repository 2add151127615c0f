"""What people pass where an integer belongs, to draw from."""

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

NO_INTEGERS = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.integers(1, 3), max_size=2)
    | st.sampled_from((np.bool_(True), np.float32(2), Fraction(4, 2), 2 + 0j))
)


def no_counts(least):
    """What is no integer of at least ``least``."""
    return NO_INTEGERS | st.integers(max_value=least - 1)


def is_count(value, least):
    """Whether ``value`` is such an integer."""
    return type(value) is int and value >= least
