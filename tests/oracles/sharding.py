"""Definitions of what fits, by dealing heads, columns, experts and tokens out one by one."""


def deals_evenly(count, ranks):
    """Whether every rank gets as many of ``count`` things as the others, dealt like cards, and at least one."""
    hands = [0] * ranks
    for card in range(count):
        hands[card % ranks] += 1
    return min(hands) == max(hands) > 0


def degrees(counts, most):
    """All degrees up to ``most`` that deal every count evenly."""
    return [degree for degree in range(1, most + 1) if all(deals_evenly(count, degree) for count in counts)]


def kv_fits(kv, tp, replicate):
    """Whether ranks can have equal shares of the key/value heads, or one head each and every head equally often."""
    return kv is None or deals_evenly(kv, tp) or (replicate and deals_evenly(tp, kv))


def equal_parts(length, cp, tp, sequence_parallel, layout):
    """Whether all ranks hold equally many tokens of a sequence, and both ends of it where the layout pairs them."""
    parts = cp * 2 if layout == "zigzag" and cp != 1 else cp
    held = [0] * cp
    size = length // parts
    for part in range(parts):
        for _ in range(size):
            held[part if part < cp else parts - 1 - part] += 1
    if sum(held) != length or size == 0:
        return False
    return not sequence_parallel or all(deals_evenly(rows, tp) for rows in held)


def alignment(cp, tp, sequence_parallel, layout):
    """The shortest sequence with equal parts."""
    length = 1
    while not equal_parts(length, cp, tp, sequence_parallel, layout):
        length += 1
    return length


def model_misfits(facts, request):
    """(code, place) of all that does not fit the model."""
    found = set()
    tp, cp, ep = request.tp_size, request.cp_size, request.ep_size
    if facts.num_attention_heads is not None and not deals_evenly(facts.num_attention_heads, tp):
        found.add(("HP-SHARD-002", "num_attention_heads"))
    if not kv_fits(facts.num_key_value_heads, tp, request.kv_replicate):
        found.add(("HP-SHARD-003", "num_key_value_heads"))
    if facts.intermediate_size is not None and not deals_evenly(facts.intermediate_size, tp):
        found.add(("HP-SHARD-004", "intermediate_size"))
    if ep > 1 and facts.moe_intermediate_size is not None and not deals_evenly(facts.moe_intermediate_size, tp):
        found.add(("HP-SHARD-004", "moe_intermediate_size"))
    if ep > 1 and (facts.num_experts is None or not deals_evenly(facts.num_experts, ep)):
        found.add(("HP-SHARD-005", "num_experts"))
    if request.seq_len is not None:
        step = alignment(cp, tp, request.sequence_parallel, request.cp_layout)
        if request.seq_len not in range(step, request.seq_len + 1, step):
            found.add(("HP-SHARD-008", "seq_len"))
    if cp > 1 and request.cp_layout not in facts.cp_layouts:
        found.add(("HP-SHARD-039", "cp_layout"))
    return found


def mesh_misfits(mesh, request):
    """(code, place) of all that does not fit the mesh."""
    found = set()
    there = {}
    for name, size in mesh.axes:
        there[name] = size
    for axis, asked in (("tp", request.tp_size), ("cp", request.cp_size)):
        if asked > 1 and there.get(axis) != asked:
            found.add(("HP-SHARD-007", f"mesh.{axis}"))
            there[axis] = asked  # the mesh as it will be
    if "ep" in there:
        if there["ep"] != request.ep_size:
            found.add(("HP-SHARD-007", "mesh.ep"))
        return found
    ranks = 0
    for _ in range(there.get("dp_shard", 1)):
        for _ in range(there.get("cp", 1)):
            for _ in range(there.get("tp", 1)):
                ranks += 1
    if not deals_evenly(ranks, request.ep_size):
        found.add(("HP-SHARD-006", "ep_size"))
    return found
