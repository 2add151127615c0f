"""A batch prepared for a decoder group: read once, sent, planned, agreed on, its labels shifted, cut.

Whatever a rank finds wrong until then, every rank of the group raises: each joins the broadcast and the one comparison
before anything is raised. Rules BATCH-26 and BATCH-38 to BATCH-41 of ``specs/batch.md``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import attrs
import torch

from hpfun import attempt, digest
from hpfun.batch import (
    OMNI_CP_TOKEN_FIELDS,
    BatchPlan,
    BatchTopology,
    BatchView,
    FieldSpec,
    batch_view,
    loss_scale,
)
from hpfun.difference import in_brief
from hpfun.errors import refusal
from hpfun_torch.agree import compare
from hpfun_torch.batch.broadcast import TPBatchBroadcaster, supplied
from hpfun_torch.batch.groups import BatchGroups, checked_groups
from hpfun_torch.batch.labels import shift_batch_labels
from hpfun_torch.batch.payload import checksum
from hpfun_torch.batch.rule import BatchRule
from hpfun_torch.batch.shard import PLAN, Batch, CPBatchSharder, check_batch

T = TypeVar("T")


@attrs.frozen(eq=False)
class RuntimeContext:
    """What inputs of a run time are made from: the plan, this rank's part, its groups, and the batch before the cut."""

    plan: BatchPlan
    view: BatchView
    groups: BatchGroups
    whole: Mapping[str, Any]


class RuntimeInputAdapter(Protocol):
    """Makes inputs that no batch carries, such as a plan of its images; one owner for all their names."""

    def runtime_input_fields(self) -> Sequence[str]:
        """Names of all that it makes, the same on every rank."""
        ...

    def build_runtime_inputs(self, batch: Batch, context: RuntimeContext) -> Mapping[str, Any]:
        """The inputs by name, for a batch that was cut; every rank of the group calls it, so it may communicate."""
        ...


@attrs.frozen(eq=False)
class _Prepared:
    plan: BatchPlan
    whole: dict[str, Any]
    shard: dict[str, Any]
    made: tuple[str, ...] | None
    digests: Mapping[str, str]

    @property
    def told(self) -> dict[str, str]:
        """What is equal on all ranks of a group."""
        plan = self.plan
        return {
            "plan": plan.digest,
            "layout": plan.layout,
            "alignment": str(plan.alignment),
            "lengths": str(in_brief(plan.lengths)),
            **self.digests,
            "runtime_inputs": str(self.made),
        }


