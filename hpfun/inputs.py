"""Lengths as people keep them: JSON, CSV and text files of document lengths or cu_seq_lens, and saved plans.

What a file holds is told by its content. Whatever cannot be read is a coded error that says where and why.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpfun.batch.plan import BatchPlan
from hpfun.documents import PackedDocuments
from hpfun.errors import PlanError, refusal
from hpfun.serial import from_json
from hpfun.workloads import WORKLOADS

# some ten million documents; the lengths of one batch are far fewer
MOST_BYTES = 2**26
_COLUMN_NAMES = {"length": "lengths", "lengths": "lengths", "cu_seq_lens": "cu_seq_lens", "cu_seqlens": "cu_seq_lens"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_SEPARATORS = re.compile(r"[\s,;]+")
# what the fast reader may see: it would stop silently at anything else, and wrap around beyond int64
_PLAIN = re.compile(r"[0-9\s,;]*")
_EMPTY_ENTRY = re.compile(r"^\s*[,;]|[,;]\s*[,;]")
_LONG = re.compile(r"[0-9]{19}")


def read_documents_file(path: str | Path, form: str | None = None) -> PackedDocuments:
    """Documents of a JSON, CSV or text file of lengths or cu_seq_lens; as ``read_documents`` reads its bytes.

    Raises HP-INPUT-001 (not to be opened, empty, larger than ``MOST_BYTES``, not text, not integers),
    HP-INPUT-002 (unknown form), HP-DOC-001 and 002 (bad lengths or cu_seq_lens).
    """
    return read_documents(file_bytes(path), Path(path).name, form)


def file_bytes(path: str | Path) -> bytes:
    """The bytes of a file, at most ``MOST_BYTES`` and one; HP-INPUT-001 where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise refusal(
            "HP-INPUT-001",
            Path(path).name or str(path),
            f"cannot be read: {reason}",
            f"pass a readable file of lengths, or a workload ({', '.join(WORKLOADS)})",
            reason=reason,
        ) from None


def read_documents(raw: bytes, where: str = "input", form: str | None = None) -> PackedDocuments:
    """Documents of the bytes of a JSON, CSV or text file; errors name it as ``where``.

    JSON is a list of integers, an object with ``lengths`` or ``cu_seq_lens``, or a saved plan. Text is integers
    between spaces, commas or newlines (``#`` starts a comment). CSV is a table with a column ``length``,
    ``lengths`` or ``cu_seq_lens``. Integers that start with 0 are cu_seq_lens, all others lengths, unless
    ``form`` ("lengths" or "cu_seq_lens") says so. Raises the codes of ``read_documents_file``.

    >>> read_documents(b"[5, 3, 8]") == read_documents(b"0 5 8 16") == read_documents(b"id,length\\n7,5\\n8,3\\n9,8")
    True
    """
    return documents_of(read_value(raw, where, form), where)


def documents_of(value: object, where: str = "input") -> PackedDocuments:
    """The documents of what ``read_value`` gives; HP-INPUT-002 for a saved value without documents."""
    documents = value if isinstance(value, PackedDocuments) else getattr(value, "documents", None)
    if isinstance(value, BatchPlan) and len(value.lengths):
        documents = PackedDocuments(value.lengths)
    if isinstance(documents, PackedDocuments):
        return documents
    kind = type(value).__name__
    raise refusal(
        "HP-INPUT-002", where, f"holds a value of type {kind}, without documents", "pass lengths, or a plan", type=kind
    )


def read_value(raw: bytes, where: str = "input", form: str | None = None) -> Any:
    """As ``read_documents``, but a saved plan value comes back as it was saved.

    Raises the codes of ``read_documents_file``, and those of ``from_json`` for a saved value.

    >>> read_value(b'{"cu_seq_lens": [0, 5, 8]}').lengths.tolist()
    [5, 3]
    """
    if form not in (None, "lengths", "cu_seq_lens"):
        known = ("lengths", "cu_seq_lens")
        raise refusal("HP-INPUT-002", "form", f"no form {form!r:.60}", f"use {' or '.join(known)}", known=known)
    text = _decoded(raw, where)
    if text[0] in "[{":
        data = _json(text, where)
        if isinstance(data, dict) and "schema" in data:
            try:
                return from_json(text)
            except PlanError as error:
                raise error.inside(where) from None
        name, values = ("", data) if isinstance(data, list) else _named(data, where)
        values = _json_integers(values, where)
    else:
        name, values = _text_integers(text, where)
    form = form or name or ("cu_seq_lens" if len(values) > 1 and values[0] == 0 else "lengths")
    try:
        return PackedDocuments.from_cu_seq_lens(values) if form == "cu_seq_lens" else PackedDocuments(values)
    except PlanError as error:
        raise error.inside(where) from None


