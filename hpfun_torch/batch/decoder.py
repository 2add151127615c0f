"""A decoder rank's rows: its part of a shard, and all ranks' rows back in the order of the batch.

Rules BATCH-22 and BATCH-32 of ``specs/batch.md``.
"""

from typing import Any

import torch
import torch.distributed as dist

from hpfun.batch import BatchPlan, DecoderSequenceLayout
from hpfun.batch.plan import check_plan
from hpfun.errors import refusal
from hpfun_torch.batch.rows import token_rows
from hpfun_torch.checks import check_dim, group_size
from hpfun_torch.gather import gather_sequence

_CODE = "HP-ENCODER-004"


def localize(layout: DecoderSequenceLayout, tensor: torch.Tensor, sequence_dim: int = 1) -> torch.Tensor:
    """This TP rank's rows of a CP shard, as a contiguous copy: all of them without sequence parallelism.

    ``tensor`` has ``layout.cp_local_length`` rows on ``sequence_dim``. Raises HP-ENCODER-004.

    >>> layout = DecoderSequenceLayout.build(
    ...     cp_rank=0, cp_size=1, cp_local_length=4, tp_rank=1, tp_size=2, sequence_parallel=True
    ... )
    >>> localize(layout, torch.arange(4)[None]).tolist()
    [[2, 3]]
    """
    layout.check_rows(_rows(tensor, sequence_dim), whole_shard=True, where="tensor")
    part = tensor.narrow(sequence_dim, layout.cp_local_start, layout.num_rows)
    return part.clone(memory_format=torch.contiguous_format)


def validate_hidden(layout: DecoderSequenceLayout, hidden: torch.Tensor, sequence_dim: int = 1) -> None:
    """HP-ENCODER-004 unless the hidden states have the planned rows of this CP and TP rank.

    >>> validate_hidden(DecoderSequenceLayout.build(cp_rank=0, cp_size=2, cp_local_length=4), torch.ones(1, 4, 8))
    """
    layout.check_rows(_rows(hidden, sequence_dim), whole_shard=False, where="hidden")


def gather_tokens(
    plan: BatchPlan, local: torch.Tensor, group: dist.ProcessGroup | None = None, sequence_dim: int = 1
) -> torch.Tensor:
    """All ranks' rows in the order of the batch as it came, without padding, on every rank.

    ``local`` are the rows of this rank's shard on ``sequence_dim``, and ``group`` the CP ranks; or with sequence
    parallelism its part of the shard, and the parent group. Costs one all-gather. Differentiable: a row's gradient is
    the sum of all ranks' gradients of it, 0 for padding. Raises HP-BATCH-007 for what is no plan, HP-BATCH-009 for a
    group of another size and HP-ENCODER-004 for other rows, before the collective.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> gather_tokens(plan_batch((3,), BatchTopology(1)), torch.tensor([[5, 6, 7, 0]])).tolist()
    [[5, 6, 7]]
    """
    rows, topology = _rows(local, sequence_dim), check_plan(plan).topology
    parts = topology.cp_size * (topology.row_parts if rows != plan.local_length else 1)
    if rows * parts != plan.padded_length:
        expected = plan.padded_length // parts
        advice = "pass this rank's rows of the plan"
        facts = {"actual": rows, "expected": expected, "cp_rank": None, "tp_rank": None, "interval": None}
        raise refusal(_CODE, "local", f"{rows} rows, the plan has {expected}", advice, **facts)
    if parts > 1:
        if group_size(group) != parts:
            message = f"a group of {group_size(group)} for {parts} parts of the batch"
            facts = {"cp_size": topology.cp_size, "tp_size": topology.tp_size}
            raise refusal("HP-BATCH-009", "group", message, "pass the group that the batch was cut for", **facts)
        local = gather_sequence(local, group, sequence_dim, [rows] * parts)
    return local.index_select(sequence_dim, token_rows(plan, local.device))


def _rows(tensor: Any, dim: int) -> int:
    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise refusal(_CODE, "tensor", f"needs a tensor, got {kind}", actual=kind, expected="a tensor")
    check_dim(tensor, dim, _CODE)
    return tensor.shape[dim]
