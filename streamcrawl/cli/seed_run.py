"""What `streamcrawl seed` does: feeds a file or standard input into a crawl, however long it is.

The life of one run: find the crawl, or create it, offer every line, say how many were new, known and refused. It may
die at any line: the crawl stays open, and the same command goes on at the cursor that it left (work/seeds.py).
Start at `seed`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from streamcrawl.cli import contact
from streamcrawl.cli.fleet import LINE_S, Showing
from streamcrawl.cli.opening import (
    SEEDS_FOR_SCOPE_MAX,
    check_databases,
    check_memory,
    check_outputs,
    merged_scope,
    new_sinks,
    seeds_state,
    settings_of_new_crawl,
)
from streamcrawl.cli.options import write
from streamcrawl.cli.store import MEMORY_DEFAULT_BYTES, crawl_store, embedded_names, existing_store
from streamcrawl.cli.stored import Stored, read_state, read_stored
from streamcrawl.cli.worker_run import compare_given
from streamcrawl.errors import ConfigError, ExitCode
from streamcrawl.ops.progress import clock
from streamcrawl.ops.status import counted, number
from streamcrawl.settings import Given, check_name, make_settings
from streamcrawl.sinks.targets import read_target
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.shards import join_crawl, open_crawl
from streamcrawl.store.tuning import encode_given, read_tuned, settings_of
from streamcrawl.store.upgrade import upgrade_crawl
from streamcrawl.work.logs import Level, Logger
from streamcrawl.work.loops import Patience, until_answered
from streamcrawl.work.seeds import COMPLAINTS_MAX, STDIN, SeedLines, SeedLoop, complaint, feeder_name, seed_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from streamcrawl.cli.store import Store
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards

NICE: Final = 5
LOOK_S: Final = 0.25
"""Between two updates of the line on a terminal."""


class SeedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed."""

    name: str
    path: str
    redis_url: str | None = None
    outputs: tuple[str, ...] = ()
    creates: bool = False
    keeps_open: bool = False
    is_json: bool = False
    is_quiet: bool = False
    log_format: str = "console"
    log_level: str = "info"
    settings: dict[str, Given] = msgspec.field(default_factory=dict)
    """What was given by option, environment or file."""
    place: tuple[str, ...] = ()
    """The options that say where the crawl is kept, as they must be typed again."""


