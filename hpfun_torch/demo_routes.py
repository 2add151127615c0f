"""The ``routes`` part of the demo: what sparse attention reads, brought to four processes and checked.

On the source files of Python's standard library, every rank gets the tokens that its sliding window sees and the
tokens in front of its compression blocks, makes its keys, and gets the keys of its first document; gradients go all
the way back. One process computes the same from the whole sequence.
"""

from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import (
    DocumentCompressionPlan,
    PackedDocuments,
    SequenceBankPlan,
    bank_route,
    compressed_document_offsets,
    compression_halo_plan,
    document_compression_plan,
    document_prefix_plan,
    sequence_report,
    sliding_window_plan,
)
from hpfun.errors import refusal
from hpfun_torch import agree, dispatch_sequence, map_blocks
from hpfun_torch.ranks import RankPool

SIZE, TOKENS, WINDOW, RATIO, WIDTH = 4, 32_768, 128, 4, 64


@attrs.frozen
class Banks:
    """What one rank holds after dispatch, and the gradient of its own rows; float64 arrays."""

    window: Any
    keys: Any
    grad: Any


def bank_plans(documents: PackedDocuments) -> dict[str, SequenceBankPlan]:
    """The three plans that all ranks share."""
    local = documents.shard_rows(SIZE)
    return {
        "window": sliding_window_plan(documents, local, SIZE, WINDOW),
        "halo": compression_halo_plan(documents, RATIO, local, SIZE, overlap=True),
        "prefix": document_prefix_plan(documents, local, SIZE, RATIO),
    }


def _rows(documents: PackedDocuments, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(documents.total, WIDTH, generator=random, dtype=torch.float64)


def _pooled(blocks: torch.Tensor) -> torch.Tensor:
    """A key of each block ``[blocks, rows, width]``: its rows, weighed by a softmax over the block."""
    return (blocks.softmax(dim=1) * blocks).sum(dim=1)


def _blocks(documents: PackedDocuments, local: int, size: int, rank: int) -> DocumentCompressionPlan:
    # with overlap there always is a plan
    return cast(DocumentCompressionPlan, document_compression_plan(documents, RATIO, local, size, rank, overlap=True))


def _grad(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _loss(window: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return window.sin().sum() + (keys * keys).sum()


def banks_on_rank(lengths: tuple[int, ...], seed: int) -> Banks:
    """This rank's banks and gradient in a running group; called on every rank."""
    documents, rank = PackedDocuments(lengths), dist.get_rank()
    plans, local = bank_plans(documents), documents.shard_rows(SIZE)
    for plan in plans.values():
        agree(plan)
    shard = _rows(documents, seed)[rank * local : (rank + 1) * local].requires_grad_()
    window = dispatch_sequence(shard, bank_route(plans["window"], rank))
    blocks = _blocks(documents, local, SIZE, rank)
    own_keys = map_blocks(_pooled, blocks, dispatch_sequence(shard, blocks.halo))
    keys = dispatch_sequence(own_keys, bank_route(plans["prefix"], rank))
    _loss(window, keys).backward()
    return Banks(window.detach().numpy(), keys.detach().numpy(), _grad(shard).numpy())


def banks_alone(documents: PackedDocuments, seed: int) -> list[Banks]:
    """The banks of all ranks from one process that moves nothing."""
    rows = _rows(documents, seed).requires_grad_()
    all_keys = map_blocks(_pooled, _blocks(documents, documents.total, 1, 0), rows)
    plans = bank_plans(documents)
    held = [
        [part[start:stop] for start, stop in zip(plan.bank_starts, plan.owner_offsets[1:], strict=True)]
        for part, plan in ((rows, plans["window"]), (all_keys, plans["prefix"]))
    ]
    losses = [_loss(window, keys) for window, keys in zip(*held, strict=True)]
    torch.stack(losses).sum().backward()
    shards = _grad(rows).split(documents.shard_rows(SIZE))
    return [
        Banks(window.detach().numpy(), keys.detach().numpy(), shard.numpy())
        for window, keys, shard in zip(*held, shards, strict=True)
    ]


def check_banks(documents: PackedDocuments, seed: int) -> None:
    """HP-RANKS-002 unless four ranks hold the rows of one process bit for bit, and gradients to 1e-12."""
    with RankPool(SIZE) as pool:
        found = pool.run(banks_on_rank, tuple(documents.lengths.tolist()), seed)
    for rank, (got, expected) in enumerate(zip(found, banks_alone(documents, seed), strict=True)):
        wrong = int((got.window != expected.window).any(axis=1).sum() + (got.keys != expected.keys).any(axis=1).sum())
        wrong += int((np.abs(got.grad - expected.grad) > 1e-12).any(axis=1).sum())
        if wrong:
            message = f"{wrong} rows differ from those of one process"
            raise refusal("HP-RANKS-002", f"rank {rank}", message, rank=rank, rows=wrong, mode="routes")


def run_routes(folder: Path) -> None:
    """The whole part; prints a table, writes ``routes.png`` into ``folder``."""
    from rich.console import Console
    from rich.table import Table

    from hpfun.bank_picture import draw_banks
    from hpfun.workloads import pack, stdlib_lengths

    console = Console()
    documents = pack(stdlib_lengths(TOKENS), TOKENS).documents
    console.print(
        f"[bold]Routes[/] on {SIZE} processes: window {WINDOW}, ratio {RATIO} with overlap, {WIDTH} numbers a row"
    )
    with console.status("banks and gradients on 4 ranks and in one process"):
        check_banks(documents, seed=0)
    plans = bank_plans(documents)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("route", "largest bank", "rows moved", "KiB moved", "KiB of an all-gather", "share"):
        table.add_column(heading, justify="left" if heading == "route" else "right")
    for name, plan in plans.items():
        report = sequence_report(plan, WIDTH * 8)
        table.add_row(
            name,
            f"{report.max_bank_rows:,}",
            f"{report.moved_rows:,}",
            f"{report.moved_bytes / 1024:,.0f}",
            f"{report.all_gather_bytes / 1024:,.0f}",
            f"{report.share_of_all_gather:.2%}",
        )
    console.print("Every bank equals that of one process bit for bit, and every gradient to 1e-12.\n")
    console.print(table)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "routes.png"
    keys = np.unique(compressed_document_offsets(documents, RATIO)[:-1])
    starts = {"window": documents.boundaries[:-1], "halo": documents.boundaries[:-1], "prefix": keys}
    draw_banks(plans, path, starts)
    console.print(f"Picture: {path}")
