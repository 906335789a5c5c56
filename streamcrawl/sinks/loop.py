"""The loop of a sink child: from the sink's streams, one in each shard, into its output, each record exactly once.

Read, write, make durable, commit with (writer epoch, offset before, offset after). A batch is of one shard, which keeps
the offset behind the last batch that came from it; batches are written one after the other, so the largest offset that
any shard has is how far the output is committed; and no server takes a batch that may have forgotten the one of another
shard before it (RESTARTED). Whatever goes wrong on the way has
one remedy: forget the batch, ask the store what is committed (`sink_open`, which also puts back what was delivered to
us), cut the output there, and read on. If this loop dies, records wait in the stream; above a mark fetching stops.
"""

from __future__ import annotations

import asyncio
import random
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamcrawl.errors import SinkError, StoreUnavailable
from streamcrawl.sinks.output import Mark, SinkBusy, SinkWaits
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

    from streamcrawl.sinks.output import Output
    from streamcrawl.store.shards import Shards

LINGER_MS: Final = 200
"""A batch that is not full waits this long for more."""
WAIT_BASE_S: Final = 1.0
WAIT_MAX_S: Final = 30.0
"""How often an output that cannot be written is tried again: somebody has to make room, which takes minutes."""
LOCK_WAIT_LEASES: Final = 4
"""A predecessor that we replaced finds out within two leases; whoever holds the file longer is none."""
DURABLE_WAIT_MS: Final = 2000
"""For one question whether the store is durable; a disk that takes longer is asked again."""
BUSY_POLL_S: Final = 0.25


class HoldsEntries(Protocol):
    """What the loop needs of a board (work/board.py), which has to have room for a batch."""

    def hold(self, entry_id: str, shard: int = 0) -> int: ...
    def release(self, index: int) -> None: ...


class _Word(Enum):
    DONE = auto()
    DOUBT = auto()
    """The store and the output have to be compared again."""
    REPLACED = auto()


