"""Which degrees of parallelism a model and a mesh can take, from sizes alone, with every misfit told at once."""

from hpfun.sharding.checks import (
    check_degrees,
    check_mesh,
    check_model,
    validate_parallel_sizes,
)
from hpfun.sharding.degrees import legal_degrees, sequence_alignment
from hpfun.sharding.model import ModelFacts
from hpfun.sharding.request import MeshShape, ShardingRequest

__all__ = [
    "MeshShape",
    "ModelFacts",
    "ShardingRequest",
    "check_degrees",
    "check_mesh",
    "check_model",
    "legal_degrees",
    "sequence_alignment",
    "validate_parallel_sizes",
]
