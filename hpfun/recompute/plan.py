"""A recompute plan: which modules are wrapped, how, and in which order.

Everything that can be wrong about it is found here, from names alone, and reported together: on a laptop, before
a model exists. The executor then wraps step by step and decides nothing. Rules RECOMPUTE-12 to RECOMPUTE-19 of
``specs/recompute.md``.
"""

from collections import Counter
from collections.abc import Sequence

import attrs

from hpfun._fields import choice_field, content_digest, kind_field, named_plan_value, names_field, values_field
from hpfun.errors import Violation, collect, refusal, refuse_all
from hpfun.matching import ancestors, inside, matches, nearest, parent_and_child
from hpfun.recompute.policy import (
    LayerContainer,
    LayerSelection,
    ModuleInfo,
    RecomputePolicy,
    Selected,
    find_exclusions,
    find_layers,
    find_roots,
    optional_name,
    select_layers,
)
from hpfun.wording import NAMES_SHOWN, listed

KINDS = ("exclude", "root")
WRAPPED_AS = {"exclude": "exclude", "root": "checkpoint"}  # a kind of step, as a module tells it


@named_plan_value
class RecomputeOptions:
    """How regions are run; each is a bool (HP-RECOMPUTE-012).

    ``swap_inputs`` keeps the inputs of regions on the host. ``enable_compile`` says that a compiled function
    encloses the wrappers. ``verify`` compares each replay with its forward, and so runs replays to their end.

    >>> RecomputeOptions(verify=True).early_stop
    False
    """

    swap_inputs: bool = kind_field(bool, "HP-RECOMPUTE-012", default=False)
    enable_compile: bool = kind_field(bool, "HP-RECOMPUTE-012", default=False)
    preserve_rng_state: bool = kind_field(bool, "HP-RECOMPUTE-012", default=True)
    early_stop: bool = kind_field(bool, "HP-RECOMPUTE-012", default=True)
    verify: bool = kind_field(bool, "HP-RECOMPUTE-012", default=False)

    digest = content_digest

    def __attrs_post_init__(self):
        if self.verify:
            object.__setattr__(self, "early_stop", False)


@named_plan_value
class WrapStep:
    """One wrap: the module ``child_name`` of the module ``parent_fqn`` becomes a root or an exclusion.

    ``save_output`` is true for roots and for exclusions whose outputs are kept. Raises HP-RECOMPUTE-012 for
    names that do not fit and HP-RECOMPUTE-014 for the model itself.

    >>> WrapStep(fqn="h.0", parent_fqn="h", child_name="0", kind="root").save_output
    True
    """

    fqn: str = kind_field(str, "HP-RECOMPUTE-012")
    parent_fqn: str = kind_field(str, "HP-RECOMPUTE-012")
    child_name: str = kind_field(str, "HP-RECOMPUTE-012")
    kind: str = choice_field(KINDS, "HP-RECOMPUTE-012")
    save_output: bool = kind_field(bool, "HP-RECOMPUTE-012", default=True)

    digest = content_digest

    def __attrs_post_init__(self):
        if not self.fqn:
            raise refusal("HP-RECOMPUTE-014", "fqn", "the model itself has no parent", "name a child", fqn="")
        if (self.parent_fqn, self.child_name) != parent_and_child(self.fqn):
            raise refusal(
                "HP-RECOMPUTE-012",
                "parent_fqn",
                f"{self.child_name} of {self.parent_fqn or 'the model'} is not {self.fqn}",
                fqn=self.fqn,
                parent_fqn=self.parent_fqn,
                child_name=self.child_name,
            )
        if self.kind == "root" and not self.save_output:
            raise refusal("HP-RECOMPUTE-012", "save_output", "a root gives its output", "exclude it", fqn=self.fqn)


@named_plan_value
class RecomputePlan:
    """What is recomputed in a model, and how it is wrapped; equal on all ranks that run the model together.

    ``layers`` were selected, ``roots`` are recomputed, ``exclusions`` inside them are not. ``wrap_order`` holds
    one step a name, exclusions first, the deepest of each kind first. ``notes`` say what was left out and why.
    Raises HP-RECOMPUTE-009, 010, 012, 014, 018.
    """

    layers: tuple[str, ...] = names_field("HP-RECOMPUTE-012")
    roots: tuple[str, ...] = names_field("HP-RECOMPUTE-012")
    exclusions: tuple[str, ...] = names_field("HP-RECOMPUTE-012")
    wrap_order: tuple[WrapStep, ...] = values_field(WrapStep, "HP-RECOMPUTE-012")
    options: RecomputeOptions = kind_field(RecomputeOptions, "HP-RECOMPUTE-012")
    notes: tuple[str, ...] = names_field("HP-RECOMPUTE-012", default=())
    on_applied: str | None = attrs.field(default=None, converter=attrs.Converter(optional_name, takes_field=True))

    digest = content_digest

    def __attrs_post_init__(self):
        refuse_all(_misfits(self))


