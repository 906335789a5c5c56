"""What the loops call: one method for each script, one object for each shard of a crawl.

`Frontier` never decides; it packs arguments, runs a script (lua/*.lua, whose headers are the contracts) and names the
answers. Every method may raise `StoreUnavailable` (back off and repeat: every script is safe to repeat) and `CrawlGone`
(end). Start at `open_crawl`. Durations are int ms.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from redis.exceptions import RedisError

from streamcrawl.errors import ConfigError, StoreIncompatible
from streamcrawl.rules.task import encode_rest
from streamcrawl.rules.urls import fingerprint
from streamcrawl.settings import SCHEMA, Settings
from streamcrawl.store.connection import map_error
from streamcrawl.store.keys import GROUP, Keys
from streamcrawl.store.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from redis.asyncio import Redis

    from streamcrawl.rules.task import CrawlTask, Kind, Outcome

LINKS_PER_CALL: Final = 250
"""Links in one script call at most: 250 new ones on as many new hosts take the server 3 to 4 ms (tests/integration/
test_store_cost.py), and no script should take over 5 ms."""
FETCH_STREAM: Final = "stream:fetch"
SCRIPT_SETTINGS: Final[tuple[tuple[str, str], ...]] = (
    ("delay_ms", "delay_ms"),
    ("cap", "host_concurrency"),
    ("robots", "obey_robots"),
    ("pages_max", "pages_max"),
    ("pages_per_host_max", "pages_per_host_max"),
    ("frontier_max", "frontier_max"),
    ("sink_max", "sink_waiting_max"),
    ("crashes_max", "crashes_max"),
)
"""Field of the state hash that scripts read, and the setting it comes from."""

_PACK: Final = msgspec.msgpack.Encoder().encode
_SINK: Final = re.compile(r"^(?!(page|robots)(\.|$))[A-Za-z0-9._-]+$")
"""Part of a key and of the names of counters, where it must not meet those of the lines of tasks."""


def sink_stream(sink: str) -> str:
    """Return a sink's stream, without the crawl's prefix."""
    return f"{FETCH_STREAM}:{sink}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as read from a work stream."""

    id: str
    fields: dict[bytes, bytes]


@dataclass(slots=True)
class Links:
    """Links in the form that scripts take, flat: fingerprint, host key, level, rest, …"""

    flat: list[str | bytes] = field(default_factory=list)

    def add(self, task: CrawlTask, fp: int | None = None) -> None:
        """Add one task to offer; `fp` is its fingerprint when the caller has it already."""
        self.flat += (str(fingerprint(task.url) if fp is None else fp), task.host, task.level.value, encode_rest(task))

    def __len__(self) -> int:
        return len(self.flat) // 4

    def take(self, count: int) -> Links:
        """Remove the first `count` links and return them."""
        head = Links(self.flat[: count * 4])
        del self.flat[: count * 4]
        return head


@dataclass(slots=True)
class Commit:
    """How one entry ends; `detail` by outcome as the header of commit.lua lists it."""

    entry_id: str
    host: str
    kind: Kind
    outcome: Outcome
    is_fetched: bool = False
    """A request went out, so the host's delay counts from its end."""
    since_end_ms: int = 0
    block_ms: int = 0
    detail: Sequence[Any] = ()
    links: Links = field(default_factory=Links)
    items: Sequence[str | bytes] = ()
    """Flat: sink, record, sink, record, …"""

    def pack(self, since_end_ms: int | None = None) -> bytes:
        return _PACK(
            (
                self.entry_id,
                self.host,
                self.kind.value,
                self.outcome.value,
                int(self.is_fetched),
                self.since_end_ms if since_end_ms is None else since_end_ms,
                self.block_ms,
                _as_text(self.detail),
                _as_text(self.links.flat),
                _as_text(self.items),
            )
        )


def _as_text(values: Sequence[Any]) -> list[Any]:
    # The msgpack reader inside Redis 7.0 does not know the `bin` type: bytes must go out as str.
    return [value.decode() if isinstance(value, bytes) else value for value in values]


