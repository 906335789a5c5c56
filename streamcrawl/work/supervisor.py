"""The supervisor: starts, watches and replaces the worker children of one machine, and beats for them.

It fetches nothing itself. A child that died is noticed at once: what it held is put back, with the crash counted, and
another child takes its place. Children that fail at start again and again end the crawl with their error. Start at
`Supervisor.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from streamcrawl.errors import ConfigError, CrawlGone, StoreError, StoreFull, StoreUnavailable
from streamcrawl.settings import SettingClass, SlotLimits, fields_of
from streamcrawl.store.connection import mapped_errors
from streamcrawl.store.frontier import FETCH_STREAM, Beat, sink_stream, stage_stream
from streamcrawl.work.adapt import slots_at_first
from streamcrawl.work.beat import BeatLoop
from streamcrawl.work.board import RESTING, Board, monotonic_ms
from streamcrawl.work.budget import BudgetLoop
from streamcrawl.work.child import EXIT_CONFIG, EXIT_GONE, EXIT_REFUSED, ChildSpec
from streamcrawl.work.end import EndLoop
from streamcrawl.work.janitor import JanitorLoop
from streamcrawl.work.lag import LagLoop
from streamcrawl.work.logs import Level, Said, as_said
from streamcrawl.work.loops import Patience, sleep_or_stop, until_answered
from streamcrawl.work.machine import processes_each, usable_cores
from streamcrawl.work.meters import BATCH, FETCH, REDIS_SECONDS, STAGE, SUPERVISOR, Meters, added
from streamcrawl.work.nursery import Nursery
from streamcrawl.work.program import PAGE
from streamcrawl.work.reclaim import ReclaimLoop
from streamcrawl.work.replay import ReplayLoop
from streamcrawl.work.tuning import TuningLoop
from streamcrawl.work.watch import WatchLoop

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from redis.asyncio import Redis

    from streamcrawl.settings import Settings
    from streamcrawl.store.frontier import Frontier, Rest
    from streamcrawl.store.shards import Shards
    from streamcrawl.work.loops import Log
    from streamcrawl.work.nursery import Offspring
    from streamcrawl.work.program import Program, Stage

STAGE_SPARE_MS: Final = 1000
"""Over the longest time of a stage's function: by then its worker has ended it, and only one that hangs has not."""
SINK_BOARD: Final = 1024
"""Entries a sink may hold: one batch and one read."""
STARTS_FAILED_MAX: Final = 5
"""Children in a row that died before they were ready; then something is wrong with all of them."""
RESTART_PAUSE_S: Final = 0.2
NOW_GRACE_S: Final = 3.0
FINISHING: Final = ("ENDED", "LIMIT", "STOPPED")
"""Words of the end after which outputs are finished. After a signal the crawl goes on some day, and so do they."""
FINISH_MAX_S: Final = 3600.0
"""For that: a journal of many GB takes minutes to become its format. A signal ends it, and it is done again later."""
UNAVAILABLE_MAX_S: Final = 600.0
"""A store that is away this long ends the run with exit code 5; what is in Redis stays there."""
SETTLE_MAX_S: Final = 5.0
DRAIN_LOOK_S: Final = 0.1
STANDBY_LOOK_S: Final = 0.5
_numbers: Final = itertools.count(1)
"""Of questions to children."""


class SinkSpec(msgspec.Struct, frozen=True):
    """One output: its name in Redis, and what is stored of it (sinks/targets.py; '': another machine writes it)."""

    name: str
    path: str
    url: str = ""
    """Of a database, with the password, which is not stored."""


