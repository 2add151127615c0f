"""Mutants of the rules of ``specs/indexer.md`` and ``specs/vocabulary.md``."""

from tests.mutants.mutant import Mutant

DOCUMENTS = "hpfun/documents.py"
WORK = "hpfun/indexer/work.py"
OPTIONS = "hpfun/indexer/options.py"
ZIGZAG = "hpfun/indexer/zigzag.py"
GREEDY = "hpfun/indexer/greedy.py"
SHEDDING = "hpfun/indexer/shedding.py"
LOCALITY = "hpfun/indexer/locality.py"
CUTS = "hpfun/indexer/cuts.py"
TASKS = "hpfun/indexer/tasks.py"
ROUTE = "hpfun/indexer/route.py"
SEGMENTS = "hpfun/indexer/segments.py"
BOUNDS = "hpfun/indexer/bounds.py"
REPORT = "hpfun/indexer/report.py"
DIFFERENCE = "hpfun/difference.py"
EXPLAIN = "hpfun/explain.py"

STAY = "hpfun/sequence/segments.py"

MUTANTS = (
    Mutant("DOC-1", DOCUMENTS, "if lengths[at] <= 0:", "if lengths[at] < 0:"),
    Mutant("DOC-1", DOCUMENTS, "and sum(lengths.tolist()) > INT64_MAX", "and sum(lengths.tolist()) > 2 * INT64_MAX"),
    Mutant("DOC-2", DOCUMENTS, "        return readonly(ends)\n", "        return ends\n"),
    Mutant("DOC-3", DOCUMENTS, 'rows, side="right") - 1', 'rows, side="left") - 1'),
    Mutant("DOC-4", DOCUMENTS, "bounds[1:] <= bounds[:-1]", "bounds[1:] < bounds[:-1]"),
    Mutant("DOC-4", DOCUMENTS, "len(bounds) < 2 or bounds[0] != 0", "len(bounds) < 2"),
    Mutant("DOC-5", DOCUMENTS, "        if self.total % size:\n", "        if self.total < size:\n"),
    Mutant("WORK-1", WORK, "(positions + 1) // ratio + row_cost", "positions // ratio + row_cost"),
    Mutant("WORK-2", WORK, "keys * (rows - keys * ratio + 1)", "keys * (rows - keys * ratio)"),
    Mutant("WORK-3", WORK, "+ row_cost * rows\n", "\n"),
    Mutant("WORK-3", WORK, "(positions + 1) // ratio + row_cost", "(positions + 1) // ratio"),
    Mutant(
        "WORK-4", WORK, "        keys += fits\n", "        keys += fits\n        break\n    keys = keys - (keys > 3)\n"
    ),
    Mutant("WORK-4", WORK, "// (keys + 1 + row_cost)", "// (keys + 2 + row_cost)"),
    Mutant("WORK-5", WORK, "WORK_LIMIT = 2**62 ", "WORK_LIMIT = 2**63 "),
    Mutant("WORK-5", WORK, "(int((works >> 31).sum()) << 31)", "(int((works >> 31).sum()) << 30)"),
    Mutant("OPTION-1", OPTIONS, "mode in IndexerMode.__members__.values()", "mode.lower() in list(IndexerMode)"),
    Mutant("OPTION-2", OPTIONS, "DEFAULT_BLOCK_SIZE = 2048", "DEFAULT_BLOCK_SIZE = 1024"),
    Mutant(
        "OPTION-2", OPTIONS, "    if block_size is not None:\n", "    if block_size is not None and block_size < 0:\n"
    ),
    Mutant("OPTION-2", OPTIONS, '"block_size", "HP-INDEX-004", least=1', '"block_size", "HP-INDEX-004", least=0'),
    Mutant("OPTION-3", TASKS, "options.block_size > local:", "options.block_size > local + 1:"),
    Mutant("OPTION-3", TASKS, "if options.block_size is not None and", "if block_size is not None and"),
    Mutant("OPTION-4", OPTIONS, '"HP-INDEX-005", least=1', '"HP-INDEX-005", least=0'),
    Mutant("OPTION-4", OPTIONS, "    if min_length is not None:\n", "    if False:\n"),
    Mutant("OPTION-5", OPTIONS, '"HP-INDEX-006", CAPACITY_MODES)', '"HP-INDEX-006", tuple(IndexerMode)[1:])'),
    Mutant("OPTION-5", OPTIONS, '"HP-INDEX-006", least=1', '"HP-INDEX-006", least=0'),
    Mutant("OPTION-6", OPTIONS, '"row_cost": 0}', '"row_cost": -9}'),
    Mutant("OPTION-6", OPTIONS, '        ("ranks_per_node", None, "HP-INDEX-011", (IndexerMode.LOCALITY,)),\n', ""),
    Mutant("ZIGZAG-1", ZIGZAG, "np.minimum(index, chunks - 1 - index)", "np.minimum(index, chunks - index)"),
    Mutant("ZIGZAG-1", ZIGZAG, "np.minimum(index, chunks - 1 - index)", "index % size"),
    Mutant("ZIGZAG-2", ZIGZAG, "documents.lengths >= threshold", "documents.lengths > threshold"),
    Mutant("ZIGZAG-2", ZIGZAG, "documents, size, ratio, options, 2 * size)", "documents, size, ratio, options, size)"),
    Mutant("ZIGZAG-3", ZIGZAG, "starts, lengths, loads, rows, None)", "starts, lengths, 0 * loads, 0 * rows, None)"),
    Mutant("HYBRID-1", ZIGZAG, "max(options.zigzag_min_length or 0, 2 * size)", "options.zigzag_min_length or 0"),
    Mutant("HYBRID-1", ZIGZAG, "short, ratio, options, loads, rows)", "short, ratio, options, 0 * loads, 0 * rows)"),
    Mutant("HYBRID-1", ZIGZAG, "most > options.capacity:", "most > options.capacity + 1:"),
    Mutant("GREEDY-1", GREEDY, "-(-lengths // block_size)", "lengths // block_size + 1"),
    Mutant(
        "GREEDY-1",
        GREEDY,
        "np.repeat(documents.boundaries[which], counts) +",
        "np.repeat(documents.boundaries[which], counts) // block_size * block_size +",
    ),
    Mutant("GREEDY-2", GREEDY, "np.lexsort((starts, -works))", "np.lexsort((-starts, -works))"),
    Mutant("GREEDY-2", GREEDY, "np.lexsort((starts, -works))", "np.lexsort((starts, works))"),
    Mutant(
        "GREEDY-3",
        GREEDY,
        "max(min(self.capacity - entry[1], self.widest), 0)",
        "max(min(self.capacity - entry[1] - 1, self.widest), 0)",
    ),
    Mutant("GREEDY-3", GREEDY, "(load + work, held + length, worker)", "(load + work, held, worker)"),
    Mutant("GREEDY-4", GREEDY, "+ block_size - 1\n", "- 1\n"),
    Mutant("GREEDY-4", GREEDY, "room=max(room for", "room=min(room for"),
    Mutant("LOCAL-1", SHEDDING, "ranks = np.flatnonzero(pieces.loads > limit)", "ranks = np.flatnonzero(pieces.loads)"),
    Mutant(
        "LOCAL-1",
        LOCALITY,
        "shedding = least_shedding(pieces, target,",
        "shedding = least_shedding(pieces, target - 1,",
    ),
    Mutant(
        "LOCAL-2",
        SHEDDING,
        "above = np.clip(rows_seeing(shedding.levels, ratio)",
        "above = np.clip(rows_seeing(shedding.levels + 1, ratio)",
    ),
    Mutant("LOCAL-3", SHEDDING, "level_rows = -(-excess // each)", "level_rows = excess // each + 1"),
    Mutant("LOCAL-3", LOCALITY, "rows[inexact[order[:count]]] -= 1", "rows[inexact[order[:count]]] -= 2"),
    Mutant("LOCAL-3", LOCALITY, "rows = shedding.level_rows.copy()", "rows = shedding.level_rows + 1"),
    Mutant("LOCAL-4", LOCALITY, "return -(-total * (PPM + tolerance_ppm)", "return (total * (PPM + tolerance_ppm)"),
    Mutant("LOCAL-4", LOCALITY, "PPM = 10**6", "PPM = 10**5"),
    Mutant("LOCAL-5", CUTS, "min(sum_ + need, total), initial=0)", "min(need, total), initial=0)"),
    Mutant("LOCAL-6", SHEDDING, "level_rows[shedding.groups] - (before", "level_rows[shedding.groups] + 1 - (before"),
    Mutant("LOCAL-7", LOCALITY, "takers[takers // width == node]", "takers[takers // width != node]"),
    Mutant("LOCAL-7", LOCALITY, "    if goal.ranks_per_node is not None:\n", "    if False:\n"),
    Mutant(
        "LOCAL-8", LOCALITY, "rows[takers] + np.diff(cuts, prepend=0) > goal.capacity", "rows[takers] > goal.capacity"
    ),
    Mutant(
        "LOCAL-8", LOCALITY, "(goal.capacity - rows[takers]).tolist()", "(goal.capacity + 1 - rows[takers]).tolist()"
    ),
    Mutant("LOCAL-8", LOCALITY, "    if len(rest.starts):\n", "    if False:\n"),
    Mutant("LOCAL-9", CUTS, "steps.append(from_high)", "steps.append([False, False])"),
    Mutant("LOCAL-9", LOCALITY, "takers = roomy", "pass"),
    Mutant("PLAN-1", TASKS, "np.union1d(documents.boundaries, np.arange", "np.union1d([0, documents.total], np.arange"),
    Mutant("PLAN-2", TASKS, "(ordered[1:] != ends[:-1]).any()", "(ordered[1:] > ends[:-1]).any()"),
    Mutant("PLAN-2", TASKS, "    if len(crossing):\n", "    if False:\n"),
    Mutant("PLAN-2", TASKS, "or workers[-1] >= plan.size", "or workers[-1] > plan.size"),
    Mutant("PLAN-3", TASKS, "np.concatenate(([True], ~meets))", "np.concatenate(([True], ~meets | True))"),
    Mutant("PLAN-3", TASKS, "    meets &= same[:-1] == same[1:]\n", ""),
    Mutant("PLAN-4", TASKS, "low, low + self.local_rows)", "low, low + self.local_rows - 1)"),
    Mutant("PLAN-4", TASKS, "* self.size / total if total else 1.0", "* self.size / total if total else 0.0"),
    Mutant("PLAN-5", GREEDY, "range(len(loads))", "sorted(range(len(loads)), key=lambda rank: hash(str(rank)))"),
    Mutant("PLAN-6", "hpfun/shards.py", "if not 0 <= rank < size:", "if not 0 <= rank <= size:"),
    Mutant("PLAN-6", "hpfun/documents.py", "        if self.total % size:\n", "        if self.total < size:\n"),
    Mutant("PLAN-7", TASKS, "cuts[1:], cuts[:-1] // local)", "cuts[1:], (cuts[1:] // local).clip(max=size - 1))"),
    Mutant("ROUTE-1", ROUTE, "touching = np.sort(touching[plan", "touching = (touching[plan"),
    Mutant("ROUTE-1", ROUTE, "by_row[max(near.start - 1, 0) : near.stop]", "by_row[near.start : near.stop]"),
    Mutant(
        "ROUTE-2",
        ROUTE,
        "received = joined(slots[~own] - counts[~own], slots[~own])",
        "received = joined((slots[~own] - counts[~own])[::-1], slots[~own][::-1])",
    ),
    Mutant(
        "ROUTE-3", ROUTE, "touching[plan.task_workers[touching] != rank]", "touching[plan.task_workers[touching] >= 0]"
    ),
    Mutant(
        "ROUTE-3",
        ROUTE,
        "joined(slots[own] - counts[own], slots[own])",
        "joined(np.cumsum(counts[own]) - counts[own], np.cumsum(counts[own]))",
    ),
    Mutant(
        "ROUTE-4", ROUTE, "required=plan.moved_rows > 0", "required=bool(input_splits.any() or output_splits.any())"
    ),
    Mutant("ROUTE-4", ROUTE, "required=plan.moved_rows > 0", "required=True"),
    Mutant("ROUTE-5", ROUTE, "-(-self.max_query_count //", "-(-self.query_count //"),
    Mutant("ROUTE-5", ROUTE, "return max(1, -(-self.max_query_count", "return max(0, (self.max_query_count"),
    Mutant("SEGMENT-1", STAY, "columns = (ends - (stops - starts), ends,", "columns = (ends * 0, ends,"),
    Mutant(
        "SEGMENT-2",
        STAY,
        "keys = key_offsets(documents, ratio)[inside]",
        "keys = documents.boundaries[inside] // ratio",
    ),
    Mutant(
        "SEGMENT-2",
        STAY,
        "keys + seen // ratio, seen % ratio)\n    return",
        "keys + seen // ratio, seen * 0)\n    return",
    ),
    Mutant("SEGMENT-3", SEGMENTS, "(self.query_stop - 1 - rows)", "(self.query_stop - rows)"),
    Mutant("SEGMENT-3", SEGMENTS, "+ self.residual -", "-"),
    Mutant("BOUND-1", BOUNDS, "-(-int(pieces.loads.sum()) // len", "(int(pieces.loads.sum()) // len"),
    Mutant("BOUND-1", BOUNDS, "row_work(pieces.last.max() - 1,", "row_work(pieces.last.max(),"),
    Mutant("BOUND-2", BOUNDS, "int(above.sum()) +", "int(above.max(initial=0)) +"),
    Mutant("BOUND-2", BOUNDS, "+ int(shedding.level_rows.sum())", "+ len(shedding.level_rows)"),
    Mutant("REPORT-1", REPORT, "int(plan.loads.max()), row_cost)", "int(plan.loads.min()), row_cost)"),
    Mutant("REPORT-1", REPORT, "self.max_load / self.makespan_bound - 1", "self.max_load / self.makespan_bound"),
    Mutant("REPORT-2", REPORT, "bytes_back=plan.moved_rows * back", "bytes_back=plan.moved_rows * out"),
    Mutant("REPORT-3", REPORT, "plan.home_rows < lengths", "plan.home_rows == 0"),
    Mutant("REPORT-3", REPORT, "workers = plan.task_workers[which]", "workers = plan.task_workers[which[::-1]]"),
    Mutant(
        "REPORT-4",
        EXPLAIN,
        "for worker in range(min(value.size, ROWS_SHOWN))",
        "for worker in range(min(value.size, ROWS_SHOWN) - 1)",
    ),
    Mutant("REPORT-4", EXPLAIN, "if value.size > ROWS_SHOWN:", "if value.size > 2 * ROWS_SHOWN:"),
    Mutant("REPORT-5", DIFFERENCE, "if ours[name] != theirs[name]:", "if ours[name] != theirs[name] and not path:"),
    Mutant("REPORT-5", DIFFERENCE, 'f"{path}.{name}" if path else name', "name"),
    Mutant("REPORT-5", DIFFERENCE, "(list(ours) != list(theirs) and ours.keys() == theirs.keys())", "False"),
)
