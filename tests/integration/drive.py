"""Crawls of the tests: a real supervisor in this process, its children as in life, over a real Redis and real sockets.

`crawling` starts one and ends it; `CrawlRun` is what a test holds of it. `Talker` is a small web server for answers
that tests/site does not give. `violations` and `overlap_max` read politeness from the log of a web server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
from aiohttp import web

from streamcrawl.ops.audit import audit
from streamcrawl.rules.scope import Scope, sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, Kind, decode_task
from streamcrawl.rules.urls import canonical_url, split_url
from streamcrawl.settings import CLASSES, Given, SettingClass, make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.store.shards import Shards, open_crawl
from streamcrawl.store.tuning import encode_given, tune
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.supervisor import SinkSpec, Supervisor
from tests.integration.snapshot import assert_accounts, assert_known_keys
from tests.site.server import LoggedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from multidict import CIMultiDictProxy
    from redis.asyncio import Redis

    from streamcrawl.store.shards import Shards
    from streamcrawl.work.supervisor import ChildProcess

OUTPUT: Final = "out"
QUICK: Final[dict[str, Any]] = {
    "scope": "any",
    "obey_robots": False,
    "allow_private": True,  # a run that goes on with a crawl has no seeds to be let in by
    "delay_ms": 0,
    "delay_max_ms": 0,
    "concurrency": 16,
    "timeout_ms": 10_000,
    "retry_base_ms": 50,
    "retry_max_ms": 200,
    "host_backoff_base_ms": 100,
    "host_backoff_max_ms": 500,
    "lease_ms": 5000,
    "grace_ms": 5000,
}
"""Settings under which a crawl of a local site waits for nothing that the test is not about."""


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[Redis]:
    """Connect as the product does, and close it whatever happens inside."""
    client = connect(url, **options)
    try:
        yield client
    finally:
        await client.aclose()


class DeadLetter(NamedTuple):
    """One entry of the dead stream."""

    url: str
    kind: str
    reason: str
    error: str
    last_status: str
    attempt: int


class CrawlRun:
    """One run of a crawl: its supervisor, its state in Redis, what it said."""

    def __init__(self, crawl: Shards, supervisor: Supervisor, processes: int, log: list[str]) -> None:
        self._processes = processes
        self.crawl = crawl
        self.frontier = crawl.first
        """Of crawls of one shard."""
        self.supervisor = supervisor
        self.log = log
        self._task = asyncio.create_task(supervisor.run(), name="supervisor")
        self.returned_ms = 0
        """time.monotonic() in ms when the supervisor returned; 0 while it runs."""
        self._task.add_done_callback(self._note_end)

    def _note_end(self, _: asyncio.Task[str]) -> None:
        self.returned_ms = monotonic_ms()

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    async def end_or(self, seconds: float) -> None:
        """Wait so long, but not beyond the end."""
        await asyncio.wait((self._task,), timeout=seconds)

    async def word(self, within_s: float = 60) -> str:
        """Return the word with which the crawl ended; fail when it does not end in time."""
        done, _ = await asyncio.wait((self._task,), timeout=within_s)
        if not done:
            said = "\n".join(self.log[-20:])
            raise AssertionError(f"the crawl did not end within {within_s} s: {await self.totals()}\n{said}")
        return self._task.result()

    async def close(self) -> None:
        """End the run whatever it does."""
        if self.is_running:
            self.supervisor.stop()
            self.supervisor.stop()
        await asyncio.wait((self._task,))

    def workers(self) -> list[ChildProcess]:
        """Return the fetch children that are ready."""
        return [child for child in self.supervisor.children if child.role == "fetch" and child.is_ready]

    async def all_ready(self) -> None:
        """Wait until every fetch child works, so that a test begins at the same point on a slow machine."""
        await until(lambda: len(self.workers()) >= self._processes, "the children to start")

    async def totals(self) -> dict[str, int]:
        """Return all counts, of all shards together."""
        found: Counter[str] = Counter()
        for frontier in self.crawl:
            raw: Any = await frontier.client.hgetall(frontier.keys.totals)
            found.update({field.decode(): int(value) for field, value in raw.items() if int(value)})
        return dict(found)

    async def dead(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        letters = []
        raw: list[Any] = []
        for frontier in self.crawl:
            found: Any = await frontier.client.xrange(frontier.keys.dead)
            raw += found
        for _, fields in raw:
            text = {field.decode(): value.decode() for field, value in fields.items()}
            task = decode_task(text["host"], text["level"], fields[b"task"])
            end = text["reason"], text["error"], text["last_status"]
            letters.append(DeadLetter(task.url, task.kind.value, *end, task.attempt))
        return letters

    async def check(self) -> None:
        """Check that accounts hold, by the tests' own count and by audit, and that every key is a known one."""
        for frontier in self.crawl:
            await assert_accounts(frontier)
            await assert_known_keys(frontier)
        report = await audit(self.crawl)
        assert report.is_sound, "\n".join(report.faults)


