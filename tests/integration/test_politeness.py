"""Is every host left alone as it should be? Read from the web server's own log, over several processes and kills."""

from __future__ import annotations

import asyncio
import math
import time
from email.utils import formatdate
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from streamcrawl.ops.hosts import delay_words, host_page
from streamcrawl.settings import Given
from streamcrawl.store.tuning import tune
from tests.integration.drive import Talker, by_host, crawling, html, kill_children, plain, until, violations
from tests.integration.snapshot import links
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.quiet

HOSTS = 40
DELAY_MS = 200
SITE = SiteSpec(
    hosts=HOSTS, pages_per_host=10, links=8, redirect_within=0.1, redirect_across=0.1, flaky=0.05, latency_ms=20
)
POLITE: Final[dict[str, Any]] = {"processes": 4, "delay_ms": DELAY_MS, "obey_robots": True, "retry_base_ms": 100}


def all_seeds(site: SiteProcess) -> list[str]:
    return [site.url(host, "/p/0") for host in range(1, site.spec.hosts + 1)]


async def test_cap_1_keeps_hosts_one_at_a_time_and_a_delay_apart(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SITE) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **POLITE) as run:
            assert await run.word() == "ENDED"
            await run.check()
            requests = site.requests()
            assert [request for request in requests if request.status == 0] == []
            assert len(by_host(requests)) == HOSTS
            assert violations(requests, cap=1, delay_ms=DELAY_MS) == []


async def test_cap_1_holds_while_workers_are_killed(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SITE) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **POLITE) as run:
            killed = await kill_children(run, seed=1, most=8)
            assert await run.word() == "ENDED"
            await run.check()
            assert killed >= 2
            assert violations(site.requests(), cap=1, delay_ms=DELAY_MS) == []


@pytest.mark.parametrize("kills", [0, 6])
async def test_cap_3_holds_with_fewer_slots_than_tasks(redis_server: RedisServer, crawl_name: str, kills: int) -> None:
    spec = SiteSpec(hosts=10, pages_per_host=12, links=8, redirect_within=0.1, latency_ms=300)
    values: dict[str, Any] = POLITE | {"processes": 3, "concurrency": 4, "host_concurrency": 3}
    with SiteProcess(spec) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **values) as run:
            killed = await kill_children(run, seed=2, most=kills)
            assert await run.word() == "ENDED"
            await run.check()
            assert killed >= min(kills, 2)
            assert violations(site.requests(), cap=3, delay_ms=DELAY_MS) == []


async def test_one_slow_host_does_not_slow_the_others(redis_server: RedisServer, crawl_name: str) -> None:
    pages, slow = 5, 7
    spec = SiteSpec(hosts=HOSTS, pages_per_host=pages, links=8, slow_hosts=(slow,), slow_ms=2000)
    values: dict[str, Any] = POLITE | {"processes": 2, "concurrency": 4, "obey_robots": False}
    with SiteProcess(spec) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **values):
            slow_host = f"127.0.0.{slow}"

            def done(is_slow: bool) -> int:
                return sum((request.host == slow_host) is is_slow for request in site.requests())

            await until(lambda: done(is_slow=False) == pages * (HOSTS - 1), "the other hosts to be done")
            # One slot of eight waits for the slow host: the 39 others, with five pages a delay apart, need less time
            # than three of its pages.
            assert done(is_slow=True) < 3


async def test_host_is_left_alone_longer_the_longer_its_answers_take(
    redis_server: RedisServer, crawl_name: str
) -> None:
    async def slow(_: int) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return web.Response(text="slow")

    async with Talker({f"/{n}": slow for n in range(12)}) as talker:
        seeds = [f"{talker.origin}/{n}" for n in range(8)]
        values: dict[str, Any] = {"delay_ms": 50, "delay_factor": 2, "delay_max_ms": 2000, "processes": 2}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            (host,) = [await host_page(run.crawl, talker.origin)]
        gaps = [after.start_ms - before.end_ms for before, after in pairwise(talker.requests)]
        assert len(gaps) == 7
        # An eighth of the way from 50 to 400 ms with each answer, whichever worker had it.
        for n, gap in enumerate(gaps, start=1):
            assert gap >= 400 - 350 * (7 / 8) ** n - n, gaps
        assert host.delay_ms >= 230
        assert "its answers take long" in delay_words(host)


# -- what a host asks for


@pytest.mark.parametrize("cap", [1, 2])
async def test_crawl_delay_holds_from_the_first_page_on(redis_server: RedisServer, crawl_name: str, cap: int) -> None:
    answers = {
        "/robots.txt": plain("User-agent: *\nCrawl-delay: 0.5\n"),
        "/": html("/1", "/2"),
        "/1": html(),
        "/2": html(),
    }
    async with Talker(answers) as talker:
        values: dict[str, Any] = {"obey_robots": True, "delay_ms": 50, "host_concurrency": cap}
        async with crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
            assert await run.word() == "ENDED"
        assert len(talker.requests) == 4
        assert violations(talker.requests, cap=cap, delay_ms=500) == []


async def test_crawl_delay_is_capped(redis_server: RedisServer, crawl_name: str) -> None:
    answers = {"/robots.txt": plain("User-agent: *\nCrawl-delay: 86400\n"), "/": html("/1"), "/1": html()}
    async with Talker(answers) as talker:
        values: dict[str, Any] = {"obey_robots": True, "crawl_delay_max_ms": 400}
        async with crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
            assert await run.word() == "ENDED"
        assert len(talker.requests) == 3
        assert violations(talker.requests, cap=1, delay_ms=400) == []


