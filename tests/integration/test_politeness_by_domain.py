"""Are all hosts of a domain left alone as if they were one? Read from the web server's own log."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from streamcrawl.ops.hosts import host_page
from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, by_host, crawling, html, kill_children, plain, violations

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.redis_server import RedisServer
    from tests.site.server import LoggedRequest

pytestmark = pytest.mark.quiet

DELAY_MS: Final = 100
ONE: Final = ("a.one.com", "b.one.com", "one.com")
TWO: Final = ("c.two.com", "d.two.com")
POLITE: Final[dict[str, Any]] = {
    "politeness_by": "domain",
    "delay_ms": DELAY_MS,
    "obey_robots": True,
    "processes": 3,
    "retry_base_ms": 100,
}


@asynccontextmanager
async def talking(*names: str) -> AsyncIterator[tuple[Talker, dict[str, Any], list[str]]]:
    """A web server that hears to these names, the settings with which it is crawled, and the origin of each name."""
    async with DnsServer() as dns, Talker({}) as talker:
        port = talker.origin.rpartition(":")[2]
        for name in names:
            dns.names[name] = [records("127.0.0.1")]
        yield talker, POLITE | {"nameservers": (dns.address,)}, [f"http://{name}:{port}" for name in names]


def as_domains(requests: Iterable[LoggedRequest]) -> list[LoggedRequest]:
    return [request._replace(host=".".join(request.host.split(".")[-2:])) for request in requests]


async def slow(_: int) -> web.StreamResponse:
    await asyncio.sleep(0.03)  # an overlap would be seen
    return web.Response(text="slow")


@pytest.mark.parametrize(("cap", "shards", "kills"), [(1, 2, 3), (2, 1, 0)])
async def test_hosts_of_a_domain_are_asked_as_one(
    redis_server: RedisServer, crawl_name: str, cap: int, shards: int, kills: int
) -> None:
    pages = [f"/{n}" for n in range(5)]
    async with talking(*ONE, *TWO) as (talker, settings, origins):
        talker.answers = dict.fromkeys((*pages, "/robots.txt"), slow)
        seeds = [origin + path for origin in origins for path in pages]
        values = settings | {"host_concurrency": cap, "shards": shards}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            killed = await kill_children(run, seed=3, most=kills)
            assert await run.word() == "ENDED"
            await run.check()
        assert killed >= min(kills, 2)
        assert {(one.host, one.path) for one in talker.requests} == {
            (name, path) for name in (*ONE, *TWO) for path in (*pages, "/robots.txt")
        }
        assert violations(as_domains(talker.requests), cap=cap, delay_ms=DELAY_MS) == []
        # They take turns: none has had all before another has had its first page. With a cap above 1 two entries may
        # wait in slots for the same moment to start, and which of them asks first is chance.
        for names in (ONE, TWO) if cap == 1 else ():
            paged = [one for one in talker.requests if one.path != "/robots.txt" and one.host in names]
            done = Counter[str]()
            for one in sorted(paged, key=lambda one: one.start_ms):
                done[one.host] += 1
                if done[one.host] == len(pages):
                    break
            assert len(done) == len(names)


@pytest.mark.parametrize("retry_after", ["1", None])
async def test_a_429_of_one_host_holds_its_siblings(
    redis_server: RedisServer, crawl_name: str, retry_after: str | None
) -> None:
    async def refuse_once(count: int) -> web.StreamResponse:
        if count:
            return web.Response(text="now")
        return web.Response(status=429, headers={} if retry_after is None else {"Retry-After": retry_after})

    async with talking("a.one.com", "b.one.com", "c.two.com") as (talker, settings, (a, b, c)):
        talker.answers = {"/refused": refuse_once, "/robots.txt": plain("")} | {f"/{n}": html() for n in range(6)}
        seeds = [f"{a}/refused", *(f"{origin}/{n}" for origin in (b, c) for n in range(6))]
        values = settings | {"delay_max_ms": 10_000, "delay_factor": 0}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            page = await host_page(run.crawl, b)
        one = by_host(as_domains(talker.requests))["one.com"]
        refused = next(n for n, request in enumerate(one) if request.status == 429)
        hold_ms = 1000 if retry_after else 2 * DELAY_MS
        assert one[refused + 1].start_ms - one[refused].end_ms >= hold_ms
        # It falls slowly after that: a sixteenth with each answer, for whichever host it comes from.
        gaps = [after.start_ms - before.end_ms for before, after in pairwise(one[refused:])]
        assert all(gap >= 2 * DELAY_MS * (15 / 16) ** n - n for n, gap in enumerate(gaps)), gaps
        assert violations(as_domains(talker.requests), cap=1, delay_ms=DELAY_MS) == []
        assert page.fields.throttled_by == "http_429"


@pytest.mark.parametrize("cap", [1, 2])
async def test_robots_txt_that_lies_on_a_sibling_is_asked_for_in_the_turn_of_its_domain(
    redis_server: RedisServer, crawl_name: str, cap: int
) -> None:
    async with talking("a.one.com", "www.one.com") as (talker, settings, (a, www)):

        async def there(count: int) -> web.StreamResponse:
            if count:
                return web.Response(text="User-agent: *\nDisallow: /secret\n")
            return web.Response(status=302, headers={"Location": f"{www}/robots.txt"})

        talker.answers = {"/robots.txt": there, "/": html("/secret", "/1"), "/1": html()}
        async with crawling(redis_server.url, crawl_name, [f"{a}/"], **settings | {"host_concurrency": cap}) as run:
            assert await run.word() == "ENDED"
            await run.check()
        asked = [(one.host, one.path) for one in sorted(talker.requests, key=lambda one: one.start_ms)]
        assert asked[:3] == [("a.one.com", "/robots.txt"), ("www.one.com", "/robots.txt"), ("a.one.com", "/")]
        assert asked[3:] == [("a.one.com", "/1")]
        assert violations(as_domains(talker.requests), cap=cap, delay_ms=DELAY_MS) == []
