"""What one slot does with one entry: from the lease to the commit that will end it.

Decides nothing that rules/ could decide, writes nothing: it returns an `Ending`. Every task ends in exactly one of the
outcomes of rules/task.py, or goes back unbegun. Three rings keep that true: errors of the fetch go to the retry rule;
errors of the handler are retried or become a dead letter with their traceback; anything else is caught by the slot
(slots.py), which survives. Start at `PageWork.do`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import (
    BlockedAddress,
    CodecError,
    ConnectError,
    ConnectTimeout,
    DnsError,
    FetchError,
    FetchTimeout,
    LeaseLost,
    ProxyError,
    RedirectLoop,
    StageError,
    StoreError,
    StoreUnavailable,
    TlsError,
    TooManyRedirects,
)
from streamcrawl.response import Drop, Response, Retry
from streamcrawl.rules.alike import is_sampled, sketch_of
from streamcrawl.rules.politeness import Refusal, is_of_host, parse_retry_after_ms, refusal_of
from streamcrawl.rules.retry import Decision, RetryPolicy, decide_error, decide_status
from streamcrawl.rules.retry import Verdict as RetryVerdict
from streamcrawl.rules.revisit import (
    Content,
    RevisitPolicy,
    conditions_of,
    content_digest,
    etag_of,
    modified_of,
    next_visit,
)
from streamcrawl.rules.robots_rules import BODY_MAX_BYTES, verdict_for_status, verdict_ttl_ms
from streamcrawl.rules.sitemaps import BYTES_MAX, Flaw
from streamcrawl.rules.task import CrawlTask, DropReason, Kind, Outcome, decode_task, encode_rest, encode_task
from streamcrawl.rules.urls import split_url
from streamcrawl.store.frontier import Commit, Wait
from streamcrawl.web.exchange import Exchange, encode_exchanges, is_archive
from streamcrawl.work.addresses import AddressLeases
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.cookies import Cookies
from streamcrawl.work.fetched import pack_page
from streamcrawl.work.handlers import Handled, Handler, load_handler, page_record
from streamcrawl.work.links import FollowedLinks
from streamcrawl.work.logs import printable
from streamcrawl.work.meters import BODY_BYTES, FETCH_ERRORS, FETCH_RESPONSES, FETCH_SECONDS, HANDLER_SECONDS
from streamcrawl.work.program import FETCHED, PAGE, Program, stored_item
from streamcrawl.work.robots import KEPT_SPARE_MS, KEPT_UNREACHABLE_MS, RobotsCache, encode_verdict
from streamcrawl.work.sitemap_walk import NoRoom, SitemapWalk, own_sitemaps
from streamcrawl.work.traces import request_span, span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from streamcrawl.rules.cookies import Jar
    from streamcrawl.rules.robots_rules import RobotsRules
    from streamcrawl.rules.scope import Scope
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Entry, Links
    from streamcrawl.store.shards import Shards
    from streamcrawl.web.fetcher import Answer, Fetching
    from streamcrawl.work.addresses import Lease
    from streamcrawl.work.board import Board
    from streamcrawl.work.stall import StallWatch

START_WAIT_MAX_MS: Final = 2000
"""A host that is due later than this gets its task back: the slot has better to do."""
START_MARGIN_MS: Final = 50
"""A loaded worker may stall between Redis's START and its request on the wire; starts stay a delay apart all the same.
With 20 ms the log of a site showed one of some hundred a few ms early while processes were killed and started anew on
two busy cores (2026-11-30)."""
START_LATE_MS: Final = 20
"""An answer START that took longer is not used: what is left of the margin must do for connecting and sending."""
SURE_ERRORS: Final = (DnsError, ConnectError, ConnectTimeout, TlsError)
"""Errors that are the host's and never one URL's."""
VISIT_WAIT_MAX_MS: Final = 10_000
"""How long a robots task waits for the host that its robots.txt redirects to; then its own host is backed off."""
VISIT_MARGIN_MS: Final = 1000
"""A worker may stall so long between Redis's GO and its request on the wire; after more it asks again."""
VISIT_POLL_MS: Final = 250
BLOCKED_ROBOTS_TTL_MS: Final = 60_000
"""Until a robots.txt at an address that is refused is asked for again, which costs a lookup and nothing else."""
SITEMAP_HEADERS: Final = {
    "Accept": "application/xml,text/xml,application/rss+xml,application/atom+xml,text/plain,*/*;q=0.8"
}
SITEMAP_WIRE_MAX_BYTES: Final = 2 * BYTES_MAX
"""Read of a sitemap before the reader's own bound ends it, which counts what a gzip in it holds."""
_LINE: Final = re.compile(rb'\[\d+,\d+,"([a-z]+)"')
"""As scripts tell the line of a task, whatever follows (kind_of in _hosts.lua): another line would be INVALID."""


class Ending(msgspec.Struct):
    """How an entry is to end. `commit` None: it goes back unbegun."""

    commit: Commit | None
    ended_at: float = 0.0
    """time.monotonic() when the last byte had come."""
    ahead: list[Links] = msgspec.field(default_factory=list)
    """Chunks of links to offer, fenced, before the commit: a script takes LINKS_PER_CALL at most."""
    elsewhere: list[tuple[int, Links]] = msgspec.field(default_factory=list)
    """Links of other shards, at most LINKS_PER_CALL each, to offer there before the commit."""
    offered: list[str] = msgspec.field(default_factory=list)
    is_robots_stale: bool = False
    is_begun: bool = False
    """A request went out although the entry goes back: the host's delay counts from here."""
    retry_delay_ms: int | None = None
    """After which the task comes back, or the page is visited again."""
    wait: Wait | None = None
    """Of an entry that goes back: its host is left alone that long."""
    instead: Ending | None = None
    """How it ends when the store may have lost what was offered on the way, and is not here any more to be offered
    again."""


