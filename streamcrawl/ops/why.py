"""What limits a crawl now, most limiting first; which hosts decide its end; and when that may be.

Plain reads in a number that does not grow with the crawl: the status (ops/status.py), twice where a rate is to be
measured, and of each shard its share of HOSTS_LOOKED_MAX scheduled hosts, drawn by chance where there are more, with
those that are under way, fail, or are due last. What these do not hold is said: no host that was not looked at can have
more. Nothing is written, and no script is run. Start at `read_why`; `as_json` is what `streamcrawl why --json` prints,
`why_lines` what people read.
"""

from __future__ import annotations

import asyncio
import random
import shlex
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from streamcrawl.ops.hosts import HostFields, ShardState, hosts_of_domains, shard_state
from streamcrawl.ops.status import (
    OUTPUT,
    RATE_OVER_MS,
    STAGE,
    condition,
    counted,
    number,
    read_status,
    reasons,
    replay_text,
    span,
    stored_settings,
    stream_key,
)
from streamcrawl.rules.task import Kind
from streamcrawl.settings import Settings
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import FETCH, GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamcrawl.ops.status import Brake, Status, WorkerStatus
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

HOSTS_LOOKED_MAX: Final = 5000
"""Scheduled hosts over all shards that are asked what they have queued: half a second."""
OTHERS_LOOKED_MAX: Final = 500
"""Of a shard, and of each sort: hosts under way, failing, due last, and tasks that wait for their next try."""
ROWS_LOOKED_MAX: Final = 100
"""Of each stream: entries in hand that nobody renews."""
LAST_DOMAINS: Final = 100
"""Of a shard, by domain: those due last that are asked, among the domains drawn by chance."""
LARGEST_MAX: Final = 10
"""Hosts whose share of the queued tasks is told."""
NEAR: Final = 0.9
"""Of the memory mark or the bound of the frontier: then it is said."""
_HOSTS_PER_CALL: Final = 500
"""Also how many domains of a shard are asked for their hosts."""
_DEFAULTS: Final = Settings(name="")
_NAMED_MAX: Final = 3


class Word(StrEnum):
    """What may limit a crawl, in the order in which it is said; but what holds hosts goes by the tasks it holds."""

    COMPLETE = "complete"
    PAUSED = "paused"
    MEMORY_FULL = "memory_full"
    FRONTIER_FULL = "frontier_full"
    STOPPED = "stopped"
    """For a reason that this version does not know."""
    NO_WORKERS = "no_workers"
    STAGE_UNREAD = "stage_unread"
    OUTPUT_UNWRITTEN = "output_unwritten"
    THROTTLED = "throttled"
    BUDGET = "budget"
    SEEDS = "seeds"
    """Nothing is left to do, and more seeds may come."""
    STALLED = "stalled"
    SLOTS = "slots"
    STAGE_BEHIND = "stage_behind"
    POLITENESS = "politeness"
    HOST_CAP = "host_cap"
    """Requests at a time of hosts without a delay."""
    FAILING = "failing"
    LEFT_ALONE = "left_alone"
    """By a host's own word (Retry-After)."""
    ROBOTS = "robots"
    DELAYED = "delayed"
    REPLAY = "replay"
    REVISITS = "revisits"
    WORKER_SILENT = "worker_silent"
    PENDING_OLD = "pending_old"
    DEAD_RISING = "dead_rising"
    MEMORY_NEAR = "memory_near"
    FRONTIER_NEAR = "frontier_near"
    BLOCKED = "blocked"


_OF_HOSTS: Final = frozenset(
    {
        Word.SLOTS, Word.STAGE_BEHIND, Word.POLITENESS, Word.HOST_CAP, Word.FAILING, Word.LEFT_ALONE, Word.ROBOTS,
        Word.DELAYED,
    }
)  # fmt: skip
_OF_FETCH: Final = frozenset(
    {Word.PAUSED, Word.MEMORY_FULL, Word.FRONTIER_FULL, Word.STOPPED, Word.NO_WORKERS, Word.BUDGET, Word.SEEDS}
)
"""With one of these nothing is fetched, so how fast it could be is no matter."""
_RANK: Final = {word: n for n, word in enumerate(Word)}
_STOPS: Final = {
    "MEMORY_FULL": (Word.MEMORY_FULL, "Redis reached its memory mark", "memory-max=SIZE"),
    "FRONTIER_FULL": (Word.FRONTIER_FULL, "the frontier is full", "frontier-max=N"),
}


class Cause(msgspec.Struct, frozen=True):
    """One thing that limits a crawl."""

    word: Word
    text: str
    do: str = ""
    """A command that mends it or shows more; '' where only waiting helps."""
    is_stop: bool = False
    """Nothing more is fetched, or written, until somebody acts."""
    tasks: int | None = None
    """That it holds; None where that is not a number."""
    for_ms: int | None = None
    """How long it has lasted; None when that is not known."""


class HostNeed(msgspec.Struct, frozen=True):
    """One host, or by domain one domain, with what its politeness makes it need at least."""

    host: str
    queued: int
    in_flight: int
    delay_ms: int
    delay_reason: str
    cap: int
    needs_ms: int
    """Its wait, and its delay for each page that is queued: shorter it cannot be, whatever the number of workers."""
    wait_ms: int = 0
    """Until it may be asked at all."""
    state: str = ""
    """failing, left_alone, robots; '' for one that is asked as ever."""
    failing: str = ""
    """How it fails."""


