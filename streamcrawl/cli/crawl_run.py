"""What `streamcrawl crawl` does: opens or resumes a crawl, runs its workers, and says how it ended.

The life of one run: check what was typed, open the store, create or join the crawl, feed the seeds and run the
supervisor side by side, show progress, sum up. It may die at any line: what it was told is in Redis (the state's field
`crawl`) before the first seed is, and the next run puts back what this one had in hand. Start at `crawl`.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

import msgspec
from rich.console import Console

from streamcrawl.cli.options import config_of, given_settings, is_typed, write
from streamcrawl.cli.store import FOLDER, Store, crawl_store, embedded_names
from streamcrawl.errors import ConfigError, CrawlGone, ExitCode, StoreUnavailable
from streamcrawl.ops.audit import audit
from streamcrawl.ops.progress import Progress
from streamcrawl.ops.status import Status, counted, number, read_status
from streamcrawl.ops.summary import Run, exit_code, summary_json, summary_lines
from streamcrawl.rules.scope import SEEDS_KEPT_MAX, Scope
from streamcrawl.rules.urls import hostname_of, split_url
from streamcrawl.settings import Given, Settings, make_settings
from streamcrawl.sinks.jsonl import JsonlFile, check_writable
from streamcrawl.store.connection import mapped_errors, redacted
from streamcrawl.store.frontier import FETCH_STREAM, Frontier, delete_crawl, open_crawl, script_values, sink_stream
from streamcrawl.store.keys import Keys
from streamcrawl.work.seeds import (
    COMPLAINTS_MAX,
    STDIN,
    SeedLine,
    SeedLoop,
    argument_lines,
    complaint,
    read_ahead,
    read_lines,
    seed_url,
)
from streamcrawl.work.supervisor import SinkSpec, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import click
    from redis.asyncio import Redis

SEEDS_FOR_SCOPE_MAX: Final = 10_000
"""Seeds read ahead to find out which hosts the crawl is about; a scope remembers 1,000 of them."""
_SEEDS_STORED_MAX: Final = 1000
"""URL arguments kept for --resume: more than fit on a command line come by --seeds."""
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_SUFFIX: Final = ".jsonl"
_POLITENESS: Final = {
    "delay_ms": "--delay in ms",
    "cap": "--host-concurrency",
    "robots": "robots.txt obeyed (1) or not (0)",
}
"""Fields of the state that scripts and workers must agree on, as a person knows them."""


@dataclass(frozen=True, slots=True)
class CrawlOptions:
    """What was typed."""

    urls: tuple[str, ...] = ()
    seeds: str | None = None
    output: str | None = None
    name: str | None = None
    redis_url: str | None = None
    is_fresh: bool = False
    is_resume: bool = False
    is_json: bool = False
    is_quiet: bool = False
    settings: dict[str, Given] = field(default_factory=dict)
    """What was given by option, environment or file."""
    place: tuple[str, ...] = ()
    """The options that say where the crawl is kept, as they must be typed to resume it; passwords are left out."""

    @classmethod
    def from_click(cls, context: click.Context) -> CrawlOptions:
        options, config = context.params, config_of(context)
        own = {name: options[name] for name in ("urls", "seeds", "output", "name", "redis_url", "is_json", "is_quiet")}
        place: list[str] = []
        if config is not None and is_typed(context, "config"):
            place += ["--config", config.path]
        if is_typed(context, "redis_url"):
            place += ["--redis", redacted(options["redis_url"])]
        return cls(
            **own,
            is_fresh=options["fresh"],
            is_resume=options["resume"],
            settings=given_settings(context),
            place=tuple(place),
        )


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl was begun with, as its state has it: enough to go on without being told again."""

    scope: dict[str, Any]
    sinks: dict[str, str]
    """Name in Redis -> absolute path."""
    seeds: list[str] = []
    seeds_file: str | None = None
    settings: dict[str, Any] = {}
    """Only what was given, by option, environment or file."""


