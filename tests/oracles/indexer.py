"""Indexer balance by definition: slow loops over single tokens, nothing shared with the package.

A row is a global token number. An answer of a mode is one worker per row.
"""

from functools import lru_cache
from itertools import product


def rows_of(lengths):
    """(document, position) of every row, in pack order."""
    return [(document, position) for document, length in enumerate(lengths) for position in range(length)]


def visible_keys(lengths, ratio):
    """For every row the list of its keys in the bank of all documents.

    Key j of a document stands for its tokens j*ratio .. j*ratio + ratio - 1, and exists if all of them do; a row
    sees it once it has passed the last of them.
    """
    seen = []
    first_key = 0
    for length in lengths:
        last_tokens = [token for token in range(length) if (token + 1) % ratio == 0]
        for position in range(length):
            seen.append([first_key + j for j, token in enumerate(last_tokens) if token <= position])
        first_key += len(last_tokens)
    return seen


def row_costs(lengths, ratio, row_cost=0):
    """Pairs that every row scores."""
    return _row_costs(tuple(lengths), ratio, row_cost)


@lru_cache(maxsize=64)
def _row_costs(lengths, ratio, row_cost):
    return tuple(len(keys) + row_cost for keys in visible_keys(lengths, ratio))


def owners(total, size):
    """Owner of every row."""
    return [rank for rank in range(size) for _ in range(total // size)]


def loads(workers, costs, size):
    """Pairs of every worker."""
    return [sum(cost for worker, cost in zip(workers, costs, strict=True) if worker == w) for w in range(size)]


def row_counts(workers, size):
    """Rows of every worker."""
    return [sum(1 for worker in workers if worker == w) for w in range(size)]


def moved_rows(workers, size):
    """Rows whose worker is not their owner."""
    return sum(1 for worker, owner in zip(workers, owners(len(workers), size), strict=True) if worker != owner)


def tasks(lengths, workers, size):
    """For every worker its maximal stretches of one document, as (document, start, stop)."""
    rows = rows_of(lengths)
    answer = []
    for w in range(size):
        mine = []
        for row, (document, _) in enumerate(rows):
            if workers[row] != w:
                continue
            if mine and mine[-1][0] == document and mine[-1][2] == row:
                mine[-1] = (document, mine[-1][1], row + 1)
            else:
                mine.append((document, row, row + 1))
        answer.append(mine)
    return answer


class DoesNotFit(Exception):
    """A block fits on no worker within the capacity."""


def _place(stretches, workers, costs, size, capacity):
    """Heaviest stretch first, each to the least (load, rows, rank) with room."""
    waiting = [(sum(costs[start:stop]), start, stop) for start, stop in stretches]
    while waiting:
        best = waiting[0]
        for candidate in waiting:
            if candidate[0] > best[0] or (candidate[0] == best[0] and candidate[1] < best[1]):
                best = candidate
        waiting.remove(best)
        _, start, stop = best
        chosen = None
        for w in range(size):
            held = [row for row, worker in enumerate(workers) if worker == w]
            state = (sum(costs[row] for row in held), len(held), w)
            fits = capacity is None or len(held) + stop - start <= capacity
            if fits and (chosen is None or state < chosen):
                chosen = state
        if chosen is None:
            raise DoesNotFit
        for row in range(start, stop):
            workers[row] = chosen[2]


def _starts(lengths):
    return [sum(lengths[:document]) for document in range(len(lengths))]


def _cut_zigzag(start, length, workers, size):
    for k in range(size):
        for chunk in (k, 2 * size - 1 - k):
            for position in range(length * chunk // (2 * size), length * (chunk + 1) // (2 * size)):
                workers[start + position] = k


def _blocks(start, length, block_size):
    answer = []
    position = 0
    while position < length:
        stop = min(position + block_size, length)
        answer.append((start + position, start + stop))
        position = stop
    return answer


def assign_none(lengths, size):
    """Worker of every row in mode none."""
    return owners(sum(lengths), size)


def assign_zigzag(lengths, size, ratio, row_cost=0):
    """Worker of every row in mode zigzag."""
    costs = row_costs(lengths, ratio, row_cost)
    workers = [None] * sum(lengths)
    short = []
    for start, length in zip(_starts(lengths), lengths, strict=True):
        if length >= 2 * size:
            _cut_zigzag(start, length, workers, size)
        else:
            short.append((start, start + length))
    _place(short, workers, costs, size, None)
    return workers


def assign_greedy(lengths, size, ratio, block_size, capacity=None, row_cost=0):
    """Worker of every row in mode greedy; DoesNotFit where the capacity is too small."""
    return assign_hybrid(lengths, size, ratio, block_size, None, capacity, row_cost)


def assign_hybrid(lengths, size, ratio, block_size, min_length, capacity=None, row_cost=0):
    """Worker of every row in mode hybrid (``min_length`` None: no document is long)."""
    costs = row_costs(lengths, ratio, row_cost)
    workers = [None] * sum(lengths)
    blocks = []
    for start, length in zip(_starts(lengths), lengths, strict=True):
        if min_length is not None and length >= min_length and length >= 2 * size:
            _cut_zigzag(start, length, workers, size)
        else:
            blocks += _blocks(start, length, block_size)
    limit = sum(lengths) // size + block_size - 1 if capacity is None else capacity
    if max(row_counts(workers, size)) > limit and capacity is not None:
        raise DoesNotFit
    _place(blocks, workers, costs, size, limit)
    return workers


def route(workers, size, rank):
    """What one rank sends, receives and keeps, row by row.

    ``send_rows`` are (destination, own row) pairs, ``receive_rows`` (source, slot) pairs, ``local`` (own row, slot)
    pairs; a slot is the place among the rows that the rank scores.
    """
    own = owners(len(workers), size)
    local = len(workers) // size
    scored = [row for row in range(len(workers)) if workers[row] == rank]
    sent, received, kept = [], [], []
    for other in range(size):
        for row in range(len(workers)):
            if other != rank and own[row] == rank and workers[row] == other:
                sent.append((other, row - rank * local))
            if other != rank and own[row] == other and workers[row] == rank:
                received.append((other, scored.index(row)))
    for row in scored:
        if own[row] == rank:
            kept.append((row - rank * local, scored.index(row)))
    return {"scored": scored, "send_rows": sent, "receive_rows": received, "local": kept}


def peers(workers, size, rank):
    """Ranks that rows of a rank go to or come from."""
    own = owners(len(workers), size)
    found = set()
    for owner, worker in zip(own, workers, strict=True):
        if owner != worker and rank in (owner, worker):
            found |= {owner, worker}
    return len(found - {rank})


def makespan_lower_bound(lengths, size, ratio, row_cost=0):
    """The least load that the definition leaves for the busiest worker."""
    costs = row_costs(lengths, ratio, row_cost)
    least = max(costs)
    while least * size < sum(costs):
        least += 1
    return least


def fewest_to_shed(costs, limit):
    """The fewest of these rows that must go so that the rest costs at most ``limit``."""
    left = sorted(costs)
    gone = 0
    while sum(left) > limit:
        left.pop()
        gone += 1
    return gone


def moved_rows_lower_bound(lengths, size, ratio, makespan, row_cost=0):
    """The fewest rows that must leave home, shard by shard."""
    costs = row_costs(lengths, ratio, row_cost)
    local = len(costs) // size
    return sum(fewest_to_shed(costs[rank * local : (rank + 1) * local], makespan) for rank in range(size))


def all_assignments(total, size):
    """Every way to give every row a worker."""
    return product(range(size), repeat=total)


def balance_target(lengths, size, ratio, tolerance_ppm=0, row_cost=0):
    """The least integer that is not below total / size with the tolerance on top."""
    scaled = sum(row_costs(lengths, ratio, row_cost)) * (1_000_000 + tolerance_ppm)
    quotient, rest = divmod(scaled, size * 1_000_000)
    return quotient + (1 if rest else 0)


def cut_choices(costs, needs):
    """The greatest excess over a need for every choice of cuts around the running sums of needs.

    ``costs`` are those of the shed rows in row order; before each running sum lies the most rows that do not cost
    more, and the other candidate is one row further, unless the sum is met exactly.
    """
    candidates = []
    for receiver in range(len(needs)):
        wanted = min(sum(needs[: receiver + 1]), sum(costs))
        rows = max(n for n in range(len(costs) + 1) if sum(costs[:n]) <= wanted)
        candidates.append([rows] if sum(costs[:rows]) == wanted else [rows, rows + 1])
    answer = {}
    for cuts in product(*candidates):
        edges = [0, *cuts]
        if edges != sorted(edges):
            continue
        parts = [sum(costs[edges[i] : edges[i + 1]]) for i in range(len(needs))]
        answer[cuts] = max([0, *(part - need for part, need in zip(parts, needs, strict=True))])
    return answer


def compositions(total):
    """All ways to cut ``total`` tokens into documents, in order."""
    if total == 0:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in compositions(total - first)]


def divisors(total):
    """All group sizes that divide ``total``."""
    return [size for size in range(1, total + 1) if total % size == 0]


def broken_locality_rules(
    workers, lengths, size, ratio, *, tolerance_ppm=0, row_cost=0, ranks_per_node=None, capacity=None
):
    """Which of LOCAL-1 to LOCAL-3 and LOCAL-5 to LOCAL-9 an answer of mode locality breaks; [] if none."""
    costs = row_costs(lengths, ratio, row_cost)
    total = len(costs)
    local = total // size
    target = balance_target(lengths, size, ratio, tolerance_ppm, row_cost)
    home = [sum(costs[rank * local : (rank + 1) * local]) for rank in range(size)]
    heaviest = max(costs)
    broken = []

    shed, fewest, fewest_work = [], [], 0
    for rank in range(size):
        own = range(rank * local, (rank + 1) * local)
        gone = [row for row in own if workers[row] != rank]
        kept = [row for row in own if workers[row] == rank]
        shed.append(gone)
        if home[rank] <= target and gone:
            broken.append("LOCAL-1")
        if gone and kept and min(costs[row] for row in gone) < max(costs[row] for row in kept):
            broken.append("LOCAL-2")
        least = fewest_to_shed([costs[row] for row in own], target)
        fewest.append(least)
        fewest_work += sum(sorted((costs[row] for row in own), reverse=True)[:least])
    lack = sum(target - load for load in home if load < target)
    for rank in range(size):
        legal = [fewest[rank]]
        if fewest_work > lack and fewest[rank]:
            legal.append(fewest[rank] - 1)
        if len(shed[rank]) not in legal:
            broken.append("LOCAL-3")

    if max(loads(workers, costs, size)) > target + heaviest:
        broken.append("LOCAL-5")
    if moved_rows(workers, size) > moved_rows_lower_bound(lengths, size, ratio, target, row_cost):
        broken.append("LOCAL-6")
    if capacity is not None and max(row_counts(workers, size)) > capacity:
        broken.append("LOCAL-8")

    if ranks_per_node is not None and capacity is None:
        for node in range((size - 1) // ranks_per_node + 1):
            inside = [rank for rank in range(size) if rank // ranks_per_node == node]
            gone = [row for rank in inside for row in shed[rank]]
            need = sum(target - home[rank] for rank in inside if home[rank] < target)
            surplus = sum(costs[row] for row in gone) - need
            leaving = sum(costs[row] for row in gone if workers[row] // ranks_per_node != node)
            if (surplus <= 0 and leaving) or (surplus > 0 and leaving >= surplus + heaviest):
                broken.append("LOCAL-7")
    if ranks_per_node is None and capacity is None and any(shed):
        moved = [row for gone in shed for row in gone]
        takers = [workers[row] for row in moved]
        needs = {rank: target - home[rank] for rank in range(size) if home[rank] < target}
        roomy = {rank: need for rank, need in needs.items() if need >= heaviest}
        if sum(roomy.values()) >= sum(costs[row] for row in moved):
            needs = roomy
        # more may be given up than is lacking: then every receiver takes the same share of it
        above = max(0, -((sum(needs.values()) - sum(costs[row] for row in moved)) // len(needs)))
        needs = {rank: need + above for rank, need in needs.items()}
        cuts = tuple(sum(1 for taker in takers if taker <= rank) for rank in needs)
        choices = cut_choices([costs[row] for row in moved], list(needs.values()))
        legal = takers == sorted(takers) and set(takers) <= set(needs) and cuts in choices
        if not legal or choices[cuts] > min(choices.values()):
            broken.append("LOCAL-9")
    return broken
