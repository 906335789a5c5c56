"""The commit loop: ends entries in batches, one script call at a time.

While a call is under way the next batch gathers, so batches grow with the load and a lone commit waits for nobody. A
batch is bounded by entries, links (a script may take 5 ms) and bytes. If this loop dies nothing is committed: the
entries stay leased by this worker until it is replaced, then they are done again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from streamcrawl.store.frontier import LINKS_PER_CALL
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered
from streamcrawl.work.meters import BATCH_SIZE, COMMIT_WAIT, COMMITS, ITEM, LEASE_LOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.store.frontier import Commit, Dispatched, Frontier
    from streamcrawl.work.loops import Log
    from streamcrawl.work.meters import Meters

ENTRIES_PER_CALL: Final = 64
ITEMS_PER_CALL: Final = 1000
"""Some 4 ms of the server."""
BYTES_PER_CALL: Final = 4_000_000
LINGER_S: Final = 0.002
"""A batch waits this long for company while there is any to come: ten fetches that end together then cost one call."""


class _Waiting(NamedTuple):
    commit: Commit
    ended_at: float
    bury: Callable[[], Commit]
    """Gives what to commit instead when the script finds the commit malformed."""
    done: Callable[[str], None]
    queued_at: float
    """time.monotonic() when it was submitted."""
    is_burial: bool = False


def _place_of(waiting: _Waiting) -> tuple[int, str, int, str]:
    """Return by what entries are in order, which their ids are not as text; of any text, for one may be malformed."""
    ms, _, number = waiting.commit.entry_id.partition("-")
    return len(ms), ms, len(number), number


class CommitLoop:
    """Takes commits from the slots and calls each back with its word: DONE, LEASE_LOST, RESTARTED or INVALID."""

    def __init__(
        self,
        frontier: Frontier,
        worker: str,
        *,
        dispatch_limit: int,
        on_dispatched: Callable[[Dispatched], None],
        on_outage: Callable[[], None],
        meters: Meters,
        log: Log,
    ) -> None:
        self._frontier = frontier
        self._worker = worker
        self._dispatch_limit = dispatch_limit
        self._on_dispatched = on_dispatched
        self._queue: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        """What is queued need not wait for more."""
        self._stop = asyncio.Event()
        self._give_up = asyncio.Event()
        self._patience = Patience("commit", log, on_outage=on_outage)
        self._meters = meters
        self._log = log

    def submit(
        self,
        commit: Commit,
        *,
        ended_at: float,
        bury: Callable[[], Commit],
        done: Callable[[str], None],
        is_last: bool = False,
    ) -> None:
        """Queue a commit with at most LINKS_PER_CALL links.

        Args:
            ended_at: time.monotonic() when the fetch ended.
            is_last: Nothing else is being worked at that could join its batch.
        """
        self._queue.append(_Waiting(commit, ended_at, bury, done, time.monotonic()))
        self._wake.set()
        if is_last or len(self._queue) >= ENTRIES_PER_CALL:
            self._hurry.set()

    def stop(self, *, give_up: bool = False) -> None:
        """End once the queue is empty; with `give_up` also when the store does not answer."""
        self._stop.set()
        self._wake.set()
        self._hurry.set()
        if give_up:
            self._give_up.set()

    async def run(self) -> None:
        while True:
            if not self._queue:
                if self._stop.is_set():
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            if len(self._queue) < ENTRIES_PER_CALL:
                await sleep_or_stop(self._hurry, LINGER_S)
            if not self._stop.is_set():
                self._hurry.clear()
            await self._commit(self._take())

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        links = items = size = 0
        while self._queue and len(batch) < ENTRIES_PER_CALL:
            first = self._queue[0].commit
            links += len(first.links)
            size += sum(map(len, first.items)) + sum(len(part) for part in first.detail if not isinstance(part, int))
            items += len(first.items) // 2
            if batch and (links > LINKS_PER_CALL or items > ITEMS_PER_CALL or size > BYTES_PER_CALL):
                break
            batch.append(self._queue.popleft())
        # As the stream has them: then the script reads their entries with one command.
        batch.sort(key=_place_of)
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        async def call() -> list[str]:
            now = time.monotonic()
            # Rounded down: a delay counted from a moment too late is polite, one from a moment too early is not.
            packed = [
                w.commit.pack(since_end_ms=max(0, int((now - w.ended_at) * 1000)), by_domain=self._frontier.by_domain)
                for w in batch
            ]
            return await self._send(packed)

        try:
            words = await until_answered(call, self._patience, self._give_up)
        except (TypeError, ValueError, OverflowError):
            if not self._bury_unpackable(batch):
                raise
            return
        answered_at = time.monotonic()
        self._meters.observe(BATCH_SIZE, len(batch))
        for waiting, word in zip(batch, words, strict=True):
            if word in ("DONE", "LEASE_LOST"):
                outcome = waiting.commit.outcome.value if word == "DONE" else LEASE_LOST
                self._meters.add(COMMITS, 1, self._kind(waiting.commit), outcome)
                self._meters.observe(COMMIT_WAIT, answered_at - waiting.queued_at)
            if word == "INVALID" and not waiting.is_burial:
                self._bury(waiting)
            else:
                waiting.done(word)

    def _bury(self, waiting: _Waiting) -> None:
        said = f"commit of {waiting.commit.host} ({waiting.commit.outcome}) was malformed; it is dead now"
        self._log(Said.error(said, entry=waiting.commit.entry_id))
        self._queue.append(waiting._replace(commit=waiting.bury(), is_burial=True))
        self._wake.set()

    def _bury_unpackable(self, batch: list[_Waiting]) -> bool:
        """Bury what cannot be written, and queue the rest of its batch again; False when it is none of these.

        Raised here, it would end the worker with all that it holds, and each one after it that gets the same entry.
        """
        good, bad = [], []
        for waiting in batch:
            try:
                waiting.commit.pack(by_domain=self._frontier.by_domain)
            except (TypeError, ValueError, OverflowError):
                bad.append(waiting)
            else:
                good.append(waiting)
        self._queue.extendleft(reversed(good))
        for waiting in bad:
            if waiting.is_burial:
                waiting.done("INVALID")  # its entry stays ours until its lease runs out
            else:
                self._bury(waiting)
        return bool(bad)

    def _kind(self, commit: Commit) -> str:
        """Return what meters call what was committed."""
        return commit.kind.value

    async def _send(self, packed: list[bytes]) -> list[str]:
        committed = await self._frontier.commit(self._worker, packed, self._dispatch_limit)
        self._on_dispatched(committed.dispatched)
        return committed.words


class StageCommitLoop(CommitLoop):
    """The same for the entries of one stage of a program."""

    def __init__(
        self,
        frontier: Frontier,
        worker: str,
        stage: str,
        *,
        dispatch_limit: int,
        on_throttled: Callable[[frozenset[str]], None],
        on_outage: Callable[[], None],
        meters: Meters,
        log: Log,
    ) -> None:
        """Prepare the loop; `on_throttled` is told after each batch which streams are over their mark."""
        super().__init__(
            frontier,
            worker,
            dispatch_limit=dispatch_limit,
            on_dispatched=lambda _: None,
            on_outage=on_outage,
            meters=meters,
            log=log,
        )
        self._stage = stage
        self._on_throttled = on_throttled

    def _kind(self, commit: Commit) -> str:
        return ITEM

    async def _send(self, packed: list[bytes]) -> list[str]:
        words, throttled = await self._frontier.stage_commit(self._worker, self._stage, packed, self._dispatch_limit)
        self._on_throttled(throttled)
        return words
