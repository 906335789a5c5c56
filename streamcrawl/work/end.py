"""The end loop: finds out that the crawl has ended, from the structures in Redis (finish.lua).

It asks often only while this supervisor's own children have nothing in hand; a busy crawl has not ended. If it dies,
the crawl ends all the same, but nobody says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.work.loops import Log

PACE_IDLE_S: Final = 0.7
PACE_BUSY_S: Final = 3.0
LOOK_S: Final = 0.1
DOUBT_S: Final = 5.0
"""After a restart of the store no end is believed for so long: it may have lost seeds, which whoever offered them offers
again as soon as he notices (within two seconds, at the back-off of work/loops.py)."""


class EndLoop:
    def __init__(self, frontier: Frontier, *, is_busy: Callable[[], bool], log: Log) -> None:
        self._frontier = frontier
        self._is_busy = is_busy
        self._stop = asyncio.Event()
        self._patience = Patience("end", log)
        self.word = "RUNNING"

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Return when the crawl has ended, or stands still for a limit, or `stop` was called; `word` says which."""
        loop = asyncio.get_running_loop()
        asked_at = believed_at = 0.0
        restarts = restarts_of(self._frontier.client)
        restarts_seen = restarts.count
        unbalanced = 0
        while not self._stop.is_set():
            pace = PACE_BUSY_S if self._is_busy() else PACE_IDLE_S
            if loop.time() - asked_at >= pace:
                asked_at = loop.time()
                word, _ = await until_answered(self._frontier.finish, self._patience, self._stop)
                if restarts.count != restarts_seen:
                    restarts_seen, believed_at = restarts.count, loop.time() + DOUBT_S
                unbalanced = unbalanced + 1 if word == "UNBALANCED" else 0
                # Once could be a caller that dies between two scripts of a start; twice is a fault.
                is_end = word in ("ENDED", "LIMIT", "STOPPED", "UNFED") or unbalanced >= 2
                if is_end and loop.time() >= believed_at:
                    self.word = word
                    return
            await sleep_or_stop(self._stop, LOOK_S)
