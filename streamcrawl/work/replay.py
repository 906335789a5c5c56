"""The replay loop: carries out what `streamcrawl replay` asked for (plan.lua), step by step, in every shard.

A step is one script (copy.lua), which moves the cursor with what it copies: whoever dies, nothing is sent twice or left
out, and several supervisors at one replay only share its steps. Who asks tells the first shard; this loop tells the
others, and does nothing in the first one before, so that none is left out. Every supervisor runs it. It does not ask
whether there is anything to do: the end loop does, and wakes it. If it dies everywhere, replays stand still and the
crawl does not end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_S: Final = 1.0
"""While no replay can go on: the crawl is paused, or another shard has one before."""
FULL_PACE_S: Final = 0.1
"""While there is no room in the stream: half of a mark of 1,000 items is a second's work of a fast stage."""
STEPS_MAX: Final = 50
"""Of one replay before the next one has its turn."""
LOST: Final = (
    "some of it was removed from the log before it could be sent: its time was over, log_max reached, or Redis at its "
    "memory mark"
)
_ENDS: Final = {"ENDED": "all of it is sent", "GAP": f"ended; {LOST}"}


class ReplayLoop:
    def __init__(self, crawl: Shards, *, log: Log) -> None:
        self._crawl = crawl
        self._log = log
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._patience = Patience("replay", log)
        self._told: set[str] = set()
        """Replays of which every shard knows."""

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """There is a replay to carry out."""
        self._wake.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            words: set[str] = set()
            self._wake.clear()
            under_way = await until_answered(self._under_way, self._patience, self._stop)
            self._told &= {replay_id for _, replay_id, _ in under_way}
            for frontier, replay_id, plan in under_way:
                if frontier is not self._crawl.first or await self._tell(replay_id, plan):
                    words.add(await self._go_on(frontier, replay_id))
            if not under_way:
                await self._wake.wait()
            elif "OK" not in words:
                await sleep_or_stop(self._stop, FULL_PACE_S if "FULL" in words else PACE_S)

    async def _under_way(self) -> list[tuple[Frontier, str, bytes]]:
        async with self._crawl.client.pipeline(transaction=False) as pipe:
            for frontier in self._crawl:
                pipe.hgetall(frontier.keys.replays)
            with mapped_errors():
                answers: Any = await pipe.execute()
        return [
            (frontier, field.decode(), plan)
            for frontier, rows in zip(self._crawl, answers, strict=True)
            for field, plan in rows.items()
            if b":" not in field
        ]

    async def _tell(self, replay_id: str, plan: bytes) -> bool:
        """Tell the other shards of a replay; False while one of them is not through with the one before."""
        if replay_id in self._told:
            return True
        for frontier in self._crawl.frontiers[1:]:
            word, _ = await until_answered(
                lambda frontier=frontier: frontier.plan_replay(replay_id, plan),  # type: ignore[misc]
                self._patience,
                self._stop,
            )
            if word != "OK":
                return False
        self._told.add(replay_id)
        return True

    async def _go_on(self, frontier: Frontier, replay_id: str) -> str:
        """Do some steps of a replay; return the word of the last one."""
        word = "OK"
        for _ in range(STEPS_MAX):
            if self._stop.is_set():
                break
            word, _ = await until_answered(lambda: frontier.copy_replay(replay_id), self._patience, self._stop)
            if word != "OK":
                if word in _ENDS:
                    where = f" (shard {frontier.keys.shard})" * (len(self._crawl) > 1)
                    self._log(f"replay {replay_id}: {_ENDS[word]}{where}")
                break
        return word
