"""Redis is paused, killed and started again in the middle of a crawl: an outage is nobody's crash (invariant 8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import (
    IS_FULL,
    AuditWatch,
    CrawlProcess,
    assert_complete,
    overlapping,
    repeated,
)
from tests.redis_server import DURABLE, RedisServer
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

LEASE_S = 3.0 if IS_FULL else 1.0
# Some shorter than the 4 s after which a client takes its connection for dead, some longer: each way back is another.
OUTAGES_S = (1.2 * LEASE_S, 9.0, 3.8, 6.0, 1.2 * LEASE_S) if IS_FULL else (2.5, 5.0, 1.5, 3.0, 2.5)
PAGES_BETWEEN = 30
"""Fetched between two outages, so that each one meets a crawl at work."""
END_S = 300 if IS_FULL else 90


def crawl_settings() -> dict[str, object]:
    return {"processes": 2, "lease": f"{LEASE_S}s", "delay": "500ms", "retry_base": "200ms"}


async def test_paused_redis_counts_as_nobodys_crash(tmp_path: Path, crawl_name: str) -> None:
    # A redirect is followed after the host's delay: its task has begun, and may not go on while nobody confirms leases.
    spec = SiteSpec(hosts=16, pages_per_host=60 if IS_FULL else 18, links=12, latency_ms=50, redirect_within=0.4)
    with (
        RedisServer() as redis,
        SiteProcess(spec) as site,
        CrawlProcess(crawl_name, tmp_path, [site.seed_url], redis_url=redis.url, settings=crawl_settings()) as crawl,
    ):
        crawl.start()
        for seconds in OUTAGES_S:
            await crawl.until_fetched(site, PAGES_BETWEEN)
            redis.sigstop()
            await asyncio.sleep(seconds)
            redis.sigcont()
        assert crawl.is_running, crawl.log
        assert await crawl.wait(END_S) == ExitCode.DONE, crawl.log
        totals = await crawl.totals()
        assert {name: count for name, count in totals.items() if "crashed" in name or name == "reclaimed"} == {}
        assert overlapping(site.requests()) == []
        assert repeated(site.requests()) == {}
        await assert_complete(crawl, site)


async def test_killed_redis_comes_back_with_everything(tmp_path: Path, crawl_name: str) -> None:
    spec = SiteSpec(hosts=16, pages_per_host=60 if IS_FULL else 15, links=12, latency_ms=20)
    with (
        RedisServer(options=DURABLE | {"appendfsync": "always"}) as redis,
        SiteProcess(spec) as site,
        CrawlProcess(crawl_name, tmp_path, [site.seed_url], redis_url=redis.url, settings=crawl_settings()) as crawl,
    ):
        crawl.start()
        async with AuditWatch(crawl) as watch:
            await crawl.until_fetched(site, PAGES_BETWEEN)
            redis.kill9()
            redis.start()
            assert await crawl.wait(END_S) == ExitCode.DONE, crawl.log
        watch.assert_sound()
        assert overlapping(site.requests()) == []
        await assert_complete(crawl, site)
