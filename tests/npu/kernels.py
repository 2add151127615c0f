"""What the operators are taken to compute, on any device, from the formulas; strict about how they are called.

Slow, float64, and without a line of ``hpfun``. Every call is written down in ``CALLS``.
"""

import torch

CALLS: list[str] = []
NEXT = 9223372036854775807


def ends(lengths, total, zero):
    """Pairs (start, stop) of running sums in one of the operators' forms."""
    if isinstance(lengths, torch.Tensor):
        assert lengths.dtype == torch.int32
        lengths = lengths.tolist()
    else:
        assert not zero
        assert isinstance(lengths, (list, tuple)), type(lengths)
    if zero:
        assert lengths[0] == 0
        lengths = lengths[1:]
    starts = [0, *lengths[:-1]]
    assert lengths[-1] == total, (lengths, total)
    assert all(a <= b for a, b in zip(starts, lengths, strict=True))
    return list(zip(starts, lengths, strict=True))


def packed(*tensors):
    assert all(tensor.is_contiguous() for tensor in tensors if tensor is not None)


def npu_lightning_indexer(
    query,
    key,
    weights,
    *,
    actual_seq_lengths_query=None,
    actual_seq_lengths_key=None,
    block_table=None,
    layout_query="BSND",
    layout_key="BSND",
    sparse_count=2048,
    sparse_mode=3,
    pre_tokens=NEXT,
    next_tokens=NEXT,
    return_value=False,
):
    CALLS.append("npu_lightning_indexer")
    packed(query, key, weights)
    assert (layout_query, layout_key, sparse_mode) == ("TND", "TND", 3)
    assert query.dtype == key.dtype == weights.dtype
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert key.shape[1] == 1
    assert not torch.is_autocast_enabled("cpu")
    found = torch.empty((query.shape[0], 1, sparse_count), dtype=torch.int32)
    rows = ends(actual_seq_lengths_query, query.shape[0], False)
    keys = ends(actual_seq_lengths_key, key.shape[0], False)
    for (start, stop), (first, last) in zip(rows, keys, strict=True):
        for t in range(start, stop):
            seen = (last - first) - (stop - 1 - t)
            assert seen > 0, "a row without a key"
            dots = (query[t].double() @ key[first : first + seen, 0].double().t()).clamp(min=0)
            scores = (weights[t].double()[:, None] * dots).sum(0)
            best = scores.argsort(descending=True, stable=True)[:sparse_count].flip(0)  # in no order
            filling = last - first if t % 2 else -1  # one past the end, or none
            found[t, 0] = filling
            found[t, 0, : len(best)] = best.int()
    return found, query.new_empty(0)


def attend(query, keys, values, ids, scale):
    """Heads of one row on the keys ``ids``: output, greatest logit, sum of exponentials under it."""
    logits = query @ keys[ids].t() * scale
    top = logits.amax(1).detach()
    weights = (logits - top[:, None]).exp()
    return weights / weights.sum(1, keepdim=True) @ values[ids], top, weights.sum(1)


def flash(query, key, value, ids, scale, rope, lengths_q, lengths_k):
    query, key = torch.cat((query, rope[0]), 2), torch.cat((key, rope[1]), 2)
    outs, tops, totals = [], [], []
    rows, keys = ends(lengths_q, query.shape[0], False), ends(lengths_k, key.shape[0], False)
    for (start, stop), (first, last) in zip(rows, keys, strict=True):
        for t in range(start, stop):
            mine = ids[t, 0].tolist()
            count = sum(j >= 0 for j in mine)
            assert count, "a row without an id"
            assert min(mine[:count]) >= 0, "ids stand behind -1"
            assert max(mine) < (last - first) - (stop - 1 - t), "an id that the row does not see"
            at = torch.tensor(mine[:count]) + first
            out, top, total = attend(query[t], key[:, 0], value[:, 0], at, scale)
            outs.append(out), tops.append(top), totals.append(total)
    return torch.stack(outs), torch.stack(tops)[None], torch.stack(totals)[None]


def npu_sparse_flash_attention(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    *,
    block_table=None,
    actual_seq_lengths_query=None,
    actual_seq_lengths_kv=None,
    query_rope=None,
    key_rope=None,
    sparse_block_size=1,
    layout_query="BSND",
    layout_kv="BSND",
    sparse_mode=3,
    pre_tokens=NEXT,
    next_tokens=NEXT,
    attention_mode=0,
    return_softmax_lse=False,
    sinks=None,
):
    CALLS.append("npu_sparse_flash_attention")
    packed(query, key, value, sparse_indices, query_rope, key_rope)
    assert (layout_query, layout_kv, sparse_mode, attention_mode, sparse_block_size) == ("TND", "TND", 3, 2, 1)
    assert (query.shape[2], key.shape[1:], query_rope.shape[2], key_rope.shape[1:]) == (512, (1, 512), 64, (1, 64))
    assert return_softmax_lse
    assert sparse_indices.dtype == torch.int32
    wide = [part.double() for part in (query, key, value, query_rope, key_rope)]
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv)
    out, top, total = flash(*wide[:3], sparse_indices, scale_value, wide[3:], *lengths)
    return out.to(query.dtype), top.float(), total.float()


