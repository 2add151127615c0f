"""Workloads: document lengths that somebody really has, or has published, cut to a pack of a given size.

A file is read in any of the forms that people have lengths in. ``stdlib`` is on every machine that runs this:
one document per source file of Python's standard library, measured in tokens of Python's own tokenizer.
``published`` is drawn from a histogram of a training corpus. Reading files is all that this module does besides
arithmetic.
"""

import json
import os
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers, plan_value, readonly
from hpfun.documents import PackedDocuments
from hpfun.errors import PlanError, refusal
from hpfun.serial import from_json

# (shortest, longest, documents): the document-length histogram published with the benchmarks of
# MagiAttention (github.com/SandAI-org/MagiAttention, exps/dist_attn/benchmark/datasets/default, Apache-2.0).
# Its first bin is [0, 10]; a document without a token cannot be packed, so here it starts at 1.
DOCUMENT_LENGTH_BINS: tuple[tuple[int, int, int], ...] = (
    (1, 10, 30_254),
    (11, 50, 391_188),
    (51, 100, 699_596),
    (101, 200, 1_377_757),
    (201, 500, 3_794_735),
    (501, 1024, 3_316_785),
    (1025, 2048, 2_106_566),
    (2049, 4096, 988_525),
    (4097, 8192, 410_002),
    (8193, 16384, 173_574),
    (16385, 32768, 115_007),
    (32769, 65536, 18_428),
    (65537, 131072, 22_513),
    (131073, 196608, 18_284),
)

WORKLOADS = ("published", "stdlib")
# drawn at a time; fixed, so that a longer sample starts with the shorter one
_DRAWN_TOGETHER = 65_536
_MEAN = sum((low + high) * n for low, high, n in DOCUMENT_LENGTH_BINS) // (2 * sum(n for *_, n in DOCUMENT_LENGTH_BINS))
# more would need gigabytes and minutes; some 60 G tokens of uncapped documents
MOST_DOCUMENTS = 2**25
# other people's packages, tests (long generated tables, files that are wrong on purpose)
_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})

