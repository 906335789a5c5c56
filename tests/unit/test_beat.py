"""Which child is taken for hung?"""

from __future__ import annotations

from streamcrawl.settings import SlotLimits
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Frontier
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import Shards
from streamcrawl.work.beat import HUNG_SPARE_MS, BeatLoop
from streamcrawl.work.supervisor import ChildJob, ChildProcess

PAST_MS = -1000 - HUNG_SPARE_MS
"""A limit that is over at once."""


async def test_lower_limit_does_not_hold_for_work_that_had_begun() -> None:
    crawl = Shards([Frontier(connect("redis://127.0.0.1:1"), Keys("any"), "epoch")])
    child = ChildProcess(ChildJob(), "w1", SlotLimits(4, 4))
    log: list[str] = []
    try:
        child.board.begin(child.board.hold("1-0", 0))
        beat = BeatLoop(crawl, lambda: [child], lease_ms=1000, work_max_ms=60_000, log=log.append)
        beat._kill_hung([child])
        beat.apply(PAST_MS)
        beat._kill_hung([child])
        assert log == []
        strict = BeatLoop(crawl, lambda: [child], lease_ms=1000, work_max_ms=PAST_MS, log=log.append)
        strict._kill_hung([child])
        assert len(log) == 1
    finally:
        child.board.close()
