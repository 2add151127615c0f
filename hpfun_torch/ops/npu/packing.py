"""Rows of segments taken end to end for an operator, and its results put back to where the rows came from."""

import numpy as np
import torch

from hpfun.intervals import expand


def take_rows(tensor: torch.Tensor, starts: np.ndarray, stops: np.ndarray) -> torch.Tensor:
    """The rows of the intervals, end to end; the tensor itself where they are all its rows in order.

    >>> take_rows(torch.arange(5), np.array([3, 0]), np.array([5, 1])).tolist()
    [3, 4, 0]
    """
    rows = expand(starts, stops)
    if len(rows) == tensor.shape[0] and bool((rows == np.arange(len(rows))).all()):
        return tensor
    return tensor[torch.from_numpy(rows).to(tensor.device)]


def put_rows(rows: torch.Tensor, starts: np.ndarray, stops: np.ndarray, out: torch.Tensor) -> torch.Tensor:
    """``out`` with the rows of the intervals replaced by ``rows``, in order.

    >>> put_rows(torch.tensor([7, 8]), np.array([1]), np.array([3]), torch.zeros(4, dtype=torch.int64)).tolist()
    [0, 7, 8, 0]
    """
    places = expand(starts, stops)
    if len(places) == out.shape[0] and bool((places == np.arange(len(places))).all()):
        return rows
    return out.index_copy(0, torch.from_numpy(places).to(out.device), rows.to(out.dtype))


def in_sequences(ids: torch.Tensor, firsts: np.ndarray, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Bank ids as ids in each row's own sequence, int32 ascending with -1 behind; and which rows have none.

    ``firsts`` and ``rows`` are each sequence's first key and number of rows. A row without an id gets id 0, so that
    no operator meets an empty row: what it gives for that row is to be dropped.
    """
    first = torch.from_numpy(np.repeat(firsts, rows)).to(ids.device)[:, None]
    beyond = torch.iinfo(torch.int32).max
    local = torch.where(ids < 0, beyond, ids - first).sort(dim=1).values
    local = torch.where(local == beyond, -1, local).int()
    empty = (local < 0).all(1)
    local[:, :1] = torch.where(empty[:, None], 0, local[:, :1])
    return local, empty


def unattended(query: torch.Tensor, width: int, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse of rows with nothing to attend to: 0, and the sink's logit or -inf."""
    out = query.new_zeros((*query.shape[:2], width))
    if sinks is None:
        return out, query.new_full(query.shape[:2], -torch.inf, dtype=torch.float32)
    return out, sinks.detach().float().expand(query.shape[:2])
