"""A price table: what every item of a shop costs now, in SQLite or PostgreSQL, a row for each item.

fetch → `catalogue` and `item` → `compare` → `-o DATABASE`, which writes each price over the one before, by its `id`.
The program asks the table by one query; what writes it is no code of ours. One command crawls a shop of its own, twice:

    python -m examples.price_table                                     # into prices.db
    python -m examples.price_table postgresql://me@10.0.0.6/shop       # needs: pip install 'streamcrawl[postgres]'

For a shop of yours, each page of which is visited again after a day, sooner where prices change. The database is named
twice, for the one who reads it and for the one who writes it:

    export PRICES=postgresql://me@10.0.0.6/shop
    streamcrawl run examples.price_table:crawl https://shop.example.org/ -o "$PRICES" --revisit 1d

`price_monitor` is the same with a sink of its own, for what `-o` does not know.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from examples.running import streamcrawl
from examples.sites import Shop
from streamcrawl import Crawl, Drop, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import asyncpg

DATABASE = os.environ.get("PRICES", "sqlite:///prices.db")

crawl = Crawl("price-table", scope="host", delay=0.2)


@dataclass
class Offer:
    """What the page of an item says."""

    url: str
    name: str
    price: float


@dataclass
class Price:
    """A row of the table: what an item costs, and what it cost before; None for one that is new."""

    id: str
    """Its URL: `-o` writes over the row that has the same."""
    name: str
    price: float
    before: float | None


class Rows(Protocol):
    """What can be asked of the database."""

    async def item(self, key: str) -> str | None:
        """Return the row of this id as JSON; None when there is none."""


class SqliteRows:
    """The rows that `-o sqlite:///FILE` writes."""

    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        # The crawl makes its tables when it begins to write, which may be later than our first question.
        self.connection.execute(
            "create table if not exists items (id text not null, item text not null, primary key (id))"
        )

    async def item(self, key: str) -> str | None:
        row = self.connection.execute("select item from items where id = ?", (key,)).fetchone()
        return None if row is None else str(row[0])


class PostgresRows:
    """The rows that `-o postgresql://…` writes; the crawl makes its tables before it begins."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool

    async def item(self, key: str) -> str | None:
        found: str | None = await self.pool.fetchval("select item from items where id = $1", key)
        return found


@crawl.on_start(stages=["compare"])
async def rows() -> AsyncIterator[Rows]:
    """Open the database once in each worker that asks it."""
    if DATABASE.startswith("sqlite:///"):
        opened = SqliteRows(DATABASE.removeprefix("sqlite:///"))
        with closing(opened.connection):
            yield opened
    else:
        import asyncpg  # an extra, which SQLite does without

        async with asyncpg.create_pool(DATABASE, min_size=1, max_size=4) as pool:
            yield PostgresRows(pool)


@crawl.page
def catalogue(response: Response) -> Iterator[Request]:
    """Follow the pages of the catalogue, and its items with another handler."""
    for link in response.css("a.item"):
        yield response.follow(link.attributes["href"] or "", label="item")
    for link in response.css("a.next"):
        yield response.follow(link.attributes["href"] or "", priority="high")


@crawl.page(label="item")
def item(response: Response) -> Offer:
    """Read the price from the page of an item."""
    name, price = response.css_first("h1"), response.css_first(".price")
    if name is None or price is None:
        raise Drop("no_price")
    return Offer(response.url, name.text(), float(price.text().removeprefix("€ ")))


@crawl.stage(concurrency=4)
async def compare(offer: Offer) -> Price | None:
    """Look up what it cost before; the row of one that costs the same stays as it is."""
    row = await rows.value.item(offer.url)
    before = None if row is None else msgspec.json.decode(row, type=Price).price
    return None if before == offer.price else Price(offer.url, offer.name, offer.price, before)


def main(database: str) -> None:
    """Watch a shop of our own for two days."""
    with Shop() as shop:
        for shop.day in (1, 2):
            output = f"day-{shop.day}.jsonl"
            streamcrawl(
                *("run", "examples.price_table:crawl", shop.url, "--delay", "0", "--fresh", "-q"),
                *("-o", database, "-o", output),
                PRICES=database,
            )
            with open(output, encoding="utf-8") as written:
                print(f"day {shop.day}: {len(written.readlines())} rows are new")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DATABASE)
