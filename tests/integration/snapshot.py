"""The whole state of a crawl in Redis as a Python value, the accounts that must hold in it, and a hand that moves it.

`snapshot` and `changes` show what one script call did, all of it: a test compares the changes, so a write that nobody
asked for fails it. `assert_accounts` recounts the invariants from the structures, in Python and not by audit.lua.
`Lab` does by hand what workers do: offer, read, commit, and let time pass without waiting for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from streamcrawl.rules.scope import sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, Kind, Level, Outcome, decode_task, encode_task
from streamcrawl.rules.urls import split_url
from streamcrawl.settings import make_settings
from streamcrawl.store.frontier import Commit, Committed, Frontier, Links, open_shard
from streamcrawl.store.keys import FETCH, GROUP
from streamcrawl.store.recount import Walk
from streamcrawl.store.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from redis.asyncio import Redis


FETCH_STREAM: Final = f"stream:{FETCH}"
CLOCKS: Final = ("clock_ms", "wall_ms")
"""Fields of the state that every call moves."""

State = dict[str, Any]
"""Key without its prefix -> a hash or zset as dict, a list, a set as sorted list, a string, or a stream as
{entries: [fields], pending: [[consumer, fields]], consumers: [name]}.

Entry ids, which no test can know, are left out."""


async def snapshot(frontier: Frontier) -> State:
    """Return everything that the crawl's shard has in Redis, but for the clock's two fields."""
    client: Any = frontier.client
    keys = frontier.keys
    names = sorted([key.decode() async for key in client.scan_iter(match=keys.pattern, count=10_000)])
    async with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.type(name)
        kinds = [kind.decode() for kind in await pipe.execute()]
        for name, kind in zip(names, kinds, strict=True):
            _QUERIES[kind](pipe, name)
        values = await pipe.execute()
    state: State = {}
    for name, kind, value in zip(names, kinds, values, strict=True):
        read = await _stream(client, name, value) if kind == "stream" else _VALUES[kind](value)
        state[name.removeprefix(keys.prefix)] = read
    for clock in CLOCKS:
        state.get("state", {}).pop(clock, None)
    return state


_QUERIES: Final[dict[str, Callable[[Any, str], Any]]] = {
    "hash": lambda pipe, name: pipe.hgetall(name),
    "list": lambda pipe, name: pipe.lrange(name, 0, -1),
    "zset": lambda pipe, name: pipe.zrange(name, 0, -1, withscores=True),
    "set": lambda pipe, name: pipe.smembers(name),
    "stream": lambda pipe, name: pipe.xrange(name),
    "string": lambda pipe, name: pipe.get(name),
}
_VALUES: Final[dict[str, Callable[[Any], Any]]] = {
    "hash": lambda raw: {_read(field): _read(value) for field, value in raw.items()},
    "list": lambda raw: [_read(value) for value in raw],
    "zset": lambda raw: {_read(member): round(score) for member, score in raw},
    "set": lambda raw: sorted(int(member) for member in raw),
    "string": lambda raw: _read(raw),
}


async def _stream(client: Any, name: str, raw: list[Any]) -> dict[str, Any]:
    entries = {entry_id: {_read(field): _read(value) for field, value in fields.items()} for entry_id, fields in raw}
    if not await client.xinfo_groups(name):
        return {"entries": list(entries.values())}
    async with client.pipeline(transaction=False) as pipe:
        pipe.xpending_range(name, GROUP, "-", "+", 10_000)
        pipe.xinfo_consumers(name, GROUP)
        rows, consumers = await pipe.execute()
    return {
        "entries": list(entries.values()),
        "pending": [[row["consumer"].decode(), entries.get(row["message_id"])] for row in rows],
        "consumers": sorted(row["name"].decode() for row in consumers),
    }


def _read(raw: bytes) -> Any:
    text = raw.decode(errors="surrogateescape")
    # Only what reads back as it is: an item '00' is no number.
    return int(text) if text.removeprefix("-").isdecimal() and str(int(text)) == text else text


def _size(value: Any) -> int:
    """Return how many bytes a value has in Redis."""
    return len(str(value).encode(errors="surrogateescape"))


def changes(before: State, after: State) -> State:
    """Return what differs, by key; None stands for what is absent.

    Hashes and zsets: field -> (old, new). Streams: part -> (what went, what came). Sets: (what went, what came). The
    rest: (old, new).
    """
    found: State = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if key.startswith("seen:"):
            found[key] = _went_and_came(old, new)
        elif isinstance(old or new, dict):
            old, new = old or {}, new or {}
            is_parted = key.startswith(("stream:", "log:")) or key == "dead"
            found[key] = {
                field: (_went_and_came if is_parted else _pair)(old.get(field), new.get(field))
                for field in sorted(old.keys() | new.keys())
                if old.get(field) != new.get(field)
            }
        else:
            found[key] = (old, new)
    return found


def _pair(old: Any, new: Any) -> tuple[Any, Any]:
    return old, new


def _went_and_came(old: list[Any] | None, new: list[Any] | None) -> tuple[list[Any], list[Any]]:
    went, came = list(old or []), list(new or [])
    for one in old or []:
        if one in came:
            went.remove(one)
            came.remove(one)
    return went, came


# -- accounts


async def assert_accounts(frontier: Frontier, flying: Mapping[str, int] | None = None) -> State:
    """Recount invariants 1 to 3 from the structures; return the snapshot they were counted in.

    `flying` says how many of a host were in flight before: when its cap was lowered meanwhile they may stay.

    1: each line is conserved, by totals and by what lies there. 2: a task lies in one place only, and each pending row
    has its entry. 3: a host's in_flight is its entries in the stream and at most its cap, and it is in the schedule
    exactly when something of it may be sent.
    """
    state = await snapshot(frontier)
    faults = _faults(state, flying or {})
    assert not faults, "\n".join(faults)
    return state


def _faults(state: State, flying: Mapping[str, int]) -> list[str]:
    faults: list[str] = []

    def expect(what: str, counted: Any, found: Any) -> None:
        if counted != found:
            faults.append(f"{what}: counted {counted}, found {found}")

    totals, fields = state.get("totals", {}), state["state"]
    queued, streamed, delayed = Counter[str](), Counter[str](), Counter[str]()
    queued_of, in_flight_of, pages_in_flight_of = Counter[str](), Counter[str](), Counter[str]()
    robots_tasks = Counter[str]()
    seeds = 0
    places: dict[tuple[str, str], list[str]] = {}

    def place(host: str, level: str, stored: str, where: str) -> str:
        task = decode_task(host, level, stored.encode())
        places.setdefault((task.url, task.kind.value), []).append(where)
        nonlocal seeds
        seeds += task.kind is Kind.PAGE and task.depth == 0
        robots_tasks[host] += task.kind is Kind.ROBOTS
        if (task.kind is Kind.ROBOTS) != (level == Level.CONTROL):
            faults.append(f"{task.kind} task in level {level} of {host}")
        return task.kind.value

    for key, value in state.items():
        if key.startswith("queue:"):
            host, _, level = key.removeprefix("queue:").rpartition(":")
            queued_of[host] += len(value)
            for stored in value:
                queued[place(host, level, stored, key)] += 1
    for entry in state[FETCH_STREAM]["entries"]:
        in_flight_of[entry["host"]] += 1
        line = place(entry["host"], str(entry["level"]), entry["task"], FETCH_STREAM)
        streamed[line] += 1
        pages_in_flight_of[entry["host"]] += line == "page"
    stages = [name for name in str(fields.get("stages", "")).split(",") if name]
    for member in state.get("delayed", {}):
        if member.startswith("stage|"):
            delayed[member.split("|")[1]] += 1
            continue
        _, level, host, stored = member.split("|", 3)
        delayed[place(host, level, stored, "delayed")] += 1
    for member in state.get("revisits", {}):
        level, host, rest = member.split("|", 2)
        task = decode_task(host, level, f"[0,0,{rest}".encode())
        places.setdefault((task.url, task.kind.value), []).append("revisits")
        if task.again is None or task.attempt != 1:
            faults.append(f"{task} is no page to visit again")
    dead = Counter[str]()
    for letter in state.get("dead", {}).get("entries", []):
        if letter["stage"] != "fetch":
            dead[letter["stage"]] += 1
            continue
        named = [kind.value for kind in Kind if f',"{kind}",' in str(letter["task"])]  # "0" reads as a number
        dead[named[0] if named else "page"] += 1

    for stage in stages:
        streamed[stage] = len(state[f"stream:{stage}"]["entries"])
        items = [str(entry["item"]) for entry in state[f"stream:{stage}"]["entries"]]
        expect(f"{stage}.bytes", totals.get(f"{stage}.bytes", 0), sum(map(_size, items)))
    for line in ("page", "robots", "sitemap", *stages):
        count = {name: totals.get(f"{line}.{name}", 0) for name in ("created", "done", "dead", "dropped")}
        for name, found in (("queued", queued), ("streamed", streamed), ("delayed", delayed), ("dead", dead)):
            expect(f"{line}.{name}", totals.get(f"{line}.{name}", 0), found[line])
        left = queued[line] + streamed[line] + delayed[line]
        expect(f"{line}.created", count["created"], left + count["done"] + count["dead"] + count["dropped"])
        for end in ("dead", "dropped"):
            reasons = sum(n for name, n in totals.items() if name.startswith(f"{line}.{end}."))
            expect(f"{line}.{end} by reason", count[end], reasons)
    if "upgraded_from" not in fields:
        # Schema 1 did not count them, nor do its workers that run on.
        expect("seeds that are not ended", totals.get("seed.created", 0) - totals.get("seed.ended", 0), seeds)
    for sink in filter(None, str(fields.get("sinks", "")).split(",")):
        items = [str(entry["item"]) for entry in state[f"{FETCH_STREAM}:{sink}"]["entries"]]
        waiting = len(items)
        if "upgraded_from" not in fields:
            # As above: who does not count them adds none.
            expect(f"{sink}.bytes", totals.get(f"{sink}.bytes", 0), sum(map(_size, items)))
        expect(f"{sink}.streamed", totals.get(f"{sink}.streamed", 0), waiting)
        expect(f"{sink}.created", totals.get(f"{sink}.created", 0), waiting + totals.get(f"{sink}.done", 0))

    for name in (one.partition("=")[0] for one in str(fields.get("logs", "")).split(",") if one):
        entries = state.get(f"log:{name}", {}).get("entries", [])
        created, expired, trimmed, size = (
            totals.get(f"log:{name}.{word}", 0) for word in ("created", "expired", "trimmed", "bytes")
        )
        expect(f"log {name}", created - expired - trimmed, len(entries))
        expect(f"log {name} bytes", size, sum(_size(entry["item"]) + _size(entry["url"]) + 64 for entry in entries))

    for (url, kind), where in places.items():
        if len(where) > 1:
            faults.append(f"{kind} {url} lies in {where}")
    for consumer, entry in state[FETCH_STREAM]["pending"]:
        if entry is None:
            faults.append(f"{consumer} holds a row without an entry")

    hosts = {key.removeprefix("host:"): value for key, value in state.items() if key.startswith("host:")}
    by_domain = fields.get("by_domain") == 1
    ready_of: dict[str, set[str]] = {}
    for host in sorted(hosts.keys() | queued_of.keys() | in_flight_of.keys()):
        h = hosts.get(host, {})
        cap = h.get("cap") or fields["cap"]
        expect(f"queued of {host}", h.get("queued", 0), queued_of[host])
        expect(f"in_flight of {host}", h.get("in_flight", 0), in_flight_of[host])
        if not by_domain and in_flight_of[host] > max(cap, flying.get(host, 0)):
            faults.append(f"{host} has {in_flight_of[host]} in flight, its cap is {cap}")
        most = fields.get("pages_per_host_max")
        pages = h.get("pages", 0) + pages_in_flight_of[host]
        if most and pages > most:
            faults.append(f"{host} has {pages} pages done or in flight, its most is {most}")
        is_asked = fields["robots"] == 1 and h.get("robots") == "asked"
        if is_asked and not h.get("given_up"):
            expect(f"robots tasks of {host}, which is asked", 1, robots_tasks[host])
        expect(f"{host} among the blocked", host in state.get("blocked", {}), h.get("blocked") == 1)
        expect(f"{host} among the demoted", host in state.get("demoted", {}), h.get("demoted", 0) > 0)
        # Of an open circuit one probe at a time. By domain the cap is not the host's.
        room = (1 if h.get("failing") else 10**9 if by_domain else cap) - in_flight_of[host]
        should = (
            queued_of[host] > 0
            and not h.get("given_up")
            and not h.get("blocked")
            and room > 0
            and (not most or h.get("pages", 0) + in_flight_of[host] < most)
            and (not is_asked or f"queue:{host}:0" in state)
        )
        if by_domain and h:
            ready = ready_of.setdefault(h["domain"], set())
            if should:
                ready.add(host)
            turns = f"{'probes' if h.get('failing') else 'turns'}:{h['domain']}"
            expect(f"{host} in {turns}", host in state.get(turns, {}), should)
        else:
            expect(f"{host} in the schedule", host in state.get("schedule", {}), should)
        if h.get("given_up") and queued_of[host] and host not in state.get("giving_up", {}):
            faults.append(f"{host} is given up ({h['given_up']}) and nobody empties its queue")
    if by_domain:
        return faults + _faults_of_domains(state, ready_of, hosts, in_flight_of, flying)
    faults += [f"{host} is scheduled and has no state" for host in state.get("schedule", {}) if host not in hosts]
    return faults


def _faults_of_domains(
    state: State,
    ready_of: Mapping[str, set[str]],
    hosts: Mapping[str, Any],
    in_flight_of: Mapping[str, int],
    flying: Mapping[str, int],
) -> list[str]:
    """Recount what politeness by domain counts; the hosts that are ready of each were found before."""
    faults: list[str] = []
    named = {key.partition(":")[2] for key in state if key.startswith(("domain:", "turns:", "probes:"))}
    for name in sorted(named | ready_of.keys() | state.get("schedule", {}).keys()):
        d = state.get(f"domain:{name}", {})
        of = {host: in_flight_of[host] for host, h in hosts.items() if h["domain"] == name and in_flight_of[host]}
        told = {field.removeprefix("in_flight:"): n for field, n in d.items() if field.startswith("in_flight:")}
        if told != of:
            faults.append(f"{name} counts {told} in flight, found {of}")
        cap, under_way = d.get("cap") or state["state"]["cap"], sum(of.values())
        if under_way > max(cap, sum(flying.get(host, 0) for host, h in hosts.items() if h["domain"] == name)):
            faults.append(f"{name} has {under_way} in flight, its cap is {cap}")
        places = {*state.get(f"turns:{name}", {}), *state.get(f"probes:{name}", {})}
        if places != ready_of.get(name, set()):
            faults.append(f"turns of {name}: {sorted(places)}, ready are {sorted(ready_of.get(name, ()))}")
        should = bool(places) and under_way < (1 if d.get("failing") else cap)
        if (name in state.get("schedule", {})) != should:
            faults.append(f"{name} in the schedule: {not should}, should be {should}")
    return faults


async def assert_known_keys(frontier: Frontier) -> None:
    """Check that keys.py knows every key and its type, and that those it does not call permanent have a TTL."""
    client: Any = frontier.client
    keys = frontier.keys
    async for raw in client.scan_iter(match=keys.pattern, count=10_000):
        name = raw.decode()
        kind = keys.describe(name)
        assert kind is not None, f"keys.py does not know {name}"
        assert kind.type == (await client.type(name)).decode(), name
        has_ttl = await client.pttl(name) >= 0
        assert has_ttl is not kind.is_permanent, f"{name}: TTL {has_ttl}, permanent {kind.is_permanent}"


# -- the hand


@dataclass(frozen=True, slots=True)
class Held:
    """One entry as a worker has it in hand."""

    id: str
    task: CrawlTask
    stored: str
    delay: int = 0
    """Of its host, ms, as the entry says it."""
    cap: int = 1

    @property
    def host(self) -> str:
        return self.task.host


def fast(name: str, **values: Any) -> dict[str, Any]:
    """Return settings under which nothing waits: no robots, no delay, cap 1."""
    return {"name": name, "obey_robots": False, "delay_ms": 0, "delay_max_ms": 0, "host_concurrency": 1} | values


def page(url: str, **values: Any) -> CrawlTask:
    host, path = split_url(url)
    return CrawlTask(host=host, path=path, **values)


def urls(host: str, count: int, start: int = 0) -> list[str]:
    return [f"http://{host}/{n}" for n in range(start, start + count)]


def sitemaps(*addresses: str, **values: Any) -> Links:
    """Return sitemaps to offer, by the fingerprints of a scope that does not look at hosts."""
    found = Links()
    for address in addresses:
        task = page(address, kind=Kind.SITEMAP, **values)
        found.add(task, sitemap_fingerprint(task, task.host, "any"))
    return found


def links(*addresses: str, **values: Any) -> Links:
    found = Links()
    for address in addresses:
        found.add(page(address, **values))
    return found


class Lab:
    """One crawl, moved by hand."""

    def __init__(self, frontier: Frontier) -> None:
        self.frontier = frontier
        self.client: Any = frontier.client
        """Any: the types of redis-py leave bytes, str and None open in every answer."""
        self.keys = frontier.keys

    @classmethod
    async def opened(cls, client: Redis, *, sinks: Sequence[str] = (), slots: int = 1000, **values: Any) -> Self:
        """Open a crawl with live `slots`, as if workers had beaten."""
        frontier, _ = await open_shard(client, make_settings(**values), sinks=sinks)
        await frontier.control(slots=slots)
        return cls(frontier)

    @property
    def crawl(self) -> Shards:
        """The crawl of which this is the only shard."""
        return Shards([self.frontier])

    async def audit_chunk(self, hosts: Sequence[str]) -> list[Any]:
        """Return the raw answer of audit.lua for a few hosts."""
        [answer] = [one async for one in self.frontier.audit(Walk(self.client, self.keys.fetch_stream), hosts)]
        return answer

    async def snapshot(self) -> State:
        return await snapshot(self.frontier)

    async def changes(self, act: Awaitable[Any]) -> tuple[Any, State]:
        """Return the answer of `act`, not yet awaited, and all that it changed."""
        before = await self.snapshot()
        answer = await act
        return answer, changes(before, await self.snapshot())

    async def offer(self, *addresses: str, **values: Any) -> int:
        """Offer URLs as seeds, in chunks; return how many were new."""
        todo, new = links(*addresses, **values), 0
        while todo:
            word, count = await self.frontier.offer(todo.take(250))
            assert word == "OK", word
            new += count
        return new

    async def read(self, consumer: str = "w1", count: int = 1000) -> list[Held]:
        """Read what waits in the fetch stream, as this consumer."""
        answer = await self.client.xreadgroup(GROUP, consumer, {self.keys.fetch_stream: ">"}, count=count)
        return [self.held(*row) for row in answer[0][1]] if answer else []

    def held(self, entry_id: bytes, fields: dict[bytes, bytes]) -> Held:
        stored = fields[b"task"]
        task = decode_task(fields[b"host"].decode(), fields[b"level"].decode(), stored)
        politeness = int(fields.get(b"delay", 0)), int(fields.get(b"cap", 1))
        return Held(entry_id.decode(), task, stored.decode(), *politeness)

    async def take(self, consumer: str = "w1", count: int = 1000) -> list[Held]:
        """Dispatch and read."""
        await self.frontier.dispatch(count)
        return await self.read(consumer, count)

    def commit_of(self, held: Held, outcome: Outcome = Outcome.DONE, **values: Any) -> Commit:
        """Return a commit with the detail that its outcome needs, unless one is given."""
        level, stored = held.task.level.value, held.stored
        details: dict[Outcome, tuple[Any, ...]] = {
            Outcome.DONE: ("{}", 60_000, 0) if held.task.kind is Kind.ROBOTS else (),
            Outcome.RETRY: (1000, level, encode_task(again(held.task)).decode()),
            Outcome.UNANSWERED: (level, stored, "connect", 1000, 60_000, 1000),
            Outcome.DEAD: (level, stored, "http", "404", "404"),
            Outcome.DROPPED: ("robots",),
            Outcome.REDIRECTED: (),
            Outcome.CONTINUED: (1000, level, stored),
        }
        fields: dict[str, Any] = {"is_fetched": True, "detail": details[outcome]} | values
        return Commit(entry_id=held.id, host=held.host, kind=held.task.kind, outcome=outcome, **fields)

    async def commit(self, *commits: Commit, limit: int = 0) -> Committed:
        packed = [commit.pack(by_domain=self.frontier.by_domain) for commit in commits]
        return await self.frontier.commit("w1", packed, limit)

    async def end(self, held: Held, outcome: Outcome = Outcome.DONE, **values: Any) -> str:
        """Commit one entry; return its word."""
        return (await self.commit(self.commit_of(held, outcome, **values))).words[0]

    async def end_all(self, held: Sequence[Held]) -> None:
        for start in range(0, len(held), 100):
            committed = await self.commit(*(self.commit_of(one) for one in held[start : start + 100]))
            assert set(committed.words) == {"DONE"}

    async def let_pass(self, ms: int) -> None:
        """Let crawl time pass at once."""
        await self.client.hincrby(self.keys.state, "clock_ms", ms)

    async def now(self) -> int:
        return int(await self.client.hget(self.keys.state, "clock_ms"))

    async def host(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.snapshot()).get(f"host:{host}", {})
        return found

    async def totals(self) -> dict[str, int]:
        found: dict[str, int] = (await self.snapshot()).get("totals", {})
        return found

    async def let_idle(
        self, held: Sequence[Held], ms: int, *, stream: str = FETCH_STREAM, consumer: str = "w1"
    ) -> None:
        """Make entries look as if nobody had renewed them for that long."""
        ids = [one.id for one in held]
        renewed = await self.client.xclaim(self.keys.prefix + stream, GROUP, consumer, 0, ids, idle=ms, justid=True)
        assert len(renewed) == len(ids)

    async def let_reclaim(self, *, stream: str = FETCH_STREAM) -> None:
        """Put the reclaim in the middle of its ticking: the last one just now, no hold."""
        seconds, micros = await self.client.time()
        await self.frontier.control(
            **{f"reclaim_at:{stream}": seconds * 1000 + micros // 1000, f"reclaim_hold:{stream}": ""}
        )

    async def check(self) -> State:
        """Check accounts and keys; return the state."""
        await assert_known_keys(self.frontier)
        return await assert_accounts(self.frontier)


def again(task: CrawlTask) -> CrawlTask:
    """Return the task with one attempt more."""
    fields = {name: getattr(task, name) for name in task.__struct_fields__}
    return CrawlTask(**fields | {"attempt": task.attempt + 1})


def near(ms: int, off_ms: int = 2000) -> Any:
    """Return what equals every number near `ms`: time goes on while a test runs."""
    return pytest.approx(ms, abs=off_ms)


async def wait_until(is_true: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 20) -> None:
    """Wait for a condition of the store; fail with `what` when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not await is_true():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.01)
