"""A price monitor: what does every item of a shop cost, and what has changed since the last time?

fetch → `catalogue` and `item` → `compare` → `save`, each a stage that is scaled by itself. The prices are kept in
SQLite; what changed goes to a file as well. One command crawls a shop of its own, twice, with other prices:

    python -m examples.price_monitor

For a shop of yours, and with as many machines as wanted:

    streamcrawl run examples.price_monitor:crawl https://shop.example.org/ -o changes.jsonl --redis redis://10.0.0.5/0
    streamcrawl worker examples.price_monitor:crawl --stage compare --redis redis://10.0.0.5/0
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from examples.running import streamcrawl
from examples.sites import Shop
from streamcrawl import Crawl, Drop, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

DATABASE = os.environ.get("PRICES", "prices.db")

crawl = Crawl("prices", scope="host", delay=0.2)


@dataclass
class Offer:
    """What an item costs now."""

    url: str
    name: str
    price: float


@dataclass
class Change:
    """The same, and what it cost before; None for an item that is new."""

    url: str
    name: str
    price: float
    before: float | None


@crawl.on_start(stages=["compare", "save"])
async def database() -> AsyncIterator[sqlite3.Connection]:
    """Open the prices once in each worker that needs them."""
    with closing(sqlite3.connect(DATABASE, timeout=30, isolation_level=None)) as connection:
        connection.execute("create table if not exists prices (url text primary key, name text, price real)")
        yield connection


@crawl.page
def catalogue(response: Response) -> Iterator[Request]:
    """Follow the pages of the catalogue, and its items with another handler; items go first."""
    for link in response.css("a.item"):
        yield response.follow(link.attributes["href"] or "", label="item", priority="high")
    for link in response.css("a.next"):
        yield response.follow(link.attributes["href"] or "")


@crawl.page(label="item")
def item(response: Response) -> Offer:
    """Read the price from the page of an item."""
    name, price = response.css_first("h1"), response.css_first(".price")
    if name is None or price is None:
        raise Drop("no_price")
    return Offer(response.url, name.text(), float(price.text().removeprefix("€ ")))


@crawl.stage(concurrency=4)
async def compare(offer: Offer) -> Change | None:
    """Look up what it cost before; one that costs the same needs nothing more."""
    row = database.value.execute("select price from prices where url = ?", (offer.url,)).fetchone()
    before = row[0] if row else None
    return None if before == offer.price else Change(**asdict(offer), before=before)


@crawl.sink(batch=20, linger_s=0.2)
async def save(changes: list[Change]) -> None:
    """Keep the new prices: by URL, because a batch may come again."""
    rows = [(change.url, change.name, change.price) for change in changes]
    database.value.executemany("insert or replace into prices values (?, ?, ?)", rows)


def main() -> None:
    """Watch a shop of our own for two days."""
    with Shop() as shop:
        for shop.day in (1, 2):
            output = f"changes-{shop.day}.jsonl"
            streamcrawl("run", "examples.price_monitor:crawl", shop.url, "--delay", "0", "-o", output, "--fresh", "-q")
            with open(output, encoding="utf-8") as changes:
                print(f"day {shop.day}: {len(changes.readlines())} prices are new")


if __name__ == "__main__":
    main()
