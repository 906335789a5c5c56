"""The loop of a sink child: from the sink's streams, one in each shard, into its file, each record exactly once.

Read, write, make durable, commit with (writer epoch, offset before, offset after). A batch is of one shard, which keeps
the offset behind the last batch that came from it; batches are written one after the other, so the largest offset that
any shard has is how far the file is committed; and no server takes a batch that may have forgotten the one of another
shard before it (RESTARTED). Whatever goes wrong on the way has
one remedy: forget the batch, ask the store what is committed (`sink_open`, which also puts back what was delivered to
us), cut the file there, and read on. If this loop dies, records wait in the stream; above a mark fetching stops.
"""

from __future__ import annotations

import asyncio
import random
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamcrawl.errors import SinkError, StoreUnavailable
from streamcrawl.sinks.jsonl import SinkDiskFull
from streamcrawl.store.connection import BLOCK_MS, NoGroup, mapped_errors
from streamcrawl.store.frontier import Entry, sink_stream
from streamcrawl.store.keys import GROUP
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered
from streamcrawl.work.waker import Waker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis

    from streamcrawl.sinks.jsonl import JsonlFile
    from streamcrawl.store.shards import Shards

BATCH_MAX: Final = 500
"""Records in one write: one fsync for each would be the slowest part of a crawl. sink_commit takes 1,000."""
LINGER_MS: Final = 200
"""A batch that is not full waits this long for more."""
FULL_BASE_S: Final = 1.0
FULL_MAX_S: Final = 30.0
"""How often a full disk is tried again: somebody has to make room, which takes minutes."""
BUSY_POLL_S: Final = 0.25


class HoldsEntries(Protocol):
    """What the loop needs of a board (work/board.py), which has to have room for a batch."""

    def hold(self, entry_id: str, shard: int = 0) -> int: ...
    def release(self, index: int) -> None: ...


class _Word(Enum):
    DONE = auto()
    DOUBT = auto()
    """The store and the file have to be compared again."""
    REPLACED = auto()


