"""Limits as a person gives them: the crawl stops at them with exit code 3, and goes on when they are raised."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import redis

from streamcrawl.cli.store import MEMORY_DEFAULT_BYTES
from streamcrawl.errors import ExitCode
from streamcrawl.store.embedded import EmbeddedRedis
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from tests.e2e.command import Command, Running

WIDE: Final = SiteSpec(hosts=4, pages_per_host=1_000_000, links=200)
"""Nearly every link of a page is new: 200 for each that is fetched."""
MEMORY_BYTES: Final = 16_000_000
OVERSHOOT_BYTES: Final = 64 * 250 * 250
"""As ARCHITECTURE.md states it: slots, links of one commit, bytes of a queued URL."""
_POLL_S: Final = 0.05


def highest_memory(command: Command, running: Running) -> int:
    """Return the most that the embedded server has used until the command ended, as the server itself says."""
    url = EmbeddedRedis(command.folder / ".streamcrawl" / "127.0.0.1", memory_max_bytes=0).url
    most = 0
    with redis.Redis.from_url(url) as client:
        while running.process.poll() is None:
            with suppress(redis.RedisError):  # not there yet, or not any more
                most = max(most, int(client.info("memory")["used_memory_peak"]))
            time.sleep(_POLL_S)
    return most


def test_memory_limit_stops_a_wide_crawl_and_a_higher_one_lets_it_go_on(command: Command) -> None:
    with SiteProcess(WIDE) as site:
        arguments = ["crawl", site.seed_url, "--scope", "any", "--host-concurrency", "8"]
        with command.start(*arguments, "--memory-max", f"{MEMORY_BYTES}B") as running:
            most = highest_memory(command, running)
            first = running.wait()
        assert first.code == ExitCode.STOPPED, first.err
        assert "nothing new is dispatched; raise --memory-max" in first.err
        assert "crawl 127.0.0.1: stopped: Redis reached its memory mark; raise --memory-max" in first.out
        print(f"memory: limit {MEMORY_BYTES}, highest {most}")
        assert 0.8 * MEMORY_BYTES < most < MEMORY_BYTES + OVERSHOOT_BYTES
        done = command.lines()
        assert done > 0
        # The figures hold, and with the same limit it stops again.
        assert command.run("audit", "127.0.0.1").code == ExitCode.DONE
        again = command.run(*arguments, "--memory-max", f"{MEMORY_BYTES}B")
        assert again.code == ExitCode.STOPPED
        # As many pages more as the higher limit has room for: the budget is what ends it.
        budget = command.lines() + 100
        raised = command.run("crawl", "--resume", "--memory-max", "200MB", "--max-pages", str(budget))
        assert raised.code == ExitCode.STOPPED
        assert "crawl 127.0.0.1: stopped at --max-pages" in raised.out
        assert command.lines() == budget
        assert len(command.pages()) == budget


def test_server_of_a_crawl_follows_the_limit_that_is_set_while_it_runs(command: Command) -> None:
    url = EmbeddedRedis(command.folder / ".streamcrawl" / "127.0.0.1", memory_max_bytes=0).url
    with SiteProcess(WIDE) as site, command.start("crawl", site.seed_url, "--delay", "0.5s") as running:
        running.until(command.lines, "the first page is written")
        with redis.Redis.from_url(url) as client:
            for text, limit in (("50MB", 50_000_000), ("2GB", 2_000_000_000), ("", MEMORY_DEFAULT_BYTES)):
                assert command.run("settings", "set", "127.0.0.1", f"memory_max={text}").code == ExitCode.DONE
                running.until(lambda limit=limit: int(client.config_get("maxmemory")["maxmemory"]) == limit, text)  # type: ignore[misc]
        running.interrupt()
        assert running.wait().code == ExitCode.STOPPED


def test_frontier_limit_stops_a_wide_crawl_and_a_higher_one_lets_it_go_on(command: Command) -> None:
    with SiteProcess(WIDE) as site:
        first = command.run("crawl", site.seed_url, "--scope", "any", "--frontier-max", "2000")
        assert first.code == ExitCode.STOPPED
        assert "raise --frontier-max" in first.out
        done = command.lines()
        raised = command.run("crawl", "--resume", "--frontier-max", "5000")
        assert raised.code == ExitCode.STOPPED
        assert command.lines() > done
        assert len(command.pages()) == command.lines()


def test_page_budget_is_exact_in_the_log_of_the_web_server(command: Command) -> None:
    budget = 500
    spec = SiteSpec(hosts=20, pages_per_host=40, links=10, flaky=0.2, redirect_within=0.1, redirect_across=0.1)
    with SiteProcess(spec) as site:
        result = command.run(
            "crawl", site.seed_url, "--scope", "any", "--max-pages", str(budget), "--processes", "4",
            STREAMCRAWL_RETRY_BASE="50ms", STREAMCRAWL_DELAY_MAX="0",
        )  # fmt: skip
        assert result.code == ExitCode.STOPPED, result.err
        assert len(command.records()) == budget
        answered = [
            (request.host, request.path)
            for request in site.requests()
            if request.status == 200 and re.match(r"/p/\d+$", request.path)
        ]
        assert len(answered) == budget
        assert len(set(answered)) == budget
