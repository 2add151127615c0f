"""Models over ranks beside each document alone: greatest differences, and the least that bugs in a batch make."""

from collections.abc import Iterator
from itertools import product

from hpfun.batch import BatchTopology
from hpfun_torch.ranks import RankPool
from tests import cp_models, dense_models, vision_model
from tests.bench.measure import Figure
from tests.distributed import on_ranks_attention, on_ranks_dense, on_ranks_vision
from tests.distributed import test_attention_models as sparse
from tests.distributed import test_dense_models as dense

SIZES = (2, 4)
NOTICED = 1e-2  # of a parameter's greatest gradient: what a bug must change at least


def figures() -> Iterator[Figure]:
    pools = {size: RankPool(size) for size in SIZES}
    try:
        yield from sparse_models(pools)
        yield from dense_models_over_ranks(pools)
        yield from images(pools)
        yield bugs(pools[2])
    finally:
        for pool in pools.values():
            pool.close()


def sparse_models(pools: dict[int, RankPool]) -> Iterator[Figure]:
    """DeepSeek-V4, DeepSeek-V3.2 and GLM-MoE-DSA in float32: balance, overlap, recompute."""
    found = []
    options = [given | {"recompute": again} for given in (sparse.PLAIN, sparse.OVERLAPPED) for again in (False, True)]
    for pool, family, given in product(pools.values(), cp_models.FAMILIES, (*options, sparse.BALANCED)):
        answers = pool.run(on_ranks_attention.train_step, family, sparse.PACKED, given)
        found.append(sparse.differences(answers, family, sparse.PACKED))
    logits, grads = (float(max(column)) for column in zip(*found, strict=True))
    yield Figure("sparse models on 2 and 4 ranks, float32: greatest difference of logits", logits, sparse.LOGITS)
    name = "the same: of gradients, of the parameter's greatest"
    yield Figure(name, grads, sparse.GRADIENTS)


def dense_models_over_ranks(pools: dict[int, RankPool]) -> Iterator[Figure]:
    """Llama, Qwen3 with and without windows, text of Qwen3-VL: layouts, recompute, float64 and float32."""
    limits = {"float64": (dense.LOSS, dense.GRADIENTS), "float32": (1e-5, 1e-4)}
    for dtype, allowed in limits.items():
        found = []
        for pool, family, layout, again in product(pools.values(), dense_models.FAMILIES, dense.LAYOUTS, (False, True)):
            options = {"layout": layout, "recompute": again}
            answers = pool.run(on_ranks_dense.train_step, family, dense.PACKED, options, 1.0, {"dtype": dtype})
            loss, _, grads = dense_models.differences(answers, dense.reference(family, dense.PACKED, dtype=dtype))
            found.append((loss, grads))
        loss, grads = (float(max(column)) for column in zip(*found, strict=True))
        yield Figure(f"dense models on 2 and 4 ranks, {dtype}: greatest difference of the loss", loss, allowed[0])
        yield Figure("the same: of gradients, of the parameter's greatest", grads, allowed[1])


def images(pools: dict[int, RankPool]) -> Iterator[Figure]:
    """Qwen3-VL with images in float64: two packed documents through its text decoder."""
    found = []
    for (size, pool), layout in product(pools.items(), dense.LAYOUTS):
        answers = pool.run(on_ranks_vision.train_step, BatchTopology(size), layout)
        loss, _, grads = dense_models.differences(answers, vision_model.reference())
        found.append((loss, grads))
    loss, grads = (float(max(column)) for column in zip(*found, strict=True))
    yield Figure("Qwen3-VL with images, float64: greatest difference of the loss", loss, dense.LOSS)
    yield Figure("the same: of gradients, of the parameter's greatest", grads, dense.GRADIENTS)


def bugs(pool: RankPool) -> Figure:
    """Gradients are off by far with each bug in the batch."""
    errors: dict[str, list[float]] = {}
    for bug, layout in product(on_ranks_vision.BUGS, dense.LAYOUTS):
        answers = pool.run(on_ranks_vision.train_step, BatchTopology(2), layout, "float64", bug)
        *_, grads = dense_models.differences(answers, vision_model.reference())
        errors.setdefault(f"images: {bug}", []).append(float(grads))
    for bug, family, layout in product(on_ranks_dense.BUGS, ("llama", "qwen3", "qwen3_vl"), dense.LAYOUTS):
        answers = pool.run(on_ranks_dense.train_step, family, dense.PACKED, {"layout": layout}, 0.6, {"bug": bug})
        *_, grads = dense_models.differences(answers, dense.reference(family, dense.PACKED, 0.6))
        errors.setdefault(bug, []).append(float(grads))
    spans = {bug: (min(found), max(found)) for bug, found in errors.items()}
    least = min(low for low, _ in spans.values())
    return Figure("bugs in a batch: what must be noticed / the least gradient error", NOTICED / least, 1.0, spans)
