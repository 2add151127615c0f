"""Ascend's operators with CPU kernels, on the wheel's own schemas where it is installed, else on ``schemas``."""

import importlib.util
from functools import cache

import torch

from tests.npu import kernels
from tests.npu.schemas import CANN_OPS_TRANSFORMER, NPU

WHEEL = importlib.util.find_spec("torch_npu") is not None


def name_of(schema: str) -> str:
    return schema.partition("(")[0]


@cache
def register() -> tuple[torch.library.Library, ...]:
    """Once a process; the libraries live as long as it does."""
    if WHEEL:
        import torch_npu  # noqa: F401  # defines the namespace
    npu = torch.library.Library("npu", "IMPL" if WHEEL else "DEF")
    package = torch.library.Library("cann_ops_transformer", "DEF")
    for library, schemas, known in ((npu, NPU, WHEEL), (package, CANN_OPS_TRANSFORMER, False)):
        for schema in schemas:
            if not known:
                library.define(schema)
            library.impl(name_of(schema), getattr(kernels, name_of(schema)), "CPU")
    return npu, package
