"""Hypothesis strategies for batch plans, their views and layouts, fields, loss scales and manifests.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.batch.decoder import DecoderSequenceLayout, decoder_layout
from hpfun.batch.fields import POSITION, FieldSpec
from hpfun.batch.layouts import LAYOUTS
from hpfun.batch.loss import REDUCTIONS, LossScale, loss_scale
from hpfun.batch.manifest import BatchManifest, describe_batch
from hpfun.batch.plan import BatchPlan, plan_batch, required_global_alignment
from hpfun.batch.view import BatchView, batch_view
from hpfun.topology import BatchTopology

_WIDTHS = {"int64": 8, "float32": 4, "bfloat16": 2, "bool": 1, "complex128": 16}


def batch_topologies(max_cp: int = 4, max_tp: int = 3) -> SearchStrategy[BatchTopology]:
    """Decoder groups with and without sequence parallelism.

    >>> from hypothesis import find
    >>> find(batch_topologies(), lambda topology: topology.row_parts > 1)
    BatchTopology(cp_size=1, tp_size=2, sequence_parallel=True, dp_size=1)
    """
    return st.builds(BatchTopology, st.integers(1, max_cp), st.integers(1, max_tp), st.booleans(), st.integers(1, 2))


def document_lengths(max_documents: int = 6, max_length: int = 24) -> SearchStrategy[tuple[int, ...]]:
    """Lengths of documents in tokens, 0 and none at all included.

    >>> from hypothesis import find
    >>> find(document_lengths(), lambda lengths: len(lengths) == 2)
    (0, 0)
    """
    return st.lists(st.integers(0, max_length), max_size=max_documents).map(tuple)


@st.composite
def batch_requests(
    draw: st.DrawFn, max_cp: int = 4, max_tp: int = 3, max_documents: int = 6, max_length: int = 24
) -> dict[str, Any]:
    """Keyword arguments that ``plan_batch`` accepts.

    >>> from hypothesis import find
    >>> request = find(batch_requests(), lambda request: request["alignment"] is not None)
    >>> plan_batch(**request).alignment == request["alignment"]
    True
    """
    topology = draw(batch_topologies(max_cp, max_tp))
    times = draw(st.none() | st.integers(1, 3))
    return {
        "lengths": draw(document_lengths(max_documents, max_length)),
        "topology": topology,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "alignment": None if times is None else times * required_global_alignment(topology),
    }


def batch_plans(max_cp: int = 4, max_tp: int = 3, max_length: int = 24) -> SearchStrategy[BatchPlan]:
    """Batch plans of both layouts, some with padding alone.

    >>> from hypothesis import find
    >>> find(batch_plans(), lambda plan: plan.layout == "zigzag" and plan.num_tokens == 2).padded_length
    2
    """
    return batch_requests(max_cp, max_tp, max_length=max_length).map(lambda request: plan_batch(**request))


@st.composite
def batch_views(draw: st.DrawFn) -> BatchView:
    """One rank's view of a batch plan.

    >>> from hypothesis import find
    >>> find(batch_views(), lambda view: view.cp_rank == 1 and view.real_rows == 0).plan.topology.cp_size
    2
    """
    plan = draw(batch_plans())
    ranks = st.integers(0, plan.topology.cp_size - 1), st.integers(0, plan.topology.tp_size - 1)
    return batch_view(plan, *map(draw, ranks))


def decoder_layouts() -> SearchStrategy[DecoderSequenceLayout]:
    """Token intervals of one parent rank.

    >>> from hypothesis import find
    >>> find(decoder_layouts(), lambda layout: layout.global_start is None).intervals
    ((0, 2),)
    """
    return batch_views().map(lambda view: decoder_layout(view.plan, view.cp_rank, view.tp_rank))


def field_specs() -> SearchStrategy[FieldSpec]:
    """Per-token fields with all kinds of padding.

    >>> from hypothesis import find
    >>> find(field_specs(), lambda spec: spec.pad == "position").pad
    'position'
    """
    pads = st.integers(-100, 100) | st.floats(allow_nan=False) | st.booleans() | st.just(POSITION)
    return st.builds(FieldSpec, st.text(min_size=1, max_size=8), st.integers(-3, 2), pads, st.booleans())


@st.composite
def loss_scales(draw: st.DrawFn, max_size: int = 6) -> LossScale:
    """Loss scales, some of ranks without any label.

    >>> from hypothesis import find
    >>> find(loss_scales(), lambda scale: scale.total == 0 and scale.factor == 3).divisor
    1
    """
    counts = draw(st.lists(st.integers(0, 2**40) | st.just(0), min_size=1, max_size=max_size))
    return loss_scale(counts, reduction=draw(st.sampled_from(REDUCTIONS)), group_size=len(counts))


def plain_values() -> SearchStrategy[Any]:
    """What a batch may hold beside tensors: None, bool, int, float, text, and lists and dicts of those.

    >>> from hypothesis import find
    >>> find(plain_values(), lambda value: isinstance(value, dict) and len(value) == 1)
    {'': None}
    """
    leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
    return st.recursive(
        leaves,
        lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=4), parts, max_size=3),
        max_leaves=6,
    )


@st.composite
def batch_manifests(draw: st.DrawFn) -> BatchManifest:
    """Manifests of tensors of several dtypes and of plain values.

    >>> from hypothesis import find
    >>> find(batch_manifests(), lambda manifest: manifest.payload_bytes > 16).entries[0].kind
    'tensor'
    """
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    tensors = st.sampled_from(sorted(_WIDTHS)).flatmap(
        lambda name: shapes.map(lambda shape: (name, shape, _WIDTHS[name]))
    )
    return describe_batch(draw(st.dictionaries(st.text(max_size=8), tensors | plain_values(), max_size=5)))


def batch_values() -> SearchStrategy[Any]:
    """Any plan value of ``hpfun.batch``."""
    return st.one_of(
        batch_topologies(),
        batch_plans(),
        batch_views(),
        decoder_layouts(),
        field_specs(),
        loss_scales(),
        batch_manifests(),
        batch_manifests().filter(lambda manifest: manifest.entries).map(lambda manifest: manifest.entries[0]),
    )
