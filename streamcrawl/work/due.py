"""The due loop: brings delayed tasks (retries) back to the head of their host's queue when their time has come.

Any worker runs it; the script is atomic. If it dies in all workers, retries are late and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamcrawl.work.loops import Alarm, Patience, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Frontier
    from streamcrawl.work.loops import Log

PACE_MIN_S: Final = 0.02
PACE_MAX_S: Final = 2.0
"""Retries that other workers planned are late by this at most, should those workers die."""


class DueLoop:
    def __init__(self, frontier: Frontier, *, on_moved: Callable[[], None], log: Log) -> None:
        self._frontier = frontier
        self._on_moved = on_moved
        self._alarm = Alarm()
        self._patience = Patience("due", log)

    def hint(self, delay_ms: int) -> None:
        """A retry of ours was committed that is due after `delay_ms`."""
        self._alarm.at_latest_in(delay_ms / 1000)

    def stop(self) -> None:
        self._alarm.stop()

    async def run(self) -> None:
        while await self._alarm.wait():
            self._alarm.set_in(PACE_MAX_S)
            moved, next_ms = await until_answered(self._frontier.due, self._patience, self._alarm.stopped)
            if moved:
                self._on_moved()
            if next_ms >= 0:
                self._alarm.at_latest_in(max(PACE_MIN_S, next_ms / 1000))