@asynccontextmanager
async def crawling(
    redis_url: str,
    name: str,
    seeds: Sequence[str],
    *,
    given_sitemaps: Sequence[str] = (),
    output: Path | None = None,
    **values: Any,
) -> AsyncIterator[CrawlRun]:
    """Open the crawl or go on with it, offer the seeds, close it to more, and run it: `QUICK`, then these settings."""
    settings = make_settings(**QUICK | {"name": name} | values)
    client = connect(redis_url)
    sinks = [SinkSpec(OUTPUT, str(output))] if output is not None else []
    log: list[str] = []
    try:
        asked = QUICK | values
        changes = {
            field: None if value is None else Given(value, "test")
            for field, value in asked.items()
            if CLASSES[field][0] in (SettingClass.TUNABLE, SettingClass.RESTING)
        }
        names = [sink.name for sink in sinks]
        crawl, is_new = await open_crawl(
            client, settings, sinks=names, given=encode_given({field: one for field, one in changes.items() if one})
        )
        tuned, _ = await tune(crawl, name, {} if is_new else changes)
        await crawl.reconcile()
        todo = [Links() for _ in crawl]
        for seed in seeds:
            url = canonical_url(seed)
            assert url is not None, seed
            host, path = split_url(url)
            todo[crawl.index_of(host)].add(CrawlTask(host=host, path=path))
        for url in given_sitemaps:
            host, path = split_url(url)
            task = CrawlTask(host=host, path=path, kind=Kind.SITEMAP)
            todo[crawl.index_of(host)].add(task, sitemap_fingerprint(task, host, settings.scope))
        for frontier, links in zip(crawl, todo, strict=True):
            while links:
                word, _ = await frontier.offer(links.take(LINKS_PER_CALL))
                assert word == "OK", word
        await crawl.first.control(closed=1)
        scope = Scope.from_settings(settings, [*seeds, *given_sitemaps]).state()
        supervisor = Supervisor(
            redis_url, settings, crawl, scope=scope, sinks=sinks, version=tuned.version, log=log.append
        )
        run = CrawlRun(crawl, supervisor, settings.processes or 1, log)
        try:
            yield run
        finally:
            await run.close()
    finally:
        await client.aclose()


async def until(is_true: Callable[[], bool], what: str, within_s: float = 30) -> None:
    """Wait for a condition of this process or of a file; fail with `what` when it does not come."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        await asyncio.sleep(0.005)


async def kill_children(run: CrawlRun, *, seed: int, most: int) -> int:
    """Kill one fetch child after the other with SIGKILL, at most so many, until the crawl ends; return how many.

    A kill takes half a second at most, so a test that counts on n of them has to see to it, by a delay or a latency,
    that its crawl cannot end within n seconds, however quick the machine is.
    """
    dice, killed = random.Random(seed), 0
    while run.is_running and killed < most:
        await run.end_or(dice.uniform(0.2, 0.4))
        while run.is_running:
            if busy := [child for child in run.workers() if child.is_alive and child.busy]:
                dice.choice(busy).kill()
                killed += 1
                break
            await asyncio.sleep(0.005)
    return killed


def records(output: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file."""
    return [msgspec.json.decode(line) for line in output.read_bytes().splitlines()]


# -- politeness, read from the log of a web server


def by_host(requests: Iterable[LoggedRequest]) -> dict[str, list[LoggedRequest]]:
    """Return the requests of each host in the order of their starts."""
    found: dict[str, list[LoggedRequest]] = defaultdict(list)
    for request in sorted(requests, key=lambda request: request.start_ms):
        found[request.host].append(request)
    return found


def overlap_max(requests: Sequence[LoggedRequest]) -> int:
    """Return how many requests were under way at a time at most; one that ends as another starts is over."""
    moments = [(request.start_ms, 1) for request in requests] + [(request.end_ms, -1) for request in requests]
    most = now = 0
    for _, step in sorted(moments):
        now += step
        most = max(most, now)
    return most


def violations(requests: Iterable[LoggedRequest], *, cap: int, delay_ms: int) -> list[str]:
    """Return each breach of the rule of politeness, in words.

    With a cap of 1 a host's next request starts at least the delay after the end of the one before; with a higher cap
    it starts at least the delay after the start of the one before, and no more than the cap are under way at a time.
    """
    found = []
    for host, own in by_host(requests).items():
        most = overlap_max(own)
        if most > cap:
            found.append(f"{host}: {most} requests at a time, the cap is {cap}")
        for before, after in pairwise(own):
            since = before.end_ms if cap == 1 else before.start_ms
            if after.start_ms - since < delay_ms:
                found.append(f"{host}: {after.path} started {after.start_ms - since:.1f} ms after {before.path}")
    return found


# -- a small web server


class Talker:
    """A web server on 127.0.0.1 in this process: `answers` by path, 404 for every other; logs like tests/site."""

    def __init__(self, answers: dict[str, Callable[[int], Awaitable[web.StreamResponse]]]) -> None:
        self.answers = answers
        """By path and query: called with how often it was asked for before."""
        self.asked: Counter[str] = Counter()
        """By path and query: requests that came in."""
        self._runner: web.AppRunner
        self.requests: list[LoggedRequest] = []
        self.headers: list[CIMultiDictProxy[str]] = []
        """Of each request, in the order in which they came."""
        self.origin = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        # A request of a worker that was killed ends there: who answers on would be said to be asked beside itself.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.origin = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        started = time.monotonic()
        path = request.path_qs
        self.headers.append(request.headers)
        count = self.asked[path]
        self.asked[path] += 1
        answer = self.answers.get(path)
        host = request.host.rpartition(":")[0]  # as it was asked for: by its address, or by a name
        status = 0
        try:
            response = web.Response(status=404) if answer is None else await answer(count)
            status = response.status
        finally:
            self.requests.append(LoggedRequest(host, path, started * 1000, time.monotonic() * 1000, status))
        return response


def html(*links: str, status: int = 200, **headers: str) -> Callable[[int], Awaitable[web.StreamResponse]]:
    """Return an answer that is a page with these links; `Retry_After=` and the like become headers."""

    async def answer(_: int) -> web.StreamResponse:
        body = "<!DOCTYPE html><title>page</title>" + "".join(f'<a href="{link}">x</a>' for link in links)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=body, content_type="text/html", headers=named)

    return answer


def plain(body: str, status: int = 200) -> Callable[[int], Awaitable[web.StreamResponse]]:
    """Return an answer that is a plain text, as robots.txt."""

    async def answer(_: int) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type="text/plain")

    return answer
