"""Batch layouts from their definition, token by token: loops over places, no arithmetic on intervals.

A topology is ``cp, tp, sp``: ranks that cut a batch, ranks for each of these parts, and whether those share its rows.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """A row of the padded pack: its place in the pack, its padded document, its place in it, and its token or -1."""

    position: int
    document: int
    place: int
    token: int


def alignment(cp, tp, sp):
    """Least multiple of two chunks for each CP rank whose CP shards divide by the TP ranks that share them."""
    found = 1
    while found % (2 * cp) or (found // cp) % (tp if sp else 1) or found % cp:
        found += 1
    return found


def padded(lengths, cp, tp, sp, layout, multiple=None):
    """Documents of the padded pack: each a list of tokens, -1 for padding; and those that were dropped."""
    multiple = multiple or alignment(cp, tp, sp)
    documents, dropped, token = [], [], 0
    for number, length in enumerate(lengths):
        if not length:
            dropped.append(number)
            continue
        documents.append([token + at for at in range(length)])
        token += length
        while layout == "zigzag" and len(documents[-1]) % (2 * cp):
            documents[-1].append(-1)
    more = []
    while (total := sum(map(len, documents)) + len(more)) == 0 or total % multiple:
        more.append(-1)
    return documents + ([more] if more else []), dropped


def ends(documents):
    """Cumulative ends of documents, with a leading 0."""
    return [sum(map(len, documents[:at])) for at in range(len(documents) + 1)]


def shards(lengths, cp, tp, sp, layout, multiple=None):
    """The rows of each CP rank, in their order."""
    documents, _ = padded(lengths, cp, tp, sp, layout, multiple)
    rows = []
    for number, document in enumerate(documents):
        for place, token in enumerate(document):
            rows.append(Row(len(rows), number, place, token))
    if layout == "contiguous":
        local = len(rows) // cp
        return [rows[rank * local : (rank + 1) * local] for rank in range(cp)]
    found = [[] for _ in range(cp)]
    for row in rows:
        chunk = 0
        while (chunk + 1) * (len(documents[row.document]) // (2 * cp)) <= row.place:
            chunk += 1
        found[chunk if chunk < cp else 2 * cp - 1 - chunk].append(row)
    return found


def places(lengths):
    """Each token's place in its document."""
    return [place for length in lengths for place in range(length)]


def held(values, rows, pad):
    """The values of the tokens of a rank's rows, ``pad`` for padding."""
    return [pad if row.token < 0 else values[row.token] for row in rows]


def held_places(values, rows):
    """The values of the tokens of a rank's rows; padding counts on from its document's first row."""
    return [row.place if row.token < 0 else values[row.token] for row in rows]


def counted(labels, rows, ignore=-100):
    """Labels of a rank's rows that count, after they were shifted."""
    return sum(row.token >= 0 and labels[row.token] != ignore for row in rows)


def intervals(positions):
    """Positions in their order as half-open intervals, the fewest."""
    found = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1][1] += 1
        else:
            found.append([position, position + 1])
    return tuple(map(tuple, found))


def shifted(labels, lengths, depth=1, ignore=-100):
    """Each token's label ``depth`` tokens on, if that token is in the same document."""
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    return [
        labels[at + depth] if at + depth < len(labels) and owner[at + depth] == owner[at] else ignore
        for at in range(len(labels))
    ]


def cut(lengths, spans, limit):
    """Lengths and spans of the first ``limit`` tokens, or the largest legal length where a span is cut."""
    tokens = [number for number, length in enumerate(lengths) for _ in range(length)]

    def crossed(at):
        return any(start < at < stop for start, stop in spans)

    at = min(limit, len(tokens))
    if crossed(at):
        while crossed(at):
            at -= 1
        return at
    kept, start = [], 0
    for number, length in enumerate(lengths):
        if start < at or at == len(tokens):  # a document that starts behind the cut is left out, also an empty one
            kept.append(sum(owner == number for owner in tokens[:at]))
        start += length
    return tuple(kept), tuple(span for span in spans if span[1] <= at)