def crawl(options: CrawlOptions) -> ExitCode:
    """Run the command; return its exit code.

    Raises:
        StreamcrawlError: one line for the person who typed it, with the exit code.
    """
    _check(options)
    run = _Crawl(options)
    try:
        return asyncio.run(run.run())
    except asyncio.CancelledError:
        run.log("streamcrawl: interrupted")
        return ExitCode.STOPPED


def _check(options: CrawlOptions) -> None:
    """Raise ConfigError for what is wrong already without a store."""
    if options.is_fresh and options.is_resume:
        raise ConfigError("--fresh deletes the crawl and --resume goes on with it: give one of the two")
    for url in options.urls:
        if seed_url(url)[0] is None:
            raise ConfigError(f"{url!r} is not an http(s) URL")
    if options.seeds is not None and options.seeds != STDIN:
        try:
            with open(options.seeds, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"--seeds {options.seeds} cannot be read: {error.strerror}") from error
    if not (options.urls or options.seeds or options.is_resume):
        raise ConfigError(
            "say what to crawl: streamcrawl crawl https://example.org/ (or --seeds FILE, or --resume to go on)"
        )
    if options.output is not None:
        if not options.output.endswith(_SUFFIX):
            raise ConfigError(f"-o {options.output}: the only format is JSON lines; name the file FILE{_SUFFIX}")
        check_writable(Path(options.output))


