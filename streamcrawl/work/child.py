"""A worker child: the process around the loops of one role, and its line to the supervisor.

The nursery (nursery.py) forks it. Standard input is the control line: first the spec (JSON), then words, one a line:
`stop` (hand back what has not begun, finish the rest within the grace period), `end` (the same at the end of the crawl:
an output is finished, however long that takes), `now` (hand everything back),
`lost <shard> <id>` (the entry is no longer ours), `settings <JSON>` (go by these from now on), `tasks <n>` and
`memory <n> <s>` (tell what you are busy with, in an event `answer` with that number). Its end means that the
supervisor is dead: nobody beats for us any more, so the child stops too. Events go to the original standard output as
JSON lines; what a handler prints goes to standard error.
SIGTERM means `stop`; SIGINT is left to the supervisor, which gets it from the same terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from streamcrawl.errors import CrawlGone, StartError, StoreError, StoreUnavailable, StreamcrawlError
from streamcrawl.settings import Settings
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import FETCH_STREAM, Beat, Frontier, sink_stream, stage_stream
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import Shards
from streamcrawl.work.board import Board
from streamcrawl.work.inspection import describe_tasks, sample_memory, stamped_tasks
from streamcrawl.work.lag import LagLoop, ServerClock
from streamcrawl.work.logs import Repeats, Said, as_said, printable
from streamcrawl.work.meters import REDIS_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

EXIT_GONE: Final = 70
"""The crawl was deleted or begun afresh: do not start this worker again."""
EXIT_CONFIG: Final = 71
"""The child cannot work as configured (its handler does not load): do not start it again."""
EXIT_REFUSED: Final = 72
"""The store refuses it in a way that waiting does not mend (a permission, a password): it would refuse another one."""
EXIT_START: Final = 73
"""What its program opens could not be opened."""
GC_THRESHOLD: Final = 20_000
"""Most objects of a page end without the collector, which at its default pace looks at them after every second page."""
STUCK_SPARE_MS: Final = 10_000
"""Over the longest work at one entry, and over what the supervisor gives a hung child: it comes first if it lives."""
GRACE_AS_ORPHAN: Final = 3
"""A third of the lease: nobody renews the leases of a child whose supervisor died."""


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All a child must know; sent by the supervisor over the control line."""

    redis_url: str
    settings: Settings
    epoch: str
    consumer: str
    role: str
    """`fetch`, `stage` or `sink`."""
    scope: dict[str, Any] = msgspec.field(default_factory=dict)
    sinks: tuple[str, ...] = ()
    sink: str = ""
    sink_target: str = ""
    """The output of a sink, as sinks/targets.py reads it."""
    app: str = ""
    """`module:attribute` of the program; '' for a plain crawl."""
    fetcher: str = ""
    """`module:attribute` of what fetches in place of web/fetcher.py; '' for that."""
    stage: str = ""
    """Line of the stage that this child works for."""
    work_max_ms: int = 0
    """Longest work at one entry; 0: as the settings say."""

    @property
    def stream(self) -> str:
        """The stream that it reads, without the crawl's prefix."""
        if self.stage:
            return stage_stream(self.stage)
        return sink_stream(self.sink) if self.sink else FETCH_STREAM


class Child:
    """What the role's code gets: its spec, its board, the crawl, and what the supervisor says."""

    def __init__(self, spec: ChildSpec, board: Board, events: TextIO) -> None:
        self.spec = spec
        self.board = board
        self.stop = asyncio.Event()
        self.now = asyncio.Event()
        self.ending = asyncio.Event()
        """With `stop`: the crawl has ended, and what a sink has written is to be finished."""
        self.settings = spec.settings
        """As they are in force now; those of the spec are the ones it was started with."""
        self.grace_s = spec.settings.grace_ms / 1000
        self.is_orphan = False
        self.on_lost: Callable[[int, str], None] = lambda shard, entry_id: None
        self.about: Callable[[], dict[str, Any]] = dict
        """What the role has to say of itself beside its tasks, for people who look."""
        self.on_settings: Callable[[Settings], None] = lambda settings: None
        self.client = connect(spec.redis_url)
        self.reader = connect(spec.redis_url, blocking=True)
        by_domain = self.settings.politeness_by == "domain"
        every = [Keys(self.settings.name, n) for n in range(self.settings.shards)]
        self.crawl = Shards([Frontier(self.client, keys, spec.epoch, by_domain=by_domain) for keys in every])
        self.meters = board.meters
        for frontier in self.crawl:
            frontier.observe(lambda script, took_s: self.meters.observe(REDIS_SECONDS, took_s, script))
        self.clock = ServerClock()
        self._events = events
        self._sampling: asyncio.Task[None] | None = None
        self._repeats = Repeats()

    def log(self, text: str) -> None:
        for said in self._repeats.admit(as_said(text), time.monotonic()):
            self._tell(said)

    def end_log(self) -> None:
        """Say what was held back until now."""
        for said in self._repeats.over(time.monotonic(), is_end=True):
            self._tell(said)

    def _tell(self, said: Said) -> None:
        self.event(event="log", text=printable(said), level=said.level.value, fields=dict(said.fields))

    def event(self, **fields: Any) -> None:
        # A supervisor that is gone reads no events; the control line says so, this need not.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._events.write(msgspec.json.encode(fields).decode() + "\n")
            self._events.flush()

    async def _sample(self, number: int, seconds: float) -> None:
        self.event(event="answer", number=number, answer=await sample_memory(seconds))

    async def leave(self) -> None:
        """Take our row out of `workers`; the supervisor does it for its children, so this is for an orphan."""
        stream = self.spec.stream
        # A row that stays counts as a live worker, or writer, for up to three leases.
        with contextlib.suppress(StoreError):
            for frontier in self.crawl:
                await frontier.beat([Beat(self.spec.consumer, stream, -1, "{}")], lease_ms=self.settings.lease_ms)

    async def close(self) -> None:
        await self.reader.aclose()
        await self.client.aclose()

    async def control(self, lines: asyncio.StreamReader) -> None:
        while line := (await lines.readline()).decode().strip():
            word, _, rest = line.partition(" ")
            if word == "lost":
                shard, _, entry_id = rest.partition(" ")
                self.on_lost(int(shard), entry_id)
            elif word == "tasks":
                self.event(event="answer", number=int(rest), answer=describe_tasks() | self.about())
            elif word == "memory":
                number, _, seconds = rest.partition(" ")
                self._sampling = asyncio.create_task(self._sample(int(number), float(seconds)), name="memory sample")
            elif word == "settings":
                self.settings = msgspec.json.decode(rest, type=Settings)
                self.on_settings(self.settings)
            else:
                if word == "end":
                    self.ending.set()
                self.stop.set()
                if word == "now":
                    self.now.set()
        self.is_orphan = not self.stop.is_set()
        if self.is_orphan:
            self.grace_s = min(self.grace_s, self.settings.lease_ms / 1000 / GRACE_AS_ORPHAN)
            self.stop.set()


