"""The sink loop over a real Redis and a real file: every record exactly once, wherever it dies or is interrupted.

Run as a program, this file is a sink in a process of its own that may kill itself at a named point.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from streamcrawl.errors import CrawlGone, SinkError, StoreUnavailable
from streamcrawl.settings import Settings
from streamcrawl.sinks.loop import SinkLoop
from streamcrawl.sinks.postgres import PostgresOutput
from streamcrawl.sinks.sqlite import SqliteOutput
from streamcrawl.sinks.targets import open_output, read_target
from streamcrawl.store.connection import connect
from streamcrawl.store.frontier import Beat, Frontier, sink_stream
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import Shards, delete_crawl
from streamcrawl.work.board import Board
from tests.integration.snapshot import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from streamcrawl.sinks.output import Mark, Output
    from tests.integration.conftest import OpenLab
    from tests.integration.snapshot import Lab

ROOT = Path(__file__).parents[2]
SINK = "out"
BATCH = 20
LEASE_MS = 1000


class Dying:
    """An output whose process is killed at a point of its n-th write, or of its n-th finished part."""

    def __init__(self, output: Output, point: str, turn: int) -> None:
        self._output = output
        self._point = point
        self._left = turn
        self.target = output.target
        self.batch_max = output.batch_max

    async def append(self, records: Sequence[bytes]) -> Mark:
        is_last = self._count("before_write", "mid_write", "before_commit")
        if is_last and self._point == "before_write":
            kill_me()
        if is_last and self._point == "mid_write":
            await self._die_in_the_middle()
        mark = await self._output.append(records)
        if is_last:
            kill_me()
        return mark

    async def finish(self, mark: Mark) -> None:
        if self._count("before_finish", "mid_finish", "after_finish"):
            if self._point == "before_finish":
                kill_me()
            if self._point == "mid_finish":
                # The part is made, and has not got its name.
                os.rename = kill_me  # type: ignore[assignment]
        await self._output.finish(mark)
        if self._left <= 0 and self._point == "after_finish":
            kill_me()

    def _count(self, *points: str) -> bool:
        if self._point in points:
            self._left -= 1
        return self._point in points and self._left == 0

    async def _die_in_the_middle(self) -> None:
        """Make the next write end half-way, by what the format writes with."""
        pwrite = os.pwrite

        def write_half(fd: int, data: Any, offset: int) -> int:
            pwrite(fd, data[: len(data) // 2], offset)
            kill_me()
            return 0

        os.pwrite = write_half
        if isinstance(self._output, SqliteOutput):
            assert self._output.database is not None
            self._output.database.set_progress_handler(kill_me, 100)
        if isinstance(self._output, PostgresOutput):
            # It runs when the rows are in their table, and before they are committed.
            self._output.connection.add_query_logger(kill_after_insert)

    async def resume(self, mark: Mark) -> None:
        await self._output.resume(mark)

    def is_due(self) -> bool:
        return self._output.is_due()

    async def seal(self) -> Mark | None:
        return await self._output.seal()

    async def close(self) -> None:
        await self._output.close()


def kill_after_insert(query: Any) -> None:
    if query.query.startswith("INSERT"):
        kill_me()


def kill_me(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Faulty(Frontier):
    """A frontier on whose first commit something goes wrong: `fault` names what."""

    def __init__(self, frontier: Frontier, fault: str) -> None:
        super().__init__(frontier.client, frontier.keys, frontier.epoch)
        self.fault = fault

    async def sink_commit(self, sink: str, *, entry_ids: Sequence[str], **values: Any) -> tuple[str, Any]:
        fault, self.fault = self.fault, ""
        if fault == "lease_lost":
            await self.hand_back(sink_stream(sink), entry_ids[:3])
        answer = await super().sink_commit(sink, entry_ids=entry_ids, **values)
        if fault == "after_commit":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "lost_answer":
            raise StoreUnavailable("the answer was lost")
        return answer


@asynccontextmanager
async def sink_loop(
    url: str, frontier: Frontier, path: Path, log: list[str], consumer: str = "s1", **values: Any
) -> AsyncIterator[SinkLoop]:
    reader = connect(url, blocking=True)
    output = open_output(read_target(str(path)), Settings(name="x"))
    board = Board.create(2 * BATCH)
    options: dict[str, Any] = {"lease_ms": LEASE_MS, "batch": BATCH, "linger_ms": 20} | values
    try:
        yield SinkLoop(
            Shards([frontier]), reader, output, sink=SINK, consumer=consumer, board=board, log=log.append, **options
        )
        assert board.held() == []
    finally:
        board.close()
        await reader.aclose()
        await output.close()


def url_record(url: str) -> bytes:
    return json.dumps({"url": url}).encode()


async def produce(lab: Lab, count: int, start: int = 0, record: Callable[[str], bytes] = url_record) -> None:
    """Fetch so many pages by hand, each with a record."""
    await lab.offer(*(f"http://h.example/{n}" for n in range(start, start + count)))
    left = count
    while left:
        held = await lab.take(count=100)
        assert held
        await lab.commit(*(lab.commit_of(one, items=(SINK, record(one.task.url))) for one in held))
        left -= len(held)


def assert_once(path: Path, count: int) -> None:
    """Check that the file has each record of `produce` exactly once, and nothing else."""
    urls = [json.loads(line)["url"] for line in content(path).splitlines()]
    assert sorted(urls) == sorted(f"http://h.example/{n}" for n in range(count))


def content(path: Path) -> bytes:
    return path.read_bytes()


def cut(path: Path) -> None:
    path.write_bytes(b"")


async def run_until_empty(lab: Lab, loop: SinkLoop) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run(stop))
    try:
        await until_empty(lab, running)
    finally:
        stop.set()
        await running


async def has_owner(lab: Lab) -> bool:
    return bool(await lab.client.hexists(lab.keys.offsets, f"{SINK}:owner"))


async def until_said(process: asyncio.subprocess.Process, text: bytes) -> None:
    """Read what a sink process prints until it says so."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while text not in (line := await process.stdout.readline()):
            assert line, f"the process ended without saying {text!r}"


