"""What does a waiting worker cost? How soon is a crawl over? What becomes of the work of one that ends or is killed?"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from streamcrawl.settings import Given
from streamcrawl.store.connection import connect
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.machine import usable_cores
from tests.integration.drive import CrawlRun, Talker, crawling, html, until, violations
from tests.redis_server import RedisServer
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS_PER_S_MAX: Final = 5
WATCH_S: Final = 10.0
"""What comes every two seconds is in it five times, wherever it begins; in five seconds it would be twice or thrice."""


# -- idle


async def commands_per_s(redis_url: str, run: CrawlRun) -> dict[int, float]:
    """Return how many commands each process of the crawl sends, by pid; those that scripts call do not count."""
    client = connect(redis_url)
    seen: Counter[int] = Counter()
    async with client.monitor() as monitor:
        deadline = time.monotonic() + WATCH_S
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                command = await asyncio.wait_for(monitor.next_command(), left_s)
            except TimeoutError:
                break
            if command["client_type"] != "lua":
                seen[int(command["client_port"])] += 1
    pids = [os.getpid(), *(child.pid for child in run.supervisor.children)]
    owner = {at.laddr.port: pid for pid in pids for at in psutil.Process(pid).net_connections("tcp")}
    await client.aclose()
    found: Counter[int] = Counter()
    for port, count in seen.items():
        found[owner[port]] += count
    return {pid: found[pid] / WATCH_S for pid in pids}


async def assert_idle(server: RedisServer, run: CrawlRun) -> None:
    rates = await commands_per_s(server.url, run)
    print(f"commands per second: supervisor {rates[os.getpid()]}, workers {[rates[c.pid] for c in run.workers()]}")
    assert all(0 < rate <= COMMANDS_PER_S_MAX for rate in rates.values()), rates


async def test_worker_of_a_paused_crawl_sends_few_commands(crawl_name: str) -> None:
    with RedisServer() as server, SiteProcess(SiteSpec(pages_per_host=1000)) as site:
        async with crawling(server.url, crawl_name, [site.seed_url], processes=2, delay_ms=50) as run:
            await run.all_ready()
            await run.frontier.control(paused=1)
            await until(lambda: not any(child.busy for child in run.workers()), "the slots to be empty")
            await assert_idle(server, run)
            assert run.is_running


async def test_worker_that_waits_for_a_far_off_host_sends_few_commands(crawl_name: str) -> None:
    answers = {"/": html("/1", status=403, Retry_After="3600"), "/1": html()}
    async with Talker(answers) as talker:
        with RedisServer() as server:
            async with crawling(server.url, crawl_name, [talker.origin], processes=2) as run:
                await run.all_ready()
                await until(lambda: len(talker.requests) == 1, "the refusal")
                await until(lambda: not any(child.busy for child in run.workers()), "the slots to be empty")
                await assert_idle(server, run)
                assert run.is_running


# -- the end


@pytest.mark.parametrize("processes", [1, 3])
async def test_crawl_returns_within_two_seconds_of_its_last_page(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, processes: int
) -> None:
    with SiteProcess(SiteSpec(hosts=3, pages_per_host=50)) as site:
        async with crawling(
            redis_server.url, crawl_name, [site.seed_url], output=tmp_path / "pages.jsonl", processes=processes
        ) as run:
            await run.all_ready()
            assert await run.word() == "ENDED"
            last_ms = max(request.end_ms for request in site.requests())
            print(f"returned {run.returned_ms - last_ms:.0f} ms after the last page")
            assert run.returned_ms - last_ms < 2000


async def test_processes_auto_are_as_many_as_there_are_cores_for(redis_server: RedisServer, crawl_name: str) -> None:
    cores, auto = usable_cores(), Given(None, "--processes")
    with SiteProcess(SiteSpec(pages_per_host=1000)) as site:
        async with crawling(redis_server.url, crawl_name, [site.seed_url], processes=auto, delay_ms=50) as run:
            await until(lambda: len(run.workers()) == cores, "a process for each core")
            assert len([child for child in run.supervisor.children if child.role == "fetch"]) == cores
            assert run.log[0] == f"processes auto: {cores}, for the {cores} cores that may be used"


# -- ended and killed workers


async def test_worker_that_gets_sigterm_finishes_what_it_has(redis_server: RedisServer, crawl_name: str) -> None:
    spec = SiteSpec(hosts=12, pages_per_host=8, links=6, latency_ms=300)
    with SiteProcess(spec) as site:
        seeds = [site.url(host, "/p/0") for host in range(1, 13)]
        async with crawling(redis_server.url, crawl_name, seeds, processes=2, concurrency=8) as run:
            await run.all_ready()
            for _ in range(3):
                await until(lambda: any(child.busy >= 2 for child in run.workers()), "a busy worker")
                child = max(run.workers(), key=lambda child: child.busy)
                told_ms = monotonic_ms()
                os.kill(child.pid, signal.SIGTERM)
                await asyncio.wait_for(asyncio.shield(child.settled), 10)
                assert monotonic_ms() - told_ms < 5000, "the grace period"
                assert child.offspring is not None
                assert child.offspring.returncode == 0
                await run.all_ready()
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert totals["page.done"] == 12 * 8
            assert "page.crashed" not in totals
        asked = Counter((request.host, request.path) for request in site.requests())
        assert set(asked.values()) == {1}
        assert {request.status for request in site.requests()} == {200}


async def test_worker_whose_grace_runs_out_hands_its_fetches_back(redis_server: RedisServer, crawl_name: str) -> None:
    spec = SiteSpec(hosts=4, pages_per_host=3, links=4, latency_ms=1500)
    with SiteProcess(spec) as site:
        seeds = [site.url(host, "/p/0") for host in range(1, 5)]
        values: dict[str, Any] = {"processes": 2, "concurrency": 4, "grace_ms": 100, "delay_ms": 300}
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            await run.all_ready()
            await until(lambda: any(child.busy >= 1 for child in run.workers()), "a busy worker")
            # Until it has asked: a fetch that is broken off is what this is about.
            child = max(run.workers(), key=lambda child: child.busy)
            await until(lambda: any(held.begun_ms for held in child.board.held()), "a fetch")
            told_ms = monotonic_ms()
            os.kill(child.pid, signal.SIGTERM)
            await asyncio.wait_for(asyncio.shield(child.settled), 10)
            assert monotonic_ms() - told_ms < 1400, "it did not wait for its fetches"
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert totals["page.done"] == 12
            assert "page.crashed" not in totals
        broken_off = [request for request in site.requests() if request.status == 0]
        assert broken_off
        assert len(site.requests()) == 12 + len(broken_off)
        assert violations(site.requests(), cap=1, delay_ms=300) == []


async def test_tasks_of_a_killed_worker_run_again_within_a_second(redis_server: RedisServer, crawl_name: str) -> None:
    # Four in all: no more suspects may share a worker (slots.py), so that none has to wait for another one's end.
    spec = SiteSpec(hosts=4, pages_per_host=1, latency_ms=3000)
    with SiteProcess(spec) as site:
        seeds = [site.url(host, "/p/0") for host in range(1, 5)]
        async with crawling(redis_server.url, crawl_name, seeds, processes=2) as run:
            await until(lambda: sum(child.busy for child in run.workers()) == 4, "all pages to be under way")
            await run.all_ready()
            child = max(run.workers(), key=lambda child: child.busy)
            await until(lambda: all(held.begun_ms for held in child.board.held()), "its fetches")
            held = child.busy
            killed_ms = monotonic_ms()
            child.kill()
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert totals["page.crashed"] == held
            assert totals["page.done"] == 4
        answered = [request for request in site.requests() if request.status == 200]
        assert len(answered) == 4
        took_ms = max(request.start_ms for request in answered) - killed_ms
        print(f"running again after {took_ms:.0f} ms at most")
        assert took_ms < 1000
