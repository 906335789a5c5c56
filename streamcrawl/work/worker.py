"""The fetch role of a worker child: its loops, put together.

read -> slots -> (offers to other shards ->) commit, and beside them dispatch and due: of each but the first two one for
each shard.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from streamcrawl.rules.addresses import Inside
from streamcrawl.rules.scope import Scope
from streamcrawl.store.frontier import FETCH_STREAM
from streamcrawl.store.restarts import restarts_of
from streamcrawl.web.exchange import is_archive
from streamcrawl.web.fetcher import Fetcher
from streamcrawl.work.adapt import AdaptLoop, slots_at_first
from streamcrawl.work.commit import CommitLoop
from streamcrawl.work.dispatch import DispatchLoop
from streamcrawl.work.due import DueLoop
from streamcrawl.work.logs import Said
from streamcrawl.work.meters import FETCH
from streamcrawl.work.offers import OffersLoop
from streamcrawl.work.page_work import PageWork
from streamcrawl.work.program import PAGE, load_object, load_program
from streamcrawl.work.read import ReadLoop
from streamcrawl.work.resources import open_resources
from streamcrawl.work.revisit import RevisitLoop
from streamcrawl.work.slots import Slots
from streamcrawl.work.stall import StallWatch
from streamcrawl.work.traces import open_traces

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from typing import Any

    from streamcrawl.errors import StreamcrawlError
    from streamcrawl.settings import Settings, SlotLimits
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.web.fetcher import Fetching
    from streamcrawl.work.child import Child
    from streamcrawl.work.read import HeldBack

DISPATCH_MAX: Final = 100
"""Tasks moved by one call at most: 100 take about a millisecond of the server."""


class _ShardLoops:
    """What a worker runs for one shard."""

    def __init__(self, child: Child, frontier: Frontier, work: PageWork) -> None:
        log, forget = child.log, work.seen.clear
        self.dispatch = DispatchLoop(frontier, limit=DISPATCH_MAX, log=log)
        self.due = DueLoop(frontier, on_moved=self.dispatch.hurry, log=log)
        self.revisit = RevisitLoop(
            frontier,
            is_on=lambda: child.settings.revisit_ms is not None,
            on_made=self.dispatch.hurry,
            log=log,
        )
        self.commit = CommitLoop(
            frontier,
            child.spec.consumer,
            dispatch_limit=DISPATCH_MAX,
            on_dispatched=self.dispatch.hint,
            on_outage=forget,
            meters=child.meters,
            log=log,
        )
        self.offers = OffersLoop(frontier, on_outage=forget, log=log)

    def hint(self, delay_ms: int) -> None:
        """Something of ours was committed that is due after `delay_ms`, delayed or to be visited again."""
        self.due.hint(delay_ms)
        self.revisit.hint(delay_ms)


class Over:
    """Why a worker ends that nobody told to, found in a slot: the end of the crawl's epoch, or Unfit."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.error: StreamcrawlError | None = None

    def note(self, error: StreamcrawlError) -> None:
        """Stop the worker, which raises the first of these errors when its loops have ended."""
        self.error = self.error or error
        self._child.stop.set()


async def run_worker(child: Child) -> None:
    """Run the loops until the supervisor says stop, then end them in the order in which they feed each other.

    Raises:
        CrawlGone: the crawl is over for this epoch.
        StoreError: a refusal that waiting does not mend.
    """
    spec, settings, crawl = child.spec, child.settings, child.crawl
    program = load_program(spec.app) if spec.app else None
    over = Over(child)
    stalls = StallWatch()
    is_archiving = any(map(is_archive, spec.sinks))
    inside = Inside.of_state(spec.scope)
    async with AsyncExitStack() as opened:
        if program is not None:
            await open_resources(program, PAGE, opened, child.log)
        fetcher = await opened.enter_async_context(
            _fetcher_of(spec.fetcher)(settings, inside=inside, is_archiving=is_archiving, log=child.log)
        )
        work = PageWork(
            settings,
            Scope.from_state(settings, spec.scope),
            crawl,
            fetcher,
            child.board,
            spec.sinks,
            stalls=stalls,
            on_stuck=lambda: be_replaced(child),
            program=program,
        )

        def apply(now: Settings) -> None:
            fetcher.apply(now)
            work.apply(now, Scope.from_state(now, spec.scope))

        shards = [_ShardLoops(child, frontier, work) for frontier in crawl]
        limits = settings.concurrency
        traces = open_traces(child, [] if program is None else [stage.line for stage in program.stages])
        if traces is not None:
            opened.push_async_callback(traces.close)
        slots = Slots(
            crawl,
            work,
            [shard.commit for shard in shards],
            [shard.offers for shard in shards],
            child.board,
            concurrency=slots_at_first(FETCH, limits),
            on_retry=lambda shard, delay_ms: shards[shard].hint(delay_ms),
            on_over=over.note,
            clock=child.clock,
            log=child.log,
            traces=traces,
        )
        read = read_into(child, slots, work.seen.clear)
        feeding = [
            *(loop for shard in shards for loop in (shard.dispatch, shard.due, shard.revisit)),
            *adapting(child, slots, limits, lambda: any(shard.dispatch.is_throttled for shard in shards)),
        ]
        child.on_settings = apply
        if child.settings is not settings:
            apply(child.settings)
        child.event(event="ready")
        watching = asyncio.create_task(stalls.run(), name="StallWatch")
        try:
            await run_loops(
                child,
                read,
                slots,
                feeding=feeding,
                # With a single shard nothing lies elsewhere.
                offers=[shard.offers for shard in shards] if len(shards) > 1 else [],
                commits=[shard.commit for shard in shards],
                over=over,
                after_slots=work.addresses.close,
            )
        finally:
            watching.cancel()


