"""Why is this URL fetched, or not? Everything a crawl knows of one URL, in words. Reads only.

Each place where its task may be is searched to a bound, and a bound that was reached is said. A task that moves while
it is looked for is looked for again. Start at `explain`.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from streamcrawl.errors import CodecError, ConfigError
from streamcrawl.ops.hosts import LEVEL_NAMES, HostPage, delay_words, host_page
from streamcrawl.ops.items import FoundItems, items_of
from streamcrawl.ops.letters import Where, newest_of
from streamcrawl.ops.status import read_status
from streamcrawl.ops.words import glob_of, moment, span
from streamcrawl.rules.addresses import Inside, literal_of, network_of
from streamcrawl.rules.robots_rules import RobotsRules, deciding_line
from streamcrawl.rules.scope import Scope, sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, DropReason, Kind, Level, decode_task
from streamcrawl.rules.traps import Traps, in_words
from streamcrawl.rules.urls import (
    Canonicalizer,
    canonical_url,
    fingerprint,
    fingerprint_hex,
    split_url,
    without_credentials,
)
from streamcrawl.store.connection import mapped_errors, server_ms
from streamcrawl.store.seen import is_fingerprint_seen, is_seen
from streamcrawl.store.tuning import read_tuned, settings_of
from streamcrawl.web.address_guard import AddressGuard

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

QUEUED_MAX: Final = 200_000
"""Tasks of its host's queue that are searched: some 40 MB, a second."""
DELAYED_MAX: Final = 200_000
KEPT_MAX: Final = 200_000
"""Pages that wait for their next visit, of all hosts."""
DEAD_MAX: Final = 20_000
"""Newest dead letters that are searched."""
_PER_CALL: Final = 1000
_LOOKS_MAX: Final = 3


class Found(msgspec.Struct):
    """Where the task of a URL is."""

    place: str
    """queued, waiting (in the stream), in hand, delayed, dead, kept (for its next visit), or '' for nowhere."""
    words: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    searched: list[str] = msgspec.field(default_factory=list)
    """Where the search ended at its bound."""


class Explanation(msgspec.Struct):
    """What is known of one URL."""

    typed: str
    url: str
    shard: int
    shards: int
    is_seen: bool
    out_of_scope: str
    """Why a link to it would not be followed; '' when it would."""
    left_out: str
    """The same of a trap; its depth and the page that links to it are not known here."""
    found: Found
    dropped: dict[str, int]
    """Pages of the whole crawl that were dropped, by reason: what was dropped is not kept with its URL."""
    forbidden: dict[str, str]
    """Why it is dropped by the rules of now, in words by reason."""
    depth_max: int | None
    host: HostPage
    robots: str
    """What robots.txt says of it, in words."""
    is_allowed: bool | None
    """None when that is not known yet."""
    robots_line: tuple[int, str] | None
    sitemap: str
    """The same URL as a sitemap, in words; '' when it was never named as one, as far as can be told."""
    items: FoundItems
    """What came of the page and is on its way, or dead."""

    def verdict(self) -> str:
        """Return the answer in one line."""
        if self.found.place:
            return self.found.words
        if self.is_seen and self.items.found:
            return f"fetched; {self.items.found[0].words}"
        if self.is_seen:
            if self.found.searched:
                return f"seen, and not found in {', '.join(self.found.searched)}; it may be there, done or dropped"
            if not self.dropped and self.items.has_stages:
                return "seen, and done: nothing that came of it is on its way any more"
            if not self.dropped:
                return "seen, and done: the output has its record"
            counts = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.items())
            words = "done (then the output has its record) or dropped"
            # What was never counted was not the reason, whatever the rules say by now.
            if likely := [why for reason, why in self.forbidden.items() if reason in self.dropped]:
                words = f"dropped, most likely: {'; '.join(likely)}"
            return f"seen, and nowhere any more: {words} (dropped in the whole crawl: {counts})"
        if self.out_of_scope:
            return "never seen, and out of scope: a link to it is not followed"
        if self.left_out:
            return "never seen, and taken for a trap: a link to it is not followed"
        within = "" if self.depth_max is None else f" within --depth {self.depth_max}"
        words = f"never seen: no page that was fetched links to it{within}, and no seed is it"
        return "; found, it would be dropped: ".join((words, *self.forbidden.values()))

    def as_json(self) -> dict[str, Any]:
        return {
            "typed": self.typed,
            "url": self.url,
            "fingerprint": fingerprint_hex(fingerprint(self.url)),
            "shard": self.shard,
            "seen": self.is_seen,
            "in_scope": not self.out_of_scope,
            "out_of_scope": self.out_of_scope,
            "left_out": self.left_out,
            "place": self.found.place,
            "verdict": self.verdict(),
            **self.found.facts,
            "searched_to_a_bound": self.found.searched,
            "dropped_by_reason": self.dropped,
            "forbidden": self.forbidden,
            "robots": self.robots,
            "robots_allows": self.is_allowed,
            "robots_line": None if self.robots_line is None else self.robots_line[0],
            "robots_text": None if self.robots_line is None else self.robots_line[1],
            "sitemap": self.sitemap,
            "items": [item.as_json() for item in self.items.found],
            "items_searched_to_a_bound": self.items.searched,
            "host": self.host.as_json(),
        }


