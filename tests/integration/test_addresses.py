"""The cap of an IP address: over hosts, workers and shards, and what is left out of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiohttp import web

from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, crawling, overlap_max

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.redis_server import RedisServer

HOSTS: Final = 8
TOOK_S: Final = 0.1
"""What each answer takes its server: long enough that fetches under way at once meet there."""


def slow(*links: str, status: int = 200) -> Callable[[int], Awaitable[web.StreamResponse]]:
    async def answer(_: int) -> web.StreamResponse:
        await asyncio.sleep(TOOK_S)
        body = "".join(f'<a href="{link}">x</a>' for link in links)
        return web.Response(text=body, content_type="text/html", status=status)

    return answer


async def crawl_of_one_address(redis_server: RedisServer, name: str, **values: Any) -> tuple[Talker, dict[str, int]]:
    """Crawl two pages and a robots.txt of each of eight hosts that are all at 127.0.0.1."""
    async with DnsServer() as dns, Talker({}) as talker:
        talker.answers = {"/robots.txt": slow(status=404), "/": slow("/a"), "/a": slow()}
        port = talker.origin.rpartition(":")[2]
        seeds = []
        for n in range(HOSTS):
            dns.names[f"h{n}.test"] = [records("127.0.0.1")]
            seeds.append(f"http://h{n}.test:{port}/")
        settings: dict[str, Any] = {"nameservers": (dns.address,), "obey_robots": True, "processes": 2} | values
        async with crawling(redis_server.url, name, seeds, **settings) as run:
            assert await run.word() == "ENDED"
            await run.check()
            return talker, await run.totals()


@pytest.mark.parametrize("shards", [1, 3])
async def test_fetches_of_one_address_are_capped_over_hosts_and_workers(
    redis_server: RedisServer, crawl_name: str, shards: int
) -> None:
    talker, totals = await crawl_of_one_address(redis_server, crawl_name, ip_concurrency=2, shards=shards)
    assert overlap_max(talker.requests) <= 2
    assert len(talker.requests) == 3 * HOSTS
    assert (totals["page.done"], totals["robots.done"]) == (2 * HOSTS, HOSTS)
    assert not {"page.dead", "page.retried", "page.unanswered"} & set(totals)
    waited = totals.get("robots.waited", 0) + totals.get("page.waited", 0)
    assert waited == totals.get("robots.waited.ip_concurrency", 0) + totals.get("page.waited.ip_concurrency", 0)


async def test_exempt_networks_are_left_alone(redis_server: RedisServer, crawl_name: str) -> None:
    values: dict[str, Any] = {"ip_concurrency": 1, "ip_exempt": ("127.0.0.0/8",)}
    talker, totals = await crawl_of_one_address(redis_server, crawl_name, **values)
    assert totals["page.done"] == 2 * HOSTS
    assert not {"page.waited", "robots.waited"} & set(totals)
    assert len(talker.requests) == 3 * HOSTS
