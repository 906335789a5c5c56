"""Crawls that visit pages again, over real sockets: what hosts are asked, what comes of it, when it ends, kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from streamcrawl.ops.status import read_status, status_lines
from tests.integration.drive import Talker, crawling, html, kill_children, records, until, violations

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.drive import CrawlRun
    from tests.redis_server import RedisServer

DATE: Final = "Tue, 01 Dec 2026 02:00:00 GMT"
DAY_MS: Final = 86_400_000
QUICKLY: Final[dict[str, Any]] = {"revisit_ms": 100, "revisit_min_ms": 50, "revisit_max_ms": 400}
Answer = Callable[[int], Awaitable[web.StreamResponse]]


def page(talker: Talker, *links: str, etag: str = "", modified: str = "", changes: bool = False) -> Answer:
    """Return a page that answers 304 to whoever knows it; one that changes has another text at each visit."""

    async def answer(count: int) -> web.StreamResponse:
        asked = talker.headers[-1]
        named = {"ETag": etag} if etag else {"Last-Modified": modified} if modified else {}
        if named and (asked.get("If-None-Match", ""), asked.get("If-Modified-Since", "")) == (etag, modified):
            return web.Response(status=304, headers=named)
        text = "".join(f'<a href="{link}">x</a>' for link in links)
        text += f"<!-- made for visit {count} -->" + (f"<p>{count}" if changes else "")
        return web.Response(text=f"<title>t</title>{text}", content_type="text/html", headers=named)

    return answer


async def let_be_due(run: CrawlRun) -> None:
    """Let a day pass for the pages that are kept."""
    for frontier in run.crawl:
        client: Any = frontier.client
        for member in await client.zrange(frontier.keys.revisits, 0, -1):
            await client.zincrby(frontier.keys.revisits, -10 * DAY_MS, member)


def statuses(talker: Talker) -> dict[str, list[int]]:
    """Return the answers so far, by path, and forget them."""
    found: dict[str, list[int]] = {}
    for request in talker.requests:
        found.setdefault(request.path, []).append(request.status)
    talker.requests.clear()
    return found


async def test_a_round_asks_once_for_what_is_due_and_ends(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    values: dict[str, Any] = {"revisit_ms": DAY_MS, "one_round": True, "output": output, "refresh_max_ms": None}
    async with Talker({}) as talker:
        talker.answers |= {
            "/": page(talker, "/etag", "/modified", "/changes", "/same", "/moves", "/gone", "/lost", etag='"1"'),
            "/etag": page(talker, etag='W/"x, y"'.replace(" ", "")),
            "/modified": page(talker, modified=DATE),
            "/changes": page(talker, changes=True),
            "/same": page(talker),
            "/moves": html(status=302, Location="/etag?of=another", ETag='"moved"'),
            "/etag?of=another": page(talker, etag='"2"'),
            "/gone": page(talker),
        }

        async def crawl() -> CrawlRun:
            async with crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
                assert await run.word() == "ENDED"
                await run.check()
            return run

        await crawl()
        statuses(talker)
        first = len(records(output))
        assert first == 8  # /lost is a page with status 404, /moves that to which it leads
        await crawl()
        assert statuses(talker) == {}, "nothing is due"

        async def gone(_: int) -> web.StreamResponse:
            return web.Response(status=410)

        talker.answers["/gone"] = gone
        async with crawling(redis_server.url, crawl_name, [], **values) as run:
            await let_be_due(run)
            assert await run.word() == "ENDED"
        asked = statuses(talker)
        assert asked == {
            "/": [304], "/etag": [304], "/modified": [304], "/changes": [200], "/same": [200],
            "/moves": [302], "/etag?of=another": [200], "/gone": [410],
        }  # fmt: skip
        async with crawling(redis_server.url, crawl_name, [], **values) as run:
            totals = await run.totals()
            assert (totals["page.revisited"], totals["page.visits.new"]) == (7, 7)
            assert (totals["page.visits.unchanged"], totals["page.visits.changed"]) == (5, 1)
            assert totals["page.visits.gone"] == 1
            later = [(one["url"].removeprefix(talker.origin), one["status"]) for one in records(output)[first:]]
            assert sorted(later) == [("/changes", 200), ("/gone", 410), ("/moves", 200), ("/same", 200)]
            status = await read_status(run.frontier.client, crawl_name)
            assert status.revisits == 6
            assert "6 pages to be fetched again, the first in " in "\n".join(status_lines(status))
            assert "all fetched, the next page is due in " in status_lines(status)[0]
            await run.word()
        async with crawling(redis_server.url, crawl_name, [], **values, unchanged_records=True) as run:
            await let_be_due(run)
            await run.word()
            await run.check()
        assert sorted(statuses(talker)) == sorted(set(asked) - {"/gone"})
        unchanged = [one for one in records(output)[first + 4 :] if one["status"] == 304]
        assert {one["url"].removeprefix(talker.origin) for one in unchanged} == {"/", "/etag", "/modified"}


async def test_interval_follows_the_page_and_the_crawl_goes_on(redis_server: RedisServer, crawl_name: str) -> None:
    values: dict[str, Any] = {"revisit_ms": 200, "revisit_min_ms": 100, "revisit_max_ms": 60_000}
    async with Talker({}) as talker:
        talker.answers |= {"/": page(talker, "/changes", etag='"1"'), "/changes": page(talker, changes=True)}
        async with crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
            await until(lambda: talker.asked["/changes"] >= 30, "30 visits", within_s=90)
            assert run.is_running
            # 0.1 s apart the one; the other 0.2, 0.3, 0.45, … s.
            assert talker.asked["/"] < 15
            await run.frontier.control(revisit_ms="")
            assert await run.word() == "ENDED"
            await run.check()


async def test_killed_workers_lose_no_page_and_hosts_are_not_hammered(
    redis_server: RedisServer, crawl_name: str
) -> None:
    pages = [f"/{n}" for n in range(12)]
    values = QUICKLY | {"processes": 2, "delay_ms": 20, "delay_max_ms": 20, "shards": 2}
    async with Talker({}) as one, Talker({}) as other:
        for talker in (one, other):
            talker.answers |= {path: page(talker, changes=not n % 2) for n, path in enumerate(pages)}
        seeds = [talker.origin + path for talker in (one, other) for path in pages]
        async with crawling(redis_server.url, crawl_name, seeds, **values) as run:
            await run.all_ready()
            assert await kill_children(run, seed=4, most=4) == 4
            before = [(talker, talker.asked.copy()) for talker in (one, other)]

            def visits_least() -> int:
                return min((talker.asked - then)[path] for talker, then in before for path in pages)

            await until(lambda: visits_least() >= 2, "two more visits of each page", within_s=90)
            for frontier in run.crawl:
                await frontier.control(revisit_ms="")
            assert await run.word() == "ENDED"
            await run.check()
            assert await run.dead() == []
        for talker in (one, other):
            assert violations(talker.requests, cap=1, delay_ms=20) == []


async def test_host_that_is_down_for_a_while_is_visited_when_it_is_back(
    redis_server: RedisServer, crawl_name: str
) -> None:
    values = QUICKLY | {"host_give_up_ms": 300, "host_give_up_idle_ms": 300}
    is_down = False

    async def shop(count: int) -> web.StreamResponse:
        return web.Response(status=503) if is_down else web.Response(text=f"price {count}")

    async with Talker({"/": shop}) as talker, crawling(redis_server.url, crawl_name, [talker.origin], **values) as run:
        await until(lambda: talker.asked["/"] >= 3, "visits")
        is_down = True
        while (await run.totals()).get("page.dropped.unavailable", 0) < 2:
            assert run.is_running
            await asyncio.sleep(0.05)
        is_down = False
        asked = talker.asked["/"]
        await until(lambda: talker.asked["/"] >= asked + 3, "visits of the host that is back")
        await run.frontier.control(revisit_ms="")
        assert await run.word() == "ENDED"
        await run.check()
        assert await run.dead() == []


async def test_handler_is_called_for_what_came_and_its_fault_waits_for_a_person(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    values: dict[str, Any] = {"revisit_ms": DAY_MS, "one_round": True, "output": output, "attempts_max": 1}
    values |= {"handler": "tests.handlers:reads_the_price"}
    texts = ["5", "5", "sold in pieces", "7"]

    async def priced(count: int) -> web.StreamResponse:
        return web.Response(text=texts[min(count, 3)])

    async with Talker({}) as talker:
        talker.answers |= {"/": page(talker, etag='"1"'), "/shop": priced}
        seeds = [talker.origin + "/", talker.origin + "/shop"]
        for visit in range(3):
            async with crawling(redis_server.url, crawl_name, [] if visit else seeds, **values) as run:
                await let_be_due(run)
                assert await run.word() == "ENDED"
                await run.check()
        found = [(one["url"].removeprefix(talker.origin), one["price"]) for one in records(output)]
        assert [price for path, price in found if path == "/shop"] == ["5", "5"]
        assert [path for path, _ in found].count("/") == 1, "304 calls no handler"
        async with crawling(redis_server.url, crawl_name, [], **values) as run:
            [letter] = await run.dead()
            assert (letter.url, letter.reason) == (talker.origin + "/shop", "handler")
            client: Any = run.frontier.client
            [(letter_id, fields)] = await client.xrange(run.frontier.keys.dead)
            task = (fields[b"host"].decode(), fields[b"level"].decode(), fields[b"task"])
            assert await run.frontier.replay([(letter_id.decode(), *task)]) == ["QUEUED"]
            assert await run.word() == "ENDED"
            await run.check()
            assert [one["price"] for one in records(output)][-1] == "7"
            assert await client.zcard(run.frontier.keys.revisits) == 2
        before = len(records(output))
        async with crawling(redis_server.url, crawl_name, [], **values, unchanged_records=True) as run:
            await let_be_due(run)
            assert await run.word() == "ENDED"
        told = {one["url"].removeprefix(talker.origin): one["price"] for one in records(output)[before:]}
        assert told == {"/": "", "/shop": "7"}, "asked for, it is called for a 304 too, which has no body"
