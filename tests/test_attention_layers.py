"""Layers of attention in one process: compression, what a layer needs, shared state, refusals, the loss."""

import attrs
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from hpfun import document_compression_plan  # noqa: E402
from hpfun.attention import AttentionConfig, LayerSharing  # noqa: E402
from hpfun.strategies import lengths  # noqa: E402
from hpfun_torch import dispatch_sequence, ops  # noqa: E402
from hpfun_torch.attention import (  # noqa: E402
    LayerFunctions,
    Selection,
    SharedLayerState,
    attend_layer,
    candidate_blocks,
    compress,
    indexer_kl_loss,
    prepare,
    select,
)
from hpfun_torch.recompute import checkpoint_wrapper  # noqa: E402
from tests.distributed import on_ranks_attention as on_ranks  # noqa: E402
from tests.refusals import refused  # noqa: E402

PACK = (37, 1, 3, 30, 25)
ENDS = np.cumsum((0, *PACK))


def keys_by_loops(pack, rows, gates, bias, ratio, overlap):
    """Every document's keys, block by block, from the definition."""
    found = []
    start = 0
    width = rows.shape[1] // (1 + overlap)
    for length in pack:
        for block in range(length // ratio):
            own = slice(start + block * ratio, start + (block + 1) * ratio)
            added = gates[own] + bias
            values, logits = rows[own], added
            if overlap:
                values, logits = values[:, width:], added[:, width:]
                if block:
                    before = slice(own.start - ratio, own.start)
                    values = torch.cat((rows[before][:, :width], values))
                    logits = torch.cat(((gates[before] + bias)[:, :width], logits))
            found.append((values * logits.softmax(0)).sum(0))
        start += length
    return torch.stack(found) if found else rows.new_zeros(0, width)


@pytest.mark.rule("ATTN-22", "ATTN-23")
@settings(max_examples=40)
@given(lengths(max_length=20), st.integers(1, 3), st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(0, 99))
def test_keys_of_all_ranks_are_those_of_each_document_alone(pack, size, ratio, overlap, seed):
    if seed % 3 == 0:  # whole blocks everywhere: shards are reshaped
        pack = tuple(8 * length for length in pack)
    pack = (*pack, *([-sum(pack) % (size * 8)] if sum(pack) % (size * 8) else []))
    overlap = overlap and ratio > 1
    random = torch.Generator().manual_seed(seed)
    total, width = sum(pack), 2 * (1 + overlap)
    rows, gates = (torch.randn(total, width, generator=random, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(ratio, width, generator=random, dtype=torch.float64)
    made = []
    local = total // size
    for rank in range(size):
        plan = document_compression_plan(np.cumsum((0, *pack)), ratio, local, size, rank, overlap=overlap)
        start = rank * local if plan is None else plan.halo.global_start
        own = slice(start, (rank + 1) * local)
        made.append(compress(rows[own], gates[own], plan, ratio=ratio, bias=bias, norm=lambda keys: keys * 2))
    expected = keys_by_loops(pack, rows, gates, bias, ratio, overlap) * 2
    torch.testing.assert_close(torch.cat(made), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.rule("ATTN-23")
def test_a_rank_without_blocks_still_has_an_edge_for_backward():
    for overlap in (False, True):
        plan = document_compression_plan((0, 3, 8), 4, 4, 2, 0, overlap=overlap)
        assert plan.num_blocks == 0
        rows = torch.ones(4, 2, requires_grad=True)
        keys = compress(rows, rows, plan, ratio=4)
        assert keys.shape == (0, 1 if overlap else 2)
        keys.sum().backward()
        assert torch.equal(rows.grad, torch.zeros(4, 2))


@pytest.mark.rule("ATTN-22")
def test_rows_that_make_no_blocks_are_refused():
    plan = document_compression_plan((0, 3, 8), 4, 8, 1, 0, overlap=True)
    for rows, gates, given_ in (
        (torch.ones(8, 3), torch.ones(8, 3), plan),
        (torch.ones(8, 2), torch.ones(8, 4), plan),
        (torch.ones(7, 2), torch.ones(7, 2), None),
        (torch.ones(7, 2), torch.ones(7, 2), plan),
    ):
        with refused("HP-ROUTE-006"):
            compress(rows, gates, given_, ratio=4)


@pytest.mark.rule("ATTN-20")
def test_what_is_no_attention_config_is_refused():
    with refused("HP-ATTN-002") as caught:
        prepare(ENDS, {"window": 8})
    assert caught.error.facts["type"] == "dict"
    assert "attention_config" in caught.error.suggestion
    with refused("HP-ROUTE-004"):
        prepare((0, 5, 5), on_ranks.CONFIG)


@pytest.mark.rule("ATTN-21")
def test_an_equal_layout_gives_the_same_routes():
    first, again = prepare(ENDS, on_ranks.CONFIG), prepare(list(ENDS), on_ranks.CONFIG)
    assert first.route is again.route


@pytest.mark.rule("ATTN-29")
@pytest.mark.parametrize(
    ("options", "refuses"),
    [({}, False), ({"balance": "locality"}, True), ({"overlapped": True}, True)],
    ids=str,
)
def test_candidates_and_heads_of_other_ranks_need_plain_selection(options, refuses):
    context = prepare(ENDS, on_ranks.CONFIG, **options)
    functions = on_ranks.synthetic(context, 1, lambda name: None)
    blocks = torch.zeros(len(context.route.positions), 2, dtype=torch.int32)
    for hook in ({"candidates": blocks}, {"reduce_scores": lambda scores: scores}):
        if not refuses:
            assert attend_layer(context, 1, functions, scale=1.0, **hook).selected.shape == (96, 4)
            continue
        with refused("HP-ATTN-001") as caught:
            attend_layer(context, 1, functions, scale=1.0, **hook)
        assert caught.error.where == next(iter(hook))
        assert caught.error.facts["overlapped"] is options.get("overlapped", False)


@pytest.mark.rule("ATTN-29", "ATTN-31")
def test_candidates_of_all_blocks_choose_what_the_whole_bank_chooses():
    context = prepare(ENDS, on_ranks.CONFIG)
    functions = on_ranks.synthetic(context, 1, lambda name: None)
    whole = attend_layer(context, 1, functions, scale=1.0)
    every = torch.arange(16, dtype=torch.int32).expand(96, -1)
    found = attend_layer(context, 1, functions, scale=1.0, candidates=every)
    assert torch.equal(found.selected, whole.selected)
    assert torch.equal(found.output, whole.output)


@pytest.mark.rule("ATTN-29")
def test_a_layer_that_chooses_nothing_cannot_select():
    context = prepare(ENDS, on_ranks.CONFIG)
    with refused("HP-ATTN-002") as caught:
        Selection(context, 0, on_ranks.synthetic(context, 1, lambda name: None).indexer)
    assert caught.error.facts["kind"] == "window"


@pytest.mark.rule("ATTN-28")
def test_select_gives_the_choice_of_the_layer():
    context = prepare(ENDS, on_ranks.CONFIG)
    functions = on_ranks.synthetic(context, 1, lambda name: None)
    rows = functions.compression_inputs()
    keys = context.keys(1)
    _, index_keys = functions.compress(dispatch_sequence(rows, keys.compression.halo))
    got = select(context, 1, *functions.index_rows(), index_keys, functions.indexer)
    assert torch.equal(got, attend_layer(context, 1, functions, scale=1.0).selected)
    assert got.dtype == torch.int32


@pytest.mark.rule("ATTN-28")
def test_select_scores_against_keys_of_another_layer():
    sharing = LayerSharing(compress_ratios=(4, 4), kv_sources=(0,), index_sources=(0, 1))
    config = AttentionConfig(sharing=sharing, window=4, topk=3, overlapping_ratios=(4,))
    context = prepare(ENDS, config)
    functions = on_ranks.synthetic(context, 0, lambda name: None)
    rows, route = functions.compression_inputs(), context.keys(0)
    _, own = functions.compress(dispatch_sequence(rows, route.compression.halo))
    bank = dispatch_sequence(own, route.bank)
    given_ = functions.index_rows()
    first = select(context, 0, *given_, own, functions.indexer)
    assert torch.equal(select(context, 1, *given_, bank, functions.indexer), first)


@pytest.mark.rule("ATTN-36")
def test_gradients_reach_shared_keys_from_the_layers_that_read_them():
    context = prepare(ENDS, AttentionConfig(sharing=on_ranks.SHARED, window=4, topk=3, overlapping_ratios=(4,)))
    torch.manual_seed(0)
    model = on_ranks._SharedModel(checkpointed=False)
    with torch.no_grad():
        model.layers[0].out.weight.zero_()  # its own attention counts nothing: only the next layer reads its keys
    model(torch.randn(96, 8), context, SharedLayerState(on_ranks.SHARED)).square().sum().backward()
    assert model.layers[0].made.weight.grad.any()


@pytest.mark.rule("ATTN-36")
def test_a_layer_whose_compression_gives_another_kind_of_keys_is_told_so():
    context = prepare(ENDS, on_ranks.CONFIG)
    functions = on_ranks.synthetic(context, 1, lambda name: None)
    for given_ in (lambda rows: functions.compress(rows)[0], lambda rows: (functions.compress(rows)[0], None)):
        with refused("HP-ATTN-002") as caught:
            attend_layer(context, 1, attrs.evolve(functions, compress=given_), scale=1.0)
        assert caught.error.where == "compress"


@pytest.mark.rule("ATTN-36")
def test_a_layer_that_chooses_nothing_takes_no_candidates_and_no_sums_of_scores():
    context = prepare(ENDS, on_ranks.CONFIG)
    functions = on_ranks.synthetic(context, 1, lambda name: None)
    for hook in ({"candidates": torch.zeros(96, 1, dtype=torch.int32)}, {"reduce_scores": lambda scores: scores}):
        with refused("HP-ATTN-002") as caught:
            attend_layer(context, 0, LayerFunctions(project=functions.project), scale=1.0, **hook)
        assert caught.error.where in hook


@pytest.mark.rule("ATTN-36")
@pytest.mark.parametrize(
    ("layer", "missing"), [(0, "compression_inputs"), (1, "state"), (2, "index_rows"), (3, "state")]
)
def test_a_layer_says_what_it_needs(layer, missing):
    config = AttentionConfig(sharing=on_ranks.SHARED, window=4, topk=3, overlapping_ratios=(4,))
    context = prepare(ENDS, config)
    functions = on_ranks.synthetic(context, layer, lambda name: None)
    given_ = {"project": functions.project}
    if missing != "compression_inputs":
        given_ |= {"compression_inputs": functions.compression_inputs, "compress": functions.compress}
    if missing == "state":
        given_ |= {"index_rows": functions.index_rows, "indexer": functions.indexer}
    with refused("HP-ATTN-002") as caught:
        attend_layer(context, layer, LayerFunctions(**given_), scale=1.0)
    assert missing in caught.error.facts["missing"]


SHARING = LayerSharing(compress_ratios=(4, 4, 4), kv_sources=(0,), index_sources=(0, 2))


@pytest.mark.rule("ATTN-24", "ATTN-26")
def test_state_is_published_once_read_from_its_source_and_dropped_behind_its_last_reader():
    state = SharedLayerState(SHARING)
    state.publish("topk", 0, "first")
    state.publish("keys", 0, "keys")
    state.publish("index_keys", 0, "index keys")
    with refused("HP-STATE-002"):
        state.publish("topk", 0, "again")
    assert [state.read("topk", layer) for layer in (0, 1)] == ["first", "first"]
    state.release(0)
    state.release(1)
    assert (state.read("keys", 2), state.read("index_keys", 2), len(state)) == ("keys", "index keys", 2)
    with refused("HP-STATE-003") as caught:
        state.read("topk", 1)
    assert caught.error.facts == {"layer": 1, "source": 0}
    with refused("HP-STATE-003") as caught:
        state.read("topk", 2)
    assert caught.error.facts["source"] == 2
    state.publish("topk", 2, "second")
    state.release(2)
    assert len(state) == 0


@pytest.mark.rule("ATTN-25")
def test_a_replay_reads_what_its_own_forward_read_and_changes_no_state():
    class Reads(torch.nn.Module):
        def forward(self, rows, state):
            if state.name == "first":  # one forward publishes ones, the other twos
                state.publish("topk", 0, torch.ones(3))
            else:
                state.publish("topk", 0, torch.full((3,), 2.0))
            found = state.read("topk", 1)
            state.release(1)
            return (rows * found).sin()

    region = checkpoint_wrapper(Reads())
    states, outputs, leaves = [], [], []
    for name in ("first", "second"):
        state = SharedLayerState(SHARING)
        state.name = name
        states.append(state)
        leaves.append(torch.ones(3, requires_grad=True))
        outputs.append(region(leaves[-1], state))
    assert [len(state) for state in states] == [0, 0]
    for output in outputs:
        output.sum().backward()
    torch.testing.assert_close(leaves[0].grad, torch.ones(3).cos())
    torch.testing.assert_close(leaves[1].grad, 2 * torch.full((3,), 2.0).cos())
    assert [len(state) for state in states] == [0, 0]


@pytest.mark.rule("ATTN-37")
def test_parts_of_the_loss_take_the_bank_or_all_keys_and_add_up_to_the_whole():
    random = torch.Generator().manual_seed(0)
    config = AttentionConfig(sharing=LayerSharing(compress_ratios=(2,), index_sources=(0,)), window=0, topk=3)
    context = prepare(ENDS, config)
    keys = context.keys(0)
    count = sum(keys.key_counts)
    tensors = [
        torch.randn(*shape, generator=random) for shape in ((96, 2, 3), (count, 3), (96, 2), (96, 2, 4), (count, 4))
    ]
    index_query, index_keys, weights, query, bank = tensors
    selected = ops.lightning_indexer(index_query, index_keys, weights, keys.segments.indexer, 2, 3)
    whole = indexer_kl_loss(context, 0, index_query, index_keys, weights, selected, query, bank, scale=0.5)
    plain = ops.indexer_kl(
        index_query, index_keys, weights, selected, query, bank, segments=keys.segments, scale=0.5, num_queries=96
    )
    assert torch.equal(whole, plain)
    with refused("HP-ATTN-002") as caught:
        indexer_kl_loss(context, 0, index_query, index_keys[:-1], weights, selected, query, bank, scale=0.5)
    assert caught.error.facts["all"] == count
    with refused("HP-ATTN-002"):
        lonely = prepare(ENDS, AttentionConfig(sharing=LayerSharing(compress_ratios=(0,)), window=4))
        indexer_kl_loss(lonely, 0, index_query, index_keys, weights, selected, query, bank, scale=0.5)


@pytest.mark.rule("ATTN-31")
def test_blocks_are_counted_from_each_document():
    context = prepare(ENDS, on_ranks.CONFIG)
    segments = context.keys(1).segments
    ones = torch.ones(96, 1, 1)
    keys = torch.ones(int(segments.key_stops.max()), 1)
    blocks = candidate_blocks(ones, keys, ones[:, 0], segments, 2, block_keys=4)
    assert blocks[36].tolist() == [0, 2]  # nine keys: the lowest of the ties, and the newest
    assert blocks[-1].tolist() == [0, 1]
