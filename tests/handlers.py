"""Handlers that misbehave, for tests: `settings.handler = "tests.handlers:<name>"`.

Each call is noted in the file that TESTS_JOURNAL names, one line `<handler> <pid> <url>`: what ran, how often, and
whose process it was is known even when the process did not survive. TESTS_SECONDS says how long the slow ones take.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from streamcrawl.response import Response

NEIGHBOURS = 16
"""Pages that must be in hand when `kills_its_worker` strikes for the first time."""
POISON = "poison"
"""In the URL of the page that kills."""
_POLL_S = 0.01


class Call(NamedTuple):
    """One call of a handler."""

    handler: str
    pid: int
    url: str


def read_calls(journal: Path) -> list[Call]:
    """Return the calls that a journal has noted, oldest first."""
    if not journal.exists():
        return []
    lines = (line.split(" ", 2) for line in journal.read_text().splitlines())
    return [Call(handler, int(pid), url) for handler, pid, url in lines]


def _journal() -> Path:
    return Path(os.environ["TESTS_JOURNAL"])


def _seconds() -> float:
    return float(os.environ["TESTS_SECONDS"])


def _note(handler: str, response: Response) -> None:
    # One write of a short line to a file opened for appending: several processes do not tear each other's lines.
    with _journal().open("a") as journal:
        journal.write(f"{handler} {os.getpid()} {response.url}\n")


def _item(response: Response) -> dict[str, Any]:
    return {"url": response.url, "final_url": response.final_url, "status": response.status}


async def sleeps(response: Response) -> AsyncIterator[dict[str, Any]]:
    """Take long and let the loop run meanwhile."""
    _note("sleeps", response)
    await asyncio.sleep(_seconds())
    yield _item(response)


def holds_the_gil(response: Response) -> Iterator[dict[str, Any]]:
    """Take at least as long in one call of a regular expression that backtracks, which lets nothing else run."""
    _note("holds_the_gil", response)
    pattern, length, held_s = re.compile(r"(?:a|a)*b"), 18, 0.0
    while held_s < _seconds():
        # Each further letter doubles the time. In CPU time of this thread: another one may hold the GIL meanwhile.
        length += max(1, int(math.log2(_seconds() / held_s))) if held_s else 0
        began = time.thread_time()
        pattern.match("a" * length)
        held_s = time.thread_time() - began
    yield _item(response) | {"held_s": held_s}


def holds_the_gil_at_2(response: Response) -> Iterator[dict[str, Any]]:
    """The same at page 2 alone."""
    if "/p/2?" in response.url:
        yield from holds_the_gil(response)
    else:
        yield _item(response)


def sleeps_at_2(response: Response) -> dict[str, Any]:
    """Hang in a thread at page 2 alone, and let everything else run."""
    _note("sleeps_at_2", response)
    if "/p/2?" in response.url:
        time.sleep(_seconds())
    return _item(response)


async def never_ends(response: Response) -> None:
    """Wait for a future that nobody sets."""
    _note("never_ends", response)
    await asyncio.get_running_loop().create_future()


async def kills_its_worker(response: Response) -> AsyncIterator[dict[str, Any]]:
    """Kill the process at the poisonous page, while NEIGHBOURS others are in its hands the first time."""
    _note("kills_its_worker", response)
    if POISON in response.url:
        while len({call.url for call in read_calls(_journal()) if POISON not in call.url}) < NEIGHBOURS:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)
    while not any(POISON in call.url for call in read_calls(_journal())):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    # Longer than the poison looks: the first time, none of the neighbours is done before it strikes.
    await asyncio.sleep(20 * _POLL_S)
    yield _item(response)


def reads_the_price(response: Response) -> dict[str, Any]:
    """Fails at a page without a price."""
    if "sold in pieces" in response.text:
        raise ValueError("no price on this page")
    return {**_item(response), "price": response.text}
