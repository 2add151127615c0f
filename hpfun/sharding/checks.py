"""Whether degrees of parallelism fit a model's sizes and a mesh, with every misfit and a way out of each.

``check_model`` and ``check_mesh`` look at values, which are valid, and return what does not fit. ``check_degrees``
starts one step earlier, at options that may hold anything: what cannot be read is told, and what can be said of
the rest is told with it, so one call shows all there is to mend. A check that needs a field which could not be read
says nothing. Rules SHARD-1 to SHARD-9 and SHARD-39 of ``specs/sharding.md``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Set

import attrs

from hpfun.errors import Violation, refuse_all
from hpfun.sharding.degrees import legal_degrees, sequence_alignment
from hpfun.sharding.model import ModelFacts, read_facts
from hpfun.sharding.reading import CP_LAYOUTS, by_place, instance, positive, positive_or_none, read_all, read_value
from hpfun.sharding.request import MeshShape, ShardingRequest
from hpfun.wording import listed

# what a check reads besides the fields that switch it off at their defaults
_NEEDED: Mapping[str, frozenset[str]] = {
    "HP-SHARD-003": frozenset({"kv_replicate"}),
    "HP-SHARD-005": frozenset({"num_experts"}),
    "HP-SHARD-006": frozenset({"tp_size", "cp_size"}),
    "HP-SHARD-008": frozenset({"tp_size", "cp_size", "sequence_parallel", "cp_layout"}),
    "HP-SHARD-039": frozenset({"cp_layout", "cp_layouts"}),
}
_WHAT = {
    "num_attention_heads": "heads",
    "intermediate_size": "columns of the dense MLP",
    "moe_intermediate_size": "columns of an expert",
}


def check_model(facts: ModelFacts, request: ShardingRequest) -> tuple[Violation, ...]:
    """What of the request does not fit the model, by code and place; () if all does.

    From sizes alone it is taken for granted that key/value heads and dense MLPs are cut by ``tp_size``, and experts
    where ``ep_size`` is above 1; a plan knows better. Gives HP-SHARD-002, 003, 004, 005, 008 and 039; sizes that the
    model does not have (None) fit, except that ``ep_size`` above 1 needs experts.

    >>> facts = ModelFacts(num_attention_heads=28, num_key_value_heads=4)
    >>> for violation in check_model(facts, ShardingRequest(tp_size=7)):
    ...     print(violation.line())
    [HP-SHARD-003] at `num_key_value_heads`: 4 key/value heads do not divide by tp 7; use tp 4, legal are 1, 2, 4
    """
    facts, request = instance(facts, ModelFacts, "facts"), instance(request, ShardingRequest, "request")
    return by_place(_misfits(request, facts))


def check_mesh(mesh: MeshShape, request: ShardingRequest) -> tuple[Violation, ...]:
    """What of the request does not fit the mesh, by code and place; () if all does.

    Gives HP-SHARD-007 for an axis that is missing or of another size, and HP-SHARD-006 where experts, without an
    axis of their own, do not divide the ranks of ``dp_shard``, ``cp`` and ``tp``, taken as HP-SHARD-007 wants them.

    >>> mesh = MeshShape(axes=(("dp_shard", 2), ("cp", 2)))
    >>> for violation in check_mesh(mesh, ShardingRequest(cp_size=2, ep_size=3)):
    ...     print(violation.line())
    [HP-SHARD-006] at `ep_size`: 2 * 2 * 1 ranks of dp_shard, cp, tp do not divide by ep 3; use ep 2, legal are 1, 2, 4
    """
    mesh, request = instance(mesh, MeshShape, "mesh"), instance(request, ShardingRequest, "request")
    return by_place(_misfits(request, mesh=mesh))


def check_degrees(
    facts: ModelFacts | Mapping[str, object], mesh: MeshShape | None = None, **options: object
) -> tuple[Violation, ...]:
    """All that is wrong with the options of a ``ShardingRequest``, as they are and for this model and mesh.

    ``facts`` is read as by ``ModelFacts.of``. Gives HP-SHARD-009 and what ``check_model`` and ``check_mesh`` give;
    legal degrees of experts fit the model and the mesh.

    >>> found = check_degrees({"num_attention_heads": 28, "num_experts": 6}, tp_size=8, cp_size=True, ep_size=4)
    >>> [(violation.code, violation.where) for violation in found]
    [('HP-SHARD-002', 'num_attention_heads'), ('HP-SHARD-005', 'num_experts'), ('HP-SHARD-009', 'cp_size')]
    """
    if mesh is not None:
        mesh = instance(mesh, MeshShape, "mesh")
    sizes, misread = read_facts(facts)
    request, wrong = read_value(ShardingRequest, options)
    return by_place([*misread, *wrong, *_told(_misfits(request, sizes, mesh), _fields(misread + wrong))])


def validate_parallel_sizes(
    model_sizes: ModelFacts | Mapping[str, object],
    *,
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    seq_len: int | None = None,
) -> None:
    """Raise one ``PlanError`` of all violations if a model's sizes do not divide by the degrees.

    tp divides the heads and key/value heads, and with ep > 1 the width of experts; ep > 1 divides the experts;
    2 * cp divides a fixed ``seq_len`` with cp > 1. ``model_sizes`` is read as by ``ModelFacts.of``. Raises
    HP-SHARD-002, 003, 004, 005, 008 and 009. Dense widths and layouts of context parallelism are left to
    ``check_model``.

    >>> validate_parallel_sizes({"num_attention_heads": 28, "num_key_value_heads": 4}, tp=4, cp=2, seq_len=1000)
    >>> validate_parallel_sizes({"num_attention_heads": 28, "num_key_value_heads": 4}, tp=2, cp=2, seq_len=1002)
    Traceback (most recent call last):
    hpfun.errors.PlanError: [HP-SHARD-008] at `seq_len`: 1002 is no multiple of 4; pad to 1004, or cut to 1000
    """
    degrees = {"tp": (positive, tp), "cp": (positive, cp), "ep": (positive, ep)}
    fine, wrong = read_all({**degrees, "seq_len": (positive_or_none, seq_len)})
    facts, misread = read_facts(model_sizes)
    facts = attrs.evolve(facts, intermediate_size=None, cp_layouts=CP_LAYOUTS)
    named = {name if name == "seq_len" else f"{name}_size": value for name, value in fine.items()}
    request = ShardingRequest(**named, sequence_parallel=False)
    unread = _fields(misread) | {f"{violation.where}_size" for violation in wrong}
    refuse_all(by_place([*misread, *wrong, *_told(_misfits(request, facts), unread)]))


def _misfits(
    request: ShardingRequest, facts: ModelFacts | None = None, mesh: MeshShape | None = None
) -> Iterator[Violation]:
    if facts is not None:
        yield from _over_tp(facts, request)
        yield from _sequence(request)
        yield from _layout(facts, request)
    if mesh is not None:
        yield from _axes(mesh, request)
    yield from _over_ep(request, facts, mesh)


def _told(violations: Iterable[Violation], unread: Set[str]) -> Iterator[Violation]:
    """Those that do not depend on a field that could not be read."""
    for violation in violations:
        axis = violation.facts.get("axis")
        needed = {f"{axis}_size"} if axis else _NEEDED.get(violation.code, frozenset())
        if not unread & needed:
            yield violation


def _fields(violations: Iterable[Violation]) -> set[str]:
    return {str(violation.facts["field"]) for violation in violations}


def _over_tp(facts: ModelFacts, request: ShardingRequest) -> Iterator[Violation]:
    """Counts that tensor parallelism cuts and that do not divide (SHARD-2, 3, 4)."""
    tp, kv = request.tp_size, facts.num_key_value_heads
    cut = ["num_attention_heads", "intermediate_size", *(["moe_intermediate_size"] if request.ep_size > 1 else [])]
    counts = {name: getattr(facts, name) for name in cut if getattr(facts, name) is not None}
    common = legal_degrees(*counts.values()) if counts else legal_degrees(kv or 1)
    legal = tuple(degree for degree in common if _kv_fits(kv, degree, request.kv_replicate))
    for name, count in counts.items():
        if count % tp:
            heads = name == "num_attention_heads"
            code = "HP-SHARD-002" if heads else "HP-SHARD-004"
            numbers = {"heads": count} if heads else {"name": name, "width": count}
            message = f"{count} {_WHAT[name]} do not divide by tp {tp}"
            yield Violation(code, name, message, {**numbers, "tp": tp, "legal": legal}, _use("tp", tp, legal))
    if not _kv_fits(kv, tp, request.kv_replicate):
        advice = _use("tp", tp, legal)
        if tp in common and _kv_fits(kv, tp, True):
            advice += ", or pass kv_replicate=True in a ShardingRequest"
        message = f"{kv} key/value heads do not divide by tp {tp}"
        yield Violation("HP-SHARD-003", "num_key_value_heads", message, {"kv": kv, "tp": tp, "legal": legal}, advice)


def _kv_fits(kv: int | None, tp: int, replicate: bool) -> bool:
    return kv is None or kv % tp == 0 or (replicate and tp % kv == 0)


def _over_ep(request: ShardingRequest, facts: ModelFacts | None, mesh: MeshShape | None) -> Iterator[Violation]:
    """Experts, and ranks that hold them without an axis of their own, that do not divide (SHARD-5, 6)."""
    ep, experts = request.ep_size, None if facts is None else facts.num_experts or 0
    region = {} if mesh is None else _dense_region(mesh, request)
    common = _divisors_of_product(region.values()) if region else legal_degrees(experts or 1)
    legal = tuple(degree for degree in common if _experts_fit(experts, degree))
    if facts is not None and not _experts_fit(experts, ep):
        message = f"{experts} experts do not divide by ep {ep}" if experts else f"ep {ep} for a model without experts"
        numbers = {"experts": facts.num_experts, "ep": ep, "legal": legal}
        yield Violation("HP-SHARD-005", "num_experts", message, numbers, _use("ep", ep, legal))
    if region and math.prod(region.values()) % ep:
        product = " * ".join(map(str, region.values()))
        message = f"{product} ranks of {', '.join(region)} do not divide by ep {ep}"
        numbers = {**region, "ep": ep, "legal": legal}
        yield Violation("HP-SHARD-006", "ep_size", message, numbers, _use("ep", ep, legal))


def _experts_fit(experts: int | None, ep: int) -> bool:
    return experts is None or ep == 1 or (experts > 0 and experts % ep == 0)


def _dense_region(mesh: MeshShape, request: ShardingRequest) -> dict[str, int]:
    """Ranks by axis over which experts spread; none where the mesh has an axis for them."""
    sizes = dict(_mended(mesh, request))
    return {} if "ep" in sizes else {axis: sizes.get(axis, 1) for axis in ("dp_shard", "cp", "tp")}


def _divisors_of_product(factors: Iterable[int]) -> list[int]:
    """As ``legal_degrees`` of the product, which may be beyond what it takes."""
    found = {1}
    for factor in factors:
        found = {degree * more for degree in found for more in legal_degrees(factor)}
    return sorted(found)


def _axes(mesh: MeshShape, request: ShardingRequest) -> Iterator[Violation]:
    """Axes that are missing or of another size than asked for (SHARD-6, 7)."""
    mended = _mended(mesh, request)
    advice = f"build the mesh {', '.join(f'{axis} {size}' for axis, size in mended)}"
    for axis, asked in mended:
        if mesh.size(axis) != asked:
            there = "no such axis" if mesh.size(axis) is None else f"an axis of {mesh.size(axis)}"
            facts = {"axis": axis, "asked": asked, "mesh": mesh.axes}
            yield Violation("HP-SHARD-007", f"mesh.{axis}", f"{axis} {asked}, and {there}", facts, advice)


def _mended(mesh: MeshShape, request: ShardingRequest) -> tuple[tuple[str, int], ...]:
    """The axes of the mesh with those that the request needs, cp outside of tp."""
    asked = {axis: size for axis, size in (("tp", request.tp_size), ("cp", request.cp_size)) if size > 1}
    names = [axis for axis, _ in mesh.axes]
    for axis in asked:
        if axis not in names:
            names.insert(names.index("tp") if axis == "cp" and "tp" in names else len(names), axis)
    if "ep" in names:
        asked["ep"] = request.ep_size
    return tuple((name, asked.get(name, mesh.size(name) or 1)) for name in names)


def _sequence(request: ShardingRequest) -> Iterator[Violation]:
    """A fixed length that does not divide (SHARD-8)."""
    given, tp = request.seq_len, request.tp_size
    alignment = sequence_alignment(request.cp_size, tp, request.sequence_parallel, request.cp_layout)
    if given is not None and given % alignment:
        below, above = given // alignment * alignment or None, -(-given // alignment) * alignment
        advice = f"pad to {above}" + (f", or cut to {below}" if below else "")
        facts = {"seq_len": given, "alignment": alignment, "below": below, "above": above}
        yield Violation("HP-SHARD-008", "seq_len", f"{given} is no multiple of {alignment}", facts, advice)


def _layout(facts: ModelFacts, request: ShardingRequest) -> Iterator[Violation]:
    """A layout that the model's attention cannot run (SHARD-39)."""
    cp, layout, supported = request.cp_size, request.cp_layout, facts.cp_layouts
    if cp > 1 and layout not in supported:
        can = f"runs {listed(supported)}" if supported else "runs no context parallelism"
        advice = f"use cp_layout={supported[0]!r}, or cp 1" if supported else "use cp 1"
        numbers = {"arch": facts.arch, "cp": cp, "cp_layout": layout, "supported": supported}
        yield Violation(
            "HP-SHARD-039", "cp_layout", f"{facts.arch or 'the model'} {can}, not {layout}", numbers, advice
        )


def _use(name: str, asked: int, legal: tuple[int, ...]) -> str:
    """The legal degree nearest to what was asked for, and the others."""
    best = min(legal, key=lambda degree: (abs(degree - asked), degree))
    return f"use {name} {best}, legal are {listed(legal)}"
