"""A packed batch, cut for one rank: what the model of every rank is called with.

Labels are shifted inside documents before the cut, and the loss is divided by the number of labels of all ranks, so
that the ranks' losses add up to that of one process. Rules HF-6 to HF-8 of ``specs/attention.md``.
"""

import hashlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from hpfun import PackedDocuments, attempt
from hpfun._fields import integer
from hpfun.attention import AttentionPlan, attention_plan, attention_route
from hpfun.errors import refusal
from hpfun.serial import digest
from hpfun.shards import read_boundaries
from hpfun_torch.agree import compare
from hpfun_torch.attention import ContextParallelAttention
from hpfun_torch.checks import group_size
from hpfun_torch.integrations.transformers.call import CONTEXT
from hpfun_torch.integrations.transformers.state import enabled

IGNORED = -100


def prepare_batch(
    model: torch.nn.Module,
    input_ids: torch.Tensor,
    cu_seq_lens: object,
    labels: torch.Tensor | None = None,
    *,
    pad_token_id: int = 0,
) -> dict[str, Any]:
    """Keyword arguments for ``model`` on this rank; every rank calls it once per batch with the same whole pack.

    ``input_ids [tokens]`` or ``[1, tokens]`` and ``labels`` of that shape (the ids by default, -100 counts nowhere);
    ``cu_seq_lens`` are cumulative document ends with a leading 0. A pack that the ranks do not divide gets one more
    document of ``pad_token_id`` without labels. The loss that the model gives is this rank's part: their sum over the
    ranks is the mean over all labels. Tensors stay on their device. Raises HP-HF-003 (shapes), HP-HF-004 (a model
    without context parallelism) and what ``attention_plan`` raises, on every rank; HP-AGREE-001 where packs differ.
    """
    state = enabled(model)
    size = group_size(state.group)
    found, outcome = attempt(_planned, state, input_ids, cu_seq_lens, labels, pad_token_id, size)
    told = {} if found is None else {"plan": found[0].digest, "tokens": found[3]}
    compare(outcome, digest(told) if told else "", told, state.group, "HP-AGREE-001", "batch")
    plan, ids, goals, _ = found
    rank = dist.get_rank(state.group) if size > 1 else 0
    context = ContextParallelAttention(plan, attention_route(plan, rank), state.group)
    shifted = shifted_labels(plan.documents, goals)
    mine = slice(rank * plan.local_rows, (rank + 1) * plan.local_rows)
    own = shifted[mine][None]
    return {
        "input_ids": ids[mine][None],
        "position_ids": torch.from_numpy(context.route.positions.copy()).to(ids.device)[None],
        "attention_mask": {"indexed_attention": None},  # a mapping: the model then builds no mask
        "labels": own,
        "shift_labels": own,
        "num_items_in_batch": max(int((shifted != IGNORED).sum()), 1),
        "use_cache": False,
        CONTEXT: context,
    }


def shifted_labels(documents: PackedDocuments, labels: torch.Tensor) -> torch.Tensor:
    """Each token's next label in its own document, -100 at its end; ``[tokens]``.

    >>> shifted_labels(PackedDocuments((2, 3)), torch.arange(5)).tolist()
    [1, -100, 3, 4, -100]
    """
    shifted = torch.full_like(labels, IGNORED)
    shifted[:-1] = labels[1:]
    shifted[torch.from_numpy(documents.boundaries[1:] - 1).to(labels.device)] = IGNORED
    return shifted


def _planned(
    state: Any, input_ids: Any, cu_seq_lens: object, labels: Any, pad: int, size: int
) -> tuple[AttentionPlan, torch.Tensor, torch.Tensor, str]:
    """The plan, the padded ids and labels, and a digest of both."""
    ids = _flat(input_ids, "input_ids")
    goals = (ids if labels is None else _flat(labels, "labels")).long()  # what cross entropy takes
    documents = read_boundaries(cu_seq_lens, "cu_seq_lens")
    pad = integer(pad, "pad_token_id", "HP-HF-003", least=0)
    lengths = {"input_ids": len(ids), "labels": len(goals), "cu_seq_lens": documents.total}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        advice = "cu_seq_lens ends at the number of tokens, labels are as many as ids"
        raise refusal("HP-HF-003", "input_ids", f"tokens do not fit: {told}", advice, **lengths)
    missing = -documents.total % size
    if missing:
        documents = PackedDocuments((*documents.lengths.tolist(), missing))
        ids = torch.cat((ids, ids.new_full((missing,), pad)))
        goals = torch.cat((goals, goals.new_full((missing,), IGNORED)))
    options = state.options
    plan = attention_plan(
        documents,
        size,
        state.config,
        options.balance,
        overlapped=options.overlapped,
        indexer_priority=options.indexer_priority,
    )
    return plan, ids, goals, digest([_checksum(part) for part in (ids, goals)])


def _checksum(tensor: torch.Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.cpu().numpy().astype(np.int64)).tobytes()).hexdigest()


def _flat(tensor: Any, name: str) -> torch.Tensor:
    shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
    if shape is None or len(shape) > 2 or (len(shape) == 2 and shape[0] != 1) or tensor.is_floating_point():
        got = type(tensor).__name__ if shape is None else f"{tensor.dtype} {list(shape)}"
        advice = "pass an integer tensor" if shape is None or tensor.is_floating_point() else "pack all rows into one"
        raise refusal("HP-HF-003", name, f"needs integers [tokens] or [1, tokens], got {got}", advice, shape=shape)
    return tensor.reshape(-1)
