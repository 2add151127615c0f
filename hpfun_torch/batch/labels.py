"""Labels shifted before the cut, counted over all ranks, and the loss that is divided by their number.

Every rank has the whole batch before it is cut, so the count needs no collective. Rules BATCH-25 to BATCH-29 of
``specs/batch.md``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpfun.batch import (
    IGNORED,
    OMNI_CP_TOKEN_FIELDS,
    BatchPlan,
    FieldSpec,
    LossScale,
    loss_scale,
    restore_index,
    shift_labels,
)
from hpfun.batch.plan import check_plan
from hpfun.errors import refusal
from hpfun_torch.batch.rows import KEPT, PlacedRows, index
from hpfun_torch.batch.shard import LABELS, PLAN, Batch, check_batch, read_specs
from hpfun_torch.convert import kept_per_device

SHIFTED = "labels_shifted"


def shift_batch_labels(
    batch: Batch, plan: BatchPlan, fields: Sequence[FieldSpec] = OMNI_CP_TOKEN_FIELDS, reduction: str = "sum"
) -> dict[str, Any]:
    """The whole batch with its ``labels`` shifted inside documents, and the count of those that are left.

    Adds ``labels_shifted=True``, ``loss_scale`` (of the CP ranks, see ``hpfun.batch.loss_scale`` for ``reduction``) and
    ``num_items_in_batch``, its divisor, where the batch has none of these. Labels that are marked as shifted stay as
    they are; a batch without ``labels`` in ``fields`` comes back as it is. Raises HP-BATCH-008 for a batch that was cut
    already, HP-BATCH-007 for what is no plan and HP-BATCH-003 for labels of other tokens than the plan's.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> batch = {"input_ids": torch.zeros(1, 5), "labels": torch.tensor([[11, 12, 21, 22, 23]])}
    >>> shifted = shift_batch_labels(batch, plan_batch((2, 3), BatchTopology(1)))
    >>> shifted["labels"].tolist(), shifted["num_items_in_batch"]
    ([[12, -100, 22, 23, -100]], 3)
    """
    if PLAN in batch:
        message = "the batch is a shard: the label of its last row is on another rank"
        raise refusal("HP-BATCH-008", LABELS, message, "shift before sharding")
    spec = next((spec for spec in read_specs(fields) if spec.name == LABELS), None)
    labels = batch.get(LABELS)
    if spec is None or labels is None:
        return dict(batch)
    check_batch((spec,), batch, check_plan(plan).num_tokens)
    ignore = int(spec.pad)
    if not batch.get(SHIFTED):
        labels = _labels_ahead(plan, labels.device).place(labels, spec.sequence_dim, ignore)
    counts = valid_by_rank(plan, labels, spec.sequence_dim, ignore)
    scale = loss_scale(counts, reduction=reduction, group_size=plan.topology.cp_size)
    told = {"loss_scale": scale, "num_items_in_batch": scale.divisor}
    return {**told, **batch, LABELS: labels, SHIFTED: True}


def valid_by_rank(
    plan: BatchPlan, shifted: torch.Tensor, sequence_dim: int = 1, ignore: int = IGNORED
) -> tuple[int, ...]:
    """Labels of the whole batch that count on each CP rank, after they were shifted; TP ranks are not counted again."""
    counts = (shifted != ignore).movedim(sequence_dim, 0).unsqueeze(-1).flatten(1).sum(1)
    ranks = counts.new_zeros(plan.topology.cp_size)
    return tuple(ranks.index_add(0, _owners(plan, counts.device), counts).tolist())


def global_loss(local_sum: torch.Tensor, scale: LossScale) -> torch.Tensor:
    """This rank's part of the loss: the sum of its tokens' losses, times ``factor`` over ``divisor``.

    The ranks' parts add up to the mean over all labels, with ``factor`` 1; a rank without labels adds 0.

    >>> scale = loss_scale([3, 1], reduction="sum", group_size=2)
    >>> [global_loss(torch.tensor(part), scale).item() for part in (6.0, 4.0)]
    [1.5, 1.0]
    """
    return local_sum * scale.factor / scale.divisor


def rows_ahead(lengths: np.ndarray, device: torch.device) -> PlacedRows:
    """For each token the next one of its document; for the last of a document none.

    >>> rows_ahead(np.array([2, 3]), torch.device("cpu")).place(torch.arange(5), 0, -100).tolist()
    [1, -100, 3, 4, -100]
    """
    return PlacedRows.of(shift_labels(np.arange(int(lengths.sum())), lengths, ignore=-1), device)


@kept_per_device(KEPT)
def _labels_ahead(plan: BatchPlan, device: torch.device) -> PlacedRows:
    return rows_ahead(plan.lengths, device)


@kept_per_device(KEPT)
def _owners(plan: BatchPlan, device: torch.device) -> torch.Tensor:
    """The CP rank of each token; int64 ``[tokens]``."""
    return index(restore_index(plan) // plan.local_length, device)
