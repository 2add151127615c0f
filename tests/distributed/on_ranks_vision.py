"""What ranks do in the tests of a batch with images: the tower whole on each, the text decoder split."""

import torch

from hpfun_torch.batch import OmniParallelBatch
from hpfun_torch.dense import dense_context
from hpfun_torch.integrations.transformers import ContextParallelOptions, enable_context_parallel
from tests import vision_model
from tests.distributed import on_ranks_dense
from tests.distributed.on_ranks_batch import groups_of

CONTEXT, ROWS = "context_parallel", "feature_rows"


class TextInputs:
    """Runtime inputs of the text decoder: the context of its attention, and the features of the shard's images."""

    def runtime_input_fields(self):
        return CONTEXT, ROWS

    def build_runtime_inputs(self, batch, context):
        feature_of = context.whole["visual_pos_masks"][0].cumsum(0) - 1
        sources = torch.from_numpy(context.view.sources.copy())
        images = sources[batch["visual_pos_masks"][0]]
        return {CONTEXT: dense_context(context.plan, context.groups.cp), ROWS: feature_of[images]}


def prepared(topology, layout, dtype="float64"):
    """A model under context parallelism, the whole batch where this rank reads it, and this rank's part of it."""
    groups = groups_of(topology)
    _, tp_rank = groups.coordinates(topology)
    options = ContextParallelOptions(layout=layout)
    model = enable_context_parallel(vision_model.tiny(getattr(torch, dtype)), groups.cp, options)
    whole = vision_model.whole_batch(model) if tp_rank == 0 else None
    return model, whole, OmniParallelBatch(topology, groups, "cpu", TextInputs(), layout=layout).prepare(whole)


def train_step(topology, layout, dtype="float64", bug=None):
    """Logits, the tokens that they are of, the loss and the gradients summed over the CP ranks."""
    model, _, batch = prepared(topology, layout, dtype)
    batch["shift_labels"] = batch["labels"]
    if bug is not None:
        batch |= BUGS[bug](batch)
    hidden = decoded(model, **batch)
    logits = model.lm_head(hidden)
    goals = {name: batch[name] for name in ("labels", "shift_labels", "num_items_in_batch")}
    loss = model.loss_function(logits=logits, vocab_size=model.config.text_config.vocab_size, **goals)
    return on_ranks_dense.learned(model, batch[CONTEXT].view.sources, logits, loss, batch[CONTEXT].group)


def decoded(
    model, input_ids, position_ids, visual_pos_masks, pixel_values, image_grid_thw, feature_rows, context_parallel, **_
):
    """Hidden states of the shard: its tokens, and its rows of the features and of each level of DeepStack."""
    seen = model.model.visual(pixel_values, grid_thw=image_grid_thw)
    embedded = model.get_input_embeddings()(input_ids)
    text = model.model.language_model(
        inputs_embeds=embedded.masked_scatter(visual_pos_masks[..., None], seen.pooler_output[feature_rows]),
        position_ids=position_ids,
        visual_pos_masks=visual_pos_masks,
        deepstack_visual_embeds=[level[feature_rows] for level in seen.deepstack_features],
        use_cache=False,
        context_parallel=context_parallel,
    )
    return text.last_hidden_state


BUGS = on_ranks_dense.BUGS | {"features in another order": lambda batch: {ROWS: batch[ROWS].flip(0)}}


def shard(topology, layout):
    """This rank's part of the batch as plain values, and the names of what is the same object as before."""
    _, whole, batch = prepared(topology, layout)
    same = [name for name, value in (whole or {}).items() if batch[name] is value]
    fields = {name: batch[name].tolist() for name in FIELDS}
    return fields, batch["loss_scale"].valid_by_rank.tolist(), batch["num_items_in_batch"], same


FIELDS = ("input_ids", "labels", "mm_token_type_ids", "visual_pos_masks", "position_ids", "cu_seq_lens", ROWS)
