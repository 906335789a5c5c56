"""Has this process stood still? A fetch that timed out meanwhile says nothing about its host.

A handler that holds the GIL, a paused process, a machine that slept: the loop comes back late, every timeout is over,
and the answers that had come were never read. `StallWatch` keeps when that was. If it dies, such timeouts count as
failures of the hosts.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

TICK_S: Final = 0.1
LATE_S: Final = 0.3
"""A tick that comes later than this was a stall; less is a busy loop."""
STALLS_KEPT: Final = 100


class StallWatch:
    """Knows when the event loop of this process did not run. Times are those of time.monotonic()."""

    def __init__(self) -> None:
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_KEPT)
        """End and length, s."""
        self._ticked_at = time.monotonic()

    async def run(self) -> None:
        """Watch until cancelled."""
        self._ticked_at = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        late_s = now - self._ticked_at - TICK_S
        if late_s > LATE_S:
            self._stalls.append((now, late_s))
        self._ticked_at = now

    def stalled_s(self, since: float) -> float:
        """Return for how long the loop has not run since a moment, the stall that just ends included."""
        # A timeout and our tick become due in the same turn of the loop, in any order.
        self._tick(time.monotonic())
        return sum(min(late_s, end - since) for end, late_s in self._stalls if end > since)
