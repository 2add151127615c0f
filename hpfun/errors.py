"""Coded errors: every refusal names the rule, the place, the numbers and the way out.

A ``PlanError`` carries one or more violations; its own ``code``, ``where``, ``facts`` and
``suggestion`` are those of the first. ``CODES`` is the whole list, one rule a line; rules
ERROR-1 to ERROR-5 of ``specs/errors.md`` say how the parts behave.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import attrs

T = TypeVar("T")

CODES: Mapping[str, str] = MappingProxyType(
    {
        "HP-DOC-001": "document lengths are a non-empty sequence of positive integers",
        "HP-DOC-002": "cu_seq_lens starts at 0 and strictly increases",
        "HP-DOC-003": "the pack divides into equal shards",
        "HP-EXCHANGE-001": "sizes, ranks and row counts of an exchange are integers in range",
        "HP-EXCHANGE-002": "splits have one entry per rank, none negative, 0 for the own rank",
        "HP-EXCHANGE-003": "row lists are as long as their splits and their partner list",
        "HP-EXCHANGE-004": "rows lie inside the source shard and inside the target",
        "HP-EXCHANGE-005": "a placing exchange writes no slot twice, a reducing one reads no row twice",
        "HP-EXCHANGE-006": "an exchange that is not required moves nothing between ranks",
        "HP-EXCHANGE-007": "the exchanges of one group agree with one another",
        "HP-EXCHANGE-008": "a tensor has the rows that the exchange says, along a dimension that it has",
        "HP-EXCHANGE-009": "the process group is the one that the exchange was planned for",
        "HP-ROUTE-001": "lengths, sizes and windows of a route are positive integers",
        "HP-ROUTE-002": "a rank of a route lies inside its group",
        "HP-ROUTE-003": "boundaries are integers that start at 0",
        "HP-ROUTE-004": "boundaries strictly increase",
        "HP-ROUTE-005": "boundaries end where the shards end",
        "HP-ROUTE-006": "a tensor has as many rows as the route says",
        "HP-ROUTE-007": "a tensor has the dimension along which its rows move",
        "HP-ROUTE-008": "the parts of a bank plan or a route fit together",
        "HP-COMPRESS-001": "a ratio is a positive integer",
        "HP-COMPRESS-002": "overlap is a bool",
        "HP-COMPRESS-003": "rotary tables reach as far as the blocks",
        "HP-COMPRESS-004": "the parts of a compression plan fit together",
        "HP-INDEX-001": "document lengths are a non-empty sequence of positive integers",
        "HP-INDEX-002": "size and ratio are positive integers, and size divides the tokens",
        "HP-INDEX-003": "the balance mode is one of none, zigzag, greedy, hybrid, locality",
        "HP-INDEX-004": "a block size belongs to greedy or hybrid and is 1 to the rows of a shard",
        "HP-INDEX-005": "hybrid, and hybrid alone, has a positive zigzag_min_length",
        "HP-INDEX-006": "all rows fit into the row capacity of the workers",
        "HP-INDEX-007": "a rank lies inside its group",
        "HP-INDEX-008": "tensors of the indexer have the planned shapes, dtypes and one device",
        "HP-INDEX-009": "every work total fits into a signed 64-bit integer",
        "HP-INDEX-010": "the tasks of a plan cut the pack into stretches of one document each",
        "HP-INDEX-011": "an option is an integer in range and belongs to the mode",
        "HP-RECOMPUTE-001": "layers are selected in exactly one way",
        "HP-RECOMPUTE-002": "a layer count is an integer from 0 to the layers of the model",
        "HP-RECOMPUTE-003": "layer indices are integers in range, none twice",
        "HP-RECOMPUTE-005": "a model has repeated layers to count",
        "HP-RECOMPUTE-007": "patterns of regions match modules, and leave a region where layers are selected",
        "HP-RECOMPUTE-008": "patterns of exclusions match modules inside regions",
        "HP-RECOMPUTE-009": "an exclusion is no region",
        "HP-RECOMPUTE-010": "an exclusion contains no region",
        "HP-RECOMPUTE-012": "the parts of a recompute plan fit together, and a module has one name",
        "HP-RECOMPUTE-013": "a module is wrapped in one way at a time",
        "HP-RECOMPUTE-014": "a region has a parent inside the model",
        "HP-RECOMPUTE-017": "a plan, its modules and its hook are those of the model it is applied to",
        "HP-RECOMPUTE-018": "a compiled function encloses no exclusion",
        "HP-RECOMPUTE-030": "what an exclusion gave is not changed in place",
        "HP-RECOMPUTE-031": "an output that was not kept is not read in a replay",
        "HP-RECOMPUTE-032": "a replay reaches the exclusions that its forward recorded",
        "HP-RECOMPUTE-033": "a replay that is verified makes as many excluded calls as its forward",
        "HP-RECOMPUTE-034": "a region takes no gradient through its exclusions",
        "HP-RECOMPUTE-035": "all ranks hold the same recompute plan",
        "HP-RECOMPUTE-036": "outputs of an exclusion with gradients are tensors in known containers",
        "HP-RECOMPUTE-037": "state is published before it is read, and released when nobody can read it again",
        "HP-RECOMPUTE-038": "sizes of regions and budgets are integers in range",
        "HP-RECOMPUTE-039": "a byte budget can be reached",
        "HP-STATE-001": "a handle is waited once",
        "HP-STATE-002": "an entry of shared state is published once in a forward",
        "HP-STATE-003": "shared state is read between its publication and its release",
        "HP-SERIAL-001": "text to be read is JSON of a known schema version",
        "HP-SERIAL-002": "a stored value has a known type and exactly its fields",
        "HP-AGREE-001": "all ranks hold the same plan",
        "HP-AGREE-002": "no rank failed with an unexpected exception",
        "HP-AGREE-003": "all ranks pass tensors of one dtype and of the planned shapes",
        "HP-RANKS-001": "every rank of a local pool answers in time",
        "HP-RANKS-002": "ranks give what one process gives",
        "HP-ATTN-001": "a way to select is one that balanced and overlapped selection know",
        "HP-ATTN-002": "the parts of an attention plan fit together",
        "HP-ATTN-003": "every layer that reads keys or a choice has a source of its ratio",
        "HP-ATTN-004": "candidate blocks lie in the keys that their rows may see",
        "HP-ATTN-005": "options of overlap fit together",
        "HP-ATTN-006": "every transfer is launched once and waited for once, in one order on all ranks",
        "HP-HF-001": "a model is one that context parallelism knows",
        "HP-HF-002": "a model's attention can be split over ranks",
        "HP-HF-003": "a model under context parallelism is called with a rank's part of one pack",
        "HP-HF-004": "context parallelism is on where it is used, and put on once",
        "HP-SHARD-002": "tensor parallelism divides the heads",
        "HP-SHARD-003": "tensor parallelism divides the key/value heads, or multiplies those that are replicated",
        "HP-SHARD-004": "tensor parallelism divides the widths that it cuts",
        "HP-SHARD-005": "expert parallelism has experts, and divides them",
        "HP-SHARD-006": "expert parallelism divides the ranks that hold the dense part of a model",
        "HP-SHARD-007": "a mesh has the axes that are asked for, in their sizes",
        "HP-SHARD-008": "a fixed sequence length divides over its ranks",
        "HP-SHARD-009": "sizes, degrees, flags and names of a request are legal by themselves",
        "HP-SHARD-039": "a model's attention runs the layout of context parallelism",
        "HP-OPS-001": "operator inputs have the shapes, dtypes and device of the contract",
        "HP-OPS-002": "inputs are within the limits of the device's operator",
        "HP-OPS-003": "index scores are numbers, not NaN",
        "HP-OPS-004": "a tensor's device has a backend, with what it needs installed",
        "HP-OPS-005": "a gradient of attention is taken once",
        "HP-BATCH-001": "the topology and alignment of a batch are ints in range that fit together",
        "HP-BATCH-002": "document boundaries of a batch cover its tokens and never fall",
        "HP-BATCH-003": "every per-token field of a batch has a row for each of its tokens",
        "HP-BATCH-004": "a layout of a batch is one of those known",
        "HP-BATCH-006": "a batch is not cut inside an image or frame",
        "HP-BATCH-007": "a batch, its views and all ranks share one plan",
        "HP-BATCH-008": "labels are shifted once, before a batch is cut",
        "HP-BATCH-009": "several ranks share a batch through an initialised process group",
        "HP-BATCH-010": "the first tensor-parallel rank has the batch, and no other has",
        "HP-BATCH-011": "the parts of a batch that travels are tensors and plain values",
        "HP-BATCH-012": "counts of labels are ints of at least 0, one for each rank",
        "HP-BATCH-013": "a padded batch fits into its capacity",
        "HP-BATCH-014": "a token mask covers a rank's hidden states, or those of all its tensor-parallel ranks",
        "HP-ENCODER-004": "a decoder rank, its shard and its tensors are those of the layout",
        "HP-DATA-001": "inputs made at run time have names of their own and one owner",
        "HP-INPUT-001": "an input file can be read and holds numbers",
        "HP-INPUT-002": "an input of lengths or cu_seq_lens is in a known form",
        "HP-INPUT-003": "a named workload or total can be built",
    }
)


@attrs.frozen
class Violation:
    """One broken rule: its code, the place, one line of prose, the numbers, the way out."""

    code: str
    where: str
    message: str = attrs.field(converter=lambda text: " ".join(str(text).splitlines()))
    facts: Mapping[str, object] = attrs.field(factory=dict, converter=lambda facts: MappingProxyType(dict(facts)))
    suggestion: str = ""

    def line(self) -> str:
        """The violation in one line, as a user reads it."""
        place = f" at `{self.where}`" if self.where else ""
        advice = f"; {self.suggestion}" if self.suggestion else ""
        return f"[{self.code}]{place}: {self.message}{advice}"

    def __reduce__(self):  # a mapping proxy does not pickle
        return (Violation, (self.code, self.where, self.message, dict(self.facts), self.suggestion))


class PlanError(ValueError):
    """A rule was broken by an input; compare ``code`` and ``facts``, never the prose.

    >>> error = refusal("HP-INDEX-007", "rank", "rank 9 is outside a group of 8", rank=9, size=8)
    >>> error.code, error.where, error.facts["size"], len(error.violations)
    ('HP-INDEX-007', 'rank', 8, 1)
    >>> error.inside("route").where
    'route.rank'
    """

    def __init__(self, *violations: Violation):
        if not violations:
            raise TypeError("PlanError needs at least one Violation")
        super().__init__("\n".join(violation.line() for violation in violations))
        self.violations = violations

    @property
    def code(self) -> str:
        """Code of the first violation."""
        return self.violations[0].code

    @property
    def where(self) -> str:
        """Argument or path of the first violation."""
        return self.violations[0].where

    @property
    def facts(self) -> Mapping[str, object]:
        """Numbers of the first violation."""
        return self.violations[0].facts

    @property
    def suggestion(self) -> str:
        """Way out of the first violation."""
        return self.violations[0].suggestion

    def inside(self, outer: str) -> "PlanError":
        """The same error as seen from one layer further out: ``where`` gets a prefix."""
        return PlanError(*(attrs.evolve(v, where=f"{outer}.{v.where}" if v.where else outer) for v in self.violations))

    def __reduce__(self):
        return (PlanError, self.violations)


def refusal(code: str, where: str, message: str, suggestion: str = "", **facts: object) -> PlanError:
    """A ``PlanError`` of one violation, to be raised by the caller."""
    return PlanError(Violation(code, where, message, facts, suggestion))


def in_order(violations: Iterable[Violation]) -> PlanError:
    """One error of all violations, in the order of their codes."""
    return PlanError(*sorted(violations, key=lambda violation: violation.code))


def refuse_all(violations: Iterable[Violation]) -> None:
    """Raise one ``PlanError`` of all violations; nothing if there are none."""
    found = tuple(violations)
    if found:
        raise in_order(found)


def collect(violations: list[Violation], function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
    """What ``function`` gives; if it refuses, None, and its violations join the list."""
    try:
        return function(*args, **kwargs)
    except PlanError as error:
        violations.extend(error.violations)
        return None
