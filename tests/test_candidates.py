"""Hierarchical selection: blocks by their best keys, the newest always, and keys of those blocks alone."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpfun.attention import attention_segments, candidate_keys  # noqa: E402
from hpfun.strategies import lengths  # noqa: E402
from hpfun_torch import ops  # noqa: E402
from hpfun_torch.attention import candidate_blocks, candidate_ids  # noqa: E402
from hpfun_torch.attention import candidates as module  # noqa: E402
from tests.oracles.lightning import selected_ids  # noqa: E402


def drawn(pack, ratio, seed, size=1, rank=0):
    """Integers, so that scores are exact and tie; as many rows as the rank has."""
    total = -(-sum(pack) // size) * size
    pack = (*pack, total - sum(pack)) if total > sum(pack) else pack
    ends = [sum(pack[:at]) for at in range(len(pack) + 1)]
    segments = attention_segments(ends, total // size, size, rank % size, 0, ratio)
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randint(-2, 3, shape, generator=random).float()

    return segments, draw(segments.num_rows, 2, 3), draw(int(segments.key_stops.max()), 3), draw(segments.num_rows, 2)


def score(query, key, weights):
    return sum(
        weight * max(0.0, sum(a * b for a, b in zip(head, key, strict=True)))
        for head, weight in zip(query, weights, strict=True)
    )


def blocks_by_loops(segments, query, key, weights, count, block, least):
    """Each row's best blocks from the definition: best visible key, ties to the lower block, the newest always."""
    starts, stops = segments.key_ranges()
    found = []
    for row in range(segments.num_rows):
        visible = range(int(starts[row]), int(stops[row]))
        best = {}
        for at in visible:
            place = (at - int(starts[row])) // block
            own = (
                score(query[row].tolist(), key[at].tolist(), weights[row].tolist()) if at >= least[row] else -torch.inf
            )
            best[place] = max(best.get(place, -torch.inf), own)
        if best:
            best[max(best)] = torch.inf
        order = sorted((place for place in best if best[place] > -torch.inf), key=lambda place: (-best[place], place))
        chosen = sorted(order[:count])
        found.append(chosen + [-1] * (count - len(chosen)))
    return found


@pytest.mark.rule("ATTN-31")
@settings(max_examples=40)
@given(
    lengths(max_length=25),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_blocks_are_the_best_by_their_best_key_and_the_newest(pack, size, ratio, count, block, seed):
    segments, query, key, weights = drawn(pack, ratio, seed, size, seed)
    starts, stops = segments.key_ranges()
    least = [int(start) + (seed % 3) * (stop > start) for start, stop in zip(starts, stops, strict=True)]
    got = candidate_blocks(
        query, key, weights, segments, count, block_keys=block, minimum_key_indices=torch.tensor(least)
    )
    assert got.tolist() == blocks_by_loops(segments, query, key, weights, count, block, least)
    if seed % 3 == 0:
        assert torch.equal(got, candidate_blocks(query, key, weights, segments, count, block_keys=block))


@pytest.mark.rule("ATTN-31", "ATTN-32")
@settings(max_examples=20)
@given(lengths(max_length=25), st.integers(1, 3), st.integers(0, 20), st.integers(0, 99))
def test_a_chunk_of_rows_gives_what_all_rows_give(pack, ratio, offset, seed):
    segments, query, key, weights = drawn(pack, ratio, seed)
    whole = candidate_blocks(query, key, weights, segments, 3, block_keys=2)
    ids = candidate_ids(query, key, weights, whole, segments, 4, block_keys=2)
    part = slice(min(offset, segments.num_rows), min(offset + 7, segments.num_rows))
    own = query[part], key, weights[part]
    blocks = candidate_blocks(*own, segments, 3, block_keys=2, query_offset=part.start)
    assert torch.equal(blocks, whole[part])
    assert torch.equal(candidate_ids(*own, blocks, segments, 4, block_keys=2, query_offset=part.start), ids[part])


@pytest.mark.rule("ATTN-32")
@settings(max_examples=30)
@given(lengths(max_length=25), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
def test_ids_are_the_best_keys_of_the_blocks_that_the_plan_lists(pack, ratio, count, topk, seed):
    segments, query, key, weights = drawn(pack, ratio, seed)
    blocks = candidate_blocks(query, key, weights, segments, count, block_keys=3)
    allowed = candidate_keys(blocks.numpy(), *segments.key_ranges(), block_keys=3)
    got = candidate_ids(query, key, weights, blocks, segments, topk, block_keys=3)
    visible = [sorted(int(at) for at in row if at >= 0) for row in allowed]
    for row, keys in enumerate(visible):
        best = sorted(keys, key=lambda at: (-score(query[row].tolist(), key[at].tolist(), weights[row].tolist()), at))
        chosen = sorted(best[:topk])
        assert got[row].tolist() == chosen + [-1] * (topk - len(chosen))


@pytest.mark.rule("ATTN-32")
def test_with_all_blocks_the_choice_is_that_of_the_whole_bank(monkeypatch):
    segments, query, key, weights = drawn((70, 3, 51), 2, 5)
    every = candidate_blocks(query, key, weights, segments, 9, block_keys=4)
    expected = ops.lightning_indexer(query, key, weights, segments.indexer, 2, 6)
    assert torch.equal(candidate_ids(query, key, weights, every, segments, 6, block_keys=4), expected)
    monkeypatch.setattr(module, "ELEMENTS", 64)  # a row at a time
    assert torch.equal(candidate_blocks(query, key, weights, segments, 9, block_keys=4), every)
    assert torch.equal(candidate_ids(query, key, weights, every, segments, 6, block_keys=4), expected)
    # no block is no candidate, though its place would be in front of the bank
    none = torch.full_like(every, -1)
    assert (candidate_ids(query, key, weights, none, segments, 6, block_keys=4) == -1).all()
    shifted, *tensors = drawn((70, 3, 51), 2, 5, 4, 2)
    own = candidate_blocks(*tensors, shifted, 9, block_keys=4)
    assert torch.equal(
        candidate_ids(*tensors, own, shifted, 6, block_keys=4),
        ops.lightning_indexer(*tensors, shifted.indexer, 2, 6),
    )
    # the oracle agrees that this is the definition's choice
    ranges = [(int(a), int(b - a)) for a, b in zip(*segments.key_ranges(), strict=True)]
    assert expected.tolist() == selected_ids(query.tolist(), key.tolist(), weights.tolist(), ranges, 6)
