"""Which modules become regions that are recomputed, and which parts of them are not replayed.

A user names patterns and selects layers; the model is a list of names (``ModuleInfo``), so nothing here needs
the model. A **layer** is a member of a repeated container, a **root** is a module that a checkpoint wraps, and
its calls are a **region**; an **exclusion** is a module inside a root that the replay does not run again. Rules
RECOMPUTE-1 to RECOMPUTE-11 of ``specs/recompute.md``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from hpfun._fields import (
    choice_field,
    content_digest,
    integer,
    integer_field,
    kind_field,
    named_plan_value,
    names,
    names_field,
)
from hpfun.errors import Violation, refusal, refuse_all
from hpfun.matching import ancestors, inside, matches, nearest, parent_and_child
from hpfun.wording import NAMES_SHOWN, listed

WRAPPED = ("none", "checkpoint", "exclude")


def optional_name(value: object, field: attrs.Attribute) -> str | None:
    """A field's value that is a name or None."""
    if value is None or type(value) is str:
        return value
    got = repr(value)[:60]
    raise refusal("HP-RECOMPUTE-012", field.name, f"needs a name or None, got {got}", "functions go to the executor")


@named_plan_value
class RecomputePolicy:
    """Patterns of regions and of exclusions, matched against whole names (``hpfun.matching``).

    ``unsaved_patterns`` are among the exclusions those whose outputs are not kept either: nothing in the replay
    may read them. ``on_applied`` names a hook of the executor that runs after all wraps. Raises
    HP-RECOMPUTE-007 for no region pattern, HP-RECOMPUTE-008 and HP-RECOMPUTE-012 for what is no name.

    >>> RecomputePolicy(region_patterns=("model.layers.*",)).exclude_patterns
    ()
    """

    region_patterns: tuple[str, ...] = names_field("HP-RECOMPUTE-007")
    exclude_patterns: tuple[str, ...] = names_field("HP-RECOMPUTE-008", default=())
    unsaved_patterns: tuple[str, ...] = names_field("HP-RECOMPUTE-008", default=())
    on_applied: str | None = attrs.field(default=None, converter=attrs.Converter(optional_name, takes_field=True))

    digest = content_digest

    def __attrs_post_init__(self):
        if not self.region_patterns:
            raise refusal(
                "HP-RECOMPUTE-007", "region_patterns", "no pattern", "name the modules to recompute", pattern=()
            )


def _count(value: object) -> int | None:
    return None if value is None else integer(value, "layer_count", "HP-RECOMPUTE-002", least=0)


def _indices(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        got = repr(value)[:60]
        raise refusal("HP-RECOMPUTE-003", "layer_indices", f"needs a sequence of integers, got {got}", indices=got)
    found = [integer(index, "layer_indices", "HP-RECOMPUTE-003") for index in value]
    wrong = tuple(sorted(index for index, times in Counter(found).items() if index < 0 or times > 1))
    if wrong:
        raise refusal(
            "HP-RECOMPUTE-003",
            "layer_indices",
            f"negative or given twice: {listed(wrong)}",
            "count from 0, each index once",
            indices=wrong,
        )
    return tuple(found)


def _fqns(value: object, field: attrs.Attribute) -> tuple[str, ...] | None:
    return None if value is None else names(value, field.name, "HP-RECOMPUTE-007")


@named_plan_value
class LayerSelection:
    """Which layers take part: the first ``layer_count``, those of ``layer_indices``, or modules by name.

    Exactly one is given (HP-RECOMPUTE-001). Bad counts are HP-RECOMPUTE-002, bad or repeated indices
    HP-RECOMPUTE-003, what is no name HP-RECOMPUTE-007; whether they fit the model is seen when layers are selected.

    >>> LayerSelection(layer_indices=(3, 1)).layer_indices
    (3, 1)
    """

    layer_count: int | None = attrs.field(default=None, converter=_count)
    layer_indices: tuple[int, ...] | None = attrs.field(default=None, converter=_indices)
    region_fqns: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.Converter(_fqns, takes_field=True))

    digest = content_digest

    def __attrs_post_init__(self):
        given = tuple(a.name for a in attrs.fields(type(self)) if getattr(self, a.name) is not None)
        if len(given) != 1:
            got = " and ".join(given) or "nothing"
            raise refusal(
                "HP-RECOMPUTE-001",
                "selection",
                f"got {got}",
                f"keep {given[0]} alone" if given else "pass layer_count, layer_indices or region_fqns",
                given=given,
            )


