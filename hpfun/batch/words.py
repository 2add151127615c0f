"""Batch plans, views, layouts, loss scales and manifests in words; ``hpfun.explain`` calls these.

Rule BATCH-45 of ``specs/batch.md``.
"""

from hpfun.batch.decoder import DecoderSequenceLayout
from hpfun.batch.loss import LossScale
from hpfun.batch.manifest import BatchManifest
from hpfun.batch.plan import BatchPlan
from hpfun.batch.view import BatchView
from hpfun.batch.work import rank_work, total_work
from hpfun.wording import counted

LINES_SHOWN = 16
SPANS_SHOWN = 3


def batch_in_words(plan: BatchPlan) -> str:
    """Padding, and per CP rank its real rows, its labels and its share of causal work."""
    topology, total = plan.topology, plan.num_tokens
    more = plan.padded_length - total
    share = f" ({more / total:.2%} more)" if total else ""
    parts = f"{counted(topology.cp_size, 'CP rank')} x {counted(topology.tp_size, 'TP rank')}"
    lines = [
        f"Batch plan {plan.layout}: {counted(total, 'token')} in {counted(len(plan.lengths), 'document')} "
        f"over {parts}.",
        f"{counted(more, 'token')} of padding{share}: {plan.padded_length}, a multiple of {plan.alignment}.",
        f"{counted(plan.local_length, 'row')} a CP rank"
        + (f", {plan.local_length // topology.row_parts} a TP rank." if topology.row_parts > 1 else "."),
    ]
    if len(plan.dropped_documents):
        lines.append(f"{counted(len(plan.dropped_documents), 'document')} without tokens left out.")
    mean = total_work(plan) / topology.cp_size
    lines.append(f"{'CP rank':>9}{'real rows':>12}{'labels':>10}{'causal pairs':>18}{'of mean':>10}")
    for rank in range(min(topology.cp_size, LINES_SHOWN)):
        real, labels, work = plan.real_rows(rank), plan.real_rows(rank, ahead=1), rank_work(plan, rank)
        of_mean = f"{work / mean:.3f}" if mean else "-"
        lines.append(f"{rank:>9}{real:>12}{labels:>10}{work:>18}{of_mean:>10}")
    return "\n".join((*lines, *_more(topology.cp_size, "CP rank")))


def batch_view_in_words(view: BatchView) -> str:
    """A rank's rows, and of each of its documents how many and how many keys they need."""
    lines = [
        f"Rank {view.cp_rank} of {counted(view.plan.topology.cp_size, 'CP rank')}, {view.plan.layout}: "
        f"{counted(len(view.positions), 'row')}, {counted(view.real_rows, 'token')}.",
        decoder_in_words(view.layout),
        f"{'document':>10}{'rows':>12}{'keys':>12}",
    ]
    for at in range(min(len(view.documents), LINES_SHOWN)):
        name = view.documents[at] if view.documents[at] < len(view.plan.lengths) else "padding"
        lines.append(f"{name:>10}{view.q_lengths[at]:>12}{view.kv_lengths[at]:>12}")
    return "\n".join((*lines, *_more(len(view.documents), "document")))


def decoder_in_words(layout: DecoderSequenceLayout) -> str:
    """The positions of one parent rank."""
    spans = ", ".join(f"{start}..{stop}" for start, stop in layout.intervals[:SPANS_SHOWN])
    rest = len(layout.intervals) - SPANS_SHOWN
    more = f" and {counted(rest, 'more interval')}" if rest > 0 else ""
    return (
        f"CP rank {layout.cp_rank}, TP rank {layout.tp_rank}: rows {layout.cp_local_start}..{layout.cp_local_stop} of "
        f"the shard, of {layout.global_sequence_length} positions\n  {spans}{more}"
    )


def loss_in_words(scale: LossScale) -> str:
    """How many labels count, and what a sum of losses is multiplied with."""
    counts = scale.valid_by_rank
    held = f", {int(counts.min())} to {int(counts.max())} a rank" if len(counts) else ""
    lines = [f"{counted(scale.total, 'label')} over {counted(len(counts), 'rank')}{held}."]
    if scale.factor > 1:
        lines.append(f"Each rank multiplies the sum of its losses by {scale.factor} / {scale.divisor}:")
        lines.append(f"  {scale.factor} since gradients are averaged over the ranks.")
    else:
        lines.append(f"Each rank divides the sum of its losses by {scale.divisor}.")
    return "\n".join(lines)


def manifest_in_words(manifest: BatchManifest) -> str:
    """The parts of a batch that travels, one a line."""
    tensors = [entry for entry in manifest.entries if entry.kind == "tensor"]
    values = [entry for entry in manifest.entries if entry.kind == "value"]
    lines = [
        f"{counted(len(tensors), 'tensor')} in {counted(manifest.payload_bytes, 'byte')}, "
        f"{counted(len(values), 'plain value')}."
    ]
    for entry in tensors[:LINES_SHOWN]:
        extents = ", ".join(map(str, entry.shape))
        lines.append(f"  {entry.name}: {entry.dtype} [{extents}], {counted(entry.nbytes, 'byte')} from {entry.offset}")
    return "\n".join((*lines, *_more(len(tensors), "tensor")))


def _more(number: int, noun: str) -> list[str]:
    return [f"  ... {counted(number - LINES_SHOWN, f'more {noun}')}"] if number > LINES_SHOWN else []
