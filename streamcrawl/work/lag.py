"""The lag loop: how late this process is, and how much CPU it takes. Beside it, what time it is at the server.

Every process of a crawl runs one; a timer that fires late is a handler that holds the loop, or a machine that has too
much to do. If the loop dies, `loop_lag_seconds` and the CPU time stand still.
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
CLOCK_AGAIN_S: Final = 5.0


class ServerClock:
    """The wall clock of the Redis server, as far as it is known here.

    Entries and tasks are stamped with it, so their ages are told by it, whatever this machine's clock says.
    """

    def __init__(self) -> None:
        self._ahead_s: float | None = None
        """Of our monotonic clock, which nobody sets."""
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, client: Redis) -> None:
        """Look at it now and then, until stopped. If this dies, waits are told by what was known last.

        A cancellation alone would not do: redis-py may take it for an error of the connection (Python 3.11), and the
        process of a child that ends would wait for this loop for ever.
        """
        while not self._stop.is_set():
            try:
                asked = time.monotonic()
                with mapped_errors():
                    answer: Any = await client.time()
            except StoreError:
                await sleep_or_stop(self._stop, CLOCK_AGAIN_S)  # the loops meet the same outage and tell of it
                continue
            seconds, micros = answer
            self._ahead_s = seconds + micros / 1e6 - (asked + time.monotonic()) / 2
            await sleep_or_stop(self._stop, CLOCK_S)

    def since_s(self, then_ms: int) -> float | None:
        """Return how long ago a time of the server was, never less than 0; None when its clock is not known."""
        if self._ahead_s is None:
            return None
        return max(0.0, time.monotonic() + self._ahead_s - then_ms / 1000)


class LagLoop:
    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + TICK_S
            if not await sleep_or_stop(self._stop, TICK_S):
                self._meters.observe(LOOP_LAG, max(0.0, time.monotonic() - due))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._meters.put(CPU_SECONDS, usage.ru_utime + usage.ru_stime)
