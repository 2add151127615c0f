"""What each rank gets of a batch, by its definition: one token after the other, nothing shared with the package.

A token is its number in the batch as it came, None is padding. ``parts`` are the ranks that share a shard: the
tensor-parallel ones under sequence parallelism, else 1. Layouts are ``contiguous`` and ``zigzag``.
"""


def padded(lengths, cp, parts, layout):
    """The documents that have tokens, as lists of tokens with their padding; padding of the pack is one more."""
    documents, token = [], 0
    for length in lengths:
        document = []
        for _ in range(length):
            document.append(token)
            token += 1
        while layout == "zigzag" and len(document) % (2 * cp):
            document.append(None)
        if document:
            documents.append(document)
    filling = []
    total = sum(map(len, documents))
    while total == 0 or total % (2 * cp) or total % (cp * parts):
        filling.append(None)
        total += 1
    return [*documents, filling] if filling else documents


def ends(lengths, cp, parts, layout):
    """Cumulative ends of the padded documents, with a leading 0."""
    found = [0]
    for document in padded(lengths, cp, parts, layout):
        found.append(found[-1] + len(document))
    return found


def shards(lengths, cp, parts, layout):
    """For each rank its rows, as pairs of a token and its place in its padded document."""
    documents = padded(lengths, cp, parts, layout)
    ranks = [[] for _ in range(cp)]
    if layout == "contiguous":
        rows = [(token, place) for document in documents for place, token in enumerate(document)]
        for at, row in enumerate(rows):
            ranks[at * cp // len(rows)].append(row)
        return ranks
    for document in documents:
        rows = [(token, place) for place, token in enumerate(document)]
        chunk = len(rows) // (2 * cp)
        for rank in range(cp):
            for piece in (rank, 2 * cp - 1 - rank):
                ranks[rank] += rows[piece * chunk : (piece + 1) * chunk]
    return ranks


def cut(values, rows, pad):
    """The values of a rank's rows; ``pad`` for padding, or with None the row's place."""
    return [values[token] if token is not None else (place if pad is None else pad) for token, place in rows]


def shifted(labels, lengths, ignore=-100):
    """Each token's next label in its own document."""
    found, first = [], 0
    for length in lengths:
        for at in range(first, first + length):
            found.append(labels[at + 1] if at + 1 < first + length else ignore)
        first += length
    return found


def places(lengths):
    """Each token's place in its document."""
    return [place for length in lengths for place in range(length)]


def counted(labels, rows, ignore=-100):
    """Labels of a rank's rows that count, after they were shifted."""
    return sum(1 for token, _ in rows if token is not None and labels[token] != ignore)
