"""The examples, each run as its own docstring says."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from itertools import takewhile
from typing import TYPE_CHECKING

import asyncpg
from warcio.archiveiterator import ArchiveIterator

from examples.sites import ARTICLES_PER_DAY, CHAPTERS, DAYS, ITEMS, Answer, Manual, Shop, Site, price_of
from streamcrawl.errors import ExitCode
from tests.e2e.command import REPOSITORY
from tests.integration.test_sink_formats import assert_valid, database, postgres
from tests.redis_server import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.command import Command

__all__ = ["database", "postgres"]
"""Fixtures."""


def run(example: str, folder: Path, *words: str, code: int = 0, **environment: str) -> str:
    """Run an example to its end, and return what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STREAMCRAWL_")}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *words],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_price_monitor_says_what_changed(tmp_path: Path) -> None:
    assert run("price_monitor", tmp_path) == f"day 1: {ITEMS} prices are new\nday 2: {ITEMS // 5} prices are new\n"
    changes = [json.loads(line) for line in (tmp_path / "changes-2.jsonl").read_text().splitlines()]
    assert {change["name"]: (change["before"], change["price"]) for change in changes} == {
        f"Item {item}": (price_of(item, 1), price_of(item, 2)) for item in range(0, ITEMS, 5)
    }
    with closing(sqlite3.connect(tmp_path / "prices.db")) as prices:
        assert dict(prices.execute("select name, price from prices")) == {
            f"Item {item}": price_of(item, 2) for item in range(ITEMS)
        }


def prices_of_two_days() -> dict[str, tuple[float | None, float]]:
    """Return what each item cost before and costs now, as its row says after two days: only every fifth was changed."""
    return {f"Item {item}": (price_of(item, 1) if item % 5 == 0 else None, price_of(item, 2)) for item in range(ITEMS)}


def by_name(rows: list[str]) -> dict[str, tuple[float | None, float]]:
    items = [json.loads(row) for row in rows]
    assert len({item["id"] for item in items}) == len(items)
    return {item["name"]: (item["before"], item["price"]) for item in items}


ROWS = f"day 1: {ITEMS} rows are new\nday 2: {ITEMS // 5} rows are new\n"


def test_price_table_has_a_row_for_each_item_in_sqlite(tmp_path: Path) -> None:
    assert run("price_table", tmp_path) == ROWS
    with closing(sqlite3.connect(tmp_path / "prices.db")) as read:
        assert by_name([row for (row,) in read.execute("select item from items")]) == prices_of_two_days()


def test_price_table_follows_the_prices_of_pages_that_are_visited_again(command: Command) -> None:
    path = command.folder / "prices.db"

    def rows() -> dict[str, tuple[float | None, float]]:
        with closing(sqlite3.connect(path)) as read, suppress(sqlite3.OperationalError):  # no table yet
            return by_name([row for (row,) in read.execute("select item from items")])
        return {}

    words = ("run", "examples.price_table:crawl", "-o", "sqlite:///prices.db", "--revisit", "2s", "--revisit-min", "1s")
    with Shop() as shop, command.start(*words, shop.url, PYTHONPATH=str(REPOSITORY)) as running:
        running.until(lambda: len(rows()) == ITEMS, "the prices of the first day")
        shop.day = 2
        running.until(lambda: rows() == prices_of_two_days(), "the prices of the second day")
        running.interrupt()
        assert running.wait().code == ExitCode.STOPPED


async def test_price_table_has_a_row_for_each_item_in_postgresql(tmp_path: Path, database: str) -> None:
    assert run("price_table", tmp_path, database) == ROWS
    connection = await asyncpg.connect(database)
    try:
        assert by_name([row[0] for row in await connection.fetch("select item from items")]) == prices_of_two_days()
    finally:
        await connection.close()


def test_news_archive_holds_every_article_as_it_was_answered(tmp_path: Path) -> None:
    out = run("news_archive", tmp_path)
    # The copy of a story of the first day is listed by its own address.
    assert re.findall(r"\d+(?= articles)", out) == [str(ARTICLES_PER_DAY + 1), *[str(ARTICLES_PER_DAY)] * (DAYS - 1)]
    archive = tmp_path / "news.warc.gz"
    assert_valid(archive)
    kinds: dict[str, str] = {}
    with archive.open("rb") as file:
        for record in ArchiveIterator(file):
            if record.rec_type in ("response", "revisit"):
                kinds[record.rec_headers.get_header("WARC-Target-URI")] = record.rec_type
    articles = [json.loads(line) for line in (tmp_path / "articles.jsonl").read_text().splitlines()]
    listed = {article["url"] for article in articles}
    assert len(listed) == len(articles)
    assert listed == {url for url in kinds if "/story/" in url or "/copy/" in url}
    assert [url.rpartition("/copy/")[2] for url, kind in kinds.items() if kind == "revisit"] == ["0"]
    assert not any("imprint" in url for url in kinds)


def report(out: str) -> dict[str, list[str]]:
    """Return the broken links of a report, why, and the pages that they stand on."""
    lines, found = out.splitlines(), dict[str, list[str]]()
    for at, line in enumerate(lines):
        if not line.startswith(" "):
            pages = takewhile(lambda page: page.startswith("    on "), lines[at + 1 :])
            found[line] = [page.removeprefix("    on ") for page in pages]
    return found


def test_link_checker_names_broken_links_and_their_pages(tmp_path: Path) -> None:
    out = re.sub(r"http://127\.0\.0\.1:\d+", "", run("link_checker", tmp_path, code=1))
    both = [f"/chapter/{number}" for number in (CHAPTERS - 2, CHAPTERS - 1)]
    assert report(out) == {
        "/gone  404": both,
        "/moved  404": both,
        f"/draft/{CHAPTERS - 2}  http_500": both[:1],
        f"/draft/{CHAPTERS - 1}  http_500": both[1:],
    }


class Linked(Site):
    """One page with links, and redirects to other sites."""

    def __init__(self, links: list[str], away: dict[str, str]) -> None:
        super().__init__()
        self.links = [*links, *away]
        self.away = away

    def answer(self, path: str) -> Answer:
        if path in self.away:
            return Answer(status=302, location=self.away[path])
        return Answer("".join(f'<a href="{link}">x</a>' for link in self.links))


def test_link_checker_asks_other_sites_only_when_told_and_searches_none_of_them(tmp_path: Path) -> None:
    with Manual() as manual:
        # The chapters are well, and what they link to is no matter of this site.
        chapters = [f"{manual.url}chapter/{number}" for number in (CHAPTERS - 2, CHAPTERS - 1)]
        gone, silent = f"{manual.url}gone", f"http://127.0.0.1:{free_port()}/"
        with Linked([chapters[0], gone, silent], {"/well": chapters[1], "/ill": f"{manual.url}lost"}) as site:
            # Whatever Redis the environment names has no part in it.
            assert run("link_checker", tmp_path, site.url, STREAMCRAWL_REDIS="redis://127.0.0.1:1/0") == ""
            out = run("link_checker", tmp_path, site.url, "--external", code=1, STREAMCRAWL_HOST_GIVE_UP="1s")
            assert report(out) == {
                f"{gone}  404": [site.url],
                f"{silent}  host_unreachable": [site.url],
                f"{site.url}ill  404": [site.url],
            }
