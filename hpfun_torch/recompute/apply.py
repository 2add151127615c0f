"""A recompute plan, applied to a model, and taken off again.

All is checked first, on every rank; then the steps are taken in their order. Rules RECOMPUTE-12, RECOMPUTE-13,
RECOMPUTE-16, RECOMPUTE-17 and RECOMPUTE-35 of ``specs/recompute.md``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
import torch.distributed as dist

from hpfun import PlanError, Violation, attempt
from hpfun.errors import refusal, refuse_all
from hpfun.matching import nearest
from hpfun.recompute import RecomputePlan
from hpfun.recompute.plan import WRAPPED_AS
from hpfun.wording import listed
from hpfun_torch.agree import compare
from hpfun_torch.recompute.exclusion import Exclusion
from hpfun_torch.recompute.forward import MARKER, ReplacedForward, named
from hpfun_torch.recompute.modules import logical_modules, wrapped_kind
from hpfun_torch.recompute.region import as_region

Hook = Callable[[torch.nn.Module, RecomputePlan], None]


@attrs.frozen(eq=False)
class Applied:
    """What ``apply_recompute`` did to a model, to be undone; ``wrapped`` are the names that it wrapped itself."""

    plan: RecomputePlan
    wrapped: tuple[str, ...]
    _forwards: tuple[ReplacedForward, ...]
    _switched_off: tuple[torch.nn.Module, ...]

    def remove(self) -> None:
        """Give all modules their forwards back, and switch the model's own checkpointing on again where it was."""
        for forward in reversed(self._forwards):
            forward.restore()
        for module in self._switched_off:
            setattr(module, MARKER, True)


