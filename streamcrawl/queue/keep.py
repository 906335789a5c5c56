"""The keep loop: renews the leases of what this member holds, takes back what dead ones held, moves what became due.

Every member runs it; the scripts are the guard, and there is no leader. If it dies here, our leases run out and others
take our items; if it dies everywhere, delayed items wait and those of dead processes stay out.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.work.loops import sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.queue.handle import Handle, Held
    from streamcrawl.store.queue_store import QueueStore, Tick
    from streamcrawl.work.loops import Patience

BEATS_PER_LEASE: Final = 4
"""Three beats may be lost before a lease is."""
BEAT_IDS: Final = 2000
"""In one call: 1,000 take the server 1.3 ms (tests/integration/test_store_cost.py)."""
TICK_S: Final = 1.0
"""How late a delayed item of a process that died may be, and how late a consumer hears that the queue was closed."""


class KeepLoop:
    def __init__(
        self,
        store: QueueStore,
        member: str,
        info: str,
        held: Held,
        *,
        patience: Patience,
        put_number: Callable[[], int],
        on_lost: Callable[[Handle[Any]], None],
        on_last: Callable[[int, int], None],
        on_tick: Callable[[Tick], None],
    ) -> None:
        self._store = store
        self._member = member
        self._info = info
        self._held = held
        self._patience = patience
        self._put_number = put_number
        self._on_lost = on_lost
        self._on_last = on_last
        self._on_tick = on_tick
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._lease_s = store.settings.lease_ms / 1000
        self._beaten_at = time.monotonic()
        self._beat_at = 0.0
        self._due_at = float("inf")

    def beat_age_s(self) -> float:
        """Return how old the last confirmed beat is."""
        return time.monotonic() - self._beaten_at

    def hurry(self) -> None:
        """Beat now: the store is another process than before."""
        self._beat_at = 0.0
        self._wake.set()

    def due_in(self, seconds: float) -> None:
        """An item of ours becomes due then."""
        at = time.monotonic() + seconds
        if at < self._due_at:
            self._due_at = at
            self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            if time.monotonic() >= self._beat_at:
                self._beat_at = time.monotonic() + self._lease_s / BEATS_PER_LEASE
                await self._beat()
            if self._stop.is_set():
                return
            tick = await self.tick()
            wait_s = 0.0 if tick.next_ms == 0 else TICK_S
            if tick.next_ms > 0:
                wait_s = min(wait_s, tick.next_ms / 1000)
            self._due_at = time.monotonic() + wait_s
            await self._sleep()

    async def _sleep(self) -> None:
        while not self._stop.is_set():
            left = min(self._due_at, self._beat_at) - time.monotonic()
            if left <= 0 or not await sleep_or_stop(self._wake, left):
                return
            self._wake.clear()

    async def tick(self) -> Tick:
        """Move what is due, and tell everybody here how the queue stands."""
        number = 0

        async def call() -> Tick:
            nonlocal number
            number = self._put_number()
            return await self._store.tick(self._member)

        tick = await until_answered(call, self._patience, self._stop)
        self._on_last(tick.last, number)
        self._on_tick(tick)
        return tick

    async def _beat(self) -> None:
        sent_at, number = 0.0, 0

        async def call() -> tuple[list[tuple[int, str]], int, int]:
            nonlocal sent_at, number
            # Taken anew for each try, before it is sent: a beat that waited for the store must not renew the past.
            sent_at, number = time.monotonic(), self._put_number()
            lost: list[tuple[int, str]] = []
            last = lease_ms = 0
            for part in self._held.ids(BEAT_IDS):
                more, last, lease_ms = await self._store.beat(self._member, self._info, part)
                lost += more
            return lost, last, lease_ms

        lost, last, lease_ms = await until_answered(call, self._patience, self._stop)
        self._beaten_at = sent_at
        if lease_ms != self._store.settings.lease_ms:
            self._store.settings = self._store.settings._replace(lease_ms=lease_ms)
            self._lease_s = lease_ms / 1000
        self._on_last(last, number)
        for level, entry_id in lost:
            handle = self._held.lose(level, entry_id)
            if handle is not None:
                self._on_lost(handle)
        await until_answered(self._store.reclaim, self._patience, self._stop)