def npu_sparse_flash_attention_grad(
    query,
    key,
    value,
    sparse_indices,
    d_out,
    out,
    softmax_max,
    softmax_sum,
    scale_value,
    sparse_block_size,
    query_rope=None,
    key_rope=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    layout="BSND",
    sparse_mode=3,
    pre_tokens=NEXT,
    next_tokens=NEXT,
    attention_mode=0,
):
    CALLS.append("npu_sparse_flash_attention_grad")
    packed(d_out, out)
    assert (layout, sparse_mode, attention_mode, sparse_block_size) == ("TND", 3, 2, 1)
    given = (query, key, value, query_rope, key_rope)
    with torch.enable_grad():
        leaves = [part.detach().double().requires_grad_() for part in given]
        lengths = (actual_seq_qlen, actual_seq_kvlen)
        again, top, total = flash(*leaves[:3], sparse_indices, scale_value, leaves[3:], *lengths)
        torch.testing.assert_close(again.to(out.dtype), out)
        torch.testing.assert_close((top.float(), total.float()), (softmax_max, softmax_sum))
        grads = torch.autograd.grad(again, leaves, d_out.double())
    return tuple(grad.to(part.dtype) for grad, part in zip(grads, given, strict=True))


def npu_sparse_lightning_indexer_grad_kl_loss(
    query,
    key,
    query_index,
    key_index,
    weights,
    sparse_indices,
    softmax_max,
    softmax_sum,
    scale_value,
    *,
    query_rope=None,
    key_rope=None,
    actual_seq_qlen=None,
    actual_seq_klen=None,
    layout="BSND",
    sparse_mode=3,
    pre_tokens=NEXT,
    next_tokens=NEXT,
    sinks=None,
):
    CALLS.append("npu_sparse_lightning_indexer_grad_kl_loss")
    packed(query, key, query_index, key_index, weights, sparse_indices, softmax_max, softmax_sum)
    assert (layout, sparse_mode, sinks) == ("TND", 3, None)
    rows = ends(actual_seq_qlen, query.shape[0], False)
    keys = ends(actual_seq_klen, key.shape[0], False)
    given = (query_index, key_index, weights)
    loss = torch.zeros((), dtype=torch.float64)
    with torch.enable_grad():
        leaves = [part.detach().double().requires_grad_() for part in given]
        whole = torch.cat((query, query_rope), 2).double(), torch.cat((key, key_rope), 2)[:, 0].double()
        for (start, stop), (first, _) in zip(rows, keys, strict=True):
            for t in range(start, stop):
                at = torch.tensor([j + first for j in sparse_indices[t, 0].tolist() if j >= 0])
                logits = whole[0][t] @ whole[1][at].t() * scale_value
                target = ((logits - softmax_max[0, t].double()[:, None]).exp() / softmax_sum[0, t][:, None]).sum(0)
                target = target / target.sum()
                dots = (leaves[0][t] @ leaves[1][at, 0].t()).clamp(min=0)
                student = (leaves[2][t][:, None] * dots).sum(0).log_softmax(0)
                loss = loss + (target * (target.log() - student)).sum()
        grads = torch.autograd.grad(loss, leaves)
    parts = (grad.to(part.dtype) for grad, part in zip(grads, given, strict=True))
    return (*parts, loss.detach().float().reshape(1))


def fusion(query, key, value, scale, window, lengths_q, lengths_k, sinks):
    group = query.shape[1] // key.shape[1]
    outs, tops, totals = [], [], []
    rows, keys = ends(lengths_q, query.shape[0], False), ends(lengths_k, key.shape[0], False)
    for (start, stop), (first, last) in zip(rows, keys, strict=True):
        for t in range(start, stop):
            high = last - (stop - 1 - t)
            low = first if window is None else max(first, high - window)
            assert low < high, "a row that is masked fully"
            logits = torch.einsum("hd,jhd->hj", query[t], key[low:high].repeat_interleave(group, 1)) * scale
            top = logits.amax(1) if sinks is None else torch.maximum(logits.amax(1), sinks)
            top = top.detach()
            weights = (logits - top[:, None]).exp()
            total = weights.sum(1) + (0 if sinks is None else (sinks - top).exp())
            values = value[low:high].repeat_interleave(group, 1)
            outs.append(torch.einsum("hj,jhd->hd", weights / total[:, None], values))
            tops.append(top), totals.append(total)
    return torch.stack(outs), torch.stack(tops), torch.stack(totals)


