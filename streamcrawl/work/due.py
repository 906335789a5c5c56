"""The due loop: brings delayed tasks (retries) back to the head of their host's queue when their time has come.

Any worker runs it; the script is atomic. If it dies in all workers, retries are late and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

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
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._at = 0.0
        self._patience = Patience("due", log)

    def hint(self, delay_ms: int) -> None:
        """A retry of ours was committed that is due after `delay_ms`."""
        at = time.monotonic() + delay_ms / 1000
        if at < self._at:
            self._at = at
            self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            wait = self._at - time.monotonic()
            if wait > 0:
                self._wake.clear()
                await sleep_or_stop(self._wake, wait)
                continue
            self._at = time.monotonic() + PACE_MAX_S
            moved, next_ms = await until_answered(self._frontier.due, self._patience, self._stop)
            if moved:
                self._on_moved()
            if next_ms >= 0:
                self._at = min(self._at, time.monotonic() + max(PACE_MIN_S, next_ms / 1000))
