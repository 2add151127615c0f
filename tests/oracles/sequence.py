"""Banks, compression blocks and segments by definition: slow loops over single tokens, nothing shared with the package.

``boundaries`` are a plain list of cumulative document ends with a leading 0. A row is a global token number, a key a
number in the list of all keys. Every rank holds ``local`` tokens.
"""

from functools import lru_cache, wraps


def remembered(definition):
    """The definition, which for a pack that was just asked about gives what it gave: only time is saved."""
    cached = lru_cache(maxsize=64)(definition)

    @wraps(definition)
    def ask(boundaries, *numbers):
        return cached(tuple(boundaries), *numbers)

    return ask


@remembered
def documents_of(boundaries):
    """The document of every token."""
    found = []
    for document in range(len(boundaries) - 1):
        while len(found) < boundaries[document + 1]:
            found.append(document)
    return found


@remembered
def holders(boundaries, local):
    """The rank that holds each token."""
    found, rank, held = [], 0, 0
    for _ in range(boundaries[-1]):
        if held == local:
            rank, held = rank + 1, 0
        found.append(rank)
        held += 1
    return found


def num_ranks(boundaries, local):
    """Ranks that the pack fills."""
    return holders(boundaries, local)[-1] + 1


def own_rows(owners, rank):
    """Rows of one rank, given the owner of every row."""
    return [row for row, owner in enumerate(owners) if owner == rank]


def owner_offsets(owners, size):
    """For every rank, and for the end, how many rows the ranks before it own."""
    return [sum(1 for owner in owners if owner < rank) for rank in range(size + 1)]


# windows


def window_rows(documents, token, window):
    """Rows that a token attends to: of its own document, not after it, at most ``window - 1`` to its left."""
    return [row for row in range(token + 1) if documents[row] == documents[token] and token - row <= window - 1]


def window_bank(boundaries, local, rank, window):
    """Rows that a rank needs for a window, its own included, in pack order."""
    documents = documents_of(boundaries)
    own = own_rows(holders(boundaries, local), rank)
    needed = set(own)
    for token in own:
        needed.update(window_rows(documents, token, window))
    return sorted(needed)


# compressed keys


@remembered
def document_keys(boundaries, ratio):
    """For every document the keys that it makes, each the tuple of its rows; a tail that fills no key makes none."""
    documents = documents_of(boundaries)
    found = [[] for _ in boundaries[1:]]
    gathered = []
    for token, document in enumerate(documents):
        if token and document != documents[token - 1]:
            gathered = []
        gathered.append(token)
        if len(gathered) == ratio:
            found[document].append(tuple(gathered))
            gathered = []
    return found


@remembered
def all_keys(boundaries, ratio):
    """(document, rows) of every key, in pack order."""
    return [(document, key) for document, keys in enumerate(document_keys(boundaries, ratio)) for key in keys]


@remembered
def document_offsets(boundaries, ratio):
    """Number of keys in front of each document, and of all."""
    keys = all_keys(boundaries, ratio)
    return [sum(1 for owner, _ in keys if owner < document) for document in range(len(boundaries))]


@remembered
def key_owners(boundaries, ratio, local):
    """The rank that owns each key: the one that holds its last token."""
    held_by = holders(boundaries, local)
    return [held_by[key[-1]] for _, key in all_keys(boundaries, ratio)]


@remembered
def visible_keys(boundaries, ratio):
    """For every token the keys that it sees: those of its document whose last token is not after it."""
    documents = documents_of(boundaries)
    keys = all_keys(boundaries, ratio)
    return [
        [number for number, (document, key) in enumerate(keys) if document == documents[token] and key[-1] <= token]
        for token in range(len(documents))
    ]


def prefix_needed(boundaries, local, rank, ratio):
    """Keys that a token of the rank sees, and those that the rank owns, in pack order."""
    held_by, seen = holders(boundaries, local), visible_keys(boundaries, ratio)
    needed = {key for key, owner in enumerate(key_owners(boundaries, ratio, local)) if owner == rank}
    for token in own_rows(held_by, rank):
        needed.update(seen[token])
    return sorted(needed)


def prefix_start(boundaries, local, rank, ratio):
    """Keys of all documents in front of the one that the rank's first token is in: where its bank starts."""
    first = own_rows(holders(boundaries, local), rank)[0]
    inside = documents_of(boundaries)[first]
    return sum(1 for document, _ in all_keys(boundaries, ratio) if document < inside)


# exchanges


def exchange(owners, banks, rank):
    """What one rank sends, receives and keeps, row by row.

    ``owners`` names the rank of every row of the layout, ``banks`` lists the rows of every rank's bank in slot order.
    ``send`` are (destination, own row), ``receive`` (source, slot), ``local`` (own row, slot).
    """
    own = own_rows(owners, rank)
    send, receive, local = [], [], []
    for other, bank in enumerate(banks):
        for row in bank:
            if other != rank and owners[row] == rank:
                send.append((other, own.index(row)))
    for source in range(len(banks)):
        for slot, row in enumerate(banks[rank]):
            if source != rank and owners[row] == source:
                receive.append((source, slot))
    for slot, row in enumerate(banks[rank]):
        if owners[row] == rank:
            local.append((own.index(row), slot))
    return {"send": send, "receive": receive, "local": local}


