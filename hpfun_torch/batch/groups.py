"""Process groups of a decoder group: its parent, and in it the tensor- and context-parallel ranks.

Rule BATCH-40 of ``specs/batch.md``.
"""

from typing import Any

import attrs
import torch.distributed as dist

from hpfun.batch import BatchTopology
from hpfun.errors import PlanError, refusal


@attrs.frozen(eq=False)
class BatchGroups:
    """The process groups that this rank is in; made by ``batch_groups``, or of what a training framework has.

    ``parent`` are the ranks that share a batch, ``cp_rank * tp_size + tp_rank`` in order; ``tp`` those of this rank's
    CP rank, ``cp`` those of its TP rank. None is the group of all processes, so a size of 1 among several has its own.
    """

    parent: Any = None
    tp: Any = None
    cp: Any = None

    def coordinates(self, topology: BatchTopology) -> tuple[int, int]:
        """CP and TP rank of this process; HP-BATCH-009 where the groups are not those of the topology."""
        sizes = {"parent": topology.parent_size, "tp": topology.tp_size, "cp": topology.cp_size}
        ranks = {name: _rank(getattr(self, name), name, size, topology) for name, size in sizes.items()}
        cp_rank, tp_rank = divmod(ranks["parent"], topology.tp_size)
        if (cp_rank, tp_rank) != (ranks["cp"], ranks["tp"]):
            message = f"parent rank {ranks['parent']} is CP rank {ranks['cp']} and TP rank {ranks['tp']}"
            raise _misfit(topology, "parent", message, "number the parent's ranks cp_rank * tp_size + tp_rank")
        return cp_rank, tp_rank


def batch_groups(topology: BatchTopology) -> BatchGroups:
    """New groups for ``dp_size`` decoder groups of consecutive ranks; every process calls it once, in the same order.

    Raises HP-BATCH-009 where there are other processes than ranks of the topology.

    >>> batch_groups(BatchTopology(1)).coordinates(BatchTopology(1))
    (0, 0)
    """
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != topology.dp_size * topology.parent_size:
        message = f"{size} processes for {topology.dp_size} groups of {topology.parent_size}"
        raise _misfit(topology, "topology", message, "start dp_size * cp_size * tp_size processes")
    parents = range(0, size, topology.parent_size)
    lanes = [parent + tp_rank for parent in parents for tp_rank in range(topology.tp_size)]
    return BatchGroups(
        parent=_own_group([range(first, first + topology.parent_size) for first in parents], size),
        tp=_own_group([range(first, first + topology.tp_size) for first in range(0, size, topology.tp_size)], size),
        cp=_own_group([range(first, first + topology.parent_size, topology.tp_size) for first in lanes], size),
    )


def checked_groups(groups: Any, topology: BatchTopology) -> BatchGroups:
    """``groups`` as they are, or HP-BATCH-009 for what are none."""
    if isinstance(groups, BatchGroups):
        return groups
    raise _misfit(topology, "groups", f"needs BatchGroups, got {type(groups).__name__}", "make them with batch_groups")


def _own_group(members: list[range], size: int) -> Any:
    """This process's group, which all processes make; None for all processes.

    One alone is a group too, since None would mean all to whoever is handed it; only that process makes it.
    """
    if len(members[0]) == size:
        return None
    if len(members[0]) == 1:
        return dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return dist.new_subgroups_by_enumeration(list(map(list, members)))[0]


def _rank(group: Any, name: str, size: int, topology: BatchTopology) -> int:
    if not dist.is_initialized():
        if size == 1:
            return 0
        message = f"{size} ranks, but torch.distributed is not initialised"
        raise _misfit(topology, name, message, "call torch.distributed.init_process_group first")
    found, rank = dist.get_world_size(group), dist.get_rank(group)
    if found != size or rank < 0:
        message = f"rank {rank} of a group of {found}, the topology has {size}"
        raise _misfit(topology, name, message, "pass the groups that batch_groups makes")
    return rank


def _misfit(topology: BatchTopology, where: str, message: str, advice: str) -> PlanError:
    return refusal("HP-BATCH-009", where, message, advice, cp_size=topology.cp_size, tp_size=topology.tp_size)
