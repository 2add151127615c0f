"""A Hugging Face config as a model on the meta device, so that its regions can be measured without memory.

Attention is taken to be fused, as training kernels are: it saves queries, keys, values, its output and one number a
row and head, not the scores. Needs the extra ``transformers``.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from hpfun import Outcome
from hpfun.errors import PlanError, refusal
from hpfun.matching import nearest
from hpfun.wording import listed
from hpfun_torch.recompute.measure import Measured, measure_regions

FUSED = "hpfun_fused"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def meta_model(config: str, dtype: str = "bfloat16") -> torch.nn.Module:
    """The causal language model of a config, on the meta device, for training.

    ``config`` is a config.json or a folder with one, or the name of a model type with its default config, such as
    ``deepseek_v3``. Raises HP-INPUT-001 for a file that cannot be read, and HP-INPUT-002 for a type or model that
    transformers does not know, with the nearest.
    """
    transformers = _transformers()
    if dtype not in DTYPES:
        raise refusal(
            "HP-INPUT-002", "dtype", f"got {dtype!r:.40}", f"use {listed(tuple(DTYPES))}", known=tuple(DTYPES)
        )
    read = _read_config(config)
    _register_attention()
    kinds = (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText)
    kind = next((kind for kind in kinds if type(read) in kind._model_mapping), None)
    if kind is None:
        message = f"{read.model_type} is no causal language model"
        raise refusal("HP-INPUT-002", "config", message, "pass the config of one", got=read.model_type)
    with torch.device("meta"):
        return kind.from_config(read, attn_implementation=FUSED, dtype=DTYPES[dtype]).train()


def measure_model(
    model: torch.nn.Module, tokens: int, roots: Sequence[str], exclusions: Sequence[str] = ()
) -> Measured:
    """``measure_regions`` for one document of ``tokens`` tokens; HP-RECOMPUTE-017 if the model does not run on meta."""
    ids = torch.empty((1, tokens), dtype=torch.long, device="meta")
    batch: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    mask = torch.empty((1, 1, tokens, tokens), dtype=next(model.parameters()).dtype, device="meta")
    try:
        return measure_regions(model, batch, roots, exclusions)
    except PlanError:
        raise
    except Exception:  # noqa: BLE001 - some models want a mask where fused attention needs none
        outcome, found = None, None
        try:
            found = measure_regions(model, {**batch, "attention_mask": mask}, roots, exclusions)
        except PlanError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the model raises
            outcome = Outcome.of(error)
        if found is not None:
            return found
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    short = f"pass --tokens {most}" if isinstance(most, int) and most < tokens else "measure it where it runs"
    raise refusal(
        "HP-RECOMPUTE-017",
        "model",
        f"{type(model).__name__} does not run on the meta device: {outcome.message if outcome else ''}"[:300],
        f"{short}, with measure_sizes" if "tokens" not in short else short,
        type=type(model).__name__,
        reason=outcome.message if outcome else "",
    )


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        message = "transformers is not installed"
        raise refusal("HP-INPUT-002", "config", message, "pip install 'hpfun[transformers]'", got="none") from None
    return transformers


def _read_config(config: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(config)
    if path.exists():
        file = path / "config.json" if path.is_dir() else path
        try:
            return _transformers().AutoConfig.from_pretrained(file)
        except Exception as error:  # noqa: BLE001 - whatever a reader of configs raises
            message = f"{file.name} is no config: {type(error).__name__} {error}"[:300]
            raise refusal(
                "HP-INPUT-001", "config", message, "pass a config.json", reason=type(error).__name__
            ) from None
    if config in CONFIG_MAPPING:
        return CONFIG_MAPPING[config]()
    near = nearest(config, CONFIG_MAPPING.keys())
    message = f"no file and no model type {config!r:.60}"
    advice = f"nearest type: {listed(near)}"
    if path.suffix or len(path.parts) > 1:
        advice = "pass a config.json that exists; nothing is downloaded"
    raise refusal("HP-INPUT-002", "config", message, advice, got=config[:60], nearest=near)


@cache
def _register_attention() -> None:
    """Fused attention for the meta device, with its flops, known to transformers by ``FUSED``."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(FUSED, _attention)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    rows, _ = fused_attention(query, key, value, sliding_window or key.shape[2])
    return rows.transpose(1, 2), None


@torch.library.custom_op("hpfun::fused_attention", mutates_args=())
def fused_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes of attention over ``[batch, heads, rows, width]``: rows, and one float32 a row and head."""
    raise refusal("HP-RECOMPUTE-017", "device", "fused attention is for the meta device", device=str(query.device))


@fused_attention.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        query.new_empty((*query.shape[:-1], value.shape[-1])),
        query.new_empty(query.shape[:-1], dtype=torch.float32),
    )


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output)


def _backward(ctx: Any, rows: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    return *map(torch.empty_like, ctx.saved_tensors[:3]), None


fused_attention.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.hpfun.fused_attention)
def _flops(query: Any, key: Any, value: Any, window: int, *_: Any, **__: Any) -> int:
    batch, heads, rows, width = query
    return 2 * batch * heads * rows * min(window, key[2]) * (width + value[3])
