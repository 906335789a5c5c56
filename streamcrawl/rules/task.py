"""A task: one URL to fetch, how it is stored, and the ways in which it can end.

Stored form: a JSON array, readable in redis-cli, `[crashes,discovered_ms,kind,path,depth,attempt,referrer,redirects,…]`
in the order of `_Stored`, trailing defaults left out; the last is an object of what a program asked for beside the URL.
The host key is not repeated in it: a task lies in its host's queue, and its stream entry carries the host in a field
of its own. The referrer is front-coded against the URL (`"25|rest"`: its first 25 characters are those of the URL),
because most links stay on their site; both together make a queued URL of 80 characters cost under 200 bytes
(benchmarks/memory.py).

Scripts touch two numbers only, at the head: `crashes` (raised when a task is taken back from a dead worker) and
`discovered_ms` (stamped from the server's clock when it is accepted). So a worker offers the *rest*,
`"page","/a",1,...]`, and the script puts `[0,<now>,` in front. Times are ms since the epoch.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from streamcrawl.errors import CodecError


class Kind(StrEnum):
    """What a task fetches. Each kind has a line of its own in every count."""

    PAGE = "page"
    ROBOTS = "robots"
    SITEMAP = "sitemap"


class Level(StrEnum):
    """The queues of one host, first to last. CONTROL is for robots tasks alone: it opens the gate for the others."""

    CONTROL = "0"
    HIGH = "1"
    NORMAL = "2"
    LOW = "3"


class Outcome(StrEnum):
    """Every way in which a commit can end an entry."""

    DONE = "done"
    RETRY = "retry"
    """Again later, by the delayed set, with the attempt counted."""
    UNANSWERED = "unanswered"
    """The host did not answer: the task goes back to the head of its queue, no attempt counted; the host backs off."""
    DEAD = "dead"
    DROPPED = "dropped"
    REDIRECTED = "redirected"
    """To another host: this task ends, its target is offered as a link and carries the chain."""
    CONTINUED = "continued"
    """Of a sitemap: what it brought so far is in the frontier, the rest comes later, when there is room for it."""


class DropReason(StrEnum):
    """Why a task ended without a record. Counted by name; the first word a user greps for."""

    ROBOTS = "robots"
    REDIRECTED = "redirected"
    OUT_OF_SCOPE = "out_of_scope"
    HOST_BUDGET = "host_budget"
    BLOCKED_ADDRESS = "blocked_address"
    """Its host is at an address that this crawl must not connect to."""
    NO_SITEMAP = "no_sitemap"
    """At the URL of a sitemap there is none: a 404, or a page."""
    HANDLER = "handler"
    """The user's handler raised Drop."""
    UNAVAILABLE = "unavailable"
    """Fetched before, and not to be had this time: it is asked for again after its interval."""


class LastVisit(msgspec.Struct, frozen=True, array_like=True, tag="again", forbid_unknown_fields=True):
    """What the last visit of a page found, carried by the task of the next one (rules/revisit.py)."""

    interval_ms: int
    """How long it was left alone."""
    digest: str = ""
    """Of its content, hexadecimal."""
    etag: str = ""
    modified: str = ""
    """Its Last-Modified as the host wrote it: compared there by the letter."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is sent besides the URL, and what travels along with a task; all of it by default nothing."""

    method: str = "GET"
    headers: dict[str, str] = {}
    body: str = ""
    label: str = ""
    """Which handler of the program gets the page."""
    meta: Any = None
    """JSON of the program's own, for the handler that gets the page."""


NO_ASK: Final = Ask()


