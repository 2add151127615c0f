"""Mutants of the rules of the operators' contract, dispatch and adapters to Ascend, in ``specs/executors.md``."""

from tests.mutants.mutant import Mutant

CONTRACT = "hpfun_torch/ops/contract.py"
DISPATCH = "hpfun_torch/ops/__init__.py"
EXTENSIONS = "hpfun_torch/ops/npu/extensions.py"
INDEXER = "hpfun_torch/ops/npu/indexer.py"
KL = "hpfun_torch/ops/npu/kl.py"
LENGTHS = "hpfun_torch/ops/npu/lengths.py"
LIMITS = "hpfun_torch/ops/npu/limits.py"
MLA = "hpfun_torch/ops/npu/mla.py"
PACKED = "hpfun_torch/ops/npu/packed.py"
PACKING = "hpfun_torch/ops/npu/packing.py"
SPARSE = "hpfun_torch/ops/npu/sparse.py"

MUTANTS = [
    Mutant("OPS-8", CONTRACT, "if low < -1 or high >= key_bank.shape[0]:", "if high >= key_bank.shape[0]:"),
    Mutant("OPS-8", CONTRACT, "not math.isfinite(scale)", "False"),
    Mutant("OPS-8", CONTRACT, "if (tensors[name] is None) != (wanted == 0):", "if tensors[name] is None and wanted:"),
    Mutant("OPS-9", DISPATCH, "if kind not in BACKENDS:", "if False:"),
    Mutant("OPS-9", DISPATCH, 'NEEDED.get(kind, (None, ""))', 'NEEDED.get("cpu", (None, ""))'),
    Mutant("OPS-10", DISPATCH, "import torch\n", "import torch\n\nimport hpfun_torch.ops.npu\n"),
    Mutant("OPS-11", LIMITS, "    refuse_all(broken)", "    refuse_all(broken[:1])"),
    Mutant("OPS-11", LIMITS, "self.least <= value <= self.most", "self.least <= value <= self.most + 1"),
    Mutant("OPS-11", INDEXER, "(*range(1, 2049), *range(3072, 8193, 1024))", "range(1, 8193)"),
    Mutant("OPS-11", KL, "Span(min(MOST, keys), MOST)", "Span(1, MOST)"),
    Mutant(
        "OPS-12",
        LENGTHS,
        "torch.tensor(np.cumsum(lengths), dtype=torch.int32",
        "torch.tensor(np.cumsum(lengths), dtype=torch.int64",
    ),
    Mutant("OPS-12", LENGTHS, "np.concatenate(([0], np.cumsum(lengths)))", "np.cumsum(lengths)"),
    Mutant("OPS-12", LENGTHS, "return np.cumsum(lengths).tolist()", "return lengths.tolist()"),
    Mutant("OPS-13", INDEXER, "(found >= 0) & (found < seen)", "found >= 0"),
    Mutant("OPS-13", INDEXER, "found + first, beyond).sort(dim=1).values", "found + first, beyond)"),
    Mutant("OPS-13", INDEXER, "found + first, beyond", "found, beyond"),
    Mutant("OPS-14", INDEXER, "enabled=False", "enabled=True"),
    Mutant("OPS-14", SPARSE, "return d_query, d_key + d_value,", "return d_query, d_key,"),
    Mutant("OPS-14", MLA, "d_far, None, None if sinks is None else d_sinks", "d_far, None, None"),
    Mutant("OPS-11", MLA, "<= min(segments.window, WINDOW)", "<= WINDOW + 9"),
    Mutant("OPS-14", PACKED, "BAND if bool((last - first > segments.window).any()) else CAUSAL", "CAUSAL"),
    Mutant("OPS-14", PACKED, "segments.window - 1,", "segments.window,"),
    Mutant("OPS-14", KL, "return total / count", "return total"),
    Mutant("OPS-15", INDEXER, "return max(start, stop - (last - first)), stop", "return start, stop"),
    Mutant(
        "OPS-15",
        PACKING,
        "    return out, sinks.detach().float().expand(query.shape[:2])",
        "    return out, out[..., 0]",
    ),
    Mutant("OPS-16", EXTENSIONS, "return _EXTENSIONS.get(name)", "return None"),
]
