"""Mutants of the rules of ``specs/recompute.md``."""

from tests.mutants.mutant import Mutant

MATCHING = "hpfun/matching.py"
POLICY = "hpfun/recompute/policy.py"
PLAN = "hpfun/recompute/plan.py"
BUDGET = "hpfun/recompute/budget.py"
KNAPSACK = "hpfun/recompute/knapsack.py"
RELEASE = "hpfun/recompute/release.py"
WORDS = "hpfun/recompute/words.py"
INVOCATION = "hpfun_torch/recompute/invocation.py"
EXCLUSION = "hpfun_torch/recompute/exclusion.py"
FORWARD = "hpfun_torch/recompute/forward.py"
REGION = "hpfun_torch/recompute/region.py"
SHARED = "hpfun_torch/recompute/shared.py"
APPLY = "hpfun_torch/recompute/apply.py"
MODULES = "hpfun_torch/recompute/modules.py"
MEASURE = "hpfun_torch/recompute/measure.py"
PLACEHOLDER = "hpfun_torch/recompute/placeholder.py"

MUTANTS = [
    Mutant("MATCH-1", MATCHING, "re.compile(translate(pattern)).match", "re.compile(translate(pattern)).search"),
    Mutant("MATCH-1", MATCHING, "re.compile(translate(pattern))", "re.compile(translate(pattern), re.IGNORECASE)"),
    Mutant("MATCH-2", MATCHING, "return matcher.ratio()", "return -matcher.ratio()"),
    Mutant("RECOMPUTE-1", POLICY, "if len(given) != 1:", "if len(given) > 1:"),
    Mutant("RECOMPUTE-2", POLICY, "tuple(layers[:count])", "tuple(layers[-count:])"),
    Mutant("RECOMPUTE-2", POLICY, "if count > len(layers):", "if count > len(layers) + 1:"),
    Mutant("RECOMPUTE-3", POLICY, "if index < 0 or times > 1", "if index < 0"),
    Mutant(
        "RECOMPUTE-3",
        POLICY,
        "tuple(layers[index] for index in sorted(indices))",
        "tuple(layers[index] for index in indices)",
    ),
    Mutant(
        "RECOMPUTE-4",
        POLICY,
        "or not all(member.has_marker for member in members)",
        "or not any(m.has_marker for m in members)",
    ),
    Mutant("RECOMPUTE-4", POLICY, "is not None or module.module_id in seen", "is not None"),
    Mutant("RECOMPUTE-5", PLAN, "if counted and not containers:", "if counted and not containers and not modules:"),
    Mutant(
        "RECOMPUTE-6",
        POLICY,
        "for name in reversed(ancestors(fqn)) if name in found",
        "for name in () if name in found",
    ),
    Mutant("RECOMPUTE-6", POLICY, "any(fqn in matched and outer[fqn] not in matched for matched in sets)", "True"),
    Mutant("RECOMPUTE-7", POLICY, "if chosen and not selected.fqns and", "if not chosen and not selected.fqns and"),
    Mutant(
        "RECOMPUTE-8",
        POLICY,
        "candidates[pattern] = [fqn for fqn in found if inside(fqn, chosen) is not None]",
        "candidates[pattern] = list(found)",
    ),
    Mutant("RECOMPUTE-8", POLICY, "and not above and roots:", "and not above and not roots:"),
    Mutant("RECOMPUTE-9", POLICY, "root = root_ids[ids[fqn]]\n", "root = fqn\n"),
    Mutant("RECOMPUTE-9", POLICY, "        if outer != fqn:\n", "        if outer:\n"),
    Mutant("RECOMPUTE-10", POLICY, "held.setdefault(outer, []).append(root)", "pass"),
    Mutant("RECOMPUTE-10", POLICY, "above = [fqn for fqn in found if fqn in above_roots]", "above = []"),
    Mutant("RECOMPUTE-11", PLAN, "for name in names[by_fqn[fqn].module_id]:", "for name in [fqn]:"),
    Mutant(
        "RECOMPUTE-12",
        PLAN,
        'return step.kind == "root", -step.fqn.count("."), step.fqn',
        'return step.kind == "root", step.fqn.count("."), step.fqn',
    ),
    Mutant("RECOMPUTE-12", PLAN, 'return step.kind == "root", -step', 'return step.kind != "root", -step'),
    Mutant("RECOMPUTE-13", PLAN, "if wrapped == WRAPPED_AS[kind]:", "if wrapped != 'none':"),
    Mutant("RECOMPUTE-13", APPLY, 'if wrapped_kind(module) != "none":', "if False:"),
    Mutant("RECOMPUTE-14", POLICY, 'if "" in selected.fqns:', 'if "" in layers and not modules:'),
    Mutant("RECOMPUTE-15", PLAN, "        if roots.fqns:\n", "        if roots.fqns and not violations:\n"),
    Mutant(
        "RECOMPUTE-16",
        FORWARD,
        "    module.__dict__[FORWARD] = make(module.forward, module, told)",
        "    module.inner = make(module.forward, module, told)\n    module.wrapper = torch.nn.Identity()",
    ),
    Mutant(
        "RECOMPUTE-16",
        FORWARD,
        "        self.inner = inner\n        self.module = module\n",
        "        self.inner = lambda *a, **k: inner(*a, **k)\n        self.module = module\n",
    ),
    Mutant("RECOMPUTE-17", APPLY, "        setattr(module, MARKER, False)", "        pass"),
    Mutant("RECOMPUTE-17", APPLY, "and wrapped:\n", "and not wrapped:\n"),
    Mutant(
        "RECOMPUTE-18",
        PLAN,
        "options = attrs.evolve(options, swap_inputs=False)",
        "options = attrs.evolve(options, early_stop=False)",
    ),
    Mutant(
        "RECOMPUTE-18",
        PLAN,
        "if options.enable_compile and exclusions.fqns:",
        "if options.enable_compile and not exclusions.fqns:",
    ),
    Mutant("RECOMPUTE-18", REGION, "if options.enable_compile:", "if not options.enable_compile:"),
    Mutant("RECOMPUTE-19", REGION, "tensor.is_floating_point() and ", ""),
    Mutant("RECOMPUTE-19", REGION, "tensor.nbytes >= SMALL_BYTES", "tensor.nbytes > SMALL_BYTES"),
    Mutant(
        "RECOMPUTE-20",
        EXCLUSION,
        "return self.tensor.detach().requires_grad_(self.requires_grad)",
        "return self.tensor.detach()",
    ),
    Mutant("RECOMPUTE-21", EXCLUSION, "        if replaying:\n", "        if replaying and not replaying:\n"),
    Mutant("RECOMPUTE-22", INVOCATION, "self.calls[exclusion] = ordinal + 1", "self.calls[exclusion] = ordinal"),
    Mutant("RECOMPUTE-23", RELEASE, "read_from = micro_batch if excluded", "read_from = micro_batch if not excluded"),
    Mutant("RECOMPUTE-23", INVOCATION, "dict[tuple[Any, int], Any] = {}", "Any = Invocation.contexts.__dict__"),
    Mutant("RECOMPUTE-24", EXCLUSION, "        if restore_random:\n", "        if not restore_random:\n"),
    Mutant(
        "RECOMPUTE-25",
        EXCLUSION,
        "    return tensor.detach(), _version(tensor)\n",
        "    return tensor, _version(tensor)\n",
    ),
    Mutant("RECOMPUTE-30", EXCLUSION, "    if _version(tensor) != version:\n", "    if False:\n"),
    Mutant("RECOMPUTE-44", "hpfun_torch/recompute/caches.py", "if arguments.get(name) is not None}", "if not name}"),
    Mutant(
        "RECOMPUTE-25",
        EXCLUSION,
        "            result = record.replayed(",
        "            del phase.invocation.records[self, ordinal]\n            result = record.replayed(",
    ),
    Mutant(
        "RECOMPUTE-26",
        INVOCATION,
        "    return stack[start:]",
        "    return tuple(entry for entry in stack if entry is not _EXCLUDED)",
    ),
    Mutant(
        "RECOMPUTE-26",
        EXCLUSION,
        "            if not phase.replaying:\n",
        "            if not phase.replaying and not replaying:\n",
    ),
    Mutant(
        "RECOMPUTE-27",
        EXCLUSION,
        "for phase in phases for mode in phase.modes]",
        "for phase in () for mode in phase.modes]",
    ),
    Mutant("RECOMPUTE-27", EXCLUSION, "for mode in reversed(disabled) if mode not in modes]", "for mode in ()]"),
    Mutant("RECOMPUTE-30", EXCLUSION, "if not self.written:", "if self.written:"),
    Mutant("RECOMPUTE-43", EXCLUSION, "if learning and sources:", "if learning and not sources:"),
    Mutant("RECOMPUTE-28", SHARED, "    if is_recomputing():\n        return False\n", ""),
    Mutant("RECOMPUTE-28", SHARED, "    if key in store:\n", "    if key in store and not store:\n"),
    Mutant(
        "RECOMPUTE-29",
        INVOCATION,
        "return phases[-1].invocation if phases else None",
        "return Invocation() if phases else None",
    ),
    Mutant("RECOMPUTE-30", EXCLUSION, "self.tensor._version != self.version", "self.tensor._version < self.version"),
    Mutant("RECOMPUTE-31", PLACEHOLDER, "if func is torch.ops.aten.detach.default:", "if func is not None:"),
    Mutant("RECOMPUTE-31", PLACEHOLDER, "strides=like.stride,", ""),
    Mutant(
        "RECOMPUTE-32",
        EXCLUSION,
        "record = records.get((self, ordinal))",
        "record = records.get((self, ordinal), next(iter(records.values())))",
    ),
    Mutant("RECOMPUTE-33", INVOCATION, "if kind is None and self.replaying and self.invocation.verify:", "if False:"),
    Mutant(
        "RECOMPUTE-33",
        PLAN,
        'object.__setattr__(self, "early_stop", False)',
        'object.__setattr__(self, "early_stop", True)',
    ),
    Mutant(
        "RECOMPUTE-34",
        EXCLUSION,
        "isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]\n        self",
        "isinstance(leaf, torch.Tensor) else None for leaf in leaves]\n        self",
    ),
    Mutant("RECOMPUTE-35", APPLY, "    if group is not None:\n", "    if group is not None and outcome.ok:\n"),
    Mutant("RECOMPUTE-35", APPLY, "        compare(outcome, mark, told,", "        compare(outcome, '', {},"),
    Mutant("RECOMPUTE-36", EXCLUSION, "        if replaying:\n", "        if replaying and self.name != 'route':\n"),
    Mutant(
        "RECOMPUTE-37",
        RELEASE,
        "last[entry] = max(last[entry], layer)",
        "last[entry] = min(max(last[entry], entry[1]), layer)",
    ),
    Mutant("RECOMPUTE-37", RELEASE, "elif layer < entry[1]:", "elif layer < entry[1] - 1:"),
    Mutant("RECOMPUTE-37", RELEASE, "if layer in again:", "if layer in again and not again:"),
    Mutant("RECOMPUTE-38", BUDGET, "live_bytes=held_so_far + transient,", "live_bytes=held_so_far,"),
    Mutant(
        "RECOMPUTE-38",
        BUDGET,
        "host_bytes=size.input_bytes if recomputed and swap_inputs else 0,",
        "host_bytes=size.input_bytes if swap_inputs else 0,",
    ),
    Mutant("RECOMPUTE-39", KNAPSACK, "new_ranks = ranks[came] * 2 + took", "new_ranks = ranks[came] * 2 - took"),
    Mutant(
        "RECOMPUTE-39", KNAPSACK, "at = int(np.lexsort((-gains, costs))[0])", "at = int(np.lexsort((gains, costs))[-1])"
    ),
    Mutant(
        "RECOMPUTE-39", KNAPSACK, "            taken.append(at)\n", "            taken.append(at)\n            break\n"
    ),
    Mutant("RECOMPUTE-39", BUDGET, "if gain > 0]", "if gain > 1]"),
    Mutant(
        "RECOMPUTE-40",
        MEASURE,
        "        if save_output:\n            self.note(result",
        "        if not save_output:\n            self.note(result",
    ),
    Mutant("RECOMPUTE-40", MEASURE, "if count > 1}", "if count > 99}"),
    Mutant(
        "RECOMPUTE-40",
        MEASURE,
        "for keys_of in (self.inputs, self.saved, self.excluded):",
        "for keys_of in (self.saved, self.inputs, self.excluded):",
    ),
    Mutant("RECOMPUTE-41", WORDS, "root is not None:\n        which", "root is None:\n        which"),
    Mutant("RECOMPUTE-41", PLAN, "        left -= taken\n", ""),
    Mutant("RECOMPUTE-42", PLAN, "if list(plan.wrap_order) != sorted(plan.wrap_order, key=_step_key):", "if False:"),
    Mutant(
        "RECOMPUTE-42",
        PLAN,
        "if (self.parent_fqn, self.child_name) != parent_and_child(self.fqn):",
        "if not self.child_name:",
    ),
]
