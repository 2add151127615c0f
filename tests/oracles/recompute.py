"""Definitions of recompute planning, by loops over all names and all choices."""

from fnmatch import fnmatchcase
from itertools import combinations


def children(modules, fqn):
    """Modules right below the one of that name."""
    start = f"{fqn}." if fqn else ""
    return [m for m in modules if m.fqn != fqn and m.fqn.startswith(start) and "." not in m.fqn[len(start) :]]


def containers(modules):
    """(list, layers) of each container."""
    found, ids = [], []
    for module in modules:
        owners = [m for m in modules if module in children(modules, m.fqn)]
        members = children(modules, module.fqn)
        inside_layer = any(module.fqn.startswith(f"{layer}.") for _, layers in found for layer in layers)
        if (
            module.is_list
            and len(owners) == 1
            and owners[0].has_marker
            and len(members) > 0
            and all(member.has_marker for member in members)
            and not inside_layer
            and module.module_id not in ids
        ):
            ids.append(module.module_id)
            found.append((module.fqn, [member.fqn for member in members]))
    return found


def below(fqn, outer):
    """Whether a name is the outer one or below it."""
    return outer == "" or fqn == outer or fqn.startswith(f"{outer}.")


def outermost(modules, patterns, outers):
    """Names at or below one of ``outers`` that a pattern matches and that lie below no other such name."""
    found = [
        m.fqn
        for m in modules
        if any(fnmatchcase(m.fqn, pattern) for pattern in patterns) and any(below(m.fqn, outer) for outer in outers)
    ]
    return [fqn for fqn in found if not any(other != fqn and below(fqn, other) for other in found)]


def held(size, swap):
    """Device bytes of a recomputed region."""
    return size.excluded_bytes if swap else size.excluded_bytes + size.input_bytes


def estimate(sizes, chosen, swap):
    """(kept, peak, host, flops), by running forward and backward with a counter."""
    live = peak = host = flops = 0
    kept = {}
    for size in sizes:
        kept[size.fqn] = held(size, swap) if size.fqn in chosen else size.saved_bytes
        live += kept[size.fqn]
    total = live
    for size in reversed(sizes):
        if size.fqn in chosen:
            replayed = max(size.saved_bytes, kept[size.fqn])
            peak = max(peak, live - kept[size.fqn] + replayed)
            flops += size.replay_flops
            host += size.input_bytes if swap else 0
        peak = max(peak, live)
        live -= kept[size.fqn]
    return total, peak, host, flops


def best_choice(sizes, budget, swap):
    """(flops, kept, indices) of the best of all choices of regions that free something; None if none fits."""
    free = [at for at, size in enumerate(sizes) if size.saved_bytes > held(size, swap)]
    fitting = []
    for count in range(len(free) + 1):
        for indices in combinations(free, count):
            kept, _, _, flops = estimate(sizes, [sizes[at].fqn for at in indices], swap)
            if kept <= budget:
                fitting.append((flops, kept, indices))
    return min(fitting, default=None)


def releases(publishes, reads):
    """Layer of release of each entry: the last one that publishes or reads it."""
    return {entry: max([entry[1]] + [layer for layer, read in reads if read == entry]) for entry in publishes}
