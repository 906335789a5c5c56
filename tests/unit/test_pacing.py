"""How long a producer waits, by how full is what it feeds."""

from __future__ import annotations

import pytest

from streamcrawl.rules.pacing import next_pause_s


def pause(pause_s: float, level: float) -> float:
    return next_pause_s(pause_s, level, first_s=0.01, most_s=0.5)


@pytest.mark.parametrize(
    ("pause_s", "level", "expected"),
    [
        (0.0, 0.0, 0.0),
        (0.0, 0.5, 0.0),
        (0.0, 0.8, 0.0),
        (0.0, 0.81, 0.01),
        (0.01, 0.9, 0.02),
        (0.3, 0.9, 0.5),
        (0.5, 1.0, 0.5),
        (0.0, 7.0, 0.01),
        (0.4, 0.5, 0.4),
        (0.4, 0.2, 0.4),
        (0.4, 0.19, 0.2),
        (0.02, 0.0, 0.01),
        (0.01, 0.0, 0.0),
    ],
)
def test_pause(pause_s: float, level: float, expected: float) -> None:
    assert pause(pause_s, level) == pytest.approx(expected)


@pytest.mark.parametrize("drained_per_s", [0.0, 10.0, 300.0, 5000.0])
def test_producer_comes_to_the_pace_of_who_drains(drained_per_s: float) -> None:
    level, pause_s, put, took_s = 0.0, 0.0, 0, 0.0
    bound, each = 10_000, 250
    for _ in range(5000):
        step_s = max(pause_s, each / 12_000)  # what reading and sending take
        took_s += step_s
        level = max(0.0, level - drained_per_s * step_s / bound)
        if level < 1:
            level += each / bound
            put += each
        pause_s = pause(pause_s, level)
        assert 0.0 <= level <= 1.0 + each / bound
        assert pause_s <= 0.5
    # All that was drained, and the bound: nobody who drains had to wait for it.
    assert put >= drained_per_s * took_s
    assert put <= drained_per_s * took_s + bound + each
