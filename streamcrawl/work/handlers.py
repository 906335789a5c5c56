"""Runs a handler of the user's, of pages, items or batches, and collects what it gives: requests and items.

Sync ones run in a thread, so a slow one does not stop the loop. It is ended after
`handler_timeout`, and its error carries the stack where it hung: an async one is cancelled; the thread of a sync one
cannot be ended but with its process, which then asks to be replaced. One that keeps the loop from running as well is
ended by the supervisor, which kills the process.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from streamcrawl.errors import ConfigError, StageError, Unfit
from streamcrawl.response import Drop, Request, Response, Retry
from streamcrawl.rules.urls import canonical_url, fingerprint, fingerprint_hex
from streamcrawl.work.program import PAGE, load_object
from streamcrawl.work.traces import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamcrawl.rules.task import CrawlTask
    from streamcrawl.web.fetcher import Answer

ERROR_MAX_CHARS: Final = 4000
"""Of a traceback in a dead letter; the end is kept, where the cause stands."""


ITEMS_MAX: Final = 10_000
"""Items of one page or item, each counted for every stream that it goes to: so many take the server some 45 ms."""
REQUESTS_MAX: Final = 100_000
"""Of one page or item: twice the links that a page may have. A generator without an end would fill the memory."""
ITEMS_MAX_BYTES: Final = 32_000_000
"""Of one page or item, for each stream: they travel in one call, and what waits of a stage is bounded by 64 MB."""


class PageRecord(msgspec.Struct, frozen=True):
    """The record of a page as sinks write it; the fields are public (README, "The record of a page")."""

    url: str
    final_url: str
    status: int
    depth: int
    referrer: str | None
    fetched_at: str
    elapsed_ms: int
    content_type: str | None
    charset: str | None
    bytes: int
    title: str | None
    links: int
    attempts: int
    redirects: list[str]
    fingerprint: str


class Handled(msgspec.Struct):
    """What a handler gave: requests for the frontier, each with its canonical URL, and what is written of its items."""

    requests: list[Request] = msgspec.field(default_factory=list)
    items: list[str | bytes] = msgspec.field(default_factory=list)
    """Flat: stage or sink, record, …"""
    bytes: int = 0
    """Of these records."""


def page_record(task: CrawlTask, answer: Answer, response: Response, hops: list[str]) -> PageRecord:
    page = response.page
    return PageRecord(
        url=task.url,
        final_url=answer.url,
        status=answer.status,
        depth=task.depth,
        referrer=task.referrer,
        fetched_at=datetime.now(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        elapsed_ms=answer.elapsed_ms,
        content_type=answer.content_type,
        charset=response.charset if answer.body else None,
        bytes=len(answer.body),
        title=page.title,
        links=len(page.links) + page.links_cut,
        attempts=task.attempt,
        redirects=[*task.redirects, *hops],
        fingerprint=fingerprint_hex(fingerprint(task.url)),
    )


def load_handler(path: str) -> Callable[[Response], Any]:
    """Return the function named by `module:function`.

    Raises:
        ConfigError: there is no such module or function.
    """
    handler = load_object(path, "handler")
    if not callable(handler):
        raise ConfigError(f"handler {path!r} is not a function")
    return handler  # type: ignore[no-any-return]


class Handler:
    """Calls one handler function, whatever its shape."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout_ms: int,
        threads: int = 1,
        on_stuck: Callable[[], None] = lambda: None,
        stage: str = PAGE,
        route: Callable[[Any, int], list[str | bytes]] = lambda item, depth: [],
    ) -> None:
        """Prepare the calls of `function`.

        Args:
            function: A handler of any shape.
            timeout_ms: Longest time of one call.
            threads: Calls at a time of a sync handler.
            on_stuck: Called when a sync handler passed its time: its thread stays until the process ends.
            stage: Where it belongs to, for its errors.
            route: Says what is to be written of an item, from its depth; see Program.router.
        """
        self._function = function
        self.timeout_ms = timeout_ms
        """Of the calls that begin from now on."""
        self._on_stuck = on_stuck
        self._stage = stage
        self._route = route
        self._is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        # Threads of our own, one for each slot: in the few of asyncio a page would wait behind slow ones, its time
        # running, and asyncio's are waited for at the end of the loop.
        self._threads = None if self._is_async else ThreadPoolExecutor(threads, "handler")

    async def __call__(self, given: Any, *, depth: int = 0) -> Handled:
        """Run the handler to its end with a page, an item or a batch, whose page was so deep.

        Raises:
            Retry, Drop: as the handler raised them.
            Unfit: it asks for what cannot be had in this run.
            StageError: it raised anything else, passed its time, or gave what cannot be taken; the message holds the
                stack, where there is one of the handler.
        """
        call = _Call()
        running = asyncio.ensure_future(self._run(given, call, depth))
        try:
            done, _ = await asyncio.wait((running,), timeout=self.timeout_ms / 1000)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if not done:
            where = _stack_of(running) if self._is_async else call.stack()
            running.cancel()
            await asyncio.wait((running,), timeout=1.0)
            if not self._is_async:
                self._on_stuck()
            # The cause last, as in a traceback: lists show that line.
            raise StageError(
                f"it stood at:\n{where.rstrip()}\nthe handler passed its {self.timeout_ms / 1000:g} s and was ended",
                stage=self._stage,
            )
        try:
            return running.result()
        except (Retry, Drop, Unfit, StageError):
            raise
        except (Exception, asyncio.CancelledError) as error:
            # A cancellation of its own making: taken for ours, the page would be let go as lost, and a crash counted.
            text = "".join(traceback.format_exception(error)).strip()
            raise StageError(text[-ERROR_MAX_CHARS:], stage=self._stage) from error

    async def _run(self, what: Any, call: _Call, depth: int) -> Handled:
        try:
            return await self._collect(what, call, depth)
        except (SystemExit, KeyboardInterrupt) as error:
            # A library that gives up by sys.exit(). These go through every task and end the worker, with all it has.
            raise RuntimeError(f"the handler raised {type(error).__name__}") from error

    async def _collect(self, what: Any, call: _Call, depth: int) -> Handled:
        handled = Handled()
        if self._threads is not None:
            loop = asyncio.get_running_loop()
            # What a function traces by itself belongs to its task; a copy for each call costs what few need.
            collect = partial(call.collect, self._function, what)
            run = collect if current() is None else partial(copy_context().run, collect)
            for thing in await loop.run_in_executor(self._threads, run):
                self._add(handled, thing, depth)
            return handled
        given = self._function(what)
        if inspect.isasyncgen(given):
            async for thing in given:
                self._add(handled, thing, depth)
            return handled
        for thing in _as_things(await given):
            self._add(handled, thing, depth)
        return handled

    def _add(self, handled: Handled, thing: Any, depth: int) -> None:
        if isinstance(thing, Retry | Drop):
            raise self._refused(f"{type(thing).__name__} was given as an item: raise it")
        if inspect.iscoroutine(thing) or inspect.isasyncgen(thing):
            if inspect.iscoroutine(thing):
                thing.close()
            raise self._refused("the handler is async, and a decorator or a lambda around it hides that: use async def")
        if not isinstance(thing, Request):
            routed = self._route(thing, depth)
            handled.items += routed
            handled.bytes += sum(map(len, routed[1::2]))
            if len(handled.items) > 2 * ITEMS_MAX:
                raise self._refused(f"more than {ITEMS_MAX:,} items came of one: they are written in one step")
            if handled.bytes > ITEMS_MAX_BYTES:
                raise self._refused(
                    f"items of more than {ITEMS_MAX_BYTES:,} bytes came of one, counted for each stream they go to: "
                    "keep what is large in files, and their names in the items"
                )
            return
        url = canonical_url(thing.url)
        if url is None:
            raise self._refused(f"{thing.url!r} is not an http(s) URL")
        if len(handled.requests) == REQUESTS_MAX:
            raise self._refused(f"more than {REQUESTS_MAX:,} requests came of one")
        handled.requests.append(thing if url == thing.url else msgspec.structs.replace(thing, url=url))

    def _refused(self, why: str) -> StageError:
        """Return the error of what a handler gave: no frame of its own is to be shown, it is over or suspended."""
        return StageError(why, stage=self._stage)


