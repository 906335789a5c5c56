"""What comes of the body of one sitemap while it is being read: its entries, sifted and offered chunk by chunk.

A sitemap has up to 50,000 entries in 50 MB, and an index up to 50,000 of such. So nothing of it is kept: each piece
that the host sends is inflated, read (rules/sitemaps.py) and offered before the next is taken from the socket, and a
slot holds one chunk of links, whatever it works at. Offers before the commit are harmless, since discovery only grows:
who dies in the middle leaves links that are known already when the sitemap is read again. Start at `SitemapWalk.take`.

Its continuation is the task itself. `seen` knows what has been offered, entry by entry, and still does when the file
has changed meanwhile, so no place in the file is kept: what was taken before costs a comparison and no fetch. It is
read again only where that cannot be helped: it broke off, or the frontier had no room (`NoRoom`), in which case nothing
is asked of the host until there is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from streamcrawl.errors import BodyTooLarge, LeaseLost, ProtocolError, StoreError, StoreFull
from streamcrawl.rules.scope import kin_of, sitemap_fingerprint
from streamcrawl.rules.sitemaps import (
    BYTES_MAX,
    FOREIGN_HOSTS_MAX,
    NESTING_MAX,
    Entry,
    Flaw,
    Listed,
    SitemapReader,
    level_of,
)
from streamcrawl.rules.task import CrawlTask, Kind
from streamcrawl.rules.traps import LeftOut
from streamcrawl.rules.urls import split_url
from streamcrawl.store.frontier import LINKS, LINKS_PER_CALL, Links
from streamcrawl.store.restarts import restarts_of
from streamcrawl.web.bodies import STEP_BYTES, Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamcrawl.rules.scope import Scope
    from streamcrawl.rules.traps import Traps
    from streamcrawl.rules.urls import Canonicalizer
    from streamcrawl.store.frontier import Entry as StreamEntry
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.links import RecentlySeen

TURN_BYTES: Final = 262_144
"""Read before others get a turn: some 15 ms of the parser at its slowest."""
_GZIP: Final = b"\x1f\x8b"


class NoRoom(Exception):
    """The frontier has no room for what sitemaps list; the rest is read later."""


def own_sitemaps(host: str, listed: Sequence[str], depth: int) -> list[CrawlTask]:
    """Return the sitemaps of a host as tasks: those that its robots.txt lists, or the usual place where it lists none.

    Args:
        host: Host key.
        listed: Canonical URLs, as `RobotsRules.sitemaps` has them; those on more than FOREIGN_HOSTS_MAX other hosts are
            left out.
        depth: Of the page with which the host was met; its sitemaps list pages one step further.
    """
    if not listed:
        return [CrawlTask(host=host, path="/sitemap.xml", kind=Kind.SITEMAP, depth=depth)]
    foreign: set[str] = set()
    found = []
    for url in listed:
        place, path = split_url(url)
        if _is_too_foreign(place, host, foreign):
            continue
        referrer = f"{host}/robots.txt"
        found.append(CrawlTask(host=place, path=path, kind=Kind.SITEMAP, depth=depth, referrer=referrer))
    return found


def owner_of(task: CrawlTask) -> str:
    """Return the host key whose sitemap a task is: its pages are links of that host, wherever the sitemap lies."""
    return task.host if task.referrer is None else split_url(task.referrer)[0]


def seen_key(task: CrawlTask, scope: Scope) -> str:
    """Return by what a worker remembers a sitemap that is in the frontier."""
    return f"sitemap {kin_of(scope.kind, owner_of(task))} {task.url}"


def _is_too_foreign(place: str, own: str, foreign: set[str]) -> bool:
    if place != own and place not in foreign:
        if len(foreign) == FOREIGN_HOSTS_MAX:
            return True
        foreign.add(place)
    return False


class SitemapWalk:
    """Takes the body of one sitemap and offers what it lists. Errors of the store pass: the entry goes back."""

    def __init__(
        self,
        entry: StreamEntry,
        task: CrawlTask,
        *,
        crawl: Shards,
        scope: Scope,
        traps: Traps,
        form: Canonicalizer,
        url_max_bytes: int,
        seen: RecentlySeen,
    ) -> None:
        """Prepare; `seen` are URLs (and `seen_key`) that need not be offered, and is told of those that were."""
        self._entry = entry
        self._task = task
        self._crawl = crawl
        self._scope = scope
        self._traps = traps
        self._form = form
        self._url_max_bytes = url_max_bytes
        self._seen = seen
        self._owner = owner_of(task)
        self._foreign: set[str] = set()
        self._reader = SitemapReader(task.url)
        self._gunzip: Decoder | None = None
        self._start: bytes | None = b""
        """What came before it was clear whether it is compressed; None afterwards."""
        self._since_turn = 0
        self._links: dict[int, tuple[Links, list[str]]] = {}
        """By shard: what waits to be offered, and by what it is remembered then."""
        self.size = 0
        """Bytes of the body so far."""
        self.entries = 0
        self.left_out: Counter[str] = Counter()
        self.server = ""
        """run_id of the server that took the first chunk; '' when none was offered."""

    @property
    def is_sitemap(self) -> bool:
        return self._reader.format is not None

    @property
    def flaws(self) -> tuple[str, ...]:
        return tuple(flaw.value for flaw in self._reader.flaws)

    async def ask_room(self) -> None:
        """Raise NoRoom when there is none for what it may list, before the host is asked for it."""
        await self._offer(self._entry.shard, Links(), [])

    async def take(self, piece: bytes) -> bool:
        """Take the next bytes of the body; return whether that is enough.

        Raises:
            NoRoom: the frontier is full; what was taken before is in it.
            LeaseLost: the entry was taken back.
        """
        self.size += len(piece)
        if self._start is not None:
            piece, self._start = self._start + piece, None
            if len(piece) < len(_GZIP):
                self._start = piece
                return False
            if piece.startswith(_GZIP):
                # By its content: a `.gz` may be inflated already, and what has no such name may be none the less.
                self._gunzip = Decoder(("gzip",), BYTES_MAX + STEP_BYTES, self._task.url)
        try:
            for part in self._parts(piece):
                await self._sift(self._reader.feed(part))
                if self._reader.is_over:
                    return True
                self._since_turn += len(part)
                if self._since_turn > TURN_BYTES:
                    self._since_turn = 0
                    await asyncio.sleep(0)
        except (ProtocolError, BodyTooLarge):
            await self.cut(Flaw.BROKEN_GZIP)
            return True
        return False

    async def end(self) -> None:
        """Say that the body has come whole; raises as `take` does."""
        if self._start:
            await self._sift(self._reader.feed(self._start))
        if self._gunzip is not None and not self._reader.is_over:
            try:
                self._gunzip.check_end()
            except ProtocolError:
                await self.cut(Flaw.BROKEN_GZIP)
        await self._sift(self._reader.close())
        if self._reader.bad_locations:
            self.left_out[Listed.LOCATION] = self._reader.bad_locations

    async def cut(self, flaw: Flaw) -> None:
        """Say that it ends here although it is not whole; raises as `take` does."""
        await self._sift(self._reader.cut(flaw))

    def rest(self) -> tuple[dict[int, Links], list[str]]:
        """Return what is not offered yet, at most LINKS_PER_CALL links by shard, and by what it is remembered then."""
        rest, self._links = self._links, {}
        return {shard: links for shard, (links, _) in rest.items()}, [key for _, keys in rest.values() for key in keys]

    def _parts(self, piece: bytes) -> Iterator[bytes]:
        """Yield a piece, inflated, in parts that are read at once."""
        for part in (piece,) if self._gunzip is None else self._gunzip.pieces(piece):
            for start in range(0, len(part), STEP_BYTES):
                yield part[start : start + STEP_BYTES]

    async def _sift(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.entries += 1
            found = self._sitemap(entry) if entry.is_sitemap else self._page(entry)
            if found is None:
                continue
            task, fp, key = found
            shard = self._crawl.index_of(task.host)
            links, keys = self._links.setdefault(shard, (Links(), []))
            links.add(task, fp)
            keys.append(key)
            if len(links) == LINKS_PER_CALL:
                del self._links[shard]
                await self._offer(shard, links, keys)

    def _page(self, entry: Entry) -> tuple[CrawlTask, None, str] | None:
        url = self._form(entry.url)
        if url in self._seen or not self._scope.admits(url, page_host=self._owner):
            return None
        own, depth = self._task.url, self._task.depth + 1
        reason = self._traps.reason(url, depth=depth, referrer=own)
        if reason is not None:
            self.left_out[reason] += 1
            return None
        host, path = split_url(url)
        level = level_of(entry.priority)
        task = CrawlTask(host=host, path=path, depth=depth, referrer=own, level=level, modified_s=entry.modified_s)
        return task, None, url

    def _sitemap(self, entry: Entry) -> tuple[CrawlTask, int, str] | None:
        own = self._task
        host, path = split_url(entry.url)
        reason: str | None = None
        if own.nesting >= NESTING_MAX:
            reason = Listed.NESTING
        elif len(entry.url) > self._url_max_bytes:
            reason = LeftOut.URL_LENGTH
        elif host != self._owner and _is_too_foreign(host, own.host, self._foreign):
            reason = Listed.HOSTS
        if reason is not None:
            self.left_out[reason] += 1
            return None
        # Whose it is stays the same however deep it lies: of all that is below, pages of that host are in scope.
        referrer = own.referrer or own.url
        task = CrawlTask(
            host=host, path=path, kind=Kind.SITEMAP, depth=own.depth, referrer=referrer, nesting=own.nesting + 1
        )
        key = seen_key(task, self._scope)
        return None if key in self._seen else (task, sitemap_fingerprint(task, self._owner, self._scope.kind), key)

    async def _offer(self, shard: int, links: Links, keys: Sequence[str]) -> None:
        if links and not self.server:
            # Before the first: a server that comes back may have lost what it took, and must not take the commit.
            self.server = restarts_of(self._crawl.client).run_id
        whose = self._entry.id if shard == self._entry.shard else LINKS
        try:
            word, count = await self._crawl.frontiers[shard].offer(links, whose=whose, can_wait=True)
        except StoreFull:
            raise NoRoom from None
        if word == "FULL":
            raise NoRoom
        if word == "LEASE_LOST":
            raise LeaseLost("taken back while its sitemap was read")
        if word != "OK":
            raise StoreError(f"the store refused what a sitemap lists: {word} {count}")
        self._seen.add_all(keys)
