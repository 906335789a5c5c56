"""Seeds: read from arguments and files, bad ones named, offered in bounded memory through whatever the store does."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import LINKS_PER_CALL
from streamcrawl.store.shards import Shards
from streamcrawl.work.seeds import LINE_MAX_BYTES, SeedLine, SeedLoop, argument_lines, read_lines, seed_url
from tests.integration.snapshot import Lab, fast, wait_until
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import OpenLab


def seed_loop(lab: Lab, sources: Iterator[SeedLine], log: list[str]) -> SeedLoop:
    return SeedLoop(Shards([lab.frontier]), sources, make_settings(name="any"), log.append)


def numbered(count: int) -> Iterator[SeedLine]:
    for number in range(count):
        yield SeedLine("many", number + 1, f"http://h{number}.example/")


async def is_closed(lab: Lab) -> bool:
    value: object = await lab.client.hget(lab.keys.state, "closed")
    return value == b"1"


@pytest.mark.parametrize(
    ("text", "url", "is_completed"),
    [
        ("https://example.org", "https://example.org/", False),
        ("HTTP://Example.org/a b#c", "http://example.org/a%20b", False),
        ("example.org", "https://example.org/", True),
        ("example.org:8443/a?b", "https://example.org:8443/a?b", True),
        ("localhost:8000/x", "http://localhost:8000/x", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/", True),
        ("htp:/x", None, False),
        ("ftp://example.org/", None, False),
        ("mailto:a@example.org", None, False),
        ("a@example.org", None, False),
        ("word", None, False),
        ("foo bar", None, False),
        ("/path", None, False),
        ("example.org:port", None, False),
        ("", None, False),
    ],
)
def test_what_a_seed_means(text: str, url: str | None, is_completed: bool) -> None:
    assert seed_url(text) == (url, is_completed)


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    long = "x" * (3 * LINE_MAX_BYTES)
    path.write_bytes(
        b"\xef\xbb\xbfhttp://a/\r\n\n  # comment\n\t http://b/ \n\xff\n" + long.encode() + b"\nhttp://c/ # no comment"
    )
    lines = list(read_lines(str(path)))
    assert [(line.number, line.text) for line in lines if line.number != 6] == [
        (1, "http://a/"), (4, "http://b/"), (5, "\\xff"), (7, "http://c/ # no comment"),
    ]  # fmt: skip
    (cut,) = (line.text for line in lines if line.number == 6)
    assert LINE_MAX_BYTES < len(cut) < len(long)
    assert lines[0].place == f"{path}:1: "


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        list(read_lines(str(tmp_path / "none")))


async def test_bad_lines_are_named_and_the_rest_accepted(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text(f"http://a/\nhtp:/x\n\n# fine\nhttp://b/\nhttp://a/\nhttp://c/{'x' * 2100}\n")
    log: list[str] = []
    loop = seed_loop(lab, read_lines(str(path)), log)
    await loop.run(asyncio.Event())
    assert log[0] == f"{path}:2: 'htp:/x' is not an http(s) URL"
    assert log[1].startswith(f"{path}:7: 'http://c/xxx")
    assert log[1].endswith("is longer than 2083 bytes")
    assert len(log) == 2
    assert (loop.accepted, loop.new, loop.refused) == (3, 2, 2)
    assert await is_closed(lab)
    assert (await lab.totals())["page.queued"] == 2


async def test_many_bad_lines_are_counted_and_not_all_named(lab: Lab) -> None:
    log: list[str] = []
    loop = seed_loop(lab, (SeedLine("f", n, "bad line") for n in range(1, 5001)), log)
    await loop.run(asyncio.Event())
    assert loop.refused == 5000
    assert len(log) == 21
    assert "5000 lines in all" in log[-1]


async def test_argument_without_scheme_gets_one_with_a_word(lab: Lab) -> None:
    log: list[str] = []
    await seed_loop(lab, argument_lines(["example.org/a"]), log).run(asyncio.Event())
    assert log == ["example.org/a: taken as https://example.org/a"]


async def test_seeds_wait_while_the_frontier_is_full_and_are_read_no_further(open_lab: OpenLab) -> None:
    lab = await open_lab(frontier_max=600)
    taken = 0

    def counted() -> Iterator[SeedLine]:
        nonlocal taken
        for line in numbered(10_000):
            taken += 1
            yield line

    log: list[str] = []
    loop = seed_loop(lab, counted(), log)
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run(stop))

    async def is_told() -> bool:
        return bool(log)

    await wait_until(is_told, "the frontier to be full")
    assert log == ["seeds: the frontier is full; the rest waits until it has drained"]
    assert loop.new == 3 * LINKS_PER_CALL
    assert taken <= 6 * LINKS_PER_CALL
    await lab.end_all(await lab.take(count=1000))
    await lab.end_all(await lab.take(count=1000))

    async def is_further() -> bool:
        return loop.new > 3 * LINKS_PER_CALL

    await wait_until(is_further, "room for more seeds")
    stop.set()
    await running
    assert not await is_closed(lab)  # the rest is for the next run


async def test_stop_ends_the_loop_while_a_source_has_nothing_to_say(lab: Lab) -> None:
    reading_end, writing_end = os.pipe()
    saved = os.dup(0)
    os.dup2(reading_end, 0)
    os.close(reading_end)
    try:
        os.write(writing_end, b"http://a/\n" * LINKS_PER_CALL + b"http://b/\n")
        loop = seed_loop(lab, read_lines("-"), [])
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))

        async def is_begun() -> bool:
            return loop.new == 1

        await wait_until(is_begun, "the first chunk of standard input")
        stop.set()
        async with asyncio.timeout(10):
            await running
        assert not await is_closed(lab)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(writing_end)


async def test_crawl_is_closed_by_the_last_of_those_that_offer_seeds(lab: Lab) -> None:
    more = threading.Event()

    def slow() -> Iterator[SeedLine]:
        yield from numbered(10)
        more.wait(30)
        yield from numbered(20)

    slow_loop, quick_loop = seed_loop(lab, slow(), []), seed_loop(lab, numbered(5), [])
    try:
        await slow_loop.begin()
        running = asyncio.create_task(slow_loop.run(asyncio.Event()))
        await quick_loop.begin()
        await quick_loop.run(asyncio.Event())
        assert not await is_closed(lab)
    finally:
        more.set()
    await running
    assert slow_loop.accepted == 30
    assert await is_closed(lab)


async def test_source_that_fails_midway_is_an_error(lab: Lab) -> None:
    def failing() -> Iterator[SeedLine]:
        yield from numbered(10)
        raise ConfigError("gone")

    with pytest.raises(ConfigError, match="gone"):
        await seed_loop(lab, failing(), []).run(asyncio.Event())
    assert not await is_closed(lab)


async def test_store_that_is_away_is_waited_for(crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            server.kill9()
            log: list[str] = []
            loop = seed_loop(lab, numbered(1000), log)
            running = asyncio.create_task(loop.run(asyncio.Event()))

            async def is_told() -> bool:
                return bool(log)

            await wait_until(is_told, "the loop to notice")
            await asyncio.to_thread(server.start)
            await running
            assert loop.new == 1000
            assert await is_closed(lab)
            await lab.check()
        finally:
            await client.aclose()


async def test_full_memory_is_waited_for(crawl_name: str) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            await client.config_set("maxmemory", 1)
            log: list[str] = []
            running = asyncio.create_task(seed_loop(lab, numbered(10), log).run(asyncio.Event()))

            async def is_told() -> bool:
                return any("is full" in line for line in log)

            await wait_until(is_told, "the loop to meet the limit")
            await client.config_set("maxmemory", 0)
            await running
            assert (await lab.totals())["page.queued"] == 10
        finally:
            await client.aclose()
