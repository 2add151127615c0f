"""One layer's attention under context parallelism: a model's own functions, run in the order of the schedule.

The library launches, waits, selects and attends; what is the model's, projections and norms and rotations, it gives as
functions. Rules ATTN-33 to ATTN-36 of ``specs/attention.md``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch

from hpfun.errors import refusal
from hpfun_torch import ops
from hpfun_torch.attention.context import ContextParallelAttention
from hpfun_torch.attention.select import IndexerFunctions, ReduceScores, Selection, step_name
from hpfun_torch.attention.state import SharedLayerState
from hpfun_torch.dispatch import DeferredBankLaunch, start_dispatch
from hpfun_torch.indexer import Positions


@attrs.frozen(eq=False, kw_only=True)
class LayerFunctions:
    """What a layer computes by itself; every function is called at most once, when the schedule says so.

    ``project()`` gives the query ``[local, H, D]`` and, for a window, the rows ``[local, D]``. For keys of its own:
    ``compression_inputs()`` gives ``[local, channels]``: rows and gates, and those of index keys, side by side, since
    they travel together. Of these ``compress(rows)``, given halo and shard, makes the keys ``[own keys, D]`` and index
    keys ``[own keys, dim]``, None without a choice; ``key_positions`` has the keys' places for rotations. For a choice:
    ``index_rows()`` gives residual ``[1, local, q_rank]``, weights ``[1, local, heads]`` and (cos, sin) ``[1, local,
    rope]``, and ``indexer`` turns such rows into queries.
    """

    project: Callable[[], tuple[torch.Tensor, torch.Tensor | None]]
    compression_inputs: Callable[[], torch.Tensor] | None = None
    compress: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]] | None = None
    index_rows: Callable[[], tuple[torch.Tensor, torch.Tensor, Positions]] | None = None
    indexer: IndexerFunctions | None = None


@attrs.frozen(eq=False)
class Attended:
    """Output ``[local, H, value]`` and the keys that the rows chose, int32 ``[local, topk]``, None without a choice."""

    output: torch.Tensor
    selected: torch.Tensor | None


def attend_layer(
    context: ContextParallelAttention,
    layer: int,
    functions: LayerFunctions,
    *,
    scale: float,
    sinks: torch.Tensor | None = None,
    value_width: int | None = None,
    selected: torch.Tensor | None = None,
    state: SharedLayerState | None = None,
    reduce_scores: ReduceScores | None = None,
    candidates: torch.Tensor | None = None,
) -> Attended:
    """Attention of this rank's rows; every rank calls it for every layer, in one order.

    ``selected`` is the choice that a layer of kind ``reuse`` takes over; with ``state`` it is read there, as are keys
    of other layers, and what this layer makes is published and what nobody reads any more is dropped. ``scale``,
    ``sinks`` and ``value_width`` as in ``ops.sparse_attention``. Raises HP-ATTN-001, HP-ATTN-002 (functions that the
    layer's kind needs), HP-STATE-002 and 003, and what the steps raise.
    """
    run = _Run(context, layer, functions, selected, state)
    hooks = {"reduce_scores": reduce_scores, "candidates": candidates}
    run.check(hooks)
    if run.kind == "select":
        run.selection = Selection(context, layer, run.functions.indexer, **hooks)
    options = {"segments": run.segments, "scale": scale, "sinks": sinks, "value_width": value_width}
    run.attend = partial(ops.sparse_attention, **options)  # not of `run` itself: a cycle would keep what it holds
    for action, name in context.schedule(layer).steps:
        getattr(run, step_name(action, name))()
    if state is not None:
        state.release(layer)
    return Attended(run.output, run.selected)


class _Run:
    """One layer's attention under way: a method per event of the schedule."""

    def __init__(self, context: Any, layer: int, functions: LayerFunctions, selected: Any, state: Any):
        self.context: ContextParallelAttention = context
        self.layer = layer
        self.functions: Any = functions  # checked: what the kind of the layer needs is there
        self.selected: torch.Tensor | None = selected
        self.state: Any = state
        self.kind = context.kind(layer)
        self.route: Any = context.keys(layer)
        self.segments = context.route.rows if self.route is None else self.route.segments
        self.selection: Any = None
        self.attend: Any = None
        self.output: Any = None
        self.query: Any = None
        self.rows: Any = None
        self.halo: Any = None
        self.index_keys: Any = None
        self.window: Any = None
        self.keys: Any = None

    def check(self, hooks: dict[str, Any]) -> None:
        """HP-ATTN-002 where the kind of the layer needs what was not given, or could do nothing with what was."""
        functions = self.functions
        makes = self.context.plan.config.sharing.key_source(self.layer) == self.layer
        needs = {
            "compression_inputs": makes and functions.compression_inputs is None,
            "compress": makes and functions.compress is None,
            "index_rows": self.kind == "select" and functions.index_rows is None,
            "indexer": self.kind == "select" and functions.indexer is None,
            "state": self.route is not None and not makes and self.state is None,
            "selected": self.kind == "reuse" and self.selected is None and self.state is None,
        }
        missing = tuple(name for name, missed in needs.items() if missed)
        if missing:
            facts = {"layer": self.layer, "kind": self.kind, "missing": missing}
            message = f"layer {self.layer} of kind {self.kind} needs {', '.join(missing)}"
            raise refusal("HP-ATTN-002", missing[0], message, "see LayerFunctions", **facts)
        idle = tuple(name for name, hook in hooks.items() if hook is not None and self.kind != "select")
        if idle:
            facts = {"layer": self.layer, "kind": self.kind, "given": idle}
            message = f"layer {self.layer} of kind {self.kind} chooses nothing"
            raise refusal("HP-ATTN-002", idle[0], message, "leave it out", **facts)

    def compression_inputs(self) -> None:
        self.rows = self.functions.compression_inputs()

    def launch_halo(self) -> None:
        plan = self.route.compression
        self.halo = None if plan is None else start_dispatch(self.rows, plan.halo, self.context.group)

    def wait_halo(self) -> None:
        if self.halo is not None:
            self.rows = self.halo.wait()

    def residual(self) -> None:
        self.selection.take(*self.functions.index_rows())

    def compression(self) -> None:
        made = self.functions.compress(self.rows)
        if not isinstance(made, tuple) or len(made) != 2 or (made[1] is None) != (self.kind != "select"):
            facts = {"layer": self.layer, "kind": self.kind}
            advice = "give (keys, index keys), the latter None where the layer chooses nothing"
            raise refusal("HP-ATTN-002", "compress", f"layer {self.layer} of kind {self.kind}", advice, **facts)
        own, self.index_keys = made
        self.rows = None
        self.keys = DeferredBankLaunch(start_dispatch, own, self.route.bank, self.context.group)

    def launch_index_keys(self) -> None:
        self.selection.launch_index_keys(self.index_keys)

    def wait_index_keys(self) -> None:
        self.selection.wait_index_keys()
        if self.state is not None:
            self.state.publish("index_keys", self.layer, self.selection.index_keys)

    def attention_projections(self) -> None:
        self.query, rows = self.functions.project()
        if self.context.route.window is not None:
            self.window = DeferredBankLaunch(start_dispatch, rows, self.context.route.window, self.context.group)

    def launch_keys(self) -> None:
        self.keys.start()

    def wait_keys(self) -> None:
        self.keys = self.keys.wait()
        if self.state is not None:
            self.state.publish("keys", self.layer, self.keys)

    def launch_window(self) -> None:
        self.window.start()

    def wait_window(self) -> None:
        self.window = self.window.wait()

    def select(self) -> None:
        if self.index_keys is None:  # they are another layer's
            self.selection.index_keys = self.state.read("index_keys", self.layer)
        self.selection.select()
        if self.route.indexer is None:
            self.choose()

    def wait_result(self) -> None:
        self.selection.wait_result()
        self.choose()

    def choose(self) -> None:
        """The choice of this layer stands."""
        self.selected = self.selection.chosen
        if self.state is not None:
            self.state.publish("topk", self.layer, self.selected)

    def attention(self) -> None:
        if self.keys is None and self.route is not None:
            self.keys = self.state.read("keys", self.layer)
        if self.kind == "reuse" and self.selected is None:
            self.selected = self.state.read("topk", self.layer)
        self.output, _ = self.attend(self.query, self.window, self.keys, self.selected)
        self.query = self.window = self.keys = None

    def __getattr__(self, name: str) -> Any:
        """Steps that are the selection's alone: inputs, worker projection, result."""
        return getattr(self.__dict__["selection"], name)
