"""Functions of the batch family that the tests run on every rank of a pool; results are plain values."""

import time
from collections.abc import Iterable
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from hpfun import attempt
from hpfun.batch import OMNI_CP_TOKEN_FIELDS, BatchTopology, FieldSpec, batch_view, decoder_layout, plan_batch
from hpfun_torch.batch import (
    BatchGroups,
    CPBatchSharder,
    OmniParallelBatch,
    TPBatchBroadcaster,
    batch_groups,
    broadcast,
    gather_tokens,
    global_loss,
    localize,
    shift_batch_labels,
)
from hpfun_torch.dense import dense_context
from hpfun_torch.integrations.transformers import sum_gradients

ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


@cache
def groups_of(topology: BatchTopology) -> BatchGroups:
    """Groups of a topology, made at the first call of a pool: every rank makes the same calls."""
    return batch_groups(topology)


@contextmanager
def counted():
    """Collectives of a block, each as its name and the bytes of a rank's own part."""
    found: list[tuple[str, int]] = []
    real = {name: getattr(dist, name) for name in ("broadcast", ALL_GATHER)}

    def sent(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        found.append(("broadcast", tensor.nbytes))
        return real["broadcast"](tensor, *args, **options)

    def gathered(result: torch.Tensor, own: torch.Tensor, **options: Any) -> Any:
        found.append(("all_gather", own.nbytes))
        return real[ALL_GATHER](result, own, **options)

    with patch.object(dist, "broadcast", sent), patch.object(dist, ALL_GATHER, gathered):
        yield found


# broadcast


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int, form: str) -> torch.Tensor:
    """A tensor of random bits, NaNs among them; lying as ``form`` says."""
    kind = getattr(torch, dtype)
    random = torch.Generator().manual_seed(seed)
    count = 2 * torch.Size(shape).numel()
    size = torch.empty(0, dtype=kind).element_size()
    bits = torch.randint(0, 2 if kind == torch.bool else 256, (count * size,), generator=random, dtype=torch.uint8)
    whole = bits.view(kind).view(*shape, 2)
    if form == "strided":
        return whole[..., 1]
    tensor = whole[..., 0].contiguous()
    if form == "turned":
        return tensor.movedim(0, -1) if shape else tensor
    if form == "conjugated":
        return tensor.conj()
    return tensor


