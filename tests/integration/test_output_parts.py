"""Outputs on a real disk, and in a real database: parts, what is made of a journal, what is written over."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest
from pyarrow import parquet as pq
from warcio.archiveiterator import ArchiveIterator

from streamcrawl.errors import SinkError
from streamcrawl.settings import make_settings
from streamcrawl.sinks import parquet
from streamcrawl.sinks.output import Mark, SinkBusy, SinkWaits
from streamcrawl.sinks.sqlite import SqliteOutput
from streamcrawl.sinks.targets import check_database, check_target, delete_files, open_output, read_target
from streamcrawl.web.exchange import encode_exchanges
from tests.integration.test_sink_formats import assert_valid, database, exchange_of, page_of, postgres, rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from streamcrawl.sinks.files import FileOutput

__all__ = ["database", "postgres"]
"""Fixtures."""


def settings(**values: Any) -> Any:
    return make_settings("x", values)


def opened(path: Path | str, **values: Any) -> FileOutput:
    output: Any = open_output(read_target(str(path)), settings(**values))
    return output  # type: ignore[no-any-return]


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


async def finish_part(output: FileOutput) -> Mark:
    mark = await output.seal()
    assert mark is not None
    await output.finish(mark)
    return mark


SMALL = {"rotate_size_bytes": 1000}


async def test_part_gets_its_name_when_the_store_knows_of_the_next(tmp_path: Path) -> None:
    output = opened(tmp_path / "a.b.csv", **SMALL)
    await output.resume(Mark())
    assert not output.is_due()
    await output.append([b'{"x":"%b"}' % (b"y" * 990)])
    assert output.is_due()
    assert names(tmp_path) == ["a.b-00001.csv.part"]
    mark = await finish_part(output)
    assert mark == Mark(len(f"x,more_json\r\n{'y' * 990},\r\n"), 1, mark.offset)
    assert names(tmp_path) == ["a.b-00001.csv", "a.b-00002.csv.part"]
    assert await output.append([b'{"x":"y"}']) == mark._replace(offset=mark.offset + len("x,more_json\r\ny,\r\n"))
    await output.close()
    assert names(tmp_path) == ["a.b-00001.csv", "a.b-00002.csv.part"]


async def test_part_of_age_is_due_and_an_empty_one_never(tmp_path: Path) -> None:
    output = opened(tmp_path / "a.jsonl", rotate_every_ms=1000)
    await output.resume(Mark())
    assert await output.seal() is None
    mark = await output.append([b"{}"])
    assert not output.is_due()
    # As if the first record had been written a while ago.
    assert output.began_at is not None
    output.began_at -= 1
    assert output.is_due()
    await finish_part(output)
    assert not output.is_due()
    await output.close()
    # One without a record would look as if something were missing.
    assert names(tmp_path) == ["a-00001.jsonl"]
    assert mark == Mark(3)


async def test_resume_finishes_what_was_sealed_and_takes_back_what_the_store_forgot(tmp_path: Path) -> None:
    first = opened(tmp_path / "a.jsonl", **SMALL)
    await first.resume(Mark())
    mark = await first.append([b'{"n":1}'])
    sealed = await first.seal()
    assert sealed == Mark(mark.offset, 1, mark.offset)
    await first.close()  # killed before it could finish it
    second = opened(tmp_path / "a.jsonl", **SMALL)
    await second.resume(sealed)
    assert names(tmp_path) == ["a-00001.jsonl", "a-00002.jsonl.part"]
    await second.append([b'{"n":2}'])
    await second.close()
    # A store that was restored from a backup: the part is not finished there, and there is none behind it.
    third = opened(tmp_path / "a.jsonl", **SMALL)
    await third.resume(mark)
    assert names(tmp_path) == ["a-00001.jsonl.part"]
    await third.append([b'{"n":3}'])
    await finish_part(third)
    await third.close()
    assert (tmp_path / "a-00001.jsonl").read_text() == '{"n":1}\n{"n":3}\n'


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
async def test_part_that_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    output = opened(tmp_path / name, **SMALL)
    with pytest.raises(SinkError, match=r"a-00003\.\w+\.part is not there, but 7 bytes of it were written"):
        await output.resume(Mark(20, 2, 13))
    await output.close()
    assert names(tmp_path) == []


async def test_part_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "a.jsonl", **SMALL), opened(tmp_path / "a.jsonl", **SMALL)
    await first.resume(Mark())
    with pytest.raises(SinkBusy):
        await second.resume(Mark())
    await first.append([b"{}"])
    mark = await finish_part(first)
    await first.close()
    await second.resume(mark)
    await second.close()
    assert names(tmp_path) == ["a-00001.jsonl"]


@pytest.mark.parametrize("how", [{}, SMALL])
async def test_files_of_another_crawl_are_refused_and_fresh_deletes_its_own(
    tmp_path: Path, how: dict[str, int]
) -> None:
    target = read_target(str(tmp_path / "a.jsonl"))
    check_target(target, settings(**how), is_new=True)
    output = opened(tmp_path / "a.jsonl", **how)
    await output.resume(Mark())
    await output.append([b"{}"])
    if how:
        await finish_part(output)
    await output.close()
    (tmp_path / "a-1.jsonl").touch()
    with pytest.raises(Exception, match=r"exists and is not of this crawl"):
        check_target(target, settings(**how), is_new=True)
    check_target(target, settings(**how), is_new=False)
    assert [size for _, size in delete_files(target, settings(**how))] == [3]
    assert names(tmp_path) == ["a-1.jsonl"]


async def test_archive_tells_a_payload_of_an_earlier_part_by_its_digest_unless_it_was_cut_off(tmp_path: Path) -> None:
    output = opened(tmp_path / "a.warc.gz", **SMALL)
    await output.resume(Mark())
    same = b"the same in both" * 100
    await output.append([encode_exchanges([exchange_of("http://a/", same), exchange_of("http://b/", b"")])])
    mark = await finish_part(output)
    await output.append([encode_exchanges([exchange_of("http://c/", same), exchange_of("http://d/", b"", 304)])])
    assert kinds(tmp_path / "a-00001.warc.gz") == ["warcinfo", "response", "request", "response", "request"]
    second = ["warcinfo", "revisit", "request", "revisit", "request"]
    assert kinds(tmp_path / "a-00002.warc.gz.part") == second
    # The store took none of it: what is written again must not refer to what is gone.
    await output.resume(mark)
    await output.append([encode_exchanges([exchange_of("http://c/", same), exchange_of("http://e/", same)])])
    assert kinds(tmp_path / "a-00002.warc.gz.part") == ["warcinfo", "response", "request", "revisit", "request"]
    await output.close()


def told(url: str, tag: str, body: bytes = b"", *, asks: bool = False) -> bytes:
    """Return an answer with an ETag, which a request asked about or not; without a body, that nothing changed."""
    one = exchange_of(url, body, 200 if body else 304)
    condition = b"If-None-Match: %b\r\n" % tag.encode() if asks else b""
    request, head = one.request.removesuffix(b"\r\n") + condition + b"\r\n", one.head.removesuffix(b"\r\n")
    head += b"ETag: %b\r\n\r\n" % tag.encode()
    return encode_exchanges([msgspec.structs.replace(one, request=request, head=head)])


async def test_answer_that_nothing_changed_refers_to_the_record_with_the_payload_as_far_as_that_is_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.warc.gz"
    output = opened(path)
    await output.resume(Mark())
    for item in (
        told("http://a/", '"1"', b"text"),
        told("http://b/", '"2"', b"text"),
        told("http://b/", '"2"', asks=True),
        told("http://a/", '"1"', asks=True),
        told("http://c/", '"3"'),
    ):
        mark = await output.append([item])
    await output.close()
    later = opened(path)  # another process, which knows of none
    await later.resume(mark)
    await later.append([told("http://b/", '"2"', asks=True)])
    await later.close()
    assert_valid(path)
    first, *others, unasked, alone = answers_in(path)
    about = {
        "WARC-Refers-To": first["WARC-Record-ID"],
        "WARC-Refers-To-Target-URI": "http://a/",
        "WARC-Refers-To-Date": first["WARC-Date"],
        "WARC-Payload-Digest": first["WARC-Payload-Digest"],
    }
    profiles = [one["WARC-Profile"].rpartition("/")[2] for one in (*others, unasked, alone)]
    assert profiles == ["identical-payload-digest", *["server-not-modified"] * 4]
    assert all(about.items() <= one.items() for one in others)
    assert [name for name in unasked if name.startswith("WARC-Refers")] == [], "nobody asked whether it had changed"
    assert {name: value for name, value in alone.items() if name.startswith("WARC-Refers")} == {
        "WARC-Refers-To-Target-URI": "http://b/"
    }


def answers_in(path: Path) -> list[dict[str, str]]:
    """Return the headers of the records of answers."""
    with open(path, "rb") as file:
        records = [record for record in ArchiveIterator(file) if record.rec_type in ("response", "revisit")]
    return [dict(record.rec_headers.headers) for record in records]


def kinds(path: Path) -> list[str]:
    assert_valid(path)
    with open(path, "rb") as file:
        return [record.rec_type for record in ArchiveIterator(file)]


# -- Parquet


def made(tmp_path: Path, records: Sequence[bytes]) -> Any:
    journal, target = tmp_path / "journal", tmp_path / "a.parquet"
    journal.write_bytes(b"".join(record + b"\n" for record in records))
    parquet.convert(journal, target)
    return pq.read_table(target)


def test_pages_have_typed_columns(tmp_path: Path) -> None:
    table = made(tmp_path, [page_of("http://a/"), page_of("http://b/", title=None, redirects=[])])
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["status"], types["title"], types["redirects"]) == ("int64", "string", "list<element: string>")
    assert types["fetched_at"] == "timestamp[ms, tz=UTC]"
    first, second = table.to_pylist()
    assert (first["bytes"], first["redirects"], first["title"]) == (2**40, ['http://r/,"'], '=HYPERLINK("x";"ü")\r\n,')
    assert first["fetched_at"].isoformat() == "2026-11-30T10:00:00.123000+00:00"
    assert (second["title"], second["redirects"]) == (None, [])


def test_items_have_the_columns_that_occur(tmp_path: Path) -> None:
    items: list[Any] = [
        {"a": 1, "b": True, "c": None, "d": "x", "e": [1], "f": 1, "h": 2**60},
        {"a": 2.5, "b": False, "d": 7, "f": 2**70, "g": "only here", "h": 0.5, "i": 2**60},
        {"i": 1},
        "bare",
    ]
    table = made(tmp_path, [json.dumps(item).encode() for item in items])
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "a": "double", "b": "bool", "c": "string", "d": "string", "e": "string", "f": "string", "g": "string",
        "h": "string", "i": "int64", "item": "string",
    }  # fmt: skip
    assert table["a"].to_pylist() == [1.0, 2.5, None, None]
    assert table["d"].to_pylist() == ['"x"', "7", None, None]
    assert table["e"].to_pylist() == ["[1]", None, None, None]
    assert table["f"].to_pylist() == ["1", str(2**70), None, None]
    assert table["h"].to_pylist() == [str(2**60), "0.5", None, None], "a float does not hold it"
    assert table["i"].to_pylist() == [None, 2**60, 1, None]
    assert table["item"].to_pylist() == [None, None, None, "bare"]


def test_columns_and_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "COLUMNS_MAX", 2)
    monkeypatch.setattr(parquet, "GROUP_RECORDS", 2)
    table = made(tmp_path, [b'{"a":1,"b":2}', b'{"c":3,"a":4}', b'{"b":5,"d":[6]}'])
    assert table.to_pylist() == [
        {"a": 1, "b": 2, "more_json": None},
        {"a": 4, "b": None, "more_json": '{"c":3}'},
        {"a": None, "b": 5, "more_json": '{"d":[6]}'},
    ]
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 2


async def test_journal_becomes_a_file_once_and_a_crawl_that_goes_on_begins_another(tmp_path: Path) -> None:
    output = opened(tmp_path / "a.parquet")
    await output.resume(Mark())
    await output.append([page_of("http://a/")])
    assert names(tmp_path) == ["a.parquet.part"]
    mark = await finish_part(output)
    await output.close()
    assert names(tmp_path) == ["a.parquet"]
    again = opened(tmp_path / "a.parquet")
    await again.resume(mark)
    await again.append([page_of("http://b/")])
    await finish_part(again)
    await again.close()
    assert names(tmp_path) == ["a-00002.parquet", "a.parquet"]
    assert pq.read_table(tmp_path / "a-00002.parquet")["url"].to_pylist() == ["http://b/"]


# -- databases


OLD, NEW = "2026-11-30T10:00:00.000Z", "2026-11-30T10:00:01.000Z"
BATCHES = [
    [page_of("http://a/", fetched_at=NEW, status=404), b'{"id":1,"x":"a"}'],
    [page_of("http://a/", fetched_at=OLD), page_of("http://b/", title=None), b'{"id":1,"x":"\\u0000b"}', b"[1]"],
]


async def test_rows_of_sqlite_are_written_over_but_not_by_an_older_fetch(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    output = SqliteOutput(path)
    await output.resume(Mark())
    for batch in [*BATCHES, BATCHES[1]]:
        await output.append(batch)
    await output.close()
    with closing(sqlite3.connect(path)) as read:
        assert read.execute("SELECT url, status, title IS NULL FROM pages ORDER BY url").fetchall() == [
            ("http://a/", 404, 0),
            ("http://b/", 200, 1),
        ]
        assert read.execute("SELECT item FROM items ORDER BY item").fetchall() == [
            ("[1]",),
            (r'{"id":1,"x":"\u0000b"}',),
        ]
        assert read.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_sqlite_that_is_locked_is_waited_for_and_one_that_is_gone_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamcrawl.sinks.sqlite.BUSY_S", 0.05)
    path = tmp_path / "a.db"
    output = SqliteOutput(path)
    await output.resume(Mark())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkWaits, match="locked"):
            await output.append(BATCHES[0])
        other.execute("ROLLBACK")
    assert await output.append(BATCHES[0]) == Mark(2)
    path.rename(tmp_path / "b.db")
    with pytest.raises(SinkError, match="was deleted or replaced"):
        await output.append(BATCHES[1])
    await output.close()
    with pytest.raises(SinkError, match="is not there, but 2 records were written"):
        await SqliteOutput(path).resume(Mark(2))


async def test_older_table_of_sqlite_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as old:
        old.execute("CREATE TABLE pages (url TEXT NOT NULL, fingerprint TEXT NOT NULL PRIMARY KEY, fetched_at TEXT)")
    output = SqliteOutput(tmp_path / "a.db")
    await output.resume(Mark())
    await output.append([page_of("http://a/")])
    await output.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as read:
        assert read.execute("SELECT status FROM pages").fetchall() == [(200,)]


async def test_rows_of_postgres_are_written_over_but_not_by_an_older_fetch(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE pages (url text, fingerprint text PRIMARY KEY, fetched_at timestamptz)")
    await connection.close()
    output = open_output(read_target(database), settings())
    await output.resume(Mark())
    for batch in [*BATCHES, BATCHES[1]]:
        mark = await output.append(batch)
    assert mark == Mark(10)
    await output.close()
    assert await rows(database, "SELECT (url, status, title IS NULL) FROM pages") == [
        ("http://a/", 404, False),
        ("http://b/", 200, True),
    ]
    # NUL, which PostgreSQL keeps in no text, is U+FFFD.
    assert await rows(database, "SELECT item::text FROM items") == ["[1]", '{"x": "\ufffdb", "id": 1}']
    connection = await asyncpg.connect(database)
    await connection.execute("DROP TABLE pages")
    await connection.close()
    with pytest.raises(SinkError, match="has no table 'pages' any more"):
        await output.resume(mark)


async def test_database_that_does_not_take_us_is_one_line_without_the_password(database: str) -> None:
    await check_database(read_target(database))
    for wrong, message in (
        (database.replace("hunter2", "hunter3"), "password"),
        (database[:-3] + "000", "does not exist"),
    ):
        with pytest.raises(Exception, match=message) as caught:
            await check_database(read_target(wrong))
        assert "hunter" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_full_disk_leaves_the_journal_and_nothing_half_made(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from streamcrawl.sinks.files import Parts
from streamcrawl.sinks.output import SinkDiskFull
from streamcrawl.sinks.parquet import convert
path = Path(sys.argv[1])
parts = Parts(path, ".parquet", convert=convert)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    parts.settle(1)
except SinkDiskFull as error:
    print(error)
assert [file.name for file in path.parent.iterdir()] == ["a.parquet.part"]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
parts.settle(1)
"""
    items = [b'{"n":%d,"text":"%x"}' % (n, n**40) for n in range(1000)]
    (tmp_path / "a.parquet.part").write_bytes(b"\n".join(items) + b"\n")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.parquet")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert names(tmp_path) == ["a.parquet"]
    assert pq.read_table(tmp_path / "a.parquet")["n"].to_pylist() == list(range(1000))
