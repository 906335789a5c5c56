"""What becomes of the links and requests that a handler gave: which are followed, and on which way they are offered.

Asked for pages (page_work.py) and for items of a stage (stage_work.py), so that scope, traps and depth hold for both.
"""

from __future__ import annotations

import time
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

SEEN_KEPT: Final = 100_000


class RecentlySeen:
    """URLs this worker knows to be in the frontier's `seen`: nine links of ten on a site are repeats, and need not
    travel to Redis. Two generations of at most SEEN_KEPT hashes; cleared when the store may have lost something."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, url: str) -> bool:
        key = hash(url)
        return key in self._young or key in self._old

    def unknown(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that are not known to be seen, in their order."""
        young, old = self._young, self._old
        return [url for url in urls if (key := hash(url)) not in young and key not in old]

    def add_all(self, urls: Sequence[str]) -> None:
        """Remember URLs whose offer was answered; not before, or a lost offer would lose the page."""
        self._young.update(map(hash, urls))
        if len(self._young) > SEEN_KEPT:
            self._old, self._young = self._young, set()

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()


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