def bits_of(value: Any) -> Any:
    """A value as what can be compared to the last bit; dicts are equal in any order."""
    if isinstance(value, dict):
        return {name: bits_of(part) for name, part in value.items()}
    if isinstance(value, list):
        return [bits_of(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.resolve_conj().clone(memory_format=torch.contiguous_format).flatten()
    return str(value.dtype), tuple(value.shape), plain.view(torch.uint8).tolist()


def batch_of(tensors: dict[str, tuple], values: dict[str, Any]) -> dict[str, Any]:
    return {**{name: tensor_of(*how) for name, how in tensors.items()}, **values}


def broadcast_arrives(tensors: dict[str, tuple], values: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether every rank has what rank 0 sent, made here again; and the collectives."""
    batch = batch_of(tensors, values)
    with counted() as calls:
        got = TPBatchBroadcaster().broadcast(batch if dist.get_rank() == 0 else None)
    same = bits_of(got) == bits_of(batch)
    own = all(not isinstance(v, torch.Tensor) or v.device.type == "cpu" for v in got.values())
    return same and own, [name for name, _ in calls]


def broadcast_of(kind: str, holders: Iterable[int] = (0,)) -> tuple[str, dict[str, Any], list[tuple[str, int]], float]:
    """A broadcast where these ranks have such a batch; the group works afterwards."""
    rank = dist.get_rank()
    batch = failing_batch(kind, {"input_ids": torch.arange(6)[None]}) if rank in holders else None
    start = time.monotonic()
    with counted() as calls, patch.object(broadcast, "VERSION", 2 if kind == "version" and rank == 0 else 1):
        _, outcome = attempt(TPBatchBroadcaster().broadcast, batch)
    spent = time.monotonic() - start
    after = TPBatchBroadcaster().broadcast({"x": torch.arange(3)} if rank == 0 else None)
    assert after["x"].tolist() == [0, 1, 2]
    return outcome.code, dict(outcome.facts), calls, spent


def broadcast_with(values: dict[str, Any]) -> tuple[str, dict[str, Any], list[tuple[str, int]]]:
    """A broadcast of a batch with such values beside its tokens."""
    batch = {"input_ids": torch.arange(6)[None], **values}
    with counted() as calls:
        _, outcome = attempt(TPBatchBroadcaster().broadcast, batch if dist.get_rank() == 0 else None)
    return outcome.code, dict(outcome.facts), calls


class Broken(dict):
    """A batch whose parts cannot be read."""

    def items(self):
        raise ZeroDivisionError("the data loader broke")


def failing_batch(kind: str, batch: dict[str, Any]) -> Any:
    """What is wrong with a batch, by name."""
    total = batch["input_ids"].shape[1]
    changes = {
        "none": None,
        "list": [1],
        "object": batch | {"odd": object()},
        "tuple": batch | {"odd": ("int64", (1,), 8)},
        "shard": batch | {"batch_plan": 1},
        "boundaries": batch | {"cu_seq_lens": torch.tensor([0, 5, 3, total])},
        "fields": batch | {"labels": torch.zeros(1, total - 1)},
        "lengths": batch | {"cu_seq_lens": torch.tensor([0, total])},
        "tokens": batch | {"input_ids": batch["input_ids"] + 1},
        "labels": batch | {"labels": torch.full_like(batch["input_ids"], -100)},
        "shifted": batch | {"labels_shifted": True},
        "count": batch | {"num_items_in_batch": torch.tensor(3)},
        "crash": Broken(batch),
    }
    return changes.get(kind, batch)


def broadcast_in_pairs(topology: BatchTopology) -> list[int]:
    """Every pair of ranks sends its own batch."""
    groups = groups_of(topology)
    first = dist.get_rank() // topology.tp_size * topology.tp_size
    mine = {"x": torch.tensor([first])} if dist.get_rank() == first else None
    return TPBatchBroadcaster(groups.tp).broadcast(mine)["x"].tolist()


# preparation


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    """A prepared batch as values that travel by pipe."""
    found = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    found["batch_plan"] = found["batch_plan"].digest
    found["loss_scale"] = found["loss_scale"].valid_by_rank.tolist()
    return found


def prepared(topology: BatchTopology, layout: str, batch: dict[str, Any]) -> tuple[dict[str, Any], list]:
    """This rank's part of a batch that TP rank 0 of every CP rank reads, and the collectives."""
    groups = groups_of(topology)
    omni = OmniParallelBatch(topology, groups, "cpu", layout=layout)
    with counted() as calls:
        got = omni.prepare(batch if groups.coordinates(topology)[1] == 0 else None)
    return plain(got), calls


def prepared_with(
    topology: BatchTopology, batch: dict[str, Any], ignore: int, pad: int, alignment: int, reduction: str
) -> tuple[dict[str, Any], tuple[list[int], int]]:
    """This rank's part in zigzag with a field of its own, and what labels are ignored, and its loss scale."""
    groups = groups_of(topology)
    kept = [spec for spec in OMNI_CP_TOKEN_FIELDS if spec.name != "labels"]
    fields = [*kept, FieldSpec("labels", 1, ignore), FieldSpec("mine", 0, pad)]
    options = {"layout": "zigzag", "alignment": alignment, "fields": fields, "reduction": reduction}
    found = OmniParallelBatch(topology, groups, "cpu", **options).prepare(
        batch if groups.coordinates(topology)[1] == 0 else None
    )
    scale = found["loss_scale"]
    shown = {name: plain(found)[name] for name in ("labels", "mine", "num_items_in_batch")}
    return shown, (scale.valid_by_rank.tolist(), scale.factor)


class Adapter:
    """Runtime inputs that a rank makes with its group, unless it fails."""

    def __init__(self, groups: BatchGroups, fails: str):
        self.groups, self.fails = groups, fails

    def runtime_input_fields(self):
        return ["input_ids" if self.fails == "declared" else "rank_sum"]

    def build_runtime_inputs(self, batch, context):
        total = torch.tensor(context.view.cp_rank * 10 + context.view.tp_rank)
        dist.all_reduce(total, group=self.groups.parent)
        if self.fails == "crash":
            raise ZeroDivisionError("no images")
        return {"rank_sum": total.item(), **({"labels": 1} if self.fails == "made" else {})}


def prepared_with_failure(topology: BatchTopology, kind: str, bad: int, batch: dict[str, Any]) -> dict[str, Any]:
    """A preparation in which rank ``bad`` does something wrong, and one afterwards on the same groups."""
    groups, rank = groups_of(topology), dist.get_rank()
    tp_rank = groups.coordinates(topology)[1]
    odd = rank == bad
    given = batch if tp_rank == 0 else None
    if odd and (tp_rank == 0 or kind == "second"):
        given = failing_batch(kind, batch)
    adapter = None
    if kind.startswith("adapter"):
        adapter = Adapter(groups, kind.partition(" ")[2] if odd else "")
    if kind == "lonely" and not odd:
        adapter = Adapter(groups, "")
    options: dict[str, Any] = {"layout": "zigzag" if kind == "layout" and odd else "contiguous"}
    options["capacity"] = 8 if kind == "capacity" and odd else None
    options["reduction"] = "mean" if kind == "reduction" and odd else "sum"
    if kind == "pad" and odd:
        options["fields"] = (FieldSpec("input_ids", 1, 9, required=True), *OMNI_CP_TOKEN_FIELDS[1:])
    omni = OmniParallelBatch(topology, groups, "cpu", adapter, **options)
    start = time.monotonic()
    with counted() as calls:
        got, outcome = attempt(omni.prepare, given)
    spent = time.monotonic() - start
    after = OmniParallelBatch(topology, groups, "cpu", Adapter(groups, "")).prepare(batch if tp_rank == 0 else None)
    return {
        "code": outcome.code,
        "facts": dict(outcome.facts),
        "spent": spent,
        "calls": calls,
        "after": (after["input_ids"].tolist(), after["rank_sum"]),
        "got": got is not None,
    }


def raise_prepared(topology: BatchTopology, kind: str, bad: int, batch: dict[str, Any]) -> None:
    """The same, raised."""
    groups, rank = groups_of(topology), dist.get_rank()
    given = batch if groups.coordinates(topology)[1] == 0 else None
    if rank == bad:
        given = batch if kind == "second" else failing_batch(kind, batch)
    OmniParallelBatch(topology, groups, "cpu").prepare(given)


def prepared_with_kinds(topology: BatchTopology, kinds: list[str], batch: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Code and facts where each rank reads a batch that is bad in its own way, or good."""
    given = failing_batch(kinds[dist.get_rank()], batch)
    _, outcome = attempt(OmniParallelBatch(topology, groups_of(topology), "cpu").prepare, given)
    return outcome.code, dict(outcome.facts)


def misfitting_groups(topology: BatchTopology) -> dict[str, str]:
    """Codes of groups that are not those of the topology (2 by 2)."""
    good = groups_of(topology)
    cases = {
        "good": good,
        "world": BatchGroups(),
        "no tp": BatchGroups(good.parent, None, good.cp),
        "no cp": BatchGroups(good.parent, good.tp, None),
        "swapped": BatchGroups(good.parent, good.cp, good.tp),
    }
    found = {name: attempt(OmniParallelBatch, topology, groups, "cpu")[1].code for name, groups in cases.items()}
    found["other world"] = attempt(batch_groups, BatchTopology(3))[1].code
    all_for_one = attempt(OmniParallelBatch, BatchTopology(1, 4), BatchGroups(), "cpu")  # None is all, also as cp
    found["all for one"] = all_for_one[1].code
    found["gather"] = attempt(gather_tokens, plan_batch([16], BatchTopology(2)), torch.ones(1, 8))[1].code
    return found


def sums_over_groups(topology: BatchTopology) -> tuple[tuple[int, ...], float]:
    """Sizes of the groups, and what the CP ranks' gradients add up to where each has 1."""
    groups = groups_of(topology)
    layer = torch.nn.Linear(1, 1)
    layer(torch.ones(1, 1)).sum().backward()
    assert dense_context(plan_batch([8], topology), groups.cp).group is groups.cp
    sum_gradients(layer, groups.cp)
    sizes = tuple(dist.get_world_size(group) for group in (groups.parent, groups.tp, groups.cp))
    return sizes, layer.bias.grad.item()


def coordinates_of(topology: BatchTopology) -> dict[str, Any]:
    groups = groups_of(topology)
    members = {name: dist.get_process_group_ranks(getattr(groups, name)) for name in ("parent", "tp", "cp")}
    return {"at": groups.coordinates(topology), **members}


# back together


def gathered_tokens(
    topology: BatchTopology, lengths: list[int], layout: str, dim: int, parts: bool
) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Whether the gathered rows are the batch, and the gradient of the own rows beside that of one process."""
    groups = groups_of(topology)
    cp_rank, tp_rank = groups.coordinates(topology)
    plan = plan_batch(lengths, topology, layout=layout)
    total = sum(lengths)
    random = torch.Generator().manual_seed(len(lengths))
    whole = torch.randn(total, 3, generator=random, dtype=torch.float64)
    size = topology.parent_size if parts else topology.cp_size
    factors = torch.randn(size, total, 3, generator=random, dtype=torch.float64)
    sources = torch.from_numpy(batch_view(plan, cp_rank).sources.copy())
    shard = torch.cat((whole, torch.full((1, 3), 9.0, dtype=torch.float64)))[sources].movedim(0, dim)
    if parts:
        layout_here = decoder_layout(plan, cp_rank, tp_rank)
        shard, sources = localize(layout_here, shard, dim), localize(layout_here, sources, 0)
    shard.requires_grad_()
    group, own = (groups.parent, dist.get_rank(groups.parent)) if parts else (groups.cp, cp_rank)
    got = gather_tokens(plan, shard, group, dim)
    (factors[own] * got.movedim(dim, 0).sin()).sum().backward()
    alone = whole.clone().requires_grad_()
    (factors * alone.sin()).sum().backward()
    expected = torch.cat((alone.grad, torch.zeros(1, 3, dtype=torch.float64)))[sources]
    return torch.equal(got.movedim(dim, 0), whole), shard.grad.movedim(dim, 0), expected


def losses(topology: BatchTopology, lengths: list[int], layout: str, ignored: int) -> dict[str, float]:
    """Loss and gradient of a small model on shards, summed over the CP ranks, against one process on the batch."""
    groups = groups_of(topology)
    cp_rank, _ = groups.coordinates(topology)
    plan = plan_batch(lengths, topology, layout=layout)
    random = torch.Generator().manual_seed(1)
    batch = {"input_ids": torch.randint(0, 7, (1, sum(lengths)), generator=random)}
    batch["labels"] = torch.where(torch.arange(sum(lengths))[None] < ignored, -100, batch["input_ids"])
    table = torch.randn(7, 7, generator=random, dtype=torch.float64)

    def loss_of(part: dict[str, Any], weight: torch.Tensor, reduction: str) -> torch.Tensor:
        scores, labels = weight[part["input_ids"][0]], part["labels"][0]
        return torch.nn.functional.cross_entropy(scores, labels, reduction=reduction)

    def summed(parts: torch.Tensor, size: int = 1) -> torch.Tensor:
        found = parts.detach().clone()
        dist.all_reduce(found, group=groups.cp)
        return found / size

    shifted = shift_batch_labels(batch, plan)
    shard = CPBatchSharder(plan, cp_rank=cp_rank).shard(shifted)
    whole, own, control = (table.clone().requires_grad_() for _ in range(3))
    expected = loss_of(shifted, whole, "sum") / shifted["num_items_in_batch"]
    expected.backward()
    part = global_loss(loss_of(shard, own, "sum"), shard["loss_scale"])
    part.backward()
    mean = loss_of(shard, control, "sum") / max(int((shard["labels"] != -100).sum()), 1)
    mean.backward()
    norm = float(whole.grad.norm()) or 1.0
    return {
        "loss": float(expected),
        "loss_off": float((summed(part) - expected).abs()),
        "gradient_off": float((summed(own.grad) - whole.grad).norm()) / norm,
        "control_off": float((summed(control.grad, topology.cp_size) - whole.grad).norm()) / norm,
    }
