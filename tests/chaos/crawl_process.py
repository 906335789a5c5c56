"""The `streamcrawl crawl` command as a process that tests kill, pause and start again, and a look at what it left.

Start at `CrawlProcess`. Whatever it is told to run ends with it: the command, its children, its embedded Redis.
`AuditWatch` recounts a crawl while it runs; `assert_complete` is what must hold after every one of these tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import psutil

from streamcrawl.errors import ConfigError, StoreUnavailable
from streamcrawl.ops.audit import audit
from streamcrawl.ops.status import read_status
from streamcrawl.rules.task import Kind
from streamcrawl.store.connection import connect, mapped_errors
from streamcrawl.store.embedded import SERVER_VARIABLE, EmbeddedRedis
from streamcrawl.store.frontier import Frontier
from streamcrawl.store.keys import GROUP, Keys
from streamcrawl.store.shards import Shards
from streamcrawl.work.loops import sleep_or_stop

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from streamcrawl.ops.status import DeadLetter, Status
    from tests.e2e.command import Running
    from tests.site.server import LoggedRequest, SiteProcess

IS_FULL: Final = os.environ.get("STREAMCRAWL_CHAOS") == "full"
"""The figures of the requirements instead of a few seconds of each kind."""
REPOSITORY: Final = Path(__file__).resolve().parents[2]
_POLL_S: Final = 0.02
_AUDIT_PACE_S: Final = 0.5
_MARK: Final = "TESTS_CRAWL"
"""Variable in the environment of all processes of one crawl."""


class CrawlProcess:
    """One crawl on one machine: `start` runs the command, and may be called again after it has ended."""

    def __init__(
        self,
        name: str,
        folder: Path,
        seeds: Sequence[str],
        *,
        redis_url: str | None = None,
        look_url: str | None = None,
        output: Path | None = None,
        settings: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a crawl; nothing runs yet.

        Args:
            folder: Where it is run, with its messages in `<name>.log`; made when missing.
            redis_url: None for an embedded server.
            look_url: The same Redis as the tests reach it; None when that is by `redis_url` too.
            output: None for `out.jsonl` in the folder.
            settings: By the names of the environment, without prefix and in lower case: `lease="2s"`.
        """
        self.name = name
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.output = output or folder / "out.jsonl"
        self.log_path = folder / f"{name}.log"
        self._seeds = tuple(seeds)
        self._redis_url = redis_url
        self._look_url = look_url or redis_url
        self._mark = secrets.token_hex(8)
        given = {f"STREAMCRAWL_{field.upper()}": str(value) for field, value in settings.items()}
        # Settings of whoever runs the tests are not those of the tests. PYTHONPATH: handlers are found from everywhere.
        kept = {name: text for name, text in os.environ.items() if not name.startswith("STREAMCRAWL_")}
        if SERVER_VARIABLE in os.environ:
            kept[SERVER_VARIABLE] = os.environ[SERVER_VARIABLE]
        self._environment = {
            **kept,
            "PYTHONPATH": str(REPOSITORY),
            _MARK: self._mark,
            "STREAMCRAWL_DELAY_MAX": "0",  # what a loaded machine answers slowly makes no test longer
            **given,
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *, is_resume: bool = False) -> None:
        """Run the command: as it is first typed, or with nothing but --resume and the name."""
        assert self._process is None
        command = [sys.executable, "-m", "streamcrawl", "crawl", "--name", self.name, "--memory-max", "500MB"]
        command += ["--redis", self._redis_url] if self._redis_url else []
        command += ["--resume"] if is_resume else [*self._seeds, "-o", str(self.output), "--scope", "any"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def children(self, *roles: str) -> list[psutil.Process]:
        """Return the live processes of these roles: `fetch`, `sink`, or `nursery`, which forks the others."""
        wanted = {f"crawl-{role}" for role in roles}
        running = psutil.process_iter(["name"])
        return [process for process in running if process.info["name"] in wanted and self._owns(process)]

    def _owns(self, process: psutil.Process) -> bool:
        # By what it inherited: the children of a nursery that was killed are nobody's children any more.
        try:
            is_alive = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return is_alive and process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False

    def kill9(self) -> None:
        """Kill the command alone, as an impatient person or the kernel would; wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def lose_machine(self) -> None:
        """Kill the command and all its children as when their machine fails: none has a moment to do anything."""
        running = self.freeze()
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(running, timeout=10)
        self.kill9()

    def freeze(self) -> list[psutil.Process]:
        """Stop the command and all its children where they are, until each is resumed, and return them."""
        running = [process for process in psutil.process_iter() if self._owns(process)]
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        return running

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def until(self, condition: Callable[[], Any], what: str, *, within_s: float = 30.0) -> None:
        """Wait until `condition()` is true while the command runs; `what` says in words what did not come."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.is_running, f"crawl {self.name} ended before: {what}\n{self._tail()}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self._tail()}"
            await asyncio.sleep(_POLL_S)

    async def until_fetched(self, site: SiteProcess, count: int) -> None:
        """Wait until the site has answered `count` requests more than now."""
        wanted = count_requests(site) + count
        await self.until(lambda: count_requests(site) >= wanted, f"{count} more fetches")

    async def wait(self, within_s: float) -> int:
        """Wait for the end and return the exit code."""
        deadline = time.monotonic() + within_s
        while self.is_running:
            assert time.monotonic() < deadline, f"crawl {self.name} did not end in {within_s:g} s\n{self._tail()}"
            await asyncio.sleep(_POLL_S)
        assert self._process is not None
        code, self._process = self._process.returncode, None
        return code

    def _tail(self) -> str:
        return self.log[-3000:] if self.log_path.exists() else ""

    def close(self) -> None:
        """End whatever of it still runs."""
        if self._process is not None:
            self.kill9()
        left = [process for process in psutil.process_iter() if self._owns(process)]
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)

    # -- what is in the store

    @asynccontextmanager
    async def frontier(self) -> AsyncIterator[Frontier]:
        """Yield a frontier for looking; starts the embedded server when it does not run.

        Raises:
            StoreUnavailable: the server that should run does not answer.
            ConfigError: there is no such crawl (yet).
        """
        if self._look_url is not None:
            async with _looking_at(self._look_url, self.name) as frontier:
                yield frontier
            return
        server = EmbeddedRedis(self.folder / ".streamcrawl" / self.name, memory_max_bytes=0)
        if self.is_running:
            async with _looking_at(server.url, self.name) as frontier:
                yield frontier
            return
        async with server, _looking_at(server.url, self.name) as frontier:
            yield frontier

    async def totals(self) -> dict[str, int]:
        async with self.frontier() as frontier:
            return (await read_status(frontier.client, self.name)).totals

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the newest dead letters."""
        async with self.frontier() as frontier:
            return (await read_status(frontier.client, self.name)).newest_dead

    def count_records(self) -> int:
        """Return how many lines the output has by now; a part of one that is being written does not count."""
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    def records(self) -> list[dict[str, Any]]:
        """Return what is in the output file; fails when a line of it is none."""
        return [json.loads(line) for line in self.output.read_text().splitlines()]


@asynccontextmanager
async def _looking_at(url: str, name: str) -> AsyncIterator[Frontier]:
    client = connect(url)
    try:
        with mapped_errors():
            epoch: Any = await client.hget(Keys(name).state, "epoch")
        if epoch is None:
            raise ConfigError(f"there is no crawl {name}")
        yield Frontier(client, Keys(name), epoch.decode())
    finally:
        await client.aclose()


async def look_at_embedded(folder: Path, name: str) -> Status | None:
    """Return how a crawl stands that runs on the embedded server of a folder; None while it is not there."""
    client = connect(EmbeddedRedis(folder / ".streamcrawl" / name, memory_max_bytes=0).url)
    try:
        status = await read_status(client, name)
    except (StoreUnavailable, ConfigError):
        return None
    finally:
        await client.aclose()
    return status


async def until_true(
    running: Running, is_so: Callable[[], Awaitable[bool]], what: str, *, within_s: float = 40.0
) -> None:
    """Wait until `is_so()` while a command runs; `what` says in words what did not come."""
    deadline = time.monotonic() + within_s
    while not await is_so():
        assert running.process.poll() is None, f"ended before: {what}\n{running.out}{running.err}"
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{running.out}{running.err}"
        await asyncio.sleep(0.05)


class AuditWatch:
    """Recounts a crawl every half second while the block runs; `faults` must be empty at the end."""

    def __init__(self, crawl: CrawlProcess) -> None:
        self._crawl = crawl
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self.faults: list[str] = []
        self.samples = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="audit")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        while not await sleep_or_stop(self._stop, _AUDIT_PACE_S):
            # A store that is down, or a crawl that does not exist yet, is another test's business.
            with suppress(StoreUnavailable, ConfigError):
                if self._crawl.is_running:
                    async with self._crawl.frontier() as frontier:
                        report = await audit(Shards([frontier]))
                    self.samples += 1
                    self.faults += report.faults

    def assert_sound(self) -> None:
        assert self.samples, "the crawl was over before anybody could look"
        assert self.faults == []


async def assert_complete(crawl: CrawlProcess, site: SiteProcess, *, others: Iterable[str] = ()) -> None:
    """Assert that each page of the site is in the output once, and that nothing is left over in the store.

    `others` are seeds that no page links to.
    """
    # By the final URL: a page behind a redirect of its own host is recorded under the URL of the redirect.
    recorded = Counter(record["final_url"] for record in crawl.records() if record["status"] == 200)
    assert {url: count for url, count in recorded.items() if count > 1} == {}
    expected = site.expected_pages() | set(others)
    missing, extra = sorted(expected - set(recorded)), sorted(set(recorded) - expected)
    assert (missing, extra) == ([], []), await dead_letters(crawl)
    await assert_at_rest(crawl)


async def dead_letters(crawl: CrawlProcess) -> list[str]:
    """Return the dead letters in words: what is missing is often among them."""
    async with crawl.frontier() as frontier:
        letters: Any = await frontier.client.xrange(frontier.keys.dead)
    names = (b"host", b"task", b"reason", b"error")
    return [" ".join(fields[name].decode() for name in names) for _, fields in letters]


async def assert_at_rest(crawl: CrawlProcess) -> None:
    """Assert that the accounts hold and nobody has anything in hand."""
    async with crawl.frontier() as frontier:
        report = await audit(Shards([frontier]))
        assert report.faults == []
        totals = report.totals
        assert [name for name, count in totals.items() if count and name.endswith((".queued", ".streamed"))] == []
        assert [name for name, count in totals.items() if count and name.endswith(".delayed")] == []
        for line in report.lines:
            stream = frontier.keys.fetch_stream if line in set(Kind) else frontier.keys.sink_stream(line)
            assert await frontier.client.xlen(stream) == 0
            pending: Any = await frontier.client.xpending(stream, GROUP)
            assert pending["pending"] == 0
        async for hosts in frontier.host_chunks(500):
            for host in hosts:
                assert await frontier.client.hget(frontier.keys.host(host), "in_flight") in (None, b"0"), host


def count_requests(site: SiteProcess) -> int:
    """Return how many requests the site has answered; reads no line, so it may be asked again and again."""
    return site.log.read_bytes().count(b"\n")


def overlapping(requests: Sequence[LoggedRequest]) -> list[str]:
    """Return the URLs that were being answered twice at the same time."""
    of_url: defaultdict[str, list[LoggedRequest]] = defaultdict(list)
    for request in requests:
        of_url[request.host + request.path].append(request)
    found = []
    for url, visits in of_url.items():
        visits.sort(key=lambda visit: visit.start_ms)
        if any(later.start_ms < earlier.end_ms for earlier, later in pairwise(visits)):
            found.append(url)
    return found


def repeated(requests: Sequence[LoggedRequest]) -> dict[str, int]:
    """Return the URLs that were fetched more than once, with how often."""
    counts = Counter(request.host + request.path for request in requests)
    return {url: count for url, count in counts.items() if count > 1}
