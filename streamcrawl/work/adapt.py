"""The adapt loop: gives a worker more slots while it can bear them, and fewer when something suffers.

What to do is decided in rules/concurrency.py; this measures and applies. A number that moved far is published at once,
by a beat (the supervisor hears of it): how much may wait in the stream goes by it. If the loop dies, the worker stays
with the slots that it has. There is none where the number is fixed.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import ConnectError, ConnectTimeout, Disconnected, DnsError, FetchTimeout
from streamcrawl.rules.concurrency import Adapting, Measured, adapted, first_slots
from streamcrawl.rules.task import Outcome
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.machine import memory
from streamcrawl.work.meters import COMMITS, FETCH, FETCH_ERRORS, FETCH_SECONDS, ITEM, KINDS, SLOT_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.settings import SlotLimits
    from streamcrawl.work.meters import Meters
    from streamcrawl.work.slots import Slots

USUAL_FETCHES: Final = 64
USUAL_CALLS: Final = 16
"""What a worker begins with, of the fetch and of a stage: what they have where nobody says a number."""
PERIOD_S: Final = 1.0
TICK_S: Final = 0.25
MOVED: Final = 0.25
"""A number that differs so much from the published one is published at once; less waits for the next beat."""
OURS: Final = tuple(error.kind for error in (DnsError, ConnectError, ConnectTimeout, FetchTimeout, Disconnected))
"""Failures of a request that too many of them at a time may bring about."""


def slots_at_first(role: str, limits: SlotLimits) -> int:
    """Return with how many slots a worker begins."""
    return first_slots(limits, USUAL_FETCHES if role == FETCH else USUAL_CALLS)


class AdaptLoop:
    def __init__(
        self,
        slots: Slots,
        limits: SlotLimits,
        meters: Meters,
        *,
        role: str,
        is_throttled: Callable[[], bool],
        on_moved: Callable[[], None],
    ) -> None:
        """Prepare the loop.

        Args:
            role: FETCH, or STAGE: whose failures count.
            is_throttled: Says whether something that this worker feeds is over its mark.
            on_moved: Called when the number has moved far from what was published.
        """
        self._slots = slots
        self._limits = limits
        self._meters = meters
        self._count = _fetches if role == FETCH else _calls
        self._is_throttled = is_throttled
        self._on_moved = on_moved
        self._stop = asyncio.Event()
        self._published = slots.limit
        self._counted = self._count(meters)
        self._measured = Measured(busy=0)
        self._state = Adapting(slots=slots.limit)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            late_s = []
            for _ in range(round(PERIOD_S / TICK_S)):
                due = time.monotonic() + TICK_S
                if await sleep_or_stop(self._stop, TICK_S):
                    return
                late_s.append(max(0.0, time.monotonic() - due))
            self._measured = self._measure(sum(late_s) / len(late_s))
            self._state = adapted(self._state, self._measured, self._limits)
            if self._state.why is not None:
                self._apply()

    def describe(self) -> dict[str, Any]:
        """Return what was measured last and what came of it, for people who look."""
        one, state = self._measured, self._state
        return {
            "slots": state.slots,
            "least": self._limits.least,
            "most": self._limits.most,
            "busy": one.busy,
            "lag_s": round(one.lag_s, 4),
            "failures_usual": None if state.usual is None else round(state.usual, 4),
            "failures_on_trial": None if state.trial is None else round(state.trial, 4),
            "memory_free_bytes": one.memory_free_bytes,
            "is_throttled": one.is_throttled,
            "rests_s": state.rest * PERIOD_S,
        }

    def _measure(self, lag_s: float) -> Measured:
        tries, failures = self._count(self._meters)
        tries_before, failures_before = self._counted
        self._counted = tries, failures
        room = memory()
        return Measured(
            busy=self._slots.take_peak(),
            lag_s=lag_s,
            tries=round(tries - tries_before),
            failures=round(failures - failures_before),
            memory_free_bytes=None if room is None else room.free,
            memory_bytes=0 if room is None else room.whole,
            is_throttled=self._is_throttled(),
        )

    def _apply(self) -> None:
        assert self._state.why is not None
        self._slots.resize(self._state.slots)
        self._meters.add(SLOT_CHANGES, 1, self._state.why.value)
        if abs(self._state.slots - self._published) >= MOVED * self._published:
            self._published = self._state.slots
            self._on_moved()


def _fetches(meters: Meters) -> tuple[float, float]:
    """Return requests that ended, and those that failed in a way that may be of our making."""
    tries = sum(meters.count(FETCH_SECONDS, kind) for kind in KINDS)
    return tries, sum(meters.count(FETCH_ERRORS, kind, reason) for kind in KINDS for reason in OURS)


def _calls(meters: Meters) -> tuple[float, float]:
    """Return calls of a stage's function that ended, and those that failed."""
    failed = [meters.count(COMMITS, ITEM, outcome.value) for outcome in (Outcome.RETRY, Outcome.DEAD)]
    return sum(failed) + meters.count(COMMITS, ITEM, Outcome.DONE.value), sum(failed)
