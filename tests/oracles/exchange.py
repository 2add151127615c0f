"""What an exchange does, row by row; shares no code with the package, reads only the fields of its values."""


def moves(exchanges):
    """Every single delivery as (source rank, source row, target rank, target slot), in no clever order."""
    found = []
    for receiver in exchanges:
        read = 0
        for source in range(receiver.size):
            for _ in range(int(receiver.output_splits[source])):
                slot = int(receiver.receive_rows[read])
                read += 1
                found.append((source, None, receiver.rank, slot))
    for sender in exchanges:
        read = 0
        for target in range(sender.size):
            waiting = [at for at, m in enumerate(found) if m[0] == sender.rank and m[2] == target and m[1] is None]
            for nth in range(int(sender.input_splits[target])):
                _, _, rank, slot = found[waiting[nth]]
                found[waiting[nth]] = (sender.rank, int(sender.send_rows[read]), rank, slot)
                read += 1
    for own in exchanges:
        for at in range(len(own.local_sources)):
            found.append((own.rank, int(own.local_sources[at]), own.rank, int(own.local_targets[at])))
    return found


def deliver(exchanges, shards, fill=0):
    """Targets of all ranks as nested lists, from shards given as nested lists of one number a row."""
    reducing = exchanges[0].reduce
    slots = {}
    for own in exchanges:
        for slot in range(own.num_target_rows):
            slots[own.rank, slot] = 0 if reducing else fill
    for source, row, target, slot in moves(exchanges):
        if reducing:
            slots[target, slot] += shards[source][row]
        else:
            slots[target, slot] = shards[source][row]
    return [[slots[own.rank, slot] for slot in range(own.num_target_rows)] for own in exchanges]


def untouched(exchange):
    """Slots of one rank that nothing reaches."""
    reached = {}
    for slot in exchange.receive_rows.tolist() + exchange.local_targets.tolist():
        reached[slot] = True
    return [slot for slot in range(exchange.num_target_rows) if slot not in reached]
