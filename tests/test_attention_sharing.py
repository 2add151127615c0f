"""Which layers make keys and choose, and what is published, read and dropped."""

from itertools import combinations, product

import attrs
import numpy as np
import pytest
from hypothesis import given

from hpfun.attention import LayerSharing, sharing_events, skip_sharing
from hpfun.recompute import release_plan
from hpfun.strategies import layer_sharings
from tests.oracles import attention_plan as loops
from tests.refusals import refused


def sources(sharing):
    """(key source, index source) of every layer."""
    return [(sharing.key_source(layer), sharing.index_source(layer)) for layer in range(sharing.num_layers)]


def lists(sharing):
    kv = None if sharing.kv_sources is None else sharing.kv_sources.tolist()
    return (sharing.compress_ratios.tolist(), kv, sharing.index_sources.tolist(), sharing.dense_layers.tolist())


def simulate(sharing):
    """Run the layers in order: publish, read, drop as planned; what is held at the end."""
    publishes, reads = sharing_events(sharing)
    dropped = dict(release_plan(publishes, reads))
    held, used = set(), set()
    for layer in range(sharing.num_layers):
        for entry in publishes:
            if entry[1] == layer:
                assert entry not in held | used
                held.add(entry)
        for reader, entry in reads:
            if reader == layer:
                assert entry in held
                used.add(entry)
        for entry in dropped.get(layer, ()):
            held.remove(entry)
    assert used == set(publishes)
    return held


def subsets(count):
    """All ascending lists of layers."""
    return [chosen for size in range(count + 1) for chosen in combinations(range(count), size)]


# models


@pytest.mark.rule("ATTN-4")
def test_the_worked_layers():
    sharing = LayerSharing(compress_ratios=(0, 4, 4, 4), kv_sources=(1,), index_sources=(1, 3))
    assert sources(sharing) == [(None, None), (1, 1), (1, 1), (1, 3)]
    assert (sharing.num_layers, sharing.ratios) == (4, (4,))


@pytest.mark.rule("ATTN-4")
def test_windows_dense_layers_and_choosing_layers_in_turn():
    # DeepSeek-V4: two heavily compressed layers, then ratio 4, which chooses, and 128, which does not, in turn
    ratios = (0, 128, *(4, 128) * 4)
    chosen = tuple(layer for layer, ratio in enumerate(ratios) if ratio == 4)
    dense = tuple(layer for layer, ratio in enumerate(ratios) if ratio == 128)
    sharing = LayerSharing(compress_ratios=ratios, index_sources=chosen, dense_layers=dense)
    expected = {0: (None, None), 4: lambda layer: (layer, layer), 128: lambda layer: (layer, None)}
    assert sources(sharing) == [expected[r](n) if callable(expected[r]) else expected[r] for n, r in enumerate(ratios)]
    assert sharing.ratios == (4, 128)


@pytest.mark.rule("ATTN-4", "ATTN-17")
def test_raw_keys_that_every_layer_chooses_for_itself():  # DeepSeek-V3.2
    sharing = LayerSharing(compress_ratios=(1,) * 6, index_sources=range(6))
    assert sources(sharing) == [(layer, layer) for layer in range(6)]
    assert skip_sharing(6) == sharing


@pytest.mark.rule("ATTN-4", "ATTN-6")
def test_keys_shared_over_layers_of_several_ratios():  # lists as DeepSeek-V4.1 has them
    ratios = (0, 2, 2, 8, 2, 2, 8, 2)
    sharing = LayerSharing(compress_ratios=ratios, kv_sources=(1, 3, 5), index_sources=(1, 4, 5), dense_layers=(3, 6))
    assert sources(sharing) == [(None, None), (1, 1), (1, 1), (3, None), (1, 4), (5, 5), (3, None), (5, 5)]
    assert release_plan(*sharing_events(sharing)) == (
        (2, (("topk", 1),)),
        (4, (("index_keys", 1), ("keys", 1), ("topk", 4))),
        (5, (("index_keys", 5),)),
        (6, (("keys", 3),)),
        (7, (("keys", 5), ("topk", 5))),
    )


