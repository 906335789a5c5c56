"""How many entries should be able to wait for a stage? As a proposal: nothing goes by it by itself.

Pure. A stage that takes longer than the one before it needs the larger queue, by as much as it takes longer: then both
streams hold work for the same time, and a pause of one is a pause of none of the others. So the size is that of the
stage before, times the ratio of their times. A stage of many slots ends entries one after another all the same, so its
time is that between two entries while all of its slots work. Start at `proposed_size`.
"""

from __future__ import annotations

from typing import Final

SIZE_MAX: Final = 100_000
"""Where more would be proposed, the stage is short of workers and not of room."""
MEASURED_LEAST: Final = 20
"""Entries that must have ended before their time says something."""


def interval_s(ended: int, worked_s: float, slots: int) -> float | None:
    """Return the time between two entries of a stage while all of its slots work; None while too few have ended.

    Args:
        worked_s: How long slots worked at those that ended, waiting for answers included.
        slots: Of all its workers; what writes an output has one.
    """
    if ended < MEASURED_LEAST or worked_s <= 0 or slots < 1:
        return None
    return worked_s / ended / slots


def proposed_size(before: int, before_s: float, own_s: float, least: int) -> int:
    """Return how many entries should be able to wait for a stage.

    Args:
        before: The size of the queue of the stage that feeds it.
        before_s: `interval_s` of that stage.
        own_s: Its own.
        least: Two batches, or two rounds of its slots: less would make it wait for itself.
    """
    return max(least, min(SIZE_MAX, round(before * own_s / before_s)))
