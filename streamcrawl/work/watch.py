"""The watch loop: notices that the store was restarted or that its clock jumped, and says so once.

Neither costs anything: whoever held something that a restarted store may have forgotten gives it up by himself
(store/restarts.py), and crawl time does not jump (store/lua/_state.lua). After a restart the counts of hosts are
recomputed, should the server have come back with half a step. If this loop dies, nobody says so, and such counts stay
wrong until the next start.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamcrawl.store.connection import mapped_errors, server_ms
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_S: Final = 2.0
"""Nothing waits for it but a line in the log."""
JUMP_LEAST_MS: Final = 5000
"""More than an answer may take (SOCKET_TIMEOUT_MS), so that one that comes late is not taken for a jump."""


class WatchLoop:
    def __init__(self, crawl: Shards, *, log: Log) -> None:
        self._crawl = crawl
        self._log = log
        self._stop = asyncio.Event()
        self._patience = Patience("watch", log)
        self._restarts = restarts_of(crawl.client)
        self._restarts_seen = self._restarts.count
        self._ahead_ms: int | None = None
        """Of the server's clock before our monotonic one; only its changes mean something."""

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        while not self._stop.is_set():
            self._judge_clock(await until_answered(self._read_clock, self._patience, self._stop))
            if self._restarts.count != self._restarts_seen:
                self._restarts_seen = self._restarts.count
                said = "the store was restarted, or another server took over: what it lost is fetched again"
                self._log(Said.warning(said))
                mended = await until_answered(self._crawl.reconcile, self._patience, self._stop)
                if mended:
                    self._log(
                        Said.warning(f"counts of {mended} hosts were wrong after the restart and have been mended")
                    )
            await sleep_or_stop(self._stop, PACE_S)

    async def _read_clock(self) -> int:
        """Return how far the server's clock is ahead of our monotonic one, ms."""
        with mapped_errors():
            time = await self._crawl.client.time()
        return server_ms(time) - monotonic_ms()

    def _judge_clock(self, ahead_ms: int) -> None:
        jump_ms = ahead_ms - (self._ahead_ms if self._ahead_ms is not None else ahead_ms)
        self._ahead_ms = ahead_ms
        if abs(jump_ms) > JUMP_LEAST_MS:
            said = f"the clock of the Redis server jumped by {jump_ms / 1000:+.0f} s; nothing is early or late for it"
            self._log(Said.warning(said))