class OmniParallelBatch:
    """Prepares the batches of a decoder group; made once, by every rank of it.

    ``groups`` are those of the topology (``batch_groups`` makes them), ``device`` is where tensors go. ``layout``,
    ``alignment`` and ``capacity`` as in ``plan_batch``, ``fields`` as in ``CPBatchSharder``, ``reduction`` as in
    ``loss_scale``. Raises HP-BATCH-009 for groups that are not those of the topology, HP-BATCH-001, 003, 004 and 012
    for options, and HP-BATCH-013 for a capacity below the alignment, which no batch fits.

    >>> from hpfun.batch import BatchTopology
    >>> whole = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "labels": torch.tensor([[5, 6, 7, 8]])}
    >>> omni = OmniParallelBatch(BatchTopology(1), BatchGroups(), "cpu")
    >>> batch = omni.prepare({**whole, "cu_seq_lens": torch.tensor([0, 3, 4])})
    >>> batch["labels"].tolist(), batch["num_items_in_batch"], batch["batch_plan"].num_tokens
    ([[6, 7, -100, -100]], 2, 4)
    """

    def __init__(
        self,
        topology: BatchTopology,
        groups: BatchGroups,
        device: torch.device | str,
        runtime_input_adapter: RuntimeInputAdapter | None = None,
        *,
        layout: str = "contiguous",
        alignment: int | None = None,
        capacity: int | None = None,
        fields: Sequence[FieldSpec] = OMNI_CP_TOKEN_FIELDS,
        reduction: str = "sum",
    ):
        self._rule = BatchRule(topology, layout, alignment, capacity)
        loss_scale([0], reduction=reduction, group_size=1)
        self._reduction = reduction
        self._groups = checked_groups(groups, topology)
        self._cp_rank, self._tp_rank = groups.coordinates(topology)
        self._device = torch.device(device)
        self._broadcaster = TPBatchBroadcaster(groups.tp, device) if topology.tp_size > 1 else None
        self._sharder = CPBatchSharder(self._rule, fields, self._cp_rank)
        self._adapter = runtime_input_adapter

    def prepare(self, batch: Batch | None) -> dict[str, Any]:
        """This rank's part of a batch; every rank of the parent group calls it, with None on all but TP rank 0.

        ``batch`` is whole, ``input_ids [1, tokens]`` with ``cu_seq_lens`` or ``position_ids``, and the same on TP rank
        0 of every CP rank. The result is what ``CPBatchSharder`` makes of it, with ``labels`` shifted inside documents
        before the cut, what ``shift_batch_labels`` adds, and the inputs of the adapter. Masks and weights of the loss
        are cut as they are: a token counts by its label alone, -100 for none. Without ``labels`` there is no
        ``loss_scale``, without ``cu_seq_lens`` there are none in the result. Every TP rank has all rows of its CP
        shard; ``localize`` gives its part under sequence parallelism. Costs what the broadcast costs,
        one all-gather of 48 bytes a rank, and one more with an adapter.

        What one rank finds, all raise within the time of a collective, and the groups work on: HP-BATCH-010 and 011
        (who has a batch, and of what), HP-BATCH-002, 003 and 013 (boundaries, fields, capacity), HP-BATCH-008 (a batch
        that was cut), HP-BATCH-007 (plans or per-token fields that differ), HP-DATA-001 (names of runtime inputs).
        """
        found = self._settled(lambda: self._prepared(batch), lambda found: found.told, PLAN)
        if self._adapter is None:
            return found.shard
        view = batch_view(found.plan, self._cp_rank, self._tp_rank)
        context = RuntimeContext(found.plan, view, self._groups, found.whole)
        return self._settled(lambda: self._with_inputs(found, context), lambda _: {}, "runtime_inputs")

    def _prepared(self, batch: Batch | None) -> _Prepared:
        whole = self._broadcaster.broadcast(batch) if self._broadcaster else supplied(batch, self._device)
        plan = self._rule(whole)
        fields = self._sharder.fields
        check_batch(fields, whole, plan.num_tokens)
        shifted = shift_batch_labels(whole, plan, fields, self._reduction)
        shard = attrs.evolve(self._sharder, plan_or_rule=plan).shard(shifted)
        made = None if self._adapter is None else _declared(self._adapter)
        _check_names(made or (), made or (), shard)
        there = {spec.name: whole[spec.name] for spec in fields if whole.get(spec.name) is not None}
        digests = {name: checksum(tensor) for name, tensor in there.items()}
        return _Prepared(plan, whole, shard, made, {**digests, **self._loss_of(shifted)})

    def _loss_of(self, shifted: Mapping[str, Any]) -> dict[str, str]:
        """What makes the loss, which ranks have to share like the tokens: their scale, their count, their fields."""
        scale, items = shifted.get("loss_scale"), shifted.get("num_items_in_batch")
        items = items.tolist() if isinstance(items, torch.Tensor) else items
        return {
            "fields": digest([spec.digest for spec in self._sharder.fields]),
            "loss_scale": str(getattr(scale, "digest", scale)),
            "num_items_in_batch": str(items),
        }

    def _with_inputs(self, found: _Prepared, context: RuntimeContext) -> dict[str, Any]:
        adapter = cast(RuntimeInputAdapter, self._adapter)
        inputs = adapter.build_runtime_inputs(found.shard, context)
        if not isinstance(inputs, Mapping):
            kind = type(inputs).__name__
            raise refusal("HP-DATA-001", "runtime_inputs", f"needs a mapping, got {kind}", keys=(), type=kind)
        _check_names(tuple(inputs), found.made or (), found.shard)
        return {**found.shard, **inputs}

    def _settled(self, function: Callable[[], T], told: Callable[[T], dict[str, str]], where: str) -> T:
        """What ``function`` gives, if it gives it on all ranks and they agree on what is told of it."""
        if self._rule.topology.parent_size == 1:
            return function()
        found, outcome = attempt(function)
        described = told(cast(T, found)) if outcome.ok else {}
        mark = digest(described) if outcome.ok else ""
        compare(outcome, mark, described, self._groups.parent, "HP-BATCH-007", where)
        return cast(T, found)


def _declared(adapter: RuntimeInputAdapter) -> tuple[str, ...]:
    """The names that an adapter declares; HP-DATA-001 for what are none."""
    found = adapter.runtime_input_fields()
    if isinstance(found, str) or not isinstance(found, Iterable):
        kind = type(found).__name__
        raise refusal("HP-DATA-001", "runtime_inputs", f"needs names, got {kind}", "declare a list", keys=(), type=kind)
    return tuple(found)


def _check_names(made: tuple[str, ...], declared: tuple[str, ...], batch: Batch) -> None:
    """HP-DATA-001 for runtime inputs that are in the batch already, that are named twice, or not declared."""
    wrong = [name for name in made if name in batch or made.count(name) > 1 or name not in declared]
    if wrong:
        keys = tuple(dict.fromkeys(wrong))
        message = f"{', '.join(map(repr, keys))} of the batch, named twice, or not declared"
        advice = "declare each runtime input once, by a name that no batch has"
        raise refusal("HP-DATA-001", "runtime_inputs", message, advice, keys=keys)