class SinkLoop:
    """Writes one sink's records to one file. `run` returns when it was stopped, replaced, or the crawl is gone."""

    def __init__(
        self,
        crawl: Shards,
        reader: Redis,
        file: JsonlFile,
        *,
        sink: str,
        consumer: str,
        board: HoldsEntries,
        lease_ms: int,
        batch: int = BATCH_MAX,
        linger_ms: int = LINGER_MS,
        on_written: Callable[[Sequence[Entry], float], None] = lambda entries, took_s: None,
        log: Callable[[str], None],
    ) -> None:
        """Prepare the loop; nothing is read yet.

        Args:
            reader: A client for blocking reads that nobody else uses.
            file: Open; closed by whoever opened it, after `run`.
            consumer: A name that no earlier writer had.
            on_written: Called with the entries of each batch that was committed, and the seconds its writing took.
        """
        self._crawl = crawl
        self._reader = reader
        self._file = file
        self._sink = sink
        self._consumer = consumer
        self._board = board
        self._lease_ms = lease_ms
        self._batch = batch
        self._linger_s = linger_ms / 1000
        self._on_written = on_written
        self._log = log
        self._streams = {frontier.keys.sink_stream(sink).encode(): shard for shard, frontier in enumerate(crawl)}
        self._writers: list[int] = []
        """Writer epoch in each shard; empty before the first opening."""
        self._offsets: list[int] = []
        """As each shard has it."""
        self._server = ""
        """run_id of the server that said them: another one may have forgotten one shard's, and take another's batch."""
        self._held: list[int] = []
        self._patience = Patience(f"sink {sink}", log)
        self._waker = Waker(reader, crawl.client)

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set; what has been read by then is still written and committed.

        After a crash on any line the file holds what is committed and perhaps a tail that the next writer cuts off;
        entries that were read go back into the stream.

        Raises:
            SinkError: another writer is alive for two leases, or the file cannot be written for good.
            CrawlGone: the crawl was deleted or begun afresh.
            StoreError: but for StoreUnavailable, which is waited out.
        """
        is_in_doubt = True
        waking = asyncio.create_task(self._wake_at(stop), name="wake at stop")
        try:
            while not stop.is_set():
                if is_in_doubt:
                    if not await self._take_over(stop):
                        return
                    is_in_doubt = False
                try:
                    word = _Word.DONE
                    for batch in await self._read_batches(stop):
                        word = await self._write_batch(batch, stop)
                        if word is not _Word.DONE:
                            break
                except (StoreUnavailable, NoGroup) as error:
                    self._waker.forget()
                    # A stream that was lost is no outage: opening the sink makes it again, or finds the crawl deleted.
                    if not isinstance(error, NoGroup):
                        await self._patience.wait(error, stop)
                    word = _Word.DOUBT
                finally:
                    self._release()
                if word is _Word.REPLACED:
                    self._log(Said.warning(f"sink {self._sink}: another writer took over; this one ends"))
                    return
                is_in_doubt = word is _Word.DOUBT
        finally:
            waking.cancel()
            await self._waker.close()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._waker.wake()

    async def _take_over(self, stop: asyncio.Event) -> bool:
        """Become the writer, or make sure that we still are, and cut the file to what is committed; False: stopped."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 2 * self._lease_ms / 1000
        while not stop.is_set():
            try:
                is_ours = await self._open_shards(stop)
            except StoreUnavailable:
                return False
            if is_ours:
                await asyncio.to_thread(self._file.resume, max(self._offsets))
                return True
            if self._writers:
                self._log(Said.warning(f"sink {self._sink}: another writer took over; this one ends"))
                return False
            if loop.time() > deadline:
                raise SinkError(
                    f"another process writes the output of this crawl and is alive: stop it, or start this one without "
                    f"-o {self._file.path}",
                    stage="sink",
                )
            await sleep_or_stop(stop, BUSY_POLL_S)
        return False

    async def _open_shards(self, stop: asyncio.Event) -> bool:
        """Become the writer in every shard; False while another one lives. The first shard decides between two."""
        restarts = restarts_of(self._crawl.client)
        while True:
            self._server, rows = restarts.run_id, []
            for frontier in self._crawl:
                word, writer, offset = await until_answered(
                    lambda frontier=frontier: frontier.sink_open(self._sink, self._consumer, lease_ms=self._lease_ms),  # type: ignore[misc]
                    self._patience,
                    stop,
                )
                if word != "OK":
                    return False
                rows.append((writer, offset))
            # Of one process all of them, and of the one whose name we have: at first it is not known yet.
            if restarts.run_id == self._server:
                break
        self._writers, self._offsets = [writer for writer, _ in rows], [offset for _, offset in rows]
        return True

    # -- reading

    async def _read_batches(self, stop: asyncio.Event) -> list[list[Entry]]:
        """Return up to a batch of entries in all, those of each shard by themselves; none when nothing came in time."""
        with mapped_errors():
            await self._waker.learn()
        if stop.is_set():
            return []
        share = max(1, self._batch // len(self._crawl))
        entries = await self._read(share, block_ms=BLOCK_MS)
        if entries and len(entries) < share and not await sleep_or_stop(stop, self._linger_s):
            entries += await self._read(max(1, share - len(entries)), block_ms=None)
        by_shard: dict[int, list[Entry]] = {}
        for entry in entries:
            by_shard.setdefault(entry.shard, []).append(entry)
        return list(by_shard.values())

    async def _read(self, count: int, *, block_ms: int | None) -> list[Entry]:
        # Never cancelled: a read that was cancelled may have been given entries that nobody then knows of.
        with mapped_errors():
            reply: Any = await self._reader.xreadgroup(
                GROUP, self._consumer, dict.fromkeys(self._streams, ">"), count=count, block=block_ms
            )
        self._patience.recovered()
        entries = [
            Entry(entry_id.decode(), fields or {}, self._streams[stream])
            for stream, rows in reply
            for entry_id, fields in rows
        ]
        self._held += [self._board.hold(entry.id, entry.shard) for entry in entries]
        return entries

    def _release(self) -> None:
        for index in self._held:
            self._board.release(index)
        self._held.clear()

    # -- writing

    async def _write_batch(self, batch: Sequence[Entry], stop: asyncio.Event) -> _Word:
        records = [entry.fields[b"item"] for entry in batch if b"item" in entry.fields]
        if len(records) < len(batch):
            lacking = len(batch) - len(records)
            self._log(Said.error(f"sink {self._sink}: {lacking} entries without a record are passed over"))
        shard = batch[0].shard
        frontier = self._crawl.frontiers[shard]
        writer, expected, server = self._writers[shard], self._offsets[shard], self._server
        entry_ids = [entry.id for entry in batch]
        began = time.monotonic()
        offset = await self._append(records, stop)
        took_s = time.monotonic() - began
        if offset is None:
            await frontier.hand_back(sink_stream(self._sink), entry_ids)
            return _Word.DONE
        word, rest = await until_answered(
            lambda: frontier.sink_commit(
                self._sink, writer=writer, expected=expected, offset=offset, entry_ids=entry_ids, server=server
            ),
            self._patience,
            stop,
        )
        if word == "DONE" or (word == "OFFSET_MISMATCH" and rest == offset):
            # The mismatch: an earlier answer was lost, and the commit had arrived. Nobody else can have moved the
            # offset there, because another writer would have another epoch.
            self._offsets[shard] = offset
            self._on_written(batch, took_s)
            return _Word.DONE
        if word == "REPLACED":
            return _Word.REPLACED
        said = f"sink {self._sink}: the batch was not accepted ({word}); writing again what is still ours"
        self._log(Said.warning(said))
        return _Word.DOUBT

    async def _append(self, records: Sequence[bytes], stop: asyncio.Event) -> int | None:
        """Write records in a thread, waiting while the disk is full; None when stopped meanwhile."""
        failures = 0
        while True:
            try:
                offset = await asyncio.to_thread(self._file.append, records)
            except SinkDiskFull as error:
                failures += 1
                if failures == 1:
                    self._log(Said.error(f"sink {self._sink}: {error}; waiting for room, nothing is lost"))
                pause_s = min(FULL_MAX_S, FULL_BASE_S * 2 ** min(failures - 1, 10)) * (0.5 + random.random() / 2)
                if await sleep_or_stop(stop, pause_s):
                    return None
            else:
                if failures:
                    self._log(f"sink {self._sink}: {self._file.path} can be written again")
                return offset
