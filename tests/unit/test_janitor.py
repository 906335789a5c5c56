"""When is the memory of the server looked at again, and what follows?"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.settings import make_settings
from streamcrawl.work.janitor import MEMORY_PACE_MIN_S, PACE_S, JanitorLoop, next_look_s

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class FullStore:
    """What the loop asks of a frontier, on a server that uses 90 of 100 MB; `stopped` may be cleared by others."""

    def __init__(self) -> None:
        self.stopped = ""
        self.used = 90_000_000
        self.was_told = asyncio.Event()
        self.client = SimpleNamespace(info=self._info)

    async def _info(self, _: str) -> dict[str, Any]:
        return {"used_memory": self.used, "maxmemory": 100_000_000}

    def __iter__(self) -> Iterator[FullStore]:
        yield self

    @property
    def first(self) -> FullStore:
        return self

    async def logs(self) -> frozenset[str]:
        return frozenset()

    async def give_up(self, **_: int) -> tuple[int, int, int]:
        return 0, 0, 0

    async def control(self, *, stopped: str) -> None:
        self.stopped = stopped
        self.was_told.set()


async def test_crawl_that_another_command_set_going_is_stopped_again_while_the_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamcrawl.work.janitor.PACE_S", 0.01)
    store: Any = FullStore()
    log: list[str] = []
    loop = JanitorLoop(store, make_settings(name="full"), log=log.append)
    running = asyncio.create_task(loop.run())
    for _ in range(3):
        await asyncio.wait_for(store.was_told.wait(), 10)
        assert store.stopped == "MEMORY_FULL"
        store.was_told.clear()
    loop.stop()
    await running
    assert len(log) == 1
