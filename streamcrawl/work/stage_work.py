"""What one slot does with one item: from the lease to the commit that will end it. The counterpart of page_work.py.

An item is decoded into the type that the stage takes, given to its function, alone or in a batch, and what comes back
becomes items of the following stages and links of the frontier. Errors of the function are tried again and at last a
dead letter with their traceback. Start at `StageWork.do`.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import CodecError, StageError, StoreUnavailable, Unfit
from streamcrawl.response import Drop, Retry
from streamcrawl.rules.retry import RetryPolicy, backoff_ms
from streamcrawl.rules.task import Outcome
from streamcrawl.rules.urls import split_url
from streamcrawl.store.frontier import StageCommit
from streamcrawl.work.board import monotonic_ms
from streamcrawl.work.fetched import unpack_page
from streamcrawl.work.handlers import ERROR_MAX_CHARS, Handled, Handler
from streamcrawl.work.links import FollowedLinks
from streamcrawl.work.logs import printable
from streamcrawl.work.meters import HANDLER_SECONDS
from streamcrawl.work.page_work import Ending
from streamcrawl.work.program import Item
from streamcrawl.work.traces import current, span

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from streamcrawl.rules.scope import Scope
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Entry
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.board import Board
    from streamcrawl.work.program import Program, Stage
    from streamcrawl.work.traces import NoSpan, TaskTrace

LOOK_MS: Final = 100
"""How old what is known of held streams may be while one of them holds this stage back."""


class HeldBackStage:
    """In which shards a stage may not read, because a stream that it feeds is over its mark there.

    The commits of this worker tell; while they say so it asks again, because others may have taken the load away. What
    another worker has just filled is known one round of commits later: as much as the slots have in hand.
    """

    def __init__(self, crawl: Shards, fed: frozenset[str]) -> None:
        """Begin with nothing held; `fed` are the lines of what this stage feeds."""
        self._crawl = crawl
        self._fed = fed
        self._over: dict[int, frozenset[str]] = {}
        self._looked_ms = 0

    def tell(self, shard: int, throttled: frozenset[str]) -> None:
        """Take in what a commit said of a shard."""
        over = throttled & self._fed
        if over:
            self._over[shard] = over
        else:
            self._over.pop(shard, None)

    async def look(self) -> None:
        """Ask the shards that held this stage back whether they still do."""
        if not self._over or monotonic_ms() - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = monotonic_ms()
        for shard in list(self._over):
            try:
                self.tell(shard, await self._crawl.frontiers[shard].throttled())
            except StoreUnavailable:
                return  # the read that follows meets the same, and backs off

    def is_held(self, shard: int) -> bool:
        return shard in self._over

    def is_held_anywhere(self) -> bool:
        return bool(self._over)


class StageWork:
    """The work of all slots of one worker of a stage."""

    def __init__(
        self,
        settings: Settings,
        scope: Scope,
        crawl: Shards,
        board: Board,
        program: Program,
        stage: Stage,
        outputs: Sequence[str],
        *,
        on_stuck: Callable[[], None],
    ) -> None:
        """Prepare the work; `on_stuck` is called when a thread of this process hangs in the function."""
        self._stage = stage
        self._board = board
        self._links = FollowedLinks(settings, scope, crawl)
        self.seen = self._links.seen
        route = (
            None if stage.is_sink else program.router(stage.gives, outputs, log=stage.name if stage.retain_ms else "")
        )
        self._handler = Handler(
            stage.function,
            timeout_ms=stage.timeout_ms or settings.handler_timeout_ms,
            threads=1 if stage.batch else stage.slots.most,
            on_stuck=on_stuck,
            stage=stage.line,
            **({} if route is None else {"route": route}),
        )
        self._followed: dict[int, TaskTrace] = {}
        """By their places on the board, items that wait for their batch."""
        self._batcher = _Batcher(self._call_batch, stage.batch, stage.linger_ms / 1000) if stage.batch else None
        self.apply(settings, scope)

    def apply(self, settings: Settings, scope: Scope) -> None:
        """Go by other settings from the next item on."""
        self._links.apply(settings, scope)
        self._policy = RetryPolicy.from_settings(settings)
        self._lease_ms = settings.lease_ms
        self._links_max = settings.links_max
        self._handler.timeout_ms = self._stage.timeout_ms or settings.handler_timeout_ms

    def decode(self, entry: Entry) -> Item | StageCommit:
        """Return the item of an entry, or the commit that buries an entry which cannot be read."""
        try:
            return Item.read(entry.fields, int(entry.id.partition("-")[0]))
        except CodecError as error:
            return StageCommit(entry.id, Outcome.DEAD, ("codec", printable(str(error))[:1000]))

    async def do(self, entry: Entry, item: Item, index: int) -> Ending:
        """Do the whole work of an entry."""
        if not await self._lease_is_fresh():
            return Ending(None)
        try:
            if self._stage.is_page:
                value: Any = unpack_page(item, links_max=self._links_max)
            else:
                value = self._stage.takes.decode(item)
        except CodecError as error:
            # Also of another version of the program, which took it: not tried again, replayed when that is mended.
            return self._ending(self.bury(entry, item, "codec", str(error)))
        try:
            if self._batcher is not None:
                if (trace := current()) is not None:
                    self._followed[index] = trace
                try:
                    await self._batcher.do(value, index)
                finally:
                    self._followed.pop(index, None)
                handled = Handled()
            else:
                self._board.begin(index)
                handled = await self._handle(value, item.depth)
        except Retry as asked:
            delay_ms = self._policy.base_ms
            if asked.after_s is not None:
                # Also inf, nan and what lies in the past: somebody else's function asked for it.
                delay_ms = int(1000 * min(max(0.0, asked.after_s), self._policy.retry_after_max_ms / 1000))
            return self._try_again(entry, item, "retry", str(asked), delay_ms)
        except Drop as drop:
            is_word = drop.reason.isascii() and drop.reason.isidentifier() and len(drop.reason) <= 64
            return self._ending(
                StageCommit(entry.id, Outcome.DROPPED, (drop.reason if is_word else "handler",), host=_host(item))
            )
        except StageError as error:
            delay_ms = int(random.random() * backoff_ms(item.attempt, self._policy.base_ms, self._policy.max_ms))
            return self._try_again(entry, item, "handler", str(error), delay_ms)
        commit = StageCommit(entry.id, Outcome.DONE, items=handled.items, host=_host(item))
        ending = self._ending(commit)
        self._links.add(ending, commit, (), handled.requests, page_url=item.url, depth=item.depth, shard=entry.shard)
        # No fence is needed for what does not fit: discovery only grows, and the entry ends with its own commit.
        ending.elsewhere += [(entry.shard, chunk) for chunk in ending.ahead]
        ending.ahead.clear()
        return ending

    def bury(self, entry: Entry, item: Item, reason: str, error: str) -> StageCommit:
        """Return the commit that makes the item a dead letter."""
        text = printable(f"{self._stage.line}: {item.url}\n{error}")[:ERROR_MAX_CHARS]
        return StageCommit(entry.id, Outcome.DEAD, (reason, text), host=_host(item))

    def internal_error(self, entry: Entry, item: Item, error: str) -> Ending:
        """Return how an item ends at which our own code failed: tried again, at last dead with the traceback."""
        return self._try_again(entry, item, "internal", error, self._policy.base_ms)

    def _try_again(self, entry: Entry, item: Item, reason: str, error: str, delay_ms: int) -> Ending:
        if item.attempt >= (self._stage.attempts or self._policy.attempts_max):
            return self._ending(self.bury(entry, item, reason, error))
        ending = self._ending(StageCommit(entry.id, Outcome.RETRY, (delay_ms,), host=_host(item)))
        ending.retry_delay_ms = delay_ms
        return ending

    @staticmethod
    def _ending(commit: StageCommit) -> Ending:
        return Ending(commit, time.monotonic())

    async def _lease_is_fresh(self) -> bool:
        """Wait for a confirmed heartbeat younger than half a lease; False after a whole one: the item goes back."""
        deadline = monotonic_ms() + self._lease_ms
        while self._board.beat_age_ms() > self._lease_ms // 2:
            if monotonic_ms() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    async def _handle(self, given: Any, depth: int, traced: NoSpan | None = None) -> Handled:
        started = time.monotonic()
        try:
            with traced or span("handle"):
                return await self._handler(given, depth=depth)
        finally:
            self._board.meters.observe(HANDLER_SECONDS, time.monotonic() - started)

    async def _call_batch(self, values: list[Any], indexes: list[int]) -> None:
        for index in indexes:
            self._board.begin(index)
        try:
            handled = await self._handle(values, 0, self._batch_span(indexes))
        finally:
            for index in indexes:
                self._board.rest(index)
        if handled.requests:
            raise StageError("a sink gave a request: make what follows links a stage", stage=self._stage.line)

    def _batch_span(self, indexes: list[int]) -> NoSpan | None:
        """Return the span of a call for the items at these places; None when none of them is followed."""
        followed = [trace for index in indexes if (trace := self._followed.get(index)) is not None]
        return followed[0].batch(followed, len(indexes)) if followed else None


def _host(item: Item) -> str:
    return split_url(item.url)[0]


class _Waiting(msgspec.Struct, eq=False):
    value: Any
    index: int
    ended: asyncio.Future[None] = msgspec.field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Batcher:
    """Gathers what the slots bring into batches, one call at a time; a failing one is halved to find the culprit."""

    def __init__(
        self, call: Callable[[list[Any], list[int]], Coroutine[Any, Any, None]], most: int, linger_s: float
    ) -> None:
        self._call = call
        self._most = most
        self._linger_s = linger_s
        self._gathered: list[_Waiting] = []
        self._is_full = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._part: list[_Waiting] = []
        """In the call that runs."""
        self._calling: asyncio.Task[None] | None = None

    async def do(self, value: Any, index: int) -> None:
        """Return once a batch with this value was taken.

        Raises:
            Retry, Drop, StageError: the function failed at this value alone.
        """
        waiting = _Waiting(value, index)
        self._gathered.append(waiting)
        if len(self._gathered) >= self._most:
            self._is_full.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="batches")
        try:
            await waiting.ended
        except asyncio.CancelledError:
            # Lost, or told to stop at once: what has not begun begins no more.
            if waiting in self._gathered:
                self._gathered.remove(waiting)
            elif self._calling is not None and all(one.ended.done() for one in self._part):
                self._calling.cancel()
            raise

    async def _run(self) -> None:
        while self._gathered:
            if len(self._gathered) < self._most:
                self._is_full.clear()
                try:
                    async with asyncio.timeout(self._linger_s):
                        await self._is_full.wait()
                except TimeoutError:
                    pass
            batch, self._gathered = self._gathered[: self._most], self._gathered[self._most :]
            await self._take(batch)

    async def _take(self, batch: list[_Waiting]) -> None:
        # Depth first: at most 2 n - 1 calls for n items that all fail.
        parts = [batch]
        while parts:
            part = [waiting for waiting in parts.pop() if not waiting.ended.done()]
            if not part:
                continue
            calling = asyncio.create_task(
                self._call([waiting.value for waiting in part], [waiting.index for waiting in part]), name="batch"
            )
            self._part, self._calling = part, calling
            await asyncio.wait((calling,))
            self._calling = None
            if calling.cancelled():
                continue
            if (error := calling.exception()) is not None:
                if len(part) == 1 or isinstance(error, Retry | Unfit):
                    # The whole batch asked to come again, say because a database is away: no item is to blame.
                    for waiting in part:
                        if not waiting.ended.done():
                            waiting.ended.set_exception(error)
                    continue
                half = len(part) // 2
                parts += part[half:], part[:half]
            else:
                for waiting in part:
                    if not waiting.ended.done():
                        waiting.ended.set_result(None)
