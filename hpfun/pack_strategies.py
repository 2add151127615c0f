"""Hypothesis strategies for document lengths and group sizes, from which all other strategies start.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.documents import PackedDocuments


def lengths(max_documents: int = 6, max_length: int = 24, multiple_of: int = 1) -> SearchStrategy[tuple[int, ...]]:
    """Document lengths in tokens whose sum divides by ``multiple_of``; each is 1 to ``max_length``.

    ``multiple_of`` is at most ``max_documents * max_length``, or no lengths exist.

    >>> from hypothesis import find
    >>> sum(find(lengths(multiple_of=4), lambda values: len(values) == 2)) % 4
    0
    """
    most = max_documents * max_length
    if multiple_of > most:
        raise ValueError(f"multiple_of is {multiple_of}, the longest pack has {most} tokens")
    entries = st.lists(st.integers(1, max_length), min_size=1, max_size=max_documents)
    return entries.map(lambda values: _fit(values, max_documents, max_length, multiple_of))


def packed_documents(
    max_documents: int = 6, max_length: int = 24, multiple_of: int = 1
) -> SearchStrategy[PackedDocuments]:
    """Packed documents; arguments as in ``lengths``.

    >>> from hypothesis import find
    >>> find(packed_documents(), lambda pack: pack.total > 3).lengths.tolist()
    [4]
    """
    return lengths(max_documents, max_length, multiple_of).map(PackedDocuments)


def group_sizes(max_size: int = 6, rows: int | None = None) -> SearchStrategy[int]:
    """Group sizes from 1 to ``max_size``; with ``rows``, only those that cut ``rows`` into equal shards.

    >>> from hypothesis import find
    >>> find(group_sizes(max_size=6, rows=20), lambda size: size > 2)
    4
    """
    if rows is None:
        return st.integers(1, max_size)
    return st.sampled_from([size for size in range(1, max_size + 1) if rows % size == 0])


def _fit(values: Sequence[int], max_documents: int, max_length: int, multiple_of: int) -> tuple[int, ...]:
    """``values`` padded, or cut where there is no room, until their sum divides by ``multiple_of``."""
    fitted = list(values)
    missing = -sum(fitted) % multiple_of
    if missing > max_documents * max_length - sum(fitted):
        surplus = sum(fitted) % multiple_of
        while surplus:
            cut = min(surplus, fitted[-1])
            surplus -= cut
            fitted[-1] -= cut
            if not fitted[-1]:
                fitted.pop()
        return tuple(fitted)
    for at in reversed(range(len(fitted))):
        more = min(missing, max_length - fitted[at])
        fitted[at] += more
        missing -= more
    while missing:
        fitted.append(min(missing, max_length))
        missing -= fitted[-1]
    return tuple(fitted)
