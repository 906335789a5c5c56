"""The fleet is changed worker by worker while it works: nothing stops, nothing is lost, nothing is fetched twice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import GROUP, Keys
from tests.chaos.crawl_process import IS_FULL, CrawlProcess, assert_complete, count_requests, repeated
from tests.e2e.command import Command, Running
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

WORKERS = 12 if IS_FULL else 5
CHANGES = 60 if IS_FULL else 8
PACE_S = 1.0
PAGES_BETWEEN = 3
"""Fetched at least between two changes, whatever was just stopped."""
SPEC = SiteSpec(hosts=10, pages_per_host=600 if IS_FULL else 200, latency_ms=20)
DELAY = "400ms"
"""While the fleet changes: the pages must last."""
GAP_MAX_MS = 10_000
"""Without any fetch. Far above what a busy machine makes of it, far below a lease: what a stop strands is seen."""


async def test_nothing_stops_or_is_lost_while_every_worker_is_exchanged(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    command = Command(tmp_path / "fleet")
    fleet: deque[Running] = deque()

    def start_worker() -> None:
        # The delay is the crawl's.
        fleet.append(command.start("worker", crawl_name, "--redis", redis_server.url, STREAMCRAWL_DELAY=""))

    with (
        SiteProcess(SPEC) as site,
        CrawlProcess(
            crawl_name, tmp_path / "first", [site.seed_url], redis_url=redis_server.url, settings={"delay": DELAY}
        ) as first,
    ):
        first.start()
        await first.until_fetched(site, 1)
        try:
            for _ in range(WORKERS):
                start_worker()
            await first.until_fetched(site, PAGES_BETWEEN)
            # The command that began it goes as well; whoever of the others comes first goes on with its file.
            first.signal(signal.SIGTERM)
            assert await first.wait(60) == ExitCode.STOPPED
            for _ in range(CHANGES):
                leaving = fleet.popleft()
                # Before that it has no work to hand back, and perhaps no handler for the signal yet.
                await asyncio.to_thread(until_joined, leaving)
                leaving.process.send_signal(signal.SIGTERM)
                start_worker()
                await asyncio.gather(until_fetched(site, PAGES_BETWEEN), asyncio.sleep(PACE_S))
                result = await asyncio.to_thread(leaving.wait, 60)
                assert result.code == ExitCode.STOPPED, result
                assert "Traceback" not in result.err
                audit = await asyncio.to_thread(command.run, "audit", crawl_name, "--redis", redis_server.url)
                assert audit.code == ExitCode.DONE, audit.out
            assert await names_in(redis_server, crawl_name) <= len(fleet) * 2 + 1
            done = (await first.totals())["page.done"]
            assert done < SPEC.hosts * SPEC.pages_per_host, "it was over before the last change"
            assert command.run("settings", "set", crawl_name, "delay=0", "--redis", redis_server.url).code == 0
            for worker in fleet:
                assert (await asyncio.to_thread(worker.wait, 120)).code == ExitCode.DONE
        finally:
            for worker in fleet:
                worker.__exit__()
        await assert_complete(first, site)
        totals = await first.totals()
        assert totals.get("page.crashed", 0) == totals.get("page.lease_lost", 0) == 0
        requests = site.requests()
        assert repeated(requests) == {}
        starts = sorted(request.start_ms for request in requests)
        assert max(later - earlier for earlier, later in pairwise(starts)) < GAP_MAX_MS
        assert await names_in(redis_server, crawl_name) == 0


def until_joined(worker: Running) -> None:
    worker.until(lambda: "joining" in worker.err, "it joins", within_s=60)


async def until_fetched(site: SiteProcess, count: int) -> None:
    """Wait until the site has answered `count` requests more than now."""
    wanted, deadline = count_requests(site) + count, time.monotonic() + 60
    while count_requests(site) < wanted:
        assert time.monotonic() < deadline, "nothing is fetched any more"
        await asyncio.sleep(0.02)


async def names_in(server: RedisServer, name: str) -> int:
    """Return how many workers and consumers the crawl knows."""
    keys, client = Keys(name), connect(server.url)
    try:
        rows: Any = await client.hkeys(keys.workers)
        consumers: Any = await client.xinfo_consumers(keys.fetch_stream, GROUP)
        return len({*rows, *(consumer["name"] for consumer in consumers)})
    finally:
        await client.aclose()
