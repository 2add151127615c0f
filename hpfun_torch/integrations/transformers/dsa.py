"""Attention of DeepSeek-V3.2 and GLM-MoE-DSA on one rank's rows: latent keys of the document's prefix, top-k of them.

A head's key is a product of the latent and a matrix, so the query is multiplied by that matrix instead, and all heads
share the latents: what travels and what is chosen from is one row a token. Rule HF-5 of ``specs/attention.md``.
"""

import sys
from typing import Any

import torch
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

from hpfun_torch.attention import Attended, ContextParallelAttention, IndexerFunctions, LayerFunctions, attend_layer
from hpfun_torch.integrations.transformers.call import context_of


class ContextParallelV32Attention(v32.DeepseekV32Attention):
    """The attention of transformers, with the keys and choices of other ranks brought in."""

    @torch.compiler.disable  # asks plans and communicates; what is around it compiles
    def forward(self, hidden_states: Any, position_embeddings: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        """Output ``[1, local, hidden]`` of this rank's rows; the context comes in ``kwargs``."""
        output, _ = _forward(self, context_of(kwargs), hidden_states, position_embeddings, None)
        return output, None


class ContextParallelGlmAttention(glm.GlmMoeDsaAttention):
    """The attention of transformers, with the keys and choices of other ranks brought in."""

    @torch.compiler.disable  # asks plans and communicates; what is around it compiles
    def forward(self, hidden_states: Any, position_embeddings: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        """Output ``[1, local, hidden]`` and the choice ``[1, local, topk]``, which ``shared`` layers take over."""
        before = kwargs.get("prev_topk_indices")
        chosen = None if before is None or not self.skip_topk else before[0]
        output, selected = _forward(self, context_of(kwargs), hidden_states, position_embeddings, chosen)
        return output, None, selected[None]


def _forward(attention: Any, context: Any, hidden: torch.Tensor, positions: Any, chosen: Any) -> Any:
    found = _attend(attention, context, hidden, positions, chosen)
    nope, value = attention.qk_nope_head_dim, attention.v_head_dim
    up = _matrix(attention)[:, nope : nope + value]
    output = torch.einsum("qhl,hvl->qhv", found.output, up)
    return attention.o_proj(output.reshape(1, output.shape[0], -1)), found.selected


def _matrix(attention: Any) -> torch.Tensor:
    """The matrix from latents to every head's keys and values: ``[heads, nope + value, latent]``."""
    return attention.kv_b_proj.weight.unflatten(0, (attention.num_heads, -1))


def _attend(
    attention: Any, context: ContextParallelAttention, hidden: torch.Tensor, positions: Any, chosen: Any
) -> Attended:
    module = sys.modules[type(attention).__mro__[1].__module__]
    nope, rope, latent = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.kv_lora_rank
    residual = attention.q_a_layernorm(attention.q_a_proj(hidden))

    def turn(rows: torch.Tensor) -> torch.Tensor:  # heads on the third axis
        return module.apply_rotary_pos_emb_interleave(rows, rows, *positions, unsqueeze_dim=2)[0]

    def project() -> tuple[torch.Tensor, None]:
        query = attention.q_b_proj(residual).unflatten(-1, (-1, nope + rope))
        plain, turned = query.split([nope, rope], dim=-1)
        through = torch.einsum("qhn,hnl->qhl", plain[0], _matrix(attention)[:, :nope])
        return torch.cat((through, turn(turned)[0]), dim=-1), None

    def inputs() -> torch.Tensor:
        rows, turned = attention.kv_a_proj_with_mqa(hidden).split([latent, rope], dim=-1)
        turned = turn(turned[:, :, None])[:, :, 0]
        return torch.cat((attention.kv_a_layernorm(rows), turned), dim=-1)[0]

    choice = {} if attention.indexer is None else _choice(attention.indexer, module, residual, hidden, positions)
    index_keys = choice.pop("index_keys", lambda: None)
    functions = LayerFunctions(
        project=project, compression_inputs=inputs, compress=lambda rows: (rows, index_keys()), **choice
    )
    options = {"scale": attention.scaling, "value_width": latent, "selected": chosen}
    return attend_layer(context, attention.layer_idx, functions, **options)


def _choice(indexer: Any, module: Any, residual: torch.Tensor, hidden: torch.Tensor, positions: Any) -> dict[str, Any]:
    """The functions that choose keys; the scale of the scores goes into the weights of the heads."""
    split = module is v32  # V3.2's indexer turns halves, GLM's and the attention turn pairs
    turn = module.apply_rotary_pos_emb if split else module.apply_rotary_pos_emb_interleave
    rope = indexer.qk_rope_head_dim

    def rotated(rows: torch.Tensor, at: Any) -> torch.Tensor:
        turned, plain = rows.split([rope, indexer.head_dim - rope], dim=-1)
        return torch.cat((turn(turned, turned, *at, unsqueeze_dim=2)[0], plain), dim=-1)

    def rows() -> Any:
        with torch.no_grad():
            weights = indexer.weights_proj(hidden.to(indexer.weights_proj.weight.dtype)).float()
        return residual, weights * (indexer.n_heads**-0.5 * indexer.softmax_scale), positions

    @torch.no_grad()
    def index_keys() -> torch.Tensor:
        return rotated(indexer.k_norm(indexer.wk(hidden))[:, :, None], positions)[0, :, 0]

    def rotate(flat: torch.Tensor, at: Any) -> torch.Tensor:
        return rotated(flat.unflatten(-1, (-1, indexer.head_dim)), at)[0]

    functions = IndexerFunctions(project=indexer.wq_b, rotate=rotate)
    return {"index_rows": rows, "indexer": functions, "index_keys": index_keys}
