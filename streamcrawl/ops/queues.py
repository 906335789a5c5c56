"""What waits in the queues of hosts: listed, and removed from them in windows of bounded size.

A queue may have millions of tasks. It is read in windows, and what is to go is taken out by purge.lua, window for
window from the head, while the rest goes to the tail: after one round the order is what it was, and a process that
ends in between leaves a queue that is only turned. Start at `tasks_of` and `purge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import CodecError
from streamcrawl.ops.hosts import LEVEL_NAMES
from streamcrawl.ops.letters import Tally
from streamcrawl.rules.task import CrawlTask, Kind, Level, decode_task
from streamcrawl.store.connection import mapped_errors

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from streamcrawl.ops.letters import Watcher
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

TASKS_PER_CALL: Final = 500
"""The most that purge.lua takes: some 100 kB, 1 to 2 ms."""
PAGE_LEVELS: Final = (Level.HIGH, Level.NORMAL, Level.LOW)
"""Levels that can be purged: a robots task is what lets the others go on."""


class Queued(NamedTuple):
    """One task in a queue."""

    host: str
    level: str
    place: int
    """In its level, from 0; the levels go one after the other."""
    stored: bytes
    task: CrawlTask | None
    """None when it cannot be read."""

    def as_json(self) -> dict[str, Any]:
        task = self.task
        return {
            "url": self.host if task is None else task.url,
            "kind": None if task is None else task.kind.value,
            "level": LEVEL_NAMES[Level(self.level)],
            "place": self.place,
            "depth": None if task is None else task.depth,
            "attempt": None if task is None else task.attempt,
            "crashes": None if task is None else task.crashes,
            "referrer": None if task is None else task.referrer,
        }


class Chosen(msgspec.Struct, frozen=True):
    """Which queued tasks; every part that is given must hold."""

    hosts: tuple[str, ...] = ()
    """Host keys; none: of every host."""
    levels: tuple[Level, ...] = PAGE_LEVELS
    match: re.Pattern[str] | None = None
    """Searched in the URL."""

    def admits(self, queued: Queued) -> bool:
        # What cannot be read matches nothing: its first worker makes it a dead letter.
        return self.match is None or (queued.task is not None and self.match.search(queued.task.url) is not None)


def level_of(name: str) -> Level:
    """Return the level of a name, `high`, `normal` or `low`."""
    return next(level for level, known in LEVEL_NAMES.items() if known == name)


async def tasks_of(frontier: Frontier, host: str, level: Level) -> AsyncGenerator[list[Queued], None]:
    """Yield the tasks of one queue in windows, first to last; beside a running crawl some may be missing or twice."""
    key, place = frontier.keys.queue(host, level), 0
    while True:
        with mapped_errors():
            found: Any = await frontier.client.lrange(key, place, place + TASKS_PER_CALL - 1)
        if found:
            yield [_read(host, level, place + n, stored) for n, stored in enumerate(found)]
        if len(found) < TASKS_PER_CALL:
            return
        place += len(found)


async def queued_count(crawl: Shards, chosen: Chosen) -> int:
    """Return how many tasks there are to look at."""
    count: int = 0
    with mapped_errors():
        if not chosen.hosts:
            for frontier in crawl:
                count += int(await frontier.client.hget(frontier.keys.totals, "page.queued") or 0)
            return count
        for host in chosen.hosts:
            frontier = crawl.of(host)
            for level in chosen.levels:
                count += await frontier.client.llen(frontier.keys.queue(host, level))
    return count


async def purge(crawl: Shards, chosen: Chosen, *, limit: int | None, is_dry: bool, watch: Watcher) -> Tally:
    """Remove tasks from queues, at most `limit`: they are dropped, by the name `purged`, and stay seen.

    It goes once over what is there when it comes to each queue. What workers or retries change in a queue between the
    look at a window and its removal may be passed over; another call finds it.

    Words: PURGED; with `is_dry` FOUND, and nothing is changed.
    """
    tally = Tally()
    for frontier in crawl:
        async for host, level in _queues(crawl, frontier, chosen):
            work = _count_in if is_dry else _purge_queue
            if not await work(frontier, host, level, chosen, limit, tally, watch):
                tally.is_cut = True
                return tally
    return tally


async def _queues(crawl: Shards, frontier: Frontier, chosen: Chosen) -> AsyncIterator[tuple[str, Level]]:
    """Yield the queues of one shard that may have chosen tasks; by SCAN a queue may come twice, which is harmless."""
    if chosen.hosts:
        for host in chosen.hosts:
            if crawl.of(host) is frontier:
                for level in chosen.levels:
                    yield host, level
        return
    start = len(frontier.keys.prefix) + len("queue:")
    with mapped_errors():
        pattern = frontier.keys.pattern.removesuffix("*") + "queue:*"
        async for key in frontier.client.scan_iter(match=pattern, count=1000, _type="list"):
            host, _, level = key[start:].decode("utf-8", "replace").rpartition(":")
            if level in chosen.levels:
                yield host, Level(level)


async def _purge_queue(
    frontier: Frontier, host: str, level: Level, chosen: Chosen, limit: int | None, tally: Tally, watch: Watcher
) -> bool:
    """Go once round a queue; False when it is to stop."""
    key = frontier.keys.queue(host, level)
    with mapped_errors():
        left = await frontier.client.llen(key)
    while left > 0:
        size = min(TASKS_PER_CALL, left)
        remove: list[bytes] | None = None
        if chosen.match is not None:
            with mapped_errors():
                window: Any = await frontier.client.lrange(key, 0, size - 1)
            remove = _wanted(host, level, window, chosen, None if limit is None else limit - tally.meant)
        elif limit is not None:
            size = min(size, limit - tally.meant)
        purged, kept = await frontier.purge(host, level, size, remove)
        tally.looked += purged + kept
        tally.words["PURGED"] += purged
        # Fewer than were asked for: workers have emptied it meanwhile.
        left = 0 if purged + kept < size else left - size
        if not watch(tally) or tally.meant == limit:
            # Whoever reaches the limit leaves a queue turned that nobody turns on; so does a signal.
            return False
    return True


async def _count_in(
    frontier: Frontier, host: str, level: Level, chosen: Chosen, limit: int | None, tally: Tally, watch: Watcher
) -> bool:
    async for window in tasks_of(frontier, host, level):
        found = sum(1 for queued in window if chosen.admits(queued))
        tally.looked += len(window)
        tally.words["FOUND"] += found if limit is None else min(found, limit - tally.meant)
        if not watch(tally) or tally.meant == limit:
            return False
    return True


def _wanted(host: str, level: Level, window: Sequence[bytes], chosen: Chosen, most: int | None) -> list[bytes]:
    found = [stored for n, stored in enumerate(window) if chosen.admits(_read(host, level, n, stored))]
    return found if most is None else found[:most]


def _read(host: str, level: Level, place: int, stored: bytes) -> Queued:
    try:
        task = decode_task(host, level, stored)
    except CodecError:
        task = None
    return Queued(host, level.value, place, stored, task)


def queued_line(queued: Queued) -> str:
    """Return a task as a line of plain text."""
    task = queued.task
    if task is None:
        return f"{queued.place:>9}  {LEVEL_NAMES[Level(queued.level)]:<6}  (cannot be read)"
    tries = f"attempt {task.attempt}" + (f", {task.crashes} crashes" if task.crashes else "")
    note = "" if task.kind is Kind.PAGE else f" ({task.kind} task)"
    level = LEVEL_NAMES[Level(queued.level)]
    return f"{queued.place:>9}  {level:<6}  depth {task.depth:<3} {tries:<10}  {task.url}{note}"
