"""Is robots.txt known before the first page of an origin is asked for, fetched once for all, and obeyed?"""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from streamcrawl.rules.robots_rules import BODY_MAX_BYTES
from tests.integration.drive import CrawlRun, Talker, by_host, crawling, html, overlap_max, plain, until, violations
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

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


def robots(*bodies: str | int, **headers: str) -> Callable[[int], Awaitable[web.StreamResponse]]:
    """Return an answer that is one text (or status) after the other, the last for ever."""

    async def answer(count: int) -> web.StreamResponse:
        body = bodies[min(count, len(bodies) - 1)]
        if isinstance(body, int):
            return web.Response(status=body)
        return web.Response(text=body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer


async def test_a_hundred_slots_of_many_processes_ask_once(redis_server: RedisServer, crawl_name: str) -> None:
    async def slow(_: int) -> web.StreamResponse:
        await asyncio.sleep(0.5)  # so long that every slot comes by meanwhile
        return web.Response(text="User-agent: *\nDisallow: /p/9\n")

    pages = {f"/p/{number}": html() for number in range(120)}
    async with Talker({ROBOTS: slow, **pages}) as talker:
        values: dict[str, Any] = {"obey_robots": True, "processes": 5, "concurrency": 20, "host_concurrency": 100}
        seeds = [talker.origin + path for path in pages]
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.dropped.robots"] == 11
        paths = Counter(request.path for request in talker.requests)
        assert paths == Counter([ROBOTS, *(path for path in pages if not path.startswith("/p/9"))])
        assert talker.requests[0].path == ROBOTS


async def test_cache_control_shortens_how_long_a_verdict_holds(redis_server: RedisServer, crawl_name: str) -> None:
    pages = {f"/{number}": html() for number in range(12)}
    answer = robots("User-agent: *\nDisallow: /x\n", Cache_Control="public, max-age=1")
    async with Talker({ROBOTS: answer, **pages}) as talker:
        values: dict[str, Any] = {"obey_robots": True, "robots_ttl_min_ms": 1000, "delay_ms": 200}
        seeds = [talker.origin + path for path in pages]
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
        asked = [request for request in talker.requests if request.path == ROBOTS]
        assert len(asked) >= 2
        assert all(after.start_ms - before.end_ms >= 1000 for before, after in pairwise(asked))


@pytest.mark.parametrize("failure", [503, 429])
async def test_last_good_copy_holds_while_no_other_can_be_had(
    redis_server: RedisServer, crawl_name: str, failure: int
) -> None:
    pages = {f"/{number}": html() for number in range(9)}
    answers = {ROBOTS: robots("User-agent: *\nDisallow: /7\n", failure, Cache_Control="no-cache"), **pages}
    async with Talker(answers) as talker:
        values: dict[str, Any] = GIVING_UP | {"robots_ttl_min_ms": 1000, "delay_ms": 250}
        seeds = [talker.origin + path for path in pages]
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert (totals["page.done"], totals["page.dropped.robots"], totals.get("page.dead", 0)) == (8, 1, 0)
            assert (totals["robots.done"], totals["robots.dropped.old_copy"]) == (1, 1)
        paths = Counter(request.path for request in talker.requests)
        assert (paths[ROBOTS], paths["/7"]) == (2, 0)


async def test_robots_txt_that_was_there_before_and_is_gone_allows_everything(
    redis_server: RedisServer, crawl_name: str
) -> None:
    pages = {f"/{number}": html() for number in range(9)}
    answers = {ROBOTS: robots("User-agent: *\nDisallow: /8\n", 404, Cache_Control="no-store"), **pages}
    async with Talker(answers) as talker:
        values: dict[str, Any] = {"obey_robots": True, "robots_ttl_min_ms": 1000, "delay_ms": 250}
        seeds = [talker.origin + path for path in pages]
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            await until(lambda: any(request.path == ROBOTS for request in talker.requests[1:]), "the second robots.txt")
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["robots.done"] == 2


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_of_a_long_robots_txt_the_first_500_kib_are_read(
    redis_server: RedisServer, crawl_name: str, coding: str
) -> None:
    line = "# nothing to see here\n"
    text = "User-agent: *\nDisallow: /in\n" + line * (2 * BODY_MAX_BYTES // len(line)) + "Disallow: /out\n"

    async def long(_: int) -> web.StreamResponse:
        body = gzip.compress(text.encode()) if coding == "gzip" else text.encode()
        return web.Response(body=body, headers={"Content-Encoding": coding} if coding == "gzip" else {})

    async with Talker({ROBOTS: long, "/in": html(), "/out": html()}) as talker:
        seeds = [f"{talker.origin}/in", f"{talker.origin}/out"]
        async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert [request.path for request in talker.requests] == [ROBOTS, "/out"]


async def test_of_an_endless_robots_txt_the_beginning_is_read(redis_server: RedisServer, crawl_name: str) -> None:
    async def endless(request: int) -> web.StreamResponse:
        return web.Response(body=lines(), content_type="text/plain")

    async def lines() -> AsyncIterator[bytes]:
        yield b"User-agent: *\nDisallow: /in\n"
        while True:
            yield b"# more\n" * 10_000

    async with Talker({ROBOTS: endless, "/in": html(), "/out": html()}) as talker:
        seeds = [f"{talker.origin}/in", f"{talker.origin}/out"]
        async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True) as run:
            assert await run.word() == "ENDED"
        assert {request.path for request in talker.requests} - {ROBOTS} == {"/out"}


async def test_five_redirects_of_robots_txt_are_followed_and_no_sixth(
    redis_server: RedisServer, crawl_name: str
) -> None:
    def chain(hops: int) -> dict[str, Any]:
        hopping = {f"/r{hop}": html(status=301, Location=f"/r{hop + 1}") for hop in range(1, hops)}
        first = {ROBOTS: html(status=301, Location="/r1")}
        return first | hopping | {f"/r{hops}": plain("User-agent: *\nDisallow: /x\n"), "/x": html()}

    async with Talker(chain(5)) as near, Talker(chain(6)) as far:
        seeds = [f"{near.origin}/x", f"{far.origin}/x"]
        async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True, delay_ms=50) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert [request.path for request in near.requests] == [ROBOTS, "/r1", "/r2", "/r3", "/r4", "/r5"]
        assert [request.path for request in far.requests] == [ROBOTS, "/r1", "/r2", "/r3", "/r4", "/r5", "/x"]


