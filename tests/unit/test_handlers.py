"""What a handler does to the page it is given, however it ends."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from streamcrawl.errors import StageError
from streamcrawl.response import Drop, Request, Retry
from streamcrawl.work.handlers import Handler
from streamcrawl.work.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.response import Response

PAGE: Any = cast("Response", None)


def finds_nothing(_: Response) -> Any:
    return next(iter(()))


async def cancels_itself(_: Response) -> None:
    raise asyncio.CancelledError


def exits(_: Response) -> None:
    sys.exit(3)


async def exits_in_the_loop(_: Response) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", [finds_nothing, cancels_itself, exits, exits_in_the_loop])
async def test_odd_end_of_a_handler_is_an_error_of_its_own(function: Callable[[Response], Any]) -> None:
    # StopIteration was waited for until the time limit, a cancellation passed for a lost lease, an exit took the worker
    # along, and everything in its hands.
    with pytest.raises(StageError, match=function.__name__):
        await Handler(function, timeout_ms=60_000)(PAGE)


@pytest.mark.parametrize("word", [Drop("sold_out"), Retry(after_s=1)])
async def test_word_that_is_returned_and_not_raised_is_said_so(word: Exception) -> None:
    def returns(_: Response) -> Any:
        return word

    # Taken for an item, it "cannot be written as JSON": nobody would guess from that what to do.
    with pytest.raises(StageError, match=f"{type(word).__name__} was given as an item: raise it"):
        await Handler(returns, timeout_ms=60_000)(PAGE)


async def hidden(_: Response) -> dict[str, int]:
    return {"a": 1}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda _: itertools.repeat(Request("http://a.test/")), "cannot be written as JSON"),
        (lambda _: (Request("http://a.test/") for _ in itertools.count()), "more than 100,000 requests came of one"),
        (lambda _: ({} for _ in itertools.count()), "more than 10,000 items came of one"),
        (lambda _: ["x" * 10_000_000] * 4, "more than 32,000,000 bytes came of one"),
        (lambda _: Request("ftp://a.test/"), "'ftp://a.test/' is not an http"),
        (lambda _: hidden(_), "the handler is async, and a decorator or a lambda around it hides that"),
    ],
)
async def test_what_cannot_be_taken_is_said_in_a_line(function: Callable[[Response], Any], why: str) -> None:
    with pytest.raises(StageError, match=why) as caught:
        await Handler(function, timeout_ms=60_000, route=Program("a").router("page", ["out"]))(PAGE)
    assert "\n" not in str(caught.value), "there is no frame of the handler in it"


def test_meta_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ValueError, match="meta cannot be written as JSON: "):
        Request("http://a.test/", meta={"x": object()})


async def test_cancellation_of_the_slot_passes() -> None:
    begun = asyncio.Event()

    async def waits(_: Response) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    call = asyncio.ensure_future(Handler(waits, timeout_ms=60_000)(PAGE))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_hanging_thread_is_named_and_reported() -> None:
    release, stuck = threading.Event(), []

    def hangs(_: Response) -> None:
        release.wait()

    handler = Handler(hangs, timeout_ms=50, on_stuck=lambda: stuck.append(True))
    try:
        with pytest.raises(StageError, match=r"release\.wait\(\)"):
            await handler(PAGE)
    finally:
        release.set()
    assert stuck == [True]


async def test_as_many_sync_handlers_run_at_a_time_as_there_are_slots() -> None:
    slots = 48  # more than the threads that asyncio would have
    together = threading.Barrier(slots)

    def waits_for_all(_: Response) -> None:
        together.wait(timeout=30)

    handler = Handler(waits_for_all, timeout_ms=60_000, threads=slots)
    await asyncio.gather(*(handler(PAGE) for _ in range(slots)))
