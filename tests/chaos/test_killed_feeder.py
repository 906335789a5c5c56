"""`streamcrawl seed` is killed again and again in the middle of its file: each run goes on where the last cursor was.

Nothing of the file is missing afterwards or queued twice, and at no moment in between was the crawl closed.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.rules.urls import fingerprint
from streamcrawl.store.connection import connect
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import join_crawl
from streamcrawl.work.seeds import Cursor
from tests.chaos.crawl_process import IS_FULL
from tests.e2e.command import Command
from tests.integration.snapshot import assert_accounts

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from streamcrawl.store.shards import Shards
    from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

LINES: Final = 400_000 if IS_FULL else 75_000
"""A cursor is written every 12,500 lines at the latest: more often than it is killed."""
KILLS: Final = 12 if IS_FULL else 2
HOSTS: Final = 200
WITHIN_S: Final = 120 if IS_FULL else 40


async def cursor_of(crawl: Shards) -> Cursor | None:
    """Return what the one feeder of the crawl has left there; None when it is done."""
    rows: Any = await crawl.client.hgetall(crawl.first.keys.feeders)
    assert len(rows) <= 1
    return next((Cursor.decode(row.decode().partition(" ")[2]) or Cursor() for row in rows.values()), None)


async def until_cursor_moves(client: Redis, name: str, shards: int, line: int) -> Cursor:
    """Wait until the feeder has written a cursor behind `line`; return it."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            # They are made one after the other.
            is_whole = await client.exists(Keys(name, shards - 1).state)
            cursor = await cursor_of(await join_crawl(client, name)) if is_whole else None
            if cursor is not None and cursor.line > line:
                return cursor
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("shards", [1, 4])
async def test_killed_feeder_goes_on_at_its_cursor(
    shards: int, redis_server: RedisServer, tmp_path: Path, crawl_name: str
) -> None:
    command = Command(tmp_path / "here")
    urls = [f"http://www.site{number % HOSTS}.example/{number}" for number in range(LINES)]
    (command.folder / "urls.txt").write_text("".join(f"{url}\n" for url in urls))
    words = ["seed", crawl_name, "urls.txt", "--redis", redis_server.url, "--create", "--memory-max", "1GB"]
    words += ["--shards", str(shards), "--lease", "1s"]
    client = connect(redis_server.url)
    try:
        line = 0
        for _ in range(KILLS):
            with command.start(*words) as running:
                await until_cursor_moves(client, crawl_name, shards, line)
                running.process.kill()
                running.process.wait()
                if line:
                    assert f"goes on behind line {line:,}\n" in running.err
            crawl = await join_crawl(client, crawl_name)
            assert await client.hget(crawl.first.keys.state, "closed") is None
            cursor = await cursor_of(crawl)
            assert cursor is not None
            assert cursor.line > line, "the file was fed to its end before it could be killed"
            line = cursor.line
        result = command.run(*words)
        assert result.code == ExitCode.DONE, result
        assert f"goes on behind line {line:,}\n" in result.err
        new, known, refused = (int(count.replace(",", "")) for count in re.findall(r"([\d,]+) \w+,", result.out)[:3])
        assert (new + known, refused) == (LINES, 0)
        assert "some of the known may be of this command" in result.out or not known

        assert await cursor_of(crawl) is None
        assert await client.hget(crawl.first.keys.state, "closed") == b"1"
        seen: list[int] = []
        for frontier in crawl:
            state = await assert_accounts(frontier)
            seen += [int(fp) for key, members in state.items() if key.startswith("seen:") for fp in members]
        assert len(seen) == LINES
        assert set(seen) == {fingerprint(url) for url in urls}
    finally:
        await client.aclose()
