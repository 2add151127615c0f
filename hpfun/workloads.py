"""Workloads: document lengths that somebody really has, or has published, cut to a pack of a given size.

``stdlib`` is on every machine that runs this: one document per source file of Python's standard library, measured
in tokens of Python's own tokenizer. ``published`` is drawn from a histogram of a training corpus. Reading source
files is all that this module does besides arithmetic.
"""

import os
import sysconfig
import tokenize
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hpfun._fields import INT64_MAX, content_digest, integer, integer_field, integers, plan_value, readonly
from hpfun.documents import PackedDocuments
from hpfun.errors import refusal

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
