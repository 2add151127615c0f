"""Document prefixes: the compressed keys of a document from its start up to a rank's last own key.

Rule SEQ-3 of ``specs/sequence.md``.
"""

from functools import lru_cache

import numpy as np

from hpfun._fields import readonly
from hpfun.compression.offsets import check_ratio, key_offsets, owner_offsets
from hpfun.documents import PackedDocuments
from hpfun.sequence.bank import SequenceBankPlan, SequenceDispatchRoute, bank_route
from hpfun.shards import check_shards


def document_prefix_plan(boundaries: object, local_length: int, size: int, ratio: int) -> SequenceBankPlan:
    """The banks of compressed keys of all ranks; rows of the plan are keys, ``local_length`` counts tokens.

    A key belongs to the rank of its last token. A bank starts with the first key of the document that the rank's
    first token is in. Raises HP-ROUTE-001 and 003 to 005, HP-COMPRESS-001 for a bad ratio.

    >>> plan = document_prefix_plan((0, 5, 8, 16), 4, 4, ratio=2)
    >>> plan.owner_offsets.tolist(), plan.bank_starts.tolist()
    ([0, 2, 3, 5, 7], [0, 0, 3, 3])
    """
    documents, local, size = check_shards(boundaries, local_length, size)
    return _plan(documents, local, size, check_ratio(ratio))


def document_prefix_route(
    boundaries: object, local_length: int, size: int, rank: int, ratio: int
) -> SequenceDispatchRoute:
    """One rank's bank of compressed keys; arguments as in ``document_prefix_plan``.

    The route's ``local_length`` is the number of keys that the rank owns. Raises HP-ROUTE-001 to 005 and
    HP-COMPRESS-001.

    >>> route = document_prefix_route((0, 5, 8, 16), 4, 4, rank=1, ratio=2)
    >>> route.local_length, route.global_start, route.global_stop
    (1, 0, 3)
    """
    return bank_route(document_prefix_plan(boundaries, local_length, size, ratio), rank)


@lru_cache(maxsize=32)
def _plan(documents: PackedDocuments, local: int, size: int, ratio: int) -> SequenceBankPlan:
    """The plan, computed once for equal arguments: the ranks of a host share it."""
    firsts = documents.documents_at(np.arange(size) * local)
    starts = key_offsets(documents, ratio)[firsts]
    return SequenceBankPlan("prefix", owner_offsets(documents, ratio, local, size), readonly(starts))
