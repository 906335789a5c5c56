"""Any connection to Redis may drop after a command was sent: every command is safe to repeat (invariant 7)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete, overlapping
from tests.proxy import Cut, CuttingProxy
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

CUTS_LEAST = 100 if IS_FULL else 20
"""Of each kind."""
SHARE = 0.03
END_S = 600 if IS_FULL else 90


async def test_cut_connections_strand_and_repeat_nothing(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    spec = SiteSpec(
        hosts=10,
        pages_per_host=300 if IS_FULL else 60,
        links=12,
        flaky=0.05,
        redirect_within=0.05,
        redirect_across=0.05,
        latency_ms=20,
    )
    settings = {"processes": 2, "lease": "3s", "delay": "100ms", "host_concurrency": 2, "retry_base": "200ms"}
    async with CuttingProxy(redis_server.port, random.Random(crawl_name), share=SHARE) as proxy:
        with (
            SiteProcess(spec) as site,
            CrawlProcess(
                crawl_name,
                tmp_path,
                [site.seed_url],
                redis_url=proxy.url,
                look_url=redis_server.url,
                settings=settings,
            ) as crawl,
        ):
            pages = len(site.expected_pages())
            crawl.start()
            async with AuditWatch(crawl) as watch:
                # Not at the start and not at the end: a person waits there, and is told rather than kept waiting.
                await crawl.until_fetched(site, 10)
                proxy.is_cutting = True
                await crawl.until(lambda: crawl.count_records() >= pages, "all records", within_s=END_S)
                proxy.is_cutting = False
                code = await crawl.wait(END_S)
            assert code == ExitCode.DONE, crawl.log
            watch.assert_sound()
            assert {cut for cut in Cut if proxy.cuts[cut] < CUTS_LEAST} == set(), proxy.cuts
            assert overlapping(site.requests()) == []
            await assert_complete(crawl, site)