async def test_bytes_that_are_no_text_are_compared_as_bytes(redis_server: RedisServer, crawl_name: str) -> None:
    async def latin(_: int) -> web.StreamResponse:
        return web.Response(body=b"User-agent: *\nDisallow: /caf\xe9\n")

    async with Talker({ROBOTS: latin, "/caf%E9": html(), "/caf%C3%A9": html()}) as talker:
        seeds = [f"{talker.origin}/caf%E9", f"{talker.origin}/caf%C3%A9"]
        async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True) as run:
            assert await run.word() == "ENDED"
            assert (await run.totals())["page.dropped.robots"] == 1
        assert len(talker.requests) == 2


async def test_redirect_to_another_host_is_followed_in_that_hosts_turn(
    redis_server: RedisServer, crawl_name: str
) -> None:
    async with Talker({ROBOTS: plain("User-agent: *\nDisallow: /no\n"), "/no": html()}) as other:
        for number in range(8):
            other.answers[f"/{number}"] = html()
        moved = html(status=301, Location=f"{other.origin}/robots.txt")
        async with Talker({ROBOTS: moved, "/no": html(), "/yes": html()}) as one:
            seeds = [f"{one.origin}/no", f"{one.origin}/yes", *(f"{other.origin}/{number}" for number in range(8))]
            async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True, delay_ms=100) as run:
                assert await run.word() == "ENDED"
                await run.check()
                totals = await run.totals()
                assert (totals["page.done"], totals["page.dropped.robots"], totals["robots.done"]) == (9, 1, 2)
            assert [request.path for request in one.requests] == [ROBOTS, "/yes"]
            # Once for itself and once for the other, and never two at a time or before its delay.
            assert Counter(request.path for request in other.requests)[ROBOTS] == 2
            assert violations(other.requests, cap=1, delay_ms=100) == []


async def test_redirect_to_a_host_that_is_busy_makes_room(redis_server: RedisServer, crawl_name: str) -> None:
    async def slow(_: int) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return web.Response(text="x")

    pages = {f"/{number}": slow for number in range(60)}
    async with Talker({ROBOTS: plain("User-agent: *\nDisallow: /no\n"), **pages}) as other:
        moved = html(status=302, Location=f"{other.origin}/robots.txt")
        async with Talker({ROBOTS: moved, "/no": html()}) as one:
            seeds = [*(other.origin + path for path in pages), f"{one.origin}/no"]
            async with crawling(redis_server.url, crawl_name, seeds, obey_robots=True) as run:
                assert await run.word() == "ENDED"
                await run.check()
                assert (await run.totals())["page.dropped.robots"] == 1
            assert overlap_max(other.requests) == 1


async def test_redirect_to_a_host_that_does_not_answer_is_no_permission(
    redis_server: RedisServer, crawl_name: str
) -> None:
    with SiteProcess(SiteSpec(hosts=2, refusing_hosts=(2,))) as site:
        async with Talker({ROBOTS: html(status=302, Location=site.url(2, ROBOTS)), "/": html()}) as one:
            async with crawling(redis_server.url, crawl_name, [one.origin], **GIVING_UP) as run:
                assert await run.word() == "ENDED"
                await run.check()
                assert (await run.totals()).get("page.done", 0) == 0
            assert {request.path for request in one.requests} == {ROBOTS}
