"""Mutants of the rules of ``specs/sharding.md``."""

from tests.mutants.mutant import Mutant

CHECKS = "hpfun/sharding/checks.py"
DEGREES = "hpfun/sharding/degrees.py"
MODEL = "hpfun/sharding/model.py"
READING = "hpfun/sharding/reading.py"
REQUEST = "hpfun/sharding/request.py"

MUTANTS = [
    Mutant("SHARD-1", READING, "(violation.code, violation.where)))", "violation.code))"),
    Mutant("SHARD-1", CHECKS, "        if not unread & needed:\n", "        if needed or not needed:\n"),
    Mutant(
        "SHARD-1",
        CHECKS,
        "        yield from _sequence(request)\n        yield from _layout",
        "        yield from _layout",
    ),
    Mutant("SHARD-1", CHECKS, '{f"{axis}_size"} if axis else', "{axis} if axis else"),
    Mutant("SHARD-1", CHECKS, 'frozenset({"cp_layout", "cp_layouts"})', 'frozenset({"cp_layouts"})'),
    Mutant("SHARD-2", CHECKS, "        if count % tp:\n", "        if count < tp:\n"),
    Mutant(
        "SHARD-2", CHECKS, "legal_degrees(*counts.values()) if counts", "legal_degrees(max(counts.values())) if counts"
    ),
    Mutant(
        "SHARD-2",
        CHECKS,
        "for degree in common if _kv_fits(kv, degree, request.kv_replicate))",
        "for degree in common)",
    ),
    Mutant("SHARD-2", CHECKS, "for degree in common if _experts_fit(experts, degree))", "for degree in common)"),
    Mutant("SHARD-2", DEGREES, "math.isqrt(common) + 1)", "math.isqrt(common))"),
    Mutant("SHARD-3", CHECKS, "(replicate and tp % kv == 0)", "replicate"),
    Mutant("SHARD-3", CHECKS, "kv % tp == 0 or", "kv >= tp or"),
    Mutant(
        "SHARD-3",
        CHECKS,
        "        if tp in common and _kv_fits(kv, tp, True):\n",
        "        if _kv_fits(kv, tp, True):\n",
    ),
    Mutant(
        "SHARD-4", CHECKS, '["moe_intermediate_size"] if request.ep_size > 1', '["moe_intermediate_size"] if tp > 1'
    ),
    Mutant("SHARD-4", CHECKS, '"num_attention_heads", "intermediate_size", *', '"num_attention_heads", *'),
    Mutant("SHARD-5", CHECKS, "ep == 1 or (experts > 0 and experts % ep == 0)", "ep == 1 or experts % ep == 0"),
    Mutant("SHARD-5", CHECKS, "facts.num_experts or 0\n", "facts.num_experts\n"),
    Mutant("SHARD-6", CHECKS, 'in ("dp_shard", "cp", "tp")}', 'in ("dp_shard", "cp")}'),
    Mutant("SHARD-6", CHECKS, 'return {} if "ep" in sizes else', 'return {} if "tp" in sizes else'),
    Mutant("SHARD-6", CHECKS, '        asked["ep"] = request.ep_size\n', "        pass\n"),
    Mutant("SHARD-7", CHECKS, "        if mesh.size(axis) != asked:\n", "        if (mesh.size(axis) or 1) < asked:\n"),
    Mutant("SHARD-7", CHECKS, "    sizes = dict(_mended(mesh, request))\n", "    sizes = dict(mesh.axes)\n"),
    Mutant("SHARD-7", CHECKS, 'names.index("tp") if axis == "cp" and "tp" in names else len(names)', "len(names)"),
    Mutant("SHARD-8", DEGREES, '== "zigzag" and fine["cp"] > 1 else', '== "zigzag" else'),
    Mutant("SHARD-8", DEGREES, 'math.lcm(parts, fine["cp"] * fine["tp"])', 'math.lcm(parts, fine["tp"])'),
    Mutant("SHARD-8", CHECKS, "given // alignment * alignment or None", "given // alignment * alignment"),
    Mutant("SHARD-9", READING, "type(number) is not int or", "not isinstance(number, int) or"),
    Mutant(
        "SHARD-9", READING, "        if len(wrong) == before:\n", "        if len(wrong) == before or len(wrong) > 1:\n"
    ),
    Mutant("SHARD-9", READING, "(math.floor, math.ceil)}", "(round, round)}"),
    Mutant("SHARD-9", REQUEST, "read_field(cp_layout, ", "read_field(text, "),
    Mutant("SHARD-9", REQUEST, "pair is not None and pair[0] in dict(found)", "pair is not None and pair in found"),
    Mutant(
        "SHARD-39",
        CHECKS,
        "    if cp > 1 and layout not in supported:\n",
        "    if cp > 1 and supported and layout not in supported:\n",
    ),
    Mutant("SHARD-39", CHECKS, "    if cp > 1 and layout not in supported:\n", "    if layout not in supported:\n"),
]
