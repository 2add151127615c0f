"""Mutants of the rules of ``specs/exchange.md`` and ``specs/errors.md``."""

from tests.mutants.mutant import Mutant

FIELDS = "hpfun/_fields.py"
INTERVALS = "hpfun/intervals.py"
EXCHANGE = "hpfun/exchange.py"
ROWS = "hpfun/rows.py"
PACKING = "hpfun/packing.py"
SIMULATE = "hpfun/simulate.py"
SERIAL = "hpfun/serial.py"
ERRORS = "hpfun/errors.py"

MUTANTS = [
    Mutant(
        "VALUE-1",
        FIELDS,
        "(isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)))",
        "not isinstance(value, (int, np.integer))",
    ),
    Mutant("VALUE-1", FIELDS, "    number = int(value)\n", "    number = value\n"),
    Mutant(
        "VALUE-1", FIELDS, "if kind is int or issubclass(kind, np.integer)", "if issubclass(kind, (int, np.integer))"
    ),
    Mutant(
        "VALUE-2",
        FIELDS,
        "np.frombuffer(array.tobytes(), array.dtype)",
        "np.frombuffer(bytearray(array.tobytes()), array.dtype)",
    ),
    Mutant("VALUE-2", FIELDS, "    if array.ndim != 1:\n", "    if array.ndim > 2:\n"),
    Mutant("VALUE-2", FIELDS, "readonly(array.astype(np.int64))", "readonly(array)"),
    Mutant("VALUE-3", FIELDS, "made.__hash__ = _hash", "made.__hash__ = object.__hash__"),
    Mutant("VALUE-3", FIELDS, "    if type(self) is not type(other):\n        return NotImplemented\n", ""),
    Mutant("VALUE-4", FIELDS, "    made.__reduce__ = _reduce  # type: ignore[method-assign]\n", ""),
    Mutant("VALUE-5", FIELDS, "and type(values.base) is bytes", "and not values.flags.writeable"),
    Mutant(
        "VALUE-5",
        FIELDS,
        "        return np.frombuffer(array.tobytes(), array.dtype)",
        "        array.flags.writeable = False\n        return array",
    ),
    Mutant("INTERVAL-1", INTERVALS, "np.repeat(starts - (ends - counts), counts)", "np.repeat(starts - ends, counts)"),
    Mutant("INTERVAL-2", INTERVALS, "rows[1:] != rows[:-1] + 1", "rows[1:] < rows[:-1] + 1"),
    Mutant("INTERVAL-2", INTERVALS, "rows[lasts] + 1", "rows[lasts]"),
    Mutant("INTERVAL-3", INTERVALS, "- np.maximum(starts, low), 0)", "- np.maximum(starts, low), 1)"),
    Mutant(
        "INTERVAL-4",
        INTERVALS,
        "first, last = starts // local, (stops - 1) // local",
        "first, last = starts // local, stops // local",
    ),
    Mutant("INTERVAL-4", INTERVALS, "np.minimum(stops[which], highs)", "stops[which]"),
    Mutant("EXCHANGE-1", EXCHANGE, "if least < 0 or most >= extent:", "if least < 0 or most > extent:"),
    Mutant("EXCHANGE-1", EXCHANGE, "!= x.size or least < 0 or (", "!= x.size or ("),
    Mutant("EXCHANGE-1", EXCHANGE, " and int(splits.max()) <= INT64_MAX // len(splits):", ":"),
    Mutant("EXCHANGE-1", EXCHANGE, "    if sources != targets:\n", "    if False:\n"),
    Mutant(
        "EXCHANGE-2",
        SIMULATE,
        "place(target, slots, shards[source][rows])",
        "place(target, slots, shards[source][rows[::-1]])",
    ),
    Mutant("EXCHANGE-3", EXCHANGE, "        if times > 1:\n", "        if times > 2:\n"),
    Mutant(
        "EXCHANGE-3",
        EXCHANGE,
        "(_SOURCES, x.num_source_rows) if x.reduce else (_TARGETS, x.num_target_rows)",
        "(_SOURCES, x.num_source_rows)",
    ),
    Mutant(
        "EXCHANGE-4",
        EXCHANGE,
        "(_SOURCES, x.num_source_rows) if x.reduce else (_TARGETS, x.num_target_rows)",
        "(_TARGETS, x.num_target_rows)",
    ),
    Mutant(
        "EXCHANGE-4",
        SIMULATE,
        "place = np.add.at if own.reduce else np.ndarray.__setitem__",
        "place = np.ndarray.__setitem__",
    ),
    Mutant("EXCHANGE-5", EXCHANGE, "reduce=not exchange.reduce", "reduce=True"),
    Mutant(
        "EXCHANGE-5",
        EXCHANGE,
        "        input_splits=exchange.output_splits,\n",
        "        input_splits=exchange.input_splits,\n",
    ),
    Mutant("EXCHANGE-6", EXCHANGE, "if exchanges[0].required != bool(sent.any()):", "if False:"),
    Mutant("EXCHANGE-6", EXCHANGE, "and (sent or received):", "and sent:"),
    Mutant("EXCHANGE-6", EXCHANGE, "if getattr(exchange, name) != getattr(exchanges[0], name):", "if False:"),
    Mutant(
        "EXCHANGE-7",
        EXCHANGE,
        "self._listed(*names) == extent == self._distinct(*names)",
        "extent == self._distinct(*names)",
    ),
    Mutant(
        "EXCHANGE-7",
        EXCHANGE,
        "self._listed(*names) == extent == self._distinct(*names)",
        "self._listed(*names) == self._distinct(*names)",
    ),
    Mutant(
        "EXCHANGE-8",
        EXCHANGE,
        "self._distinct(*_TARGETS) if self.reduce else self._listed(*_TARGETS)",
        "self._listed(*_TARGETS)",
    ),
    Mutant("EXCHANGE-8", SIMULATE, "0 if own.reduce else fill", "0"),
    Mutant("EXCHANGE-8", SIMULATE, "0 if own.reduce else fill", "fill"),
    Mutant("EXCHANGE-9", SIMULATE, "    check_exchanges(exchanges)\n", ""),
    Mutant(
        "EXCHANGE-9",
        SIMULATE,
        "shard.shape[0] != exchange.num_source_rows",
        "shard.shape[0] < exchange.num_source_rows",
    ),
    Mutant(
        "EXCHANGE-9",
        SIMULATE,
        "for source, sender in enumerate(exchanges):",
        "for source, sender in reversed(list(enumerate(exchanges))):",
    ),
    Mutant("EXCHANGE-9", SIMULATE, "range(len(exchanges))]", "reversed(range(len(exchanges)))]"),
    Mutant(
        "EXCHANGE-10",
        EXCHANGE,
        "rows = np.stack([exchange.input_splits",
        "rows = np.stack([exchange.output_splits",
    ),
    Mutant(
        "EXCHANGE-10",
        EXCHANGE,
        "return int(exchange.input_splits.sum()) *",
        "return int(exchange.input_splits.max()) *",
    ),
    Mutant("EXCHANGE-11", EXCHANGE, "        raise PlanError(*found)\n", "        raise PlanError(found[0])\n"),
    Mutant(
        "EXCHANGE-11",
        EXCHANGE,
        "            raise PlanError(*violations)\n",
        "            raise PlanError(violations[0])\n",
    ),
    Mutant(
        "EXCHANGE-12",
        EXCHANGE,
        "(x.rank < len(splits) and splits[x.rank] != 0)",
        "(x.size > 1 and splits[x.rank] != 0)",
    ),
    Mutant("EXCHANGE-13", PACKING, 'for name in ("required", "reduce")}', 'for name in ("required",)}'),
    Mutant("EXCHANGE-13", PACKING, "or len(part) <= few for", "or len(part) < few for"),
    Mutant("ROWS-1", ROWS, "if start >= stop or start == ends[i]), None)", "if start >= stop), None)"),
    Mutant("ROWS-1", ROWS, "    wrong[1:] |= runs.starts[1:] == runs.stops[:-1]\n", ""),
    Mutant("ROWS-1", ROWS, "    if runs.count > INT64_MAX:\n", "    if False:\n"),
    Mutant("ROWS-2", ROWS, "return 0 < 2 * num_runs <= num_rows", "return 0 < num_runs <= num_rows"),
    Mutant(
        "ROWS-2", ROWS, "return values if _smaller(len(values.starts), len(values)) else values.rows", "return values"
    ),
    Mutant("ROWS-2", ROWS, "len(rows)) or int(rows.max()) == INT64_MAX:", "len(rows)):"),
    Mutant("ROWS-3", ROWS, "part.stops - (ends - at)", "part.stops - (ends - at - 1)"),
    Mutant("ROWS-3", ROWS, "apart = firsts[1:] != lasts[:-1]", "apart = firsts[1:] == firsts[1:]"),
    Mutant("ROWS-4", ROWS, "listed += (at - before) * (depth > 0)", "listed += (at - before) * depth"),
    Mutant("ROWS-4", ROWS, "if depth > most:", "if depth >= most:"),
    Mutant("ROWS-4", ROWS, "return len(found), int(times[most])", "return len(rows), int(times[most])"),
    Mutant("SERIAL-1", SERIAL, 'sort_keys=True, separators=(",", ":")', "sort_keys=True"),
    Mutant("SERIAL-1", SERIAL, "sort_keys=True, separators", "separators"),
    Mutant(
        "SERIAL-2",
        SERIAL,
        "        return value.tolist()\n",
        "        return value.astype(float).astype(int).tolist()\n",
    ),
    Mutant("SERIAL-3", SERIAL, "raise error.inside(where) from None", "raise"),
    Mutant("SERIAL-4", SERIAL, 'state.update(b"t%d:" % len(value))', 'state.update(b"t")'),
    Mutant("SERIAL-4", SERIAL, "for name in sorted(value, key=str):", "for name in set(value):"),
    Mutant("SERIAL-5", SERIAL, "type(version) is not int or version != SCHEMA", "version != SCHEMA"),
    Mutant("SERIAL-5", SERIAL, "    if got != expected:\n", "    if got < expected:\n"),
    Mutant("SERIAL-5", SERIAL, "    if len(found) != len(pairs):\n", "    if False:\n"),
    Mutant("ERROR-1", ERRORS, "return self.violations[0].facts", "return self.violations[-1].facts"),
    Mutant("ERROR-1", ERRORS, "MappingProxyType(dict(facts))", "facts"),
    Mutant("ERROR-2", ERRORS, 'f"; {self.suggestion}"', 'f"\\n{self.suggestion}"'),
    Mutant("ERROR-2", ERRORS, 'return f"[{self.code}]{place}', 'return f"{self.code}{place}'),
    Mutant("ERROR-3", ERRORS, "class PlanError(ValueError)", "class PlanError(Exception)"),
    Mutant("ERROR-4", ERRORS, 'f"{outer}.{v.where}" if v.where else outer', 'f"{outer}.{v.where}"'),
    Mutant("ERROR-4", ERRORS, "for v in self.violations))", "for v in self.violations[:1]))"),
    Mutant(
        "ERROR-5",
        ERRORS,
        "        return (PlanError, self.violations)\n",
        "        return (PlanError, self.violations[:1])\n",
    ),
    Mutant("ERROR-6", ERRORS, "violations.extend(error.violations)", "violations[:] = error.violations"),
    Mutant(
        "ERROR-6",
        ERRORS,
        "PlanError(*sorted(violations, key=lambda violation: violation.code))",
        "PlanError(*violations)",
    ),
    Mutant("ERROR-6", "hpfun/outcome.py", "attrs.evolve(first, others=tuple(others))", "first"),
]
