"""Dense attention token by token, and which rows see which keys: loops over tokens of a pack."""


def seen(lengths, window):
    """For each token of a pack the tokens that it attends to, in order."""
    found = []
    start = 0
    for length in lengths:
        for at in range(length):
            first = max(0, at + 1 - window) if window else 0
            found.append([start + other for other in range(first, at + 1)])
        start += length
    return found


def attention(lengths, query, key, value, grad, window):
    """Output and gradients of query, key and value of a whole pack, as arrays."""
    import torch

    query, key, value = (part.clone().requires_grad_() for part in (query, key, value))
    share = query.shape[1] // key.shape[1]
    rows = []
    for token, others in enumerate(seen(lengths, window)):
        heads = []
        for head in range(query.shape[1]):
            keys, values = key[others, head // share], value[others, head // share]
            scores = keys @ query[token, head] * query.shape[2] ** -0.5
            heads.append(scores.softmax(0) @ values)
        rows.append(torch.stack(heads))
    output = torch.stack(rows)
    (output * grad).sum().backward()
    return [part.numpy() for part in (output.detach(), query.grad, key.grad, value.grad)]
