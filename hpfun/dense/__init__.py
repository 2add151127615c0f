"""Dense attention under context parallelism: which rows of a rank attend to which keys, and how the keys get there."""

from hpfun.dense.blocks import CausalBlock, CausalBlocks, causal_blocks, split_blocks
from hpfun.dense.route import DenseRoute, dense_route

__all__ = ["CausalBlock", "CausalBlocks", "DenseRoute", "causal_blocks", "dense_route", "split_blocks"]
