"""Every format over a real Redis: whatever is killed and wherever, each record is in the output once.

The sinks are processes of their own (test_sink_loop.py as a program), killed at a named point or at random while
records wait: those that are left are written by the next one.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from fastwarc.warc import ArchiveIterator as FastIterator
from pyarrow import parquet
from warcio.archiveiterator import ArchiveIterator

from streamcrawl.rules.urls import fingerprint, fingerprint_hex
from streamcrawl.web.exchange import Exchange, encode_exchanges
from streamcrawl.work.handlers import PageRecord
from tests.integration.test_sink_loop import BATCH, SINK, SinkProcess, produce, until_empty, until_said
from tests.postgres_server import PostgresServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab
    from tests.redis_server import RedisServer

FINISHING = ("before_finish", "mid_finish", "after_finish")


@pytest.fixture(scope="session")
def store_server(redis_server: RedisServer) -> RedisServer:
    """One is enough: what differs between servers is tested in test_sink_loop.py."""
    return redis_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer, crawl_name: str) -> AsyncIterator[str]:
    """The URL of an empty database."""
    for statement in (f'CREATE DATABASE "{crawl_name}"', f'DROP DATABASE "{crawl_name}" WITH (FORCE)'):
        connection = await asyncpg.connect(postgres.url)
        await connection.execute(statement)
        await connection.close()
        if statement.startswith("CREATE"):
            yield f"{postgres.url.rpartition('/')[0]}/{crawl_name}"


@pytest.fixture
async def sink_lab(open_lab: OpenLab) -> Lab:
    return await open_lab(sinks=[SINK], host_concurrency=1000)


def page_of(url: str, **values: Any) -> bytes:
    """A record with everything that formats find hard: text, lists, nulls."""
    record: dict[str, Any] = {
        "url": url, "final_url": url, "status": 200, "depth": 1, "referrer": None,
        "fetched_at": "2026-11-30T10:00:00.123Z", "elapsed_ms": 12, "content_type": "text/html", "charset": "utf-8",
        "bytes": 2**40, "title": '=HYPERLINK("x";"ü")\r\n,', "links": 3, "attempts": 1, "redirects": ["http://r/,\""],
        "fingerprint": fingerprint_hex(fingerprint(url)),
    } | values  # fmt: skip
    return msgspec.json.encode(PageRecord(**record))


def exchange_of(url: str, body: bytes | None = None, status: int = 200) -> Exchange:
    return Exchange(
        url=url,
        began_at="2026-11-30T10:00:00.123Z",
        address="127.0.0.1",
        request=b"GET / HTTP/1.1\r\nHost: h.example\r\n\r\n",
        head=b"HTTP/1.1 %d OK\r\nX-Odd:  \xff\xfe\r\n\r\n" % status,
        body=b"the body of " + url.encode() if body is None else body,
        status=status,
    )


def archived(url: str) -> bytes:
    return encode_exchanges([exchange_of(url)])


# -- how each is read


def of_jsonl(folder: Path) -> list[str]:
    lines = [line for path in sorted(folder.glob("pages*.jsonl")) for line in path.read_bytes().splitlines()]
    return [json.loads(line)["url"] for line in lines]


def of_csv(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.glob("pages*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            found += [row["url"] for row in csv.DictReader(file, strict=True)]
    return found


def of_parquet(folder: Path) -> list[str]:
    tables = [parquet.read_table(path) for path in sorted(folder.glob("pages*.parquet"))]
    return [url for table in tables for url in table["url"].to_pylist()]


def of_warc(folder: Path) -> list[str]:
    found, ids = [], []
    for path in sorted(folder.glob("pages*.warc.gz")):
        assert_valid(path)
        with open(path, "rb") as file:
            for record in ArchiveIterator(file):
                ids.append(record.rec_headers["WARC-Record-ID"])
                if record.rec_type == "response":
                    found.append(record.rec_headers["WARC-Target-URI"])
    assert len(ids) == len(set(ids))
    return found


def assert_valid(path: Path) -> None:
    """Check a WARC file with two tools that know nothing of each other."""
    done = subprocess.run(
        [sys.executable, "-m", "warcio.cli", "check", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open(path, "rb") as file:
        for record in FastIterator(file, parse_http=False):
            assert record.verify_block_digest(), record.headers
            if record.headers["WARC-Type"] == "response":
                record.parse_http()
                assert record.verify_payload_digest(), record.headers


def of_sqlite(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "pages.db")) as read:
        assert read.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [url for (url,) in read.execute("SELECT url FROM pages")]


@dataclass(frozen=True)
class Case:
    name: str
    target: str
    """In the folder of the test; '' is the database."""
    read: Callable[[Path], list[str]]
    points: tuple[str, ...]
    record: Callable[[str], bytes] = page_of
    settings: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


ROTATED = {"rotate_size_bytes": 3000}
CASES = [
    Case("jsonl in parts", "pages.jsonl", of_jsonl, ("mid_write", *FINISHING), settings=ROTATED),
    Case("csv", "pages.csv", of_csv, ("mid_write", "before_commit")),
    Case(
        "parquet in parts",
        "pages.parquet",
        of_parquet,
        ("before_commit", "mid_finish", "after_finish"),
        settings=ROTATED,
    ),
    Case("warc in parts", "pages.warc.gz", of_warc, ("mid_write", "after_commit"), archived, ROTATED),
    Case("sqlite", "sqlite:///pages.db", of_sqlite, ("mid_write", "before_commit", "after_commit")),
]


async def crash_again_and_again(
    lab: Lab, server: RedisServer, target: str, points: tuple[str, ...], record: Callable[[str], bytes], **settings: Any
) -> int:
    """Let a sink be killed at each point, and one at random, while records wait; write the rest, and end the crawl.

    Returns how many records there were.
    """
    count = 0
    dice = random.Random(7)
    for turn, point in enumerate([*points, ""]):
        await produce(lab, 3 * BATCH, start=count, record=record)
        count += 3 * BATCH
        async with SinkProcess(server.url, lab, target, f"s{turn}", point, 2, **settings) as process:
            if point:
                async with asyncio.timeout(60):
                    assert await process.wait() == -signal.SIGKILL
            else:
                await until_said(process, b"ready")
                await asyncio.sleep(dice.uniform(0, 0.1))
                process.kill()
    await end(lab, server, target, **settings)
    return count


async def end(lab: Lab, server: RedisServer, target: str, **settings: Any) -> None:
    async with SinkProcess(server.url, lab, target, "last", **settings) as process:
        await until_said(process, b"ready")
        await until_empty(lab, asyncio.ensure_future(process.wait()))
        process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(60):
            assert await process.wait() == 0


def urls(count: int) -> list[str]:
    return sorted(f"http://h.example/{n}" for n in range(count))


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_sink_killed_anywhere_leaves_each_record_once(
    sink_lab: Lab, store_server: RedisServer, tmp_path: Path, case: Case
) -> None:
    place = case.target.replace("///", f"///{tmp_path}/") if "://" in case.target else str(tmp_path / case.target)
    count = await crash_again_and_again(sink_lab, store_server, place, case.points, case.record, **case.settings)
    assert sorted(case.read(tmp_path)) == urls(count)
    names = os.listdir(tmp_path)
    assert [name for name in names if name.endswith((".part", ".making", "-wal"))] == []
    assert sum(name.startswith("pages-0000") for name in names) > 1 or not case.settings


async def test_end_that_was_killed_while_a_file_was_made_is_done_by_the_next(
    sink_lab: Lab, store_server: RedisServer, tmp_path: Path
) -> None:
    await produce(sink_lab, BATCH, record=page_of)
    target = tmp_path / "pages.parquet"
    async with SinkProcess(store_server.url, sink_lab, target, "s1", "mid_finish", 1) as process:
        await until_said(process, b"ready")
        await until_empty(sink_lab, asyncio.ensure_future(process.wait()))
        process.send_signal(signal.SIGUSR2)
        assert await process.wait() == -signal.SIGKILL
    assert "pages.parquet" not in os.listdir(tmp_path)
    # Nothing is left to write: it ends at once, before it would have opened its output.
    await end(sink_lab, store_server, str(target))
    assert os.listdir(tmp_path) == ["pages.parquet"]
    assert sorted(of_parquet(tmp_path)) == urls(BATCH)


async def test_sink_of_postgres_killed_anywhere_leaves_each_row_once(
    sink_lab: Lab, store_server: RedisServer, database: str
) -> None:
    points = ("mid_write", "before_commit", "after_commit")
    count = await crash_again_and_again(sink_lab, store_server, database, points, page_of)
    assert await rows(database, "SELECT url FROM pages") == urls(count)


async def test_postgres_that_is_killed_is_waited_for_and_loses_nothing(
    sink_lab: Lab, store_server: RedisServer, postgres: PostgresServer, database: str
) -> None:
    async with SinkProcess(store_server.url, sink_lab, database, "s1") as process:
        await until_said(process, b"ready")
        await produce(sink_lab, 6 * BATCH, record=page_of)
        await asyncio.to_thread(postgres.stop)
        await produce(sink_lab, BATCH, start=6 * BATCH, record=page_of)
        await until_said(process, b"nothing is lost")
        await asyncio.to_thread(postgres.start)
        await until_said(process, b"can be written again")
        await until_empty(sink_lab, asyncio.ensure_future(process.wait()))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert await rows(database, "SELECT url FROM pages") == urls(7 * BATCH)


async def rows(database: str, query: str) -> list[Any]:
    """Return the first column of a query's answer, sorted."""
    connection = await asyncpg.connect(database)
    try:
        return sorted(row[0] for row in await connection.fetch(query))
    finally:
        await connection.close()