class ChildJob(msgspec.Struct, frozen=True):
    """What a child is for: pages when it has neither a sink nor a stage."""

    sink: SinkSpec | None = None
    stage: Stage | None = None

    @property
    def role(self) -> str:
        return "sink" if self.sink is not None else "stage" if self.stage is not None else "fetch"

    @property
    def stream(self) -> str:
        """The stream that it reads, without the crawl's prefix."""
        if self.stage is not None:
            return stage_stream(self.stage.line)
        return FETCH_STREAM if self.sink is None else sink_stream(self.sink.name)

    def slots(self, concurrency: SlotLimits) -> SlotLimits:
        """Return its work slots, `concurrency` being those of the fetch."""
        if self.sink is not None:
            return SlotLimits(0, 0)
        return concurrency if self.stage is None else self.stage.slots

    @property
    def work_max_ms(self) -> int:
        """Longest work at one entry; 0: as the settings say."""
        if self.stage is None or self.stage.timeout_ms is None:
            return 0
        return self.stage.timeout_ms + STAGE_SPARE_MS

    @property
    def name(self) -> str:
        """Its stage, as metrics and messages call it."""
        if self.stage is not None:
            return self.stage.line
        return FETCH if self.sink is None else self.sink.name


class Reading(msgspec.Struct, frozen=True):
    """What the processes of one stage have counted, those that ended included."""

    stage: str
    """`fetch`, the name of an output, a stage of a program, or `supervisor`."""
    role: str
    """As meters.py knows it."""
    cells: Sequence[float]
    restarts: int
    """Processes that ended unasked."""
    pids: Sequence[int]
    """Of the live ones."""
    slots: int
    busy: int


