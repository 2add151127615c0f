"""``python -m hpfun_torch.demo indexer|routes|attention|batch``: plans for real documents, run on four processes.

``routes`` is in ``demo_routes``, ``attention`` in ``demo_attention``, ``batch`` in ``demo_batch``. ``indexer`` packs
the source files of Python's standard library, compares the five balance modes at 8, 32 and 128 ranks, then lets 4 gloo
ranks select keys with and without balance, checks every id against one process, and draws who scored what.
"""

import sys
import time
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist

from hpfun import IndexerTaskPlan, PackedDocuments, PlanError, indexer_route, indexer_task_plan, plan_route
from hpfun.errors import refusal
from hpfun_torch import agree, balanced_indexer_select, project_worker_queries
from hpfun_torch.demo_attention import run_attention
from hpfun_torch.demo_batch import run_batch
from hpfun_torch.demo_routes import run_routes
from hpfun_torch.ops import lightning_indexer
from hpfun_torch.ranks import RankPool

SIZE, TOKENS, TOPK, SEED = 4, 32_768, 128, 0
HIDDEN, Q_RANK, HEADS, DIM, ROPE = 64, 48, 4, 32, 16
TABLE_TOKENS, TABLE_RANKS = 2**20, "8,32,128"
# what one row carries: its residual, head weights, cos and sin there; top-k ids back
BYTES_OUT, BYTES_BACK = 4 * (Q_RANK + HEADS + 2 * ROPE), 4 * TOPK


class Projections(torch.nn.Module):
    """The indexer's random projections: queries from the residual, one key and head weights from the hidden row."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(Q_RANK, HEADS * DIM, bias=False)
        self.key = torch.nn.Linear(HIDDEN, DIM, bias=False)
        self.residual = torch.nn.Linear(HIDDEN, Q_RANK, bias=False)
        self.head_weights = torch.nn.Linear(HIDDEN, HEADS, bias=False)


@attrs.frozen
class Selected:
    """What one rank reports: its rows' ids, and the CPU seconds and rows of its selection."""

    ids: Any
    cpu_seconds: float
    rows: int


def _projections(seed: int) -> Projections:
    torch.manual_seed(seed)
    return Projections()


def _hidden(documents: PackedDocuments, seed: int) -> torch.Tensor:
    return torch.randn(documents.total, HIDDEN, generator=torch.Generator().manual_seed(seed + 1))


