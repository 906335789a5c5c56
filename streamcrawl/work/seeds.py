"""From what a person typed, or a file of millions of lines, into the frontier.

A seed is a URL, or `Sitemap: URL` as in robots.txt: then its pages are what that sitemap lists. A bad line is named
with its place and passed over; it never stops the rest. Seeds are fetched whatever `--allow`, `--deny` and the rules
about traps say: those are about links. Memory does not grow with the number of lines: `SeedLines` reads a block ahead
at most, and `SeedLoop` has a few calls under way at most and waits while the crawl has too much to do already.

Several commands may offer seeds to one crawl; the last of them closes it (feed.lua). Each is a feeder: it gives a sign
four times a lease and leaves a cursor with it, behind which everything was accepted. Who offers the same file again
after a kill goes on there; what was offered since the cursor is offered twice, and known the second time. If a loop
dies, the crawl stays open and comes to rest as UNFED when nothing else is left to do. Start at `SeedLoop.run`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from streamcrawl.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from streamcrawl.rules.pacing import next_pause_s
from streamcrawl.rules.scope import sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, Kind
from streamcrawl.rules.urls import Canonicalizer, canonical_url, split_url, without_credentials
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

STDIN: Final = "-"
LINE_MAX_BYTES: Final = 65_536
"""A longer line is no URL (settings.url_max_bytes is 2 kB); read further it would only fill the memory."""
PEEK_PAUSE_S: Final = 1.0
"""Whoever looks ahead waits so long for more once something was read: a pipe may stay silent for hours."""
PAUSE_FIRST_S: Final = 0.01
PAUSE_MAX_S: Final = 0.5
"""Between two offers to a crawl that has nearly enough to do, or enough: it drains by fetching, some hundred tasks a
second."""
COMPLAINTS_MAX: Final = 20
"""Bad lines reported one by one; the others are counted."""
SIGNS_PER_LEASE: Final = 4
CALLS_AT_A_TIME: Final = 4
"""Offers under way: enough that Redis works while the next chunk is prepared, few enough that what others send between
them waits for some 15 ms at most."""
CALLS_PER_CURSOR: Final = 50
"""After so many offers the cursor is written: 12,500 seeds, about a second's work, are what a kill repeats."""
RESTART_LOOK_S: Final = 0.2
"""Well within the time for which nobody believes an end after a restart (work/end.py)."""
REPEATED_S: Final = 30.0
"""After a restart of the store what was accepted in so many seconds before is offered again: a server that syncs its
file every second may lose two."""
_BLOCK_BYTES: Final = 65_536
_MARK_BYTES: Final = 4096
_IPV4: Final = re.compile(r"\d{1,3}(\.\d{1,3}){3}")
_NO_URL: Final = "is not an http(s) URL"
_SITEMAP: Final = re.compile(r"sitemap:\s*", re.IGNORECASE)
_WAITS: Final = {
    "FULL": "the frontier is full with {:,} URLs (--frontier-max)",
    "WAIT": "{:,} seeds are not ended yet, which is enough (seeds_waiting_max)",
    "OOM": "Redis is full; it drains as pages are fetched, or its maxmemory can be raised",
}
"""Why seeds wait, by what the store answers."""


# -- what is read


