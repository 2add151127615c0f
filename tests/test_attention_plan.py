"""Who attends to what: segments, indices and plans against loops over tokens, in global terms."""

import pickle
from typing import NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import (
    IndexerSegment,
    PackedDocuments,
    document_compression_plan,
    document_prefix_route,
    from_json,
    indexer_route,
    sliding_window_route,
    to_json,
)
from hpfun.attention import (
    AttentionConfig,
    AttentionPlan,
    AttentionSegments,
    LayerSharing,
    attention_plan,
    attention_route,
    attention_segments,
    sparse_indices,
    window_indices,
)
from hpfun.indexer.options import IndexerOptions
from hpfun.strategies import attention_plans, attention_values, group_sizes, packed_documents
from tests.oracles import attention_plan as loops
from tests.refusals import refused

PACK = (0, 5, 8)
GROUPS = [(total, size) for total in range(1, 9) for size in loops.divisors(total)]
NO_COUNT = [-1, True, 2.0, "2", None, np.bool_(True), (1,)]
CHOOSES = LayerSharing(compress_ratios=(0, 2, 2), index_sources=(1,))
SMALL = AttentionConfig(sharing=CHOOSES, window=3, topk=2)


class Case(NamedTuple):
    """A pack on a group, a window and a ratio, 0 for none."""

    boundaries: tuple
    size: int
    window: int
    ratio: int

    @property
    def local(self):
        return self.boundaries[-1] // self.size

    def segments(self, rank):
        return attention_segments(self.boundaries, self.local, self.size, rank, self.window, self.ratio)

    def rows(self, rank):
        return range(rank * self.local, (rank + 1) * self.local)


@st.composite
def cases(draw, max_size=6):
    size = draw(group_sizes(max_size))
    documents = draw(packed_documents(multiple_of=size, max_length=12))
    window = draw(st.integers(0, 5) | st.integers(0, documents.total + 2))
    ratio = draw(st.integers(0, 5) | st.integers(0, documents.total + 2))
    return Case(tuple(documents.boundaries.tolist()), size, window, ratio)


def small_packs(total, size):
    """Every pack of ``total`` tokens with every window and every ratio that differ, up to 5 tokens with all pairs."""
    numbers = range(total + 2)
    for boundaries in loops.compositions(total):
        for window in numbers:
            for ratio in numbers if total <= 5 else (total + 1 - window,):
                yield Case(boundaries, size, window, ratio)


def check_windows(case, rank):
    segments = case.segments(rank)
    starts, stops = segments.window_ranges()
    expected = [loops.window(case.boundaries, row, case.window) for row in case.rows(rank)]
    if not case.window:
        assert (starts == stops).all()
        assert window_indices(segments).shape == (case.local, 0)
        return
    route = sliding_window_route(case.boundaries, case.local, case.size, rank, case.window)
    bank = loops.window_bank(case.boundaries, case.local, rank, case.window)
    assert (bank[0], bank[-1]) == (route.global_start, route.global_stop - 1)
    ranges = [
        range(route.global_start + low, route.global_start + high) for low, high in zip(starts, stops, strict=True)
    ]
    assert [list(rows) for rows in ranges] == expected
    padded = window_indices(segments)
    assert padded.shape == (case.local, min(case.window, case.boundaries[-1]))
    for rows, indices in zip(expected, padded.tolist(), strict=True):
        assert indices == [-1] * (len(indices) - len(rows)) + [bank.index(row) for row in rows]


def check_keys(case, rank):
    segments = case.segments(rank)
    starts, stops = segments.key_ranges()
    if not case.ratio:
        assert (starts == 0).all()
        assert (stops == 0).all()
        assert segments.indexer == ()
        return
    bank = loops.key_bank(case.boundaries, case.local, rank, case.ratio)
    route = document_prefix_route(case.boundaries, case.local, case.size, rank, case.ratio)
    numbered = loops.all_keys(case.boundaries, case.ratio)
    assert numbered[route.global_start : route.global_stop] == bank
    expected = [loops.visible(case.boundaries, row, case.ratio) for row in case.rows(rank)]
    assert [bank[low:high] for low, high in zip(starts.tolist(), stops.tolist(), strict=True)] == expected
    for part in segments.indexer:
        for row in range(part.query_start, part.query_stop):
            seen = part.visible(row, case.ratio)
            assert bank[part.key_start : part.key_start + seen] == expected[row]


