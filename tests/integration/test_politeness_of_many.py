"""Forty hosts, four processes, three fetches at a time and fewer slots than there is to fetch: no breach in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.integration.drive import by_host, crawling, kill_children, overlap_max, violations
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

pytestmark = pytest.mark.quiet

HOSTS: Final = 40
CAP: Final = 3
DELAY_MS: Final = 200
POLITE: Final[dict[str, Any]] = {
    "processes": 4,
    "concurrency": 12,  # 48 slots, where 40 hosts with a cap of 3 could use 120
    "host_concurrency": CAP,
    "delay_ms": DELAY_MS,
    "obey_robots": True,
    "retry_base_ms": 100,
}


@pytest.mark.parametrize("kills", [0, 6])
async def test_cap_3_holds_on_forty_hosts_with_busy_slots(
    redis_server: RedisServer, crawl_name: str, kills: int
) -> None:
    spec = SiteSpec(
        hosts=HOSTS, pages_per_host=5, links=8, redirect_within=0.1, redirect_across=0.1, flaky=0.05, latency_ms=900
    )
    with SiteProcess(spec) as site:
        seeds = [site.url(host, f"/p/{page}") for host in range(1, HOSTS + 1) for page in (0, 1, 2)]
        async with crawling(redis_server.url, crawl_name, seeds, **POLITE) as run:
            killed = await kill_children(run, seed=5, most=kills)
            assert await run.word() == "ENDED"
            await run.check()
        assert killed >= min(kills, 3)  # 200 pages of 0.9 s in 48 slots: 3.7 s at least
        requests = site.requests()
        hosts = by_host(requests)
        assert len(hosts) == HOSTS
        # The cap was made use of, and slots were what was short.
        # How far depends on the slots that are free when a host is due; violations() holds it to the cap.
        assert max(map(overlap_max, hosts.values())) > 1
        assert overlap_max(requests) >= 30
        assert violations(requests, cap=CAP, delay_ms=DELAY_MS) == []
