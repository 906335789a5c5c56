"""The revisit loop: makes tasks of fetched pages whose time to be visited again has come (`--revisit`).

Any worker runs it; the script is atomic, takes a hundred at a time, and makes none at the marks of the frontier and
while the crawl is paused. If it dies in all workers, pages are visited late and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamcrawl.errors import StoreFull
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Alarm, Patience, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.work.loops import Log

PACE_MIN_S: Final = 0.02
PACE_MAX_S: Final = 2.0
"""A change of settings, and room in the frontier, are noticed so late at most."""


class RevisitLoop:
    def __init__(self, frontier: Frontier, *, is_on: Callable[[], bool], on_made: Callable[[], None], log: Log) -> None:
        """Prepare the loop; while not `is_on` it asks nothing of the store."""
        self._frontier = frontier
        self._is_on = is_on
        self._on_made = on_made
        self._log = log
        self._alarm = Alarm()
        self._patience = Patience("revisit", log)
        self._is_full = False

    def hint(self, delay_ms: int) -> None:
        """A page of ours was committed that is to be visited again after `delay_ms`."""
        self._alarm.at_latest_in(delay_ms / 1000)

    def stop(self) -> None:
        self._alarm.stop()

    async def run(self) -> None:
        while await self._alarm.wait():
            self._alarm.set_in(PACE_MAX_S)
            if not self._is_on():
                continue
            try:
                made, next_ms = await until_answered(self._frontier.revisit, self._patience, self._alarm.stopped)
            except StoreFull as error:
                if not self._is_full:
                    self._log(Said.warning(f"revisit: {error}; no page is visited again until there is room"))
                self._is_full = True
                continue
            self._is_full = False
            if made:
                self._on_made()
            if next_ms >= 0:
                self._alarm.at_latest_in(max(PACE_MIN_S, next_ms / 1000))