@named_plan_value
class ModuleInfo:
    """What a plan needs to know of one module; equal ``module_id`` means one shared object.

    ``has_marker``: the module has an attribute ``gradient_checkpointing``, as layers of transformers have and
    the models that own them. Raises HP-RECOMPUTE-012.

    >>> ModuleInfo(fqn="layers", type_name="ModuleList", is_list=True, has_marker=False, module_id=1).wrapped
    'none'
    """

    fqn: str = kind_field(str, "HP-RECOMPUTE-012")
    type_name: str = kind_field(str, "HP-RECOMPUTE-012")
    is_list: bool = kind_field(bool, "HP-RECOMPUTE-012")
    has_marker: bool = kind_field(bool, "HP-RECOMPUTE-012")
    wrapped: str = choice_field(WRAPPED, "HP-RECOMPUTE-012", default="none")
    module_id: int = integer_field("HP-RECOMPUTE-012", most=None)

    digest = content_digest


@named_plan_value
class LayerContainer:
    """A module list of layers, and the layers' names in their order."""

    fqn: str = kind_field(str, "HP-RECOMPUTE-012")
    layers: tuple[str, ...] = names_field("HP-RECOMPUTE-012")

    digest = content_digest


def find_layers(modules: Sequence[ModuleInfo]) -> tuple[LayerContainer, ...]:
    """The repeated containers of a model in registration order; () if there are none.

    A container is a module list right below a module with the marker; it is not empty, and all its members have
    the marker. Nothing inside a layer is looked at, and a container with two names counts once, by its first.

    >>> def module(fqn, is_list=False, has_marker=True):
    ...     return ModuleInfo(fqn=fqn, type_name="", is_list=is_list, has_marker=has_marker, module_id=hash(fqn))
    >>> find_layers((module(""), module("h", True, False), module("h.0"), module("h.1")))[0].layers
    ('h.0', 'h.1')
    """
    children: dict[str, list[ModuleInfo]] = {}
    for module in modules:
        if module.fqn:
            children.setdefault(parent_and_child(module.fqn)[0], []).append(module)
    marked = {module.fqn for module in modules if module.has_marker}
    found: list[LayerContainer] = []
    seen: set[int] = set()
    layers: set[str] = set()
    for module in modules:
        members = children.get(module.fqn, ())
        if not module.is_list or not members or not all(member.has_marker for member in members):
            continue
        if parent_and_child(module.fqn)[0] not in marked or not module.fqn:
            continue
        if inside(module.fqn, layers) is not None or module.module_id in seen:
            continue
        seen.add(module.module_id)
        found.append(LayerContainer(fqn=module.fqn, layers=tuple(member.fqn for member in members)))
        layers.update(found[-1].layers)
    return tuple(found)


def select_layers(containers: Sequence[LayerContainer], selection: LayerSelection) -> tuple[str, ...]:
    """Names of the selected layers in registration order, whatever order they were asked for in.

    A count and indices run over the layers of all containers, one container after the other. Raises
    HP-RECOMPUTE-002 for a count above the layers and HP-RECOMPUTE-003 for indices out of range. Names that are
    no layers come last; whether they exist is not known here.

    >>> layers = (LayerContainer(fqn="h", layers=("h.0", "h.1", "h.2")),)
    >>> select_layers(layers, LayerSelection(layer_indices=(2, 0)))
    ('h.0', 'h.2')
    """
    layers = [layer for container in containers for layer in container.layers]
    count, indices = selection.layer_count, selection.layer_indices
    if count is not None:
        if count > len(layers):
            raise refusal(
                "HP-RECOMPUTE-002",
                "layer_count",
                f"{count} of {len(layers)} layers",
                f"use 0..{len(layers)}",
                count=count,
                layers=len(layers),
            )
        return tuple(layers[:count])
    if indices is not None:
        wrong = tuple(index for index in sorted(indices) if index >= len(layers))
        if wrong:
            raise refusal(
                "HP-RECOMPUTE-003",
                "layer_indices",
                f"out of range: {listed(wrong)}; there are {len(layers)} layers",
                f"use 0..{len(layers) - 1}" if layers else "use region_fqns",
                indices=wrong,
                max=len(layers) - 1,
            )
        return tuple(layers[index] for index in sorted(indices))
    order = {layer: place for place, layer in enumerate(layers)}
    return tuple(sorted(dict.fromkeys(selection.region_fqns or ()), key=lambda fqn: order.get(fqn, len(order))))


