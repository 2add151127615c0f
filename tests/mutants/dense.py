"""Mutants of the rules of ``specs/dense.md``, and of those of ``specs/attention.md`` for dense models."""

from tests.mutants.mutant import Mutant

BLOCKS, ROUTE = "hpfun/dense/blocks.py", "hpfun/dense/route.py"
DENSE = "hpfun_torch/dense.py"
PLUG = "hpfun_torch/integrations/transformers/"
KIND, CALL, BATCH, ENABLE = f"{PLUG}dense.py", f"{PLUG}call.py", f"{PLUG}batch.py", f"{PLUG}enable.py"
KINDS = f"{PLUG}kinds.py"

MUTANTS = [
    Mutant("DENSE-1", BLOCKS, "(starts[1:] != stops[:-1])", "(starts[1:] == stops[:-1])"),
    Mutant("DENSE-1", BLOCKS, "own_keys + 1 - window", "own_keys - window"),
    Mutant("DENSE-1", BLOCKS, "np.maximum(ends[:-1][documents], bank_start)", "ends[:-1][documents]"),
    Mutant("DENSE-2", BLOCKS, "key_stops=readonly(before + lasts)", "key_stops=readonly(blocks.key_stops[at])"),
    Mutant("DENSE-2", BLOCKS, "(self.window == 0) | (keys <= self.window)", "True"),
    Mutant("DENSE-3", ROUTE, "readonly(position_rows(plan))", "np.arange(plan.padded_length)"),
    Mutant("DENSE-3", ROUTE, "if window else document_prefix_route", "if window > 9 else document_prefix_route"),
    Mutant("DENSE-4", BLOCKS, "wrong |= self.row_lengths > self.key_stops - self.key_starts", "pass"),
    Mutant("DENSE-4", ROUTE, "or rows != self.blocks.num_keys", ""),
    Mutant(
        "DENSE-5",
        DENSE,
        "bank = _bank(torch.cat((key, value), dim=-1), route, context)",
        "bank = torch.cat([_bank(part, route, context.group) for part in (key, value)], dim=-1)",
    ),
    Mutant("DENSE-6", DENSE, ".tril(keys - rows)", ".tril(keys - rows + 1)"),
    Mutant("DENSE-6", DENSE, "keys - rows - tiles.window + 1", "keys - rows - tiles.window"),
    Mutant("DENSE-6", DENSE, ".index_select(0, context.order(rows.device))", ""),
    Mutant(
        "DENSE-7",
        DENSE,
        "split_blocks(self.route(window).blocks, self.tile_rows)",
        "split_blocks(self.route(window).blocks, 2**30)",
    ),
    Mutant("DENSE-7", DENSE, "return attend(rows, bank, seen)", "return attend(rows, bank, seen.clone())"),
    Mutant("DENSE-8", DENSE, "or query.shape[1] % heads:", "or False:"),
    Mutant("DENSE-8", DENSE, "if topology.cp_size != size:", "if False:"),
    Mutant("DENSE-9", DENSE, "torch.is_autocast_enabled(kind) and", "False and"),
    Mutant("HF-15", KIND, "window=sliding_window or 0", "window=0"),
    Mutant("HF-15", KIND, "scale=scaling,", "scale=1.0,"),
    Mutant(
        "HF-16",
        KIND,
        "ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, no_mask)",
        'ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])',
    ),
    Mutant("HF-16", KIND, '_TERMS = ("softcap", ', "_TERMS = ("),
    Mutant("HF-17", KIND, "torch.cat((text, rope.to(text.dtype)))", "torch.cat((text, text, text, text))"),
    Mutant("HF-17", KIND, "for own in ids.split(documents.lengths.tolist()):", "for own in (ids,):"),
    Mutant("HF-18", BATCH, "own = rows.place(shifted, 0, IGNORED)[None]", "own = rows.place(shifted, 0, 0)[None]"),
    Mutant("HF-18", BATCH, "rows.place(pack.ids, 0, pad_token_id)", "rows.place(pack.ids, 0, 0)"),
    Mutant("HF-19", KIND, "    _switch(model, before)\n\n\ndef _switch", "    _switch(model, 'sdpa')\n\n\ndef _switch"),
    Mutant(
        "HF-19",
        KIND,
        "model.set_attn_implementation(name if inner is None else {inner: name})",
        "model.set_attn_implementation(name)",
    ),
    Mutant("HF-19", KIND, "if config._attn_implementation == NAME:", "if False:"),
    Mutant("HF-20", ENABLE, "LayerSelection(region_fqns=layers)", "LayerSelection(layer_count=count)"),
    Mutant("HF-21", KINDS, "if type(module) in known and not own:", "if not own:"),
    Mutant("HF-21", KINDS, 'own = "forward" in vars(module)', "own = False"),
    Mutant("HF-21", KIND, "elif module.config is not config:", "elif False:"),
    Mutant("HF-21", KIND, '"overlapped": False, "indexer_priority": False', '"overlapped": False'),
    Mutant("HF-21", CALL, '"pixel_values", "pixel_values_videos", ', '"pixel_values_videos", '),
    Mutant("HF-21", ENABLE, "refuse_all(_without_effect(family, options))", "pass"),
]
