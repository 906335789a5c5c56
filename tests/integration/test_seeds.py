"""Seeds: read from arguments and files, bad ones named, offered in bounded memory through whatever the store does."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamcrawl.errors import ConfigError, CrawlGone
from streamcrawl.rules.task import Kind
from streamcrawl.rules.urls import fingerprint
from streamcrawl.settings import make_settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import LINKS_PER_CALL
from streamcrawl.store.shards import Shards, delete_crawl, open_crawl
from streamcrawl.work.seeds import (
    CALLS_AT_A_TIME,
    LINE_MAX_BYTES,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Cursor,
    SeedLines,
    SeedLoop,
    canonical_seed,
    feeder_name,
    seed_url,
)
from tests.integration.snapshot import Lab, assert_accounts, fast, wait_until
from tests.redis_server import DURABLE, RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.integration.conftest import OpenLab

BLOCK: Final = 65_536
"""What is read at a time."""


def seed_loop(lab: Lab, seeds: SeedLines, log: list[str] | None = None, *, feeder: str = "") -> SeedLoop:
    told = [] if log is None else log
    return SeedLoop(Shards([lab.frontier]), seeds, make_settings(name="any"), told.append, feeder=feeder)


def numbered(count: int, *, start: int = 0) -> list[str]:
    """Return different URLs on at most 200 hosts, some 500 to a block."""
    return [f"http://h{number % 200}.example/{number:0100}" for number in range(start, start + count)]


def written(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


async def is_closed(lab: Lab) -> bool:
    value: object = await lab.client.hget(lab.keys.state, "closed")
    return value == b"1"


async def all_of(seeds: SeedLines) -> list[tuple[int, str]]:
    found = []
    while (batch := await seeds.next()) is not None:
        found += [(line.number, line.text) for line in batch.seed_lines()]
    return found


@asynccontextmanager
async def running(loop: SeedLoop) -> AsyncIterator[asyncio.Event]:
    """Run the loop meanwhile; afterwards it is stopped and must have ended in order."""
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


async def until(is_true: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return is_true()

    await wait_until(holds, what)


@contextmanager
def standard_input() -> Iterator[int]:
    """Put a pipe in the place of standard input; yields the end to write to."""
    reading_end, writing_end = os.pipe()
    saved = os.dup(0)
    os.dup2(reading_end, 0)
    os.close(reading_end)
    try:
        yield writing_end
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(writing_end)


# -- reading


@pytest.mark.parametrize(
    ("text", "url", "is_completed"),
    [
        ("https://example.org", "https://example.org/", False),
        ("HTTP://Example.org/a b#c", "http://example.org/a%20b", False),
        ("example.org", "https://example.org/", True),
        ("example.org:8443/a?b", "https://example.org:8443/a?b", True),
        ("localhost:8000/x", "http://localhost:8000/x", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/", True),
        ("Sitemap: https://example.org/a.xml", "https://example.org/a.xml", False),
        ("sitemap:example.org/a.xml", "https://example.org/a.xml", True),
        ("sitemap: /path", None, False),
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


async def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    long = "x" * (3 * LINE_MAX_BYTES)
    path.write_bytes(
        b"\xef\xbb\xbfhttp://a/\r\n\n  # comment\n\t http://b/ \n\xff\n" + long.encode() + b"\nhttp://c/ # no comment"
    )
    lines = await all_of(SeedLines(["http://argument/"], str(path)))
    assert [line for line in lines if line[0] != 6] == [
        (0, "http://argument/"), (1, "http://a/"), (4, "http://b/"), (5, "\\xff"), (7, "http://c/ # no comment"),
    ]  # fmt: skip
    (cut,) = (text for number, text in lines if number == 6)
    assert LINE_MAX_BYTES < len(cut) < len(long)


@pytest.mark.parametrize("kind", ["none", "folder"])
async def test_file_that_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind if kind == "none" else tmp_path
    with pytest.raises(ConfigError, match=f"seeds: {path} cannot be read: "):
        await SeedLines([], str(path)).next()


async def test_nothing_at_all(lab: Lab, tmp_path: Path) -> None:
    assert await all_of(SeedLines()) == []
    loop = seed_loop(lab, SeedLines([], written(tmp_path / "empty", [])))
    await loop.run(asyncio.Event())
    assert (loop.new, loop.known, loop.refused) == (0, 0, 0)
    assert await is_closed(lab)


async def test_looking_ahead_takes_nothing_away(tmp_path: Path) -> None:
    path = written(tmp_path / "seeds", ["", *numbered(10_000)])
    seeds = SeedLines(["http://argument/"], path)
    head = await seeds.peek(6000)
    assert (len(head), head[0].place, head[1].place) == (6000, "", f"{path}:2: ")
    assert await seeds.peek(3) == head[:3]
    assert [text for _, text in await all_of(seeds)] == ["http://argument/", *numbered(10_000)]


async def test_looking_ahead_is_over_when_a_pipe_falls_silent() -> None:
    with standard_input() as pipe:
        seeds = SeedLines([], "-")
        os.write(pipe, b"http://a/\nhttp://b/\nhttp:")
        assert [line.text for line in await seeds.peek(100, pause_s=0.05)] == ["http://a/", "http://b/"]
        assert [line.place for line in await seeds.peek(1)] == ["stdin:1: "]
        os.write(pipe, b"//c/\n")
        assert [line.text for line in await seeds.peek(3)] == ["http://a/", "http://b/", "http://c/"]


# -- offering


async def test_bad_lines_are_named_and_the_rest_accepted(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text(f"http://a/\nhtp:/x\n\n# fine\nhttp://b/\nhttp://a/\nhttp://c/{'x' * 2100}\n")
    log: list[str] = []
    loop = seed_loop(lab, SeedLines([], str(path)), log)
    await loop.run(asyncio.Event())
    assert log[0] == f"{path}:2: 'htp:/x' is not an http(s) URL"
    assert log[1].startswith(f"{path}:7: 'http://c/xxx")
    assert log[1].endswith("is longer than 2083 bytes")
    assert len(log) == 2
    assert (loop.new, loop.known, loop.refused) == (2, 1, 2)
    assert await is_closed(lab)
    assert (await lab.totals())["page.queued"] == 2


async def test_line_of_a_file_may_name_a_sitemap(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    path.write_text("http://a/map\nSitemap: http://a/map\nsitemap:http://a/map\nSITEMAP: no\n")
    log: list[str] = []
    loop = seed_loop(lab, SeedLines(["Sitemap: http://u:p@b/map?utm_source=1"], str(path)), log)
    await loop.run(asyncio.Event())
    assert log == [f"{path}:4: 'SITEMAP: no' is not an http(s) URL"]
    assert (loop.new, loop.known, loop.refused) == (3, 1, 1)
    totals = await lab.totals()
    assert (totals["page.queued"], totals["sitemap.queued"], totals["seed.created"]) == (1, 2, 1)
    found = [task for held in await lab.take() for task in [held.task] if task.kind is Kind.SITEMAP]
    assert {task.url for task in found} <= {"http://a/map", "http://b/map?utm_source=1"}
    assert canonical_seed("sitemap:  http://u:p@b/x") == "Sitemap: http://b/x"
    assert canonical_seed("http://u:p@b/x") == "http://b/x"
    assert canonical_seed("no url") == "no url"


async def test_many_bad_lines_are_counted_and_not_all_named(lab: Lab, tmp_path: Path) -> None:
    log: list[str] = []
    loop = seed_loop(lab, SeedLines([], written(tmp_path / "bad", ["bad line"] * 5000)), log)
    await loop.run(asyncio.Event())
    assert loop.refused == 5000
    assert len(log) == 21
    assert "5,000 lines in all" in log[-1]


async def test_argument_without_scheme_gets_one_with_a_word(lab: Lab) -> None:
    log: list[str] = []
    await seed_loop(lab, SeedLines(["example.org/a"]), log).run(asyncio.Event())
    assert log == ["example.org/a: taken as https://example.org/a"]


async def test_what_a_pipe_brings_is_offered_when_it_comes(lab: Lab) -> None:
    with standard_input() as pipe:
        loop = seed_loop(lab, SeedLines([], "-"))
        async with running(loop):
            for count in (1, 2, 3):
                os.write(pipe, f"http://h{count}.example/\n".encode())
                await until(lambda count=count: loop.new == count, f"seed {count} of standard input")  # type: ignore[misc]
        assert not await is_closed(lab)  # stopped while the source had nothing to say


@pytest.mark.parametrize(
    ("setting", "word"),
    [("frontier_max", "the frontier is full with "), ("seeds_waiting_max", " seeds are not ended yet")],
)
async def test_seeds_wait_at_a_bound_and_are_read_no_further(
    setting: str, word: str, open_lab: OpenLab, tmp_path: Path
) -> None:
    lab = await open_lab(**{setting: 600})
    seeds = SeedLines([], written(tmp_path / "seeds", numbered(10_000)))
    log: list[str] = []
    loop = seed_loop(lab, seeds, log, feeder="me")
    async with running(loop):
        await until(lambda: loop.new >= 600 and word in loop.waiting, "the crawl to have enough")
        enough = loop.new
        assert enough < 600 + LINKS_PER_CALL
        assert loop.read < 2500

        async def is_further() -> bool:
            await lab.end_all(await lab.take(count=1000))
            return loop.new > enough

        await wait_until(is_further, "more seeds once there is room")
    assert len(log) == 1, "said once, however often it waits"
    assert word in log[0]
    assert not await is_closed(lab)  # the rest is for the next run


async def test_seeds_come_more_slowly_when_the_crawl_has_nearly_enough_and_faster_again(
    open_lab: OpenLab, tmp_path: Path
) -> None:
    lab = await open_lab(seeds_waiting_max=20_000)
    loop = seed_loop(lab, SeedLines([], written(tmp_path / "seeds", numbered(18_000))), feeder="me")
    assert loop.pause_s == 0
    await loop.run(asyncio.Event())
    assert loop.new == 18_000
    # 250 in each of eight calls or so over 16,000; four are under way at a time.
    assert 2 * PAUSE_FIRST_S <= loop.pause_s <= PAUSE_MAX_S
    assert loop.waiting == "", "and none has to wait"
    await lab.frontier.control(seeds_max=1_000_000)  # there is room for many more
    lines = SeedLines([], written(tmp_path / "more", numbered(2000, start=20_000)))
    again = seed_loop(lab, lines, feeder="me")
    again.pause_s = PAUSE_MAX_S
    await again.run(asyncio.Event())
    assert again.new == 2000
    assert again.pause_s < PAUSE_MAX_S


async def test_crawl_is_closed_by_the_last_of_those_that_offer_seeds(lab: Lab) -> None:
    with standard_input() as pipe:
        slow, quick = seed_loop(lab, SeedLines([], "-")), seed_loop(lab, SeedLines(numbered(5)))
        await slow.begin()
        task = asyncio.create_task(slow.run(asyncio.Event()))
        await quick.begin()
        await quick.run(asyncio.Event())
        assert quick.feeders_left == 1
        assert not await is_closed(lab)
        os.write(pipe, "\n".join(numbered(30)).encode())
    await task
    assert (slow.new, slow.known) == (25, 5)
    assert slow.feeders_left == 0
    assert await is_closed(lab)


async def test_guest_leaves_what_a_dead_feeder_owes_as_it_is(lab: Lab) -> None:
    dead = seed_loop(lab, SeedLines(numbered(5)), feeder="dead")
    await dead.begin()
    await lab.let_pass(3_600_000)
    guest = seed_loop(lab, SeedLines(numbered(5)))
    await guest.begin(is_guest=True)
    await guest.run(asyncio.Event())
    assert guest.feeders_left == 1
    assert not await is_closed(lab)
    owner = seed_loop(lab, SeedLines(numbered(5)))
    await owner.begin()
    await owner.run(asyncio.Event())
    assert await is_closed(lab)


async def test_source_that_fails_is_an_error_and_leaves_the_crawl_open(lab: Lab, tmp_path: Path) -> None:
    loop = seed_loop(lab, SeedLines(numbered(10), str(tmp_path)))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        await loop.run(asyncio.Event())
    assert loop.new == 10
    assert not await is_closed(lab)


async def test_crawl_that_is_deleted_ends_the_loop(lab: Lab, tmp_path: Path) -> None:
    with standard_input() as pipe:
        loop = seed_loop(lab, SeedLines([], "-"))
        task = asyncio.create_task(loop.run(asyncio.Event()))
        os.write(pipe, b"http://a.example/\n")
        await until(lambda: loop.new == 1, "the first seed")
        await delete_crawl(lab.client, lab.keys.prefix.split("{")[1].split(":")[0])
        os.write(pipe, b"http://b.example/\n")
        with pytest.raises(CrawlGone):
            await task
    assert [key async for key in lab.client.scan_iter(match=lab.keys.pattern)] == []


async def test_seeds_go_to_the_shards_of_their_hosts(store_client: Redis, crawl_name: str, tmp_path: Path) -> None:
    crawl, _ = await open_crawl(store_client, make_settings(**fast(crawl_name, shards=4)))
    lines = [f"http://www.site{number % 700}.example/{number}" for number in range(5000)]
    seeds = SeedLines([], written(tmp_path / "seeds", lines * 2))
    loop = SeedLoop(crawl, seeds, make_settings(name="any"), print)
    await loop.begin()
    await loop.run(asyncio.Event())
    assert (loop.new, loop.known) == (5000, 5000)
    found = set()
    for shard, frontier in enumerate(crawl):
        state = await assert_accounts(frontier)
        hosts = {key.removeprefix("host:") for key in state if key.startswith("host:")}
        assert all(crawl.index_of(host) == shard for host in hosts)
        assert len(hosts) > 100
        found |= {fp for key, members in state.items() if key.startswith("seen:") for fp in map(int, members)}
    assert found == {fingerprint(line) for line in lines}
    assert await store_client.hget(crawl.first.keys.state, "closed") == b"1"
    await delete_crawl(store_client, crawl_name)


# -- the cursor


async def stored_cursor(lab: Lab, feeder: str) -> Cursor | None:
    row: Any = await lab.client.hget(lab.keys.feeders, feeder)
    return None if row is None else Cursor.decode(row.decode().partition(" ")[2])


async def stopped_at(lab: Lab, path: str, *, feeder: str, after: int) -> SeedLoop:
    """Offer a file and stop in order once so many seeds are new."""
    loop = seed_loop(lab, SeedLines([], path), feeder=feeder)
    await loop.begin()
    async with running(loop):
        await until(lambda: loop.new >= after, f"{after} seeds")
    return loop


async def test_stopped_file_goes_on_where_it_was(lab: Lab, tmp_path: Path) -> None:
    path = written(tmp_path / "seeds", [*numbered(3000), "bad line", *numbered(3)])
    first = await stopped_at(lab, path, feeder="me", after=1)
    kept = await stored_cursor(lab, "me")
    assert kept == first.cursor
    assert 0 < kept.line < 3000
    assert not await is_closed(lab)
    log: list[str] = []
    second = seed_loop(lab, SeedLines([], path), log, feeder="me")
    await second.begin()
    assert log == [f"seeds: {path} goes on behind line {kept.line:,}"]
    await second.run(asyncio.Event())
    # What was under way when the first was stopped was accepted, but lay behind the cursor: it is known by now.
    repeated = first.new - kept.new
    assert 0 <= repeated <= CALLS_AT_A_TIME * LINKS_PER_CALL + BLOCK // 120
    assert (second.new, second.known, second.refused) == (3000 - repeated, 3 + repeated, 1)
    assert await stored_cursor(lab, "me") is None
    assert await is_closed(lab)
    assert (await lab.totals())["page.queued"] == 3000


async def test_last_line_without_an_end_is_not_lost(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    path.write_text("http://a.example/\nhttp://b.exam")
    with standard_input() as pipe:
        # The file is read to its end, and the loop is stopped before it may say so.
        loop = seed_loop(lab, SeedLines([], str(path)), feeder="me")
        await loop.begin()
        loop.cursor = Cursor(source=str(path), line=1, offset=18, mark=(await first_batch(path)).end.mark)
        stop = asyncio.Event()
        stop.set()
        await loop.run(stop)
        os.write(pipe, b"")
    path.write_text("http://a.example/\nhttp://b.example/\n")
    second = seed_loop(lab, SeedLines([], str(path)), feeder="me")
    await second.begin()
    await second.run(asyncio.Event())
    assert second.new == 1
    assert (await lab.host("http://b.example"))["queued"] == 1


async def first_batch(path: Path) -> Any:
    return await SeedLines([], str(path)).next()


@pytest.mark.parametrize(
    ("change", "is_same"),
    [("nothing", True), ("grown", True), ("copied", True), ("begins otherwise", False), ("a line more", False),
     ("shorter", False), ("gone", False), ("a pipe", False)],
)  # fmt: skip
async def test_when_a_file_is_still_the_same(change: str, is_same: bool, tmp_path: Path) -> None:
    path = tmp_path / "seeds"
    lines = [f"http://host.example/{number}" for number in range(10_000)]
    seeds = SeedLines([], written(path, lines))
    batch = await seeds.next()
    assert batch is not None
    assert batch.end.line > 2000
    if change == "grown":
        written(path, [*lines, "http://more/"])
    elif change == "copied":
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").rename(path)
    elif change == "begins otherwise":
        written(path, ["http://host.example/x", *lines[1:]])
    elif change == "a line more":
        written(path, [*lines[:1000], "http://more/", *lines[1000:]])
    elif change == "shorter":
        written(path, lines[:1000])
    elif change in ("gone", "a pipe"):
        path.unlink()
        if change == "a pipe":
            os.mkfifo(path)
    assert seeds.is_same(batch.end) is is_same


@pytest.mark.parametrize("ahead", [0, 1, 5000])
async def test_skipping_leaves_out_exactly_what_lies_before(ahead: int, tmp_path: Path) -> None:
    lines = [f"http://host.example/{number}" for number in range(30_000)]
    path = written(tmp_path / "seeds", lines)
    reader = SeedLines([], path)
    ends = []
    while (batch := await reader.next()) is not None:
        ends.append(batch.end)
    seeds = SeedLines([], path)
    if ahead:
        await seeds.peek(ahead)
    seeds.skip_to(ends[5])
    assert await all_of(seeds) == [(number, lines[number - 1]) for number in range(ends[5].line + 1, 30_001)]
    # What comes after a skip has the same marks as when everything was read.
    again = SeedLines([], path)
    again.skip_to(ends[5])
    batch = await again.next()
    assert batch is not None
    assert again.is_same(batch.end)


async def test_other_file_is_offered_from_its_start_and_that_is_said(lab: Lab, tmp_path: Path) -> None:
    path = written(tmp_path / "seeds", numbered(3000))
    await stopped_at(lab, path, feeder="me", after=1)
    written(tmp_path / "seeds", numbered(500, start=100_000))
    log: list[str] = []
    loop = seed_loop(lab, SeedLines([], path), log, feeder="me")
    await loop.begin()
    assert "is another file than the one of which" in log[0]
    await loop.run(asyncio.Event())
    assert (loop.new, loop.known) == (500, 0)


async def test_cursor_that_cannot_be_read_is_none() -> None:
    assert Cursor.decode("") is None
    assert Cursor.decode("12") is None
    cursor = Cursor(source="f", line=3, offset=40, mark="00", new=1, known=1, refused=1)
    assert Cursor.decode(cursor.encode()) == cursor
    assert cursor.text == "f line 3 (1 new, 1 known, 1 refused)"


def test_names_of_feeders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "seeds", [])
    monkeypatch.chdir(tmp_path)
    assert feeder_name([], path) == feeder_name([], "seeds") != feeder_name(["http://a/"], path)
    assert feeder_name(["http://a/"], None) == feeder_name(["http://a/"], None) != feeder_name([], None)
    os.mkfifo(tmp_path / "pipe")
    for once in ("-", "pipe"):
        assert feeder_name([], once) != feeder_name([], once)


# -- the store


async def test_store_that_is_away_is_waited_for(crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            server.kill9()
            log: list[str] = []
            loop = seed_loop(lab, SeedLines(numbered(1000)), log)
            task = asyncio.create_task(loop.run(asyncio.Event()))
            await until(lambda: bool(log), "the loop to notice")
            await asyncio.to_thread(server.start)
            await task
            assert loop.new + loop.known == 1000
            assert (await lab.totals())["page.queued"] == 1000
            assert await is_closed(lab)
            await lab.check()
        finally:
            await client.aclose()


async def test_what_a_restarted_store_has_lost_is_offered_again(crawl_name: str, tmp_path: Path) -> None:
    """The server comes back without a second of its work: seeds that were accepted, and the cursor behind them."""
    with RedisServer(options=DURABLE) as server:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name, frontier_max=1500))
            path = written(tmp_path / "seeds", ["bad line", *numbered(3000)])
            log: list[str] = []
            loop = seed_loop(lab, SeedLines([], path), log, feeder="me")
            await loop.begin()
            kept = server.append_log.stat().st_size
            task = asyncio.create_task(loop.run(asyncio.Event()))
            await until(lambda: bool(loop.waiting) and loop.cursor.line > 0, "a bound in the middle of the file")
            # A sign of life writes the cursor, as it does four times a lease.
            loop._sign_now.set()

            async def is_written() -> bool:
                return await stored_cursor(lab, "me") == loop.cursor

            await wait_until(is_written, "the cursor in the store")
            server.kill9()
            assert server.lose_written(kept) > 100_000
            await asyncio.to_thread(server.start)
            await until(lambda: "is offered again from line 1 on" in log[-1], "the loop to go back")
            await client.hset(lab.keys.state, "frontier_max", "20000")
            await task
            assert (await lab.totals())["page.queued"] == 3000
            assert (loop.new + loop.known, loop.refused) == (3000, 1)
            assert sum("bad line" in line for line in log) == 1
            assert await is_closed(lab)
        finally:
            await client.aclose()


async def test_pipe_cannot_go_back_and_says_so(crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server, standard_input() as pipe:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            log: list[str] = []
            loop = seed_loop(lab, SeedLines([], "-"), log)
            async with running(loop):
                os.write(pipe, b"http://a.example/\n")
                await until(lambda: loop.new == 1, "the first seed")
                server.kill9()
                os.write(pipe, b"http://b.example/\n")
                await until(lambda: bool(log), "the loop to notice")
                await asyncio.to_thread(server.start)
                await until(lambda: loop.new == 2, "the second seed")
                once = "stdin comes only once: offer what it brought up to line"
                await until(lambda: any(once in line for line in log), "the loop to hear of the restart")
        finally:
            await client.aclose()


async def test_full_memory_is_waited_for(crawl_name: str) -> None:
    with RedisServer() as server:
        client = connect(server.url)
        try:
            lab = await Lab.opened(client, **fast(crawl_name))
            await client.config_set("maxmemory", 1)
            log: list[str] = []
            loop = seed_loop(lab, SeedLines(numbered(10)), log)
            task = asyncio.create_task(loop.run(asyncio.Event()))
            await until(lambda: any("Redis is full" in line for line in log), "the loop to meet the limit")
            await client.config_set("maxmemory", 0)
            await task
            assert (await lab.totals())["page.queued"] == 10
        finally:
            await client.aclose()
