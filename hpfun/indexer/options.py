"""How a user asks for indexer balance: the mode and the options that belong to it.

Rules OPTION-1 to OPTION-6 of ``specs/indexer.md``.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from hpfun._fields import content_digest, integer, plan_value
from hpfun.errors import Violation, collect, refusal, refuse_all

DEFAULT_BLOCK_SIZE = 2048


class IndexerMode(StrEnum):
    """Who scores which rows: nobody but the owner, or one of four ways to share the work."""

    NONE = "none"
    ZIGZAG = "zigzag"
    GREEDY = "greedy"
    HYBRID = "hybrid"
    LOCALITY = "locality"


BLOCK_MODES = (IndexerMode.GREEDY, IndexerMode.HYBRID)
CAPACITY_MODES = (*BLOCK_MODES, IndexerMode.LOCALITY)


def indexer_mode(mode: object) -> IndexerMode:
    """The mode of that name; HP-INDEX-003 names the legal ones.

    >>> indexer_mode("locality") is IndexerMode.LOCALITY
    True
    """
    if isinstance(mode, str) and mode in IndexerMode.__members__.values():
        return IndexerMode(mode)
    known = tuple(m.value for m in IndexerMode)
    raise refusal(
        "HP-INDEX-003", "mode", f"got {mode!r:.60}", f"use one of {', '.join(known)}", got=repr(mode)[:60], known=known
    )


def resolve_indexer_balance_block_size(mode: object, block_size: object = None) -> int | None:
    """Rows of a greedy block: the given one, 2048 by default, or None for modes without blocks.

    Raises HP-INDEX-003 for an unknown mode and HP-INDEX-004 for a block size that is not a positive int or
    that the mode does not have.

    >>> resolve_indexer_balance_block_size("greedy"), resolve_indexer_balance_block_size("zigzag")
    (2048, None)
    """
    mode = indexer_mode(mode)
    if mode in BLOCK_MODES:
        return DEFAULT_BLOCK_SIZE if block_size is None else integer(block_size, "block_size", "HP-INDEX-004", least=1)
    if block_size is not None:
        raise _foreign("HP-INDEX-004", "block_size", mode, block_size, BLOCK_MODES)
    return None


def validate_indexer_hybrid_threshold(mode: object, min_length: object = None) -> int | None:
    """Rows from which hybrid cuts a document in zigzag; None for the other modes.

    Raises HP-INDEX-003 for an unknown mode, HP-INDEX-005 where hybrid lacks it, another mode has it, or it is
    not a positive int.

    >>> validate_indexer_hybrid_threshold("hybrid", 65536), validate_indexer_hybrid_threshold("greedy")
    (65536, None)
    """
    mode = indexer_mode(mode)
    if mode is IndexerMode.HYBRID:
        if min_length is None:
            raise refusal(
                "HP-INDEX-005",
                "zigzag_min_length",
                "hybrid needs it",
                "pass the rows from which a document is cut in zigzag",
                mode=mode.value,
            )
        return integer(min_length, "zigzag_min_length", "HP-INDEX-005", least=1)
    if min_length is not None:
        raise _foreign("HP-INDEX-005", "zigzag_min_length", mode, min_length, (IndexerMode.HYBRID,))
    return None


@plan_value
class IndexerOptions:
    """A balance mode with its options resolved and checked; what a plan records of them.

    ``capacity`` is the most rows on one worker, ``tolerance_ppm`` how far above the mean load locality may
    stay, in millionths, ``row_cost`` pairs that each row costs besides its scores, ``ranks_per_node``
    consecutive ranks inside which locality moves rows first. Raises HP-INDEX-003, 004, 005, 006, 011, all
    violations at once.

    >>> IndexerOptions("greedy", block_size=512).block_size
    512
    """

    mode: Any
    block_size: int | None = None
    zigzag_min_length: int | None = None
    capacity: int | None = None
    tolerance_ppm: int = 0
    row_cost: int = 0
    ranks_per_node: int | None = None

    digest = content_digest

    def __attrs_post_init__(self):
        violations: list[Violation] = []
        mode = collect(violations, indexer_mode, self.mode)
        least = {"tolerance_ppm": 0, "row_cost": 0} | ({} if self.ranks_per_node is None else {"ranks_per_node": 1})
        checked: dict[str, Any] = {"mode": mode}
        for name, low in least.items():
            checked[name] = collect(violations, integer, getattr(self, name), name, "HP-INDEX-011", least=low)
        if self.capacity is not None:
            checked["capacity"] = collect(violations, integer, self.capacity, "capacity", "HP-INDEX-006", least=1)
        if mode is not None:  # what belongs to which mode can only be said of a known one
            checked["block_size"] = collect(violations, resolve_indexer_balance_block_size, mode, self.block_size)
            length = collect(violations, validate_indexer_hybrid_threshold, mode, self.zigzag_min_length)
            checked["zigzag_min_length"] = length
            violations += _misplaced(mode, checked)
        refuse_all(violations)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def _misplaced(mode: IndexerMode, checked: dict[str, Any]) -> Iterator[Violation]:
    """Options that are set although the mode does not have them."""
    for name, unset, code, owners in (
        ("capacity", None, "HP-INDEX-006", CAPACITY_MODES),
        ("tolerance_ppm", 0, "HP-INDEX-011", (IndexerMode.LOCALITY,)),
        ("ranks_per_node", None, "HP-INDEX-011", (IndexerMode.LOCALITY,)),
    ):
        value = checked.get(name)
        if value is not None and value != unset and mode not in owners:
            yield from _foreign(code, name, mode, value, owners).violations


def _foreign(code: str, where: str, mode: IndexerMode, got: object, owners: tuple[IndexerMode, ...]):
    names = tuple(owner.value for owner in owners)
    return refusal(
        code,
        where,
        f"mode {mode.value} does not have it",
        f"drop it, or use {' or '.join(names)}",
        mode=mode.value,
        got=repr(got)[:60],
        modes=names,
    )
