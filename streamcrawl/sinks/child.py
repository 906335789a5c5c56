"""The sink role of a worker child: one output file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamcrawl.errors import StoreError
from streamcrawl.rules.task import Outcome
from streamcrawl.sinks.jsonl import JsonlFile, SinkBusy
from streamcrawl.sinks.loop import SinkLoop
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.loops import sleep_or_stop
from streamcrawl.work.meters import BATCH_SIZE, COMMITS, HANDLER_SECONDS, ITEM, TASK_LATENCY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.store.frontier import Entry
    from streamcrawl.work.child import Child

LOCK_LOOK_S: Final = 0.1
LOCK_WAIT_LEASES: Final = 4
"""A predecessor that we replaced finds out within two leases; whoever holds the file longer is none."""


async def run_sink(child: Child) -> None:
    """Write the records of one sink until the supervisor says stop, or another writer has replaced this one.

    Raises:
        SinkError: the file cannot be used as it is; the message says what would mend it.
        CrawlGone: the crawl is over for this epoch.
    """
    spec = child.spec
    file = await _open_file(child)
    if file is None:
        return
    loop = SinkLoop(
        child.crawl,
        child.reader,
        file,
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
        await loop.run(child.stop)
    finally:
        watching.cancel()


def _count(child: Child, entries: Sequence[Entry], took_s: float) -> None:
    meters = child.meters
    meters.observe(BATCH_SIZE, len(entries))
    meters.observe(HANDLER_SECONDS, took_s)
    meters.add(COMMITS, len(entries), ITEM, Outcome.DONE.value)
    for entry in entries:
        waited_s = child.clock.since_s(int(entry.id.partition("-")[0]))
        if waited_s is not None:
            meters.observe(TASK_LATENCY, waited_s)


async def _open_file(child: Child) -> JsonlFile | None:
    """Return the file once no predecessor writes to it any more; None when stopped before."""
    path = Path(child.spec.sink_path)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOCK_WAIT_LEASES * child.spec.settings.lease_ms / 1000
    while not child.stop.is_set():
        try:
            return JsonlFile(path, lock_wait_s=0)
        except SinkBusy:
            if loop.time() > deadline:
                raise
        await sleep_or_stop(child.stop, LOCK_LOOK_S)
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