async def test_longer_delay_of_a_second_run_holds_against_a_stored_crawl_delay(
    redis_server: RedisServer, crawl_name: str
) -> None:
    answers = {"/robots.txt": plain("User-agent: *\nCrawl-delay: 0.2\n"), "/": html("/1", "/2"), "/1": html("/3")}
    async with Talker(answers) as talker:
        async with crawling(redis_server.url, crawl_name, [talker.origin], obey_robots=True, pages_max=1) as run:
            assert await run.word() == "LIMIT"
        before = len(talker.requests)
        async with crawling(redis_server.url, crawl_name, [], obey_robots=True, delay_ms=500, pages_max=None) as run:
            assert await run.word() == "ENDED"
        assert violations(talker.requests[:before], cap=1, delay_ms=200) == []
        assert len(talker.requests[before:]) == 3
        assert violations(talker.requests[before:], cap=1, delay_ms=500) == []


def in_seconds(seconds: int) -> str:
    return str(seconds)


def as_date(seconds: int) -> str:
    # Whole seconds: at least `seconds` from now, at most one more.
    return formatdate(math.ceil(time.time()) + seconds, usegmt=True)


@pytest.mark.parametrize("written", [in_seconds, as_date])
@pytest.mark.parametrize("status", [403, 429, 503])
async def test_retry_after_blocks_the_whole_host(
    redis_server: RedisServer, crawl_name: str, written: Callable[[int], str], status: int
) -> None:
    async def refuse_once(count: int) -> web.StreamResponse:
        if count:
            return web.Response(text="now")
        return web.Response(status=status, headers={"Retry-After": written(1)})

    answers = {"/": refuse_once, "/1": html(), "/2": html()}
    async with Talker(answers) as talker:
        seeds = [talker.origin + path for path in answers]
        async with crawling(redis_server.url, crawl_name, seeds, host_concurrency=1) as run:
            assert await run.word() == "ENDED"
        refused, *others = talker.requests
        assert (refused.path, refused.status) == ("/", status)
        assert len(others) == (2 if status == 403 else 3)
        assert min(request.start_ms for request in others) - refused.end_ms >= 1000


async def test_retry_after_is_capped(redis_server: RedisServer, crawl_name: str) -> None:
    answers = {"/": html(status=403, Retry_After="86400"), "/1": html()}
    async with Talker(answers) as talker:
        seeds = [talker.origin + path for path in answers]
        async with crawling(redis_server.url, crawl_name, seeds, retry_after_max_ms=500) as run:
            assert await run.word() == "ENDED"
        assert [request.path for request in talker.requests] == ["/", "/1"]
        assert violations(talker.requests, cap=1, delay_ms=500) == []


async def test_retry_after_of_robots_txt_is_obeyed(redis_server: RedisServer, crawl_name: str) -> None:
    async def refuse_once(count: int) -> web.StreamResponse:
        if count:
            return web.Response(text="")
        return web.Response(status=503, headers={"Retry-After": "1"})

    async with Talker({"/robots.txt": refuse_once, "/": html()}) as talker:
        async with crawling(redis_server.url, crawl_name, [talker.origin], obey_robots=True) as run:
            assert await run.word() == "ENDED"
        assert [request.path for request in talker.requests] == ["/robots.txt", "/robots.txt", "/"]
        assert talker.requests[1].start_ms - talker.requests[0].end_ms >= 1000


async def test_hop_of_a_redirect_waits_for_a_block_of_its_host(redis_server: RedisServer, crawl_name: str) -> None:
    async def redirect(_: int) -> web.StreamResponse:
        await asyncio.sleep(0.3)  # so long that the refusal is committed first
        return web.Response(status=302, headers={"Location": "/target"})

    answers = {"/": redirect, "/refused": html(status=403, Retry_After="4"), "/target": html()}
    async with Talker(answers) as talker:
        seeds = [talker.origin + path for path in ("/", "/refused")]
        async with crawling(redis_server.url, crawl_name, seeds, host_concurrency=2, delay_ms=50) as run:
            assert await run.word() == "ENDED"
        refused = next(request for request in talker.requests if request.path == "/refused")
        target = next(request for request in talker.requests if request.path == "/target")
        assert target.start_ms - refused.end_ms >= 4000


@pytest.mark.parametrize("how", ["host", "crawl"])
async def test_cap_that_is_raised_while_a_fetch_is_under_way_begins_no_other_beside_it_too_early(
    redis_server: RedisServer, crawl_name: str, how: str
) -> None:
    begun = asyncio.Event()

    async def slow(_: int) -> web.StreamResponse:
        begun.set()
        await asyncio.sleep(1.7)
        return web.Response(text="slow")

    async with Talker({f"/{n}": slow for n in range(2)}) as talker:
        seeds = [f"{talker.origin}/{n}" for n in range(2)]
        async with crawling(redis_server.url, crawl_name, seeds, delay_ms=1500) as run:
            await begun.wait()
            if how == "host":
                await run.frontier.set_host(talker.origin, cap=3)
            else:
                await tune(run.crawl, crawl_name, {"host_concurrency": Given(3, "test")})
                await run.frontier.offer(links(f"{talker.origin}/late"))  # has the host looked at again
            assert await run.word() == "ENDED"
        assert len(talker.requests) >= 2
        assert violations(talker.requests, cap=3, delay_ms=1500) == []
