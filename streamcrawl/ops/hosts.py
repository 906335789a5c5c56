"""What is known of hosts: of one all of it, in words, with why it is or is not being fetched; of many those that stand
out. Reads only; what an operator says of a host goes by host.lua (`set_host`).

Lists that may be long are read to a bound, and a sample is called one: a broad crawl has a million hosts. Start at
`host_page` and `list_hosts`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import ConfigError
from streamcrawl.ops.letters import Where, newest_of
from streamcrawl.ops.words import host_keys, moment, span
from streamcrawl.rules.task import Level
from streamcrawl.settings import Settings
from streamcrawl.store.connection import NoGroup, mapped_errors, server_ms
from streamcrawl.store.keys import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.keys import Keys
    from streamcrawl.store.shards import Shards

SAMPLE: Final = 500
"""Scheduled hosts of a shard that are asked how much they have queued: one round trip of some 20 ms."""
ENTRIES_MAX: Final = 20_000
"""Entries of a fetch stream that are searched: 10,000 live slots fill it with so many."""
LETTERS_MAX: Final = 5_000
"""Newest dead letters that are searched for those of a host."""
_ENTRIES_PER_CALL: Final = 500
_DEFAULTS: Final = Settings(name="any")
"""As _now.lua, for crawls that are older than a setting."""
_FIRST_STEP_MS: Final = 100
_OTHERS_LOOKED: Final = 5
"""Both as _hosts.lua."""
_HOST_REASONS: Final = frozenset({"host_unreachable", "robots_unreachable"})
LEVEL_NAMES: Final = {Level.CONTROL: "robots", Level.HIGH: "high", Level.NORMAL: "normal", Level.LOW: "low"}


class ShardState(NamedTuple):
    """What of a shard's state decides about its hosts."""

    now_ms: int
    """Crawl time; due times are in it."""
    wall_ms: int
    """The server's own clock, as the times that people read."""
    delay_ms: int
    delay_max_ms: int
    demotion_max: int
    others_wait: bool
    """Whether a host that is neither demoted nor failing has something to fetch, as _hosts.lua tells it."""
    cap: int
    obeys_robots: bool
    pages_per_host_max: int | None
    halt: str
    """Why nothing at all is dispatched; '' when it is."""


class DelayReason(StrEnum):
    """Where the delay in force of a host comes from."""

    CRAWL = "crawl"
    CRAWL_DELAY = "crawl_delay"
    OPERATOR = "operator"
    RESPONSE_TIME = "response_time"
    THROTTLED = "throttled"
    DEMOTED = "demoted"
    """Its pages are near-identical."""


class Circuit(StrEnum):
    """Whether a host that does not answer is asked."""

    CLOSED = "closed"
    OPEN = "open"
    """Not until its back-off is over."""
    HALF_OPEN = "half-open"
    """One fetch at a time, to see whether it is back."""


