"""When did the event loop not run?"""

from __future__ import annotations

import asyncio
import time

from streamcrawl.work.stall import TICK_S, StallWatch


async def test_loop_that_runs_has_not_stalled() -> None:
    stalls = StallWatch()
    since = time.monotonic()
    watching = asyncio.create_task(stalls.run())
    for _ in range(5):
        await asyncio.sleep(TICK_S / 2)
    assert stalls.stalled_s(since) < 1  # on a machine that lets us run at all
    watching.cancel()


async def test_loop_that_stood_still_says_for_how_long_and_forgets_what_was_before() -> None:
    stalls = StallWatch()
    watching = asyncio.create_task(stalls.run())
    await asyncio.sleep(2 * TICK_S)
    before = time.monotonic()
    time.sleep(1)  # noqa: ASYNC251 - what a handler must not do
    # Asked in the very turn of the loop in which timeouts become due, before the watch itself has run.
    assert 1 - 2 * TICK_S < stalls.stalled_s(before) <= time.monotonic() - before
    await asyncio.sleep(2 * TICK_S)
    assert stalls.stalled_s(before) > 1 - 2 * TICK_S
    assert stalls.stalled_s(time.monotonic()) == 0
    watching.cancel()
