"""From what a person typed, or a file of millions of lines, into the frontier.

A bad line is named with its place and passed over; it never stops the rest. Seeds are fetched whatever `--allow`,
`--deny` and the rules about traps say: those are about links. Memory does not grow with the number of lines:
`read_lines` reads in blocks and `SeedLoop` offers chunk by chunk, waiting while the frontier is full. Several commands
may offer seeds to one crawl; the last of them closes it (feed.lua). If a loop dies, the crawl stays open, comes to rest
as UNFED when nothing else is left to do, and the next start offers all seeds again (those that are known cost nothing
but the asking).
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import threading
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from streamcrawl.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from streamcrawl.rules.task import CrawlTask
from streamcrawl.rules.urls import Canonicalizer, canonical_url, split_url
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards

STDIN: Final = "-"
LINE_MAX_BYTES: Final = 65_536
"""A longer line is no URL (settings.url_max_bytes is 2 kB); read further it would only fill the memory."""
FULL_PAUSE_S: Final = 0.5
"""Between two offers to a full frontier: it drains by fetching, some hundred tasks a second."""
COMPLAINTS_MAX: Final = 20
"""Bad lines reported one by one; the others are counted."""
SIGNS_PER_LEASE: Final = 4
RESTART_LOOK_S: Final = 0.2
"""Well within the time for which nobody believes an end after a restart (work/end.py)."""
_BLOCK_BYTES: Final = 65_536
_IPV4: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_NO_URL: Final = "is not an http(s) URL"


class SeedLine(NamedTuple):
    """One seed as written: `seeds.txt:17`, or line 0 of an argument of the command."""

    origin: str
    number: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.origin}:{self.number}: " if self.number else ""


def argument_lines(urls: Iterable[str]) -> Iterator[SeedLine]:
    """Yield URLs that were given as arguments."""
    for url in urls:
        yield SeedLine("", 0, url)


def read_lines(path: str) -> Iterator[SeedLine]:
    """Yield the seeds of a file, or of standard input for `-`; blank lines and those that begin with `#` are left out.

    What is not UTF-8 is kept with its bytes shown as `\\xNN`, so that the complaint about it can be read.

    Raises:
        ConfigError: the file cannot be read.
    """
    origin = "stdin" if path == STDIN else path
    try:
        # Unbuffered: Python's own stdin has a lock, and a thread that waits in it keeps the interpreter from ending.
        fd = os.dup(0) if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number, line in enumerate(_raw_lines(fd), start=1):
                text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "backslashreplace").strip()
                if text and not text.startswith("#"):
                    yield SeedLine(origin, number, text)
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(f"--seeds {path} cannot be read: {error.strerror}") from error


def _raw_lines(fd: int) -> Iterator[bytes]:
    """Yield lines; of one that is too long only the beginning, as if it were all."""
    rest = b""
    while block := os.read(fd, _BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        rest = rest[: LINE_MAX_BYTES + 1]
    if rest:
        yield rest


async def read_ahead(lines: Iterator[SeedLine], count: int) -> list[SeedLine]:
    """Return the next lines, at most `count`; fewer only at the end.

    Read in a daemon thread: standard input may keep us waiting, and a signal must be heard meanwhile. When this is
    cancelled the thread still takes from `lines`, which nobody else may then use.

    Raises:
        ConfigError: the source cannot be read.
    """
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[list[SeedLine]] = loop.create_future()

    def settle(found: list[SeedLine], error: ConfigError | None) -> None:
        if taken.done():
            return
        if error is None:
            taken.set_result(found)
        else:
            taken.set_exception(error)

    def read() -> None:
        found: list[SeedLine] = []
        error = None
        try:
            found += islice(lines, count)
        except ConfigError as refused:
            error = refused
        with suppress(RuntimeError):  # the loop was closed while we waited for input
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=read, name="first seeds", daemon=True).start()
    return await taken


def seed_url(text: str) -> tuple[str | None, bool]:
    """Return the canonical URL of a seed, None when it is none, and whether a scheme was put in front.

    Only a bare host, with or without port and path, gets one: `example.org`, `example.org:8443/a`. It is https, but
    http for this machine and for bare addresses, which seldom have a certificate; browsers complete them the same way.
    """
    url = canonical_url(text)
    if url is not None:
        return url, False
    head = text.partition("/")[0]
    name, colon, port = head.partition(":")
    is_host = ("." in name or name == "localhost") and (not colon or port.isdecimal()) and "@" not in head
    scheme = "http" if name == "localhost" or _IPV4.fullmatch(name) else "https"
    return (canonical_url(f"{scheme}://{text}"), True) if is_host else (None, False)


def complaint(line: SeedLine) -> str:
    """Return what is said of a seed that is no URL, with its place."""
    return f"{line.place}{_shown(line.text)} {_NO_URL}"


class SeedLoop:
    """Offers seeds to the frontier and closes the crawl after the last one, unless others still offer some: from then
    on it may end."""

    def __init__(
        self,
        crawl: Shards,
        sources: Iterator[SeedLine],
        settings: Settings,
        log: Callable[[str], None],
        *,
        feeder: str = "",
    ) -> None:
        """Prepare the loop; `feeder` names these seeds: another run of the same name offers them again."""
        self._crawl = crawl
        self._feeder = feeder or secrets.token_hex(8)
        self._lease_ms = settings.lease_ms
        self._sources = sources
        self._form = Canonicalizer.from_settings(settings)
        self._url_max_bytes = settings.url_max_bytes
        self._log = log
        self._patience = Patience("seeds", log)
        self._is_done = False
        self._is_signed_off = asyncio.Event()
        self._signing: asyncio.Task[None] | None = None
        self._restarts = restarts_of(crawl.client)
        self._restarts_before = self._restarts.count
        self.accepted = 0
        """Seeds that are valid URLs, known or not."""
        self.new = 0
        """Of these, those that the crawl did not know before."""
        self.refused = 0

    async def begin(self, *, is_alone: bool = False) -> None:
        """Keep the crawl from ending before `run` has offered everything; `is_alone`: nobody else can be alive."""
        await self._crawl.first.feed(self._feeder, "alone" if is_alone else "begin", lease_ms=self._lease_ms)

    async def until_restart(self, stop: asyncio.Event) -> bool:
        """Wait until the store was restarted since this loop was made: it may have lost these seeds; False: stopped."""
        while self._restarts.count == self._restarts_before:
            if await sleep_or_stop(stop, RESTART_LOOK_S):
                return False
        return not stop.is_set()

    async def run(self, stop: asyncio.Event) -> None:
        """Offer everything, then close the crawl; when stopped before, it stays open for the rest.

        Raises:
            ConfigError: a source cannot be read.
            StoreError: but for what passes (StoreUnavailable, StoreFull), which is waited out.
        """
        self._signing = asyncio.create_task(self._sign(), name="seeds sign")
        try:
            await self._run(stop)
        except StoreUnavailable:
            if not stop.is_set():
                raise
        finally:
            await self._end_signing()
            if not self._is_done:
                with suppress(StoreError):  # it gives no sign any more, which says the same a lease later
                    await self._crawl.first.feed(self._feeder, "leave", lease_ms=self._lease_ms)

    async def _sign(self) -> None:
        is_over = False
        while not is_over:
            with suppress(StoreError):  # the offers meet the same error, and know what it means
                await self._crawl.first.feed(self._feeder, "sign", lease_ms=self._lease_ms)
            is_over = await sleep_or_stop(self._is_signed_off, self._lease_ms / 1000 / SIGNS_PER_LEASE)

    async def _end_signing(self) -> None:
        # By a flag, and waited for: a sign that reached the store after "done" would open the crawl again.
        self._is_signed_off.set()
        if self._signing is not None:
            await asyncio.wait((self._signing,))

    async def _run(self, stop: asyncio.Event) -> None:
        chunks = _Chunks(self._sources)
        while not stop.is_set():
            lines = await chunks.next(stop)
            if lines is None:
                break
            links = Links()
            for line in lines:
                self._add(line, links)
            if len(links) and not await self._offer(links, stop):
                return
        if not stop.is_set():
            if self.refused > COMPLAINTS_MAX:
                self._log(f"seeds: {self.refused} lines in all were not http(s) URLs")
            await self._end_signing()
            await until_answered(
                lambda: self._crawl.first.feed(self._feeder, "done", lease_ms=self._lease_ms), self._patience, stop
            )
            self._is_done = True

    def _add(self, line: SeedLine, links: Links) -> None:
        url, is_completed = seed_url(line.text)
        why = _NO_URL
        if url is not None and len(url) > self._url_max_bytes:
            url, why = None, f"is longer than {self._url_max_bytes} bytes"
        if url is None:
            self.refused += 1
            if self.refused <= COMPLAINTS_MAX:
                self._log(f"{line.place}{_shown(line.text)} {why}")
            return
        if is_completed and not line.number:
            self._log(f"{line.text}: taken as {url}")
        host, path = split_url(self._form(url))
        links.add(CrawlTask(host=host, path=path))
        self.accepted += 1

    async def _offer(self, links: Links, stop: asyncio.Event) -> bool:
        """Offer one chunk until the frontier has room for it; False when stopped before."""
        is_told = False
        while True:
            try:
                word, count = await until_answered(lambda: self._crawl.first.offer(links), self._patience, stop)
            except StoreFull:
                word, count = "FULL", 0
            if word == "OK":
                self.new += count
                return True
            if word != "FULL":
                raise StoreError(f"the store refused a chunk of seeds: {word} {count}")
            if not is_told:
                self._log("seeds: the frontier is full; the rest waits until it has drained")
                is_told = True
            if await sleep_or_stop(stop, FULL_PAUSE_S):
                return False


class _Chunks:
    """Takes lines from a blocking iterator in a thread of its own, a chunk ahead at most.

    A daemon: one that waits for standard input cannot be told to stop, and must not keep the process from ending.
    """

    def __init__(self, lines: Iterator[SeedLine]) -> None:
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(1)
        self._queue: asyncio.Queue[list[SeedLine] | Exception | None] = asyncio.Queue()
        threading.Thread(target=self._read, name="seeds", daemon=True).start()

    async def next(self, stop: asyncio.Event) -> list[SeedLine] | None:
        """Return the next lines; None after the last, or when `stop` was set first."""
        getting = asyncio.ensure_future(self._queue.get())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((getting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                return None
            found = getting.result()
        finally:
            getting.cancel()
            stopped.cancel()
        self._wanted.release()
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self) -> None:
        found: list[SeedLine] | Exception | None = []
        while isinstance(found, list):
            self._wanted.acquire()
            try:
                found = list(islice(self._lines, LINKS_PER_CALL)) or None
            except ConfigError as error:
                found = error
            try:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, found)
            except RuntimeError:  # the loop was closed while we waited for input
                return


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:97] + "...")
