"""Fetches from a web that is not there (web_model.py): the time of an answer passes, and no socket is opened.

It stands where `Fetcher` stands in a worker, so everything around it is the product's own. What it was asked is written
into a file of its process, a line a request: when it began, when its answer was there, and what it was. Start at
`SimulatedFetcher.fetch`; `read_requests` reads the files.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from benchmarks.web_model import Web, WebSpec
from streamcrawl.errors import Disconnected, DnsError, FetchTimeout
from streamcrawl.web.fetcher import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from streamcrawl.settings import Settings

SETUP: Final = "SIMULATED_WEB"
"""The environment variable by which worker processes learn what they fetch from."""
_HEADERS: Final = CIMultiDictProxy(CIMultiDict({"Content-Type": "text/html"}))


class Setup(msgspec.Struct, frozen=True):
    web: WebSpec
    folder: str
    """Where the files of requests go."""
    began_s: float
    """time.monotonic() when the web began; its outages count from here."""


class Request(NamedTuple):
    """One request as this fetcher saw it. Times are ms of CLOCK_MONOTONIC, which all processes of a machine share."""

    worker: str
    url: str
    host: str
    path: str
    start_ms: float
    end_ms: float
    status: int
    """0 when no answer came."""


class SimulatedFetcher:
    """In place of `streamcrawl.web.fetcher.Fetcher`."""

    def __init__(self, settings: Settings, **_: object) -> None:
        setup = msgspec.json.decode(os.environ[SETUP], type=Setup)
        self._settings = settings
        self._web = Web(setup.web)
        self._began_s = setup.began_s
        self._log = Path(setup.folder, f"{os.getpid()}.requests").open("ab")  # noqa: SIM115 - closed in __aexit__

    def apply(self, settings: Settings) -> None:
        self._settings = settings

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.close()

    async def fetch(self, url: str, *, on_sent: Callable[[], None] | None = None, **_: object) -> Answer:
        """Return the model's answer after the model's time.

        Raises:
            DnsError, FetchTimeout, Disconnected: as it is in the model.
        """
        started = monotonic()
        reply = self._web.reply(url, started - self._began_s)
        if on_sent is not None:
            on_sent()
        status = 0
        limit_ms = self._settings.timeout_ms
        try:
            await asyncio.sleep(min(reply.latency_ms, limit_ms) / 1000)
            status = reply.status
        finally:
            ended = monotonic()
            self._log.write(f"{url} {started * 1000:.3f} {ended * 1000:.3f} {status}\n".encode())
        if reply.fate == "no address":
            raise DnsError("the host has no address", url)
        if reply.fate == "cut off":
            raise Disconnected("the connection broke", url, is_unanswered=True)
        if reply.fate == "silence":
            raise FetchTimeout(f"no answer within {limit_ms} ms", url, is_unanswered=True)
        return Answer(
            url=url,
            status=reply.status,
            headers=_HEADERS,
            body="".join([f'<a href="{link}">' for link in reply.links]).encode(),
            content_type="text/html",
            charset_header=None,
            location=reply.location,
            elapsed_ms=round((ended - started) * 1000),
            ended_at=ended,
            retry_after=None,
        )

    async def address_of(self, host_key: str) -> str | None:
        return None


@contextmanager
def announced(setup: Setup) -> Iterator[str]:
    """Tell the processes that are started meanwhile what they fetch from; gives what a supervisor is to be told."""
    before = os.environ.get(SETUP)
    os.environ[SETUP] = msgspec.json.encode(setup).decode()
    try:
        yield f"{__name__}:{SimulatedFetcher.__name__}"
    finally:
        if before is None:
            del os.environ[SETUP]
        else:
            os.environ[SETUP] = before


def read_requests(folder: Path) -> list[Request]:
    """Return what all processes were asked, in no order. Call it when they have ended."""
    found = []
    for file in folder.glob("*.requests"):
        for line in file.read_text().splitlines():
            url, start_ms, end_ms, status = line.split()
            host, _, path = url.removeprefix("http://").partition("/")
            found.append(Request(file.stem, url, host, "/" + path, float(start_ms), float(end_ms), int(status)))
    return found
