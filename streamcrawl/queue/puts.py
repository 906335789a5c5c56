"""The put loop: sends items in batches, one call after another.

While a call is under way the next batch gathers, so batches grow with the load and a lone put waits for nobody. Each
batch has a number, its turn, under which the store keeps its answer: one whose answer was lost is sent again, and
nothing is doubled (queue_put.lua). What was accepted in the last moments is kept here, because a store that is
restarted may have forgotten it; it says so by how many items it has of us, and gets them again. Who has an item of this
queue out does not wait for room in it: it might wait for itself. If this loop dies, every put waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamcrawl.errors import QueueClosed, StoreFull
from streamcrawl.queue.handle import QueueFull
from streamcrawl.rules.pacing import next_pause_s
from streamcrawl.store.queue_store import PUTS_PER_CALL
from streamcrawl.work.loops import sleep_or_stop, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from streamcrawl.store.queue_store import Put, PutMode, QueueStore
    from streamcrawl.work.loops import Patience

_log = logging.getLogger("streamcrawl.queue")

BYTES_PER_CALL: Final = 1_000_000
RECENT_S: Final = 5.0
"""A server that syncs its log every second may lose two of them; a replica lacks less."""
RECENT_BYTES: Final = 16_000_000
ROOM_FIRST_S: Final = 0.002
ROOM_MAX_S: Final = 0.1
"""How often a full queue is asked for room; ten times a second costs nothing and adds nothing to speak of."""
PACED_FROM: Final = 1000
"""The least `maxsize` of a queue that is filled more slowly when it is nearly full (rules/pacing.py): all that is in a
smaller one could be taken within a pause."""
PACE_MAX_S: Final = 0.02


class _Group:
    """Items of one caller, who waits for all of them."""

    __slots__ = ("future", "is_patient", "left", "task")

    def __init__(self, future: asyncio.Future[None], left: int, *, is_patient: bool) -> None:
        self.task = asyncio.current_task()
        self.future = future
        self.left = left
        self.is_patient = is_patient

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Recent(NamedTuple):
    first: int
    at: float
    packed: list[bytes]
    size: int


class PutLoop:
    def __init__(
        self,
        store: QueueStore,
        member: str,
        *,
        patience: Patience,
        on_left: Callable[[int], None],
        holders: Callable[[], Set[asyncio.Task[Any] | None]],
    ) -> None:
        """Prepare the loop; `holders` returns the asyncio tasks that have an item of this queue out."""
        self._store = store
        self._holders = holders
        self._member = member
        self._patience = patience
        self._on_left = on_left
        self._waiting: deque[tuple[bytes, _Group]] = deque()
        self._inside: deque[tuple[bytes, _Group]] = deque()
        """Of who has an item out, once the queue was found full: they go before the others."""
        self._recent: deque[_Recent] = deque()
        self._recent_bytes = 0
        self._kept: list[bytes] = []
        """Accepted once and forgotten by the store."""
        self._pause_s = ROOM_FIRST_S
        self.pace_s = 0.0
        """Between two calls, while it is nearly full."""
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._give_up = asyncio.Event()
        self._is_full = False
        self._has_too_many_dead = False
        self._is_stopped = False
        self._turn = 0
        self.number = 0
        """Of the last item that the store has accepted."""
        self.is_behind = False
        """The store has forgotten some of what it accepted, and does not have it again yet."""

    def submit(self, packed: Sequence[bytes], *, is_patient: bool) -> asyncio.Future[None]:
        """Queue items; the future ends when all are accepted, or raises QueueFull, QueueClosed or a StoreError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group = _Group(future, len(packed), is_patient=is_patient)
        while self._waiting and self._waiting[0][1].future.done():
            self._waiting.popleft()
        if self._is_full and not is_patient:
            if self._waiting:  # for room: nobody goes before them
                group.fail(self._full())
                return future
            self._room.set()  # those who did have given up, and nobody has asked since
        self._waiting.extend((item, group) for item in packed)
        self._wake.set()
        if self._is_full and self._let_inside():
            self._room.set()
        return future

    def note_last(self, last: int, number: int) -> None:
        """The store has our items up to `last`; when it was asked we were told that it has those up to `number`."""
        if last < number:
            self.is_behind = True
            self._wake.set()

    def note_room(self) -> None:
        """Something was taken here: a full queue may have room now."""
        self._room.set()

    def stop(self, error: Exception) -> None:
        """End; whoever still waits for room gets `error`."""
        self._is_stopped = True
        self._give_up.set()
        self._wake.set()
        self._room.set()
        for _, group in (*self._waiting, *self._inside):
            group.fail(error)

    async def run(self) -> None:
        while not self._is_stopped:
            if self.is_behind:
                await self._put_again()
            if self.pace_s and self._waiting and not self._inside:
                # Before the batch is taken: it gathers meanwhile, and who is cancelled has not put.
                await sleep_or_stop(self._give_up, self.pace_s)
            batch = self._take(self._inside)
            is_inside = bool(batch)
            batch = batch or self._take(self._waiting)
            if not batch:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                try:
                    await self._put(batch, is_inside=is_inside)
                except StoreFull as error:
                    await self._refuse(batch, error)
            except BaseException as error:
                failure = error if isinstance(error, Exception) else QueueClosed("the queue was left")
                for _, group in batch:
                    group.fail(failure)
                raise

    @staticmethod
    def _take(waiting: deque[tuple[bytes, _Group]]) -> list[tuple[bytes, _Group]]:
        batch: list[tuple[bytes, _Group]] = []
        size = 0
        while waiting and len(batch) < PUTS_PER_CALL:
            packed, group = waiting[0]
            if group.future.done():  # cancelled, or another item of it was refused
                waiting.popleft()
                continue
            size += len(packed)
            if batch and size > BYTES_PER_CALL:
                break
            batch.append(waiting.popleft())
        return batch

    def _let_inside(self) -> bool:
        """Take those out of the line whose tasks have an item of this queue out; True when there are any."""
        holders = self._holders()

        def is_inside(group: _Group) -> bool:
            return group.is_patient and group.task in holders

        if holders and any(is_inside(group) for _, group in self._waiting):
            line = list(self._waiting)
            self._inside.extend(one for one in line if is_inside(one[1]))
            self._waiting = deque(one for one in line if not is_inside(one[1]))
        return bool(self._inside)

    async def _put(self, batch: list[tuple[bytes, _Group]], *, is_inside: bool) -> None:
        packed = [item for item, _ in batch]
        answer = await self._call(packed, mode="inside" if is_inside else "")
        if answer.word == "FORGOT":
            self._waiting.extendleft(reversed(batch))
            self._rewind(answer.number)
            return
        if answer.word == "OK":
            self._accept(packed[: answer.number], answer.last)
        for _, group in batch[: answer.number]:
            group.left -= 1
            if not group.left and not group.future.done():
                group.future.set_result(None)
        rest = batch[answer.number :]
        self._is_full = answer.word == "OK" and bool(rest)
        if answer.has_too_many_dead and not self._has_too_many_dead:
            _log.warning("%s", self._full_of_dead())
        self._has_too_many_dead = answer.has_too_many_dead
        if answer.word == "CLOSED":
            closed = QueueClosed(f"the queue {self._store.keys.name!r} is closed: it takes no more items")
            for _, group in (*rest, *self._waiting, *self._inside):
                group.fail(closed)
            return
        self._on_left(answer.left)
        if self._store.settings.maxsize >= PACED_FROM:
            self.pace_s = next_pause_s(self.pace_s, answer.level, first_s=ROOM_FIRST_S, most_s=PACE_MAX_S)
        if rest:
            self._waiting.extendleft(reversed(rest))
            for _, group in self._waiting:
                if not group.is_patient:
                    group.fail(self._full())
            if not self._let_inside():
                await self._wait_for_room(is_first=answer.number > 0)

    async def _wait_for_room(self, *, is_first: bool) -> None:
        self._pause_s = ROOM_FIRST_S if is_first else min(ROOM_MAX_S, 2 * self._pause_s)
        self._room.clear()
        await sleep_or_stop(self._room, self._pause_s * (0.5 + random.random() / 2))

    async def _call(self, packed: Sequence[bytes], *, mode: PutMode = "") -> Put:
        self._turn += 1
        return await until_answered(
            lambda: self._store.put(self._member, self._turn, self.number, packed, mode=mode),
            self._patience,
            self._give_up,
        )

    async def _refuse(self, batch: list[tuple[bytes, _Group]], error: StoreFull) -> None:
        """The server has no memory for the batch: its callers hear it, but for those whose items are there already.

        An earlier try may have been executed although its answer was lost.
        """
        tick = await until_answered(lambda: self._store.tick(self._member), self._patience, self._give_up)
        accepted = tick.accepted if tick.turn == self._turn else 0
        self._accept([item for item, _ in batch[:accepted]], tick.last)
        for position, (_, group) in enumerate(batch):
            group.left -= position < accepted
            if not group.left and not group.future.done():
                group.future.set_result(None)
            elif position >= accepted:
                group.fail(error)

    # -- a store that forgets

    def _accept(self, packed: list[bytes], last: int) -> None:
        """Remember what was accepted, the last of it under the number `last`."""
        if not packed:
            return
        self.number = last
        now, size = time.monotonic(), sum(map(len, packed)) + 64 * len(packed)
        self._recent.append(_Recent(last - len(packed) + 1, now, packed, size))
        self._recent_bytes += size
        while self._recent[0].at < now - RECENT_S or (self._recent_bytes > RECENT_BYTES and len(self._recent) > 1):
            self._recent_bytes -= self._recent.popleft().size

    def _rewind(self, last: int) -> None:
        self.is_behind = True
        self._kept = [
            item for one in self._recent for number, item in enumerate(one.packed, one.first) if number > last
        ] + self._kept
        self._recent.clear()
        self._recent_bytes = 0
        self.number = last

    async def _put_again(self) -> None:
        if not self._kept:
            # Only told by a look at the number: ask with nothing, which says from where on it has forgotten.
            answer = await self._call([])
            if answer.word == "FORGOT":
                self._rewind(answer.number)
        while self._kept:
            chunk = self._kept[:PUTS_PER_CALL]
            try:
                answer = await self._call(chunk, mode="again")
            except StoreFull as error:  # its callers were told that it is accepted: it waits for memory
                await self._patience.wait(error, self._give_up)
                if self._is_stopped:
                    return
                continue
            if answer.word == "FORGOT":
                self._rewind(answer.number)
                continue
            self._accept(chunk, answer.last)
            self._kept = self._kept[len(chunk) :]
        self.is_behind = False

    def _full(self) -> QueueFull:
        if self._has_too_many_dead:
            return QueueFull(self._full_of_dead())
        return QueueFull("the queue is full: `await put(…)` waits for room")

    def _full_of_dead(self) -> str:
        return (
            f"the queue {self._store.keys.name!r} takes nothing more: it has as many dead letters as it may "
            "(dead_max); look at `dead_letters()`, then `replay()` or `purge()` them"
        )
