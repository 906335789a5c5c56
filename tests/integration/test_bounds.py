"""Does a crawl stay within its bounds: of memory, of the frontier, of what one script may take of the server?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from streamcrawl.store.connection import connect, memory_usage
from tests.integration.drive import CrawlRun, crawling
from tests.redis_server import FAST, RedisServer
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from redis.asyncio import Redis

WIDE = SiteSpec(hosts=4, pages_per_host=1_000_000, links=200)
"""Nearly every link of a page is new: 200 for each that is fetched."""
MEMORY_BYTES = 24_000_000
OVERSHOOT_BYTES = 4_000_000
"""What is in flight when the mark is seen still brings its links: 64 slots, 200 links of 250 bytes each."""
SAMPLE_S = 0.05


async def highest_memory(client: Redis, run: CrawlRun) -> int:
    """Return the highest used_memory that was seen until the crawl ended."""
    most = 0
    while run.is_running:
        most = max(most, (await memory_usage(client))[0])
        await asyncio.sleep(SAMPLE_S)
    return most


async def test_crawl_stops_at_the_memory_mark_and_goes_on_when_it_was_raised(crawl_name: str) -> None:
    with RedisServer(options=FAST | {"maxmemory": str(MEMORY_BYTES)}) as server, SiteProcess(WIDE) as site:
        client = connect(server.url)
        async with crawling(server.url, crawl_name, [site.seed_url], processes=2, host_concurrency=8) as run:
            most = await highest_memory(client, run)
            assert await run.word() == "STOPPED"
            assert await client.hget(run.frontier.keys.state, "stopped") == b"MEMORY_FULL"
            await run.check()
            done = (await run.totals())["page.done"]
            print(f"memory: limit {MEMORY_BYTES}, highest {most}, {done} pages done")
            assert 0.8 * MEMORY_BYTES < most < MEMORY_BYTES + OVERSHOOT_BYTES
            assert any("--memory-max" in line for line in run.log)

        # With the same limit it stops again at once.
        async with crawling(server.url, crawl_name, [], host_concurrency=8) as run:
            assert await run.word() == "STOPPED"
            assert (await run.totals())["page.done"] - done < 100

        await client.config_set("maxmemory", 10 * MEMORY_BYTES)
        async with crawling(server.url, crawl_name, [], host_concurrency=8, pages_max=done + 200) as run:
            assert await run.word() == "LIMIT"
            await run.check()
        await client.aclose()


async def test_crawl_stops_at_the_frontier_s_bound_and_goes_on_when_it_was_raised(
    redis_server: RedisServer, crawl_name: str
) -> None:
    most = 3000
    with SiteProcess(WIDE) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], processes=2, frontier_max=most) as run:
            assert await run.word() == "STOPPED"
            assert await run.frontier.client.hget(run.frontier.keys.state, "stopped") == b"FRONTIER_FULL"
            await run.check()
            totals = await run.totals()
            # Each of the four hosts has one page in flight at most, and one commit holds what it holds.
            assert most < totals["page.queued"] <= most + 4 * 201
        async with crawling(redis_server.url, crawl_name, [], frontier_max=2 * most) as run:
            assert await run.word() == "STOPPED"
            assert 2 * most < (await run.totals())["page.queued"] <= 2 * most + 4 * 201
            assert (await run.totals())["page.done"] > totals["page.done"]


@pytest.mark.quiet
@pytest.mark.parametrize("links", [5000, 50_000])
async def test_page_of_many_links_holds_the_server_only_for_moments(crawl_name: str, links: int) -> None:
    with RedisServer(options=FAST | {"slowlog-log-slower-than": "20000"}) as server, SiteProcess(SiteSpec()) as site:
        seed = site.url(1, f"/fault/links_{links}")
        async with connect(server.url) as client, crawling(server.url, crawl_name, [seed], pages_max=1) as run:
            assert await run.word() == "LIMIT"
            slow = await client.slowlog_get(100)  # before our own counting, which reads whole queues
            await run.check()
            totals = await run.totals()
            assert totals["page.created"] == links + 1
            assert totals["page.queued"] == links
            assert totals["page.done"] == 1
        assert [(entry["command"][:40], entry["duration"]) for entry in slow] == []