def window_of(mask, mode, pre, following):
    """The window of a compressed mask mode; None for all rows before."""
    assert mask.dtype == torch.bool
    assert torch.equal(mask, torch.ones(2048, 2048, dtype=torch.bool).triu(1))
    assert mode in (3, 4)
    if mode == 3:
        return None
    assert following == 0
    return pre + 1


def npu_fusion_attention_v2(
    query,
    key,
    value,
    head_num,
    input_layout,
    *,
    pse=None,
    padding_mask=None,
    atten_mask=None,
    query_rope=None,
    key_rope=None,
    scale=1.0,
    keep_prob=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    inner_precise=0,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    sparse_mode=0,
    gen_mask_parallel=True,
    sync=False,
    pse_type=1,
    q_start_idx=None,
    kv_start_idx=None,
    softmax_layout="",
    sink=None,
    dropout_mask=None,
    seed=0,
    offset=0,
):
    CALLS.append("npu_fusion_attention_v2")
    packed(query, key, value)
    assert (head_num, input_layout, softmax_layout) == (query.shape[1], "TND", "TND")
    assert sink is None or sink.dtype == torch.float32
    window = window_of(atten_mask, sparse_mode, pre_tokens, next_tokens)
    wide = [part.double() for part in (query, key, value)]
    sinks = None if sink is None else sink.double()
    out, top, total = fusion(*wide, scale, window, actual_seq_qlen, actual_seq_kvlen, sinks)
    eight = [part.float()[..., None].repeat(1, 1, 8) for part in (top, total)]
    return out.to(query.dtype), *eight, query.new_empty(0), 0, 0, 0


def npu_fusion_attention_grad_v2(
    query,
    key,
    value,
    dy,
    head_num,
    input_layout,
    *,
    pse=None,
    padding_mask=None,
    atten_mask=None,
    softmax_max=None,
    softmax_sum=None,
    softmax_in=None,
    attention_in=None,
    query_rope=None,
    key_rope=None,
    scale_value=1.0,
    keep_prob=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    inner_precise=0,
    seed=0,
    offset=0,
    numels=0,
    prefix=None,
    actual_seq_qlen=None,
    actual_seq_kvlen=None,
    sparse_mode=0,
    gen_mask_parallel=True,
    sync=False,
    pse_type=1,
    q_start_idx=None,
    kv_start_idx=None,
    softmax_layout="",
    sink=None,
):
    CALLS.append("npu_fusion_attention_grad_v2")
    packed(dy, attention_in)
    assert (head_num, input_layout, softmax_layout) == (query.shape[1], "TND", "TND")
    window = window_of(atten_mask, sparse_mode, pre_tokens, next_tokens)
    given = [part for part in (query, key, value, sink) if part is not None]
    with torch.enable_grad():
        leaves = [part.detach().double().requires_grad_() for part in given]
        sinks = None if sink is None else leaves[3]
        out, top, total = fusion(*leaves[:3], scale_value, window, actual_seq_qlen, actual_seq_kvlen, sinks)
        torch.testing.assert_close(out.to(attention_in.dtype), attention_in)
        torch.testing.assert_close((top.float(), total.float()), (softmax_max[..., 3], softmax_sum[..., 5]))
        grads = torch.autograd.grad(out, leaves, dy.double())
    parts = [grad.to(part.dtype) for grad, part in zip(grads, given, strict=True)]
    none = query.new_empty(0)
    return *parts[:3], none, none, none, parts[3] if sink is not None else none


def sparse_flash_mla_metadata(num_heads_q, num_heads_kv, head_dim, **options):
    CALLS.append("sparse_flash_mla_metadata")
    assert (num_heads_kv, head_dim, options["has_ori_kv"]) == (1, 512, True)
    assert options["cu_seqlens_q"][0] == 0
    marks = [num_heads_q, options.get("cmp_topk"), options["cmp_ratio"], int(options["has_cmp_kv"])]
    return torch.tensor([*marks, *[0] * 1020], dtype=torch.int32)


