"""What size of a stage's queue is proposed, by measured times."""

from __future__ import annotations

import pytest

from streamcrawl.rules.sizes import MEASURED_LEAST, SIZE_MAX, interval_s, proposed_size


@pytest.mark.parametrize(
    ("ended", "worked_s", "slots", "expected"),
    [
        (100, 10.0, 1, 0.1),
        (100, 10.0, 4, 0.025),
        (MEASURED_LEAST - 1, 10.0, 1, None),
        (100, 0.0, 1, None),
        (100, 10.0, 0, None),
    ],
)
def test_time_between_two_entries(ended: int, worked_s: float, slots: int, expected: float | None) -> None:
    assert interval_s(ended, worked_s, slots) == expected


@pytest.mark.parametrize(
    ("before", "before_s", "own_s", "least", "expected"),
    [
        (128, 0.01, 0.01, 2, 128),
        (128, 0.01, 0.02, 2, 256),
        (128, 0.01, 0.005, 2, 64),
        (128, 0.01, 0.0001, 32, 32),
        (128, 0.001, 90.0, 2, SIZE_MAX),
    ],
)
def test_size_is_that_before_times_the_ratio_of_times(
    before: int, before_s: float, own_s: float, least: int, expected: int
) -> None:
    assert proposed_size(before, before_s, own_s, least) == expected