class CrawlTask(msgspec.Struct, frozen=True, kw_only=True):
    """One URL to fetch, as a worker sees it."""

    host: str
    """Host key: scheme and authority, `https://example.org` or `http://127.0.0.1:8000`."""
    path: str
    """The rest of the canonical URL, from the slash on."""
    kind: Kind = Kind.PAGE
    level: Level = Level.NORMAL
    depth: int = 0
    attempt: int = 1
    """Our tries, from 1."""
    crashes: int = 0
    """How often a worker died with this task in hand; scripts raise it."""
    discovered_ms: int = 0
    referrer: str | None = None
    """The page or the sitemap that named it first. Of a sitemap the robots.txt whose it is, below indexes too."""
    redirects: tuple[str, ...] = ()
    """URLs that led here across hosts, first to last."""
    modified_s: int = 0
    """When its sitemap says that it changed last, seconds since the epoch; 0 when nobody said."""
    nesting: int = 0
    """Of a sitemap: the indexes above it."""
    ask: Ask = NO_ASK
    """What a program asked for beside the URL."""
    again: LastVisit | None = None
    """Of a page that was fetched before. Scripts read it too (`visit_again` in _hosts.lua): the last field."""

    @property
    def url(self) -> str:
        return self.host + self.path

    @property
    def known_as(self) -> str:
        """What it is known by as seen: the URL, and with it method and body where it is no plain GET."""
        ask = self.ask
        return self.url if ask.method == "GET" and not ask.body else f"{ask.method} {self.url}\n{ask.body}"


_ENCODER: Final = msgspec.json.Encoder()


class _Stored(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    crashes: int
    discovered_ms: int
    kind: Kind
    path: str
    depth: int
    attempt: int = 1
    referrer: str = ""
    redirects: tuple[str, ...] = ()
    modified_s: int = 0
    nesting: int = 0
    ask: Ask = NO_ASK
    again: LastVisit | None = None


_DECODER: Final = msgspec.json.Decoder(_Stored)
_DEFAULTS: Final[tuple[Any, ...]] = (Kind.PAGE.value, "/", 0, 1, "", [], 0, 0, NO_ASK, None)
_SHORTEST: Final = 3
"""Fields of the rest that are always written: kind, path and depth."""


def front_code(text: str, base: str) -> str:
    """Return `text` as `"<n>|<tail>"` where its first n characters are those of `base`. Undone by `front_decode`."""
    n, limit = 0, min(len(text), len(base))
    while n < limit and text[n] == base[n]:
        n += 1
    return f"{n}|{text[n:]}"


def front_decode(coded: str, base: str) -> str:
    """Return the text that `front_code` was given.

    Raises:
        CodecError: `coded` was not made by `front_code`.
    """
    count, bar, tail = coded.partition("|")
    if not bar or not count.isdecimal():
        raise CodecError(f"front-coded text without a count: {coded[:80]!r}")
    return base[: int(count)] + tail


def encode_rest(task: CrawlTask) -> bytes:
    """Return the stored form without its head, `"page","/a",1]`; a script puts crashes and discovery time in front."""
    fields: list[Any] = [
        task.kind.value,
        task.path,
        task.depth,
        task.attempt,
        "" if task.referrer is None else front_code(task.referrer, task.url),
        list(task.redirects),
        task.modified_s,
        task.nesting,
        task.ask,
        task.again,
    ]
    while len(fields) > _SHORTEST and fields[-1] == _DEFAULTS[len(fields) - 1]:
        fields.pop()
    return _ENCODER.encode(fields)[1:]


def encode_task(task: CrawlTask) -> bytes:
    """Return the whole stored form, for a task that goes back: its head is kept as it was."""
    return b"[%d,%d," % (task.crashes, task.discovered_ms) + encode_rest(task)


def decode_task(host: str, level: str, stored: bytes) -> CrawlTask:
    """Return the task of a stored form, whose host key and level come from its queue or its stream entry.

    Raises:
        CodecError: the bytes are not a task of this schema.
    """
    try:
        kept = _DECODER.decode(stored)
        return CrawlTask(
            host=host,
            path=kept.path,
            kind=kept.kind,
            level=Level(level),
            depth=kept.depth,
            attempt=kept.attempt,
            crashes=kept.crashes,
            discovered_ms=kept.discovered_ms,
            referrer=front_decode(kept.referrer, host + kept.path) if kept.referrer else None,
            redirects=kept.redirects,
            modified_s=kept.modified_s,
            nesting=kept.nesting,
            ask=kept.ask,
            again=kept.again,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise CodecError(f"stored task cannot be read ({error}): {stored[:120]!r}") from error
