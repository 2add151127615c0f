"""Mutants of the rules of ``specs/executors.md``."""

from tests.mutants.mutant import Mutant

EXCHANGE = "hpfun_torch/exchange.py"
CONVERT = "hpfun_torch/convert.py"
AGREE = "hpfun_torch/agree.py"
OUTCOME = "hpfun/outcome.py"
HANDLE = "hpfun_torch/handle.py"
INDEXER = "hpfun_torch/indexer.py"
OPS = "hpfun_torch/ops/cpu/indexer.py"
CONTRACT = "hpfun_torch/ops/contract.py"
RANKS = "hpfun_torch/ranks.py"
CHECKS = "hpfun_torch/checks.py"
TRANSFER = "hpfun_torch/transfer.py"

MUTANTS = [
    Mutant("EXECUTOR-1", TRANSFER, "0 if exchange.reduce else fill", "0"),
    Mutant("EXECUTOR-1", EXCHANGE, "fill, pending).movedim(0, dim)", "fill, pending)"),
    Mutant(
        "EXECUTOR-1",
        "hpfun/exchange.py",
        'return chained(before, self.row_list("local_targets"), behind)',
        'return chained(self.row_list("local_targets"), before, behind)',
    ),
    Mutant("EXECUTOR-1", CONVERT, "adds=not exchange.hits_once", "adds=False"),
    Mutant(
        "EXECUTOR-2",
        EXCHANGE,
        "_Exchange.apply(grad, backward_exchange(ctx.exchange), ctx.group, 0, None), None",
        "grad.new_zeros(backward_exchange(ctx.exchange).num_target_rows, *grad.shape[1:]), None",
    ),
    Mutant("EXECUTOR-3", TRANSFER, "    if exchange.required:\n        in_place", "    if True:\n        in_place"),
    Mutant("EXECUTOR-4", TRANSFER, "plan.receive.span is not None and not plan.adds", "False"),
    Mutant(
        "EXECUTOR-4",
        CONVERT,
        "return tensor[self.span[0] : self.span[1]]",
        "return tensor[self.span[0] : self.span[1]].clone()",
    ),
    Mutant("EXECUTOR-5", CONVERT, "torch.inference_mode(mode=False)", "torch.inference_mode(mode=True)"),
    Mutant("EXECUTOR-5", CONVERT, "kept = lru_cache(maxsize=most)(made)", "kept = made"),
    Mutant(
        "EXECUTOR-6", TRANSFER, "torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype", "rows.dtype"
    ),
    Mutant(
        "EXECUTOR-6",
        TRANSFER,
        "    plan.local_targets.add(target, plan.local_sources.take(rows))\n    for part in plan.higher:\n",
        "    for part in plan.higher:\n        plan.local_targets.add(target, plan.local_sources.take(rows))\n",
    ),
    Mutant("EXECUTOR-7", HANDLE, "finish, self._finish = self._finish, None", "finish = self._finish"),
    Mutant(
        "EXECUTOR-8",
        EXCHANGE,
        "_Exchange.apply(rows.movedim(in_dims[0], -1), exchange, group, fill, finish), -1",
        "_Exchange.apply(rows.movedim(in_dims[0], -1), exchange, group, fill, finish), 0",
    ),
    Mutant(
        "EXECUTOR-8",
        EXCHANGE,
        "return _Exchange.apply(grad, backward_exchange(ctx.exchange), ctx.group, 0, None), None",
        "return _Exchange.apply(grad.detach(), backward_exchange(ctx.exchange), ctx.group, 0, None), None",
    ),
    Mutant("EXECUTOR-9", CHECKS, "-tensor.ndim <= dim < tensor.ndim", "-tensor.ndim <= dim <= tensor.ndim"),
    Mutant("EXECUTOR-9", CHECKS, "if rows != exchange.num_source_rows:", "if rows < exchange.num_source_rows:"),
    Mutant("EXECUTOR-9", CHECKS, "if (size, rank) != (exchange.size, exchange.rank):", "if rank != exchange.rank:"),
    Mutant(
        "EXECUTOR-10",
        AGREE,
        "    described = describe(cast(T, found)) if outcome.ok else {}\n    compare(",
        "    described = {}\n    compare(",
    ),
    Mutant("EXECUTOR-10", AGREE, '    if check == "off":\n', "    if check:\n"),
    Mutant(
        "EXECUTOR-11",
        TRANSFER,
        "plan.input_splits, group=group, async_op=True",
        "plan.input_splits, group=group, async_op=False",
    ),
    Mutant("AGREE-1", AGREE, "return Agreed(plan, mark, size)", "return Agreed(plan, mark[::-1], size)"),
    Mutant("AGREE-1", AGREE, 'return getattr(plan, "plan_digest", None) or digest(plan)', "return digest(plan)"),
    Mutant("AGREE-2", AGREE, 'found.update(_described(value, f"{name}."))', "found[name] = digest(value)"),
    Mutant("AGREE-2", AGREE, "and bool((headers[:, 2:] == headers[0, 2:]).all())", ""),
    Mutant("AGREE-3", OUTCOME, "first = outcomes[failing[0]]", "first = outcomes[failing[-1]]"),
    Mutant("AGREE-3", OUTCOME, 'facts={**first.facts, "failing_ranks": failing}', 'facts={"failing_ranks": failing}'),
    Mutant("AGREE-4", OUTCOME, "    except Exception as error:", "    except PlanError as error:"),
    Mutant("AGREE-4", OUTCOME, '{"type": name, "message": str(error)[:500]}', '{"message": str(error)[:500]}'),
    # a local memory of plans seen before decides whether to communicate
    Mutant(
        "AGREE-5",
        AGREE,
        "    size = compare(outcome, mark",
        "    seen = agree.__dict__.setdefault('seen', set())\n"
        "    if mark in seen:\n        return Agreed(plan, mark, 1)\n"
        "    seen.add(mark)\n    size = compare(outcome, mark",
    ),
    # a rank that is well leaves the second collective to the others
    Mutant(
        "AGREE-6",
        AGREE,
        "    longest = int(headers[:, 1].max())\n",
        "    longest = int(headers[:, 1].max())\n"
        "    if dist.get_rank(group) == 0:\n        raise _difference([], [], code, where)\n",
    ),
    Mutant("SELECT-1", INDEXER, "home = backward_exchange(self._route.exchange)", "home = self._route.exchange"),
    Mutant("SELECT-2", INDEXER, "kinds.setdefault(tensor.dtype, [])", "kinds.setdefault(torch.float64, [])"),
    Mutant("SELECT-2", INDEXER, "kinds.setdefault(tensor.dtype, [])", "kinds.setdefault((tensor.dtype, at), [])"),
    Mutant(
        "SELECT-3",
        INDEXER,
        "ids = settle(lambda: selector(*moved, route.segments), lambda _: {}, group, check)",
        "ids = [selector(*moved, route.segments), selector(*moved, route.segments)][0]",
    ),
    Mutant("SELECT-4", INDEXER, "to(torch.int32)", "to(torch.int64)"),
    Mutant(
        "SELECT-5",
        INDEXER,
        '    return Handle(finish, "inputs")\n',
        '    moved_now = finish()\n    return Handle(lambda: moved_now, "inputs")\n',
    ),
    Mutant("SELECT-6", INDEXER, "        if missing:\n", "        if False:\n"),
    Mutant(
        "SELECT-6", INDEXER, "    for call in range(calls):\n", "    for call in range(max(1, -(-count // length))):\n"
    ),
    Mutant("SELECT-7", INDEXER, "if len(shape) != 3 or shape[:2] != (1, local):", "if len(shape) != 3:"),
    Mutant("SELECT-7", INDEXER, "ids.is_floating_point() or ids.dtype == torch.bool", "ids.is_floating_point()"),
    Mutant("SELECT-7", INDEXER, "if rows.ndim < 2 or calls * length < count:", "if rows.ndim < 2:"),
    Mutant("SELECT-8", TRANSFER, "    if exchange.required:\n        in_place", "    if True:\n        in_place"),
    Mutant("SELECT-9", "hpfun_torch/demo.py", "(answer.ids != shard).any(axis=1)", "(answer.ids != shard).all(axis=1)"),
    Mutant("OPS-1", OPS, "torch.mm(head, block).relu_()", "torch.mm(head, block)"),
    Mutant("OPS-1", OPS, "order >= visible[:, None]", "order > visible[:, None]"),
    Mutant(
        "OPS-2",
        OPS,
        "equal &= equal.cumsum(1, dtype=torch.int32) <= room",
        "equal &= equal.flip(1).cumsum(1).flip(1) <= room",
    ),
    Mutant(
        "OPS-2",
        OPS,
        "scores = torch.cat((kept_scores, scores), dim=1)",
        "scores = torch.cat((kept_scores - 1, scores), dim=1)",
    ),
    Mutant("OPS-3", OPS, "ids[start:stop] = part.key_start + _best(", "ids[start:stop] = 0 + _best("),
    Mutant(
        "OPS-3", OPS, "torch.where(order < seen, order + part.key_start, -1)", "torch.where(order < seen, order, -1)"
    ),
    Mutant("OPS-4", OPS, "if stop < most else", "if stop > most else"),
    Mutant("OPS-5", OPS, "torch.full((query.shape[0], topk), -1,", "torch.full((query.shape[0], topk), 0,"),
    Mutant(
        "OPS-6",
        OPS,
        "    for start in range(0, most, SPAN):\n        stop = min(start + SPAN, most)\n",
        "    for start in (0,):\n        stop = most\n",
    ),
    Mutant("OPS-7", CONTRACT, "if len(devices) > 1:", "if len(devices) > 3:"),
    Mutant("OPS-7", OPS, "if len(columns) != len(scores) * topk:", "if len(columns) > len(scores) * topk:"),
    Mutant("OPS-7", CONTRACT, "part.query_stop > queries or part.key_stop", "part.key_stop"),
    Mutant("RANKS-1", RANKS, "return [answers[rank] for rank in range(self.size)]", "return [answers[0]] * self.size"),
    Mutant("RANKS-2", RANKS, "            self.close()  # a rank", "            pass  # a rank"),
    Mutant(
        "RANKS-3",
        RANKS,
        "raise failures[0].error if failures[0].error is not None else RankError(failures[0].text)",
        "raise RankError(failures[0].text)",
    ),
    Mutant("RANKS-3", RANKS, "        if failures:  # in the", "        if False:  # in the"),
]
