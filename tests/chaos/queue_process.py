"""A consumer or a producer of a TaskQueue as a process of its own, for tests to kill.

`python -m tests.chaos.queue_process URL NAME FILE` notes each item in a file before it settles it, and ends when the
queue is closed and empty; with `FIRST-END` in place of the file it puts these numbers, each by its id.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

from streamcrawl import LeaseLost, TaskQueue

CONCURRENCY = 8


async def consume(url: str, name: str, path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with TaskQueue(name, url, type=int, prefetch=4) as queue:

        async def work() -> None:
            async for handle in queue:
                os.write(log, b"%d\n" % handle.item)
                await asyncio.sleep(0.002)
                with suppress(LeaseLost):
                    if handle.item % 50 == 0 and handle.attempts == 1:
                        await queue.retry(handle, after_s=0.05)
                    else:
                        await queue.task_done(handle)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))


async def produce(url: str, name: str, first: int, end: int) -> None:
    async with TaskQueue(name, url, type=int) as queue:
        await asyncio.gather(*(queue.put(number, id=str(number)) for number in range(first, end)))


if __name__ == "__main__":
    url, name, what = sys.argv[1:]
    if "/" in what:
        asyncio.run(consume(url, name, what))
    else:
        asyncio.run(produce(url, name, *map(int, what.split("-"))))
