"""What a TaskQueue calls: one method for each of its scripts (lua/queue_*.lua, whose headers are the contracts).

`QueueStore` never decides; it packs arguments, runs a script and names the answers. Every method may raise
`StoreUnavailable` (back off and repeat: every script but `take` is safe to repeat) and `QueueGone` (end). Start at
`open_queue`. Durations are int ms.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from streamcrawl.errors import ConfigError, CrawlGone, QueueGone, StoreIncompatible
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.keys import QUEUES, QueueKeys
from streamcrawl.store.scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from redis.asyncio import Redis

    Held = Mapping[int, Sequence[str]]
    """Ids of entries by level."""

QUEUE_SCHEMA: Final = 1
LEVELS_MAX: Final = 5
"""A level has a quarter of the share of the one before it: a sixth would wait for one in a thousand."""
PUTS_PER_CALL: Final = 250
SETTLES_PER_CALL: Final = 500
OTHERS_PER_CALL: Final = 100
"""Endings that read their entry and write it anew."""
LETTERS_PER_CALL: Final = 250
TAKEN_PER_CALL: Final = 100
DUE_PER_CALL: Final = 200

_NAME: Final = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
_PACK: Final = msgspec.msgpack.Encoder().encode

RawEntry = tuple[bytes, list[bytes] | None]
"""Id and fields, flat; None when the entry was deleted by hand."""


class QueueSettings(NamedTuple):
    """What all members of a queue go by, as it is stored."""

    levels: int
    maxsize: int
    """Items that wait at most; 0: as many as Redis has memory for."""
    lease_ms: int
    attempts_max: int
    crashes_max: int
    dedup_ms: int
    dedup_max: int
    dead_max: int
    """Dead letters beyond which nothing more is accepted; 0: any number."""


DEFAULTS: Final = QueueSettings(
    levels=1,
    maxsize=10_000,
    lease_ms=30_000,
    attempts_max=5,
    crashes_max=5,
    dedup_ms=3_600_000,
    dedup_max=100_000,
    dead_max=100_000,
)


PutMode = Literal["", "again", "inside"]


class Put(NamedTuple):
    """What became of a batch."""

    word: str
    """OK, CLOSED or FORGOT."""
    number: int
    """Accepted of the batch, from its beginning; with FORGOT the number of the last item that the store has."""
    left: int = -1
    """Unsettled items of the queue; -1 when it was not said."""
    last: int = -1
    """Items of this member that were accepted in all; -1 when it was not said."""
    level: float = 0.0
    """How full it is, in parts of `maxsize`; 0 without one."""
    has_too_many_dead: bool = False
    """It is full because it has as many dead letters as it may."""


class Ending(NamedTuple):
    """How a delivery ends, if not well."""

    level: int
    entry_id: str
    how: str
    """`retry`, `dead` or `back`."""
    number: int = 0
    error: str = ""


class Settled(NamedTuple):
    lost: frozenset[int]
    """Positions, from 0: done first, then the others."""
    left: int
    is_closed: bool


class Tick(NamedTuple):
    moved: int
    next_ms: int
    """Until the next delayed item is due; -1 when there is none."""
    left: int
    is_closed: bool
    last: int
    """Items that the store has accepted of this member."""
    turn: int
    """Of its last put."""
    accepted: int
    """By that one."""


class QueueStore:
    """One queue, with the epoch that this process joined."""

    def __init__(self, client: Redis, keys: QueueKeys, epoch: str, settings: QueueSettings) -> None:
        self.client = client
        self.keys = keys
        self.epoch = epoch
        self.settings = settings
        self._run_script = Scripts(client, keys.state).run

    async def _run(self, name: str, *args: Any) -> list[Any]:
        try:
            return await self._run_script(f"queue_{name}", self.epoch, *args)
        except CrawlGone as error:
            raise QueueGone(
                f"the queue {self.keys.name!r} was deleted, or its Redis flushed: open it again to go on with a new one"
            ) from error

    async def put(self, member: str, turn: int, known: int, packed: Iterable[bytes], *, mode: PutMode = "") -> Put:
        """Put at most PUTS_PER_CALL items (`pack_item`).

        `turn` grows by each batch, and stays when one is repeated; `known` is how many of its items the member knows to
        be accepted; `mode` is said in the script.
        """
        answer = await self._run("put", member, turn, known, mode, *packed)
        word = answer[0].decode()
        if word == "INVALID":
            raise StoreIncompatible(
                f"the queue {self.keys.name!r} refuses item {answer[1]}: another version wrote its script"
            )
        if word != "OK":
            return Put(word, answer[1] if len(answer) > 1 else 0)
        _, accepted, left, last, level, why = answer
        return Put(word, accepted, left, last, level / 1000, why == b"dead")

    async def take(self, member: str, count: int) -> list[list[RawEntry]]:
        """Read at most `count` entries without waiting: a list for each level, the urgent first."""
        return list((await self._run("take", member, count))[1])

    async def settle(self, member: str, number: int, done: Held, others: Iterable[Ending] = ()) -> Settled:
        """End at most SETTLES_PER_CALL deliveries well, and OTHERS_PER_CALL otherwise; `number` grows by each call."""
        flat = [part for ending in others for part in ending]
        answer = await self._run("settle", member, number, _packed(done), _PACK(flat))
        lost = frozenset(int(position) - 1 for position in answer[1].split(b",") if position)
        return Settled(lost, answer[2], answer[3] == 1)

    async def beat(self, member: str, info: str, held: Held) -> tuple[list[tuple[int, str]], int, int]:
        """Renew leases; return what was lost (level, id), the number of the last item put, and the lease in force."""
        answer = await self._run("beat", member, info, _packed(held))
        flat = answer[1]
        lost = [(int(level), entry_id.decode()) for level, entry_id in zip(flat[::2], flat[1::2], strict=True)]
        return lost, answer[2], answer[3]

    async def reclaim(self) -> tuple[str, int]:
        """Take back what nobody renewed: ("OK", how many) or ("HOLD", ms)."""
        answer = await self._run("reclaim", TAKEN_PER_CALL)
        return answer[0].decode(), answer[1]

    async def tick(self, member: str) -> Tick:
        _, moved, next_ms, left, closed, *put = await self._run("tick", member, DUE_PER_CALL)
        return Tick(moved, next_ms, left, closed == 1, *put)

    async def close(self, *, is_closed: bool) -> int:
        """Close the queue or open it again; return how many items are unsettled."""
        return int((await self._run("close", "1" if is_closed else "0"))[1])

    async def stats(self) -> list[Any]:
        """Return what the header of queue_stats.lua lists, without its word."""
        return (await self._run("stats"))[1:]

    async def letters(self, how: str, ids: Sequence[str]) -> tuple[str, int]:
        """`replay` or `purge` at most LETTERS_PER_CALL dead letters: ("OK", how many) or ("CLOSED", 0)."""
        answer = await self._run("letters", how, _PACK(ids))
        return answer[0].decode(), answer[1]

    async def leave(self, member: str) -> int:
        """Forget a member; return how many entries stay under its name (1 of each level at most)."""
        return int((await self._run("leave", member))[1])

    async def delete(self) -> None:
        """Remove the queue; `unlist` takes its name from the list afterwards."""
        await self._run("delete")

    async def dead(self, after: str, count: int) -> list[tuple[str, dict[str, bytes]]]:
        """Return at most `count` dead letters behind the one with the id `after` ('' for the first), oldest first."""
        with mapped_errors():
            rows: Any = await self.client.xrange(self.keys.dead, f"({after}" if after else "-", "+", count)
        return [
            (entry_id.decode(), {field.decode(): value for field, value in fields.items()}) for entry_id, fields in rows
        ]

    def streams(self) -> list[bytes]:
        return [self.keys.stream(level).encode() for level in range(self.settings.levels)]


def pack_item(level: int, delay_ms: int, item_id: str, payload: bytes) -> bytes:
    """Return one item as queue_put.lua reads it."""
    raw_id = item_id.encode()
    return b"%d %d %d %b%b" % (level, delay_ms, len(raw_id), raw_id, payload)


def _packed(held: Held) -> bytes:
    return _PACK([part for level, ids in held.items() for part in (level, ids)])


async def open_queue(
    client: Redis, name: str, *, levels: int | None, values: Mapping[str, int], epoch: str | None = None
) -> QueueStore:
    """Create a queue or join the one of this name.

    Args:
        levels: Of priority; fixed when the queue is created. None takes what is there, or one.
        values: Settings (`QueueSettings`) that are in force for all from now on.
        epoch: For tests; otherwise random.

    Raises:
        ConfigError: the name will not do, or the queue has another number of levels.
        StoreIncompatible: another version of streamcrawl wrote it.
        StoreUnavailable: Redis does not answer.
    """
    check_name(name)
    keys = QueueKeys(name)
    defaults = {
        field: value for field, value in DEFAULTS._asdict().items() if field not in values and field != "levels"
    }
    word, stored, *more = await Scripts(client, keys.state).run(
        "queue_open",
        epoch or secrets.token_hex(8),
        QUEUE_SCHEMA,
        "" if levels is None else levels,
        _PACK([str(part) for pair in values.items() for part in pair]),
        _PACK([str(part) for pair in defaults.items() for part in pair]),
    )
    if word == b"SCHEMA":
        raise StoreIncompatible(
            f"the queue {name!r} was written by another version of streamcrawl (schema {stored.decode()}, not "
            f"{QUEUE_SCHEMA}): use that version until it is empty, or another name"
        )
    if word == b"LEVELS":
        raise ConfigError(
            f"the queue {name!r} has {stored.decode()} priority levels, not {levels}: leave levels= out, or use "
            "another name"
        )
    state = dict(zip(more[0][::2], more[0][1::2], strict=True))
    # One that is older than a setting goes by its default.
    settings = QueueSettings(*(int(state.get(field.encode()) or value) for field, value in DEFAULTS._asdict().items()))
    return QueueStore(client, keys, stored.decode(), settings)


async def enlist(client: Redis, name: str) -> None:
    """Put a queue on the server's list; before it is created, or one that broke off there could not be found again."""
    with mapped_errors():
        await client.sadd(QUEUES, name)


async def unlist(client: Redis, name: str) -> None:
    """Take a queue that was deleted from the list."""
    with mapped_errors():
        await client.srem(QUEUES, name)


def check_name(name: str) -> None:
    """Raise ConfigError for a name that could not be part of a key."""
    if not _NAME.match(name):
        raise ConfigError(f"{name!r} is no name of a queue: 1 to 64 of A-Z a-z 0-9 . _ -")