class ChildProcess:
    """One child as the supervisor sees it."""

    def __init__(self, job: ChildJob, consumer: str, concurrency: SlotLimits) -> None:
        self.job = job
        self.role = job.role
        self.consumer = consumer
        self.stream = job.stream
        self.limits = job.slots(concurrency)
        """Of its work slots; zero for a sink."""
        self.work_max_ms = job.work_max_ms
        """Longest work at one entry; 0: as the settings say."""
        self.board = Board.create(self.limits.most or SINK_BOARD)
        # Until it says so itself: they count from its first beat on.
        self.board.show_slots(slots_at_first(self.role, self.limits))
        self.offspring: Offspring | None = None
        self.is_ready = False
        self.is_told_to_stop = False
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the process is gone and what it held is put back."""
        self.error = ""
        self._asked: dict[int, asyncio.Future[Any]] = {}

    @property
    def stage(self) -> str:
        return self.job.name

    @property
    def named(self) -> dict[str, str]:
        """Fields of what is said about it."""
        return {"stage": self.stage, "worker": self.consumer}

    @property
    def pid(self) -> int:
        return self.offspring.pid if self.offspring is not None else 0

    @property
    def is_alive(self) -> bool:
        return self.offspring is not None and self.offspring.returncode is None

    @property
    def slots(self) -> int:
        """Work slots that it has now; 0 for a sink. Those of fetch workers count for the mark of waiting entries."""
        return self.board.slots()

    @property
    def busy(self) -> int:
        return len(self.board.held()) if self.role == "sink" else self.board.busy()

    @property
    def info(self) -> str:
        about = {"pid": self.pid, "machine": socket.gethostname(), "role": self.role}
        about |= {"slots": self.slots, "busy": self.busy, "stage": self.stage}
        ended, worked_s = self.board.meters.worked()
        about |= {"ended": ended, "worked_s": round(worked_s, 3)}
        if not self.limits.is_fixed:
            about |= {"slots_least": self.limits.least, "slots_most": self.limits.most}
        return msgspec.json.encode(about).decode()

    def say(self, line: str) -> None:
        """Send one line over the control line; a child that is gone does not hear it, and need not."""
        if self.offspring is not None:
            self.offspring.say(line)

    async def ask(self, word: str, rest: str = "", *, within_s: float) -> Any:
        """Ask the child something over the control line, and return its answer.

        Raises:
            TimeoutError: none came: its event loop stands still, or it has ended.
        """
        number = next(_numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.say(f"{word} {number} {rest}".rstrip())
        try:
            async with asyncio.timeout(within_s):
                return await answer
        finally:
            del self._asked[number]

    def take_answer(self, number: Any, answer: Any) -> None:
        """Give an answer to whoever asked for it, if somebody still waits."""
        asked = self._asked.get(number)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    def kill(self) -> None:
        if self.offspring is not None:
            self.offspring.kill()


class Supervisor:
    """All children of one crawl on this machine."""

    def __init__(
        self,
        redis_url: str,
        settings: Settings,
        crawl: Shards,
        *,
        scope: dict[str, Any],
        sinks: Sequence[SinkSpec] = (),
        version: int = 1,
        stays_for: Collection[str] = (),
        memory_default_bytes: int | None = None,
        app: str = "",
        program: Program | None = None,
        only: Collection[str] = (),
        fetcher: str = "",
        log: Log,
    ) -> None:
        """Prepare the run; nothing is started yet.

        Args:
            settings: As they were in force at `version`; later ones are followed.
            scope: State of the crawl's Scope.
            stays_for: Words of the end after which it waits for more: UNFED, for a worker of a fleet.
            memory_default_bytes: As the janitor takes it.
            app: Where the program is, for its workers.
            program: Whose stages run here; None for a plain crawl.
            only: Of these only; `page` for the workers that fetch. Empty: all.
            fetcher: `module:attribute` of what fetches (a `Fetching`) in place of web/fetcher.py; '' for that.
        """
        self._redis_url = redis_url
        self._settings = settings
        self._crawl = crawl
        self._scope = scope
        self._sinks = tuple(sinks)
        self._app = app
        self._fetcher = fetcher
        stages = program.stages if program is not None else []
        self._stages = [stage for stage in stages if not only or stage.name in only]
        self._is_fetching = not only or PAGE in only
        self._log = log
        self._nursery = Nursery()
        self.children: list[ChildProcess] = []
        """The live ones, fetch workers first."""
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._closing = asyncio.Event()
        self._keepers: set[asyncio.Task[None]] = set()
        self._failed_starts = 0
        self._word = ""
        self._error: Exception | None = None
        self._patience = Patience("supervisor", log)
        self.meters = Meters()
        """Of this process itself."""
        self._ended: dict[str, list[float]] = {}
        """Stage -> what its ended processes had counted."""
        self._restarts: Counter[str] = Counter()
        for frontier in crawl:
            frontier.observe(lambda script, took_s: self.meters.observe(REDIS_SECONDS, took_s, script))
        streams = [FETCH_STREAM, *(sink_stream(sink.name) for sink in self._sinks)]
        streams += [stage_stream(stage.line) for stage in stages]
        lease_ms = settings.lease_ms
        self._beat = BeatLoop(
            crawl, lambda: self.children, lease_ms=lease_ms, work_max_ms=_work_max_ms(settings), log=log
        )
        self._reclaim = ReclaimLoop(crawl, streams, lease_ms=lease_ms, log=log)
        self._janitor = JanitorLoop(crawl, settings, log=log, memory_default_bytes=memory_default_bytes)
        self._budget = BudgetLoop(crawl, pages_max=self._pages_max, log=log)
        self._tuning = TuningLoop(
            crawl,
            settings,
            version=version,
            local={field: getattr(settings, field) for field in fields_of(SettingClass.LOCAL)},
            on_settings=self._apply,
            log=log,
        )
        self._end = EndLoop(
            crawl,
            is_busy=self._is_busy,
            pages_max=self._pages_max,
            stays_for=stays_for,
            on_rests=self._hear,
            log=log,
        )
        self._watch = WatchLoop(crawl, log=log)
        self._replay = ReplayLoop(crawl, log=log)
        self._lag = LagLoop(self.meters)

    def _hear(self, rests: list[Rest]) -> None:
        self._tuning.hear([rest.mind for rest in rests])
        if any(rest.has_replays for rest in rests):
            self._replay.wake()

    def stop(self) -> None:
        """Ask for the end: the first call lets running fetches finish within the grace period, the second does not."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    async def run(self) -> str:
        """Run until the crawl has ended, is stopped, or cannot go on.

        Returns:
            ENDED, LIMIT, STOPPED, UNFED, UNBALANCED (as finish.lua says), INTERRUPTED (`stop` was called), GONE
            (deleted by someone else) or UNAVAILABLE (no store for UNAVAILABLE_MAX_S). All children are gone when it
            returns.

        Raises:
            ConfigError: the children cannot start as configured; the message is theirs.
            StoreError: the store refuses in a way that waiting does not mend.
        """
        for sink in self._sinks:
            if sink.path:
                self._keep(ChildJob(sink=sink))
        for _ in range(self._processes()):
            if self._is_fetching:
                self._keep(ChildJob())
            for stage in self._stages:
                self._keep(ChildJob(stage=stage))
        every = (
            *(self._beat, self._reclaim, self._janitor, self._budget, self._tuning, self._watch, self._lag),
            self._replay,
        )
        loops = [asyncio.create_task(loop.run(), name=type(loop).__name__) for loop in every]
        ending = asyncio.create_task(self._end.run(), name="EndLoop")
        stopping = asyncio.create_task(_wait(self._stop), name="stop")
        failing = asyncio.create_task(_wait(self._closing), name="failed")
        watching = asyncio.create_task(self._watch_store(), name="store")
        try:
            await asyncio.wait((*loops, ending, stopping, failing, watching), return_when=asyncio.FIRST_COMPLETED)
            self._judge([*loops, ending, watching])
            await self._close_children()
        finally:
            for loop in (*every, self._end):
                loop.stop()
            for task in (stopping, failing, watching):
                task.cancel()
            for child in self.children:
                child.kill()
            await asyncio.gather(*loops, ending, stopping, failing, watching, *self._keepers, return_exceptions=True)
            await self._nursery.close()
        if self._error is not None:
            raise self._error
        return self._word

    # -- for who looks

    def readings(self) -> list[Reading]:
        """Return what each stage here has counted since this supervisor began, its own process last."""
        stages = [(FETCH, FETCH)] if self._is_fetching else []
        stages += ((sink.name, BATCH) for sink in self._sinks if sink.path)
        stages += ((stage.line, STAGE) for stage in self._stages)
        found = []
        for stage, role in stages:
            live = [child for child in self.children if child.stage == stage]
            alive = [child for child in live if child.is_alive]
            found.append(
                Reading(
                    stage,
                    role,
                    added(self._ended.get(stage, ()), *(child.board.meters.read() for child in live)),
                    self._restarts[stage],
                    [child.pid for child in alive],
                    sum(child.slots for child in alive),
                    sum(child.busy for child in alive),
                )
            )
        return [*found, Reading(SUPERVISOR, SUPERVISOR, self.meters.read(), 0, [os.getpid()], 0, 0)]

    @property
    def client(self) -> Redis:
        """Of the store, for whoever asks whether it answers."""
        return self._crawl.client

    def heartbeat_age_ms(self) -> int | None:
        """Return since when no heartbeat of some live child was confirmed; None while there is no child."""
        return max((child.board.beat_age_ms() for child in self.children if child.is_alive), default=None)

    def unready(self) -> str:
        """Return why these workers cannot take work now, as far as is known without asking Redis; '' when they can."""
        if self._closing.is_set() or self._stop.is_set():
            return "it is stopping"
        if self._patience.failures or self._beat.patience.failures:
            return "Redis does not answer"
        if not any(child.is_ready and child.is_alive for child in self.children if child.role != "sink"):
            return "no worker process is ready yet"
        age_ms = self.heartbeat_age_ms()
        if age_ms is not None and age_ms > self._settings.lease_ms // 2:
            return f"the last confirmed heartbeat is {age_ms / 1000:.0f} s old, and no fetch starts"
        return ""

    # -- the end

    def _judge(self, tasks: list[asyncio.Task[None]]) -> None:
        if self._error is not None or self._word:
            return
        for task in tasks:
            error = task.exception() if task.done() else None
            if isinstance(error, CrawlGone):
                self._word = "GONE"
            elif isinstance(error, Exception):
                self._error = error
        if self._word or self._error is not None:
            return
        self._word = self._end.word if self._end.word != "RUNNING" else "INTERRUPTED"

    async def _close_children(self) -> None:
        """Stop the workers, then the sinks once they have written what the workers gave them."""
        grace_s = self._settings.grace_ms / 1000
        self._closing.set()
        is_hard = self._word in ("GONE", "UNAVAILABLE") or self._error is not None
        await self._stop_roles(("fetch", "stage"), NOW_GRACE_S if is_hard else grace_s + NOW_GRACE_S)
        if not is_hard:
            await self._drain_sinks(grace_s)
        if self._word in FINISHING:
            await self._stop_roles(("sink",), FINISH_MAX_S, word="end")
        else:
            await self._stop_roles(("sink",), NOW_GRACE_S if is_hard else grace_s + NOW_GRACE_S)
        for loop in (self._janitor, self._reclaim, self._budget, self._tuning, self._watch, self._lag, self._replay):
            loop.stop()

    async def _stop_roles(self, roles: Collection[str], within_s: float, *, word: str = "stop") -> None:
        children = [child for child in self.children if child.role in roles]
        for child in children:
            child.is_told_to_stop = True
            child.say(word)
        deadline = monotonic_ms() + within_s * 1000
        is_hurried = False
        while any(child.is_alive for child in children):
            if self._now.is_set() and not is_hurried:
                is_hurried = True
                deadline = min(deadline, monotonic_ms() + NOW_GRACE_S * 1000)
                for child in children:
                    child.say("now")
            if monotonic_ms() > deadline:
                for child in children:
                    if child.is_alive:
                        self._log(
                            Said.warning(
                                f"{child.role} {child.consumer} did not end in time, is killed, and its work put back",
                                **child.named,
                            )
                        )
                        child.kill()
            await asyncio.sleep(0.02)
        # The keepers put back what was left; without a store nobody can, and the leases run out by themselves.
        if children:
            await asyncio.wait([child.settled for child in children], timeout=SETTLE_MAX_S)

    async def _drain_sinks(self, within_s: float) -> None:
        """Wait until the sinks have written all that waits now; what workers elsewhere add is for the next writer."""
        deadline = monotonic_ms() + within_s * 1000
        # Only what is written here: where this supervisor stands by, another one has the time to write it.
        streams = [
            frontier.keys.prefix + child.stream
            for child in self.children
            if child.role == "sink"
            for frontier in self._crawl
        ]
        try:
            newest = [await self._end_of(stream, "newest") for stream in streams]
            while streams and monotonic_ms() < deadline and not self._now.is_set():
                oldest = [await self._end_of(stream, "oldest") for stream in streams]
                pairs = zip(oldest, newest, strict=True)
                if all(first is None or last is None or first > last for first, last in pairs):
                    return
                await asyncio.sleep(DRAIN_LOOK_S)
        except StoreError as error:
            self._log(Said.warning(f"sinks: {error}; what they have not written yet stays in Redis"))

    async def _end_of(self, stream: str, which: Literal["oldest", "newest"]) -> tuple[int, ...] | None:
        """Return the id of a stream's first or last entry; None when it is empty."""
        client = self._crawl.client
        with mapped_errors():
            rows: Any = await (client.xrange if which == "oldest" else client.xrevrange)(stream, count=1)
        return tuple(map(int, rows[0][0].split(b"-"))) if rows else None

    async def _watch_store(self) -> None:
        """Return when the store has been away for too long; every loop waits for it patiently by itself."""
        away_since: int | None = None
        while True:
            await asyncio.sleep(1.0)
            if not self._beat.patience.failures and not self._reclaim.patience.failures:
                away_since = None
                continue
            away_since = away_since if away_since is not None else monotonic_ms()
            if monotonic_ms() - away_since > UNAVAILABLE_MAX_S * 1000:
                self._word = "UNAVAILABLE"
                return

    def _is_busy(self) -> bool:
        return any(child.busy for child in self.children)

    def _processes(self) -> int:
        """Return how many processes each of the fetch and the stages has here."""
        if self._settings.processes is not None:
            return self._settings.processes
        cores, jobs = usable_cores(), self._is_fetching + len(self._stages)
        each = processes_each(cores, jobs)
        self._log(f"processes auto: {each}{' of each stage' * (jobs > 1)}, for the {cores} cores that may be used")
        return each

    def _pages_max(self) -> int | None:
        return self._settings.pages_max

    def _apply(self, settings: Settings) -> None:
        """Go by other settings from now on, here and in every child."""
        self._settings = settings
        self._janitor.apply(settings)
        self._beat.apply(_work_max_ms(settings))
        line = f"settings {msgspec.json.encode(settings).decode()}"
        for child in self.children:
            child.say(line)

    # -- children

    def _keep(self, job: ChildJob) -> None:
        keeper = asyncio.create_task(self._keeper(job), name=f"keeper {job.role}")
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def _keeper(self, job: ChildJob) -> None:
        """Start one child, and its successor whenever it ends, until the crawl closes."""
        try:
            while not self._closing.is_set():
                # A name is never used twice: what an earlier bearer still holds must not look like this one's.
                consumer = new_consumer(job.role)
                if job.sink is not None and not await self._become_writer(job.sink, consumer):
                    return
                child = await self._start(job, consumer)
                if self._closing.is_set():
                    # It was not there yet when its role was told to stop, and would run on until it is killed.
                    child.is_told_to_stop = True
                    child.say("stop")
                await self._follow(child)
                assert child.offspring is not None
                code = await child.offspring.wait()
                try:
                    await self._put_back(child, is_crash=code != 0 and not child.is_told_to_stop)
                finally:
                    # Also where the store refuses it: who waits for the end of a child must not wait for nothing.
                    # In one step with what comes before it, so that nobody sees its counts twice, or not at all.
                    self._ended[child.stage] = added(self._ended.get(child.stage, ()), child.board.meters.read())
                    self.children.remove(child)
                    child.board.close()
                    child.settled.set_result(None)
                self._note_end(child, code)
                if not child.is_ready:
                    await sleep_or_stop(self._closing, RESTART_PAUSE_S * 2**self._failed_starts)
        except CrawlGone:
            self._word = self._word or "GONE"
            self._closing.set()
        except Exception as error:
            # Also a fault of ours, or a process that cannot be started: without its keeper nobody would watch a child.
            self._error = self._error or error
            self._closing.set()

    async def _become_writer(self, sink: SinkSpec, consumer: str) -> bool:
        """Wait until no live process writes the output, then enter `consumer` as its writer; False: closing first.

        So a second crawl on the machine stands by: when the first dies or hangs, somebody goes on with the file.
        """
        lease_ms = self._settings.lease_ms
        who = {"pid": os.getpid(), "machine": socket.gethostname(), "role": "sink", "stage": sink.name}
        about = msgspec.json.encode(who).decode()
        is_told = False
        while not self._closing.is_set():
            try:
                word, *_ = await until_answered(
                    lambda: self._crawl.first.sink_open(sink.name, consumer, lease_ms=lease_ms),
                    self._patience,
                    self._closing,
                )
                if word == "OK":
                    # At once, not with the child's first beat: another one that stands by would take it for dead.
                    for frontier in self._crawl:
                        await frontier.beat([Beat(consumer, sink_stream(sink.name), 0, about)], lease_ms=lease_ms)
                    return True
            except StoreUnavailable:
                continue
            if not is_told:
                self._log(f"{sink.path} is written by another process of this crawl; this one stands by")
                is_told = True
            await sleep_or_stop(self._closing, STANDBY_LOOK_S)
        return False

    async def _start(self, job: ChildJob, consumer: str) -> ChildProcess:
        settings = self._settings
        child = ChildProcess(job, consumer, settings.concurrency)
        spec = ChildSpec(
            redis_url=self._redis_url,
            settings=settings,
            epoch=self._crawl.epoch,
            consumer=consumer,
            role=job.role,
            scope=self._scope,
            sinks=tuple(sink.name for sink in self._sinks),
            sink=job.sink.name if job.sink else "",
            sink_target=(job.sink.url or job.sink.path) if job.sink else "",
            app=self._app,
            fetcher=self._fetcher,
            stage=job.stage.line if job.stage else "",
            work_max_ms=job.work_max_ms,
        )
        child.board.confirm(monotonic_ms())
        child.offspring = await self._nursery.start_child(job.role, child.board.fd, child.board.capacity)
        child.say(msgspec.json.encode(spec).decode())
        self.children.append(child)
        self.children.sort(key=lambda one: one.role)
        if self._settings is not settings:
            self._apply(self._settings)  # they changed while it was being started
        return child

    async def _follow(self, child: ChildProcess) -> None:
        """Read the child's events until it closes its end."""
        assert child.offspring is not None
        while line := await child.offspring.read_event():
            try:
                event = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                self._log(as_said(f"{child.consumer}: {line.decode('utf-8', 'replace').rstrip()}", **child.named))
                continue
            match event.get("event"):
                case "ready":
                    child.is_ready = True
                    self._failed_starts = 0
                    self._beat.hurry()
                case "slots":
                    self._beat.hurry()
                case "log":
                    self._relay(child, event)
                case "answer":
                    child.take_answer(event.get("number"), event.get("answer"))
                case "error":
                    child.error = str(event.get("text", ""))

    def _relay(self, child: ChildProcess, event: dict[str, Any]) -> None:
        """Say what a child said, with who it was."""
        level, own = Level(event.get("level", Level.INFO)), event.get("fields", {})
        self._log(Said(str(event.get("text", "")), level, **{**child.named, **own}))

    async def _put_back(self, child: ChildProcess, *, is_crash: bool) -> None:
        held = child.board.held() if is_crash and child.role != "sink" else []
        back = 0
        for shard, frontier in enumerate(self._crawl):
            # What was not running when its worker died has not killed it, and no crash is counted against it.
            waiting = [entry.entry_id for entry in held if entry.shard == shard and entry.begun_ms == 0]
            resting = [entry.entry_id for entry in held if entry.shard == shard and entry.begun_ms == RESTING]

            async def call(
                frontier: Frontier = frontier, waiting: list[str] = waiting, resting: list[str] = resting
            ) -> int:
                left = Beat(child.consumer, child.stream, -1, "{}")
                await frontier.beat([left], lease_ms=self._settings.lease_ms)
                count = await frontier.hand_back(child.stream, waiting)
                count += await frontier.hand_back(child.stream, resting, is_begun=True)
                return count + await frontier.put_back(child.stream, child.consumer, is_crash=is_crash)

            count = await until_answered(call, self._patience, self._closing)
            back += count
            if count and child.role == "fetch" and not self._closing.is_set():
                # Workers that wait would learn of it with their next look only, up to a second later.
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    await frontier.dispatch(count)
        if back and is_crash:
            self._log(
                Said.warning(
                    f"{child.role} {child.consumer} died with {back} entries in hand; they are put back", **child.named
                )
            )

    def _note_end(self, child: ChildProcess, code: int) -> None:
        if code == EXIT_GONE:
            raise CrawlGone(child.error)
        if code == EXIT_CONFIG:
            raise ConfigError(child.error)
        if code == EXIT_REFUSED:
            raise StoreError(child.error)
        if self._closing.is_set():
            return
        self._restarts[child.stage] += 1
        if not child.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= STARTS_FAILED_MAX:
                raise ConfigError(
                    f"{self._failed_starts} {child.role} processes in a row died at their start (exit code {code}); "
                    "what they printed above says why"
                )
        elif code != 0:
            self._log(
                Said.warning(
                    f"{child.role} {child.consumer} ended with exit code {code}; another one takes its place",
                    **child.named,
                )
            )


def _work_max_ms(settings: Settings) -> int:
    """Return how long a child may work at one entry before it is taken for hung."""
    return settings.handler_timeout_ms + settings.timeout_ms


def new_consumer(role: str) -> str:
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def machine_of(consumer: str) -> str:
    """Return the machine of a consumer's name; '' for none."""
    return consumer.partition("-")[2].rpartition("-")[0].rpartition("-")[0]


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
