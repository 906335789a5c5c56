"""Does a crawl stay within its bounds: of memory, of the frontier, of what one script may take of the server?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect, memory_usage
from streamcrawl.work.janitor import JanitorLoop
from tests.integration.drive import CrawlRun, crawling
from tests.integration.snapshot import Lab, fast, wait_until
from tests.redis_server import FAST, RedisServer
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from redis.asyncio import Redis

WIDE = SiteSpec(hosts=4, pages_per_host=1_000_000, links=200)
"""Nearly every link of a page is new: 200 for each that is fetched."""
MEMORY_BYTES = 12_000_000
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


async def test_retained_log_gives_way_at_the_memory_mark_before_anything_stops(crawl_name: str) -> None:
    entry, count = "x" * 100_000, 120
    with RedisServer(options=FAST) as server:
        async with connect(server.url) as client:
            lab = await Lab.opened(client, **fast(crawl_name))
            await lab.frontier.flow(["one"], b'{"one":{"from":["page"]}}', {"page": 3_600_000})
            await lab.offer("http://a.test/")
            [held] = await lab.take()
            items = ["log:page", f'1["str","{entry}",0]'] * count
            assert await lab.end(held, items=items, url="http://a.test/") == "DONE"

            async def has_let_go() -> bool:
                memory: Any = await client.info("memory")
                return bool(memory["mem_clients_normal"] < len(entry))

            # Redis keeps the room of a long command for some seconds; taken for data, there would be no need to trim.
            await wait_until(has_let_go, "the buffer of the commit to go")
            used, _ = await memory_usage(client)
            limit = int(used * 1.1)
            log: list[str] = []
            settings = make_settings(**fast(crawl_name), memory_max_bytes=limit, log_max_bytes=10**9)
            janitor = JanitorLoop(lab.crawl, settings, log=log.append)
            running = asyncio.create_task(janitor.run())

            async def is_under() -> bool:
                return (await memory_usage(client))[0] < 0.8 * limit and bool(log)

            await wait_until(is_under, "memory under the mark")
            janitor.stop()
            await running
            assert await client.hget(lab.keys.state, "stopped") is None
            state = await lab.check()
            left = len(state["log:page"]["entries"])
            assert 0 < left < count, "no more went than had to"
            assert state["totals"]["log:page.trimmed"] == count - left
            # A quarter of the memory up to the mark, unless a setting says otherwise.
            assert state["state"]["log_share"] == int(0.25 * 0.8 * limit)
            assert "went before their time" in log[0]


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
