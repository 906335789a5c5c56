"""Slow is not dead, hung is not alive (invariant 9): handlers that sleep, hold the GIL, hang, and kill their worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from streamcrawl.errors import ExitCode
from tests.chaos.crawl_process import IS_FULL, CrawlProcess, assert_at_rest, repeated
from tests.handlers import NEIGHBOURS, POISON, read_calls
from tests.site.server import SiteProcess, SiteSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

LEASE_S = 3 if IS_FULL else 1
SLOW_S = 20 if IS_FULL else 2 * LEASE_S


@pytest.fixture(scope="module")
def site() -> Iterator[SiteProcess]:
    with SiteProcess(SiteSpec(pages_per_host=40)) as running:
        yield running


class Run:
    """One crawl of given pages with one handler, none of whose links are followed."""

    def __init__(
        self,
        handler: str,
        folder: Path,
        name: str,
        redis: RedisServer,
        urls: list[str],
        *,
        seconds: float = SLOW_S,
        **settings: object,
    ) -> None:
        self.journal = folder / "journal"
        self.crawl = CrawlProcess(
            name,
            folder,
            urls,
            redis_url=redis.url,
            settings={
                "handler": f"tests.handlers:{handler}",
                "lease": f"{LEASE_S}s",
                "delay": 0,
                "host_concurrency": NEIGHBOURS + 1,
                "retry_base": "100ms",
                **settings,
            },
            environment={"TESTS_JOURNAL": str(self.journal), "TESTS_SECONDS": str(seconds)},
        )

    def calls(self) -> Counter[str]:
        return Counter(call.url for call in read_calls(self.journal))

    def output(self) -> list[str]:
        return sorted(record["url"] for record in self.crawl.records())


@pytest.mark.parametrize("handler", ["sleeps", "holds_the_gil"])
async def test_slow_handler_keeps_its_lease(
    handler: str, site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    url = site.url(1, f"/p/0?{crawl_name}")
    # The second process would take over what the first one lost.
    run = Run(handler, tmp_path, crawl_name, redis_server, [url], processes=2)
    with run.crawl as crawl:
        crawl.start()
        # The GIL is held in several runs, of which the last is long enough.
        assert await crawl.wait(75 + 5 * SLOW_S) == ExitCode.DONE, crawl.log
        assert run.calls() == {url: 1}
        assert run.output() == [url]
        assert all(record.get("held_s", SLOW_S) >= SLOW_S for record in crawl.records())
        assert [path for path in repeated(site.requests()) if crawl_name in path] == []
        totals = await crawl.totals()
        assert [name for name in totals if name.endswith(("crashed", "lease_lost", "reclaimed"))] == []
        await assert_at_rest(crawl)


async def test_hung_handler_is_ended_retried_and_dead_with_its_stack(
    site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    url = site.url(1, f"/p/1?{crawl_name}")
    run = Run("never_ends", tmp_path, crawl_name, redis_server, [url], handler_timeout="500ms", attempts_max=3)
    with run.crawl as crawl:
        crawl.start()
        assert await crawl.wait(30) == ExitCode.WITH_DEAD_LETTERS, crawl.log
        assert run.calls() == {url: 3}
        [letter] = await crawl.dead_letters()
        assert (letter.url, letter.reason) == (url, "handler")
        assert "never_ends" in letter.error
        assert "create_future()" in letter.error
        assert crawl.children("fetch", "sink", "nursery") == []
        await assert_at_rest(crawl)


async def test_thread_that_hangs_ends_with_its_process_and_holds_nobody_up(
    site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    stuck = [site.url(1, f"/p/2?{crawl_name}-{number}") for number in (1, 2, 3)]
    innocents = sorted(site.url(1, f"/p/3?{crawl_name}-{number}") for number in (1, 2, 3))
    limits = {"handler_timeout": "500ms", "attempts_max": 4, "grace": "30s"}
    run = Run("sleeps_at_2", tmp_path, crawl_name, redis_server, [*stuck, *innocents], seconds=600, **limits)
    with run.crawl as crawl:
        crawl.start()
        # Sooner than the grace period: nothing waits for the threads at the end.
        assert await crawl.wait(25) == ExitCode.WITH_DEAD_LETTERS, crawl.log
        letters = await crawl.dead_letters()
        assert sorted((letter.url, letter.reason) for letter in letters) == [(url, "handler") for url in sorted(stuck)]
        assert all("time.sleep" in letter.error for letter in letters)
        assert run.output() == innocents
        pids = {call.pid for call in read_calls(run.journal) if "/p/2?" in call.url}
        assert len(pids) > 1
        totals = await crawl.totals()
        assert [name for name in totals if name.endswith("crashed")] == []
        await assert_at_rest(crawl)


async def test_stuck_process_is_killed_until_its_task_is_dead(
    site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    stuck, innocent = (site.url(1, f"/p/{page}?{crawl_name}") for page in (2, 3))
    limits = {"handler_timeout": "500ms", "timeout": "500ms", "crashes_max": 1}
    run = Run("holds_the_gil_at_2", tmp_path, crawl_name, redis_server, [stuck, innocent], seconds=600, **limits)
    with run.crawl as crawl:
        crawl.start()
        assert await crawl.wait(60) == ExitCode.WITH_DEAD_LETTERS, crawl.log
        [letter] = await crawl.dead_letters()
        assert (letter.url, letter.reason) == (stuck, "crashed")
        # Twice a suspect, then alone, as often as crashes_max says.
        assert run.calls()[stuck] == 2 + 1
        assert run.output() == [innocent]
        await assert_at_rest(crawl)


async def test_stuck_process_ends_although_its_crawl_was_killed(
    site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    url = site.url(1, f"/p/2?{crawl_name}")
    limits = {"handler_timeout": "500ms", "timeout": "500ms"}
    run = Run("holds_the_gil_at_2", tmp_path, crawl_name, redis_server, [url], seconds=600, **limits)
    with run.crawl as crawl:
        crawl.start()
        await crawl.until(run.calls, "the handler to be called")
        workers = crawl.children("fetch")
        crawl.kill9()
        # Nobody kills them now, and they do not hear that their control line has ended.
        async with asyncio.timeout(60):
            while any(map(is_alive, workers)):  # noqa: ASYNC110 - another process is waited for
                await asyncio.sleep(0.1)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_poisonous_task_dies_alone(
    site: SiteProcess, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    poison = site.url(1, f"/p/0?{crawl_name}-{POISON}")
    innocents = sorted(site.url(1, f"/p/{number}?{crawl_name}") for number in range(1, NEIGHBOURS + 1))
    run = Run("kills_its_worker", tmp_path, crawl_name, redis_server, [poison, *innocents], crashes_max=3)
    with run.crawl as crawl:
        crawl.start()
        assert await crawl.wait(60) == ExitCode.WITH_DEAD_LETTERS, crawl.log
        letters: list[Any] = await crawl.dead_letters()
        assert [(letter.url, letter.reason) for letter in letters] == [(poison, "crashed")]
        assert run.output() == innocents
        # Twice with others in hand, then as often alone as it takes.
        assert run.calls()[poison] == 2 + 3
        await assert_at_rest(crawl)
