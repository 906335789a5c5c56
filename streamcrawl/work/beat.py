"""The beat loop: renews the leases of all children of this supervisor, in one script call for each shard.

A child that is busy, even one whose handler holds the GIL, keeps its entries; one that works at a single entry longer
than any handler may is hung and is killed. If this loop dies (with its supervisor) the leases run out after
`lease_ms`, and children stop starting fetches after half of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamcrawl.store.frontier import Beat
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log
    from streamcrawl.work.supervisor import ChildProcess

BEATS_PER_LEASE: Final = 4
"""Three beats may be lost before a lease is."""
HUNG_SPARE_MS: Final = 5000


class BeatLoop:
    def __init__(
        self,
        crawl: Shards,
        children: Callable[[], Sequence[ChildProcess]],
        *,
        lease_ms: int,
        work_max_ms: int,
        log: Log,
    ) -> None:
        self._crawl = crawl
        self._children = children
        self._lease_ms = lease_ms
        self._work_max_ms = self._work_max_before_ms = work_max_ms
        self._applied_at_ms = 0
        self._log = log
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        # A store that is back holds reclaim off for one lease (reclaim.lua): leases must be renewed well within it.
        self.patience = Patience("beat", log, pause_max_s=lease_ms / 1000 / BEATS_PER_LEASE)
        self.slots = 0
        """Live fetch slots of the whole crawl, as of the last beat."""

    def apply(self, work_max_ms: int) -> None:
        """Allow work at one entry to take so long from now on; what has begun goes by the limits it began with."""
        self._work_max_before_ms = max(self._work_max_before_ms, self._work_max_ms)
        self._work_max_ms, self._applied_at_ms = work_max_ms, monotonic_ms()

    def hurry(self) -> None:
        """Beat at once: a child came or went."""
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            await self._beat()
            await sleep_or_stop(self._wake, self._lease_ms / 1000 / BEATS_PER_LEASE)

    async def _beat(self) -> None:
        children = [child for child in self._children() if child.is_alive]
        self._kill_hung(children)
        if not children:
            return
        sent_ms, beating = 0, children

        async def call() -> list[tuple[list[list[str]], int]]:
            nonlocal sent_ms, beating
            # Taken anew for each try, before it is sent: a beat that waited for the store must not renew the past, and
            # a child that died meanwhile has no board any more.
            sent_ms, beating = monotonic_ms(), [child for child in children if child.is_alive]
            held = [child.board.held() for child in beating]
            return list(
                await asyncio.gather(
                    *(
                        frontier.beat(
                            [
                                Beat(
                                    child.consumer,
                                    child.stream,
                                    # Of what waits for it each shard may keep its share only.
                                    -(-child.slots // len(self._crawl)) if child.role == "fetch" else 0,
                                    child.info,
                                    [entry.entry_id for entry in entries if entry.shard == shard],
                                )
                                for child, entries in zip(beating, held, strict=True)
                            ],
                            lease_ms=self._lease_ms,
                        )
                        for shard, frontier in enumerate(self._crawl)
                    )
                )
            )

        answers = await until_answered(call, self.patience, self._stop)
        self.slots = sum(slots for _, slots in answers)
        for child in beating:
            if child.is_alive:
                child.board.confirm(sent_ms)
        for shard, (lost, _) in enumerate(answers):
            for child, lost_ids in zip(beating, lost, strict=True):
                for entry_id in lost_ids:
                    child.say(f"lost {shard} {entry_id}")

    def _kill_hung(self, children: Sequence[ChildProcess]) -> None:
        now = monotonic_ms()
        for child in children:
            if child.role == "sink":
                continue
            for held in child.board.held():
                limit_ms = child.work_max_ms or self._work_max_ms
                if (
                    not child.work_max_ms and held.begun_ms < self._applied_at_ms + HUNG_SPARE_MS
                ):  # by then every child has heard of it
                    limit_ms = max(limit_ms, self._work_max_before_ms)
                if held.begun_ms > 0 and now - held.begun_ms > limit_ms + HUNG_SPARE_MS:
                    self._log(
                        Said.warning(
                            f"worker {child.consumer} works at one entry for {(now - held.begun_ms) / 1000:.0f} s, "
                            "longer than handler_timeout allows: it is killed and replaced",
                            entry=held.entry_id,
                            **child.named,
                        )
                    )
                    child.kill()
                    break
