"""The ``batch`` part of the demo: one plan cuts real batches over four processes, and a small Llama learns from them.

Source files of Python's standard library are packed, read by the first of two tensor-parallel ranks, sent to the other,
cut over two context-parallel ones, and put together again. Then four context-parallel ranks train ten steps in either
layout, beside one process that trains the model of transformers on each document alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hpfun.batch import BatchTopology, batch_figures, plan_batch
from hpfun.batch.layouts import LAYOUTS
from hpfun.errors import refusal
from hpfun_torch.batch import OmniParallelBatch, batch_groups, gather_tokens
from hpfun_torch.demo_training import (
    STEPS,
    TOKENS,
    VOCABULARY,
    Source,
    check_losses,
    losses_alone,
    losses_of_ranks,
    source_tokens,
)
from hpfun_torch.ranks import RankPool

SIZE, RATE = 4, 0.3
TOPOLOGY = BatchTopology(2, 2, sequence_parallel=True)
TABLE_TOKENS, TABLE_RANKS = 2**20, (8, 64)


def cut_on_rank(source: Source, layout: str) -> dict[str, Any]:
    """What this rank holds of one batch, and whether all ranks' rows are the batch again; called on every rank."""
    groups = batch_groups(TOPOLOGY)
    omni = OmniParallelBatch(TOPOLOGY, groups, "cpu", layout=layout)
    ids = torch.from_numpy(source.ids)[None]
    ends = torch.tensor([0, *source.lengths]).cumsum(0)
    _, tp_rank = groups.coordinates(TOPOLOGY)
    batch = omni.prepare({"input_ids": ids, "labels": ids, "cu_seq_lens": ends} if tp_rank == 0 else None)
    back = gather_tokens(batch["batch_plan"], batch["input_ids"], groups.cp)
    return {
        "rows": batch["input_ids"].shape[1],
        "labels": int((batch["labels"] != -100).sum()),
        "all_labels": batch["num_items_in_batch"],
        "whole": torch.equal(back, ids),
    }


def check_cuts(answers: list[dict[str, Any]], source: Source, layout: str) -> None:
    """HP-RANKS-002 unless every rank has the batch again, and the labels of the CP ranks are all there are."""
    expected = sum(source.lengths) - sum(length > 0 for length in source.lengths)
    counted = sum(answer["labels"] for answer in answers[:: TOPOLOGY.tp_size])
    wrong = [rank for rank, answer in enumerate(answers) if not answer["whole"] or answer["all_labels"] != expected]
    if wrong or counted != expected:
        message = f"{counted} labels of {expected}, other tokens on ranks {wrong}"
        raise refusal("HP-RANKS-002", f"{layout} batch", message, rows=counted, mode=layout)


def small_llama(seed: int = 0) -> Any:
    """A Llama small enough for a laptop."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).train()


def train_on_rank(source: Source, layout: str, steps: int = STEPS) -> list[float]:
    """Losses of the steps, summed over the ranks; called on every rank."""
    from hpfun_torch.integrations.transformers import ContextParallelOptions, enable_context_parallel

    model = enable_context_parallel(small_llama(), None, ContextParallelOptions(layout=layout))
    return list(losses_of_ranks(model, source, steps, RATE))


def train_alone(source: Source, steps: int = STEPS) -> Iterator[float]:
    """The same losses from one process, transformers' own model and each document alone."""
    return losses_alone(small_llama(), source, steps, RATE)


def run_batch(folder: Path) -> None:
    """The whole part; prints tables, writes ``layouts.png`` into ``folder``."""
    from rich.console import Console
    from rich.progress import Progress

    from hpfun.batch_report import draw_batches, layouts_table
    from hpfun.workloads import workload

    console = Console()
    documents = workload("stdlib", TABLE_TOKENS).documents
    plans = [plan_batch(documents, BatchTopology(ranks), layout=layout) for ranks in TABLE_RANKS for layout in LAYOUTS]
    console.print(f"[bold]Batch[/] of {documents.total:,} tokens in {documents.num_documents:,} source files")
    console.print(layouts_table(list(map(batch_figures, plans))))
    path = folder / "layouts.png"
    folder.mkdir(parents=True, exist_ok=True)
    draw_batches(dict(zip(LAYOUTS, plans, strict=False)), path)
    console.print(f"Picture: {path}\n")
    source = source_tokens(STEPS * TOKENS)
    losses: dict[str, list[float]] = {}
    with RankPool(SIZE) as pool:
        for layout in LAYOUTS:
            with console.status(f"{SIZE} processes, {layout}"):
                answers = pool.run(cut_on_rank, source, layout)
                losses[layout] = pool.run(train_on_rank, source, layout)[0]
            check_cuts(answers, source, layout)
            labels = [answer["labels"] for answer in answers[:: TOPOLOGY.tp_size]]
            console.print(
                f"{len(source.ids):,} tokens read once, cut for {SIZE} processes ({layout}, 2 CP x 2 TP): "
                f"{answers[0]['rows']:,} rows a CP rank, labels {labels}, and back: every token is there"
            )
    with Progress(console=console, transient=True) as progress:
        job = progress.add_task("one process, each document alone", total=STEPS)
        alone = list(progress.track(train_alone(source), task_id=job, total=STEPS))
    for layout in LAYOUTS:
        check_losses(losses[layout], alone)
    console.print(f"\n[bold]Loss[/] of a small Llama on {SIZE} CP ranks, {TOKENS:,} tokens a step")
    console.print(_losses(losses, alone))


def _losses(losses: dict[str, list[float]], alone: list[float]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("step", *losses, "one process", "greatest difference"):
        table.add_column(heading, justify="right")
    for step, single in enumerate(alone):
        split = [found[step] for found in losses.values()]
        worst = max(abs(loss - single) for loss in split)
        table.add_row(str(step + 1), *(f"{loss:.6f}" for loss in split), f"{single:.6f}", f"{worst:.1e}")
    return table
