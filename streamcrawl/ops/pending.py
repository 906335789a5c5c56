"""What workers have in hand: entries that were delivered and not acknowledged, of every stage and shard.

A row is taken back by hand_back.lua: the entry ends and its task goes to the head of its host's queue, so whoever had
it finds its lease lost. Nothing is taken from a worker that is alive unless that is wanted. Start at `rows` and
`take_back`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from streamcrawl.errors import CodecError, ConfigError
from streamcrawl.ops.letters import Tally
from streamcrawl.ops.words import span
from streamcrawl.rules.task import CrawlTask, decode_task
from streamcrawl.settings import Settings
from streamcrawl.store.connection import NoGroup, mapped_errors, server_ms
from streamcrawl.store.frontier import FETCH_STREAM, sink_stream, stage_stream
from streamcrawl.store.keys import FETCH, GROUP
from streamcrawl.store.tuning import read_tuned

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from streamcrawl.ops.letters import Watcher
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.store.shards import Shards

ROWS_PER_CALL: Final = 200
_LEASES_ALIVE: Final = 3
"""As beat.lua forgets workers: not heard of for three leases."""
_UNKNOWN: Final = "(its entry is gone)"


class Row(NamedTuple):
    """One entry in somebody's hands."""

    shard: int
    stage: str
    """`fetch`, `fetch:<sink>` for an output, or a stage of a program."""
    entry_id: str
    consumer: str
    idle_ms: int
    """Since its lease was last renewed."""
    deliveries: int
    what: str
    """The URL, as far as it can be read."""
    task: CrawlTask | None
    """None for a record, and for what cannot be read."""
    beat_age_ms: int | None
    """Since its worker was last heard of; None when nothing is known of it any more."""
    is_alive: bool

    def name(self, shards: int) -> str:
        """Return the id as people write it: with its shard when the crawl has several."""
        return self.entry_id if shards == 1 else f"{self.shard}/{self.entry_id}"

    def as_json(self, shards: int) -> dict[str, Any]:
        return {
            "id": self.name(shards),
            "stage": self.stage,
            "url": self.what,
            "worker": self.consumer,
            "worker_alive": self.is_alive,
            "worker_beat_age_ms": self.beat_age_ms,
            "idle_ms": self.idle_ms,
            "deliveries": self.deliveries,
            "attempt": None if self.task is None else self.task.attempt,
            "crashes": None if self.task is None else self.task.crashes,
            "depth": None if self.task is None else self.task.depth,
            "referrer": None if self.task is None else self.task.referrer,
        }


class Which(msgspec.Struct, frozen=True):
    """Which rows; every part that is given must hold."""

    stage: str | None = None
    consumer: str | None = None
    idle_ms: int = 0
    ids: tuple[str, ...] = ()
    """`ID`, or `SHARD/ID`; none: whatever its id."""

    @property
    def is_all(self) -> bool:
        return self == Which()

    def admits(self, row: Row, shards: int) -> bool:
        return not self.ids or row.entry_id in self.ids or row.name(shards) in self.ids


async def stages(crawl: Shards) -> list[str]:
    """Return the stages of a crawl: `fetch`, `fetch:<sink>` for each output, and those of its program."""
    with mapped_errors():
        sinks: Any
        stages: Any
        sinks, stages = await crawl.client.hmget(crawl.first.keys.state, ["sinks", "stages"])
    outputs = [f"{FETCH}:{name}" for name in (sinks or b"").decode().split(",") if name]
    return [FETCH, *outputs, *(name for name in (stages or b"").decode().split(",") if name)]


async def rows(crawl: Shards, which: Which) -> AsyncGenerator[tuple[Frontier, list[Row]], None]:
    """Yield windows of the rows that `which` admits, oldest entry first in each stage; what comes later is left out.

    Raises:
        ConfigError: there is no such stage.
    """
    known = await stages(crawl)
    if which.stage is not None and which.stage not in known:
        raise ConfigError(f"--stage {which.stage!r}: this crawl has {', '.join(known)}")
    alive_ms = _LEASES_ALIVE * await _lease_ms(crawl)
    for shard, frontier in enumerate(crawl):
        for stage in known if which.stage is None else (which.stage,):
            async for window in _rows_of(frontier, shard, stage, which, alive_ms):
                admitted = [row for row in window if which.admits(row, len(crawl))]
                if admitted:
                    yield frontier, admitted


async def take_back(crawl: Shards, which: Which, *, limit: int | None, is_forced: bool, watch: Watcher) -> Tally:
    """Take entries back, at most `limit`: their tasks go to the head of their queues, no attempt and no crash counted.

    Words: BACK; ALIVE (its worker is, so the entry was left with it; not with `is_forced`); GONE (ended meanwhile).
    """
    tally = Tally()
    async for frontier, window in rows(crawl, which):
        tally.looked += len(window)
        chosen = [row for row in window if is_forced or not row.is_alive]
        tally.words["ALIVE"] += len(window) - len(chosen)
        if limit is not None:
            chosen = chosen[: limit - tally.words["BACK"]]
        for stage, own in _by_stage(chosen).items():
            back = await frontier.hand_back(stream_of(stage), [row.entry_id for row in own], is_begun=True)
            tally.words["BACK"] += back
            tally.words["GONE"] += len(own) - back
        if not watch(tally) or tally.words["BACK"] == limit:
            tally.is_cut = True
            break
    tally.words = +tally.words
    return tally