class HostFields(msgspec.Struct, frozen=True):
    """The hash of one host (_hosts.lua); times are crawl time in ms."""

    queued: int = 0
    in_flight: int = 0
    due: int = 0
    start_due: int = 0
    robots: str = ""
    robots_until: int = 0
    failures: int = 0
    failing: str = ""
    failed_at: int = 0
    blocked_until: int = 0
    cap: int = 0
    delay: int = 0
    delay_set: str = ""
    paced: int = 0
    throttled: int = 0
    throttled_at: int = 0
    throttled_by: str = ""
    said: str = ""
    alike: int = 0
    demoted: int = 0
    pages: int = 0
    given_up: str = ""
    blocked: str = ""
    domain: str = ""
    """Where politeness is by domain: the one with which it counts as one."""

    @classmethod
    def read(cls, stored: dict[bytes, bytes]) -> HostFields:
        """Return the hash of a host, or of a domain, which has a field for what each of its hosts has in flight."""
        found: dict[str, Any] = {}
        for name, value in stored.items():
            text = name.decode("utf-8", "replace")
            kind = cls.__annotations__.get(text)
            if kind is not None:
                found[text] = value.decode("utf-8", "replace") if kind == "str" else int(float(value))
            elif text.startswith("in_flight:"):
                found["in_flight"] = found.get("in_flight", 0) + int(value)
        return cls(**found)

    def under(self, domain: HostFields) -> HostFields:
        """Return what is in force for a host whose politeness its domain decides."""
        return msgspec.structs.replace(
            self, cap=domain.cap, delay_set=domain.delay_set, paced=domain.paced, start_due=domain.start_due,
            throttled=domain.throttled, throttled_at=domain.throttled_at, throttled_by=domain.throttled_by,
            failing=self.failing or domain.failing, failures=max(self.failures, domain.failures),
            due=max(self.due, domain.due), blocked_until=max(self.blocked_until, domain.blocked_until),
        )  # fmt: skip

    def delay_in_force(self, state: ShardState) -> tuple[int, DelayReason]:
        """Return the delay, ms, as `delay_of` in _hosts.lua has it, and where it comes from."""
        if self.delay_set:
            return int(self.delay_set), DelayReason.OPERATOR
        floor = max(self.delay, state.delay_ms)
        borne = min(max(self.paced, self.throttled), state.delay_max_ms)
        times = self.demotion(state)
        if times and state.others_wait:
            delay_ms = min(max(floor, borne, _FIRST_STEP_MS) * times, state.delay_max_ms)
            if delay_ms > max(floor, borne):
                return delay_ms, DelayReason.DEMOTED
        if borne > floor:
            return borne, DelayReason.THROTTLED if self.throttled >= self.paced else DelayReason.RESPONSE_TIME
        return floor, DelayReason.CRAWL_DELAY if self.delay >= max(1, state.delay_ms) else DelayReason.CRAWL

    def demotion(self, state: ShardState) -> int:
        """Return how many times its delay it is left alone for near-identical pages while others wait, as
        `demotion_of` in _hosts.lua; 0 when it is not demoted."""
        times = 0 if self.delay_set else min(self.demoted, state.demotion_max)
        return times if times > 1 else 0

    def circuit(self, state: ShardState) -> Circuit:
        if not self.failing:
            return Circuit.CLOSED
        return Circuit.OPEN if self.blocked_until > state.now_ms else Circuit.HALF_OPEN


class InFlight(NamedTuple):
    """One entry of a host in the fetch stream."""

    entry_id: str
    level: str
    stored: bytes
    consumer: str
    """Who has it in hand; '' while it waits to be read."""
    idle_ms: int


