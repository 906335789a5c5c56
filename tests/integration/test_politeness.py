"""Is every host left alone as it should be? Read from the web server's own log, over several processes and kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.drive import by_host, crawling, kill_children, violations
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

HOSTS = 40
DELAY_MS = 200
SITE = SiteSpec(
    hosts=HOSTS, pages_per_host=10, links=8, redirect_within=0.1, redirect_across=0.1, flaky=0.05, latency_ms=20
)
POLITE = {"processes": 4, "delay_ms": DELAY_MS, "obey_robots": True, "retry_base_ms": 100}


def all_seeds(site: SiteProcess) -> list[str]:
    return [site.url(host, "/p/0") for host in range(1, site.spec.hosts + 1)]


async def test_cap_1_keeps_hosts_one_at_a_time_and_a_delay_apart(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SITE) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **POLITE) as run:
            assert await run.word() == "ENDED"
            await run.check()
            requests = site.requests()
            assert {request.path for request in requests if request.status == 0} == set()
            assert len(by_host(requests)) == HOSTS
            assert violations(requests, cap=1, delay_ms=DELAY_MS) == []


async def test_cap_1_holds_while_workers_are_killed(redis_server: RedisServer, crawl_name: str) -> None:
    with SiteProcess(SITE) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **POLITE) as run:
            killed = await kill_children(run, seed=1, most=8)
            assert await run.word() == "ENDED"
            await run.check()
            assert killed >= 4
            assert violations(site.requests(), cap=1, delay_ms=DELAY_MS) == []


@pytest.mark.parametrize("kills", [0, 6])
async def test_cap_3_holds_with_fewer_slots_than_tasks(redis_server: RedisServer, crawl_name: str, kills: int) -> None:
    spec = SiteSpec(hosts=10, pages_per_host=12, links=8, redirect_within=0.1, latency_ms=300)
    values = POLITE | {"processes": 3, "concurrency": 4, "host_concurrency": 3}
    with SiteProcess(spec) as site:
        async with crawling(redis_server.url, crawl_name, all_seeds(site), **values) as run:
            killed = await kill_children(run, seed=2, most=kills)
            assert await run.word() == "ENDED"
            await run.check()
            assert killed >= min(kills, 3)
            assert violations(site.requests(), cap=3, delay_ms=DELAY_MS) == []
