"""How long does a producer wait between two calls? By how full is what it feeds.

Pure: no clock, no sleep. Start at `next_pause_s`. Above the high mark each pause is longer than the last, so that who
feeds nears the pace of who drains, rather than run into the bound and ask again and again; below the low mark each is
shorter, down to none; between them it stays, because a pace that fits keeps the level there. At the bound itself the
producer waits, for the longest pause at most, and asks again. The marks are those of streams (_items.lua).
"""

from __future__ import annotations

from typing import Final

HIGH: Final = 0.8
LOW: Final = 0.2


def next_pause_s(pause_s: float, level: float, *, first_s: float, most_s: float) -> float:
    """Return the pause before the next call.

    Args:
        pause_s: The last one; 0 for none.
        level: What is in there, in parts of what may be; 1 and more is full.
        first_s: The shortest that is made.
        most_s: The longest.
    """
    if level > HIGH:
        return min(most_s, max(first_s, 2 * pause_s))
    if level < LOW:
        return pause_s / 2 if pause_s >= 2 * first_s else 0.0
    return pause_s