class Pace(NamedTuple):
    """The politeness that holds for an entry; dispatch hands it out with it."""

    delay_ms: int
    must_ask: bool
    """Whether `start.lua` is to be asked before each request, because its host may have several under way."""


class PageWork:
    """The work of all slots of one worker."""

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        crawl: Shards,
        fetcher: Fetching,
        board: Board,
        sinks: Sequence[str],
        *,
        stalls: StallWatch,
        on_stuck: Callable[[], None],
        program: Program | None = None,
    ) -> None:
        """Prepare the work.

        Args:
            sinks: Names of the outputs.
            on_stuck: Called when a thread of this process hangs in a handler.
            program: Whose handlers get the pages; None for a plain crawl.
        """
        self._stalls = stalls
        self._settings = settings
        self._is_program = program is not None
        self._links = FollowedLinks(settings, scope, crawl)
        self.seen = self._links.seen
        self._crawl = crawl
        self._fetcher = fetcher
        self._board = board
        self._meters = board.meters
        records = [sink for sink in sinks if not is_archive(sink)]
        self._archives = [sink for sink in sinks if is_archive(sink)]
        """Sinks that take what went over the wire."""
        self._policy = RetryPolicy.from_settings(settings)
        self._revisits = RevisitPolicy.from_settings(settings)
        self._robots = RobotsCache(crawl, settings)
        self._cookies = Cookies(crawl, settings)
        self.addresses = AddressLeases(crawl, fetcher, settings)
        self._telling: set[asyncio.Task[None]] = set()
        if program is not None:
            self._functions = dict(program.pages)
            self._has_takers = bool(records) or not all(stage.is_page for stage in program.stages)
            self._elsewhere = {stage.label: stage for stage in program.stages if stage.is_page}
        else:
            self._has_takers = bool(records)
            self._elsewhere = {}
            self._functions = {"": load_handler(settings.handler)} if settings.handler else {}
        described = program or Program(settings.name)
        self._route = described.router(PAGE, records)
        retaining = described.router(PAGE, records, log=PAGE)
        self._handlers = {
            label: Handler(
                function,
                timeout_ms=settings.handler_timeout_ms,
                threads=settings.concurrency.most,
                on_stuck=on_stuck,
                route=retaining if label in described.retained_pages else self._route,
            )
            for label, function in self._functions.items()
        }

    def apply(self, settings: Settings, scope: Scope) -> None:
        """Go by other settings from the next question on."""
        self._settings = settings
        self._links.apply(settings, scope)
        self._policy = RetryPolicy.from_settings(settings)
        self._revisits = RevisitPolicy.from_settings(settings)
        self._robots.apply(settings)
        self._cookies.apply(settings)
        self.addresses.apply(settings)
        for handler in self._handlers.values():
            handler.timeout_ms = settings.handler_timeout_ms

    def decode(self, entry: Entry) -> CrawlTask | Commit:
        """Return the task of an entry, or the commit that buries an entry which cannot be read."""
        host = entry.fields.get(b"host", b"").decode("utf-8", "replace")
        level = entry.fields.get(b"level", b"").decode("utf-8", "replace")
        stored = entry.fields.get(b"task", b"")
        try:
            return decode_task(host, level, stored)
        except CodecError as error:
            line = _LINE.match(stored)
            kind = Kind(line[1].decode()) if line is not None and line[1].decode() in set(Kind) else Kind.PAGE
            # Of the same line as the entry: replay and purge take a letter out of the line that it names.
            unread = b'[0,0,"%b","/unreadable",0]' % kind.value.encode()
            detail = ("2", unread, "codec", str(error)[:1000], "")
            return Commit(entry.id, host, kind, Outcome.DEAD, detail=detail)

    async def do(self, entry: Entry, task: CrawlTask, index: int) -> Ending:
        """Do the whole work of an entry.

        Raises:
            LeaseLost: the entry was taken back before the fetch could begin.
            StoreUnavailable: a verdict or a start could not be asked for; the entry may go back.
        """
        if not await self._lease_is_fresh_in_time():
            return Ending(None)
        rules, is_allowed = None, True
        if task.kind is not Kind.ROBOTS:
            rules = await self._robots.get(task.host)
            if rules is None:
                return Ending(None, is_robots_stale=True)
            is_allowed = rules.allows(task.url)
        if rules is not None and not is_allowed:
            ending = self._drop(entry, task, DropReason.ROBOTS)
        else:
            lease = await self.addresses.take(entry, task.host)
            if isinstance(lease, Wait):
                return Ending(None, wait=lease)
            try:
                if rules is None:
                    return await self._fetch_robots(entry, task, index)
                jar = await self._cookies.open(task.host)
                if self._pace(entry).must_ask and not await self._may_start(entry, task):
                    return Ending(None)
                if task.kind is Kind.SITEMAP:
                    return await self._fetch_sitemap(entry, task, index, rules, jar)
                ending = await self._fetch_page(entry, task, index, rules, jar, lease)
            finally:
                self.addresses.give_back(lease)
        commit = ending.commit
        if commit is not None and task.kind is Kind.PAGE and (commit.is_fetched or not is_allowed):
            self._add_sitemaps(ending, commit, task, rules)
        return ending

    def bury(self, entry: Entry, task: CrawlTask, reason: str, error: str, status: str = "") -> Commit:
        """Return the commit that makes the task a dead letter."""
        detail = (task.level.value, encode_task(task), reason, printable(error), status)
        return Commit(entry.id, task.host, task.kind, Outcome.DEAD, detail=detail)

    def internal_error(self, entry: Entry, task: CrawlTask, error: str) -> Ending:
        """Return how a task ends at which our own code failed: tried again, at last dead with the traceback."""
        if task.attempt < self._policy.attempts_max:
            return self._retry(entry, task, self._policy.base_ms)
        return _fetched(self.bury(entry, task, "internal", error[-4000:]), time.monotonic())

    async def _lease_is_fresh(self) -> None:
        """Wait until a heartbeat is confirmed that is younger than half a lease."""
        # Begin no request when nobody confirmed our leases for so long: the entry may be another's any moment. For a
        # task that has begun there is no limit: it is told when its lease is lost, and an outage must not repeat it.
        limit = self._settings.lease_ms // 2
        while self._board.beat_age_ms() > limit:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)

    async def _lease_is_fresh_in_time(self) -> bool:
        """The same for a task that has not begun; False after a whole lease: it goes back."""
        if self._board.beat_age_ms() <= self._settings.lease_ms // 2:
            return True
        # Rather than be let go: what nobody holds is reclaimed, and a crash is counted against it.
        try:
            async with asyncio.timeout(self._settings.lease_ms / 1000):
                await self._lease_is_fresh()
        except TimeoutError:
            return False
        return True

    def _was_ours(self, error: FetchError, since: float) -> bool:
        """Return whether a fetch that began then had no chance, because this process stood still most of the time."""
        # Counted as an attempt of the page, and as a failure of its host, a sleeping laptop would bury both.
        limit_s = self._settings.timeout_ms / 1000
        if isinstance(error, ConnectTimeout):
            limit_s = min(limit_s, self._settings.connect_timeout_ms / 1000)
        elif isinstance(error, FetchTimeout):
            limit_s = min(limit_s, self._settings.read_timeout_ms / 1000)
        else:
            return False
        return self._stalls.stalled_s(since) > limit_s / 2

    def _pace(self, entry: Entry) -> Pace:
        """Return how polite to be; by the settings where its entry does not say, because nothing has a delay."""
        fields, settings = entry.fields, self._settings
        return _pace_of(fields.get(b"delay", settings.delay_ms), fields.get(b"cap", settings.host_concurrency))

    async def _may_start(self, entry: Entry, task: CrawlTask, wait_max_ms: int = START_WAIT_MAX_MS) -> bool:
        late_ms = START_LATE_MS
        while True:
            asked_ms = monotonic_ms()
            margin_ms = START_MARGIN_MS - START_LATE_MS + late_ms
            word, ms = await self._crawl.of(task.host).start(
                entry.id, task.host, wait_max_ms=wait_max_ms, margin_ms=margin_ms
            )
            if word == "START":
                took_ms = monotonic_ms() - asked_ms
                if took_ms <= late_ms:
                    return True
                # We stalled, or Redis is far away: another slot may be starting just now. The next START covers it.
                late_ms = 2 * took_ms
                continue
            if word == "BACK":
                return False
            if word == "LEASE_LOST":
                raise LeaseLost("taken back while it waited for its host")
            await asyncio.sleep(ms / 1000)

    def _on_sent(self, entry: Entry, task: CrawlTask) -> Callable[[], None] | None:
        """Return what is to be called when a request goes out that had its START just now; None where none is asked."""
        if not self._pace(entry).must_ask:
            return None
        started_ms = monotonic_ms()

        def sent() -> None:
            if monotonic_ms() - started_ms > START_LATE_MS:
                # Resolving, connecting and TLS took their time: the next START has to count from here.
                telling = asyncio.create_task(self._tell_late_start(entry.id, task.host))
                self._telling.add(telling)
                telling.add_done_callback(self._telling.discard)

        return sent

    async def _tell_late_start(self, entry_id: str, host: str) -> None:
        with contextlib.suppress(StoreError):
            await self._crawl.of(host).start(entry_id, host, wait_max_ms="late", margin_ms=0)

    async def _fetch(self, kind: Kind, url: str, **how: Any) -> Answer:
        """Make one request, and count how it went; raises what the fetcher raises."""
        started = time.monotonic()
        with request_span(how.get("method", "GET"), url) as traced:
            try:
                answer = await self._fetcher.fetch(url, **how)
            except FetchError as error:
                self._meters.observe(FETCH_SECONDS, time.monotonic() - started, kind.value)
                self._meters.add(FETCH_ERRORS, 1, kind.value, error.kind)
                traced.failed(error.kind)
                raise
            traced.set({"http.response.status_code": answer.status, "http.response.body.size": len(answer.body)})
        self._meters.observe(FETCH_SECONDS, time.monotonic() - started, kind.value)
        self._meters.add(FETCH_RESPONSES, 1, kind.value, f"{answer.status // 100}xx")
        self._meters.add(BODY_BYTES, len(answer.body), kind.value)
        return answer

    # -- pages

    async def _fetch_page(
        self, entry: Entry, task: CrawlTask, index: int, rules: RobotsRules, jar: Jar | None, lease: Lease | None
    ) -> Ending:
        response: Response | None = None
        circle: str | None = None
        wire: list[Exchange] = []
        ask, conditions = task.ask, conditions_of(task.again)

        async def fetch(url: str) -> Answer:
            nonlocal ask
            answer = await self._fetch(
                task.kind,
                url,
                referrer=task.referrer,
                headers=({**ask.headers, **conditions} if url == task.url else ask.headers) or None,
                jar=jar,
                on_sent=self._on_sent(entry, task),
                method=ask.method,
                data=ask.body,
            )
            await self._cookies.keep(jar, task.host, answer)
            if answer.exchange is not None:
                wire.append(answer.exchange)
            if ask.method not in ("GET", "HEAD") and answer.status not in (307, 308):
                ask = msgspec.structs.replace(ask, method="GET", body="")  # RFC 9110 section 15.4
            return answer

        def refresh(answer: Answer, hops: list[str]) -> str | None:
            nonlocal response, circle
            response = Response(task, answer, redirects=tuple(hops), links_max=self._settings.links_max)
            target, circle = self._sent_on(task, response, hops, rules)
            return target

        found = await self._follow(entry, task, index, rules, fetch, refresh)
        self.addresses.give_back(lease)  # a handler may take minutes
        if isinstance(found, Ending):
            return self._archived(found, wire)
        assert response is not None
        ending = await self._answered(entry, task, index, found[0], response, found[1], circle)
        return self._archived(ending, wire)

    def _archived(self, ending: Ending, wire: list[Exchange]) -> Ending:
        """Give the archives what a page or a redirect is made of; another try of it would bring its own."""
        commit = ending.commit
        if commit is not None and wire and commit.outcome in (Outcome.DONE, Outcome.REDIRECTED, Outcome.DROPPED):
            item = encode_exchanges(wire)
            commit.items = [*commit.items, *(part for sink in self._archives for part in (sink, item))]
        return ending

    async def _follow(
        self,
        entry: Entry,
        task: CrawlTask,
        index: int,
        rules: RobotsRules,
        fetch: Callable[[str], Awaitable[Answer]],
        refresh: Callable[[Answer, list[str]], str | None] = lambda *_: None,
    ) -> Ending | tuple[Answer, list[str]]:
        """Return the answer at the end of the redirects within the host, and the URLs that led there; or the ending.

        Args:
            refresh: Says where an answer that is no redirect sends on all the same, given the hops before it.
        """
        pace = self._pace(entry)
        url, hops = task.url, list[str]()
        answer: Answer | None = None
        while True:
            self._board.begin(index)
            started = time.monotonic()
            try:
                answer = await fetch(url)
                target = answer.location if answer.location is not None else refresh(answer, hops)
                if target is None:
                    return answer, hops
                hops.append(url)
                url = target
                if url in hops:
                    raise RedirectLoop(f"redirected in a circle, back to {url}", task.url)
                if len(hops) + len(task.redirects) > self._settings.redirects_max:
                    raise TooManyRedirects(f"more than {self._settings.redirects_max} redirects", task.url)
            except BlockedAddress:
                return self._drop(entry, task, DropReason.BLOCKED_ADDRESS, answer)
            except ProxyError as error:
                return Ending(None, is_begun=bool(hops), wait=Wait(error.wait_ms, error.kind))
            except FetchError as error:
                if self._was_ours(error, started):
                    return Ending(None, is_begun=True)
                return self._failed(entry, task, error, started)
            host, path = split_url(url)
            if host != task.host:
                return self._redirected(entry, task, answer, host, path, hops)
            if not rules.allows(url):
                return self._drop(entry, task, DropReason.ROBOTS, answer)
            self._board.rest(index)
            # A hop is a fetch like any other: the host's delay counts from the end of the one before.
            if not pace.must_ask:
                await _sleep_until(answer.ended_at + pace.delay_ms / 1000)
            # Its own hop before was a start, so the next is a delay away: a task that went back for that would begin
            # with its first hop again, and again.
            elif not await self._may_start(entry, task, pace.delay_ms + START_WAIT_MAX_MS):
                return Ending(None, is_begun=True)
            await self._lease_is_fresh()

    def _sent_on(
        self, task: CrawlTask, response: Response, hops: list[str], rules: RobotsRules
    ) -> tuple[str | None, str | None]:
        """Return where a page sends its visitors at once, if it is to be followed as a redirect; and where it would
        send them in a circle or too far. What may not be followed leaves the page as it is: it has a body to keep."""
        limit_ms = self._settings.refresh_max_ms
        if limit_ms is None or not 200 <= response.status <= 299:
            return None, None
        # A handler may have no use for what is parsed, and two searches cost a hundredth of it.
        if self._handlers and b"efresh" not in response.body and b"EFRESH" not in response.body:
            return None, None
        page = response.page
        url = page.refresh
        if url is None or page.refresh_ms > limit_ms:
            return None, None
        before = (*task.redirects, *hops)
        if url in before or len(before) >= self._settings.redirects_max:
            return None, url
        if task.depth > 0 and not (
            self._links.scope.admits(url, page_host=task.host)
            and self._links.traps.reason(url, depth=task.depth, referrer=task.url) is None
        ):
            return None, None
        return (url, None) if split_url(url)[0] != task.host or rules.allows(url) else (None, None)

    def _decided(self, entry: Entry, task: CrawlTask, answer: Answer) -> Ending | int:
        """Return how a task ends whose answer asks to come again; else how long its host is to be left alone, ms."""
        decision = decide_status(
            answer.status,
            attempt=task.attempt,
            retry_after_ms=_retry_after_ms(answer),
            policy=self._policy,
            jitter=random.random(),
        )
        if refusal_of(answer.status) is not None:
            # Of the whole host: its pages must not die of an outage that is longer than their few tries.
            ending = self._unanswered_for_now(entry, task, decision, f"answered {answer.status}")
            return _with_answer(ending, answer, decision.block_ms, attempt=task.attempt)
        if decision.verdict is RetryVerdict.RETRY:
            ending = self._retry(entry, task, decision.delay_ms)
            return _with_answer(ending, answer, decision.block_ms)
        if decision.verdict is RetryVerdict.DEAD:
            commit = self.bury(entry, task, decision.reason, f"answered {answer.status}", str(answer.status))
            return _with_answer(Ending(commit), answer, decision.block_ms)
        return decision.block_ms

    async def _answered(
        self,
        entry: Entry,
        task: CrawlTask,
        index: int,
        answer: Answer,
        response: Response,
        hops: list[str],
        circle: str | None,
    ) -> Ending:
        decided = self._decided(entry, task, answer)
        if isinstance(decided, Ending):
            return decided
        handled = Handled()
        links: tuple[str, ...] = ()
        handler, own_stage = self._handlers.get(task.ask.label), self._elsewhere.get(task.ask.label)
        if answer.status == 304 and conditions_of(task.again) and not self._settings.unchanged_records:
            pass  # nothing came that a handler could read, or that could link to something new
        elif own_stage is not None:
            page = await pack_page(task, answer, hops)
            handled.items = [own_stage.line, stored_item(FETCHED, page, task.depth)]
        elif handler is None and (self._handlers or self._elsewhere or task.ask.label):
            known = ", ".join(repr(label) for label in (*self._handlers, *self._elsewhere)) or "none"
            error = f"no page handler of this program has the label {task.ask.label!r} (there are: {known})"
            return self._try_again(entry, task, "handler", error, answer, self._policy.base_ms)
        elif handler is None:
            started = time.monotonic()
            with span("handle"):
                links = response.links()
                record = page_record(task, answer, response, hops)
                if self._has_takers:  # of a program with nothing but an archive nobody wants the records
                    try:
                        handled.items = self._route(
                            record if not self._is_program else msgspec.to_builtins(record), task.depth
                        )
                    except StageError as error:  # the stages of a program without page handlers take other items
                        return self._try_again(entry, task, "handler", str(error), answer, self._policy.base_ms)
            self._meters.observe(HANDLER_SECONDS, time.monotonic() - started)
        else:
            self._board.begin(index)
            try:
                handled = await self._handle(handler, response, task.depth)
            except Retry as asked:
                delay_ms = self._policy.base_ms
                if asked.after_s is not None:
                    # Also inf, nan and what lies in the past: a handler of somebody else asked for it.
                    delay_ms = int(1000 * min(max(0.0, asked.after_s), self._policy.retry_after_max_ms / 1000))
                return self._try_again(entry, task, "retry", str(asked), answer, delay_ms)
            except Drop as drop:
                is_word = drop.reason.isascii() and drop.reason.isidentifier() and len(drop.reason) <= 64
                return self._drop(entry, task, drop.reason if is_word else DropReason.HANDLER, answer)
            except StageError as error:
                delay_ms = int(random.random() * min(self._policy.max_ms, self._policy.base_ms << (task.attempt - 1)))
                return self._try_again(entry, task, "handler", str(error), answer, delay_ms)
        commit = Commit(entry.id, task.host, task.kind, Outcome.DONE)
        commit.detail = self._next_visit(task, answer, response, hops)
        commit.items, commit.url = handled.items, task.url if self._is_program else ""
        commit.sketch = self._sketch(task, answer, response)
        ending = _with_answer(Ending(commit), answer, decided)
        if commit.detail[3:]:
            ending.retry_delay_ms = commit.detail[3]
        self._links.add(
            ending,
            commit,
            links,
            handled.requests,
            page_url=task.url,
            depth=task.depth,
            shard=entry.shard,
            circle=circle,
        )
        return ending

    def _sketch(self, task: CrawlTask, answer: Answer, response: Response) -> str:
        """Return by what commit.lua tells whether the page is like others of its host; '' for most of them."""
        # Of errors a host has one page for all, which is no fault of its other pages.
        if self._settings.demotion_max < 2 or not 200 <= answer.status <= 299 or not is_sampled(task.path):
            return ""
        return sketch_of(answer.body, task.path) if response.is_html else ""

    def _next_visit(self, task: CrawlTask, answer: Answer, response: Response, hops: list[str]) -> tuple[Any, ...]:
        """Return what commit.lua is to know of the page's next visit; nothing for a crawl without."""
        # What is not safe to repeat (RFC 9110 section 9.2.1) was asked for once.
        if self._revisits is None or task.ask.method not in ("GET", "HEAD"):
            return ()
        content = Content("")
        if answer.status < 400:
            digest = "" if answer.status == 304 else content_digest(answer.body, is_html=response.is_html)
            content = Content(digest)
            if not hops:  # of another URL they would be asked of the wrong one
                headers = answer.headers
                content = Content(digest, etag_of(headers.get("ETag")), modified_of(headers.get("Last-Modified")))
        visit = next_visit(self._revisits, task.again, answer.status, content)
        if visit is None:
            return ()
        if visit.last is None:
            return (visit.found.value,)
        rest = encode_rest(msgspec.structs.replace(task, attempt=1, again=visit.last))
        return visit.found.value, task.level.value, rest, visit.last.interval_ms

    async def _handle(self, handler: Handler, response: Response, depth: int) -> Handled:
        started = time.monotonic()
        try:
            with span("handle"):
                return await handler(response, depth=depth)
        finally:
            self._meters.observe(HANDLER_SECONDS, time.monotonic() - started)

    def _redirected(
        self, entry: Entry, task: CrawlTask, answer: Answer, host: str, path: str, hops: list[str]
    ) -> Ending:
        is_sitemap = task.kind is Kind.SITEMAP
        if not is_sitemap:
            host, path = split_url(self._links.form(host + path))
        # The first page of a crawl often redirects to where the site really lives: a seed's target is always in.
        if task.depth > 0 and not is_sitemap:
            if not self._links.scope.admits(host + path, page_host=task.host):
                return self._drop(entry, task, DropReason.OUT_OF_SCOPE, answer)
            reason = self._links.traps.reason(host + path, depth=task.depth, referrer=task.url)
            if reason is not None:
                return self._drop(entry, task, reason, answer)
        commit = Commit(entry.id, task.host, task.kind, Outcome.REDIRECTED)
        target = msgspec.structs.replace(
            task, host=host, path=path, attempt=1, again=None, redirects=(*task.redirects, *hops),
            referrer=task.referrer or (task.url if is_sitemap else None),
            # To another host with neither the body nor the headers, which were for this one.
            ask=msgspec.structs.replace(task.ask, method="GET", headers={}, body=""),
        )  # fmt: skip
        ending = _with_answer(Ending(commit), answer)
        self._links.place(ending, commit, [target], entry.shard)
        return ending

    # -- sitemaps

    def _add_sitemaps(self, ending: Ending, commit: Commit, task: CrawlTask, rules: RobotsRules) -> None:
        """Offer the sitemaps of a page's host with it: the first one that is answered there brings them in.

        Not where the page goes on to another host, which has its own, nor where their pages would lie too deep.
        """
        settings = self._settings
        if not settings.sitemaps or commit.outcome in (Outcome.REDIRECTED, Outcome.UNANSWERED):
            return
        if settings.depth_max is not None and task.depth >= settings.depth_max:
            return
        mark = f"sitemaps of {task.host} {hash(rules.sitemaps)}"
        if mark in self.seen:
            return
        ending.offered.append(mark)
        self._links.place(
            ending, commit, own_sitemaps(task.host, rules.sitemaps, task.depth), self._crawl.index_of(task.host)
        )

    async def _fetch_sitemap(
        self, entry: Entry, task: CrawlTask, index: int, rules: RobotsRules, jar: Jar | None
    ) -> Ending:
        settings = self._settings
        walk = SitemapWalk(
            entry,
            task,
            crawl=self._crawl,
            scope=self._links.scope,
            traps=self._links.traps,
            form=self._links.form,
            url_max_bytes=settings.url_max_bytes,
            seen=self.seen,
        )

        async def fetch(url: str) -> Answer:
            answer = await self._fetch(
                task.kind,
                url,
                body_max_bytes=SITEMAP_WIRE_MAX_BYTES,
                headers=SITEMAP_HEADERS,
                jar=jar,
                on_sent=self._on_sent(entry, task),
                into=walk.take,
            )
            self._meters.add(BODY_BYTES, walk.size, task.kind.value)  # the answer lacks what was handed on
            await self._cookies.keep(jar, task.host, answer)
            return answer

        is_asked = False
        try:
            await walk.ask_room()
            is_asked = True
            found = await self._follow(entry, task, index, rules, fetch)
            if isinstance(found, Ending):
                return await self._broken_off(entry, task, walk, found)
            answer, _ = found
            decided = self._decided(entry, task, answer)
            if isinstance(decided, Ending):
                return decided
            await walk.end()
        except NoRoom:
            return self._continued(entry, task, walk, is_fetched=is_asked)
        if not walk.is_sitemap:
            ending = self._drop(entry, task, DropReason.NO_SITEMAP, answer)
        else:
            ending = self._read(entry, task, walk, answer.ended_at)
        if ending.commit is not None:
            ending.commit.block_ms = decided
        return ending

    async def _broken_off(self, entry: Entry, task: CrawlTask, walk: SitemapWalk, ending: Ending) -> Ending:
        """Return the ending of a sitemap that did not come whole: what came of it stays."""
        commit = ending.commit
        if commit is None:
            return ending
        if commit.outcome is Outcome.DEAD:
            await walk.cut(Flaw.CUT_OFF)
            return self._read(entry, task, walk, ending.ended_at) if walk.entries else ending
        self._add_rest(ending, commit, walk)
        return ending

    def _read(self, entry: Entry, task: CrawlTask, walk: SitemapWalk, ended_at: float) -> Ending:
        commit = Commit(entry.id, task.host, task.kind, Outcome.DONE, detail=walk.flaws, left_out=walk.left_out)
        ending = _fetched(commit, ended_at)
        self._add_rest(ending, commit, walk)
        if walk.server:
            commit.server = walk.server
            ending.instead = self._continued(entry, task, walk, is_fetched=True)
        return ending

    def _add_rest(self, ending: Ending, commit: Commit, walk: SitemapWalk) -> None:
        by_shard, keys = walk.rest()
        commit.links = by_shard.pop(self._crawl.index_of(commit.host), commit.links)
        ending.offered += keys
        self._links.divide(ending, commit, by_shard)

    def _continued(self, entry: Entry, task: CrawlTask, walk: SitemapWalk, *, is_fetched: bool) -> Ending:
        # Long, and not all at once: an index may have left thousands of them that wait for the same room.
        delay_ms = int(self._policy.max_ms * (0.5 + random.random() / 2))
        detail = (delay_ms, task.level.value, encode_task(task))
        commit = Commit(entry.id, task.host, task.kind, Outcome.CONTINUED, detail=detail, is_fetched=is_fetched)
        return Ending(commit, time.monotonic(), retry_delay_ms=delay_ms)

    # -- robots

    async def _fetch_robots(self, entry: Entry, task: CrawlTask, index: int) -> Ending:
        pace = self._pace(entry)
        if pace.must_ask and not await self._may_start(entry, task):
            return Ending(None)
        self._board.begin(index)
        answer, url, hops = None, task.url, 0
        ttl_max_ms = self._settings.robots_ttl_ms
        started = time.monotonic()
        try:
            answer = own = await self._fetch_robots_txt(url, self._on_sent(entry, task))
            while answer.location is not None:
                hops += 1
                if hops > 5:  # RFC 9309 section 2.3.1.2
                    break
                url = answer.location
                self._board.rest(index)
                host = split_url(url)[0]
                is_kin = self._crawl.count_as_one(host, task.host)
                if is_kin and not pace.must_ask:
                    await _sleep_until(own.ended_at + pace.delay_ms / 1000)
                elif host == task.host and not await self._may_start(entry, task, pace.delay_ms + START_WAIT_MAX_MS):
                    return Ending(None, is_begun=True)
                if host != task.host:
                    visited = await self._visit_robots_txt(url, index, is_kin=is_kin)
                    if visited is None:
                        return self._unanswered(entry, task, "robots")
                    answer = visited
                    if is_kin:
                        own = answer
                    continue
                await self._lease_is_fresh()
                self._board.begin(index)
                answer = own = await self._fetch_robots_txt(url, self._on_sent(entry, task))
            said = "allow" if answer.location is not None else verdict_for_status(answer.status)
        except ProxyError as error:
            return Ending(None, is_begun=answer is not None, wait=Wait(error.wait_ms, error.kind))
        except FetchError as error:
            if self._was_ours(error, started):
                return Ending(None, is_begun=True)
            if error.is_unanswered or error.is_retryable:
                # Of another host that is down, its own must not be told: it may answer.
                if split_url(url)[0] != task.host:
                    return self._unanswered(entry, task, "robots")
                return _with_error(self._unanswered(entry, task, error.kind), error, started)
            # A robots.txt whose coding is broken, or whose redirect leads nowhere, is one that the host does not offer.
            answer, said = None, "allow"
            if isinstance(error, BlockedAddress):
                # Its pages are refused as well. Not for a day: once `allow_private` opens the host, its rules count.
                ttl_max_ms = min(ttl_max_ms, BLOCKED_ROBOTS_TTL_MS)
        if said == "retry":
            ending = self._unanswered(entry, task, "robots")
            if answer is None:
                return ending
            block_ms = min(_retry_after_ms(answer) or 0, self._policy.retry_after_max_ms)
            return _with_answer(ending, answer, block_ms, is_own=answer is own)
        status, body = (answer.status, answer.body) if answer is not None else (0, b"")
        text, delay_ms = encode_verdict(self._settings, verdict=said, status=status, body=body)
        control = None if answer is None else ", ".join(answer.headers.getall("Cache-Control", ()))
        ttl_ms = verdict_ttl_ms(control, min(self._settings.robots_ttl_min_ms, ttl_max_ms), ttl_max_ms)
        detail = (text, ttl_ms, delay_ms, KEPT_UNREACHABLE_MS if said == "parse" else KEPT_SPARE_MS)
        commit = Commit(entry.id, task.host, task.kind, Outcome.DONE, detail=detail)
        if answer is None:
            return _fetched(commit, time.monotonic())
        return _with_answer(Ending(commit), answer, is_own=answer is own)

    async def _fetch_robots_txt(self, url: str, on_sent: Callable[[], None] | None) -> Answer:
        # One byte more than is read, by which it shows that the last line is not whole.
        return await self._fetch(Kind.ROBOTS, url, body_max_bytes=BODY_MAX_BYTES + 1, is_cut=True, on_sent=on_sent)

    async def _visit_robots_txt(self, url: str, index: int, *, is_kin: bool) -> Answer | None:
        """Ask another host than the task's, as politely as if its own turn had come; None when it cannot be asked now.

        Of one that counts as the same as the task's, the task at hand is not in its own way (`is_kin`).
        RFC 9309 section 2.3.1.2 wants redirects followed across hosts, and that host must not be hit out of turn.
        """
        host = split_url(url)[0]
        frontier = self._crawl.of(host)
        deadline = monotonic_ms() + VISIT_WAIT_MAX_MS
        while True:
            asked_ms = monotonic_ms()
            try:
                word, ms, reservation = await frontier.begin_visit(
                    host,
                    wait_max_ms=max(0, deadline - asked_ms),
                    took_max_ms=2 * self._settings.timeout_ms + VISIT_MARGIN_MS,  # a stale connection is tried twice
                    is_kin=is_kin,
                )
            except StoreUnavailable:
                return None  # not raised: the task would go back as if its own host had not been asked
            if word == "GO":
                await _sleep_until((asked_ms + ms) / 1000)
                await self._lease_is_fresh()
                if monotonic_ms() - asked_ms <= ms + VISIT_MARGIN_MS:
                    break
                with contextlib.suppress(StoreError):
                    await frontier.end_visit(host, reservation, since_end_ms=0)
            elif word == "NO":
                return None
            else:
                await asyncio.sleep(min(ms, VISIT_POLL_MS) / 1000)
            if monotonic_ms() >= deadline:
                return None
        self._board.begin(index)
        try:
            return await self._fetch_robots_txt(url, None)
        finally:
            # Not told, the host is left alone a little longer.
            with contextlib.suppress(StoreError):
                await frontier.end_visit(host, reservation, since_end_ms=0)

    # -- endings

    def _drop(self, entry: Entry, task: CrawlTask, reason: str, answer: Answer | None = None) -> Ending:
        commit = Commit(entry.id, task.host, task.kind, Outcome.DROPPED, detail=(str(reason),))
        return Ending(commit, time.monotonic()) if answer is None else _with_answer(Ending(commit), answer)

    def _retry(self, entry: Entry, task: CrawlTask, delay_ms: int) -> Ending:
        again = msgspec.structs.replace(task, attempt=task.attempt + 1)
        detail = (delay_ms, task.level.value, encode_task(again))
        commit = Commit(entry.id, task.host, task.kind, Outcome.RETRY, detail=detail)
        ending = _fetched(commit, time.monotonic())
        ending.retry_delay_ms = delay_ms
        return ending

    def _try_again(
        self, entry: Entry, task: CrawlTask, reason: str, error: str, answer: Answer, delay_ms: int
    ) -> Ending:
        """Retry what a handler failed at, or bury it with its last attempt."""
        if task.attempt < self._policy.attempts_max:
            return _with_answer(self._retry(entry, task, delay_ms), answer)
        return _with_answer(Ending(self.bury(entry, task, reason, error, str(answer.status))), answer)

    def _failed(self, entry: Entry, task: CrawlTask, error: FetchError, started: float) -> Ending:
        return _with_error(self._failed_with(entry, task, error), error, started, attempt=task.attempt)

    def _failed_with(self, entry: Entry, task: CrawlTask, error: FetchError) -> Ending:
        decision = decide_error(error, attempt=task.attempt, policy=self._policy, jitter=random.random())
        if error.is_unanswered:
            if isinstance(error, SURE_ERRORS):
                return self._unanswered(entry, task, error.kind)
            # A URL that always hangs must not look like a host that is down, nor the other way round: the script
            # knows how often the host failed in a row, and chooses.
            return self._unanswered_for_now(entry, task, decision, str(error)[:1000])
        if decision.verdict is RetryVerdict.RETRY:
            return self._retry(entry, task, decision.delay_ms)
        return _fetched(self.bury(entry, task, decision.reason, str(error)[:1000]), time.monotonic())

    def _unanswered_for_now(self, entry: Entry, task: CrawlTask, decision: Decision, error: str) -> Ending:
        """Return how a task ends that is to be tried again or dead, unless its whole host is the cause."""
        again = msgspec.structs.replace(task, attempt=task.attempt + 1)
        first = "retry" if decision.verdict is RetryVerdict.RETRY else "dead"
        return self._unanswered(entry, task, decision.reason, (first, decision.delay_ms, encode_task(again), error))

    def _unanswered(self, entry: Entry, task: CrawlTask, reason: str, when_first: tuple[Any, ...] = ()) -> Ending:
        settings = self._settings
        backoff = (settings.host_backoff_base_ms, settings.host_backoff_max_ms, int(random.random() * 1000))
        detail = (task.level.value, encode_task(task), reason, *backoff, *when_first)
        commit = Commit(entry.id, task.host, task.kind, Outcome.UNANSWERED, detail=detail)
        ending = _fetched(commit, time.monotonic())
        if when_first:
            ending.retry_delay_ms = when_first[1]
        return ending


