"""Ranks compare what they hold, once per batch, so that a difference is an error and not a hang.

``agree`` is an explicit call of every rank. No local memory of "seen before" decides whether it communicates:
a rank with a new plan and one with a used plan would then wait for each other. Rules AGREE-1 to AGREE-6 of
``specs/executors.md``.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import Outcome, PlanError, attempt, digest, merge_outcomes
from hpfun.difference import in_brief
from hpfun.errors import refusal
from hpfun.serial import from_json, to_json

Check = Literal["always", "off"]
T = TypeVar("T")
_WORDS = 4  # a sha256 digest as int64 words


@attrs.frozen
class Agreed:
    """Proof that all ``size`` ranks of a group hold the plan with this ``digest``."""

    plan: Any
    digest: str
    size: int


def agree(plan: Any, group: dist.ProcessGroup | None = None, outcome: Outcome | None = None) -> Agreed:
    """Compare plan and outcome over the group; every rank calls it once per batch, and all get one answer.

    ``plan`` is a value that is equal on all ranks; a route stands for the plan it was made of. ``outcome`` is what
    ``attempt`` gave where planning may fail. If a rank failed, every rank raises the lowest failing rank's code,
    with ``failing_ranks`` in the facts; if plans differ, HP-AGREE-001 with the ``fields`` that differ and each
    rank's value of them. Costs one all-gather of 48 bytes a rank if all is well, two if not.

    >>> from hpfun import indexer_task_plan
    >>> agree(indexer_task_plan((5, 3, 8), 1, 1, "none")).size
    1
    """
    outcome = outcome or Outcome()
    mark, described = "", {}
    if outcome.ok:  # what cannot be described is this rank's failure, and all must learn of it
        found, outcome = attempt(lambda: (_plan_digest(plan), _described(plan)))
        mark, described = found or ("", {})
    size = compare(outcome, mark, described, group, "HP-AGREE-001", "plan")
    return Agreed(plan, mark, size)


def settle(verify: Callable[[], T], describe: Callable[[T], dict[str, str]], group: Any, check: Check) -> T:
    """What ``verify`` gives, before a collective; with ``"always"``, every rank raises what any rank's call raised.

    ``describe`` says, of what ``verify`` gave, what must be equal on all ranks (it is asked only if all is well here);
    a difference is HP-AGREE-003.
    """
    if check not in ("always", "off"):
        raise refusal("HP-EXCHANGE-008", "check", f"got {check!r:.40}", "use always or off", got=repr(check)[:40])
    if check == "off":
        return verify()
    found, outcome = attempt(verify)
    described = describe(cast(T, found)) if outcome.ok else {}
    compare(outcome, digest(described), described, group, "HP-AGREE-003", "tensor")
    return cast(T, found)


def signature(tensor: torch.Tensor, dim: int) -> str:
    """What ranks that exchange rows along ``dim`` must have in common: dtype and the other extents.

    >>> signature(torch.ones(1, 5, 3), dim=1)
    'torch.float32 [1, *, 3]'
    """
    at = dim % tensor.ndim
    extents = ["*" if axis == at else str(extent) for axis, extent in enumerate(tensor.shape)]
    return f"{tensor.dtype} [{', '.join(extents)}]"


def compare(outcome: Outcome, mark: str, described: dict[str, str], group: Any, code: str, where: str) -> int:
    """One header from every rank; if they are not all well and equal, the reasons, and one error for all.

    ``mark`` is a digest in hex that must be equal, ``described`` what it stands for by name, ``code`` and ``where`` are
    those of a difference, whose facts are ``digests``, ``fields``, ``values`` and ``odd_ranks``. Gives the group size.
    """
    if not dist.is_initialized():
        if not outcome.ok:
            raise outcome.error()
        return 1
    reasons = json.dumps([to_json(outcome), described]).encode()
    header = np.zeros(2 + _WORDS, dtype=np.int64)
    header[:2] = outcome.ok, len(reasons)
    header[2:] = np.frombuffer(bytes.fromhex(mark), dtype="<i8") if mark else 0
    headers = _gather(torch.from_numpy(header), group)
    if bool(headers[:, 0].all()) and bool((headers[:, 2:] == headers[0, 2:]).all()):
        return len(headers)
    longest = int(headers[:, 1].max())
    text = torch.frombuffer(bytearray(reasons.ljust(longest)), dtype=torch.uint8)
    told = [json.loads(bytes(row.tolist())) for row in _gather(text, group)]
    merged = merge_outcomes([from_json(entry[0]) for entry in told])
    if not merged.ok:
        raise merged.error()
    digests = [row.numpy().tobytes().hex() for row in headers[:, 2:]]
    raise _difference([entry[1] for entry in told], digests, code, where)


def _difference(described: list[dict[str, str]], digests: list[str], code: str, where: str) -> PlanError:
    names = sorted(set().union(*described))
    fields = tuple(name for name in names if len({entry.get(name) for entry in described}) > 1)
    values = {name: tuple(entry.get(name, "-") for entry in described) for name in fields}
    odd = tuple(rank for rank, mark in enumerate(digests) if digests.count(mark) < max(map(digests.count, digests)))
    return refusal(
        code,
        where,
        f"ranks differ in {', '.join(fields)}",
        "pass like tensors on all ranks" if code == "HP-AGREE-003" else "give every rank the same lengths and options",
        digests=tuple(digests),
        fields=fields,
        values=values,
        odd_ranks=odd,
    )


def _gather(own: torch.Tensor, group: Any) -> torch.Tensor:
    device = backend_device(group)
    size = dist.get_world_size(group)
    gathered = torch.empty((size, *own.shape), dtype=own.dtype, device=device)
    all_gather(gathered.view(-1), own.to(device), group=group)
    return gathered.cpu()


def all_gather(gathered: torch.Tensor, own: torch.Tensor, **options: Any) -> Any:
    """``torch.distributed``'s all-gather into one tensor, which torch 2.13 renamed and warns about by its old name."""
    return (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(gathered, own, **options)


def backend_device(group: Any) -> torch.device:
    """Where the group's backend takes small tensors from."""
    backend = dist.get_backend(group)
    if backend == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    if backend == "hccl":
        return torch.device("npu", torch.npu.current_device())  # ty: ignore[missing-attribute]
    return torch.device("cpu")


def _plan_digest(plan: Any) -> str:
    return getattr(plan, "plan_digest", None) or digest(plan)


def _described(plan: Any, prefix: str = "") -> dict[str, str]:
    """Each field by its dotted name: small values as they are, arrays and long ones by size and digest."""
    if not attrs.has(type(plan)):
        return {prefix or "plan": f"{type(plan).__name__} {plan!r:.60}"}
    if hasattr(plan, "plan_digest"):
        return {"plan_digest": plan.plan_digest}
    found = {"type": type(plan).__name__} if not prefix else {}
    for field in attrs.fields(type(plan)):
        value = getattr(plan, field.name)
        name = prefix + field.name
        if attrs.has(type(value)):
            found.update(_described(value, f"{name}."))
        else:
            found[name] = str(in_brief(value))
    return found
