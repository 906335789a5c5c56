"""What a worker process counts about its work, in the memory that it shares with its supervisor.

Counters and histograms as cells of 64-bit floats, one block for each process (work/board.py makes room for it behind
the held entries). The child writes, the supervisor reads and keeps the sums of children that ended, so a kill loses
nothing that was counted, and whoever asks the supervisor sees one figure for all of its processes, ended ones included.
A cell is written by one process and 8 bytes wide: it is never read half.

All label values are closed sets that are known here, so a block has one size whatever is crawled; a word that is none
of them counts as `other`. A count costs well under a microsecond. It never blocks and holds no lock. Start at `Meters`;
docs/metrics.md says what each figure means, and ops/metrics.py shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import product
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from streamcrawl.errors import fetch_error_kinds
from streamcrawl.rules.concurrency import Change
from streamcrawl.rules.task import Kind, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FETCH: Final = "fetch"
BATCH: Final = "batch"
STAGE: Final = "stage"
"""What consumes items: an output."""
SUPERVISOR: Final = "supervisor"

OTHER: Final = "other"
ITEM: Final = "item"
"""The kind of a task behind the fetch stage."""
LEASE_LOST: Final = "lease_lost"
CELL_BYTES: Final = 8

_WEB_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a server in the same room to the default time limit of a fetch and its double."""
_WAIT_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LIFE_S: Final = (
    *(0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0),
    *(3600.0, 14_400.0, 86_400.0, 604_800.0),
)  # fmt: skip
"""A task waits for its host's turn: a moment for the first pages, days for the last ones of a large host."""
_SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

KINDS: Final = tuple(kind.value for kind in Kind)
CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", OTHER)
OUTCOMES: Final = (*(outcome.value for outcome in Outcome), LEASE_LOST)
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    FETCH: ("commit", "dispatch", "offer", "due", "start", "visit", "hand_back", "addresses", "cookies", OTHER),
    BATCH: ("sink_commit", "sink_open", "hand_back", OTHER),
    STAGE: ("stage_commit", "offer", "due", "hand_back", OTHER),
    SUPERVISOR: ("beat", "reclaim", "give_up", "finish", "put_back", "hand_back", "dispatch", "offer", OTHER),
}
"""The scripts that each role calls in its work."""


class Family(msgspec.Struct, frozen=True, eq=False):
    """One name with all of its label values."""

    name: str
    """Without the prefix of all."""
    type: Literal["counter", "histogram"]
    help: str
    roles: tuple[str, ...]
    """Which processes count it; the cells of others are there and stay 0."""
    labels: Mapping[str, tuple[str, ...]]
    bounds: tuple[float, ...] = ()
    """Upper ends of a histogram's buckets; a last one without an end follows."""
    rows: dict[tuple[str, ...], int] = msgspec.field(default_factory=dict)
    """Label values -> first cell: of a counter its only one, of a histogram its buckets and then the sum."""

    def row(self, values: tuple[str, ...]) -> int:
        """Return the first cell for these label values; a word that is not known counts as `other`.

        Raises:
            KeyError: it has no `other`.
        """
        found = self.rows.get(values)
        if found is None:
            known = zip(values, self.labels.values(), strict=True)
            found = self.rows[tuple(value if value in those else OTHER for value, those in known)]
        return found

    def values_for(self, role: str) -> Iterator[tuple[str, ...]]:
        """Yield the label values that a process of this role can have, in a fixed order."""
        of_role = {**self.labels, **({"command": COMMANDS[role]} if "command" in self.labels else {})}
        if "kind" in of_role:
            of_role["kind"] = KINDS if role == FETCH else (ITEM,)
        return product(*of_role.values())


_families: list[Family] = []
_cells = 0


def _family(
    name: str,
    help_: str,
    roles: Sequence[str],
    labels: Mapping[str, tuple[str, ...]] | None = None,
    *,
    bounds: tuple[float, ...] = (),
) -> Family:
    global _cells
    made = Family(name, "histogram" if bounds else "counter", help_, tuple(roles), labels or {}, bounds)
    for values in product(*made.labels.values()):
        made.rows[values] = _cells
        _cells += len(bounds) + 2 if bounds else 1
    _families.append(made)
    return made


_EVERY_COMMAND: Final = tuple(dict.fromkeys(command for own in COMMANDS.values() for command in own))
_ALL: Final = (FETCH, STAGE, BATCH, SUPERVISOR)