class _DeafStream:
    """Standard error that nobody may be reading any more (`2>&1 | head`, a terminal that is gone): a crawl goes on."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Crawl:
    """One run of the command."""

    def __init__(self, options: CrawlOptions) -> None:
        self._options = options
        self._console = Console(file=cast("IO[str]", _DeafStream(sys.stderr)) if sys.stderr else None, stderr=True)
        self._main: asyncio.Task[Any] | None = None
        self._signals = 0
        self._grace_ms = 0
        self._supervisor: Supervisor | None = None
        self._stop_seeds = asyncio.Event()
        self._stop_progress = asyncio.Event()
        self._name = ""
        self._pages_before = 0

    def log(self, text: str) -> None:
        """Say what somebody should know; on standard error, above the live line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tell(self, text: str) -> None:
        """Say what is good to know: nothing with --quiet."""
        if not self._options.is_quiet:
            self.log(text)

    async def run(self) -> ExitCode:
        """Run the command; cancelled by a signal that comes before anything runs, or by a third one."""
        options = self._options
        self._main = asyncio.current_task()
        # A terminal that is closed stops the crawl in order too, unless it was begun with nohup.
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
        for signal_ in (signal.SIGINT, signal.SIGTERM, *hangup):
            asyncio.get_running_loop().add_signal_handler(signal_, self._on_signal)
        lines = self._seed_lines(options.urls, options.seeds)
        head = await read_ahead(lines, SEEDS_FOR_SCOPE_MAX)
        if options.seeds is not None and len(head) < SEEDS_FOR_SCOPE_MAX:
            self._refuse_useless(head)
        self._name = options.name if options.name is not None else self._default_name(head)
        # Before anything is started: a setting that cannot be must not cost the start of a server.
        settings = make_settings(self._name, options.settings)
        if options.redis_url is None and self._name not in embedded_names():
            # Known without a server: what is refused below must not leave an empty crawl behind.
            if options.is_resume:
                raise self._nothing_to_resume()
            if not options.is_fresh:
                self._sinks(None, is_new=True)
        async with crawl_store(
            options.redis_url,
            self._name,
            memory_max_bytes=settings.memory_max_bytes,
            is_fresh=options.is_fresh,
            log=self.tell,
        ) as store:
            return await self._run_in(store, settings, head, lines)

    async def _run_in(
        self, store: Store, settings: Settings, head: list[SeedLine], lines: Iterator[SeedLine]
    ) -> ExitCode:
        options, client = self._options, store.client
        state = await _read_state(client, self._name)
        stored = _read_stored(state)
        if options.is_fresh:
            await self._delete(client, state, stored)
            state, stored = {}, None
        is_new = "epoch" not in state
        if options.is_resume:
            if is_new:
                raise self._nothing_to_resume()
            if stored is None:
                # Killed between its opening and the storing of its seeds: without them it would end as complete.
                raise ConfigError(f"crawl {self._name!r} has no seeds yet: give them again, without --resume")
            settings = make_settings(self._name, {**stored.settings, **options.settings})
            await _set_memory(store, settings)
        if not store.memory_max_bytes and settings.memory_max_bytes is None:
            raise ConfigError(
                "this Redis has no memory limit and --memory-max is not given; one of the two must be set "
                "(--memory-max 2GB, or redis-cli CONFIG SET maxmemory 2gb)"
            )
        sinks = self._sinks(stored, is_new=is_new)
        if not head and stored is not None and state.get("closed") != "1":
            lines = self._stored_seeds(stored)
            head = await read_ahead(lines, SEEDS_FOR_SCOPE_MAX)
        scope = _merged_scope(settings, head, stored)
        if scope.seeds_cut:
            self.tell(
                f"scope: {number(scope.seeds_cut)} seeds are beyond the hosts that a crawl remembers; see --scope"
            )

        if store.embedded is None and not is_new:
            await self._refuse_other_politeness(client, state, settings)
        frontier, is_new = await open_crawl(client, settings, sinks=[sink.name for sink in sinks])
        if is_new:
            self.tell(f"crawling into {', '.join(sink.path for sink in sinks)}")
        else:
            await self._join(store, frontier, sinks, settings)
        now_stored = self._as_stored(scope, sinks, stored)
        seeds = SeedLoop(frontier, chain(head, lines), settings, self.log, feeder=_feeder(now_stored))
        # From here on seeds may come, whoever closed the crawl before; the last that offers some closes it again.
        await seeds.begin(is_alone=store.embedded is not None)
        await frontier.control(crawl=msgspec.json.encode(now_stored).decode())
        sinks = await self._without_written_elsewhere(frontier, sinks, settings.lease_ms)
        if self._signals:
            # The cancellation was swallowed: redis-py awaits by asyncio.wait_for, which loses one that comes with the
            # answer (Python 3.11, gh-86296; mended in 3.12). From here on the supervisor is told to stop.
            raise asyncio.CancelledError
        self._grace_ms = settings.grace_ms
        self._supervisor = Supervisor(store.url, settings, frontier, scope=scope.state(), sinks=sinks, log=self.log)
        started = time.monotonic()
        word = await self._run_loops(self._supervisor, seeds, frontier, store, settings)
        run = Run(word, time.monotonic() - started, self._pages_before, self._resume_command())
        return await self._sum_up(run, frontier)

    # -- before

    def _seed_lines(self, urls: tuple[str, ...] | list[str], seeds: str | None) -> Iterator[SeedLine]:
        return chain(argument_lines(urls), read_lines(seeds) if seeds is not None else ())

    def _refuse_useless(self, seeds: list[SeedLine]) -> None:
        """Raise ConfigError, with the lines named, when none of the seeds is a URL: nothing has been touched yet."""
        if any(seed_url(line.text)[0] is not None for line in seeds):
            return
        for line in seeds[:COMPLAINTS_MAX]:
            self.log(complaint(line))
        raise ConfigError(f"--seeds {self._options.seeds}: there is no http(s) URL in it")

    def _stored_seeds(self, stored: Stored) -> Iterator[SeedLine]:
        """Return the seeds of an earlier run that was stopped before it had offered all of them."""
        path = stored.seeds_file
        if path == STDIN:
            self.log("the seeds from standard input were not all read; give the rest with --seeds -")
            path = None
        return self._seed_lines(stored.seeds, path)

    def _default_name(self, head: list[SeedLine]) -> str:
        for line in head:
            url, _ = seed_url(line.text)
            if url is not None:
                return _NOT_A_NAME.sub("-", hostname_of(split_url(url)[0])).strip("-._")[:64] or "crawl"
        if self._options.seeds is not None:
            raise ConfigError(f"--seeds {self._options.seeds}: no http(s) URL at its beginning; give --name NAME")
        if self._options.redis_url is not None:
            raise ConfigError("say which crawl to resume: --name NAME (`streamcrawl status --redis URL` lists them)")
        names = embedded_names()
        if len(names) == 1:
            return names[0]
        raise ConfigError(f"say which crawl to resume: --name NAME (in {FOLDER}: {', '.join(names) or 'none'})")

    def _nothing_to_resume(self) -> ConfigError:
        return ConfigError(f"there is no crawl {self._name!r} to resume here; leave --resume out to begin it")

    def _resume_command(self) -> str:
        return shlex.join(["streamcrawl", "crawl", "--resume", "--name", self._name, *self._options.place])

    def _sinks(self, stored: Stored | None, *, is_new: bool) -> list[SinkSpec]:
        """Return where the records go: what is given, else what the crawl has, else NAME.jsonl."""
        given = self._options.output
        if stored is not None and not is_new:
            sinks = [SinkSpec(sink, path) for sink, path in stored.sinks.items()]
            paths = [sink.path for sink in sinks]
            if given is not None and paths != [_absolute(given)]:
                raise ConfigError(
                    f"crawl {self._name!r} writes to {', '.join(paths)}: give the same -o or none, another --name, "
                    "or --fresh to delete it and begin again"
                )
            return sinks
        path = Path(_absolute(given if given is not None else self._name + _SUFFIX))
        check_writable(path)
        if is_new and path.exists() and path.stat().st_size:
            raise ConfigError(
                f"{path} exists and is not of this crawl: name another file with -o, or delete it, or give --fresh"
            )
        return [SinkSpec(_sink_name(str(path)), str(path))]

    async def _delete(self, client: Redis, state: Mapping[str, str], stored: Stored | None) -> None:
        """Delete a crawl and its output, and say what that was."""
        paths = dict.fromkeys(stored.sinks.values() if stored is not None else ())
        paths[_absolute(self._options.output or self._name + _SUFFIX)] = None
        files = [path for path in map(Path, paths) if path.is_file()]
        if "epoch" in state:
            status = await read_status(client, self._name)
            self.tell(
                f"fresh: deleting crawl {self._name}: {counted(status.page('done'), 'page')} done, "
                f"{number(status.page('queued'))} queued, {counted(status.dead_letters, 'dead letter')}"
            )
            # The crawl first: workers of it that are still alive elsewhere then stop and let their file go.
            await delete_crawl(client, self._name)
        for path in files:
            self.tell(f"fresh: deleting {path} ({counted(path.stat().st_size, 'byte')})")
            with await asyncio.to_thread(JsonlFile, path):
                path.unlink()

    async def _refuse_other_politeness(self, client: Redis, state: Mapping[str, str], settings: Settings) -> None:
        """Raise ConfigError when live workers go by other rules of politeness than this command asks for.

        Scripts would follow the last that joined, and workers what they were started with.
        """
        flat = script_values(settings)
        asked = dict(zip(flat[::2], flat[1::2], strict=True))
        differing = [
            f"{option}: {state.get(field, '')} (here {asked[field]})"
            for field, option in _POLITENESS.items()
            if state.get(field, "") != asked[field]
        ]
        if not differing:
            return
        status = await read_status(client, self._name)
        if any(worker.beat_age_ms < settings.lease_ms for worker in status.workers):
            raise ConfigError(
                f"crawl {self._name!r} is at work with {', '.join(differing)}: join it with --resume, which takes its "
                "settings, or stop it first"
            )

    async def _join(self, store: Store, frontier: Frontier, sinks: list[SinkSpec], settings: Settings) -> None:
        """Take a crawl over that is there already: alone on an embedded server, beside others elsewhere."""
        status = await read_status(store.client, self._name)
        self._pages_before = status.page("done")
        far = f"{counted(status.page('done'), 'page')} done, {number(status.page('queued'))} queued"
        is_alive = any(worker.beat_age_ms < settings.lease_ms for worker in status.workers)
        if is_alive and store.embedded is None:
            self.tell(f"joining crawl {status.name}: {far}, {number(status.slots)} slots at work elsewhere")
            return
        self.tell(f"resuming crawl {status.name}: {far}")
        if store.embedded is not None:
            # The lock of the folder is ours, so no worker can be alive: what is in their hands was left by a crash.
            # Not counted as crashes: the whole crawl ended, not the worker of one task.
            back = await frontier.put_back(FETCH_STREAM, "", is_crash=False)
            for sink in sinks:
                await frontier.put_back(sink_stream(sink.name), "", is_crash=False)
            if back:
                self.log(f"the last run did not end in order: {number(back)} pages that it had in hand are put back")
        mended = await frontier.reconcile()
        if mended:
            self.log(f"counts were wrong and have been mended: {counted(mended, 'host')}")

    async def _without_written_elsewhere(
        self, frontier: Frontier, sinks: list[SinkSpec], lease_ms: int
    ) -> list[SinkSpec]:
        """Return the sinks with '' for the path of one that a live process on another machine writes, in a file there.

        One that is written on this machine keeps its path: the supervisor stands by and goes on when the writer dies.
        """
        found = []
        status = await read_status(frontier.client, self._name)
        workers = {worker.consumer: worker for worker in status.workers}
        for sink in sinks:
            with mapped_errors():
                owner: Any = await frontier.client.hget(frontier.keys.offsets, f"{sink.name}:owner")
            writer = workers.get((owner or b"").decode())
            if writer is not None and writer.beat_age_ms < lease_ms and not _is_here(writer.info):
                self.tell(f"the output is written by {writer.consumer}; this machine only fetches")
                found.append(SinkSpec(sink.name, ""))
            else:
                found.append(sink)
        return found

    def _as_stored(self, scope: Scope, sinks: list[SinkSpec], stored: Stored | None) -> Stored:
        options = self._options
        before = stored or Stored(scope={}, sinks={})
        has_seeds = bool(options.urls or options.seeds)
        given = {name: one.value for name, one in options.settings.items()}
        seeds_file = options.seeds if options.seeds in (None, STDIN) else _absolute(options.seeds)
        return Stored(
            scope=scope.state(),
            sinks={sink.name: sink.path for sink in sinks},
            seeds=list(options.urls)[:_SEEDS_STORED_MAX] if has_seeds else before.seeds,
            seeds_file=seeds_file if has_seeds else before.seeds_file,
            settings=before.settings | given if options.is_resume else given,
        )

    # -- while it runs

    async def _run_loops(
        self, supervisor: Supervisor, seeds: SeedLoop, frontier: Frontier, store: Store, settings: Settings
    ) -> str:
        """Run supervisor, seeds, progress and the watch over the server; return the supervisor's word."""
        progress = Progress(
            frontier,
            self._console,
            mode=self._progress_mode(),
            pages_max=settings.pages_max,
            workers=lambda: _count_workers(supervisor),
            write=self._write,
        )
        main = asyncio.create_task(supervisor.run(), name="supervisor")
        showing = asyncio.create_task(progress.run(self._stop_progress), name="progress")
        feeding = asyncio.create_task(self._feed(seeds), name="seeds")
        watching = asyncio.create_task(_watch_server(store, self._resume_command()), name="server")
        try:
            waiting: set[asyncio.Task[Any]] = {main, feeding, watching}
            while not main.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {main}:
                    task.result()
            return main.result()
        finally:
            self._stop_seeds.set()
            self._stop_progress.set()
            watching.cancel()
            if not main.done():
                supervisor.stop()
                supervisor.stop()
            await asyncio.gather(main, feeding, watching, return_exceptions=True)
            await showing

    async def _feed(self, seeds: SeedLoop) -> None:
        await seeds.run(self._stop_seeds)
        if seeds.refused and not seeds.accepted:
            raise ConfigError("none of the seeds is an http(s) URL: there is nothing to crawl")

    def _on_signal(self) -> None:
        """Stop in order, then at once, then without waiting for anything; before the workers start, at once."""
        assert self._main is not None
        self._signals += 1
        if self._supervisor is None or self._signals > 2:
            self._main.cancel()
            return
        if self._signals == 1:
            self.log(f"stopping: up to {self._grace_ms / 1000:g} s for what is under way; once more to stop at once")
        else:
            self.log("stopping at once")
        self._stop_seeds.set()
        self._supervisor.stop()

    def _progress_mode(self) -> str:
        if self._options.is_quiet:
            return "none"
        if self._options.is_json:
            return "json"
        return "live" if self._console.is_terminal else "lines"

    # -- after

    async def _sum_up(self, run: Run, frontier: Frontier) -> ExitCode:
        if run.word == "GONE":
            raise CrawlGone("the crawl was deleted or begun afresh by someone else while this one ran")
        if run.word == "UNAVAILABLE":
            raise StoreUnavailable(f"Redis does not answer; what it holds is safe. Go on with: {run.resume}")
        try:
            status = await read_status(frontier.client, self._name)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; go on with: {run.resume}") from error
        self._show(run, status)
        if run.word == "UNBALANCED":
            for fault in (await audit(frontier)).faults:
                self.log(f"streamcrawl: {fault}")
        return exit_code(run.word, status)

    def _show(self, run: Run, status: Status) -> None:
        if self._options.is_json:
            self._write(msgspec.json.encode(summary_json(run, status)).decode())
        elif not self._options.is_quiet:
            self._write("\n".join(summary_lines(run, status)))

    def _write(self, text: str) -> None:
        try:
            write(text)
        except ConfigError as error:  # the crawl goes on, and its exit code says how it ended
            self.log(f"streamcrawl: {error}")


