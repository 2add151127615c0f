"""Loss over ranks: sums divided once by the labels of all, however they lie.

Rules BATCH-28 to BATCH-30 of ``specs/batch.md``.
"""

from typing import Any

from hpfun._fields import content_digest, integer, integer_field, integers, integers_field, plan_value
from hpfun.errors import refusal

REDUCTIONS = ("sum", "mean")
_CODE = "HP-BATCH-012"


@plan_value
class LossScale:
    """What each rank multiplies the sum of its losses with: ``factor / divisor``.

    ``valid_by_rank`` int64 ``[ranks]`` are the labels that count, ``total`` their sum, ``divisor`` the same but at
    least 1; ``factor`` undoes the mean of a reducer that averages gradients. Made by ``loss_scale``; HP-BATCH-012.
    """

    valid_by_rank: Any = integers_field(_CODE)
    total: int = integer_field(_CODE, least=0)
    divisor: int = integer_field(_CODE, least=1)
    factor: int = integer_field(_CODE, least=1)

    digest = content_digest

    def __attrs_post_init__(self):
        counts = self.valid_by_rank.tolist()
        total = sum(counts)
        fits = self.factor in (1, len(counts)) and min(counts, default=0) >= 0
        if (self.total, self.divisor) != (total, max(total, 1)) or not fits:
            facts: dict[str, Any] = {
                "counts": tuple(self.valid_by_rank.tolist()),
                "total": self.total,
                "divisor": self.divisor,
            }
            message = f"{self.total} labels over {self.divisor}, times {self.factor}, for counts of {total} together"
            raise refusal(_CODE, "total", message, "make it with loss_scale", **facts)


def loss_scale(valid_by_rank: object, *, reduction: str, group_size: int) -> LossScale:
    """The scale of a group: ``valid_by_rank`` int ``[group_size]`` labels that count on each rank.

    ``reduction`` says what gradients meet: ``"sum"`` over the group, or ``"mean"`` as DDP and FSDP take it. Ranks that
    compute the same loss again, as tensor-parallel ones do, are no members. Raises HP-BATCH-012.

    >>> scale = loss_scale([3, 1], reduction="mean", group_size=2)
    >>> scale.total, sum((6.0, 4.0)) / scale.divisor, scale.factor
    (4, 2.5, 2)
    """
    counts = integers(valid_by_rank, "valid_by_rank", _CODE)
    size = integer(group_size, "group_size", _CODE, least=1)
    told = tuple(counts[:64].tolist())
    if len(counts) != size or (counts < 0).any():
        least = int(counts.min()) if len(counts) else None
        message = f"{len(counts)} counts for {size} ranks, the least is {least}"
        raise refusal(_CODE, "valid_by_rank", message, "gather one count of at least 0 from each rank", counts=told)
    if type(reduction) is not str or reduction not in REDUCTIONS:
        got = repr(reduction)[:60]
        message = f"got {got}"
        raise refusal(_CODE, "reduction", message, f"use {' or '.join(REDUCTIONS)}", counts=told, reduction=got)
    total = sum(counts.tolist())
    return LossScale(counts, total, max(total, 1), size if reduction == "mean" else 1)
