"""The sink role of a worker child: one output."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import StoreError
from streamcrawl.rules.task import Outcome
from streamcrawl.sinks.loop import LOCK_WAIT_LEASES, SinkLoop
from streamcrawl.sinks.output import SinkBusy
from streamcrawl.sinks.targets import open_output, read_target
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.meters import BATCH_SIZE, COMMITS, HANDLER_SECONDS, ITEM, TASK_LATENCY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.sinks.output import Output
    from streamcrawl.store.frontier import Entry
    from streamcrawl.work.child import Child

LOCK_LOOK_S: Final = 0.1


async def run_sink(child: Child) -> None:
    """Write the records of one sink until the supervisor says stop, or another writer has replaced this one.

    Raises:
        SinkError: the output cannot be used as it is; the message says what would mend it.
        CrawlGone: the crawl is over for this epoch.
    """
    spec = child.spec
    output = await _open_output(child)
    if output is None:
        return
    loop = SinkLoop(
        child.crawl,
        child.reader,
        output,
        sink=spec.sink,
        consumer=spec.consumer,
        board=child.board,
        lease_ms=spec.settings.lease_ms,
        on_written=lambda entries, took_s: _count(child, entries, took_s),
        log=child.log,
    )
    child.event(event="ready")
    watching = asyncio.create_task(_watch_owner(child), name="owner")
    try:
        await loop.run(child.stop, ending=child.ending, now=child.now)
    finally:
        watching.cancel()
        await output.close()


def _count(child: Child, entries: Sequence[Entry], took_s: float) -> None:
    meters = child.meters
    meters.observe(BATCH_SIZE, len(entries))
    meters.observe(HANDLER_SECONDS, took_s)
    meters.add(COMMITS, len(entries), ITEM, Outcome.DONE.value)
    for entry in entries:
        waited_s = child.clock.since_s(int(entry.id.partition("-")[0]))
        if waited_s is not None:
            meters.observe(TASK_LATENCY, waited_s)


async def _open_output(child: Child) -> Output | None:
    """Return the output once no predecessor writes to it any more; None when stopped before.

    At the end of the crawl it is opened all the same: there may be something in it to finish.
    """
    target = read_target(child.spec.sink_target)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOCK_WAIT_LEASES * child.spec.settings.lease_ms / 1000
    while child.ending.is_set() or not child.stop.is_set():
        try:
            return open_output(target, child.spec.settings)
        except SinkBusy:
            if loop.time() > deadline:
                raise
        await sleep_or_stop(child.now if child.ending.is_set() else child.stop, LOCK_LOOK_S)
        if child.now.is_set():
            break
    return None


async def _watch_owner(child: Child) -> None:
    """Stop when another writer was entered for the sink.

    A commit would say so too, but one that has nothing to write makes none, and would keep the file locked: after its
    supervisor was paused for a lease, say.
    """
    owner_field = f"{child.spec.sink}:owner"
    while not await sleep_or_stop(child.stop, child.spec.settings.lease_ms / 1000):
        try:
            with mapped_errors():
                owner: Any = await child.client.hget(child.crawl.first.keys.offsets, owner_field)
        except StoreError:
            continue  # the loop meets the same error, and knows what it means
        if owner is not None and owner.decode() != child.spec.consumer:
            child.stop.set()