def moved_rows(owners, banks):
    """Rows of banks that another rank owns."""
    return sum(1 for rank, bank in enumerate(banks) for row in bank if owners[row] != rank)


# compression


@remembered
def blocks(boundaries, ratio, local, rank):
    """The blocks that a rank compresses, as (rows, rows of the block before it or None, position, document).

    The block before is that of the same document; the position is that of the block's first token in its document.
    """
    held_by, documents = holders(boundaries, local), documents_of(boundaries)
    found = []
    for document, keys in enumerate(document_keys(boundaries, ratio)):
        before = None
        for key in keys:
            if held_by[key[-1]] == rank:
                position = sum(1 for token in range(key[0]) if documents[token] == document)
                found.append((key, before, position, document))
            before = key
    return found


def halo_start(boundaries, ratio, local, rank, overlap):
    """The first row that a rank needs to compress its blocks, its own rows included."""
    needed = own_rows(holders(boundaries, local), rank)
    for key, before, _, _ in blocks(boundaries, ratio, local, rank):
        needed = [*needed, *key]
        if overlap and before is not None:
            needed = [*needed, *before]
    return min(needed)


def halo_bank(boundaries, ratio, local, rank, overlap):
    """Rows of the bank from which a rank compresses."""
    return list(range(halo_start(boundaries, ratio, local, rank, overlap), (rank + 1) * local))


def block_rows(boundaries, ratio, local, rank, overlap):
    """For every block of a rank the slots that it reads in the rank's bank, -1 where there is no row."""
    bank = halo_bank(boundaries, ratio, local, rank, overlap)
    answer = []
    for key, before, _, _ in blocks(boundaries, ratio, local, rank):
        slots = []
        if overlap:
            slots += [-1] * ratio if before is None else [bank.index(row) for row in before]
        answer.append(slots + [bank.index(row) for row in key])
    return answer


def needs_plan(boundaries, ratio, local, overlap):
    """Whether cutting every shard each ``ratio`` rows would give other blocks than the documents have."""
    if ratio == 1:
        return False
    if overlap:
        return True
    held_by = holders(boundaries, local)
    for rank in range(num_ranks(boundaries, local)):
        compressed = [row for key, _, _, _ in blocks(boundaries, ratio, local, rank) for row in key]
        if compressed != own_rows(held_by, rank):
            return True
    return False


# segments


def segments(boundaries, local_start, local_length, ratio):
    """One (query_start, query_stop, key_start, key_stop, residual) for every document that meets the shard."""
    documents, keys = documents_of(boundaries), all_keys(boundaries, ratio)
    answer = []
    for document in range(len(boundaries) - 1):
        shard = range(local_start, local_start + local_length)
        local = [nth for nth, row in enumerate(shard) if documents[row] == document]
        if not local:
            continue
        last = local_start + local[-1]
        in_front = sum(1 for owner, _ in keys if owner < document)
        complete = [key for owner, key in keys if owner == document and key[-1] <= last]
        behind = [
            row for row in range(last + 1) if documents[row] == document and not any(row <= key[-1] for key in complete)
        ]
        answer.append((local[0], local[-1] + 1, in_front, in_front + len(complete), len(behind)))
    return answer


def segment_sees(segment, row, ratio):
    """Keys of the bank that one row of a segment sees, found from the segment's last row backwards."""
    _, query_stop, key_start, key_stop, residual = segment
    tokens = [number for number in range(key_start, key_stop) for _ in range(ratio)] + [None] * residual
    for _ in range(query_stop - 1 - row):
        tokens.pop()
    return [number for number in range(key_start, key_stop) if tokens.count(number) == ratio]


def packed(parts):
    """The packed layout of segments: rows and keys of those with a key, end to end, and where each ends."""
    answer = {
        name: [] for name in ("query_rows", "key_rows", "query_ends", "key_ends", "residuals", "key_starts", "firsts")
    }
    for query_start, query_stop, key_start, key_stop, residual in parts:
        if key_start == key_stop or query_start == query_stop:
            continue
        for row in range(query_start, query_stop):
            answer["query_rows"].append(row)
            answer["firsts"].append(key_start)
        for key in range(key_start, key_stop):
            answer["key_rows"].append(key)
        answer["query_ends"].append(len(answer["query_rows"]))
        answer["key_ends"].append(len(answer["key_rows"]))
        answer["residuals"].append(residual)
        answer["key_starts"].append(key_start)
    return answer


def bank_edges(bank):
    """(start, stop) of rows that must be one interval, without a gap."""
    assert bank == list(range(bank[0], bank[-1] + 1)), bank
    return bank[0], bank[-1] + 1
