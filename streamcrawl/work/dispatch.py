"""The dispatch loop: moves tasks of due hosts into the work stream when no commit does it anyway.

Every commit dispatches into the slots it frees; this loop covers what happens without one: a delay that runs out, the
first tasks of a crawl, a worker that waits. Any worker may dispatch, there is no leader. If this loop dies in one
worker, others (or the next commit) dispatch; if in all, the crawl stands still, and its status shows hosts due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamcrawl.errors import StoreFull
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Alarm, Patience, until_answered

if TYPE_CHECKING:
    from streamcrawl.store.frontier import Dispatched, Frontier
    from streamcrawl.work.loops import Log

PACE_MIN_S: Final = 0.005
"""Between two calls, however many hosts become due: 200 calls a second are enough for 20,000 tasks a second."""
PACE_MAX_S: Final = 1.0
"""When nothing is known to become due: another process may have queued something."""


class DispatchLoop:
    def __init__(self, frontier: Frontier, *, limit: int, log: Log) -> None:
        self._frontier = frontier
        self._limit = limit
        self._log = log
        self._alarm = Alarm()
        self._patience = Patience("dispatch", log)
        self._is_full = False
        self.is_throttled = False
        """By the last answer: a stream behind the fetch is over its mark."""

    def hint(self, dispatched: Dispatched) -> None:
        """Learn from the answer of a dispatch, a commit's too, when the next host is due."""
        wait = PACE_MAX_S
        self.is_throttled = dispatched.word == "THROTTLED"
        if dispatched.word == "OK" and dispatched.next_ms >= 0:
            wait = min(PACE_MAX_S, max(PACE_MIN_S, dispatched.next_ms / 1000))
        elif dispatched.word == "FULL":
            # Enough waits in the stream; whoever reads it commits soon and dispatches again.
            wait = 0.1
        elif dispatched.word == "THROTTLED":
            # What holds it back drains in its own time, in another process.
            wait = 0.2
        self._alarm.set_in(wait)

    def hurry(self) -> None:
        """Dispatch at once: something became due that no dispatch knew of."""
        self._alarm.set_in(PACE_MIN_S)

    def stop(self) -> None:
        self._alarm.stop()

    async def run(self) -> None:
        while await self._alarm.wait():
            self._alarm.set_in(PACE_MAX_S)
            try:
                dispatched = await until_answered(
                    lambda: self._frontier.dispatch(self._limit), self._patience, self._alarm.stopped
                )
            except StoreFull as error:
                if not self._is_full:
                    self._log(Said.warning(f"dispatch: {error}; nothing new is handed out until there is room"))
                self._is_full = True
                continue
            self._is_full = False
            self.hint(dispatched)
