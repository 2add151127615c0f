"""Lengths of packed sequences in the three forms of Ascend's operators; no other place writes one down.

Lengths 2 and 3 are ``[2, 5]`` without the leading zero and ``[0, 2, 5]`` with it.
"""

import numpy as np
import torch


def cumulative_without_zero(lengths: np.ndarray, device: torch.device) -> torch.Tensor:
    """Running sum as an int32 tensor, one entry a sequence: lightning indexer and sparse flash attention.

    >>> cumulative_without_zero(np.array([2, 3]), torch.device("cpu")).tolist()
    [2, 5]
    """
    return torch.tensor(np.cumsum(lengths), dtype=torch.int32, device=device)


def cumulative_with_zero(lengths: np.ndarray, device: torch.device) -> torch.Tensor:
    """Running sum as an int32 tensor with a leading 0: the operators of ``cann_ops_transformer``.

    >>> cumulative_with_zero(np.array([2, 3]), torch.device("cpu")).tolist()
    [0, 2, 5]
    """
    return torch.tensor(np.concatenate(([0], np.cumsum(lengths))), dtype=torch.int32, device=device)


def host_lengths(lengths: np.ndarray) -> list[int]:
    """Running sum as a list on the host, one entry a sequence: fusion attention and the indexer's loss.

    >>> host_lengths(np.array([2, 3]))
    [2, 5]
    """
    return np.cumsum(lengths).tolist()
