"""The work slots: an asyncio task for each entry in hand, at most `concurrency` of them, which may change (adapt.py).

Also the quarantine. A task that was in a worker's hands when it died is a suspect: after one crash it shares the worker
with few others, after two it runs alone, and everything else that was not begun is handed back first, so that a
poisonous task takes no neighbour with it and is known for what it is. If a slot's own code fails, the slot survives and
the task is tried again.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from streamcrawl.errors import CrawlGone, LeaseLost, StoreError, StreamcrawlError, Unfit
from streamcrawl.rules.task import Outcome
from streamcrawl.store.frontier import FETCH_STREAM, Commit
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.logs import Said
from streamcrawl.work.loops import Patience, until_answered
from streamcrawl.work.meters import QUEUE_WAIT, TASK_LATENCY
from streamcrawl.work.page_work import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from streamcrawl.store.frontier import Entry, Wait
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.board import Board
    from streamcrawl.work.commit import CommitLoop
    from streamcrawl.work.lag import ServerClock
    from streamcrawl.work.links import RecentlySeen
    from streamcrawl.work.loops import Log
    from streamcrawl.work.offers import OffersLoop
    from streamcrawl.work.traces import TaskTrace, Traces

NEIGHBOURS_OF_A_SUSPECT: Final = 16
"""Few enough that a poisonous task sends few others into quarantine with it, and enough that what a killed worker had
in hand is soon running again."""

CANCEL_AGAIN_S: Final = 1.0
"""Long enough for what a handler does when it is cancelled."""


class InHand(Protocol):
    """What the slots know of a task: a page, or an item of a stage."""

    @property
    def crashes(self) -> int: ...
    @property
    def url(self) -> str: ...
    @property
    def discovered_ms(self) -> int: ...


T = TypeVar("T", bound=InHand)


class Work(Protocol[T]):
    """What is done with an entry: PageWork, or StageWork."""

    @property
    def seen(self) -> RecentlySeen: ...
    def decode(self, entry: Entry) -> T | Commit: ...
    async def do(self, entry: Entry, task: T, index: int) -> Ending: ...
    def bury(self, entry: Entry, task: T, reason: str, error: str) -> Commit: ...
    def internal_error(self, entry: Entry, task: T, error: str) -> Ending: ...


class _Hand(msgspec.Struct, eq=False):
    """One entry in hand."""

    entry: Entry
    index: int
    task: InHand
    running: asyncio.Task[None] | None = None
    is_admitted: bool = False
    """Its slot runs, or is about to. Known before the slot is: of two suspects in one read, one must see the other."""
    is_submitted: bool = False
    is_lost: bool = False
    """Taken back while it was about to run; its slot does not begin."""
    trace: TaskTrace | None = None
    """Of a task that is followed."""


def neighbours_max(crashes: int, concurrency: int) -> int:
    """Return with how many entries in all a task of so many crashes may share its worker."""
    if crashes == 0:
        return concurrency
    return min(concurrency, NEIGHBOURS_OF_A_SUSPECT) if crashes == 1 else 1


class Slots:
    def __init__(
        self,
        crawl: Shards,
        work: Work[Any],
        committers: Sequence[CommitLoop],
        offers: Sequence[OffersLoop],
        board: Board,
        *,
        concurrency: int,
        stream: str = FETCH_STREAM,
        on_retry: Callable[[int, int], None],
        on_over: Callable[[StreamcrawlError], None],
        clock: ServerClock,
        log: Log,
        traces: Traces | None = None,
    ) -> None:
        self._crawl = crawl
        self._work = work
        self._committers = committers
        """One for each shard."""
        self._offers = offers
        self._board = board
        self._concurrency = concurrency
        self._stream = stream
        self._on_retry = on_retry
        self._on_over = on_over
        self._meters = board.meters
        self._peak = 0
        self._clock = clock
        self._log = log
        self._traces = traces
        self._hands: dict[tuple[int, str], _Hand] = {}
        self._waiting: list[_Hand] = []
        self._suspects = 0
        """How many of the hands are such: nearly always none, and then there is room for all."""
        self._submitted = 0
        """How many of the hands only wait for their commit."""
        self._unreadable = 0
        """Entries that are no hands, but hold a place of the board until they are dead letters."""
        self._free_waiter: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._give_up = asyncio.Event()
        self._patience = Patience("slots", log)
        self._chores: set[asyncio.Task[None]] = set()
        board.show_slots(concurrency)

    @property
    def limit(self) -> int:
        """How many slots there are."""
        return self._concurrency

    def resize(self, concurrency: int) -> None:
        """Have so many slots from now on. What runs goes on; of fewer, those that become free are not filled again."""
        self._concurrency = concurrency
        self._board.show_slots(concurrency)
        if not self._is_stopping:
            self._admit()
        self._say_free()

    def take_peak(self) -> int:
        """Return how many were in use at a time, at most, since this was asked last."""
        peak, self._peak = max(self._peak, len(self._hands)), len(self._hands)
        return peak

    # -- for the read loop

    def free(self) -> int:
        """Return how many entries may be read now; none while a suspect waits for its turn."""
        if self._waiting or self._is_stopping:
            return 0
        return self._room() - len(self._hands) - self._unreadable

    def wait_free(self) -> asyncio.Future[None]:
        """Return a future that is done when a slot becomes free (or may have)."""
        if self._free_waiter is None or self._free_waiter.done():
            self._free_waiter = asyncio.get_running_loop().create_future()
        return self._free_waiter

    def put(self, entry: Entry, index: int) -> None:
        """Take an entry that was just read and is held in the board."""
        waited_s = self._clock.since_s(int(entry.id.partition("-")[0]))
        if waited_s is not None:
            self._meters.observe(QUEUE_WAIT, waited_s)
        task = self._work.decode(entry)
        if isinstance(task, Commit):
            self._log(Said.error(f"entry {entry.id} cannot be read and becomes a dead letter", entry=entry.id))
            self._submit_lone(entry, index, task)
            return
        hand = _Hand(entry, index, task)
        if self._traces is not None:
            hand.trace = self._traces.begin(entry, task)
        self._hands[entry.where] = hand
        self._suspects += task.crashes > 0
        self._peak = max(self._peak, len(self._hands))
        # Counted with those that are on their way back: to ask each whether it runs took 3 us of each page.
        if task.crashes == 0 and not self._waiting and len(self._hands) <= self._room():
            self._start(hand)
        else:
            self._waiting.append(hand)
            self._waiting.sort(key=lambda waiting: waiting.task.crashes)
            self._admit()

    # -- stopping

    async def stop(self, grace_s: float) -> None:
        """Hand back what has not begun, let the rest finish within `grace_s`, then cancel it and hand it back."""
        self._is_stopping = True
        await self._hand_back_waiting()
        running = [hand.running for hand in self._hands.values() if hand.running is not None]
        if running and grace_s > 0:
            await asyncio.wait(running, timeout=grace_s)
        await self.cancel_all()

    async def cancel_all(self) -> None:
        """Cancel what runs and hand it back; what is already with the committer is left to it."""
        self._give_up.set()
        late = [hand for hand in self._hands.values() if not hand.is_submitted]
        running = {hand.running for hand in late if hand.running is not None}
        while running:
            for task in running:
                task.cancel()
            # Again and again: redis-py sends within asyncio.wait_for, which loses a cancellation before Python 3.12.
            _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
        await self._hand_back([hand.entry for hand in late if hand.running is None])
        await self._hand_back([hand.entry for hand in late if hand.running is not None], is_begun=True)
        for hand in late:
            self._end(hand)
        if self._chores:
            await asyncio.wait(self._chores)

    def lose(self, shard: int, entry_id: str) -> None:
        """The entry is no longer ours: stop working on it, write nothing."""
        hand = self._hands.get((shard, entry_id))
        if hand is None or hand.is_submitted:
            return
        if hand.trace is not None:
            hand.trace.lost()
        if hand.running is not None:
            hand.running.cancel()
        elif hand in self._waiting:
            self._waiting.remove(hand)
            self._end(hand)
        else:
            hand.is_lost = True

    # -- inside

    def _room(self) -> int:
        if not self._suspects:
            return self._concurrency
        crashes = max([hand.task.crashes for hand in self._hands.values() if hand.is_admitted], default=0)
        return neighbours_max(crashes, self._concurrency)

    def _running(self) -> list[_Hand]:
        return [hand for hand in self._hands.values() if hand.is_admitted]

    def _start(self, hand: _Hand) -> None:
        hand.is_admitted = True
        hand.running = asyncio.create_task(self._slot(hand), name=f"slot {hand.entry.id}")
        self._board.show_busy(len(self._hands))

    def _admit(self) -> None:
        while self._waiting:
            hand = self._waiting[0]
            running = len(self._running())
            if running >= min(self._room(), neighbours_max(hand.task.crashes, self._concurrency)):
                if self._room() < self._concurrency:
                    # A suspect runs: what waits in the same hands would share its crash without having begun.
                    self._chore(self._hand_back_waiting(crashes_below=2))
                return
            del self._waiting[0]
            hand.is_admitted = True
            if hand.task.crashes >= 2:
                # Alone must mean that nothing else is in this worker's hands, begun or not: only then is the next
                # crash this task's own.
                self._chore(self._run_alone(hand))
                return
            self._start(hand)

    async def _run_alone(self, hand: _Hand) -> None:
        await self._hand_back_waiting()
        if hand.is_lost:
            self._end(hand)
        elif self._is_stopping:
            await self._hand_back([hand.entry])
            self._end(hand)
        else:
            self._start(hand)

    async def _slot(self, hand: _Hand, ending: Ending | None = None) -> None:
        entry, task = hand.entry, hand.task
        try:
            if ending is None:
                if hand.trace is not None:
                    hand.trace.enter()
                ending = await self._work.do(entry, task, hand.index)
                if hand.trace is not None:
                    hand.trace.worked(ending.commit)
            if ending.ahead or ending.elsewhere:
                # Nothing of it runs any more: however long the store is away now, it does not hang.
                self._board.rest(hand.index)
                await self._offer_ahead(entry, ending)
        except asyncio.CancelledError:
            if not self._is_stopping:
                self._end(hand)  # lost: `lose` cancelled it
            raise
        except LeaseLost:
            if hand.trace is not None:
                hand.trace.lost()
            self._end(hand)
        except CrawlGone as error:
            self._end(hand)
            self._on_over(error)
        except Unfit as error:
            # Of this run, not of the page: tried again here until it is dead it would be lost to who can do it.
            self._chore(self._give_back(hand, Ending(None, is_begun=True)))
            self._on_over(error)
        except StoreError as error:
            # Its fetch may be done already (the links could not be offered): the host's delay counts from here.
            self._log(Said.warning(f"slot: {error}; {task.url} goes back", entry=entry.id, task=task.url))
            self._chore(self._give_back(hand, Ending(None, is_begun=True)))
        except Exception:
            # The third ring: a fault of ours. The slot survives, the task is tried again and at last becomes a dead
            # letter that carries the traceback.
            error_text = traceback.format_exc()
            said = f"slot: internal error at {task.url}:\n{error_text}"
            self._log(Said.error(said, entry=entry.id, task=task.url))
            ending = self._work.internal_error(entry, task, error_text)
            self._submit(hand, ending)
        else:
            if ending.commit is None:
                self._chore(self._give_back(hand, ending))
            else:
                self._submit(hand, ending)

    async def _offer_ahead(self, entry: Entry, ending: Ending) -> None:
        """Offer what does not fit into the page's commit: chunks of its own shard by the fence, then other shards'."""
        assert ending.commit is not None
        # Before the first of them: a server that comes back may have lost what it took, and must not take the commit.
        if not ending.commit.server or ending.instead is None:
            ending.commit.server = restarts_of(self._crawl.client).run_id
        frontier = self._crawl.frontiers[entry.shard]
        for chunk in ending.ahead:
            word, _ = await until_answered(
                lambda chunk=chunk: frontier.offer(chunk, whose=entry.id),  # type: ignore[misc]
                self._patience,
                self._give_up,
            )
            if word == "LEASE_LOST":
                raise LeaseLost("taken back while its links were offered")
        if ending.elsewhere:
            offers = [self._offers[shard].offer(links) for shard, links in ending.elsewhere]
            for result in await asyncio.gather(*offers, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    def _submit(self, hand: _Hand, ending: Ending) -> None:
        assert ending.commit is not None
        hand.is_submitted = True
        self._submitted += 1
        self._board.rest(hand.index)
        if hand.trace is not None:
            hand.trace.submitted(ending.commit)

        def done(word: str) -> None:
            self._submitted -= 1
            if word == "RESTARTED" and not self._give_up.is_set():
                hand.is_submitted = False
                again = ending.instead or ending
                hand.running = asyncio.create_task(self._slot(hand, again), name=f"slot {hand.entry.id}")
                return
            if hand.trace is not None:
                hand.trace.committed(word)
            if word == "DONE":
                self._note_latency(hand.task, ending.commit)
                self._work.seen.add_all(ending.offered)
                if ending.retry_delay_ms is not None:
                    self._on_retry(hand.entry.shard, ending.retry_delay_ms)
            self._end(hand)

        def bury() -> Commit:
            return self._work.bury(hand.entry, hand.task, "codec", "its commit was malformed")

        committer = self._committers[hand.entry.shard]
        is_last = self._submitted == len(self._hands)
        committer.submit(ending.commit, ended_at=ending.ended_at, bury=bury, done=done, is_last=is_last)

    def _note_latency(self, task: InHand, commit: Commit | None) -> None:
        """Count how long a task took from its discovery, when this commit ended it with a result."""
        if commit is None or commit.outcome is not Outcome.DONE or not task.discovered_ms:
            return
        took_s = self._clock.since_s(task.discovered_ms)
        if took_s is not None:
            self._meters.observe(TASK_LATENCY, took_s)

    def _submit_lone(self, entry: Entry, index: int, commit: Commit) -> None:
        def done(_: str) -> None:
            self._unreadable -= 1
            self._board.release(index)
            self._say_free()

        self._unreadable += 1
        committer = self._committers[entry.shard]
        committer.submit(commit, ended_at=time.monotonic(), bury=lambda: commit, done=done)

    def _end(self, hand: _Hand) -> None:
        if self._hands.pop(hand.entry.where, None) is None:
            return
        self._suspects -= hand.task.crashes > 0
        self._board.release(hand.index)
        self._board.show_busy(len(self._hands))
        if hand.trace is not None:
            hand.trace.end()
        if self._waiting and not self._is_stopping:
            self._admit()
        self._say_free()

    def _say_free(self) -> None:
        if self._free_waiter is not None and not self._free_waiter.done():
            self._free_waiter.set_result(None)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.create_task(work)
        self._chores.add(chore)  # a task that nobody holds may be collected in the middle
        chore.add_done_callback(self._chores.discard)

    async def _give_back(self, hand: _Hand, ending: Ending) -> None:
        await self._hand_back(
            [hand.entry], is_robots_stale=ending.is_robots_stale, is_begun=ending.is_begun, wait=ending.wait
        )
        self._end(hand)

    async def _hand_back_waiting(self, *, crashes_below: int | None = None) -> None:
        # A suspect that must run alone keeps its place where others are sent away: handed back, this worker would read
        # it again at once, and again. Waiting costs it nothing: only a crash alone counts against it.
        waiting = [hand for hand in self._waiting if crashes_below is None or hand.task.crashes < crashes_below]
        self._waiting = [hand for hand in self._waiting if hand not in waiting]
        await self._hand_back([hand.entry for hand in waiting])
        for hand in waiting:
            self._end(hand)

    async def _hand_back(
        self,
        entries: Sequence[Entry],
        *,
        is_robots_stale: bool = False,
        is_begun: bool = False,
        wait: Wait | None = None,
    ) -> None:
        for shard, frontier in enumerate(self._crawl):
            entry_ids = [entry.id for entry in entries if entry.shard == shard]
            if not entry_ids:
                continue
            try:
                await until_answered(
                    lambda frontier=frontier, entry_ids=entry_ids: frontier.hand_back(  # type: ignore[misc]
                        self._stream, entry_ids, is_robots_stale=is_robots_stale, is_begun=is_begun, wait=wait
                    ),
                    self._patience,
                    self._give_up,
                )
            except CrawlGone as error:
                self._on_over(error)
            except StoreError as error:
                # The lease runs out by itself; somebody takes them back then.
                said = f"slots: {error}; {len(entry_ids)} entries could not be handed back and wait for their lease"
                self._log(Said.warning(said))