async def until_empty(lab: Lab, running: asyncio.Future[Any], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while await lab.client.xlen(lab.keys.sink_stream(SINK)):
            assert not running.done(), running
            await asyncio.sleep(0.01)


@pytest.fixture
async def sink_lab(open_lab: OpenLab) -> Lab:
    return await open_lab(sinks=[SINK], host_concurrency=1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages.jsonl"


@pytest.fixture
def url(sink_lab: Lab, store_server: Any) -> str:
    return str(store_server.url)


async def test_every_record_is_written_once_and_the_loop_stops_by_its_flag(sink_lab: Lab, url: str, path: Path) -> None:
    await produce(sink_lab, 3 * BATCH + 5)
    log: list[str] = []
    async with sink_loop(url, sink_lab.frontier, path, log) as loop:
        await run_until_empty(sink_lab, loop)
    assert_once(path, 3 * BATCH + 5)
    offset = await sink_lab.client.hget(sink_lab.keys.offsets, f"{SINK}:offset")
    assert offset is not None
    assert int(offset) == len(content(path))
    assert log == []


async def test_next_writer_goes_on_where_the_last_one_stopped(sink_lab: Lab, url: str, path: Path) -> None:
    for part in range(3):
        await produce(sink_lab, BATCH, start=part * BATCH)
        async with sink_loop(url, sink_lab.frontier, path, [], consumer=f"s{part}") as loop:
            await run_until_empty(sink_lab, loop)
    assert_once(path, 3 * BATCH)


@pytest.mark.parametrize("fault", ["lost_answer", "lease_lost"])
async def test_interrupted_commit_writes_nothing_twice(sink_lab: Lab, url: str, path: Path, fault: str) -> None:
    await produce(sink_lab, 2 * BATCH)
    log: list[str] = []
    frontier = Faulty(sink_lab.frontier, fault)
    async with sink_loop(url, frontier, path, log) as loop:
        await run_until_empty(sink_lab, loop)
    assert frontier.fault == ""
    assert_once(path, 2 * BATCH)
    assert any("LEASE_LOST" in line for line in log) is (fault == "lease_lost")


async def test_offset_that_went_back_makes_the_loop_write_again(sink_lab: Lab, url: str, path: Path) -> None:
    await produce(sink_lab, BATCH)
    async with sink_loop(url, sink_lab.frontier, path, []) as loop:
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))
        await until_empty(sink_lab, running)
        lines = content(path).splitlines()
        # A failover to a replica that had not got the last commit: offset and entries are those of before.
        async with sink_lab.client.pipeline() as pipe:
            pipe.hset(sink_lab.keys.offsets, f"{SINK}:offset", 0)
            pipe.hincrby(sink_lab.keys.totals, f"{SINK}.done", -len(lines))
            pipe.hincrby(sink_lab.keys.totals, f"{SINK}.streamed", len(lines))
            for line in lines:
                pipe.xadd(sink_lab.keys.sink_stream(SINK), {"item": line})
            await pipe.execute()
        await produce(sink_lab, BATCH, start=BATCH)
        await until_empty(sink_lab, running)
        stop.set()
        await running
    assert_once(path, 2 * BATCH)