def _misfits(plan: RecomputePlan) -> list[Violation]:
    """What a plan's parts say against one another."""
    found: list[Violation] = []

    def broken(code: str, where: str, message: str, **facts: object) -> None:
        found.append(Violation(code, where, message, facts, "make plans with plan_recompute"))

    roots, exclusions = frozenset(plan.roots), frozenset(plan.exclusions)
    if "" in roots:
        broken("HP-RECOMPUTE-014", "roots", "the model itself has no parent", fqn="")
    for fqn in sorted(exclusions & roots):
        broken("HP-RECOMPUTE-009", "exclusions", f"{fqn} is a root", fqn=fqn, root=fqn)
    for root in plan.roots:
        above = [name for name in ancestors(root) if name in exclusions]
        if above:
            broken("HP-RECOMPUTE-010", "exclusions", f"{above[0]} contains {root}", fqn=above[0], roots=(root,))
        if any(name in roots for name in ancestors(root)):
            broken("HP-RECOMPUTE-012", "roots", f"{root} lies in another root", fqn=root)
    for fqn in plan.exclusions:
        if inside(fqn, roots) is None:
            broken("HP-RECOMPUTE-012", "exclusions", f"{fqn} lies in no root", fqn=fqn)
    if plan.options.enable_compile and plan.exclusions:
        found.append(_compiled(plan.exclusions))
    if list(plan.wrap_order) != sorted(plan.wrap_order, key=_step_key):
        broken("HP-RECOMPUTE-012", "wrap_order", "not exclusions before roots, each the deepest first")
    steps = [step.fqn for step in plan.wrap_order]
    if len(set(steps)) < len(steps):
        broken("HP-RECOMPUTE-012", "wrap_order", "a name is wrapped twice", steps=len(steps), names=len(set(steps)))
    return found


def _step_key(step: WrapStep) -> tuple[bool, int, str]:
    return step.kind == "root", -step.fqn.count("."), step.fqn


def _compiled(fqns: tuple[str, ...]) -> Violation:
    return Violation(
        "HP-RECOMPUTE-018",
        "options.enable_compile",
        f"a compiled function cannot leave out {len(fqns)} exclusions: {listed(fqns)}",
        {"fqns": fqns[:NAMES_SHOWN], "exclusions": len(fqns)},
        "compile pieces inside an eager region instead, or drop the exclude patterns",
    )


def plan_recompute(
    modules: Sequence[ModuleInfo],
    policy: RecomputePolicy,
    selection: LayerSelection,
    options: RecomputeOptions | None = None,
) -> RecomputePlan:
    """The plan for a model, with all checks; every violation is in the one error, sorted by code.

    ``modules`` are all modules of the model in registration order, an object with two names twice. Raises
    HP-RECOMPUTE-002, 003 (selection), 005 (no layers to count), 007 (regions), 008, 009, 010 (exclusions), 012
    (a name twice), 013 (wrapped in the other way already), 014, 018.

    >>> names = ("", "h", "h.0", "h.0.attn", "h.0.mlp", "h.1", "h.1.attn", "h.1.mlp")
    >>> modules = [
    ...     ModuleInfo(fqn=fqn, type_name="", is_list=fqn == "h", has_marker=fqn in ("", "h.0", "h.1"), module_id=at)
    ...     for at, fqn in enumerate(names)
    ... ]
    >>> policy = RecomputePolicy(region_patterns=("h.?",), exclude_patterns=("h.*.attn",))
    >>> plan = plan_recompute(modules, policy, LayerSelection(layer_count=1))
    >>> [(step.kind, step.fqn) for step in plan.wrap_order]
    [('exclude', 'h.0.attn'), ('root', 'h.0')]
    """
    options = RecomputeOptions() if options is None else options
    modules = tuple(modules)
    _check_names(modules)
    violations: list[Violation] = []
    notes: list[str] = []
    if options.enable_compile and options.swap_inputs:
        options = attrs.evolve(options, swap_inputs=False)
        notes.append("swap_inputs is off: a compiled function keeps the inputs of its regions itself")
    containers = find_layers(modules)
    layers = _layers(modules, containers, selection, violations)
    if layers == ():  # nothing to wrap, so nothing that patterns could miss
        find_roots(modules, (), policy, violations)
        refuse_all(violations)
        return RecomputePlan(
            layers=(),
            roots=(),
            exclusions=(),
            wrap_order=(),
            options=options,
            notes=tuple(notes),
            on_applied=policy.on_applied,
        )
    roots = exclusions = Selected((), ())
    if layers:
        roots = find_roots(modules, layers, policy, violations)
        if roots.fqns:
            exclusions = find_exclusions(modules, roots.fqns, policy, violations)
    notes = [*_count_note(containers, selection), *roots.notes, *exclusions.notes, *notes]
    if options.enable_compile and exclusions.fqns:
        violations.append(_compiled(exclusions.fqns))
    unsaved = {fqn for pattern in policy.unsaved_patterns for fqn in matches(pattern, exclusions.fqns)}
    steps: list[WrapStep] = []
    steps += _steps(modules, "exclude", exclusions.fqns, unsaved, notes, violations)
    steps += _steps(modules, "root", roots.fqns, set(), notes, violations)
    refuse_all(violations)
    return RecomputePlan(
        layers=layers or (),
        roots=roots.fqns,
        exclusions=exclusions.fqns,
        wrap_order=tuple(sorted(steps, key=_step_key)),
        options=options,
        notes=tuple(notes),
        on_applied=policy.on_applied,
    )


