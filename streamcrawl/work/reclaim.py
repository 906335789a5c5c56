"""The reclaim loop: takes back what nobody renewed for a whole lease, in a script (reclaim.lua).

Every supervisor runs it; the script is the guard. It ticks four times a lease, because the script takes a longer gap
between two ticks for an outage and then gives everybody a lease to renew. If it dies everywhere, entries of dead
machines stay pending.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import TYPE_CHECKING, Final

from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

TICKS_PER_LEASE: Final = 4


class ReclaimLoop:
    def __init__(self, crawl: Shards, streams: Sequence[str], *, lease_ms: int, log: Log) -> None:
        self._crawl = crawl
        self._streams = streams
        self._lease_ms = lease_ms
        self._log = log
        self._stop = asyncio.Event()
        self.patience = Patience("reclaim", log)

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            for frontier, stream in product(self._crawl, self._streams):
                word, value = await until_answered(
                    lambda frontier=frontier, stream=stream: frontier.reclaim(stream, lease_ms=self._lease_ms),  # type: ignore[misc]
                    self.patience,
                    self._stop,
                )
                if word == "OK" and value:
                    self._log(
                        Said.warning(f"reclaim: {value} entries of {stream} were not renewed for a lease and are back")
                    )
            await sleep_or_stop(self._stop, self._lease_ms / 1000 / TICKS_PER_LEASE)
