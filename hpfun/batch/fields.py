"""Fields: which tensors of a batch have a row for each token, and what their padding holds.

Rules BATCH-11 to BATCH-13 of ``specs/batch.md``.
"""

from collections.abc import Iterable, Mapping

import attrs
import numpy as np

from hpfun._fields import content_digest, integer_field, kind_field, plan_value
from hpfun.errors import refusal

POSITION = "position"
_CODE = "HP-BATCH-003"


def _pad(value: object) -> int | float | bool | str:
    if type(value) in (bool, int, float) or (type(value) is str and value == POSITION):
        return value  # ty: ignore[invalid-explicit-return]
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    got = repr(value)[:60]
    advice = f'use a number, or "{POSITION}"'
    raise refusal(_CODE, "pad", f"needs a number, got {got}", advice, fields=("pad",), actual=got, expected="a number")


@plan_value
class FieldSpec:
    """A per-token tensor of a batch: the axis of its tokens and what padding rows hold.

    ``sequence_dim`` counts from the end if negative; ``pad`` is a number, or ``"position"`` for a row's place in its
    padded document. A ``required`` field is in every batch. Raises HP-BATCH-003.

    >>> FieldSpec("labels", 1, -100).pad
    -100
    """

    name: str = kind_field(str, _CODE)
    sequence_dim: int = integer_field(_CODE, least=-16, most=15)
    pad: int | float | bool | str = attrs.field(default=0, converter=_pad)
    required: bool = kind_field(bool, _CODE, default=False)

    digest = content_digest


OMNI_CP_TOKEN_FIELDS = (
    FieldSpec("input_ids", 1, 0, required=True),
    FieldSpec("labels", 1, -100),
    FieldSpec("loss_mask", 1, 0),
    FieldSpec("attention_mask", 1, 0),
    FieldSpec("mm_token_type_ids", 1, 0),
    FieldSpec("loss_weights", 1, 0.0),
    FieldSpec("visual_pos_masks", 1, False),
    FieldSpec("position_ids", -1, POSITION),
)


def check_fields(fields: Iterable[FieldSpec], shapes: Mapping[str, tuple[int, ...]], num_tokens: int) -> None:
    """HP-BATCH-003 with all that do not fit, unless each field of ``shapes`` has ``num_tokens`` on its axis.

    ``input_ids`` is one row, ``[1, num_tokens]``; a required field that is missing does not fit either.

    >>> check_fields(OMNI_CP_TOKEN_FIELDS, {"input_ids": (1, 8), "position_ids": (4, 1, 8)}, 8)
    """
    wrong = {spec.name: shapes.get(spec.name) for spec in fields if not _fits(spec, shapes.get(spec.name), num_tokens)}
    if wrong:
        told = ", ".join(f"{name} {'is missing' if shape is None else shape}" for name, shape in wrong.items())
        advice = "pack all rows into one, and list each per-token field with the axis of its tokens"
        facts = {"fields": tuple(wrong), "actual": tuple(wrong.values()), "expected": num_tokens}
        raise refusal(_CODE, next(iter(wrong)), f"{told}; the batch has {num_tokens} tokens", advice, **facts)


def _fits(spec: FieldSpec, shape: tuple[int, ...] | None, num_tokens: int) -> bool:
    if not isinstance(shape, tuple):
        return shape is None and not spec.required
    if spec.name == "input_ids":
        return shape == (1, num_tokens)
    return -len(shape) <= spec.sequence_dim < len(shape) and shape[spec.sequence_dim] == num_tokens
