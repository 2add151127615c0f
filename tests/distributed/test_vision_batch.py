"""A batch with images, cut for the text decoder of Qwen3-VL: all that one process makes of each document alone."""

import pytest

from hpfun.batch import BatchTopology
from tests import vision_model
from tests.dense_models import IGNORED, differences
from tests.distributed import on_ranks_vision as on_ranks
from tests.oracles import batch as loops
from tests.plans import numbers
from tests.vision_model import IMAGE, LENGTHS

LOSS, LOGITS, GRADIENTS = 1e-12, 1e-11, 1e-11  # absolute; of the greatest; of the greatest of the parameter
TWO, FOUR, PAIRS = BatchTopology(2), BatchTopology(4), BatchTopology(2, 2)
LAYOUTS = ("contiguous", "zigzag")


def train(ranks, topology, layout, *how):
    return ranks(topology.parent_size).run(on_ranks.train_step, topology, layout, *how)


@pytest.mark.rule("BATCH-15", "BATCH-16", "BATCH-27", "BATCH-28", "HF-15", "HF-17")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", [TWO, FOUR, PAIRS], ids=["cp 2", "cp 4", "cp 2 x tp 2"])
def test_a_batch_with_images_gives_what_each_document_gives_alone(ranks, topology, layout):
    loss, logits, grads = differences(train(ranks, topology, layout), vision_model.reference())
    assert loss < LOSS
    assert logits < LOGITS
    assert grads < GRADIENTS


@pytest.mark.rule("HF-15")
def test_in_float32_with_the_loss_norms_and_turns_of_transformers_too(ranks):
    answers = train(ranks, FOUR, "zigzag", "float32")
    loss, logits, grads = differences(answers, vision_model.reference("float32"))
    assert loss < 1e-5
    assert logits < 1e-5
    assert grads < 1e-4


@pytest.mark.rule("BATCH-15", "BATCH-16", "BATCH-27", "BATCH-28", "HF-17")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", [TWO, FOUR], ids=["cp 2", "cp 4"])
@pytest.mark.parametrize("bug", list(on_ranks.BUGS))
def test_a_bug_in_the_batch_is_noticed(ranks, topology, layout, bug):
    answers = train(ranks, topology, layout, "float64", bug)
    loss, _, grads = differences(answers, vision_model.reference())
    assert loss > 1e5 * LOSS
    assert grads > 1e-2  # the loss alone may be near, where labels are spread evenly


@pytest.mark.rule("BATCH-12", "BATCH-13", "BATCH-15", "BATCH-16", "BATCH-27", "HF-17")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", [TWO, FOUR, PAIRS], ids=["cp 2", "cp 4", "cp 2 x tp 2"])
def test_every_field_is_cut_as_the_loop_over_tokens_cuts_it(ranks, topology, layout):
    whole = vision_model.whole_batch(vision_model.tiny())
    ids, kinds, masks, labels = (
        whole[name][0].tolist() for name in ("input_ids", "mm_token_type_ids", "visual_pos_masks", "labels")
    )
    goals = loops.shifted(labels, LENGTHS)
    images = [token for token, number in enumerate(ids) if number == IMAGE]
    pack = LENGTHS, *numbers(topology), layout
    documents, _ = loops.padded(*pack)
    shards = loops.shards(*pack)
    counts = [loops.counted(goals, rows) for rows in shards]
    assert (sum(LENGTHS), len(images), sum(counts)) == (51, 24, 25)
    answers = ranks(topology.parent_size).run(on_ranks.shard, topology, layout)
    for rank, (fields, valid, count, same) in enumerate(answers):
        rows = shards[rank // topology.tp_size]
        assert fields == {
            "input_ids": [loops.held(ids, rows, 0)],
            "labels": [loops.held(goals, rows, IGNORED)],
            "mm_token_type_ids": [loops.held(kinds, rows, 0)],
            "visual_pos_masks": [loops.held(masks, rows, False)],
            "position_ids": [[loops.held_places(given, rows)] for given in whole["position_ids"][:, 0].tolist()],
            "cu_seq_lens": loops.ends(documents),
            "feature_rows": [images.index(row.token) for row in rows if row.token in images],
        }
        assert (valid, count) == (counts, 25)
        assert same == ([] if rank % topology.tp_size else ["pixel_values", "image_grid_thw"])
    without = [rank for rank, (fields, *_) in enumerate(answers) if not fields["feature_rows"]]
    assert without == ([0] if (topology, layout) == (FOUR, "zigzag") else [])
