"""Selection of keys: plain where the rows are, or balanced on other ranks, each step where the schedule puts it.

Nothing of it runs in a replay: every step is an exclusion, whose outputs are not kept where only further steps read
them, and the replay is given the ids of its own forward. Rules ATTN-27 to ATTN-30 of ``specs/attention.md``.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch

from hpfun import IndexerRoute
from hpfun.attention import KeyRoute
from hpfun.errors import refusal
from hpfun_torch import ops
from hpfun_torch.attention.candidates import candidate_ids
from hpfun_torch.attention.context import ContextParallelAttention
from hpfun_torch.dispatch import start_dispatch
from hpfun_torch.gather import start_gather
from hpfun_torch.handle import Handle
from hpfun_torch.indexer import (
    IndexerInputExchange,
    Inputs,
    Positions,
    launch_indexer_inputs,
    project_worker_queries,
)
from hpfun_torch.recompute import checkpoint_exclude_wrapper

ReduceScores = Callable[[torch.Tensor], torch.Tensor]


@attrs.frozen(eq=False)
class IndexerFunctions:
    """A model's indexer: ``project`` rows ``[1, Q, q_rank]`` to queries ``[1, Q, heads * dim]``, then ``rotate``.

    ``rotate(projected, (cos, sin))`` gives ``[Q, heads, dim]``. A worker projects in chunks of an owner's rows.
    """

    project: Callable[[torch.Tensor], torch.Tensor]
    rotate: Callable[[torch.Tensor, Positions], torch.Tensor]


class Selection:
    """The choice of keys of one layer's rows, step by step; ``select`` takes all steps at once.

    ``reduce_scores`` adds up a chunk's scores ``[rows, keys]`` over ranks that have other index heads; ``candidates``
    int ``[local, n]`` are blocks of keys, the only ones to be scored. Both are HP-ATTN-001 where selection is balanced
    or overlapped.
    """

    def __init__(
        self,
        context: ContextParallelAttention,
        layer: int,
        functions: IndexerFunctions,
        *,
        reduce_scores: ReduceScores | None = None,
        candidates: torch.Tensor | None = None,
    ):
        given = {"candidates": candidates is not None, "reduce_scores": reduce_scores is not None}
        for name, there in given.items():
            if there and (context.plan.balanced or context.plan.overlapped):
                facts = {"balance": context.plan.balance.mode.value, "overlapped": context.plan.overlapped}
                message = f"{name} with balance {facts['balance']}, overlapped {facts['overlapped']}"
                raise refusal("HP-ATTN-001", name, message, "prepare with balance none and without overlap", **facts)
        keys = context.keys(layer)
        if keys is None or context.kind(layer) != "select":
            facts = {"layer": layer, "kind": context.kind(layer)}
            raise refusal("HP-ATTN-002", "layer", f"layer {layer} chooses no keys", "see LayerSharing", **facts)
        self._context = context
        self._keys: KeyRoute = keys
        self._functions = functions
        self._reduce_scores = reduce_scores
        self._candidates = candidates
        self.index_keys: Any = None  # what is scored against; under way from launch to wait
        self._rows: Any = None
        self._exchange: Any = None
        self._moved: Any = None
        self._query: Any = None
        self._chosen: Any = None

    @torch.no_grad()
    def take(self, query_residual: torch.Tensor, weights: torch.Tensor, positions: Positions) -> None:
        """The rows that choose: ``[1, local, q_rank]``, ``[1, local, heads]``, cos and sin ``[1, local, rope]``."""
        self._rows = (query_residual.detach(), weights.detach(), positions)

    def launch_inputs(self) -> None:
        """Start moving the rows to their workers."""
        self._exchange = _launch_inputs(*self._rows, self._keys.indexer, self._context.group)

    def wait_inputs(self) -> None:
        """The worker's rows are here."""
        self._moved = _wait_inputs(self._exchange)

    def launch_index_keys(self, own: torch.Tensor) -> None:
        """Start bringing the index keys to whoever scores: of this rank's documents, or all where rows move."""
        self.index_keys = _launch_index_keys(own.detach(), self._keys, self._context.group)

    def wait_index_keys(self) -> None:
        """The index keys are here."""
        self.index_keys = _wait_index_keys(self.index_keys)

    def worker_projection(self) -> None:
        """Queries of the worker's rows."""
        self._query = _project_moved(self._functions, self._moved, self._context.route.local_rows, self._keys.indexer)

    def select(self) -> None:
        """Score and choose."""
        topk = self._context.plan.config.topk
        if self._keys.indexer is not None:
            self._chosen = _select_moved(self._query, self.index_keys, self._keys.indexer, self._keys.ratio, topk)
        else:
            hooks = (self._reduce_scores, self._candidates)
            self._chosen = _select_own(self._functions, self._rows, self.index_keys, self._keys, topk, *hooks)

    def launch_result(self) -> None:
        """Start sending ids home."""
        self._chosen = _launch_result(self._exchange, self._chosen)

    def wait_result(self) -> None:
        """The owner's ids are here."""
        self._chosen = _wait_result(self._chosen, self._keys)

    @property
    def chosen(self) -> torch.Tensor:
        """Rows of the key bank, int32 ``[local, topk]``, ascending, -1 at the tail."""
        return self._chosen


