"""What Redis knows of its crawls and queues, for Prometheus and for autoscalers. It changes nothing, and may run twice.

One look is the status of each crawl (ops/status.py: a few bounded answers, whatever its size) and the sizes of its
structures at one instant, for the balance. A look is kept for a second, so that two who scrape cost one. When Redis is
away `redis_up` is 0 and there is no other figure: an old one would look like a crawl that stands still. Rates of stages
behind `fetch` come from earlier looks, so they are unknown at first. docs/metrics.md lists the names. Start at
`Exporter`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from streamcrawl.errors import ConfigError, StoreError, fetch_error_kinds
from streamcrawl.ops.metrics import counter, gauge
from streamcrawl.ops.probes import healthy, unanswered
from streamcrawl.ops.queue_figures import QUEUES_MAX, QueueLook, look_at_queue, queue_metrics, queue_names
from streamcrawl.ops.serving import Reply, exposition
from streamcrawl.ops.status import STAGE, STOPS, read_status, stream_key
from streamcrawl.rules.sitemaps import Listed
from streamcrawl.rules.task import DropReason, Kind
from streamcrawl.rules.traps import LeftOut
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import FETCH, Keys
from streamcrawl.store.shards import crawl_names
from streamcrawl.work.meters import ITEM, OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aiohttp import web
    from prometheus_client import Metric
    from redis.asyncio import Redis

    from streamcrawl.ops.serving import Page
    from streamcrawl.ops.status import StageStatus, Status, WorkerStatus

KEPT_S: Final = 1.0
LOOK_MAX_S: Final = 8.0
"""Prometheus gives up a scrape after 10 s by default."""
AT_A_TIME: Final = 8
"""Crawls that are looked at side by side."""
CRAWLS_MAX: Final = 200
"""Crawls in a look; each has some hundred series."""
CONSUMERS_MAX: Final = 100
"""Workers of a crawl that are told apart."""
REASONS_MAX: Final = 50
"""Reasons of a crawl that are told apart, beside those that streamcrawl itself gives."""
RATE_OVER_S: Final = 30.0
RATE_LEAST_S: Final = 5.0
HISTORY_S: Final = 300.0
TARGET_DEFAULT_S: Final = 60.0
"""How long a backlog may take, when an autoscaler does not say it."""
_OURS: Final = frozenset(
    {*(reason.value for reason in (*DropReason, *LeftOut, *Listed)), *fetch_error_kinds()}
    | {"codec", "crashed", "handler", "internal", "retry", "host_unreachable", "robots_unreachable"}
    | {"purged", "removed", "replayed", "old_copy", *(f"http_{status}" for status in (408, 425, 429, *range(500, 600)))}
)
"""Reasons that scripts and workers give by themselves."""
_DEADLY: Final = (
    *fetch_error_kinds(), "codec", "crashed", "handler", "internal", "retry", "host_unreachable", "robots_unreachable",
    "http_429", "http_500", "http_502", "http_503", "http_504",
)  # fmt: skip
"""Reasons that are shown with 0 from the start: of a series that begins with its first ten no increase can be seen."""
_COUNTERS: Final = (
    ("created", "Discovered, or emitted to the stage"),
    ("done", "Ended with a result"),
    ("retried", "Tried again, with the attempt counted"),
    ("unanswered", "Put back because the host did not answer"),
    ("replayed", "Dead letters sent again"),
    ("copied", "Created by a replay of a retained log"),
    ("revisited", "Created because a page was due to be visited again"),
    ("crashed", "In the hands of a process that died, and put back"),
    ("lease_lost", "Commits that came too late and wrote nothing"),
)


_Which = tuple[str, str, str]
"""Stage, kind and reason."""


class Look(msgspec.Struct, frozen=True):
    """What one look found."""

    at_s: float
    """Seconds of the monotonic clock."""
    took_s: float
    error: str
    """Why Redis did not answer; '' when it did."""
    server: dict[str, Any] = msgspec.field(default_factory=dict)
    """INFO of memory and persistence."""
    crawls: list[CrawlLook] = msgspec.field(default_factory=list)
    crawls_in_all: int = 0
    queues: list[QueueLook] = msgspec.field(default_factory=list)
    queues_in_all: int = 0


class CrawlLook(msgspec.Struct, frozen=True):
    status: Status
    imbalance: dict[tuple[str, str], int]
    """Stage and check -> by how much the figures differ."""
    rates: dict[str, float]
    """Stage -> tasks done a second; one whose rate is not known is missing."""
    dead: Mapping[_Which, int]
    """Dead letters that lie there, by stage, kind and reason."""
    died: Mapping[_Which, int]
    """The same with those that were replayed or purged since the first look."""
    dropped: Mapping[_Which, int]

    def due(self, stage: StageStatus) -> int:
        """Return how much of a stage could be worked at now if there were more workers."""
        return stage.waiting + (self.status.hosts_due if stage.stage == FETCH else 0)

    def backlog_s(self, stage: StageStatus) -> float | None:
        """Return how long that takes at the present rate; None when no rate is known."""
        if not self.due(stage):
            return 0.0
        rate = self.rates.get(stage.stage)
        return self.due(stage) / rate if rate else None

    def left(self, stage: StageStatus) -> int:
        """Return what a stage has to do in all, now or later."""
        status = self.status
        later = status.queued + status.page("delayed") + status.sitemap("delayed") if stage.stage == FETCH else 0
        return stage.waiting + stage.pending + stage.delayed + later

    def consumers(self, stage: StageStatus) -> list[WorkerStatus]:
        """Return the live workers of a stage."""
        return [one for one in self.status.workers if one.stage == stage.stage and self.status.lives(one)]


class Exporter:
    """Looks at the crawls of one Redis when it is asked."""

    def __init__(self, client: Redis, names: Sequence[str] = (), *, kept_s: float = KEPT_S) -> None:
        """Prepare it; nothing is asked yet.

        Args:
            client: Of the Redis.
            names: The crawls to show; none for all that are there.
            kept_s: How long a look is good enough for whoever asks next.
        """
        self._client = client
        self._kept_s = kept_s
        self._names = tuple(names)
        self._lock = asyncio.Lock()
        self._last: Look | None = None
        self._done: dict[str, deque[tuple[float, dict[str, int]]]] = {}
        """Crawl -> what each stage had done, at earlier looks."""
        self._reasons: dict[str, set[str]] = {}
        """Crawl -> reasons beside our own that are told apart: once one has a series, it keeps it."""
        self._deaths: dict[str, _Deaths] = {}
        self._failed = 0
        self._process = ProcessCollector(registry=None)

    async def look(self) -> Look:
        """Return how things are, or were a moment ago."""
        async with self._lock:
            if self._last is None or time.monotonic() - self._last.at_s > self._kept_s:
                self._last = await self._look()
            return self._last

    def pages(self) -> dict[str, Page]:
        """Return the pages to serve, by path."""

        async def metrics(request: web.BaseRequest) -> Reply:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(self._process)
            registry.register(_Figures(await self.look(), self._failed))
            return exposition(registry, request)

        async def ready(_: web.BaseRequest) -> Reply:
            reason = await unanswered(self._client)
            return Reply(f"not ready: {reason}\n", 503) if reason else Reply("ready\n")

        async def scale(request: web.BaseRequest) -> Reply:
            return scaling(await self.look(), request.path.removeprefix("/scale/"), request.query)

        return {"/metrics": metrics, "/healthz": healthy, "/readyz": ready, "/scale/": scale}

    # -- inside

    async def _look(self) -> Look:
        began = time.monotonic()
        try:
            async with asyncio.timeout(LOOK_MAX_S):
                with mapped_errors():
                    server: Any = await self._client.info("memory", "persistence")
                names = self._names or await crawl_names(self._client)
                gate = asyncio.Semaphore(AT_A_TIME)
                found = await asyncio.gather(*(self._look_at(name, gate) for name in names[:CRAWLS_MAX]))
                # Whoever names crawls wants to see these and nothing else.
                its_queues = [] if self._names else await queue_names(self._client)
                looks = await asyncio.gather(*(self._look_at_queue(name, gate) for name in its_queues[:QUEUES_MAX]))
        except TimeoutError:
            error = f"Redis does not answer within {LOOK_MAX_S:g} s"
        except StoreError as refused:
            error = str(refused)
        else:
            crawls = [crawl for crawl in found if crawl is not None]
            names_found = {crawl.status.name for crawl in crawls}
            kept: tuple[dict[str, Any], ...] = (self._done, self._reasons, self._deaths)
            for of_crawl in kept:
                for gone in of_crawl.keys() - names_found:
                    del of_crawl[gone]
            now = time.monotonic()
            queues = [queue for queue in looks if queue is not None]
            return Look(now, now - began, "", server, crawls, len(names), queues, len(its_queues))
        return Look(time.monotonic(), time.monotonic() - began, error)

    async def _look_at(self, name: str, gate: asyncio.Semaphore) -> CrawlLook | None:
        """Look at one crawl; None when it is not there, or cannot be read."""
        async with gate:
            try:
                status = await read_status(self._client, name)
                imbalance = await read_imbalance(self._client, status)
            except ConfigError:
                return None  # deleted since, or not begun yet
            except StoreError:
                if not await self._still_answers():
                    raise
                # A fault of this crawl must not hide all others.
                self._failed += 1
                return None
        dead, dropped = (self._by_reason(status, state) for state in ("dead", "dropped"))
        died = self._deaths.setdefault(name, _Deaths()).count(dead)
        return CrawlLook(status, imbalance, self._rates(status), dead, died, dropped)

    async def _look_at_queue(self, name: str, gate: asyncio.Semaphore) -> QueueLook | None:
        """Look at one TaskQueue; None when it is not there, or cannot be read."""
        async with gate:
            try:
                return await look_at_queue(self._client, name)
            except (StoreError, ValueError):
                if not await self._still_answers():
                    raise
                self._failed += 1
                return None

    async def _still_answers(self) -> bool:
        return not await unanswered(self._client)

    def _rates(self, status: Status) -> dict[str, float]:
        rates: dict[str, float] = {}
        if status.pages_per_s is not None:
            rates[FETCH] = status.pages_per_s
        now = time.monotonic()
        done = {stage.stage: status.totals.get(f"{stage.stage}.done", 0) for stage in status.stages[1:]}
        history = self._done.setdefault(status.name, deque())
        while (len(history) > 1 and now - history[1][0] > RATE_OVER_S) or (history and now - history[0][0] > HISTORY_S):
            history.popleft()
        alive = {worker.stage for worker in status.workers if status.lives(worker)}
        if history and now - history[0][0] >= RATE_LEAST_S:
            then, before = history[0]
            for stage, count in done.items():
                # Of one that nobody works at what was is no rate of the present.
                if stage in alive and stage in before and count >= before[stage]:
                    rates[stage] = (count - before[stage]) / (now - then)
        history.append((now, done))
        return rates

    def _by_reason(self, status: Status, state: str) -> dict[_Which, int]:
        """Return how many are dead or dropped, by stage, kind and reason; of reasons that handlers made up the first
        REASONS_MAX, and all others together."""
        told_apart = self._reasons.setdefault(status.name, set())
        counts: dict[_Which, int] = {}
        for stage, kind, line in _lines(status):
            start = f"{line}.{state}."
            for name, count in sorted(status.totals.items()):
                if not name.startswith(start):
                    continue
                reason = name.removeprefix(start)
                if reason not in _OURS and reason not in told_apart:
                    if len(told_apart) < REASONS_MAX:
                        told_apart.add(reason)
                    else:
                        reason = OTHER
                which = (stage, kind, reason)
                counts[which] = counts.get(which, 0) + count
        return counts


class _Deaths:
    """Counts dead letters that only grow, from figures that a replay or a purge makes smaller."""

    def __init__(self) -> None:
        self._before: dict[_Which, int] = {}
        self._counted: dict[_Which, int] = {}

    def count(self, dead: Mapping[_Which, int]) -> dict[_Which, int]:
        """Return how many there ever were, as far as looks have seen them; those of the first look included."""
        for which, count in dead.items():
            grown = max(0, count - self._before.get(which, 0))
            self._counted[which] = self._counted.get(which, 0) + grown
        self._before = dict(dead)
        return dict(self._counted)


async def read_imbalance(client: Redis, status: Status) -> dict[tuple[str, str], int]:
    """Return by how much counts and structures of a crawl differ, by stage and check; 0 where they agree.

    Checks: `totals` (created = all places a task may be in), `stream`, `delayed` and `dead` (count = size of the
    structure). Each shard is read at one instant; several at several. No structure is walked.
    """
    stages = [stage.stage for stage in status.stages]
    found: dict[tuple[str, str], int] = dict.fromkeys(
        [*((stage, check) for stage in stages for check in ("totals", "stream")), (FETCH, "delayed"), (FETCH, "dead")],
        0,
    )
    for shard in status.shards:
        keys = Keys(status.name, shard.shard)
        async with client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.totals)
            pipe.zcard(keys.delayed)
            pipe.xlen(keys.dead)
            for one in status.stages:
                pipe.xlen(stream_key(keys, one.kind, one.stage))
            with mapped_errors():
                answers: Any = await pipe.execute()
        stored, delayed, dead, *lengths = answers
        totals = {name.decode("utf-8", "replace"): int(count) for name, count in stored.items()}

        def total(line: str, state: str, totals: Mapping[str, int] = totals) -> int:
            return totals.get(f"{line}.{state}", 0)

        lines = {stage: [*Kind] if stage == FETCH else [stage] for stage in stages}
        every = [line for own in lines.values() for line in own]
        for stage, length in zip(stages, lengths, strict=True):
            for line in lines[stage]:
                places = sum(
                    total(line, state) for state in ("queued", "streamed", "delayed", "dead", "done", "dropped")
                )
                found[stage, "totals"] += abs(total(line, "created") - places)
            found[stage, "stream"] += abs(sum(total(line, "streamed") for line in lines[stage]) - length)
        found[FETCH, "delayed"] += abs(sum(total(line, "delayed") for line in every) - delayed)
        found[FETCH, "dead"] += abs(sum(total(line, "dead") for line in every) - dead)
    return found


# -- for Prometheus


class _Figures(Collector):
    """One look as metrics."""

    def __init__(self, look: Look, failed: int) -> None:
        self._look = look
        self._failed = failed

    def collect(self) -> Iterator[Metric]:
        look = self._look
        yield _one("redis_up", "Whether Redis answered", 0 if look.error else 1)
        yield _one("exporter_scrape_seconds", "How long reading Redis took", look.took_s)
        failed = counter("exporter_failed_reads", "Reads of a crawl or queue that failed since the exporter started")
        failed.add_metric([], self._failed)
        yield failed
        if look.error:
            return
        yield _one("exporter_crawls", "Crawls in this scrape", len(look.crawls))
        left_out = max(0, look.crawls_in_all - CRAWLS_MAX)
        yield _one("exporter_crawls_left_out", f"Crawls beyond the {CRAWLS_MAX} that are shown", left_out)
        yield _one("exporter_queues", "TaskQueues in this scrape", len(look.queues))
        left_out = max(0, look.queues_in_all - QUEUES_MAX)
        yield _one("exporter_queues_left_out", f"TaskQueues beyond the {QUEUES_MAX} that are shown", left_out)
        yield from queue_metrics(look.queues)
        yield from _of_server(look.server)
        yield from _of_crawls(look.crawls)
        yield from _of_stages(look.crawls)
        yield from _of_logs(look.crawls)
        yield from _of_tasks(look.crawls)


def _one(name: str, help_: str, value: float) -> Metric:
    made = gauge(name, help_)
    made.add_metric([], value)
    return made


def _of_server(server: Mapping[str, Any]) -> Iterator[Metric]:
    yield _one("redis_memory_bytes", "Used memory of the whole server", server["used_memory"])
    is_kept = bool(server.get("aof_enabled"))
    yield _one("redis_aof_enabled", "Whether Redis keeps an append-only file", is_kept)
    if is_kept:
        is_ok = all(server.get(name, "ok") == "ok" for name in ("aof_last_write_status", "aof_last_bgrewrite_status"))
        yield _one("redis_aof_write_ok", "Whether its last write and its last rewrite succeeded", is_ok)
        yield _one("redis_aof_rewrite_running", "Whether it is rewritten", server.get("aof_rewrite_in_progress", 0))


def _of_crawls(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    values: tuple[tuple[str, str, Callable[[CrawlLook], float | None]], ...] = (
        ("crawl_complete", "Whether all seeds are in and nothing is left to do", lambda one: one.status.is_complete),
        ("crawl_closed", "Whether all seeds are in", lambda one: one.status.is_closed),
        (
            "redis_memory_limit_bytes",
            "Limit of the server or of the crawl",
            lambda one: one.status.memory_max_bytes or None,
        ),
        (
            "redis_memory_mark_bytes",
            "Memory above which nothing is dispatched",
            lambda one: one.status.memory_mark_bytes or None,
        ),
        (
            "queued_seconds",
            "All queued pages by the present rate, politeness included",
            lambda one: one.status.backlog_s,
        ),
        ("due_hosts", "Hosts that may be fetched from now", lambda one: one.status.hosts_due),
        ("scheduled_hosts", "Hosts with something to fetch, now or later", lambda one: one.status.hosts_scheduled),
        ("failing_hosts", "Hosts that do not answer and are backed off", lambda one: one.status.hosts_failing),
        ("given_up_hosts", "Hosts whose tasks became dead letters", lambda one: one.status.hosts_given_up),
        ("blocked_hosts", "Hosts that an operator blocked", lambda one: one.status.hosts_blocked),
        (
            "demoted_hosts",
            "Hosts that are left alone longer, as their pages are near-identical",
            lambda one: one.status.hosts_demoted,
        ),
        ("seen_fingerprints", "URLs ever discovered", lambda one: one.status.seen),
        ("seeds_waiting", "Seeds that are not ended yet", lambda one: one.status.seeds_left),
    )
    for name, help_, of in values:
        made = gauge(name, help_, ["crawl"])
        for crawl in crawls:
            value = of(crawl)
            if value is not None:
                made.add_metric([crawl.status.name], value)
        yield made
    reasons: tuple[tuple[str, str, Callable[[Status], Mapping[str, int]]], ...] = (
        ("links_left_out", "Links of pages that were taken for traps", lambda status: status.links_left_out()),
        ("host_refusals", "Times that a host said or showed that it is too much", lambda status: status.refusals()),
        ("sitemaps_flawed", "Sitemaps with which something was wrong", lambda status: status.sitemaps_flawed()),
        ("tasks_waited", "Times that a task was sent back to wait", lambda status: status.by_reason("waited")),
    )
    for name, help_, counts in reasons:
        counted = counter(name, help_, ["crawl", "reason"])
        for crawl in crawls:
            for reason, count in counts(crawl.status).items():
                counted.add_metric([crawl.status.name, reason], count)
        yield counted


def _of_stages(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    values: tuple[tuple[str, str, Callable[[CrawlLook, StageStatus], float | None]], ...] = (
        ("stream_length", "Entries in the stream of the stage", lambda _, stage: stage.waiting + stage.pending),
        ("stream_waiting", "Entries that no worker has read yet", lambda _, stage: stage.waiting),
        ("stream_pending", "Entries in the hands of workers", lambda _, stage: stage.pending),
        (
            "stream_oldest_waiting_seconds",
            "Age of the entry that waits longest",
            lambda _, stage: _seconds(stage.oldest_waiting_ms),
        ),
        (
            "stream_oldest_pending_seconds",
            "Since the dispatch of the oldest entry in hand",
            lambda _, stage: _seconds(stage.oldest_pending_ms),
        ),
        (
            "stream_high_watermark",
            "Waiting entries at which filling the stream stops",
            lambda _, stage: stage.mark_high,
        ),
        ("stream_low_watermark", "Waiting entries under which filling goes on", lambda _, stage: stage.mark_low),
        ("stage_rate", "Tasks done a second, over half a minute", lambda one, stage: one.rates.get(stage.stage)),
        (
            "backlog_seconds",
            "Work that could be done at once by the present rate",
            lambda one, stage: one.backlog_s(stage),
        ),
        ("consumers", "Live worker processes", lambda one, stage: len(one.consumers(stage))),
    )
    labels = ["crawl", "stage"]
    for name, help_, of in values:
        made = gauge(name, help_, labels)
        for crawl in crawls:
            for stage in crawl.status.stages:
                value = of(crawl, stage)
                if value is not None:
                    made.add_metric([crawl.status.name, stage.stage], value)
        yield made
    output = gauge("output_bytes", "Committed length of the file of an output", labels)
    balance = gauge("audit_balance", "By how much counts and structures differ", [*labels, "check"])
    for crawl in crawls:
        for sink in crawl.status.sinks:
            output.add_metric([crawl.status.name, sink.name], sink.offset)
        for (name, check), count in crawl.imbalance.items():
            balance.add_metric([crawl.status.name, name, check], count)
    yield from (output, balance)
    yield from _throttles(crawls)
    yield from _consumers(crawls)


def _of_logs(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    labels = ["crawl", "log"]
    entries = gauge("log_entries", "Entries of a retained log", labels)
    size = gauge("log_bytes", "Their size", labels)
    oldest = gauge("log_oldest_seconds", "Age of its oldest entry", labels)
    trimmed = counter("log_trimmed", "Entries that went before their time, for bytes or memory", labels)
    for crawl in crawls:
        for log in crawl.status.logs:
            where = [crawl.status.name, log.name]
            entries.add_metric(where, log.entries)
            size.add_metric(where, log.bytes)
            trimmed.add_metric(where, log.trimmed)
            if log.oldest_ms is not None:
                oldest.add_metric(where, log.oldest_ms / 1000)
    yield from (entries, size, oldest, trimmed)


def _throttles(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    labels = ["crawl", "stage", "reason"]
    now = gauge("throttled", "Whether the stage is held back", labels)
    in_all = counter("throttled_seconds", "How long the stage was held back, in all", labels)
    for crawl in crawls:
        status = crawl.status
        words = {brake.word for brake in status.brakes}
        followers = [stage.stage for stage in status.stages[1:]]
        held = {
            "paused": "PAUSED" in words,
            "budget": "BUDGET" in words,
            **{word.lower(): word in words for word in STOPS},
            **{f"full:{name}": name in status.stages[0].held_by for name in followers},
        }
        for reason, is_held in held.items():
            now.add_metric([status.name, FETCH, reason], is_held)
            if reason in status.held_ms:
                in_all.add_metric([status.name, FETCH, reason], status.held_ms[reason] / 1000)
        for stage in status.stages:
            for name in followers if stage.kind == STAGE else ():
                now.add_metric([status.name, stage.stage, f"full:{name}"], name in stage.held_by)
    yield from (now, in_all)


def _consumers(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    labels = ["crawl", "stage", "consumer"]
    slots = gauge("consumer_slots", "Entries that a worker works at in parallel", labels)
    busy = gauge("consumer_busy", "Entries in the hands of a worker at its last heartbeat", labels)
    age = gauge("consumer_heartbeat_age_seconds", "Since the last heartbeat of a worker", labels)
    for crawl in crawls:
        left = CONSUMERS_MAX
        for stage in crawl.status.stages:
            own = crawl.consumers(stage)
            where = [crawl.status.name, stage.stage]
            for worker in own[:left]:
                slots.add_metric([*where, worker.consumer], worker.slots)
                age.add_metric([*where, worker.consumer], worker.beat_age_ms / 1000)
                if worker.busy is not None:
                    busy.add_metric([*where, worker.consumer], worker.busy)
            others = own[left:]
            left = max(0, left - len(own))
            if others:
                slots.add_metric([*where, OTHER], sum(worker.slots for worker in others))
                age.add_metric([*where, OTHER], max(worker.beat_age_ms for worker in others) / 1000)
                busy.add_metric([*where, OTHER], sum(worker.busy or 0 for worker in others))
    yield from (slots, busy, age)


def _of_tasks(crawls: Sequence[CrawlLook]) -> Iterator[Metric]:
    labels = ["crawl", "stage", "kind"]
    for state, help_ in _COUNTERS:
        counted = counter(f"tasks_{state}", help_, labels)
        for crawl in crawls:
            for stage, kind, line in _lines(crawl.status):
                counted.add_metric([crawl.status.name, stage, kind], crawl.status.totals.get(f"{line}.{state}", 0))
        yield counted
    queued = gauge("queued_tasks", "In the frontier and not dispatched", ["crawl", "kind"])
    delayed = gauge("delayed_tasks", "Failed and waiting for their next try", labels)
    reclaimed = counter("tasks_reclaimed", "Taken back because nobody renewed their lease", ["crawl", "stage"])
    for crawl in crawls:
        name, totals = crawl.status.name, crawl.status.totals
        for stage, kind, line in _lines(crawl.status):
            delayed.add_metric([name, stage, kind], totals.get(f"{line}.delayed", 0))
            if stage == FETCH:
                queued.add_metric([name, kind], totals.get(f"{line}.queued", 0))
        reclaimed.add_metric([name, FETCH], totals.get("reclaimed", 0))
    yield from (queued, delayed, reclaimed)
    labels = [*labels, "reason"]
    dead = gauge("dead_letters", "Dead letters that lie there now", labels)
    died = counter("tasks_dead", "Became a dead letter, replayed and purged ones included", labels)
    dropped = counter("tasks_dropped", "Ended without a result", labels)
    page = (FETCH, Kind.PAGE.value)
    for crawl in crawls:
        for made, counts, known in (
            (dead, crawl.dead, ()),
            (died, crawl.died, _DEADLY),
            (dropped, crawl.dropped, [reason.value for reason in DropReason]),
        ):
            for which, count in {**{(*page, reason): 0 for reason in known}, **counts}.items():
                made.add_metric([crawl.status.name, *which], count)
    yield from (dead, died, dropped)


def _lines(status: Status) -> list[tuple[str, str, str]]:
    """Return stage, kind and name of each line of counts."""
    return [
        *((FETCH, kind.value, kind.value) for kind in Kind),
        *((stage.stage, ITEM, stage.stage) for stage in status.stages[1:]),
    ]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


# -- for autoscalers


def scaling(look: Look, path: str, query: Mapping[str, str]) -> Reply:
    """Answer how much a stage has to do: for KEDA's metrics-api scaler, and whoever else scales workers.

    Args:
        look: What is known.
        path: `<crawl>/<stage>`.
        query: `target_seconds`: how long what waits may take; for `desired`, the number of worker processes.
    """
    if look.error:
        return Reply.json({"error": look.error}, 503)
    name, _, stage_name = path.partition("/")
    crawl = next((one for one in look.crawls if one.status.name == name), None)
    if crawl is None:
        known = ", ".join(sorted(one.status.name for one in look.crawls)[:20]) or "none"
        return Reply.json({"error": f"there is no crawl {name[:64]!r} here; there is: {known}"}, 404)
    stage = next((one for one in crawl.status.stages if one.stage == stage_name), None)
    if stage is None:
        known = ", ".join(one.stage for one in crawl.status.stages)
        return Reply.json({"error": f"crawl {name} has no stage {stage_name[:64]!r}; it has: {known}"}, 404)
    try:
        target_s = float(query.get("target_seconds", TARGET_DEFAULT_S))
        if not 0 < target_s < math.inf:
            raise ValueError
    except ValueError:
        return Reply.json({"error": "target_seconds must be a number above 0"}, 400)
    backlog_s = crawl.backlog_s(stage)
    workers = crawl.consumers(stage)
    document: dict[str, Any] = {
        "waiting": stage.waiting,
        "pending": stage.pending,
        "due": crawl.due(stage),
        "left": crawl.left(stage),
        "consumers": len(workers),
        "desired": desired(crawl.left(stage), stage.pending, backlog_s, [one.slots for one in workers], target_s),
    }
    if backlog_s is not None:
        document["backlog_seconds"] = round(backlog_s, 3)
    return Reply.json(document)


def desired(left: int, pending: int, backlog_s: float | None, slots: Sequence[int], target_s: float) -> int:
    """Return how many workers a stage should have: none once nothing is left, else one at least.

    As many as would do what is due within `target_s` and have slots for what is in hand; while no rate is known, those
    that are there. At most twice as many as there are: the rate of now says little of that of ten times as many.

    Args:
        left: All the stage has to do, now or later.
        pending: Entries in the hands of its workers.
        backlog_s: What is due by the present rate; None when that is not known.
        slots: Of each live worker.
        target_s: How long what is due may take.
    """
    if not left:
        return 0
    consumers = len(slots)
    if backlog_s is None or not consumers:
        return max(1, consumers)
    in_hand = math.ceil(pending * consumers / max(1, sum(slots)))
    return max(1, min(2 * consumers, max(math.ceil(consumers * backlog_s / target_s), min(in_hand, consumers))))
