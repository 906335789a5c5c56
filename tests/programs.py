"""Programs of streamcrawl for tests: `streamcrawl run tests.programs:<name>`.

What they do beyond their stages is noted in the file that TESTS_JOURNAL names, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from streamcrawl import Crawl, Request, Response

if TYPE_CHECKING:
    from collections.abc import Iterator

NAP_S = float(os.environ.get("TESTS_NAP", "0"))
"""How long the slow stages sleep."""


def note(**fields: Any) -> None:
    """Write a line of the journal, in one write: several processes share it."""
    journal = os.environ.get("TESTS_JOURNAL")
    if journal:
        with open(journal, "ab", buffering=0) as file:
            file.write(json.dumps({"pid": os.getpid(), **fields}).encode() + b"\n")


@dataclass
class Found:
    """What a page is about."""

    url: str
    title: str
    depth: int


class Weighed(msgspec.Struct):
    """The same with a weight."""

    url: str
    weight: int


# -- three stages, one of each kind of function

pipeline = Crawl("pipeline", delay=0, obey_robots=False)


@pipeline.page
def page(response: Response) -> Iterator[Request | Found]:
    """Follow everything, and find the page itself."""
    for link in response.links():
        yield response.follow(link)
    if response.status == 200:
        yield Found(response.url, response.page.title or "", response.depth)


@pipeline.stage(concurrency=8)
async def weigh(found: Found) -> Weighed:
    """Sleep, and weigh."""
    await asyncio.sleep(NAP_S)
    note(stage="weigh", url=found.url)
    return Weighed(found.url, len(found.title))


@pipeline.stage(concurrency=4)
def label(weighed: Weighed) -> dict[str, Any]:
    """Make a plain dict of it, in a thread."""
    return {"url": weighed.url, "weight": weighed.weight, "label": "heavy" if weighed.weight > 10 else "light"}
