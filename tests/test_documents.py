"""PackedDocuments: what it takes, what it keeps, what it refuses."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import PackedDocuments
from tests.refusals import refused

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@pytest.mark.rule("DOC-1")
@pytest.mark.parametrize(
    ("lengths", "facts"),
    [
        ((), {}),
        ((5, 0, 3), {"document": 1, "length": 0}),
        ((5, -2), {"document": 1, "length": -2}),
        ((0, 5, 8), {"document": 0, "length": 0}),
        ((5, True), {"index": 1, "type": "bool"}),
        ((5, np.True_), {"index": 1}),
        ((5, 3.0), {"index": 1, "type": "float"}),
        ((5, "3"), {"index": 1, "type": "str"}),
        ((5, None), {"index": 1, "type": "NoneType"}),
        (5, {"type": "int"}),
        (None, {"type": "NoneType"}),
        (np.array([1.0, 2.0]), {"dtype": "float64"}),
        (np.array([True, True]), {"dtype": "bool"}),
        (np.array([[1, 2]]), {"shape": (1, 2)}),
        (np.array([], dtype=np.float64), {}),
        (np.array([2**63], dtype=np.uint64), {"value": 2**63}),
        ((2**63,), {"index": 0, "value": 2**63}),
        ((2**62, 2**62), {"most": 2**63 - 1}),
        (np.array([2**62, 2**62]), {"most": 2**63 - 1}),
        ((2**62,) * 5, {"most": 2**63 - 1}),
    ],
)
def test_lengths_that_are_no_positive_integers_are_refused(lengths, facts):
    with refused("HP-DOC-001") as caught:
        PackedDocuments(lengths)
    assert caught.error.where == "lengths"
    assert facts.items() <= dict(caught.error.facts).items()


@pytest.mark.rule("DOC-1")
@pytest.mark.parametrize(
    "lengths",
    [
        (5, 3, 8),
        [5, np.int32(3), np.uint8(8)],
        iter((5, 3, 8)),
        np.array([5, 3, 8], dtype=np.int16),
        np.array([5, 3, 8], dtype=np.uint64),
        np.array([5, 9, 3, 9, 8])[::2],
    ],
)
def test_every_form_of_integer_lengths_gives_the_same_value(lengths):
    pack = PackedDocuments.from_lengths(lengths)
    assert pack == PackedDocuments((5, 3, 8))
    assert hash(pack) == hash(PackedDocuments((5, 3, 8)))
    assert pack.lengths.dtype == np.int64


@pytest.mark.rule("DOC-1")
def test_the_largest_total_is_legal():
    assert PackedDocuments((2**63 - 2, 1)).total == 2**63 - 1


@pytest.mark.rule("DOC-1", "DOC-4")
def test_cpu_tensors_of_lengths_and_ends_are_accepted():
    torch = pytest.importorskip("torch")
    assert PackedDocuments(torch.tensor([5, 3, 8], dtype=torch.int32)) == PackedDocuments((5, 3, 8))
    assert PackedDocuments.from_cu_seq_lens(torch.tensor([0, 5, 8, 16])) == PackedDocuments((5, 3, 8))
    with refused("HP-DOC-001"):
        PackedDocuments(torch.tensor([5.0]))
    with refused("HP-DOC-001"):
        PackedDocuments(torch.tensor([True]))
    with refused("HP-DOC-001") as caught:
        PackedDocuments(torch.empty(2, dtype=torch.int64, device="meta"))
    assert caught.error.facts["type"] == "Tensor"


@pytest.mark.rule("DOC-2")
def test_later_changes_of_the_argument_change_nothing():
    given_lengths = np.array([5, 3, 8])
    pack = PackedDocuments(given_lengths)
    given_lengths[0] = 99
    assert pack.lengths.tolist() == [5, 3, 8]
    borrowed = np.array([5, 3, 8])
    view = borrowed[:]
    view.flags.writeable = False
    pack = PackedDocuments(view)
    borrowed[0] = 99
    assert pack.lengths.tolist() == [5, 3, 8]


@pytest.mark.rule("DOC-2")
@pytest.mark.parametrize("remake", [lambda v: v, copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_arrays_of_a_pack_cannot_be_written(remake):
    pack = remake(PackedDocuments((5, 3, 8)))
    assert pack == PackedDocuments((5, 3, 8))
    for array in (pack.lengths, pack.boundaries):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        pack.lengths = np.array([1])


@pytest.mark.rule("DOC-3")
@given(LENGTHS)
def test_boundaries_and_documents_at_are_what_counting_gives(lengths):
    pack = PackedDocuments(lengths)
    ends = [0]
    documents = []
    for document, length in enumerate(lengths):
        ends.append(ends[-1] + length)
        documents += [document] * length
    assert pack.boundaries.tolist() == ends
    assert pack.total == ends[-1] == len(documents)
    assert pack.num_documents == len(lengths)
    assert pack.documents_at(np.arange(pack.total)).tolist() == documents


@pytest.mark.rule("DOC-4")
@given(LENGTHS)
def test_ends_with_a_leading_zero_give_the_documents_back(lengths):
    pack = PackedDocuments(lengths)
    assert PackedDocuments.from_cu_seq_lens(pack.boundaries) == pack
    assert PackedDocuments.from_cu_seq_lens(pack.boundaries.tolist()) == pack


@pytest.mark.rule("DOC-4")
@pytest.mark.parametrize(
    ("ends", "facts"),
    [
        ((), {"entries": 0, "first": None}),
        ((0,), {"entries": 1, "first": 0}),
        ((5, 8, 16), {"entries": 3, "first": 5}),
        ((-1, 8), {"first": -1}),
        ((0, 5, 5, 8), {"index": 2, "value": 5, "before": 5}),
        ((0, 5, 4), {"index": 2, "value": 4, "before": 5}),
        ((0, 0, 4), {"index": 1, "value": 0, "before": 0}),
        ((0, 5.0), {"index": 1, "type": "float"}),
        ((False, 5), {"index": 0, "type": "bool"}),
        (np.array([0, 2**63], dtype=np.uint64), {"value": 2**63}),
        (7, {"type": "int"}),
    ],
)
def test_ends_that_do_not_rise_from_zero_are_refused(ends, facts):
    with refused("HP-DOC-002") as caught:
        PackedDocuments.from_cu_seq_lens(ends)
    assert caught.error.where == "cu_seq_lens"
    assert facts.items() <= dict(caught.error.facts).items()


@pytest.mark.rule("DOC-5")
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, np.int64(4)])
def test_a_size_that_divides_the_pack_gives_its_share(size):
    rows = PackedDocuments((5, 3, 8)).shard_rows(size)
    assert rows * size == 16
    assert type(rows) is int


@pytest.mark.rule("DOC-5")
@pytest.mark.parametrize(
    ("size", "facts"),
    [
        (3, {"tokens": 16, "size": 3, "remainder": 1}),
        (32, {"tokens": 16, "size": 32, "remainder": 16}),
        (0, {"value": 0}),
        (-2, {"value": -2}),
        (True, {"type": "bool"}),
        (2.0, {"type": "float"}),
        (None, {"type": "NoneType"}),
    ],
)
def test_a_size_that_does_not_divide_the_pack_is_refused(size, facts):
    with refused("HP-DOC-003") as caught:
        PackedDocuments((5, 3, 8)).shard_rows(size)
    assert caught.error.where == "size"
    assert facts.items() <= dict(caught.error.facts).items()