class HostPage(msgspec.Struct):
    """One host at one moment."""

    key: str
    shard: int
    is_known: bool
    fields: HostFields
    """By domain: those that are in force."""
    state: ShardState
    of_domain: HostFields | None = None
    """Of the domain by which its politeness counts; None where that is by host."""
    queued: dict[str, int] = msgspec.field(default_factory=dict)
    """Tasks by level, as the lists have them."""
    scheduled_ms: int | None = None
    """Its place in the schedule, crawl time; None when it has none."""
    failing_since_ms: int | None = None
    """Crawl time."""
    blocked_since_ms: int | None = None
    """Wall clock."""
    robots: str = ""
    """What its stored robots.txt says of it, in words."""
    robots_text: str | None = None
    """The stored file; None when there is none."""
    in_flight: list[InFlight] = msgspec.field(default_factory=list)
    dead: dict[str, int] = msgspec.field(default_factory=dict)
    """Its dead letters by reason, among the newest `letters_looked`."""
    letters_looked: int = 0

    @property
    def cap(self) -> int:
        """As `cap_of` in _hosts.lua has it."""
        return 1 if self.fields.failing else self.fields.cap or self.state.cap

    @property
    def delay_ms(self) -> int:
        return self.fields.delay_in_force(self.state)[0]

    def standing(self) -> str:
        """Return in one line why it is fetched, or why not."""
        fields, state = self.fields, self.state
        budget = state.pages_per_host_max
        queued = sum(self.queued.values())
        if not self.is_known:
            return "not known to this crawl"
        if fields.blocked:
            since = f" since {moment(self.blocked_since_ms)}" if self.blocked_since_ms else ""
            return (
                f"blocked by an operator{since}: what is queued waits and does not hold the end; `host unblock` ends it"
            )
        if fields.given_up == "host_budget":
            return f"over its budget of {budget or fields.pages} pages (--max-pages-per-host)"
        if fields.given_up:
            return f"given up ({fields.given_up}); `host set --retry` gives it another chance, as `dead replay` does"
        if not queued:
            return "nothing of it is queued" + (", some is under way" if fields.in_flight else "")
        if fields.failing and fields.in_flight >= self.cap:
            return f"its circuit is half-open: one fetch is under way, to see whether it is back ({self._failed()})"
        if self.of_domain is None and fields.in_flight >= self.cap:
            return f"at its cap: {fields.in_flight} under way of {self.cap} at a time"
        if self.of_domain is not None and self.of_domain.in_flight >= self.cap:
            return (
                f"its domain is at its cap: {self.of_domain.in_flight} under way of {self.cap} at a time, "
                f"{fields.in_flight} of them its own; all hosts of {fields.domain} take turns"
            )
        if budget is not None and fields.pages + fields.in_flight >= budget:
            return f"its budget of {budget} pages is used up by what is under way"
        if self.scheduled_ms is None:
            if state.obeys_robots and fields.robots == "asked":
                return "waits for its robots.txt, which is being fetched"
            return "has tasks and is not scheduled, for no reason that is to be seen: see `streamcrawl audit`"
        wait_ms = self.scheduled_ms - state.now_ms
        why = f", as {self._failed()}" if fields.failures and wait_ms > 0 else ""
        turn = "its turn" if self.of_domain is None else f"its turn among the hosts of {fields.domain}"
        due = f"due in {span(wait_ms)}{why}" if wait_ms > 0 else f"due since {span(-wait_ms)}, waits for {turn}"
        return f"{due}; but {state.halt}" if state.halt else due

    def _failed(self) -> str:
        return f"it failed {self.fields.failures} times in a row"

    def as_json(self) -> dict[str, Any]:
        fields, now_ms = self.fields, self.state.now_ms
        return {
            "host": self.key,
            "domain": None if self.of_domain is None else fields.domain,
            "domain_in_flight": None if self.of_domain is None else self.of_domain.in_flight,
            "shard": self.shard,
            "known": self.is_known,
            "standing": self.standing(),
            "queued": self.queued,
            "in_flight": [
                {"id": one.entry_id, "worker": one.consumer, "idle_ms": one.idle_ms} for one in self.in_flight
            ],
            "pages": fields.pages,
            "delay_ms": self.delay_ms,
            "delay_reason": fields.delay_in_force(self.state)[1].value,
            "throttled_by": fields.throttled_by,
            "throttled_for_ms": now_ms - fields.throttled_at if fields.throttled_at else None,
            "delay_set_ms": int(fields.delay_set) if fields.delay_set else None,
            "crawl_delay_ms": fields.delay,
            "demoted": fields.demotion(self.state),
            "near_identical": fields.alike / 1000,
            "cap": self.cap,
            "cap_set": fields.cap or None,
            "circuit": fields.circuit(self.state).value,
            "due_in_ms": None if self.scheduled_ms is None else self.scheduled_ms - now_ms,
            "failures": fields.failures,
            "failing": fields.failing,
            "failing_for_ms": None if self.failing_since_ms is None else now_ms - self.failing_since_ms,
            "left_alone_for_ms": max(0, fields.blocked_until - now_ms),
            "given_up": fields.given_up,
            "blocked": bool(fields.blocked),
            "blocked_since": moment(self.blocked_since_ms or 0),
            "robots": self.robots,
            "dead": self.dead,
            "dead_looked": self.letters_looked,
        }


class HostRow(NamedTuple):
    """One host of a list."""

    host: str
    queued: int
    in_flight: int
    pages: int
    what: str
    """Why it is listed."""
    delay_ms: int = 0
    delay_reason: DelayReason = DelayReason.CRAWL


