"""Limits of a device's operators as data: a quantity, its legal values, a way out; and the one check of them."""

from collections.abc import Mapping, Sequence

import attrs
import torch

from hpfun.errors import Violation, refuse_all

CODE = "HP-OPS-002"
HALF = ("bfloat16",), ("float16",)
POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
_ELSEWHERE = "use the CPU's operator, or register an extension for it"


@attrs.frozen
class Span:
    """Integers from ``least`` to ``most``."""

    least: int
    most: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.least <= value <= self.most

    def __iter__(self):  # facts show the two ends
        return iter((self.least, self.most))


@attrs.frozen
class Limit:
    """One quantity of a call and its legal values."""

    quantity: str
    where: str
    legal: Span | Sequence[object]
    way_out: str = _ELSEWHERE


def check_limits(operator: str, limits: Sequence[Limit], got: Mapping[str, object]) -> None:
    """Raise HP-OPS-002 with every quantity that is not legal; ``got`` has them by name."""
    broken = []
    for limit in limits:
        value = got[limit.quantity]
        if value not in limit.legal:
            legal = tuple(limit.legal)
            shown = f"{legal[0]} to {legal[1]}" if isinstance(limit.legal, Span) else " or ".join(map(str, legal))
            message = f"{operator} has {limit.quantity} {shown}, got {value}"
            facts = {"operator": operator, "quantity": limit.quantity, "got": value, "legal": legal}
            broken.append(Violation(CODE, limit.where, message, facts, limit.way_out))
    refuse_all(broken)


def dtypes(*tensors: torch.Tensor | None) -> tuple[str, ...]:
    """Names of the dtypes of all tensors; one name where they agree."""
    return tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor is not None}))
