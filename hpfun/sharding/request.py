"""What is asked for: degrees of parallelism and how a sequence is cut, and the mesh of ranks that is there.

Both values are valid or do not exist: all bad fields of one are one refusal (rule SHARD-9 of
``specs/sharding.md``). Whether they fit a model and each other is for ``hpfun.sharding.checks``.
"""

from hpfun._fields import content_digest, named_plan_value
from hpfun.errors import collect, refuse_all
from hpfun.sharding.reading import (
    cp_layout,
    entries,
    flag,
    keep_read,
    positive,
    positive_or_none,
    read_field,
    text,
    unread,
)


def _axes(value: object, where: str) -> tuple[tuple[str, int], ...]:
    """Pairs of name and size, each read, no name twice."""
    found, wrong = [], []
    for at, entry in enumerate(entries(value, where)):
        pair = collect(wrong, _axis, entry, f"{where}[{at}]")
        if pair is not None and pair[0] in dict(found):
            known = tuple(dict(found))
            wrong += unread(f"{where}[{at}]", pair[0], "a name of its own", known, "give each axis one").violations
        found += [] if pair is None else [pair]
    refuse_all(wrong)
    return tuple(found)


def _axis(value: object, where: str) -> tuple[str, int]:
    pair = entries(value, where)
    if len(pair) != 2:
        raise unread(where, value, "a name and a size", (), "pass (name, size)")
    return text(pair[0], where), positive(pair[1], where)


@named_plan_value
class MeshShape:
    """The axes of a mesh of ranks as (name, size), from the outermost to the innermost.

    Names are those of launchers: ``pp``, ``dp_replicate``, ``dp_shard``, ``cp``, ``tp``, ``ep``. Raises HP-SHARD-009
    for each size that is no int of at least 1 and each name that is there twice.

    >>> MeshShape(axes=(("dp_shard", 2), ("tp", 4))).size("tp")
    4
    """

    axes: tuple[tuple[str, int], ...] = read_field(_axes)

    digest = content_digest

    def __attrs_post_init__(self):
        keep_read(self)

    def size(self, axis: str) -> int | None:
        """Ranks along an axis; None if there is no such axis."""
        return dict(self.axes).get(axis)


@named_plan_value
class ShardingRequest:
    """Degrees of tensor, context and expert parallelism, and how sequences are cut for them.

    ``seq_len`` is given where all sequences have one length, in tokens. ``cp_layout`` is how context parallelism
    cuts a sequence, and a known name even at degree 1. With ``kv_replicate`` there may be more ranks of tensor
    parallelism than key/value heads; each then has a copy of one. Raises HP-SHARD-009, all bad fields at once;
    ``hpfun.sharding.check_degrees`` tells them together with what does not fit the model.

    >>> ShardingRequest(tp_size=8, cp_size=2).cp_layout
    'zigzag'
    >>> ShardingRequest(tp_size=-2, ep_size=-2)
    Traceback (most recent call last):
    hpfun.errors.PlanError: [HP-SHARD-009] at `ep_size`: needs an integer from 1 to 2147483647, got -2; use 1
    [HP-SHARD-009] at `tp_size`: needs an integer from 1 to 2147483647, got -2; use 1
    """

    tp_size: int = read_field(positive, default=1)
    cp_size: int = read_field(positive, default=1)
    ep_size: int = read_field(positive, default=1)
    sequence_parallel: bool = read_field(flag, default=True)
    loss_parallel: bool = read_field(flag, default=False)
    seq_len: int | None = read_field(positive_or_none, default=None)
    cp_layout: str = read_field(cp_layout, default="zigzag")
    kv_replicate: bool = read_field(flag, default=False)

    digest = content_digest

    def __attrs_post_init__(self):
        keep_read(self)
