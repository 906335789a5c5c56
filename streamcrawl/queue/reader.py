"""The read loop: takes entries for those who wait in `get`, and a few ahead where that was asked for.

The read is nobody's own: whoever cancels a `get` leaves the reader alone, and what it brings goes to the next caller.
It has a connection of its own and a bounded BLOCK, and is stopped by a flag, never cancelled: a cancelled read may
leave an entry delivered to nobody (132 of 200 tries, redis-py 8.1). After a failed read it looks up what was delivered
under its name without its knowledge and takes it over; so it does when the store was restarted. For most of a lease it
looks again, because a server that was paused may serve the old connection, with its read, after the new one. What
nobody here waits for is given back. If this loop dies, `get` brings nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import RedisError

from streamcrawl.errors import QueueClosed, StoreError, StoreUnavailable
from streamcrawl.queue.handle import Handle, QueueEmpty, State
from streamcrawl.store.connection import BLOCK_MS, NoGroup, map_error
from streamcrawl.store.keys import GROUP
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.waker import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from redis.asyncio import Redis

    from streamcrawl.queue.handle import Held
    from streamcrawl.queue.settles import SettleLoop
    from streamcrawl.store.queue_store import QueueStore, RawEntry, Tick
    from streamcrawl.work.loops import Patience

READ_MAX: Final = 500
READ_BYTES_MAX: Final = 8_000_000
"""Of one answer, by the largest item of the last one."""
BLOCK_CLOSED_MS: Final = 100
"""The first read of a closed queue, whose end may be any moment and is said by nobody. It doubles up to BLOCK_MS."""
LOOKS: Final = 4
"""After a failed read: at once, and then a quarter of a lease apart. What is found later is reclaimed by its lease."""
SPARE_S: Final = 0.1
"""For so long an entry that nobody waits for any more is kept for the next caller, who is often about to come."""


BUSY_S: Final = 2.0
"""Who has not asked for so long gives back what was read ahead for him."""


class _Getter:
    __slots__ = ("count", "future", "is_patient")

    def __init__(self, future: asyncio.Future[list[Handle[Any]]], count: int, *, is_patient: bool) -> None:
        self.future = future
        self.count = count
        self.is_patient = is_patient


class Reader:
    def __init__(
        self,
        store: QueueStore,
        client: Redis,
        member: str,
        held: Held,
        settles: SettleLoop,
        *,
        decode: Callable[[bytes], Any],
        prefetch: int,
        patience: Patience,
        beat_age_s: Callable[[], float],
        tick: Callable[[], Any],
        is_end_believed: Callable[[], bool],
        on_taken: Callable[[], None],
    ) -> None:
        self._store = store
        self._client = client
        # Lists as hiredis made them: a dict for each entry costs as much as all the rest.
        client.response_callbacks.pop("XREADGROUP", None)
        self._member = member
        self._held = held
        self._settles = settles
        self._decode = decode
        self._prefetch = prefetch
        self._patience = patience
        self._beat_age_s = beat_age_s
        self._tick = tick
        self._is_end_believed = is_end_believed
        self._on_taken = on_taken
        self._level_of = {stream: level for level, stream in enumerate(store.streams())}
        self._getters: deque[_Getter] = deque()
        self._buffer: deque[Handle[Any]] = deque()
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._waker = Waker(client, store.client)
        self._is_waiting_there = False
        """A read waits in the server: nothing is there for us at this moment."""
        self._is_closed = False
        self._block_ms = BLOCK_MS
        self._taken_at = -float("inf")
        self._largest = 1
        self._looks_left = 0
        self._look_at = 0.0

    # -- callers

    async def get(self, count: int, *, is_patient: bool = True) -> list[Handle[Any]]:
        """Return at least one and at most `count` handles, as soon as there is one.

        Raises:
            QueueEmpty: not `is_patient`, and nothing waits.
            QueueClosed: it is closed, and all that it accepted is settled.
        """
        self._taken_at = time.monotonic()
        if self._buffer and not self._getters:
            taken = self._from_buffer(count)
            if len(self._buffer) < self._prefetch:
                self._wake.set()
            return taken
        if not is_patient and (self._is_waiting_there or self._getters):
            raise QueueEmpty("nothing waits in the queue now")
        getter = _Getter(asyncio.get_running_loop().create_future(), count, is_patient=is_patient)
        self._getters.append(getter)
        self._wake.set()
        try:
            return await getter.future
        except asyncio.CancelledError:
            if getter.future.done() and not getter.future.cancelled() and getter.future.exception() is None:
                # It was served in the same moment: the next caller has it.
                self._buffer.extendleft(reversed(getter.future.result()))
                self._serve()
                self._wake.set()
            raise

    def note_closed(self, *, is_closed: bool) -> None:
        """The queue is closed (or open again): from now on its end is looked for before each read."""
        if is_closed == self._is_closed:
            return
        self._is_closed = is_closed
        self._block_ms = BLOCK_CLOSED_MS if is_closed else BLOCK_MS
        if is_closed:
            self._waker.wake()

    def note_restart(self) -> None:
        """The store was restarted: what it gives us again though we ended it must not wait for our lease."""
        self._looks_left, self._look_at = LOOKS, time.monotonic()

    def forget(self, handle: Handle[Any]) -> None:
        """A handle's lease is lost: it must not be handed out any more."""
        with contextlib.suppress(ValueError):
            self._buffer.remove(handle)

    def fail(self, error: Exception) -> None:
        """Everybody who waits gets the error."""
        while self._getters:
            getter = self._getters.popleft()
            if not getter.future.done():
                getter.future.set_exception(error)

    def stop(self) -> None:
        """Take nothing more. A read that waits in the server is ended there: with nothing, as if its time were over."""
        self._stop.set()
        self._wake.set()
        self._waker.wake()

    # -- the loop

    async def run(self) -> None:
        try:
            while not self._stop.is_set():
                # Between two reads only: what a read under way was given would look as if nobody had it.
                if self._looks_left and time.monotonic() >= self._look_at:
                    await self._look()
                    continue
                if self._wanted() <= 0:
                    await self._rest()
                    continue
                if self._beat_age_s() > self._store.settings.lease_ms / 2000:
                    # Nobody confirms our leases now: what we took would be taken back under our hands.
                    await sleep_or_stop(self._stop, 0.05)
                    continue
                await asyncio.sleep(0)  # callers of the same moment: one read for all of them
                if self._is_closed and await self._has_ended():
                    continue
                try:
                    await self._waker.learn()
                    if self._stop.is_set():
                        continue  # set while it was asked for: nobody would end the read
                    await self._read(self._wanted())
                except (RedisError, OSError, StoreError) as error:
                    self._is_waiting_there = False
                    self._waker.forget()
                    await self._recover(error)
                    continue
                self._patience.recovered()
        finally:
            await self._waker.close()

    def _wanted(self) -> int:
        while self._getters and self._getters[0].future.done():
            self._getters.popleft()
        wanted = sum(getter.count for getter in self._getters if not getter.future.done()) - len(self._buffer)
        if self._prefetch and self._is_busy():
            wanted += self._prefetch
        return min(wanted, READ_MAX, max(1, READ_BYTES_MAX // self._largest))

    def _is_busy(self) -> bool:
        """Does anybody here still take? If not, what was read ahead would wait here while others have nothing to do."""
        return time.monotonic() - self._taken_at < BUSY_S

    async def _rest(self) -> None:
        self._wake.clear()
        kept = self._prefetch if self._is_busy() else 0
        wait_s = SPARE_S if len(self._buffer) > kept else BUSY_S if self._buffer else None
        if self._looks_left:
            wait_s = min(wait_s or float("inf"), max(0.0, self._look_at - time.monotonic()))
        if wait_s is None:
            await self._wake.wait()
            return
        await sleep_or_stop(self._wake, wait_s)
        if self._getters or self._stop.is_set():
            return
        kept = self._prefetch if self._is_busy() else 0
        while len(self._buffer) > kept:
            self._settles.end(self._buffer.pop(), "back")

    async def _read(self, wanted: int) -> None:
        got = 0
        if len(self._level_of) > 1:
            for level, entries in enumerate(await self._store.take(self._member, wanted)):
                got += len(entries)
                self._receive(level, entries)
            self._serve()
            wanted = 1  # of each level: what one waits for comes one by one
        if not got:
            self._is_waiting_there = is_waiting = all(getter.is_patient for getter in self._getters)
            block = ("BLOCK", self._block_ms) if is_waiting else ()
            reply = await self._command(
                "COUNT", wanted, *block, "STREAMS", *self._level_of, *(">" for _ in self._level_of)
            )
            self._is_waiting_there = False
            for stream, entries in reply:
                got += len(entries)
                self._receive(self._level_of[stream], entries)
            self._serve()
        if got:
            self._on_taken()
            self._block_ms = BLOCK_CLOSED_MS if self._is_closed else BLOCK_MS
            return
        self._block_ms = min(BLOCK_MS, 2 * self._block_ms)
        for getter in self._getters:
            if not getter.is_patient and not getter.future.done():
                getter.future.set_exception(QueueEmpty("nothing waits in the queue now"))

    async def _command(self, *arguments: Any) -> Any:
        command: Any = self._client.execute_command
        return await command("XREADGROUP", "GROUP", GROUP, self._member, *arguments) or ()

    def _receive(self, level: int, entries: Iterable[RawEntry]) -> None:
        for raw_id, fields in entries:
            entry_id = raw_id.decode()
            if fields is not None and len(fields) == 2:  # fresh, as nearly all are
                payload, attempts, crashes = fields[1], 0, 0
            elif fields:
                named = dict(zip(fields[::2], fields[1::2], strict=True))
                payload = named.get(b"item", b"")
                attempts, crashes = int(named.get(b"attempts", 0)), int(named.get(b"crashes", 0))
            else:  # deleted by hand: its row would stay under our name for ever
                self._settles.end(Handle[Any](None, entry_id, level, 0, 0), "back")
                continue
            if len(payload) > self._largest:
                self._largest = len(payload)
            try:
                item = self._decode(payload)
            except (ValueError, msgspec.MsgspecError) as error:
                broken = Handle[Any](payload, entry_id, level, attempts + 1, crashes)
                self._held.add(broken)
                self._settles.end(broken, "dead", 1, f"the item cannot be read: {error}")
                continue
            handle = Handle[Any](item, entry_id, level, attempts + 1, crashes)
            self._held.add(handle)
            self._buffer.append(handle)

    def _serve(self) -> None:
        while self._buffer and self._getters:
            getter = self._getters.popleft()
            if not getter.future.done():
                getter.future.set_result(self._from_buffer(getter.count))

    def _from_buffer(self, count: int) -> list[Handle[Any]]:
        return [self._buffer.popleft() for _ in range(min(count, len(self._buffer)))]

    # -- the end

    async def _has_ended(self) -> bool:
        tick: Tick | None = await self._tick()
        if tick is None or not tick.is_closed or tick.left:
            return False
        if not self._is_end_believed():
            await sleep_or_stop(self._stop, 0.05)
            return True
        self.fail(QueueClosed("the queue is closed, and all that it accepted is settled"))
        return True

    # -- answers that were lost

    async def _recover(self, error: Exception) -> None:
        mapped = map_error(error)
        if isinstance(mapped, NoGroup):
            # A stream was lost (deleted by hand, failed over to an older state): what counts what waits makes the group
            # again, at 0. Or the queue was deleted, which that says too.
            with contextlib.suppress(StoreUnavailable):
                await self._store.stats()
            mapped = StoreUnavailable("a stream of the queue was gone; it is made again")
        elif not isinstance(mapped, StoreUnavailable):
            raise mapped from error
        await self._patience.wait(mapped, self._stop)
        self._looks_left, self._look_at = LOOKS, time.monotonic()

    async def _look(self) -> None:
        """Take over what was delivered under our name in an answer that never came."""
        self._looks_left -= 1
        self._look_at = time.monotonic() + self._store.settings.lease_ms / 1000 / LOOKS
        try:
            for stream, level in self._level_of.items():
                after: bytes = b"0"
                while True:
                    reply = await self._command("COUNT", 100, "STREAMS", stream, after)
                    entries = reply[0][1] if reply else []
                    known = self._held.by_level[level]
                    self._receive(level, [entry for entry in entries if entry[0].decode() not in known])
                    if len(entries) < 100:
                        break
                    after = entries[-1][0]
        except (RedisError, OSError) as error:
            self._waker.forget()
            await self._recover(error)
        else:
            self._patience.recovered()
        self._serve()

    def take_all(self) -> list[Handle[Any]]:
        """Remove what was read and not handed out."""
        taken = [handle for handle in self._buffer if handle.state is State.OUT]
        self._buffer.clear()
        return taken
