"""DeepSeek-V4's attention on one rank's rows: its projections, in the order of the schedule.

Rule HF-3 of ``specs/attention.md``.
"""

from typing import Any

import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

from hpfun_torch.attention import (
    Attended,
    ContextParallelAttention,
    IndexerFunctions,
    LayerFunctions,
    attend_layer,
    compress,
    key_positions,
)
from hpfun_torch.integrations.transformers.call import context_of


class ContextParallelV4Attention(hf.DeepseekV4Attention):
    """The attention of transformers, with the rows, keys and choices of other ranks brought in."""

    @torch.compiler.disable  # asks plans and communicates; what is around it compiles
    def forward(
        self, hidden_states: Any, position_embeddings: Any, position_ids: Any, attention_mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """Output ``[1, local, hidden]`` of this rank's rows; the context comes in ``kwargs``."""
        context = context_of(kwargs)
        local = hidden_states.shape[1]
        cos, sin = position_embeddings[self.rope_layer_type]
        found = _attend(self, context, hidden_states, (cos, sin))
        # a value carries its key's rotation: turned back at the row's own position
        output = hf.apply_rotary_pos_emb(found.output[None], cos, -sin, unsqueeze_dim=2)
        grouped = self.o_a_proj(output.reshape(1, local, self.config.o_groups, -1)).flatten(2)
        return self.o_b_proj(grouped), None


def _attend(attention: Any, context: ContextParallelAttention, hidden: Any, positions: Any) -> Attended:
    """Attention of the rows of ``hidden [1, local, hidden]``."""
    cos, sin = positions
    compressor = attention.compressor
    residual = attention.q_a_norm(attention.q_a_proj(hidden))
    width = attention.head_dim

    def project() -> tuple[torch.Tensor, torch.Tensor]:
        query = attention.q_b_norm(attention.q_b_proj(residual).unflatten(-1, (-1, width)))
        rows = attention.kv_norm(attention.kv_proj(hidden))
        rows = hf.apply_rotary_pos_emb(rows[:, :, None], cos, sin, unsqueeze_dim=2)[0, :, 0]
        return hf.apply_rotary_pos_emb(query, cos, sin, unsqueeze_dim=2)[0], rows

    own = {} if compressor is None else _compression(compressor, context.keys(attention.layer_idx), hidden)
    if context.kind(attention.layer_idx) == "select":
        own |= _choice(compressor.indexer, residual, hidden, positions)
    functions = LayerFunctions(project=project, **own)
    options = {"scale": attention.scaling, "sinks": attention.sinks}
    return attend_layer(context, attention.layer_idx, functions, **options)


def _compression(compressor: Any, keys: Any, hidden: torch.Tensor) -> dict[str, Any]:
    """The functions that make this rank's keys, and index keys where there is an indexer."""
    makers = [compressor, *([compressor.indexer] if hasattr(compressor, "indexer") else [])]
    widths: list[int] = []

    def inputs() -> torch.Tensor:
        parts = [projection(hidden)[0] for maker in makers[:1] for projection in (maker.kv_proj, maker.gate_proj)]
        with torch.no_grad():  # nothing learns through a choice
            parts += [projection(hidden)[0] for maker in makers[1:] for projection in (maker.kv_proj, maker.gate_proj)]
        widths[:] = [part.shape[-1] for part in parts]
        return torch.cat(parts, dim=-1)

    def make(maker: Any, rows: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        def rotate(made: torch.Tensor) -> torch.Tensor:
            places = key_positions(keys, made.device)[None]
            cos, sin = maker.rotary_emb(made, position_ids=places, layer_type=maker.rope_layer_type)
            return hf.apply_rotary_pos_emb(made[None, :, None], cos, sin, unsqueeze_dim=2)[0, :, 0]

        return compress(
            rows,
            gates,
            keys.compression,
            ratio=keys.ratio,
            bias=maker.position_bias,
            norm=maker.kv_norm,
            rotate=rotate,
        )

    def make_all(bank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, gates, *index = bank.split(widths, dim=-1)
        made = make(makers[0], rows, gates)
        if not index:
            return made, None
        with torch.no_grad():
            return made, make(makers[1], *index)

    return {"compression_inputs": inputs, "compress": make_all}


def _choice(indexer: Any, residual: torch.Tensor, hidden: torch.Tensor, positions: Any) -> dict[str, Any]:
    """The functions that choose keys; the scale of the scores goes into the weights of the heads."""
    scorer = indexer.scorer

    def rows() -> Any:
        with torch.no_grad():
            weights = scorer.weights_proj(hidden).float() * (scorer.weights_scaling * scorer.softmax_scale)
        return residual, weights, positions

    def rotate(flat: torch.Tensor, at: Any) -> torch.Tensor:
        query = flat.unflatten(-1, (-1, indexer.head_dim))
        return hf.apply_rotary_pos_emb(query, *at, unsqueeze_dim=2)[0]

    return {"index_rows": rows, "indexer": IndexerFunctions(project=indexer.q_b_proj, rotate=rotate)}
