"""What the stack crawls with `-f deploy/sample/stages.yml`: fetch, parse, save, each a service of its own."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from streamcrawl import Crawl, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

DATABASE = os.environ.get("PAGES", "/data/pages.db")

crawl = Crawl("sample", scope="host")


@dataclass
class Page:
    """What is kept of a page."""

    url: str
    title: str
    links: int


@crawl.on_start(stages=["save"])
async def database() -> AsyncIterator[sqlite3.Connection]:
    """Open the database once in each worker that writes to it."""
    with closing(sqlite3.connect(DATABASE, timeout=30, isolation_level=None)) as connection:
        connection.execute("create table if not exists pages (url text primary key, title text, links integer)")
        yield connection


@crawl.page(own_stage=True)
def parse(response: Response) -> Iterator[Page | Request]:
    """Read a page, away from where it was fetched."""
    title = response.css_first("title")
    links = response.links()
    yield Page(response.url, title.text() if title is not None else "", len(links))
    for link in links:
        yield response.follow(link)


@crawl.sink(batch=50, linger_s=1)
async def save(pages: list[Page]) -> None:
    """Keep them: by URL, because a batch may come again."""
    database.value.executemany("insert or replace into pages values (?, ?, ?)", [astuple(page) for page in pages])
