"""What a crawl is doing, in one look that costs the same for a small crawl and a large one.

Three round trips, whatever the number of tasks, hosts and shards: counters, lengths, the ends of streams, and names of
a few hosts; no scan of anything that grows with the crawl. What is not known is None, never 0, and no age is negative,
whatever the clock of the server did. Start at `read_status`. `as_json` is what `streamcrawl status --json` prints,
`status_lines` what people read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from redis.exceptions import ResponseError

from streamcrawl.errors import CodecError, ConfigError, StoreIncompatible
from streamcrawl.ops.hosts import hosts_of_domains
from streamcrawl.rules.sizes import interval_s, proposed_size
from streamcrawl.rules.task import Kind, decode_task
from streamcrawl.settings import Settings, key_of, option_of
from streamcrawl.store.connection import mapped_errors, server_ms
from streamcrawl.store.keys import FETCH, GROUP, Keys
from streamcrawl.store.shards import shards_in
from streamcrawl.store.tuning import decode_given
from streamcrawl.work.janitor import MEMORY_MARK
from streamcrawl.work.seeds import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from redis.asyncio import Redis

HOSTS_NAMED_MAX: Final = 20
DEAD_NAMED_MAX: Final = 5
WORKERS_NAMED_MAX: Final = 20
"""In the lines for people; --json has all."""
HOSTS_SAMPLED: Final = 200
"""Scheduled hosts drawn by chance, over all shards, for the largest among them."""
NAMED_MAX: Final = 5
"""Hosts of a sort in a line for people."""
LEASE_MS: Final = Settings(name="").lease_ms
"""Of a crawl that was given no other; `DEMOTION_MAX` too."""
DEMOTION_MAX: Final = Settings(name="").demotion_max
ALIVE_LEASES: Final = 3
"""A worker that has not beaten for so many leases is not alive, as beat.lua says too."""
RATE_OVER_MS: Final = 30_000
"""Rates are over about this long: shorter ones jump with every slow host."""
OUTPUT: Final = "output"
STAGE: Final = "stage"
RATE_LEAST_MS: Final = 1000
_CLOCK_STEP_MAX_MS: Final = 5000
"""As in _now.lua: crawl time makes no larger step."""
_STATE_FIELDS: Final = (
    "clock_ms", "wall_ms", "closed", "paused", "paused_at", "stopped", "stopped_at", "throttled", "throttled_at",
    "seen", "samples", "version", "settings", "crawl", "flow", "by_domain", "logs", "keep_bodies",
)  # fmt: skip
STOPS: Final = {
    "FRONTIER_FULL": ("the frontier is full", "frontier_max", ", or narrow the crawl by depth, allow or deny"),
    "MEMORY_FULL": ("Redis reached its memory mark", "memory_max_bytes", " (or maxmemory of your own Redis)"),
}
"""Why dispatch stopped by itself; the setting to raise, and what would mend it too."""


class Brake(msgspec.Struct, frozen=True):
    """Something that keeps tasks from being dispatched."""

    word: str
    """PAUSED, BUDGET, THROTTLED, or the reason of a stop: FRONTIER_FULL, MEMORY_FULL."""
    reason: str
    """With what would mend it."""
    for_ms: int | None = None
    """How long it has lasted; None when that is not known."""


class StageStatus(msgspec.Struct, frozen=True):
    """One work stream, over all shards."""

    stage: str
    """`fetch`, the name of an output, or a stage of a program."""
    waiting: int
    """Entries that nobody has read yet."""
    pending: int
    """Entries in the hands of workers."""
    oldest_waiting_ms: int | None = None
    """Age of the entry that has waited longest; None when none waits."""
    oldest_pending_ms: int | None = None
    """Since the dispatch of the oldest entry that is in hand; None when none is."""
    mark_high: int | None = None
    """Waiting entries above which what fills the stream stops; None when it has no mark."""
    mark_low: int | None = None
    """Under it filling goes on; None when that is the same."""
    kind: str = FETCH
    """fetch, output, or stage (of a program; its sinks too)."""
    done: int = 0
    """Of a stage, like what follows."""
    delayed: int = 0
    dead: int = 0
    slots: int = 0
    """Of live workers that read it; an item that nobody reads waits for a version of the program that does."""
    is_over: bool = False
    """Over its mark, in one shard at least: what feeds it waits."""
    held_by: tuple[str, ...] = ()
    """Streams over their mark that it feeds; it takes nothing new until they are under a fifth of it."""
    size: int | None = None
    """Entries that may wait, of which `mark_high` is 80 %; of the fetch the mark itself."""
    entry_s: float | None = None
    """Seconds that a slot works at an entry, or at a record of a batch, by what its live workers measured; None while
    they have ended few."""
    proposed: int | None = None
    """The size that these times propose (rules/sizes.py); None while they are not known. Nothing goes by it."""

    @property
    def is_unread(self) -> bool:
        return self.kind == STAGE and not self.slots and bool(self.waiting or self.pending or self.delayed)


class WorkerStatus(msgspec.Struct, frozen=True):
    consumer: str
    slots: int
    """Entries it fetches at a time; 0 for the writer of an output."""
    beat_age_ms: int
    info: str
    """JSON as the worker wrote it: pid, machine, role, slots, busy."""
    machine: str = ""
    pid: int = 0
    role: str = ""
    busy: int | None = None
    """Of its slots, at its last beat; None when it does not say."""
    stage: str = ""
    """What it works at; '' when it does not say."""
    slots_least: int | None = None
    slots_most: int | None = None
    """Between which its slots adapt; None where their number is fixed."""
    ended: int = 0
    """Entries that it has ended, since it began."""
    worked_s: float = 0.0
    """For how long its slots worked at them."""


class SinkStatus(msgspec.Struct, frozen=True):
    name: str
    path: str
    """As given with -o; '' when the crawl was not started by the command line."""
    waiting: int
    """Records that nobody has read yet."""
    written: int
    offset: int
    """Bytes that are written and committed, in all files of the output; records, in a database."""
    bytes_waiting: int = 0
    """Of the records in its stream, those that are being written included."""


class LogStatus(msgspec.Struct, frozen=True):
    """What of a stage is kept for replays, beside the streams."""

    name: str
    """Of the stage that gives it, `page` for pages; `fetched.<stage>` for pages as one that parses gets them."""
    entries: int
    bytes: int
    oldest_ms: int | None
    """Age of its oldest entry; None when it has none."""
    keep_ms: int
    """How long an entry stays."""
    trimmed: int
    """Entries that went before their time, for bytes or for memory."""


class ReplayStatus(msgspec.Struct, frozen=True):
    """A replay of a log that is under way."""

    id: str
    log: str
    target: str
    looked: int
    """Entries of the log that it has come past."""
    copied: int
    shards: int
    """That are not through with it."""


class FeederStatus(msgspec.Struct, frozen=True):
    """Somebody who offers seeds."""

    name: str
    cursor: str
    """How far it is, as it wrote it; '' when it does not say."""
    is_alive: bool
    sign_age_ms: int | None
    """Since its last sign; None when it left before it was done."""


class HostStatus(msgspec.Struct, frozen=True):
    """A host by name. Failing: since its first failure in a row. Given up, blocked: since then."""

    host: str
    queued: int
    reason: str = ""
    asked_in_ms: int = 0
    """Until a failing one is asked by one fetch, to see whether it is back: its circuit is open. 0: it is half-open."""
    for_ms: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    url: str
    reason: str
    error: str
    last_status: str
    died_at_ms: int


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard; counts are of pages."""

    shard: int
    done: int
    queued: int
    streamed: int
    pending: int
    delayed: int
    dead: int
    hosts_scheduled: int
    seen: int
    pages_per_s: float | None
    version: int
    """Of the settings in force."""
    stopped: str
    throttled: str


