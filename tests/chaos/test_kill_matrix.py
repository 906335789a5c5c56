"""Processes die at random, all the time: children and sinks of a crawl, then the crawl itself with its Redis.

Afterwards nothing is lost, nothing is in the output twice, nobody innocent is dead, and the accounts held at all times.
"""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, AuditWatch, CrawlProcess, assert_complete
from tests.site.model import address
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

HOSTS = 50 if IS_FULL else 10
PAGES = 100 if IS_FULL else 25
KILLS_LEAST = 30 if IS_FULL else 5
CRAWL_KILLS = 15 if IS_FULL else 3
PAUSE_S = (0.3, 1.5)
"""Between two kills."""
LEASE_S = 3 if IS_FULL else 1.5
END_S = 900 if IS_FULL else 90


def site_spec(*, dead_hosts: int = 1) -> SiteSpec:
    living = HOSTS
    return SiteSpec(
        hosts=living + dead_hosts,
        pages_per_host=PAGES,
        links=12,
        flaky=0.05,
        redirect_within=0.05,
        redirect_across=0.05,
        latency_ms=20,
        dead_hosts=tuple(range(living + 1, living + 1 + dead_hosts)),
    )


def settings(cap: int) -> dict[str, object]:
    return {
        "processes": 3,
        "lease": f"{LEASE_S}s",
        "delay": "300ms",
        "host_concurrency": cap,
        "timeout": "2s",
        "retry_base": "200ms",
        "host_give_up": "4s",
        "host_backoff_base": "200ms",
    }


async def kill_children(crawl: CrawlProcess, dice: random.Random) -> int:
    """Kill a worker, the sink or the nursery again and again while the crawl runs; return how many were killed."""
    kills = 0
    while crawl.is_running:
        await asyncio.sleep(dice.uniform(*PAUSE_S))
        if children := crawl.children("fetch", "sink", "nursery"):
            with suppress(psutil.NoSuchProcess):
                dice.choice(children).send_signal(signal.SIGKILL)
                kills += 1
    return kills


async def pause_children(crawl: CrawlProcess, dice: random.Random) -> int:
    """Pause one child at a time for longer than a lease while the crawl runs; return how often."""
    pauses = 0
    while crawl.is_running:
        await asyncio.sleep(dice.uniform(0.5, LEASE_S))
        if children := crawl.children("fetch", "sink", "nursery"):
            child = dice.choice(children)
            with suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGSTOP)
                pauses += 1
                await asyncio.sleep(1.5 * LEASE_S)
                child.send_signal(signal.SIGCONT)
    return pauses


async def assert_only_the_dead_host_died(crawl: CrawlProcess, spec: SiteSpec) -> None:
    async with crawl.frontier() as frontier:
        letters: Any = await frontier.client.xrange(frontier.keys.dead)
    silent = {address(host) for host in spec.dead_hosts}
    innocent = [fields for _, fields in letters if address_of(fields[b"host"]) not in silent]
    assert innocent == []
    assert letters, "the host that never answers was not given up"


def address_of(host_key: bytes) -> str:
    """Return the address in a host key, `http://127.0.0.9:8000`."""
    return host_key.decode().removeprefix("http://").partition(":")[0]


@pytest.mark.parametrize("cap", [1, 3])
async def test_killed_and_paused_children_lose_and_repeat_nothing(
    cap: int, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    dice = random.Random(crawl_name)
    spec = site_spec()
    with (
        SiteProcess(spec) as site,
        CrawlProcess(
            crawl_name, tmp_path, [site.seed_url], redis_url=redis_server.url, settings=settings(cap)
        ) as crawl,
    ):
        crawl.start()
        async with AuditWatch(crawl) as watch:
            killing = asyncio.create_task(kill_children(crawl, dice))
            pausing = asyncio.create_task(pause_children(crawl, dice))
            code = await crawl.wait(END_S)
            kills, pauses = await killing, await pausing
        assert code == ExitCode.WITH_DEAD_LETTERS, crawl.log
        print(f"{kills} kills, {pauses} pauses, {watch.samples} audits, {crawl.count_records()} records")
        watch.assert_sound()
        assert kills >= KILLS_LEAST
        assert pauses >= 1
        await assert_complete(crawl, site)
        await assert_only_the_dead_host_died(crawl, spec)


@pytest.mark.parametrize("store", ["embedded", "redis"])
async def test_killed_crawl_goes_on_where_it_was(
    store: str, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    dice = random.Random(crawl_name)
    spec = site_spec()
    redis_url = redis_server.url if store == "redis" else None
    with (
        SiteProcess(spec) as site,
        CrawlProcess(crawl_name, tmp_path, [site.seed_url], redis_url=redis_url, settings=settings(1)) as crawl,
    ):
        async with AuditWatch(crawl) as watch:
            crawl.start()
            for _ in range(CRAWL_KILLS):
                await crawl.until_fetched(site, 1)
                await asyncio.sleep(dice.uniform(0, 2))
                assert crawl.is_running, crawl.log
                crawl.kill9()
                crawl.start(is_resume=True)
            code = await crawl.wait(END_S)
        assert code == ExitCode.WITH_DEAD_LETTERS, crawl.log
        print(f"{CRAWL_KILLS} kills of the crawl, {watch.samples} audits, {crawl.count_records()} records")
        watch.assert_sound()
        await assert_complete(crawl, site)
        await assert_only_the_dead_host_died(crawl, spec)