def check_segments(case, rank):
    segments = case.segments(rank)
    low, expected = rank * case.local, loops.segments(case.boundaries, case.local, rank)
    assert segments.query_starts.tolist() == [first - low for _, first, _ in expected]
    assert segments.query_stops.tolist() == [last + 1 - low for _, _, last in expected]
    assert (segments.num_segments, segments.num_rows) == (len(expected), case.local)
    if case.ratio:
        for (document, _, last), part in zip(expected, segments.indexer, strict=True):
            seen = loops.visible(case.boundaries, last, case.ratio)
            assert part.key_stop - part.key_start == len(seen)
            assert part.residual == last + 1 - case.boundaries[document] - len(seen) * case.ratio


# the worked table


@pytest.mark.rule("ATTN-1", "ATTN-2", "ATTN-3")
def test_the_worked_table():
    segments = attention_segments(PACK, 4, 2, 1, 3, 2)
    ranges = [list(zip(*found, strict=True)) for found in (segments.window_ranges(), segments.key_ranges())]
    assert ranges == [[(0, 3), (3, 4), (3, 5), (3, 6)], [(0, 2), (2, 2), (2, 3), (2, 3)]]
    assert [tuple(part) for part in segments.indexer] == [(0, 1, 0, 2, 1), (1, 4, 2, 3, 1)]
    assert sliding_window_route(PACK, 4, 2, 1, 3).global_start == 2


# all small packs, and larger ones


@pytest.mark.rule("ATTN-1", "ATTN-2", "ATTN-3")
@pytest.mark.parametrize(("total", "size"), GROUPS)
def test_every_row_of_every_small_pack_attends_to_what_the_loops_say(total, size):
    for case in small_packs(total, size):
        for rank in range(size):
            check_windows(case, rank)
            check_keys(case, rank)
            check_segments(case, rank)


@pytest.mark.rule("ATTN-1")
@given(cases())
def test_a_window_is_the_last_rows_of_the_own_document(case):
    for rank in range(case.size):
        check_windows(case, rank)


@pytest.mark.rule("ATTN-2")
@given(cases())
def test_a_key_is_visible_as_soon_as_its_last_token_is(case):
    for rank in range(case.size):
        check_keys(case, rank)


@pytest.mark.rule("ATTN-3")
@given(cases())
def test_segments_are_the_documents_of_a_shard(case):
    for rank in range(case.size):
        check_segments(case, rank)


@pytest.mark.rule("ATTN-3")
@pytest.mark.parametrize(
    "bad",
    [
        {"query_starts": ()},
        {"query_starts": (0,)},
        {"query_starts": (-1, 1)},
        {"query_starts": (0, 0)},
        {"query_starts": (0, 4)},
        {"query_stops": (1.0, 4.0)},
        {"query_stops": (2, 4)},
        {"window_starts": (-1, 3)},
        {"window_starts": (0, 4)},
        {"window_stops": (0, 6)},
        {"key_starts": (-1, 2)},
        {"key_starts": (3, 2)},
        {"key_stops": (2, 2)},
        {"residuals": (-1, 1)},
        {"residuals": (2, 1)},
        {"window": 0},
        {"ratio": 0},
        {"ratio": 1},
        {"window": True},
        {"ratio": -1},
    ],
    ids=repr,
)
def test_segments_whose_parts_do_not_fit_are_refused(bad):
    segments = attention_segments(PACK, 4, 2, 1, 3, 2)
    with refused("HP-ATTN-002"):
        attrs.evolve(segments, **bad)


@pytest.mark.rule("ATTN-3")
def test_the_segment_that_does_not_fit_is_told():
    with refused("HP-ATTN-002") as caught:
        attrs.evolve(attention_segments(PACK, 4, 2, 1, 3, 2), residuals=(1, 2))
    assert dict(caught.error.facts) == {"segment": (1, 4, 3, 6, 2, 3, 2), "window": 3, "ratio": 2}