async def test_writer_that_was_replaced_ends(sink_lab: Lab, url: str, path: Path) -> None:
    log: list[str] = []
    async with sink_loop(url, sink_lab.frontier, path, log) as loop:
        running = asyncio.create_task(loop.run(asyncio.Event()))
        await wait_until(lambda: has_owner(sink_lab), "the first writer")
        assert (await sink_lab.frontier.sink_open(SINK, "s2", lease_ms=LEASE_MS))[0] == "OK"
        await produce(sink_lab, 1)
        async with asyncio.timeout(20):
            await running
    assert log == [f"sink {SINK}: another writer took over; this one ends"]
    async with sink_loop(url, sink_lab.frontier, path, [], consumer="s2") as loop:
        await run_until_empty(sink_lab, loop)
    assert_once(path, 1)


async def test_second_writer_gives_up_after_two_leases(sink_lab: Lab, url: str, path: Path) -> None:
    beat = Beat("s1", sink_stream(SINK), 0, "{}")
    await sink_lab.frontier.sink_open(SINK, "s1", lease_ms=LEASE_MS)
    await sink_lab.frontier.beat([beat], lease_ms=LEASE_MS)

    async def keep_beating() -> None:
        while True:
            await sink_lab.frontier.beat([beat], lease_ms=LEASE_MS)
            await asyncio.sleep(LEASE_MS / 10_000)

    beating = asyncio.create_task(keep_beating())
    async with sink_loop(url, sink_lab.frontier, path, [], consumer="s2") as loop:
        with pytest.raises(SinkError, match="another process writes the output"):
            await loop.run(asyncio.Event())
    beating.cancel()
    await asyncio.wait({beating})


async def test_loop_survives_lost_connections_and_a_lost_stream(sink_lab: Lab, url: str, path: Path) -> None:
    log: list[str] = []
    async with sink_loop(url, sink_lab.frontier, path, log) as loop:
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))
        for part in range(4):
            await produce(sink_lab, BATCH, start=part * BATCH)
            if part == 2:
                await until_empty(sink_lab, running)
                await sink_lab.client.delete(sink_lab.keys.sink_stream(SINK))
            else:
                await sink_lab.client.client_kill_filter(_type="normal", skipme=True)
        await until_empty(sink_lab, running)
        stop.set()
        await running
    assert_once(path, 4 * BATCH)


async def test_loop_ends_with_its_crawl(sink_lab: Lab, url: str, path: Path) -> None:
    log: list[str] = []
    async with sink_loop(url, sink_lab.frontier, path, log) as loop:
        running = asyncio.create_task(loop.run(asyncio.Event()))
        await produce(sink_lab, 1)
        await until_empty(sink_lab, running)
        await delete_crawl(sink_lab.client, sink_lab.keys.prefix.split("{")[1].split(":")[0])
        with pytest.raises(CrawlGone):
            async with asyncio.timeout(20):
                await running
    assert log == []


async def test_missing_output_ends_the_loop_with_what_to_do(sink_lab: Lab, url: str, path: Path) -> None:
    await produce(sink_lab, BATCH)
    async with sink_loop(url, sink_lab.frontier, path, []) as loop:
        await run_until_empty(sink_lab, loop)
    cut(path)
    async with sink_loop(url, sink_lab.frontier, path, [], consumer="s2") as loop:
        with pytest.raises(SinkError, match="--fresh"):
            await loop.run(asyncio.Event())


# -- in a process of its own


