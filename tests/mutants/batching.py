"""Mutants of the rules of ``specs/batch.md`` that executors keep."""

from tests.mutants.mutant import Mutant

BATCH = "hpfun_torch/batch/"
SHARD = BATCH + "shard.py"
ROWS = BATCH + "rows.py"
LABELS = BATCH + "labels.py"
DECODER = BATCH + "decoder.py"
BROADCAST = BATCH + "broadcast.py"
PAYLOAD = BATCH + "payload.py"
PREPARE = BATCH + "prepare.py"
GROUPS = BATCH + "groups.py"

MUTANTS = [
    Mutant("BATCH-11", SHARD, "collect(found, check_fields, fields, shapes, num_tokens)", ""),
    Mutant(
        "BATCH-11",
        SHARD,
        "isinstance(value, torch.Tensor) else () for",
        "isinstance(value, torch.Tensor) else (1, num_tokens) for",
    ),
    Mutant("BATCH-12", ROWS, "tensor.new_full(shape, fill)", "tensor.new_full(shape, 0)"),
    Mutant("BATCH-12", ROWS, ".expand(shape).clone(memory_format=torch.contiguous_format)", ".expand(shape)"),
    Mutant("BATCH-12", SHARD, "found.append(Violation(", "(Violation("),
    Mutant("BATCH-12", SHARD, "[None].clone()", "[None]"),
    Mutant("BATCH-13", SHARD, "fill = view_positions(view, value.device) if", "fill = 0 if"),
    Mutant("BATCH-14", SHARD, "if plan.padded_length == plan.num_tokens and plan.topology.cp_size == 1:", "if False:"),
    Mutant("BATCH-14", SHARD, "plan.num_tokens and plan.topology.cp_size == 1:", "plan.num_tokens:"),
    Mutant("BATCH-15", SHARD, "    if digest != plan.digest:\n", "    if digest is None:\n"),
    Mutant("BATCH-15", SHARD, "check_batch(self.fields, batch, plan.local_length)", "pass"),
    Mutant("BATCH-15", SHARD, "batch_view(plan, self.cp_rank)", "batch_view(plan, 0)"),
    Mutant("BATCH-16", SHARD, "view_positions(view, device)[None].clone()", "torch.arange(len(view.positions))[None]"),
    Mutant("BATCH-16", SHARD, "if spec.pad == POSITION else None", "if False else None"),
    Mutant("BATCH-26", LABELS, "if not batch.get(SHIFTED):", "if True:"),
    Mutant("BATCH-26", LABELS, "    if PLAN in batch:\n", "    if False:\n"),
    Mutant("BATCH-26", LABELS, "ignore=-1), device)", "ignore=0), device)"),
    Mutant("BATCH-26", LABELS, "return {**told, **batch, LABELS", "return {**batch, **told, LABELS"),
    Mutant(
        "BATCH-26",
        LABELS,
        "restore_index(plan) // plan.local_length",
        "np.arange(plan.num_tokens) // plan.local_length",
    ),
    Mutant(
        "BATCH-28",
        LABELS,
        "scale.factor / scale.divisor",
        "scale.factor / max(scale.total // len(scale.valid_by_rank), 1)",
    ),
    Mutant("BATCH-28", LABELS, "local_sum * scale.factor", "local_sum"),
    Mutant("BATCH-32", DECODER, "layout.cp_local_start, layout.num_rows)", "0, layout.num_rows)"),
    Mutant("BATCH-32", DECODER, "return part.clone(memory_format=torch.contiguous_format)", "return part"),
    Mutant("BATCH-32", DECODER, "whole_shard=False", "whole_shard=True"),
    Mutant("BATCH-34", BROADCAST, "        if batch is not None:\n", "        if False:\n"),
    Mutant("BATCH-34", BROADCAST, "group_src=0", "src=0"),
    Mutant("BATCH-35", PAYLOAD, "torch.zeros(manifest.payload_bytes,", "torch.ones(manifest.payload_bytes,"),
    Mutant("BATCH-35", PAYLOAD, "part.to(device, copy=True)", "part.to(device)"),
    Mutant("BATCH-36", BROADCAST, "        if len(moved):\n", "        if True:\n"),
    Mutant(
        "BATCH-36",
        BROADCAST,
        "for part in (header, told, payload):",
        "for part in (header, told[:16], told[16:], payload):",
    ),
    Mutant("BATCH-37", PAYLOAD, ".resolve_conj().resolve_neg()", ".resolve_neg()"),
    Mutant("BATCH-37", PAYLOAD, "plain.as_strided((plain.numel(),), (1,))", "plain.reshape(-1)"),
    Mutant("BATCH-37", PAYLOAD, ".contiguous()", ""),
    Mutant("BATCH-37", PAYLOAD, "return (value,) if type(value) is tuple else value", "return value"),
    Mutant("BATCH-38", BROADCAST, "        if status:\n", "        if False:\n"),
    Mutant("BATCH-38", BROADCAST, "found, outcome = attempt(prepared)", "found, outcome = prepared(), attempt(int)[1]"),
    Mutant("BATCH-39", PREPARE, "**self.digests,", ""),
    Mutant("BATCH-39", PREPARE, "self._groups.parent, ", "self._groups.cp, "),
    Mutant(
        "BATCH-39",
        PREPARE,
        "self._settled(lambda: self._prepared(batch), lambda found: found.told, PLAN)",
        "self._prepared(batch)",
    ),
    Mutant("BATCH-39", PREPARE, '"runtime_inputs": str(self.made)', '"runtime_inputs": ""'),
    Mutant("BATCH-39", "hpfun_torch/agree.py", "digests=tuple(digests),", ""),
    Mutant("BATCH-40", GROUPS, "    if not dist.is_initialized():\n", "    if not dist.is_initialized() and False:\n"),
    Mutant("BATCH-40", GROUPS, "if found != size or rank < 0:", "if rank < 0:"),
    Mutant("BATCH-40", GROUPS, 'if (cp_rank, tp_rank) != (ranks["cp"], ranks["tp"]):', "if False:"),
    Mutant("BATCH-41", PREPARE, "name in batch or made.count(name) > 1", "made.count(name) > 1"),
    Mutant("BATCH-41", PREPARE, "made.count(name) > 1 or name not in declared", "name not in declared"),
    Mutant("BATCH-41", PREPARE, "made.count(name) > 1 or name not in declared]", "made.count(name) > 1]"),
    Mutant(
        "BATCH-41",
        PREPARE,
        'return self._settled(lambda: self._with_inputs(found, context), lambda _: {}, "runtime_inputs")',
        "return self._with_inputs(found, context)",
    ),
    # the executor's half of rules that plans keep
    Mutant("BATCH-22", DECODER, "token_rows(plan, local.device)", "token_rows(plan, local.device).sort().values"),
    Mutant(
        "BATCH-22", DECODER, "local = gather_sequence(local, group,", "local = gather_sequence(local.detach(), group,"
    ),
]
