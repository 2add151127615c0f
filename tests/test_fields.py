"""What every frozen value keeps: integers that are integers, arrays that stay as they are."""

import copy
import enum
import pickle
from fractions import Fraction

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import Outcome, PackedDocuments
from hpfun._fields import integer, integers
from hpfun.strategies import plan_values, row_exchanges
from tests.refusals import refused
from tests.test_exchange import exchange

ROW_FIELDS = ("send_rows", "input_splits", "output_splits", "receive_rows", "local_sources", "local_targets")


class Rank(enum.IntEnum):
    """An enum that passes for an int."""

    FIRST = 1


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("kind", [int, np.int8, np.uint8, np.int64, np.uint64])
def test_integers_of_every_kind_become_python_ints(kind):
    part = exchange(rank=kind(0), num_source_rows=kind(7))
    assert type(part.rank) is int
    assert type(part.num_source_rows) is int
    assert part.num_source_rows == 7


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "1", None, [1], Fraction(1), np.array([1])])
def test_what_is_no_integer_is_refused(value):
    with refused("HP-EXCHANGE-001") as refusal:
        exchange(rank=value)
    assert refusal.error.where == "rank"
    assert refusal.error.facts == {"value": repr(value)[:60], "type": type(value).__name__}


@pytest.mark.rule("VALUE-1")
@given(st.integers(), st.none() | st.integers(), st.none() | st.integers())
def test_an_integer_is_kept_exactly_if_it_is_in_range(value, least, most):
    inside = (least is None or value >= least) and (most is None or value <= most)
    if inside:
        assert integer(value, "x", "HP-DOC-003", least=least, most=most) == value
    else:
        with refused("HP-DOC-003") as refusal:
            integer(value, "x", "HP-DOC-003", least=least, most=most)
        assert refusal.error.facts == {"value": value, "least": least, "most": most}


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("entry", [True, np.True_, 1.0, np.float32(1), "1", None, [1], 1j])
def test_impostors_inside_a_sequence_are_refused_and_named(entry):
    with refused("HP-DOC-001") as refusal:
        PackedDocuments([3, entry, 4, entry])
    assert refusal.error.where == "lengths"
    assert refusal.error.facts == {"index": 1, "value": repr(entry)[:60], "type": type(entry).__name__}


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("dtype", ["bool", "float64", "float32", "complex128", "O", "U1", "datetime64[s]"])
def test_arrays_of_other_dtypes_are_refused(dtype):
    values = np.array(["1", "2"]) if dtype == "U1" else np.array([1, 2]).astype(dtype)
    with refused("HP-DOC-001") as refusal:
        PackedDocuments(values)
    assert refusal.error.facts == {"dtype": str(values.dtype)}


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30])
def test_entries_beyond_int64_are_refused(value):
    with refused("HP-DOC-001") as refusal:
        PackedDocuments([1, value])
    assert refusal.error.facts == {"index": 1, "value": value, "most": 2**63 - 1}


@pytest.mark.rule("VALUE-1")
def test_unsigned_arrays_beyond_int64_are_refused():
    with refused("HP-DOC-001") as refusal:
        PackedDocuments(np.array([1, 2**63], dtype=np.uint64))
    assert refusal.error.facts == {"value": 2**63, "most": 2**63 - 1}


@pytest.mark.rule("VALUE-1")
def test_a_tensor_that_numpy_cannot_read_is_refused():
    class FarAway:
        def __array__(self, dtype=None, copy=None):
            raise TypeError("cannot convert a device tensor")

    with refused("HP-DOC-001") as refusal:
        PackedDocuments(FarAway())
    assert refusal.error.facts == {"type": "FarAway"}


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("value", [3, None, object(), Rank.FIRST])
def test_what_is_no_sequence_is_refused(value):
    with refused("HP-DOC-001") as refusal:
        PackedDocuments(value)
    assert refusal.error.facts == {"type": type(value).__name__}


@pytest.mark.rule("VALUE-1")
@pytest.mark.parametrize("value", ["", "12", b"", b"\x05\x03", {}, {5: 1}, set(), {5, 3}])
def test_text_bytes_mappings_and_sets_are_no_sequences_of_integers(value):
    with refused("HP-EXCHANGE-004") as refusal:
        exchange(local_sources=value, local_targets=value)
    assert refusal.error.where == "local_sources"


@pytest.mark.rule("VALUE-2")
@pytest.mark.parametrize("shape", [(), (1, 2), (0, 3)])
def test_arrays_have_one_dimension(shape):
    with refused("HP-DOC-001") as refusal:
        PackedDocuments(np.ones(shape, dtype=np.int64))
    assert refusal.error.facts == {"shape": shape}


