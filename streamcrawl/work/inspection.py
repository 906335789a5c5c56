"""What a process is busy with, told by itself: its asyncio tasks with their stacks, and where its memory comes from.

Bounded answers for people who look (`/debug/tasks`, `/debug/memory`); nothing here runs unless somebody asks, but for
the stamp that `stamped_tasks` puts on each new task, half a microsecond.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import time
import tracemalloc
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import FrameType

TASKS_MAX: Final = 1000
"""Tasks in an answer, the oldest; a process has one for each slot and some dozen loops."""
DEPTH_MAX: Final = 30
"""Frames of a stack."""
SAMPLE_MAX_S: Final = 30.0
PLACES_MAX: Final = 25
FRAMES_KEPT: Final = 3
_ROOTS: Final = tuple(
    f"{folder}/"
    for folder in (PurePath(__file__).parents[2], sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))
)
"""What the path of a file is shown without: ours, those of packages and of Python."""


class _Stamped(asyncio.Task[Any]):
    """A task that knows when it began."""

    __slots__ = ("began",)
    began: float


def stamped_tasks(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **kwargs: Any
) -> asyncio.Task[Any]:
    """Make a task that knows its age: for `loop.set_task_factory`."""
    task = _Stamped(coro, loop=loop, **kwargs)
    task.began = time.monotonic()
    return task


def describe_tasks() -> dict[str, Any]:
    """Return the tasks of this process's event loop: how many, and the oldest with name, age in s and stack.

    The age is None for a task that was begun before tasks were stamped. A stack is the line of awaits, outermost first.
    """
    now, current = time.monotonic(), asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not current]
    began = {task: getattr(task, "began", None) for task in tasks}
    tasks.sort(key=lambda task: (began[task] is not None, began[task] or 0.0))
    rows = []
    for task in tasks[:TASKS_MAX]:
        since = began[task]
        age_s = None if since is None else round(now - since, 3)
        rows.append({"name": task.get_name(), "age_s": age_s, "stack": _stack(task)})
    return {"count": len(tasks), "tasks": rows}


def _stack(task: asyncio.Task[Any]) -> list[str]:
    lines: list[str] = []
    waits: Any = task.get_coro()
    # `get_stack` shows the outermost coroutine only; each one names the next that it waits for.
    while waits is not None and len(lines) < DEPTH_MAX:
        frame: FrameType | None = getattr(waits, "cr_frame", None) or getattr(waits, "gi_frame", None)
        if frame is None:
            lines.append(f"waits for {type(waits).__name__}")
            break
        code = frame.f_code
        lines.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)
    return lines


def _short(path: str) -> str:
    return next((path.removeprefix(root) for root in _ROOTS if path.startswith(root)), path)


async def sample_memory(seconds: float) -> dict[str, Any]:
    """Trace what is allocated for some seconds, at most SAMPLE_MAX_S, and return what of it is still held, by place.

    Meanwhile the process is about half as fast. Bytes; the places that hold most first, at most PLACES_MAX.
    """
    if tracemalloc.is_tracing():
        return {"error": "a sample is being taken already: ask again when it is done"}
    tracemalloc.start(FRAMES_KEPT)
    try:
        await asyncio.sleep(min(max(0.0, seconds), SAMPLE_MAX_S))
        held, most = tracemalloc.get_traced_memory()
        statistics = tracemalloc.take_snapshot().statistics("traceback")
    finally:
        tracemalloc.stop()
    places = [
        {
            "bytes": one.size,
            "count": one.count,
            "stack": [f"{_short(frame.filename)}:{frame.lineno}" for frame in one.traceback],
        }
        for one in statistics[:PLACES_MAX]
    ]
    blocks = sys.getallocatedblocks()
    return {"held_bytes": held, "held_at_most_bytes": most, "blocks_of_the_process": blocks, "places": places}
