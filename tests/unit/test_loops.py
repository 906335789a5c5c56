"""How the loops of a process wait for a store that is away: what each does, and what somebody reads of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from streamcrawl.errors import StoreUnavailable
from streamcrawl.work.loops import Alarm, Patience, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable


def failing(times: int, why: str = "Redis does not answer now (%s)") -> Callable[[], asyncio.Future[int]]:
    """Return a call that fails `times` times, each time in other brackets, and then answers how often it was called."""
    calls = 0

    def call() -> asyncio.Future[int]:
        nonlocal calls
        calls += 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if calls <= times:
            answer.set_exception(StoreUnavailable(why.replace("%s", str(calls))))
        else:
            answer.set_result(calls)
        return answer

    return call


async def test_call_is_repeated_until_it_is_answered() -> None:
    log: list[str] = []
    patience = Patience("beat", log.append, pause_max_s=0.001)
    assert await until_answered(failing(3), patience) == 4
    assert patience.failures == 0


async def test_outage_is_told_once_by_all_loops_of_a_process() -> None:
    log: list[str] = []
    outages: list[str] = []
    loops = [
        Patience(name, log.append, on_outage=partial(outages.append, name), pause_max_s=0.001)
        for name in ("read", "commit", "beat")
    ]
    assert await asyncio.gather(*(until_answered(failing(3), patience) for patience in loops)) == [4, 4, 4]
    assert [line.partition(":")[2].partition(" after")[0] for line in log] == [
        " Redis does not answer now (1); trying again",
        " the store answers again",
    ]
    assert sorted(outages) == ["beat", "commit", "read"]
    await until_answered(failing(1), loops[0])
    assert len(log) == 4


async def test_another_reason_in_the_same_outage_is_told() -> None:
    log: list[str] = []
    one, two = (Patience(name, log.append, pause_max_s=0.001) for name in ("read", "commit"))
    await asyncio.gather(until_answered(failing(2), one), until_answered(failing(2, "Redis is busy"), two))
    assert len(log) == 3
    assert any("Redis is busy" in line for line in log)


async def test_loop_that_was_stopped_in_an_outage_silences_nobody() -> None:
    log: list[str] = []
    stopped = asyncio.Event()
    stopped.set()
    lost = Patience("read", log.append, pause_max_s=0.001)
    with pytest.raises(StoreUnavailable):
        await until_answered(failing(9), lost, stopped)
    await lost.wait(StoreUnavailable("Redis does not answer now"), stopped)
    del lost
    await until_answered(failing(1), Patience("beat", log.append, pause_max_s=0.001))
    assert len(log) == 3


async def test_alarm_rings_at_the_time_it_was_moved_to_and_no_more_once_it_is_stopped() -> None:
    alarm = Alarm()
    alarm.set_in(3600.0)
    waiting = asyncio.create_task(alarm.wait())
    await asyncio.sleep(0)
    alarm.set_in(7200.0)
    alarm.set_in(0.001)
    assert await waiting
    alarm.set_in(0.001)
    waiting = asyncio.create_task(alarm.wait())
    alarm.set_in(3600.0)
    await asyncio.sleep(0)
    alarm.stop()
    assert not await waiting
