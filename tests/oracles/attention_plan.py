"""Sparse attention by definition: loops over single tokens, layers and events, nothing shared with the package.

A row is a global token number. A key is ``(document, j)`` and stands for the tokens ``[j * ratio, (j + 1) * ratio)`` of
its document.
"""

from functools import lru_cache


def compositions(total):
    """All ways to cut ``total`` tokens into documents, as cumulative ends with a leading 0."""
    for cuts in range(2 ** (total - 1)):
        yield (0, *(at for at in range(1, total) if cuts >> (at - 1) & 1), total)


def divisors(total):
    """Sizes of groups that cut ``total`` rows evenly."""
    return [size for size in range(1, total + 1) if total % size == 0]


@lru_cache(maxsize=4096)
def place(boundaries, row):
    """Document of a row and its position there."""
    for document in range(len(boundaries) - 1):
        for position, token in enumerate(range(boundaries[document], boundaries[document + 1])):
            if token == row:
                return document, position
    raise AssertionError(row)


def window(boundaries, row, length):
    """Rows that a row attends to by its window, itself included."""
    document, _ = place(boundaries, row)
    found = []
    token = row
    while token >= 0 and len(found) < length and place(boundaries, token)[0] == document:
        found.insert(0, token)
        token -= 1
    return found


def visible(boundaries, row, ratio):
    """Keys that a row sees: those of its document for which j < (p + 1) // ratio."""
    document, position = place(boundaries, row)
    return [(document, j) for j in range(position + 1) if j < (position + 1) // ratio]


def all_keys(boundaries, ratio):
    """Every whole block of every document, in pack order."""
    found = []
    for document in range(len(boundaries) - 1):
        length = boundaries[document + 1] - boundaries[document]
        found += [(document, j) for j in range(length) if (j + 1) * ratio <= length]
    return found


def key_tokens(boundaries, key, ratio):
    """Global tokens of a key."""
    document, j = key
    return [boundaries[document] + token for token in range(j * ratio, (j + 1) * ratio)]


def own_keys(boundaries, local, rank, ratio):
    """Keys whose last token a rank holds."""
    return [key for key in all_keys(boundaries, ratio) if key_tokens(boundaries, key, ratio)[-1] // local == rank]


def key_bank(boundaries, local, rank, ratio):
    """Keys of a rank's bank: from the first key of the document of its first row to the last that it owns."""
    keys = all_keys(boundaries, ratio)
    first, _ = place(boundaries, rank * local)
    last = [number for number, key in enumerate(keys) if key_tokens(boundaries, key, ratio)[-1] < (rank + 1) * local]
    return [key for number, key in enumerate(keys) if key[0] >= first and number in last]


def window_bank(boundaries, local, rank, length):
    """Rows of a rank's window bank."""
    own = list(range(rank * local, (rank + 1) * local))
    return sorted({*own, *(row for token in own for row in window(boundaries, token, length))})


def segments(boundaries, local, rank):
    """(document, first and last own row) of every document that meets a shard."""
    found = []
    for row in range(rank * local, (rank + 1) * local):
        document, _ = place(boundaries, row)
        if found and found[-1][0] == document:
            found[-1][2] = row
        else:
            found.append([document, row, row])
    return [tuple(part) for part in found]


# candidate blocks


def block_count(start, stop, block):
    """Blocks of ``block`` keys from ``start`` on with a key in front of ``stop``."""
    return len({(key - start) // block for key in range(start, stop)})


def candidates(blocks, start, stop, block, minimum=0):
    """Keys of blocks, one by one."""
    found = []
    for number in blocks:
        for nth in range(block):
            key = start + number * block + nth
            found.append(key if number >= 0 and minimum <= key < stop and key >= start else -1)
    return found


# layers


def sources(ratios, listed, layer):
    """The last listed layer of a layer's ratio at or before it, or None."""
    answer = None
    for other in range(layer + 1):
        if other in listed and ratios[other] == ratios[layer]:
            answer = other
    return answer


def shares(ratios, kv, index, dense):
    """(key source, index source) of every layer, None for none; None instead of the list where it cannot be."""
    for listed in (kv or (), index, dense):
        if list(listed) != sorted(set(listed)):
            return None
        if any(layer not in range(len(ratios)) or ratios[layer] == 0 for layer in listed):
            return None
    answer = []
    for layer, ratio in enumerate(ratios):
        if ratio < 0 or (layer in dense and layer in index):
            return None
        keys = choice = None
        if ratio:
            keys = layer if kv is None else sources(ratios, kv, layer)
            if keys is None:
                return None
            if layer not in dense:
                choice = sources(ratios, index, layer)
                if choice is None or (kv is not None and choice < keys):
                    return None
        answer.append((keys, choice))
    return answer if ratios else None


# events


NEEDS = {
    "launch halo": ["compute compression_inputs"],
    "compute compression": ["compute compression_inputs", "wait halo"],
    "launch inputs": ["compute residual"],
    "launch index_keys": ["compute compression"],
    "launch keys": ["compute compression"],
    "launch window": ["compute attention_projections"],
    "compute worker_projection": ["wait inputs"],
    "compute select": ["compute residual", "wait index_keys", "compute worker_projection"],
    "launch result": ["compute select"],
    "compute attention": [
        "compute attention_projections",
        "compute select",
        "wait keys",
        "wait window",
        "wait result",
        "wait index_keys",
        "wait inputs",
        "wait halo",
    ],
}


def events_asked_for(kind, window, own_keys, halo, balanced):
    """The events that a layer must have, each once, in no order."""
    found = {"compute attention_projections", "compute attention"}
    moved = set()
    if window:
        moved.add("window")
    if kind != "window" and own_keys:
        moved.add("keys")
        found |= {"compute compression_inputs", "compute compression"}
        if halo:
            moved.add("halo")
    if kind == "select":
        found |= {"compute residual", "compute select"}
        if own_keys:
            moved.add("index_keys")
        if balanced:
            found.add("compute worker_projection")
            moved |= {"inputs", "result"}
    return found | {f"{action} {name}" for action in ("launch", "wait") for name in moved}


def broken_orders(events):
    """Needs of events that come too late."""
    wrong = []
    for event, needed in NEEDS.items():
        for other in needed:
            if event in events and other in events and list(events).index(other) > list(events).index(event):
                wrong.append((other, event))
    return wrong


def well_formed(events, computations, transfers):
    """Whether events are known, come once, and every transfer is launched and later waited for."""
    under_way, seen = [], []
    for event in events:
        if event in seen:
            return False
        seen.append(event)
        action, _, name = event.partition(" ")
        if action == "compute" and name in computations:
            continue
        if name not in transfers:
            return False
        if action == "launch":
            under_way.append(name)
        elif action == "wait" and name in under_way:
            under_way.remove(name)
        else:
            return False
    return not under_way


def under_way(events, event):
    """Transfers that run when an event begins, in the order of their launches."""
    running = []
    for now in events:
        if now == event:
            return running
        action, _, name = now.partition(" ")
        if action == "launch":
            running.append(name)
        if action == "wait":
            running.remove(name)
    raise AssertionError(event)


CHOOSING = {
    "compute compression_inputs": [],
    "compute residual": ["halo"],
    "compute compression": ["inputs"],
    "compute attention_projections": ["inputs", "index_keys", "keys"],
    "compute worker_projection": ["index_keys", "keys", "window"],
    "compute select": ["keys", "window"],
    "compute attention": [],
}
OTHERS = {
    "compute compression_inputs": [],
    "compute attention_projections": ["halo"],
    "compute compression": ["window"],
    "compute attention": [],
}


def meant_to_run(events, event, late_banks):
    """Transfers that an overlapped layer with these events lets run across a computation."""
    wanted = (CHOOSING if "compute select" in events else OTHERS)[event]
    if late_banks and event != "compute select":
        wanted = [name for name in wanted if name not in ("keys", "window")]
    return [name for name in wanted if f"launch {name}" in events]
