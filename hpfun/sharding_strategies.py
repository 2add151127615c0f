"""Hypothesis strategies for sizes of models, meshes, and requests of degrees of parallelism.

Imported from ``hpfun.strategies``. Needs the extra ``testing``.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hpfun.sharding.degrees import legal_degrees, sequence_alignment
from hpfun.sharding.model import ModelFacts
from hpfun.sharding.reading import CP_LAYOUTS
from hpfun.sharding.request import MeshShape, ShardingRequest

_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@st.composite
def model_facts(draw: st.DrawFn) -> ModelFacts:
    """Sizes of models: dense and with experts, with grouped heads, without what one may lack, with odd widths.

    >>> from hypothesis import find
    >>> find(model_facts(), lambda facts: (facts.num_experts or 0) > 1).num_experts
    2
    """
    kv = draw(st.integers(1, 8))
    heads = kv * draw(st.integers(1, 4))
    width = st.none() | st.integers(1, 12).map(lambda blocks: 16 * blocks) | st.integers(1, 64)
    has_experts = draw(st.booleans())
    return ModelFacts(
        arch=draw(st.sampled_from(("", "toy"))),
        hidden_size=draw(width),
        num_attention_heads=draw(st.sampled_from((heads, heads, None))),
        num_key_value_heads=draw(st.sampled_from((kv, kv, None))),
        head_dim=draw(st.none() | st.integers(1, 16)),
        intermediate_size=draw(width),
        moe_intermediate_size=draw(width) if has_experts else None,
        num_experts=draw(st.integers(1, 16)) if has_experts else draw(st.sampled_from((None, 0))),
        vocab_size=draw(width),
        cp_layouts=tuple(draw(st.lists(st.sampled_from(CP_LAYOUTS), unique=True))),
    )


@st.composite
def mesh_shapes(draw: st.DrawFn, max_size: int = 4) -> MeshShape:
    """Meshes of some of the usual axes, in any order.

    >>> from hypothesis import find
    >>> find(mesh_shapes(), lambda mesh: (mesh.size("tp") or 1) > 1).size("tp")
    2
    """
    names = draw(st.lists(st.sampled_from(_AXES), unique=True))
    return MeshShape(axes=tuple((name, draw(st.integers(1, max_size))) for name in names))


@st.composite
def sharding_requests(draw: st.DrawFn, facts: ModelFacts | None = None) -> ShardingRequest:
    """Requests of any degrees; with ``facts``, of those that fit the model.

    >>> from hypothesis import find
    >>> facts = ModelFacts(num_attention_heads=6, num_experts=5)
    >>> request = find(sharding_requests(facts), lambda request: request.tp_size > 1 and request.ep_size > 1)
    >>> request.tp_size, request.ep_size
    (2, 5)
    """
    options: dict[str, Any] = {
        name: draw(st.booleans()) for name in ("sequence_parallel", "loss_parallel", "kv_replicate")
    }
    if facts is None:
        tp, cp, ep = (draw(st.integers(1, 8)) for _ in range(3))
        layout, seq_len = draw(st.sampled_from(CP_LAYOUTS)), draw(st.none() | st.integers(1, 64))
    else:
        cut = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")
        counts = [count for count in (getattr(facts, name) for name in cut) if count is not None]
        tp = draw(st.sampled_from(legal_degrees(*counts) if counts else range(1, 9)))
        ep = draw(st.sampled_from(legal_degrees(facts.num_experts or 1)))
        layout = draw(st.sampled_from(facts.cp_layouts or CP_LAYOUTS))
        cp = draw(st.integers(1, 4 if facts.cp_layouts else 1))
        alignment = sequence_alignment(cp, tp, options["sequence_parallel"], layout)
        seq_len = draw(st.none() | st.integers(1, 4).map(lambda times: times * alignment))
    return ShardingRequest(tp_size=tp, cp_size=cp, ep_size=ep, cp_layout=layout, seq_len=seq_len, **options)


def sharding_values() -> SearchStrategy[Any]:
    """Any value of ``hpfun.sharding``."""
    fitting = model_facts().flatmap(lambda facts: sharding_requests(facts))
    return st.one_of(model_facts(), mesh_shapes(), sharding_requests(), fitting)