class _Call:
    """One call of a sync handler, which knows its thread."""

    def __init__(self) -> None:
        self._thread: int | None = None

    def collect(self, function: Callable[..., Any], what: Any) -> list[Any]:
        self._thread = threading.get_ident()
        try:
            # In the thread to the end: a sync generator does its work while it is iterated.
            return list(islice(_as_things(function(what)), ITEMS_MAX + REQUESTS_MAX + 1))
        except StopIteration as error:
            # A `next()` that found nothing. No future takes it, so whoever waits for this call would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error

    def stack(self) -> str:
        """Return where the call stands now."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame))[-ERROR_MAX_CHARS:] if frame is not None else ""


def _as_things(given: Any) -> Any:
    if given is None:
        return ()
    if inspect.isgenerator(given) or isinstance(given, list | tuple):
        return given
    return (given,)


def _stack_of(running: asyncio.Future[Any]) -> str:
    lines: list[str] = []
    frames = running.get_stack() if isinstance(running, asyncio.Task) else []
    for frame in frames:
        lines += traceback.format_stack(frame, limit=1)
    # A coroutine awaited by the task hangs deeper than the task's own frame.
    awaited: Any = running.get_coro() if isinstance(running, asyncio.Task) else None
    while awaited is not None:
        inner: Any = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if inner is not None and inner not in frames:
            lines += traceback.format_stack(inner, limit=1)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
    return "".join(lines)[-ERROR_MAX_CHARS:]