@pytest.mark.rule("ATTN-1", "ATTN-2")
def test_rows_in_no_segment_attend_to_nothing():
    segments = AttentionSegments([1, 4], [3, 5], [0, 2], [2, 3], [0, 2], [2, 3], [0, 0], 2, 1)
    assert segments.num_rows == 5
    assert window_indices(segments).tolist() == [[-1, -1], [-1, 0], [0, 1], [-1, -1], [-1, 2]]
    assert [stop - start for start, stop in zip(*segments.key_ranges(), strict=True)] == [0, 1, 2, 0, 1]


@pytest.mark.rule("ATTN-16")
@pytest.mark.parametrize("bad", NO_COUNT, ids=repr)
def test_counts_that_are_none_are_refused(bad):
    with refused("HP-ATTN-002") as caught:
        attention_segments(PACK, 4, 2, 1, bad, 2)
    assert caught.error.where == "window"
    with refused("HP-COMPRESS-001") as caught:
        attention_segments(PACK, 4, 2, 1, 3, bad)
    assert caught.error.where == "ratio"
    with refused("HP-ROUTE-001"):
        attention_segments(PACK, bad, 2, 1, 3, 2)
    with refused("HP-ROUTE-002"):
        attention_segments(PACK, 4, 2, bad, 3, 2)
    with refused("HP-ATTN-002"):
        attention_plan(PACK, bad, SMALL)


@pytest.mark.rule("ATTN-1", "ATTN-2")
def test_numpy_numbers_count_as_numbers_do():
    given = attention_segments(np.array(PACK), np.int64(4), np.int32(2), np.int64(1), np.int64(0), np.int64(0))
    assert given == attention_segments(PACK, 4, 2, 1, 0, 0)
    assert attention_segments(PACK, 4, 2, 1, 2**62, 2**62).window == 8


# indices


@pytest.mark.rule("ATTN-7")
def test_worked_indices():
    segments = attention_segments(PACK, 4, 2, 1, 2, 2)
    found = sparse_indices(segments, [[1], [-1], [2], [2]], window_rows=5)
    assert found.tolist() == [[0, 1, 6], [-1, 2, -1], [2, 3, 7], [3, 4, 7]]
    assert found.dtype == np.int64
    assert not found.flags.writeable


@pytest.mark.rule("ATTN-7")
@given(cases(), st.data())
def test_sparse_indices_are_window_rows_and_chosen_keys_in_one_bank(case, data):
    rank = data.draw(st.integers(0, case.size - 1))
    window_bank = loops.window_bank(case.boundaries, case.local, rank, case.window) if case.window else []
    key_bank = loops.key_bank(case.boundaries, case.local, rank, case.ratio) if case.ratio else []
    both = window_bank + key_bank
    width = data.draw(st.integers(0, 3))
    chosen = []
    for row in case.rows(rank):
        seen = loops.visible(case.boundaries, row, case.ratio) if case.ratio else []
        chosen.append([data.draw(st.sampled_from([None, *seen])) for _ in range(width)])
    ids = [[-1 if key is None else key_bank.index(key) for key in keys] for keys in chosen]
    found = sparse_indices(
        case.segments(rank), np.array(ids, dtype=np.int32).reshape(case.local, width), len(window_bank)
    )
    for row, keys, indices in zip(case.rows(rank), chosen, found.tolist(), strict=True):
        window = loops.window(case.boundaries, row, case.window)
        padding = min(case.window, case.boundaries[-1]) - len(window)
        assert [None if at == -1 else both[at] for at in indices] == [None] * padding + window + keys


@pytest.mark.rule("ATTN-7")
@pytest.mark.parametrize(
    ("selected", "facts"),
    [
        ([[2], [-1], [2], [2]], {"row": 0, "key": 2, "sees": (0, 2)}),
        ([[1], [2], [2], [2]], {"row": 1, "key": 2, "sees": (2, 2)}),
        ([[1], [-1], [1], [2]], {"row": 2, "key": 1, "sees": (2, 3)}),
        ([[1], [-1], [-2], [2]], {"row": 2, "key": -2, "sees": (2, 3)}),
        ([[1], [-1], [2], [3]], {"row": 3, "key": 3, "sees": (2, 3)}),
    ],
)
def test_a_key_that_its_row_does_not_see_is_refused(selected, facts):
    with refused("HP-ATTN-002") as caught:
        sparse_indices(attention_segments(PACK, 4, 2, 1, 2, 2), selected, 5)
    assert dict(caught.error.facts) == facts


