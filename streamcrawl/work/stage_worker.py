"""The stage role of a worker child: one stage, or sink, of a program.

read -> slots -> (offers ->) commit, as a fetch worker does (worker.py), and due beside them: of each but the first two
one for each shard. A stage has processes of its own, so that a handler which burns the processor, or dies, slows and
takes nothing but its stage.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from streamcrawl.rules.scope import Scope
from streamcrawl.store.frontier import stage_stream
from streamcrawl.store.restarts import restarts_of
from streamcrawl.work.adapt import slots_at_first
from streamcrawl.work.commit import StageCommitLoop
from streamcrawl.work.due import DueLoop
from streamcrawl.work.meters import STAGE
from streamcrawl.work.offers import OffersLoop
from streamcrawl.work.program import load_program
from streamcrawl.work.read import ReadLoop
from streamcrawl.work.resources import open_resources
from streamcrawl.work.slots import Slots
from streamcrawl.work.stage_work import HeldBackStage, StageWork
from streamcrawl.work.traces import open_traces
from streamcrawl.work.worker import Over, adapting, be_replaced, run_loops

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Frontier
    from streamcrawl.work.child import Child

DISPATCH_MAX: Final = 100
"""Tasks moved by the commit of new links at most: 100 take about a millisecond of the server."""


class _ShardLoops:
    """What a worker runs for one shard."""

    def __init__(self, child: Child, shard: int, frontier: Frontier, work: StageWork, held: HeldBackStage) -> None:
        log, forget = child.log, work.seen.clear
        self.due = DueLoop(frontier, on_moved=lambda: None, log=log)
        self.commit = StageCommitLoop(
            frontier,
            child.spec.consumer,
            child.spec.stage,
            dispatch_limit=DISPATCH_MAX,
            on_throttled=lambda names: held.tell(shard, names),
            on_outage=forget,
            meters=child.meters,
            log=log,
        )
        self.offers = OffersLoop(frontier, on_outage=forget, log=log)


async def run_stage(child: Child) -> None:
    """Run the loops until the supervisor says stop, then end them in the order in which they feed each other.

    Raises:
        ConfigError: the program does not load, or has no such stage.
        CrawlGone: the crawl is over for this epoch.
        StoreError: a refusal that waiting does not mend.
    """
    spec, settings, crawl = child.spec, child.settings, child.crawl
    program = load_program(spec.app)
    stage = program.stage(spec.stage)
    over = Over(child)
    async with contextlib.AsyncExitStack() as opened:
        await open_resources(program, stage.name, opened, child.log)
        work = StageWork(
            settings,
            Scope.from_state(settings, spec.scope),
            crawl,
            child.board,
            program,
            stage,
            spec.sinks,
            on_stuck=lambda: be_replaced(child),
        )
        held = HeldBackStage(crawl, program.fed_by(stage, spec.sinks))
        shards = [_ShardLoops(child, shard, frontier, work, held) for shard, frontier in enumerate(crawl)]
        traces = open_traces(child, [one.line for one in program.stages])
        if traces is not None:
            opened.push_async_callback(traces.close)
        slots = Slots(
            crawl,
            work,
            [shard.commit for shard in shards],
            [shard.offers for shard in shards],
            child.board,
            concurrency=slots_at_first(STAGE, stage.slots),
            stream=stage_stream(stage.line),
            on_retry=lambda shard, delay_ms: shards[shard].due.hint(delay_ms),
            on_over=over.note,
            clock=child.clock,
            log=child.log,
            traces=traces,
        )
        read = ReadLoop(
            crawl,
            child.reader,
            spec.consumer,
            child.board,
            lease_ms=settings.lease_ms,
            free=slots.free,
            wait_free=slots.wait_free,
            put=slots.put,
            on_outage=work.seen.clear,
            log=child.log,
            stream=stage_stream(stage.line),
            held=held,
        )

        def apply(now: Settings) -> None:
            work.apply(now, Scope.from_state(now, spec.scope))

        child.on_lost, child.on_settings = slots.lose, apply
        if child.settings is not settings:
            apply(child.settings)
        for client in (child.client, child.reader):
            restarts_of(client).listen(work.seen.clear)
            restarts_of(client).listen(read.note_restart)
        child.event(event="ready")
        await run_loops(
            child,
            read,
            slots,
            feeding=[*(shard.due for shard in shards), *adapting(child, slots, stage.slots, held.is_held_anywhere)],
            offers=[shard.offers for shard in shards],
            commits=[shard.commit for shard in shards],
            over=over,
        )