@dataclass(frozen=True, slots=True)
class Dispatched:
    moved: int
    next_ms: int
    """Until the next host is due; 0 when work is due already, -1 when nothing is scheduled."""
    word: str
    """OK, IDLE, FULL, BUDGET, PAUSED, THROTTLED, or the reason of a stop (FRONTIER_FULL, MEMORY_FULL, …)."""


@dataclass(frozen=True, slots=True)
class Committed:
    words: list[str]
    """DONE, LEASE_LOST or INVALID for each commit, in order."""
    dispatched: Dispatched


@dataclass(frozen=True, slots=True)
class Beat:
    """What one worker reports: `slots` -1 says that it has left."""

    consumer: str
    stream: str
    slots: int
    info: str
    """JSON for people: pid, machine, role."""
    entry_ids: Sequence[str] = ()


class Frontier:
    """One shard of one crawl, with the epoch that this process joined."""

    def __init__(self, client: Redis, keys: Keys, epoch: str) -> None:
        self.client = client
        self.keys = keys
        self.epoch = epoch
        self._run = Scripts(client, keys.state).run

    async def offer(self, links: Links, *, fence: str = "") -> tuple[str, int]:
        """Offer at most LINKS_PER_CALL links; `fence` is the entry whose page they come from, '' for seeds.

        Returns:
            ("OK", how many were new) | ("LEASE_LOST", 0) | ("FULL", tasks queued) | ("INVALID", which).
        """
        answer = await self._run("offer", self.epoch, fence, _PACK(_as_text(links.flat)))
        return answer[0].decode(), answer[1] if len(answer) > 1 else 0

    async def dispatch(self, limit: int) -> Dispatched:
        answer = await self._run("dispatch", self.epoch, limit)
        return Dispatched(answer[1], answer[2], answer[3].decode())

    async def commit(self, worker: str, packed: Iterable[bytes], limit: int) -> Committed:
        """Commit packed `Commit`s, at most LINKS_PER_CALL links in all, and dispatch up to `limit` tasks."""
        answer = await self._run("commit", self.epoch, worker, limit, *packed)
        words = [word.decode() for word in answer[1]]
        return Committed(words, Dispatched(answer[2], answer[3], answer[4].decode()))

    async def start(self, entry_id: str, host: str, *, wait_max_ms: int, margin_ms: int) -> tuple[str, int]:
        """Ask whether a fetch may begin: ("START", 0), ("WAIT", ms), ("BACK", ms) or ("LEASE_LOST", 0)."""
        answer = await self._run("start", self.epoch, entry_id, host, wait_max_ms, margin_ms)
        return answer[0].decode(), answer[1] if len(answer) > 1 else 0

    async def hand_back(
        self, stream: str, entry_ids: Sequence[str], *, is_robots_stale: bool = False, is_begun: bool = False
    ) -> int:
        """Give entries back that will not be finished; returns how many were still ours.

        Args:
            is_robots_stale: There was no robots verdict for their host; its gate asks again.
            is_begun: A fetch of them was broken off, so the host's delay counts from now.
        """
        how = "2" if is_begun else "1" if is_robots_stale else "0"
        back = 0
        # The last first, as in the script: each goes to the head of its queue.
        for start in reversed(range(0, len(entry_ids), LINKS_PER_CALL)):
            chunk = _PACK(list(entry_ids[start : start + LINKS_PER_CALL]))
            answer = await self._run("hand_back", self.epoch, stream, chunk, how)
            back += answer[1]
        return back

    async def put_back(self, stream: str, consumer: str, *, is_crash: bool) -> int:
        """Take back all that a dead consumer held ('' for all consumers) and remove it; returns how many entries."""
        back: int = 0
        while True:
            answer = await self._run("put_back", self.epoch, stream, consumer, "1" if is_crash else "0", 250)
            back += answer[1]
            if not answer[2]:
                return back

    async def reclaim(self, stream: str, *, lease_ms: int, limit: int = 100) -> tuple[str, int]:
        """Take back what was not renewed for a lease: ("OK", count) or ("HOLD", ms)."""
        answer = await self._run("reclaim", self.epoch, stream, lease_ms, limit)
        return answer[0].decode(), answer[1]

    async def beat(self, beats: Sequence[Beat], *, lease_ms: int) -> tuple[list[list[str]], int]:
        """Renew leases; returns for each beat the ids that are lost, and the live fetch slots of the crawl."""
        packed = [_PACK((b.consumer, b.stream, b.slots, b.info, list(b.entry_ids))) for b in beats]
        answer = await self._run("beat", self.epoch, lease_ms, *packed)
        return [[entry_id.decode() for entry_id in lost] for lost in answer[1]], answer[2]

    async def due(self, limit: int = 100) -> tuple[int, int]:
        """Move due tasks back to their queues; returns how many, and ms to the next (0: more now, -1: none)."""
        answer = await self._run("due", self.epoch, limit)
        return answer[1], answer[2]

    async def give_up(self, *, after_ms: int, idle_ms: int, limit: int = 500) -> tuple[int, int, int]:
        """Returns tasks buried, hosts given up now, hosts that still have tasks to bury."""
        answer = await self._run("give_up", self.epoch, after_ms, idle_ms, limit)
        return answer[1], answer[2], answer[3]

    async def finish(self) -> tuple[str, int]:
        """Returns RUNNING, ENDED, LIMIT, STOPPED, PAUSED, UNFED or UNBALANCED, and the pages discovered so far."""
        answer = await self._run("finish", self.epoch)
        return answer[0].decode(), answer[1]

    async def feed(
        self, feeder: str, what: Literal["begin", "alone", "sign", "done", "leave"], *, lease_ms: int
    ) -> int:
        """Say what becomes of the seeds of `feeder`; returns how many feeders are left (0: it is closed)."""
        left: int = (await self._run("feed", self.epoch, feeder, what, lease_ms))[1]
        return left

    async def control(self, **values: str | int) -> None:
        """Set fields of the state; '' removes one."""
        flat = [part for name, value in values.items() for part in (name, str(value))]
        await self._run("control", self.epoch, _PACK(flat))

    async def reconcile(self) -> int:
        """Recompute the counts of every host from the structures; returns how many were wrong."""
        mended = 0
        async for hosts in self.host_chunks(200):
            mended += (await self._run("reconcile", self.epoch, _PACK(hosts)))[1]
        return mended

    async def audit_chunk(self, hosts: Sequence[str]) -> list[Any]:
        """Return the raw answer of audit.lua for at most 500 hosts."""
        return await self._run("audit", self.epoch, _PACK(list(hosts)))

    async def sink_open(self, sink: str, consumer: str, *, lease_ms: int) -> tuple[str, int, int]:
        """Become the writer of a sink: ("OK", writer epoch, offset), or ("BUSY", 0, 0) while another one lives."""
        while True:
            answer = await self._run("sink_open", self.epoch, sink, consumer, lease_ms, 250)
            if answer[0] == b"BUSY":
                return "BUSY", 0, 0
            if not answer[3]:
                return "OK", answer[1], answer[2]

    async def sink_commit(
        self, sink: str, *, writer: int, expected: int, offset: int, entry_ids: Sequence[str]
    ) -> tuple[str, Any]:
        """("DONE", None), ("LEASE_LOST", [ids]), ("OFFSET_MISMATCH", stored offset) or ("REPLACED", None)."""
        answer = await self._run("sink_commit", self.epoch, sink, writer, expected, offset, _PACK(list(entry_ids)))
        word = answer[0].decode()
        rest: Any = answer[1] if len(answer) > 1 else None
        if word == "LEASE_LOST":
            rest = [entry_id.decode() for entry_id in rest]
        return word, rest

    async def robots(self, origin: str) -> bytes | None:
        """Return the stored verdict of an origin; None when it was never fetched or has expired."""
        try:
            value: Any = await self.client.get(self.keys.robots(origin))
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        return value  # type: ignore[no-any-return]

    async def pending_of(self, stream: str, consumer: str, limit: int = 1000) -> list[str]:
        """Return the ids of entries delivered to a consumer and not acknowledged, oldest first."""
        try:
            rows: Any = await self.client.xpending_range(self.keys.prefix + stream, GROUP, "-", "+", limit, consumer)
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        return [row["message_id"].decode() for row in rows]

    async def host_chunks(self, size: int) -> AsyncIterator[list[str]]:
        """Yield the host keys of the shard in lists of at most `size`, by SCAN: each at least once while it exists."""
        start = len(self.keys.host(""))
        chunk: list[str] = []
        seen: set[str] = set()
        try:
            pattern = self.keys.pattern.removesuffix("*") + "host:*"
            async for key in self.client.scan_iter(match=pattern, count=1000, _type="hash"):
                host = key[start:].decode()
                if host in seen:
                    continue
                seen.add(host)
                chunk.append(host)
                if len(chunk) == size:
                    yield chunk
                    chunk = []
        except (RedisError, OSError) as error:
            raise map_error(error) from error
        if chunk:
            yield chunk


