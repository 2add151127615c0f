"""What a batch plan costs: padding, causal work and labels by rank, and the keys that attention has to move.

Rule BATCH-46 of ``specs/batch.md``.
"""

from typing import Any

import numpy as np

from hpfun.batch.labels import label_counts
from hpfun.batch.plan import BatchPlan, check_plan
from hpfun.batch.work import causal_work
from hpfun.documents import PackedDocuments
from hpfun.sequence.prefix import document_prefix_plan


def batch_figures(plan: BatchPlan) -> dict[str, Any]:
    """The figures of a plan, as data that JSON can hold.

    ``work_imbalance`` is the greatest causal work of a CP rank over the mean, None without work; ``key_rows_moved`` the
    rows of keys (and of values) that dense attention brings to all ranks together: document prefixes when contiguous,
    every shard to every rank in zigzag. Raises what ``causal_work`` raises.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> row = batch_figures(plan_batch((4, 12), BatchTopology(2)))
    >>> row["padding"], row["work_imbalance"], row["labels_min"], row["key_rows_moved"]
    (0, 1.5454545454545454, 7, 4)
    """
    check_plan(plan)
    work, labels = causal_work(plan), label_counts(plan)
    ranks = plan.topology.cp_size
    real = [plan.real_rows(rank) for rank in range(ranks)]
    total = sum(work.tolist())
    return {
        "layout": plan.layout,
        "ranks": ranks,
        "tokens": plan.num_tokens,
        "documents": len(plan.lengths),
        "alignment": plan.alignment,
        "padded": plan.padded_length,
        "padding": plan.padded_length - plan.num_tokens,
        "rows": plan.local_length,
        "real_rows_min": min(real),
        "real_rows_max": max(real),
        "work_max": int(work.max()),
        "work_imbalance": int(work.max()) * ranks / total if total else None,
        "labels_min": int(labels.min()),
        "labels_max": int(labels.max()),
        "key_rows_moved": key_rows_moved(plan),
    }


def key_rows_moved(plan: BatchPlan) -> int:
    """Rows of keys that dense causal attention brings to other ranks, all together.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> [key_rows_moved(plan_batch((4, 12), BatchTopology(2), layout=layout)) for layout in ("contiguous", "zigzag")]
    [4, 16]
    """
    ranks = plan.topology.cp_size
    if plan.layout == "zigzag":
        return plan.padded_length * (ranks - 1)
    documents = PackedDocuments(plan.padded_lengths)
    return int(document_prefix_plan(documents, plan.local_length, ranks, ratio=1).moved_rows)


def relative_work(plan: BatchPlan) -> np.ndarray:
    """Causal work of each CP rank as a multiple of the mean; float64 ``[cp]``.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> relative_work(plan_batch((4, 12), BatchTopology(2), layout="zigzag")).tolist()
    [1.0, 1.0]
    """
    work = causal_work(plan)
    return work / max(sum(work.tolist()) / len(work), 1e-300)
