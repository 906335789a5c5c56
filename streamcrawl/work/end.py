"""The end loop: finds out that the crawl has ended, from the structures in Redis (finish.lua).

It asks often only while this supervisor's own children have nothing in hand; a busy crawl has not ended. Over several
shards one answer each is not enough: while the second is asked, a page in it may bring links into the first. So all are
asked twice, and nothing may have been created in between. If this loop dies, the crawl ends all the same, but nobody
says so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from streamcrawl.store.frontier import Rest
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_IDLE_S: Final = 0.7
PACE_BUSY_S: Final = 3.0
LOOK_S: Final = 0.1
DOUBT_S: Final = 5.0
"""After a restart of the store no end is believed for so long: it may have lost seeds, which are offered again as soon
as those who offered them notice (within two seconds, by the back-off of work/loops.py)."""
_RANK: Final = ("RUNNING", "PAUSED", "UNBALANCED", "STOPPED", "LIMIT", "UNFED", "ENDED")
"""Of the words of several shards the first of these is the crawl's."""


class EndLoop:
    def __init__(
        self,
        crawl: Shards,
        *,
        is_busy: Callable[[], bool],
        pages_max: Callable[[], int | None],
        stays_for: Collection[str] = (),
        on_rests: Callable[[list[Rest]], None],
        log: Log,
    ) -> None:
        """Prepare the loop.

        Args:
            is_busy: Whether children of this supervisor have something in hand.
            pages_max: The budget of the crawl as it is now.
            stays_for: Words after which this supervisor waits for more to come.
            on_rests: Told each answer of the shards: other loops then need not ask for what it says too.
        """
        self._crawl = crawl
        self._is_busy = is_busy
        self._pages_max = pages_max
        self._words = {"ENDED", "LIMIT", "STOPPED", "UNFED"} - set(stays_for)
        self._on_rests = on_rests
        self._stop = asyncio.Event()
        self._log = log
        self._patience = Patience("end", log)
        self.word = "RUNNING"

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Return when the crawl has ended, or stands still for a limit, or `stop` was called; `word` says which."""
        loop = asyncio.get_running_loop()
        asked_at = believed_at = 0.0
        restarts = restarts_of(self._crawl.client)
        restarts_seen = restarts.count
        unbalanced = 0
        said = ""
        while not self._stop.is_set():
            pace = PACE_BUSY_S if self._is_busy() else PACE_IDLE_S
            if loop.time() - asked_at >= pace:
                asked_at = loop.time()
                word = await until_answered(self._ask, self._patience, self._stop)
                if restarts.count != restarts_seen:
                    restarts_seen, believed_at = restarts.count, loop.time() + DOUBT_S
                unbalanced = unbalanced + 1 if word == "UNBALANCED" else 0
                # Once could be a caller that dies between two scripts of a start; twice is a fault.
                is_end = word in self._words or unbalanced >= 2
                if is_end and loop.time() >= believed_at:
                    self.word = word
                    return
                if word in _WAITS and word != said:
                    self._log(_WAITS[word])
                said = word
            await sleep_or_stop(self._stop, LOOK_S)

    async def _ask(self) -> str:
        rests = [await frontier.finish() for frontier in self._crawl]
        self._on_rests(rests)
        word = word_of(rests, self._pages_max())
        if len(self._crawl) == 1 or word in ("RUNNING", "PAUSED"):
            return word
        again = [await frontier.finish() for frontier in self._crawl]
        is_same = [rest.created for rest in again] == [rest.created for rest in rests]
        return word if is_same and word_of(again, self._pages_max()) == word else "RUNNING"


_WAITS: Final = {
    "PAUSED": "the crawl is paused: `streamcrawl resume` goes on",
    "UNFED": "whoever was to offer more seeds has died or was stopped: this worker waits for them",
}


def word_of(rests: Sequence[Rest], pages_max: int | None) -> str:
    """Return what the words of all shards mean together."""
    words = {rest.word for rest in rests}
    if "LIMIT" in words and len(rests) > 1 and (pages_max is None or sum(rest.done for rest in rests) < pages_max):
        return "RUNNING"  # a shard has used up what it was granted, and will be granted more, or told of no limit
    return next(word for word in _RANK if word in words)
