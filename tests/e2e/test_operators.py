"""Operators' commands beside a real crawl, and what Ctrl-C does to them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from streamcrawl.errors import ExitCode
from streamcrawl.store.connection import connect
from tests.integration.operated import Operated
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from tests.e2e.command import Command
    from tests.redis_server import RedisServer


def test_dead_letters_of_a_crawl_are_sent_again_and_removed(command: Command) -> None:
    def letters() -> list[dict[str, Any]]:
        result = command.run("dead", "ls", "127.0.0.1", "--json")
        assert result.code == ExitCode.DONE, result.err
        return [json.loads(line) for line in result.out.splitlines()]

    with SiteProcess(SiteSpec(hosts=2, pages_per_host=5, refusing_hosts=(2,))) as site:
        down = site.url(2, "")
        # What is refused is tried again, by every command below.
        quick = {"STREAMCRAWL_RETRY_BASE": "50ms", "STREAMCRAWL_DELAY_MAX": "0"}
        first = command.run("crawl", site.seed_url, "--scope", "any", "--host-give-up", "100ms", **quick)
        assert first.code == ExitCode.WITH_DEAD_LETTERS, first.err
        dead = letters()
        assert {letter["host"] for letter in dead} == {down}
        replayed = command.run("dead", "replay", "127.0.0.1", "--host", down, "--json")
        said = json.loads(replayed.out)
        assert said["queued"] + said["asked"] == len(dead)
        assert replayed.err == ("no worker is alive; to have it done: streamcrawl crawl --resume --name 127.0.0.1\n")
        again = command.run("crawl", "--resume", "--host-give-up", "100ms")
        assert again.code == ExitCode.WITH_DEAD_LETTERS, again.err
        assert command.pages() == {url for url in site.expected_pages() if not url.startswith(down)}
        count = len(letters())
        assert command.run("dead", "purge", "127.0.0.1", "--all").out == f"{count} removed for good\n"
        # The host is given up all the same: what else leads to it would be buried too.
        assert command.run("crawl", "--resume").code == ExitCode.WITH_DEAD_LETTERS
        assert command.run("host", "set", "127.0.0.1", down, "--retry").code == ExitCode.DONE
        assert command.run("crawl", "--resume").code == ExitCode.DONE


def test_pattern_that_never_ends_is_stopped_by_ctrl_c(
    command: Command, redis_server: RedisServer, crawl_name: str
) -> None:
    async def fill() -> None:
        client = connect(redis_server.url)
        operated = await Operated.opened(client, crawl_name)
        await operated.offer([f"http://a.test/{'a' * 60}!{n}" for n in range(3)])
        await client.aclose()

    async def windows_read() -> int:
        client = connect(redis_server.url)
        stats: Any = await client.info("commandstats")
        await client.aclose()
        return int(stats.get("cmdstat_lrange", {}).get("calls", 0))

    asyncio.run(fill())
    before = asyncio.run(windows_read())
    with command.start("queue", "purge", crawl_name, "--redis", redis_server.url, "--match", r"/(a+)+$") as running:
        running.until(lambda: asyncio.run(windows_read()) > before, "the first window to be read")
        running.interrupt()
        running.until(lambda: "once more to stop at once" in running.err, "the first Ctrl-C to be heard")
        running.interrupt()
        result = running.wait()
    assert result.code == ExitCode.STOPPED
    assert result.err.endswith("\nstreamcrawl: interrupted\n")
