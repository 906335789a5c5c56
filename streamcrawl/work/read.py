"""The read loop: takes entries from the work streams of all shards, never more than there are free slots.

Each blocking read has a connection of its own and a bounded BLOCK, and is stopped by a flag, never cancelled: a
cancelled read may leave an entry delivered to nobody. After a failed read the worker looks up what was delivered under
its name without its knowledge (the answer was lost) and hands it back; so it does when the store was restarted, which
may have forgotten what this worker has ended since. For most of a lease it looks again, because a server that was
paused may serve the old connection, with its read, after the new one. If this loop dies, the worker takes no new work.

One command reads several streams and gives of each as many as COUNT says. So with at least a free slot for each shard
the free ones are shared out evenly; with fewer, shard after shard is asked in turn, beginning with another one each
time, and only then one waits, in some of them, for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

from redis.exceptions import RedisError

from streamcrawl.errors import StoreFull, StoreUnavailable
from streamcrawl.store.connection import NoGroup, map_error
from streamcrawl.store.frontier import FETCH_STREAM, Entry
from streamcrawl.store.keys import GROUP
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered
from streamcrawl.work.waker import Waker

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from streamcrawl.store.shards import Shards
    from streamcrawl.work.board import Board
    from streamcrawl.work.loops import Log

BLOCK_MS: Final = 1000
"""Well under the socket timeout of the client (store/connection.py), and how long a stop may take."""
BLOCK_SOME_MS: Final = 100
"""While fewer slots are free than there are shards, or some are held back: work may come to one that is not waited
for."""
LOOKS: Final = 4
"""After a failed read: at once, and then a quarter of a lease apart. What is found later is reclaimed by its lease."""
GATHER_S: Final = 0.003
"""While work is in hand, free slots gather this long: one read for several entries instead of one each."""


HELD_LOOK_S: Final = 0.1
"""Between two looks whether a stage may go on that is held back."""


class HeldBack(Protocol):
    """What is known of the streams that this one feeds (stage_work.py)."""

    async def look(self) -> None: ...
    def is_held(self, shard: int) -> bool: ...


class ReadLoop:
    def __init__(
        self,
        crawl: Shards,
        reader: Redis,
        consumer: str,
        board: Board,
        *,
        lease_ms: int,
        free: Callable[[], int],
        wait_free: Callable[[], asyncio.Future[None]],
        put: Callable[[Entry, int], None],
        on_outage: Callable[[], None],
        log: Log,
        stream: str = FETCH_STREAM,
        held: HeldBack | None = None,
    ) -> None:
        """Prepare the loop.

        Args:
            stream: Which work stream, without the prefix of a shard.
            held: Says in which shards nothing may be read, because what this stream feeds is over its mark.
        """
        self._crawl = crawl
        self._stream = stream
        self._held = held
        self._streams = {(frontier.keys.prefix + stream).encode(): shard for shard, frontier in enumerate(crawl)}
        self._turn = 0
        """The shard that is asked first when slots are scarce."""
        self._reader = reader
        self._consumer = consumer
        self._board = board
        self._lease_ms = lease_ms
        self._free = free
        self._wait_free = wait_free
        self._put = put
        self._log = log
        self._stop = asyncio.Event()
        self._looks_left = 0
        self._look_at_ms = 0
        self._is_restarted = False
        """What stands under our name and is not ours may be a fetch of a moment ago, whose end the store has lost."""
        self._patience = Patience("read", log, on_outage=on_outage, pause_max_s=lease_ms / 1000 / LOOKS)
        self._waker = Waker(reader, crawl.client)

    def stop(self) -> None:
        """Take nothing more. A read that waits in the server is ended there: with nothing, as if its time were over."""
        self._stop.set()
        self._waker.wake()

    def note_restart(self) -> None:
        """The store was restarted: what it gives us again though we ended it must not wait for our lease."""
        self._looks_left, self._look_at_ms, self._is_restarted = LOOKS, monotonic_ms(), True

    async def run(self) -> None:
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while not self._stop.is_set():
                # Between two reads only: what a read under way was given would look as if nobody had it.
                if self._looks_left and monotonic_ms() >= self._look_at_ms:
                    await self._look()
                    continue
                free = self._free()
                if free <= 0:
                    look_s = max(0, self._look_at_ms - monotonic_ms()) / 1000 if self._looks_left else None
                    await asyncio.wait(
                        (self._wait_free(), stopped), timeout=look_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    if self._board.holds_any() and not self._stop.is_set():
                        await asyncio.sleep(GATHER_S)
                    continue
                if self._board.beat_age_ms() > self._lease_ms // 2:
                    # Nobody confirms our leases now: what we took would be taken back under our hands.
                    await sleep_or_stop(self._stop, 0.05)
                    continue
                try:
                    await self._waker.learn()
                    if self._stop.is_set():
                        continue  # set while it was asked for: nobody would end the read
                    streams = list(self._streams) if self._held is None else await self._open_streams(self._held)
                    if not streams:
                        await sleep_or_stop(self._stop, HELD_LOOK_S)
                    elif free >= len(streams):
                        # What is held back is looked at again soon, whatever the other shards have.
                        block_ms = BLOCK_MS if len(streams) == len(self._streams) else BLOCK_SOME_MS
                        await self._read(streams, free // len(streams), block_ms)
                    else:
                        await self._read_in_turn(streams, free)
                except (RedisError, OSError) as error:
                    self._waker.forget()
                    await self._recover(error)
                    continue
                self._patience.recovered()
            if self._looks_left:
                await self._look()
        finally:
            stopped.cancel()
            await self._waker.close()

    async def _read(self, streams: list[bytes], count: int, block_ms: int | None) -> int:
        """Read at most `count` entries of each stream and put them into slots; returns how many."""
        reply: Any = await self._reader.xreadgroup(
            GROUP, self._consumer, dict.fromkeys(streams, ">"), count=count, block=block_ms
        )
        taken = 0
        for stream, entries in reply:
            shard = self._streams[stream]
            for entry_id, fields in entries:
                entry = Entry(entry_id.decode(), fields or {}, shard)
                self._put(entry, self._board.hold(entry.id, shard))
            taken += len(entries)
        return taken

    async def _open_streams(self, held: HeldBack) -> list[bytes]:
        """Return the streams that may be read; those held back are looked at again."""
        await held.look()
        return [stream for stream, shard in self._streams.items() if not held.is_held(shard)]

    async def _read_in_turn(self, streams: list[bytes], free: int) -> None:
        self._turn = (self._turn + 1) % len(streams)
        order = streams[self._turn :] + streams[: self._turn]
        left = free
        for stream in order:
            left -= await self._read([stream], left, None)
            if left <= 0 or self._stop.is_set():
                return
        if left == free:
            await self._read(order[:free], 1, BLOCK_SOME_MS)

    async def _recover(self, error: Exception) -> None:
        mapped = map_error(error)
        if isinstance(mapped, NoGroup):
            # The stream was lost (flushed, failed over to an older state): dispatch makes the group again, at 0. Or the
            # crawl was deleted, which is no outage to tell about: asked for nothing, it says so.
            for frontier in self._crawl:
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    if self._stream == FETCH_STREAM:
                        await frontier.dispatch(0)
                    else:
                        await frontier.reclaim(self._stream, lease_ms=self._lease_ms)
            mapped = StoreUnavailable("the work stream is gone; waiting for it to be made again")
        elif not isinstance(mapped, StoreUnavailable):
            raise mapped from error
        await self._patience.wait(mapped, self._stop)
        self._looks_left, self._look_at_ms = LOOKS, monotonic_ms()

    async def _look(self) -> None:
        """Hand back what was delivered under our name in an answer that never came."""
        self._looks_left -= 1
        self._look_at_ms = monotonic_ms() + self._lease_ms // LOOKS
        for shard, frontier in enumerate(self._crawl):
            try:
                delivered = await until_answered(
                    lambda frontier=frontier: frontier.pending_of(self._stream, self._consumer),  # type: ignore[misc]
                    self._patience,
                    self._stop,
                )
                unknown = [entry_id for entry_id in delivered if self._board.index_of(entry_id, shard) is None]
                if unknown:
                    is_begun = self._is_restarted
                    why = "an answer was lost, or the store lost their end"
                    said = f"read: {len(unknown)} entries are ours that we do not have ({why}); handing them back"
                    self._log(Said.warning(said))
                    await until_answered(
                        lambda frontier=frontier, unknown=unknown, is_begun=is_begun: frontier.hand_back(  # type: ignore[misc]
                            self._stream, unknown, is_begun=is_begun
                        ),
                        self._patience,
                        self._stop,
                    )
            except NoGroup:
                continue  # the stream is gone with all that was delivered
            except StoreUnavailable:
                return  # stopped meanwhile
        self._is_restarted = self._is_restarted and self._looks_left > 0
