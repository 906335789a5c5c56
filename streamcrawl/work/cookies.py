"""The jars of cookies that a worker's tasks open, all of them in the store.

A jar is read before a page is fetched and written when an answer changed it, so that all workers are one visitor: what
one of them is given, a session that the site renews with every page, the next one sends. Where cookies are off nothing
is asked. A worker that dies between answer and write loses what the answer set, and the page is fetched again with the
cookies of before. robots.txt is fetched without any.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from streamcrawl.rules.cookies import Jar, jar_name

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards
    from streamcrawl.web.fetcher import Answer


class Cookies:
    """The cookies of one crawl; a change of the setting holds for the next page."""

    def __init__(self, crawl: Shards, settings: Settings) -> None:
        self._crawl = crawl
        self._kind = settings.cookies

    def apply(self, settings: Settings) -> None:
        """Go by other settings from the next jar on."""
        self._kind = settings.cookies

    async def open(self, host: str) -> Jar | None:
        """Return the jar of a host key; None where cookies are off.

        Raises:
            StoreUnavailable: it could not be read; without its session a page may be another one.
        """
        if self._kind == "off":
            return None
        stored = await self._crawl.of(host).cookies(jar_name(host, self._kind))
        return Jar(stored, kind=self._kind)

    async def keep(self, jar: Jar | None, host: str, answer: Answer) -> None:
        """Store what an answer of the host set.

        Raises:
            StoreUnavailable: it may not be stored; its page has to be fetched again.
        """
        if jar is None or "Set-Cookie" not in answer.headers:
            return
        changes = jar.take(answer.headers.getall("Set-Cookie"), answer.url, int(time.time() * 1000))
        if changes:
            await self._crawl.of(host).cookies(jar_name(host, jar.kind), changes)
