"""The shape all background loops share: a name, a pace, what is late if it dies, and patience with the store.

A loop is one class with `run()`. It stops when its stop event is set, and is never cancelled in the middle of a
command (a cancelled read may leave an entry delivered to nobody; STREAMS.md trap 50).
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

from streamcrawl.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Log = Callable[[str], None]

T = TypeVar("T")

BACKOFF_BASE_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
"""Retrying a store that is away more seldom than this would only add to the outage; more often hammers it."""


async def sleep_or_stop(stop: asyncio.Event, seconds: float) -> bool:
    """Wait, but not longer than until `stop`; True when it is set."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
    except TimeoutError:
        return stop.is_set()
    return True


class Alarm:
    """When a loop runs next: at a time that others may move, and no more once it is stopped."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self._moved = asyncio.Event()
        self._at = 0.0

    def set_in(self, seconds: float) -> None:
        """Run `seconds` from now, earlier or later than was planned."""
        self._at = time.monotonic() + seconds
        self._moved.set()

    def at_latest_in(self, seconds: float) -> None:
        """Run `seconds` from now at the latest."""
        if time.monotonic() + seconds < self._at:
            self.set_in(seconds)

    def stop(self) -> None:
        self.stopped.set()
        self._moved.set()

    async def wait(self) -> bool:
        """Wait for the time; False when the loop is to end."""
        while not self.stopped.is_set():
            left = self._at - time.monotonic()
            if left <= 0:
                return True
            self._moved.clear()
            await sleep_or_stop(self._moved, left)
        return False


class Patience:
    """Backs off while the store is unavailable, with full jitter, and says so once per outage."""

    def __init__(
        self, who: str, log: Log, *, on_outage: Callable[[], None] | None = None, pause_max_s: float = BACKOFF_MAX_S
    ) -> None:
        self._who = who
        self._log = log
        self._on_outage = on_outage
        self._pause_max_s = min(BACKOFF_MAX_S, pause_max_s)
        self.failures = 0

    def recovered(self) -> None:
        if self.failures:
            self._log(f"{self._who}: the store answers again after {self.failures} tries")
            self.failures = 0

    async def wait(self, error: Exception, stop: asyncio.Event | None = None) -> None:
        self.failures += 1
        if self.failures == 1:
            if self._on_outage is not None:
                self._on_outage()
            self._log(f"{self._who}: {error}; trying again")
        delay = min(self._pause_max_s, BACKOFF_BASE_S * 2 ** min(self.failures, 10)) * (0.5 + random.random() / 2)
        if stop is None:
            await asyncio.sleep(delay)
        else:
            await sleep_or_stop(stop, delay)


async def until_answered(
    call: Callable[[], Awaitable[T]], patience: Patience, give_up: asyncio.Event | None = None
) -> T:
    """Repeat a call that is safe to repeat until the store answers it.

    Raises:
        StoreUnavailable: `give_up` was set and the last try failed too.
    """
    while True:
        try:
            answer = await call()
        except StoreUnavailable as error:
            if give_up is not None and give_up.is_set():
                raise
            await patience.wait(error, give_up)
        else:
            patience.recovered()
            return answer
