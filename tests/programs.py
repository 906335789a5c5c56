"""Programs for tests: `streamcrawl run tests.programs:<name>`.

What their functions do is noted in the file that TESTS_JOURNAL names, one JSON object a line, so what ran, how often
and in which process is known even when the process did not survive. TESTS_NAP says how long the slow ones sleep,
TESTS_GATE is a file without which some wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from streamcrawl import Crawl, Drop, Request, Response, Retry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NAP_S = float(os.environ.get("TESTS_NAP", "0"))


def note(what: str, url: str, **fields: Any) -> None:
    """Write a line of the journal, in one write: several processes share it."""
    if journal := os.environ.get("TESTS_JOURNAL"):
        with open(journal, "ab", buffering=0) as file:
            file.write(json.dumps({"what": what, "pid": os.getpid(), "url": url, **fields}).encode() + b"\n")


def noted(journal: Path, what: str) -> list[dict[str, Any]]:
    """Return what was noted by this word, oldest first; a line that is being written does not count."""
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    return [line for line in map(json.loads, lines) if line["what"] == what]


@dataclass
class Found:
    """What a page is about."""

    url: str
    title: str


class Weighed(msgspec.Struct):
    """The same with a weight."""

    url: str
    weight: int


def find(response: Response) -> Iterator[Request | Found]:
    """Follow everything, and find the page itself."""
    for link in response.links():
        yield response.follow(link)
    if response.status == 200:
        yield Found(response.final_url, response.page.title or "")


# -- three stages and a sink, one of each kind of function; every item once

pipeline = Crawl("pipeline", delay="0", obey_robots="no")
pipeline.page(find)


@pipeline.on_start(stages=["keep"])
async def database() -> AsyncIterator[sqlite3.Connection]:
    """A table of what was kept, by URL."""
    with closing(sqlite3.connect("kept.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("create table if not exists kept (url text primary key, weight int, label text)")
        yield connection
        note("closed", "")


@pipeline.stage(concurrency=2)
async def weigh(found: Found) -> Weighed:
    """Sleep, and weigh."""
    note("weighing", found.url)
    await asyncio.sleep(NAP_S)
    note("weighed", found.url)
    return Weighed(found.url, len(found.title))


@pipeline.stage(concurrency=4)
def label(weighed: Weighed) -> dict[str, Any]:
    """Make a plain dict of it, in a thread."""
    return {"url": weighed.url, "weight": weighed.weight, "label": "even" if weighed.url[-1] in "02468" else "odd"}


@pipeline.sink(batch=10, linger_s=0.05)
async def keep(labelled: list[dict[str, Any]]) -> None:
    """Upsert them: a batch may come again."""
    rows = [(one["url"], one["weight"], one["label"]) for one in labelled]
    database.value.executemany("insert or replace into kept values (?, ?, ?)", rows)


# -- functions that fail, each in its way

choosy = Crawl("choosy", delay="0", obey_robots="no", attempts_max="2", retry_base="10ms")
choosy.page(find)
POISON = "/p/13"


@choosy.stage
async def judge(found: Found) -> Found:
    """Drop, retry and fail by the last digits of the URL."""
    number = int(found.url.rpartition("/")[2])
    note("judged", found.url)
    if number == 5:
        raise Retry("never now \ud800", after_s=0.01)  # what no encoding takes, as of a file's name
    if number == 7:
        raise ValueError("seven is too much \udcff")
    if number % 10 == 0:
        raise Drop("tenth")
    return found


@choosy.sink(batch=8, linger_s=0.3, attempts=1)
def save(batch: list[Found]) -> None:
    """Refuse a batch with the poison in it before anything of it is saved."""
    note("batch", "", size=len(batch))
    if any(found.url.endswith(POISON) for found in batch):
        raise ValueError("poison in the batch")
    for found in batch:
        note("saved", found.url)


# -- a sink that stands still until a file is there

stalled = Crawl("stalled", delay="0", obey_robots="no", stage_waiting_max=10)
stalled.page(find)


@stalled.stage(concurrency=2)
async def forward(found: Found) -> Found:
    """Hand on as it is."""
    return found


@stalled.sink(batch=5, linger_s=0.05)
async def swallow(batch: list[Found]) -> None:
    """Wait for the gate."""
    while not os.path.exists(os.environ["TESTS_GATE"]):  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    for found in batch:
        note("swallowed", found.url)


# -- pages that are parsed by a stage of their own; one of them fails until the gate is there

parsed = Crawl("parsed", delay="0", obey_robots="no", attempts_max=1)


@parsed.page(own_stage=True, concurrency=4)
def parse(response: Response) -> Iterator[Request | Found]:
    """Do as `find`, elsewhere."""
    note("parsed", response.url)
    if response.url.endswith(POISON) and not os.path.exists(os.environ["TESTS_GATE"]):
        raise ValueError("not yet")
    assert response.is_html
    assert response.headers["Content-Type"]
    yield from find(response)


@parsed.stage
async def forth(found: Found) -> Found:
    """Get what pages give, wherever they are parsed."""
    return found


# -- what a request can say

asking = Crawl("asking", delay="0", obey_robots="no")


@asking.page
async def start(response: Response) -> AsyncIterator[Request]:
    """Ask for the same URL in several ways."""
    url = response.links()[0]
    yield response.follow(url, label="detail", meta={"from": response.url, "n": 1}, headers={"X-Token": "abc"})
    yield response.follow(url, label="detail", meta={"n": 2}, method="POST", body="q=1")
    yield response.follow(url, label="detail", meta={"n": 3}, method="POST", body="q=2", priority="high")
    yield response.follow(url, label="detail", meta={"n": 4}, method="POST", body="q=1")  # known already


@asking.page(label="detail")
async def detail(response: Response) -> dict[str, Any]:
    """Say what the server heard."""
    heard = [node.text() for node in response.css("p")]
    return {"url": response.url, "meta": response.meta, "label": response.label, "heard": heard}


# -- two stages of which the second is the slower one; in each some items die, and what the first one gives is kept

watched = Crawl("watched", delay="50ms", stage_waiting_max=40, attempts_max=2, retry_base="10ms")
watched.page(find)


@watched.stage(concurrency=4, retain="1h")
async def first_look(found: Found) -> Found:
    """Sleep; fail at every tenth, and drop another one."""
    await asyncio.sleep(NAP_S)
    if found.url.endswith("3"):
        raise ValueError("three is too much")
    if found.url.endswith("5"):
        raise Drop("five")
    return found


@watched.stage(concurrency=1)
async def second_look(found: Found) -> dict[str, Any]:
    """Do the same with others."""
    await asyncio.sleep(NAP_S)
    if found.url.endswith("7"):
        raise ValueError("seven is too much")
    if found.url.endswith("9"):
        raise Drop("nine")
    return {"url": found.url}


# -- two stages whose slots adapt: one waits for the gate, the other holds its event loop

roomy = Crawl("roomy", delay="0", obey_robots="no")
roomy.page(find)


@roomy.stage(source="page", concurrency=(2, 64))
async def idle(found: Found) -> None:
    """Wait for the gate."""
    note("idle", found.url)
    while not os.path.exists(os.environ["TESTS_GATE"]):  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)


@roomy.stage(source="page", concurrency=(2, 64))
async def burn(found: Found) -> None:
    """Keep the loop from everything else."""
    time.sleep(NAP_S)  # noqa: ASYNC251 - what it must not do
    note("burnt", found.url)


# -- two versions of a program, and one that lacks a stage


def versioned(version: int) -> Crawl:
    """Return the crawl whose stage `work` is of this version; the first one's stands still until the gate is there."""
    crawl = Crawl("versioned", delay="0", obey_robots="no")
    crawl.page(find)

    @crawl.stage(name="work", version=version, concurrency=4)
    async def work(found: Found) -> dict[str, Any]:
        while version == 1 and not os.path.exists(os.environ["TESTS_GATE"]):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
        return {"url": found.url, "version": version}

    return crawl


