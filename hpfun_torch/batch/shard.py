"""A batch cut for one context-parallel rank: every per-token field by one plan.

Rules BATCH-11 to BATCH-16 of ``specs/batch.md``.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import torch

from hpfun.batch import OMNI_CP_TOKEN_FIELDS, BatchPlan, BatchView, FieldSpec, batch_view, check_fields
from hpfun.batch.fields import POSITION
from hpfun.batch.plan import check_plan
from hpfun.errors import PlanError, Violation, collect, refusal, refuse_all
from hpfun_torch.batch.rows import index, view_positions, view_rows

PLAN = "batch_plan"
LABELS = "labels"
Batch = Mapping[str, Any]


@attrs.frozen
class CPBatchSharder:
    """Cuts batches for ``cp_rank``; made once, without a process group.

    ``plan_or_rule`` is the plan of the batch, or a function that makes it of a batch, such as a ``BatchRule``.
    ``fields`` are the per-token tensors; what is not listed stays whole.

    >>> from hpfun.batch import BatchTopology, plan_batch
    >>> sharder = CPBatchSharder(plan_batch((3, 5), BatchTopology(2), layout="zigzag"), cp_rank=1)
    >>> shard = sharder.shard({"input_ids": torch.arange(8)[None], "epoch": 3})
    >>> shard["input_ids"].tolist(), shard["position_ids"].tolist(), shard["epoch"]
    ([[1, 2, 5, 6, 7, 0]], [[1, 2, 2, 3, 4, 5]], 3)
    """

    plan_or_rule: BatchPlan | Callable[[Batch], BatchPlan]
    fields: tuple[FieldSpec, ...] = attrs.field(
        default=OMNI_CP_TOKEN_FIELDS, converter=lambda fields: read_specs(fields)
    )
    cp_rank: int = 0

    def shard(self, batch: Batch) -> dict[str, Any]:
        """The rank's rows of every listed field, and ``batch_plan``; the given batch is not changed.

        A listed field has ``plan.local_length`` rows on its axis, in its own dtype and on its device; padding holds the
        field's pad. A position field that the batch lacks is made, int64 ``[1, local]``. ``cu_seq_lens`` becomes the
        ends of the padded documents of all ranks, in its dtype (int32 where it had none). One rank without padding
        gets the batch as it is; so does a shard of the same plan. Raises HP-BATCH-003 for fields that do not fit,
        HP-BATCH-007 for a batch that carries another plan and for what is no plan, HP-BATCH-011 for what is no batch,
        HP-ENCODER-004 for a rank outside the plan, and what the rule raises.
        """
        check_mapping(batch)
        rule = self.plan_or_rule
        plan = check_plan(rule(batch) if callable(rule) else rule, "plan_or_rule")
        view = batch_view(plan, self.cp_rank)
        if PLAN in batch:
            _check_carried(batch[PLAN], plan)
            check_batch(self.fields, batch, plan.local_length)
            return dict(batch)
        check_batch(self.fields, batch, plan.num_tokens)
        if plan.padded_length == plan.num_tokens and plan.topology.cp_size == 1:
            return {**batch, PLAN: plan}
        tensors = (batch.get(spec.name) for spec in self.fields)
        device = next((tensor.device for tensor in tensors if tensor is not None), torch.device("cpu"))
        cut = {spec.name: _cut(spec, batch.get(spec.name), view, device) for spec in self.fields}
        made = {name: value for name, value in cut.items() if value is not None}
        if batch.get("cu_seq_lens") is not None:
            made["cu_seq_lens"] = _boundaries(batch["cu_seq_lens"], plan, device)
        return {**batch, **made, PLAN: plan}


def check_mapping(batch: Any) -> None:
    """HP-BATCH-011 for what is no batch."""
    if not isinstance(batch, Mapping):
        kind = type(batch).__name__
        raise refusal(
            "HP-BATCH-011", "batch", f"needs a mapping, got {kind}", "pass names and values", name="", type=kind
        )


def check_batch(fields: tuple[FieldSpec, ...], batch: Batch, num_tokens: int) -> None:
    """HP-BATCH-003 with all that do not fit, unless every listed field has ``num_tokens`` rows and can hold its pad.

    A field that is None is none.
    """
    found: list[Violation] = []
    there = {spec.name: batch[spec.name] for spec in fields if batch.get(spec.name) is not None}
    shapes = {name: tuple(value.shape) if isinstance(value, torch.Tensor) else () for name, value in there.items()}
    collect(found, check_fields, fields, shapes, num_tokens)
    for spec in fields:
        value = there.get(spec.name)
        if isinstance(value, torch.Tensor) and not _can_hold(value.dtype, spec.pad):
            facts = {"fields": (spec.name,), "actual": (str(value.dtype),), "expected": repr(spec.pad)}
            message = f"padding of {spec.pad!r} does not fit into {value.dtype}"
            found.append(Violation("HP-BATCH-003", spec.name, message, facts, "list the field with another pad"))
    refuse_all(found)


def _cut(spec: FieldSpec, value: Any, view: BatchView, device: torch.device) -> Any:
    """The rank's rows of a field; of a missing one None, of missing positions those of whole documents."""
    if value is None:
        return view_positions(view, device)[None].clone() if spec.pad == POSITION else None
    fill = view_positions(view, value.device) if spec.pad == POSITION else spec.pad
    return view_rows(view, value.device).place(value, spec.sequence_dim, fill)


