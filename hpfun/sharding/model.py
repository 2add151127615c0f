"""The sizes of a model that degrees of parallelism have to fit, as one value.

Names are those of Hugging Face configs, and other names of the same sizes are read as well. Rules SHARD-2 to
SHARD-5 and SHARD-39 of ``specs/sharding.md`` say what depends on them.
"""

from collections.abc import Mapping

import attrs

from hpfun._fields import content_digest, named_plan_value
from hpfun.errors import Violation, refuse_all
from hpfun.sharding.reading import (
    by_place,
    count,
    cp_layouts,
    keep_read,
    positive_or_none,
    read_field,
    read_value,
    text,
    unread,
)

_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "arch": ("model_type",),
    "hidden_size": ("n_embd",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "num_experts": ("n_routed_experts", "num_local_experts"),
}


@named_plan_value
class ModelFacts:
    """What a model's config says of its sizes; None is what it does not have, and nothing is checked against it.

    Heads, widths and the vocabulary are counts of at least 1, ``num_experts`` one of at least 0. ``cp_layouts`` are
    the layouts that its attention can run under context parallelism, none by default: no config says so. Raises
    HP-SHARD-009, all bad fields at once.

    >>> ModelFacts(num_attention_heads=28, num_key_value_heads=4).num_experts is None
    True
    """

    arch: str = read_field(text, default="")
    hidden_size: int | None = read_field(positive_or_none, default=None)
    num_attention_heads: int | None = read_field(positive_or_none, default=None)
    num_key_value_heads: int | None = read_field(positive_or_none, default=None)
    head_dim: int | None = read_field(positive_or_none, default=None)
    intermediate_size: int | None = read_field(positive_or_none, default=None)
    moe_intermediate_size: int | None = read_field(positive_or_none, default=None)
    num_experts: int | None = read_field(count, default=None)
    vocab_size: int | None = read_field(positive_or_none, default=None)
    cp_layouts: tuple[str, ...] = read_field(cp_layouts, default=())

    digest = content_digest

    def __attrs_post_init__(self):
        keep_read(self)

    @classmethod
    def of(cls, sizes: "Mapping[str, object] | ModelFacts") -> "ModelFacts":
        """The facts in a mapping, such as the content of a Hugging Face ``config.json``.

        Entries of ``text_config`` go before those beside it. The first of ``num_experts``, ``n_routed_experts`` and
        ``num_local_experts`` that is there counts, and where experts have no width of their own, theirs is
        ``intermediate_size``. Other entries are left alone, but a mapping with none of the sizes is refused. Raises
        HP-SHARD-009, all bad entries at once.

        >>> facts = ModelFacts.of({"model_type": "deepseek_v3", "n_routed_experts": 256, "rope_theta": 10000.0})
        >>> facts.arch, facts.num_experts
        ('deepseek_v3', 256)
        """
        facts, wrong = read_facts(sizes)
        refuse_all(by_place(wrong))
        return facts


def read_facts(sizes: object) -> tuple[ModelFacts, tuple[Violation, ...]]:
    """The facts that can be read in a mapping, and a violation for each entry that cannot."""
    if type(sizes) is ModelFacts:
        return sizes, ()
    if not isinstance(sizes, Mapping):
        advice = "pass ModelFacts or a mapping, such as config.to_dict()"
        return ModelFacts(), unread("model_sizes", sizes, "sizes by name", ("ModelFacts", "Mapping"), advice).violations
    found = _entries(sizes)
    known = tuple(field.name for field in attrs.fields(ModelFacts))
    if sizes and not found:
        advice = f"name them as a Hugging Face config does: {', '.join(known)}"
        return ModelFacts(), unread("model_sizes", tuple(sizes), "at least one size", known, advice).violations
    facts, wrong = read_value(ModelFacts, found)
    if facts.num_experts and "moe_intermediate_size" not in found:
        facts = attrs.evolve(facts, moe_intermediate_size=facts.intermediate_size)
    return facts, wrong


def _entries(sizes: Mapping[str, object]) -> dict[str, object]:
    """What a mapping says of each fact, by the fact's name."""
    inner = sizes.get("text_config")
    levels = (inner, sizes) if isinstance(inner, Mapping) else (sizes,)
    found = {}
    for field in attrs.fields(ModelFacts):
        names = (field.name, *_OTHER_NAMES.get(field.name, ()))
        of_model = levels[::-1] if field.name == "arch" else levels  # the name is that of the whole model
        values = [level[name] for level in of_model for name in names if level.get(name) is not None]
        if values:
            found[field.name] = values[0]
    return found