class SinkLoop:
    """Writes one sink's records to one output. `run` returns when it was stopped, replaced, or the crawl is gone."""

    def __init__(
        self,
        crawl: Shards,
        reader: Redis,
        output: Output,
        *,
        sink: str,
        consumer: str,
        board: HoldsEntries,
        lease_ms: int,
        batch: int | None = None,
        linger_ms: int = LINGER_MS,
        on_written: Callable[[Sequence[Entry], float], None] = lambda entries, took_s: None,
        log: Callable[[str], None],
    ) -> None:
        """Prepare the loop; nothing is read yet.

        Args:
            reader: A client for blocking reads that nobody else uses.
            output: Open; closed by whoever opened it, after `run`.
            consumer: A name that no earlier writer had.
            batch: Records in one write at most; None: what the output takes.
            on_written: Called with the entries of each batch that was committed, and the seconds its writing took.
        """
        self._crawl = crawl
        self._reader = reader
        self._output = output
        self._sink = sink
        self._consumer = consumer
        self._board = board
        self._lease_ms = lease_ms
        self._batch = output.batch_max if batch is None else min(batch, output.batch_max)
        self._linger_s = linger_ms / 1000
        self._on_written = on_written
        self._log = log
        self._streams = {frontier.keys.sink_stream(sink).encode(): shard for shard, frontier in enumerate(crawl)}
        self._writers: list[int] = []
        """Writer epoch in each shard; empty before the first opening."""
        self._marks: list[Mark] = []
        """As each shard has it."""
        self._server = ""
        """run_id of the server that said them: another one may have forgotten one shard's, and take another's batch."""
        self._held: list[int] = []
        self._patience = Patience(f"sink {sink}", log)
        self._waker = Waker(reader, crawl.client)

    async def run(
        self, stop: asyncio.Event, *, ending: asyncio.Event | None = None, now: asyncio.Event | None = None
    ) -> None:
        """Write until `stop` is set; what has been read by then is still written and committed.

        After a crash on any line the output holds what is committed and perhaps a tail that the next writer takes back;
        entries that were read go back into the stream.

        Args:
            stop: Ends the loop.
            ending: Set with `stop` when the crawl has come to its end: then what is written is finished.
            now: Set when even that is to be left to the next writer.

        Raises:
            SinkError: another writer is alive for two leases, or the output cannot be written for good.
            CrawlGone: the crawl was deleted or begun afresh.
            StoreError: but for StoreUnavailable, which is waited out.
        """
        waking = asyncio.create_task(self._wake_at(stop), name="wake at stop")
        try:
            is_ours = await self._write_until(stop)
            if is_ours is not False and ending is not None and ending.is_set():
                now = now or asyncio.Event()
                # Perhaps it was never opened: of a crawl that ended before there may be a part without its name.
                if is_ours or await self._take_over(now):
                    await self._begin_part(now)
        except StoreUnavailable:
            if not stop.is_set():
                raise
        finally:
            waking.cancel()
            await self._waker.close()

    async def _write_until(self, stop: asyncio.Event) -> bool | None:
        """Write until stopped; returns whether store and output agree then, or None: nothing says that they do not."""
        is_in_doubt = True
        while not stop.is_set():
            if is_in_doubt:
                if not await self._take_over(stop):
                    return None if stop.is_set() else False
                is_in_doubt = False
            try:
                word = _Word.DONE
                for batch in await self._read_batches(stop):
                    word = await self._write_batch(batch, stop)
                    if word is not _Word.DONE:
                        break
                if word is _Word.DONE and self._output.is_due():
                    word = await self._begin_part(stop)
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
                return False
            is_in_doubt = word is _Word.DOUBT
        return None if is_in_doubt else True

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._waker.wake()

    async def _take_over(self, stop: asyncio.Event) -> bool:
        """Become the writer, or make sure that we are, and cut the output to what is committed; False: stopped."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + 2 * self._lease_ms / 1000
        failures = 0
        while not stop.is_set():
            try:
                is_ours = await self._open_shards(stop)
            except StoreUnavailable:
                return False
            if is_ours:
                try:
                    await self._output.resume(max(self._marks))
                except SinkBusy:
                    # A predecessor that was replaced is still at its files. What it has done by then, the store knows.
                    if loop.time() > started + LOCK_WAIT_LEASES * self._lease_ms / 1000:
                        raise
                    await sleep_or_stop(stop, BUSY_POLL_S)
                    continue
                except SinkWaits as error:
                    failures += 1
                    await self._wait(error, failures, stop)
                    continue
                if failures:
                    self._say_mended()
                return True
            if self._writers:
                self._log(Said.warning(f"sink {self._sink}: another writer took over; this one ends"))
                return False
            if loop.time() > deadline:
                raise SinkError(
                    f"another process writes the output of this crawl and is alive: stop it, or start this one without "
                    f"-o {self._output.target}",
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
                word, writer, offset, part = await until_answered(
                    lambda frontier=frontier: frontier.sink_open(self._sink, self._consumer, lease_ms=self._lease_ms),  # type: ignore[misc]
                    self._patience,
                    stop,
                )
                if word != "OK":
                    return False
                rows.append((writer, Mark.of(offset, part)))
            # Of one process all of them, and of the one whose name we have: at first it is not known yet.
            if restarts.run_id == self._server:
                break
        self._writers, self._marks = [writer for writer, _ in rows], [mark for _, mark in rows]
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
        began = time.monotonic()
        mark = await self._append(records, stop)
        took_s = time.monotonic() - began
        if mark is None:
            await frontier.hand_back(sink_stream(self._sink), [entry.id for entry in batch])
            return _Word.DONE
        word = await self._commit(shard, mark, stop, [entry.id for entry in batch], sum(map(len, records)))
        if word is _Word.DONE:
            self._on_written(batch, took_s)
        return word

    async def _commit(
        self, shard: int, mark: Mark, stop: asyncio.Event, entry_ids: Sequence[str] = (), size: int = 0
    ) -> _Word:
        """Tell a shard that the output is durable up to `mark`, with entries of its stream in it."""
        frontier = self._crawl.frontiers[shard]
        writer, expected, server = self._writers[shard], self._marks[shard].offset, self._server
        word, rest = await until_answered(
            lambda: frontier.sink_commit(
                self._sink,
                writer=writer,
                expected=expected,
                offset=mark.offset,
                part=mark.stored_part,
                entry_ids=entry_ids,
                size=size,
                server=server,
            ),
            self._patience,
            stop,
        )
        if word == "DONE" or (word == "OFFSET_MISMATCH" and rest == mark.offset):
            # The mismatch: an earlier answer was lost, and the commit had arrived. Nobody else can have moved the
            # offset there, because another writer would have another epoch.
            self._marks[shard] = mark
            return _Word.DONE
        if word == "REPLACED":
            return _Word.REPLACED
        said = f"sink {self._sink}: the batch was not accepted ({word}); writing again what is still ours"
        self._log(Said.warning(said))
        return _Word.DOUBT

    async def _append(self, records: Sequence[bytes], stop: asyncio.Event) -> Mark | None:
        """Write records, waiting while the output cannot take them; None when stopped meanwhile."""
        failures = 0
        while True:
            try:
                mark = await self._output.append(records)
            except SinkWaits as error:
                failures += 1
                if await self._wait(error, failures, stop):
                    return None
            else:
                if failures:
                    self._say_mended()
                return mark

    async def _wait(self, error: SinkWaits, failures: int, stop: asyncio.Event) -> bool:
        """Wait before an output is tried again, longer each time; True when stopped."""
        if failures == 1:
            self._log(Said.error(f"sink {self._sink}: {error}; {error.waits_for}, nothing is lost"))
        pause_s = min(WAIT_MAX_S, WAIT_BASE_S * 2 ** min(failures - 1, 10)) * (0.5 + random.random() / 2)
        return await sleep_or_stop(stop, pause_s)

    def _say_mended(self) -> None:
        self._log(f"sink {self._sink}: {self._output.target} can be written again")

    # -- parts

    async def _begin_part(self, stop: asyncio.Event) -> _Word:
        """Finish what is written, and go on in another part.

        The store knows of the next part before this one is moved: killed in between, the next writer finishes it.
        """
        mark = await self._output.seal()
        if mark is None:
            return _Word.DONE
        word = await self._commit(0, mark, stop)
        if word is not _Word.DONE:
            return word
        for frontier in self._crawl:
            # A finished file is one that nobody cuts any more: not even for a store that forgets its last second.
            while not await until_answered(
                lambda frontier=frontier: frontier.wait_durable(DURABLE_WAIT_MS),  # type: ignore[misc]
                self._patience,
                stop,
            ):
                if stop.is_set():
                    return _Word.DONE
        failures = 0
        while True:
            try:
                await self._output.finish(mark)
            except SinkWaits as error:
                failures += 1
                if await self._wait(error, failures, stop):
                    return _Word.DONE
            else:
                if failures:
                    self._say_mended()
                return _Word.DONE