class Why(msgspec.Struct):
    """What limits a crawl."""

    name: str
    condition: str
    causes: list[Cause] = msgspec.field(default_factory=list)
    hosts: list[HostNeed] = msgspec.field(default_factory=list)
    """Those that need longest, at most as many as were asked for."""
    hosts_looked: int = 0
    hosts_scheduled: int = 0
    by_domain: bool = False
    queued: int = 0
    queued_looked: int = 0
    """Of these, in the queues of hosts that were looked at."""
    backlog: int = 0
    """What is not ended: queued, under way, delayed; without what blocked hosts keep."""
    sample_ms: int = 0
    pages_per_s: float | None = None
    """Done, as measured between the two looks; over the last half minute where nothing ended between them."""
    new_per_s: float | None = None
    budget_left: int | None = None
    """Pages until max-pages, where that is fewer than are left: with them it stops; else None."""
    eta_ms: int | None = None
    """Until the end: by delays the earliest, by the rate about; None when nothing says so."""
    eta_by: str = ""
    """host, rate, or '' where there is none."""
    eta_limits: list[str] = msgspec.field(default_factory=list)
    """What the estimate does not know."""
    is_sampled: bool = False
    """Whether some of the queued tasks are of hosts that were not looked at; `sampled` in the JSON."""
    status: Status | None = None
    """The second look, for whoever goes on from here; no part of the JSON."""

    @property
    def unlooked(self) -> int:
        """Queued tasks of hosts that were not looked at: what one of them may have at most."""
        return max(0, self.queued - self.queued_looked) if self.is_sampled else 0

    def as_json(self) -> dict[str, Any]:
        document = {
            field: getattr(self, field) for field in self.__struct_fields__ if field not in ("status", "is_sampled")
        }
        return {**dict(msgspec.to_builtins(document)), "sampled": self.is_sampled, "unlooked": self.unlooked}


class Typed(NamedTuple):
    """Commands as they can be typed here."""

    options: tuple[str, ...] = ()
    """That say where the crawl is kept."""
    start: str = ""
    """The command that starts workers."""

    def __call__(self, *words: str) -> str:
        return shlex.join(["streamcrawl", *words, *self.options])

    def start_stage(self, stage: str) -> str:
        return (
            f"{self.start} --stage {shlex.quote(stage)}" if self.start.startswith("streamcrawl worker") else self.start
        )


class Before(NamedTuple):
    """The first of the two looks by which a rate is measured."""

    status: Status
    at_s: float
    """Of the event loop."""


async def look_before(crawl: Shards, name: str) -> Before:
    """Take the first look; `read_why` is the second one, some time later.

    Raises:
        ConfigError, StoreError: as `read_why`.
    """
    at_s = asyncio.get_running_loop().time()
    return Before(await read_status(crawl.client, name), at_s)