def apply_recompute(
    model: torch.nn.Module,
    plan: RecomputePlan,
    *,
    hooks: Mapping[str, Hook] | None = None,
    context_fn: Callable[[], Any] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Applied:
    """Wrap the regions and exclusions of a plan; parameters, names and ``state_dict`` stay as they are.

    The model's own checkpointing is switched off first. ``hooks`` has the function that ``plan.on_applied`` names,
    called with model and plan after all wraps; ``context_fn`` is a selective policy for all regions. With ``group``,
    which every rank then passes, ranks whose plans differ all raise HP-RECOMPUTE-035, and one rank's refusal
    reaches all. Raises HP-RECOMPUTE-013 for modules that are wrapped in the other way, and HP-RECOMPUTE-017 for a
    plan of another model or a hook that is missing; the model is then as it was.

    >>> from hpfun.recompute import LayerSelection, RecomputePolicy, plan_recompute
    >>> from hpfun_torch.recompute import read_modules
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> policy = RecomputePolicy(region_patterns=("0",))
    >>> plan = plan_recompute(read_modules(model), policy, LayerSelection(region_fqns=("0",)))
    >>> applied = apply_recompute(model, plan)
    >>> applied.wrapped, list(model.state_dict())
    (('0',), ['0.weight', '0.bias'])
    >>> applied.remove()
    """
    hooks = hooks or {}
    found, outcome = attempt(_modules, model, plan, hooks)
    if group is not None:
        _same_plan(plan, outcome, group)
    if found is None:
        raise outcome.error()
    switched_off = tuple(module for module in model.modules() if getattr(module, MARKER, False) is True)
    for module in switched_off:
        setattr(module, MARKER, False)
    wrapped: list[str] = []
    forwards: list[ReplacedForward] = []
    for step, module in zip(plan.wrap_order, found, strict=True):
        if wrapped_kind(module) != "none":  # by an earlier plan, or under another name by this one
            continue
        if step.kind == "root":
            as_region(module, plan.options, context_fn, step.fqn)
        else:
            save = step.save_output
            named(module, Exclusion.kind, lambda *given, save=save: Exclusion(*given, save), step.fqn)
        wrapped.append(step.fqn)
        forwards.append(vars(module)["forward"])
    applied = Applied(plan, tuple(wrapped), tuple(forwards), switched_off)
    if plan.on_applied is not None and wrapped:
        try:
            hooks[plan.on_applied](model, plan)
        except BaseException:
            applied.remove()
            raise
    return applied


def _modules(model: torch.nn.Module, plan: RecomputePlan, hooks: Mapping[str, Hook]) -> list[torch.nn.Module]:
    """The module of each step, looked up before anything changes; all that is wrong at once."""
    if type(plan) is not RecomputePlan:
        got = type(plan).__name__
        raise refusal("HP-RECOMPUTE-017", "plan", f"got {got}", "pass what plan_recompute gives", type=got)
    by_fqn = logical_modules(model)
    violations: list[Violation] = []
    found: list[torch.nn.Module] = []
    kinds: dict[int, str] = {}
    for step in plan.wrap_order:
        if step.fqn not in by_fqn:
            near = nearest(step.fqn, by_fqn)
            facts = {"fqn": step.fqn, "nearest": near}
            message = f"the model has no {step.fqn}"
            advice = f"plan for this model; nearest: {listed(near)}"
            violations.append(Violation("HP-RECOMPUTE-017", "plan.wrap_order", message, facts, advice))
            continue
        module = by_fqn[step.fqn][0]
        kind = WRAPPED_AS[step.kind]
        already = kinds.setdefault(id(module), wrapped_kind(module))
        kinds[id(module)] = kind if already == "none" else already
        if kinds[id(module)] != kind:
            facts = {"fqn": step.fqn, "kind": already}
            message = f"{step.fqn} is to be {step.kind}, and is wrapped as {already}"
            violations.append(Violation("HP-RECOMPUTE-013", "model", message, facts, "Applied.remove() first"))
        if getattr(module, "_compiled_call_impl", None) is not None and not plan.options.enable_compile:
            facts = {"fqns": (step.fqn,), "exclusions": len(plan.exclusions)}
            message = f"{step.fqn}.compile() was called: the compiled function encloses the wrap"
            advice = "pass torch.compile(module) to its parent instead, which the wrap then encloses"
            violations.append(Violation("HP-RECOMPUTE-018", "model", message, facts, advice))
        found.append(module)
    if plan.on_applied is not None and plan.on_applied not in hooks:
        facts = {"hook": plan.on_applied, "hooks": tuple(hooks)}
        message = f"no hook {plan.on_applied}"
        advice = f"pass hooks={{{plan.on_applied!r}: function}}"
        violations.append(Violation("HP-RECOMPUTE-017", "hooks", message, facts, advice))
    refuse_all(violations)
    return found


def _same_plan(plan: RecomputePlan, outcome: Any, group: dist.ProcessGroup) -> None:
    """Every rank of the group with an equal plan, or one error on all."""
    mark, told = (plan.digest, _told(plan)) if outcome.ok else ("", {})
    try:
        compare(outcome, mark, told, group, "HP-RECOMPUTE-035", "plan")
    except PlanError as error:
        if error.code != "HP-RECOMPUTE-035":
            raise
        facts: dict[str, Any] = dict(error.facts)
        first = facts["fields"][0]
        raise refusal(
            "HP-RECOMPUTE-035",
            "plan",
            f"ranks differ first in {first}: {listed(facts['values'][first])}",
            "give every rank of the group one plan",
            ranks=facts["odd_ranks"],
            first_difference=first,
            values=facts["values"][first],
        ) from None


def _told(plan: RecomputePlan) -> dict[str, str]:
    """What ranks must have in common, by name."""
    steps = {f"wrap_order[{step.fqn}]": f"{step.kind}, save_output={step.save_output}" for step in plan.wrap_order}
    options = {f"options.{name}": str(value) for name, value in attrs.asdict(plan.options).items()}
    others = {"layers": plan.layers, "on_applied": plan.on_applied, "notes": plan.notes}
    return {**options, **{name: repr(value) for name, value in others.items()}, **steps}