# -- parts without a state of their own


async def _read_state(client: Redis, name: str) -> dict[str, str]:
    with mapped_errors():
        state: Any = await client.hgetall(Keys(name).state)
    return {field.decode(): value.decode("utf-8", "replace") for field, value in state.items()}


def _read_stored(state: Mapping[str, str]) -> Stored | None:
    """Return what the command stored; None for no crawl, or one that a program began."""
    if "crawl" not in state:
        return None
    try:
        return msgspec.json.decode(state["crawl"], type=Stored)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"what this crawl was begun with cannot be read ({error}); begin again with --fresh"
        ) from error


async def _set_memory(store: Store, settings: Settings) -> None:
    """Give the embedded server the limit of the resumed crawl: it was started before that could be read."""
    if store.embedded is not None and settings.memory_max_bytes is not None:
        with mapped_errors():
            await store.client.config_set("maxmemory", settings.memory_max_bytes)


def _merged_scope(settings: Settings, head: Sequence[SeedLine], stored: Stored | None) -> Scope:
    """Return the scope of the seeds, with the hosts and prefixes that the crawl had before."""
    scope = Scope.from_settings(settings, (seed_url(line.text)[0] or "" for line in head))
    if stored is None:
        return scope
    now = scope.state()
    hosts, prefixes = (
        list(dict.fromkeys([*stored.scope[part], *now[part]]))[:SEEDS_KEPT_MAX] for part in ("hosts", "prefixes")
    )
    return Scope(settings, settings.scope, hosts, prefixes)