class HostList(msgspec.Struct):
    """Hosts that stand out, each list to a bound; the counts beside them are of all."""

    blocked: list[HostRow] = msgspec.field(default_factory=list)
    blocked_count: int = 0
    failing: list[HostRow] = msgspec.field(default_factory=list)
    failing_count: int = 0
    demoted: list[HostRow] = msgspec.field(default_factory=list)
    demoted_count: int = 0
    given_up: list[HostRow] = msgspec.field(default_factory=list)
    """As far as the newest dead letters name them."""
    largest: list[HostRow] = msgspec.field(default_factory=list)
    """With most queued, among those that were looked at."""
    looked: int = 0
    scheduled: int = 0


# -- which hosts


async def known_hosts(crawl: Shards, text: str) -> list[str]:
    """Return the host keys of the crawl that a person may mean by `text`: more than one for a name with both schemes.

    Raises:
        ConfigError: it is no host, or the crawl knows none of them.
    """
    keys = host_keys(text)
    with mapped_errors():
        found = [key for key in keys if await crawl.of(key).client.exists(crawl.of(key).keys.host(key))]
    if not found:
        raise ConfigError(
            f"this crawl knows no host {' or '.join(keys)}; write its key with scheme and port, as `host ls` and "
            "`dead ls` show it"
        )
    return found


async def hosts_to_set(crawl: Shards, text: str) -> list[str]:
    """Return the host keys that an operator's word is for: those that are known, or all that may be meant."""
    try:
        return await known_hosts(crawl, text)
    except ConfigError:
        return host_keys(text)


# -- one host


async def shard_state(frontier: Frontier) -> ShardState:
    """Return what of the shard's state decides about its hosts."""
    names = [
        "clock_ms", "wall_ms", "delay_ms", "delay_max_ms", "demotion_max", "cap", "robots", "pages_per_host_max",
        "pages_max", "paused", "stopped", "throttled",
    ]  # fmt: skip
    async with frontier.client.pipeline(transaction=False) as pipe:
        pipe.hmget(frontier.keys.state, names)
        pipe.hmget(frontier.keys.totals, ["page.done", "page.streamed"])
        pipe.time()
        pipe.zrandmember(frontier.keys.schedule, _OTHERS_LOOKED)
        pipe.xrange(frontier.keys.fetch_stream, count=_OTHERS_LOOKED)
        with mapped_errors():
            values, pages, time, waiting, entries = await pipe.execute()
    texts = dict(zip(names, ((value or b"").decode("utf-8", "replace") for value in values), strict=True))
    wall_ms = server_ms(time)
    last_ms = int(texts["wall_ms"] or wall_ms)
    # As _now.lua lets it go on: by no more than one step of 5 s, and never back.
    step_ms = wall_ms - last_ms if 0 < wall_ms - last_ms <= 5000 else 0
    halts = (
        ("paused", "the crawl is paused"),
        ("stopped", f"the crawl is stopped ({texts['stopped']})"),
        ("throttled", f"dispatch waits for the output {texts['throttled']}"),
    )
    budget, pages_max = texts["pages_per_host_max"], texts["pages_max"]
    halt = next((words for name, words in halts if texts[name] not in ("", "0")), "")
    if not halt and pages_max and sum(int(count or 0) for count in pages) >= int(pages_max):
        halt = "the page budget is used up (--max-pages)"
    return ShardState(
        now_ms=int(texts["clock_ms"] or wall_ms) + step_ms,
        wall_ms=wall_ms,
        delay_ms=int(texts["delay_ms"] or 0),
        delay_max_ms=int(texts["delay_max_ms"] or _DEFAULTS.delay_max_ms),
        demotion_max=int(texts["demotion_max"] or _DEFAULTS.demotion_max),
        others_wait=await _others_wait(frontier, waiting, [fields.get(b"host", b"") for _, fields in entries]),
        cap=int(texts["cap"] or 1),
        obeys_robots=texts["robots"] == "1",
        pages_per_host_max=int(budget) if budget else None,
        halt=halt,
    )