@pytest.mark.rule("ATTN-17")
def test_skipped_choices_are_those_of_glm():
    transformers = pytest.importorskip("transformers")
    for layers, frequency, offset in product((1, 2, 5, 9), (1, 2, 3, 4), (1, 2, 3, 6)):
        config = transformers.GlmMoeDsaConfig(
            num_hidden_layers=layers, index_topk_freq=frequency, index_skip_topk_offset=offset
        )
        full = [layer for layer, kind in enumerate(config.indexer_types) if kind == "full"]
        sharing = skip_sharing(layers, frequency, offset)
        assert sharing.index_sources.tolist() == full
        assert sharing.compress_ratios.tolist() == [1] * layers
        assert sharing.kv_sources is None


@pytest.mark.rule("ATTN-17")
def test_skipped_choices_by_definition():
    for layers, frequency, offset in product(range(1, 8), range(1, 5), range(1, 5)):
        sharing = skip_sharing(layers, frequency, offset, ratio=4)
        expected = [layer for layer in range(layers) if layer < offset or (layer - offset + 1) % frequency == 0]
        assert sharing.index_sources.tolist() == expected
        assert sharing.ratios == (4,)
    assert skip_sharing(7, frequency=3).index_sources.tolist() == [0, 1, 4]


@pytest.mark.rule("ATTN-17")
@pytest.mark.parametrize("name", ["num_layers", "frequency", "offset", "ratio"])
@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "1"])
def test_skip_numbers_that_are_no_counts_are_refused(name, bad):
    with refused("HP-ATTN-003") as caught:
        skip_sharing(**{"num_layers": 4, name: bad})
    assert caught.error.where == name


# definitions


@pytest.mark.rule("ATTN-4", "ATTN-5")
@pytest.mark.parametrize("ratios", [(2,), (0, 2), (2, 2), (2, 4), (2, 2, 2), (2, 0, 2), (2, 4, 2)])
def test_all_small_sharings_exist_and_read_what_the_loops_say_or_are_refused(ratios):
    every = subsets(len(ratios))
    for kv, index, dense in product([None, *every], every, every):
        expected = loops.shares(ratios, kv, index, dense)
        if expected is None:
            with refused("HP-ATTN-003"):
                LayerSharing(compress_ratios=ratios, kv_sources=kv, index_sources=index, dense_layers=dense)
        else:
            sharing = LayerSharing(compress_ratios=ratios, kv_sources=kv, index_sources=index, dense_layers=dense)
            assert sources(sharing) == expected


@pytest.mark.rule("ATTN-4")
@given(layer_sharings(max_layers=9))
def test_sources_are_the_last_of_the_ratio(sharing):
    assert sources(sharing) == loops.shares(*lists(sharing))
    for layer in (-1, sharing.num_layers, True, 1.0):
        for ask in (sharing.key_source, sharing.index_source):
            with refused("HP-ATTN-003"):
                ask(layer)


@pytest.mark.rule("ATTN-6")
@given(layer_sharings(max_layers=9))
def test_nothing_is_read_after_its_release_and_nothing_is_held_at_the_end(sharing):
    assert simulate(sharing) == set()


@pytest.mark.rule("ATTN-6")
@given(layer_sharings(max_layers=9))
def test_layers_read_the_keys_index_keys_and_choices_of_their_sources(sharing):
    publishes, reads = sharing_events(sharing)
    expected_reads, chosen_from = set(), set()
    for layer, (keys, choice) in enumerate(sources(sharing)):
        if keys is not None:
            expected_reads.add((layer, ("keys", keys)))
        if choice is not None:
            expected_reads.add((layer, ("topk", choice)))
        if choice == layer and keys is not None:
            expected_reads.add((layer, ("index_keys", keys)))
            chosen_from.add(keys)
    assert set(reads) == expected_reads
    assert len(reads) == len(expected_reads)
    index_keys = {source for kind, source in publishes if kind == "index_keys"}
    assert index_keys == chosen_from
    assert len(set(publishes)) == len(publishes)


