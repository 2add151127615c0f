"""In which order a layer computes, launches its transfers and waits for them: one order for all ranks, as a value.

Transfers of one group run in the order of their launches, so ranks that launch in different orders wait for each other
for ever, and a transfer that is launched early is done before one that is launched late. Rules ATTN-10 to ATTN-13 of
``specs/attention.md``.
"""

from collections.abc import Iterable

from hpfun._fields import choice_field, content_digest, kind_field, named_plan_value, names_field, plan_value
from hpfun.errors import Violation, refusal, refuse_all

KINDS = ("window", "dense", "reuse", "select")
COMPUTATIONS = (
    "residual",
    "compression_inputs",
    "compression",
    "attention_projections",
    "worker_projection",
    "select",
    "attention",
)
TRANSFERS = ("halo", "inputs", "index_keys", "keys", "window", "result")
_CODE = "HP-ATTN-005"


@named_plan_value
class OverlapOptions:
    """What a layer does and how its transfers overlap with that.

    ``kind``: ``window`` (no keys), ``dense`` (all visible keys), ``select`` (chooses keys) or ``reuse`` (takes the
    choice of an earlier layer). ``window``: attends to a window of rows. ``own_keys``: makes the keys that it reads.
    ``halo``: making them takes rows of other ranks. ``balanced``: query rows are scored by other ranks. ``overlapped``:
    transfers are waited for as late as possible. ``indexer_priority``: banks are launched behind the indexer's
    transfers, for which the choice waits. What does not fit together is HP-ATTN-005, all at once.

    >>> OverlapOptions(kind="select", balanced=True).overlapped
    False
    """

    kind: str = choice_field(KINDS, _CODE)
    window: bool = kind_field(bool, _CODE, default=True)
    own_keys: bool = kind_field(bool, _CODE, default=True)
    halo: bool = kind_field(bool, _CODE, default=True)
    balanced: bool = kind_field(bool, _CODE, default=False)
    overlapped: bool = kind_field(bool, _CODE, default=False)
    indexer_priority: bool = kind_field(bool, _CODE, default=False)

    digest = content_digest

    def __attrs_post_init__(self):
        wrong = (
            ("balanced", self.balanced and self.kind != "select", "only a layer that selects has rows to share out"),
            ("indexer_priority", self.indexer_priority and not self.overlapped, "nothing overlaps"),
            ("window", self.kind == "window" and not self.window, "this layer would attend to nothing"),
        )
        facts = {"kind": self.kind, "overlapped": self.overlapped}
        refuse_all(
            Violation(_CODE, name, message, facts, f"set {name} otherwise") for name, bad, message in wrong if bad
        )


