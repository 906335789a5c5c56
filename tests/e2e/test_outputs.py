"""The outputs of the command: several at once, through an interruption, and what an archive holds."""

from __future__ import annotations

import asyncio
import csv
import gzip
import io
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from pyarrow import parquet
from warcio.archiveiterator import ArchiveIterator

from streamcrawl.errors import ExitCode
from tests.e2e.test_passwords import shown_by_ps
from tests.integration.drive import Talker, html
from tests.integration.test_sink_formats import assert_valid, database, postgres, rows
from tests.postgres_server import PASSWORD

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.command import Command
    from tests.site.server import SiteProcess

__all__ = ["database", "postgres"]
"""Fixtures."""


async def test_every_output_has_every_page_once_through_an_interruption(
    command: Command, leisurely_site: SiteProcess, database: str
) -> None:
    files = ["a.jsonl", "a.csv", "a.parquet", "a.warc.gz", "sqlite:///a.db"]
    outputs = [part for output in [*files, database] for part in ("-o", output)]
    with command.start("crawl", leisurely_site.seed_url, "--scope", "any", "--name", "all", *outputs) as running:
        running.until(lambda: command.lines("a.jsonl") > 5, "the first records")
        shown = "\n".join(shown_by_ps(running))
        running.interrupt()
        stopped = running.wait()
    assert stopped.code == ExitCode.STOPPED, stopped.err
    folder = command.folder
    assert (folder / "a.parquet.part").exists()
    assert not (folder / "a.parquet").exists()
    # Its password is not kept, and comes by the variable that PostgreSQL's own programs read.
    refused = command.run("crawl", "--resume", "--name", "all")
    assert refused.code == ExitCode.USAGE
    assert "is not kept: give the same -o again with it" in refused.err
    resumed = command.run("crawl", "--resume", "--name", "all", PGPASSWORD=PASSWORD)
    assert resumed.code == ExitCode.DONE, resumed.err
    assert PASSWORD not in shown + stopped.err + stopped.out + refused.err + resumed.err + resumed.out

    pages = sorted(record["url"] for record in command.records("a.jsonl"))
    assert command.pages("a.jsonl") == leisurely_site.expected_pages()
    text = io.StringIO((folder / "a.csv").read_bytes().decode(), newline="")
    assert sorted(row["url"] for row in csv.DictReader(text, strict=True)) == pages
    assert sorted(parquet.read_table(folder / "a.parquet")["url"].to_pylist()) == pages
    with closing(sqlite3.connect(folder / "a.db")) as read:
        assert sorted(url for (url,) in read.execute("SELECT url FROM pages")) == pages
    assert await rows(database, "SELECT url FROM pages") == pages
    records = read_archive(folder / "a.warc.gz")
    archived = [record["WARC-Target-URI"] for record, _, _ in records if record["WARC-Type"] == "response"]
    assert sorted(archived) == pages
    assert not list(folder.glob("*.part"))


def read_archive(path: Path) -> list[tuple[dict[str, str], dict[str, str], bytes]]:
    """Return the headers of each record, those of its HTTP message, and its payload as it stands there."""
    assert_valid(path)
    found = []
    with open(path, "rb") as file:
        for record in ArchiveIterator(file):
            http = dict(record.http_headers.headers) if record.http_headers else {}
            found.append((dict(record.rec_headers.headers), http, record.raw_stream.read()))
    return found


def answer(body: bytes, headers: dict[str, str] | None = None, *, is_chunked: bool = False) -> Any:
    async def answered(_: int) -> web.StreamResponse:
        response = web.Response(body=body, headers={"Content-Type": "text/html", **(headers or {})})
        if is_chunked:
            response.enable_chunked_encoding()
        return response

    return answered


