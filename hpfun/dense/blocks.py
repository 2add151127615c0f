"""Causal blocks: consecutive rows of one document on a rank, and the keys that they attend to.

A block's last row sees its last key, the row before sees one key less, and so on: which key a row sees follows from
how far both are from the ends of the block. With a window a row sees the last ``window`` of these keys. Rules DENSE-1
and DENSE-2 of ``specs/dense.md``.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers_field, named_plan_value, readonly
from hpfun.batch import BatchView
from hpfun.errors import refusal

_CODE = "HP-ATTN-002"


class CausalBlock(NamedTuple):
    """Rows ``[row_start, row_stop)`` and the keys ``[key_start, key_stop)`` of their document in the bank."""

    row_start: int
    row_stop: int
    document: int
    key_start: int
    key_stop: int
    triangular: bool


@named_plan_value
class CausalBlocks:
    """Blocks that cover a rank's rows in their order, over a bank in which documents stand one after the other.

    ``bank_lengths`` are the keys of each document in the bank; for each block, ``documents`` is its document among
    these, ``row_lengths`` its rows, ``key_starts`` and ``key_stops`` the interval of its keys, counted from the
    document's first key in the bank; all int64. ``window`` is 0 for none. Made by ``causal_blocks`` and
    ``split_blocks``. Raises HP-ATTN-002.
    """

    bank_lengths: Any = integers_field(_CODE)
    documents: Any = integers_field(_CODE)
    row_lengths: Any = integers_field(_CODE)
    key_starts: Any = integers_field(_CODE)
    key_stops: Any = integers_field(_CODE)
    window: int = integer_field(_CODE, least=0, default=0)

    digest = content_digest

    def __attrs_post_init__(self):
        entries = tuple(map(len, (self.documents, self.row_lengths, self.key_starts, self.key_stops)))
        if len(set(entries)) > 1:
            raise refusal(_CODE, "documents", f"blocks of {entries} entries", "pass four for each", entries=entries)
        if len(self.bank_lengths) and int(self.bank_lengths.min()) < 1:
            raise refusal(_CODE, "bank_lengths", "a document without keys", "leave it out", entries=entries)
        known = (self.documents >= 0) & (self.documents < len(self.bank_lengths))
        wrong = ~known | (self.row_lengths < 1) | (self.key_starts < 0)
        wrong |= self.row_lengths > self.key_stops - self.key_starts
        wrong[known] |= self.key_stops[known] > self.bank_lengths[self.documents[known]]
        if wrong.any():
            at = int(wrong.argmax())
            block = {name: int(getattr(self, name)[at]) for name in ("row_lengths", "key_starts", "key_stops")}
            message = f"block {at} cannot have {block}"
            raise refusal(_CODE, "documents", message, "a block has a key for each row", segment=at, **block)

    @property
    def num_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.row_lengths.sum())

    @property
    def num_keys(self) -> int:
        """Rows of the bank."""
        return int(self.bank_lengths.sum())

    @cached_property
    def triangular(self) -> np.ndarray:
        """Whether a block has as many keys as rows and its window hides none: causal by itself; bool ``[blocks]``."""
        keys = self.key_stops - self.key_starts
        return readonly((self.row_lengths == keys) & ((self.window == 0) | (keys <= self.window)))

    @property
    def mask_extent(self) -> tuple[int, int]:
        """Most rows and most keys of a block that needs a mask; (0, 0) where none does."""
        others = ~self.triangular
        keys = (self.key_stops - self.key_starts)[others]
        return int(self.row_lengths[others].max(initial=0)), int(keys.max(initial=0))

    def __iter__(self) -> Iterator[CausalBlock]:
        stops = np.cumsum(self.row_lengths)
        columns = (stops - self.row_lengths, stops, self.documents, self.key_starts, self.key_stops, self.triangular)
        yield from map(CausalBlock, *(column.tolist() for column in columns))


def causal_blocks(view: BatchView, bank_start: int = 0, bank_stop: int | None = None, window: int = 0) -> CausalBlocks:
    """The blocks of a rank whose bank holds the positions ``[bank_start, bank_stop)`` of the padded pack.

    The whole pack by default; the bank has every key that a row of the rank sees. Costs O(documents). Raises
    HP-ATTN-002.

    >>> from hpfun.batch import BatchTopology, batch_view, plan_batch
    >>> blocks = causal_blocks(batch_view(plan_batch((3, 5), BatchTopology(2), layout="zigzag"), 0))
    >>> [tuple(block) for block in blocks]  # rows 0 and 1 are the chunks 0 and 3 of the first document
    [(0, 1, 0, 0, 1, True), (1, 2, 0, 0, 4, False), (2, 4, 1, 0, 2, True), (4, 6, 1, 0, 8, False)]
    """
    window = integer(window, "window", _CODE, least=0, most=INT64_MAX)
    ends, total = view.plan.cu_seq_lens, view.plan.padded_length
    bank_start = integer(bank_start, "bank_start", _CODE, least=0, most=total)
    stop = total if bank_stop is None else integer(bank_stop, "bank_stop", _CODE, least=bank_start, most=total)
    held = np.diff(np.clip(ends, bank_start, stop))
    inside = np.flatnonzero(held)
    documents, starts, stops = view.pieces
    firsts = np.maximum(ends[:-1][documents], bank_start)
    opens = np.ones(len(starts), bool)
    opens[1:] = (documents[1:] != documents[:-1]) | (starts[1:] != stops[:-1])
    heads = np.flatnonzero(opens)
    tails = np.append(heads[1:], len(starts))[: len(heads)] - 1
    rows, keys = stops[tails] - starts[heads], stops[tails] - firsts[heads]
    seen = _first_seen(ends[:-1][documents[heads]], starts[heads], window)
    lacking = (seen < bank_start) | (stops[tails] > stop)
    if lacking.any():
        at = int(lacking.argmax())
        facts = {"segment": at, "key_starts": int(seen[at]), "key_stops": int(stops[tails][at])}
        message = f"block {at} sees positions {facts['key_starts']} to {facts['key_stops']} of [{bank_start}, {stop})"
        raise refusal(_CODE, "bank_start", message, "give a bank with every key that the rank sees", **facts)
    return CausalBlocks(
        bank_lengths=readonly(held[inside]),
        documents=readonly(np.searchsorted(inside, documents[heads])),
        row_lengths=readonly(rows),
        key_starts=readonly(_first_seen(np.zeros_like(keys), keys - rows, window)),
        key_stops=readonly(keys),
        window=window,
    )


def split_blocks(blocks: CausalBlocks, most_rows: int) -> CausalBlocks:
    """The same rows in blocks of at most ``most_rows``, with the keys that these see; triangular ones stay whole.

    So a mask has ``most_rows`` times the keys of a document at most. Raises HP-ATTN-002 for no row.

    >>> blocks = CausalBlocks(bank_lengths=[7], documents=[0], row_lengths=[4], key_starts=[0], key_stops=[7])
    >>> [tuple(block) for block in split_blocks(blocks, 3)]
    [(0, 3, 0, 0, 6, False), (3, 4, 0, 0, 7, False)]
    """
    most = integer(most_rows, "most_rows", _CODE, least=1, most=INT64_MAX)
    counts = np.where(blocks.triangular, 1, -(-blocks.row_lengths // most))
    at = np.repeat(np.arange(len(counts)), counts)
    firsts = (np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)) * most
    lasts = np.where(blocks.triangular[at], blocks.row_lengths[at], np.minimum(firsts + most, blocks.row_lengths[at]))
    before = (blocks.key_stops - blocks.row_lengths)[at]
    return CausalBlocks(
        bank_lengths=blocks.bank_lengths,
        documents=readonly(blocks.documents[at]),
        row_lengths=readonly(lasts - firsts),
        key_starts=readonly(_first_seen(blocks.key_starts[at], before + firsts, blocks.window)),
        key_stops=readonly(before + lasts),
        window=blocks.window,
    )


def _first_seen(key_starts: np.ndarray, own_keys: np.ndarray, window: int) -> np.ndarray:
    """First keys that rows see whose own keys are ``own_keys``."""
    return np.maximum(key_starts, own_keys + 1 - window) if window else key_starts
