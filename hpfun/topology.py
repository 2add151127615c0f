"""Topology: how the ranks of a decoder group are numbered, context parallel outside, tensor parallel inside.

Rule BATCH-1 of ``specs/batch.md``.
"""

import attrs

from hpfun._fields import INT64_MAX, content_digest, integer, plan_value
from hpfun.errors import PlanError, Violation, collect, refusal, refuse_all

MOST_RANKS = 2**31 - 1
_CODE = "HP-BATCH-001"


@plan_value
class BatchTopology:
    """Decoder groups of ``cp_size`` times ``tp_size`` ranks, ``dp_size`` of them.

    With ``sequence_parallel`` the tensor-parallel ranks share the rows of a CP shard; without, each of them has all.
    Raises HP-BATCH-001, all violations at once.

    >>> topology = BatchTopology(4, 2, sequence_parallel=True)
    >>> topology.parent_size, topology.parent_rank(3, 1), topology.row_parts
    (8, 7, 2)
    """

    cp_size: int = attrs.field()
    tp_size: int = attrs.field(default=1)
    sequence_parallel: bool = attrs.field(default=False)
    dp_size: int = attrs.field(default=1)

    digest = content_digest

    def __attrs_post_init__(self):
        found: list[Violation] = []
        for name in ("cp_size", "tp_size", "dp_size"):
            object.__setattr__(self, name, collect(found, at_least_one, getattr(self, name), name, MOST_RANKS))
        if type(self.sequence_parallel) is not bool:
            value = repr(self.sequence_parallel)[:60]
            facts = {"name": "sequence_parallel", "value": value, "required": "a bool"}
            found.append(
                Violation(_CODE, "sequence_parallel", f"needs a bool, got {value}", facts, "pass True or False")
            )
        refuse_all(found)

    @property
    def parent_size(self) -> int:
        """Ranks of one decoder group."""
        return self.cp_size * self.tp_size

    @property
    def row_parts(self) -> int:
        """Parts of a CP shard on its tensor-parallel ranks: ``tp_size`` with sequence parallelism, else 1."""
        return self.tp_size if self.sequence_parallel else 1

    def parent_rank(self, cp_rank: int, tp_rank: int) -> int:
        """Number of a rank in its decoder group."""
        return cp_rank * self.tp_size + tp_rank


def at_least_one(value: object, name: str, most: int = INT64_MAX) -> int:
    """``value`` as a Python int of at least 1; HP-BATCH-001 with the facts ``name``, ``value`` and ``required``."""
    try:
        return integer(value, name, _CODE, least=1, most=most)
    except PlanError as error:
        facts = {"name": name, "value": repr(value)[:60], "required": f"an int from 1 to {most}"}
        raise refusal(_CODE, name, error.violations[0].message, "pass an int of at least 1", **facts) from None
