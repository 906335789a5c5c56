"""The budget loop: deals `--max-pages` out to the shards of a crawl, so that together they fetch no page more.

The first shard keeps what each was granted and gave back (grant.lua); each takes its grant in, or gives back what it
has no use for (allow.lua). Both numbers only grow, so answers may be lost, repeated or come late. Every supervisor runs
this loop; with one shard, or without a limit that was ever set, it has nothing to do. If it dies everywhere, shards
stand still with what they have.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Allowance
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_S: Final = 0.2
UNLIMITED_PACE_S: Final = 5.0
"""Without a limit: another supervisor, which had not heard of that yet, may have written one again and died."""
ROOM: Final = 200
"""Pages a shard has in reserve at most: what it can use until the next look."""


class BudgetLoop:
    def __init__(self, crawl: Shards, *, pages_max: Callable[[], int | None], log: Log) -> None:
        self._crawl = crawl
        self._pages_max = pages_max
        self._stop = asyncio.Event()
        self._patience = Patience("budget", log)
        self._unlimited_at = 0.0
        """Loop time when every shard is to be told again that there is no limit. At the start: whoever took it away may
        have died before every shard knew."""

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._crawl) > 1 and not self._stop.is_set():
            budget = self._pages_max()
            if budget is not None:
                self._unlimited_at = 0.0
                await until_answered(lambda budget=budget: self._deal(budget), self._patience, self._stop)  # type: ignore[misc]
            elif loop.time() >= self._unlimited_at:
                self._unlimited_at = loop.time() + UNLIMITED_PACE_S
                for frontier in self._crawl:
                    await until_answered(lambda frontier=frontier: frontier.allow(None), self._patience, self._stop)  # type: ignore[misc]
            await sleep_or_stop(self._stop, PACE_S)
        await self._stop.wait()

    async def _deal(self, budget: int) -> None:
        first = self._crawl.first
        shards = list(self._crawl)
        # Everybody reports before anybody is granted more: what a shard used meanwhile must count.
        rows = [await frontier.allow(0) for frontier in shards]
        granted = [await first.grant(n, row, wanted=0, budget=budget) for n, row in enumerate(rows)]
        pool = granted[-1][1]
        # Those that stand still come first, in no order: one that cannot use its pages for long, because its host is
        # far from due, would else get the last page back each time that it gave it up.
        for n in sorted(range(len(rows)), key=lambda n: (_room(rows[n]), random.random())):
            row = rows[n]
            wanted = min(ROOM, row.queued) - _room(row)
            if wanted > 0 and pool > 0:
                total, pool = await first.grant(n, row, wanted=wanted, budget=budget)
                await shards[n].allow(total)
            elif granted[n][0] > row.granted:
                await shards[n].allow(granted[n][0])  # an earlier grant that has not arrived
        if pool <= 0:
            await self._collect(rows, pool)

    async def _collect(self, rows: list[Allowance], pool: int) -> None:
        """Take back from shards what they do not use, when others stand still or the budget was lowered."""
        is_wanted = pool < 0 or any(row.queued and _room(row) <= 0 for row in rows)
        for frontier, row in zip(self._crawl, rows, strict=True):
            # By halves: what a shard has queued may be of a host that is blocked, or far from due.
            spare = _room(row) if pool < 0 or not row.queued else (_room(row) + 1) // 2
            if is_wanted and spare > 0:
                await frontier.allow(0, back=spare)


def _room(row: Allowance) -> int:
    """Return how many pages more the shard may fetch now."""
    return row.granted - row.returned - row.used