def _by_stage(window: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in window:
        found.setdefault(row.stage, []).append(row)
    return found


async def _lease_ms(crawl: Shards) -> int:
    given = (await read_tuned(crawl)).given.get("lease_ms")
    return int(given.value) if given is not None else Settings(name="x").lease_ms


async def _rows_of(frontier: Frontier, shard: int, stage: str, which: Which, alive_ms: int) -> AsyncIterator[list[Row]]:
    client, stream = frontier.client, frontier.keys.prefix + stream_of(stage)
    start = "-"
    try:
        with mapped_errors():
            summary: Any = await client.xpending(stream, GROUP)
            last = summary["max"]
            while last is not None:
                found: Any = await client.xpending_range(
                    stream, GROUP, start, last, ROWS_PER_CALL, which.consumer, which.idle_ms or None
                )
                if not found:
                    return
                yield await _read(frontier, shard, stage, found, alive_ms)
                start = f"({found[-1]['message_id'].decode()}"
    except NoGroup:
        return  # deleted by hand or flushed: nothing is pending in it


async def workers(crawl: Shards) -> dict[str, tuple[int, bool]]:
    """Return for each worker of the crawl ms since it was last heard of, and whether it counts as alive."""
    alive_ms = _LEASES_ALIVE * await _lease_ms(crawl)
    async with crawl.client.pipeline(transaction=False) as pipe:
        pipe.time()
        for frontier in crawl:
            pipe.hgetall(frontier.keys.workers)
        with mapped_errors():
            time, *shards = await pipe.execute()
    now_ms = server_ms(time)
    found: dict[str, tuple[int, bool]] = {}
    for beats in shards:
        for consumer, beat in beats.items():
            age_ms = _age_ms(beat, now_ms)
            if age_ms is not None:
                found[consumer.decode("utf-8", "replace")] = (age_ms, age_ms < alive_ms)
    return found


def _age_ms(beat: bytes | None, now_ms: int) -> int | None:
    stamp = (beat or b"").partition(b" ")[0]
    return max(0, now_ms - int(stamp)) if stamp.isdigit() else None


async def _read(frontier: Frontier, shard: int, stage: str, found: Sequence[Any], alive_ms: int) -> list[Row]:
    stream = frontier.keys.prefix + stream_of(stage)
    consumers = list(dict.fromkeys(row["consumer"] for row in found))
    async with frontier.client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hget(frontier.keys.state, "gap_at")
        pipe.hmget(frontier.keys.workers, consumers)
        for row in found:
            pipe.xrange(stream, row["message_id"], row["message_id"])
        time, gap_at, beats, *entries = await pipe.execute()
    now_ms = server_ms(time)
    # After a jump of the clock or an outage everybody's stamp looks old, until it was renewed.
    is_in_doubt = 0 <= now_ms - int(gap_at or 0) < alive_ms // _LEASES_ALIVE
    ages = {consumer: _age_ms(beat, now_ms) for consumer, beat in zip(consumers, beats, strict=True)}
    read = []
    for row, entry in zip(found, entries, strict=True):
        what, task = _what(entry[0][1]) if entry else (_UNKNOWN, None)
        age_ms = ages[row["consumer"]]
        read.append(
            Row(
                shard=shard,
                stage=stage,
                entry_id=row["message_id"].decode(),
                consumer=row["consumer"].decode("utf-8", "replace"),
                idle_ms=row["time_since_delivered"],
                deliveries=row["times_delivered"],
                what=what,
                task=task,
                beat_age_ms=age_ms,
                is_alive=age_ms is not None and (age_ms < alive_ms or is_in_doubt),
            )
        )
    return read


def _what(fields: dict[bytes, bytes]) -> tuple[str, CrawlTask | None]:
    """Return what an entry is about, a task by its URL, a record by the URL in it; and the task."""
    host = fields.get(b"host", b"").decode("utf-8", "replace")
    try:
        if b"item" in fields:
            if b"url" in fields:
                return fields[b"url"].decode("utf-8", "replace"), None
            item = msgspec.json.decode(fields[b"item"])
            return (str(item["url"]) if isinstance(item, dict) and "url" in item else "(a record without a url)"), None
        task = decode_task(host, fields.get(b"level", b"").decode(), fields.get(b"task", b""))
    except (CodecError, msgspec.DecodeError, UnicodeDecodeError):
        return host or "(cannot be read)", None
    return task.url, task


def stream_of(stage: str) -> str:
    """Return the stream of a stage, without the crawl's prefix."""
    if stage == FETCH:
        return FETCH_STREAM
    sink = stage.removeprefix(f"{FETCH}:")
    return stage_stream(stage) if sink == stage else sink_stream(sink)


def row_line(row: Row, shards: int) -> str:
    """Return a row as a line of plain text."""
    worker = (
        "alive" if row.is_alive else "not heard of" if row.beat_age_ms is None else f"{span(row.beat_age_ms)} silent"
    )
    held = f"idle {span(row.idle_ms)}, delivered {row.deliveries} x"
    return f"{row.name(shards):<20}  {row.stage:<18}  {held:<28}  {row.consumer} ({worker})  {row.what}"
