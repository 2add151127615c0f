"""What tests read off a plan."""


def worker_of_rows(plan):
    """Worker of every row, by its tasks; no row has none or two."""
    workers = [None] * plan.documents.total
    for rank in range(plan.size):
        for task in plan.worker_tasks(rank):
            for row in range(task.start, task.stop):
                assert workers[row] is None
                workers[row] = rank
    assert None not in workers
    return workers


def numbers(topology):
    """The sizes of a topology as the oracles take them."""
    return topology.cp_size, topology.tp_size, topology.sequence_parallel
