"""Attention operators: one function each, run by the backend of the device on which the query lies.

``contract`` says what they take. A backend is loaded when the first of its tensors arrives, and no earlier. Rules
OPS-1 to OPS-15 of ``specs/executors.md``.
"""

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

from hpfun import IndexerSegment
from hpfun.attention import AttentionSegments
from hpfun.errors import refusal

__all__ = ["indexer_kl", "lightning_indexer", "packed_attention", "select_backend", "sparse_attention"]

BACKENDS = {"cpu": "hpfun_torch.ops.cpu", "cuda": "hpfun_torch.ops.cuda", "npu": "hpfun_torch.ops.npu"}
NEEDED = {"npu": ("torch_npu", "pip install hpfun[npu]")}  # what a device type needs beside torch


def select_backend(tensor: Any) -> ModuleType:
    """The module of the operators for the device of ``tensor``; what is no tensor goes to the CPU's, which refuses it.

    Raises HP-OPS-004 for a device without a backend, or one that needs a package that is not installed.

    >>> select_backend(torch.ones(1)).__name__
    'hpfun_torch.ops.cpu'
    """
    kind = tensor.device.type if isinstance(tensor, torch.Tensor) else "cpu"
    if kind not in BACKENDS:
        known = tuple(BACKENDS)
        message = f"no operators for device type {kind!r}, known are {known}"
        raise refusal("HP-OPS-004", "query", message, "move the tensors to a known device", device=kind, known=known)
    package, install = NEEDED.get(kind, (None, ""))
    if package is not None:
        try:
            importlib.import_module(package)
        except ImportError as error:
            message = f"device type {kind!r} needs {package}: {error}"
            facts = {"device": kind, "package": package, "install": install}
            raise refusal("HP-OPS-004", "query", message, install, **facts) from error
    return importlib.import_module(BACKENDS[kind])


def lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    segments: Iterable[IndexerSegment],
    ratio: int,
    topk: int,
    *,
    reduce_scores: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Ids of the ``topk`` best keys of every query row, ascending, -1 at the tail; int32 ``[Q, topk]``.

    ``query [Q, heads, dim]``, ``key [K, dim]``, ``weights [Q, heads]``, a floating dtype, one device.
    ``reduce_scores`` sums scores over a group before the choice. Raises HP-OPS-001 to HP-OPS-004.

    >>> one = torch.ones(3, 1, 1)
    >>> lightning_indexer(one, torch.tensor([[1.0], [3.0], [2.0]]), torch.ones(3, 1), [(0, 3, 0, 3, 0)], 1, 2).tolist()
    [[0, -1], [0, 1], [1, 2]]
    """
    extra: dict[str, Any] = {} if reduce_scores is None else {"reduce_scores": reduce_scores}
    return select_backend(query).lightning_indexer(query, key, weights, segments, ratio, topk, **extra)


def sparse_attention(
    query: torch.Tensor,
    window_bank: torch.Tensor | None,
    key_bank: torch.Tensor | None,
    selected: torch.Tensor | None,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
    value_width: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row to its window and its selected keys: output ``[Q, H, V]`` and float32 lse ``[Q, H]``.

    ``query [Q, H, D]``, ``window_bank [W, D]``, ``key_bank [K, D]``, ``selected`` int ``[Q, k]`` with -1 for none, or
    None for every visible key; ``sinks [H]`` are logits without a value. Values are the first ``value_width`` channels
    of the keys. A row with nothing to attend to gives 0, and without a sink -inf. The output is differentiable in the
    query, both banks and the sinks. Raises HP-OPS-001, 002 and 004.
    """
    return select_backend(query).sparse_attention(
        query, window_bank, key_bank, selected, segments=segments, scale=scale, sinks=sinks, value_width=value_width
    )


def indexer_kl(
    index_query: torch.Tensor,
    index_key: torch.Tensor,
    weights: torch.Tensor,
    selected: torch.Tensor,
    query: torch.Tensor,
    key_bank: torch.Tensor,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
    num_queries: int | None = None,
) -> torch.Tensor:
    """Divergence of the index scores from the attention over the selected keys, averaged; a float32 scalar.

    ``index_query [Q, Hi, Di]``, ``index_key [K, Di]``, ``weights [Q, Hi]``, ``selected`` int ``[Q, k]``, ``query
    [Q, H, D]``, ``key_bank [K, D]``. Averaged over ``num_queries``, by default Q; a row without a key counts as 0.
    Differentiable in the first three. Raises HP-OPS-001, 002 and 004.
    """
    extra: dict[str, Any] = {"segments": segments, "scale": scale, "sinks": sinks, "num_queries": num_queries}
    return select_backend(index_query).indexer_kl(index_query, index_key, weights, selected, query, key_bank, **extra)


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    segments: AttentionSegments,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row to its window of ``key``: output ``[Q, H, V]`` and float32 lse ``[Q, H]``.

    ``query [Q, H, D]``, ``key [K, Hkv, D]``, ``value [K, Hkv, V]``, Hkv a divisor of H; row t attends to the rows that
    ``segments.window_ranges()`` gives. Differentiable in all four tensors. Raises HP-OPS-001, 002 and 004.
    """
    return select_backend(query).packed_attention(query, key, value, segments=segments, scale=scale, sinks=sinks)
