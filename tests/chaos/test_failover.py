"""The master of a running crawl dies, and Sentinels promote its replica: the crawl goes on and ends complete.

Replication is asynchronous, so what the old master alone had acknowledged is lost: pages, links, the sink's offset.
They are lost together, because each is one script; the pages are fetched again, and the file is cut where the new
master says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete, repeated
from tests.redis_sentinel import Replicated
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

RECORDS_KEPT = 60
RECORDS_LOST = 40
"""Written to the file while the replica hears nothing."""
LINES_MAX = 60
"""Of two workers, a sink and a supervisor with some five loops each: an outage is two lines a loop, not one a try."""
END_S = 300 if IS_FULL else 100


async def test_crawl_survives_a_failover_that_loses_writes(tmp_path: Path, crawl_name: str) -> None:
    spec = SiteSpec(hosts=16, pages_per_host=80 if IS_FULL else 20, links=12, latency_ms=20)
    settings = {"processes": 2, "lease": "2s", "delay": "200ms", "retry_base": "200ms"}
    with (
        Replicated() as servers,
        SiteProcess(spec) as site,
        CrawlProcess(crawl_name, tmp_path, [site.seed_url], redis_url=servers.url, settings=settings) as crawl,
    ):
        old, new = servers.servers
        crawl.start()
        async with AuditWatch(crawl) as watch:
            await crawl.until(lambda: crawl.count_records() >= RECORDS_KEPT, "the first records")
            servers.cut_replica_off()
            wanted = crawl.count_records() + RECORDS_LOST
            await crawl.until(lambda: crawl.count_records() >= wanted, "records that only the old master knows of")
            old.kill9()
            servers.until_master(new)
            # It comes back empty and as a master, until a Sentinel tells it whom to follow.
            old.start()
            assert await crawl.wait(END_S) == ExitCode.DONE, crawl.log
        print(crawl.log)
        watch.assert_sound()
        await assert_complete(crawl, site)
        again = repeated(site.requests())
        assert sum(again.values()) - len(again) >= RECORDS_LOST // 2, "what was lost is fetched again"
        assert crawl.log.count("died with") == 0, crawl.log
        assert len(crawl.log.splitlines()) < LINES_MAX, crawl.log