# some ten million documents; the lengths of one batch are far fewer
MOST_BYTES = 2**26
_COLUMN_NAMES = {"length": "lengths", "lengths": "lengths", "cu_seq_lens": "cu_seq_lens", "cu_seqlens": "cu_seq_lens"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_SEPARATORS = re.compile(r"[\s,;]+")
# what the fast reader may see: it would stop silently at anything else, and wrap around beyond int64
_PLAIN = re.compile(r"[0-9\s,;]*")
_EMPTY_ENTRY = re.compile(r"^\s*[,;]|[,;]\s*[,;]")
_LONG = re.compile(r"[0-9]{19}")

Progress = Callable[[int, int | None], object]


@plan_value
class Packed:
    """A pack of exactly ``total`` tokens, and how many tokens of its last document did not fit.

    >>> packed = pack((5, 3, 8), 10)
    >>> packed.documents.lengths.tolist(), packed.used, packed.cut_tokens, packed.total
    ([5, 3, 2], 3, 6, 10)
    """

    documents: PackedDocuments
    cut_tokens: int = integer_field("HP-INPUT-003", least=0)

    digest = content_digest

    @property
    def used(self) -> int:
        """Documents in the pack, the cut one included."""
        return self.documents.num_documents

    @property
    def total(self) -> int:
        """Tokens of the pack."""
        return self.documents.total


def pack(lengths: object, total: int) -> Packed:
    """The first documents of ``lengths`` (tokens) until ``total`` tokens, the last one cut to fit.

    Raises HP-DOC-001 for lengths that are none, and HP-INPUT-003 where they hold fewer than ``total`` tokens.

    >>> pack((5, 3, 8), 8).cut_tokens
    0
    """
    documents = lengths if isinstance(lengths, PackedDocuments) else PackedDocuments(lengths)
    total = integer(total, "total", "HP-INPUT-003", least=1)
    if documents.total < total:
        raise refusal(
            "HP-INPUT-003",
            "total",
            f"{documents.num_documents} documents hold {documents.total} tokens, {total} are asked for",
            f"ask for at most {documents.total}",
            tokens=documents.total,
            total=total,
            documents=documents.num_documents,
        )
    used = int(np.searchsorted(documents.boundaries, total))
    kept = documents.lengths[:used].copy()
    cut = int(documents.boundaries[used]) - total
    kept[-1] -= cut
    return Packed(PackedDocuments(readonly(kept)), cut)


def published_lengths(total: int, seed: int = 0, cap: int | None = None) -> np.ndarray:
    """Document lengths (int64, tokens) drawn from ``DOCUMENT_LENGTH_BINS`` until ``total`` tokens are reached.

    A bin is drawn by its number of documents, a length uniformly inside it; longer documents are cut to
    ``cap`` tokens. Equal arguments give equal lengths, and a larger ``total`` continues a smaller one. Raises
    HP-INPUT-003 for a total or cap below 1, a negative seed, or more than ``MOST_DOCUMENTS`` documents.

    >>> lengths = published_lengths(20_000, seed=1)
    >>> bool(lengths[:-1].sum() < 20_000 <= lengths.sum())
    True
    """
    total = integer(total, "total", "HP-INPUT-003", least=1)
    random = np.random.default_rng(integer(seed, "seed", "HP-INPUT-003", least=0))
    most = DOCUMENT_LENGTH_BINS[-1][1] if cap is None else integer(cap, "cap", "HP-INPUT-003", least=1)
    if total // min(most, _MEAN) > MOST_DOCUMENTS:
        raise refusal(
            "HP-INPUT-003",
            "total",
            f"{total} tokens need some {total // min(most, _MEAN)} documents, at most {MOST_DOCUMENTS} are drawn",
            "ask for fewer tokens, or raise cap",
            total=total,
            documents=total // min(most, _MEAN),
            most=MOST_DOCUMENTS,
        )
    low, high, number = np.array(DOCUMENT_LENGTH_BINS, dtype=np.int64).T
    ends = np.cumsum(number)
    parts, tokens = [], 0
    while tokens < total:
        which = np.searchsorted(ends, random.integers(0, ends[-1], _DRAWN_TOGETHER), side="right")
        drawn = np.minimum(random.integers(low[which], high[which] + 1), most)
        parts.append(drawn)
        tokens += int(drawn.sum())
    return readonly(_until(np.concatenate(parts), total))


@plan_value
class SourceFiles:
    """Source files of the standard library: ``lengths`` in tokens (int64), and how many could not be read."""

    lengths: Any = attrs.field(converter=lambda values: integers(values, "lengths", "HP-INPUT-003"))
    skipped: int = integer_field("HP-INPUT-003", least=0)

    digest = content_digest

    @cached_property
    def total(self) -> int:
        """Tokens of all files."""
        return int(self.lengths.sum())


def stdlib_lengths(limit: int | None = None, progress: Progress | None = None, cap: int | None = None) -> np.ndarray:
    """Lengths (int64, tokens of ``tokenize``) of Python's own source files, until ``limit`` tokens are reached.

    As ``stdlib_files``, which also says how many files were skipped. Raises HP-INPUT-003.

    >>> bool(stdlib_lengths(2000).sum() >= 2000)
    True
    """
    return stdlib_files(limit, progress, cap).lengths


def stdlib_files(limit: int | None = None, progress: Progress | None = None, cap: int | None = None) -> SourceFiles:
    """One document per ``.py`` file of this interpreter's standard library, by path, tests left out.

    A length is the number of tokens that ``tokenize.tokenize`` yields, at most ``cap``. ``progress(done,
    limit)`` is called after each file. Order by path mixes long and short files from the first 100,000 tokens
    on, so nothing is shuffled. The lengths are those of this Python version; they are equal wherever it is
    installed in full. Files that cannot be read or are not Python are skipped and counted. Raises HP-INPUT-003.
    """
    cap = INT64_MAX if cap is None else integer(cap, "cap", "HP-INPUT-003", least=1)
    limit = None if limit is None else integer(limit, "limit", "HP-INPUT-003", least=1)
    lengths: list[int] = []
    skipped = done = 0
    for path in stdlib_paths():
        if limit is not None and done >= limit:
            break
        tokens = count_tokens(path)
        if tokens is None:
            skipped += 1
            continue
        lengths.append(min(tokens, cap))
        done += lengths[-1]
        if progress is not None:
            progress(done, limit)
    return SourceFiles(lengths, skipped)


def stdlib_paths() -> list[Path]:
    """The ``.py`` files that ``stdlib_files`` reads, in its order: by path below the library's folder.

    >>> "argparse.py" in {path.name for path in stdlib_paths()}
    True
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _FOREIGN_FOLDERS]
        # _sysconfigdata_*.py is written by the build, so it differs from machine to machine
        wanted = [name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata_")]
        found.extend(Path(folder, name) for name in wanted)
    return sorted(found, key=lambda path: path.relative_to(root).parts)


def count_tokens(path: Path) -> int | None:
    """Tokens of a Python source file as ``tokenize.tokenize`` yields them, or None if it is not one."""
    try:
        with path.open("rb") as file:
            return sum(1 for _ in tokenize.tokenize(file.readline))
    except (OSError, SyntaxError, UnicodeError, tokenize.TokenError):
        return None


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
    if isinstance(documents, PackedDocuments):
        return documents
    kind = type(value).__name__
    raise refusal("HP-INPUT-002", where, f"holds a value of type {kind}, without documents", "pass lengths, or a plan", type=kind)


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


def workload(name: str, total: int, seed: int = 0, cap: int | None = None, progress: Progress | None = None) -> Packed:
    """A named workload of exactly ``total`` tokens: ``stdlib`` or ``published``.

    ``cap`` cuts longer documents; published documents, whose longest would fill a small pack alone, are cut to
    a quarter of the pack unless it is given. ``seed`` is for ``published``. Raises HP-INPUT-003 for an unknown
    name, a total that the workload does not reach, or a number out of range.

    >>> workload("published", 131_072, seed=3).total
    131072
    """
    total = integer(total, "total", "HP-INPUT-003", least=1)
    if name == "published":
        return pack(published_lengths(total, seed, max(1, total // 4) if cap is None else cap), total)
    if name == "stdlib":
        return pack(stdlib_lengths(total, progress, cap), total)
    raise refusal(
        "HP-INPUT-003",
        "name",
        f"no workload {name!r:.60}",
        f"use one of {', '.join(WORKLOADS)}",
        got=repr(name)[:60],
        known=WORKLOADS,
    )


def _until(lengths: np.ndarray, total: int) -> np.ndarray:
    """The first lengths whose sum reaches ``total``."""
    return lengths[: int(np.searchsorted(np.cumsum(lengths), total)) + 1].copy()