def mla(q, ori_kv, cmp_kv, ids, sinks, scale, options):
    modes = (options["ori_mask_mode"], options["cmp_mask_mode"], options["ori_win_left"], options["ori_win_right"])
    assert modes == (4, 3, 127, 0)
    assert (options["layout_q"], options["layout_kv"]) == ("TND", "TND")
    rows = ends(options["cu_seqlens_q"], q.shape[0], True)
    near = ends(options["cu_seqlens_ori_kv"], ori_kv.shape[0], True)
    far, residuals = [(0, 0)] * len(rows), [0] * len(rows)
    if cmp_kv is not None:
        far = ends(options["cu_seqlens_cmp_kv"], cmp_kv.shape[0], True)
        assert options["cmp_residual_kv"].dtype == torch.int32
        residuals = options["cmp_residual_kv"].tolist()
    outs, lses = [], []
    for (start, stop), (low, high), (first, last), rest in zip(rows, near, far, residuals, strict=True):
        for t in range(start, stop):
            behind = stop - 1 - t
            keys = [ori_kv[max(low, high - behind - 128) : high - behind, 0]]
            if cmp_kv is not None:
                seen = ((last - first) * options["cmp_ratio"] + rest - behind) // options["cmp_ratio"]
                at = list(range(seen)) if ids is None else [j for j in ids[t, 0].tolist() if j >= 0]
                assert all(j < seen for j in at)
                keys.append(cmp_kv[[j + first for j in at], 0])
            bank = torch.cat(keys)
            logits = q[t] @ bank.t() * scale
            padded = logits if sinks is None else torch.cat((logits, sinks[:, None]), 1)
            lse = padded.logsumexp(1)
            outs.append((logits - lse[:, None]).exp() @ bank)
            lses.append(lse)
    return torch.stack(outs), torch.stack(lses)[None]


def wide(*tensors):
    return [None if tensor is None else tensor.double() for tensor in tensors]


def sparse_flash_mla(
    q, *, ori_kv=None, cmp_kv=None, cmp_sparse_indices=None, sinks=None, metadata=None, softmax_scale=1.0, **options
):
    CALLS.append("sparse_flash_mla")
    packed(q, ori_kv, cmp_kv)
    assert options.pop("return_softmax_lse")
    marks = [q.shape[1], 0 if cmp_sparse_indices is None else cmp_sparse_indices.shape[2]]
    assert metadata[:2].tolist() == marks
    assert sinks is None or sinks.dtype == torch.float32
    options = {**{"cmp_ratio": 1, "ori_mask_mode": 4, "cmp_mask_mode": 3, "ori_win_left": 127}, **options}
    options.setdefault("ori_win_right", 0)
    q2, near, far, sink = wide(q, ori_kv, cmp_kv, sinks)
    out, lse = mla(q2, near, far, cmp_sparse_indices, sink, softmax_scale, options)
    return out.to(q.dtype), lse.float()


def sparse_flash_mla_grad(
    q,
    dout,
    attn_out,
    softmax_lse,
    ori_kv=None,
    cmp_kv=None,
    ori_sparse_indices=None,
    cmp_sparse_indices=None,
    cu_seqlens_q=None,
    cu_seqlens_ori_kv=None,
    cu_seqlens_cmp_kv=None,
    seqused_q=None,
    seqused_ori_kv=None,
    seqused_cmp_kv=None,
    cmp_residual_kv=None,
    ori_topk_length=None,
    cmp_topk_length=None,
    sinks=None,
    metadata=None,
    softmax_scale=None,
    cmp_ratio=None,
    ori_mask_mode=0,
    cmp_mask_mode=0,
    ori_win_left=-1,
    ori_win_right=-1,
    layout_q="BSND",
    layout_kv="BSND",
):
    CALLS.append("sparse_flash_mla_grad")
    packed(dout, attn_out)
    options = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_ori_kv": cu_seqlens_ori_kv,
        "cu_seqlens_cmp_kv": cu_seqlens_cmp_kv,
        "cmp_residual_kv": cmp_residual_kv,
        "cmp_ratio": cmp_ratio,
        "ori_mask_mode": ori_mask_mode,
        "cmp_mask_mode": cmp_mask_mode,
        "ori_win_left": ori_win_left,
        "ori_win_right": ori_win_right,
        "layout_q": layout_q,
        "layout_kv": layout_kv,
    }
    given = {"q": q, "near": ori_kv, "far": cmp_kv, "sinks": sinks}
    with torch.enable_grad():
        leaves = {name: part.detach().double().requires_grad_() for name, part in given.items() if part is not None}
        parts = (leaves.get(name) for name in given)
        q2, near, far, sink = parts
        out, lse = mla(q2, near, far, cmp_sparse_indices, sink, softmax_scale, options)
        torch.testing.assert_close((out.to(q.dtype), lse.float()), (attn_out, softmax_lse))
        grads = torch.autograd.grad(out, list(leaves.values()), dout.double())
    found = {name: grad.to(given[name].dtype) for name, grad in zip(leaves, grads, strict=True)}
    none = q.new_empty(0)
    return *(found.get(name, none) for name in given), none, none
