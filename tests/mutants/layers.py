"""Mutants of the rules of ``specs/attention.md`` that tensors keep, and of attention's operators on the CPU."""

from tests.mutants.mutant import Mutant

ATTENTION = "hpfun_torch/ops/cpu/attention.py"
PARTS = "hpfun_torch/ops/cpu/parts.py"
KL = "hpfun_torch/ops/cpu/kl.py"
CONTEXT = "hpfun_torch/attention/context.py"
COMPRESS = "hpfun_torch/attention/compress.py"
STATE = "hpfun_torch/attention/state.py"
SELECT = "hpfun_torch/attention/select.py"
CANDIDATES = "hpfun_torch/attention/candidates.py"
LAYER = "hpfun_torch/attention/layer.py"
LOSS = "hpfun_torch/attention/loss.py"
PLAN = "hpfun/attention/plan.py"
PLUG = "hpfun_torch/integrations/transformers/"
CONFIGS, CALL, BATCH = f"{PLUG}configs.py", f"{PLUG}call.py", f"{PLUG}batch.py"
SPARSE, KINDS = f"{PLUG}sparse.py", f"{PLUG}kinds.py"
ENABLE, TRAINING, V4, DSA = f"{PLUG}enable.py", f"{PLUG}training.py", f"{PLUG}v4.py", f"{PLUG}dsa.py"
DEMO = "hpfun_torch/demo_training.py"

