"""Any connection to Redis may drop after a command was sent: every command is safe to repeat (invariant 7)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete, overlapping
from tests.proxy import FailingProxy, Fault, Shares
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

CUTS_LEAST = 100 if IS_FULL else 20
"""Of each kind."""
HOLES_LEAST = 10 if IS_FULL else 1
"""Of each kind; each holds a client up for the 4 s after which it takes its connection for dead."""
LATE_LEAST = 100 if IS_FULL else 10
SHARES = Shares(cut=0.03, hole=0.0015, late=0.01, late_max_s=1.0 if IS_FULL else 0.3)
END_S = 900 if IS_FULL else 150


def least_of(fault: Fault) -> int:
    if fault in (Fault.HOLE_BEFORE, Fault.HOLE_AFTER):
        return HOLES_LEAST
    return LATE_LEAST if fault is Fault.LATE else CUTS_LEAST


async def test_failing_connections_strand_and_repeat_nothing(
    redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    spec = SiteSpec(
        hosts=10,
        pages_per_host=300 if IS_FULL else 40,
        links=12,
        flaky=0.05,
        redirect_within=0.05,
        redirect_across=0.05,
        latency_ms=20,
    )
    settings = {"processes": 2, "lease": "3s", "delay": "100ms", "host_concurrency": 2, "retry_base": "200ms"}
    async with FailingProxy(redis_server.port, random.Random(crawl_name), SHARES) as proxy:
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
                proxy.is_failing = True
                await crawl.until(lambda: crawl.count_records() >= pages, "all records", within_s=END_S)
                proxy.is_failing = False
                code = await crawl.wait(END_S)
            assert code == ExitCode.DONE, crawl.log
            watch.assert_sound()
            print(proxy.faults)
            assert {fault for fault in Fault if proxy.faults[fault] < least_of(fault)} == set(), proxy.faults
            assert overlapping(site.requests()) == []
            await assert_complete(crawl, site)