@pytest.mark.rule("ATTN-7")
@pytest.mark.parametrize(
    "bad",
    [
        None,
        [1, 2, 2, 2],
        [[1]],
        [[1], [1]],
        [[1.0], [0.0], [2.0], [2.0]],
        [[True]] * 4,
        [[1], [-1, 2], [2], [2]],
        [[2**64 - 1]] * 4,
        [[2**70]] * 4,
        "abcd",
    ],
    ids=repr,
)
def test_what_is_no_table_of_ids_is_refused(bad):
    segments = attention_segments(PACK, 4, 2, 1, 2, 2)
    assert sparse_indices(segments, np.zeros((4, 0)), 5).tolist() == window_indices(segments).tolist()
    with refused("HP-ATTN-002") as caught:
        sparse_indices(segments, bad, 5)
    assert caught.error.where == "selected"


@pytest.mark.rule("ATTN-7")
@pytest.mark.parametrize("bad", [4, 0, -1, True, 5.0, None, 2**63])
def test_a_window_bank_that_does_not_hold_the_windows_is_refused(bad):
    with refused("HP-ATTN-002") as caught:
        sparse_indices(attention_segments(PACK, 4, 2, 1, 2, 2), [[-1]] * 4, bad)
    assert caught.error.where == "window_rows"


@pytest.mark.rule("ATTN-7")
def test_indices_of_something_else_are_refused():
    for ask in (lambda: window_indices(IndexerSegment(0, 1, 0, 1, 0)), lambda: sparse_indices(None, [[0]], 1)):
        with refused("HP-ATTN-002"):
            ask()


# plans and routes


@pytest.mark.rule("ATTN-14")
@given(attention_plans())
def test_a_route_is_what_the_families_give(plan):
    documents, local, size, config = plan.documents, plan.local_rows, plan.size, plan.config
    options = {field.name: getattr(plan.balance, field.name) for field in attrs.fields(IndexerOptions)}
    for rank in range(size):
        route = attention_route(plan, rank)
        assert (route.plan_digest, route.size, route.rank, route.local_rows) == (plan.digest, size, rank, local)
        window = sliding_window_route(documents, local, size, rank, config.window) if config.window else None
        assert route.window == window
        assert route.rows == attention_segments(documents, local, size, rank, config.window, 0)
        assert sorted(route.keys) == sorted({ratio for ratio in config.sharing.compress_ratios.tolist() if ratio})
        for ratio, keys in route.keys.items():
            overlap = ratio in config.overlapping_ratios.tolist()
            assert (keys.ratio, keys.overlap) == (ratio, overlap)
            assert keys.compression == document_compression_plan(documents, ratio, local, size, rank, overlap)
            assert keys.bank == document_prefix_route(documents, local, size, rank, ratio)
            assert keys.segments == attention_segments(documents, local, size, rank, config.window, ratio)
            chosen = any(int(config.sharing.compress_ratios[layer]) == ratio for layer in config.sharing.index_sources)
            if options["mode"] == "none" or not chosen:
                assert keys.indexer is None
            else:
                assert keys.indexer == indexer_route(documents, size, rank, ratio, **options)


@pytest.mark.rule("ATTN-14")
@given(attention_plans())
def test_whether_keys_need_rows_of_others_is_one_answer(plan):
    routes = [attention_route(plan, rank) for rank in range(plan.size)]
    for ratio in plan.config.sharing.ratios:
        parts = [route.keys[ratio].compression for route in routes]
        moved = any(part is not None and len(part.halo.exchange.receive_rows) > 0 for part in parts)
        assert [route.keys[ratio].halo for route in routes] == [moved] * plan.size


