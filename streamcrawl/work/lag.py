"""The lag loop: how late this process is, how much CPU it takes, and what time it is at the server.

Every process of a crawl runs one; a timer that fires late is a handler that holds the loop, or a machine that has too
much to do. The server's clock is what entries and tasks are stamped with, so ages are told by it, whatever this
machine's clock says. If the loop dies, `loop_lag_seconds` and the CPU time stand still and waits are not told any more.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import StoreError
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.meters import CPU_SECONDS, LOOP_LAG

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from streamcrawl.work.meters import Meters

TICK_S: Final = 0.5
CLOCK_S: Final = 30.0
"""Between two looks at the server's clock: none drifts by a millisecond meanwhile, and one that jumped is noticed."""


class ServerClock:
    """The wall clock of the Redis server, as far as it is known here."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None
        """Of our monotonic clock, which nobody sets."""

    async def ask(self, client: Redis) -> None:
        """Learn the time.

        Raises:
            StoreError: it was not told; what was known stays.
        """
        asked = time.monotonic()
        with mapped_errors():
            answer: Any = await client.time()
        seconds, micros = answer
        self._ahead_s = seconds + micros / 1e6 - (asked + time.monotonic()) / 2

    def since_s(self, then_ms: int) -> float | None:
        """Return how long ago a time of the server was, never less than 0; None when its clock is not known."""
        if self._ahead_s is None:
            return None
        return max(0.0, time.monotonic() + self._ahead_s - then_ms / 1000)


class LagLoop:
    def __init__(self, meters: Meters, client: Redis, clock: ServerClock) -> None:
        self._meters = meters
        self._client = client
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        ask_at = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= ask_at:
                try:
                    await self._clock.ask(self._client)
                    ask_at = time.monotonic() + CLOCK_S
                except StoreError:
                    pass  # the other loops meet the same outage and tell of it; asked again with the next tick
            due = time.monotonic() + TICK_S
            if not await sleep_or_stop(self._stop, TICK_S):
                self._meters.observe(LOOP_LAG, max(0.0, time.monotonic() - due))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._meters.put(CPU_SECONDS, usage.ru_utime + usage.ru_stime)
