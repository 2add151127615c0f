"""Hypothesis strategies for what dense attention plans with: the blocks of a rank, whole or split, and its route.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.batch import BatchTopology, plan_batch
from hpfun.batch.layouts import LAYOUTS
from hpfun.dense import CausalBlocks, DenseRoute, dense_route, split_blocks
from hpfun.pack_strategies import lengths


@st.composite
def dense_routes(draw: st.DrawFn, max_size: int = 5, max_length: int = 24) -> DenseRoute:
    """The route of one rank, of both layouts, with windows or without.

    >>> from hypothesis import find
    >>> find(dense_routes(), lambda route: route.received_rows > 0 and route.bank is None).local_rows
    2
    """
    topology = BatchTopology(draw(st.integers(1, max_size)))
    plan = plan_batch(draw(lengths(max_length=max_length)), topology, layout=draw(st.sampled_from(LAYOUTS)))
    window = draw(st.integers(0, 5) | st.integers(0, max_length + 1))
    return dense_route(plan, draw(st.integers(0, topology.cp_size - 1)), window)


@st.composite
def causal_blocks(draw: st.DrawFn, max_size: int = 5, max_length: int = 24) -> CausalBlocks:
    """The blocks of one rank, whole or split.

    >>> from hypothesis import find
    >>> find(causal_blocks(), lambda blocks: not blocks.triangular.all()).mask_extent
    (2, 3)
    """
    blocks = draw(dense_routes(max_size, max_length)).blocks
    most = draw(st.none() | st.integers(1, max_length))
    return blocks if most is None else split_blocks(blocks, most)


def dense_values() -> SearchStrategy[Any]:
    """Any plan value of ``hpfun.dense``."""
    return st.one_of(dense_routes(), causal_blocks())