async def _others_wait(frontier: Frontier, waiting: Sequence[bytes], under_way: Sequence[bytes]) -> bool:
    if frontier.by_domain:
        # Those at their cap are not in the schedule.
        busy = {frontier.scheduled_as(host.decode("utf-8", "replace")).encode() for host in under_way}
        domains = list({*waiting, *busy})
        waiting = await hosts_of_domains(frontier.client, frontier.keys, domains, _OTHERS_LOOKED * len(domains))
    hosts = [host.decode("utf-8", "replace") for host in (*waiting, *under_way)]
    if not hosts:
        return False
    async with frontier.client.pipeline(transaction=False) as pipe:
        pipe.zmscore(frontier.keys.demoted, hosts)
        pipe.zmscore(frontier.keys.failing, hosts)
        with mapped_errors():
            demoted, failing = await pipe.execute()
    return any(one is None and other is None for one, other in zip(demoted, failing, strict=True))


async def host_page(crawl: Shards, key: str) -> HostPage:
    """Return all that is known of one host, by its key."""
    frontier = crawl.of(key)
    client, keys = frontier.client, frontier.keys
    state = await shard_state(frontier)
    async with client.pipeline(transaction=False) as pipe:
        pipe.hgetall(keys.host(key))
        for level in Level:
            pipe.llen(keys.queue(key, level))
        for zset in (keys.failing, keys.blocked):
            pipe.zscore(zset, key)
        pipe.get(keys.robots(key))
        pipe.pttl(keys.robots(key))
        with mapped_errors():
            stored, *lengths, failing, blocked, robots, ttl_ms = await pipe.execute()
    fields = HostFields.read(stored)
    of_domain: HostFields | None = None
    if frontier.by_domain:
        fields = msgspec.structs.replace(fields, domain=fields.domain or frontier.scheduled_as(key))
        with mapped_errors():
            domain: Any = await client.hgetall(keys.domain(fields.domain))
            turns = [await client.zscore(zset(fields.domain), key) for zset in (keys.turns, keys.probes)]
        of_domain = HostFields.read(domain)
        scheduled = next((score for score in turns if score is not None), None)
        if scheduled is not None:
            scheduled = max(scheduled, of_domain.due, of_domain.blocked_until)
        fields = fields.under(of_domain)
    else:
        with mapped_errors():
            scheduled = await client.zscore(keys.schedule, key)
    found = HostPage(
        key=key,
        shard=crawl.index_of(key),
        is_known=bool(stored),
        fields=fields,
        state=state,
        of_domain=of_domain,
        queued={LEVEL_NAMES[level]: count for level, count in zip(Level, lengths, strict=True)},
        scheduled_ms=_whole(scheduled),
        failing_since_ms=_whole(failing),
        blocked_since_ms=_whole(blocked),
    )
    found.robots, found.robots_text = _read_robots(robots, ttl_ms, found)
    found.in_flight = await in_flight_of(frontier, key)
    return found


async def add_dead(crawl: Shards, page: HostPage) -> None:
    """Count the host's dead letters among the newest of its shard."""
    counts: Counter[str] = Counter()
    async with aclosing(newest_of(crawl.of(page.key), page.shard, Where())) as letters:
        async for letter in letters:
            page.letters_looked += 1
            if letter.host == page.key:
                counts[letter.reason] += 1
            if page.letters_looked == LETTERS_MAX:
                break
    page.dead = dict(counts.most_common())


async def in_flight_of(frontier: Frontier, key: str) -> list[InFlight]:
    """Return the host's entries in the fetch stream, with who has each in hand."""
    client, stream = frontier.client, frontier.keys.fetch_stream
    found: list[Any] = []
    start, wanted = "-", key.encode()
    for _ in range(0, ENTRIES_MAX, _ENTRIES_PER_CALL):
        with mapped_errors():
            rows: Any = await client.xrange(stream, start, "+", count=_ENTRIES_PER_CALL)
        found += [(entry_id, fields) for entry_id, fields in rows if fields.get(b"host") == wanted]
        if len(rows) < _ENTRIES_PER_CALL:
            break
        start = f"({rows[-1][0].decode()}"
    held: list[Any] = []
    for first in range(0, len(found), _ENTRIES_PER_CALL):
        async with client.pipeline(transaction=False) as pipe:
            for entry_id, _ in found[first : first + _ENTRIES_PER_CALL]:
                pipe.xpending_range(stream, GROUP, entry_id, entry_id, 1)
            try:
                with mapped_errors():
                    held += await pipe.execute()
            except NoGroup:
                held += [[]] * (len(found) - first)  # the stream was lost under our hands
                break
    return [_in_flight(entry_id, fields, rows) for (entry_id, fields), rows in zip(found, held, strict=True)]