def script_values(settings: Settings) -> list[str]:
    """Return the tunable settings that scripts read, flat: field, value, …; '' for one that is not set."""
    flat: list[str] = []
    for name, setting in SCRIPT_SETTINGS:
        value = getattr(settings, setting)
        flat += (name, "" if value is None else str(int(value)))
    return flat


async def open_crawl(
    client: Redis, settings: Settings, *, sinks: Sequence[str] = (), shard: int = 0
) -> tuple[Frontier, bool]:
    """Create the crawl or join it, and put the tunable settings in force.

    Returns:
        The frontier, and whether the crawl was created by this call.

    Raises:
        StoreIncompatible: another version of streamcrawl wrote it.
        ConfigError: an identity setting, or the set of sinks, differs from the stored one; a sink's name cannot be; or
            a deletion of the crawl did not come to its end.
    """
    for sink in sinks:
        if not _SINK.match(sink):
            raise ConfigError(f"output name {sink!r} will not do: use letters, digits, dots, dashes, underscores")
    keys = Keys(settings.name, shard)
    run = Scripts(client, keys.state).run
    identity = msgspec.json.encode(settings.identity()).decode()
    answer = await run(
        "open",
        secrets.token_hex(8),
        SCHEMA,
        identity,
        _PACK(list(sinks)),
        _PACK([*script_values(settings), "stopped", ""]),
    )
    word = answer[0].decode()
    stored = answer[1].decode()
    if word == "SCHEMA":
        raise StoreIncompatible(
            f"crawl {settings.name!r} was written by another version of streamcrawl (schema {stored}, this one reads "
            f"{SCHEMA}); finish it with that version, or delete it with --fresh"
        )
    if word == "IDENTITY":
        raise ConfigError(
            f"crawl {settings.name!r} exists with {stored} and was asked for with {identity}: these cannot change; "
            "give the stored values, another --name, or --fresh to delete it"
        )
    if word == "SINKS":
        raise ConfigError(
            f"crawl {settings.name!r} exists with other outputs ({stored or 'none'}); give the same -o, another "
            "--name, or --fresh to delete it"
        )
    if word == "LEFTOVER":
        raise ConfigError(f"crawl {settings.name!r} is being deleted, or a deletion broke off; --fresh ends it")
    return Frontier(client, keys, stored), word == "OPENED"


async def delete_crawl(client: Redis, name: str, *, shard: int = 0) -> int:
    """Delete every key of a crawl's shard in bounded steps; returns how many keys.

    The epoch goes first, so that workers which are still alive get GONE and write nothing more; the rest of the state
    goes last. After a crash in between `open_crawl` refuses the crawl until this was called again.
    """
    keys = Keys(name, shard)
    deleted = 0
    try:
        await client.hdel(keys.state, "epoch")
        batch: list[bytes] = []
        async for key in client.scan_iter(match=keys.pattern, count=1000):
            if key != keys.state.encode():
                batch.append(key)
            if len(batch) >= 500:
                deleted += await client.unlink(*batch)
                batch.clear()
        if batch:
            deleted += await client.unlink(*batch)
        deleted += await client.unlink(keys.state)
    except (RedisError, OSError) as error:
        raise map_error(error) from error
    return deleted
