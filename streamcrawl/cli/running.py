"""What commands that run workers share: signals, the loops of a run, its display and its summary.

`crawl` and `worker` differ in how they come to a crawl; from there on they are one. Start at `Running.run_crawl`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from streamcrawl.cli.options import write
from streamcrawl.cli.store import MEMORY_DEFAULT_BYTES
from streamcrawl.errors import ConfigError, CrawlGone, ExitCode, StoreUnavailable
from streamcrawl.ops.progress import Progress
from streamcrawl.ops.status import read_status
from streamcrawl.ops.summary import Run, exit_code, summary_json, summary_lines
from streamcrawl.sinks.targets import read_target
from streamcrawl.store.connection import mapped_errors
from streamcrawl.work.inspection import stamped_tasks
from streamcrawl.work.logs import FromLibraries, Level, Logger, Said
from streamcrawl.work.supervisor import SinkSpec, Supervisor, machine_of
from streamcrawl.work.traces import check_traces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Coroutine, Sequence

    from rich.console import Console

    from streamcrawl.cli.store import Store
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.program import Program


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl that this process is about to work at."""

    name: str
    store: Store
    crawl: Shards
    settings: Settings
    version: int
    """Of the settings."""
    scope: dict[str, Any]
    sinks: Sequence[SinkSpec] = ()
    pages_before: int = 0
    resume: str = ""
    """The command that goes on with it."""
    more: str = ""
    """What to do for more pages than --max-pages."""
    tune: str = ""
    """As a `Run` has it."""
    home: str | None = None
    """For who only helps: the machine where an output is begun that nobody has written to yet; others are continued
    where they were written last. None for who may begin and continue them here."""
    stays_for: Collection[str] = ()
    """Words of the end after which this process waits for more."""
    app: str = ""
    """Where the program is; '' for a plain crawl."""
    program: Program | None = None
    only: Collection[str] = ()
    """Stages that run here; empty for all."""
    feeding: Sequence[Coroutine[Any, Any, None]] = msgspec.field(default_factory=tuple)
    """What else runs as long as the workers do: seeds that are offered, until `Running.stop_feeding`."""


