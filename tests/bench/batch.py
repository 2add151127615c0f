"""Batches: planning one beside a pass over its tokens, and dense attention beside one with a mask of all pairs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from hpfun import PackedDocuments
from hpfun.batch import BatchPlan, BatchTopology, batch_view, plan_batch
from hpfun.batch.layouts import LAYOUTS
from hpfun.workloads import workload
from hpfun_torch.dense import dense_attention, dense_context
from tests.bench.measure import Figure, best_of_two

TOKENS, RANKS = 2**20, 64
ROWS, HEADS, KEY_HEADS, DIM = 4096, 4, 2, 64


def planned(documents: PackedDocuments, layout: str) -> BatchPlan:
    """A plan with everything that it lists of tokens and ranks."""
    plan = plan_batch(documents, BatchTopology(RANKS), layout=layout)
    for name in ("cu_seq_lens", "sources", "position_ids", "shards"):
        getattr(plan, name)
    return plan


def viewed(plan: BatchPlan) -> None:
    """All ranks' views, each with what it lists of its rows."""
    for rank in range(RANKS):
        view = batch_view(plan, rank)
        for name in ("sources", "positions", "position_ids", "q_lengths", "kv_lengths"):
            getattr(view, name)


def per_token(documents: PackedDocuments) -> np.ndarray:
    """What anybody computes who goes over the tokens once: their positions."""
    return np.arange(documents.total) - np.repeat(documents.boundaries[:-1], documents.lengths)


def measured() -> dict[str, list[float]]:
    """Seconds by figure: the plan or the views, and a pass."""
    found: dict[str, list[float]] = {}
    for name in ("published", "stdlib"):
        documents = workload(name, TOKENS).documents
        one_pass = partial(per_token, documents)
        for layout in LAYOUTS:
            plan = planned(documents, layout)
            found[f"{layout}, {name}"] = list(best_of_two(partial(planned, documents, layout), one_pass, 40))
            found[f"views, {layout}, {name}"] = list(best_of_two(partial(viewed, plan), one_pass, 15))
    return found


def attended() -> Figure:
    """Forward and backward of packed documents in blocks, and in one call with a mask of their rows and keys."""
    torch.set_num_threads(1)
    documents = workload("stdlib", ROWS).documents
    context = dense_context(plan_batch(documents, BatchTopology(1)))
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(ROWS, heads, DIM, generator=random).requires_grad_() for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    owner = torch.from_numpy(documents.documents_at(np.arange(ROWS)))
    mask = (owner == owner[:, None]).tril()

    def blocks() -> torch.Tensor:
        return dense_attention(query, key, value, context)

    def masked() -> torch.Tensor:
        parts = (part.transpose(0, 1)[None] for part in (query, key, value))
        return scaled_dot_product_attention(*parts, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)

    assert (blocks() - masked()).abs().max() < 1e-4
    ours, theirs = best_of_two(lambda: blocks().sum().backward(), lambda: masked().sum().backward(), 3)
    detail = {"documents": documents.num_documents, "milliseconds": round(ours * 1000)}
    name = f"dense attention, {ROWS:,} rows of {documents.num_documents} documents: step / one call with a mask"
    return Figure(name, ours / theirs, 0.9, detail)


def figures() -> Iterator[Figure]:
    yield from planning()
    yield attended()


def planning() -> Iterator[Figure]:
    """In a process of its own: how fast a pass is depends on the memory that a process has used before."""
    command = [sys.executable, "-m", "tests.bench.batch"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ratios = {name: pair[0] / pair[1] for name, pair in found.items()}
    for views, limit, what in ((False, 3, "planning"), (True, 10, "all 64 views, row by row")):
        chosen = {name: ratio for name, ratio in ratios.items() if name.startswith("views") == views}
        worst = max(chosen, key=lambda name: chosen[name])
        name = f"batch of 1 M tokens over 64 CP ranks ({worst.removeprefix('views, ')}): {what} / one NumPy pass"
        yield Figure(name, chosen[worst], limit, {"ratios": chosen})


if __name__ == "__main__":
    print(json.dumps(measured()))
