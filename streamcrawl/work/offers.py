"""The offers loop: links of pages that lie in another shard, offered there before the pages' own commits.

Discovery is idempotent and only grows, so the order makes it safe: a worker that dies between the offer and the commit
leaves links that are known already when the page is fetched again. While a call is under way the next links gather, so
that many pages share it. If this loop dies, pages with such links are not committed until the worker is replaced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from streamcrawl.errors import StoreError
from streamcrawl.store.frontier import LINKS, LINKS_PER_CALL, Links
from streamcrawl.work.loops import Patience, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.work.loops import Log


class _Waiting(NamedTuple):
    links: Links
    offered: asyncio.Future[None]


class OffersLoop:
    """Offers links to one shard on behalf of the slots."""

    def __init__(self, frontier: Frontier, *, on_outage: Callable[[], None], log: Log) -> None:
        self._frontier = frontier
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._patience = Patience("offers", log, on_outage=on_outage)

    async def offer(self, links: Links) -> None:
        """Return once the shard has taken at most LINKS_PER_CALL links.

        Raises:
            StoreError: it refused them, or the loop was stopped while it did not answer.
        """
        waiting = _Waiting(links, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wake.set()
        await waiting.offered

    def stop(self) -> None:
        """End once nothing waits any more, or the store does not answer."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        while not (self._stop.is_set() and not self._queue):
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            batch, links = self._take()
            try:
                word, count = await until_answered(
                    lambda links=links: self._frontier.offer(links, whose=LINKS),  # type: ignore[misc]
                    self._patience,
                    self._stop,
                )
                if word != "OK":
                    raise StoreError(f"the store refused links of another shard: {word} {count}")
            except Exception as error:
                for waiting in batch:
                    if not waiting.offered.done():
                        waiting.offered.set_exception(error)
                continue
            for waiting in batch:
                if not waiting.offered.done():
                    waiting.offered.set_result(None)

    def _take(self) -> tuple[list[_Waiting], Links]:
        batch: list[_Waiting] = []
        links = Links()
        while self._queue and (not batch or len(links) + len(self._queue[0].links) <= LINKS_PER_CALL):
            waiting = self._queue.popleft()
            batch.append(waiting)
            links.flat += waiting.links.flat
        return batch, links
