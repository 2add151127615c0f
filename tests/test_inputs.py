"""Lengths as people keep them in files: every form is read back, every bad file is refused by name."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpfun import PackedDocuments, PlanError, indexer_route, indexer_task_plan, to_json
from hpfun.inputs import MOST_BYTES, read_documents, read_documents_file, read_value
from tests.refusals import refused

FORMS = {
    "json list": lambda lengths: json.dumps(lengths),
    "json list of ends": lambda lengths: json.dumps(_ends(lengths)),
    "json lengths": lambda lengths: json.dumps({"lengths": lengths, "note": "x"}, indent=2),
    "json cu_seq_lens": lambda lengths: json.dumps({"cu_seq_lens": _ends(lengths)}),
    "saved documents": lambda lengths: to_json(PackedDocuments(lengths)),
    "saved plan": lambda lengths: to_json(indexer_task_plan(lengths, 1, 1, "none")),
    "lines": lambda lengths: "# lengths\n" + "".join(f"{length}\n" for length in lengths),
    "words": lambda lengths: " ".join(map(str, lengths)),
    "comma list": lambda lengths: ", ".join(map(str, lengths)) + ",\n",
    "ends": lambda lengths: "\r\n".join(map(str, _ends(lengths))),
    "csv column": lambda lengths: "length\n" + "\n".join(map(str, lengths)),
    "csv ends": lambda lengths: "cu_seq_lens\n" + "\n".join(map(str, _ends(lengths))),
    "csv table": lambda lengths: '"id","length"\n' + "\n".join(f'"{i}.txt","{n}"' for i, n in enumerate(lengths)),
    "tab table": lambda lengths: "lengths\tname\n" + "\n".join(f"{n}\tdoc {i}" for i, n in enumerate(lengths)),
    "byte order mark": lambda lengths: "\ufeff" + " ".join(map(str, lengths)),
}


def _ends(lengths):
    return [0, *np.cumsum(lengths).tolist()]


@pytest.mark.parametrize("form", FORMS)
@given(lengths=st.lists(st.integers(1, 2**25), min_size=1, max_size=20))
def test_lengths_written_in_any_form_are_read_back_equal(form, lengths):
    assert read_documents(FORMS[form](lengths).encode()) == PackedDocuments(lengths)


def test_a_file_is_read_and_a_form_can_be_forced(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("0 5 8 16")
    assert read_documents_file(path) == read_documents_file(str(path), "cu_seq_lens") == PackedDocuments((5, 3, 8))
    with refused("HP-DOC-001") as caught:
        read_documents_file(path, "lengths")
    assert caught.error.where == "lengths.txt.lengths"
    path.write_text("5 3 8")
    with refused("HP-DOC-002"):
        read_documents_file(path, "cu_seq_lens")
    with refused("HP-INPUT-002"):
        read_documents_file(path, "offsets")


BAD = {
    "empty": (b"", "HP-INPUT-001"),
    "space": (b" \n\n", "HP-INPUT-001"),
    "comments": (b"# nothing\n", "HP-INPUT-001"),
    "head alone": (b"length\n", "HP-INPUT-001"),
    "no entries": (b"[]", "HP-INPUT-001"),
    "not text": (b"\xff\xfe\x00\x01", "HP-INPUT-001"),
    "null": (b"5\x003", "HP-INPUT-001"),
    "fraction": (b"3.5", "HP-INPUT-001"),
    "word": (b"5 abc", "HP-INPUT-001"),
    "not a number": (b"NaN", "HP-INPUT-001"),
    "exponent": (b"1e3", "HP-INPUT-001"),
    "other digits": ("\u0663".encode(), "HP-INPUT-001"),
    "glued": (b"5-3", "HP-INPUT-001"),
    "thousands": (b"9" * 5000, "HP-INPUT-001"),
    "missing entry": (b"5,,3", "HP-INPUT-001"),
    "json fraction": (b"[5, 3.0]", "HP-INPUT-001"),
    "json NaN": (b"[5, NaN]", "HP-INPUT-001"),
    "json true": (b"[5, true]", "HP-INPUT-001"),
    "json text": (b'[5, "3"]', "HP-INPUT-001"),
    "json nested": (b"[[5, 3]]", "HP-INPUT-001"),
    "json cut off": (b"[5, 3", "HP-INPUT-001"),
    "json thousands": (b"[" + b"9" * 5000 + b"]", "HP-INPUT-001"),
    "json depths": (b"[" * 100_000, "HP-INPUT-001"),
    "json twice": (b'{"lengths": [5], "lengths": [3]}', "HP-INPUT-001"),
    "json without": (b'{"sizes": [5, 3]}', "HP-INPUT-002"),
    "json both": (b'{"lengths": [5], "cu_seq_lens": [0, 5]}', "HP-INPUT-002"),
    "json number": (b'{"lengths": 5}', "HP-INPUT-002"),
    "table without": (b"id,size\n1,5", "HP-INPUT-002"),
    "table with two": (b"length,lengths\n1,5", "HP-INPUT-002"),
    "table without head": (b"1,5\n2,3", "HP-INPUT-002"),
    "ragged table": (b"id,length\n1,5\n2", "HP-INPUT-002"),
    "no documents": (to_json(indexer_route((5, 3, 8), 2, 0, 1, "none")).encode(), "HP-INPUT-002"),
    "negative": (b"5 -3", "HP-DOC-001"),
    "zero": (b"5 0", "HP-DOC-001"),
    "beyond int64": (b"99999999999999999999", "HP-DOC-001"),
    "json beyond int64": (b"[99999999999999999999]", "HP-DOC-001"),
    "total beyond int64": (b"9000000000000000000 9000000000000000000", "HP-DOC-001"),
    "falling ends": (b"0 5 3", "HP-DOC-002"),
    "empty document": (b"[0, 5, 5]", "HP-DOC-002"),
    "other schema": (b'{"schema": 99, "type": "PackedDocuments"}', "HP-SERIAL-001"),
    "unknown type": (b'{"schema": 1, "type": "Nothing"}', "HP-SERIAL-002"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_name(name, tmp_path):
    content, code = BAD[name]
    path = tmp_path / "batch.txt"
    path.write_bytes(content)
    with refused(code) as caught:
        read_documents_file(path)
    assert caught.error.where.startswith("batch.txt")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path, "a\0b"):
        with refused("HP-INPUT-001") as caught:
            read_documents_file(path)
        assert caught.error.facts["reason"]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse
    with refused("HP-INPUT-001") as caught:
        read_documents_file(path)
    assert caught.error.facts["most"] == MOST_BYTES


@given(st.binary(max_size=60) | st.text(alphabet='0123456789 ,;-.[]{}"\n\t#le', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(raw):
    try:
        value = read_value(raw)
    except PlanError:
        return
    assert isinstance(value, PackedDocuments)
