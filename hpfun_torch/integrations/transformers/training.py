"""What a training step adds up over the ranks: gradients, and the balance of experts.

Rules HF-12 and HF-13 of ``specs/attention.md``.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from hpfun.errors import refusal
from hpfun_torch.agree import backend_device
from hpfun_torch.checks import group_size

BUCKET = 2**24  # numbers that travel in one collective


def sum_gradients(parameters: torch.nn.Module | Iterable[torch.nn.Parameter], group: Any = None) -> None:
    """Replace every gradient by the sum over the ranks; every rank calls it, after its backward.

    A parameter without a gradient on this rank, whose expert got no token here, counts as zero; one without a gradient
    on all ranks stays without. Gradients of one dtype and device travel together, summed in that dtype, in any order
    of the backend's.

    >>> layer = torch.nn.Linear(2, 1)
    >>> layer(torch.ones(1, 2)).sum().backward(); sum_gradients(layer); layer.bias.grad.item()
    1.0
    """
    given = parameters.parameters() if isinstance(parameters, torch.nn.Module) else parameters
    learning = [parameter for parameter in given if parameter.requires_grad]
    if group_size(group) == 1 or not learning:
        return
    there = torch.tensor([parameter.grad is not None for parameter in learning], device=backend_device(group)).int()
    dist.all_reduce(there, group=group)
    kinds: dict[Any, list[torch.Tensor]] = {}
    for parameter, ranks in zip(learning, there.tolist(), strict=True):
        if ranks:
            grad = parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            kinds.setdefault((grad.dtype, grad.device), []).append(grad)
    for grads in kinds.values():
        for bucket in _buckets(grads):
            flat = torch.cat([grad.reshape(-1) for grad in bucket])
            dist.all_reduce(flat, group=group)
            for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(part.view_as(grad))


def _buckets(grads: list[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    held: list[torch.Tensor] = []
    for grad in grads:
        if held and sum(part.numel() for part in held) + grad.numel() > BUCKET:
            yield held
            held = []
        held.append(grad)
    yield held


def load_balancing_loss(
    gate_logits: Iterable[torch.Tensor],
    num_experts: int,
    top_k: int,
    group: Any = None,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """This rank's part of the Switch Transformer's balance loss over all ranks' tokens; their sum is the loss.

    ``gate_logits`` has, per layer, ``[local, experts]``; ``rows`` bool ``[local]`` are those that count, all by
    default (padding should not). The loss is ``experts * sum over experts of (share of choices * mean probability)``
    over all layers' tokens, equations 4 to 6 of the paper: not additive over shards, since it multiplies two means, so
    the shares are brought together first. Raises HP-HF-003 for no layer.

    >>> load_balancing_loss([torch.zeros(4, 2)], num_experts=2, top_k=1).item()
    1.0
    """
    layers = [logits if rows is None else logits[rows] for logits in gate_logits]
    if not layers:
        raise refusal("HP-HF-003", "gate_logits", "no layer", "pass the gates' logits of every layer", layers=0)
    probabilities = [logits.float().softmax(dim=-1) for logits in layers]
    chosen = [part.topk(top_k, dim=-1).indices.reshape(-1) for part in probabilities]
    counts = torch.stack([torch.bincount(part, minlength=num_experts) for part in chosen]).sum(0).float()
    told = torch.cat((counts, counts.new_tensor([sum(len(part) for part in layers)])))
    if group_size(group) > 1:
        dist.all_reduce(told, group=group)
    share, total = told[:-1] / told[-1], told[-1]
    means = torch.stack([part.sum(0) for part in probabilities]).sum(0) / total
    return num_experts * (share * means).sum()
