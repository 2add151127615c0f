"""All ranks' exchanges run on numpy shards, in one process: the oracle for executors.

Rule EXCHANGE-9 of ``specs/exchange.md``.
"""

from collections.abc import Sequence

import numpy as np

from hpfun.errors import refusal
from hpfun.exchange import RowExchange, check_exchanges


def simulate_exchange(
    exchanges: Sequence[RowExchange], shards: Sequence[np.ndarray], fill: object = 0
) -> list[np.ndarray]:
    """Every rank's target after the exchange; rows are the first axis, trailing axes are free.

    ``shards[rank]`` has ``num_source_rows`` rows. Placing exchanges leave ``fill`` where nothing arrives;
    reducing ones start from 0 and add in rank order, the own rank at its place. Raises HP-EXCHANGE-007 where
    the exchanges disagree and HP-EXCHANGE-008 where a shard has another number of rows.

    >>> ring = [
    ...     RowExchange(2, r, 2, 2, [1], [r, 1 - r], [r, 1 - r], [0], [0], [1], required=True) for r in range(2)
    ... ]
    >>> [shard.tolist() for shard in simulate_exchange(ring, [np.array([1, 2]), np.array([3, 4])])]
    [[4, 1], [2, 3]]
    """
    check_exchanges(exchanges)
    if len(shards) != len(exchanges):
        raise refusal(
            "HP-EXCHANGE-008",
            "shards",
            f"{len(shards)} shards for {len(exchanges)} ranks",
            shards=len(shards),
            size=len(exchanges),
        )
    arrays = [np.asarray(shard) for shard in shards]
    for rank, (exchange, shard) in enumerate(zip(exchanges, arrays, strict=True)):
        if shard.ndim == 0 or shard.shape[0] != exchange.num_source_rows:
            raise refusal(
                "HP-EXCHANGE-008",
                f"shards[{rank}]",
                f"shape {shard.shape}, needs {exchange.num_source_rows} rows",
                rank=rank,
                expected=exchange.num_source_rows,
                shape=shard.shape,
            )
        if shard.shape[1:] != arrays[0].shape[1:] or shard.dtype != arrays[0].dtype:
            raise refusal(
                "HP-EXCHANGE-008",
                f"shards[{rank}]",
                f"{shard.dtype} rows of {shard.shape[1:]}, rank 0 has {arrays[0].dtype} rows of {arrays[0].shape[1:]}",
                rank=rank,
                expected=arrays[0].shape[1:],
                shape=shard.shape,
                dtypes=(str(arrays[0].dtype), str(shard.dtype)),
            )
    return [_target(exchanges, arrays, rank, fill) for rank in range(len(exchanges))]


def _target(exchanges: Sequence[RowExchange], shards: list[np.ndarray], rank: int, fill: object) -> np.ndarray:
    own = exchanges[rank]
    shape = (own.num_target_rows, *shards[rank].shape[1:])
    target = np.full(shape, 0 if own.reduce else fill, dtype=shards[rank].dtype)
    place = np.add.at if own.reduce else np.ndarray.__setitem__
    ends = np.cumsum(own.output_splits)
    for source, sender in enumerate(exchanges):
        if source == rank:
            place(target, own.local_targets, shards[rank][own.local_sources])
        else:
            stop = int(np.cumsum(sender.input_splits)[rank])
            rows = sender.send_rows[stop - int(sender.input_splits[rank]) : stop]
            slots = own.receive_rows[int(ends[source] - own.output_splits[source]) : int(ends[source])]
            place(target, slots, shards[source][rows])
    return target
