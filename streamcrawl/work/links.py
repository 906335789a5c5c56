"""What becomes of the links and requests that a handler gave: which are followed, and on which way they are offered.

Asked for pages (page_work.py) and for items of a stage (stage_work.py), so that scope, traps and depth hold for both.
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Final

from streamcrawl.rules.scope import sitemap_fingerprint
from streamcrawl.rules.task import CrawlTask, Kind
from streamcrawl.rules.traps import LeftOut, Traps
from streamcrawl.rules.urls import Canonicalizer, split_url
from streamcrawl.store.frontier import LINKS_PER_CALL, Links
from streamcrawl.work.sitemap_walk import owner_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamcrawl.response import Request
    from streamcrawl.rules.scope import Scope
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Commit
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.page_work import Ending

SLOT_BITS: Final = 18
"""Of an index into a table of RecentlySeen, which is 2 MB then. Of 100,000 URLs 0.5 % are forgotten, of 200,000 3 %."""
_SLOT: Final = (1 << SLOT_BITS) - 1


class RecentlySeen:
    """URLs this worker knows to be in the frontier's `seen`: nine links of ten on a site are repeats, and need not
    travel to Redis. Cleared when the store may have lost something.

    Two tables of 64-bit hashes that take their 4 MB at once, so that a worker does not grow with what it has seen. A
    new one takes its slot of the first; what was there goes to its slot of the second, and what was there is forgotten.
    """

    def __init__(self) -> None:
        self.clear()

    def __contains__(self, url: str) -> bool:
        return not self.unknown((url,))

    def unknown(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that are not known to be seen, in their order."""
        first, second = self._first, self._second
        return [
            url
            for url in urls
            if first[(key := hash(url)) & _SLOT] != key and second[(key >> SLOT_BITS) & _SLOT] != key
        ]

    def add_all(self, urls: Sequence[str]) -> None:
        """Remember URLs whose offer was answered; not before, or a lost offer would lose the page."""
        first, second = self._first, self._second
        for key in map(hash, urls):
            before = first[key & _SLOT]
            if before != key:
                first[key & _SLOT] = key
                if before:
                    second[(before >> SLOT_BITS) & _SLOT] = before

    def clear(self) -> None:
        """Forget all of them."""
        # 0 is an empty slot. A URL whose hash it is would look known: as rare as another one with the same hash.
        empty = bytes(8 << SLOT_BITS)
        self._first, self._second = array("q", empty), array("q", empty)


class FollowedLinks:
    """Turns links into tasks and places them in an ending."""

    def __init__(self, settings: Settings, scope: Scope, crawl: Shards) -> None:
        self._crawl = crawl
        self.form: Final = Canonicalizer.from_settings(settings)
        self.seen: Final = RecentlySeen()
        self.apply(settings, scope)

    def apply(self, settings: Settings, scope: Scope) -> None:
        """Go by other settings from the next link on."""
        self.scope = scope
        self.traps = Traps(settings, time.gmtime().tm_year)

    def add(
        self,
        ending: Ending,
        commit: Commit,
        links: Iterable[str],
        requests: Iterable[Request],
        *,
        page_url: str,
        depth: int,
        shard: int,
        circle: str | None = None,
    ) -> None:
        """Give the followed ones of a page's links and requests their way.

        Args:
            page_url: Where they were found.
            depth: Of that page.
            shard: Of the entry that ends.
            circle: Where the page sends on to, which led here already.
        """
        host = split_url(page_url)[0]
        # Two links of a page may be one once their session ids are gone; the parser has seen to all others.
        forms = links if self.form.is_plain else dict.fromkeys(map(self.form, links))
        tasks: list[CrawlTask] = []
        left_out: dict[str, int] = {}
        if circle is not None:
            left_out[LeftOut.REFRESH_LOOP.value] = 1
            circle = self.form(circle)
        for link in self.seen.unknown(forms):
            if link == circle or not self._is_followed(link, host, page_url, depth + 1, left_out):
                continue
            own, path = split_url(link)
            tasks.append(CrawlTask(host=own, path=path, depth=depth + 1, referrer=page_url))
            ending.offered.append(link)
        for request in requests:
            own, path = split_url(self.form(request.url))
            task = CrawlTask(
                host=own, path=path, depth=depth + 1, referrer=page_url, level=request.level, ask=request.ask
            )
            if task.known_as in self.seen or not self._is_followed(task.url, host, page_url, depth + 1, left_out):
                continue
            tasks.append(task)
            ending.offered.append(task.known_as)
        commit.left_out = left_out
        self.place(ending, commit, tasks, shard)

    def _is_followed(self, link: str, host: str, page_url: str, depth: int, left_out: dict[str, int]) -> bool:
        if not self.scope.admits(link, page_host=host):
            return False
        reason = self.traps.reason(link, depth=depth, referrer=page_url)
        if reason is not None:
            left_out[reason.value] = left_out.get(reason.value, 0) + 1
        return reason is None

    def place(self, ending: Ending, commit: Commit, tasks: Sequence[CrawlTask], own: int) -> None:
        """Give each task its way: into the commit, before it in chunks, or to the shard of its host."""
        by_shard: dict[int, Links] = {}
        for task in tasks:
            shard = own if task.host == commit.host else self._crawl.index_of(task.host)
            links = commit.links if shard == own else by_shard.setdefault(shard, Links())
            is_page = task.kind is Kind.PAGE
            links.add(task, None if is_page else sitemap_fingerprint(task, owner_of(task), self.scope.kind))
        self.divide(ending, commit, by_shard)

    def divide(self, ending: Ending, commit: Commit, by_shard: Mapping[int, Links]) -> None:
        """Leave what fits to the commit; the rest goes before it."""
        while len(commit.links) > LINKS_PER_CALL:
            ending.ahead.append(commit.links.take(LINKS_PER_CALL))
        for shard, links in by_shard.items():
            while links:
                ending.elsewhere.append((shard, links.take(LINKS_PER_CALL)))