MUTANTS = [
    Mutant("OPS-20", PARTS, "(order >= starts[:, None]) &", "(order > starts[:, None]) &"),
    Mutant("OPS-20", ATTENTION, "own = slice(group * heads, (group + 1) * heads)", "own = slice(0, heads)"),
    Mutant(
        "OPS-21",
        ATTENTION,
        "logits = torch.cat((logits, column), dim=-1)",
        "logits = torch.cat((logits, 0 * column), dim=-1)",
    ),
    Mutant("OPS-21", ATTENTION, "lse.masked_fill(lse == -torch.inf, 0.0)[..., None]", "lse[..., None]"),
    Mutant("OPS-22", ATTENTION, "(inner - drift[..., None]) * scale", "inner * scale"),
    Mutant(
        "OPS-22", ATTENTION, "totals.sinks.sub_((share * drift).sum(0))", "totals.sinks.add_((share * drift).sum(0))"
    ),
    Mutant("OPS-22", ATTENTION, "key_grad[..., : value_grad.shape[-1]] += value_grad", "pass"),
    Mutant("OPS-23", PARTS, "with torch.autocast(first.device.type, enabled=False):", "with torch.enable_grad():"),
    Mutant("OPS-23", ATTENTION, "total.to(own) for total, own in", "total.to(query.dtype) for total, own in"),
    Mutant("OPS-24", PARTS, "max(1, min(ROWS, ELEMENTS // numbers))", "len(ranges.host_key[0])"),
    Mutant("OPS-25", KL, "student.exp() - share", "student.exp() - 2 * share"),
    Mutant("OPS-25", KL, "summed - summed.logsumexp(dim=1, keepdim=True)", "summed"),
    Mutant(
        "OPS-26",
        KL,
        "grads[1].index_add_(0, place.reshape(-1), (slope.mT @ asked).flatten(0, 1))",
        "grads[1][place] = slope.mT @ asked",
    ),
    Mutant("OPS-27", KL, ".masked_fill(~valid, 0.0) / count", ".masked_fill(~valid, 0.0) / len(selected)"),
    Mutant("ATTN-20", CONTEXT, "if not isinstance(config, AttentionConfig):", "if config is None:"),
    Mutant("ATTN-21", PLAN, "@lru_cache(maxsize=32)\ndef _route", "def _route"),
    Mutant("ATTN-22", COMPRESS, "bias.repeat(2, 1)", "bias.repeat(2, 1).flip(0)"),
    Mutant("ATTN-22", COMPRESS, "ragged = plan is None and", "ragged = False and"),
    Mutant("ATTN-22", COMPRESS, "blocks[1] if bias is None else blocks[1] + bias", "blocks[1]"),
    Mutant("ATTN-23", COMPRESS, "fill=-torch.inf", "fill=0"),
    Mutant("ATTN-24", STATE, 'self._sharing.index_source(layer) if kind == "topk"', 'layer if kind == "topk"'),
    Mutant(
        "ATTN-25",
        STATE,
        '_read = checkpoint_exclude_wrapper(_read_entry, name="shared layer state")',
        "_read = _read_entry",
    ),
    Mutant("ATTN-25", STATE, "if not is_recomputing():", "if is_recomputing():"),
    Mutant("ATTN-26", STATE, "self._store.pop(entry, None)", "pass"),
    Mutant(
        "ATTN-27",
        LAYER,
        "        self.selection.take(*self.functions.index_rows())",
        "        self.functions.indexer.project(self.functions.index_rows()[0])\n"
        "        self.selection.take(*self.functions.index_rows())",
    ),
    Mutant("ATTN-28", SELECT, "ids - keys.bank.global_start", "ids"),
    Mutant("ATTN-28", SELECT, "        steps.index_keys = index_keys", "        pass"),
    Mutant(
        "ATTN-29",
        SELECT,
        "if there and (context.plan.balanced or context.plan.overlapped):",
        "if there and context.plan.balanced:",
    ),
    Mutant(
        "ATTN-30",
        "hpfun_torch/ops/cpu/indexer.py",
        "scores if reduce_scores is None else reduce_scores(scores)",
        "scores",
    ),
    Mutant("ATTN-31", CANDIDATES, "best[some, newest[some]] = torch.inf", "best[some, newest[some]] += 0"),
    Mutant("ATTN-31", CANDIDATES, "rows = slice(own.start - query_offset, own.stop - query_offset)", "rows = own"),
    Mutant("ATTN-32", CANDIDATES, "seen = (ids >= starts)", "seen = (ids >= 0)"),
    Mutant(
        "ATTN-33",
        "hpfun/attention/segments.py",
        "key_offsets(documents, ratio)[inside] - bank",
        "key_offsets(documents, ratio)[inside]",
    ),
    Mutant("ATTN-34", LAYER, "        self.window.start()", "        pass"),
    Mutant("ATTN-35", "hpfun/attention/schedule.py", "    if options.overlapped:\n", "    if False:\n"),
    Mutant(
        "ATTN-36",
        LAYER,
        'self.state.publish("keys", self.layer, self.keys)',
        'self.state.publish("keys", self.layer, self.keys.detach())',
    ),
    Mutant("ATTN-36", LAYER, "        if idle:", "        if False:"),
    Mutant("ATTN-37", LOSS, "num_queries=context.num_queries,", "num_queries=2 * context.num_queries,"),
    Mutant("HF-1", CONFIGS, 'if mode == "full"]', 'if mode != "shared" or layer]'),
    Mutant("HF-2", KINDS, "if type(module) in known and not own:", "if not own:"),
    Mutant("HF-2", CONFIGS, '_GROWING_ROPES = ("dynamic", "longrope")', '_GROWING_ROPES = ("longrope",)'),
    Mutant("HF-3", V4, "cos, -sin, unsqueeze_dim=2)", "cos, sin, unsqueeze_dim=2)"),
    Mutant("HF-4", SPARSE, "if context.plan.config != state.config:", "if False:"),
    Mutant("HF-4", CALL, 'kwargs.get("use_cache") is not False', 'kwargs.get("use_cache")'),
    Mutant("HF-5", DSA, "split = module is v32", "split = module is not v32"),
    Mutant("HF-6", BATCH, "rows_ahead(documents.lengths, labels.device).place(labels, 0, IGNORED)", "labels.clone()"),
    Mutant(
        "HF-7",
        BATCH,
        "own = rows.place(shifted, 0, IGNORED)[None]",
        "own = rows.place(shifted, 0, pad_token_id)[None]",
    ),
    Mutant("HF-8", BATCH, '"tokens": found.tokens', '"tokens": ""'),
    Mutant("HF-9", ENABLE, "            family.kind.take_off(model, modules, before)", "            pass"),
    Mutant(
        "HF-10",
        LAYER,
        "partial(ops.sparse_attention, **options)",
        "lambda *banks: ops.sparse_attention(*banks, **(options | {'segments': run.segments}))",
    ),
    Mutant(
        "HF-10",
        SELECT,
        "checkpoint_exclude_wrapper(torch.no_grad()(function), save_output=save_output, name=name)",
        "torch.no_grad()(function)",
    ),
    Mutant("HF-11", ENABLE, "    state.hook.remove()\n", ""),
    Mutant("HF-12", TRAINING, "        if ranks:\n", "        if parameter.grad is not None or ranks < 0:\n"),
    Mutant("HF-13", TRAINING, "dist.all_reduce(told, group=group)", "pass"),
    Mutant("HF-14", DEMO, "abs(pair[0] - pair[1]) > TOLERANCE", "abs(pair[0] - pair[1]) > 1"),
]
