"""Mutants of the rules of ``specs/sequence.md`` and ``specs/compression.md``, and of their executors."""

from tests.mutants.mutant import Mutant

WINDOW = "hpfun/sequence/window.py"
PREFIX = "hpfun/sequence/prefix.py"
BANK = "hpfun/sequence/bank.py"
PACKED = "hpfun/sequence/packed.py"
SEGMENTS = "hpfun/sequence/segments.py"
TND = "hpfun/sequence/tnd.py"
REPORT = "hpfun/sequence/report.py"
SHARDS = "hpfun/shards.py"
DOCUMENTS = "hpfun/documents.py"
OFFSETS = "hpfun/compression/offsets.py"
BLOCKS = "hpfun/compression/blocks.py"
EXPLAIN = "hpfun/explain.py"
EXCHANGE = "hpfun_torch/exchange.py"
CONVERT = "hpfun_torch/convert.py"
COMPILED = "hpfun_torch/compiled.py"
DISPATCH = "hpfun_torch/dispatch.py"
GATHER = "hpfun_torch/gather.py"
COMPRESSION = "hpfun_torch/compression.py"
CHECKS = "hpfun_torch/checks.py"
TRANSFER = "hpfun_torch/transfer.py"

MUTANTS = [
    Mutant("SEQ-1", WINDOW, "firsts[:-1] - window + 1", "firsts[:-1] - window"),
    Mutant("SEQ-1", WINDOW, "firsts[:-1] - window + 1", "firsts[:-1] - window + 2"),
    Mutant("SEQ-2", WINDOW, "np.maximum(starts, firsts[:-1]", "np.maximum(starts * 0, firsts[:-1]"),
    Mutant("SEQ-2", WINDOW, "np.maximum(starts, firsts", "np.maximum(np.maximum(starts, firsts[:-1] - local), firsts"),
    Mutant(
        "SEQ-3",
        PREFIX,
        "starts = key_offsets(documents, ratio)[firsts]",
        "starts = key_offsets(documents, ratio)[firsts * 0]",
    ),
    Mutant("SEQ-3", PREFIX, "np.arange(size) * local)", "np.arange(1, size + 1) * local - 1)"),
    Mutant(
        "SEQ-4",
        BANK,
        "edges[1:] - edges[:-1]",
        "(edges[1:] - edges[:-1])[::-1]",
    ),
    Mutant("SEQ-4", BANK, '"local_targets": _stretch(halo, halo + own)', '"local_targets": _stretch(0, own)'),
    Mutant("SEQ-4", BANK, "readonly(own - counts)", "readonly(own - counts[::-1])"),
    Mutant("SEQ-5", BANK, '"required": plan.required', '"required": halo > 0 or bool(input_splits.any())'),
    Mutant("SEQ-5", BANK, "return bool(self.halo_rows.any())", "return self.size > 1"),
    Mutant(
        "SEQ-6",
        BANK,
        "high - np.maximum(plan.bank_starts[rank + 1 : ends[rank]], low)",
        "high - plan.bank_starts[rank + 1 : ends[rank]]",
    ),
    Mutant("SEQ-4", BANK, "rising = bool((self.bank_starts[1:] >= self.bank_starts[:-1]).all())", "rising = True"),
    Mutant("SEQ-6", BANK, 'return row_list(RowRuns([start], [stop]), "rows") if', "return RowRuns([start], [stop]) if"),
    Mutant("SEQ-7", DOCUMENTS, "cls(readonly(np.diff(bounds)))", "cls(readonly(np.diff(bounds)[::-1]))"),
    Mutant(
        "SEQ-8",
        BANK,
        "readonly(self.owner_offsets[1:] - self.bank_starts)",
        "readonly(self.owner_offsets[1:] - self.owner_offsets[:-1])",
    ),
    Mutant("SEQ-8", BANK, "return sum(self.halo_rows.tolist())", "return sum(self.bank_rows.tolist())"),
    Mutant("SEQ-9", WINDOW, "firsts[:-1] - window + 1", "firsts[:-1] - window"),
    Mutant("SEQ-9", BLOCKS, "    starts[busy] =", "    starts -= np.minimum(starts, 1)\n    starts[busy] ="),
    Mutant("SEQ-10", DOCUMENTS, "if len(bounds) < 2 or bounds[0] != 0:", "if len(bounds) < 2:"),
    Mutant("SEQ-10", DOCUMENTS, "falls = bounds[1:] <= bounds[:-1]", "falls = bounds[1:] < bounds[:-1]"),
    Mutant("SEQ-10", SHARDS, "if total != local * ranks:", "if total > local * ranks:"),
    Mutant("SEQ-10", SHARDS, "if start < 0 or stop > documents.total:", "if stop > documents.total:"),
    Mutant("SEQ-10", SHARDS, "if not 0 <= rank < size:", "if not 0 <= rank <= size:"),
    Mutant("SEQ-10", BANK, "and self.halo_rows >= 0 and", "and"),
    Mutant("SEQ-10", BANK, "wrong = (starts > owners[:-1]) | (starts < 0)", "wrong = starts < 0"),
    Mutant(
        "SEQ-11",
        PACKED,
        'converter=lambda values: read_boundaries(values, "cu_seq_lens").boundaries',
        "converter=lambda values: (read_boundaries(values), values)[1]",
    ),
    Mutant(
        "SEQ-12", REPORT, "senders[needing] = before[needing] - before[firsts]", "senders[needing] = needing - firsts"
    ),
    Mutant("SEQ-12", REPORT, "np.where(owning, np.cumsum(opened), 0)", "np.cumsum(opened)"),
    Mutant("SEQ-12", REPORT, "return (self.size - 1) * self.total_rows", "return self.size * self.total_rows"),
    Mutant("SEQ-12", REPORT, "rows * (self.size - 1 - rank)", "rows * (self.size - rank)"),
    Mutant("SEQ-13", EXPLAIN, "    if not value.moved_rows:\n", "    if False:\n"),
    Mutant("COMPRESS-1", OFFSETS, "np.cumsum(documents.lengths // ratio,", "np.cumsum(-(-documents.lengths // ratio),"),
    Mutant(
        "COMPRESS-2",
        OFFSETS,
        "(firsts - documents.boundaries[inside]) // ratio",
        "-(-(firsts - documents.boundaries[inside]) // ratio)",
    ),
    Mutant(
        "COMPRESS-2",
        OFFSETS,
        "readonly(key_offsets(documents, ratio)[inside] +",
        "readonly((documents.boundaries // ratio)[inside] +",
    ),
    Mutant(
        "COMPRESS-3",
        BLOCKS,
        "np.arange(owners[rank], owners[rank + 1])",
        "np.arange(owners[rank], owners[rank + 1] - (rank > 0))",
    ),
    Mutant("COMPRESS-4", BLOCKS, "documents.boundaries[inside] + positions - halo.global_start", "positions"),
    Mutant(
        "COMPRESS-4",
        BLOCKS,
        "readonly(documents.boundaries[inside] + positions - halo.global_start)",
        "readonly(documents.boundaries[inside] + positions - rank * local)",
    ),
    Mutant(
        "COMPRESS-5", BLOCKS, "np.where(self.block_positions[:, None] > 0, rows - self.ratio, -1)", "rows - self.ratio"
    ),
    Mutant("COMPRESS-5", BLOCKS, "np.concatenate((before, rows), axis=1)", "np.concatenate((rows, before), axis=1)"),
    Mutant("COMPRESS-6", BLOCKS, "np.maximum(positions - ratio, 0)", "positions - ratio"),
    Mutant(
        "COMPRESS-6",
        BLOCKS,
        "        positions = np.maximum(positions - ratio, 0)\n",
        "        positions = np.maximum(positions - 2 * ratio, 0)\n",
    ),
    Mutant("COMPRESS-7", BLOCKS, "whole = not overlap and local % ratio == 0 and", "whole = local % ratio == 0 and"),
    Mutant(
        "COMPRESS-7",
        BLOCKS,
        "local % ratio == 0 and not (documents.boundaries % ratio).any()",
        "not (documents.boundaries % ratio).any()",
    ),
    Mutant("COMPRESS-8", BLOCKS, "max_blocks=int(np.diff(owners).max())", "max_blocks=len(positions)"),
    Mutant("COMPRESS-9", BLOCKS, "rows = plan.block_positions.copy()", "rows = plan.block_starts.copy()"),
    Mutant(
        "COMPRESS-9",
        COMPRESSION,
        "torch.from_numpy(plan.block_positions.copy())",
        "torch.from_numpy(plan.block_starts.copy())",
    ),
    Mutant("COMPRESS-10", BLOCKS, "    if not isinstance(overlap, bool):\n", "    if False:\n"),
    Mutant("COMPRESS-10", BLOCKS, "shapes[0] != shapes[1] or", ""),
    Mutant("COMPRESS-10", BLOCKS, "        wrong |= (starts < 0) | (positions < 0) | (self.block_documents < 0)\n", ""),
    Mutant("COMPRESS-11", COMPRESSION, "before.masked_fill(missing, fill)", "before"),
    Mutant("COMPRESS-11", COMPRESSION, "movedim((0, 1), (at, at + 1))", "movedim((0, 1), (at + 1, at))"),
    Mutant("COMPRESS-12", COMPRESSION, "torch.cat(done)", "torch.cat(done[::-1])"),
    Mutant("COMPRESS-12", COMPRESSION, "    if not spans:\n", "    if True:\n"),
    Mutant(
        "SEGMENT-4",
        SEGMENTS,
        "starts = np.maximum(documents.boundaries[inside], start)",
        "starts = documents.boundaries[inside].clip(min=start - 1)",
    ),
    Mutant("SEGMENT-4", SEGMENTS, "np.arange(first, last + 1)", "np.arange(first, last + 1)[: max(last - first, 1)]"),
    Mutant(
        "SEGMENT-5",
        SEGMENTS,
        "seen = tokens - (segment.query_stop - stop)",
        "seen = tokens - (segment.query_stop - start)",
    ),
    Mutant(
        "SEGMENT-5",
        SEGMENTS,
        "stop = min(start + most, segment.query_stop)",
        "stop = min(start + most + 1, segment.query_stop)",
    ),
    Mutant("SEGMENT-6", TND, "if part.key_start < part.key_stop]", "]"),
    Mutant(
        "SEGMENT-6",
        TND,
        "np.cumsum(self.key_stops - self.key_starts)",
        "np.cumsum(self.query_stops - self.query_starts)",
    ),
    Mutant("SEGMENT-6", TND, "stops[-1] == count and", "stops[-1] <= count and"),
    Mutant("SEGMENT-7", TND, "        out[...] = -1\n", ""),
    Mutant("SEGMENT-7", TND, "np.where(ids < 0, ids, ids + firsts[:, None])", "ids + firsts[:, None]"),
    Mutant("EXECUTOR-12", COMPILED, "not ctx.backwards, 0.0", "ctx.backwards, 0.0"),
    Mutant(
        "EXECUTOR-12",
        "hpfun_torch/inductor_order.py",
        "        if before is not None:\n",
        "        if False:\n",
    ),
    Mutant("EXECUTOR-10", CHECKS, "return tensor.requires_grad and torch.is_grad_enabled()", "return False"),
    Mutant("EXECUTOR-1", TRANSFER, "rows.resolve_conj().resolve_neg().contiguous()", "rows.contiguous()"),
    Mutant(
        "EXECUTOR-8",
        EXCHANGE,
        "        return _Exchange.apply(rows, ctx.exchange, ctx.group, 0, None)  # linear",
        "        return rows  # linear",
    ),
    Mutant("EXECUTOR-11", EXCHANGE, "        with torch.set_grad_enabled(with_grad):", "        if True:"),
    Mutant(
        "EXECUTOR-12",
        COMPILED,
        "packed, exchange.num_target_rows, dim",
        "packed, exchange.num_target_rows + 1, dim",
    ),
    Mutant("EXECUTOR-12", COMPILED, "    if exchange._packed is None:\n", "    if False:\n"),
    Mutant(
        "DISPATCH-1",
        EXCHANGE,
        "_Exchange.apply(tensor.movedim(dim, 0), exchange, group, fill, pending).movedim(0, dim)",
        "_Exchange.apply(tensor.movedim(dim, 0), exchange, group, fill, pending)",
    ),
    Mutant("DISPATCH-1", BANK, '"local_targets": _stretch(halo, halo + own)', '"local_targets": _stretch(0, own)'),
    Mutant(
        "EXECUTOR-6",
        CONVERT,
        "(lower if source < exchange.rank else higher)",
        "(higher if source < exchange.rank else lower)",
    ),
    Mutant("DISPATCH-2", CONVERT, "tensor[start:stop].add_(values", "tensor[start:stop].copy_(values"),
    Mutant("DISPATCH-2", TRANSFER, "torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype", "dtype"),
    Mutant("DISPATCH-3", TRANSFER, "    if exchange.required:\n        in_place", "    if True:\n        in_place"),
    Mutant(
        "DISPATCH-4", DISPATCH, '_CODES = ("HP-ROUTE-006", "HP-ROUTE-007")', '_CODES = ("HP-ROUTE-007", "HP-ROUTE-006")'
    ),
    Mutant("DISPATCH-4", DISPATCH, "    if not isinstance(route, SequenceDispatchRoute):\n", "    if route is None:\n"),
    Mutant(
        "DISPATCH-5",
        DISPATCH,
        "prepared, self._launch = self._launch, None",
        "prepared = self._launch",
    ),
    Mutant("DISPATCH-5", DISPATCH, "        if self._launch is not None:\n            self.start()\n", ""),
    Mutant("DISPATCH-5", DISPATCH, "handle, self._handle = self._handle, None", "handle = self._handle"),
    Mutant(
        "DISPATCH-6",
        "hpfun_torch/demo_routes.py",
        "(np.abs(got.grad - expected.grad) > 1e-12)",
        "(np.abs(got.grad - expected.grad) > 1e-3)",
    ),
    Mutant("GATHER-1", TRANSFER, "part[:count] for part, count", "part[-count:] for part, count"),
    Mutant("GATHER-1", TRANSFER, "        if min(lengths) == longest:\n", "        if True:\n"),
    Mutant(
        "GATHER-2",
        GATHER,
        "return _Reduce.apply(grad, ctx.lengths, ctx.group), None",
        "return grad[: ctx.lengths[dist.get_rank(ctx.group)]].clone(), None",
    ),
    Mutant("GATHER-3", TRANSFER, "    for part in parts[1:]:\n", "    for part in parts[1:].flip(0):\n"),
    Mutant("GATHER-3", TRANSFER, "parts[0].to(_summed(rows.dtype), copy=True)", "parts[0].clone()"),
    Mutant("GATHER-4", CHECKS, "    if counts is not None:\n", "    if False:\n"),
    Mutant(
        "GATHER-4",
        TRANSFER,
        "    if len(lengths) == 1 or not max(lengths):\n        copy",
        "    if len(lengths) == 1:\n        copy",
    ),
    Mutant("GATHER-5", CHECKS, "or counts[rank] != rows:", "or counts[rank] < rows:"),
    Mutant("GATHER-5", CHECKS, "min(counts) < 0 or", ""),
    Mutant(
        "GATHER-6",
        COMPILED,
        "ctx.lengths, ctx.num_rows = output[1], tensor.shape[ctx.dim]",
        "ctx.lengths, ctx.num_rows = output[1], tensor.shape[ctx.dim] + 1",
    ),
    Mutant(
        "GATHER-6",
        COMPILED,
        "torch.ops.hpfun.reduce_rows(grad, ctx.lengths,",
        "torch.ops.hpfun.reduce_rows(grad * 2, ctx.lengths,",
    ),
]
