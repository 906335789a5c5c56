"""`TaskQueue`: asyncio.Queue's names, with their meaning kept across processes and machines, as far as Redis can tell.

What was accepted is settled once, or comes again: a process that dies, a connection that breaks after the command was
sent and a task that is cancelled at any await lose nothing. An item may be delivered more than once (its process died,
or was cut off for a lease), but only one delivery can settle it; the other is told `LeaseLost`. Start at `TaskQueue`.

Work goes through four loops of this object, each a class in this folder: puts.py, reader.py, settles.py and keep.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
import traceback
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Self, TypedDict, Unpack, overload

import msgspec

from streamcrawl.errors import CodecError, ConfigError, LeaseLost, QueueClosed, QueueGone, StoreError, StoreUnavailable
from streamcrawl.queue.handle import Handle, Held, QueueEmpty, QueueFull, State, T
from streamcrawl.queue.keep import KeepLoop
from streamcrawl.queue.puts import PutLoop
from streamcrawl.queue.reader import Reader
from streamcrawl.queue.settles import SettleLoop
from streamcrawl.store.connection import check_server, connect, connect_like
from streamcrawl.store.queue_store import (
    DEFAULTS,
    LETTERS_PER_CALL,
    LEVELS_MAX,
    check_name,
    enlist,
    open_queue,
    pack_item,
    unlist,
)
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.logs import printable
from streamcrawl.work.loops import Patience, until_answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from redis.asyncio import Redis

    from streamcrawl.store.queue_store import QueueStore, Tick

Codec = Literal["msgpack", "json", "bytes"]

ITEM_BYTES_MAX: Final = 1_000_000
"""Of one encoded item: many come in one answer of Redis. What is larger goes into a file, its name into the queue."""
PUT_MANY_STEP: Final = 1000
"""Items of one `put_many` that are encoded and under way at a time: what it is given may be long, or without end."""
ID_BYTES_MAX: Final = 256
ERROR_CHARACTERS_MAX: Final = 2000
DELAY_MAX_S: Final = 366 * 86_400
EXIT_S: Final = 5.0
"""For giving back what is out when the store does not answer; afterwards the lease does it."""
DOUBT_S: Final = 5.0
"""After a restart of the store no end is believed for so long: who put what it has forgotten puts it again by then."""
JOIN_FIRST_S: Final = 0.005
JOIN_MAX_S: Final = 0.25
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 300.0

_log = logging.getLogger("streamcrawl.queue")


class _Setting(NamedTuple):
    """An option that all members share."""

    option: str
    field: str
    """As it is stored (`QueueSettings`)."""
    factor: int
    least: float
    most: float


_SETTINGS: Final = (
    _Setting("maxsize", "maxsize", 1, 0, 10**9),
    _Setting("lease_s", "lease_ms", 1000, 0.2, 86_400),
    _Setting("attempts_max", "attempts_max", 1, 1, 10**6),
    _Setting("crashes_max", "crashes_max", 1, 1, 10**6),
    _Setting("dedup_s", "dedup_ms", 1000, 0, DELAY_MAX_S),
    _Setting("dedup_max", "dedup_max", 1, 0, 10**7),
    _Setting("dead_max", "dead_max", 1, 0, 10**9),
)


class DeadLetter(NamedTuple):
    """An item that was given up, parked for a person."""

    id: str
    item: Any
    """The bytes as they are stored where they cannot be read (reason `codec`)."""
    reason: str
    """failed (`dead` said so), attempts (used up), crashed (its processes died) or codec (cannot be read)."""
    error: str
    attempts: int
    crashes: int
    priority: int
    age_s: float
    """Since it was first put."""


class LevelStats(NamedTuple):
    waiting: int
    out: int
    """Delivered and not settled, in all processes."""
    oldest_s: float | None
    """Age of the oldest delivery or waiting entry; None when the level is empty."""


class QueueStats(NamedTuple):
    """The queue at one instant."""

    waiting: int
    out: int
    delayed: int
    dead: int
    levels: tuple[LevelStats, ...]
    totals: dict[str, int]
    """created, done, dead and purged, which balance; retried, crashed, replayed, lease_lost, repeated (a known id)."""
    members: dict[str, dict[str, Any]]
    """Every TaskQueue object that lives, with machine, pid and `age_s` of its last beat."""
    is_closed: bool
    maxsize: int
    dead_max: int
    """At so many dead letters it is full; 0: whatever their number."""

    @property
    def is_balanced(self) -> bool:
        """Everything that was accepted is somewhere, and nothing is there twice."""
        ended = sum(self.totals.get(word, 0) for word in ("done", "dead", "purged"))
        return self.totals.get("created", 0) == ended + self.waiting + self.out + self.delayed


class Options(TypedDict, total=False):
    """What TaskQueue takes by name; see there."""

    codec: Codec
    prefetch: int
    levels: int | None
    maxsize: int | None
    lease_s: float | None
    attempts_max: int | None
    crashes_max: int | None
    dedup_s: float | None
    dedup_max: int | None
    dead_max: int | None


class TaskQueue(Generic[T]):
    """A queue of one name on one Redis; use it as `async with TaskQueue(…) as queue`, in any number of processes.

    Args:
        name: 1 to 64 of A-Z a-z 0-9 . _ - ; all who say it share the queue.
        redis: Its URL, or a client of redis.asyncio, whose address and password are taken; its connections are not.
        type: What an item is, as msgspec reads it: a dataclass, a Struct, `dict[str, int]`, …; None takes what comes.
        codec: `msgpack` (bytes come back as bytes), `json` (readable in redis-cli), or `bytes` (items are bytes).
        prefetch: Deliveries to read ahead of `get`, for short tasks; they are out, and no other consumer's, meanwhile.
        levels: Of priority, 1 to 5; fixed when the queue is created. None takes what is there, or 1.
        maxsize: Items that wait at most, delayed ones among them (10,000); 0: as many as Redis has memory for.
        lease_s: After so long without a sign of life of its process an item is somebody else's (30).
        attempts_max: Deliveries that may end in `retry` before an item is dead (5).
        crashes_max: Deaths of its process before an item is dead (5).
        dedup_s: For how long an `id` given to `put` is known (an hour)
        dedup_max: How many of them at most (100,000), the newest.
        dead_max: Dead letters (100,000) beyond which the queue is full until somebody replays or purges some, because
            what dies is always kept; 0: as many as Redis has memory for.

    What is None of `maxsize` and those below it is left as it is; what is given holds for all members from now on.
    """

    @overload
    def __init__(
        self: TaskQueue[Any], name: str, redis: str | Redis, *, type: None = None, **options: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self, name: str, redis: str | Redis, *, type: type[T], **options: Unpack[Options]) -> None: ...
    def __init__(self, name: str, redis: str | Redis, *, type: Any = None, **options: Unpack[Options]) -> None:
        check_name(name)
        self.name: Final = name
        self._redis = redis
        if unknown := options.keys() - Options.__annotations__.keys():
            raise ConfigError(f"TaskQueue has no {min(unknown)}: {', '.join(sorted(Options.__annotations__))} are")
        self._encode, self._decode = _codec(options.get("codec", "msgpack"), type)
        self._prefetch = int(_checked("prefetch", options.get("prefetch", 0), 0, 10_000))
        levels = options.get("levels")
        self._levels = None if levels is None else int(_checked("levels", levels, 1, LEVELS_MAX))
        given = ((setting, options.get(setting.option)) for setting in _SETTINGS)
        self._values = {
            setting.field: int(_checked(setting.option, value, setting.least, setting.most) * setting.factor)
            for setting, value in given
            if value is not None
        }
        self.member: Final = f"{socket.gethostname()[:32]}-{os.getpid()}-{secrets.token_hex(4)}"
        """By which the queue knows this object; never used again."""
        self._store: QueueStore | None = None
        self._over: Exception | None = RuntimeError("a TaskQueue is used inside of `async with TaskQueue(…) as queue:`")
        self._doubted_until = 0.0

    # -- opening and leaving

    async def __aenter__(self) -> Self:
        if self._store is not None:
            raise RuntimeError("this TaskQueue was entered before: make a new one")
        self._client = self._connect(blocking=False)
        self._reading_client = self._connect(blocking=True)
        try:
            await check_server(self._client)
            await enlist(self._client, self.name)
            self._store = store = await open_queue(self._client, self.name, levels=self._levels, values=self._values)
        except BaseException:
            await self._client.aclose()
            await self._reading_client.aclose()
            raise
        self._start(store)
        return self

    def _connect(self, *, blocking: bool) -> Redis:
        if isinstance(self._redis, str):
            return connect(self._redis, blocking=blocking)
        return connect_like(self._redis, blocking=blocking)

    def _start(self, store: QueueStore) -> None:
        self._held = Held(store.settings.levels)
        self._settled = asyncio.Event()
        self._puts = PutLoop(
            store,
            self.member,
            patience=self._patience("put"),
            on_left=self._note_left,
            holders=lambda: {handle.owner for handle in self._held.out()} - {None},
        )
        self._settles = SettleLoop(
            store, self.member, self._held, patience=self._patience("settle"), on_state=self._note_state
        )
        self._keep = KeepLoop(
            store,
            self.member,
            msgspec.json.encode({"machine": socket.gethostname(), "pid": os.getpid()}).decode(),
            self._held,
            patience=self._patience("keep"),
            put_number=lambda: self._puts.number,
            on_lost=self._note_lost,
            on_last=self._puts.note_last,
            on_tick=lambda tick: self._note_state(tick.left, tick.is_closed),
        )
        self._reader = Reader(
            store,
            self._reading_client,
            self.member,
            self._held,
            self._settles,
            decode=self._decode,
            prefetch=self._prefetch,
            patience=self._patience("read"),
            beat_age_s=self._keep.beat_age_s,
            tick=self._keep.tick,
            is_end_believed=lambda: not self._is_in_doubt(),
            on_taken=self._puts.note_room,
        )
        restarts_of(self._client).listen(self._note_restart)
        restarts_of(self._reading_client).listen(self._reader.note_restart)
        self._over = None
        self._loops = {
            name: asyncio.create_task(loop.run(), name=f"{self.name}: {name}")
            for name, loop in (
                *(("puts", self._puts), ("settles", self._settles)),
                *(("keep", self._keep), ("reader", self._reader)),
            )
        }
        for task in self._loops.values():
            task.add_done_callback(self._note_end)

    def _patience(self, who: str) -> Patience:
        return Patience(f"queue {self.name}: {who}", _log.warning)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give back what is out, and leave. Who still waits in `put` or `get` meets QueueClosed."""
        left = QueueClosed(f"this TaskQueue of {self.name!r} was left")
        is_broken, self._over = self._over is not None, self._over or left
        try:
            async with asyncio.timeout(EXIT_S):
                self._reader.stop()
                await self._ended("reader")
                self._reader.fail(left)
                for handle in (*self._reader.take_all(), *self._held.out()):
                    if handle.state is State.OUT:
                        self._settles.end(handle, "back")
                self._settles.stop()
                await self._ended("settles")
                self._puts.stop(left)
                await self._ended("puts")
                self._keep.stop()
                await self._ended("keep")
                if not is_broken and self._store is not None:
                    await self._store.leave(self.member)
        except QueueGone:
            pass  # nobody to take leave of
        except (TimeoutError, StoreError) as failure:
            # Nothing is lost: the lease of what is out runs out.
            _log.warning("queue %s: left without a word to the store (%s)", self.name, str(failure) or "no answer")
        finally:
            self._settles.give_up()
            self._puts.stop(left)
            self._keep.stop()
            for task in self._loops.values():
                task.cancel()
            await asyncio.gather(*self._loops.values(), return_exceptions=True)
            self._settles.fail(left)
            self._reader.fail(left)
            await self._client.aclose()
            await self._reading_client.aclose()

    async def _ended(self, loop: str) -> None:
        await asyncio.wait((self._loops[loop],))

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """A loop ended: because we leave, or by an error that waiting does not mend. Then everybody hears it."""
        if task.cancelled() or self._over is not None:
            return
        error = task.exception()
        assert isinstance(error, Exception)
        self._over = error
        _log.error("queue %s: %s", self.name, error)
        self._puts.stop(error)
        self._settles.fail(error)
        self._reader.fail(error)
        self._keep.stop()
        self._settled.set()

    # -- putting

    async def put(self, item: T, *, priority: int = 0, delay_s: float = 0.0, id: str = "") -> None:
        """Put an item; wait while the queue is full. It is accepted when this returns.

        An asyncio task that has an item of this queue out does not wait for room: all who could make some might be
        waiting so. What it puts may go beyond `maxsize`.

        A put that is cancelled has put its item or not, nothing in between: it has as soon as it is on its way.

        Args:
            priority: 0 (most urgent) to levels - 1.
            delay_s: It is delivered so many seconds from now at the earliest.
            id: The same id within the dedup window is put once, whoever says it: for a producer that may begin again.
                Items without one stay apart, however equal.

        Raises:
            QueueClosed: the queue is closed. QueueGone: it was deleted.
            StoreFull: Redis has no memory for it.
            CodecError: it cannot be written by the codec, or is too large.
        """
        await self._submit((self._packed(item, priority, delay_s, id),), delay_s, is_patient=True)

    async def put_nowait(self, item: T, *, priority: int = 0, delay_s: float = 0.0, id: str = "") -> None:
        """Put an item if there is room now: `await` it, because Redis has to be asked.

        Raises:
            QueueFull: there is none. And what `put` raises.
        """
        await self._submit((self._packed(item, priority, delay_s, id),), delay_s, is_patient=False)

    async def put_many(self, items: Iterable[T], *, priority: int = 0, delay_s: float = 0.0) -> None:
        """Put items in their order, however many; wait as often as the queue is full. All are in when this returns.

        When it raises, or is cancelled, the first of them may be: the caller does not learn how many.
        """
        source = iter(items)
        while some := [self._packed(item, priority, delay_s, "") for item in islice(source, PUT_MANY_STEP)]:
            await self._submit(some, delay_s, is_patient=True)

    async def _submit(self, packed: Sequence[bytes], delay_s: float, *, is_patient: bool) -> None:
        self._check()
        if packed:
            await self._puts.submit(packed, is_patient=is_patient)
        if delay_s > 0:
            self._keep.due_in(delay_s)

    def _packed(self, item: T, priority: int, delay_s: float, item_id: str) -> bytes:
        self._check()
        levels = self._opened.settings.levels
        if not 0 <= priority < levels:
            raise ValueError(f"priority {priority} is none of this queue's: 0 to {levels - 1} (levels={levels})")
        if not 0 <= delay_s <= DELAY_MAX_S:
            raise ValueError(f"delay_s {delay_s!r} will not do: 0 to {DELAY_MAX_S} (a year)")
        if len(item_id.encode()) > ID_BYTES_MAX:
            raise ValueError(f"an id of {len(item_id.encode())} bytes is too long: {ID_BYTES_MAX} at most")
        try:
            payload = self._encode(item)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise CodecError(f"an item of {type(item).__name__} cannot be written: {error}") from error
        if len(payload) > ITEM_BYTES_MAX:
            raise CodecError(
                f"an item of {len(payload)} bytes is too large for the queue ({ITEM_BYTES_MAX} at most): keep it in a "
                "file and put its name"
            )
        return pack_item(priority, round(delay_s * 1000), item_id, payload)

    # -- getting

    async def get(self, *, timeout: float | None = None) -> Handle[T]:
        """Return the next item, as a handle to settle it by; wait until there is one.

        Raises:
            TimeoutError: `timeout` seconds passed.
            QueueClosed: the queue is closed, and all that it accepted is settled, everywhere: the consumer ends.
        """
        return (await self.get_many(1, timeout=timeout))[0]

    async def get_nowait(self) -> Handle[T]:
        """Return the next item if one waits now: `await` it, because Redis has to be asked.

        Raises:
            QueueEmpty: none does. QueueClosed: see `get`.
        """
        self._check()
        return self._owned(await self._reader.get(1, is_patient=False))[0]

    async def get_many(self, count: int, *, timeout: float | None = None) -> list[Handle[T]]:
        """Return at least one item and at most `count`: those that wait, without waiting for more. Raises as `get`."""
        self._check()
        if count < 1:
            raise ValueError(f"{count} items cannot be waited for: 1 or more")
        if timeout is None:
            return self._owned(await self._reader.get(count))
        async with asyncio.timeout(timeout):
            return self._owned(await self._reader.get(count))

    def _owned(self, handles: list[Handle[T]]) -> list[Handle[T]]:
        task = asyncio.current_task()
        for handle in handles:
            handle.owner = task
        return handles

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Handle[T]:
        """`async for handle in queue` ends where `get` would raise QueueClosed."""
        try:
            return await self.get()
        except QueueClosed:
            raise StopAsyncIteration from None

    # -- settling

    async def task_done(self, handle: Handle[T] | None = None) -> None:
        """Settle an item: it is done. Cancelled or not, it goes out.

        Args:
            handle: What `get` returned; may be left out when this asyncio task has exactly one out.

        Raises:
            LeaseLost: the item was taken back meanwhile, and is or will be delivered again: drop the result.
            ValueError: the handle is settled already, or it is left out and there is not exactly one.
        """
        handle = handle or self._only_one()
        self._begin(handle)
        if await self._settles.done((handle,)):
            raise _lost(handle)

    async def task_done_many(self, handles: Iterable[Handle[T]]) -> list[Handle[T]]:
        """Settle items: they are done. Returns those whose lease was lost: drop their results."""
        out: list[Handle[Any]] = []
        lost: list[Handle[Any]] = []
        for handle in handles:
            if handle.state is State.LOST:
                lost.append(handle)
            else:
                self._begin(handle)
                out.append(handle)
        if len(set(out)) < len(out):
            raise ValueError("a handle is among them twice: its second end would come too late, and look lost")
        return lost + await self._settles.done(out)

    async def retry(self, handle: Handle[T], *, after_s: float = 0.0, error: str = "") -> None:
        """Try an item again, `after_s` seconds from now at the earliest; after its last attempt it is a dead letter.

        Raises:
            LeaseLost, ValueError: see `task_done`.
        """
        if not 0 <= after_s <= DELAY_MAX_S:
            raise ValueError(f"after_s {after_s!r} will not do: 0 to {DELAY_MAX_S} (a year)")
        await self._end(handle, "retry", round(after_s * 1000), error)
        if after_s > 0:
            self._keep.due_in(after_s)

    async def dead(self, handle: Handle[T], error: str) -> None:
        """Give an item up: it becomes a dead letter, for a person. Raises as `task_done` does."""
        await self._end(handle, "dead", 0, error)

    async def give_back(self, handle: Handle[T]) -> None:
        """Give an item back untried: it waits again, and no attempt is counted. Raises as `task_done` does."""
        await self._end(handle, "back", 0, "")

    def give_back_soon(self, handle: Handle[T]) -> None:
        """The same without waiting for it, and without an error: for an asyncio task that is being cancelled."""
        if self._over is None and handle.state is State.OUT:
            self._settles.end(handle, "back")

    async def _end(self, handle: Handle[Any], how: str, number: int, error: str) -> None:
        self._begin(handle)
        if await self._settles.end(handle, how, number, printable(error)[-ERROR_CHARACTERS_MAX:]):
            raise _lost(handle)

    def _begin(self, handle: Handle[Any]) -> None:
        self._check()
        if handle.state is State.LOST:
            raise _lost(handle)
        if handle.state is not State.OUT:
            raise ValueError(f"the item {handle.id} is {handle.state.value} already")
        if self._held.by_level[handle.level].get(handle.id) is not handle:
            raise ValueError(f"the item {handle.id} is none that this TaskQueue handed out")

    def _only_one(self) -> Handle[Any]:
        task = asyncio.current_task()
        mine = [handle for handle in self._held.out() if handle.owner is task]
        if len(mine) != 1:
            raise ValueError(f"this asyncio task has {len(mine)} items out: say which one, task_done(handle)")
        return mine[0]

    def process(self, handle: Handle[T] | None = None, *, timeout: float | None = None) -> Processing[T]:
        """Work at one item: `async with queue.process() as item:`; the end of the block settles it.

        The end of the block is `task_done`. An exception is a `retry` after a back-off (1 s, twice as long each time,
        5 min at most), and the last one a dead letter with the traceback; neither leaves the block. `streamcrawl.Retry`
        says when, `streamcrawl.Drop` ends the item without. A cancelled block gives the item back. When the lease is
        lost the block is cancelled, and LeaseLost raised.

        Args:
            handle: To work at, of `async for handle in queue`; None gets the next one, within `timeout`.
        """
        return Processing(self, handle, timeout)

    async def fail(self, handle: Handle[T], error: Exception) -> None:
        """Settle an item whose work raised `error`, as `process` does. Raises as `task_done` does."""
        from streamcrawl.response import Drop, Retry  # the parser behind it costs its import

        if isinstance(error, Drop):
            await self.task_done(handle)
            return
        after_s = error.after_s if isinstance(error, Retry) else None
        if after_s is not None:
            # Refused for what the work asked for (it may be inf, nan, in the past), the item would stay out for good.
            after_s = min(max(0.0, after_s), DELAY_MAX_S)
        else:
            after_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(handle.attempts - 1, 20))
        _log.warning("queue %s: attempt %d at %s failed: %r", self.name, handle.attempts, handle.id, error)
        await self.retry(handle, after_s=after_s, error="".join(traceback.format_exception(error)))

    # -- the whole queue

    async def join(self) -> None:
        """Return when all that was accepted is settled: done, or dead. What is put meanwhile is waited for too."""
        pause_s = JOIN_FIRST_S
        while True:
            tick = await self._tick()
            if not tick.left and not self._is_in_doubt():
                return
            self._settled.clear()
            # Said at once by what is settled here; others' endings are asked for.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._settled.wait()
            pause_s = min(JOIN_MAX_S, 2 * pause_s)

    async def close(self) -> None:
        """Take no more items: every `put` raises QueueClosed from now on.

        Every consumer on every machine ends (QueueClosed, or the end of `async for`) when all that was accepted is
        settled, and none before: not while an item is delayed, or out anywhere, from where it may come back.
        """
        left = await self._ask(lambda: self._opened.close(is_closed=True))
        self._note_state(left, True)

    async def reopen(self) -> None:
        """Take items again. Consumers that ended have ended; those that are still here go on."""
        await self._ask(lambda: self._opened.close(is_closed=False))
        self._reader.note_closed(is_closed=False)

    async def delete(self) -> None:
        """Remove the queue with all that is in it; every other member of it meets QueueGone."""
        with suppress(QueueGone):
            await self._ask(self._opened.delete)
        await self._ask(lambda: unlist(self._client, self.name))
        self._over = self._over or QueueGone(f"the queue {self.name!r} was deleted")

    async def stats(self) -> QueueStats:
        """Return the queue's counts, at one instant."""
        state, totals, levels, delayed, dead, members = await self._ask(self._opened.stats)
        fields = dict(zip(state[::2], state[1::2], strict=True))
        rows = tuple(
            LevelStats(waiting, out, None if age < 0 else age / 1000)
            for waiting, out, age in zip(levels[::3], levels[1::3], levels[2::3], strict=True)
        )
        alive: dict[str, dict[str, Any]] = {}
        for member, said in zip(members[::2], members[1::2], strict=True):
            age_ms, _, info = said.decode().partition(" ")
            alive[member.decode()] = {**msgspec.json.decode(info), "age_s": int(age_ms) / 1000}
        return QueueStats(
            waiting=sum(row.waiting for row in rows),
            out=sum(row.out for row in rows),
            delayed=delayed,
            dead=dead,
            levels=rows,
            totals={word.decode(): int(n) for word, n in zip(totals[::2], totals[1::2], strict=True)},
            members=alive,
            is_closed=fields.get(b"closed") == b"1",
            maxsize=int(fields[b"maxsize"]),
            dead_max=int(fields.get(b"dead_max", DEFAULTS.dead_max)),
        )

    async def qsize(self) -> int:
        """Return how many items waited at some instant: accepted, delayed ones too, and not handed to a consumer."""
        stats = await self.stats()
        return stats.waiting + stats.delayed

    async def empty(self) -> bool:
        """Return whether no item waited, at some instant."""
        return await self.qsize() == 0

    async def full(self) -> bool:
        """Return whether `put_nowait` would have raised QueueFull, at some instant."""
        stats = await self.stats()
        return 0 < stats.maxsize <= stats.waiting + stats.delayed or 0 < stats.dead_max <= stats.dead

    # -- dead letters

    async def dead_letters(self, count: int = 100, *, after: str = "") -> list[DeadLetter]:
        """Return at most `count` (up to 1,000) dead letters behind the one with the id `after`, oldest first."""
        rows = await self._ask(lambda: self._opened.dead(after, min(count, 1000)))
        now_ms = time.time() * 1000
        letters = []
        for entry_id, fields in rows:
            payload, reason = fields.get("item", b""), fields.get("reason", b"").decode()
            item: Any = payload
            if reason != "codec":
                with suppress(ValueError):  # of another type than this object reads: its bytes tell more than an error
                    item = self._decode(payload)
            letters.append(
                DeadLetter(
                    entry_id,
                    item,
                    reason,
                    fields.get("error", b"").decode(errors="replace"),
                    int(fields.get("attempts", 0)),
                    int(fields.get("crashes", 0)),
                    int(fields.get("level", 0)),
                    max(0.0, (now_ms - int(fields.get("put_ms", now_ms))) / 1000),
                )
            )
        return letters

    async def replay(self, ids: Iterable[str] | None = None) -> int:
        """Put dead letters into the queue again, with no attempt counted; None: all there are now. Returns how many.

        Raises:
            QueueClosed: nobody would take them: `reopen` first.
        """
        return await self._letters("replay", ids)

    async def purge(self, ids: Iterable[str] | None = None) -> int:
        """Remove dead letters for good; None: all there are now. Returns how many."""
        return await self._letters("purge", ids)

    async def _letters(self, how: str, ids: Iterable[str] | None) -> int:
        total = 0
        async for chunk in self._chunks(ids):
            word, n = await self._ask(partial(self._opened.letters, how, chunk))
            if word == "CLOSED":
                raise QueueClosed(f"the queue {self.name!r} is closed: reopen it before you replay")
            total += n
        return total

    async def _chunks(self, ids: Iterable[str] | None) -> AsyncIterator[list[str]]:
        if ids is not None:
            named = list(ids)
            for start in range(0, len(named), LETTERS_PER_CALL):
                yield named[start : start + LETTERS_PER_CALL]
            return
        after, dead = "", (await self.stats()).dead
        # No more than there were: what dies again meanwhile would be replayed for ever.
        while dead > 0:
            rows = await self._ask(partial(self._opened.dead, after, min(dead, LETTERS_PER_CALL)))
            if not rows:
                return
            yield [entry_id for entry_id, _ in rows]
            after, dead = rows[-1][0], dead - len(rows)

    # -- what all of it needs

    @property
    def _opened(self) -> QueueStore:
        assert self._store is not None
        return self._store

    def _check(self) -> None:
        if self._over is not None:
            raise self._over

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self._check()
        return await until_answered(call, self._patience("ask"))

    async def _tick(self) -> Tick:
        self._check()
        try:
            return await self._keep.tick()
        except StoreUnavailable:
            self._check()
            raise

    def _is_in_doubt(self) -> bool:
        return self._puts.is_behind or time.monotonic() < self._doubted_until

    def _note_left(self, left: int) -> None:
        if left == 0:
            self._settled.set()

    def _note_state(self, left: int, is_closed: bool) -> None:
        self._reader.note_closed(is_closed=is_closed)
        self._note_left(left)

    def _note_lost(self, handle: Handle[Any]) -> None:
        self._reader.forget(handle)
        _log.warning("queue %s: the lease of %s was lost; it is delivered again", self.name, handle.id)

    def _note_restart(self) -> None:
        _log.warning("queue %s: Redis was restarted; what it may have forgotten is put again", self.name)
        self._doubted_until = time.monotonic() + DOUBT_S
        self._reader.note_restart()
        self._keep.hurry()