def select(
    context: ContextParallelAttention,
    layer: int,
    query_residual: torch.Tensor,
    weights: torch.Tensor,
    positions: Positions,
    index_keys: torch.Tensor,
    functions: IndexerFunctions,
    *,
    reduce_scores: ReduceScores | None = None,
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """The keys that this rank's rows choose, int32 ``[local, topk]``: rows of its key bank, ascending, -1 at the tail.

    ``query_residual [1, local, q_rank]``, ``weights [1, local, heads]`` (the scale included), cos and sin ``[1, local,
    rope]``, ``index_keys [own keys, dim]``, or, where another layer made the keys, what that one scored against. Every
    rank calls it; who scores is the plan's matter and changes no id. No
    gradient flows. Raises HP-ATTN-001 and 002, HP-INDEX-008, HP-OPS-001 to 003.
    """
    steps = Selection(context, layer, functions, reduce_scores=reduce_scores, candidates=candidates)
    steps.take(query_residual, weights, positions)
    names = [name for name in context.schedule(layer).steps if hasattr(steps, step_name(*name))]
    if ("launch", "index_keys") not in names:
        steps.index_keys = index_keys
    for action, name in names:
        if (action, name) == ("launch", "index_keys"):
            steps.launch_index_keys(index_keys)
        else:
            getattr(steps, step_name(action, name))()
    return steps.chosen


def step_name(action: str, name: str) -> str:
    """The method of a step: ``launch_inputs``, ``worker_projection``."""
    return name if action == "compute" else f"{action}_{name}"


def _excluded(name: str, save_output: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: checkpoint_exclude_wrapper(torch.no_grad()(function), save_output=save_output, name=name)


@_excluded("indexer: input launch")
def _launch_inputs(residual: Any, weights: Any, positions: Any, route: Any, group: Any) -> IndexerInputExchange:
    return launch_indexer_inputs(residual, weights, positions, route=route, group=group)


@_excluded("indexer: input wait", save_output=False)
def _wait_inputs(exchange: IndexerInputExchange) -> Inputs:
    return exchange.wait()


@_excluded("indexer: key launch")
def _launch_index_keys(own: torch.Tensor, keys: KeyRoute, group: Any) -> Handle[torch.Tensor]:
    if keys.indexer is None:
        return start_dispatch(own, keys.bank, group)
    return start_gather(own, group, lengths=keys.key_counts)


@_excluded("indexer: key wait", save_output=False)
def _wait_index_keys(pending: Handle[torch.Tensor]) -> torch.Tensor:
    return pending.wait()


@_excluded("indexer: worker preparation", save_output=False)
def _project_moved(functions: IndexerFunctions, moved: Inputs, local: int, route: Any) -> Any:
    residual, weights, positions = moved
    flat = project_worker_queries(functions.project, residual, local, route.projection_calls)
    return functions.rotate(flat, positions), weights


@_excluded("indexer: dispatched selection", save_output=False)
def _select_moved(query: Any, index_keys: torch.Tensor, route: IndexerRoute, ratio: int, topk: int) -> torch.Tensor:
    rows, weights = query
    return ops.lightning_indexer(rows, index_keys, weights[0], route.segments, ratio, topk)


@_excluded("indexer: selection")
def _select_own(
    functions: IndexerFunctions,
    rows: Inputs,
    index_keys: torch.Tensor,
    keys: KeyRoute,
    topk: int,
    reduce_scores: ReduceScores | None,
    candidates: torch.Tensor | None,
) -> torch.Tensor:
    residual, weights, positions = rows
    query = functions.rotate(functions.project(residual), positions)
    if candidates is not None:
        return candidate_ids(query, index_keys, weights[0], candidates, keys.segments, topk, reduce_scores)
    segments = keys.segments.indexer
    return ops.lightning_indexer(query, index_keys, weights[0], segments, keys.ratio, topk, reduce_scores=reduce_scores)


@_excluded("indexer: result launch")
def _launch_result(exchange: IndexerInputExchange, ids: torch.Tensor) -> Handle[torch.Tensor]:
    return exchange.launch_result(ids)


@_excluded("indexer: result wait")
def _wait_result(pending: Handle[torch.Tensor], keys: KeyRoute) -> torch.Tensor:
    ids = pending.wait()[0]
    return torch.where(ids < 0, ids, ids - keys.bank.global_start)  # from all keys to this rank's bank
