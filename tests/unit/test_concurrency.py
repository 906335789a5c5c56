"""How many slots a worker gets, by what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from streamcrawl.rules.concurrency import (
    FAILURES_FELL,
    LAG_ENOUGH_S,
    LAG_TOO_MUCH_S,
    REST,
    STEPS,
    TRIES_JUDGED,
    Adapting,
    Change,
    Measured,
    adapted,
    first_slots,
)
from streamcrawl.settings import SLOTS_AUTO, SlotLimits

LIMITS = SlotLimits(16, 256)
GB = 1_000_000_000


def periods(state: Adapting, *measured: Measured, limits: SlotLimits = LIMITS) -> Adapting:
    for one in measured:
        state = adapted(state, one, limits)
    return state


def full(state: Adapting, **values: Any) -> Measured:
    """Return a period in which every slot was in use."""
    return Measured(busy=state.slots, **values)


@pytest.mark.parametrize(
    ("measured", "slots", "why"),
    [
        ({"busy": 64}, 72, Change.BUSY),
        ({"busy": 63}, 64, None),
        ({"busy": 0}, 64, None),
        ({"busy": 64, "lag_s": LAG_ENOUGH_S + 0.01}, 64, None),
        ({"busy": 64, "lag_s": LAG_TOO_MUCH_S + 0.01}, 44, Change.LAG),
        ({"busy": 3, "lag_s": LAG_TOO_MUCH_S + 0.01}, 44, Change.LAG),
        ({"busy": 64, "is_throttled": True}, 44, Change.DOWNSTREAM),
        ({"busy": 64, "memory_free_bytes": 5 * GB, "memory_bytes": 24 * GB}, 72, Change.BUSY),
        ({"busy": 64, "memory_free_bytes": 400_000_000, "memory_bytes": 24 * GB}, 64, None),
        ({"busy": 64, "memory_free_bytes": 200_000_000, "memory_bytes": 24 * GB}, 32, Change.MEMORY),
        ({"busy": 64, "memory_free_bytes": 200_000_000, "memory_bytes": GB // 2}, 72, Change.BUSY),
        ({"busy": 64, "memory_free_bytes": 40_000_000, "memory_bytes": GB // 2}, 32, Change.MEMORY),
        ({"busy": 64, "memory_free_bytes": 0, "memory_bytes": GB // 2, "lag_s": 9.0}, 32, Change.MEMORY),
        # Nothing says how many failures are usual here: what came first is.
        ({"busy": 64, "tries": 500, "failures": 400}, 72, Change.BUSY),
    ],
)
def test_one_period(measured: dict[str, Any], slots: int, why: Change | None) -> None:
    state = adapted(Adapting(slots=64), Measured(**measured), LIMITS)
    assert (state.slots, state.why) == (slots, why)


def test_more_come_in_small_steps_up_to_the_most() -> None:
    state, steps = Adapting(slots=LIMITS.least), 0
    while state.slots < LIMITS.most:
        before = state.slots
        state = adapted(state, full(state), LIMITS)
        assert before < state.slots <= before + LIMITS.most // STEPS
        steps += 1
    assert steps <= STEPS
    assert adapted(state, full(state), LIMITS).slots == LIMITS.most


@pytest.mark.parametrize(
    "measured",
    [
        {"lag_s": 5.0},
        {"memory_free_bytes": 1, "memory_bytes": GB},
        {"lag_s": 5.0, "memory_free_bytes": 1, "memory_bytes": GB, "is_throttled": True, "tries": 99, "failures": 99},
    ],
)
@pytest.mark.parametrize("limits", [LIMITS, SlotLimits(1, 3), SlotLimits(5, 5), SLOTS_AUTO])
def test_never_beyond_the_limits(measured: dict[str, Any], limits: SlotLimits) -> None:
    state = Adapting(slots=limits.most)
    for _ in range(200):
        state = adapted(state, full(state, **measured), limits)
        assert limits.least <= state.slots <= limits.most
    assert state.slots == limits.least
    for _ in range(200):
        state = adapted(state, full(state), limits)
        assert limits.least <= state.slots <= limits.most
    assert state.slots == limits.most


def test_after_a_decrease_nothing_changes_for_some_periods() -> None:
    state = adapted(Adapting(slots=100), Measured(busy=100, lag_s=1.0), LIMITS)
    assert state.slots == 70
    late = Measured(busy=100, lag_s=1.0)
    state = periods(state, *[late] * (REST - 1))
    assert (state.slots, state.why) == (70, None)
    assert periods(state, late).slots == 49
    assert periods(state, full(state)).slots == 78


def test_memory_that_runs_out_waits_for_nothing() -> None:
    out = Measured(busy=200, memory_free_bytes=0, memory_bytes=GB)
    assert periods(Adapting(slots=200), out, out, out).slots == 25


def test_stream_over_its_mark_counts_once_each_time() -> None:
    held = Measured(busy=100, is_throttled=True)
    state = periods(Adapting(slots=100), *[held] * 50)
    assert state.slots == 70, "once, however long it lasts"
    free = Measured(busy=0)
    state = periods(state, free, *[held] * 50)
    assert state.slots == 49


def failing(share: float, tries: int = TRIES_JUDGED) -> Measured:
    return Measured(busy=0, tries=tries, failures=round(share * tries))


def test_failures_that_were_there_before_change_nothing() -> None:
    state = periods(Adapting(slots=64), *[failing(0.4)] * 100)
    assert state.slots == 64
    assert state.usual == pytest.approx(0.4)


def test_failures_that_rise_and_fall_with_the_slots_take_some_away_each_time() -> None:
    state = periods(Adapting(slots=64), failing(0.02), failing(0.3))
    assert (state.slots, state.why) == (44, Change.FAILURES)
    assert adapted(state, full(state), LIMITS).slots == 44, "no more while that is on trial"
    # What ends within the rest began with more slots, and is not judged.
    state = periods(state, *[failing(0.3)] * (REST - 1))
    state = periods(state, failing(0.3 * FAILURES_FELL - 0.03))
    assert state.trial is None
    assert state.usual == pytest.approx(0.02), "it was of our making"
    assert periods(state, failing(0.3)).slots == 30


def test_failures_that_do_not_fall_with_the_slots_are_not_ours() -> None:
    state = periods(Adapting(slots=64), failing(0.02), failing(0.3), *[failing(0.3)] * 50)
    assert state.slots == 44
    assert state.usual == pytest.approx(0.3)
    more = [Measured(busy=256, tries=TRIES_JUDGED, failures=round(0.3 * TRIES_JUDGED))] * 50
    assert periods(state, *more).slots == LIMITS.most


def test_few_requests_are_judged_together() -> None:
    state = periods(Adapting(slots=64, usual=0.0), *[Measured(busy=0, tries=1, failures=1)] * (TRIES_JUDGED - 1))
    assert state.slots == 64
    assert periods(state, Measured(busy=0, tries=1, failures=1)).slots == 44


def test_usual_share_follows_what_changes_slowly() -> None:
    state, share = Adapting(slots=64), 0.0
    for step in range(100):
        share = step / 125
        state = periods(state, failing(share))
    assert state.slots == 64
    assert state.usual == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize(
    ("limits", "usual", "slots"),
    [(LIMITS, 64, 64), (SlotLimits(1, 8), 64, 8), (SlotLimits(100, 200), 64, 100), (SlotLimits(7, 7), 16, 7)],
)
def test_first_number_is_the_usual_one_within_the_limits(limits: SlotLimits, usual: int, slots: int) -> None:
    assert first_slots(limits, usual) == slots
