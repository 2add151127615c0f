"""Mutants of the rules of ``specs/attention.md``."""

from tests.mutants.mutant import Mutant

SEGMENTS = "hpfun/attention/segments.py"
SHARING = "hpfun/attention/sharing.py"
INDICES = "hpfun/attention/indices.py"
IDS = "hpfun/attention/ids.py"
CANDIDATES = "hpfun/attention/candidates.py"
SCHEDULE = "hpfun/attention/schedule.py"
PLAN = "hpfun/attention/plan.py"
WORDS = "hpfun/attention/words.py"

MUTANTS = [
    Mutant("ATTN-1", SEGMENTS, "np.maximum(ends - self.window, low)", "np.maximum(ends - self.window + 1, low)"),
    Mutant("ATTN-1", SEGMENTS, "np.maximum(ends - self.window, low)", "np.maximum(ends - self.window - 1, low)"),
    Mutant("ATTN-1", SEGMENTS, "np.maximum(ends - self.window, low)", "np.maximum(ends - self.window, 0)"),
    Mutant("ATTN-1", SEGMENTS, "np.maximum(begins, starts - window + 1) - bank", "starts - window + 1 - bank"),
    Mutant("ATTN-2", SEGMENTS, "(tokens - (last - 1 - np.arange", "(tokens - (last - np.arange"),
    Mutant("ATTN-2", SEGMENTS, "(tokens - (last - 1 - np.arange", "(tokens + 1 - (last - 1 - np.arange"),
    Mutant(
        "ATTN-2", SEGMENTS, "key_starts + seen // ratio, seen % ratio", "key_starts + -(-seen // ratio), seen % ratio"
    ),
    Mutant("ATTN-2", SEGMENTS, "seen = stops - begins\n", "seen = stops - starts\n"),
    Mutant("ATTN-2", SEGMENTS, "key_offsets(documents, ratio)[inside] - bank", "key_offsets(documents, ratio)[inside]"),
    Mutant(
        "ATTN-3", SEGMENTS, "inside = np.arange(first, last + 1)", "inside = np.arange(first, max(last, first + 1))"
    ),
    Mutant("ATTN-3", SEGMENTS, "wrong[1:] |= starts[1:] < stops[:-1]", "wrong[1:] |= starts[1:] < starts[:-1]"),
    Mutant("ATTN-3", SEGMENTS, "            wrong |= seen < rows\n", ""),
    Mutant(
        "ATTN-3",
        SEGMENTS,
        "self.key_starts, self.key_stops, self.residuals)\n        return tuple(Indexer",
        "self.key_starts, self.key_stops, self.residuals * 0)\n        return tuple(Indexer",
    ),
    Mutant("ATTN-4", SHARING, "sources[(sources <= layer) &", "sources[(sources < layer) &"),
    Mutant("ATTN-4", SHARING, "& (self.compress_ratios[sources] == ratio)]", "]"),
    Mutant("ATTN-4", SHARING, "int(fitting[-1]) if len", "int(fitting[0]) if len"),
    Mutant("ATTN-4", SHARING, "if not ratio or layer in self.dense_layers:", "if not ratio:"),
    Mutant("ATTN-5", SHARING, "if at and layer <= layers[at - 1]:", "if at and layer < layers[at - 1]:"),
    Mutant("ATTN-5", SHARING, "elif self.compress_ratios[layer] == 0:", "elif self.compress_ratios[layer] < 0:"),
    Mutant(
        "ATTN-5", SHARING, "- dense - set(self.index_sources.tolist())", "- set(self.index_sources.tolist()) & dense"
    ),
    Mutant("ATTN-5", SHARING, "        yield from self._stale(shared, dense)\n", ""),
    Mutant("ATTN-5", SHARING, "both = dense & set(self.index_sources.tolist())", "both = set()"),
    Mutant(
        "ATTN-5", SHARING, "if ratio and self.key_source(layer) is None:", "if not ratio and self.key_source(layer):"
    ),
    Mutant("ATTN-6", SHARING, "            if _is_chosen_from(layer, keys, chosen):\n", "            if True:\n"),
    Mutant("ATTN-6", SHARING, 'reads.append((layer, ("topk", choice)))', 'reads.append((choice, ("topk", choice)))'),
    Mutant("ATTN-6", SHARING, 'reads.append((layer, ("keys", source)))', 'reads.append((source, ("keys", source)))'),
    Mutant(
        "ATTN-6",
        SHARING,
        "            if chosen[layer] == layer:\n                reads",
        "            if False:\n                reads",
    ),
    Mutant("ATTN-7", INDICES, "np.arange(segments.window, 0, -1)", "np.arange(1, segments.window + 1)"),
    Mutant("ATTN-7", INDICES, "np.where(ids < 0, -1, ids + held)", "ids + held"),
    Mutant("ATTN-7", INDICES, "(ids >= stops[:, None])", "(ids > stops[:, None])"),
    Mutant("ATTN-7", INDICES, "(ids != -1) &", "(ids >= 0) &"),
    Mutant("ATTN-7", INDICES, "least=needed,", "least=0,"),
    Mutant("ATTN-7", IDS, "or len(ids) != rows or", "or"),
    Mutant("ATTN-8", CANDIDATES, "readonly(-(-(stops - starts) // block))", "readonly((stops - starts) // block)"),
    Mutant(
        "ATTN-8",
        CANDIDATES,
        "readonly(-(-(stops - starts) // block))",
        "readonly(-(-stops // block) - starts // block)",
    ),
    Mutant("ATTN-8", CANDIDATES, "wrong = (starts < 0) | (stops < starts)", "wrong = stops < starts"),
    Mutant("ATTN-9", CANDIDATES, "(keys < stops[:, None, None])", "(keys <= stops[:, None, None])"),
    Mutant("ATTN-9", CANDIDATES, "(keys >= least[:, None, None])", "(keys > least[:, None, None])"),
    Mutant("ATTN-9", CANDIDATES, "least = np.maximum(starts, minimum)", "least = starts"),
    Mutant("ATTN-9", CANDIDATES, "first = starts[:, None] + np", "first = starts[:, None] // block * block + np"),
    Mutant("ATTN-9", CANDIDATES, "(chosen >= 0) & (chosen < -(", "(chosen < -("),
    Mutant("ATTN-9", CANDIDATES, "if len(minimum) != len(starts):", "if len(minimum) > len(starts):"),
    Mutant(
        "ATTN-10",
        SCHEDULE,
        '        yield from [] if late else ["launch keys"]\n',
        "",
    ),
    Mutant(
        "ATTN-10",
        SCHEDULE,
        '        yield from ["wait halo"] if options.halo else []\n        yield "compute compression"\n',
        '        yield "compute compression"\n        yield from ["wait halo"] if options.halo else []\n',
    ),
    Mutant(
        "ATTN-10",
        SCHEDULE,
        '("wait inputs", "compute worker_projection") if',
        '("compute worker_projection", "wait inputs") if',
    ),
    Mutant(
        "ATTN-10",
        SCHEDULE,
        '["compute attention_projections", *(["launch window"] if options.window and not late else [])]',
        '[*(["launch window"] if options.window and not late else []), "compute attention_projections"]',
    ),
    Mutant("ATTN-10", SCHEDULE, '["launch halo"] if options.halo else []', '["launch halo"]'),
    Mutant(
        "ATTN-11",
        SCHEDULE,
        '        yield from ("wait inputs", "compute worker_projection") if options.balanced else ()\n'
        '        yield from ["wait index_keys"] if makes else []\n',
        '        yield from ["wait index_keys"] if makes else []\n'
        '        yield from ("wait inputs", "compute worker_projection") if options.balanced else ()\n',
    ),
    Mutant("ATTN-11", SCHEDULE, "banks if options.indexer_priority and selects else []", "banks if selects else []"),
    Mutant("ATTN-11", SCHEDULE, "banks if options.indexer_priority and selects else []", "[]"),
    Mutant("ATTN-11", SCHEDULE, "    if options.overlapped:\n", "    if not options.overlapped:\n"),
    Mutant(
        "ATTN-11",
        SCHEDULE,
        'if action == "launch" and ("wait", name) not in before',
        'if action == "launch"',
    ),
    Mutant("ATTN-12", SCHEDULE, "elif event in events[:at]:", "elif event in events[:0]:"),
    Mutant("ATTN-12", SCHEDULE, "        if event not in known:\n", "        if not event:\n"),
    Mutant(
        "ATTN-12", SCHEDULE, "        if (at is None) != (to is None):\n", "        if at is None and to is not None:\n"
    ),
    Mutant("ATTN-12", SCHEDULE, "and to is not None and to < at:", "and to is not None and to < 0:"),
    Mutant("ATTN-12", SCHEDULE, 'self.balanced and self.kind != "select"', 'self.balanced and self.kind == "window"'),
    Mutant("ATTN-12", SCHEDULE, "self.indexer_priority and not self.overlapped", "False"),
    Mutant("ATTN-13", SCHEDULE, "if order != orders[0])", "if sorted(order) != sorted(orders[0]))"),
    Mutant(
        "ATTN-13", SCHEDULE, "if order != orders[0])", "if set(order) - set(orders[0]) or order[::-1] == orders[0])"
    ),
    Mutant("ATTN-14", PLAN, "bank=bank_route(prefix, rank)", "bank=bank_route(prefix, 0)"),
    Mutant("ATTN-14", PLAN, "overlap=overlap),", "overlap=False),"),
    Mutant("ATTN-14", PLAN, "plan.balanced and ratio in plan.config.choosing_ratios", "plan.balanced"),
    Mutant("ATTN-14", PLAN, "plan.size, rank, plan.config.window, 0)", "plan.size, rank, plan.config.window + 1, 0)"),
    Mutant(
        "ATTN-14",
        PLAN,
        "self.compression is not None and self.compression.halo.exchange.required",
        "self.compression is not None",
    ),
    Mutant("ATTN-15", PLAN, "rows - documents.boundaries[documents.documents_at(rows)]", "rows - rank * local"),
    Mutant("ATTN-15", PLAN, "blocks_at(documents, ratio, own)[1]", "(own * ratio)"),
    Mutant("ATTN-15", PLAN, "prefix.own_rows.tolist()", "prefix.bank_rows.tolist()"),
    Mutant("ATTN-16", PLAN, "        self.documents.shard_rows(self.size)\n", ""),
    Mutant("ATTN-16", PLAN, "if bool(chosen) != bool(self.topk):", "if bool(chosen) < bool(self.topk):"),
    Mutant("ATTN-16", PLAN, "if lonely and not self.window:", "if lonely > 1 and not self.window:"),
    Mutant("ATTN-16", PLAN, "or r < 2)", ")"),
    Mutant("ATTN-16", PLAN, "(ratios[1:] <= ratios[:-1]).any()", "(ratios[1:] < ratios[:-1]).any()"),
    Mutant(
        "ATTN-16", PLAN, "            for ratio in self.config.choosing_ratios:\n", "            for ratio in ():\n"
    ),
    Mutant("ATTN-17", SHARING, "max(layer - first + 1, 0)", "max(layer - first, 0)"),
    Mutant("ATTN-17", SHARING, "max(layer - first + 1, 0)", "abs(layer - first + 1)"),
    Mutant("ATTN-18", WORDS, "if sharing.key_source(layer) == layer]", "if sharing.key_source(layer) is not None]"),
    Mutant("ATTN-18", WORDS, '"v" if action == "launch" else "^"', '"^" if action == "launch" else "v"'),
    Mutant("ATTN-18", WORDS, "IndexerOptions(IndexerMode.NONE, row_cost=row_cost)", "plan.balance"),
    Mutant("ATTN-18", WORDS, "if sharing.index_source(layer) == layer]", "if sharing.index_source(layer) is not None]"),
    Mutant(
        "ATTN-19",
        SHARING,
        "None if value is None else integers(value, field.name, _CODE)",
        "None if value is None else integers(value, field.name, _CODE).copy()",
    ),
    Mutant(
        "ATTN-19",
        PLAN,
        "    overlapping_ratios: Any = integers_field(_CODE, default=())\n\n    digest = content_digest\n",
        "    overlapping_ratios: Any = integers_field(_CODE, default=())\n\n"
        "    digest = property(lambda self: self.sharing.digest)\n",
    ),
]