FETCH_SECONDS: Final = _family(
    "fetch_seconds",
    "One request, from its start to the last byte of its answer or to its failure",
    [FETCH],
    {"kind": KINDS},
    bounds=_WEB_S,
)
FETCH_RESPONSES: Final = _family(
    "fetch_responses",
    "Answers by class of their status, redirects included",
    [FETCH],
    {"kind": KINDS, "class": CLASSES},
)
FETCH_ERRORS: Final = _family(
    "fetch_errors",
    "Requests that brought no usable answer",
    [FETCH],
    {"kind": KINDS, "reason": (*fetch_error_kinds(), OTHER)},
)
BODY_BYTES: Final = _family("body_bytes", "Bytes of bodies, decoded", [FETCH], {"kind": KINDS})
HANDLER_SECONDS: Final = _family(
    "handler_seconds", "One call of the handler, or one batch of an output", [FETCH, STAGE, BATCH], bounds=_WEB_S
)
QUEUE_WAIT: Final = _family(
    "queue_wait_seconds", "From the dispatch of an entry until a worker read it", [FETCH, STAGE], bounds=_WAIT_S
)
TASK_LATENCY: Final = _family(
    "task_latency_seconds",
    "From the discovery of a task until it was done, or from the commit of an item until it was done or written",
    [FETCH, STAGE, BATCH],
    bounds=_LIFE_S,
)
COMMITS: Final = _family(
    "worker_commits",
    "Entries that these processes ended, by outcome",
    [FETCH, STAGE, BATCH],
    {"kind": (*KINDS, ITEM), "outcome": OUTCOMES},
)
BATCH_SIZE: Final = _family("commit_batch_size", "Entries in one commit", [FETCH, STAGE, BATCH], bounds=_SIZES)
COMMIT_WAIT: Final = _family(
    "commit_wait_seconds",
    "From the end of the work at an entry until its commit was answered",
    [FETCH, STAGE],
    bounds=_SHORT_S,
)
REDIS_SECONDS: Final = _family(
    "redis_command_seconds",
    "One call of a script, until its answer",
    _ALL,
    {"command": _EVERY_COMMAND},
    bounds=_SHORT_S,
)
SLOT_CHANGES: Final = _family(
    "slot_changes",
    "Times that a worker's number of slots changed, by why",
    [FETCH, STAGE],
    {"reason": tuple(change.value for change in Change)},
)
LOOP_LAG: Final = _family("loop_lag_seconds", "How late a timer of the event loop fired", _ALL, bounds=_SHORT_S)
CPU_SECONDS: Final = _family("worker_cpu_seconds", "CPU time of the processes, ended ones included", _ALL)

FAMILIES: Final = tuple(_families)
CELLS: Final = _cells
"""Size of a block."""


class Meters:
    """One block of cells."""

    def __init__(self, cells: memoryview[float] | None = None) -> None:
        """Take a block of CELLS cells; None for one that no other process sees."""
        self._cells: Final = memoryview(bytearray(CELLS * CELL_BYTES)).cast("d") if cells is None else cells

    def add(self, family: Family, amount: float, *labels: str) -> None:
        self._cells[family.row(labels)] += amount

    def put(self, family: Family, value: float, *labels: str) -> None:
        """Set a counter that somebody else counts; never backwards."""
        self._cells[family.row(labels)] = value

    def observe(self, family: Family, value: float, *labels: str) -> None:
        row, bounds = family.row(labels), family.bounds
        self._cells[row + bisect_left(bounds, value)] += 1.0
        self._cells[row + len(bounds) + 1] += value

    def count(self, family: Family, *labels: str) -> float:
        """Return a counter, or how often a histogram was given a value."""
        row = family.row(labels)
        return sum(self._cells[row : row + len(family.bounds) + 1])

    def total(self, family: Family, *labels: str) -> float:
        """Return the sum of what a histogram was given."""
        return self._cells[family.row(labels) + len(family.bounds) + 1]

    def worked(self) -> tuple[int, float]:
        """Return how many entries this process has ended, and for how many seconds its slots worked at them."""
        kinds = COMMITS.labels["kind"]
        ended = sum(self.count(COMMITS, kind, outcome.value) for kind in kinds for outcome in Outcome)
        return int(ended), self.total(HANDLER_SECONDS) + sum(self.total(FETCH_SECONDS, kind) for kind in KINDS)

    def read(self) -> list[float]:
        """Return the cells as they are now."""
        return list(self._cells)


def added(*blocks: Sequence[float]) -> list[float]:
    """Return blocks added up, cell by cell; an empty one counts as zeros."""
    return [sum(cells) for cells in zip([0.0] * CELLS, *filter(None, blocks), strict=True)]
