"""What the commands share: where documents come from, the group, the options of balance, and where output goes.

The option classes of the commands, and the reading of the batch that they name.
"""

import json
import math
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Group, Parameter, Token
from rich.console import Console
from rich.progress import Progress

from hpfun.documents import PackedDocuments
from hpfun.errors import refusal
from hpfun.inputs import MOST_BYTES, documents_of, file_bytes, read_value
from hpfun.workloads import WORKLOADS, pack, workload

DEFAULT_TOKENS = 131_072
MOST_RANKS = 2**20
PICTURES = (".png", ".svg", ".pdf")


def _count(hint: Any, tokens: Sequence[Token]) -> int:
    # the library's own converter would round 3.5 to 4
    text = tokens[0].value.replace("_", "").replace(",", "")
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 100):
        raise ValueError(f"{tokens[0].value[:40]!r} is not an integer")
    return int(text)


Count = Annotated[int, Parameter(converter=_count)]
INPUT, PLAN, OUTPUT = Group("Input", sort_key=1), Group("Plan", sort_key=2), Group("Output", sort_key=3)


@Parameter(name="*", group=INPUT)
@dataclass(frozen=True)
class Input:
    """Where the documents come from."""

    tokens: Annotated[Count | None, Parameter(name=["--tokens", "--total"])] = None
    """Tokens of the pack. A workload is built to it (131,072 if not given), a file is cut to it."""
    fit: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Cut the pack to the largest multiple of the ranks."""
    cap: Count | None = None
    """Cut documents that are longer than this many tokens."""
    seed: Count = 0
    """Seed of the workload published."""
    lengths: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Read the file as lengths, whatever it starts with."""
    cu_seq_lens: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Read the file as cumulative ends, whatever it starts with."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Ranks:
    """The group, and what a row costs."""

    ranks: str = "8"
    """Ranks of the group; several as 8,32,128."""
    ratio: Count = 1
    """Tokens behind one key."""
    row_cost: Count = 0
    """What a row costs besides its scores, in scored pairs."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Balance:
    """Options of the balance modes."""

    block_size: Count | None = None
    """Rows of a block, for greedy and hybrid."""
    zigzag_min_length: Count | None = None
    """Rows from which hybrid cuts a document in zigzag."""
    capacity: Count | None = None
    """Most rows on one worker, for greedy, hybrid and locality."""
    tolerance_ppm: Count = 0
    """How far above the mean load locality may stay, in millionths."""
    ranks_per_node: Count | None = None
    """Ranks of a node, inside which locality moves rows first."""


@Parameter(name="*", group=PLAN)
@dataclass(frozen=True)
class Bytes:
    """What a moved row weighs."""

    bytes_out: Count = 0
    """Bytes of a moved row on its way to the worker."""
    bytes_back: Count = 0
    """Bytes of its result on the way home."""


Source = Annotated[str, Parameter(allow_leading_hyphen=True)]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)]
Mode = Annotated[str, Parameter(group=PLAN)]
NO_INPUT, NO_RANKS, NO_BALANCE, NO_BYTES = Input(), Ranks(), Balance(), Bytes()


def group_sizes(text: str) -> list[int]:
    """The group sizes of ``--ranks``; HP-INDEX-002 for anything but positive integers up to ``MOST_RANKS``."""
    sizes = []
    for part in text.split(","):
        word = part.strip().replace("_", "")
        if not (word.isascii() and word.isdigit() and 0 < int(word[:10]) <= MOST_RANKS and len(word) <= 10):
            message = f"got {part[:40]!r}, legal is 1..{MOST_RANKS}"
            raise refusal("HP-INDEX-002", "--ranks", message, "as in 8 or 8,32,128", got=part[:40], most=MOST_RANKS)
        sizes.append(int(word))
    return list(dict.fromkeys(sizes))


def read_source(source: str, given: Input) -> Any:
    """The documents or the saved value of a file, or of standard input."""
    if given.lengths and given.cu_seq_lens:
        raise refusal("HP-INPUT-002", "--lengths", "excludes --cu-seq-lens", "pass one of them")
    form = "lengths" if given.lengths else "cu_seq_lens" if given.cu_seq_lens else None
    if source == "-":
        return read_value(sys.stdin.buffer.read(MOST_BYTES + 1), "stdin", form)
    return read_value(file_bytes(source), Path(source).name, form)


def read_batch(source: str, given: Input, sizes: Sequence[int], value: Any = None) -> PackedDocuments:
    """The pack that the input options describe, divisible by all group sizes; notes say what was cut."""
    if source in WORKLOADS:
        total = DEFAULT_TOKENS if given.tokens is None else given.tokens
        with progress_bar(f"Reading {source}", total) as step:
            done = 0

            def reached(tokens: int, _: int | None) -> None:
                nonlocal done
                step(tokens - done)
                done = tokens

            documents = workload(source, total, given.seed, given.cap, reached).documents
    else:
        documents = documents_of(read_source(source, given) if value is None else value, Path(source).name)
        if given.cap is not None:
            if given.cap < 1:
                raise refusal("HP-INPUT-003", "--cap", f"got {given.cap}, legal is 1 or more", cap=given.cap)
            documents = PackedDocuments(np.minimum(documents.lengths, min(given.cap, documents.total)))
        if given.tokens is not None:
            documents = _cut(documents, given.tokens)
    rest = documents.total % math.lcm(*sizes)
    if not rest:
        return documents
    if given.fit and rest < documents.total:
        return _cut(documents, documents.total - rest)
    size = next((size for size in sizes if documents.total % size), sizes[0])
    raise refusal(
        "HP-INDEX-002",
        "--ranks",
        f"{documents.total} tokens do not divide by {size} ranks",
        "pass fewer ranks" if rest == documents.total else f"pass --fit to cut {rest}, or pad",
        tokens=documents.total,
        size=size,
        remainder=documents.total % size,
    )


def _cut(documents: PackedDocuments, total: int) -> PackedDocuments:
    packed = pack(documents, total)
    if documents.total > total:
        note(
            f"Kept {total:,} of {documents.total:,} tokens: {packed.used:,} of {documents.num_documents:,} documents, "
            f"the last one shortened by {packed.cut_tokens:,}."
        )
    return packed.documents


def stderr() -> Console:
    """Where notes, progress and errors go."""
    return Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """Say something that is no result."""
    print(text, file=sys.stderr)


def stdout() -> Console:
    """Where tables and other results go."""
    return Console(highlight=False)


def print_json(**parts: Any) -> None:
    """Print one JSON object as the result."""
    print(json.dumps(parts, allow_nan=False, default=repr))


def write_text(path: Path, text: str) -> None:
    """Write a result to the file of ``--out``; HP-INPUT-001 where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "pass a file in a folder that exists"
        raise refusal("HP-INPUT-001", "--out", f"{path.name}: {reason}", advice, reason=reason) from None


def check_picture(path: Path | None) -> None:
    """HP-INPUT-002 for a picture of a kind that cannot be drawn, HP-INPUT-001 for one in a folder that is none."""
    if path is not None and path.suffix.lower() not in PICTURES:
        message = f"cannot draw a {path.suffix or 'file without suffix'}"
        raise refusal("HP-INPUT-002", "--picture", message, f"use {', '.join(PICTURES)}", suffix=path.suffix)
    if path is not None and not path.parent.is_dir():
        message, advice = f"{path.name}: no such folder", "pass a file in a folder that exists"
        raise refusal("HP-INPUT-001", "--picture", message, advice, reason="no such folder")


def numbered(path: Path, size: int, count: int) -> Path:
    """The file for a group of ``size`` ranks: ``path``, or where several are written, one named after the size."""
    return path if count == 1 else path.with_name(f"{path.stem}-{size}{path.suffix}")


@contextmanager
def progress_bar(title: str, total: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal's stderr that vanishes when done; yields what advances it."""
    console = stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount=1: bar.advance(task, amount)
