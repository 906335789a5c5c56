"""What Redis knows of its TaskQueues, for Prometheus: a look at each is one call of queue_stats.lua, at one instant
(it changes nothing, but for the clock of the queue, which each call of any script notes).

Used by ops/exporter.py, which sees to errors. Label sets are bounded: queues by QUEUES_MAX, levels by their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import QueueGone
from streamcrawl.ops.metrics import counter, gauge
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import QUEUES, QueueKeys
from streamcrawl.store.queue_store import QueueSettings, QueueStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import Metric
    from redis.asyncio import Redis

QUEUES_MAX: Final = 200
"""Queues in a look; each has some twenty series."""
_COUNTERS: Final = (
    ("created", "Items that were accepted"),
    ("done", "Items that were settled well"),
    ("retried", "Items given back to be tried again"),
    ("replayed", "Dead letters sent again"),
    ("purged", "Dead letters thrown away"),
    ("crashed", "Items taken back because nobody renewed their lease"),
    ("lease_lost", "Endings that came too late and changed nothing"),
    ("repeated", "Puts of an id that was known already"),
)


class LevelLook(msgspec.Struct, frozen=True):
    waiting: int
    out: int
    oldest_ms: int
    """Since the oldest item in its stream was put, waiting or out; -1 while there is none."""


class QueueLook(msgspec.Struct, frozen=True):
    """One queue at one instant."""

    name: str
    levels: list[LevelLook]
    delayed: int
    dead: int
    members: int
    """Live objects that opened it, those that only put included."""
    maxsize: int
    is_closed: bool
    totals: dict[str, int]

    @property
    def imbalance(self) -> int:
        """By how many items the counts differ from the structures."""
        ended = sum(self.totals.get(word, 0) for word in ("done", "dead", "purged"))
        there = sum(level.waiting + level.out for level in self.levels) + self.delayed
        return abs(self.totals.get("created", 0) - ended - there) + abs(self.totals.get("dead", 0) - self.dead)


async def queue_names(client: Redis) -> list[str]:
    """Return the names of all queues in a store, sorted."""
    with mapped_errors():
        names: Any = await client.smembers(QUEUES)
    return sorted(name.decode("utf-8", "replace") for name in names)


async def look_at_queue(client: Redis, name: str) -> QueueLook | None:
    """Return how a queue is; None when there is none of this name.

    Raises:
        StoreError: Redis does not answer, or the queue cannot be read.
    """
    keys = QueueKeys(name)
    with mapped_errors():
        stored: Any = await client.hgetall(keys.state)
    try:
        settings = QueueSettings(*(int(stored[field.encode()]) for field in QueueSettings._fields))
        store = QueueStore(client, keys, stored[b"epoch"].decode(), settings)
        state, totals, levels, delayed, dead, members = await store.stats()
    except (KeyError, QueueGone):
        return None  # deleted since, or on the list and not created yet
    fields = dict(zip(state[::2], state[1::2], strict=True))
    ages = [int(said.partition(b" ")[0]) for said in members[1::2]]
    return QueueLook(
        name,
        [LevelLook(*row) for row in zip(levels[::3], levels[1::3], levels[2::3], strict=True)],
        delayed,
        dead,
        sum(age_ms < settings.lease_ms for age_ms in ages),
        settings.maxsize,
        fields.get(b"closed") == b"1",
        {word.decode(): int(count) for word, count in zip(totals[::2], totals[1::2], strict=True)},
    )


def queue_metrics(queues: Sequence[QueueLook]) -> Iterator[Metric]:
    """Return what was seen as metrics."""
    of_levels: tuple[tuple[str, str, Callable[[LevelLook], float | None]], ...] = (
        ("queue_waiting", "Items that no consumer has yet", lambda level: level.waiting),
        ("queue_out", "Items in the hands of consumers", lambda level: level.out),
        (
            "queue_oldest_seconds",
            "Since the oldest item that waits or is out was put",
            lambda level: level.oldest_ms / 1000 if level.oldest_ms >= 0 else None,
        ),
    )
    for name, help_, of_level in of_levels:
        made = gauge(name, help_, ["queue", "level"])
        for queue in queues:
            for number, level in enumerate(queue.levels):
                value = of_level(level)
                if value is not None:
                    made.add_metric([queue.name, str(number)], value)
        yield made
    values: tuple[tuple[str, str, Callable[[QueueLook], float | None]], ...] = (
        ("queue_delayed", "Items whose time has not come", lambda queue: queue.delayed),
        ("queue_dead_letters", "Dead letters that lie there now", lambda queue: queue.dead),
        ("queue_members", "Live objects that opened the queue", lambda queue: queue.members),
        ("queue_maxsize", "Waiting and delayed items at which puts wait", lambda queue: queue.maxsize or None),
        ("queue_closed", "Whether it takes no more items", lambda queue: queue.is_closed),
        ("queue_balance", "By how many items counts and structures differ", lambda queue: queue.imbalance),
    )
    for name, help_, of in values:
        made = gauge(name, help_, ["queue"])
        for queue in queues:
            value = of(queue)
            if value is not None:
                made.add_metric([queue.name], value)
        yield made
    for word, help_ in _COUNTERS:
        counted = counter(f"queue_items_{word}", help_, ["queue"])
        for queue in queues:
            counted.add_metric([queue.name], queue.totals.get(word, 0))
        yield counted
