"""What formats make of records, without a disk and without a server."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ConfigError, SinkError
from streamcrawl.sinks import targets
from streamcrawl.sinks.columns import PAGE_COLUMNS, fields_of, is_page, item_id
from streamcrawl.sinks.csv_lines import CsvLines
from streamcrawl.sinks.databases import Batch
from streamcrawl.sinks.output import Mark
from streamcrawl.sinks.postgres import without_password
from streamcrawl.sinks.targets import Kind, read_target

if TYPE_CHECKING:
    from pathlib import Path

PAGE: dict[str, Any] = {
    "url": "http://a.test/", "final_url": "http://a.test/", "status": 200, "depth": 0, "referrer": None,
    "fetched_at": "2026-11-30T10:00:00.123Z", "elapsed_ms": 1, "content_type": "text/html", "charset": "utf-8",
    "bytes": 9, "title": "A", "links": 0, "attempts": 1, "redirects": ["http://b.test/"],
    "fingerprint": "0123456789abcdef",
}  # fmt: skip


def lines(*items: Any) -> list[bytes]:
    return [json.dumps(item).encode() for item in items]


def csv_rows(*items: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(CsvLines().encode(lines(*items), 0).decode(), newline=""), strict=True))


def test_columns_of_a_page_are_its_fields_in_their_order() -> None:
    assert [column.name for column in PAGE_COLUMNS] == list(PAGE)
    kinds = {column.name: (column.kind, column.is_needed) for column in PAGE_COLUMNS}
    assert (kinds["referrer"], kinds["bytes"], kinds["redirects"]) == ((str, False), (int, True), (list, True))


@pytest.mark.parametrize(
    ("item", "is_one"),
    [
        (PAGE, True),
        (PAGE | {"more": 1}, False),
        ({name: value for name, value in PAGE.items() if name != "url"}, False),
        (PAGE | {"status": "200"}, False),
        ({"title": "A"}, False),
        ([1], False),
    ],
)
def test_page_is_what_has_its_fields_and_no_others(item: Any, is_one: bool) -> None:
    assert is_page(fields_of(*lines(item))) is is_one


def test_item_is_known_by_its_id_or_by_all_of_it() -> None:
    def known(item: Any) -> str:
        [line] = lines(item)
        return item_id(line, fields_of(line))

    assert known({"id": 7, "fingerprint": "f"}) == "7"
    assert known({"id": None, "fingerprint": "f"}) == "f"
    assert known({"a": 1}) == known({"a": 1}) != known({"a": 2})
    assert known([1]) != known([2])


# -- CSV


def test_page_in_csv_has_a_header_once_and_json_in_cells() -> None:
    header, row, second = csv_rows(PAGE, PAGE | {"title": 'a "b",\r\nc', "redirects": []})
    assert header == list(PAGE)
    assert row == [
        "http://a.test/", "http://a.test/", "200", "0", "", "2026-11-30T10:00:00.123Z", "1", "text/html", "utf-8", "9",
        "A", "0", "1", '["http://b.test/"]', "0123456789abcdef",
    ]  # fmt: skip
    assert (second[10], second[13]) == ('a "b",\r\nc', "[]")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "'x", "＝1"])
def test_no_text_is_a_formula_and_every_text_can_be_had_back(text: str) -> None:
    cell = csv_rows({"a": text})[1][0]
    assert cell == "'" + text
    assert csv_rows({"a": "x" + text})[1][0] == "x" + text


def test_numbers_are_no_formulas() -> None:
    assert csv_rows({"a": -1.5, "b": True, "c": None, "d": {"x": 1}})[1] == ["-1.5", "true", "", '{"x":1}', ""]


def test_fields_that_come_later_are_kept_in_one_column() -> None:
    rows = csv_rows({"a": 1, "b": 2}, {"b": 3, "c": [4], "d": "x"}, [5])
    assert rows == [["a", "b", "more_json"], ["1", "2", ""], ["", "3", '{"c":[4],"d":"x"}'], ["", "", '{"item":[5]}']]


def test_item_in_a_file_of_pages_is_refused_rather_than_cut() -> None:
    with pytest.raises(SinkError, match="an item with the field 'price' has no place"):
        CsvLines().encode(lines(PAGE, {"price": 1}), 0)


# -- databases


def test_batch_keeps_the_newest_fetch_of_a_page_and_the_last_item_of_an_id() -> None:
    newer = PAGE | {"fetched_at": "2026-11-30T10:00:01.000Z", "status": 404}
    batch = Batch.of(lines(newer, PAGE, {"id": 1, "n": 1}, {"id": 1, "n": 2}))
    assert [row[2] for row in dict(batch.rows())["pages"]] == [404]
    assert dict(batch.rows())["items"] == [("1", b'{"id": 1, "n": 2}')]
    assert list(Batch.of([]).rows()) == []


def test_mark_of_a_store_that_knows_no_parts() -> None:
    assert Mark.of(7, "") == Mark(7, 0, 0)
    assert Mark.of(90, "3 70") == Mark(90, 3, 70)
    assert Mark.of(90, Mark(90, 3, 70).stored_part) == Mark(90, 3, 70)
    # A part that has just begun is later than the end of the one before.
    assert max(Mark(90, 2, 10), Mark(90, 3, 90), Mark(80, 2, 10)) == Mark(90, 3, 90)


# -- targets


@pytest.mark.parametrize(
    ("given", "kind", "place"),
    [
        ("a.jsonl", Kind.JSONL, "{here}/a.jsonl"),
        ("x/../a b.csv", Kind.CSV, "{here}/a b.csv"),
        ("/tmp/a.parquet", Kind.PARQUET, "/tmp/a.parquet"),
        ("a.warc.gz", Kind.WARC, "{here}/a.warc.gz"),
        ("sqlite:///a.db", Kind.SQLITE, "sqlite:///{here}/a.db"),
        ("sqlite:////tmp/a%20b.db", Kind.SQLITE, "sqlite:////tmp/a b.db"),
        ("postgresql://me:pw@h:1/d?password=x&sslmode=require", Kind.POSTGRES, "postgresql://me@h:1/d?sslmode=require"),
        ("postgres:///d", Kind.POSTGRES, "postgres:///d"),
    ],
)
def test_ending_or_scheme_says_the_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, kind: Kind, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    target = read_target(given)
    assert (target.kind, target.place) == (kind, place.format(here=tmp_path))
    assert read_target(target.place).name == target.name
    assert target.name.startswith("warc-" if kind is Kind.WARC else "out-")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a.xml", "the format is told by the ending or the scheme"),
        (".jsonl", "the format is told by the ending"),
        ("mysql://me:hunter2@h/d", "there is no such output; give FILE.jsonl"),
        ("sqlite://a.db", "write sqlite:///FILE.db"),
        ("sqlite:///", "write sqlite:///FILE.db"),
        ("postgresql://me:hunter2#x@h/d", "that is no URL .write / . # and @"),
        ("postgresql://me:x/hunter2@h/d", "that is no URL"),
    ],
)
def test_output_that_cannot_be_is_one_line(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_target(given)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("given", "extra"), [("a.parquet", "parquet"), ("postgresql://h/d", "postgres")])
def test_missing_extra_is_one_line_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, given: str, extra: str
) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=rf"not installed: pip install 'streamcrawl\[{extra}\]'"):
        read_target(given)
    assert read_target("a.csv").kind is Kind.CSV


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@h:5432/d", "postgresql://me@h:5432/d"),
        ("postgresql://me:hun@ter2@h/d", "postgresql://me@h/d"),
        ("postgresql://h/d?user=me&password=hunter2", "postgresql://h/d?user=me"),
        ("postgresql:///d", "postgresql:///d"),
    ],
)
def test_password_of_a_database_is_never_stored(url: str, shown: str) -> None:
    assert without_password(url) == shown