async def test_archive_has_what_went_over_the_wire_and_no_secret(command: Command) -> None:
    page = b"<title>x</title>" + b"the same words again " * 50
    packed = gzip.compress(page)
    answers = {
        "/": html("/gzip", "/chunked", "/same", "/moved", "/away", "/none"),
        "/gzip": answer(packed, {"Content-Encoding": "gzip", "X-ODD": "kept as it is"}),
        "/chunked": answer(page, is_chunked=True),
        "/same": answer(page),
        "/moved": html(status=301, Location="/none"),
        "/away": html(status=302, Location="http://127.0.0.9:1/"),
    }
    async with Talker(answers) as talker:
        options = ["--no-robots", "--name", "a", "-o", "a.warc.gz", "-o", "a.jsonl", "--header", "*: X-Key: hunter2"]
        auth = ["--auth", f"{talker.origin}: me:hunter2"]
        result = await asyncio.to_thread(command.run, "crawl", f"{talker.origin}/", *options, *auth)
        assert result.code == ExitCode.DONE, result.err
        assert all(headers["X-Key"] == "hunter2" for headers in talker.headers)
        status = await asyncio.to_thread(command.run, "status", "a", "--json")
    records = read_archive(command.folder / "a.warc.gz")
    answered = {
        record["WARC-Target-URI"].removeprefix(talker.origin): (record, http, payload)
        for record, http, payload in records
        if record["WARC-Type"] in ("response", "revisit")
    }
    assert set(answered) == {"/", "/gzip", "/chunked", "/same", "/moved", "/away", "/none"}
    assert sum(record["WARC-Type"] == "request" for record, _, _ in records) == len(talker.requests)
    _, http, payload = answered["/gzip"]
    assert (http["Content-Encoding"], payload) == ("gzip", packed)
    assert http["X-ODD"] == "kept as it is"
    # Whoever came second is told by its digest alone.
    pair = [answered["/chunked"], answered["/same"]]
    [first] = [one for one in pair if one[0]["WARC-Type"] == "response"]
    [again] = [one for one in pair if one[0]["WARC-Type"] == "revisit"]
    assert (first[2], again[2]) == (page, b"")
    assert again[0]["WARC-Refers-To"] == first[0]["WARC-Record-ID"]
    assert again[0]["WARC-Payload-Digest"] == first[0]["WARC-Payload-Digest"]
    assert answered["/chunked"][1]["X-Crawl-Transfer-Encoding"] == "chunked"
    assert "Transfer-Encoding" not in answered["/chunked"][1]
    assert answered["/moved"][1]["Location"] == "/none"
    assert {record.get("WARC-IP-Address", "127.0.0.1") for record, _, _ in records} == {"127.0.0.1"}
    [request] = [
        http for record, http, _ in records
        if record["WARC-Type"] == "request" and record["WARC-Target-URI"] == f"{talker.origin}/"
    ]  # fmt: skip
    assert request["Host"] == talker.origin.removeprefix("http://")
    whole = gzip.decompress((command.folder / "a.warc.gz").read_bytes())
    assert b"X-Key" not in whole
    assert b"Authorization" not in whole
    assert '"bytes_waiting":0' in status.out


def test_files_are_finished_by_size_and_fresh_deletes_them_all(command: Command, site: SiteProcess) -> None:
    arguments = ["crawl", site.seed_url, "--scope", "any", "--name", "r", "-o", "a.jsonl", "--rotate-size", "5kB"]
    assert command.run(*arguments).code == ExitCode.DONE
    parts = sorted(path.name for path in command.folder.glob("a*"))
    assert parts == [f"a-{number:05d}.jsonl" for number in range(1, len(parts) + 1)]
    found = [record["final_url"] for name in parts for record in command.records(name) if record["status"] == 200]
    assert sorted(found) == sorted(site.expected_pages())
    other = command.run(*arguments[:4], "--name", "other", *arguments[6:])
    assert other.code == ExitCode.USAGE
    assert "a-00001.jsonl exists and is not of this crawl" in other.err
    changed = command.run(*arguments[:-1], "6kB")
    assert changed.code == ExitCode.USAGE
    assert "these cannot change" in changed.err
    fresh = command.run(*arguments[:-2], "--fresh")
    assert fresh.code == ExitCode.DONE, fresh.err
    assert [path.name for path in command.folder.glob("a*")] == ["a.jsonl"]
    assert command.pages("a.jsonl") == site.expected_pages()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/d", "-o postgresql://me@127.0.0.1:1/d: "),
        ("sqlite:///none/a.db", "does not exist; make it first"),
        ("a.xml", "the format is told by the ending or the scheme"),
    ],
)
def test_output_that_cannot_be_is_one_line_before_anything_begins(
    command: Command, site: SiteProcess, output: str, message: str
) -> None:
    result = command.run("crawl", site.seed_url, "-o", output)
    assert result.code == ExitCode.USAGE
    assert message in result.err
    assert result.err.count("\n") == 1
    assert "hunter2" not in result.err
    assert list(command.folder.iterdir()) == []
