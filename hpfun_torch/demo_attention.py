"""The ``attention`` part of the demo: a small DeepSeek-V4 learns Python's standard library on four processes.

Ten steps on packed source files, with balanced selection and recomputed layers; beside it one process trains the model
of transformers on each document alone. Then the indexer chooses keys of a longer pack with and without balance.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import PackedDocuments
from hpfun.attention import AttentionConfig, LayerSharing, attention_plan
from hpfun.errors import refusal
from hpfun_torch.attention import IndexerFunctions, prepare, select
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

SIZE, RATE = 4, 0.1
SELECTED_TOKENS, RATIO, TOPK = 32_768, 4, 64
Q_RANK, HEADS, DIM = 32, 16, 32
REPEATS = 4  # CPU times are the best of so many


def small_model(seed: int = 0) -> Any:
    """A DeepSeek-V4 with every kind of attention layer and of routing, small enough for a laptop."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(seed)
    made: Any = CONFIG_MAPPING["deepseek_v4"]
    config = made(
        vocab_size=VOCABULARY,
        hidden_size=64,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        index_n_heads=16,
        index_head_dim=16,
        index_topk=32,
        sliding_window=64,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
        layer_types=["sliding_attention", "heavily_compressed_attention", *["compressed_sparse_attention"] * 2],
        mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
        hc_mult=2,
        partial_rotary_factor=0.5,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    table = torch.Generator().manual_seed(seed)
    for name, buffer in model.named_buffers():
        if name.endswith("tid2eid"):  # random tokens to experts, where a checkpoint would have its own
            buffer.random_(0, config.n_routed_experts, generator=table)
    return model.train()


def train_on_rank(source: Source, balance: str, steps: int = STEPS) -> list[float]:
    """Losses of the steps, summed over the ranks; called on every rank."""
    from hpfun_torch.integrations.transformers import ContextParallelOptions, enable_context_parallel

    options = ContextParallelOptions(balance=balance, overlapped=True, indexer_priority=True, recompute=True)
    return list(losses_of_ranks(enable_context_parallel(small_model(), None, options), source, steps, RATE))


def train_alone(source: Source, steps: int = STEPS) -> Iterator[float]:
    """The same losses from one process, transformers' own model and each document alone."""
    return losses_alone(small_model(), source, steps, RATE)


def selection_config() -> AttentionConfig:
    """One layer that chooses keys of four tokens."""
    sharing = LayerSharing(compress_ratios=(RATIO,), index_sources=(0,))
    return AttentionConfig(sharing=sharing, window=0, topk=TOPK)


@torch.no_grad()
def select_on_rank(documents: PackedDocuments, balance: str, seed: int) -> tuple[np.ndarray, float]:
    """This rank's choice of keys, as ids of the whole pack, and the CPU seconds that it took; on every rank."""
    context = prepare(documents, selection_config(), balance=balance)
    route, local = context.route.keys[RATIO], context.plan.local_rows
    random = torch.Generator().manual_seed(seed)
    own = slice(context.route.rank * local, (context.route.rank + 1) * local)
    residual = torch.randn(documents.total, Q_RANK, generator=random)[own][None]
    weights = torch.rand(documents.total, HEADS, generator=random)[own][None]
    keys = torch.randn(sum(route.key_counts), DIM, generator=random)
    first = sum(route.key_counts[: context.route.rank])
    matrix = torch.randn(Q_RANK, HEADS * DIM, generator=random)
    functions = IndexerFunctions(
        project=lambda rows: rows @ matrix, rotate=lambda flat, at: flat[0].unflatten(-1, (HEADS, DIM))
    )
    positions = (torch.zeros(1, local, 1), torch.zeros(1, local, 1))
    dist.barrier()
    start = time.process_time()
    chosen = select(context, 0, residual, weights, positions, keys[first : first + route.num_keys], functions)
    spent = time.process_time() - start
    return torch.where(chosen < 0, chosen, chosen + route.bank.global_start).numpy(), spent


@attrs.frozen
class Selections:
    """CPU seconds ``[ranks]`` of selection without and with balance, best of some runs, and the planned imbalance."""

    plain: tuple[float, ...]
    balanced: tuple[float, ...]
    imbalance: float

    @property
    def gain(self) -> float:
        """How much less the slowest rank computes."""
        return max(self.plain) / max(self.balanced)


def compare_selection(pool: RankPool, documents: PackedDocuments, seed: int = 0) -> Selections:
    """CPU seconds with and without balance; HP-RANKS-002 unless all ids are equal."""
    best: dict[str, np.ndarray] = {}
    chosen: dict[str, np.ndarray] = {}
    for _ in range(REPEATS):
        for balance in ("none", "locality"):
            answers = pool.run(select_on_rank, documents, balance, seed)
            spent = np.array([answer[1] for answer in answers])
            best[balance] = np.minimum(best.get(balance, spent), spent)
            chosen[balance] = np.concatenate([answer[0] for answer in answers])
    wrong = int((chosen["none"] != chosen["locality"]).any(axis=1).sum())
    if wrong:
        raise refusal("HP-RANKS-002", "ids", f"{wrong} rows chose other keys with balance", rows=wrong, mode="locality")
    plan = attention_plan(documents, pool.size, selection_config(), "none")
    return Selections(
        tuple(best["none"].tolist()), tuple(best["locality"].tolist()), plan.indexer_plan(RATIO).imbalance
    )


def run_attention(folder: Path) -> None:
    """The whole part; prints tables, writes ``attention.png`` into ``folder``."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from hpfun.workloads import pack, stdlib_lengths

    console = Console()
    console.print(
        f"[bold]Attention[/] of a small DeepSeek-V4 on {SIZE} processes: {STEPS} steps of {TOKENS:,} tokens, "
        "source files as documents, balance locality, layers recomputed"
    )
    source = source_tokens(STEPS * TOKENS)
    with Progress(console=console, transient=True) as progress:
        job = progress.add_task("one process, each document alone", total=STEPS)
        alone = list(progress.track(train_alone(source), task_id=job, total=STEPS))
    with RankPool(SIZE) as pool:
        with console.status(f"{SIZE} processes"):
            split = pool.run(train_on_rank, source, "locality")[0]
        check_losses(split, alone)
        documents = pack(stdlib_lengths(SELECTED_TOKENS), SELECTED_TOKENS).documents
        with console.status("selection with and without balance"):
            selections = compare_selection(pool, documents)
    console.print(_losses(Table, split, alone))
    console.print(
        f"\n[bold]Selection[/] of {TOPK} keys for {documents.total:,} rows of {documents.num_documents} documents, "
        f"ratio {RATIO}; planned imbalance {selections.imbalance:.2f}; all ids equal"
    )
    console.print(_seconds(Table, selections))
    console.print(f"The slowest rank computes {selections.gain:.1f}x less.")
    path = folder / "attention.png"
    folder.mkdir(parents=True, exist_ok=True)
    draw(split, alone, selections, path)
    console.print(f"Picture: {path}")


def _losses(table_type: Any, split: list[float], alone: list[float]) -> Any:
    table = table_type(box=None, padding=(0, 2, 0, 0))
    for heading in ("step", f"loss on {SIZE} ranks", "in one process", "difference"):
        table.add_column(heading, justify="right")
    for step, (ours, theirs) in enumerate(zip(split, alone, strict=True)):
        table.add_row(str(step + 1), f"{ours:.5f}", f"{theirs:.5f}", f"{ours - theirs:+.1e}")
    return table


def _seconds(table_type: Any, selections: Selections) -> Any:
    table = table_type(box=None, padding=(0, 2, 0, 0))
    for heading in ("rank", "CPU s without balance", "with locality"):
        table.add_column(heading, justify="right")
    for rank, pair in enumerate(zip(selections.plain, selections.balanced, strict=True)):
        table.add_row(str(rank), *(f"{seconds:.3f}" for seconds in pair))
    slowest = (max(selections.plain), max(selections.balanced))
    table.add_row("slowest", *(f"{seconds:.3f}" for seconds in slowest), style="bold")
    return table


def draw(split: list[float], alone: list[float], selections: Selections, path: Path) -> None:
    """Losses of both beside the CPU seconds of selection, into a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.arange(1, len(split) + 1)
    left.plot(steps, alone, color="#f4a340", linewidth=5, label="one process, each document alone")
    left.plot(steps, split, color="#303030", linewidth=1.2, marker="o", markersize=3, label=f"{SIZE} ranks, packed")
    left.set(xlabel="step", ylabel="loss", title="The loss is the same")
    left.legend(frameon=False, fontsize=8)
    ranks = np.arange(len(selections.plain))
    right.bar(ranks - 0.2, selections.plain, 0.4, color="#c9c9c9", label="without balance")
    right.bar(ranks + 0.2, selections.balanced, 0.4, color="#2b7bba", label="locality")
    right.set(
        xlabel="rank",
        ylabel="CPU seconds of selection",
        title=f"Slowest rank: {selections.gain:.1f}x less selection time",
    )
    right.set_xticks(ranks)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160, metadata={"Software": None})
