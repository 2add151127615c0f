"""The Lightning Indexer by loops over tokens, from its definition; exact on integer values."""

from collections.abc import Sequence


def selected_ids(
    query: Sequence, key: Sequence, weights: Sequence, visible: Sequence[tuple[int, int]], topk: int
) -> list[list[int]]:
    """Ids per row; ``visible[t] = (first key, number of keys)`` that row t may see."""
    answer = []
    for t, (first, count) in enumerate(visible):
        scored = []
        for j in range(first, first + count):
            score = 0
            for q, w in zip(query[t], weights[t], strict=True):
                product = sum(a * b for a, b in zip(q, key[j], strict=True))
                score += w * max(product, 0)
            scored.append((-score, j))
        best = sorted(j for _, j in sorted(scored)[:topk])
        answer.append(best + [-1] * (topk - len(best)))
    return answer