def seed(options: SeedOptions) -> ExitCode:
    """Run the command; return its exit code.

    Raises:
        StreamcrawlError: one line for the person who typed it, with the exit code.
    """
    check_name(options.name)
    if options.creates:
        check_outputs(options.outputs)
    if options.path != STDIN:
        try:
            with open(options.path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{options.path} cannot be read: {error.strerror}") from error
    if options.redis_url is not None:
        # Feeding is never urgent. On the machine of the server it would otherwise take its core from it: single
        # commands then took 20 to 40 ms (two cores, a million URLs), and 6 to 8 ms so.
        os.nice(NICE)
    run = _Seeding(options)
    try:
        return asyncio.run(run.run())
    except asyncio.CancelledError:
        run.log(f"streamcrawl: interrupted; go on with: {run.command}")
        return ExitCode.STOPPED


class _Seeding:
    """One run of the command."""

    def __init__(self, options: SeedOptions) -> None:
        self._options = options
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._showing: Showing | None = None
        self._is_feeding = False
        self._logger = Logger(self._print, is_json=options.log_format == "json", least=Level(options.log_level))
        self._logger.fields["crawl"] = options.name
        self._is_shown = not (options.is_quiet or options.is_json or self._logger.is_json)
        """Whether a person watches it go on."""
        self.command: Final = shlex.join(["streamcrawl", "seed", options.name, options.path, *options.place])

    def log(self, text: str) -> None:
        """Say what somebody should know, with --quiet too."""
        self._logger(text)

    def _print(self, line: str) -> None:
        if self._showing is not None and self._is_shown:
            self._showing.say(line)
        else:
            click.echo(line, err=True)

    def tell(self, text: str) -> None:
        """Say what is good to know."""
        if not self._options.is_quiet:
            self.log(text)

    async def run(self) -> ExitCode:
        options = self._options
        self._main = asyncio.current_task()
        for signal_ in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signal_) is not signal.SIG_IGN:  # begun with nohup
                asyncio.get_running_loop().add_signal_handler(signal_, self._on_signal)
        async with self._store() as store:
            lines = SeedLines([], options.path)
            crawl, settings = await self._crawl(store, lines)
            if options.keeps_open:
                await crawl.first.feed("", "open")
            loop = SeedLoop(crawl, lines, settings, self.log, feeder=feeder_name([], options.path))
            started = time.monotonic()
            with Showing(is_quiet=not self._is_shown) as self._showing:
                try:
                    await until_answered(lambda: loop.begin(is_guest=True), Patience("seeds", self.log), self._stop)
                    await self._feed(loop, lines, started)
                finally:
                    self._showing = None
                    self._logger.close()
            return await self._sum_up(crawl, loop, lines, time.monotonic() - started)

    def _on_signal(self) -> None:
        """Stop in order, then at once; before anything is offered, at once."""
        assert self._main is not None
        if not self._is_feeding or self._stop.is_set():
            self._main.cancel()
        self._stop.set()

    # -- the crawl

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[Store]:
        """Yield the store of the crawl; an embedded one that runs, or is started for as long as this takes."""
        options = self._options
        if options.redis_url is None and options.creates and options.name not in embedded_names():
            memory = make_settings(options.name, options.settings).memory_max_bytes
            async with crawl_store(
                None, options.name, memory_max_bytes=memory, is_fresh=False, log=self.tell
            ) as created:
                yield created
        else:
            async with existing_store(options.redis_url, options.name) as store:
                yield store

    async def _crawl(self, store: Store, lines: SeedLines) -> tuple[Shards, Settings]:
        """Return the crawl with its settings, joined as it is or created.

        Raises:
            ConfigError: there is none and none is to be created; or it cannot be what is asked for.
        """
        options = self._options
        state = await read_state(store.client, options.name)
        # Killed between its opening and the storing of what it was begun with, a creation is done to its end.
        is_new = "epoch" not in state or (options.creates and read_stored(state) is None)
        if is_new and not options.creates:
            raise ConfigError(
                f"there is no crawl {options.name!r} in this store; `{self.command} --create` begins it, "
                "`streamcrawl status` lists those that are"
            )
        if is_new:
            return await self._create(store, lines)
        stored = read_stored(state)
        if stored is not None:
            self._tell_of_outputs(list(stored.sinks.values()))
        await upgrade_crawl(store.client, options.name, is_alone=store.embedded is not None, log=self.log)
        crawl = await join_crawl(store.client, options.name)
        settings = settings_of(crawl, options.name, (await read_tuned(crawl)).given)
        compare_given(options.name, options.settings, settings, place=options.place, log=self.log)
        if store.embedded is not None:
            with mapped_errors():
                await store.client.config_set("maxmemory", settings.memory_max_bytes or MEMORY_DEFAULT_BYTES)
        return crawl, settings

    def _tell_of_outputs(self, paths: list[str]) -> None:
        for given in self._options.outputs:
            target = read_target(given)
            if target.place not in paths:
                # As it was typed, but for what may have a password in it.
                shown = given if target.path is not None else target.place
                self.log(f"-o {shown} is left out: crawl {self._options.name} writes to {', '.join(paths)}")

    async def _create(self, store: Store, lines: SeedLines) -> tuple[Shards, Settings]:
        options = self._options
        own = settings_of_new_crawl(options.settings)
        settings = make_settings(options.name, {**options.settings, **own})
        check_memory(store, settings)
        sinks = new_sinks(options.outputs, options.name, settings, is_new=True)
        await check_databases(sinks)
        head = await lines.peek(SEEDS_FOR_SCOPE_MAX)
        if not any(seed_url(line.text)[0] for line in head):
            for line in head[:COMPLAINTS_MAX]:
                self.log(complaint(line))
            raise ConfigError(f"{options.path}: there is no http(s) URL at its beginning, so no crawl is begun")
        scope = merged_scope(settings, head, None)
        if scope.seeds_cut:
            self.tell(
                f"scope: {number(scope.seeds_cut)} seeds are beyond the hosts that a crawl remembers; see --scope"
            )
        crawl, is_new = await open_crawl(
            store.client, settings, sinks=[sink.name for sink in sinks], given=encode_given(own)
        )
        # Its seeds are not stored: who resumes the crawl shall not offer them, this command does.
        state = await seeds_state(scope, settings, None)
        stored = Stored(scope=state, sinks={sink.name: sink.path for sink in sinks}, machine=socket.gethostname())
        await crawl.first.control(crawl=msgspec.json.encode(stored).decode())
        if is_new:
            self.tell(f"crawl {options.name} begun, into {', '.join(sink.path for sink in sinks)}")
            if contact.is_missing(settings, state):
                self.log(contact.MISSING)
        return crawl, settings

    # -- while it runs

    async def _feed(self, loop: SeedLoop, lines: SeedLines, started: float) -> None:
        """Offer everything, and show how far it is."""
        self._is_feeding = True
        feeding = asyncio.create_task(loop.run(self._stop), name="seeds")
        before, shown_at = loop.new + loop.known, time.monotonic()
        try:
            while not feeding.done():
                await asyncio.wait((feeding,), timeout=LOOK_S)
                passed_s = time.monotonic() - started
                rate = (loop.new + loop.known - before) / passed_s if passed_s > 0 else 0.0
                if self._options.is_json and time.monotonic() - shown_at >= LINE_S:
                    shown_at = time.monotonic()
                    write(msgspec.json.encode(self._figures(loop, "progress", passed_s)).decode())
                elif self._showing is not None:
                    self._showing.show(_line(loop, lines, passed_s, rate))
            feeding.result()
        finally:
            self._stop.set()
            await asyncio.wait((feeding,))

    def _figures(self, loop: SeedLoop, event: str, passed_s: float) -> dict[str, Any]:
        return {
            "event": event,
            "crawl": self._options.name,
            "elapsed_s": round(passed_s, 1),
            "line": loop.cursor.line,
            "new": loop.new,
            "known": loop.known,
            "refused": loop.refused,
            "waiting": loop.waiting,
        }

    # -- after

    async def _sum_up(self, crawl: Shards, loop: SeedLoop, lines: SeedLines, passed_s: float) -> ExitCode:
        options = self._options
        with mapped_errors():
            is_kept_open = await crawl.client.hget(crawl.first.keys.state, "open") == b"1"
        others = max(0, loop.feeders_left - is_kept_open)
        if options.is_json:
            figures = self._figures(loop, "summary", passed_s)
            del figures["waiting"]
            figures |= {"complete": loop.is_done, "others": others, "kept_open": is_kept_open}
            write(msgspec.json.encode(figures).decode())
        elif not options.is_quiet:
            rest = "" if loop.is_done else f", stopped behind line {number(loop.cursor.line)}"
            write(
                f"seeds of {options.name}: {number(loop.new)} new, {number(loop.known)} known, "
                f"{number(loop.refused)} refused, in {clock(passed_s)}{rest}"
            )
            for text in self._remarks(loop, lines, others, is_kept_open):
                write(f"  {text}")
        if not loop.is_done:
            return ExitCode.STOPPED
        if loop.refused and not loop.new + loop.known:
            raise ConfigError(f"{options.path}: none of its lines is an http(s) URL")
        return ExitCode.DONE

    def _remarks(self, loop: SeedLoop, lines: SeedLines, others: int, is_kept_open: bool) -> list[str]:
        name = self._options.name
        close = shlex.join(["streamcrawl", "close", name, *self._options.place])
        found = []
        if loop.has_repeated and loop.known:
            found.append("some of the known may be of this command: what lies behind its last cursor is offered twice")
        if not loop.is_done and lines.is_repeatable:
            found.append(f"go on with: {self.command}")
        elif not loop.is_done:
            found.append(f"the crawl waits for the rest of it: offer that, then {close}")
        if others:
            found.append(
                f"{counted(others, 'other command')} that offered seeds did not end yet, or died: the crawl waits for "
                f"them, or for: {close}"
            )
        if is_kept_open:
            found.append(f"the crawl stays open for more, until: {close}")
        return found


def _line(loop: SeedLoop, lines: SeedLines, passed_s: float, rate: float) -> str:
    """Return how far it is, for people."""
    share = f" ({100 * loop.cursor.offset / lines.size:.0f} %)" if lines.size else ""
    return (
        f"line {number(loop.cursor.line)}{share}, {number(loop.new)} new, {number(loop.known)} known, "
        f"{number(loop.refused)} refused, {number(round(rate))}/s, {clock(passed_s)}"
        + (f"; waiting: {loop.waiting}" if loop.waiting else "")
    )
