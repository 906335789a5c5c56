"""Recounts a crawl from its structures, live or at rest, and names every figure that does not fit.

Invariant 1 (conservation) and the lengths of all structures come from one answer of audit.lua, so they are of one
instant. Hosts are recounted in chunks, each of one instant; sums over several chunks are compared only when nothing
moved in between. It changes nothing. Start at `audit`; a fault is one line with both figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamcrawl.rules.task import Kind
from streamcrawl.store.connection import NoGroup, mapped_errors
from streamcrawl.store.frontier import FETCH_STREAM, sink_stream
from streamcrawl.store.keys import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamcrawl.store.frontier import Frontier

HOSTS_PER_CALL: Final = 500
"""The most that audit.lua takes."""
ENTRIES_MAX: Final = 20_000
"""Entries of the fetch stream that audit.lua looks at; dispatch keeps it at twice the live slots."""
FAULTS_MAX: Final = 1000
"""A crawl with more faults than this is not understood better by more lines."""
_STATES: Final = ("queued", "streamed", "delayed", "dead", "done", "dropped")
_LOOKS_MAX: Final = 5
"""How often sums over all hosts are taken again when the crawl moved meanwhile."""
_KEYS_PER_CALL: Final = 500


@dataclass(slots=True)
class AuditReport:
    """What was compared, and what does not fit."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be compared, and why."""
    totals: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """Lines of the counts: page, robots and each sink."""
    hosts: int = 0
    keys: int = 0

    @property
    def is_sound(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "faults": self.faults,
            "notes": self.notes,
            "hosts": self.hosts,
            "keys": self.keys,
            "totals": dict(sorted(self.totals.items())),
        }

    def fault(self, line: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(line)
        elif len(self.faults) == FAULTS_MAX:
            self.faults.append(f"more than {FAULTS_MAX} faults; the rest is not listed")


class _HostRow(NamedTuple):
    """One host as audit.lua recounts it."""

    host: str
    queued: int
    queued_found: int
    in_flight: int
    in_flight_found: int
    is_scheduled: int
    should_be: int


@dataclass(frozen=True, slots=True)
class _Look:
    """One answer of audit.lua."""

    totals: dict[str, int]
    streams: dict[str, tuple[int, int]]
    """Name: length, pending; pending -1 when the group is missing."""
    delayed: int
    dead: int
    hosts: list[_HostRow]
    stream_hosts: list[str]
    entries: dict[str, int]
    """Entries of the fetch stream by line."""


async def audit(frontier: Frontier) -> AuditReport:
    """Recount everything.

    Raises:
        StoreUnavailable, CrawlGone: as every call of the frontier.
    """
    report = AuditReport()
    looks = await _look_at_all(frontier, report)
    _check_totals(looks[0], report)
    caps = await _caps(frontier, [row for look in looks for row in look.hosts])
    known: set[str] = set()
    for look in looks:
        known.update(row.host for row in look.hosts)
        _check_hosts(look.hosts, caps, report)
    report.hosts = len(known)
    strays = sorted({host for look in looks for host in look.stream_hosts} - known)
    for start in range(0, len(strays), HOSTS_PER_CALL):
        # Hosts that came after the scan are sound here; one that has entries and no hash is not.
        _check_hosts((await _look(frontier, strays[start : start + HOSTS_PER_CALL])).hosts, caps, report)
    await _check_stuck(frontier, looks, report)
    await _check_groups(frontier, looks[0].streams, report)
    await _check_keys(frontier, report)
    return report


async def _look(frontier: Frontier, hosts: Sequence[str]) -> _Look:
    _, totals, streams, delayed, dead, of_host, stream_hosts, entries = await frontier.audit_chunk(hosts)
    width = len(_HostRow._fields)
    return _Look(
        totals={name.decode(): int(value) for name, value in _pairs(totals)},
        streams={streams[i].decode(): (int(streams[i + 1]), int(streams[i + 2])) for i in range(0, len(streams), 3)},
        delayed=int(delayed),
        dead=int(dead),
        hosts=[
            _HostRow(of_host[i].decode(), *(int(value) for value in of_host[i + 1 : i + width]))
            for i in range(0, len(of_host), width)
        ],
        stream_hosts=[host.decode() for host in stream_hosts],
        entries={line.decode(): int(count) for line, count in _pairs(entries)},
    )


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


async def _look_at_all(frontier: Frontier, report: AuditReport) -> list[_Look]:
    """Look at every host, and compare their sum with the totals.

    A sum that does not fit is a fault only when the next scan finds no host more (one that came between a scan and its
    script is missing in the sum), and the totals did not move between the first chunk and the last.
    """
    known: set[str] = set()
    suspect: tuple[int, int] | None = None
    for _ in range(_LOOKS_MAX):
        looks = []
        before = len(known)
        async for hosts in frontier.host_chunks(HOSTS_PER_CALL):
            known.update(hosts)
            looks.append(await _look(frontier, hosts))
        if not looks:
            looks.append(await _look(frontier, []))
        first, last = looks[0], looks[-1]
        report.totals = first.totals
        found = sum(row.queued_found for look in looks for row in look.hosts)
        counted = sum(first.totals.get(f"{kind}.queued", 0) for kind in Kind)
        if found == counted:
            return looks
        if suspect is not None and len(known) == before:
            report.fault(f"queued tasks of all hosts: counted {suspect[0]}, found {suspect[1]} in the queues")
            return looks
        suspect = (counted, found) if first.totals == last.totals else None
    report.notes.append("queued tasks of all hosts: not compared with the totals, the crawl moved all the time")
    return looks


def _check_totals(look: _Look, report: AuditReport) -> None:
    totals = look.totals

    def total(name: str) -> int:
        return totals.get(name, 0)

    sinks = [name.removeprefix(f"{FETCH_STREAM}:") for name in look.streams if name != FETCH_STREAM]
    report.lines = [*Kind, *sinks]
    for line in report.lines:
        places = {state: total(f"{line}.{state}") for state in _STATES}
        if total(f"{line}.created") != sum(places.values()):
            where = " + ".join(f"{count} {state}" for state, count in places.items() if count) or "0"
            report.fault(f"{line}: created {total(f'{line}.created')}, accounted for {sum(places.values())} = {where}")
        for state in ("dead", "dropped"):
            by_reason = sum(count for name, count in totals.items() if name.startswith(f"{line}.{state}."))
            if by_reason != places[state]:
                report.fault(f"{line}: {state} {places[state]}, by reason {by_reason}")
    for name, count in totals.items():
        if count < 0:
            report.fault(f"totals: {name} is {count}, below zero")

    length, _ = look.streams[FETCH_STREAM]
    streamed = sum(total(f"{kind}.streamed") for kind in Kind)
    if length != streamed:
        report.fault(f"{FETCH_STREAM}: counted {streamed}, found {length} entries")
    if length > ENTRIES_MAX:
        report.notes.append(f"{FETCH_STREAM}: {length} entries, of which only {ENTRIES_MAX} were looked at")
    else:
        for line in sorted({*Kind, *look.entries}):
            counted, found = total(f"{line}.streamed"), look.entries.get(line, 0)
            if counted != found:
                report.fault(f"{FETCH_STREAM}: {line} counted {counted}, found {found} entries")
    for sink in sinks:
        length, _ = look.streams[sink_stream(sink)]
        if length != total(f"{sink}.streamed"):
            report.fault(f"{sink_stream(sink)}: counted {total(f'{sink}.streamed')}, found {length} entries")
    for state, found in (("delayed", look.delayed), ("dead", look.dead)):
        counted = sum(total(f"{kind}.{state}") for kind in Kind)
        if counted != found:
            report.fault(f"{state}: counted {counted}, found {found}")


async def _caps(frontier: Frontier, rows: Sequence[_HostRow]) -> Mapping[str, int]:
    """Return the caps of the hosts that have more than the crawl's default in flight, and the default under ''."""
    with mapped_errors():
        default = await _number(frontier, frontier.keys.state, "cap") or 1
        caps = {"": default}
        for row in rows:
            if row.in_flight_found > default:
                caps[row.host] = await _number(frontier, frontier.keys.host(row.host), "cap") or default
    return caps


async def _number(frontier: Frontier, key: str, field: str) -> int:
    value: Any = await frontier.client.hget(key, field)
    return int(value or 0)


def _check_hosts(rows: Sequence[_HostRow], caps: Mapping[str, int], report: AuditReport) -> None:
    for row in rows:
        if row.queued != row.queued_found:
            report.fault(f"{row.host}: queued counted {row.queued}, found {row.queued_found} in its queues")
        if row.in_flight != row.in_flight_found:
            report.fault(f"{row.host}: in_flight counted {row.in_flight}, found {row.in_flight_found} entries")
        for name, count in (("queued", row.queued), ("in_flight", row.in_flight)):
            if count < 0:
                report.fault(f"{row.host}: {name} is {count}, below zero")
        cap = caps.get(row.host, caps[""])
        if row.in_flight_found > cap:
            report.fault(f"{row.host}: in_flight {row.in_flight_found} is over its cap {cap} (unless just lowered)")
        if row.is_scheduled != row.should_be:
            words = ("not in the schedule", "in the schedule")
            report.fault(f"{row.host}: {words[row.is_scheduled]}, should be {words[row.should_be]}")


async def _check_groups(frontier: Frontier, streams: Mapping[str, tuple[int, int]], report: AuditReport) -> None:
    """Every pending row must have its entry: a row without one is renewed by nobody and never ends."""
    for name, (_, pending) in streams.items():
        if pending < 0:
            report.fault(f"{name}: its consumer group is missing")
            continue
        for entry_id in await _orphans(frontier, name):
            report.fault(f"{name}: {entry_id} is pending and has no entry")


async def _orphans(frontier: Frontier, stream: str) -> list[str]:
    client, key = frontier.client, frontier.keys.prefix + stream
    orphans = []
    start = "-"
    try:
        with mapped_errors():
            while rows := await client.xpending_range(key, GROUP, start, "+", _KEYS_PER_CALL):
                ids: list[Any] = [row["message_id"] for row in rows]
                entries: Any = await client.xrange(key, ids[0], ids[-1])
                missing = set(ids) - {entry_id for entry_id, _ in entries}
                for entry_id in sorted(missing):
                    # Asked again: the entry may have been finished between the two questions, and its row with it.
                    if await client.xpending_range(key, GROUP, entry_id, entry_id, 1):
                        orphans.append(entry_id.decode())  # noqa: PERF401  (awaits)
                start = f"({ids[-1].decode()}"
    except NoGroup:
        return []  # deleted under our hands: the next audit names it
    return orphans


async def _check_stuck(frontier: Frontier, looks: Sequence[_Look], report: AuditReport) -> None:
    """A host with tasks that nothing will ever move: the crawl would not end, and nothing would say why."""
    idle = [
        row.host
        for look in looks
        for row in look.hosts
        if row.queued_found and not (row.in_flight_found or row.is_scheduled or row.should_be)
    ]
    for start in range(0, len(idle), HOSTS_PER_CALL):
        hosts = idle[start : start + HOSTS_PER_CALL]
        async with frontier.client.pipeline(transaction=False) as pipe:
            for host in hosts:
                pipe.hmget(frontier.keys.host(host), "given_up", "robots")
                pipe.zscore(frontier.keys.giving_up, host)
            with mapped_errors():
                answers = await pipe.execute()
        again = await _look(frontier, hosts)
        is_robots_delayed = again.totals.get(f"{Kind.ROBOTS}.delayed", 0) > 0
        for row, (given_up, robots), emptied in zip(again.hosts, answers[::2], answers[1::2], strict=True):
            if not row.queued_found or row.in_flight_found or row.is_scheduled or row.should_be:
                continue
            if given_up and emptied is None:
                report.fault(f"{row.host}: given up with {row.queued_found} tasks queued, and not in giving_up")
            elif not given_up and robots == b"asked" and not is_robots_delayed:
                report.fault(f"{row.host}: {row.queued_found} tasks wait for its robots.txt, which nobody fetches")


async def _check_keys(frontier: Frontier, report: AuditReport) -> None:
    """Every key must be one that keys.py knows, of its type, and with a TTL exactly when it is not permanent."""
    batch: list[bytes] = []
    with mapped_errors():
        async for key in frontier.client.scan_iter(match=frontier.keys.pattern, count=1000):
            batch.append(key)
            if len(batch) == _KEYS_PER_CALL:
                await _check_key_batch(frontier, batch, report)
                batch.clear()
        await _check_key_batch(frontier, batch, report)


async def _check_key_batch(frontier: Frontier, batch: Sequence[bytes], report: AuditReport) -> None:
    report.keys += len(batch)
    async with frontier.client.pipeline(transaction=False) as pipe:
        for key in batch:
            pipe.type(key)
            pipe.pttl(key)
        answers = await pipe.execute() if batch else []
    for key, kind, ttl_ms in zip(batch, answers[::2], answers[1::2], strict=True):
        name = key.decode("utf-8", "backslashreplace")
        short = name.removeprefix(frontier.keys.prefix)
        if kind == b"none":
            continue  # ended since the scan
        known = frontier.keys.describe(name)
        if known is None:
            report.fault(f"key {short}: unknown, nothing of streamcrawl writes it")
        elif known.type != kind.decode():
            report.fault(f"key {short}: is a {kind.decode()}, should be a {known.type}")
        elif known.is_permanent and ttl_ms >= 0:
            report.fault(f"key {short}: expires in {ttl_ms} ms, and should stay")
        elif not known.is_permanent and ttl_ms == -1:
            report.fault(f"key {short}: has no TTL, and should have one")