class Running:
    """One run of a command with workers."""

    def __init__(
        self, *, is_quiet: bool, is_json: bool, log_format: str = "console", log_level: str = Level.INFO.value
    ) -> None:
        self._is_quiet = is_quiet
        self._is_json = is_json
        self._stream = _DeafStream(sys.stderr) if sys.stderr else None
        self._console: Console | None = None
        """Of a terminal with a live line. Only then: importing rich costs as much as fetching a hundred pages."""
        self._logger = Logger(self._print, is_json=log_format == "json", least=Level(log_level))
        if self._logger.is_json:
            logging.getLogger().addHandler(FromLibraries(self._logger))
        self._main: asyncio.Task[Any] | None = None
        self._signals = 0
        self._grace_ms = 0
        self._supervisor: Supervisor | None = None
        self.stop_feeding = asyncio.Event()
        self._stop_progress = asyncio.Event()

    def log(self, text: str) -> None:
        """Say what somebody should know; on standard error, above the live line."""
        self._logger(text)

    def _print(self, line: str) -> None:
        if self._console is not None:
            self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        elif self._stream is not None:
            self._stream.write(line + "\n")
            self._stream.flush()

    def tell(self, text: str) -> None:
        """Say what is good to know: nothing with --quiet."""
        if not self._is_quiet:
            self.log(text)

    def listen(self) -> None:
        """Take signals from now on: the current task is cancelled by one that comes before workers run, or a third."""
        self._main = asyncio.current_task()
        # A terminal that is closed stops the crawl in order too, unless it was begun with nohup.
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
        for signal_ in (signal.SIGINT, signal.SIGTERM, *hangup):
            asyncio.get_running_loop().add_signal_handler(signal_, self._on_signal)

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
        self.stop_feeding.set()
        self._supervisor.stop()

    @asynccontextmanager
    async def watched(self, settings: Settings) -> AsyncIterator[None]:
        """Show metrics as long as the block runs, where that was asked for; also while there are no workers yet.

        Raises:
            ConfigError: the port cannot be listened on, or traces cannot be sent.
        """
        self._logger.fields["crawl"] = settings.name
        if settings.traces is not None:
            check_traces()
        if settings.metrics_port is None:
            yield
            return
        from streamcrawl.ops.probes import worker_pages  # an HTTP server that most commands do without
        from streamcrawl.ops.serving import Serving

        asyncio.get_running_loop().set_task_factory(stamped_tasks)
        pages = worker_pages(settings.name, lambda: self._supervisor, self._logger.counts)
        async with Serving(settings.metrics_host, settings.metrics_port, pages, option="--metrics-port") as serving:
            self.tell(f"metrics at {serving.url}/metrics")
            yield

    async def run_crawl(self, job: Job) -> ExitCode:
        """Work at a crawl until it ends or this process is stopped; show how it goes, and sum up.

        Raises:
            CrawlGone: it was deleted or begun afresh meanwhile.
            StoreUnavailable: Redis did not come back.
            StreamcrawlError: the workers, or what feeds them, cannot go on.
        """
        sinks = await self._without_written_elsewhere(job)
        # The last question to the store was asked: a signal that comes from here on is the supervisor's.
        self._grace_ms = job.settings.grace_ms
        self._supervisor = Supervisor(
            job.store.url,
            job.settings,
            job.crawl,
            scope=job.scope,
            sinks=sinks,
            version=job.version,
            stays_for=job.stays_for,
            memory_default_bytes=None if job.store.embedded is None else MEMORY_DEFAULT_BYTES,
            app=job.app,
            program=job.program,
            only=job.only,
            log=self.log,
        )
        started = time.monotonic()
        try:
            word = await self._run_loops(self._supervisor, job)
        finally:
            self._logger.close()
        run = Run(word, time.monotonic() - started, job.pages_before, job.resume, job.more, job.tune)
        return await self._sum_up(run, job)

    async def _without_written_elsewhere(self, job: Job) -> list[SinkSpec]:
        """Return the sinks with '' for the path of one that a live process on another machine writes, in a file there.

        One that is written on this machine keeps its path: the supervisor stands by and goes on when the writer dies.
        Who only helps leaves one on another machine alone, whether somebody writes it now or not.
        """
        found = []
        status = await read_status(job.crawl.client, job.name)
        alive = {worker.consumer for worker in status.workers if worker.beat_age_ms < job.settings.lease_ms}
        here = socket.gethostname()
        for sink in job.sinks:
            with mapped_errors():
                stored: Any = await job.crawl.client.hget(job.crawl.first.keys.offsets, f"{sink.name}:owner")
            owner = (stored or b"").decode()
            machine = machine_of(owner) or job.home or here
            if sink.path and machine != here and (owner in alive or job.home is not None):
                self.tell(f"{sink.path} is written on {machine}; this machine only fetches")
                found.append(SinkSpec(sink.name, ""))
            else:
                if sink.path:
                    read_target(sink.path)  # what it needs is installed, or this ends now, in one line
                found.append(sink)
        return found

    async def _run_loops(self, supervisor: Supervisor, job: Job) -> str:
        """Run supervisor, feeders, progress and the watch over the server; return the supervisor's word."""
        mode = self._progress_mode()
        if mode == "live":
            from rich.console import Console

            self._console = Console(file=cast("IO[str]", self._stream), stderr=True)
        progress = Progress(
            job.crawl,
            self._console,
            mode=mode,
            pages_max=job.settings.pages_max,
            workers=lambda: _count_workers(supervisor),
            write=self._write,
            say=self._logger if self._logger.is_json else self._print,
        )
        main = asyncio.create_task(supervisor.run(), name="supervisor")
        showing = asyncio.create_task(progress.run(self._stop_progress), name="progress")
        others = [asyncio.create_task(feeding, name="feeding") for feeding in job.feeding]
        others.append(asyncio.create_task(_watch_server(job), name="server"))
        try:
            waiting: set[asyncio.Task[Any]] = {main, *others}
            while not main.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {main}:
                    task.result()
            return main.result()
        finally:
            self.stop_feeding.set()
            self._stop_progress.set()
            others[-1].cancel()
            if not main.done():
                supervisor.stop()
                supervisor.stop()
            await asyncio.gather(main, *others, return_exceptions=True)
            await showing

    def _progress_mode(self) -> str:
        if self._is_quiet:
            return "none"
        if self._is_json:
            return "json"
        is_terminal = self._stream is not None and self._stream.isatty()
        return "live" if is_terminal and not self._logger.is_json else "lines"

    async def _sum_up(self, run: Run, job: Job) -> ExitCode:
        if run.word == "GONE":
            raise CrawlGone("the crawl was deleted or begun afresh by someone else while this one ran")
        if run.word == "UNAVAILABLE":
            raise StoreUnavailable(f"Redis does not answer; what it holds is safe. Go on with: {run.resume}")
        try:
            status = await read_status(job.crawl.client, job.name)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}; go on with: {run.resume}") from error
        if self._is_json:
            self._write(msgspec.json.encode(summary_json(run, status)).decode())
        elif not self._is_quiet:
            self._write("\n".join(summary_lines(run, status)))
        if run.word == "UNBALANCED":
            from streamcrawl.ops.audit import audit  # a crawl that ends as it should does without

            for fault in (await audit(job.crawl)).faults:
                self.log(Said.error(f"streamcrawl: {fault}"))
        return exit_code(run.word, status)

    def _write(self, text: str) -> None:
        try:
            write(text)
        except ConfigError as error:  # the crawl goes on, and its exit code says how it ended
            self.log(f"streamcrawl: {error}")


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


async def _watch_server(job: Job) -> None:
    """Wait for the end of the embedded server: nobody would start it again, and workers would wait for it for ever.

    Raises:
        StoreUnavailable: it has ended; the message says how.
    """
    if job.store.embedded is None:
        await asyncio.Event().wait()
    else:
        raise StoreUnavailable(f"{await job.store.embedded.wait_ended()}; go on with: {job.resume}")


def _count_workers(supervisor: Supervisor) -> tuple[int, int]:
    children = supervisor.children
    # Of a command that only runs stages of a program those: "0 workers" would look as if it did nothing.
    workers = [one for one in children if one.role == "fetch"] or [one for one in children if one.role == "stage"]
    return len(workers), sum(child.busy for child in workers)