@plan_value
class OverlapSchedule:
    """The events of a layer in order: ``compute x``, ``launch x``, ``wait x``; made by ``overlap_schedule``.

    Every transfer is launched once and waited for once, later; anything else is HP-ATTN-006, all violations at once.
    """

    events: tuple[str, ...] = names_field("HP-ATTN-006")

    digest = content_digest

    def __attrs_post_init__(self):
        refuse_all(_disorder(self.events))

    @property
    def launches(self) -> tuple[str, ...]:
        """Transfers in the order in which they are launched."""
        return tuple(name for action, name in self.steps if action == "launch")

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Events as pairs of action and name."""
        return tuple((action, name) for action, _, name in (event.partition(" ") for event in self.events))

    def under_way(self, event: str) -> tuple[str, ...]:
        """Transfers that have been launched and not waited for when an event begins, in launch order.

        >>> overlap_schedule(OverlapOptions(kind="window", overlapped=True)).under_way("wait window")
        ('window',)
        """
        if event not in self.events:
            raise refusal(_CODE, "event", f"{event!r:.60} is not in the schedule", event=event, events=self.events)
        before = self.steps[: self.events.index(event)]
        return tuple(name for action, name in before if action == "launch" and ("wait", name) not in before)


def overlap_schedule(options: OverlapOptions) -> OverlapSchedule:
    """The schedule of a layer, the same on every rank.

    Without overlap each transfer is waited for where it is launched. Raises HP-ATTN-005.

    >>> overlap_schedule(OverlapOptions(kind="window")).events
    ('compute attention_projections', 'launch window', 'wait window', 'compute attention')
    """
    if not isinstance(options, OverlapOptions):
        kind = type(options).__name__
        raise refusal(_CODE, "options", f"needs OverlapOptions, got {kind}", type=kind)
    events = list(_overlapped(options))
    if options.overlapped:
        return OverlapSchedule(tuple(events))
    plain = []
    for event in events:
        action, _, name = event.partition(" ")
        if action != "wait":
            plain.append(event)
        if action == "launch":
            plain.append(f"wait {name}")
    return OverlapSchedule(tuple(plain))


def check_schedules(schedules: Iterable[OverlapSchedule]) -> None:
    """HP-ATTN-006 unless the schedules of all ranks launch the same transfers in one order.

    >>> check_schedules([overlap_schedule(OverlapOptions(kind="dense"))] * 4)
    """
    given = list(schedules)
    for rank, schedule in enumerate(given):
        if not isinstance(schedule, OverlapSchedule):
            kind = type(schedule).__name__
            message = f"needs an OverlapSchedule, got {kind}"
            raise refusal("HP-ATTN-006", f"schedules[{rank}]", message, rank=rank, type=kind)
    orders = [schedule.launches for schedule in given]
    odd = tuple(rank for rank, order in enumerate(orders) if order != orders[0])
    if odd:
        facts = {"ranks": odd, "launches": orders[odd[0]], "expected": orders[0]}
        message = f"ranks {odd} launch in another order than rank 0"
        raise refusal("HP-ATTN-006", "schedules", message, "make one schedule for all ranks", **facts)


def _overlapped(options: OverlapOptions) -> Iterable[str]:
    """Every transfer as early as its rows exist, every wait at its reader.

    With priority the banks are launched when the indexer's transfers are done, and travel behind the choice.
    """
    selects, keys = options.kind == "select", options.kind != "window"
    makes = keys and options.own_keys
    banks = (["keys"] if makes else []) + (["window"] if options.window else [])
    late = banks if options.indexer_priority and selects else []
    project = ["compute attention_projections", *(["launch window"] if options.window and not late else [])]
    if makes:
        yield "compute compression_inputs"
        yield from ["launch halo"] if options.halo else []
    if selects:
        yield "compute residual"
        yield from ["launch inputs"] if options.balanced else []
    else:
        yield from project
    if makes:
        yield from ["wait halo"] if options.halo else []
        yield "compute compression"
        yield from ["launch index_keys"] if selects else []
        yield from [] if late else ["launch keys"]
    if selects:
        yield from project
        yield from ("wait inputs", "compute worker_projection") if options.balanced else ()
        yield from ["wait index_keys"] if makes else []
        yield from (f"launch {bank}" for bank in late)
        yield "compute select"
        yield from ["launch result"] if options.balanced else []
    yield from (f"wait {bank}" for bank in banks)
    yield from ["wait result"] if options.balanced else []
    yield "compute attention"


def _disorder(events: tuple[str, ...]) -> Iterable[Violation]:
    """What a list of events breaks."""
    known = {f"compute {name}" for name in COMPUTATIONS}
    known |= {f"{action} {name}" for action in ("launch", "wait") for name in TRANSFERS}
    for at, event in enumerate(events):
        facts = {"event": event, "index": at}
        if event not in known:
            yield Violation("HP-ATTN-006", f"events[{at}]", f"{event!r:.60} is no event", facts)
        elif event in events[:at]:
            yield Violation("HP-ATTN-006", f"events[{at}]", f"{event} comes twice", facts)
    for name in TRANSFERS:
        launched, waited = f"launch {name}", f"wait {name}"
        at = events.index(launched) if launched in events else None
        to = events.index(waited) if waited in events else None
        facts = {"transfer": name, "launch": at, "wait": to}
        if (at is None) != (to is None):
            message = f"{name} is {'waited for and never launched' if at is None else 'launched and never waited for'}"
            yield Violation("HP-ATTN-006", "events", message, facts, "launch and wait once each")
        elif at is not None and to is not None and to < at:
            yield Violation("HP-ATTN-006", "events", f"{name} is waited for before its launch", facts, "wait later")