first, second = versioned(1), versioned(2)
lacking = Crawl("versioned", delay="0", obey_robots="no")

# -- a chain of every kind of stage, of which one stands until the gate is there

gated = Crawl("gated", delay="0", obey_robots="no", stage_waiting_max=4, retry_base="10ms")


async def stand(what: str, url: str) -> None:
    """Note the beginning and the end, and in between wait for the gate where TESTS_BLOCK says so."""
    note(what, url)
    while os.environ.get("TESTS_BLOCK") == what and not os.path.exists(os.environ["TESTS_GATE"]):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)
    note(f"{what} ended", url)


@gated.page
def handle(response: Response) -> Iterator[Request | Found]:
    """Send what the page links to to the stage that parses; in a thread of the worker that fetches."""
    asyncio.run(stand("handle", response.url))
    if response.depth == 0:
        for link in response.links():
            yield response.follow(link, label="deep")
    yield from (found for found in find(response) if isinstance(found, Found))


@gated.page(own_stage=True, label="deep", concurrency=1)
async def dissect(response: Response) -> AsyncIterator[Found]:
    """Find the page itself."""
    await stand("dissect", response.url)
    for found in find(response):
        if isinstance(found, Found):
            yield found


@gated.stage(concurrency=1)
async def middle(found: Found) -> Found:
    """Hand on as it is."""
    await stand("middle", found.url)
    return found


