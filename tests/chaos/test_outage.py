"""Redis is paused, killed and started again in the middle of a crawl: an outage is nobody's crash (invariant 8).

Started again it may lack the end of what it had written (`appendfsync everysec`, and a machine that fails). Then what
was lost is done again, and the output has each page once all the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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
OUTAGES_S = (1.2 * LEASE_S, 9.0, 3.8, 20.0, 1.2 * LEASE_S) if IS_FULL else (2.5, 5.0, 1.5, 3.0, 2.5)
PAGES_BETWEEN = 30
"""Fetched between two outages, so that each one meets a crawl at work."""
KILLS = 5
PAGES_LOST = 30 if IS_FULL else 15
LINES_PER_OUTAGE = 25
"""Two of each loop that meets it: four processes, most of whose loops are asleep while it lasts. Seen: 9 to 14."""
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


@pytest.mark.parametrize("fsync", ["always", "everysec"])
async def test_killed_redis_comes_back_and_what_it_lost_is_fetched_again(
    fsync: str, tmp_path: Path, crawl_name: str
) -> None:
    spec = SiteSpec(hosts=16, pages_per_host=90 if IS_FULL else 14, links=12, latency_ms=20)
    lost_bytes = 0
    with (
        RedisServer(options=DURABLE | {"appendfsync": fsync}) as redis,
        SiteProcess(spec) as site,
        CrawlProcess(crawl_name, tmp_path, [site.seed_url], redis_url=redis.url, settings=crawl_settings()) as crawl,
    ):
        crawl.start()
        await crawl.until_fetched(site, PAGES_BETWEEN)
        async with AuditWatch(crawl) as watch:
            for _ in range(KILLS):
                kept = redis.append_log.stat().st_size
                await crawl.until_fetched(site, PAGES_LOST)
                redis.kill9()
                if fsync == "everysec":
                    # Also what is left of a script's writes at the cut goes: the server takes them whole or not at all.
                    lost_bytes += redis.lose_written(kept + 1)
                redis.start()
            assert await crawl.wait(END_S) == ExitCode.DONE, crawl.log
        watch.assert_sound()
        # Two in one second are said in one line.
        assert 1 <= crawl.log.count("the store was restarted") <= KILLS, crawl.log
        print(f"{lost_bytes} bytes lost, {len(repeated(site.requests()))} URLs fetched again")
        assert crawl.log.count("\n") <= LINES_PER_OUTAGE * KILLS, crawl.log
        if fsync == "always":
            assert overlapping(site.requests()) == []
        else:
            assert repeated(site.requests()) != {}, f"{lost_bytes} bytes were lost, and nothing was fetched again"
        await assert_complete(crawl, site)


async def test_seeds_that_redis_lost_are_offered_again(tmp_path: Path, crawl_name: str) -> None:
    """A second command had offered a seed, and it was fetched; the server has lost that there ever was one."""
    spec = SiteSpec(hosts=8, pages_per_host=60 if IS_FULL else 15, links=12, latency_ms=20)
    output = tmp_path / "out.jsonl"
    with RedisServer(options=DURABLE) as redis, SiteProcess(spec) as site:
        late = site.url(2, "/p/0?late")
        common: dict[str, Any] = {
            "redis_url": redis.url,
            "output": output,
            "settings": crawl_settings() | {"processes": 1},
        }
        with (
            CrawlProcess(crawl_name, tmp_path / "first", [site.seed_url], **common) as first,
            CrawlProcess(crawl_name, tmp_path / "second", [late], **common) as second,
        ):
            first.start()
            await first.until_fetched(site, 10)
            kept = redis.append_log.stat().st_size
            second.start()
            await second.until(lambda: any("late" in request.path for request in site.requests()), "the late seed")
            redis.kill9()
            redis.lose_written(kept)
            redis.start()
            codes = [await crawl.wait(END_S) for crawl in (first, second)]
            assert codes == [ExitCode.DONE, ExitCode.DONE], first.log + second.log
            await assert_complete(first, site, others=[late])