@pytest.mark.rule("ATTN-15")
@given(attention_plans())
def test_positions_and_counts_are_those_of_all_rows_and_keys(plan):
    boundaries = tuple(plan.documents.boundaries.tolist())
    routes = [attention_route(plan, rank) for rank in range(plan.size)]
    positions = [position for route in routes for position in route.positions.tolist()]
    assert positions == [loops.place(boundaries, row)[1] for row in range(boundaries[-1])]
    assert {len(route.positions) for route in routes} == {plan.local_rows}
    for ratio in plan.config.sharing.ratios:
        own = [loops.own_keys(boundaries, plan.local_rows, rank, ratio) for rank in range(plan.size)]
        for rank, route in enumerate(routes):
            keys = route.keys[ratio]
            assert keys.positions.tolist() == [j * ratio for _, j in own[rank]]
            assert keys.key_counts == tuple(map(len, own))
            assert keys.num_keys == len(own[rank])
            for numbers in (keys.positions, route.positions):
                assert numbers.dtype == np.int64
                assert not numbers.flags.writeable
        joined = [key for keys in own for key in keys]
        assert joined == loops.all_keys(boundaries, ratio)


@pytest.mark.rule("ATTN-16")
@given(attention_plans(), st.data())
def test_plans_are_equal_on_all_ranks_and_in_all_forms_of_boundaries(plan, data):
    boundaries = plan.documents.boundaries
    forms = [
        boundaries.tolist(),
        boundaries,
        boundaries.astype(np.int32),
        plan.documents,
        PackedDocuments(plan.documents.lengths),
    ]
    made = [attention_plan(form, plan.size, plan.config, plan.balance) for form in forms]
    made.append(attention_plan(forms[0], np.int64(plan.size), from_json(to_json(plan.config)), plan.balance))
    assert {other.digest for other in made} == {plan.digest}
    rank = data.draw(st.integers(0, plan.size - 1))
    assert attention_route(made[0], rank) is attention_route(plan, rank)


@pytest.mark.rule("ATTN-16")
def test_balance_is_a_mode_or_options():
    config = AttentionConfig(sharing=CHOOSES, window=3, topk=2)
    assert attention_plan(PACK, 2, config, "locality") == attention_plan(PACK, 2, config, IndexerOptions("locality"))
    assert attention_plan(PACK, 2, config, "locality").balanced
    assert not attention_plan(PACK, 2, config).balanced


@pytest.mark.rule("ATTN-16")
def test_a_plan_of_a_group_that_does_not_divide_is_refused():
    with refused("HP-DOC-003") as caught:
        attention_plan(PACK, 3, SMALL)
    assert dict(caught.error.facts) == {"tokens": 8, "size": 3, "remainder": 2}


@pytest.mark.rule("ATTN-16")
@pytest.mark.parametrize("rank", [-1, 2, True, 1.0, None])
def test_a_rank_outside_the_group_is_refused(rank):
    with refused("HP-ROUTE-002"):
        attention_route(attention_plan(PACK, 2, SMALL), rank)


@pytest.mark.rule("ATTN-16")
def test_boundaries_are_refused_as_routes_refuse_them():
    with refused("HP-ROUTE-003"):
        attention_plan((5, 8), 2, SMALL)
    with refused("HP-ROUTE-004"):
        attention_plan((0, 5, 5, 8), 2, SMALL)
    with refused("HP-ROUTE-005"):
        attention_segments(PACK, 4, 3, 1, 3, 2)


@pytest.mark.rule("ATTN-16")
def test_all_that_is_wrong_with_a_plan_is_in_one_error():
    with refused("HP-ATTN-002") as caught:
        attention_plan((5, 8), 0, None, "best")
    told = [(violation.code, violation.where) for violation in caught.error.violations]
    assert told == [
        ("HP-ATTN-002", "size"),
        ("HP-ATTN-002", "config"),
        ("HP-INDEX-003", "mode"),
        ("HP-ROUTE-003", "cu_seq_lens"),
    ]


@pytest.mark.rule("ATTN-16")
def test_a_plan_that_no_route_could_follow_cannot_be_made():
    balance = IndexerOptions("greedy", block_size=5)
    for ask in (
        lambda: attention_plan(PACK, 2, SMALL, balance),
        lambda: AttentionPlan(documents=PackedDocuments((5, 3)), size=2, config=SMALL, balance=balance),
    ):
        with refused("HP-INDEX-004"):
            ask()
    alone = AttentionConfig(sharing=LayerSharing(compress_ratios=(0,)), window=1)
    assert attention_route(attention_plan(PACK, 2, alone, balance), 0).keys == {}