@gated.sink(batch=2, linger_s=0.02, source="middle")
async def store(batch: list[Found]) -> None:
    """Note each."""
    for found in batch:
        await stand("store", found.url)


# -- a handler needs what is not installed until the gate is there

lean = Crawl("lean", delay="0", obey_robots="no", depth_max=1)


@lean.page
async def select(response: Response) -> AsyncIterator[Request | dict[str, str]]:
    """Ask by XPath, without lxml at first."""
    if not os.path.exists(os.environ["TESTS_GATE"]):  # noqa: ASYNC240
        sys.modules["lxml"] = None  # type: ignore[assignment]
    for link in response.xpath("//a/@href"):
        yield response.follow(link)
    yield {"url": response.url}


# -- what a worker opens cannot be opened at first

unlucky = Crawl("unlucky", delay="0", obey_robots="no", depth_max=0)


@unlucky.on_start
async def door() -> AsyncIterator[str]:
    """Fail in the first two processes."""
    note("knocking", "")
    if len(noted(Path(os.environ["TESTS_JOURNAL"]), "knocking")) < 3:
        raise OSError("the door is shut")
    yield "open"


@unlucky.page
async def enter(response: Response) -> dict[str, str]:
    """Say what was opened."""
    return {"url": response.url, "door": door.value}


# -- what a stage gave is kept, with the pages that it was made of; a sink comes later


def retaining(*, has_late: bool) -> Crawl:
    """Return the crawl with or without its second sink."""
    crawl = Crawl("retaining", delay="0", obey_robots="no", keep_bodies="1h", stage_waiting_max=20)

    @crawl.page(own_stage=True, retain="1h", concurrency=4)
    def parse(response: Response) -> Iterator[Request | Found]:
        """Note it, and do as `find`."""
        note("parsed", response.url)
        yield from find(response)

    @crawl.sink(batch=10, linger_s=0.05)
    async def early(batch: list[Found]) -> None:
        """Note them."""
        for found in batch:
            note("early", found.url)

    if has_late:

        @crawl.sink(batch=5, linger_s=0.05)
        async def late(batch: list[Found]) -> None:
            """Note them, slowly where it is asked for."""
            await asyncio.sleep(NAP_S)
            for found in batch:
                note("late", found.url)

    return crawl


without_late, with_late = retaining(has_late=False), retaining(has_late=True)


# -- what is followed by traces: a secret in a link, a retry, a span of its own, batches

traced = Crawl("traced", delay="0", obey_robots="no", retry_base="10ms", depth_max=1)


@traced.page
async def list_them(response: Response) -> AsyncIterator[Request | Found]:
    """Follow the links with a word that nobody else must get to know."""
    if response.referrer is None:
        for link in response.links():
            yield response.follow(f"{link}?token=hunter2")
    yield Found(response.final_url, response.page.title or "")


@traced.stage(concurrency=2)
def measure(found: Found) -> Found:
    """Fail at the first try, and trace something in a thread."""
    note("measure", found.url)
    if len([one for one in noted(Path(os.environ["TESTS_JOURNAL"]), "measure") if one["url"] == found.url]) < 2:
        raise ValueError(f"not yet: {found.url}")
    from opentelemetry import trace

    with trace.get_tracer("tests").start_as_current_span("scales"):
        return found


@traced.sink(batch=4, linger_s=0.05)
async def shelve(batch: list[Found]) -> None:
    """Take a batch."""
