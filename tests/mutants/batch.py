"""Mutants of the rules of ``specs/batch.md`` that plans decide."""

from tests.mutants.mutant import Mutant

PLAN = "hpfun/batch/plan.py"
VIEW = "hpfun/batch/view.py"
LAYOUTS = "hpfun/batch/layouts.py"
LENGTHS = "hpfun/batch/lengths.py"
LABELS = "hpfun/batch/labels.py"
LOSS = "hpfun/batch/loss.py"
RESTORE = "hpfun/batch/restore.py"
WORK = "hpfun/batch/work.py"
DECODER = "hpfun/batch/decoder.py"
MANIFEST = "hpfun/batch/manifest.py"
TOPOLOGY = "hpfun/topology.py"

MUTANTS = [
    Mutant("BATCH-1", TOPOLOGY, "least=1", "least=0"),
    Mutant("BATCH-1", PLAN, "if alignment % needed == 0 and alignment <= largest:", "if True:"),
    Mutant("BATCH-2", PLAN, "math.lcm(2 * group.cp_size,", "math.lcm(group.cp_size,"),
    Mutant("BATCH-2", PLAN, 'sequence_alignment(*sizes, "contiguous"))', "topology.row_parts)"),
    Mutant("BATCH-4", TOPOLOGY, "return self.tp_size if self.sequence_parallel else 1", "return self.tp_size"),
    Mutant("BATCH-3", PLAN, "-used % self.alignment if used else self.alignment", "-used % self.alignment"),
    Mutant("BATCH-3", PLAN, "missing = -used % self.alignment", "missing = self.alignment - used % self.alignment"),
    Mutant(
        "BATCH-4",
        PLAN,
        "return self.padded_length // self.topology.cp_size",
        "return -(-self.num_tokens // self.topology.cp_size)",
    ),
    Mutant("BATCH-5", PLAN, "plan.padded_length > most", "plan.num_tokens > most"),
    Mutant("BATCH-5", PLAN, "plan.padded_length > most", "plan.padded_length >= most"),
    Mutant("BATCH-6", LENGTHS, "ends[0] == 0 and ends[-1] == total", "ends[-1] == total"),
    Mutant("BATCH-6", LENGTHS, "ends[0] == 0 and ends[-1] == total and", "ends[0] == 0 and"),
    Mutant("BATCH-6", LENGTHS, "np.flatnonzero(ends[1:] < ends[:-1])", "np.flatnonzero(ends[1:] <= ends[:-1])"),
    Mutant("BATCH-7", PLAN, "readonly(np.flatnonzero(every == 0))", "()"),
    Mutant("BATCH-7", PLAN, "dropped[-1] >= count", "dropped[-1] > count"),
    Mutant("BATCH-8", PLAN, "np.append(padded, missing) if missing", "np.append(padded, [1] * missing) if missing"),
    Mutant("BATCH-9", PLAN, "step = 2 * self.topology.cp_size if", "step = self.topology.cp_size if"),
    Mutant("BATCH-10", LENGTHS, "positions[1:] != positions[:-1] + 1", "positions[1:] == 0"),
    Mutant("BATCH-10", LENGTHS, "positions[1:] != positions[:-1] + 1", "positions[1:] < positions[:-1]"),
    Mutant("BATCH-13", VIEW, "self.positions - self._by_row(self.plan.cu_seq_lens[:-1])", "self.positions - 0"),
    Mutant(
        "BATCH-17",
        LAYOUTS,
        "low, high = cp_rank * local, (cp_rank + 1) * local",
        "low, high = cp_rank * local, cu_seq_lens[-1]",
    ),
    Mutant(
        "BATCH-17",
        LAYOUTS,
        'np.searchsorted(cu_seq_lens, low, side="right") - 1',
        'np.searchsorted(cu_seq_lens, low, side="left")',
    ),
    Mutant("BATCH-18", LAYOUTS, "(2 * cp_size - 1 - ranks) * chunks", "(2 * cp_size - 2 - ranks) * chunks"),
    Mutant("BATCH-18", LAYOUTS, "(2 * cp_size - 1 - ranks) * chunks", "(cp_size + ranks) * chunks"),
    Mutant(
        "BATCH-19",
        LAYOUTS,
        "(starts + chunks[:, None]).reshape(shape)",
        "(starts + chunks[:, None] - 1).reshape(shape)",
    ),
    Mutant("BATCH-20", WORK, "ends = 2 * low + rows + 1", "ends = 2 * low + rows - 1"),
    Mutant("BATCH-20", WORK, "np.maximum(np.minimum(stops - starts, lengths - low), 0)", "stops - starts"),
    Mutant("BATCH-20", WORK, "rows // 2 * ends, rows * (ends // 2)", "rows // 2 * ends, rows // 2 * ends"),
    Mutant(
        "BATCH-21", PLAN, "type(value) is str and value in LAYOUTS", "type(value) is str and value.lower() in LAYOUTS"
    ),
    Mutant("BATCH-22", RESTORE, "position_rows(plan)[plan.sources >= 0]", "position_rows(plan)[plan.sources != 0]"),
    Mutant("BATCH-22", LAYOUTS, "chunks[:, None] * (numbers >= cp_size)", "0 * (numbers >= cp_size)[None]"),
    Mutant("BATCH-22", LAYOUTS, "np.minimum(numbers, 2 * cp_size - 1 - numbers)", "numbers % cp_size"),
    Mutant("BATCH-23", RESTORE, 'sent[np.argsort(target_rank[sent], kind="stable")]', "sent"),
    Mutant("BATCH-23", RESTORE, "kept = np.flatnonzero(mine & arriving)", "kept = np.flatnonzero(mine)"),
    Mutant("BATCH-23", RESTORE, "bool((source_rank != target_rank).any())", "bool(len(sent))"),
    Mutant(
        "BATCH-24",
        VIEW,
        "np.flatnonzero(np.diff(self.pieces.documents, append=-1))",
        "np.unique(self.pieces.documents, return_index=True)[1]",
    ),
    Mutant("BATCH-24", VIEW, "self.pieces.stops[lasts] - self.plan.cu_seq_lens[self.documents]", "self.q_lengths"),
    Mutant("BATCH-25", LABELS, "where=left > ahead", "where=left >= ahead"),
    Mutant("BATCH-25", LABELS, "given[ahead:]", "given[:-ahead]"),
    Mutant("BATCH-25", LABELS, "if len(given) != total:", "if len(given) > total:"),
    Mutant("BATCH-27", PLAN, "np.maximum(self.real_lengths - ahead, 0)", "self.padded_lengths - ahead"),
    Mutant("BATCH-28", LOSS, "LossScale(counts, total, max(total, 1),", "LossScale(counts, total, total,"),
    Mutant("BATCH-29", LOSS, 'size if reduction == "mean" else 1', '1 if reduction == "mean" else size'),
    Mutant("BATCH-30", LOSS, "len(counts) != size or (counts < 0).any()", "(counts < 0).any()"),
    Mutant("BATCH-30", LOSS, " and min(counts, default=0) >= 0", ""),
    Mutant("BATCH-31", DECODER, "least=0, most=group - 1", "least=0, most=group"),
    Mutant("BATCH-31", DECODER, "    if local % tp_size:", "    if False:"),
    Mutant("BATCH-31", DECODER, "runs_of(cut(head, start)[1])", "runs_of(cut(head, start)[0])"),
    Mutant(
        "BATCH-32",
        DECODER,
        "expected = self.cp_local_length if whole_shard else self.num_rows",
        "expected = self.num_rows",
    ),
    Mutant("BATCH-33", DECODER, "return tp_rank * hidden, (tp_rank + 1) * hidden", "return 0, hidden"),
    Mutant("BATCH-33", DECODER, "if mask == hidden * tp_size:", "if mask >= hidden * tp_size:"),
    Mutant("BATCH-35", MANIFEST, "for name in sorted(specs):", "for name in specs:"),
    Mutant("BATCH-35", MANIFEST, "-(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES if nbytes", "end if nbytes"),
    Mutant("BATCH-37", MANIFEST, "_frozen(spec, name, (list,))", "_frozen(spec, name, (list, tuple))"),
    Mutant("BATCH-37", "hpfun/serial.py", '"hex": value.hex()}', '"hex": f"{value:.6}"}'),
    Mutant("BATCH-42", "hpfun/sharding/checks.py", "**named, sequence_parallel=False)", "**named)"),
    Mutant("BATCH-43", LENGTHS, "legal = min(crossed)", "legal = min(crossed) - 1"),
    Mutant("BATCH-43", LENGTHS, "while crossed := [", "if crossed := ["),
    Mutant("BATCH-43", LENGTHS, "if span[1] <= cut)", "if span[1] < cut)"),
    Mutant(
        "BATCH-44", PLAN, "plan = BatchPlan(group, layout, multiple,", "plan = BatchPlan(group, LAYOUTS[0], multiple,"
    ),
    Mutant("BATCH-46", "hpfun/batch/report.py", "return plan.padded_length * (ranks - 1)", "return plan.num_tokens"),
    Mutant("BATCH-46", "hpfun/batch/report.py", "int(work.max()) * ranks / total if", "int(work.max()) / total if"),
    Mutant(
        "BATCH-45", "hpfun/batch/words.py", "labels, work = plan.real_rows(rank),", "labels, work = plan.local_length,"
    ),
    Mutant("BATCH-45", "hpfun/batch/words.py", "if scale.factor > 1:", "if False:"),
]
