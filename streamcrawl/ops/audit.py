"""Recounts a crawl from its structures, live or at rest, and names every figure that does not fit.

Invariant 1 (conservation) and the lengths of all structures come from one answer of audit.lua for each shard, so they
are of one instant. Hosts are recounted in chunks, each of one instant; sums over several chunks are compared only when
nothing moved in between. What holds between shards is compared as far as a change under way cannot explain it. It
changes nothing. Not recounted: the fingerprints of seen URLs, and which seeds are ended (only that they can be as many
as counted). Start at `audit`; a fault is one line with both figures.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import CrawlGone
from streamcrawl.ops.status import stored_settings
from streamcrawl.rules.politeness import Refusal
from streamcrawl.rules.revisit import Found
from streamcrawl.rules.sitemaps import Flaw, Listed
from streamcrawl.rules.task import Kind
from streamcrawl.rules.traps import LeftOut
from streamcrawl.settings import SCHEMA
from streamcrawl.store.connection import NoGroup, mapped_errors
from streamcrawl.store.frontier import FETCH_STREAM, stage_stream
from streamcrawl.store.keys import CRAWLS, GROUP, crawl_pattern, shard_in
from streamcrawl.store.recount import Walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from streamcrawl.store.shards import Shards

HOSTS_PER_CALL: Final = 200
"""Some 4 ms of audit.lua."""
FAULTS_MAX: Final = 1000
"""A crawl with more faults than this is not understood better by more lines."""
SETTLE_S: Final = 0.2
"""Between two looks at what is being written to one shard after the other."""
_STATES: Final = ("queued", "streamed", "delayed", "dead", "done", "dropped")
_LINKS_LEFT_OUT: Final = frozenset(f"links.{reason}" for reason in (*LeftOut, *Listed))
_THROTTLED: Final = frozenset(f"throttled.{refusal}" for refusal in Refusal)
_VISITS: Final = frozenset(f"{Kind.PAGE}.visits.{found}" for found in Found)
_FLAWS: Final = frozenset(f"{Kind.SITEMAP}.flawed.{flaw}" for flaw in Flaw)
"""Links that never became tasks: no other figure depends on them, so their names are all there is to check."""
_LOOKS_MAX: Final = 5
"""How often something is looked at again when the crawl moved meanwhile."""
_KEYS_PER_CALL: Final = 500
_FIRST_ONLY: Final = ("feeders", "grants")
"""Keys that only the first shard has."""


class AuditReport(msgspec.Struct):
    """What was compared, and what does not fit."""

    shards: int = 1
    faults: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    """What could not be compared, and why."""
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    """Of all shards together."""
    lines: list[str] = msgspec.field(default_factory=list)
    """Lines of the counts: page, robots, sitemap, each output and each stage."""
    hosts: int = 0
    keys: int = 0
    are_seeds_counted: bool = True
    """False for a crawl that an older version began (store/upgrade.py)."""

    @property
    def is_sound(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "faults": self.faults,
            "notes": self.notes,
            "shards": self.shards,
            "hosts": self.hosts,
            "keys": self.keys,
            "totals": dict(sorted(self.totals.items())),
        }

    def fault(self, line: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(line)
        elif len(self.faults) == FAULTS_MAX:
            self.faults.append(f"more than {FAULTS_MAX} faults; the rest is not listed")


async def audit(crawl: Shards) -> AuditReport:
    """Recount everything.

    Raises:
        StoreUnavailable, CrawlGone: as every call of the frontier.
    """
    report = AuditReport(shards=len(crawl))
    # A shard of another epoch is no part of this crawl any more, and would not answer.
    numbers = await _check_states(crawl, report)
    shards = {number: _ShardAudit(crawl, number, report) for number in numbers}
    for shard in shards.values():
        await shard.begin()
    await _scan(crawl, shards, report)
    for shard in shards.values():
        await shard.end()
    await _check_grants(crawl, report)
    return report


async def _scan(crawl: Shards, shards: Mapping[int, _ShardAudit], report: AuditReport) -> None:
    """Look at every key of the crawl, and at the host of every host key: one SCAN, it costs the keys of the server."""
    hosts: dict[int, list[str]] = {number: [] for number in shards}
    batch: list[bytes] = []

    async def take(number: int) -> None:
        await shards[number].look(hosts[number])
        hosts[number] = []

    with mapped_errors():
        async for raw in crawl.client.scan_iter(match=crawl_pattern(crawl.first.keys.crawl), count=1000):
            batch.append(raw)
            if len(batch) == _KEYS_PER_CALL:
                await _check_keys(crawl, batch, report)
                batch.clear()
            key = raw.decode("utf-8", "backslashreplace")
            number = shard_in(key)
            if number in hosts and key.startswith(start := crawl.frontiers[number].keys.host("")):
                hosts[number].append(key[len(start) :])
                if len(hosts[number]) == HOSTS_PER_CALL:
                    await take(number)
        await _check_keys(crawl, batch, report)
    for number in shards:
        await take(number)


async def _check_keys(crawl: Shards, batch: Sequence[bytes], report: AuditReport) -> None:
    """Every key must be one that keys.py knows, of its type, and with a TTL exactly when it is not permanent."""
    report.keys += len(batch)
    async with crawl.client.pipeline(transaction=False) as pipe:
        for raw in batch:
            pipe.type(raw)
            pipe.pttl(raw)
        answers = await pipe.execute() if batch else []
    for raw, kind, ttl_ms in zip(batch, answers[::2], answers[1::2], strict=True):
        key = raw.decode("utf-8", "backslashreplace")
        if kind == b"none":
            continue  # ended since the scan
        number = shard_in(key)
        if number is None or number >= len(crawl):
            report.fault(f"key {key}: there is no such shard, the crawl has {len(crawl)}")
            continue
        keys = crawl.frontiers[number].keys
        short = f"{_where(crawl, number)}key {key.removeprefix(keys.prefix)}"
        known = keys.describe(key)
        if known is None:
            report.fault(f"{short}: unknown, nothing of streamcrawl writes it")
        elif number and known.word in _FIRST_ONLY:
            report.fault(f"{short}: unknown, only the first shard has one")
        elif known.type != kind.decode():
            report.fault(f"{short}: is a {kind.decode()}, should be a {known.type}")
        elif known.is_permanent and ttl_ms >= 0:
            report.fault(f"{short}: expires in {ttl_ms} ms, and should stay")
        elif not known.is_permanent and ttl_ms == -1:
            report.fault(f"{short}: has no TTL, and should have one")


def _where(crawl: Shards, number: int) -> str:
    return f"shard {number}: " if len(crawl) > 1 else ""


# -- what holds between shards


async def _states(crawl: Shards, *fields: str) -> list[list[str]]:
    """Return fields of the state of every shard; '' for one that is not set."""
    async with crawl.client.pipeline(transaction=False) as pipe:
        for frontier in crawl:
            pipe.hmget(frontier.keys.state, list(fields))
        with mapped_errors():
            rows: Any = await pipe.execute()
    return [[(value or b"").decode() for value in row] for row in rows]


async def _check_states(crawl: Shards, report: AuditReport) -> list[int]:
    """Compare what every shard must have alike; return the numbers of those that belong to the crawl."""
    keys = crawl.first.keys
    names = ("epoch", "schema", "identity", "sinks", "version", "stages", "logs")
    for look in range(_LOOKS_MAX):
        states = await _states(crawl, *names)
        for state in states:
            # Two versions of a program may have told theirs at the same time, to each shard in another order.
            for n in (-2, -1):
                state[n] = ",".join(sorted(one.partition("=")[0] for one in state[n].split(",")))
        # A change of settings, and the opening of a crawl, go from shard to shard.
        if all(state == states[0] for state in states):
            break
        if look < _LOOKS_MAX - 1:
            await asyncio.sleep(SETTLE_S)
    if states[0][0] != crawl.epoch:
        raise CrawlGone("this crawl was deleted or begun afresh by someone else while it was recounted")
    for number, state in enumerate(states):
        for name, value, first in zip(names, state, states[0], strict=True):
            if value != first:
                report.fault(f"shard {number}: {name} is {value or 'missing'}, that of the first shard is {first}")
    async with crawl.client.pipeline(transaction=True) as pipe:
        pipe.sismember(CRAWLS, keys.crawl)
        pipe.hmget(keys.state, ["closed", "open", "upgraded_from"])
        pipe.hgetall(keys.feeders)
        with mapped_errors():
            is_listed, (closed, kept_open, upgraded_from), feeders = await pipe.execute()
    if upgraded_from is not None:
        report.are_seeds_counted = False
        report.notes.append("seeds that are not ended: not compared, an older version that did not count them began it")
    if int(states[0][1] or 0) < SCHEMA:
        report.notes.append(f"written by an older version (schema {states[0][1]}), not upgraded yet")
    elif not is_listed:
        report.fault(f"{CRAWLS}: {keys.crawl} is missing, so that nothing lists this crawl")
    if closed and kept_open:
        report.fault("state: both closed and kept open")
    if closed and feeders:
        report.fault(f"state: closed, and {len(feeders)} feeders have not offered all of their seeds")
    for name, row in feeders.items():
        if not row.partition(b" ")[0].isdigit():
            report.fault(f"feeders: the row of {name.decode('utf-8', 'replace')} cannot be read")
    return [number for number, state in enumerate(states) if state[0] == crawl.epoch]


async def _check_grants(crawl: Shards, report: AuditReport) -> None:
    """No page more than `--max-pages` may be granted; what is granted arrives later, and comes back later."""
    if len(crawl) == 1:
        return
    with mapped_errors():
        settings: Any = await crawl.client.hget(crawl.first.keys.state, "settings")
        budget = stored_settings(settings).get("pages_max")
        before: Any = await crawl.client.hgetall(crawl.first.keys.grants)
        states = await _states(crawl, "granted", "returned", "pages_max")
        after: Any = await crawl.client.hgetall(crawl.first.keys.grants)
    allowed = 0
    for number, (granted, returned, pages_max) in enumerate(states):
        if int(granted or 0) > int(after.get(f"granted:{number}".encode(), 0)):
            report.fault(f"shard {number}: has {granted} pages granted, more than the first shard knows of")
        if int(returned or 0) < int(before.get(f"returned:{number}".encode(), 0)):
            report.fault(f"shard {number}: has returned {returned or 0} pages, less than the first shard knows of")
        if budget is not None and not pages_max:
            # Set of late: whoever works at the crawl deals it out, and while nobody does it is no fault.
            report.notes.append(f"shard {number}: has no limit yet, although --max-pages is set")
        allowed += int(pages_max or 0)
    if budget is not None and allowed > budget:
        report.fault(f"grants: {allowed} pages are allowed, --max-pages is {budget} (unless just lowered)")


# -- one shard


class _HostRow(NamedTuple):
    """One host as audit.lua recounts it."""

    host: str
    queued: int
    queued_found: int
    in_flight: int
    in_flight_found: int
    is_scheduled: int
    should_be: int
    is_blocked: int
    in_blocked: int
    is_given_up: int
    in_given_up: int
    is_demoted: int
    in_demoted: int


class _DomainRow(NamedTuple):
    """The domain of one host, as audit.lua recounts it where politeness is by domain."""

    host: str
    domain: str
    in_flight_of_host: int
    in_flight: int
    cap: int
    is_scheduled: int
    should_be: int


class _Look(msgspec.Struct, frozen=True):
    """One answer of audit.lua."""

    totals: dict[str, int]
    streams: dict[str, tuple[int, int]]
    """Name: length, pending; pending -1 when the group is missing."""
    delayed: int
    dead: int
    hosts: list[_HostRow]
    stream_hosts: list[str]
    """Others that have entries, as far as the script read the stream."""
    entries: dict[str, int]
    """Entries of the fetch stream by line, as far as the script read it."""
    domains: dict[str, _DomainRow]
    """By host; empty where politeness is by host."""

    @classmethod
    def of(cls, answer: Sequence[Any]) -> _Look:
        _, totals, streams, delayed, dead, of_host, stream_hosts, entries, of_domain = answer
        width, wide = len(_HostRow._fields), len(_DomainRow._fields)
        domains = (of_domain[i : i + wide] for i in range(0, len(of_domain), wide))
        return cls(
            totals={name.decode(): int(value) for name, value in _pairs(totals)},
            streams={
                streams[i].decode(): (int(streams[i + 1]), int(streams[i + 2])) for i in range(0, len(streams), 3)
            },
            delayed=int(delayed),
            dead=int(dead),
            hosts=[
                _HostRow(of_host[i].decode(), *(int(value) for value in of_host[i + 1 : i + width]))
                for i in range(0, len(of_host), width)
            ],
            stream_hosts=[host.decode() for host in stream_hosts],
            entries={line.decode(): int(count) for line, count in _pairs(entries)},
            domains={
                host.decode(): _DomainRow(host.decode(), domain.decode(), *map(int, rest))
                for host, domain, *rest in domains
            },
        )

    @property
    def queued(self) -> int:
        return sum(self.totals.get(f"{kind}.queued", 0) for kind in Kind)


def _pairs(flat: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


class _ShardAudit:
    """The recount of one shard: `begin`, `look` at its hosts in chunks, `end`."""

    def __init__(self, crawl: Shards, number: int, report: AuditReport) -> None:
        self._crawl = crawl
        self._number = number
        self._report = report
        self._where = _where(crawl, number)
        self._frontier = crawl.frontiers[number]
        self._keys = self._frontier.keys
        self._client = crawl.client
        self._walk = Walk(self._client, self._keys.fetch_stream)
        self._known: set[str] = set()
        self._strays: set[str] = set()
        """Hosts that something names and that no host key was seen of."""
        self._domains: set[str] = set()
        """That were compared."""
        self._idle: list[str] = []
        """Hosts with tasks that nothing moves at the moment."""
        self._cap = 1
        self._first: _Look
        """Of the pass over all hosts, `_last` too."""
        self._last: _Look
        self._found = 0
        """Tasks in the queues of the hosts of this pass."""

    def _fault(self, line: str) -> None:
        self._report.fault(self._where + line)

    def _note(self, line: str) -> None:
        self._report.notes.append(self._where + line)

    async def begin(self) -> None:
        with mapped_errors():
            self._cap = await self._number_in(self._keys.state, "cap") or 1
        self._first = await self._look_at_none()
        self._last = self._first
        for name, count in self._first.totals.items():
            self._report.totals[name] = self._report.totals.get(name, 0) + count
        self._check_totals(self._first)
        await self._walk.walk()

    async def look(self, hosts: Sequence[str]) -> None:
        """Recount hosts that were not recounted before."""
        fresh = [host for host in dict.fromkeys(hosts) if host not in self._known]
        self._known.update(fresh)
        async for look in self._looks(fresh):
            self._last = look
            self._strays.update(look.stream_hosts)
            self._found += sum(row.queued_found for row in look.hosts)
            await self._check_hosts(look.hosts, look.domains)

    async def end(self) -> None:
        await self._compare_sum()
        for key in (self._keys.blocked, self._keys.given_up, self._keys.demoted):
            with mapped_errors():
                async for member, _ in self._client.zscan_iter(key, count=1000):
                    self._strays.add(member.decode("utf-8", "replace"))
        # Hosts that came after the scan are sound here; one that has entries and no hash is not.
        strays = sorted((self._strays | self._walk.hosts) - self._known)
        for start in range(0, len(strays), HOSTS_PER_CALL):
            async for look in self._looks(strays[start : start + HOSTS_PER_CALL]):
                await self._check_hosts(look.hosts, look.domains)
        await self._check_idle()
        await self._check_groups()
        self._report.hosts += len(self._known)

    async def _looks(self, hosts: Sequence[str]) -> AsyncIterator[_Look]:
        async for answer in self._frontier.audit(self._walk, hosts):
            yield _Look.of(answer)

    async def _look_at_none(self) -> _Look:
        """Return a look at the counters alone."""
        return await anext(self._looks([]))

    async def _compare_sum(self) -> None:
        """Compare the tasks in all queues with the totals.

        A sum that does not fit is a fault only when the next scan finds no host more (one that came between a scan and
        its script is missing in the sum), and the totals did not move between the first chunk and the last.
        """
        is_suspect = False
        for _ in range(_LOOKS_MAX):
            counted, found = self._first.queued, self._found
            if counted == found:
                return
            if is_suspect:
                self._fault(f"queued tasks of all hosts: counted {counted}, found {found} in the queues")
                return
            has_moved = self._first.totals != self._last.totals
            before = len(self._known)
            await self._pass()
            is_suspect = not has_moved and len(self._known) == before
        self._note("queued tasks of all hosts: not compared with the totals, the crawl moved all the time")

    async def _pass(self) -> None:
        """Sum the queues of all hosts up once more."""
        self._found = 0
        self._first = self._last = await self._look_at_none()
        async for hosts in self._frontier.host_chunks(HOSTS_PER_CALL):
            fresh = [host for host in hosts if host not in self._known]
            self._known.update(fresh)
            async for look in self._looks(hosts):
                self._last = look
                self._found += sum(row.queued_found for row in look.hosts)
                await self._check_hosts([row for row in look.hosts if row.host in fresh], look.domains)

    def _check_totals(self, look: _Look) -> None:
        totals = look.totals

        def total(name: str) -> int:
            return totals.get(name, 0)

        # Outputs and stages: line -> stream.
        followers = {
            name.removeprefix(f"{FETCH_STREAM}:").removeprefix("stream:"): name
            for name in look.streams
            if name != FETCH_STREAM and not name.startswith("log:")
        }
        stages = [line for line, name in followers.items() if name == stage_stream(line)]
        self._report.lines = [*Kind, *followers]
        for line in self._report.lines:
            places = {state: total(f"{line}.{state}") for state in _STATES}
            if total(f"{line}.created") != sum(places.values()):
                where = " + ".join(f"{count} {state}" for state, count in places.items() if count) or "0"
                self._fault(
                    f"{line}: created {total(f'{line}.created')}, accounted for {sum(places.values())} = {where}"
                )
            for state in ("dead", "dropped", "waited"):
                by_reason = sum(count for name, count in totals.items() if name.startswith(f"{line}.{state}."))
                if by_reason != total(f"{line}.{state}"):
                    self._fault(f"{line}: {state} {total(f'{line}.{state}')}, by reason {by_reason}")
        for name, count in totals.items():
            if count < 0:
                self._fault(f"totals: {name} is {count}, below zero")
            if name.startswith("links.") and name not in _LINKS_LEFT_OUT:
                self._fault(f"totals: {name} is no reason to leave a link out")
            if name.startswith("throttled.") and name not in _THROTTLED:
                self._fault(f"totals: {name} is no refusal of a host")
            if name.startswith("page.visits.") and name not in _VISITS:
                self._fault(f"totals: {name} is nothing that a visit finds")
            if ".flawed." in name and name not in _FLAWS:
                self._fault(f"totals: {name} is no flaw of a sitemap")
        seeds = total("seed.created") - total("seed.ended")
        left = sum(total(f"{Kind.PAGE}.{state}") for state in ("queued", "streamed", "delayed"))
        if self._report.are_seeds_counted and not 0 <= seeds <= left:
            self._fault(f"seeds: {seeds} are not ended, {left} pages are left to do")

        length, _ = look.streams[FETCH_STREAM]
        streamed = sum(total(f"{kind}.streamed") for kind in Kind)
        if length != streamed:
            self._fault(f"{FETCH_STREAM}: counted {streamed}, found {length} entries")
        if self._walk.has_walked:
            self._note(f"{FETCH_STREAM}: {length} entries, too many to compare those of each kind")
        else:
            for line in sorted({*Kind, *look.entries}):
                counted, found = total(f"{line}.streamed"), look.entries.get(line, 0)
                if counted != found:
                    self._fault(f"{FETCH_STREAM}: {line} counted {counted}, found {found} entries")
        for line, name in followers.items():
            length, _ = look.streams[name]
            if length != total(f"{line}.streamed"):
                self._fault(f"{name}: counted {total(f'{line}.streamed')}, found {length} entries")
            if not length and total(f"{line}.bytes"):
                self._fault(f"{name}: counted {total(f'{line}.bytes')} bytes, found no entry")
        for name, (length, _) in look.streams.items():
            if not name.startswith("log:"):
                continue
            kept = total(f"{name}.created") - total(f"{name}.expired") - total(f"{name}.trimmed")
            if length != kept:
                self._fault(f"{name}: counted {kept}, found {length} entries")
            if not length and total(f"{name}.bytes"):
                self._fault(f"{name}: counted {total(f'{name}.bytes')} bytes, found no entry")
        for state, found in (("delayed", look.delayed), ("dead", look.dead)):
            counted = sum(total(f"{line}.{state}") for line in (*Kind, *stages))
            if counted != found:
                self._fault(f"{state}: counted {counted}, found {found}")

    async def _number_in(self, key: str, field: str) -> int:
        value: Any = await self._client.hget(key, field)
        return int(value or 0)

    async def _check_hosts(self, rows: Sequence[_HostRow], domains: Mapping[str, _DomainRow]) -> None:
        self._check_domains(rows, domains)
        place = "its domain's turns" if self._frontier.by_domain else "the schedule"
        for row in rows:
            host = row.host
            if row.queued != row.queued_found:
                self._fault(f"{host}: queued counted {row.queued}, found {row.queued_found} in its queues")
            if row.in_flight != row.in_flight_found:
                self._fault(f"{host}: in_flight counted {row.in_flight}, found {row.in_flight_found} entries")
            for name, count in (("queued", row.queued), ("in_flight", row.in_flight)):
                if count < 0:
                    self._fault(f"{host}: {name} is {count}, below zero")
            if row.in_flight_found > self._cap and not self._frontier.by_domain:
                with mapped_errors():
                    cap = await self._number_in(self._keys.host(host), "cap") or self._cap
                if row.in_flight_found > cap:
                    self._fault(f"{host}: in_flight {row.in_flight_found} is over its cap {cap} (unless just lowered)")
            for name, is_in, should_be in (
                (place, row.is_scheduled, row.should_be),
                ("blocked", row.in_blocked, row.is_blocked),
                ("given_up", row.in_given_up, row.is_given_up),
                ("demoted", row.in_demoted, row.is_demoted),
            ):
                if name == place and should_be and row.in_flight_found:
                    continue  # its cap was raised, say: when its entry ends it is put where it should be
                if is_in != should_be:
                    words = (f"not in {name}", f"in {name}")
                    self._fault(f"{host}: {words[is_in]}, should be {words[should_be]}")
            if (belongs := self._crawl.index_of(host)) != self._number:
                self._fault(f"{host}: lies in this shard, belongs to shard {belongs}")
            if row.queued_found and not (row.in_flight_found or row.is_scheduled or row.should_be or row.is_blocked):
                self._idle.append(host)

    def _check_domains(self, rows: Sequence[_HostRow], domains: Mapping[str, _DomainRow]) -> None:
        """Check what politeness by domain counts of the domains of these hosts, each domain once."""
        for row in rows:
            of = domains.get(row.host)
            if of is None:
                continue
            if of.in_flight_of_host != row.in_flight_found:
                self._fault(
                    f"{row.host}: {of.domain} counts {of.in_flight_of_host} of it in flight, "
                    f"found {row.in_flight_found} entries"
                )
            if of.domain in self._domains:
                continue
            self._domains.add(of.domain)
            if of.in_flight > of.cap:
                self._fault(f"{of.domain}: in_flight {of.in_flight} is over its cap {of.cap} (unless just lowered)")
            # As with a host: where its cap was raised, it is put in its place when what is under way ends.
            if of.is_scheduled != of.should_be and not (of.should_be and of.in_flight):
                words = ("not in the schedule", "in the schedule")
                self._fault(f"{of.domain}: {words[of.is_scheduled]}, should be {words[of.should_be]}")

    async def _check_idle(self) -> None:
        """A host with tasks that nothing will ever move: the crawl would not end, and nothing would say why."""
        for start in range(0, len(self._idle), HOSTS_PER_CALL):
            hosts = self._idle[start : start + HOSTS_PER_CALL]
            async with self._client.pipeline(transaction=False) as pipe:
                for host in hosts:
                    pipe.hmget(self._keys.host(host), ["given_up", "robots"])
                    pipe.zscore(self._keys.giving_up, host)
                with mapped_errors():
                    answers = await pipe.execute()
            words = dict(zip(hosts, zip(answers[::2], answers[1::2], strict=True), strict=True))
            async for look in self._looks(hosts):
                is_robots_delayed = look.totals.get(f"{Kind.ROBOTS}.delayed", 0) > 0
                for row in look.hosts:
                    (given_up, robots), emptied = words[row.host]
                    if not row.queued_found or row.in_flight_found or row.is_scheduled or row.should_be:
                        continue
                    if given_up and emptied is None:
                        self._fault(f"{row.host}: given up with {row.queued_found} tasks queued, and not in giving_up")
                    elif not given_up and robots == b"asked" and not is_robots_delayed and not row.is_blocked:
                        self._fault(
                            f"{row.host}: {row.queued_found} tasks wait for its robots.txt, which nobody fetches"
                        )

    async def _check_groups(self) -> None:
        """Every pending row must have its entry: a row without one is renewed by nobody and never ends."""
        for name, (_, pending) in self._first.streams.items():
            if name.startswith("log:"):
                continue  # nobody reads it
            if pending < 0:
                self._fault(f"{name}: its consumer group is missing")
                continue
            for entry_id in await self._orphans(self._keys.prefix + name):
                self._fault(f"{name}: {entry_id} is pending and has no entry")

    async def _orphans(self, key: str) -> list[str]:
        client, orphans, start = self._client, [], "-"
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