def _decoded(raw: bytes, where: str) -> str:
    """The text of a file, without comments and surrounding space; never empty."""
    if len(raw) > MOST_BYTES:
        raise refusal(
            "HP-INPUT-001",
            where,
            f"has more than {MOST_BYTES} bytes",
            "pass the lengths of one batch, or a sample",
            bytes_at_least=len(raw),
            most=MOST_BYTES,
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_numbers(where, f"byte {error.start} is not UTF-8 text", byte=error.start) from None
    if "\0" in text:
        raise _not_numbers(where, f"character {text.index(chr(0))} is a null: not text", character=text.index("\0"))
    if "#" in text:
        text = re.sub(r"#[^\n]*", "", text)
    text = text.strip()
    if not text:
        raise _not_numbers(where, "holds no number", bytes=len(raw))
    return text


def _not_numbers(where: str, message: str, **facts: object) -> PlanError:
    return refusal("HP-INPUT-001", where, message, "pass integers as JSON, CSV or text", **facts)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "an integer has thousands of digits" if "int_max_str_digits" in str(error) else str(error)[:160]
        raise _not_numbers(where, f"is not JSON of integers: {reason}", reason=reason) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _named(data: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """The one list of an object, and its name."""
    names = [name for name in ("lengths", "cu_seq_lens") if name in data]
    if len(names) == 1:
        return names[0], data[names[0]]
    raise _unknown_form(where, f"an object with {len(names)} of lengths and cu_seq_lens, of which one is needed", data)


def _unknown_form(where: str, message: str, columns: Iterable[str]) -> PlanError:
    return refusal(
        "HP-INPUT-002",
        where,
        message,
        'pass [5, 3, 8], {"lengths": [5, 3, 8]} or {"cu_seq_lens": [0, 5, 8, 16]}, or a table with such a column',
        got=tuple(str(column)[:60] for column in columns)[:16],
    )


def _json_integers(values: Any, where: str) -> list[int]:
    if not isinstance(values, list):
        raise _unknown_form(where, f"a {type(values).__name__} where a list is needed", ())
    if not values:
        raise _not_numbers(where, "holds no number", entries=0)
    if not set(map(type, values)) <= {int}:
        at = next(i for i, value in enumerate(values) if type(value) is not int)
        got = json.dumps(values[at])[:60]
        raise _not_numbers(where, f"entry {at} is {got}, not an integer", entry=at, got=got)
    return values


def _text_integers(text: str, where: str) -> tuple[str, np.ndarray | list[int]]:
    """The integers of a text or a table, and the name of the column that they come from, if any."""
    lines = text.splitlines()
    head = [cell.strip().strip("\"'") for cell in re.split(r"[,;\t]", lines[0])]
    known = [(name, at) for at, name in enumerate(head) if name.lower() in _COLUMN_NAMES]
    if known and len(head) == 1:
        return _COLUMN_NAMES[known[0][0].lower()], _listed("\n".join(lines[1:]), where)
    if known or (len(head) > 1 and not any(map(_INTEGER.fullmatch, head)) and all(head)):
        if len(known) != 1:
            raise _unknown_form(where, f"a table with {len(known)} columns of lengths or cu_seq_lens", head)
        name, at = known[0]
        rows = [re.split(r"[,;\t]", line) for line in lines[1:] if line.strip()]
        short = next((i for i, row in enumerate(rows) if len(row) != len(head)), None)
        if short is not None:
            message = f"row {short + 1} has {len(rows[short])} cells, the head has {len(head)}"
            raise _unknown_form(where, message, head)
        return _COLUMN_NAMES[name.lower()], _integers([row[at].strip().strip("\"'") for row in rows], where)
    if len(lines) > 1 and len(head) > 1 and all(head):
        widths = {len(re.split(r"[,;\t]", line)) for line in lines}
        if widths == {len(head)}:  # which column? an id and a length would be read as two lengths
            raise _unknown_form(where, f"a table of {len(head)} columns without a head", head)
    return "", _listed(text, where)


def _listed(text: str, where: str) -> np.ndarray | list[int]:
    """The integers between the separators of a text."""
    if gap := _EMPTY_ENTRY.search(text):
        raise _not_numbers(where, f"an entry is empty, at character {gap.start()}", character=gap.start())
    if text and _PLAIN.fullmatch(text) and not _LONG.search(text):
        return np.fromstring(_SEPARATORS.sub(" ", text), dtype=np.int64, sep=" ")
    return _integers([word.strip("\"'") for word in _SEPARATORS.split(text.strip(",; \n")) if word], where)


def _integers(words: list[str], where: str) -> list[int]:
    if not words:
        raise _not_numbers(where, "holds no number", entries=0)
    for at, word in enumerate(words):
        if not _INTEGER.fullmatch(word):
            raise _not_numbers(where, f"entry {at} is {word[:60]!r}, not an integer of int64", entry=at, got=word[:60])
    return [int(word) for word in words]
