"""Two limits of memory, that of the server and that of the crawl: the lower one counts."""

from __future__ import annotations

import pytest

from streamcrawl.store.connection import connect
from tests.integration.drive import crawling
from tests.redis_server import FAST, RedisServer
from tests.site.server import SiteProcess, SiteSpec

WIDE = SiteSpec(hosts=4, pages_per_host=1_000_000, links=200)
LIMIT_BYTES = 12_000_000


@pytest.mark.parametrize("maxmemory", [0, 100_000_000], ids=["none", "higher"])
async def test_limit_of_the_crawl_counts_under_that_of_the_server(crawl_name: str, maxmemory: int) -> None:
    with RedisServer(options=FAST | {"maxmemory": str(maxmemory)}) as server, SiteProcess(WIDE) as site:
        client = connect(server.url)
        async with crawling(
            server.url, crawl_name, [site.seed_url], host_concurrency=8, memory_max_bytes=LIMIT_BYTES, pages_max=5000
        ) as run:
            assert await run.word() == "STOPPED"
            assert await client.hget(run.frontier.keys.state, "stopped") == b"MEMORY_FULL"
            assert any("of 12.0 MB" in line for line in run.log)
        await client.aclose()
