"""When is the memory of the server looked at again?"""

from __future__ import annotations

import pytest

from streamcrawl.work.janitor import MEMORY_PACE_MIN_S, PACE_S, next_look_s


@pytest.mark.parametrize(
    ("room", "growth", "took_s", "expected_s"),
    [
        (1e6, 0, 2.0, PACE_S),  # it does not grow
        (1e6, -5e5, 2.0, PACE_S),  # it shrinks
        (1e9, 1e6, 2.0, PACE_S),  # the mark is far off
        (4e6, 1e6, 1.0, 1.0),  # four seconds off: in a quarter of them
        (4e6, 4e6, 0.5, 0.125),
        (1e3, 1e6, 1.0, MEMORY_PACE_MIN_S),
        (0, 1e6, 1.0, MEMORY_PACE_MIN_S),
        (-1e6, 1e6, 1.0, MEMORY_PACE_MIN_S),
        (1e6, 1e6, 0.0, PACE_S),
    ],
)
def test_memory_is_looked_at_well_before_it_is_used_up(
    room: float, growth: float, took_s: float, expected_s: float
) -> None:
    assert next_look_s(room, growth, took_s) == pytest.approx(expected_s)
