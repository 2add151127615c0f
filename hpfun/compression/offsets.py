"""Where compressed keys stand: ``ratio`` tokens of one document make a key, and its last token's rank owns it.

Tokens behind a document's last whole block make no key. Rules COMPRESS-1 and COMPRESS-2 of
``specs/compression.md``.
"""

from functools import lru_cache

import numpy as np

from hpfun._fields import readonly
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.shards import positive, read_boundaries


def check_ratio(ratio: object) -> int:
    """``ratio`` as an int of at least 1, or HP-COMPRESS-001."""
    return positive(ratio, "ratio", "HP-COMPRESS-001")


def compressed_document_offsets(boundaries: object, ratio: int) -> np.ndarray:
    """First key of each document among all keys, and the number of keys; int64 ``[num_documents + 1]``.

    ``boundaries`` are cumulative document ends with a leading 0, or ``PackedDocuments``. Raises HP-ROUTE-003 and 004,
    HP-COMPRESS-001.

    >>> compressed_document_offsets((0, 5, 8, 16), 4).tolist()
    [0, 1, 1, 3]
    """
    return key_offsets(read_boundaries(boundaries), check_ratio(ratio))


def compressed_owner_offsets(boundaries: object, ratio: int, local_length: int) -> np.ndarray:
    """Keys that are complete before each rank's first token, and the number of keys; int64 ``[size + 1]``.

    Rank p owns the keys ``[offsets[p], offsets[p + 1])``: those whose last token it holds. Raises HP-ROUTE-001 and
    003 to 005 (shards that are not whole), HP-COMPRESS-001.

    >>> compressed_owner_offsets((0, 5, 8, 16), 4, 4).tolist()
    [0, 1, 1, 2, 3]
    """
    documents, ratio = read_boundaries(boundaries), check_ratio(ratio)
    local = positive(local_length, "local_length")
    if documents.total % local:
        facts = {"end": documents.total, "local_length": local, "remainder": documents.total % local}
        message = f"end at {documents.total}, which is no multiple of {local} rows"
        raise refusal("HP-ROUTE-005", "boundaries", message, "pad or cut the pack to whole shards", **facts)
    return owner_offsets(documents, ratio, local, documents.total // local)


@lru_cache(maxsize=32)
def key_offsets(documents: PackedDocuments, ratio: int) -> np.ndarray:
    """``compressed_document_offsets`` of checked arguments, computed once for equal ones."""
    offsets = np.zeros(documents.num_documents + 1, dtype=np.int64)
    np.cumsum(documents.lengths // ratio, out=offsets[1:])
    return readonly(offsets)


@lru_cache(maxsize=32)
def owner_offsets(documents: PackedDocuments, ratio: int, local: int, size: int) -> np.ndarray:
    """``compressed_owner_offsets`` of checked arguments, computed once for equal ones."""
    firsts = np.arange(size + 1) * local
    # the end of the pack counts as the start of a document behind the last
    inside = documents.documents_at(firsts)
    return readonly(key_offsets(documents, ratio)[inside] + (firsts - documents.boundaries[inside]) // ratio)