class Status(msgspec.Struct):
    """One crawl at one moment, over all its shards; counts are of pages unless their name says otherwise."""

    name: str
    is_closed: bool = False
    """All seeds are in: the crawl ends when nothing is left."""
    is_paused: bool = False
    stopped: str = ""
    """Why dispatch stopped (FRONTIER_FULL, MEMORY_FULL, …), in one shard at least; '' while it has not."""
    throttled: str = ""
    """Outputs and stages that are over their mark, with commas between; '' when none is."""
    brakes: list[Brake] = msgspec.field(default_factory=list)
    """All that keeps tasks from being dispatched, with what would mend it."""
    held_ms: dict[str, int] = msgspec.field(default_factory=dict)
    """How long it was kept from that, in all, by word: paused, frontier_full, memory_full, full:<stage>. Of several
    shards the one that was held longest."""
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    """Every counter, `page.done` and so on: keys.py, `totals`."""
    pages_per_s: float | None = None
    """Done, over the last half minute or so; None when that is not known: nobody beats, or not for long enough."""
    new_per_s: float | None = None
    """Discovered, likewise."""
    backlog_s: float | None = None
    """What is queued, in seconds at the present rate."""
    streamed: int = 0
    """Entries of the fetch stream, of which `pending` are in the hands of workers."""
    pending: int = 0
    stages: list[StageStatus] = msgspec.field(default_factory=list)
    by_domain: bool = False
    """All hosts of a registrable domain count as one."""
    hosts_scheduled: int = 0
    """By domain: domains; and so are those that are due."""
    hosts_due: int = 0
    """Of these, how many may be fetched from now."""
    hosts_failing: int = 0
    hosts_giving_up: int = 0
    """Given up, or over their page budget, and their queues not emptied yet."""
    hosts_given_up: int = 0
    hosts_blocked: int = 0
    hosts_demoted: int = 0
    """Whose pages are near-identical, and which are left alone longer for it."""
    failing: list[HostStatus] = msgspec.field(default_factory=list)
    """At most HOSTS_NAMED_MAX, those that have failed longest first; `given_up`, `blocked` and
    `demoted` likewise."""
    given_up: list[str] = msgspec.field(default_factory=list)
    blocked: list[HostStatus] = msgspec.field(default_factory=list)
    demoted: list[HostStatus] = msgspec.field(default_factory=list)
    hosts_sampled: int = 0
    top_hosts: list[HostStatus] = msgspec.field(default_factory=list)
    """Of `hosts_sampled` hosts drawn by chance, those with most in their queues."""
    dead_letters: int = 0
    newest_dead: list[DeadLetter] = msgspec.field(default_factory=list)
    """Newest first, at most DEAD_NAMED_MAX."""
    seen: int = 0
    seeds_left: int = 0
    """Seeds that are not ended yet."""
    feeders: list[FeederStatus] = msgspec.field(default_factory=list)
    slots: int = 0
    """Of all live workers."""
    lease_ms: int = LEASE_MS
    revisits: int = 0
    """Pages that are to be visited again, none of them queued."""
    next_revisit_ms: int | None = None
    """Until the first of them is due; None when there are none, or the crawl visits none again by now."""
    workers: list[WorkerStatus] = msgspec.field(default_factory=list)
    sinks: list[SinkStatus] = msgspec.field(default_factory=list)
    logs: list[LogStatus] = msgspec.field(default_factory=list)
    replays: list[ReplayStatus] = msgspec.field(default_factory=list)
    version: int = 0
    """Of the settings."""
    memory_bytes: int = 0
    """Of the whole server."""
    memory_max_bytes: int = 0
    """Limit of the server, or that of the crawl when it is lower; 0 when there is none."""
    memory_mark_bytes: int = 0
    """Above it nothing is dispatched; 0 when there is none."""
    shards: list[ShardStatus] = msgspec.field(default_factory=list)

    def lives(self, worker: WorkerStatus) -> bool:
        """Return whether a worker has beaten of late."""
        return worker.beat_age_ms < ALIVE_LEASES * self.lease_ms

    @property
    def is_alive(self) -> bool:
        """Whether any worker has."""
        return any(map(self.lives, self.workers))

    @property
    def is_complete(self) -> bool:
        """Whether all seeds are in and nothing is left to do, but for what blocked hosts keep."""
        return self.is_closed and (not self.queued or self._is_only_blocked) and not self.under_way

    @property
    def queued(self) -> int:
        """Pages and sitemaps in the queues of their hosts."""
        return self.page("queued") + self.sitemap("queued")

    @property
    def under_way(self) -> int:
        """What is neither queued nor ended: pages and sitemaps, items, and records that are not written yet."""
        items = sum(one.waiting + one.pending + one.delayed for one in self.stages if one.kind == STAGE)
        tasks = self.streamed + self.page("delayed") + self.sitemap("delayed")
        return tasks + items + sum(sink.waiting for sink in self.sinks) + len(self.replays)

    @property
    def _is_only_blocked(self) -> bool:
        return not self.hosts_scheduled and self.hosts_blocked > 0

    def page(self, state: str) -> int:
        """Return a count of pages: created, queued, streamed, delayed, done, dead, dropped, retried, …"""
        return self.totals.get(f"page.{state}", 0)

    def sitemap(self, state: str) -> int:
        """Return a count of sitemaps: the same, and continued, flawed by reason."""
        return self.totals.get(f"sitemap.{state}", 0)

    def by_reason(self, state: str) -> dict[str, int]:
        """Return tasks and items that are `dead` or `dropped`, or how often they `waited`, by reason, the most frequent
        first."""
        counts: Counter[str] = Counter()
        for line in (*Kind, *(stage.stage for stage in self.stages if stage.kind == STAGE)):
            start = f"{line}.{state}."
            for name, count in self.totals.items():
                if name.startswith(start) and count:
                    counts[name.removeprefix(start)] += count
        return dict(counts.most_common())

    def links_left_out(self) -> dict[str, int]:
        """Return links in scope that were not followed by reason (rules/traps.py), the most frequent first. Each counts
        as often as a page had it: they never became tasks, so no other count has them."""
        return self.named("links.")

    def refusals(self) -> dict[str, int]:
        """Return how often hosts refused a fetch, by what slowed them down (`Refusal`), the most frequent first."""
        return self.named("throttled.")

    def named(self, start: str) -> dict[str, int]:
        """Return the counters whose names begin so, without that, the largest first."""
        counts = {name.removeprefix(start): count for name, count in self.totals.items() if name.startswith(start)}
        return dict(sorted(counts.items(), key=lambda pair: -pair[1]))

    def sitemaps_flawed(self) -> dict[str, int]:
        """Return sitemaps that brought something although something was wrong with them, by flaw (rules/sitemaps.py),
        the most frequent first. One may have several."""
        return self.named("sitemap.flawed.")

    def as_json(self) -> dict[str, Any]:
        document = msgspec.to_builtins(self)
        document["refusals"] = self.refusals()
        document["sitemaps_flawed"] = self.sitemaps_flawed()
        document["links_left_out"] = self.links_left_out()
        document["dead_by_reason"] = self.by_reason("dead")
        document["dropped_by_reason"] = self.by_reason("dropped")
        document["waited_by_reason"] = self.by_reason("waited")
        return dict(document)


