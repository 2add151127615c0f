"""Batch rule: how the plan of every batch is made from what the batch carries.

Rules BATCH-6, BATCH-10 and BATCH-16 of ``specs/batch.md``.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from hpfun.batch import BatchPlan, BatchTopology, lengths_from_cu, lengths_from_positions, plan_batch
from hpfun.errors import refusal


@attrs.frozen
class BatchRule:
    """What all plans of a training run have in common; called with a batch, it gives the plan of that batch.

    ``alignment`` and ``capacity`` as in ``plan_batch``. Raises HP-BATCH-001 and 004 when made, and HP-BATCH-013 for a
    capacity below the alignment; when called, what ``batch_lengths`` raises and HP-BATCH-013.

    >>> rule = BatchRule(BatchTopology(2), layout="zigzag")
    >>> rule({"input_ids": torch.zeros(1, 8), "cu_seq_lens": torch.tensor([0, 3, 8])}).padded_length
    12
    """

    topology: BatchTopology
    layout: str = "contiguous"
    alignment: int | None = None
    capacity: int | None = None

    def __attrs_post_init__(self):
        self._plan(())

    def __call__(self, batch: Mapping[str, Any]) -> BatchPlan:
        """The plan of a whole batch."""
        return self._plan(batch_lengths(batch))

    def _plan(self, lengths: tuple[int, ...]) -> BatchPlan:
        return plan_batch(lengths, self.topology, layout=self.layout, alignment=self.alignment, capacity=self.capacity)


def batch_lengths(batch: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens of each document of a whole batch: from its ``cu_seq_lens``, else from its ``position_ids``.

    ``input_ids [1, tokens]``; ``cu_seq_lens`` are cumulative ends with a leading 0, ``[documents + 1]``;
    ``position_ids`` ``[1, tokens]`` or ``[4, 1, tokens]``, whose first row counts text. Multimodal positions alone,
    ``[3, 1, tokens]``, do not tell documents apart. Raises HP-BATCH-003 for shapes and HP-BATCH-002 for boundaries
    that do not cover the tokens, or where a batch has none.

    >>> batch_lengths({"input_ids": torch.zeros(1, 5), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])})
    (3, 2)
    """
    total = _row(batch, "input_ids").shape[-1]
    cu_seq_lens = batch.get("cu_seq_lens")
    if cu_seq_lens is not None:
        return lengths_from_cu(_on_host(cu_seq_lens), total)
    if batch.get("position_ids") is None:
        advice = "give the cu_seq_lens of the pack, or position_ids that count from 0 in each document"
        facts = {"first": None, "last": None, "sequence_length": total}
        raise refusal("HP-BATCH-002", "cu_seq_lens", "the batch says nothing of its documents", advice, **facts)
    positions = _row(batch, "position_ids")
    if positions.shape[-1] != total:
        raise _misshapen("position_ids", tuple(positions.shape), total)
    return lengths_from_positions(_on_host(positions[0]))


def _row(batch: Mapping[str, Any], name: str) -> torch.Tensor:
    """A field as ``[1, tokens]``: of positions ``[4, 1, tokens]`` the first row."""
    value: Any = batch.get(name)
    shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
    if name == "position_ids" and shape is not None and len(shape) == 3 and shape[0] == 4:
        value, shape = value[0], shape[1:]
    if shape is None or len(shape) != 2 or shape[0] != 1:
        raise _misshapen(name, shape, "[1, tokens]")
    return value


def _misshapen(name: str, shape: object, expected: object) -> Exception:
    message = f"needs {expected}, got {'no tensor' if shape is None else shape}"
    advice = "pack all rows into one" if name == "input_ids" else "give cu_seq_lens, or text positions of all tokens"
    return refusal("HP-BATCH-003", name, message, advice, fields=(name,), actual=(shape,), expected=expected)


def _on_host(values: Any) -> Any:
    return values.detach().cpu() if isinstance(values, torch.Tensor) else values