async def explain(crawl: Shards, name: str, text: str) -> Explanation:
    """Return what the crawl `name` knows of a URL as it was typed.

    Raises:
        ConfigError: it is no http(s) URL.
    """
    url = canonical_url(text)
    if url is None:
        raise ConfigError(f"{without_credentials(text)!r} is not an http(s) URL")
    settings = settings_of(crawl, name, (await read_tuned(crawl)).given)
    url = Canonicalizer.from_settings(settings)(url)
    host, _ = split_url(url)
    frontier = crawl.of(host)
    page = await host_page(crawl, host)
    stored = await _stored_scope(crawl)
    scope = None if stored is None else Scope.from_state(settings, stored)
    # Links on pages of its own host lead to it, once there are such pages.
    out_of_scope = scope.why_not(url, page_host=host if page.is_known else None) if scope is not None else ""
    trap = Traps(settings, datetime.now(UTC).year).reason(url, depth=0, referrer=f"{host}/")
    seen, found = await is_seen(frontier, url), await _find(frontier, url, page, Kind.PAGE)
    for _ in range(_LOOKS_MAX - 1):
        if found.place or found.searched or not seen:
            break
        # A task on its way from one place to the next was in neither when each was looked at.
        found = await _find(frontier, url, page, Kind.PAGE)
    robots, is_allowed, line = _robots(url, page, settings)
    dropped = (await read_status(crawl.client, name)).named("page.dropped.")
    return Explanation(
        text,
        url,
        crawl.index_of(host),
        len(crawl),
        seen,
        out_of_scope,
        "" if trap is None else in_words(trap),
        found,
        {reason: count for reason, count in dropped.items() if count},
        _forbidden(url, page, settings, stored, is_allowed, robots),
        settings.depth_max,
        page,
        robots,
        is_allowed,
        line,
        await _as_sitemap(frontier, url, page, settings),
        await items_of(crawl, frontier, page, url),
    )


async def _stored_scope(crawl: Shards) -> dict[str, Any] | None:
    """Return the scope as the command stored it; None for a crawl that was begun otherwise."""
    with mapped_errors():
        stored: Any = await crawl.client.hget(crawl.first.keys.state, "crawl")
    try:
        scope: Any = msgspec.json.decode(stored or b"{}")["scope"]
        return {"hosts": scope["hosts"], "prefixes": scope["prefixes"], "resolved": scope.get("resolved", {})}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None


def _forbidden(
    url: str, page: HostPage, settings: Settings, scope: dict[str, Any] | None, is_allowed: bool | None, robots: str
) -> dict[str, str]:
    """Return why a page is dropped by the rules of now, in words by reason; names are not looked up for it."""
    found: dict[str, str] = {}
    if is_allowed is False:
        found[DropReason.ROBOTS.value] = f"{robots} of its robots.txt"
    budget = settings.pages_per_host_max
    if page.fields.given_up == DropReason.HOST_BUDGET:
        found[DropReason.HOST_BUDGET.value] = f"its host had its {budget or page.fields.pages} pages"
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    guard = AddressGuard(settings, Inside.of_state(scope or {}))
    for address in literal_of(parts.hostname or "") if not settings.proxies else ():
        if not guard.admits(address, port):
            found[DropReason.BLOCKED_ADDRESS.value] = (
                f"{address} is a {network_of(address)} address, which this crawl does not connect to"
            )
    return found


# -- where it is


async def _as_sitemap(frontier: Frontier, url: str, page: HostPage, settings: Settings) -> str:
    found = await _find(frontier, url, page, Kind.SITEMAP)
    if found.place:
        return found.words
    host, path = split_url(url)
    # As its own host names it; one that only another host names is found while its task is somewhere.
    task = CrawlTask(host=host, path=path, kind=Kind.SITEMAP)
    is_known = await is_fingerprint_seen(frontier, sitemap_fingerprint(task, host, settings.scope))
    return "read or dropped: `status` counts them" if is_known else ""