async def read_status(client: Redis, name: str) -> Status:
    """Look at a crawl.

    Raises:
        ConfigError: there is no crawl of this name.
        StoreUnavailable: as every call of the store.
    """
    with mapped_errors():
        first: Any = await client.hmget(Keys(name).state, ["epoch", "identity", "sinks", "stages"])
    epoch, identity, sinks, of_program = first
    if epoch is None:
        raise ConfigError(f"there is no crawl {name!r} in this store; `streamcrawl status` lists those that are")
    every = [Keys(name, shard) for shard in range(shards_in(identity))]
    stages = [("fetch", FETCH)]
    stages += [(OUTPUT, one) for one in (sinks or b"").decode().split(",") if one]
    stages += [(STAGE, one) for one in (of_program or b"").decode().split(",") if one]
    now_ms, memory, feeders, shards = await _look(client, every, stages)
    await _look_into_domains(client, shards)
    details = await _look_closer(client, shards, now_ms)

    one = shards[0].texts
    given = stored_settings(one["settings"].encode())
    totals: Counter[str] = Counter()
    for shard in shards:
        totals.update(shard.totals)
    status = Status(
        name=name,
        is_closed=one["closed"] == "1",
        is_paused=one["paused"] == "1",
        stopped=_first_of(shards, "stopped"),
        throttled=",".join(_throttled(shards)),
        totals=dict(totals),
        streamed=sum(shard.streams[0].length for shard in shards),
        pending=sum(shard.streams[0].pending for shard in shards),
        by_domain=one["by_domain"] == "1",
        hosts_sampled=sum(len(shard.sample) for shard in shards),
        dead_letters=sum(shard.answers["dead"] for shard in shards),
        seen=sum(_int(shard.texts["seen"]) for shard in shards),
        seeds_left=_seeds_left(totals),
        lease_ms=int(given.get("lease_ms") or LEASE_MS),
        version=_int(one["version"]),
        memory_bytes=int(memory["used_memory"]),
    )
    for place in ("scheduled", "failing", "giving_up", "given_up", "blocked", "demoted"):
        setattr(status, f"hosts_{place}", sum(shard.answers[f"hosts_{place}"] for shard in shards))
    limits = (int(memory["maxmemory"]), int(given.get("memory_max_bytes") or 0))
    status.memory_max_bytes = min(filter(None, limits), default=0)
    status.memory_mark_bytes = int(MEMORY_MARK * status.memory_max_bytes)
    status.revisits = sum(shard.answers["revisits"] for shard in shards)
    firsts = [int(score) for shard in shards for _, score in shard.answers["next_revisit"]]
    status.next_revisit_ms = max(0, min(firsts) - now_ms) if firsts and given.get("revisit_ms") else None
    status.workers = _workers(shards, now_ms)
    status.slots = sum(worker.slots for worker in status.workers if status.lives(worker) and worker.role != STAGE)
    marks = _marks(status.slots, given, stages)
    status.stages = [
        _stage(kind, stage, n, shards, details.oldest, now_ms, *marks[n]) for n, (kind, stage) in enumerate(stages)
    ]
    status.stages = _with_workers(status, shards, given)
    status.hosts_due = details.hosts_due
    status.held_ms = _held(shards, stages, now_ms)
    status.feeders = _feeders(_texts(feeders), shards[0].now(now_ms), status.lease_ms)
    status.sinks = _sinks(shards, status, one["crawl"])
    status.logs = _logs(shards, totals, details.oldest, now_ms)
    status.replays = _replays(shards)
    status.newest_dead = _newest_dead(shards)
    _name_hosts(status, shards, details, now_ms)
    if given.get("demotion_max", DEMOTION_MAX) < 2:
        # Switched off since: they are as any other, whatever was noted of them.
        status.hosts_demoted, status.demoted = 0, []
    rates = [_rates(shard, now_ms, ALIVE_LEASES * status.lease_ms) for shard in shards]
    status.shards = [_shard_status(shard, rate) for shard, rate in zip(shards, rates, strict=True)]
    known = [rate for rate in rates if rate is not None]
    # A sum without one of the shards would be too low.
    if len(known) == len(rates):
        status.pages_per_s = sum(done for done, _ in known)
        status.new_per_s = sum(created for _, created in known)
    if status.pages_per_s:
        status.backlog_s = status.page("queued") / status.pages_per_s
    status.brakes = _brakes(status, shards, given, now_ms)
    return status


def stored_settings(stored: bytes | None) -> dict[str, Any]:
    """Return the settings that were set, field -> value, from what a state keeps of them; empty when unreadable."""
    with suppress(StoreIncompatible):
        return {field: one.value for field, one in decode_given(stored or b"").items() if one.value is not None}
    return {}


# -- what is asked of Redis


class _Stream(NamedTuple):
    """One work stream of one shard."""

    key: str
    length: int
    pending: int
    last_read: str
    """Id of the entry that was read last."""
    oldest_pending: str | None


class _Shard:
    """The answers of one shard."""

    def __init__(self, keys: Keys, fields: Sequence[str], answers: dict[str, Any], streams: list[_Stream]) -> None:
        self.keys = keys
        self.answers = answers
        self.streams = streams
        self.texts = {
            field: (value or b"").decode("utf-8", "replace")
            for field, value in zip(fields, answers["state"], strict=True)
        }
        self.totals = {field: int(count) for field, count in _texts(answers["totals"]).items()}
        self.sample: list[str] = [host.decode() for host in answers["sample"] or ()]

    def now(self, wall_ms: int) -> int:
        """Return the crawl time of the shard, as _now.lua would reckon it."""
        step = wall_ms - _int(self.texts["wall_ms"])
        return _int(self.texts["clock_ms"]) + (step if 0 < step <= _CLOCK_STEP_MAX_MS else 0)

    def named(self, place: str) -> list[tuple[str, int]]:
        """Return the first hosts of a list of hosts with their scores."""
        return [(host.decode(), int(score)) for host, score in self.answers[place]]


def _int(text: str) -> int:
    return int(text) if text.removeprefix("-").isdecimal() else 0


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in fields.items()}


def _held_words(stages: Sequence[tuple[str, str]]) -> list[str]:
    """Return what may keep a crawl from handing tasks out, as the scripts call it (_state.lua)."""
    return ["paused", "frontier_full", "memory_full", *(f"full:{stage}" for _, stage in stages[1:])]


def _questions(sampled: int, fields: Sequence[str]) -> dict[str, Callable[[Any, Keys], Any]]:
    most = HOSTS_NAMED_MAX - 1
    return {
        "state": lambda pipe, keys: pipe.hmget(keys.state, list(fields)),
        "totals": lambda pipe, keys: pipe.hgetall(keys.totals),
        "workers": lambda pipe, keys: pipe.hgetall(keys.workers),
        "offsets": lambda pipe, keys: pipe.hgetall(keys.offsets),
        "hosts_scheduled": lambda pipe, keys: pipe.zcard(keys.schedule),
        "hosts_failing": lambda pipe, keys: pipe.zcard(keys.failing),
        "hosts_giving_up": lambda pipe, keys: pipe.zcard(keys.giving_up),
        "hosts_given_up": lambda pipe, keys: pipe.zcard(keys.given_up),
        "hosts_blocked": lambda pipe, keys: pipe.zcard(keys.blocked),
        "hosts_demoted": lambda pipe, keys: pipe.zcard(keys.demoted),
        "failing": lambda pipe, keys: pipe.zrange(keys.failing, 0, most, withscores=True),
        "given_up": lambda pipe, keys: pipe.zrange(keys.given_up, 0, most, withscores=True),
        "blocked": lambda pipe, keys: pipe.zrange(keys.blocked, 0, most, withscores=True),
        "demoted": lambda pipe, keys: pipe.zrange(keys.demoted, 0, most, withscores=True),
        "sample": lambda pipe, keys: pipe.zrandmember(keys.schedule, sampled),
        "revisits": lambda pipe, keys: pipe.zcard(keys.revisits),
        "next_revisit": lambda pipe, keys: pipe.zrange(keys.revisits, 0, 0, withscores=True),
        "dead": lambda pipe, keys: pipe.xlen(keys.dead),
        "replays": lambda pipe, keys: pipe.hgetall(keys.replays),
        "newest": lambda pipe, keys: pipe.xrevrange(keys.dead, count=DEAD_NAMED_MAX),
    }


