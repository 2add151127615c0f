"""What the training demos share: packs of source files, and losses of plain gradient descent over ranks and alone."""

import tokenize
import zlib
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed as dist

from hpfun import PackedDocuments
from hpfun.errors import refusal

STEPS, TOKENS, VOCABULARY = 10, 1024, 512
TOLERANCE = 1e-3  # of the loss: float32 sums in another order, over ten steps


@attrs.frozen
class Source:
    """Tokens of source files, end to end, and how many each file has."""

    ids: np.ndarray
    lengths: tuple[int, ...]


def source_tokens(total: int) -> Source:
    """The first ``total`` tokens of Python's standard library, a file a document; a token's id hashes its text."""
    from hpfun.workloads import stdlib_paths

    ids: list[int] = []
    lengths: list[int] = []
    for path in stdlib_paths():
        if len(ids) >= total:
            break
        try:
            with path.open("rb") as file:
                found = [zlib.crc32(token.string.encode()) % VOCABULARY for token in tokenize.tokenize(file.readline)]
        except (OSError, SyntaxError, UnicodeError, tokenize.TokenError):
            continue
        found = found[: total - len(ids)]
        ids += found
        lengths.append(len(found))
    return Source(np.array(ids), tuple(lengths))


def packs(source: Source, steps: int, total: int) -> Iterator[tuple[np.ndarray, PackedDocuments]]:
    """``steps`` packs of ``total`` tokens, documents cut where a pack ends."""
    ends = np.cumsum((0, *source.lengths))
    for step in range(steps):
        low, high = step * total, (step + 1) * total
        inside = np.unique(np.clip(ends, low, high))
        edges = np.unique(np.concatenate(([low], inside, [high]))) - low
        yield source.ids[low:high], PackedDocuments.from_cu_seq_lens(edges)


def losses_of_ranks(model: Any, source: Source, steps: int, rate: float) -> Iterator[float]:
    """Loss of each step of plain gradient descent on all ranks' parts, summed; called on every rank."""
    from hpfun_torch.integrations.transformers import prepare_batch, sum_gradients

    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for ids, documents in packs(source, steps, TOKENS):
        loss = model(**prepare_batch(model, torch.from_numpy(ids), documents)).loss
        loss.backward()
        sum_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        yield float(total)


def losses_alone(model: Any, source: Source, steps: int, rate: float) -> Iterator[float]:
    """Loss of each step in one process, each document of a pack alone."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for ids, documents in packs(source, steps, TOKENS):
        count, total = documents.total - documents.num_documents, 0.0
        for document in torch.from_numpy(ids).split(documents.lengths.tolist()):
            if len(document) > 1:
                logits = model(input_ids=document[None], use_cache=False).logits[0, :-1]
                loss = torch.nn.functional.cross_entropy(logits, document[1:], reduction="sum") / count
                loss.backward()
                total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        yield total


def check_losses(split: list[float], alone: list[float]) -> None:
    """HP-RANKS-002 unless the losses of the ranks are those of one process."""
    odd = [step for step, pair in enumerate(zip(split, alone, strict=True)) if abs(pair[0] - pair[1]) > TOLERANCE]
    if odd:
        message = f"losses of steps {odd} differ from those of one process"
        raise refusal("HP-RANKS-002", "loss", message, steps=tuple(odd), split=tuple(split), alone=tuple(alone))
