"""A fleet at work: commands that steer it, settings that change under it, workers that come and go."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import time
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from streamcrawl.errors import ExitCode
from streamcrawl.store.keys import Keys
from streamcrawl.store.shards import join_crawl
from tests.e2e.processes import processes_in
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.asyncio import Redis

    from tests.e2e.command import Command, Running
    from tests.redis_server import RedisServer
    from tests.site.server import LoggedRequest

DELETED = "streamcrawl: the crawl was deleted or begun afresh by someone else while this one ran\n"


class Fleet:
    """A crawl on a shared Redis and the commands that work at it, all of this machine."""

    def __init__(self, command: Command, server: RedisServer, name: str) -> None:
        self.command = command
        self.server = server
        self.name = name
        self.running: list[Running] = []
        """All that were started, also those that have ended."""

    def crawl(self, site: SiteProcess, *arguments: str, keeps_stdin_open: bool = False) -> Running:
        words = ["crawl", site.seed_url, "--scope", "any", "--name", self.name, "--redis", self.server.url]
        return self._start(*words, "--memory-max", "500MB", *arguments, keeps_stdin_open=keeps_stdin_open)

    def worker(self, *arguments: str, **environment: str) -> Running:
        return self._start("worker", self.name, "--redis", self.server.url, *arguments, **environment)

    def _start(self, *words: str, **rest: Any) -> Running:
        self.running.append(self.command.start(*words, **rest))
        return self.running[-1]

    def do(self, word: str, *arguments: str) -> str:
        """Run a command about the crawl; return what it says."""
        first, *rest = word.split()
        result = self.command.run(first, *rest, self.name, *arguments, "--redis", self.server.url)
        assert result.code == ExitCode.DONE, result
        return result.out

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.do("status", "--json"))
        return found

    def done(self) -> int:
        result = self.command.run("status", self.name, "--json", "--redis", self.server.url)
        return int(json.loads(result.out)["totals"].get("page.done", 0)) if result.code == ExitCode.DONE else 0

    @property
    def output(self) -> str:
        return f"{self.name}.jsonl"

    def close(self) -> None:
        for running in self.running:
            running.__exit__()


@pytest.fixture
def fleet(command: Command, redis_server: RedisServer, crawl_name: str) -> Iterator[Fleet]:
    fleet = Fleet(command, redis_server, crawl_name)
    yield fleet
    fleet.close()


@pytest.fixture
def long_site() -> Iterator[SiteProcess]:
    """Six hosts of 400 pages, which nobody fetches in the time of a test while each page has its delay."""
    with SiteProcess(SiteSpec(hosts=6, pages_per_host=400, latency_ms=5)) as running:
        yield running


def fetched(site: SiteProcess) -> int:
    return site.log.read_bytes().count(b"\n")


def until(condition: Callable[[], Any], what: str, *, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def until_quiet(site: SiteProcess) -> None:
    """Wait until nothing has been fetched for a second."""
    count, since = fetched(site), time.monotonic()
    deadline = since + 30
    while time.monotonic() - since < 1.0:
        assert time.monotonic() < deadline, "it goes on fetching"
        time.sleep(0.05)
        if fetched(site) != count:
            count, since = fetched(site), time.monotonic()


def assert_each_fetched_once(site: SiteProcess) -> None:
    counts = Counter(request.host + request.path for request in site.requests())
    assert {url: count for url, count in counts.items() if count > 1} == {}


# -- pause, resume, drain, close


def test_embedded_crawl_is_paused_and_resumed_while_it_runs(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url, "--scope", "any") as running:
        running.until(lambda: command.lines() >= 5, "5 pages")
        paused = command.run("pause", "127.0.0.1")
        assert paused.out.startswith("crawl 127.0.0.1: paused; ")
        assert paused.out.endswith("go on: streamcrawl resume 127.0.0.1\n")
        until_quiet(leisurely_site)
        assert "paused" in command.run("status", "127.0.0.1").out.splitlines()[0]
        assert running.process.poll() is None
        assert len(command.records()) < len(leisurely_site.expected_pages())
        assert command.run("drain", "127.0.0.1").code == ExitCode.DONE
        assert command.run("resume", "127.0.0.1").out == "crawl 127.0.0.1: goes on\n"
        assert running.wait().code == ExitCode.DONE
    assert command.pages() == leisurely_site.expected_pages()
    assert_each_fetched_once(leisurely_site)


def test_embedded_crawl_at_rest_is_paused_and_its_next_run_waits(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url, "--scope", "any") as running:
        running.until(lambda: command.lines() >= 5, "5 pages")
        running.interrupt()
        assert running.wait().code == ExitCode.STOPPED
    assert command.run("pause", "127.0.0.1").out.startswith("crawl 127.0.0.1: paused; ")
    drained = command.run("drain", "127.0.0.1")
    assert drained.code == ExitCode.DONE
    assert drained.out.startswith("crawl 127.0.0.1: at rest, nothing is in any hand, ")
    before = fetched(leisurely_site)
    with command.start("crawl", "--resume") as running:
        running.until(lambda: "resuming crawl" in running.err, "it runs")
        until_quiet(leisurely_site)
        assert fetched(leisurely_site) <= before + 2  # what had been handed out and nobody had read: one of each host
        assert command.run("resume", "127.0.0.1").code == ExitCode.DONE
        assert running.wait().code == ExitCode.DONE
    assert command.pages() == leisurely_site.expected_pages()


def test_resume_of_a_crawl_at_rest_says_how_to_start_it(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url, "--max-pages", "3").code == ExitCode.STOPPED
    command.run("pause", "127.0.0.1")
    assert command.run("resume", "127.0.0.1").out == (
        "crawl 127.0.0.1: goes on; no worker is alive, start some: streamcrawl crawl --resume --name 127.0.0.1\n"
    )


def test_drained_fleet_is_stopped_with_nothing_in_hand_and_goes_on(fleet: Fleet, leisurely_site: SiteProcess) -> None:
    crawl, worker = fleet.crawl(leisurely_site), fleet.worker()
    crawl.until(lambda: fleet.command.lines(fleet.output) >= 10, "10 pages")
    said = fleet.do("drain")
    assert "drained, " in said
    status = fleet.status()
    assert status["streamed"] == 0
    assert [sink["waiting"] for sink in status["sinks"]] == [0]
    assert fleet.command.lines(fleet.output) == status["totals"]["page.done"]
    for running in (crawl, worker):
        running.process.send_signal(signal.SIGTERM)
        assert running.wait().code == ExitCode.STOPPED
    fleet.do("resume")
    assert fleet.worker().wait().code == ExitCode.DONE
    assert fleet.command.pages(fleet.output) == leisurely_site.expected_pages()
    assert_each_fetched_once(leisurely_site)


# -- delete


async def assert_gone(client: Redis, name: str) -> None:
    assert [key async for key in client.scan_iter(match=f"streamcrawl:{{{name}:*", count=10_000)] == []


@pytest.mark.parametrize("moment", ["paused", "reading seeds", "writing"])
async def test_workers_of_a_deleted_crawl_end_with_one_line_and_make_nothing_again(
    fleet: Fleet, long_site: SiteProcess, redis_client: Redis, moment: str
) -> None:
    seeds = ["--seeds", "-"] if moment == "reading seeds" else []
    crawl = fleet.crawl(long_site, "--delay", "0.05", "--quiet", *seeds, keeps_stdin_open=bool(seeds))
    if seeds:
        assert crawl.process.stdin is not None
        # More than are read ahead to find the crawl's name and scope.
        lines = "".join(f"{long_site.url(1, '/page/')}{n}\n" for n in range(20_000))
        crawl.process.stdin.write(lines.encode())
        crawl.process.stdin.flush()
    worker = fleet.worker("--processes", "2", "--quiet", STREAMCRAWL_DELAY="")
    crawl.until(lambda: fleet.command.lines(fleet.output) >= 5, "5 pages")
    until(lambda: len(fleet.status()["workers"]) == 4, "two more workers beside the first and its output")
    if moment == "paused":
        fleet.do("drain")
        for running in (crawl, worker):  # which each says when it asks the next time
            running.until(lambda running=running: "the crawl is paused" in running.err, "it knows of the pause")  # type: ignore[misc]
    if moment == "writing":
        sink = processes_in(fleet.command.folder)["crawl-sink"]
        for process in sink:
            process.send_signal(signal.SIGSTOP)
        until(lambda: any(one["waiting"] for one in fleet.status()["sinks"]), "records wait for the output")
        for process in sink:
            process.send_signal(signal.SIGCONT)
    said_before = {running: running.err for running in (crawl, worker)}
    said = fleet.do("delete", "--yes")
    assert f"crawl {fleet.name}: deleted, " in said
    assert f"kept: {fleet.command.folder / fleet.output}\n" in said
    await assert_gone(redis_client, fleet.name)
    for running in (crawl, worker):
        result = running.wait(30)
        assert result.code == ExitCode.STORE_UNAVAILABLE
        # Nothing of an outage, of a stream that is missing, or of each process by itself: one line.
        assert result.err.removeprefix(said_before[running]) == DELETED
    await assert_gone(redis_client, fleet.name)
    assert fleet.command.records(fleet.output)


async def test_deletion_while_workers_work_is_complete_at_any_moment(
    fleet: Fleet, long_site: SiteProcess, redis_client: Redis
) -> None:
    """The same again and again, at moments that nobody has chosen."""
    for turn in range(2):
        output = f"{turn}.jsonl"
        crawl = fleet.crawl(long_site, "--delay", "0", "-o", output)
        worker = fleet.worker()
        crawl.until(lambda output=output: fleet.command.lines(output), "the first page")  # type: ignore[misc]
        await asyncio.sleep(0.1 * turn)  # no condition to wait for: another moment each time
        fleet.do("delete", "--yes")
        await assert_gone(redis_client, fleet.name)
        for running in (crawl, worker):
            assert running.wait(30).code == ExitCode.STORE_UNAVAILABLE
        await assert_gone(redis_client, fleet.name)


def test_embedded_crawl_is_deleted_while_it_runs(command: Command, leisurely_site: SiteProcess) -> None:
    with command.start("crawl", leisurely_site.seed_url) as running:
        running.until(lambda: command.lines() >= 3, "3 pages")
        deleted = command.run("delete", "127.0.0.1", "--yes")
        result = running.wait(20)
    assert deleted.code == ExitCode.DONE
    assert deleted.out.endswith(f"kept: {command.folder / '127.0.0.1.jsonl'}\n")
    assert result.code == ExitCode.STORE_UNAVAILABLE
    assert result.err.endswith(DELETED)
    assert list(command.folder.joinpath(".streamcrawl").iterdir()) == []
    assert command.records()


@pytest.mark.parametrize("state", ["at rest", "damaged", "half deleted"])
def test_embedded_crawl_at_rest_is_deleted_with_its_folder(command: Command, site: SiteProcess, state: str) -> None:
    assert command.run("crawl", site.seed_url).code == ExitCode.DONE
    pages = len(command.records())
    folder = command.folder / ".streamcrawl" / "127.0.0.1"
    if state == "damaged":
        manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
        manifest.write_text("nonsense\n")
    elif state == "half deleted":
        folder.joinpath("appendonlydir").rename(folder / "deleted")
        assert command.run("status").out == "no crawls in .streamcrawl\n"
    deleted = command.run("delete", "127.0.0.1", "--yes")
    assert deleted.code == ExitCode.DONE, deleted
    said = {
        "at rest": f"crawl 127.0.0.1: {pages} pages done, 0 queued, 0 dead letters, ",
        "damaged": "what it holds cannot be told (the data in ",
        "half deleted": "what a deletion that broke off has left in .streamcrawl/127.0.0.1\n",
    }
    assert said[state] in deleted.err
    assert list(command.folder.joinpath(".streamcrawl").iterdir()) == []
    assert len(command.records()) == pages
    assert command.run("crawl", site.seed_url, "-o", "again.jsonl").code == ExitCode.DONE


def test_folder_that_is_in_use_is_not_deleted(command: Command, site: SiteProcess) -> None:
    assert command.run("crawl", site.seed_url).code == ExitCode.DONE
    lock = command.folder / ".streamcrawl" / "127.0.0.1" / "crawl.lock"
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = command.run("delete", "127.0.0.1", "--yes")
    assert refused.code == ExitCode.USAGE
    assert " is in use by another crawl (process " in refused.err
    assert command.run("delete", "127.0.0.1", "--yes").code == ExitCode.DONE


# -- settings that change under the fleet


class Since(NamedTuple):
    """What a site was asked for from a moment on."""

    site: SiteProcess
    start_ms: float

    def by_host(self) -> Iterator[list[LoggedRequest]]:
        found: defaultdict[str, list[LoggedRequest]] = defaultdict(list)
        for request in sorted(self.site.requests(), key=lambda one: one.start_ms):
            if request.start_ms > self.start_ms:
                found[request.host].append(request)
        yield from found.values()

    def pauses_ms(self) -> list[float]:
        """Return the times between the end of one fetch of a host and the start of its next."""
        return [later.start_ms - earlier.end_ms for one in self.by_host() for earlier, later in pairwise(one)]

    def most_at_once(self) -> int:
        """Return how many fetches of one host there were at a time."""
        at_once = [
            sum(other.start_ms <= request.start_ms < other.end_ms for other in one)
            for one in self.by_host()
            for request in one
        ]
        return max(at_once, default=0)


def set_and_wait(fleet: Fleet, site: SiteProcess, version: int, *changes: str) -> Since:
    """Change settings; return once every worker has said so, and fetched what was in its hands before."""
    fleet.do("settings set", *changes)
    for running in fleet.running:
        running.until(lambda running=running: f"settings of version {version} are in force" in running.err, "they know")  # type: ignore[misc]
    wanted = fetched(site) + 30
    until(lambda: fetched(site) >= wanted, "30 more pages")
    return Since(site, time.monotonic() * 1000)


def test_settings_change_under_the_fleet(fleet: Fleet) -> None:
    with SiteProcess(SiteSpec(hosts=6, pages_per_host=500, latency_ms=40)) as site:
        fleet.crawl(site, "--delay", "0.05", "--no-robots")
        fleet.worker(STREAMCRAWL_DELAY="")
        until(lambda: fetched(site) >= 30, "30 pages")

        since = set_and_wait(fleet, site, 2, "delay=0", "host-concurrency=4")
        until(lambda: since.most_at_once() > 1, "several fetches of a host at a time")
        since = set_and_wait(fleet, site, 3, "host-concurrency=1")
        until(lambda: len(since.pauses_ms()) >= 40, "40 fetches")
        assert since.most_at_once() == 1

        since = set_and_wait(fleet, site, 4, "delay=600ms")
        until(lambda: len(since.pauses_ms()) >= 10, "10 fetches at the new delay")
        assert min(since.pauses_ms()) >= 600

        set_and_wait(fleet, site, 5, "delay=0", "deny=/p/")
        created = fleet.status()["totals"]["page.created"]
        set_and_wait(fleet, site, 6, "depth=50")
        assert fleet.status()["totals"]["page.created"] == created


def test_more_pages_are_allowed_and_fewer_while_it_runs(fleet: Fleet, long_site: SiteProcess) -> None:
    crawl = fleet.crawl(long_site, "--delay", "0.05", "--max-pages", "2000")
    worker = fleet.worker(STREAMCRAWL_DELAY="")
    crawl.until(lambda: fetched(long_site) >= 50, "50 pages")
    fleet.do("settings set", "delay=0", "max-pages=400")
    assert crawl.wait().code == ExitCode.STOPPED
    assert worker.wait().code == ExitCode.STOPPED
    assert fleet.status()["totals"]["page.done"] == 400
    assert fleet.do("settings set", "max-pages=410").endswith(
        "settings version 3, in force everywhere within a second\n"
    )
    assert fleet.worker().wait().code == ExitCode.STOPPED
    assert fleet.status()["totals"]["page.done"] == 410


# -- workers


def test_workers_may_come_before_their_crawl(fleet: Fleet, leisurely_site: SiteProcess) -> None:
    workers = [fleet.worker() for _ in range(2)]
    for worker in workers:
        worker.until(lambda worker=worker: worker.err, "it says something")  # type: ignore[misc]
        assert worker.err == f"waiting for crawl {fleet.name}: it is not there yet\n"
    crawl = fleet.crawl(leisurely_site)
    assert [running.wait().code for running in (crawl, *workers)] == [ExitCode.DONE] * 3
    for worker in workers:
        assert f"joining crawl {fleet.name}: " in worker.err
        assert f"crawl {fleet.name}: complete\n" in worker.out
    assert fleet.command.pages(fleet.output) == leisurely_site.expected_pages()
    assert_each_fetched_once(leisurely_site)


def test_worker_that_is_stopped_as_it_joins_ends(fleet: Fleet, leisurely_site: SiteProcess) -> None:
    crawl = fleet.crawl(leisurely_site)
    for _ in range(4):
        worker = fleet.worker()
        # Between this word and its workers' start lie some questions to Redis, and a signal could be lost in each.
        worker.until(lambda worker=worker: "joining" in worker.err, "it joins")  # type: ignore[misc]
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait(30).code in (ExitCode.STOPPED, ExitCode.DONE)
    assert crawl.wait().code == ExitCode.DONE
    assert_each_fetched_once(leisurely_site)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_that_waits_for_its_crawl_is_stopped_at_once(fleet: Fleet, number: signal.Signals) -> None:
    worker = fleet.worker()
    worker.until(lambda: worker.err, "it waits")
    worker.process.send_signal(number)
    result = worker.wait(10)
    assert result.code == ExitCode.STOPPED
    assert result.err.endswith("streamcrawl: interrupted\n")
    assert "Traceback" not in result.err


async def test_worker_stays_for_seeds_that_were_promised_until_the_crawl_is_closed(
    fleet: Fleet, leisurely_site: SiteProcess, redis_client: Redis
) -> None:
    crawl, worker = fleet.crawl(leisurely_site), fleet.worker()
    worker.until(lambda: "joining" in worker.err, "it joins")
    crawl.until(lambda: fleet.command.lines(fleet.output) >= 5, "5 pages")
    # A feeder that dies at once. The command that began the crawl gives up then, as its seeds are done.
    await (await join_crawl(redis_client, fleet.name)).first.feed("dead", "begin", lease_ms=1)
    assert crawl.wait().code == ExitCode.STOPPED
    worker.until(lambda: "this worker waits for them\n" in worker.err, "it waits for seeds")
    assert fleet.do("close") == f"crawl {fleet.name}: closed; it ends once nothing is left to do\n"
    assert worker.wait().code == ExitCode.DONE
    assert fleet.command.pages(fleet.output) == leisurely_site.expected_pages()
    assert_each_fetched_once(leisurely_site)


def test_worker_stays_while_paused_and_writes_on_when_the_first_command_is_gone(
    fleet: Fleet, leisurely_site: SiteProcess
) -> None:
    crawl = fleet.crawl(leisurely_site)
    crawl.until(lambda: fleet.command.lines(fleet.output) >= 5, "5 pages")
    fleet.do("pause")
    worker = fleet.worker()
    worker.until(lambda: "; it is paused\n" in worker.err, "it joins")
    crawl.interrupt()
    assert crawl.wait().code == ExitCode.STOPPED
    until_quiet(leisurely_site)
    assert worker.process.poll() is None
    fleet.do("resume")
    result = worker.wait()
    assert result.code == ExitCode.DONE
    assert fleet.command.pages(fleet.output) == leisurely_site.expected_pages()
    assert_each_fetched_once(leisurely_site)


@pytest.mark.parametrize("place", ["written", "begun"])
async def test_worker_leaves_an_output_alone_that_is_on_another_machine(
    fleet: Fleet, site: SiteProcess, redis_client: Redis, place: str
) -> None:
    keys = Keys(fleet.name)
    assert fleet.crawl(site, "--max-pages", "5").wait().code == ExitCode.STOPPED
    if place == "written":
        await redis_client.hset(
            keys.offsets, f"{fleet.status()['sinks'][0]['name']}:owner", "sink-far-away-17-0a0b0c0d"
        )
    else:
        await redis_client.delete(keys.offsets)
        stored = json.loads(await redis_client.hget(keys.state, "crawl") or "")
        await redis_client.hset(keys.state, "crawl", json.dumps({**stored, "machine": "far-away"}))
    fleet.do("settings set", "max-pages=")
    worker = fleet.worker()
    path = fleet.command.folder / fleet.output
    worker.until(lambda: fleet.done() == len(site.expected_pages()), "all pages are fetched")
    assert f"{path} is written on far-away; this machine only fetches\n" in worker.err
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait().code == ExitCode.STOPPED
    assert len(fleet.command.records(fleet.output)) == 5
    assert fleet.status()["sinks"][0]["waiting"] > 5
    if place == "written":  # in the other case the file is of a crawl that never wrote one
        assert fleet.crawl(site, "--resume").wait().code == ExitCode.DONE
        assert fleet.command.pages(fleet.output) == site.expected_pages()


def test_worker_follows_the_crawls_settings_and_says_which_of_its_own_do_not_count(
    fleet: Fleet, site: SiteProcess
) -> None:
    assert fleet.crawl(site, "--max-pages", "5").wait().code == ExitCode.STOPPED
    fleet.command.folder.joinpath("fleet.toml").write_text('timeout = "5s"\nconcurrency = 3\n')
    refused = fleet.worker(STREAMCRAWL_SHARDS="4").wait()
    assert refused.code == ExitCode.USAGE
    assert refused.err == (
        f"streamcrawl: crawl {fleet.name!r} has shards 1 and not shards 4 (STREAMCRAWL_SHARDS), which cannot change "
        "(it decides in which shard each host's tasks and fingerprints lie): leave it out\n"
    )
    worker = fleet.worker("--config", "fleet.toml", "--grace", "5s", STREAMCRAWL_DELAY="3")
    result = worker.wait()
    assert result.code == ExitCode.STOPPED
    line = (
        "not followed here, because it is the crawl's: timeout 5s (fleet.toml), it has 30s; delay 3s "
        f"(STREAMCRAWL_DELAY), it has 0s; change it for everybody: streamcrawl settings set {fleet.name} "
        "timeout=5s delay=3s --config fleet.toml"
    )
    assert result.err.count(line) == 1
    assert "stopped at --max-pages\n" in result.out


def test_worker_without_redis_is_told_where_a_crawl_is(command: Command) -> None:
    result = command.run("worker", "books")
    assert result.code == ExitCode.USAGE
    assert result.err.startswith("streamcrawl: say where the crawl is: --redis URL; ")
    assert result.err.count("\n") == 1


async def test_stopped_worker_leaves_no_trace_of_itself(
    fleet: Fleet, long_site: SiteProcess, redis_client: Redis
) -> None:
    keys = Keys(fleet.name)
    crawl = fleet.crawl(long_site, "--delay", "0.05")
    crawl.until(lambda: fleet.command.lines(fleet.output) >= 5, "5 pages")

    async def names() -> set[bytes]:
        rows: Any = await redis_client.hkeys(keys.workers)
        consumers: Any = await redis_client.xinfo_consumers(keys.fetch_stream, "workers")
        return {*rows, *(consumer["name"] for consumer in consumers)}

    before = await names()
    worker = fleet.worker("--processes", "2", STREAMCRAWL_DELAY="")
    while len(await names()) < len(before) + 2:
        assert worker.process.poll() is None, worker.err
        await asyncio.sleep(0.02)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait().code == ExitCode.STOPPED
    assert await names() <= before
    assert crawl.process.poll() is None
    assert fleet.status()["totals"].get("page.crashed", 0) == 0
    assert_each_fetched_once(long_site)
