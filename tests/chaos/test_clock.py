"""The clock of the Redis server jumps an hour forth and back while a crawl runs: a line in the log (invariant 8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import GROUP, Keys
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete
from tests.integration.drive import violations
from tests.redis_server import DURABLE, Binary, RedisServer, found_binaries
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

pytestmark = pytest.mark.chaos

HOUR_S = 3600
JUMPED = "the clock of the Redis server jumped by"
DELAY_MS = 500
LEASE_S = 5 if IS_FULL else 3
TAKEN_BACK_S = 5 * LEASE_S
"""One lease of grace after the jump, in which the dead are not told from the living; the rest is for slow machines."""
END_S = 300 if IS_FULL else 90


# A server's clock is the same to every build; what scripts make of it is tested with each (test_store_clock.py).
@pytest.mark.parametrize("binary", found_binaries() if IS_FULL else found_binaries()[:1])
async def test_clock_jumps_forth_and_back_and_a_machine_dies(binary: Binary, tmp_path: Path, crawl_name: str) -> None:
    # Slow pages and more hosts than are fetched at a time: both machines always have something in hand.
    spec = SiteSpec(hosts=12, pages_per_host=60 if IS_FULL else 24, links=12, latency_ms=300)
    output = tmp_path / "out.jsonl"
    with RedisServer(binary=binary, options=DURABLE, has_clock=True) as redis, SiteProcess(spec) as site:
        settings = {"processes": 2, "lease": f"{LEASE_S}s", "delay": f"{DELAY_MS}ms", "concurrency": 4}
        common: dict[str, Any] = {"redis_url": redis.url, "output": output, "settings": settings}
        with (
            CrawlProcess(crawl_name, tmp_path / "first", [site.seed_url], **common) as first,
            CrawlProcess(crawl_name, tmp_path / "second", [site.seed_url], **common) as second,
        ):
            client = connect(redis.url)
            first.start()
            await first.until(lambda: first.count_records(), "the first record")
            second.start()
            await second.until(lambda: "stands by" in second.log, "the second writer to stand by")
            async with AuditWatch(first) as watch:
                redis.set_clock(HOUR_S)
                await first.until(lambda: JUMPED in first.log, "the jump forth to be noticed")
                await first.until_fetched(site, 40)
                machine = second.pid
                await freeze_with_work(client, second)
                redis.set_clock(0)
                second.lose_machine()
                held = await count_held(client, crawl_name, machine)
                async with asyncio.timeout(TAKEN_BACK_S):
                    while await count_held(client, crawl_name, machine):  # noqa: ASYNC110 - other processes do it
                        await asyncio.sleep(0.1)
                code = await first.wait(END_S)
            assert code == ExitCode.DONE, first.log
            watch.assert_sound()
            said = [line for line in first.log.splitlines() if JUMPED in line]
            assert [line.split(";")[0] for line in said] == [f"{JUMPED} {jump} s" for jump in ("+3600", "-3600")]
            totals = await first.totals()
            # Of the dead machine, and of nobody else.
            assert totals["reclaimed"] == held
            assert totals["page.crashed"] == held
            assert "page.lease_lost" not in totals
            offsets: Any = await client.hgetall(Keys(crawl_name).offsets)
            assert [value for name, value in offsets.items() if name.endswith(b":writer")] == [b"1"], "it was replaced"
            print(first.log)
            await client.aclose()
        # What the machine that died had asked for may overlap with whoever asked again; before that, nothing is early.
        assert violations(site.requests(), cap=1, delay_ms=DELAY_MS) == []
        await assert_complete(first, site)


async def freeze_with_work(client: Redis, crawl: CrawlProcess) -> None:
    """Stop all processes of a crawl at a moment at which its workers have something in hand."""
    async with asyncio.timeout(30):
        while True:
            running = crawl.freeze()
            if await count_held(client, crawl.name, crawl.pid):
                return
            for process in running:
                process.resume()
            await asyncio.sleep(0.1)


async def count_held(client: Redis, crawl_name: str, machine: int) -> int:
    """Return how many entries are pending under the workers of one supervisor, by its pid."""
    pending: Any = await client.xpending(Keys(crawl_name).fetch_stream, GROUP)
    return sum(row["pending"] for row in pending["consumers"] if f"-{machine}-".encode() in row["name"])