def _fetcher_of(path: str) -> type[Fetching]:
    return load_object(path, "fetcher") if path else Fetcher


def read_into(
    child: Child,
    slots: Slots,
    forget: Callable[[], None],
    *,
    stream: str = FETCH_STREAM,
    held: HeldBack | None = None,
) -> ReadLoop:
    """Return the loop that reads what the slots work at, which from now on hear what they have lost.

    Args:
        forget: Called when the store may have lost what this worker believes to be in it.
        stream: As of ReadLoop, and held too.
    """
    read = ReadLoop(
        child.crawl,
        child.reader,
        child.spec.consumer,
        child.board,
        lease_ms=child.spec.settings.lease_ms,
        free=slots.free,
        wait_free=slots.wait_free,
        put=slots.put,
        on_outage=forget,
        log=child.log,
        stream=stream,
        held=held,
    )
    child.on_lost = slots.lose
    for client in (child.client, child.reader):
        # An outage may pass without an error: redis-py replaces a connection that was closed while it was idle.
        restarts_of(client).listen(forget)
        restarts_of(client).listen(read.note_restart)
    return read


async def run_loops(
    child: Child,
    read: ReadLoop,
    slots: Slots,
    *,
    feeding: Sequence[DispatchLoop | DueLoop | RevisitLoop | AdaptLoop],
    offers: Sequence[OffersLoop],
    commits: Sequence[CommitLoop],
    over: Over,
    after_slots: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run the loops of a worker until it is told to stop or one of them fails, then end them in order.

    Args:
        feeding: Those that bring work into the streams, and slots to work at it.
        over: Where the slots say that the worker cannot go on.
        after_slots: What is to be given back once no slot runs any more.

    Raises:
        CrawlGone, StoreError, Unfit: as a loop or a slot met them.
    """
    reading = _start(read.run(), "ReadLoop")
    loops = [reading, *(_start(loop.run(), type(loop).__name__) for loop in (*commits, *feeding, *offers))]
    stopping = _start(_wait(child.stop), "stop")
    try:
        await asyncio.wait((*loops, stopping), return_when=asyncio.FIRST_COMPLETED)
        # Reading ends first (a read in flight may still bring entries), then the slots, then the commits.
        read.stop()
        for feeder in feeding:
            feeder.stop()
        failed = [loop for loop in loops if loop.done() and loop.exception() is not None]
        if not reading.done():
            await asyncio.wait((reading,))
        hurry = _start(_hurry(child, slots), "hurry")
        await slots.stop(0.0 if child.now.is_set() or failed or over.error else child.grace_s)
        hurry.cancel()
        if after_slots is not None:
            await after_slots()
        for offer in offers:
            offer.stop()
        for commit in commits:
            commit.stop(give_up=True)
        await asyncio.wait(loops)
        for loop in loops:
            loop.result()
        if over.error is not None:
            # No loop came across it. Without a word the supervisor would start a successor.
            raise over.error
    finally:
        stopping.cancel()


def adapting(child: Child, slots: Slots, limits: SlotLimits, is_throttled: Callable[[], bool]) -> list[AdaptLoop]:
    """Return what adapts the slots of a child, for `run_loops`: nothing where their number is fixed."""
    if limits.is_fixed:
        return []
    loop = AdaptLoop(
        slots,
        limits,
        child.meters,
        role=child.spec.role,
        is_throttled=is_throttled,
        on_moved=lambda: child.event(event="slots"),
    )
    child.about = lambda: {"slots": loop.describe()}
    return [loop]


def be_replaced(child: Child) -> None:
    """End in order: a thread that hangs ends with its process only, and the supervisor starts another one."""
    if not child.stop.is_set():
        said = f"worker {child.spec.consumer}: a handler hangs in its thread; this process ends and is replaced"
        child.log(Said.warning(said))
        child.stop.set()


async def _hurry(child: Child, slots: Slots) -> None:
    await child.now.wait()
    await slots.cancel_all()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=name)
