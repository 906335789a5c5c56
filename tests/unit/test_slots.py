"""With how many others may a task share its worker?"""

from __future__ import annotations

import pytest

from streamcrawl.work.slots import NEIGHBOURS_OF_A_SUSPECT, neighbours_max


@pytest.mark.parametrize(
    ("crashes", "concurrency", "expected"),
    [
        (0, 64, 64),
        (0, 1, 1),
        (1, 64, NEIGHBOURS_OF_A_SUSPECT),
        (1, 2, 2),
        (2, 64, 1),
        (3, 64, 1),
        (9, 1, 1),
    ],
)
def test_suspects_share_with_few_and_then_with_nobody(crashes: int, concurrency: int, expected: int) -> None:
    assert neighbours_max(crashes, concurrency) == expected


def test_task_never_gets_more_company_by_crashing_again() -> None:
    shares = [neighbours_max(crashes, 64) for crashes in range(6)]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) == 1