class SeedLine(NamedTuple):
    """One seed as written: `seeds.txt:17`, or line 0 of an argument of the command."""

    origin: str
    number: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.origin}:{self.number}: " if self.number else ""


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a feeder is, as it is kept with its name: everything before was accepted, or refused for good."""

    source: str = ""
    """File, or `stdin`."""
    line: int = 0
    offset: int = 0
    """Bytes of the file, up to the end of that line."""
    mark: str = ""
    """Says whether a file is the same up to `offset`; '' for what cannot be read again."""
    new: int = 0
    known: int = 0
    refused: int = 0

    @property
    def text(self) -> str:
        """What people read: `urls.txt line 12,000 (11,000 new, 999 known, 1 refused)`."""
        counts = f"{self.new:,} new, {self.known:,} known, {self.refused:,} refused"
        return f"{self.source} line {self.line:,} ({counts})"

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, stored: str) -> Cursor | None:
        """Return a stored cursor; None for none, or one that another version wrote."""
        try:
            return msgspec.json.decode(stored, type=cls) if stored else None
        except msgspec.DecodeError:
            return None


class Batch(NamedTuple):
    """Lines as one read brought them."""

    origin: str
    first: int
    """Number of the first line; 0 for arguments."""
    start: int
    """Where the first line begins in the file, in bytes."""
    lines: list[bytes]
    end: Cursor
    """What is kept once all of them are accepted, but for the counts."""

    def seed_lines(self) -> Iterator[SeedLine]:
        """Yield the seeds; blank lines and those that begin with `#` are left out."""
        for number, line in enumerate(self.lines, start=self.first):
            if text := _text(line):
                yield SeedLine(self.origin, number if self.first else 0, text)


class SeedLines:
    """All seeds of one command: URLs given as arguments, then the lines of a file, or of standard input for `-`.

    Read in a thread of its own, a block ahead at most: what a pipe brings is offered when it comes. The thread is a
    daemon: one that waits for standard input cannot be told to stop, and must not keep the process from ending.
    """

    def __init__(self, urls: Iterable[str] = (), path: str | None = None) -> None:
        """Prepare the seeds; nothing is opened before the first of them is asked for."""
        self.path: Final = path
        self.size = 0
        """Bytes of the file; 0 when that is not known (yet)."""
        self._urls = list(urls)
        self._skip = Cursor()
        self._wanted = threading.Semaphore(2)
        self._arrived: asyncio.Queue[Batch | ConfigError | None] = asyncio.Queue()
        self._kept: deque[Batch] = deque()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._is_closed = False
        self.is_repeatable: Final = path is None or (path != STDIN and os.path.isfile(path))
        """Whether the same can be read once more."""

    @property
    def source(self) -> str:
        """What people call it."""
        return "stdin" if self.path == STDIN else self.path or "arguments"

    async def next(self) -> Batch | None:
        """Return what comes next; None after the last. Nothing is lost when this is cancelled.

        Raises:
            ConfigError: the file cannot be read.
        """
        if self._kept:
            return self._kept.popleft()
        return await self._take()

    async def peek(self, count: int, *, pause_s: float = PEEK_PAUSE_S) -> list[SeedLine]:
        """Return the first seeds, at most `count`, without taking them away.

        Fewer at the end, or when nothing more came for `pause_s` after something had.

        Raises:
            ConfigError: the file cannot be read.
        """
        found: list[SeedLine] = [line for batch in self._kept for line in batch.seed_lines()]
        with suppress(TimeoutError):
            while len(found) < count:
                async with asyncio.timeout(pause_s if found else None):
                    batch = await self._take()
                if batch is None:
                    break
                self._kept.append(batch)
                found += islice(batch.seed_lines(), count)
        return found[:count]

    def again(self, cursor: Cursor | None = None) -> SeedLines | None:
        """Return the same seeds once more, from the start or from a cursor on; None when they come only once."""
        if not self.is_repeatable:
            return None
        seeds = SeedLines(self._urls, self.path)
        if cursor is not None:
            seeds.skip_to(cursor)
        return seeds

    def close(self) -> None:
        """Read no further."""
        self._is_closed = True
        self._wanted.release()

    def is_same(self, cursor: Cursor) -> bool:
        """Return whether the file still begins with what was read up to `cursor`; asks the disk."""
        return (
            self.path not in (None, STDIN) and cursor.mark != "" and _mark_of(self.path, cursor.offset) == cursor.mark
        )

    def skip_to(self, cursor: Cursor) -> None:
        """Leave out the lines of the file before `cursor`; those that were read ahead too."""
        self._skip = cursor
        self._kept = deque(batch for batch in self._kept if not self._is_skipped(batch))

    def _is_skipped(self, batch: Batch) -> bool:
        # A last line without an end has its cursor where it begins: it may still grow.
        return batch.first > 0 and batch.start < self._skip.offset >= batch.end.offset

    async def _take(self) -> Batch | None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._read, name="seeds", daemon=True)
            self._thread.start()
        while not self._is_over:
            found = await self._arrived.get()
            self._wanted.release()
            if isinstance(found, ConfigError):
                raise found
            if found is None:
                self._is_over = True
            elif not self._is_skipped(found):
                return found
        return None

    # -- in the thread

    def _read(self) -> None:
        assert self._loop is not None
        batches = self._batches()
        found: Batch | ConfigError | None = None
        while True:
            self._wanted.acquire()
            if self._is_closed:
                return
            try:
                found = next(batches, None)
            except OSError as error:
                found = ConfigError(f"seeds: {self.source} cannot be read: {error.strerror}")
            try:
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, found)
            except RuntimeError:  # the loop was closed while we waited for input
                return
            if not isinstance(found, Batch):
                return

    def _batches(self) -> Iterator[Batch]:
        if self._urls:
            yield Batch("", 0, 0, [url.encode("utf-8", "surrogateescape") for url in self._urls], Cursor())
        if self.path is None:
            return
        # Unbuffered: Python's own stdin has a lock, and a thread that waits in it keeps the interpreter from ending.
        fd = os.dup(0) if self.path == STDIN else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from self._file_batches(fd)
        finally:
            os.close(fd)

    def _file_batches(self, fd: int) -> Iterator[Batch]:
        """Yield what each read brings; of a line that is too long only the beginning, as if it were all."""
        is_file = self.path != STDIN and _is_regular(fd)
        if is_file:
            self.size = os.fstat(fd).st_size
        position = number = start = 0
        rest = head = tail = b""
        while True:
            skip = self._skip
            if is_file and skip.offset > position:
                os.lseek(fd, skip.offset, os.SEEK_SET)
                position = start = skip.offset
                number, rest = skip.line, b""
                head, tail = _ends(fd, position)
            block = os.read(fd, _BLOCK_BYTES)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            read = block[: len(block) - len(rest)]
            if len(head) < _MARK_BYTES:
                head = (head + block)[:_MARK_BYTES]
            if lines:
                offset = position + len(read)
                mark = _mark(head[:offset], (tail + read)[-_MARK_BYTES:]) if is_file else ""
                end = Cursor(source=self.source, line=number + len(lines), offset=offset, mark=mark)
                yield Batch(self.source, number + 1, start, lines, end)
                number, start = end.line, offset
            position += len(block)
            tail = (tail + block)[-_MARK_BYTES:]
            rest = rest[: LINE_MAX_BYTES + 1]
        if rest:
            # The cursor stays before a line that has no end yet.
            yield Batch(self.source, number + 1, start, [rest], Cursor(source=self.source, line=number, offset=start))


def feeder_name(urls: Iterable[str], path: str | None) -> str:
    """Return the name under which seeds are offered: equal for the same seeds, so that another try ends what one began.

    What can be read only once, standard input or a pipe, gets a name of its own each time.
    """
    if path is not None and (path == STDIN or not os.path.isfile(path)):
        return secrets.token_hex(8)
    place = socket.gethostname() if path is not None else ""
    absolute = os.path.abspath(path) if path is not None else None
    return blake2b(msgspec.json.encode((place, list(urls), absolute)), digest_size=8).hexdigest()


def _is_regular(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _ends(fd: int, offset: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a file and the last ones before `offset`."""
    count = min(_MARK_BYTES, offset)
    return os.pread(fd, count, 0), os.pread(fd, count, offset - count)