@pytest.mark.rule("ATTN-6")
def test_worked_events():
    sharing = LayerSharing(compress_ratios=(0, 4, 4, 4), kv_sources=(1,), index_sources=(1, 3))
    assert release_plan(*sharing_events(sharing)) == (
        (2, (("topk", 1),)),
        (3, (("index_keys", 1), ("keys", 1), ("topk", 3))),
    )
    with refused("HP-ATTN-003"):
        sharing_events((0, 4, 4, 4))


# refusals


@pytest.mark.rule("ATTN-5")
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"compress_ratios": ()}, [("compress_ratios", {"layers": 0})]),
        (
            {"compress_ratios": (4, -1, 4, -2)},
            [(f"compress_ratios[{n}]", {"layer": n, "ratio": r}) for n, r in ((1, -1), (3, -2))],
        ),
        ({"index_sources": (1, 4)}, [("index_sources[1]", {"layer": 4, "layers": 4})]),
        ({"index_sources": (-1, 1)}, [("index_sources[0]", {"layer": -1, "layers": 4})]),
        ({"kv_sources": (0, 1)}, [("kv_sources[0]", {"layer": 0, "layers": 4})]),
        ({"dense_layers": (0,)}, [("dense_layers[0]", {"layer": 0, "layers": 4})]),
        ({"index_sources": (3, 1)}, [("index_sources[1]", {"layer": 1, "before": 3})]),
        ({"index_sources": (1, 1)}, [("index_sources[1]", {"layer": 1, "before": 1})]),
        ({"dense_layers": (3,)}, [("index_sources", {"layer": 3})]),
        ({"kv_sources": (1, 2)}, [("kv_sources", {"layer": 2})]),
        ({"kv_sources": (3,)}, [("kv_sources", {"layer": n, "ratio": 4}) for n in (1, 2)]),
        ({"index_sources": (3,), "kv_sources": None}, [("index_sources", {"layer": n, "ratio": 4}) for n in (1, 2)]),
        ({"compress_ratios": (0, 4, 4, 8)}, [("kv_sources", {"layer": 3, "ratio": 8})]),
        (
            {"kv_sources": (1, 2), "dense_layers": (2,), "index_sources": (1,)},
            [("index_sources", {"layer": 3, "keys": 2, "choice": 1})],
        ),
    ],
    ids=repr,
)
def test_layers_that_do_not_fit_are_told_all_at_once(more, told):
    worked = {"compress_ratios": (0, 4, 4, 4), "kv_sources": (1,), "index_sources": (1, 3), "dense_layers": ()}
    with refused("HP-ATTN-003") as caught:
        LayerSharing(**{**worked, **more})
    assert [(violation.where, dict(violation.facts)) for violation in caught.error.violations] == told


@pytest.mark.rule("ATTN-5")
@pytest.mark.parametrize("name", ["compress_ratios", "kv_sources", "index_sources", "dense_layers"])
@pytest.mark.parametrize("bad", [4, (True,), (1.0,), "4", ("4",), [[1]], {1}, (2**63,)], ids=repr)
def test_lists_that_hold_no_integers_are_refused(name, bad):
    with refused("HP-ATTN-003") as caught:
        LayerSharing(**{"compress_ratios": (4, 4), "index_sources": (0,), name: bad})
    assert caught.error.where.startswith(name)


@pytest.mark.rule("ATTN-5")
def test_violations_of_several_lists_are_in_one_error():
    with refused("HP-ATTN-003") as caught:
        LayerSharing(compress_ratios=(0, 4), kv_sources=(2,), index_sources=(0,), dense_layers=(1, 1))
    places = [violation.where for violation in caught.error.violations]
    assert places == ["kv_sources[0]", "index_sources[0]", "dense_layers[1]"]


@pytest.mark.rule("ATTN-4")
def test_lists_are_kept_as_arrays_of_their_own():
    ratios = np.array([0, 4])
    sharing = LayerSharing(compress_ratios=ratios, index_sources=np.array([1], dtype=np.int32))
    ratios[1] = 0
    assert sharing.key_source(1) == 1
    assert attrs.evolve(sharing, index_sources=(1,)) == sharing
