"""A tiny Qwen3-VL and two packed documents with images, and what one process makes of each document alone.

The model is that of ``dense_models``. In float64 its tower turns queries and keys in float64 too: transformers turns
them in float32, which would round the gradient of each rank's part by itself.
"""

import itertools
from functools import lru_cache
from unittest.mock import patch

import torch
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from tests import dense_models

# text, and images as the rows and columns of their patches, two by two of which are a token
DOCUMENTS = ((5, (4, 6), 3, (8, 4), 3, (2, 2), 3), (2, (6, 6), 3))
LENGTHS = (35, 16)
IMAGE, START, END = 60, 62, 63


def tiny(dtype=torch.float64):
    """A model with all its parameters at random, to be trained."""
    model = dense_models.tiny("qwen3_vl", dtype)
    if dtype == torch.float64:
        tower = model.model.visual
        forward = tower.forward

        def exact(*args, **kwargs):
            with patch.object(qwen3_vl, "apply_rotary_pos_emb_vision", _exact_turn):
                return forward(*args, **kwargs)

        tower.forward = exact
    return model


def _exact_turn(query, key, cos, sin):
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return tuple(part * cos + qwen3_vl.rotate_half(part) * sin for part in (query, key))


def documents(dtype=torch.float64):
    """Each document's ``input_ids [tokens]``, ``labels`` of its text, ``image_grid_thw`` and ``pixel_values``."""
    found = []
    for seed, parts in enumerate(DOCUMENTS):
        texts, grids = parts[::2], torch.tensor([(1, *grid) for grid in parts[1::2]])
        words = iter(dense_models.token_ids(sum(texts), seed).split(texts))
        images = (torch.tensor([START, *[IMAGE] * (rows * columns // 4), END]) for _, rows, columns in grids.tolist())
        ids = torch.cat([part for pair in itertools.zip_longest(words, images) for part in pair if part is not None])
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randn(int(grids.prod(-1).sum()), 3 * 2 * 4 * 4, generator=random, dtype=torch.float64)
        labels = ids.masked_fill(ids == IMAGE, dense_models.IGNORED)
        found.append({"ids": ids, "labels": labels, "image_grid_thw": grids, "pixel_values": pixels.to(dtype)})
    return found


def whole_batch(model):
    """The pack as a batch: positions of the text, and the model's own three rows of each document."""
    parts = documents(model.dtype)
    ids, labels = (torch.cat([part[name] for part in parts]) for name in ("ids", "labels"))
    images = {name: torch.cat([part[name] for part in parts]) for name in ("pixel_values", "image_grid_thw")}
    return {
        "input_ids": ids[None],
        "labels": labels[None],
        "mm_token_type_ids": (ids == IMAGE).int()[None],
        "visual_pos_masks": (ids == IMAGE)[None],
        "position_ids": torch.cat([_positions(model, **part) for part in parts], dim=-1),
        "cu_seq_lens": torch.tensor((0, *itertools.accumulate(map(len, (part["ids"] for part in parts))))),
        **images,
    }


def _positions(model, ids, image_grid_thw, **_):
    own = ids[None]
    rope, _ = model.model.get_rope_index(own, mm_token_type_ids=(own == IMAGE).int(), image_grid_thw=image_grid_thw)
    return torch.cat((torch.arange(len(ids))[None, None], rope))


@lru_cache(maxsize=2)
def reference(dtype="float64"):
    """Logits, loss and gradients of each document alone with its images, in one process."""
    model = tiny(getattr(torch, dtype))
    parts = documents(model.dtype)
    ids, labels = (torch.cat([part.pop(name) for part in parts]) for name in ("ids", "labels"))
    types = (ids == IMAGE).int().split(LENGTHS)
    inputs = [part | {"mm_token_type_ids": own[None]} for part, own in zip(parts, types, strict=True)]
    logits, loss = dense_models.alone(model, LENGTHS, ids, labels, inputs)
    return logits.numpy(), loss, {name: grad.numpy() for name, grad in dense_models.gradients(model).items()}