@pytest.mark.rule("ATTN-16")
@pytest.mark.parametrize("bad", [{"documents": (5, 3)}, {"config": None}, {"balance": "none"}, {"size": 0}], ids=repr)
def test_parts_of_a_plan_of_another_kind_are_refused(bad):
    with refused("HP-ATTN-002"):
        attrs.evolve(attention_plan(PACK, 2, SMALL), **bad)
    with refused("HP-ATTN-002"):
        attention_route(SMALL, 0)


@pytest.mark.rule("ATTN-16")
def test_all_that_is_wrong_with_a_configuration_is_in_one_error():
    with refused("HP-ATTN-002") as caught:
        AttentionConfig(sharing=CHOOSES, window=0, topk=0, overlapping_ratios=(4, 1, 2))
    told = {(violation.where, tuple(violation.facts.items())) for violation in caught.error.violations}
    assert told == {
        ("topk", (("topk", 0), ("index_sources", 1))),
        ("window", (("window", 0), ("layers", 1))),
        ("overlapping_ratios", (("ratios", (4, 1, 2)),)),
        ("overlapping_ratios", (("ratios", (4, 1)), ("known", (2,)))),
    }


@pytest.mark.rule("ATTN-16")
@pytest.mark.parametrize(
    "bad",
    [
        {"sharing": (0, 2)},
        {"window": -1},
        {"window": True},
        {"window": 2.0},
        {"topk": -1},
        {"topk": 2**31},
        {"overlapping_ratios": (2, 2)},
        {"overlapping_ratios": 2},
        {"overlapping_ratios": (0,)},
        {"sharing": LayerSharing(compress_ratios=(1,), index_sources=(0,)), "overlapping_ratios": (1,)},
        {"sharing": LayerSharing(compress_ratios=(2,), dense_layers=(0,))},
    ],
    ids=repr,
)
def test_configurations_that_do_not_fit_are_refused(bad):
    with refused("HP-ATTN-002"):
        attrs.evolve(SMALL, **bad)


@pytest.mark.rule("ATTN-16")
def test_a_configuration_knows_where_layers_choose():
    sharing = LayerSharing(compress_ratios=(4, 1, 8, 4, 0), index_sources=(0, 1), dense_layers=(2,))
    assert AttentionConfig(sharing=sharing, window=1, topk=1).choosing_ratios == (1, 4)
    assert (
        AttentionConfig(sharing=LayerSharing(compress_ratios=(2,), dense_layers=(0,)), window=0).choosing_ratios == ()
    )


# values


@pytest.mark.rule("ATTN-19")
@given(attention_values())
def test_every_value_comes_back_from_json_and_pickle(value):
    for again in (from_json(to_json(value)), pickle.loads(pickle.dumps(value))):
        assert type(again) is type(value)
        assert again == value
        assert hash(again) == hash(value)
        assert again.digest == value.digest
        assert to_json(again) == to_json(value)


@pytest.mark.rule("ATTN-19")
@given(attention_values())
def test_values_and_their_arrays_cannot_be_written(value):
    for made in (value, from_json(to_json(value))):
        for field in attrs.fields(type(made)):
            numbers = getattr(made, field.name)
            if isinstance(numbers, np.ndarray):
                assert numbers.dtype == np.int64
                assert not numbers.flags.writeable
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(made, field.name, numbers)


@pytest.mark.rule("ATTN-19")
def test_other_values_have_other_digests():
    plans = [attention_plan(PACK, size, SMALL, mode) for size in (1, 2, 4) for mode in ("none", "locality")]
    plans += [attention_plan(PACK, 2, attrs.evolve(SMALL, **more)) for more in ({"window": 4}, {"topk": 3})]
    plans.append(attention_plan(PACK, 2, attrs.evolve(SMALL, overlapping_ratios=(2,))))
    plans.append(attention_plan((0, 4, 8), 2, SMALL))
    assert len({plan.digest for plan in plans}) == len(plans)
    configs = [SMALL, *(attrs.evolve(SMALL, **more) for more in ({"window": 4}, {"topk": 3}))]
    assert len({config.digest for config in configs}) == 3
    shared = [LayerSharing(compress_ratios=(2, 2), kv_sources=kv, index_sources=(0, 1)) for kv in (None, (0,), (0, 1))]
    assert len({value.digest for value in shared}) == 3
