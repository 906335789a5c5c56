"""Four bad hosts among thirty, crawled by four processes: nobody else notices, and nothing of theirs is lost."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from itertools import pairwise
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from aiohttp import web

from tests.integration.drive import CrawlRun, Talker, by_host, crawling, html, overlap_max, records, until, violations
from tests.site.server import LoggedRequest, SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.quiet

PAGES: Final = 8
DELAY_MS: Final = 100
TIMEOUT_MS: Final = 500
FAILURES: Final = 6
"""How often a host that is down is asked at least before it comes back: twice the tries of a task."""
SITE: Final = SiteSpec(hosts=26, pages_per_host=PAGES, links=4, latency_ms=5)
POLITE: Final[dict[str, Any]] = {
    "processes": 4,
    "concurrency": 4,
    "delay_ms": DELAY_MS,
    "delay_factor": 0,  # a busy machine answers slowly, and these hosts are to be asked as often in both runs
    "delay_max_ms": 1000,
    "timeout_ms": TIMEOUT_MS,
}


class DeadHost:
    """A host that takes connections and requests, and answers none until it is well; logs them like tests/site."""

    def __init__(self, *, is_resetting: bool) -> None:
        self.requests: list[LoggedRequest] = []
        self.is_well = False
        self.origin = ""
        self._is_resetting = is_resetting
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        started, status, is_well = time.monotonic(), 0, self.is_well
        if not is_well and not self._is_resetting:
            await reader.read()  # until the crawler has had enough
        # Stamped before anything is sent: the crawler may have it long before this process goes on.
        ended = time.monotonic()
        if is_well:
            status = 200
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\nwell"
            )
            writer.close()
        elif self._is_resetting:
            writer.transport.abort()
        else:
            writer.close()
        path = head.split(b" ")[1].decode()
        self.requests.append(LoggedRequest("127.0.0.1", path, started * 1000, ended * 1000, status))


def page_urls(origin: str) -> list[str]:
    return [f"{origin}/{page}" for page in range(PAGES)]


def gap_ms(requests: Sequence[LoggedRequest]) -> float:
    """Return which pause between two requests of a host nine of ten are longer than: the least disturbed one."""
    gaps = [after.start_ms - before.end_ms for own in by_host(requests).values() for before, after in pairwise(own)]
    return quantiles(gaps, n=10)[0]


async def crawl_the_healthy(run: CrawlRun, site: SiteProcess) -> Sequence[LoggedRequest]:
    """Wait until the healthy hosts are done; return their log."""
    await until(lambda: len(site.requests()) >= SITE.hosts * PAGES, "the healthy hosts to be done", within_s=60)
    return site.requests()


async def test_bad_hosts_slow_nobody_else_down_and_lose_nothing(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    with SiteProcess(SITE) as site:
        seeds = [site.url(host, "/p/0") for host in range(1, SITE.hosts + 1)]
        async with crawling(redis_server.url, f"{crawl_name}.alone", seeds, **POLITE) as run:
            alone = await crawl_the_healthy(run, site)
            assert await run.word() == "ENDED"

    page = html()

    async def too_many(count: int) -> web.StreamResponse:
        asked = sum(limited.asked.values())
        return web.Response(status=429, headers={"Retry-After": "1"}) if asked % 4 == 1 else await page(count)

    async def unavailable(count: int) -> web.StreamResponse:
        return web.Response(status=503) if sum(down.asked.values()) <= FAILURES else await page(count)

    output = tmp_path / "pages.jsonl"
    paths = [f"/{page}" for page in range(PAGES)]
    limited, down = Talker(dict.fromkeys(paths, too_many)), Talker(dict.fromkeys(paths, unavailable))
    hanging, resetting = DeadHost(is_resetting=False), DeadHost(is_resetting=True)
    with SiteProcess(SITE) as site:
        async with limited, down, hanging, resetting:
            bad = {host.origin: host for host in (limited, down, hanging, resetting)}
            seeds = [site.url(host, "/p/0") for host in range(1, SITE.hosts + 1)]
            seeds += [url for origin in bad for url in page_urls(origin)]
            async with crawling(redis_server.url, crawl_name, seeds, output=output, **POLITE) as run:
                beside = await crawl_the_healthy(run, site)
                await until(
                    lambda: min(len(hanging.requests), len(resetting.requests)) >= FAILURES,
                    "the dead hosts to be asked often",
                )
                hanging.is_well = resetting.is_well = True
                assert await run.word() == "ENDED"
                await run.check()
                assert await run.dead() == []
                totals = await run.totals()

    # No host sees a violation, by its own log.
    assert violations(beside, cap=1, delay_ms=DELAY_MS) == []
    for host in (limited, down, resetting):
        assert violations(host.requests, cap=1, delay_ms=DELAY_MS) == []
    # When the crawler had enough of it is seen late on a busy machine: the starts tell.
    assert overlap_max(hanging.requests) == 1
    hung = [request for request in hanging.requests if request.status == 0]
    assert violations(hung, cap=2, delay_ms=TIMEOUT_MS) == []
    for before, after in pairwise(limited.requests):
        assert before.status != 429 or after.start_ms - before.end_ms >= 1000
    # The healthy ones, which were all done while the dead ones were dead, are asked as often as if they were alone.
    assert len(by_host(beside)) == SITE.hosts
    # Three times: the load of the machine changes from run to run. Waiting for a bad host would cost its time limit.
    assert gap_ms(beside) < 3 * gap_ms(alone)
    # Everything is fetched, and an outage costs the tasks of its host two tries in all, however long it is.
    tries = defaultdict[str, list[int]](list)
    for record in records(output):
        assert record["status"] == 200, record["url"]
        tries[record["url"].rpartition("/")[0]].append(record["attempts"])
    assert len([url for url in tries if url not in bad]) == SITE.hosts
    for origin in (down.origin, hanging.origin, resetting.origin):
        assert len(tries[origin]) == PAGES
        # One more at most, should this process stand still until a time limit: it serves two of them.
        assert sum(tries[origin]) - PAGES in (1, 2, 3), origin
        assert len([request for request in bad[origin].requests if request.status != 200]) >= FAILURES
    assert len(tries[limited.origin]) == PAGES
    refused = sum(request.status == 429 for request in limited.requests)
    assert 0 < totals["throttled.http_429"] <= refused
    assert FAILURES / 2 < totals["throttled.http_503"] <= FAILURES
    assert totals["throttled.timeout"] > FAILURES / 2