def _in_flight(entry_id: bytes, fields: dict[bytes, bytes], rows: Sequence[Any]) -> InFlight:
    consumer, idle_ms = (rows[0]["consumer"].decode(), rows[0]["time_since_delivered"]) if rows else ("", 0)
    level = fields.get(b"level", b"").decode("utf-8", "replace")
    return InFlight(entry_id.decode(), level, fields.get(b"task", b""), consumer, idle_ms)


def _whole(score: float | None) -> int | None:
    return None if score is None else int(score)


class _Verdict(msgspec.Struct):
    """The head of a stored verdict (work/robots.py)."""

    verdict: str
    status: int
    delay_ms: int


def _read_robots(stored: bytes | None, ttl_ms: int, page: HostPage) -> tuple[str, str | None]:
    """Return a stored verdict in words, and the text of the file."""
    if not page.state.obeys_robots:
        return "not asked for (--no-robots)", None
    fields = page.fields
    if fields.robots == "asked":
        return "being asked for", None
    if stored is None:
        return "not known: asked for with the next page", None
    head, _, text = stored.partition(b"\n")
    try:
        said = msgspec.json.decode(head, type=_Verdict)
    except msgspec.DecodeError:
        return f"stored, and cannot be read: {head[:80]!r}", None
    # The key outlives the verdict: an hour, for workers that have a page of the host in hand, or until another is had.
    left_ms = fields.robots_until - page.state.now_ms
    until = f"asked for again in {span(left_ms)}" if left_ms > 0 else "asked for again with the next page"
    if said.verdict != "parse":
        return f"none (answer {said.status or 'of no use'}), so everything is allowed; {until}", None
    delay = f", Crawl-delay {span(said.delay_ms)}" if said.delay_ms else ""
    return f"answer {said.status}, {len(text):,} bytes{delay}; {until}", text.decode("utf-8", "replace")


def host_lines(page: HostPage) -> list[str]:
    """Return a host as lines of plain text."""
    fields, state = page.fields, page.state
    queued = ", ".join(f"{count:,} {name}" for name, count in page.queued.items() if count) or "0"
    set_for_it = " (set for it)" if fields.cap and not fields.failing else ""
    under_way = f"{len(page.in_flight)} of {page.cap} at a time{set_for_it}"
    if page.of_domain is not None:
        under_way = (
            f"{len(page.in_flight)}; of its domain {page.of_domain.in_flight} of {page.cap} at a time{set_for_it}"
        )
    rows = [
        ("standing", page.standing()),
        *([("domain", f"{fields.domain}: its hosts take turns, and cap and delay are of all of them")]
          if page.of_domain is not None else []),
        ("queued", queued),
        ("under way", under_way),
        *(
            ("", f"{one.entry_id} in the hands of {one.consumer} for {span(one.idle_ms)}" if one.consumer
             else f"{one.entry_id} waits to be read")
            for one in page.in_flight[:10]
        ),
        ("pages done", f"{fields.pages:,}"),
        ("delay", delay_words(page)),
        ("robots.txt", page.robots),
    ]  # fmt: skip
    if fields.failures:
        since = "" if page.failing_since_ms is None else f", for {span(state.now_ms - page.failing_since_ms)}"
        rows.append(("failing", f"{fields.failures} times in a row{since}; last: {fields.failing or 'unanswered'}"))
    if fields.failing:
        rows.append(("circuit", _CIRCUIT_WORDS[fields.circuit(state)]))
    if fields.blocked_until > state.now_ms:
        rows.append(
            ("left alone", f"for another {span(fields.blocked_until - state.now_ms)} (its own word, or failures)")
        )
    dead = ", ".join(f"{reason} {count:,}" for reason, count in page.dead.items()) or "none"
    rows.append(("dead letters", f"{dead} (of the newest {page.letters_looked:,})"))
    width = max(len(label) for label, _ in rows)
    return [page.key, *(f"  {label:<{width}}  {text}" for label, text in rows)]