@lru_cache(maxsize=256)
def _pace_of(delay_ms: bytes | int, cap: bytes | int) -> Pace:
    return Pace(int(delay_ms), int(cap) > 1 and int(delay_ms) > 0)


def _retry_after_ms(answer: Answer) -> int | None:
    return None if answer.retry_after is None else parse_retry_after_ms(answer.retry_after, int(time.time() * 1000))


async def _sleep_until(moment: float) -> None:
    """Wait until time.monotonic() has reached `moment`."""
    # More than once: uvloop counts whole ms from the beginning of its turn, so a sleep may be short by one of them.
    while (left_s := moment - time.monotonic()) > 0:  # noqa: ASYNC110 - it is the clock that is waited for
        await asyncio.sleep(left_s)


def _fetched(commit: Commit, ended_at: float) -> Ending:
    commit.is_fetched = True
    return Ending(commit, ended_at)


def _with_answer(ending: Ending, answer: Answer, block_ms: int = 0, *, attempt: int = 1, is_own: bool = True) -> Ending:
    """Complete the ending of a task by what the answer says of its host (nothing, if another host gave it)."""
    commit = ending.commit
    assert commit is not None
    commit.is_fetched = True
    commit.block_ms = block_ms
    ending.ended_at = answer.ended_at
    if not is_own:
        return ending
    refusal = refusal_of(answer.status)
    if refusal is not None:
        _refuse(commit, refusal, answer.elapsed_ms, attempt)
    elif answer.status < 500:  # a server often fails more quickly than it answers, which must not speed us up
        # To the last byte and with connecting: the host is at work for us all that time.
        commit.took_ms = max(1, answer.elapsed_ms)
    return ending


def _refuse(commit: Commit, refusal: Refusal, took_ms: int, attempt: int) -> None:
    if is_of_host(refusal, attempt):
        commit.refusal, commit.took_ms = refusal, took_ms


def _with_error(ending: Ending, error: FetchError, started: float, *, attempt: int = 1) -> Ending:
    """The same for a request that began at `started` and brought no answer."""
    if isinstance(error, FetchTimeout) and ending.commit is not None:
        _refuse(ending.commit, Refusal.TIMEOUT, int((time.monotonic() - started) * 1000), attempt)
    return ending