@attrs.frozen
class Selected:
    """Names that were chosen, and what a reader of the plan should know about those that were not."""

    fqns: tuple[str, ...]
    notes: tuple[str, ...]


def select_roots(modules: Sequence[ModuleInfo], layers: Sequence[str], policy: RecomputePolicy) -> tuple[str, ...]:
    """Outermost matches of the region patterns at or below the layers, in registration order.

    Raises HP-RECOMPUTE-007 for a pattern that matches nothing in the model, or where no root is left although
    there are layers, and HP-RECOMPUTE-014 where the model itself would be a root.

    >>> modules = [
    ...     ModuleInfo(fqn=fqn, type_name="", is_list=False, has_marker=False, module_id=at)
    ...     for at, fqn in enumerate(("", "h", "h.0", "h.0.mlp", "h.1", "h.1.mlp"))
    ... ]
    >>> select_roots(modules, ("h.1",), RecomputePolicy(region_patterns=("h.*.mlp", "h.?")))
    ('h.1',)
    """
    violations: list[Violation] = []
    found = find_roots(modules, layers, policy, violations)
    refuse_all(violations)
    return found.fqns


def find_roots(
    modules: Sequence[ModuleInfo], layers: Sequence[str], policy: RecomputePolicy, violations: list[Violation]
) -> Selected:
    """What ``select_roots`` gives, with notes; what it refuses joins ``violations``."""
    fqns = [module.fqn for module in modules]
    by_pattern = {pattern: matches(pattern, fqns) for pattern in policy.region_patterns}
    for pattern, found in by_pattern.items():
        if not found:
            violations.append(_matches_nothing("HP-RECOMPUTE-007", "region_patterns", pattern, fqns))
    chosen = frozenset(layers)
    candidates = {
        pattern: [fqn for fqn in found if inside(fqn, chosen) is not None] for pattern, found in by_pattern.items()
    }
    selected = _outermost(fqns, candidates)
    if chosen and not selected.fqns and all(by_pattern.values()):
        patterns = policy.region_patterns
        violations.append(
            refusal(
                "HP-RECOMPUTE-007",
                "region_patterns",
                f"no match at or below the {len(chosen)} selected layers",
                f"select layers around {listed(by_pattern[patterns[0]])}",
                pattern=patterns,
                nearest=nearest(layers[0], by_pattern[patterns[0]]),
                layers=tuple(layers)[:NAMES_SHOWN],
            ).violations[0]
        )
    if "" in selected.fqns:
        violations.append(
            Violation(
                "HP-RECOMPUTE-014",
                "region_patterns",
                "the model itself has no parent to wrap it in",
                {"fqn": ""},
                "name a child",
            )
        )
    return selected


def select_exclusions(modules: Sequence[ModuleInfo], roots: Sequence[str], policy: RecomputePolicy) -> tuple[str, ...]:
    """Outermost matches of the exclude patterns below the roots, in registration order.

    Raises HP-RECOMPUTE-008 for each pattern that matches nothing there, HP-RECOMPUTE-009 for a match that is a
    root, HP-RECOMPUTE-010 for one that contains a root, by name or because they share an object.

    >>> modules = [
    ...     ModuleInfo(fqn=fqn, type_name="", is_list=False, has_marker=False, module_id=at)
    ...     for at, fqn in enumerate(("", "h", "h.0", "h.0.attn", "h.1", "h.1.attn"))
    ... ]
    >>> policy = RecomputePolicy(region_patterns=("h.?",), exclude_patterns=("*.attn",))
    >>> select_exclusions(modules, ("h.1",), policy)
    ('h.1.attn',)
    """
    violations: list[Violation] = []
    found = find_exclusions(modules, roots, policy, violations)
    refuse_all(violations)
    return found.fqns