_CIRCUIT_WORDS: Final = {
    Circuit.OPEN: "open: it is left alone, then asked by one fetch at a time until it answers",
    Circuit.HALF_OPEN: "half-open: one fetch at a time until it answers",
}


def delay_words(page: HostPage) -> str:
    """Return the delay in force, and why it is this one."""
    fields = page.fields
    delay_ms, reason = fields.delay_in_force(page.state)
    why = ""
    if reason is DelayReason.OPERATOR:
        why = ", set for it"
    elif reason is DelayReason.RESPONSE_TIME:
        why = ", as its answers take long"
    elif reason is DelayReason.THROTTLED:
        ago = span(page.state.now_ms - fields.throttled_at)
        why = f", as it was asked too often: last doubled {ago} ago ({fields.throttled_by}), less with each answer"
    times = fields.demotion(page.state)
    if reason is DelayReason.DEMOTED:
        why = f", {times} times its own while other hosts wait, as its pages are {alike_words(fields)}"
    elif times:
        why += f", up to {times} times as long while other hosts wait, as its pages are {alike_words(fields)}"
    asked = f", its Crawl-delay is {span(fields.delay)}" if fields.delay and not fields.delay_set else ""
    return f"{span(delay_ms)}{why}{asked}"


def alike_words(fields: HostFields) -> str:
    """Return how many pages of a host are near-identical."""
    return f"near-identical ({fields.alike / 10:.0f} % of the last ones)"


# -- many hosts


async def list_hosts(crawl: Shards, most: int) -> HostList:
    """Return hosts that stand out, at most `most` of each sort."""
    found = HostList()
    for frontier in crawl:
        await _add_listed(frontier, found, most)
        await _add_given_up(frontier, found, most)
    largest, found.looked, found.scheduled = await largest_hosts(crawl, most)
    found.largest = largest
    for part in (found.blocked, found.failing, found.demoted, found.given_up):
        del part[most:]
    return found


async def largest_hosts(crawl: Shards, most: int) -> tuple[list[HostRow], int, int]:
    """Return the hosts with most queued among a sample, how many hosts that was, and how many are scheduled in all.

    Looked at are some of the scheduled ones, by chance, and those under way or blocked, which are not scheduled.
    """
    rows: list[HostRow] = []
    looked = scheduled = 0
    for frontier in crawl:
        client, keys = frontier.client, frontier.keys
        async with client.pipeline(transaction=False) as pipe:
            pipe.zcard(keys.schedule)
            pipe.zrandmember(keys.schedule, SAMPLE)
            pipe.xrange(keys.fetch_stream, count=SAMPLE)
            pipe.zrange(keys.blocked, 0, SAMPLE - 1)
            with mapped_errors():
                count, sample, entries, blocked = await pipe.execute()
        if frontier.by_domain:
            sample = await hosts_of_domains(client, keys, sample, SAMPLE)
        hosts = [*sample, *(fields[b"host"] for _, fields in entries if b"host" in fields), *blocked]
        names = list(dict.fromkeys(host.decode("utf-8", "replace") for host in hosts))
        scheduled += count
        looked += len(names)
        rows += [row for row in await _rows(frontier, names) if row.queued]
        rows = sorted(rows, key=lambda row: row.queued, reverse=True)[:most]
    return rows, looked, scheduled