class Tensor:
    """Anything that numpy can read."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


@pytest.mark.rule("VALUE-2")
@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        iter,
        np.array,
        Tensor,
        lambda values: np.array(values, dtype=np.int8),
        lambda values: np.array(values, dtype=np.uint64),
        lambda values: np.array(values, dtype=">i8"),
        lambda values: np.array([values, values]).T[:, 0],
        lambda values: [np.int32(value) for value in values],
        lambda values: (value for value in values),
    ],
)
def test_any_sequence_becomes_a_readonly_int64_array(make):
    lengths = PackedDocuments(make([5, 3, 8])).lengths
    assert lengths.tolist() == [5, 3, 8]
    assert lengths.dtype == np.int64
    assert lengths.dtype.isnative
    assert lengths.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        lengths[0] = 9


@pytest.mark.rule("VALUE-2")
@pytest.mark.parametrize("empty", [[], (), np.array([]), range(0)])
def test_empty_sequences_become_int64(empty):
    part = exchange(local_sources=empty, local_targets=empty)
    assert part.local_sources.dtype == part.local_targets.dtype == np.int64
    assert part.local_sources.shape == (0,)


@pytest.mark.rule("VALUE-2")
@given(row_exchanges())
def test_arrays_of_a_value_are_int64_and_cannot_be_written(exchanges):
    for part in exchanges:
        for name in ROW_FIELDS:
            rows = getattr(part, name)
            assert rows.dtype == np.int64
            assert rows.ndim == 1
            assert not rows.flags.writeable


@pytest.mark.rule("VALUE-2")
def test_fields_cannot_be_assigned():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        exchange().rank = 1


@pytest.mark.rule("VALUE-3")
@given(plan_values())
def test_values_are_equal_and_hash_alike_by_content(value):
    twin = attrs.evolve(value)
    assert twin is not value
    assert twin == value
    assert hash(twin) == hash(value)
    assert {value: 1}[twin] == 1


@pytest.mark.rule("VALUE-3")
@given(plan_values(), plan_values())
def test_values_of_other_types_or_contents_are_unequal(one, other):
    same = type(one) is type(other) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in zip(
            attrs.asdict(one, recurse=False).values(), attrs.asdict(other, recurse=False).values(), strict=False
        )
    )
    assert (one == other) == same


@pytest.mark.rule("VALUE-3")
def test_other_types_are_unequal_without_an_error():
    documents = PackedDocuments((5, 3))
    assert documents != (5, 3)
    assert documents != documents.lengths.tolist()
    assert documents is not None
    assert PackedDocuments((5, 3)) != PackedDocuments((3, 5))


@pytest.mark.rule("VALUE-3")
def test_one_changed_entry_of_any_field_makes_another_value():
    changed = [
        exchange(),
        exchange(size=3, input_splits=[0, 1, 0], output_splits=[0, 1, 0]),
        exchange(rank=1, input_splits=[1, 0], output_splits=[1, 0]),
        exchange(num_source_rows=3),
        exchange(num_target_rows=3),
        exchange(send_rows=[0]),
        exchange(local_sources=[1]),
        exchange(receive_rows=[1], local_targets=[0]),
        exchange(reduce=True),
        exchange(send_rows=[], input_splits=[0, 0]),
    ]
    assert len(set(changed)) == len(changed)


@pytest.mark.rule("VALUE-4")
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@given(value=plan_values())
def test_a_copy_is_equal_and_just_as_frozen(again, value):
    value.digest  # noqa: B018 - a cached digest must not travel in place of the content
    twin = again(value)
    assert twin == value
    assert type(twin) is type(value)
    for one, other in zip(
        attrs.asdict(twin, recurse=False).values(), attrs.asdict(value, recurse=False).values(), strict=True
    ):
        if isinstance(one, np.ndarray):
            assert one.dtype == np.int64
            assert not one.flags.writeable
            assert one.tolist() == other.tolist()


@pytest.mark.rule("VALUE-4")
def test_unpickling_validates():
    build, (kind, fields) = exchange().__reduce__()
    with refused("HP-EXCHANGE-004"):
        build(kind, {**fields, "send_rows": [9]})


@pytest.mark.rule("VALUE-5")
@pytest.mark.parametrize("make", [list, np.array])
def test_changing_an_argument_later_changes_nothing(make):
    values = make([5, 3])
    documents = PackedDocuments(values)
    digest = documents.digest
    values[0] = 9
    assert documents.lengths.tolist() == [5, 3]
    assert attrs.evolve(documents).digest == digest


@pytest.mark.rule("VALUE-5")
def test_a_readonly_view_of_a_writable_array_is_copied():
    base = np.array([5, 3])
    view = base[:]
    view.flags.writeable = False
    documents = PackedDocuments(view)
    base[0] = 9
    assert documents.lengths.tolist() == [5, 3]


@pytest.mark.rule("VALUE-5")
def test_changing_facts_later_changes_nothing():
    facts = {"rows": 1}
    outcome = Outcome(False, "HP-DOC-001", "x", facts)
    facts["rows"] = 2
    assert outcome.facts == {"rows": 1}


@pytest.mark.rule("VALUE-2")
def test_facts_of_a_value_cannot_be_written():
    outcome = Outcome(False, "HP-DOC-001", "x", {"rows": 1})
    with pytest.raises(TypeError):
        outcome.facts["rows"] = 2


@pytest.mark.rule("VALUE-5")
def test_an_array_that_nobody_can_change_is_kept_without_a_copy():
    rows = integers([1, 2], "x", "HP-DOC-001")
    assert integers(rows, "x", "HP-DOC-001") is rows
    with pytest.raises(ValueError, match="WRITEABLE"):
        rows.flags.writeable = True


@pytest.mark.rule("VALUE-5")
def test_an_older_view_of_a_readonly_array_changes_nothing():
    given_rows = np.array([5, 3, 8])
    alias = given_rows[:]
    given_rows.flags.writeable = False
    documents = PackedDocuments(given_rows)
    alias[:] = [8, 4, 4]
    assert documents.lengths.tolist() == [5, 3, 8]