class Processing(Generic[T]):
    """The block of `TaskQueue.process`."""

    def __init__(self, queue: TaskQueue[T], handle: Handle[T] | None, timeout: float | None) -> None:
        self._queue = queue
        self._handle = handle
        self._timeout = timeout

    async def __aenter__(self) -> T:
        handle = self._handle = self._handle or await self._queue.get(timeout=self._timeout)
        self._scope = scope = await asyncio.timeout(None).__aenter__()
        handle.call_when_lost(lambda: scope.reschedule(asyncio.get_running_loop().time()))
        return handle.item

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        handle = self._handle
        assert handle is not None
        handle.call_when_lost(None)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:  # of our scope: the lease was lost, and the block cancelled for it
            raise _lost(handle) from error
        if handle.is_lost:
            raise _lost(handle) from error
        if handle.state is not State.OUT:
            return False  # settled inside of the block: nobody but the caller can act on what came after
        if error is None:
            await self._queue.task_done(handle)
            return False
        if isinstance(error, Exception):
            await self._queue.fail(handle, error)
            return True
        # Cancelled, or the process is told to end. Not awaited: it goes out by itself, or by the lease.
        self._queue.give_back_soon(handle)
        return False


def _lost(handle: Handle[Any]) -> LeaseLost:
    return LeaseLost(f"the lease of {handle.id} was lost: the item is delivered again; drop this result")


def _codec(codec: Codec, type_: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    kind = Any if type_ is None else type_
    if codec == "msgpack":
        return msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    if codec == "json":
        return msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode
    if codec == "bytes":
        if type_ not in (None, bytes):
            raise ConfigError("codec='bytes' leaves items as they are: leave type= out")
        return _as_bytes, bytes
    raise ConfigError(f"codec {codec!r} will not do: 'msgpack', 'json' or 'bytes'")


def _as_bytes(item: Any) -> bytes:
    if not isinstance(item, bytes | bytearray | memoryview):
        raise TypeError("codec='bytes' takes bytes only")
    return bytes(item)


def _checked(name: str, value: Any, least: float, most: float) -> Any:
    if not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name}={value!r} will not do: {least:g} to {most:g}")
    return value


__all__ = ["DeadLetter", "Handle", "LevelStats", "QueueEmpty", "QueueFull", "QueueStats", "TaskQueue"]