def find_exclusions(
    modules: Sequence[ModuleInfo], roots: Sequence[str], policy: RecomputePolicy, violations: list[Violation]
) -> Selected:
    """What ``select_exclusions`` gives, with notes; what it refuses joins ``violations``."""
    fqns = [module.fqn for module in modules]
    chosen = frozenset(roots)
    above_roots = {name for root in roots for name in ancestors(root)} - chosen
    candidates: dict[str, list[str]] = {}
    containing: dict[str, list[str]] = {}
    for pattern in dict.fromkeys((*policy.exclude_patterns, *policy.unsaved_patterns)):
        found = matches(pattern, fqns)
        candidates[pattern] = [fqn for fqn in found if inside(fqn, chosen) is not None]
        above = [fqn for fqn in found if fqn in above_roots]
        containing |= {fqn: [root for root in roots if fqn in ancestors(root)] for fqn in above}
        if not found:
            violations.append(_matches_nothing("HP-RECOMPUTE-008", "exclude_patterns", pattern, fqns, outside=()))
        elif not candidates[pattern] and not above and roots:
            violations.append(
                Violation(
                    "HP-RECOMPUTE-008",
                    "exclude_patterns",
                    f"{pattern} matches nothing inside the roots, but {len(found)} modules outside: {listed(found)}",
                    {"pattern": pattern, "outside": found[:NAMES_SHOWN]},
                    "widen the roots or the selected layers, or drop the pattern",
                )
            )
    selected = _outermost(fqns, candidates)
    violations += _clashes(modules, roots, selected.fqns, containing)
    return selected


def _clashes(
    modules: Sequence[ModuleInfo], roots: Sequence[str], exclusions: Sequence[str], containing: dict[str, list[str]]
) -> list[Violation]:
    """Exclusions that are roots or contain one, as objects as well; ``containing`` are matches above roots."""
    ids = {module.fqn: module.module_id for module in modules}
    root_ids = {ids[root]: root for root in reversed(roots) if root in ids}
    excluded = frozenset(exclusions)
    held = {fqn: list(inner) for fqn, inner in containing.items()}
    violations = []
    for fqn in ids:  # an object may be a root under one name and lie in an exclusion under another
        outer = inside(fqn, excluded) if ids[fqn] in root_ids else None
        if outer is None:
            continue
        root = root_ids[ids[fqn]]
        if outer != fqn:
            held.setdefault(outer, []).append(root)
            continue
        same = "" if root == fqn else f", the object of root {root}"
        violations.append(
            Violation(
                "HP-RECOMPUTE-009",
                "exclude_patterns",
                f"{fqn} is a root{same}",
                {"fqn": fqn, "root": root},
                "exclude one of its children, or take it from the region patterns",
            )
        )
    return violations + [_contains(fqn, tuple(dict.fromkeys(inner))) for fqn, inner in held.items()]


def _contains(fqn: str, roots: tuple[str, ...]) -> Violation:
    return Violation(
        "HP-RECOMPUTE-010",
        "exclude_patterns",
        f"{fqn or 'the model'} contains {len(roots)} roots: {listed(roots)}",
        {"fqn": fqn, "roots": roots[:NAMES_SHOWN]},
        "make the outer one the root and the inner one the exclusion",
    )


def _outermost(fqns: Sequence[str], by_pattern: dict[str, list[str]]) -> Selected:
    """Matches that lie in no other match; a pattern whose own match contains another of its matches needs no note."""
    found = {fqn for matched in by_pattern.values() for fqn in matched}
    outer = {fqn: top for fqn in found if (top := _outermost_above(fqn, found)) is not None}
    sets = [frozenset(matched) for matched in by_pattern.values()]
    notes = [
        f"{fqn} inside {outer[fqn]}"
        for fqn in fqns
        if fqn in outer and any(fqn in matched and outer[fqn] not in matched for matched in sets)
    ]
    return Selected(tuple(dict.fromkeys(fqn for fqn in fqns if fqn in found and fqn not in outer)), tuple(notes))


def _outermost_above(fqn: str, found: set[str]) -> str | None:
    return next((name for name in reversed(ancestors(fqn)) if name in found), None)


def _matches_nothing(code: str, where: str, pattern: str, fqns: Sequence[str], **facts: object) -> Violation:
    near = nearest(pattern, fqns)
    facts = {"pattern": pattern, "nearest": near, **facts}
    return Violation(code, where, f"{pattern} matches no module", facts, f"nearest: {listed(near)}")
