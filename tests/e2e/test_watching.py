"""`streamcrawl status --watch`: look after look, through an outage of Redis, until Ctrl-C or the end of the crawl."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.shards import delete_crawl, open_crawl
from tests.e2e.command import PROGRAM
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from tests.e2e.command import Command, Running
    from tests.site.server import SiteProcess

QUICK = ("--interval", "100ms")


def in_redis(url: str, act: Callable[[Redis], Awaitable[Any]]) -> None:
    async def run() -> None:
        client = connect(url)
        try:
            await act(client)
        finally:
            await client.aclose()

    asyncio.run(run())


@pytest.fixture
def crawl(redis_server: RedisServer, crawl_name: str) -> str:
    """A crawl without workers."""
    in_redis(redis_server.url, lambda client: open_crawl(client, make_settings(name=crawl_name)))
    return crawl_name


def documents(running: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.out.splitlines()]


def test_blocks_follow_each_other_until_the_crawl_is_deleted(
    command: Command, redis_server: RedisServer, crawl: str
) -> None:
    with command.start("status", crawl, "--watch", *QUICK, "--redis", redis_server.url) as watching:
        watching.until(lambda: watching.out.count("pages done") >= 3, "three looks")
        assert "\x1b" not in watching.out
        assert re.match(rf"\d\d:\d\d:\d\d crawl {crawl}: nothing to do", watching.out)
        in_redis(redis_server.url, lambda client: delete_crawl(client, crawl))
        result = watching.wait()
    assert (result.code, result.err) == (ExitCode.DONE, "")
    assert result.out.endswith(f"crawl {crawl} was deleted\n")


def test_outage_of_redis_is_shown_and_survived(command: Command, crawl_name: str) -> None:
    with RedisServer(options=DURABLE | {"appendfsync": "always"}) as server:
        in_redis(server.url, lambda client: open_crawl(client, make_settings(name=crawl_name)))
        with command.start("status", crawl_name, "--watch", *QUICK, "--json", "--redis", server.url) as watching:

            def has(event: str) -> bool:
                return documents(watching)[-1:] != [] and documents(watching)[-1]["event"] == event

            watching.until(lambda: has("status"), "a look")
            server.kill9()
            watching.until(lambda: has("outage"), "the outage")
            first = next(one for one in documents(watching) if one["event"] == "outage")
            assert first["for_ms"] < 1000
            watching.until(lambda: documents(watching)[-1].get("for_ms", 0) > first["for_ms"], "its going on")
            server.start()
            watching.until(lambda: has("status"), "a look again")
            watching.interrupt()
            assert watching.wait().code == ExitCode.DONE


def test_watch_on_a_terminal_paints_one_place_until_ctrl_c(
    command: Command, redis_server: RedisServer, crawl: str
) -> None:
    screen, terminal = pty.openpty()
    shown = bytearray()

    def read() -> None:
        try:
            while block := os.read(screen, 65_536):
                shown.extend(block)
        except OSError:  # the last process has closed the terminal
            pass

    reading = threading.Thread(target=read)
    reading.start()
    process = subprocess.Popen(
        [PROGRAM, "status", crawl, "--watch", *QUICK, "--redis", redis_server.url],
        cwd=command.folder,
        env={**command.environment({}), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    try:
        wait_for(lambda: shown.count(b"pages done") >= 3, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
        reading.join()
        os.close(screen)
    assert (process.returncode, err) == (ExitCode.DONE, b"")
    assert b"\x1b[1A" in shown  # back up, over what was painted before
    assert b"\x1b[?1049h" not in shown  # not on the other screen: what was seen last stays
    assert shown.rstrip().endswith(b"\x1b[?25h")  # the cursor is there again


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], within_s: float = 20) -> None:
    deadline = threading.Event()
    timer = threading.Timer(within_s, deadline.set)
    timer.start()
    try:
        while not condition():
            assert process.poll() is None
            assert not deadline.wait(0.02), "the looks did not come"
    finally:
        timer.cancel()


def test_watch_ends_when_nobody_reads_it(command: Command, redis_server: RedisServer, crawl: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [PROGRAM, "status", crawl, "--watch", *QUICK, "--redis", redis_server.url],
        cwd=command.folder,
        env=command.environment({}),
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=20,
        check=False,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (ExitCode.DONE, b"")


def test_watch_of_a_private_redis_ends_with_it(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url, "--quiet") as crawling:
        crawling.until(command.lines, "pages")
        with command.start("status", "127.0.0.1", "--watch", *QUICK, "--json") as watching:
            watching.until(lambda: documents(watching), "a look")
            assert crawling.wait().code == ExitCode.DONE
            result = watching.wait()
    assert result.code == ExitCode.DONE
    looks = [json.loads(line) for line in result.out.splitlines()]
    assert looks[-1] == {"event": "stopped", "name": "127.0.0.1"}
    assert looks[0]["workers"][0]["slots"] > 0
    # At rest there is nothing to watch, and its server must not be held.
    result = command.run("status", "127.0.0.1", "--watch")
    assert result.code == ExitCode.DONE
    assert result.out.count("pages done") == 1
    assert result.out.endswith("crawl 127.0.0.1 is not running: there is nothing to watch\n")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--watch"], "say which crawl to watch: streamcrawl status NAME --watch"),
        (["x", "--watch", "--interval", "10ms"], "--interval 10ms is too short; give 100ms or more"),
        (["x", "--watch"], "there is no crawl 'x' in .streamcrawl"),
    ],
)
def test_watch_that_cannot_be_is_refused(command: Command, arguments: list[str], error: str) -> None:
    result = command.run("status", *arguments)
    assert result.code == ExitCode.USAGE
    assert error in result.err
