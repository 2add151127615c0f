"""A packed batch, cut for one rank: what the model of every rank is called with.

Labels are shifted inside documents before the cut, and the loss is divided by the number of labels of all ranks, so
that the ranks' losses add up to that of one process. Rules HF-6 to HF-8 and HF-17 of ``specs/attention.md``.
"""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist

from hpfun import PackedDocuments, attempt
from hpfun._fields import integer, integers, readonly
from hpfun.batch import IGNORED, loss_scale
from hpfun.errors import refusal
from hpfun.serial import digest
from hpfun.shards import read_boundaries
from hpfun_torch.agree import compare
from hpfun_torch.batch.labels import rows_ahead
from hpfun_torch.batch.payload import checksum
from hpfun_torch.batch.rows import PlacedRows, index
from hpfun_torch.checks import group_size
from hpfun_torch.integrations.transformers.call import CONTEXT
from hpfun_torch.integrations.transformers.state import Enabled, enabled


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
    ``cu_seq_lens`` are cumulative document ends with a leading 0, of which repeated ones count once. A pack that the
    ranks do not divide is filled up with ``pad_token_id`` without labels: one more document, and in zigzag more at the
    end of each. The loss that the model gives is this rank's part: their sum over the ranks is the mean over all
    labels. Tensors stay on their device. Raises HP-HF-003 (shapes), HP-HF-004 (a model without context parallelism)
    and what ``attention_plan`` or ``plan_batch`` raises, on every rank where it is on; HP-AGREE-001 where packs differ.
    """
    state = enabled(model)
    size = group_size(state.group)
    found, outcome = attempt(_planned, model, state, input_ids, cu_seq_lens, labels, pad_token_id, size)
    told = {} if found is None else {"plan": found.plan.digest, "tokens": found.tokens}
    compare(outcome, digest(told) if told else "", told, state.group, "HP-AGREE-001", "batch")
    pack = cast(_Pack, found)  # or compare had raised
    kind = state.family.kind
    rank = dist.get_rank(state.group) if size > 1 else 0
    context, sources = kind.part(pack.plan, pack.documents, rank, state.group)
    rows = PlacedRows.of(sources, pack.ids.device)
    shifted = shifted_labels(pack.documents, pack.labels)
    own = rows.place(shifted, 0, IGNORED)[None]
    places = index(context.positions, pack.ids.device)
    counted = loss_scale([int((shifted != IGNORED).sum())], reduction="sum", group_size=1)
    return {
        "input_ids": rows.place(pack.ids, 0, pad_token_id)[None],
        "position_ids": places[None] if pack.positions is None else rows.place(pack.positions, -1, places),
        "attention_mask": kind.mask,
        "labels": own,
        "shift_labels": own,
        "num_items_in_batch": counted.divisor,
        "use_cache": False,
        CONTEXT: context,
    }


def shifted_labels(documents: PackedDocuments, labels: torch.Tensor) -> torch.Tensor:
    """Each token's next label in its own document, -100 at its end; ``[tokens]``.

    >>> shifted_labels(PackedDocuments((2, 3)), torch.arange(5)).tolist()
    [1, -100, 3, 4, -100]
    """
    return rows_ahead(documents.lengths, labels.device).place(labels, 0, IGNORED)


class _Pack(NamedTuple):
    """A whole pack: its plan, documents, ids and labels, positions if the model makes its own, a digest of tokens."""

    plan: Any
    documents: PackedDocuments
    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor | None
    tokens: str


def _planned(
    model: Any, state: Enabled, input_ids: Any, cu_seq_lens: object, labels: Any, pad: int, size: int
) -> _Pack:
    ids = _flat(input_ids, "input_ids")
    goals = (ids if labels is None else _flat(labels, "labels")).long()  # what cross entropy takes
    documents = _documents(cu_seq_lens)
    known = model.config.get_text_config().vocab_size
    integer(pad, "pad_token_id", "HP-HF-003", least=0, most=min(known - 1, torch.iinfo(ids.dtype).max))
    lengths = {"input_ids": len(ids), "labels": len(goals), "cu_seq_lens": documents.total}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        advice = "cu_seq_lens ends at the number of tokens, labels are as many as ids"
        raise refusal("HP-HF-003", "input_ids", f"tokens do not fit: {told}", advice, **lengths)
    make = state.family.positions
    positions = None if make is None else make(model, ids, documents)
    plan = state.family.kind.plan(state, documents, size)
    return _Pack(plan, documents, ids, goals, positions, digest([checksum(part.long()) for part in (ids, goals)]))


def _documents(cu_seq_lens: object) -> PackedDocuments:
    """Those of cumulative ends; documents without tokens, whose end repeats, are left out."""
    if isinstance(cu_seq_lens, PackedDocuments):
        return cu_seq_lens
    ends = integers(cu_seq_lens, "cu_seq_lens", "HP-ROUTE-003")
    first = np.diff(ends, prepend=-1) != 0
    return read_boundaries(readonly(ends[first]), "cu_seq_lens")


def _flat(tensor: Any, name: str) -> torch.Tensor:
    shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
    if shape is None or len(shape) > 2 or (len(shape) == 2 and shape[0] != 1) or not _counts(tensor):
        got = type(tensor).__name__ if shape is None else f"{tensor.dtype} {list(shape)}"
        advice = "pass an integer tensor" if shape is None or not _counts(tensor) else "pack all rows into one"
        raise refusal("HP-HF-003", name, f"needs integers [tokens] or [1, tokens], got {got}", advice, shape=shape)
    return tensor.reshape(-1)


def _counts(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
