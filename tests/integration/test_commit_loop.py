"""The commit loop of a worker, over a real store: what cannot be written, and what a batch waits for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from streamcrawl.rules.task import Kind, Outcome
from streamcrawl.store.frontier import Commit
from streamcrawl.work import commit as commit_module
from streamcrawl.work.commit import CommitLoop
from streamcrawl.work.meters import BATCH_SIZE, Meters
from tests.integration.test_slots_resized import bench

if TYPE_CHECKING:
    import pytest

    from tests.integration.conftest import OpenLab

A = "http://a.test"
ODD = "\ud800"


async def test_commit_that_cannot_be_written_is_buried_and_its_batch_goes_on(open_lab: OpenLab) -> None:
    lab = await open_lab(host_concurrency=9)
    await lab.offer(f"{A}/good", f"{A}/odd", f"{A}/hopeless")
    held = {one.task.path: one for one in await lab.take()}
    words: dict[str, str] = {}
    log: list[str] = []
    loop = CommitLoop(
        lab.frontier,
        "w1",
        dispatch_limit=0,
        on_dispatched=lambda _: None,
        on_outage=lambda: None,
        meters=Meters(),
        log=log.append,
    )

    def dead(path: str, error: str) -> Commit:
        detail: tuple[Any, ...] = ("2", held[path].stored, "handler", error, "")
        return Commit(held[path].id, A, Kind.PAGE, Outcome.DEAD, detail=detail)

    for path, commit, burial in (
        ("/odd", dead("/odd", ODD), dead("/odd", "its commit was malformed")),
        ("/good", Commit(held["/good"].id, A, Kind.PAGE, Outcome.DONE), dead("/good", "")),
        ("/hopeless", dead("/hopeless", ODD), dead("/hopeless", ODD)),
    ):
        loop.submit(
            commit,
            ended_at=0.0,
            bury=lambda burial=burial: burial,  # type: ignore[misc]
            done=partial(words.__setitem__, path),
        )
    loop.stop()
    await asyncio.wait_for(loop.run(), 20)
    assert words == {"/good": "DONE", "/odd": "DONE", "/hopeless": "INVALID"}
    assert sum("was malformed; it is dead now" in line for line in log) == 2
    totals = (await lab.check())["totals"]
    assert (totals["page.done"], totals["page.dead.handler"], totals["page.streamed"]) == (1, 1, 1)


async def test_batch_waits_for_no_company_that_cannot_come(open_lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_module, "LINGER_S", 3600.0)
    async with bench(open_lab, 4) as worker:
        await worker.give(1)
        worker.gates[0].set()
        await worker.until(lambda: worker.board.busy() == 0, "one that was alone")
        await worker.give(3)
        await worker.until(lambda: len(worker.begun) == 4, "three items at work")
        for gate in worker.gates[1:4]:
            gate.set()
        await worker.until(lambda: worker.board.busy() == 0, "all of them")
        assert worker.board.meters.count(BATCH_SIZE) == 2, "the three were one batch"
