"""Runs a command's coroutine so that Ctrl-C ends it, whatever stands in the way."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

AGAIN_S: Final = 1.0
"""Until a command that did not end is cancelled again; what it closes at its end takes less."""

_Result = TypeVar("_Result")


def run(command: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, as `asyncio.run` does.

    asyncio cancels it once at Ctrl-C, and whatever the command awaits may lose that one (a driver that awaits by
    asyncio.wait_for does before Python 3.12): a command that waits for hours would wait on.

    Raises:
        KeyboardInterrupt: it was interrupted, and ended by that.
    """
    return asyncio.run(_interruptible(command))


async def _interruptible(command: Coroutine[Any, Any, _Result]) -> _Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(command)
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = True
        if not task.done():
            task.cancel()
            loop.call_later(AGAIN_S, interrupt)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # begun in the background of a script
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
