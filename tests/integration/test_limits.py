"""Are limits exact, with several processes, failing answers, redirects and kills? Does a raised one let it go on?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.rules.urls import split_url
from tests.integration.drive import crawling, kill_children, records
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer


async def test_pages_max_is_exact_and_can_be_raised(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    spec = SiteSpec(
        hosts=20, pages_per_host=40, links=10, flaky=0.2, redirect_within=0.1, redirect_across=0.1, latency_ms=50
    )
    with SiteProcess(spec) as site:
        # 25 pages of each host, 50 ms long and 50 ms apart: 2.5 s at least, in which two children are surely killed.
        async with crawling(
            redis_server.url, crawl_name, [site.seed_url], output=output, processes=4, pages_max=500, delay_ms=50
        ) as run:
            killed = await kill_children(run, seed=3, most=6)
            assert await run.word() == "LIMIT"
            assert killed >= 2
            assert (await run.totals())["page.done"] == 500
            assert len({record["url"] for record in records(output)}) == len(records(output)) == 500
            await run.check()
        async with crawling(redis_server.url, crawl_name, [], output=output, processes=2, pages_max=600) as run:
            assert await run.word() == "LIMIT"
            assert len({record["url"] for record in records(output)}) == len(records(output)) == 600
        async with crawling(redis_server.url, crawl_name, [], output=output, processes=2, pages_max=None) as run:
            assert await run.word() == "ENDED"
            await run.check()
            found = Counter(record["url"] for record in records(output))
            assert set(found.values()) == {1}
            assert {record["final_url"] for record in records(output)} == site.expected_pages()


async def test_limit_that_the_site_does_not_reach_is_the_end(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SiteSpec(pages_per_host=10)) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], pages_max=10) as run:
            assert await run.word() == "ENDED"
            assert (await run.totals())["page.done"] == 10


async def test_pages_per_host_max_is_exact(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    spec = SiteSpec(hosts=8, pages_per_host=30, links=10, flaky=0.2, latency_ms=50)
    with SiteProcess(spec) as site:
        seeds = [site.url(host, "/p/0") for host in range(1, 9)]
        values: dict[str, Any] = {"processes": 3, "pages_per_host_max": 7, "host_concurrency": 3}
        async with crawling(redis_server.url, crawl_name, seeds, output=output, **values) as run:
            await kill_children(run, seed=4, most=3)
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert totals["page.dropped"] == totals["page.dropped.host_budget"] == totals["page.created"] - 56
            done = Counter(split_url(record["url"])[0] for record in records(output))
            assert done == {site.url(host, ""): 7 for host in range(1, 9)}


@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_links_beyond_the_depth_are_not_followed(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, depth: int
) -> None:
    output = tmp_path / "pages.jsonl"
    with SiteProcess(SiteSpec(pages_per_host=200, links=5)) as site:
        expected = {"/p/0": 0}
        newest = ["/p/0"]
        for step in range(1, depth + 1):
            linked = [path for page in newest for _, path in site.site.links(1, int(page.removeprefix("/p/")))]
            newest = [path for path in dict.fromkeys(linked) if path not in expected]
            expected |= dict.fromkeys(newest, step)
        async with crawling(redis_server.url, crawl_name, [site.seed_url], output=output, depth_max=depth) as run:
            assert await run.word() == "ENDED"
        # One host, one at a time: pages are fetched in the order of their discovery, so by their depth.
        assert {split_url(record["url"])[1]: record["depth"] for record in records(output)} == expected
