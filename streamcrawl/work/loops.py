"""The shape all background loops share: a name, a pace, what is late if it dies, and patience with the store.

A loop is one class with `run()`. It stops when its stop event is set, and is never cancelled in the middle of a
command (a cancelled read may leave an entry delivered to nobody; STREAMS.md trap 50).
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from streamcrawl.errors import StoreUnavailable
from streamcrawl.work.logs import Said

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
        self._at = self._woken_at = 0.0

    def set_in(self, seconds: float) -> None:
        """Run `seconds` from now, earlier or later than was planned."""
        self._at = time.monotonic() + seconds
        # A later time is found when the earlier one has come: each commit moves it, and need not wake the loop for it.
        if self._at < self._woken_at:
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
            self._woken_at = self._at
            await sleep_or_stop(self._moved, left)
        return False


class _Outage:
    """What the loops of one process know of an outage."""

    def __init__(self) -> None:
        self.waiting: WeakSet[Patience] = WeakSet()
        self.told: set[str] = set()
        """Reasons that were logged; a few, as the messages of store/connection.py are."""
        self.since = 0.0


_away: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Outage]] = WeakKeyDictionary()
"""One outage for each event loop, which is one for each process."""


class Patience:
    """Backs off while the store is unavailable, with full jitter.

    All loops of a process meet an outage at once: the first says why, the last that goes on says that it is over, and
    another one speaks up only when it is told another reason.
    """

    def __init__(
        self, who: str, log: Log, *, on_outage: Callable[[], None] | None = None, pause_max_s: float = BACKOFF_MAX_S
    ) -> None:
        self._who = who
        self._log = log
        self._on_outage = on_outage
        self._pause_max_s = min(BACKOFF_MAX_S, pause_max_s)
        self.failures = 0

    def recovered(self) -> None:
        if not self.failures:
            return
        self.failures = 0
        outage = _away[asyncio.get_running_loop()]
        outage.waiting.discard(self)
        if not outage.waiting:
            self._log(f"{self._who}: the store answers again after {time.monotonic() - outage.since:.1f} s")
            outage.told.clear()

    async def wait(self, error: Exception, stop: asyncio.Event | None = None) -> None:
        self.failures += 1
        outage = _away.setdefault(asyncio.get_running_loop(), _Outage())
        if not outage.waiting:
            outage.since = time.monotonic()
            outage.told.clear()  # who was told to stop in the last one never said that it is over
        outage.waiting.add(self)
        if self.failures == 1 and self._on_outage is not None:
            self._on_outage()
        # What is in brackets differs from one connection to the next (store/connection.py).
        reason = str(error).partition(" (")[0]
        if reason not in outage.told:
            outage.told.add(reason)
            self._log(Said.warning(f"{self._who}: {error}; trying again"))
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