async def _find(frontier: Frontier, url: str, page: HostPage, kind: Kind) -> Found:
    path = split_url(url)[1]
    searched: list[str] = []
    found = (
        _in_stream(page, path, kind)
        or await _delayed(frontier, page, path, kind, searched)
        or await _queued(frontier, page, path, kind, searched)
        or await _dead(frontier, page, url, kind, searched)
        or await _kept(frontier, page, path, kind, searched)
        or Found("")
    )
    found.searched = searched if not found.place else []
    return found


def _in_stream(page: HostPage, path: str, kind: Kind) -> Found | None:
    for entry in page.in_flight:
        if _is_of(page.key, entry.level, entry.stored, path, kind):
            facts = {"entry": entry.entry_id, "worker": entry.consumer, "idle_ms": entry.idle_ms}
            if not entry.consumer:
                return Found("waiting", f"in the work stream ({entry.entry_id}), not read by a worker yet", facts)
            held = f"in the hands of {entry.consumer}, whose lease was last renewed {span(entry.idle_ms)} ago"
            return Found("in hand", f"{held} ({entry.entry_id})", facts)
    return None


async def _delayed(frontier: Frontier, page: HostPage, path: str, kind: Kind, searched: list[str]) -> Found | None:
    pattern = "fetch|?|" + glob_of(page.key) + "|*"
    looked, cursor = 0, 0
    while True:
        with mapped_errors():
            answer: Any = await frontier.client.zscan(frontier.keys.delayed, cursor, match=pattern, count=_PER_CALL)
        cursor, rows = answer
        for member, score in rows:
            _, level, host, stored = member.split(b"|", 3)
            if _is_of(host.decode(), level.decode(), stored, path, kind):
                due_in_ms = int(score) - page.state.now_ms
                attempt = decode_task(page.key, level.decode(), stored).attempt
                words = f"delayed: attempt {attempt} is due " + (f"in {span(due_in_ms)}" if due_in_ms > 0 else "now")
                return Found("delayed", words, {"due_in_ms": due_in_ms, "attempt": attempt})
        looked += _PER_CALL
        if not cursor:
            return None
        if looked >= DELAYED_MAX:
            searched.append(f"{looked:,} delayed tasks")
            return None


async def _queued(frontier: Frontier, page: HostPage, path: str, kind: Kind, searched: list[str]) -> Found | None:
    # What stands in front of the other fields of the stored form is the same for all but a few: most are told apart
    # without being decoded.
    needle = b'"%b",%b,' % (kind.value.encode(), msgspec.json.encode(path))
    looked = before = 0
    for level in (Level.HIGH, Level.NORMAL, Level.LOW):
        place = 0
        while True:
            with mapped_errors():
                window: Any = await frontier.client.lrange(
                    frontier.keys.queue(page.key, level), place, place + _PER_CALL - 1
                )
            for n, stored in enumerate(window):
                if needle in stored and _is_of(page.key, level, stored, path, kind):
                    task = decode_task(page.key, level, stored)
                    facts = {
                        "level": LEVEL_NAMES[level], "queue_place": place + n, "tasks_before": before + n,
                        "attempt": task.attempt, "depth": task.depth, "referrer": task.referrer,
                        "modified_at": moment(1000 * task.modified_s),
                    }  # fmt: skip
                    words = f"queued, level {LEVEL_NAMES[level]}, with {before + n:,} tasks of its host before it"
                    return Found("queued", words, facts)
            place, before, looked = place + len(window), before + len(window), looked + len(window)
            if len(window) < _PER_CALL:
                break
            if looked >= QUEUED_MAX:
                searched.append(f"the first {looked:,} queued tasks of its host")
                return None
    return None


async def _dead(frontier: Frontier, page: HostPage, url: str, kind: Kind, searched: list[str]) -> Found | None:
    looked = 0
    async with aclosing(newest_of(frontier, page.shard, Where())) as letters:
        async for letter in letters:
            if letter.url == url and letter.kind == kind and letter.task is not None:
                tries = f"{letter.reason}, attempt {letter.task.attempt}"
                words = ": ".join([f"dead since {moment(letter.died_at_ms)}", tries, *letter.error.splitlines()[:1]])
                facts = {"letter": letter.entry_id, "reason": letter.reason, "error": letter.error}
                return Found("dead", f"{words} (letter {letter.entry_id})", facts)
            looked += 1
            if looked >= DEAD_MAX:
                searched.append(f"the newest {looked:,} dead letters")
                return None
    return None


