"""Is robots.txt known before the first page of an origin is asked for, fetched once for all, and obeyed?"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.integration.drive import CrawlRun, Talker, by_host, crawling, html, plain, until
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

ROBOTS: Final = "/robots.txt"
GIVING_UP: Final[dict[str, Any]] = {"obey_robots": True, "host_give_up_ms": 60_000, "host_give_up_idle_ms": 1000}


@pytest.mark.parametrize("cap", [1, 4])
async def test_each_origin_is_asked_once_and_before_its_pages(
    redis_server: RedisServer, crawl_name: str, cap: int
) -> None:
    spec = SiteSpec(hosts=12, pages_per_host=15, links=8, redirect_across=0.2, latency_ms=10)
    with SiteProcess(spec) as site:
        values: dict[str, Any] = {"obey_robots": True, "processes": 3, "host_concurrency": cap}
        async with crawling(redis_server.url, crawl_name, [site.seed_url], **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["robots.done"] == 12
        hosts = by_host(site.requests())
        assert len(hosts) == 12
        for host, own in hosts.items():
            assert [request.path for request in own].count(ROBOTS) == 1, host
            assert own[0].path == ROBOTS, host
            assert own[1].start_ms >= own[0].end_ms, host


async def test_what_is_disallowed_is_dropped_unfetched(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SiteSpec(pages_per_host=50, robots="disallow:/private/")) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], obey_robots=True) as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
            assert totals["page.done"] == 50
            assert totals["page.dropped"] == totals["page.dropped.robots"] == 5
        assert not [request for request in site.requests() if request.path.startswith("/private/")]


async def test_redirect_into_what_is_disallowed_is_not_followed(redis_server: RedisServer, crawl_name: str) -> None:
    answers = {
        ROBOTS: plain("User-agent: *\nDisallow: /private\n"),
        "/": html(status=302, Location="/private"),
        "/private": html(),
    }
    async with Talker(answers) as talker:
        async with crawling(redis_server.url, crawl_name, [talker.origin], obey_robots=True) as run:
            assert await run.word() == "ENDED"
            assert (await run.totals())["page.dropped.robots"] == 1
        assert [request.path for request in talker.requests] == [ROBOTS, "/"]


@pytest.mark.parametrize("robots", ["none", "status:403", "status:410"])
async def test_host_without_a_robots_txt_allows_everything(
    redis_server: RedisServer, crawl_name: str, robots: str
) -> None:
    with SiteProcess(SiteSpec(pages_per_host=20, robots=robots)) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], obey_robots=True) as run:
            assert await run.word() == "ENDED"
            assert (await run.totals())["page.done"] == 20
        assert Counter(request.path for request in site.requests())[ROBOTS] == 1


async def dead_by_reason(run: CrawlRun) -> Counter[tuple[str, str]]:
    return Counter((letter.kind, letter.reason) for letter in await run.dead())


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_robots_txt_that_cannot_be_had_holds_its_pages_and_at_last_gives_the_host_up(
    redis_server: RedisServer, crawl_name: str, status: int
) -> None:
    spec = SiteSpec(hosts=1, robots=f"status:{status}")
    with SiteProcess(spec) as site:
        seeds = [site.url(1, f"/p/{page}") for page in range(3)]
        async with crawling(redis_server.url, crawl_name, seeds, **GIVING_UP) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert await dead_by_reason(run) == {("page", "robots_unreachable"): 3, ("robots", "robots_unreachable"): 1}
        paths = Counter(request.path for request in site.requests())
        assert set(paths) == {ROBOTS}
        assert paths[ROBOTS] >= 3


async def test_host_that_refuses_connections_is_given_up_as_a_host(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SiteSpec(hosts=2, pages_per_host=5, refusing_hosts=(2,))) as site:
        seeds = [site.seed_url, *(site.url(2, f"/p/{page}") for page in range(5))]
        values: dict[str, Any] = GIVING_UP | {"scope": "host"}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert await dead_by_reason(run) == {("page", "host_unreachable"): 5, ("robots", "host_unreachable"): 1}
            assert (await run.totals())["page.done"] == 5


async def test_crawl_that_does_not_obey_asks_for_no_robots_txt(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SiteSpec(hosts=3, pages_per_host=10, robots="disallow:/")) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], obey_robots=False) as run:
            assert await run.word() == "ENDED"
        assert ROBOTS not in {request.path for request in site.requests()}


async def test_verdict_that_is_too_old_is_fetched_again(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SiteSpec(pages_per_host=15)) as site:
        values: dict[str, Any] = {"obey_robots": True, "robots_ttl_ms": 1000, "delay_ms": 200}
        async with crawling(redis_server.url, crawl_name, [site.seed_url], **values) as run:
            await until(lambda: len([1 for r in site.requests() if r.path == ROBOTS]) >= 3, "the third robots.txt")
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.done"] == 15
        robots = [request for request in site.requests() if request.path == ROBOTS]
        assert all(after.start_ms - before.end_ms >= 1000 for before, after in pairwise(robots))