def _rotary(documents: PackedDocuments, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin ``[rows, ROPE]`` of the in-document positions."""
    index = torch.arange(documents.total)[rows]
    starts = torch.from_numpy(documents.boundaries[documents.documents_at(index.numpy())])
    angles = (index - starts)[:, None] / 10_000 ** (torch.arange(0, ROPE, 2) / ROPE)
    return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


def _rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of the first ``ROPE`` channels."""
    turned, rest = rows.split([ROPE, rows.shape[-1] - ROPE], dim=-1)
    one, two = turned.chunk(2, dim=-1)
    return torch.cat((turned * cos + torch.cat((-two, one), dim=-1) * sin, rest), dim=-1)


def _project_query(model: Projections, residual: torch.Tensor) -> torch.Tensor:
    """The one function by which owner and worker project: ``[rows, Q_RANK]`` to ``[rows, HEADS * DIM]``."""
    return torch.func.functional_call(model.query, dict(model.query.named_parameters()), (residual,))


def _queries(model: Projections, residual: torch.Tensor, positions: Any, local: int, calls: int) -> torch.Tensor:
    """Rotated queries ``[rows, HEADS, DIM]``, projected in chunks of a shard's rows."""
    flat = project_worker_queries(lambda rows: _project_query(model, rows), residual, local, calls)
    cos, sin = (part[:, None] for part in positions)
    return _rotate(flat.view(-1, HEADS, DIM), cos, sin)


@torch.no_grad()
def select_on_rank(lengths: tuple[int, ...], mode: str, seed: int) -> Selected:
    """Selection of this rank's rows in a running group; called on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = indexer_task_plan(lengths, size, 1, mode)
    agree(plan)
    route = plan_route(plan, rank)
    mine = slice(rank * plan.local_rows, (rank + 1) * plan.local_rows)
    model, hidden = _projections(seed), _hidden(plan.documents, seed)[mine]
    cos, sin = _rotary(plan.documents, mine)
    own_keys = _rotate(model.key(hidden), cos, sin)
    shards = [torch.empty_like(own_keys) for _ in range(size)]
    dist.all_gather(shards, own_keys)
    keys = torch.cat(shards)

    def selector(residual: torch.Tensor, weights: torch.Tensor, positions: Any, segments: Any) -> torch.Tensor:
        positions = tuple(part[0] for part in positions)
        query = _queries(model, residual[0], positions, plan.local_rows, route.projection_calls)
        return lightning_indexer(query, keys, weights[0], segments, 1, TOPK)[None]

    residual, weights = model.residual(hidden)[None], model.head_weights(hidden)[None]
    dist.barrier()
    start = time.process_time()
    ids = balanced_indexer_select(residual, weights, (cos[None], sin[None]), selector=selector, route=route, group=None)
    return Selected(ids[0].numpy(), time.process_time() - start, route.query_count)


@torch.no_grad()
def select_alone(documents: PackedDocuments, local: int, seed: int) -> torch.Tensor:
    """The same ids from one process that moves nothing; int32 ``[tokens, TOPK]``.

    Projections run in the ranks' matrix shapes, so that they round alike.
    """
    model, hidden = _projections(seed), _hidden(documents, seed)
    shards = hidden.split(local)
    cos, sin = _rotary(documents, slice(None))
    keys = _rotate(torch.cat([model.key(shard) for shard in shards]), cos, sin)
    residual = torch.cat([model.residual(shard) for shard in shards])
    weights = torch.cat([model.head_weights(shard) for shard in shards])
    query = _queries(model, residual, (cos, sin), local, len(shards))
    segments = indexer_route(documents, 1, 0, 1, "none").segments
    return lightning_indexer(query, keys, weights, segments, 1, TOPK)


def compare_selection(documents: PackedDocuments, size: int, seed: int) -> dict[str, list[Selected]]:
    """Selection on ``size`` ranks in modes none and locality; HP-RANKS-002 unless every id is that of one process."""
    expected = select_alone(documents, documents.shard_rows(size), seed).numpy()
    lengths = tuple(documents.lengths.tolist())
    found = {}
    with RankPool(size) as pool:
        for mode in ("none", "locality"):
            answers = [pool.run(select_on_rank, lengths, mode, seed) for _ in range(2)]
            found[mode] = [min(pair, key=lambda one: one.cpu_seconds) for pair in zip(*answers, strict=True)]
            for rank, answer in enumerate(found[mode]):
                shard = expected[rank * len(answer.ids) : (rank + 1) * len(answer.ids)]
                wrong = int((answer.ids != shard).any(axis=1).sum())
                if wrong:
                    raise refusal(
                        "HP-RANKS-002",
                        f"rank {rank}",
                        f"{wrong} of {len(shard)} rows have other ids in mode {mode} than in one process",
                        rank=rank,
                        rows=wrong,
                        mode=mode,
                    )
    return found


def run_indexer(folder: Path) -> None:
    """The whole demo; prints tables, writes ``indexer.png`` into ``folder``."""
    from rich.console import Console
    from rich.table import Table

    from hpfun import cli
    from hpfun.report import draw_plans
    from hpfun.workloads import pack, stdlib_lengths

    console = Console()
    console.print("[bold]Plans[/] for Python's standard library, one document per source file")
    sizes = ["--tokens", str(TABLE_TOKENS), "--ranks", TABLE_RANKS]
    widths = ["--bytes-out", str(BYTES_OUT), "--bytes-back", str(BYTES_BACK)]
    if cli.main(["compare", "stdlib", *sizes, *widths]):
        sys.exit(1)

    packed = pack(stdlib_lengths(TOKENS), TOKENS)
    documents = packed.documents
    console.print(
        f"\n[bold]Selection[/] on {SIZE} processes: {packed.total:,} tokens in {packed.used} documents "
        f"(the last one cut by {packed.cut_tokens:,}), top {TOPK}"
    )
    with console.status("selecting in one process, then on 4 ranks, with and without balance"):
        found = compare_selection(documents, SIZE, SEED)
    console.print(f"All {2 * documents.total * TOPK:,} ids equal those of one process.\n")
    plans = {mode: indexer_task_plan(documents, SIZE, 1, mode) for mode in found}
    console.print(_rank_table(Table, plans, found))
    path = folder / "indexer.png"
    folder.mkdir(parents=True, exist_ok=True)
    draw_plans(plans, path)
    console.print(f"Picture: {path}")


def _rank_table(table_type: Any, plans: dict[str, IndexerTaskPlan], found: dict[str, list[Selected]]) -> Any:
    table = table_type(box=None, padding=(0, 2, 0, 0))
    for heading in ("rank", "Mpairs none", "locality", "rows none", "locality", "CPU s none", "locality"):
        table.add_column(heading, justify="right")
    columns = [
        *(plan.loads / 1e6 for plan in plans.values()),
        *([one.rows for one in answers] for answers in found.values()),
        *([one.cpu_seconds for one in answers] for answers in found.values()),
    ]
    formats = ("{:.1f}", "{:.1f}", "{:,}", "{:,}", "{:.2f}", "{:.2f}")
    for rank in range(SIZE):
        cells = [form.format(column[rank]) for form, column in zip(formats, columns, strict=True)]
        table.add_row(str(rank), *cells)
    table.add_row(
        "most", *[form.format(max(column)) for form, column in zip(formats, columns, strict=True)], style="bold"
    )
    return table


PARTS = {"indexer": run_indexer, "routes": run_routes, "attention": run_attention, "batch": run_batch}


def main(arguments: list[str]) -> int:
    """A part and a folder for its picture, ``build/demo`` unless given."""
    if not arguments or arguments[0] not in PARTS or len(arguments) > 2:
        print(f"usage: python -m hpfun_torch.demo {'|'.join(PARTS)} [FOLDER]", file=sys.stderr)
        return 2
    try:
        PARTS[arguments[0]](Path(arguments[1]) if len(arguments) == 2 else Path("build/demo"))
    except PlanError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # ranks unpickle functions by module, and this module must not be __main__ to them
    from hpfun_torch import demo

    sys.exit(demo.main(sys.argv[1:]))
