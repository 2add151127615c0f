"""Workloads: real, published, and cut to size."""

import tokenize

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpfun import PackedDocuments
from hpfun.workloads import (
    DOCUMENT_LENGTH_BINS,
    Packed,
    count_tokens,
    pack,
    published_lengths,
    stdlib_files,
    stdlib_lengths,
    stdlib_paths,
    workload,
)
from tests.refusals import refused

some_lengths = st.lists(st.integers(1, 2**40), min_size=1, max_size=30)


@given(some_lengths, st.data())
def test_a_pack_is_the_first_documents_with_the_last_one_cut(lengths, data):
    total = data.draw(st.integers(1, sum(lengths)))
    packed = pack(lengths, total)
    kept = packed.documents.lengths.tolist()
    assert packed.total == sum(kept) == total
    assert kept[:-1] == lengths[: packed.used - 1]
    assert kept[-1] + packed.cut_tokens == lengths[packed.used - 1]


def test_a_pack_of_all_tokens_cuts_nothing():
    assert pack((5, 3, 8), 16) == Packed(PackedDocuments((5, 3, 8)), 0)


@pytest.mark.parametrize("total", [0, -1, 17, True, 1.5, "8"])
def test_a_total_that_the_lengths_do_not_reach_is_refused(total):
    with refused("HP-INPUT-003") as caught:
        pack((5, 3, 8), total)
    assert caught.error.where == "total"
    assert total != 17 or caught.error.facts == {"tokens": 16, "total": 17, "documents": 3}


def test_lengths_that_are_none_are_refused():
    with refused("HP-DOC-001"):
        pack((5, 0), 4)


def test_the_published_bins_follow_one_another():
    low, high, number = zip(*DOCUMENT_LENGTH_BINS, strict=True)
    assert low == (1, *(end + 1 for end in high[:-1]))
    assert sum(number) == 13_463_214


@given(st.integers(1, 10**7), st.integers(0, 2**32), st.none() | st.integers(1, 10**6))
@example(1, 0, 1)
def test_published_lengths_reach_the_total_within_the_cap(total, seed, cap):
    lengths = published_lengths(total, seed, cap if cap is None else max(cap, total // 10_000, 1))
    assert lengths[:-1].sum() < total <= lengths.sum()
    assert lengths.min() >= 1
    assert lengths.max() <= (DOCUMENT_LENGTH_BINS[-1][1] if cap is None else max(cap, total // 10_000, 1))


def test_a_larger_published_sample_starts_with_the_smaller_one():
    small, large = published_lengths(10**6, 5), published_lengths(3 * 10**8, 5)
    assert (large[: len(small)] == small).all()
    assert not np.array_equal(small, published_lengths(10**6, 6))


def test_published_lengths_fall_into_the_bins_as_often_as_published():
    lengths = published_lengths(10**9, 1)
    for low, high, number in DOCUMENT_LENGTH_BINS:
        share = np.count_nonzero((low <= lengths) & (lengths <= high)) / len(lengths)
        assert share == pytest.approx(number / 13_463_214, abs=1e-3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"total": 0},
        {"total": True},
        {"seed": -1},
        {"cap": 0},
        {"cap": 2.0},
        {"total": 2**50},
        {"total": 2**30, "cap": 1},
    ],
)
def test_published_lengths_refuse_numbers_out_of_range(arguments):
    with refused("HP-INPUT-003"):
        published_lengths(**{"total": 1000, **arguments})


def test_stdlib_lengths_are_what_tokenize_counts():
    lengths = stdlib_lengths(3000)
    for path, length in zip(stdlib_paths(), lengths.tolist(), strict=False):
        with path.open("rb") as file:
            assert len(list(tokenize.tokenize(file.readline))) == length
    assert lengths[:-1].sum() < 3000 <= lengths.sum()


def test_stdlib_files_leave_out_tests_and_packages():
    folders = {part for path in stdlib_paths() for part in path.parts[:-1]}
    assert "json" in folders
    assert not folders & {"site-packages", "test", "tests", "idle_test"}


def test_progress_and_cap_of_stdlib_lengths():
    seen: list[tuple[int, int | None]] = []
    lengths = stdlib_lengths(5000, lambda done, limit: seen.append((done, limit)), cap=900)
    assert lengths.max() == 900
    assert seen == [(int(end), 5000) for end in np.cumsum(lengths)]


def test_files_that_are_not_python_are_skipped_and_counted(tmp_path, monkeypatch):
    contents = {"good.py": b"x = 1\n", "open.py": b"(", "bytes.py": b"\xff\xfe", "empty.py": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in contents] + [tmp_path / "missing.py"]
    assert [count_tokens(path) for path in paths] == [6, None, None, 2, None]
    monkeypatch.setattr("hpfun.workloads.stdlib_paths", lambda: paths)
    files = stdlib_files()
    assert (files.lengths.tolist(), files.skipped, files.total) == ([6, 2], 3, 8)


@pytest.mark.parametrize("name", ["stdlib", "published"])
def test_a_named_workload_has_exactly_the_tokens_asked_for(name):
    packed = workload(name, 8192, seed=2)
    assert packed.documents.total == 8192
    assert packed == workload(name, 8192, seed=2)
    assert workload(name, 8192, cap=100).documents.lengths.max() <= 100


def test_published_documents_are_at_most_a_quarter_of_the_pack():
    assert workload("published", 131_072).documents.lengths.max() == 32_768


@pytest.mark.parametrize(("name", "total"), [("stdlibs", 8), (None, 8), ("published", 0), ("stdlib", 2**40)])
def test_an_unknown_workload_or_total_is_refused(name, total, monkeypatch):
    monkeypatch.setattr("hpfun.workloads.stdlib_paths", lambda: stdlib_paths()[:3])
    with refused("HP-INPUT-003") as caught:
        workload(name, total)
    if caught.error.where == "name":
        assert caught.error.facts["known"] == ("published", "stdlib")
