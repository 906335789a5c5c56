"""What `streamcrawl status NAME --watch` does: shows the status again and again, and changes nothing.

Start at `watch_status`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from streamcrawl.cli.options import write
from streamcrawl.cli.store import existing_store
from streamcrawl.errors import ConfigError, ExitCode, StoreUnavailable
from streamcrawl.ops.status import read_status, span, status_lines
from streamcrawl.work.loops import sleep_or_stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamcrawl.cli.store import Store
    from streamcrawl.ops.status import Status

INTERVAL_MIN_MS: Final = 100
"""Ten looks a second cost the server a hundredth of its time; more than that nobody can read."""


def watch_status(name: str | None, redis_url: str | None, *, interval_ms: int, is_json: bool) -> ExitCode:
    """Show the status until a signal comes, the crawl is deleted, or nobody reads any more.

    Raises:
        ConfigError: no name, an interval that is too short, no such crawl.
        StoreError: the first look failed.
    """
    if name is None:
        raise ConfigError("say which crawl to watch: streamcrawl status NAME --watch")
    if interval_ms < INTERVAL_MIN_MS:
        raise ConfigError(f"--interval {interval_ms}ms is too short; give {INTERVAL_MIN_MS}ms or more")
    return asyncio.run(_watch(name, redis_url, interval_ms / 1000, is_json))


class _Screen(Protocol):
    """Where the looks go; each method returns whether somebody still reads."""

    def show(self, status: Status) -> bool: ...

    def show_outage(self, name: str, error: StoreUnavailable, for_ms: int) -> bool: ...

    def say(self, name: str, event: str, text: str) -> None: ...


async def _watch(name: str, redis_url: str | None, interval_s: float, is_json: bool) -> ExitCode:
    stop = asyncio.Event()
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_, stop.set)
    async with existing_store(redis_url, name) as store:
        with _screen(is_json) as screen:
            status = await read_status(store.client, name)
            if store.embedded is not None:
                # Its server was started for this look; held for longer it would be in the way of the crawl's own.
                screen.show(status)
                screen.say(name, "resting", f"crawl {name} is not running: there is nothing to watch")
                return ExitCode.DONE
            down_since: float | None = None
            is_read = screen.show(status)
            while is_read and not await sleep_or_stop(stop, interval_s):
                try:
                    found = await _unless(stop, store, name)
                except StoreUnavailable as error:
                    if redis_url is None and not await _is_listening(store):
                        screen.say(name, "stopped", f"crawl {name} is not running any more")
                        break
                    down_since = time.monotonic() if down_since is None else down_since
                    is_read = screen.show_outage(name, error, int((time.monotonic() - down_since) * 1000))
                except ConfigError:
                    screen.say(name, "deleted", f"crawl {name} was deleted")
                    break
                else:
                    down_since = None
                    if found is not None:
                        is_read = screen.show(found)
    return ExitCode.DONE


async def _unless(stop: asyncio.Event, store: Store, name: str) -> Status | None:
    """Return the status; None when it is to stop before there is an answer, which a dead link may never give."""
    reading = asyncio.create_task(read_status(store.client, name), name="look")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        for task in (reading, stopping):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)


async def _is_listening(store: Store) -> bool:
    """Return whether an embedded server is still there: it ends with its crawl."""
    try:
        _, writer = await asyncio.open_unix_connection(unquote(urlsplit(store.url).path))
    except OSError:
        return False
    writer.close()
    return True


@contextmanager
def _screen(is_json: bool) -> Iterator[_Screen]:
    if is_json:
        yield _Json()
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False, screen=False, vertical_overflow="ellipsis") as live:
            yield _Terminal(live)
    else:
        yield _Blocks()


def _time() -> str:
    return time.strftime("%H:%M:%S")


def _outage(error: StoreUnavailable, for_ms: int) -> str:
    return f"Redis has not answered for {span(for_ms)}: {error}"


class _Blocks:
    """One block of lines after the other, for a log."""

    def show(self, status: Status) -> bool:
        return write(
            "\n".join((f"{_time()} {line}" if n == 0 else line) for n, line in enumerate(status_lines(status))) + "\n"
        )

    def show_outage(self, name: str, error: StoreUnavailable, for_ms: int) -> bool:
        return write(f"{_time()} crawl {name}: {_outage(error, for_ms)}\n")

    def say(self, name: str, event: str, text: str) -> None:
        write(f"{_time()} {text}")


class _Json:
    """One object a line, for programs."""

    def show(self, status: Status) -> bool:
        return self._write(event="status", **status.as_json())

    def show_outage(self, name: str, error: StoreUnavailable, for_ms: int) -> bool:
        return self._write(event="outage", name=name, for_ms=for_ms, error=str(error))

    def say(self, name: str, event: str, text: str) -> None:
        self._write(event=event, name=name)

    def _write(self, **document: Any) -> bool:
        return write(msgspec.json.encode(document).decode())


class _Terminal:
    """The same place on a terminal, painted anew each time."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._lines: Sequence[str] = ()

    def show(self, status: Status) -> bool:
        self._lines = status_lines(status)
        return self._paint(_time())

    def show_outage(self, name: str, error: StoreUnavailable, for_ms: int) -> bool:
        return self._paint(f"{_time()} {_outage(error, for_ms)}; this is what was before:")

    def say(self, name: str, event: str, text: str) -> None:
        self._paint(f"{_time()} {text}; this is what was before:")

    def _paint(self, head: str) -> bool:
        from rich.text import Text

        self._live.update(Text("\n".join((head, *self._lines)), no_wrap=True, overflow="ellipsis"), refresh=True)
        return True