async def read_why(
    crawl: Shards, name: str, *, top: int | None = None, before: Before | None = None, typed: Typed | None = None
) -> Why:
    """Say what limits a crawl.

    Args:
        top: Hosts that are listed; None for all that were looked at.
        before: An earlier look; without one rates are those of the last half minute, as beats left them.
        typed: Commands as they can be typed here.

    Raises:
        ConfigError: it was deleted meanwhile.
        StoreError: as every call of the store.
    """
    looks = [await _look(frontier, HOSTS_LOOKED_MAX // len(crawl)) for frontier in crawl]
    at_s = asyncio.get_running_loop().time()
    status = await read_status(crawl.client, name)
    rows = await _rows(crawl, status)
    with mapped_errors():
        stored: Any = await crawl.client.hget(crawl.first.keys.state, "settings")
    why = Why(name, condition(status), status=status, by_domain=status.by_domain)
    why.hosts_scheduled = status.hosts_scheduled
    why.queued = status.queued
    why.queued_looked = min(status.queued, sum(look.queued for look in looks))
    why.hosts_looked = sum(look.looked for look in looks)
    why.is_sampled = why.queued_looked < why.queued and not all(look.is_whole for look in looks)
    _measure(why, status, before, at_s)
    every = (need for look in looks for need in look.needs)
    needs = sorted(every, key=lambda one: (-one.needs_ms, -one.queued, one.host))
    why.hosts = needs[:top]
    why.backlog = _backlog(status, looks)
    given = stored_settings(stored)
    why.budget_left = _budget_left(why, status, given)
    found = _Causes(status, before, looks, rows, given, typed or Typed())
    why.causes = found.of(why, needs)
    _estimate(why, status, needs)
    return why


# -- what is asked of Redis


class _Look(msgspec.Struct):
    """The hosts of one shard."""

    state: ShardState
    needs: list[HostNeed] = msgspec.field(default_factory=list)
    looked: int = 0
    """Scheduled hosts, or domains, among those that were asked."""
    queued: int = 0
    of_blocked: int = 0
    """Tasks in the queues of blocked hosts."""
    given_up: int = 0
    """Tasks of hosts whose queues are being emptied."""
    next_try_ms: int | None = None
    """Until the first delayed task is due; None without one."""
    oldest_failing_ms: int = 0
    is_whole: bool = True
    """Whether every host that has anything queued was asked."""


async def _look(frontier: Frontier, most: int) -> _Look:
    client, keys = frontier.client, frontier.keys
    state = await shard_state(frontier)
    async with client.pipeline(transaction=False) as pipe:
        pipe.zcard(keys.schedule)
        pipe.zrandmember(keys.schedule, most)
        pipe.zrevrange(keys.schedule, 0, OTHERS_LOOKED_MAX - 1)
        pipe.zrange(keys.failing, 0, OTHERS_LOOKED_MAX - 1, withscores=True)
        pipe.zrange(keys.blocked, 0, OTHERS_LOOKED_MAX - 1)
        pipe.zrange(keys.delayed, 0, OTHERS_LOOKED_MAX - 1, withscores=True)
        pipe.xrange(keys.fetch_stream, count=OTHERS_LOOKED_MAX)
        with mapped_errors():
            scheduled, sample, last, failing, blocked, delayed, entries = await pipe.execute()
    found = _Look(state)
    if delayed:
        found.next_try_ms = max(0, int(delayed[0][1]) - state.now_ms)
    if failing:
        found.oldest_failing_ms = max(0, state.now_ms - int(failing[0][1]))
    asked = min(most, _HOSTS_PER_CALL) if frontier.by_domain else most
    drawn = dict.fromkeys(sample)
    if frontier.by_domain and scheduled > asked:
        drawn = dict.fromkeys(_domains_of(sample, last, asked))
    elif scheduled > asked:
        drawn = dict.fromkeys([*sample, *last])
    found.looked = len(drawn)
    others_asked = (failing, blocked, delayed, entries)
    found.is_whole = scheduled <= most and all(len(part) < OTHERS_LOOKED_MAX for part in others_asked)
    if frontier.by_domain:
        each = most // max(1, found.looked)
        drawn = dict.fromkeys(await hosts_of_domains(client, keys, list(drawn), most))
        found.is_whole = found.is_whole and found.looked == scheduled and len(drawn) < each
    # Tasks of hosts that wait for a second try of their robots.txt are in no other place than these.
    waiting = [member.split(b"|", 3)[2] for member, _ in delayed if member.count(b"|") >= 3]
    others = [*(host for host, _ in failing), *blocked, *waiting, *(f[b"host"] for _, f in entries if b"host" in f)]
    names = [host.decode("utf-8", "replace") for host in dict.fromkeys([*drawn, *others])]
    hosts: dict[str, HostFields] = {}
    for start in range(0, len(names), _HOSTS_PER_CALL):
        part = names[start : start + _HOSTS_PER_CALL]
        hosts |= dict(zip(part, await _fields(frontier, [keys.host(host) for host in part]), strict=True))
    domains: dict[str, HostFields] = {}
    if frontier.by_domain:
        known = list({one.domain for one in hosts.values() if one.domain})
        for start in range(0, len(known), _HOSTS_PER_CALL):
            part = known[start : start + _HOSTS_PER_CALL]
            domains |= dict(zip(part, await _fields(frontier, [keys.domain(one) for one in part]), strict=True))
    _weigh(found, hosts, domains)
    return found


def _domains_of(sample: Sequence[bytes], last: Sequence[bytes], most: int) -> list[bytes]:
    """Return some domains: a few of those due last, the others by chance of a sample, which may be all of them, in
    their order."""
    latest = last[: min(LAST_DOMAINS, most // 2)]
    known = set(latest)
    others = [domain for domain in sample if domain not in known]
    return [*latest, *random.sample(others, min(len(others), most - len(latest)))]


async def _fields(frontier: Frontier, keys: Sequence[str]) -> list[HostFields]:
    async with frontier.client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hgetall(key)
        with mapped_errors():
            return list(map(HostFields.read, await pipe.execute()))


def _weigh(found: _Look, hosts: dict[str, HostFields], domains: dict[str, HostFields]) -> None:
    """Reckon what each host, or each domain, needs at least."""
    state = found.state
    queued: Counter[str] = Counter()
    needing: dict[str, list[tuple[str, HostFields]]] = {}
    for host, one in hosts.items():
        left = max(0, one.queued)
        found.queued += left
        if one.blocked:
            found.of_blocked += left
        elif one.given_up:
            found.given_up += left
        elif left:
            if state.pages_per_host_max is not None:
                left = min(left, max(0, state.pages_per_host_max - one.pages))
            name = one.domain if one.domain in domains else host
            queued[name] += left
            needing.setdefault(name, []).append((host, one))
    for name, own in needing.items():
        if queued[name]:
            found.needs.append(_need(name, queued[name], own, domains.get(name), state))


def _need(
    name: str, queued: int, own: Sequence[tuple[str, HostFields]], domain: HostFields | None, state: ShardState
) -> HostNeed:
    _, first = own[0]
    paced = first if domain is None else first.under(domain)
    delay_ms, reason = paced.delay_in_force(state)
    pace = first if domain is None else domain
    # Those of a domain take turns: it waits as long as the one that may be asked first.
    wait_ms = max(0, pace.blocked_until - state.now_ms, min(one.blocked_until for _, one in own) - state.now_ms)
    failing = pace.failing or (first.failing if all(one.failing for _, one in own) else "")
    word = ""
    if failing:
        word = Word.FAILING.value
    elif wait_ms:
        word = Word.LEFT_ALONE.value
    elif state.obeys_robots and all(one.robots == "asked" for _, one in own):
        word = Word.ROBOTS.value
    in_flight = pace.in_flight
    return HostNeed(
        host=name,
        queued=queued,
        in_flight=in_flight,
        delay_ms=delay_ms,
        delay_reason=reason.value,
        cap=1 if failing else pace.cap or state.cap,
        # A cap above 1 shortens nothing: with a delay, the starts of a host's fetches are so far apart (start.lua).
        needs_ms=max(wait_ms, max(0, pace.due - state.now_ms)) + max(0, queued - 1) * delay_ms,
        wait_ms=wait_ms,
        state=word,
        failing=failing,
    )


class _Row(NamedTuple):
    """What of a stream somebody has in hand."""

    stage: str
    consumer: str
    """Who has the oldest of it."""
    idle: Counter[str]
    """Consumer -> entries that it has not renewed for a lease."""
    is_capped: bool


async def _rows(crawl: Shards, status: Status) -> list[_Row]:
    """Return what is in hand for too long, of each stream."""
    streams = [(frontier, stage) for frontier in crawl for stage in status.stages]
    async with crawl.client.pipeline(transaction=False) as pipe:
        for frontier, stage in streams:
            key = stream_key(frontier.keys, stage.kind, stage.stage)
            pipe.xpending_range(key, GROUP, "-", "+", 1)
            pipe.xpending_range(key, GROUP, "-", "+", ROWS_LOOKED_MAX, idle=status.lease_ms)
        with mapped_errors():
            answers = await pipe.execute(raise_on_error=False)
            for answer in answers:
                # A stream that was lost has no group, and nothing in hand.
                if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                    raise answer
    rows = []
    for (_, stage), first, idle in zip(streams, answers[::2], answers[1::2], strict=True):
        if isinstance(first, Exception) or isinstance(idle, Exception) or not first:
            continue
        held = Counter(row["consumer"].decode("utf-8", "replace") for row in idle)
        name = f"{FETCH}:{stage.stage}" if stage.kind == OUTPUT else stage.stage
        rows.append(_Row(name, first[0]["consumer"].decode("utf-8", "replace"), held, len(idle) == ROWS_LOOKED_MAX))
    return rows


# -- what is made of the answers


def _measure(why: Why, status: Status, before: Before | None, at_s: float) -> None:
    why.pages_per_s, why.new_per_s = status.pages_per_s, status.new_per_s
    if before is None or at_s <= before.at_s:
        return
    passed_s = at_s - before.at_s
    why.sample_ms = round(1000 * passed_s)
    done = _ended(status) - _ended(before.status)
    if done > 0 or why.pages_per_s is None:
        why.pages_per_s = max(0, done) / passed_s
        why.new_per_s = max(0, status.page("created") - before.status.page("created")) / passed_s


def _ended(status: Status) -> int:
    """Return how many pages have left the frontier, however they ended."""
    return status.page("done") + status.page("dead") + status.page("dropped")


def _backlog(status: Status, looks: Sequence[_Look]) -> int:
    delayed = sum(status.totals.get(f"{kind}.delayed", 0) for kind in (Kind.PAGE, Kind.SITEMAP))
    return max(0, status.queued + status.streamed + delayed - sum(look.of_blocked for look in looks))


def _budget_left(why: Why, status: Status, given: dict[str, Any]) -> int | None:
    """Return after how many pages it stops, where more are left; the same thought as in `Meter` (ops/progress.py)."""
    most = given.get("pages_max")
    left = max(0, most - status.page("done")) if isinstance(most, int) else None
    pages = status.page("queued") + status.page("streamed") + status.page("delayed")
    return left if left is not None and left < min(pages, why.backlog) else None


def _hosts_ms(needs: Sequence[HostNeed], pages: int) -> int:
    """Return how long hosts need at least, by their delays, for so many pages of all of them together."""

    def asked(ms: int) -> int:
        total = 0
        for need in needs:
            ready_ms = need.needs_ms - (need.queued - 1) * need.delay_ms
            if ready_ms <= ms:
                total += min(need.queued, 1 + (ms - ready_ms) // need.delay_ms) if need.delay_ms else need.queued
        return total

    low, high = 0, max((need.needs_ms for need in needs), default=0)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if asked(middle) >= pages else (middle + 1, high)
    return low


def _estimate(why: Why, status: Status, needs: Sequence[HostNeed]) -> None:
    """Say when the end may be, and what is not known of it."""
    if status.is_complete or not why.backlog:
        return
    stop = next((cause for cause in why.causes if cause.is_stop), None)
    if stop is not None:
        why.eta_limits.append(f"none while it stands still: {stop.word.value}")
        return
    budget = why.budget_left
    if budget is None:
        by_host = needs[0].needs_ms if needs else 0
    else:
        # What is under way, or of a host that was not looked at, waits for none of these delays.
        by_host = _hosts_ms(needs, budget - status.page("streamed") - status.page("delayed") - why.unlooked)
        why.eta_limits.append(f"it stops after {counted(budget, 'more page')} (max-pages)")
    left = why.backlog if budget is None else budget
    by_rate = None if not why.pages_per_s else int(1000 * left / why.pages_per_s)
    if by_rate is not None or by_host:
        why.eta_ms = max(by_host, by_rate or 0)
        why.eta_by = "host" if by_host >= (by_rate or 0) else "rate"
    if by_rate is None:
        why.eta_limits.append("nothing ended while it was looked at, so only the delays of hosts count")
    if why.new_per_s:
        growth = why.new_per_s - (why.pages_per_s or 0)
        found = f"{why.new_per_s:,.1f} new pages/s are still being found"
        if budget is not None:
            why.eta_limits.append(f"{found}: sooner, where they are of other hosts")
        else:
            why.eta_limits.append(f"{found}, more than end: it grows" if growth > 0 else f"{found}: later, not sooner")
    if not status.is_closed:
        why.eta_limits.append("more seeds may come")
    if why.is_sampled:
        why.eta_limits.append(f"{counted(why.unlooked, 'queued task')} of hosts that were not looked at")
    if any(need.state == Word.FAILING for need in needs):
        why.eta_limits.append("hosts that fail are waited for, until they answer or are given up")


def _hosts(why: Why, count: int) -> str:
    return counted(count, "domain" if why.by_domain else "host")


class _Causes:
    """Finds what limits a crawl."""

    def __init__(
        self,
        status: Status,
        before: Before | None,
        looks: Sequence[_Look],
        rows: Sequence[_Row],
        given: dict[str, Any],
        typed: Typed,
    ) -> None:
        self._status = status
        self._before = before
        self._looks = looks
        self._rows = rows
        self._given = given
        self._typed = typed
        self._found: list[Cause] = []

    def of(self, why: Why, needs: Sequence[HostNeed]) -> list[Cause]:
        status = self._status
        if status.is_complete:
            self._say_complete()
        else:
            self._say_stops()
            self._say_readers()
            self._say_replays()
            self._say_throttles()
            self._say_nothing_left(why)
            if not any(cause.is_stop and cause.word in _OF_FETCH for cause in self._found):
                self._say_pace(why, needs)
            self._say_hosts(needs)
            self._say_delayed()
            self._say_near()
        self._say_silent()
        self._say_pending()
        self._say_dead()

        def rank(cause: Cause) -> tuple[int, int]:
            if cause.word in _OF_HOSTS:
                return _RANK[Word.SLOTS], -(cause.tasks or 0)
            if cause.word is Word.REPLAY and cause.is_stop:
                return _RANK[Word.NO_WORKERS], 1
            return _RANK[cause.word], 0

        return sorted(self._found, key=rank)

    def _add(self, word: Word, text: str, do: str = "", **values: Any) -> None:
        self._found.append(Cause(word, text, do, **values))

    def _say_complete(self) -> None:
        status, blocked = self._status, self._status.queued
        text = f"it is complete: {counted(status.page('done'), 'page')} done"
        text += f", {counted(status.dead_letters, 'dead letter')}" if status.dead_letters else ""
        text += f"; blocked hosts keep {number(blocked)} queued" if blocked else ""
        if status.next_revisit_ms is not None:
            self._add(
                Word.REVISITS, f"all is fetched; the next page is visited again in {span(status.next_revisit_ms)}"
            )
        else:
            self._add(Word.COMPLETE, text)

    def _say_stops(self) -> None:
        status, typed, name = self._status, self._typed, self._status.name
        for brake in status.brakes:
            lasting = "" if brake.for_ms is None else f" for {span(brake.for_ms)}"
            if brake.word == "PAUSED":
                left = f"; {number(status.under_way)} still under way" if status.under_way else ""
                text = f"paused{lasting}{left}"
                self._add(Word.PAUSED, text, typed("resume", name), is_stop=True, for_ms=brake.for_ms)
            elif brake.word == "BUDGET":
                most = self._given.get("pages_max")
                text = f"its budget of {most} pages is reached (max-pages)"
                do = typed("settings", "set", name, "max-pages=N")
                self._add(Word.BUDGET, text, do, is_stop=True, tasks=status.queued)
            elif brake.word != "THROTTLED":
                word, text, setting = _STOPS.get(brake.word, (Word.STOPPED, brake.word, ""))
                change = f"{typed('settings', 'set', name, setting)} && " if setting else ""
                do = f"{change}{typed('resume', name)}"
                text = f"stopped{lasting}: {text} ({self._figure(word)})" if setting else f"stopped{lasting}: {text}"
                self._add(word, text, do, is_stop=True, for_ms=brake.for_ms)

    def _figure(self, word: Word) -> str:
        status = self._status
        if word is Word.FRONTIER_FULL:
            return f"{number(status.queued)} queued of {number(self._frontier_max)}"
        return f"{status.memory_bytes / 1e6:,.0f} MB, the mark is {status.memory_mark_bytes / 1e6:,.0f} MB"

    @property
    def _frontier_max(self) -> int:
        return int(self._given.get("frontier_max") or _DEFAULTS.frontier_max)

    def _live(self, stage: str) -> list[WorkerStatus]:
        return [one for one in self._status.workers if one.stage == stage and self._status.lives(one)]

    def _fetch_left(self) -> int:
        status = self._status
        return status.queued + status.streamed + status.page("delayed") + status.sitemap("delayed")

    def _say_readers(self) -> None:
        status = self._status
        left = self._fetch_left()
        if left and not self._live(FETCH):
            beats = [one.beat_age_ms for one in status.workers if one.stage == FETCH]
            last = f"; the last one beat {span(min(beats))} ago" if beats else ""
            text = f"no worker of the fetch is alive, {counted(left, 'task')} {_verb('wait', left)}{last}"
            self._add(Word.NO_WORKERS, text, self._typed.start, is_stop=True, tasks=left)
        for stage in status.stages[1:]:
            waiting = stage.waiting + stage.pending + stage.delayed
            if stage.kind == STAGE and stage.is_unread:
                base, _, version = stage.stage.partition("@")
                what = f"version {version} of stage {base}" if version else f"stage {base}"
                text = f"nobody reads {what}: {counted(waiting, 'item')} {_verb('wait', waiting)}"
                self._add(Word.STAGE_UNREAD, text, self._typed.start_stage(stage.stage), is_stop=True, tasks=waiting)
            elif stage.kind == OUTPUT and waiting and not self._live(stage.stage):
                path = self._path(stage.stage)
                text = f"no writer of {path} is alive: {counted(waiting, 'record')} {_verb('wait', waiting)}"
                self._add(Word.OUTPUT_UNWRITTEN, text, self._typed.start, is_stop=True, tasks=waiting)

    def _say_replays(self) -> None:
        status = self._status
        if not status.replays:
            return
        named = "; ".join(f"replay {one.id}: {replay_text(one)}" for one in status.replays[:_NAMED_MAX])
        text = named + (" …" if len(status.replays) > _NAMED_MAX else "")
        if not status.is_alive:
            text += ", and no worker is alive to go on with it"
            self._add(Word.REPLAY, text, self._typed.start, is_stop=True)
        elif status.is_paused or status.stopped:
            self._add(Word.REPLAY, f"{text}, which waits for the crawl to go on")
        else:
            self._add(Word.REPLAY, f"{text}, under way")

    def _path(self, sink: str) -> str:
        return next((one.path for one in self._status.sinks if one.name == sink), "") or sink

    def _say_throttles(self) -> None:
        status = self._status
        brake: Brake | None = next((one for one in status.brakes if one.word == "THROTTLED"), None)
        for stage in status.stages:
            if not stage.is_over:
                continue
            waits = " and ".join(one.stage for one in status.stages if stage.stage in one.held_by) or FETCH
            full = f"{number(stage.waiting)} waiting, its mark is {number(stage.mark_high or 0)}"
            if stage.kind == OUTPUT:
                size = next((one.bytes_waiting for one in status.sinks if one.name == stage.stage), 0)
                text = (
                    f"the output {self._path(stage.stage)} is full ({full}; {size / 1e6:,.1f} MB): {waits} waits for it"
                )
                do = self._typed("pending", "ls", status.name, "--stage", f"{FETCH}:{stage.stage}")
            else:
                speed = f", {_seconds(stage.entry_s)} each" if stage.entry_s is not None else ""
                text = (
                    f"stage {stage.stage} is full ({full}; {counted(stage.slots, 'slot')}{speed}): {waits} waits for it"
                )
                do = self._typed.start_stage(stage.stage)
            self._add(Word.THROTTLED, text, do, tasks=stage.waiting, for_ms=brake.for_ms if brake else None)

    def _say_nothing_left(self, why: Why) -> None:
        status = self._status
        if why.queued or status.under_way:
            return
        feeders = [one.name for one in status.feeders if one.is_alive]
        if feeders:
            self._add(
                Word.SEEDS, f"nothing is left to do; {', '.join(feeders)} {_verb('feed', len(feeders))} more seeds"
            )
        elif status.feeders:
            gone = ", ".join(one.name for one in status.feeders)
            text = f"nothing is left to do, and {gone} ended before all seeds were in: it waits for them"
            self._add(Word.SEEDS, text, self._typed("close", status.name), is_stop=True)
        else:
            text = "nothing is left to do, and it is not closed: more seeds may come"
            self._add(Word.SEEDS, text, self._typed("close", status.name), is_stop=True)

    def _say_pace(self, why: Why, needs: Sequence[HostNeed]) -> None:
        """Say whether it is slots or hosts that are too few."""
        status = self._status
        fetch = status.stages[0]
        workers = self._live(FETCH)
        slots = sum(one.slots for one in workers)
        busy = sum(one.busy if one.busy is not None else one.slots for one in workers)
        is_full = fetch.waiting > 0 and busy >= NEAR * slots
        oldest_ms = max(fetch.oldest_pending_ms or 0, fetch.oldest_waiting_ms or 0)
        # A host that fails ends nothing either, but its probes are back within their time limit.
        if status.pages_per_s == 0 and not why.pages_per_s and oldest_ms >= RATE_OVER_MS:
            held = f"{number(fetch.pending)} in hand, {number(fetch.waiting)} wait, the oldest for {span(oldest_ms)}"
            do = self._typed("pending", "ls", status.name, "--idle", "1m")
            self._add(Word.STALLED, f"nothing ended of late: {held}", do)
        if is_full:
            each = f", {_seconds(fetch.entry_s)} a page" if fetch.entry_s is not None else ""
            ready = counted(status.hosts_due, "domain" if status.by_domain else "host")
            text = (
                f"{number(busy)} of {counted(slots, 'slot')} of {counted(len(workers), 'worker')} are busy{each}; "
                f"{number(fetch.waiting)} wait for one, {ready} more may be asked now: more workers go faster"
            )
            self._add(Word.SLOTS, text, self._typed.start, tasks=why.backlog)
        for stage in status.stages[1:]:
            waiting = stage.waiting + stage.pending + stage.delayed
            if waiting and not self._fetch_left() and not stage.is_over and self._live(stage.stage):
                what = f"the output {self._path(stage.stage)}" if stage.kind == OUTPUT else f"stage {stage.stage}"
                left = counted(waiting, "record" if stage.kind == OUTPUT else "item")
                text = f"all is fetched; {left} {_verb('wait', waiting)} for {what} or in its hands"
                do = self._typed.start_stage(stage.stage) if stage.kind == STAGE else ""
                self._add(Word.STAGE_BEHIND, text, do, tasks=waiting)
        if not is_full and needs:
            self._say_politeness(why, [need for need in needs if not need.state])

    def _say_politeness(self, why: Why, needs: Sequence[HostNeed]) -> None:
        """Say which hosts may not be asked faster: by their delays, or where they have none by their caps."""
        status, name = self._status, self._status.name
        total = sum(need.queued for need in needs)
        due = f"{number(status.hosts_due)} of {_hosts(why, status.hosts_scheduled)} may be asked now, "
        due = due if status.hosts_scheduled else ""
        if delayed := [need for need in needs if need.delay_ms]:
            first = delayed[0]
            share, _ = self._share(why, delayed, total)
            text = f"hosts are asked no faster than their delays allow: {due}{share}; {_need_text(first)}"
            do = self._typed("host", "show", name, first.host) if not status.by_domain else ""
            self._add(Word.POLITENESS, text, do, tasks=sum(need.queued for need in delayed))
        if capped := [need for need in needs if not need.delay_ms]:
            share, largest = self._share(why, capped, total)
            caps = [need.cap for need in largest]
            least, most = min(caps), max(caps)
            at_once = counted(most, "request") if least == most else f"{number(least)} to {counted(most, 'request')}"
            text = f"hosts have no delay, and are asked by {at_once} at a time at most: {due}{share}"
            do = self._typed("settings", "set", name, "host-concurrency=N")
            if len(largest) == 1 and not status.by_domain:
                do = self._typed("host", "set", name, largest[0].host, "--cap", "N")
            self._add(Word.HOST_CAP, text, do, tasks=sum(need.queued for need in capped))

    def _share(self, why: Why, needs: Sequence[HostNeed], total: int) -> tuple[str, list[HostNeed]]:
        """Return the largest of these in words, and themselves: they have most of what these have."""
        enough = 0.8 * sum(need.queued for need in needs)
        largest: list[HostNeed] = []
        held = 0
        for need in sorted(needs, key=lambda one: -one.queued)[:LARGEST_MAX]:
            largest.append(need)
            held += need.queued
            if held >= enough:
                break
        noun = "domain" if self._status.by_domain else "host"
        hold = _verb("hold", len(largest))
        share = f"{counted(len(largest), noun)} {hold} {100 * held // total} % of the queued tasks"
        if why.is_sampled:
            share += f" of those looked at ({_hosts(why, why.hosts_looked)} of {number(why.hosts_scheduled)})"
        return share, largest

    def _say_hosts(self, needs: Sequence[HostNeed]) -> None:
        """Say which hosts cannot be asked, by why."""
        status = self._status
        noun = "domain" if status.by_domain else "host"
        ls = self._typed("host", "ls", status.name)
        for word, what in (
            (Word.FAILING, "no answer, so asked by one fetch at a time"),
            (Word.LEFT_ALONE, "left alone by their own word (Retry-After)"),
            (Word.ROBOTS, "waiting for robots.txt"),
        ):
            own = [need for need in needs if need.state == word]
            if not own:
                continue
            tasks = sum(need.queued for need in own)
            named = ", ".join(f"{need.host}{f' ({need.failing})' if need.failing else ''}" for need in own[:_NAMED_MAX])
            more = " …" if len(own) > _NAMED_MAX else ""
            waits = [need.wait_ms for need in own if need.wait_ms]
            then = f"; the next may be asked in {span(min(waits))}" if waits and len(waits) == len(own) else ""
            text = f"{what}: {counted(len(own), noun)} with {counted(tasks, 'task')} ({named}{more}){then}"
            since = max(look.oldest_failing_ms for look in self._looks) if word is Word.FAILING else 0
            self._add(word, text, ls, tasks=tasks, for_ms=since or None)
        blocked = sum(look.of_blocked for look in self._looks)
        if blocked:
            keep = f"{_verb('keep', status.hosts_blocked)} {counted(blocked, 'task')}"
            text = f"{counted(status.hosts_blocked, 'host')} blocked by an operator {keep}"
            self._add(Word.BLOCKED, text, ls, tasks=blocked)

    def _say_delayed(self) -> None:
        status = self._status
        delayed = sum(count for name, count in status.totals.items() if name.endswith(".delayed") and count > 0)
        if delayed:
            tries = [look.next_try_ms for look in self._looks if look.next_try_ms is not None]
            when = f", the first in {span(min(tries))}" if tries else ""
            self._add(
                Word.DELAYED,
                f"{counted(delayed, 'task')} {_verb('wait', delayed)} for another try{when}",
                tasks=delayed,
            )

    def _say_near(self) -> None:
        status, words = self._status, {cause.word for cause in self._found}
        mark = status.memory_mark_bytes
        if mark and status.memory_bytes >= NEAR * mark and Word.MEMORY_FULL not in words:
            share = 100 * status.memory_bytes // mark
            text = f"memory is at {share} % of its mark ({self._figure(Word.MEMORY_FULL)}): at it nothing is dispatched"
            self._add(Word.MEMORY_NEAR, text, self._typed("queue", "ls", status.name))
        if status.queued >= NEAR * self._frontier_max and Word.FRONTIER_FULL not in words:
            text = f"the frontier is nearly full: {self._figure(Word.FRONTIER_FULL)}"
            do = self._typed("settings", "set", status.name, "frontier-max=N")
            self._add(Word.FRONTIER_NEAR, text, do)

    def _say_silent(self) -> None:
        status = self._status
        silent = [one for one in status.workers if one.beat_age_ms > status.lease_ms]
        if not silent or (status.is_complete and not status.under_way):
            return
        named = ", ".join(f"{one.consumer} ({span(one.beat_age_ms)})" for one in silent[:_NAMED_MAX])
        more = " …" if len(silent) > _NAMED_MAX else ""
        others = "those that live" if len(silent) < len(status.workers) else "the next worker that starts"
        text = (
            f"{counted(len(silent), 'worker')} not heard of for longer than the lease of {span(status.lease_ms)}: "
            f"{named}{more}; what {'it' if len(silent) == 1 else 'they'} had is taken back by {others}"
        )
        do = self._typed("pending", "replay", status.name, "--consumer", silent[0].consumer)
        self._add(Word.WORKER_SILENT, text, do, for_ms=max(one.beat_age_ms for one in silent))

    def _say_pending(self) -> None:
        status = self._status
        for row in self._rows:
            if row.idle:
                count = sum(row.idle.values())
                named = ", ".join(f"{consumer} {number(held)}" for consumer, held in row.idle.most_common(_NAMED_MAX))
                least = "at least " if row.is_capped else ""
                text = (
                    f"{row.stage}: {least}{number(count)} in hand that nobody renewed for a lease "
                    f"({span(status.lease_ms)}): {named}"
                )
                do = self._typed("pending", "ls", status.name, "--idle", f"{status.lease_ms}ms")
                self._add(Word.PENDING_OLD, text, do, tasks=count)
        limit_ms = int(self._given.get("handler_timeout_ms") or _DEFAULTS.handler_timeout_ms)
        for stage in status.stages:
            age = stage.oldest_pending_ms
            if age is not None and age > limit_ms:
                name = f"{FETCH}:{stage.stage}" if stage.kind == OUTPUT else stage.stage
                who = next((row.consumer for row in self._rows if row.stage == name), "somebody")
                text = f"{name}: {who} has an entry in hand for {span(age)}, longer than any handler may take"
                do = self._typed("pending", "ls", status.name, "--stage", name)
                self._add(Word.PENDING_OLD, text, do, for_ms=age)

    def _say_dead(self) -> None:
        if self._before is None:
            return
        then = self._before.status.by_reason("dead")
        risen = {
            reason: n
            for reason, count in self._status.by_reason("dead").items()
            if (n := count - then.get(reason, 0)) > 0
        }
        if risen:
            text = f"dead letters are rising: {reasons(risen)} while it was looked at"
            do = self._typed("dead", "ls", self._status.name, "--by", "reason")
            self._add(Word.DEAD_RISING, text, do, tasks=sum(risen.values()))


def _verb(verb: str, count: int) -> str:
    """Return a verb as it goes with so many."""
    return f"{verb}s" if count == 1 else verb


def _seconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


# -- for people


def _need_text(need: HostNeed) -> str:
    noun = counted(need.queued, "page")
    if not need.needs_ms:
        return f"{need.host}: {noun}, no delay"
    return f"{need.host} needs at least {span(need.needs_ms)} for {noun} at {span(need.delay_ms)}"


def why_lines(why: Why) -> list[str]:
    """Return the answer as lines of plain text."""
    lines = [f"crawl {why.name}: {why.condition}"]
    for n, cause in enumerate(why.causes, 1):
        lines.append(f"{n:>3}. {cause.text}")
        if cause.do:
            lines.append(f"       > {cause.do}")
    if not why.causes:
        lines.append("  nothing that limits it was found")
    if why.hosts:
        looked = ""
        if why.is_sampled:
            looked = (
                f" (of {_hosts(why, why.hosts_looked)} looked at, {number(why.hosts_scheduled)} are scheduled; those "
                f"not looked at have {counted(why.unlooked, 'task')} together)"
            )
        what = "decide the end" if why.budget_left is None else "need longest"
        lines += ["", f"{'domains' if why.by_domain else 'hosts'} that {what}{looked}:"]
        lines += [f"  {line}" for line in map(_host_line, why.hosts)]
    lines += ["", *_eta_lines(why)] if why.backlog else []
    return lines


def _host_line(need: HostNeed) -> str:
    words = {Word.FAILING: need.failing, Word.LEFT_ALONE: "Retry-After", Word.ROBOTS: "waits for its robots.txt"}
    notes: Iterable[str] = filter(
        None,
        (
            words.get(Word(need.state), "") if need.state else "",
            f"asked in {span(need.wait_ms)}" if need.wait_ms else "",
            f"delay by {need.delay_reason.replace('_', ' ')}" if need.delay_ms and need.delay_reason != "crawl" else "",
        ),
    )
    rest = ", ".join(notes)
    return f"{_need_text(need)}{f' ({rest})' if rest else ''}"


def _eta_lines(why: Why) -> list[str]:
    rate = "" if why.pages_per_s is None else f" at {why.pages_per_s:,.1f}/s"
    over = f", measured over {span(why.sample_ms)}" if why.sample_ms and rate else ""
    lines = [f"left: {counted(why.backlog, 'task')}{rate}{over}"]
    if why.eta_ms is not None:
        if why.eta_by == "rate":
            lines.append(f"end: about {span(why.eta_ms)} from now, by the rate")
        else:
            by = why.hosts[0].host if why.budget_left is None and why.hosts else "the delays of its hosts"
            lines.append(f"end: not before {span(why.eta_ms)} from now, by {by}")
    else:
        lines.append("end: not to be told")
    return lines + [f"  {limit}" for limit in why.eta_limits]
