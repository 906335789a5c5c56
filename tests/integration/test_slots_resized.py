"""Slots whose number changes while they are at work: nothing is ended for it, and nothing begins that has no place."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl import Crawl
from streamcrawl.rules.scope import Scope
from streamcrawl.settings import make_settings
from streamcrawl.store.frontier import Entry, stage_stream
from streamcrawl.store.shards import Shards
from streamcrawl.work.board import Board, monotonic_ms
from streamcrawl.work.commit import StageCommitLoop
from streamcrawl.work.lag import ServerClock
from streamcrawl.work.offers import OffersLoop
from streamcrawl.work.slots import Slots
from streamcrawl.work.stage_work import StageWork
from tests.integration.snapshot import wait_until
from tests.integration.test_store_stages import Flow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.integration.conftest import OpenLab

STAGE = "enrich"
WORKER = "t1"


class Bench:
    """A worker of one stage, whose items are handed to it; each waits until it is let go."""

    def __init__(self, flow: Flow, concurrency: int) -> None:
        self.flow = flow
        self.begun: list[int] = []
        self.gates = [asyncio.Event() for _ in range(20)]
        """In the order in which items begin."""
        program = Crawl("resized")

        @program.page
        def page(response: Any) -> None: ...

        @program.stage(name=STAGE)
        async def enrich(item: Any) -> None:
            self.begun.append(item["n"])
            await self.gates[len(self.begun) - 1].wait()

        crawl = Shards([flow.lab.frontier])
        settings, scope = make_settings("resized", {}), Scope.from_settings(make_settings("resized", {}), [])
        self.board = Board.create(8)
        self.board.confirm(monotonic_ms())
        stage = program.program.stage(STAGE)
        work = StageWork(settings, scope, crawl, self.board, program.program, stage, [], on_stuck=lambda: None)
        self.commit = StageCommitLoop(
            flow.lab.frontier, WORKER, STAGE, dispatch_limit=0, on_throttled=lambda _: None, on_outage=lambda: None,
            meters=self.board.meters, log=print,
        )  # fmt: skip
        self.slots = Slots(
            crawl, work, [self.commit], [OffersLoop(flow.lab.frontier, on_outage=lambda: None, log=print)], self.board,
            concurrency=concurrency, stream=stage_stream(STAGE), on_retry=lambda *_: None, on_over=lambda _: None,
            clock=ServerClock(), log=print,
        )  # fmt: skip

    async def give(self, count: int) -> None:
        """Have so many items emitted, read and put into the slots, whatever room there is."""
        await self.flow.emit(count, STAGE)
        stream = self.flow.lab.keys.stage_stream(STAGE)
        answer: Any = await self.flow.lab.client.xreadgroup("workers", WORKER, {stream: ">"}, count=count)
        for entry_id, fields in answer[0][1]:
            entry = Entry(entry_id.decode(), fields)
            self.slots.put(entry, self.board.hold(entry.id))

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        async def holds() -> bool:
            return is_so()

        await wait_until(holds, what)


@asynccontextmanager
async def bench(open_lab: OpenLab, concurrency: int) -> AsyncIterator[Bench]:
    made = Bench(await Flow.opened(open_lab), concurrency)
    running = asyncio.create_task(made.commit.run())
    try:
        yield made
    finally:
        await made.slots.stop(0.0)
        made.commit.stop(give_up=True)
        await running
        made.board.close()


async def test_fewer_slots_end_nothing_and_are_not_filled_again(open_lab: OpenLab) -> None:
    async with bench(open_lab, 4) as worker:
        await worker.give(4)
        await worker.until(lambda: len(worker.begun) == 4, "four items at work")
        assert (worker.slots.free(), worker.board.slots()) == (0, 4)
        worker.slots.resize(2)
        assert (worker.slots.free(), worker.board.slots()) == (-2, 2)
        # One that was under way to this worker when the number fell.
        await worker.give(1)
        for n in (0, 1):
            worker.gates[n].set()
        await worker.until(lambda: worker.board.busy() == 3, "two to end")
        assert len(worker.begun) == 4, "two run still, which is all there may be"
        assert worker.slots.free() == 0
        worker.gates[2].set()
        await worker.until(lambda: len(worker.begun) == 5, "the last one to get the place of a third")
        assert worker.slots.take_peak() == 5
        assert worker.slots.take_peak() == worker.board.busy() == 2


async def test_more_slots_are_there_at_once(open_lab: OpenLab) -> None:
    async with bench(open_lab, 1) as worker:
        await worker.give(3)
        await worker.until(lambda: len(worker.begun) == 1, "one item at work")
        free = worker.slots.wait_free()
        worker.slots.resize(3)
        await worker.until(lambda: len(worker.begun) == 3, "those that waited in hand")
        assert free.done(), "whoever reads is woken"
        worker.slots.resize(5)
        assert worker.slots.free() == 2


@pytest.mark.parametrize("crashes", [1, 2])
async def test_suspect_keeps_its_worker_to_itself_whatever_the_number(open_lab: OpenLab, crashes: int) -> None:
    async with bench(open_lab, 2) as worker:
        fields = {b"item": msgspec.json.encode(["any", {"n": 9}, 0]), b"crashes": str(crashes).encode()}
        worker.slots.put(Entry("1-1", fields), worker.board.hold("1-1"))
        await worker.until(lambda: worker.begun == [9], "the suspect to run")
        worker.slots.resize(8)
        assert worker.slots.free() == (7 if crashes == 1 else 0)