def _boundaries(before: Any, plan: BatchPlan, device: torch.device) -> torch.Tensor:
    if isinstance(before, torch.Tensor):
        return index(plan.cu_seq_lens, before.device).to(before.dtype)
    return index(plan.cu_seq_lens, device).to(torch.int32)


def _check_carried(carried: Any, plan: BatchPlan) -> None:
    digest = getattr(carried, "digest", None)
    if digest != plan.digest:
        message = f"the batch was cut by another plan, {str(digest)[:12]} and not {plan.digest[:12]}"
        raise refusal("HP-BATCH-007", PLAN, message, "use one plan for a batch", digests=(digest, plan.digest))


def _can_hold(dtype: torch.dtype, pad: Any) -> bool:
    if pad == POSITION:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        if pad in (math.inf, -math.inf) or pad != pad:  # some dtypes of 8 bits have neither
            wide = torch.complex64 if dtype.is_complex else torch.float32
            return not torch.tensor(pad).to(dtype).to(wide).isfinite()
        return abs(pad) <= torch.finfo(dtype).max
    if dtype == torch.bool:
        return pad in (0, 1)
    limits = torch.iinfo(dtype)
    return pad == pad // 1 and limits.min <= pad <= limits.max


def read_specs(fields: Any) -> tuple[FieldSpec, ...]:
    """Specs of a batch's per-token tensors, each named once, labels padded with an integer; HP-BATCH-003."""
    if isinstance(fields, FieldSpec) or not isinstance(fields, Iterable):
        raise _bad_spec("fields", type(fields).__name__, "a sequence of FieldSpec", "pass a tuple of specs")
    found = tuple(fields)
    for at, spec in enumerate(found):
        if type(spec) is not FieldSpec:
            raise _bad_spec(f"fields[{at}]", type(spec).__name__, "a FieldSpec", "pass specs")
        if spec.name in {before.name for before in found[:at]}:
            raise _bad_spec(f"fields[{at}]", f"a second {spec.name}", "each field once", "replace the first one")
        if spec.name == LABELS and not (type(spec.pad) in (int, float) and spec.pad == spec.pad // 1):
            advice = "labels are padded with the class that the loss ignores, -100 by default"
            raise _bad_spec(f"fields[{at}]", f"labels padded with {spec.pad!r}", "an integer", advice)
    return found


def _bad_spec(where: str, got: str, needed: str, advice: str) -> PlanError:
    facts = {"fields": (where,), "actual": got, "expected": needed}
    return refusal("HP-BATCH-003", where, f"needs {needed}, got {got}", advice, **facts)
