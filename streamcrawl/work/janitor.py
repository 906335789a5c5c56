"""The janitor: gives up dead hosts, stops dispatch when Redis reaches its memory mark, trims retained logs.

Every supervisor runs it; its scripts are atomic and bounded, so several do no harm. If it dies, dead hosts keep the
crawl from ending, the memory mark is not watched, and logs to which nobody writes any more are not trimmed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamcrawl.store.connection import mapped_errors, memory_usage
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log

PACE_S: Final = 2.0
MEMORY_MARK: Final = 0.8
"""Share of the memory limit above which nothing new is dispatched: what is in flight still brings its links."""
MEMORY_PACE_MIN_S: Final = 0.05
"""Near the mark: commits go on dispatching until somebody has seen it, some MB a second in a wide crawl."""
BURY_PER_CALL: Final = 300
LOGS_PACE_S: Final = 10.0
"""Between two questions which logs there are: only a program that begins brings new ones."""
LOG_SHARE: Final = 0.25
"""Of the memory up to the mark: what all retained logs may have together, unless a setting says it of each."""


class JanitorLoop:
    def __init__(self, crawl: Shards, settings: Settings, *, log: Log, memory_default_bytes: int | None = None) -> None:
        """Prepare the loop.

        Args:
            memory_default_bytes: Limit of a server that is this crawl's own, without a setting; None for a server
                whose limit is not ours to change.
        """
        self._crawl = crawl
        self._memory_default_bytes = memory_default_bytes
        self.settings = settings
        """As they are in force now."""
        self._log = log
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._patience = Patience("janitor", log)
        self._is_full = False
        self._logs: frozenset[str] = frozenset()
        self._logs_at = 0.0
        """When to ask for them again, loop time."""
        self._log_share = 0
        """Bytes that each log of a shard may have, as the scripts were told."""
        self._used, self._used_at = 0, 0.0
        """Memory of the server when it was last looked at, and when that was (loop time, 0 before the first look)."""

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def apply(self, settings: Settings) -> None:
        """Go by other settings, at once: a limit of the memory too."""
        self.settings = settings
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        hosts_at = memory_at = loop.time()
        while not self._stop.is_set():
            if loop.time() >= hosts_at:
                for frontier in self._crawl:
                    await self._give_up_hosts(frontier)
                # Within a tenth of the shorter limit, so that short limits mean what they say.
                shortest_ms = min(self.settings.host_give_up_ms, self.settings.host_give_up_idle_ms)
                hosts_at = loop.time() + min(PACE_S, max(0.1, shortest_ms / 10_000))
            if loop.time() >= memory_at or self._wake.is_set():
                self._wake.clear()
                memory_at = loop.time() + await self._watch_memory()
            await sleep_or_stop(self._wake, min(hosts_at, memory_at) - loop.time())

    async def _give_up_hosts(self, frontier: Frontier) -> None:
        settings = self.settings
        while not self._stop.is_set():
            buried, given_up, left = await until_answered(
                lambda: frontier.give_up(
                    after_ms=settings.host_give_up_ms, idle_ms=settings.host_give_up_idle_ms, limit=BURY_PER_CALL
                ),
                self._patience,
                self._stop,
            )
            if given_up:
                said = f"hosts given up because they did not answer: {given_up}; their tasks are dead letters now"
                self._log(Said.warning(said))
            if not left or not buried:
                return

    async def _watch_memory(self) -> float:
        """Stop the crawl at the mark; return when to look again, s."""
        used, maxmemory = await until_answered(self._look_at_memory, self._patience, self._stop)
        limit = min((one for one in (maxmemory, self.settings.memory_max_bytes) if one), default=0)
        mark = MEMORY_MARK * limit
        used = await self._trim_logs(used, mark)
        if is_over := bool(limit and used > mark):
            if not self._is_full:
                self._log(
                    Said.error(
                        f"Redis uses {used / 1e6:.1f} MB of {limit / 1e6:.1f} MB, over the mark of 80 %: nothing new "
                        "is dispatched; raise --memory-max (or maxmemory of the server) and run the same command again"
                    )
                )
            # Every time, not once: whoever joins the crawl sets it going again.
            await until_answered(lambda: self._crawl.control(stopped="MEMORY_FULL"), self._patience, self._stop)
        now = asyncio.get_running_loop().time()
        look_s = PACE_S
        if limit and not is_over:
            took_s = now - self._used_at
            look_s = next_look_s(mark - used, used - self._used, took_s) if self._used_at else MEMORY_PACE_MIN_S
        self._is_full, self._used, self._used_at = is_over, used, now
        return look_s

    async def _trim_logs(self, used: int, mark: float) -> int:
        """Remove from retained logs what is past its time or over their bytes, and over the memory mark (0: there is
        none) any of it: they give way before anything stops. Returns the memory in use afterwards."""
        now = asyncio.get_running_loop().time()
        if now >= self._logs_at or (mark and used > mark):
            self._logs = await until_answered(self._crawl.first.logs, self._patience, self._stop)
            self._logs_at = now + LOGS_PACE_S
        if not self._logs:
            return used
        share = max(1, int(LOG_SHARE * mark / len(self._logs) / len(self._crawl)))
        if mark and share != self._log_share:
            await until_answered(lambda: self._crawl.control(log_share=share), self._patience, self._stop)
            self._log_share = share
        lost = 0
        has_more = True
        while has_more and not self._stop.is_set():
            is_full = bool(mark and used > mark)
            has_more = False
            for frontier in self._crawl:
                removed, is_left = await until_answered(
                    lambda frontier=frontier, is_full=is_full: frontier.trim_logs(is_full=is_full),  # type: ignore[misc]
                    self._patience,
                    self._stop,
                )
                has_more = has_more or (is_left and removed > 0)
                lost += removed if is_full else 0
            if is_full:
                used, _ = await until_answered(self._look_at_memory, self._patience, self._stop)
        if lost:
            self._log(
                Said.warning(f"Redis is at its memory mark: {lost} entries of retained logs went before their time")
            )
        return used

    async def _look_at_memory(self) -> tuple[int, int]:
        """Return (bytes in use, maxmemory in bytes), once a server of our own has the limit that is in force now."""
        used, maxmemory = await memory_usage(self._crawl.client)
        if self._memory_default_bytes is None:
            return used, maxmemory
        wanted = self.settings.memory_max_bytes or self._memory_default_bytes
        if maxmemory != wanted:
            # A lower one than before would else be a mark only, and above a higher one Redis would refuse.
            with mapped_errors():
                await self._crawl.client.config_set("maxmemory", wanted)
        return used, wanted


def next_look_s(room: float, growth: float, took_s: float) -> float:
    """Return when to look at the memory again: well before `room` bytes are used up, grown as in the last `took_s`."""
    if growth <= 0 or took_s <= 0:
        return PACE_S
    return min(PACE_S, max(MEMORY_PACE_MIN_S, room / growth * took_s / 4))