async def _kept(frontier: Frontier, page: HostPage, path: str, kind: Kind, searched: list[str]) -> Found | None:
    start = f"{page.key}|{msgspec.json.encode(kind.value).decode()},{msgspec.json.encode(path).decode()},"
    pattern = "?|" + glob_of(start) + "*"
    looked, cursor = 0, 0
    while True:
        async with frontier.client.pipeline(transaction=False) as pipe:
            pipe.zscan(frontier.keys.revisits, cursor, match=pattern, count=_PER_CALL)
            pipe.time()
            with mapped_errors():
                (cursor, rows), time = await pipe.execute()
        for member, due_ms in rows:
            level, host, rest = member.split(b"|", 2)
            task = _decoded(host.decode(), level.decode(), b"[0,0," + rest)
            if task is not None and task.again is not None:
                # By the wall clock, as revisit.lua: pages change while nobody works, too.
                due_in_ms = int(due_ms) - server_ms(time)
                when = f"in {span(due_in_ms)}" if due_in_ms > 0 else "now"
                facts = {"due_in_ms": due_in_ms, "interval_ms": task.again.interval_ms, "depth": task.depth}
                interval = span(task.again.interval_ms)
                return Found(
                    "kept", f"fetched, and due to be visited again {when}, {interval} after its last visit", facts
                )
        looked += _PER_CALL
        if not cursor:
            return None
        if looked >= KEPT_MAX:
            searched.append(f"{looked:,} pages that are to be visited again")
            return None


def _is_of(host: str, level: str, stored: bytes, path: str, kind: Kind) -> bool:
    task = _decoded(host, level, stored)
    return task is not None and task.kind is kind and task.path == path


def _decoded(host: str, level: str, stored: bytes) -> CrawlTask | None:
    try:
        return decode_task(host, level, stored)
    except CodecError:
        return None


# -- what its host says


def _robots(url: str, page: HostPage, settings: Settings) -> tuple[str, bool | None, tuple[int, str] | None]:
    if not settings.obey_robots:
        return "not asked for (--no-robots)", True, None
    if page.robots_text is None:
        is_free = page.robots.startswith("none")
        return page.robots, True if is_free else None, None
    is_allowed = RobotsRules.parse(page.robots_text, settings.user_agent).allows(url)
    line = deciding_line(page.robots_text, settings.user_agent, url)
    word = "allowed" if is_allowed else "disallowed"
    if line is None:
        return f"{word}: no line of the file is about it", is_allowed, None
    return f"{word} by line {line.number}: {line.text}", is_allowed, (line.number, line.text)


def _item_rows(items: FoundItems) -> list[tuple[str, str]]:
    rows = [("items" if n == 0 else "", item.words) for n, item in enumerate(items.found)]
    if items.is_full:
        rows.append(("", f"and perhaps more: the first {len(items.found)} are shown"))
    return rows + [("items", f"not looked for beyond {bound}") for bound in items.searched]


def explanation_lines(found: Explanation) -> list[str]:
    """Return an explanation as lines of plain text."""
    rows = [("now", found.verdict())]
    if found.url != found.typed:
        rows.append(("canonical", f"{found.url} (typed: {found.typed})"))
    rows += [
        ("seen", "yes" if found.is_seen else "no"),
        (
            "in scope",
            f"no: {found.out_of_scope}" if found.out_of_scope else "yes (its depth is known when it is found)",
        ),
        *([("trap", found.left_out)] if found.left_out else []),
        ("robots.txt", found.robots),
        *([("as a sitemap", found.sitemap)] if found.sitemap else []),
        *_item_rows(found.items),
        ("host", f"{found.host.key}: {found.host.standing()}"),
        ("delay", delay_words(found.host)),
    ]
    if found.shards > 1:
        rows.append(("shard", str(found.shard)))
    if found.host.state.halt:
        rows.append(("crawl", found.host.state.halt))
    facts = found.found.facts
    known = (("referrer", "found on"), ("modified_at", "changed, says its sitemap,"))
    rows += [(label, str(facts[name])) for name, label in known if facts.get(name)]
    width = max(len(label) for label, _ in rows)
    return [found.url, *(f"  {label:<{width}}  {text}" for label, text in rows)]
