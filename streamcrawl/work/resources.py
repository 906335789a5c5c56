"""What a program's `on_start` functions open in a worker: before its first entry, and closed after its last."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from streamcrawl.work.loops import Log
    from streamcrawl.work.program import Program, Resource


async def open_resources(program: Program, stage: str, opened: AsyncExitStack, log: Log) -> None:
    """Open what workers of a stage need, in the order of declaration; `opened` closes it, the last first.

    Raises:
        StartError: one could not be opened; those before it are closed.
    """
    for resource in program.resources:
        if not resource.stages or stage in resource.stages:
            await resource.open()
            opened.push_async_callback(_close, resource, log)


async def _close(resource: Resource, log: Log) -> None:
    try:
        await resource.close()
    except Exception:
        # The work is done and committed: what fails now must not make the end of the worker look like a crash.
        log(f"{resource.name} failed at the end of a worker:\n{traceback.format_exc()}")