async def hosts_of_domains(client: Redis, keys: Keys, domains: Sequence[bytes], most: int) -> list[bytes]:
    """Return some hosts of scheduled domains by chance, about `most` of all, as the schedule has them by host."""
    if not domains:
        return []
    each = max(1, most // len(domains))
    async with client.pipeline(transaction=False) as pipe:
        for domain in domains:
            name = domain.decode("utf-8", "replace")
            pipe.zrandmember(keys.turns(name), each)
            pipe.zrandmember(keys.probes(name), each)
        with mapped_errors():
            answers: list[list[bytes]] = await pipe.execute()
    return [host for answer in answers for host in answer][:most]


async def _add_listed(frontier: Frontier, found: HostList, most: int) -> None:
    keys = frontier.keys
    state = await shard_state(frontier)
    async with frontier.client.pipeline(transaction=False) as pipe:
        for zset in (keys.blocked, keys.failing, keys.demoted):
            pipe.zcard(zset)
            pipe.zrange(zset, 0, most - 1, withscores=True)
        with mapped_errors():
            blocked_count, blocked, failing_count, failing, demoted_count, demoted = await pipe.execute()
    found.blocked_count += blocked_count
    found.failing_count += failing_count
    whens = {host.decode(): f"since {moment(int(score))}" for host, score in blocked}
    found.blocked += [row._replace(what=whens[row.host]) for row in await _rows(frontier, list(whens))]
    whens = {host.decode(): f"for {span(state.now_ms - int(score))}" for host, score in failing}
    found.failing += [
        row._replace(what=f"{row.what} {whens[row.host]}".strip()) for row in await _rows(frontier, list(whens))
    ]
    if state.demotion_max > 1:
        found.demoted_count += demoted_count
        whens = {host.decode(): f"since {moment(int(score))}" for host, score in demoted}
        found.demoted += [
            row._replace(what=f"{row.what} {whens[row.host]}")
            for row in await _rows(frontier, list(whens), alike_words)
        ]


async def _add_given_up(frontier: Frontier, found: HostList, most: int) -> None:
    keys = frontier.keys
    async with frontier.client.pipeline(transaction=False) as pipe:
        pipe.zrange(keys.giving_up, 0, most - 1)
        pipe.xrevrange(keys.dead, count=1000)
        with mapped_errors():
            emptying, letters = await pipe.execute()
    named = [
        *emptying,
        *(
            fields.get(b"host", b"")
            for _, fields in letters
            if fields.get(b"reason", b"").decode("utf-8", "replace") in _HOST_REASONS
        ),
    ]
    hosts = list(dict.fromkeys(host.decode("utf-8", "replace") for host in named))[:most]
    # Replayed or given another chance since: then its hash says nothing of it any more.
    found.given_up += [row for row in await _rows(frontier, hosts, lambda one: one.given_up) if row.what]


async def _rows(
    frontier: Frontier, hosts: Sequence[str], what: Callable[[HostFields], str] = lambda one: one.failing
) -> list[HostRow]:
    if not hosts:
        return []
    state = await shard_state(frontier)
    async with frontier.client.pipeline(transaction=False) as pipe:
        for host in hosts:
            pipe.hgetall(frontier.keys.host(host))
        with mapped_errors():
            answers = await pipe.execute()
    every = list(map(HostFields.read, answers))
    if frontier.by_domain:
        names = list({one.domain for one in every})
        async with frontier.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(frontier.keys.domain(name))
            with mapped_errors():
                domains = dict(zip(names, map(HostFields.read, await pipe.execute()), strict=True))
        # Why it is listed is its own: a domain that fails would make all of its hosts failing ones.
        every = [msgspec.structs.replace(one.under(domains[one.domain]), failing=one.failing) for one in every]
    found = zip(hosts, every, strict=True)
    return [
        HostRow(host, one.queued, one.in_flight, one.pages, what(one), *one.delay_in_force(state))
        for host, one in found
    ]


def host_list_lines(found: HostList) -> list[str]:
    """Return the lists as lines of plain text."""
    sample = f"of {found.looked:,} looked at, {found.scheduled:,} are scheduled"
    sections = (
        ("blocked", f"{found.blocked_count:,}", found.blocked),
        ("failing", f"{found.failing_count:,}", found.failing),
        ("demoted", f"{found.demoted_count:,}", found.demoted),
        ("given up", "as far as the newest dead letters name them", found.given_up),
        ("with most queued", sample, found.largest),
    )
    lines: list[str] = []
    for title, note, rows in sections:
        if rows:
            lines.append(f"{title} ({note}):")
            lines += [
                f"  {row.host}  {row.queued:,} queued, {row.in_flight} under way, {row.pages:,} done"
                + (
                    f", delay {span(row.delay_ms)} ({row.delay_reason})"
                    if row.delay_reason != DelayReason.CRAWL
                    else ""
                )
                + (f", {row.what}" if row.what and title != "with most queued" else "")
                for row in rows
            ]
    return lines or ["no host is blocked, failing, demoted or given up, and none has anything queued"]