async def _look(
    client: Redis, every: Sequence[Keys], stages: Sequence[tuple[str, str]]
) -> tuple[int, dict[str, Any], dict[bytes, bytes], list[_Shard]]:
    """Return the time (wall clock, ms), the memory of the server, the feeders, and the answers of each shard."""
    fields = [*_STATE_FIELDS, *(f"held_{what}:{word}" for word in _held_words(stages) for what in ("at", "ms"))]
    questions = _questions(max(1, HOSTS_SAMPLED // len(every)), fields)
    async with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.info("memory")
        pipe.hgetall(every[0].feeders)
        for keys in every:
            for ask in questions.values():
                ask(pipe, keys)
            for stage in stages:
                key = stream_key(keys, *stage)
                pipe.xlen(key)
                pipe.xinfo_groups(key)
                pipe.xpending_range(key, GROUP, "-", "+", 1)
        with mapped_errors():
            answers = iter(await pipe.execute(raise_on_error=False))
            time, memory, feeders = (_answer(next(answers)) for _ in range(3))
            shards = []
            for keys in every:
                own = {word: _answer(next(answers)) for word in questions}
                streams = [_stream(keys, stage, answers) for stage in stages]
                shards.append(_Shard(keys, fields, own, streams))
    return server_ms(time), memory, feeders, shards


def _answer(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def stream_key(keys: Keys, kind: str, stage: str) -> str:
    """Return the key of a stage's stream, by its kind and name."""
    if kind == STAGE:
        return keys.stage_stream(stage)
    return keys.sink_stream(stage) if kind == OUTPUT else keys.fetch_stream


def _stream(keys: Keys, stage: tuple[str, str], answers: Iterator[Any]) -> _Stream:
    key = stream_key(keys, *stage)
    length, groups, rows = _answer(next(answers)), next(answers), next(answers)
    # A stream that was lost has no group: these two are refused, and the rest is still worth showing.
    if isinstance(groups, ResponseError) or isinstance(rows, ResponseError) or not _answer(groups):
        return _Stream(key, length, 0, "0-0", None)
    group = groups[0]
    oldest = _answer(rows)[0]["message_id"].decode() if _answer(rows) else None
    return _Stream(key, length, group["pending"], group["last-delivered-id"].decode(), oldest)


class _Details(msgspec.Struct):
    """What takes a second question, by stream or by host."""

    oldest: dict[str, str] = msgspec.field(default_factory=dict)
    """Key of a stream -> id of the entry that waits longest."""
    hosts: dict[str, tuple[int, str, int]] = msgspec.field(default_factory=dict)
    """Host key -> what is queued, how it fails, and until when it is left alone (crawl time, ms)."""
    hosts_due: int = 0


async def _look_into_domains(client: Redis, shards: Sequence[_Shard]) -> None:
    """Where politeness is by domain: put hosts of the domains in the samples in their place."""
    for shard in shards:
        if shard.texts["by_domain"] == "1":
            most = max(1, HOSTS_SAMPLED // len(shards))
            hosts = await hosts_of_domains(client, shard.keys, shard.answers["sample"] or (), most)
            shard.sample = [host.decode() for host in hosts]


async def _look_closer(client: Redis, shards: Sequence[_Shard], now_ms: int) -> _Details:
    details = _Details()
    waiting = [stream for shard in shards for stream in shard.streams if stream.length > stream.pending]
    hosts = {
        host: shard.keys
        for shard in shards
        for host in (
            *shard.sample,
            *(host for place in ("failing", "blocked", "demoted") for host, _ in shard.named(place)),
        )
    }
    scheduled = [shard for shard in shards if shard.answers["hosts_scheduled"]]
    logs = [shard.keys.log(name) for shard in shards for name in _logs_in(shard) if _log_entries(shard.totals, name)]
    if not waiting and not hosts and not scheduled and not logs:
        return details
    async with client.pipeline(transaction=False) as pipe:
        for shard in scheduled:
            pipe.zcount(shard.keys.schedule, "-inf", shard.now(now_ms))
        for stream in waiting:
            pipe.xrange(stream.key, f"({stream.last_read}", "+", 1)
        for key in logs:
            pipe.xrange(key, count=1)
        for host, keys in hosts.items():
            pipe.hmget(keys.host(host), ["queued", "failing", "blocked_until", "domain"])
        with mapped_errors():
            answers = iter(await pipe.execute())
    details.hosts_due = sum(next(answers) for _ in scheduled)
    for stream in waiting:
        for entry_id, _ in next(answers):
            details.oldest[stream.key] = entry_id.decode()
    for key in logs:
        for entry_id, _ in next(answers):
            details.oldest[key] = entry_id.decode()
    domains: dict[str, tuple[str, Keys]] = {}
    for host, keys in hosts.items():
        queued, reason, until, domain = next(answers)
        details.hosts[host] = (int(queued or 0), (reason or b"").decode("utf-8", "replace"), int(until or 0))
        if domain and reason:
            domains[host] = domain.decode("utf-8", "replace"), keys
    if domains:
        async with client.pipeline(transaction=False) as pipe:
            for domain, keys in domains.values():
                pipe.hmget(keys.domain(domain), ["failing", "blocked_until"])
            with mapped_errors():
                answers = iter(await pipe.execute())
        for host, (domain, _) in domains.items():
            failing, until = next(answers)
            if failing:  # then it is not asked before its domain is
                queued, reason, own = details.hosts[host]
                details.hosts[host] = (queued, f"{reason}, as all of {domain}", max(own, int(until or 0)))
    return details


# -- what is made of the answers


def _first_of(shards: Sequence[_Shard], field: str) -> str:
    return next((shard.texts[field] for shard in shards if shard.texts[field]), "")


def _age(then_ms: int, now_ms: int) -> int:
    # A clock that was set back makes the past lie ahead.
    return max(0, now_ms - then_ms)


def _throttled(shards: Sequence[_Shard]) -> list[str]:
    """Return what is over its mark, in any shard."""
    return list(dict.fromkeys(name for shard in shards for name in shard.texts["throttled"].split(",") if name))


def _with_workers(status: Status, shards: Sequence[_Shard], given: Mapping[str, Any]) -> list[StageStatus]:
    """Return the stages with who reads them, their marks, and what holds them back."""
    least = int(given.get("stage_waiting_max") or Settings(name="").stage_waiting_max)
    flow: Any = {}
    with suppress(msgspec.DecodeError):
        flow = msgspec.json.decode(shards[0].texts["flow"] or "{}")
    over = _throttled(shards)
    workers: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    worked_s: defaultdict[str, float] = defaultdict(float)
    for worker in status.workers:
        if worker.stage and status.lives(worker):
            workers[worker.stage] += 1
            slots[worker.stage] += worker.slots
            ended[worker.stage] += worker.ended
            worked_s[worker.stage] += worker.worked_s

    def feeds(stage: StageStatus, name: str) -> bool:
        line = "page" if stage.kind == FETCH else stage.stage
        row = flow.get(name)
        return line in row.get("from", ()) if isinstance(row, dict) else line == "page"

    def batch_of(stage: StageStatus) -> int:
        row = flow.get(stage.stage)
        return int(row.get("batch", 1)) if isinstance(row, dict) else 1

    def least_of(stage: StageStatus) -> int:
        """Return the size under which a stage would wait for itself."""
        return max(2 * batch_of(stage), 2 * slots[stage.stage])

    def size_of(stage: StageStatus) -> int | None:
        if stage.kind == FETCH:
            return stage.mark_high
        return max(least, least_of(stage)) if stage.kind == STAGE else _sink_size(given)

    def interval(stage: StageStatus) -> float | None:
        # Batches are taken one after another by each worker, however many items wait in its slots for theirs.
        is_batched = stage.kind == OUTPUT or batch_of(stage) > 1
        at_a_time = workers[stage.stage] if is_batched else slots[stage.stage]
        return interval_s(ended[stage.stage], worked_s[stage.stage], at_a_time)

    proposed: dict[str, int | None] = {}

    def propose(stage: StageStatus) -> int | None:
        """Return the size of a stage's queue by those of what feeds it, each as it is proposed."""
        if stage.stage not in proposed:
            proposed[stage.stage] = None  # whoever wrote the flow: a circle ends here
            own_s = interval(stage)
            found = []
            for before in status.stages:
                if before.kind == OUTPUT or not feeds(before, stage.stage):
                    continue
                before_s = interval(before)
                size = size_of(before) if before.kind == FETCH else propose(before)
                if own_s and before_s and size:
                    found.append(proposed_size(size, before_s, own_s, least_of(stage)))
            proposed[stage.stage] = max(found, default=None)
        return proposed[stage.stage]

    def as_it_is(stage: StageStatus) -> StageStatus:
        size = size_of(stage)
        if stage.kind == STAGE and size is not None:
            stage = replace(stage, mark_high=int(0.8 * size), mark_low=int(0.2 * size))
        return replace(
            stage,
            slots=slots[stage.stage],
            is_over=stage.stage in over and stage.kind != FETCH,
            held_by=tuple(name for name in over if stage.kind != OUTPUT and feeds(stage, name)),
            size=size,
            entry_s=None if interval(stage) is None else worked_s[stage.stage] / ended[stage.stage],
            proposed=None if stage.kind == FETCH else propose(stage),
        )

    return [as_it_is(stage) for stage in status.stages]


def _marks(
    slots: int, given: Mapping[str, Any], stages: Sequence[tuple[str, str]]
) -> list[tuple[int | None, int | None]]:
    """Return the high and the low mark of each stage, as _dispatch.lua and _items.lua have them; but those of a
    program's stages, which go by their live slots (`_with_workers`)."""
    most = _sink_size(given)
    return [(2 * slots or None, None), *((int(0.8 * most), int(0.2 * most)) for _ in stages[1:])]


def _sink_size(given: Mapping[str, Any]) -> int:
    return int(given.get("sink_waiting_max") or Settings(name="").sink_waiting_max)


def _held(shards: Sequence[_Shard], stages: Sequence[tuple[str, str]], now_ms: int) -> dict[str, int]:
    def held_ms(shard: _Shard, word: str) -> int:
        since = _int(shard.texts[f"held_at:{word}"])
        return _int(shard.texts[f"held_ms:{word}"]) + (_age(since, now_ms) if since else 0)

    return {word: max(held_ms(shard, word) for shard in shards) for word in _held_words(stages)}


def _stage(
    kind: str,
    stage: str,
    n: int,
    shards: Sequence[_Shard],
    oldest: Mapping[str, str],
    now_ms: int,
    mark_high: int | None,
    mark_low: int | None,
) -> StageStatus:
    streams = [shard.streams[n] for shard in shards]

    def count(state: str) -> int:
        return sum(shard.totals.get(f"{stage}.{state}", 0) for shard in shards) if kind == STAGE else 0

    def eldest(ids: Iterable[str | None]) -> int | None:
        return max((_age(int(one.partition("-")[0]), now_ms) for one in ids if one is not None), default=None)

    return StageStatus(
        stage=stage,
        waiting=sum(stream.length - stream.pending for stream in streams),
        pending=sum(stream.pending for stream in streams),
        oldest_waiting_ms=eldest(oldest.get(stream.key) for stream in streams),
        oldest_pending_ms=eldest(stream.oldest_pending for stream in streams),
        mark_high=mark_high,
        mark_low=mark_low,
        kind=kind,
        done=count("done"),
        delayed=count("delayed"),
        dead=count("dead"),
    )


def _workers(shards: Sequence[_Shard], now_ms: int) -> list[WorkerStatus]:
    """Return each worker once: it beats to every shard, and the latest of these beats tells that it lives."""
    found: dict[str, WorkerStatus] = {}
    for shard in shards:
        for consumer, row in _texts(shard.answers["workers"]).items():
            beat, slots, info = (*row.split(" ", 2), "", "")[:3]
            if not (beat.isdecimal() and slots.isdecimal()):
                continue
            worker = _worker(consumer, int(slots), _age(int(beat), now_ms), info)
            if consumer not in found or worker.beat_age_ms < found[consumer].beat_age_ms:
                found[consumer] = worker
    return sorted(found.values(), key=lambda worker: worker.consumer)


def _worker(consumer: str, slots: int, age_ms: int, info: str) -> WorkerStatus:
    about: Any = None
    with suppress(msgspec.DecodeError):
        about = msgspec.json.decode(info)
    if not isinstance(about, dict):
        about = {}
    pid, busy, own = about.get("pid"), about.get("busy"), about.get("slots")
    least, most = about.get("slots_least"), about.get("slots_most")
    ended, worked_s = about.get("ended"), about.get("worked_s")
    return WorkerStatus(
        consumer,
        # To each of several shards it beats with its share of them.
        own if isinstance(own, int) else slots,
        age_ms,
        info,
        machine=str(about.get("machine", "")),
        pid=pid if isinstance(pid, int) else 0,
        role=str(about.get("role", "")),
        busy=busy if isinstance(busy, int) else None,
        stage=str(about.get("stage", "")) or (FETCH if about.get("role") == FETCH else ""),
        slots_least=least if isinstance(least, int) else None,
        slots_most=most if isinstance(most, int) else None,
        ended=ended if isinstance(ended, int) else 0,
        worked_s=float(worked_s) if isinstance(worked_s, int | float) else 0.0,
    )


def _seeds_left(totals: Mapping[str, int]) -> int:
    # Within what can be: an upgraded crawl has seeds that were counted at one end only (store/upgrade.py).
    left = sum(totals.get(f"page.{state}", 0) for state in ("queued", "streamed", "delayed"))
    return max(0, min(totals.get("seed.created", 0) - totals.get("seed.ended", 0), left))


def _feeders(rows: Mapping[str, str], now_ms: int, lease_ms: int) -> list[FeederStatus]:
    """Return who offers seeds; a row is the crawl time at which its lease ends (0: it left), and its cursor."""
    found = []
    for name, row in sorted(rows.items()):
        until, _, cursor = row.partition(" ")
        until_ms = _int(until)
        sign_age_ms = _age(until_ms - lease_ms, now_ms) if until_ms else None
        found.append(FeederStatus(name, cursor, until_ms > now_ms, sign_age_ms))
    return found


def _logs_in(shard: _Shard) -> dict[str, int]:
    """Return the logs of a shard by name: for how long each keeps an entry, ms."""
    told = (one.partition("=") for one in shard.texts["logs"].split(",") if one)
    return {name: _int(shard.texts["keep_bodies"]) if name.startswith("fetched.") else _int(ms) for name, _, ms in told}


def _log_entries(totals: Mapping[str, int], name: str) -> int:
    created, *gone = (totals.get(f"log:{name}.{state}", 0) for state in ("created", "expired", "trimmed"))
    return created - sum(gone)


def _logs(
    shards: Sequence[_Shard], totals: Mapping[str, int], oldest: Mapping[str, str], now_ms: int
) -> list[LogStatus]:
    """Return the logs in which anything is, or was, or is to be."""
    found = []
    for name, keep_ms in _logs_in(shards[0]).items():
        if not keep_ms and not totals.get(f"log:{name}.created"):
            continue
        ids = [oldest[key] for shard in shards if (key := shard.keys.log(name)) in oldest]
        found.append(
            LogStatus(
                name,
                entries=_log_entries(totals, name),
                bytes=totals.get(f"log:{name}.bytes", 0),
                oldest_ms=max((_age(int(one.partition("-")[0]), now_ms) for one in ids), default=None),
                keep_ms=keep_ms,
                trimmed=totals.get(f"log:{name}.trimmed", 0),
            )
        )
    return found


def _replays(shards: Sequence[_Shard]) -> list[ReplayStatus]:
    found: dict[str, ReplayStatus] = {}
    for shard in shards:
        rows = _texts(shard.answers["replays"])
        for replay_id, plan in rows.items():
            about: Any = None
            with suppress(msgspec.DecodeError):
                about = msgspec.json.decode(plan) if ":" not in replay_id else None
            if not isinstance(about, dict):
                continue
            looked, copied = (_int(text) for text in rows.get(f"{replay_id}:at", " 0 0").split(" ")[1:])
            one = found.get(replay_id) or ReplayStatus(replay_id, about["log"], about["target"], 0, 0, 0)
            found[replay_id] = replace(
                one, looked=one.looked + looked, copied=one.copied + copied, shards=one.shards + 1
            )
    return sorted(found.values(), key=lambda one: one.id)


def _sinks(shards: Sequence[_Shard], status: Status, stored: str) -> list[SinkStatus]:
    paths = stored_sinks({"crawl": stored})
    offsets = [_texts(shard.answers["offsets"]) for shard in shards]
    return [
        SinkStatus(
            name=stage.stage,
            path=paths.get(stage.stage, ""),
            waiting=stage.waiting,
            written=status.totals.get(f"{stage.stage}.done", 0),
            # Of one file: the shard that was written last knows its end.
            offset=max(_int(own.get(f"{stage.stage}:offset", "")) for own in offsets),
            bytes_waiting=status.totals.get(f"{stage.stage}.bytes", 0),
        )
        for stage in status.stages
        if stage.kind == OUTPUT
    ]


def _size_text(sink: SinkStatus) -> str:
    return "" if "://" in sink.path else f"{counted(sink.offset, 'byte')}, "


def stored_sinks(state: Mapping[str, str]) -> dict[str, str]:
    """Return sink name -> path as the crawl's state has them (cli/crawl.py writes it); empty when it has none."""
    with suppress(msgspec.DecodeError):
        stored = msgspec.json.decode(state.get("crawl", "") or "{}")
        if isinstance(stored, dict) and isinstance(stored.get("sinks"), dict):
            return {str(name): str(path) for name, path in stored["sinks"].items()}
    return {}


def _newest_dead(shards: Sequence[_Shard]) -> list[DeadLetter]:
    letters = [_dead_letter(*entry) for shard in shards for entry in shard.answers["newest"]]
    return sorted(letters, key=lambda letter: -letter.died_at_ms)[:DEAD_NAMED_MAX]


def _dead_letter(entry_id: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter:
    texts = _texts(fields)
    host = texts.get("host", "")
    try:
        url = texts.get("url") or decode_task(host, texts.get("level", "2"), fields.get(b"task", b"")).url
    except CodecError:
        url = host
    return DeadLetter(
        url=url,
        reason=texts.get("reason", ""),
        error=texts.get("error", ""),
        last_status=texts.get("last_status", ""),
        died_at_ms=int(entry_id.partition(b"-")[0]),
    )


def _name_hosts(status: Status, shards: Sequence[_Shard], details: _Details, now_ms: int) -> None:
    def named(place: str, now_of: Callable[[_Shard], int]) -> list[HostStatus]:
        found = []
        for shard in shards:
            for host, since in shard.named(place):
                queued, reason, until = details.hosts.get(host, (0, "", 0))
                asked_in_ms = max(0, until - shard.now(now_ms)) if place == "failing" else 0
                found.append(HostStatus(host, queued, reason, asked_in_ms, _age(since, now_of(shard))))
        return sorted(found, key=lambda one: (-(one.for_ms or 0), one.host))[:HOSTS_NAMED_MAX]

    status.failing = named("failing", lambda shard: shard.now(now_ms))
    status.blocked = named("blocked", lambda shard: now_ms)
    status.demoted = named("demoted", lambda shard: now_ms)
    status.given_up = [one.host for one in named("given_up", lambda shard: now_ms)]
    sample = (HostStatus(host, details.hosts[host][0]) for shard in shards for host in shard.sample)
    status.top_hosts = sorted(sample, key=lambda one: (-one.queued, one.host))[:HOSTS_NAMED_MAX]


def _rates(shard: _Shard, wall_ms: int, stale_ms: int) -> tuple[float, float] | None:
    """Return pages done and pages discovered a second, from the samples that beat.lua left; None when unknown."""
    samples = []
    for text in filter(None, shard.texts["samples"].split("|")):
        parts = text.split(" ")
        if len(parts) == 4 and all(part.isdecimal() for part in parts):
            samples.append([int(part) for part in parts])
    # Nobody beats any more: what was is no rate of the present.
    if not samples or abs(wall_ms - samples[0][1]) > stale_ms:
        return None
    now_ms = shard.now(wall_ms)
    # Newest first: the first one that is old enough, else the oldest.
    then, _, done, created = next((one for one in samples if now_ms - one[0] >= RATE_OVER_MS), samples[-1])
    passed_s = (now_ms - then) / 1000
    if passed_s * 1000 < RATE_LEAST_MS:
        return None
    return tuple(
        max(0.0, (shard.totals.get(f"page.{state}", 0) - before) / passed_s)
        for state, before in (("done", done), ("created", created))
    )  # type: ignore[return-value]  # two of them


def _shard_status(shard: _Shard, rate: tuple[float, float] | None) -> ShardStatus:
    def page(state: str) -> int:
        return shard.totals.get(f"page.{state}", 0)

    return ShardStatus(
        shard=shard.keys.shard,
        done=page("done"),
        queued=page("queued"),
        streamed=shard.streams[0].length,
        pending=shard.streams[0].pending,
        delayed=page("delayed"),
        dead=shard.answers["dead"],
        hosts_scheduled=shard.answers["hosts_scheduled"],
        seen=_int(shard.texts["seen"]),
        pages_per_s=None if rate is None else rate[0],
        version=_int(shard.texts["version"]),
        stopped=shard.texts["stopped"],
        throttled=shard.texts["throttled"],
    )


def _brakes(status: Status, shards: Sequence[_Shard], given: Mapping[str, Any], now_ms: int) -> list[Brake]:
    def since(field: str) -> int | None:
        """Return how long it has lasted in the shard where it began first."""
        known = (shard.texts[f"{field}_at"] for shard in shards if shard.texts[field])
        return max((_age(int(at), now_ms) for at in known if at.isdecimal()), default=None)

    brakes = []
    if status.is_paused:
        brakes.append(Brake("PAUSED", f"paused; go on with: streamcrawl resume {status.name}", since("paused")))
    stops = dict.fromkeys(shard.texts["stopped"] for shard in shards if shard.texts["stopped"])
    tune = f"streamcrawl settings set {status.name} {{}}, then streamcrawl resume {status.name}"
    brakes += [Brake(word, stopped_because(word, tune), since("stopped")) for word in stops]
    stages = {stage.stage: stage for stage in status.stages if stage.kind == STAGE}
    held = {stage.stage: stage.held_by for stage in status.stages}
    for sink in _throttled(shards):
        if sink in stages:
            waits = " and ".join(name for name, over in held.items() if sink in over)
            why = (
                f"{waits} wait until a fifth is left; add workers: streamcrawl worker MODULE:ATTRIBUTE --stage {sink}"
                if stages[sink].slots
                else f"and no worker of it is alive: streamcrawl worker MODULE:ATTRIBUTE --stage {sink}"
            )
            brakes.append(Brake("THROTTLED", f"too many items wait for stage {sink}: {why}", since("throttled")))
            continue
        path = next((one.path for one in status.sinks if one.name == sink), "") or sink
        is_written = any(worker.role == "sink" and status.lives(worker) for worker in status.workers)
        why = (
            "it is written more slowly than pages come; it goes on by itself when a fifth is left"
            if is_written
            else "and no writer of an output is alive: start the crawl again on the machine that writes it"
        )
        brakes.append(Brake("THROTTLED", f"too many records wait for {path}: {why}", since("throttled")))
    budget = given.get("pages_max")
    if isinstance(budget, int) and status.page("queued") and status.page("done") + status.page("streamed") >= budget:
        reason = f"--max-pages {budget} is reached; raise it: streamcrawl settings set {status.name} pages_max=N"
        brakes.append(Brake("BUDGET", reason))
    return brakes


# -- for people


def stopped_because(word: str, tune: str = "") -> str:
    """Return why dispatch stopped, and what mends it.

    Args:
        tune: The commands that change a setting, with {} in place of NAME=VALUE, and let the crawl go on; '' where
            the command that is running does both by its options.
    """
    if word not in STOPS:
        return word
    why, field, other = STOPS[word]
    change = f"{key_of(field).replace('_', '-')}={'SIZE' if field.endswith('_bytes') else 'N'}"
    return f"{why}; raise {f'it: {tune.format(change)}' if tune else option_of(field)}{other}"


def status_lines(status: Status) -> list[str]:
    """Return the status as lines of plain text."""
    lines = [f"crawl {status.name}: {condition(status)}"]
    lines += [f"  ! {brake.reason}{_lasting(brake.for_ms)}" for brake in status.brakes]
    rows = [
        ("pages done", number(status.page("done")) + _rate(status)),
        ("queued", number(status.page("queued")) + _backlog(status)),
    ]
    rows += [(_stage_name(stage, status), _stage_text(stage, status.name)) for stage in status.stages]
    rows += [
        ("delayed", number(status.page("delayed"))),
        ("dead", reasons(status.by_reason("dead"))),
        ("dropped", reasons(status.by_reason("dropped"))),
        ("links left out", reasons(status.links_left_out())),
        ("refusals", reasons(status.refusals())),
        *([("sitemaps", _sitemaps_text(status))] if status.sitemap("created") else []),
        *([("visits", _visits_text(status))] if status.revisits or status.page("revisited") else []),
        ("URLs seen", number(status.seen)),
        ("seeds", f"{number(status.seeds_left)} not ended" + ("" if status.is_closed else ", more may come")),
    ]
    if waited := status.by_reason("waited"):
        rows.append(("sent back", f"to wait: {reasons(waited)}"))
    rows += [("feeder", feeder_text(feeder)) for feeder in status.feeders]
    rows += [
        ("domains scheduled" if status.by_domain else "hosts scheduled", number(status.hosts_scheduled)),
        ("hosts failing", _named(status.hosts_failing, [_failing_text(one) for one in status.failing])),
        ("hosts given up", _named(status.hosts_given_up, status.given_up)),
        ("hosts blocked", _named(status.hosts_blocked, [_kept_text(one) for one in status.blocked])),
        ("hosts demoted", _named(status.hosts_demoted, [_kept_text(one) for one in status.demoted])),
    ]
    top = [_kept_text(one) for one in status.top_hosts[:NAMED_MAX] if one.queued]
    if top:
        rows.append(("largest", f"of a sample of {counted(status.hosts_sampled, 'host')}: {', '.join(top)}"))
    rows += [("memory", memory(status)), ("settings", f"version {status.version}")]
    rows += [("worker", _worker_text(worker)) for worker in status.workers[:WORKERS_NAMED_MAX]]
    if len(status.workers) > WORKERS_NAMED_MAX:
        rows.append(("", f"and {number(len(status.workers) - WORKERS_NAMED_MAX)} more workers; --json has all"))
    rows += [
        (
            "output",
            f"{f'{sink.path} ({sink.name})' if sink.path else sink.name}: {counted(sink.written, 'record')}, "
            f"{_size_text(sink)}"
            f"{number(sink.waiting)} waiting",
        )
        for sink in status.sinks
    ]
    rows += [("log", _log_text(log)) for log in status.logs]
    rows += [("replay", f"{one.id}: {replay_text(one)}") for one in status.replays]
    width = max(len(label) for label, _ in rows)
    lines += ["", *(f"  {label:<{width}}  {text}" for label, text in rows)]
    if len(status.shards) > 1:
        lines += ["", *_table(status.shards)]
    return lines


def _sitemaps_text(status: Status) -> str:
    waiting = status.sitemap("queued") + status.sitemap("delayed")
    flaws = status.sitemaps_flawed()
    return (
        f"{number(status.sitemap('done'))} read"
        + (f", {number(waiting)} waiting" if waiting else "")
        + (f"; flawed: {reasons(flaws)}" if flaws else "")
    )


def _visits_text(status: Status) -> str:
    found = {
        word.removeprefix("page.visits."): n for word, n in status.totals.items() if word.startswith("page.visits.")
    }
    text = f"{counted(status.revisits, 'page')} to be fetched again"
    if status.next_revisit_ms is not None:
        text += f", the first {_in_time(status.next_revisit_ms)}"
    return text + f"; found so far: {reasons(dict(sorted(found.items(), key=lambda pair: -pair[1])))}"


def _in_time(ms: int) -> str:
    return f"in {span(ms)}" if ms >= 1000 else "now"


def condition(status: Status) -> str:
    """Return in some words what state the crawl is in."""
    words = []
    if status.is_paused:
        words.append("paused")
    if status.stopped:
        words.append(f"stopped ({status.stopped})")
    if status.throttled:
        words.append(f"throttled by {status.throttled}")
    if status.is_complete and status.next_revisit_ms is not None:
        words.append(f"all fetched, the next page is due {_in_time(status.next_revisit_ms)}")
    elif status.is_complete:
        words.append("complete but for what blocked hosts keep" if status.queued else "complete")
    elif status.queued + status.under_way:
        words.append("at work" if status.is_alive else "at rest, no worker is alive")
    else:
        words.append("nothing to do, more seeds may come")
    return ", ".join(words)


def _rate(status: Status) -> str:
    if status.pages_per_s is None or status.new_per_s is None:
        return ""
    return f", {status.pages_per_s:,.1f}/s; {status.new_per_s:,.1f} new/s"


def _backlog(status: Status) -> str:
    return "" if status.backlog_s is None else f", {span(int(status.backlog_s * 1000))} at this rate"


def _stage_name(stage: StageStatus, status: Status) -> str:
    if stage.kind == STAGE:
        return f"stage {stage.stage}"
    return "in the stream" if stage is status.stages[0] else f"for {stage.stage}"


def _log_text(log: LogStatus) -> str:
    return (
        f"{log.name}: {counted(log.entries, 'entry') if log.entries == 1 else f'{number(log.entries)} entries'}, "
        f"{log.bytes / 1e6:,.1f} MB"
        + (f", oldest {span(log.oldest_ms)}" if log.oldest_ms is not None else "")
        + (f", kept {span(log.keep_ms)}" if log.keep_ms else ", no longer kept")
        + (f"; {number(log.trimmed)} went before their time" if log.trimmed else "")
    )


def replay_text(one: ReplayStatus) -> str:
    """Return what a replay does, and how far it is."""
    return f"{number(one.copied)} of {number(one.looked)} looked at in log {one.log} sent to {one.target}"


def _stage_text(stage: StageStatus, name: str) -> str:
    waiting = "" if stage.oldest_waiting_ms is None else f" (oldest {span(stage.oldest_waiting_ms)})"
    pending = "" if stage.oldest_pending_ms is None else f" (oldest {span(stage.oldest_pending_ms)})"
    text = f"{number(stage.waiting)} waiting{waiting}, {number(stage.pending)} in the hands of workers{pending}"
    if stage.kind == STAGE:
        text += f", {number(stage.done)} done, {counted(stage.slots, 'slot')}"
        text += f", {number(stage.delayed)} delayed" if stage.delayed else ""
        text += f", {number(stage.dead)} dead" if stage.dead else ""
        text += "; over its mark" if stage.is_over else ""
        if stage.is_unread:
            text += (
                f"; NOBODY READS IT: start workers that have it, or streamcrawl queue drop {name} --stage {stage.stage}"
            )
    if stage.proposed is not None:
        text += f"; room for {number(stage.size or 0)}, proposed {number(stage.proposed)} ({_took(stage.entry_s)} each)"
    return text + (f"; held back by {', '.join(stage.held_by)}" if stage.held_by else "")


def _took(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def feeder_text(feeder: FeederStatus) -> str:
    """Return who offers seeds, how far it is, and whether it is alive."""
    sign = "left before it was done" if feeder.sign_age_ms is None else f"last sign {span(feeder.sign_age_ms)} ago"
    if feeder.sign_age_ms is not None and not feeder.is_alive:
        sign += ", it is dead"
    cursor = Cursor.decode(feeder.cursor)
    at = cursor.text if cursor is not None else feeder.cursor
    return f"{feeder.name}: {f'at {at}, ' if at else ''}{sign}"


def _failing_text(one: HostStatus) -> str:
    then = f"asked again in {span(one.asked_in_ms)}" if one.asked_in_ms else "asked by one fetch at a time"
    return f"{one.host} ({one.reason or 'no answer'} for {span(one.for_ms or 0)}, {then})"


def _kept_text(one: HostStatus) -> str:
    return f"{one.host} ({number(one.queued)})"


def _named(count: int, names: Sequence[str]) -> str:
    """Return `0`, or `3: a, b, c`, or `70: a, b, … and 65 more (host ls)`."""
    if not count:
        return "0"
    names = names[:NAMED_MAX]
    more = f" and {number(count - len(names))} more (host ls)" if count > len(names) else ""
    return f"{number(count)}: {', '.join(names)}{more}"


def _worker_text(worker: WorkerStatus) -> str:
    load = counted(worker.slots, "slot")
    if worker.busy is not None:
        load = f"{number(worker.busy)} of {load} busy" if worker.slots else f"{number(worker.busy)} in hand"
    if worker.slots_most is not None:
        load += f" ({number(worker.slots_least or 0)} to {number(worker.slots_most)})"
    # Of a program all stages have the same role: its name alone says which of them lacks workers.
    name = worker.stage if worker.role == STAGE else ""
    about = "".join((worker.role, f" {name}" if name else "", ", " if worker.role else "", load))
    place = "".join((f", on {worker.machine}" if worker.machine else "", f", pid {worker.pid}" if worker.pid else ""))
    return f"{worker.consumer}: {about}, last beat {span(worker.beat_age_ms)} ago{place}"


def _table(shards: Sequence[ShardStatus]) -> list[str]:
    """Return one line for each shard, under a heading."""
    heads = ("shard", "done", "queued", "stream", "in hand", "delayed", "dead", "hosts", "seen", "pages/s", "settings")
    rows = [
        [
            *(
                number(count)
                for count in (
                    one.shard, one.done, one.queued, one.streamed, one.pending, one.delayed, one.dead,
                    one.hosts_scheduled, one.seen,
                )
            ),
            "-" if one.pages_per_s is None else f"{one.pages_per_s:,.1f}",
            str(one.version),
        ]
        for one in shards
    ]  # fmt: skip
    widths = [max(len(row[n]) for row in (heads, *rows)) for n in range(len(heads))]
    lines = [
        "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)
    ]
    for n, one in enumerate(shards):
        notes = [word for word in (one.stopped, f"throttled by {one.throttled}" if one.throttled else "") if word]
        lines[n + 1] += f"  {', '.join(notes)}" if notes else ""
    return lines


def _lasting(for_ms: int | None) -> str:
    return "" if for_ms is None else f" (for {span(for_ms)})"


def reasons(counts: Mapping[str, int]) -> str:
    """Return `12 (timeout 10, dns 2)`, or `0`."""
    if not counts:
        return "0"
    return (
        f"{number(sum(counts.values()))} ({', '.join(f'{reason} {number(count)}' for reason, count in counts.items())})"
    )


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, noun: str) -> str:
    """Return `1 page`, `2,000 pages`: of nouns that take an s."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def span(ms: int) -> str:
    """Return a duration in its two largest units: `0.4 s`, `12 s`, `5 min 3 s`, `2 h 5 min`, `3 d 4 h`."""
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for unit, unit_s, rest, rest_s in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= unit_s:
            left = seconds % unit_s // rest_s
            return f"{number(seconds // unit_s)} {unit}" + (f" {left} {rest}" if left else "")
    return f"{seconds} s"


def memory(status: Status) -> str:
    """Return `5.1 MB of 1,000 MB (1 %), …`: of the server, whatever else is in it."""
    used = f"{status.memory_bytes / 1e6:,.1f} MB"
    if not status.memory_max_bytes:
        return used
    share = 100 * status.memory_bytes / status.memory_max_bytes
    return (
        f"{used} of {status.memory_max_bytes / 1e6:,.0f} MB ({share:.0f} %); nothing new is dispatched above "
        f"{status.memory_mark_bytes / 1e6:,.0f} MB"
    )