async def run_child(role: Callable[[Child], Awaitable[None]], board_fd: int, capacity: int, events: TextIO) -> int:
    """Run a role until it ends; returns the exit code of the process."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=64 * 1024 * 1024)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    line = await lines.readline()
    if not line:
        return 0
    child = Child(msgspec.json.decode(line, type=ChildSpec), Board(board_fd, capacity), events)
    if child.settings.metrics_port is not None:
        loop.set_task_factory(stamped_tasks)  # only there can somebody ask for the age of a task
    for number in (signal.SIGTERM,):
        loop.add_signal_handler(number, child.stop.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = asyncio.create_task(child.control(lines), name="control")
    living = asyncio.create_task(_end_when_stuck(child), name="living")
    lag = LagLoop(child.meters)
    measuring = asyncio.create_task(lag.run(), name="LagLoop")
    asking = asyncio.create_task(child.clock.run(child.client), name="ServerClock")
    try:
        await role(child)
    except CrawlGone as error:
        child.event(event="error", text=printable(str(error)))
        return EXIT_GONE
    except StoreUnavailable as error:
        child.log(Said.warning(f"{child.spec.role}: ended without the store: {error}"))
    except StoreError as error:
        child.event(event="error", text=printable(str(error)))
        return EXIT_REFUSED
    except StartError as error:
        # What it wants to open may be there in a moment: the supervisor tries again, some times in a row.
        child.log(str(error))
        return EXIT_START
    except StreamcrawlError as error:
        child.event(event="error", text=printable(str(error)))
        return EXIT_CONFIG
    finally:
        if child.is_orphan:
            await child.leave()
        lag.stop()
        listening.cancel()
        living.cancel()
        child.clock.stop()
        asking.cancel()
        await asyncio.gather(listening, living, measuring, asking, return_exceptions=True)
        transport.close()
        child.end_log()
        await child.close()
    return 0


async def _end_when_stuck(child: Child) -> None:
    """End this process when its loop stands still for longer than any work may take.

    The supervisor kills such a child. One whose supervisor is dead does not even notice it while a regular expression
    holds the GIL, and would stay for ever; the watch of faulthandler is a thread that needs no GIL.
    """
    try:
        while True:
            settings = child.settings
            work_max_ms = child.spec.work_max_ms or settings.handler_timeout_ms + settings.timeout_ms
            limit_s = (work_max_ms + STUCK_SPARE_MS) / 1000
            faulthandler.dump_traceback_later(limit_s, exit=True)
            await asyncio.sleep(limit_s / 4)
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(role: Callable[[Child], Awaitable[None]], board_fd: int, capacity: int) -> None:
    """The main function of a child process: `role` is the coroutine of its loops. Never returns."""
    gc.set_threshold(GC_THRESHOLD)
    # Idle connections of a broad crawl outnumber the usual soft limit of 1,024 descriptors.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        import uvloop
    except ImportError:
        code = asyncio.run(run_child(role, board_fd, capacity, events))
    else:
        code = uvloop.run(run_child(role, board_fd, capacity, events))
    with contextlib.suppress(OSError):
        events.close()  # what a dead supervisor did not read is still in its buffer
    # Threads of sync handlers that hang would keep the interpreter waiting; everything that must be kept is committed.
    os._exit(code)
