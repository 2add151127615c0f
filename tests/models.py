"""Models as lists of modules, for tests of planners that take names."""

from hpfun.recompute import ModuleInfo


def module(fqn, number, *, is_list=False, has_marker=False, wrapped="none", type_name="Module"):
    return ModuleInfo(
        fqn=fqn, type_name=type_name, is_list=is_list, has_marker=has_marker, wrapped=wrapped, module_id=number
    )


def decoder(layers=4, owner="model", parts=("self_attn", "self_attn.q_proj", "mlp"), **wrapped):
    """A model with one container; ``wrapped`` is by name with underscores for dots."""
    names = ["", owner, f"{owner}.layers"]
    for layer in range(layers):
        names += [f"{owner}.layers.{layer}", *(f"{owner}.layers.{layer}.{part}" for part in parts)]
    names.append("lm_head")
    return tuple(
        module(
            fqn,
            number,
            is_list=fqn.endswith(".layers"),
            has_marker=fqn == owner or (fqn.startswith(f"{owner}.layers.") and fqn.count(".") == 2),
            wrapped=wrapped.get(fqn.replace(".", "_"), "none"),
        )
        for number, fqn in enumerate(names)
    )


def vision_and_text(vision=3, text=2):
    """A model of vision blocks and text layers, vision first, and a list without the marker."""
    names = ["", "model", "model.visual", "model.visual.blocks"]
    names += [f"model.visual.blocks.{block}" for block in range(vision)]
    names += ["model.visual.mergers", "model.visual.mergers.0", "model.text", "model.text.layers"]
    names += [f"model.text.layers.{layer}" for layer in range(text)]
    marked = {"model.visual", "model.text"} | {fqn for fqn in names if ".blocks." in fqn or ".layers." in fqn}
    lists = {"model.visual.blocks", "model.visual.mergers", "model.text.layers"}
    return tuple(module(fqn, at, is_list=fqn in lists, has_marker=fqn in marked) for at, fqn in enumerate(names))