def _is_here(info: str) -> bool:
    """Return whether a worker's own report says that it runs, or ran, on this machine."""
    try:
        return bool(msgspec.json.decode(info, type=dict[str, Any])["machine"] == socket.gethostname())
    except (msgspec.DecodeError, KeyError):
        return False


async def _watch_server(store: Store, resume: str) -> None:
    """Wait for the end of the embedded server: nobody would start it again, and workers would wait for it for ever.

    Raises:
        StoreUnavailable: it has ended; the message says how.
    """
    if store.embedded is None:
        await asyncio.Event().wait()
    else:
        raise StoreUnavailable(f"{await store.embedded.wait_ended()}; go on with: {resume}")


def _count_workers(supervisor: Supervisor) -> tuple[int, int]:
    workers = [child for child in supervisor.children if child.role == "fetch"]
    return len(workers), sum(child.busy for child in workers)


def _feeder(stored: Stored) -> str:
    """Return the name of what a command offers: equal for the same seeds, so that another try ends what one began."""
    if stored.seeds_file == STDIN:
        return secrets.token_hex(8)  # what came by it comes only once
    place = socket.gethostname() if stored.seeds_file is not None else ""
    return blake2b(msgspec.json.encode((place, stored.seeds, stored.seeds_file)), digest_size=8).hexdigest()


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _sink_name(path: str) -> str:
    return f"out-{blake2b(path.encode(), digest_size=4).hexdigest()}"