class SinkProcess:
    """This file as a program, writing to `target`."""

    def __init__(
        self, url: str, lab: Lab, target: object, consumer: str, point: str = "", turn: int = 0, **settings: Any
    ) -> None:
        name = lab.keys.prefix.split("{")[1].split(":")[0]
        packed = msgspec.json.encode(Settings(name="x", **settings)).decode()
        self._command = [url, name, lab.frontier.epoch, str(target), consumer, point, str(turn), packed]

    async def __aenter__(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.test_sink_loop",
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        return self._process

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


async def finish(lab: Lab, url: str, path: Path) -> None:
    """Let a process write the rest and stop it in order."""
    async with SinkProcess(url, lab, path, "last") as process:
        await until_said(process, b"ready")
        await until_empty(lab, asyncio.ensure_future(asyncio.sleep(3600)))
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("point", ["before_write", "mid_write", "before_commit", "after_commit"])
async def test_sink_killed_at_any_point_leaves_each_record_once(
    sink_lab: Lab, url: str, path: Path, point: str
) -> None:
    await produce(sink_lab, 4 * BATCH)
    async with SinkProcess(url, sink_lab, path, "first", point, 1 if point == "after_commit" else 2) as process:
        async with asyncio.timeout(30):
            assert await process.wait() == -signal.SIGKILL
    left = await sink_lab.client.xlen(sink_lab.keys.sink_stream(SINK))
    assert left == 3 * BATCH
    await finish(sink_lab, url, path)
    assert_once(path, 4 * BATCH)


@pytest.mark.chaos
async def test_sink_killed_at_random_leaves_each_record_once(sink_lab: Lab, url: str, path: Path) -> None:
    dice = random.Random(4)
    count = 0
    for turn in range(6):
        await produce(sink_lab, 200, start=count)
        count += 200
        async with SinkProcess(url, sink_lab, path, f"s{turn}") as process:
            await until_said(process, b"ready")
            await asyncio.sleep(dice.uniform(0, 0.15))
            process.kill()
    await finish(sink_lab, url, path)
    assert_once(path, count)


async def test_full_disk_is_waited_out_and_said_once(sink_lab: Lab, url: str, path: Path) -> None:
    await produce(sink_lab, 4 * BATCH)
    async with SinkProcess(url, sink_lab, path, "s1", "full") as process:
        await until_said(process, b"waiting for room")
        assert await sink_lab.client.xlen(sink_lab.keys.sink_stream(SINK)) > 0
        process.send_signal(signal.SIGUSR1)  # room was made
        await until_empty(sink_lab, asyncio.ensure_future(process.wait()))
        process.send_signal(signal.SIGTERM)
        rest, _ = await process.communicate()
        assert process.returncode == 0
    assert b"waiting for room" not in rest
    assert b"can be written again" in rest
    assert_once(path, 4 * BATCH)


async def test_sink_stopped_while_the_disk_is_full_hands_everything_back(sink_lab: Lab, url: str, path: Path) -> None:
    await produce(sink_lab, 4 * BATCH)
    async with SinkProcess(url, sink_lab, path, "s1", "full") as process:
        await until_said(process, b"waiting for room")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert await sink_lab.frontier.pending_of(sink_stream(SINK), "s1") == []
    await finish(sink_lab, url, path)
    assert_once(path, 4 * BATCH)


async def main(
    url: str, name: str, epoch: str, target: str, consumer: str, point: str, write: str, settings: str
) -> None:
    """Be a sink until SIGTERM, or until SIGUSR2: then the crawl has ended."""
    board = Board.create(BATCH)  # before the disk is full: it lies in memory, but the limit below knows no difference
    if point == "full":
        import resource

        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, unlimited))
    client, reader = connect(url), connect(url, blocking=True)
    frontier = Faulty(Frontier(client, Keys(name), epoch), point if point == "after_commit" else "")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    output = Dying(open_output(read_target(target), msgspec.json.decode(settings, type=Settings)), point, int(write))
    ending = asyncio.Event()

    def end() -> None:
        ending.set()
        stop.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, end)
    loop = SinkLoop(
        Shards([frontier]),
        reader,
        output,
        sink=SINK,
        consumer=consumer,
        board=board,
        lease_ms=LEASE_MS,
        batch=BATCH,
        linger_ms=5,
        log=lambda line: print(line, flush=True),
    )
    print("ready", flush=True)
    await loop.run(stop, ending=ending)
    await output.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
