"""A supervisor that is paused beats for nobody: its work goes to another one, and what its children do is void."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

LEASE_S = 3 if IS_FULL else 1
PAUSES = 3 if IS_FULL else 2
END_S = 300 if IS_FULL else 90


async def test_paused_supervisor_loses_its_leases_and_its_output(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    # Every fetch outlives the lease, so whenever the pause begins some are under way that end too late.
    spec = SiteSpec(hosts=8, pages_per_host=24 if IS_FULL else 12, links=12, latency_ms=int(2200 * LEASE_S))
    settings = {
        "processes": 2,
        "lease": f"{LEASE_S}s",
        "delay": 0,
        "host_concurrency": 4,
        "concurrency": 16,
        "grace": "2s",
    }
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    output = tmp_path / "out.jsonl"
    with (
        SiteProcess(spec) as site,
        CrawlProcess(
            crawl_name, first_folder, [site.seed_url], redis_url=redis_server.url, output=output, settings=settings
        ) as first,
        CrawlProcess(
            crawl_name, second_folder, [site.seed_url], redis_url=redis_server.url, output=output, settings=settings
        ) as second,
    ):
        first.start()
        await first.until_fetched(site, 1)
        async with AuditWatch(second) as watch:
            second.start()
            await second.until(lambda: second.children("fetch"), "workers of the second crawl")
            for _ in range(PAUSES):
                await second.until_fetched(site, 5)
                first.signal(signal.SIGSTOP)
                await asyncio.sleep(3 * LEASE_S)
                first.signal(signal.SIGCONT)
            codes = [await crawl.wait(END_S) for crawl in (first, second)]
        assert codes == [ExitCode.DONE, ExitCode.DONE], first.log + second.log
        watch.assert_sound()
        totals = await first.totals()
        assert totals["reclaimed"] > 0
        assert totals["page.lease_lost"] > 0
        await assert_complete(first, site)