def _check_names(modules: tuple[ModuleInfo, ...]) -> None:
    twice = [fqn for fqn, times in Counter(module.fqn for module in modules).items() if times > 1]
    if twice:
        raise refusal(
            "HP-RECOMPUTE-012",
            "modules",
            f"names given twice: {listed(twice)}",
            "pass what read_modules gives",
            fqns=tuple(twice[:NAMES_SHOWN]),
        )


def _layers(
    modules: tuple[ModuleInfo, ...],
    containers: tuple[LayerContainer, ...],
    selection: LayerSelection,
    violations: list[Violation],
) -> tuple[str, ...] | None:
    """The selected layers in registration order; None if that is refused."""
    counted = selection.layer_count if selection.layer_indices is None else len(selection.layer_indices)
    if counted and not containers:
        lists = tuple(module.fqn for module in modules if module.is_list)
        owners = tuple(module.fqn for module in modules if module.has_marker)
        violations.append(
            Violation(
                "HP-RECOMPUTE-005",
                "modules",
                f"no repeated layers: {len(owners)} modules have the attribute gradient_checkpointing, "
                f"and there are {len(lists)} module lists{': ' if lists else ''}{listed(lists)}",
                {"owners": owners[:NAMES_SHOWN], "lists": lists[:NAMES_SHOWN]},
                "select with region_fqns",
            )
        )
        return None
    layers = collect(violations, select_layers, containers, selection)
    if selection.region_fqns is None or layers is None:
        return layers
    order = {module.fqn: at for at, module in enumerate(modules)}
    for fqn in layers:
        if fqn not in order:
            near = nearest(fqn, order)
            violations.append(
                Violation(
                    "HP-RECOMPUTE-007",
                    "region_fqns",
                    f"{fqn} is no module",
                    {"pattern": fqn, "nearest": near},
                    f"nearest: {listed(near)}",
                )
            )
    known = sorted((fqn for fqn in layers if fqn in order), key=order.__getitem__)
    return tuple(known) if known or not layers else None


def _count_note(containers: tuple[LayerContainer, ...], selection: LayerSelection) -> list[str]:
    """What a count takes, where layers of several kinds stand one after the other."""
    if not selection.layer_count or len(containers) < 2:
        return []
    left, parts = selection.layer_count, []
    for container in containers:
        taken = min(left, len(container.layers))
        left -= taken
        parts.append(f"{taken} of {len(container.layers)} in {container.fqn}")
    return [f"layer_count {selection.layer_count} takes {', '.join(parts)}"]


def _steps(
    modules: tuple[ModuleInfo, ...],
    kind: str,
    fqns: tuple[str, ...],
    unsaved: set[str],
    notes: list[str],
    violations: list[Violation],
) -> list[WrapStep]:
    """A step for every name of every chosen object that is not wrapped yet."""
    by_fqn = {module.fqn: module for module in modules}
    names: dict[int, list[str]] = {}
    for module in modules:
        names.setdefault(module.module_id, []).append(module.fqn)
    known = frozenset(fqns)
    chosen: dict[str, bool] = {}  # name: whether the output is kept
    for fqn in fqns:
        for name in names[by_fqn[fqn].module_id]:
            chosen[name] = chosen.get(name, True) and fqn not in unsaved
            if name not in known:
                notes.append(f"{name} is {fqn} under another name: {WRAPPED_AS[kind]} too")
    found = []
    for fqn, save_output in chosen.items():
        wrapped = by_fqn[fqn].wrapped
        if wrapped == WRAPPED_AS[kind]:
            notes.append(f"{fqn} is wrapped already")
        elif wrapped != "none":
            violations.append(
                Violation(
                    "HP-RECOMPUTE-013",
                    "modules",
                    f"{fqn} is to be {kind}, and is wrapped as {wrapped}",
                    {"fqn": fqn, "kind": wrapped},
                    "call Applied.remove() of the earlier plan first",
                )
            )
        elif fqn:
            parent, child = parent_and_child(fqn)
            found.append(WrapStep(fqn=fqn, parent_fqn=parent, child_name=child, kind=kind, save_output=save_output))
    return found