def _mark(head: bytes, tail: bytes) -> str:
    # Of the content and not of the inode: a copy is the same file, and one that was edited in place is not. A change
    # of equal length between both ends is not seen.
    return blake2b(head + b"|" + tail, digest_size=8).hexdigest()


def _mark_of(path: str, offset: int) -> str:
    """Return the mark of a file up to `offset`; '' when it is shorter, no file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        if not _is_regular(fd) or os.fstat(fd).st_size < offset:
            return ""
        return _mark(*_ends(fd, offset))
    except OSError:
        return ""
    finally:
        os.close(fd)


# -- what a seed is


def _text(line: bytes) -> str:
    """Return a line without white space and byte order mark, '' for a comment.

    What is not UTF-8 is kept with its bytes shown as `\\xNN`, so that the complaint about it can be read.
    """
    text = line.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "backslashreplace").strip()
    return "" if text.startswith("#") else text


def seed_url(text: str) -> tuple[str | None, bool]:
    """Return the canonical URL of a seed, None when it is none, and whether a scheme was put in front.

    Only a bare host, with or without port and path, gets one: `example.org`, `example.org:8443/a`. It is https, but
    http for this machine and for bare addresses, which seldom have a certificate; browsers complete them the same way.
    """
    text = _SITEMAP.sub("", text, 1) if is_sitemap(text) else text
    url = canonical_url(text)
    if url is not None:
        return url, False
    head = text.partition("/")[0]
    name, colon, port = head.partition(":")
    is_host = ("." in name or name == "localhost") and (not colon or port.isdecimal()) and "@" not in head
    scheme = "http" if name == "localhost" or _IPV4.fullmatch(name) else "https"
    return (canonical_url(f"{scheme}://{text}"), True) if is_host else (None, False)


def is_sitemap(text: str) -> bool:
    """Return whether a seed names a sitemap and not a page."""
    return _SITEMAP.match(text) is not None


def sitemap_seed(url: str) -> str:
    """Return the seed that names the sitemap at a URL."""
    return f"Sitemap: {url}"


def canonical_seed(text: str) -> str:
    """Return a seed with its URL as it is canonical, so without a password; as it is when it has none."""
    url = seed_url(text)[0]
    if url is None:
        return text
    return sitemap_seed(url) if is_sitemap(text) else url


def complaint(line: SeedLine) -> str:
    """Return what is said of a seed that is no URL, with its place."""
    return f"{line.place}{_shown(line.text)} {_NO_URL}"


class _Call(NamedTuple):
    """One offer under way, in the order of the lines; or the end of a batch that brought nothing to offer."""

    answer: asyncio.Task[int | None] | None
    end: Cursor | None
    """Where the cursor stands once this call and all before it are accepted; None in the middle of a batch."""


class SeedLoop:
    """Offers seeds to a crawl and closes it after the last one, unless others still offer some: from then on it may
    end."""

    def __init__(
        self, crawl: Shards, seeds: SeedLines, settings: Settings, log: Callable[[str], None], *, feeder: str = ""
    ) -> None:
        """Prepare the loop; `feeder` names these seeds (`feeder_name`): another run of the same name goes on here."""
        self._crawl = crawl
        self._seeds = seeds
        self._feeder = feeder or secrets.token_hex(8)
        self._lease_ms = settings.lease_ms
        self._form = Canonicalizer.from_settings(settings)
        self._url_max_bytes = settings.url_max_bytes
        self._scope_kind = settings.scope
        self._log = log
        self._patience = Patience("seeds", log)
        self._calls: deque[_Call] = deque()
        self._new_landed = 0
        self._calls_unwritten = 0
        self._error: BaseException | None = None
        self._is_cut = False
        self._halt = asyncio.Event()
        self._restarts = restarts_of(crawl.client)
        self._restarts_seen = self._restarts.count
        self._is_stored_cursor_true = True
        self._places: deque[tuple[float, Cursor]] = deque()
        self._landed_at = 0.0
        self._complained_of = 0
        self._is_signed_off = False
        self._sign_now = asyncio.Event()
        self._signing: asyncio.Task[None] | None = None
        self._told: set[str] = set()
        self.cursor = Cursor(source=seeds.source)
        """Behind which everything was accepted."""
        self.is_done = False
        """Everything was offered, and the crawl knows it."""
        self.has_repeated = False
        """Some may have been offered twice, by an earlier run too, and be counted as known the second time."""
        self.read = 0
        """Seeds that are valid URLs, offered or about to be."""
        self.new = 0
        """Accepted, and not known to the crawl before."""
        self.known = 0
        """Accepted, and known already."""
        self.refused = 0
        """Lines that are no URL."""
        self.waiting = ""
        """Why nothing is offered at the moment; '' when something is."""
        self.pause_s = 0.0
        """Before each offer: longer and longer while the crawl has nearly enough to do (rules/pacing.py)."""
        self.feeders_left = 0
        """What keeps the crawl open after the end of this loop: others that offer seeds, or a person's word."""

    async def begin(self, *, is_alone: bool = False, is_guest: bool = False) -> None:
        """Keep the crawl from ending before `run` has offered everything, and find out how far an earlier run came.

        Args:
            is_alone: Nobody else can be alive: all other feeders are forgotten.
            is_guest: Feeders that died are left as they are: the crawl still waits for theirs. Otherwise they are
                forgotten, because who begins or resumes a crawl takes it over.
        """
        what: Literal["alone", "sign", "begin"] = "alone" if is_alone else "sign" if is_guest else "begin"
        _, stored = await self._feed(what)
        cursor = Cursor.decode(stored)
        if cursor is None or not cursor.offset:
            return
        if await asyncio.to_thread(self._seeds.is_same, cursor):
            self._seeds.skip_to(cursor)
            self.has_repeated = True
            self._set_cursor(cursor)
            self._places.append((-math.inf, cursor))
            self._log(f"seeds: {self._seeds.source} goes on behind line {cursor.line:,}")
        else:
            self._log(
                f"seeds: {self._seeds.source} is another file than the one of which {cursor.line:,} lines were read; "
                "it is read from its start"
            )

    async def until_restart(self, stop: asyncio.Event) -> bool:
        """Wait until the store was restarted since `run` ended: it may have lost these seeds; False: stopped."""
        while self._restarts.count == self._restarts_seen:
            if await sleep_or_stop(stop, RESTART_LOOK_S):
                return False
        return not stop.is_set()

    async def run(self, stop: asyncio.Event) -> None:
        """Offer everything, then close the crawl; when stopped before, it stays open for the rest.

        When the store is restarted meanwhile, what it may have lost is offered again.

        Raises:
            ConfigError: a source cannot be read.
            StoreError: but for what passes (StoreUnavailable, StoreFull), which is waited out.
        """
        try:
            while True:
                if self._signing is None:
                    self._is_signed_off = False
                    self._signing = asyncio.create_task(self._sign(), name="seeds sign")
                await self._run(stop)
                if not self._must_go_back or stop.is_set():
                    break
                await self._go_back(stop)
        except StoreUnavailable:
            if not stop.is_set():
                raise
        finally:
            self._seeds.close()
            await self._end_signing()
            if not self.is_done:
                with suppress(StoreError):  # it gives no sign any more, which says the same a lease later
                    await self._feed("leave")

    async def _feed(self, what: Literal["begin", "alone", "sign", "done", "leave"]) -> tuple[int, str]:
        written = self.cursor.encode() if self.cursor.line else ""
        return await self._crawl.first.feed(self._feeder, what, lease_ms=self._lease_ms, cursor=written)

    async def _sign(self) -> None:
        while not self._is_signed_off:
            self._sign_now.clear()
            self._calls_unwritten = 0
            restarts = self._restarts.count
            with suppress(StoreError):  # the offers meet the same error, and know what it means
                await self._feed("sign")
                # After a restart in between it may be behind what the store has lost.
                self._is_stored_cursor_true = restarts == self._restarts.count
            await sleep_or_stop(self._sign_now, self._lease_ms / 1000 / SIGNS_PER_LEASE)

    async def _end_signing(self) -> None:
        # By a flag, and waited for: a sign that reached the store after "done" would open the crawl again.
        self._is_signed_off = True
        self._sign_now.set()
        if self._signing is not None:
            await asyncio.wait((self._signing,))
            self._signing = None

    # -- after a restart of the store

    @property
    def _must_go_back(self) -> bool:
        return self._seeds.is_repeatable and self._restarts.count != self._restarts_seen

    def _complain_of_restart(self) -> None:
        if not self._seeds.is_repeatable and self._restarts.count != self._restarts_seen:
            self._restarts_seen = self._restarts.count
            self._log(
                Said.error(
                    f"seeds: Redis was restarted and may have lost some; {self._seeds.source} comes only once: offer "
                    f"what it brought up to line {self.cursor.line:,} again, those that are known cost nothing"
                )
            )

    async def _go_back(self, stop: asyncio.Event) -> None:
        """Go back to where the store certainly has everything: what it may have lost is offered again.

        A crash of this process before the next sign would leave a cursor behind what was lost; that takes both crashes
        within a second.
        """
        await self._end_signing()
        self._restarts_seen = self._restarts.count
        self.is_done = False
        place = next((place for at, place in reversed(self._places) if at <= self._landed_at - REPEATED_S), Cursor())
        if self._is_stored_cursor_true:
            # The store went back by its own cursor too, perhaps by more.
            _, stored = await until_answered(
                lambda: self._crawl.first.feed(self._feeder, "sign", lease_ms=self._lease_ms), self._patience, stop
            )
            place = min(place, Cursor.decode(stored) or Cursor(), key=lambda cursor: cursor.offset)
        self._log(
            Said.warning(
                f"seeds: Redis was restarted and may have lost some; {self._seeds.source} is offered again from line "
                f"{place.line + 1:,} on"
            )
        )
        again = self._seeds.again(place)
        assert again is not None
        self._seeds.close()
        self._seeds = again
        self._places.clear()
        self._set_cursor(place)
        self.has_repeated = True

    def _set_cursor(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.new, self.known, self.refused = cursor.new, cursor.known, cursor.refused
        self.read, self._new_landed = cursor.new + cursor.known, cursor.new

    # -- reading, and offering

    async def _run(self, stop: asyncio.Event) -> None:
        """Offer everything and say so; return earlier when it is time to stop, or to go back."""
        self._halt = asyncio.Event()
        stopping = asyncio.ensure_future(stop.wait())
        # Set when this method is left, too: an offer must not go on trying for a loop that has failed.
        stopping.add_done_callback(lambda _, halt=self._halt: halt.set())  # type: ignore[misc]
        try:
            while (batch := await self._next(stopping)) is not None:
                await self._offer_batch(batch)
                if self._is_over:
                    break
            await self._wait_for_room(1)
        finally:
            stopping.cancel()
            self._halt.set()
            await self._end_calls()
        if self._must_go_back:
            return
        if self._error is not None:
            raise self._error
        if stop.is_set():
            return
        if self.refused > COMPLAINTS_MAX:
            self._log(Said.warning(f"seeds: {self.refused:,} lines in all were not http(s) URLs"))
        await self._end_signing()
        self.feeders_left, _ = await until_answered(lambda: self._feed("done"), self._patience, stop)
        self.is_done = True

    async def _offer_batch(self, batch: Batch) -> None:
        """Have all seeds of some lines offered as soon as there is room for another call."""
        parts = self._parts(batch)
        end = replace(batch.end, known=self.read, refused=self.refused)
        if not parts:
            self._calls.append(_Call(None, end))
            self._land()
        for number, (frontier, links) in enumerate(parts, start=1):
            await self._wait_for_room(CALLS_AT_A_TIME)
            if self._is_over:
                return
            answer = asyncio.create_task(self._offer(frontier, links), name="offer seeds")
            self._calls.append(_Call(answer, end if number == len(parts) else None))
            answer.add_done_callback(lambda _: self._land())

    @property
    def _is_over(self) -> bool:
        return self._is_cut or self._error is not None or self._must_go_back

    async def _next(self, stopping: asyncio.Future[Any]) -> Batch | None:
        """Return the next lines; None after the last, or when it is time to stop, or an offer has failed."""
        getting: asyncio.Future[Any] = asyncio.ensure_future(self._seeds.next())
        try:
            while True:
                waited: set[asyncio.Future[Any]] = {stopping, getting}
                if self._calls and self._calls[0].answer is not None:
                    waited.add(self._calls[0].answer)
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                self._land()
                if stopping.done() or self._is_over:
                    return None
                if getting.done():
                    batch: Batch | None = getting.result()
                    return batch
        finally:
            if not getting.cancel() and not getting.cancelled():
                getting.exception()  # an error of the source is no news when it is time to stop

    async def _wait_for_room(self, most: int) -> None:
        """Wait until less than `most` calls are under way."""
        while len(self._calls) >= most and not self._is_over:
            first = self._calls[0].answer
            assert first is not None
            await asyncio.wait((first,))
            # Its callback may come after us.
            self._land()

    async def _end_calls(self) -> None:
        """See the calls that are under way to their end; none is cancelled in the middle of a command."""
        while self._calls and not self._is_over:
            first = self._calls[0].answer
            if first is not None:
                await asyncio.wait((first,))
            self._land()
        left = [call.answer for call in self._calls if call.answer is not None]
        await asyncio.gather(*left, return_exceptions=True)
        self._calls.clear()

    def _land(self) -> None:
        """Move the cursor behind the calls that were accepted, in the order of the lines."""
        self._complain_of_restart()
        while self._calls and not self._is_over:
            answer, end = self._calls[0]
            if answer is not None:
                if not answer.done():
                    return
                if answer.cancelled() or answer.exception() is not None:
                    self._error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
                    return
                new = answer.result()
                if new is None:
                    self._is_cut = True
                    return
                self._new_landed += new
                self._calls_unwritten += 1
            self._calls.popleft()
            if end is not None:
                self._move_cursor(end)

    def _move_cursor(self, end: Cursor) -> None:
        # Arguments come before the file, and must not take the cursor of an earlier run back.
        place = end if end.line else self.cursor
        new = self._new_landed
        self.cursor = replace(place, new=new, known=end.known - new, refused=end.refused)
        self._landed_at = time.monotonic()
        if not self._places or self._landed_at - self._places[-1][0] >= 1:
            self._places.append((self._landed_at, self.cursor))
            while len(self._places) > 1 and self._places[1][0] <= self._landed_at - REPEATED_S:
                self._places.popleft()
        if self._calls_unwritten >= CALLS_PER_CURSOR:
            self._sign_now.set()

    def _parts(self, batch: Batch) -> list[tuple[Frontier, Links]]:
        """Return what there is to offer of some lines, by shard, in the portions of a call."""
        by_shard: dict[int, Links] = {}
        for number, line in enumerate(batch.lines, start=batch.first):
            text = _text(line)
            if not text:
                continue
            task = self._task(SeedLine(batch.origin, number if batch.first else 0, text))
            if task is not None:
                fp = None if task.kind is Kind.PAGE else sitemap_fingerprint(task, task.host, self._scope_kind)
                by_shard.setdefault(self._crawl.index_of(task.host), Links()).add(task, fp)
        return [
            (self._crawl.frontiers[shard], links.take(LINKS_PER_CALL))
            for shard, links in by_shard.items()
            for _ in range(-(-len(links) // LINKS_PER_CALL))
        ]

    def _task(self, line: SeedLine) -> CrawlTask | None:
        url, is_completed = seed_url(line.text)
        why = _NO_URL
        if url is not None and len(url) > self._url_max_bytes:
            url, why = None, f"is longer than {self._url_max_bytes} bytes"
        if url is None:
            self.refused += 1
            if self.refused <= COMPLAINTS_MAX and not 0 < line.number <= self._complained_of:
                self._complained_of = line.number
                self._log(Said.warning(f"{line.place}{_shown(line.text)} {why}"))
            return None
        if is_completed and not line.number:
            self._log(f"{line.text}: taken as {url}")
        self.read += 1
        if is_sitemap(line.text):
            host, path = split_url(url)
            return CrawlTask(host=host, path=path, kind=Kind.SITEMAP)
        host, path = split_url(self._form(url))
        return CrawlTask(host=host, path=path)

    async def _offer(self, frontier: Frontier, links: Links) -> int | None:
        """Offer one chunk until there is room for it; returns how many were new, None when stopped before."""
        while True:
            if self.pause_s and await sleep_or_stop(self._halt, self.pause_s):
                return None
            try:
                word, count, level = await until_answered(
                    lambda: frontier.offer_seeds(links), self._patience, self._halt
                )
            except StoreFull:
                word, count, level = "OOM", 0, 1.0
            self.pause_s = next_pause_s(self.pause_s, level, first_s=PAUSE_FIRST_S, most_s=PAUSE_MAX_S)
            if word == "OK":
                self.waiting = ""
                self.new += count
                self.known += len(links) - count
                return count
            if word not in _WAITS:
                raise StoreError(f"the store refused a chunk of seeds: {word} {count}")
            self._wait_because(word, count)

    def _wait_because(self, word: str, count: int) -> None:
        """Say why seeds wait, each reason once: near a bound they wait and go on many times a minute."""
        self.waiting = _WAITS[word].format(count)
        if word not in self._told:
            self._told.add(word)
            self._log(Said.warning(f"seeds: {self.waiting}; the rest waits"))


def _shown(text: str) -> str:
    text = without_credentials(text)
    return repr(text if len(text) <= 100 else text[:97] + "...")
