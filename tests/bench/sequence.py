"""Sequence routes: planning against one pass over the tokens, a bank against an all-gather, planned compression."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from hpfun import (
    PackedDocuments,
    bank_route,
    document_compression_plan,
    document_prefix_route,
    sliding_window_plan,
    sliding_window_route,
)
from hpfun.compression import blocks, offsets
from hpfun.sequence import prefix, window
from hpfun.workloads import workload
from hpfun_torch import dispatch_sequence, gather_sequence, map_blocks
from hpfun_torch.ranks import RankPool
from tests.bench.measure import Figure, best_of, best_of_two

TOKENS, RANKS, WINDOW, RATIO = 2**20, 64, 128, 4
MANY, MANY_ROWS = 8192, 8192
DEVICES, LOCAL, WIDTH = 4, 8192, 1024


def forget() -> None:
    """Nothing is remembered from a call before: plans and offsets are made anew."""
    for kept in (window._plan, prefix._plan, blocks._halo_plan, offsets.key_offsets, offsets.owner_offsets):
        kept.cache_clear()


def all_routes(documents: PackedDocuments) -> None:
    forget()
    for rank in range(RANKS):
        sliding_window_route(documents, TOKENS // RANKS, RANKS, rank, WINDOW)
        document_prefix_route(documents, TOKENS // RANKS, RANKS, rank, RATIO)


def per_token(documents: PackedDocuments) -> np.ndarray:
    """What anybody computes who goes over the tokens once: their positions."""
    return np.arange(documents.total) - np.repeat(documents.boundaries[:-1], documents.lengths)


def one_route(route: object, documents: PackedDocuments, reach: int) -> None:
    forget()
    route(documents, MANY_ROWS, MANY, MANY // 2, reach)


def measured() -> dict[str, list[float]]:
    """Seconds by figure: all routes and a pass of each workload, one rank's routes of many."""
    found: dict[str, list[float]] = {}
    for name in ("published", "stdlib"):
        documents = workload(name, TOKENS).documents
        found[name] = list(best_of_two(partial(all_routes, documents), partial(per_token, documents), 7))
    documents = workload("published", MANY * MANY_ROWS, cap=2**20).documents
    for name, route, reach in (("window", sliding_window_route, WINDOW), ("prefix", document_prefix_route, RATIO)):
        found[name] = [best_of(partial(one_route, route, documents, reach))]
    return found


def planning() -> Iterator[Figure]:
    """In a process of its own: how fast a pass is depends on the memory that a process has used before."""
    command = [sys.executable, "-m", "tests.bench.sequence"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for name in ("published", "stdlib"):
        ours, theirs = found[name]
        detail = {"milliseconds": round(ours * 1000, 2), "pass_milliseconds": round(theirs * 1000, 2)}
        yield Figure(f"all window and prefix routes, 1 M/64, {name} / a pass", ours / theirs, 2.0, detail)
    for name in ("window", "prefix"):
        yield Figure(f"one rank's {name} route of 8,192, milliseconds", found[name][0] * 1000, 5.0, unit="ms")


def bank_against_gather(times: int) -> tuple[list[float], list[float], int, int]:
    """Seconds of a halo dispatch and of an all-gather in turn, and the bytes received from other ranks in each."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = sliding_window_plan((0, LOCAL * size), LOCAL, size, WINDOW)
    route, rows = bank_route(plan, rank), torch.randn(LOCAL, WIDTH)
    lengths = [LOCAL] * size
    whole = gather_sequence(rows, lengths=lengths)
    bank = dispatch_sequence(rows, route)
    assert torch.equal(bank, whole[route.global_start : route.global_stop])
    real, moved = dist.all_to_all_single, []

    def counting(received: torch.Tensor, sent: torch.Tensor, outputs: list[int], *rest: object, **options: object):
        own = outputs[rank]
        moved.append((sum(outputs) - own) * WIDTH * received.element_size())
        return real(received, sent, outputs, *rest, **options)

    dist.all_to_all_single = counting
    dispatch_sequence(rows, route)
    dist.all_to_all_single = real
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for function, seconds in (
            (lambda: dispatch_sequence(rows, route), spent[0]),
            (lambda: gather_sequence(rows, lengths=lengths), spent[1]),
        ):
            dist.barrier()
            start = time.perf_counter()
            function()
            dist.barrier()
            seconds.append(time.perf_counter() - start)
    return *spent, sum(moved), int(plan.halo_rows[rank]) * WIDTH * 4


def dispatch() -> Iterator[Figure]:
    with RankPool(DEVICES) as pool:
        answers = pool.run(bank_against_gather, 11)
    bank, whole = (min(seconds) for seconds in answers[0][:2])
    moved, halo = (sum(answer[at] for answer in answers) for at in (2, 3))
    gathered = DEVICES * (DEVICES - 1) * LOCAL * WIDTH * 4
    yield Figure("dispatch_sequence, window 128, bytes beyond the halo", moved - halo, 0, {"halo_bytes": halo}, unit="")
    detail = {"milliseconds": round(bank * 1000, 1), "gather_milliseconds": round(whole * 1000, 1)}
    detail |= {"bytes": moved, "gather_bytes": gathered}
    yield Figure("dispatch_sequence, 4 ranks, 32 MiB shards / all-gather", bank / whole, 1.0, detail)


def compress(values: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Blocks ``[blocks, ratio, width]`` to keys: a softmax over the block weighs its rows."""
    return (gates.softmax(dim=1) * values).sum(dim=1)


def compression() -> Iterator[Figure]:
    torch.set_num_threads(1)
    documents = workload("published", TOKENS).documents
    plan = document_compression_plan(documents, RATIO, TOKENS // RANKS, RANKS, RANKS // 2)
    values, gates = (torch.randn(plan.halo.bank_rows, 512) for _ in range(2))
    count = plan.num_blocks * RATIO

    def planned() -> torch.Tensor:
        return map_blocks(compress, plan, values, gates)

    def aligned() -> torch.Tensor:
        return compress(values[:count].view(-1, RATIO, 512), gates[:count].view(-1, RATIO, 512))

    rows = torch.from_numpy(plan.block_rows.copy())
    assert torch.equal(planned(), compress(values[rows], gates[rows]))
    ours, theirs = best_of_two(planned, aligned, 9)
    detail = {"milliseconds": round(ours * 1000, 1), "aligned_milliseconds": round(theirs * 1000, 1)}
    yield Figure("compression with a plan, 16,384 rows / aligned reshape", ours / theirs, 1.6, detail)


def figures() -> Iterator[Figure]:
    yield from planning()
    yield from dispatch()
    yield from compression()


if __name__ == "__main__":
    print(json.dumps(measured()))
