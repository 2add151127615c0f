"""Layers that share, schedules and attention plans in words; ``hpfun.explain`` calls these.

Rule ATTN-18 of ``specs/attention.md``.
"""

from collections.abc import Iterator, Sequence

import attrs

from hpfun.attention.plan import AttentionPlan
from hpfun.attention.schedule import OverlapSchedule
from hpfun.attention.sharing import LayerSharing
from hpfun.indexer.options import IndexerMode, IndexerOptions
from hpfun.wording import counted, listed


def sharing_in_words(sharing: LayerSharing) -> str:
    """Per ratio its layers, where their keys come from, and who chooses."""
    lines = [f"{counted(sharing.num_layers, 'layer')}:"]
    for ratio in sorted(set(sharing.compress_ratios.tolist())):
        layers = _layers(sharing, ratio)
        lines.append(f"  ratio {ratio}: {_named(layers)}")
        if not ratio:
            lines.append("    a window alone")
            continue
        makers = [layer for layer in layers if sharing.key_source(layer) == layer]
        lines.append(f"    keys: {'each makes its own' if makers == layers else f'made by {_named(makers)}'}")
        lines += [f"    {told}" for told in _choices(sharing, layers)]
    return "\n".join(lines)


def schedule_in_words(schedule: OverlapSchedule) -> str:
    """The events one below the other, with a column for each transfer that shows when it is under way."""
    names = schedule.launches
    marked = "; v launched, | under way, ^ waited for" if names else ""
    lines = [f"{counted(len(schedule.events), 'event')}, {counted(len(names), 'transfer')}{marked}."]
    width = max((len(event) for event in schedule.events), default=0)
    if names:
        lines.append(f"  {'':{width}}  {' '.join(names)}")
    for event, (action, name) in zip(schedule.events, schedule.steps, strict=True):
        running = schedule.under_way(event)
        marks = ["|" if other in running else " " for other in names]
        if action != "compute":
            marks[names.index(name)] = "v" if action == "launch" else "^"
        columns = " ".join(f"{mark:^{len(other)}}" for mark, other in zip(marks, names, strict=True))
        lines.append(f"  {event:{width}}  {columns}".rstrip())
    return "\n".join(lines)


def attention_in_words(plan: AttentionPlan) -> str:
    """What moves for the window and for each ratio, and how even the scoring is with and without balance."""
    documents = plan.documents
    lines = [
        f"Attention plan: {counted(documents.total, 'token')} in {counted(documents.num_documents, 'document')} over "
        f"{counted(plan.size, 'rank')}."
    ]
    window = plan.window_plan()
    if window is None:
        lines.append("No window.")
    else:
        lines.append(
            f"Window of {counted(plan.config.window, 'row')}: {_moved(window.moved_rows, 'row')}, "
            f"the longest halo is {window.halo_rows.max()}."
        )
    for ratio in sorted(set(plan.config.sharing.compress_ratios.tolist())):
        lines += _ratio(plan, ratio)
    return "\n".join(lines)


def _ratio(plan: AttentionPlan, ratio: int) -> Iterator[str]:
    """What a plan says of the layers of one ratio."""
    sharing = plan.config.sharing
    layers = _layers(sharing, ratio)
    if not ratio:
        yield f"Ratio 0: {counted(len(layers), 'layer')} with a window alone."
        return
    keys = plan.prefix_plan(ratio)
    moved = _moved(keys.moved_rows, "key")
    yield f"Ratio {ratio}: {counted(len(layers), 'layer')}, {counted(keys.total_rows, 'key')}; {moved}."
    if ratio in plan.config.overlapping_ratios:
        yield "  blocks: each read with the one before"
    yield from (f"  {told}" for told in _choices(sharing, layers))
    if ratio in plan.config.choosing_ratios:
        yield f"  top-k: {plan.config.topk}"
        row_cost = plan.balance.row_cost
        home = attrs.evolve(plan, balance=IndexerOptions(IndexerMode.NONE, row_cost=row_cost)).indexer_plan(ratio)
        shared = plan.indexer_plan(ratio)
        balance = f", {shared.imbalance:.3f} with {plan.balance.mode.value}: {_moved(shared.moved_rows, 'row')}"
        yield f"  imbalance: {home.imbalance:.3f} at home{balance if plan.balanced else ''}"


def _layers(sharing: LayerSharing, ratio: int) -> list[int]:
    return [layer for layer, other in enumerate(sharing.compress_ratios.tolist()) if other == ratio]


def _choices(sharing: LayerSharing, layers: Sequence[int]) -> Iterator[str]:
    """Who chooses among the layers of one ratio, and who sees all keys."""
    choosing = [layer for layer in layers if sharing.index_source(layer) == layer]
    dense = [layer for layer in layers if layer in sharing.dense_layers]
    if choosing:
        yield f"choices: by {'each layer' if len(choosing) == len(layers) else _named(choosing)}"
    if dense:
        yield f"all visible keys: {'each layer' if len(dense) == len(layers) else _named(dense)}"


def _named(layers: Sequence[int]) -> str:
    return f"layer{'' if len(layers) == 1 else 's'} {listed(layers)}"


def _moved(number: int, noun: str) -> str:
    return f"{counted(number, noun)} {'moves' if number == 1 else 'move'}"
