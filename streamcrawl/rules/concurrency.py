"""How many slots should a worker have? More while all are busy and nothing suffers, fewer when something does.

Pure: what was measured in, the next number out; work/adapt.py measures and applies. Start at `adapted`. Additive
increase and multiplicative decrease, as TCP finds the rate of a path that nobody knows (RFC 5681); a number that is not
made use of does not grow (RFC 7661 section 4.1), because nothing was learnt about it. What can suffer:

- the memory that is left for this process: a slot holds a body;
- its event loop: timers that fire late are a processor that has enough to do;
- the requests: more of them fail than did with fewer slots. A crawl of dead hosts has many failures whatever it does,
  so the share counts that rose, and when it does not fall with the number of slots it was not of our making;
- what comes after it: a stream over its mark means that this worker is too fast.

Slots that are busy are left alone: of a number that fell, those that become free are not filled again.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from streamcrawl.settings import SlotLimits

STEPS: Final = 32
"""Increases from none to the most there may be: half a minute at one a second, so that each is seen to do no harm."""
KEPT: Final = 0.7
"""Part of the slots that a decrease leaves: of TCP's two, that of CUBIC (RFC 9438 section 4.6), because what is
measured here is noisier than a lost packet."""
KEPT_MEMORY: Final = 0.5
REST: Final = 5
"""Periods after a decrease in which nothing else changes: what is under way began with the number before."""
LAG_ENOUGH_S: Final = 0.05
"""Mean lateness of timers at which nothing grows: the loop has always something to do."""
LAG_TOO_MUCH_S: Final = 0.25
"""A request of 30 s is judged late by 1 %, but one of 1 s by a quarter."""
TRIES_JUDGED: Final = 50
"""Requests by which a share of failures is reckoned: of fewer, chance alone would be half of it."""
FAILURES_RISE: Final = 1.5
FAILURES_SPARE: Final = 0.05
"""The share has risen when it is so many times the usual one, and this much more."""
FAILURES_FELL: Final = 0.7
"""With fewer slots to at most this part of what it was: then it was of our making."""
USUAL_WEIGHT: Final = 1 / 8
"""Of the newest share in the usual one: a network that became worse is the usual one some minutes later."""
RESERVE_PARTS: Final = 10
RESERVE_MAX_BYTES: Final = 256_000_000
"""Memory that is to stay free: a tenth of what there is, and no more than this. With less slots go, with less than
twice as much none come."""


class Change(StrEnum):
    """Why the number changed; labels of a metric."""

    BUSY = "busy"
    """All were in use, and nothing suffered: more."""
    MEMORY = "memory"
    LAG = "lag"
    FAILURES = "failures"
    DOWNSTREAM = "downstream"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one period showed."""

    busy: int
    """Slots in use at a time, at most."""
    lag_s: float = 0.0
    """How late timers fired, on average."""
    tries: int = 0
    failures: int = 0
    """Of these, those that may be of our making: timeouts, connections that were not had; of a handler any error."""
    memory_free_bytes: int | None = None
    """What this process may still take; None where that is not known."""
    memory_bytes: int = 0
    """All there is for it and for those beside it."""
    is_throttled: bool = False
    """Something that it feeds is over its mark."""


class Adapting(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from one period to the next."""

    slots: int
    why: Change | None = None
    """Of the last change; None in the periods without one."""
    rest: int = 0
    """Periods until something may change again, but for memory."""
    tries: int = 0
    failures: int = 0
    """Since the share was judged last."""
    usual: float | None = None
    """Share of failures that this crawl has anyway; None while none was judged."""
    trial: float | None = None
    """The share because of which slots were taken away, until it is seen whether that helped."""
    is_throttled: bool = False


def first_slots(limits: SlotLimits, usual: int) -> int:
    """Return with how many slots a worker begins: `usual`, within its limits."""
    return min(limits.most, max(limits.least, usual))


def adapted(state: Adapting, measured: Measured, limits: SlotLimits) -> Adapting:
    """Return the state after a period: one change of the slots at most, within the limits, and why."""
    is_first_said = measured.is_throttled and not state.is_throttled
    state = replace(state, why=None, rest=max(0, state.rest - 1), is_throttled=measured.is_throttled)
    state, has_risen = _judged(state, measured)
    room = _room(measured)
    if room < 1:
        return _fewer(state, limits, KEPT_MEMORY, Change.MEMORY)
    if state.rest:
        return state
    if measured.lag_s > LAG_TOO_MUCH_S:
        return _fewer(state, limits, KEPT, Change.LAG)
    if has_risen:
        return _fewer(state, limits, KEPT, Change.FAILURES)
    # Once for each time that it is said: while it lasts nothing is handed out, however many slots there are.
    if is_first_said:
        return _fewer(state, limits, KEPT, Change.DOWNSTREAM)
    is_well = room >= 2 and measured.lag_s <= LAG_ENOUGH_S and not measured.is_throttled and state.trial is None
    if is_well and measured.busy >= state.slots and state.slots < limits.most:
        more = min(limits.most, state.slots + max(1, limits.most // STEPS))
        return replace(state, slots=more, why=Change.BUSY)
    return state


def _fewer(state: Adapting, limits: SlotLimits, kept: float, why: Change) -> Adapting:
    slots = max(limits.least, int(kept * state.slots))
    if slots >= state.slots:
        return state
    # What was counted so far is of the number before.
    return replace(state, slots=slots, why=why, rest=REST, tries=0, failures=0)


def _judged(state: Adapting, measured: Measured) -> tuple[Adapting, bool]:
    """Return the state with the failures of this period, and whether their share has risen."""
    if state.rest:
        return state, False
    tries, failures = state.tries + measured.tries, state.failures + measured.failures
    if tries < TRIES_JUDGED:
        return replace(state, tries=tries, failures=failures), False
    share = failures / tries
    state = replace(state, tries=0, failures=0)
    if state.usual is None:
        return replace(state, usual=share), False
    if state.trial is not None:
        # Not of our making, then this crawl has so many anyway.
        usual = state.usual if share <= FAILURES_FELL * state.trial else share
        return replace(state, usual=usual, trial=None), False
    if share > FAILURES_RISE * state.usual + FAILURES_SPARE:
        return replace(state, trial=share), True
    return replace(state, usual=state.usual + USUAL_WEIGHT * (share - state.usual)), False


def _room(measured: Measured) -> float:
    """Return the memory that is free, in parts of what is to stay free; unknown is enough."""
    if measured.memory_free_bytes is None or not measured.memory_bytes:
        return math.inf
    return measured.memory_free_bytes / min(measured.memory_bytes / RESERVE_PARTS, RESERVE_MAX_BYTES)
