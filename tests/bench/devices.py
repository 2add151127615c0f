"""Executors: row exchange against the same movement by hand, and the indexer against einsum and sort."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist

from hpfun import RowExchange
from hpfun_torch import exchange_rows
from hpfun_torch.ops import lightning_indexer
from hpfun_torch.ranks import RankPool
from tests.bench.measure import Figure, best_of_two, peak_mib

RANKS, WIDTH = 4, 1024
ROWS = 64 * 2**20 // (4 * WIDTH)  # 64 MiB of float32 rows on each rank


def scattered() -> list[RowExchange]:
    """A random permutation of all rows of all ranks: three quarters move, no two together."""
    places = np.random.default_rng(0).permutation(RANKS * ROWS)
    return _exchanges(places)


def contiguous() -> list[RowExchange]:
    """Half of each rank's rows, in one piece, go to the next rank; the other half stays in one piece."""
    rows = np.arange(RANKS * ROWS).reshape(RANKS, 2, ROWS // 2)
    rows[:, 1] = np.roll(rows[:, 1], 1, axis=0)
    # what arrives stands in front of what stays
    return _exchanges(np.concatenate([np.concatenate((part[1], part[0])) for part in rows]))


def blocks() -> list[RowExchange]:
    """Each rank's shard in one piece per rank: piece b of rank a becomes piece a of rank b."""
    return _exchanges(np.arange(RANKS * ROWS).reshape(RANKS, RANKS, -1).swapaxes(0, 1).reshape(-1))


def _exchanges(source_of_slot: np.ndarray) -> list[RowExchange]:
    """All ranks' exchanges of the permutation that fills global slot i from global row ``source_of_slot[i]``."""
    slots = np.arange(RANKS * ROWS)
    owner, worker = source_of_slot // ROWS, slots // ROWS
    exchanges = []
    for rank in range(RANKS):
        sent = np.flatnonzero((owner == rank) & (worker != rank))
        got = np.flatnonzero((worker == rank) & (owner != rank))
        sent = sent[np.lexsort((sent, worker[sent]))]
        got = got[np.lexsort((got, owner[got]))]
        kept = np.flatnonzero((owner == rank) & (worker == rank))
        exchanges.append(
            RowExchange(
                RANKS,
                rank,
                ROWS,
                ROWS,
                source_of_slot[sent] % ROWS,
                np.bincount(worker[sent], minlength=RANKS),
                np.bincount(owner[got], minlength=RANKS),
                got % ROWS,
                source_of_slot[kept] % ROWS,
                kept % ROWS,
                required=True,
            )
        )
    return exchanges


def against_by_hand(exchanges: list[RowExchange], times: int) -> tuple[list[float], list[float]]:
    """Seconds of ``exchange_rows`` and of the hand-written movement, in turn; on every rank."""
    exchange = exchanges[dist.get_rank()]
    tensor = torch.randn(ROWS, WIDTH)
    names = ("send_rows", "receive_rows", "local_sources", "local_targets")
    send, receive, sources, targets = (torch.from_numpy(getattr(exchange, name).copy()) for name in names)
    inputs, outputs = exchange.input_splits.tolist(), exchange.output_splits.tolist()

    def by_hand() -> torch.Tensor:
        sent = tensor.index_select(0, send)
        received = tensor.new_empty((len(receive), WIDTH))
        dist.all_to_all_single(received, sent, outputs, inputs)
        target = tensor.new_empty((exchange.num_target_rows, WIDTH))
        target.index_copy_(0, receive, received)
        target.index_copy_(0, targets, tensor.index_select(0, sources))
        return target

    def ours() -> torch.Tensor:
        return exchange_rows(tensor, exchange)

    assert torch.equal(by_hand(), ours())
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for function, seconds in ((ours, spent[0]), (by_hand, spent[1])):
            dist.barrier()
            start = time.perf_counter()
            function()
            dist.barrier()
            seconds.append(time.perf_counter() - start)
    return spent


def exchange() -> Iterator[Figure]:
    with RankPool(RANKS) as pool:
        cases = (("scattered", scattered(), 1.15), ("halved", contiguous(), 0.85), ("block", blocks(), 0.85))
        for name, exchanges, limit in cases:
            spent = pool.run(against_by_hand, exchanges, 15)
            ours, by_hand = (min(seconds) for seconds in spent[0])
            detail = {"milliseconds": round(ours * 1000, 1), "by_hand_milliseconds": round(by_hand * 1000, 1)}
            yield Figure(f"exchange_rows, {name} rows, 4 ranks, 64 MiB / by hand", ours / by_hand, limit, detail)


def einsum_and_sort(query: torch.Tensor, key: torch.Tensor, weights: torch.Tensor, topk: int) -> torch.Tensor:
    """The definition in whole matrices."""
    scores = torch.einsum("qhk,qh->qk", torch.einsum("qhd,kd->qhk", query, key).relu_(), weights)
    hidden = torch.arange(len(key)) > torch.arange(len(query))[:, None]
    best = scores.masked_fill_(hidden, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :topk]
    return best.sort(dim=1).values


def operator() -> Iterator[Figure]:
    torch.set_num_threads(os.cpu_count() or 1)
    total, heads, dim, topk = 4096, 8, 64, 512
    whole = [(0, total, 0, total, 0)]
    for name, make in (
        ("real scores", torch.randn),
        ("scores full of ties", lambda *s: torch.randint(-1, 2, s).float()),
    ):
        torch.manual_seed(0)
        query, key, weights = make(total, heads, dim), make(total, dim), make(total, heads)
        got, expected = (
            lightning_indexer(query, key, weights, whole, 1, topk),
            einsum_and_sort(query, key, weights, topk),
        )
        if name != "real scores":  # integers are exact, so the ids must be, ties included
            assert torch.equal(got[topk:].long(), expected[topk:])
        ours, theirs = best_of_two(
            lambda query=query, key=key, weights=weights: lightning_indexer(query, key, weights, whole, 1, topk),
            lambda query=query, key=key, weights=weights: einsum_and_sort(query, key, weights, topk),
            3,
        )
        detail = {"milliseconds": round(ours * 1000), "whole_milliseconds": round(theirs * 1000)}
        yield Figure(f"lightning_indexer, {name}, 4096x4096 / einsum and sort", ours / theirs, 0.45, detail)
    peaks = [_peak(total) for total in (4096, 16384)]
    detail = {
        "mib_at_4096": round(peaks[0]),
        "mib_at_16384": round(peaks[1]),
        "whole_mib_at_16384": 16384**2 * 4 // 2**20,
    }
    yield Figure("lightning_indexer, extra memory at 16,384 keys, MiB", peaks[1], 160.0, detail, unit="MiB")


def _peak(total: int) -> float:
    command = [sys.executable, "-m", "tests.bench.devices", str(total)]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    count = int(sys.argv[1])
    torch.set_num_threads(1)
    query, key, weights = torch.randn(count, 2, 32), torch.randn(count, 32), torch.randn(count, 2)
    lightning_indexer(query[:600], key[:600], weights[:600], [(0, 600, 0, 600, 0)], 1, 64)
    before = peak_mib()
    lightning_indexer(query, key, weights, [(0, count, 0, count, 0)], 1, 64)
    print(peak_mib() - before)
