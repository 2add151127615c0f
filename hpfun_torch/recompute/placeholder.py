"""What a replay gets in place of an output that was not kept: shape, strides, dtype and device, and no numbers.

Rule RECOMPUTE-31 of ``specs/recompute.md``.
"""

from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from hpfun.errors import refusal


@attrs.frozen
class Likeness:
    """All of a tensor but its numbers."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Likeness":
        """That of this tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


class Placeholder(torch.Tensor):
    """A tensor without numbers; whoever computes with it gets HP-RECOMPUTE-031."""

    wrapper: str

    @staticmethod
    def __new__(cls, like: Likeness, requires_grad: bool, wrapper: str):  # noqa: D102
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride,
            dtype=like.dtype,
            device=like.device,
            requires_grad=requires_grad,
        )
        made.wrapper = wrapper
        return made

    def __init__(self, *_: Any):
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Placeholder({self.wrapper}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # ty: ignore[incompatible-method-override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        held = next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        if func is torch.ops.aten.detach.default:
            return cls(Likeness.of(held), False, held.wrapper)
        raise refusal(
            "HP-RECOMPUTE-031",
            held.wrapper,
            f"{func} reads an output that was not kept",
            "wrap it with save_output=True, or exclude the reader as well",
            wrapper=held.wrapper,
            op=str(func),
        )
