"""What a crawl shows of itself: figures that agree with the server's log, also after kills; probes; a look inside."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import ExitCode
from tests.e2e.processes import processes_in
from tests.metrics import Port, Scrape, check_by_promtool
from tests.redis_server import DURABLE, RedisServer
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.command import Command, Running

BROKEN = ("/fault/truncated", "/fault/bad_encoding")
"""Answers that are of no use although the server's log has a status for them."""
QUICK = {
    "STREAMCRAWL_RETRY_BASE": "10ms",
    "STREAMCRAWL_SCOPE": "any",
    "STREAMCRAWL_HOST_CONCURRENCY": "4",
    "STREAMCRAWL_DELAY_MAX": "20ms",
    "STREAMCRAWL_HOST_BACKOFF_MAX": "50ms",
}
"""Hosts that refuse fetches are slowed down all the same, but not for the time of a test."""
PROCESSES, SLOTS = 2, 4


def until(condition: Callable[[], Any], what: str, *, within_s: float = 40.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.05)


def port_of(running: Running) -> Port:
    """Return the port that a command says it listens on."""
    running.until(lambda: re.search(r"http://\S+/metrics", running.err), "it says where its metrics are")
    found = re.search(r"(http://\S+)/metrics", running.err)
    assert found is not None
    return Port(found[1])


class Watched:
    """A crawl that stays open, a worker of it and an exporter, each with its port."""

    def __init__(self, command: Command, redis_url: str, name: str) -> None:
        self.command = command
        self.name = name
        self.redis = ("--redis", redis_url)
        self.running: list[Running] = []

    def begin(self, *urls: str, arguments: tuple[str, ...] = ()) -> None:
        """Create the crawl; it does not end before it is closed."""
        (self.command.folder / "urls.txt").write_text("\n".join(urls))
        begun = self.command.run(
            "seed", self.name, "urls.txt", *self.redis, "--create", "--keep-open", "--memory-max", "500MB",
            "-o", f"{self.name}.jsonl", *arguments, **QUICK,
        )  # fmt: skip
        assert begun.code == ExitCode.DONE, begun

    def worker(self, *arguments: str) -> Port:
        running = self.command.start(
            "worker", self.name, *self.redis, "--processes", str(PROCESSES), "--concurrency", str(SLOTS),
            "--metrics-port", "0", *arguments,
        )  # fmt: skip
        self.running.append(running)
        return port_of(running)

    def exporter(self, *arguments: str) -> Port:
        running = self.command.start("exporter", *arguments, *self.redis, "--port", "0")
        self.running.append(running)
        return port_of(running)

    def until_at_rest(self, exporter: Port) -> Scrape:
        """Wait until nothing is left to do; return what the exporter says then."""
        seen: list[Scrape] = []

        def is_at_rest() -> bool:
            seen[:] = [exporter.scrape()]
            left = [seen[0].total(name, crawl=self.name) for name in ("queued_tasks", "stream_length", "delayed_tasks")]
            return not any(left) and seen[0].total("tasks_done_total", crawl=self.name) > 0

        until(is_at_rest, "all is done")
        return seen[0]

    def close(self) -> None:
        for running in self.running:
            running.__exit__()


@pytest.fixture
def watched(command: Command, redis_server: RedisServer, crawl_name: str) -> Iterator[Watched]:
    made = Watched(command, redis_server.url, crawl_name)
    yield made
    made.close()


def classes(site: SiteProcess) -> dict[str, int]:
    """Return the usable answers of a site by class of their status, as its log has them."""
    return dict(Counter(f"{one.status // 100}xx" for one in site.requests() if one.path not in BROKEN))


def test_figures_are_those_of_the_servers_log_and_of_the_audit(watched: Watched) -> None:
    spec = SiteSpec(hosts=3, pages_per_host=30, flaky=0.1, redirect_within=0.1, redirect_across=0.1)
    with SiteProcess(spec) as site:
        faults = [site.url(2, f"/fault/{name}") for name in ("status_404", "status_500", "truncated", "bad_encoding")]
        watched.begin(site.seed_url, *faults)
        worker, exporter = watched.worker(), watched.exporter()
        until(lambda: worker.get("/readyz")[0] == 200, "the workers are ready")
        series = worker.scrape().series()
        stored = watched.until_at_rest(exporter)
        # The last batch of records may be counted a moment after it is committed.
        until(lambda: worker.scrape().total("worker_commits_total", kind="item") == stored.total(
            "tasks_done_total", kind="item", crawl=watched.name), "the last records are counted")  # fmt: skip
        counted = worker.scrape()
        assert counted.series() == series, "what is crawled makes no series"
        log = site.requests()

        assert counted.by("class", "fetch_responses_total") == classes(site)
        assert counted.by("reason", "fetch_errors_total") == {
            "disconnected": sum(one.path == "/fault/truncated" for one in log),
            "protocol": sum(one.path == "/fault/bad_encoding" for one in log),
        }
        assert counted.total("fetch_seconds_count", kind="robots") == sum(one.path == "/robots.txt" for one in log)
        assert counted.total("fetch_seconds_count") == len(log)
        # Two 503 and then the page; and what never gets better twice again after its first try. Of a host that refuses
        # often no attempt is counted.
        again = sum(one.status == 503 for one in log) + 2 * 3
        retried, unanswered = (
            stored.total(f"tasks_{state}_total", crawl=watched.name) for state in ("retried", "unanswered")
        )
        assert retried + unanswered == again
        asked = [counted.total("worker_commits_total", outcome=outcome) for outcome in ("retry", "unanswered")]
        assert sum(asked) == again
        assert 0 < stored.total("host_refusals_total", crawl=watched.name) <= sum(one.status == 503 for one in log)
        done = len(site.expected_pages()) + 1
        assert stored.total("tasks_done_total", kind="page", crawl=watched.name) == done
        assert counted.total("worker_commits_total", kind="page", outcome="done") == done
        assert counted.total("task_latency_seconds_count", stage="fetch") == done + 3  # and three robots.txt
        dead = {"http_500": 1, "disconnected": 1, "protocol": 1}
        assert stored.by("reason", "tasks_dead_total", crawl=watched.name) == dead
        assert stored.by("reason", "dead_letters", crawl=watched.name) == dead
        assert counted.total("handler_seconds_count", stage="fetch") == done
        records = (watched.command.folder / f"{watched.name}.jsonl").read_bytes()
        assert stored.total("output_bytes", crawl=watched.name) == len(records)
        (output,) = counted.by("stage", "worker_commits_total", kind="item")
        assert counted.total("worker_commits_total", stage=output) == records.count(b"\n") == done

        audit = json.loads(watched.command.run("audit", watched.name, *watched.redis, "--json").out)
        assert not audit["faults"]
        for state in ("created", "done", "retried"):
            assert stored.total(f"tasks_{state}_total", kind="page", crawl=watched.name) == audit["totals"].get(
                f"page.{state}", 0
            )
        assert stored.total("audit_balance", crawl=watched.name) == 0
        assert stored.total("consumers", stage="fetch", crawl=watched.name) == PROCESSES
        assert counted.total("slots") == PROCESSES * SLOTS
        assert (counted.total("slots_busy"), counted.total("worker_restarts_total")) == (0, 0)
        assert counted.total("heartbeat_age_seconds") < 60
        for port in (worker, exporter):
            status, text = port.get("/metrics")
            assert (status, check_by_promtool(text)) == (200, "")
            assert port.get("/metrics", {"Accept": "application/openmetrics-text;version=1.0.0"})[1].endswith("# EOF\n")


def test_killed_workers_take_no_count_with_them(watched: Watched) -> None:
    with SiteProcess(SiteSpec(hosts=3, pages_per_host=60, latency_ms=20)) as site:
        watched.begin(site.seed_url)
        worker, exporter = watched.worker("--log-format", "json"), watched.exporter()
        until(lambda: len(site.requests()) > 30, "30 pages")
        # The crawl is open, so its workers live, however quickly they go through the site.
        killed = [
            process
            for name, processes in processes_in(watched.command.folder).items()
            if name in ("crawl-fetch", "crawl-sink")
            for process in processes
        ]
        assert len(killed) == PROCESSES + 1
        before = worker.scrape()
        for process in killed:
            process.kill()
        until(lambda: worker.scrape().total("worker_restarts_total") == len(killed), "others took their places")
        stored = watched.until_at_rest(exporter)
        after = worker.scrape()

        fallen = {
            series: (value, after.samples[series])
            for series, value in before.samples.items()
            if series[0].endswith(("_total", "_count", "_sum", "_bucket")) and after.samples[series] < value
        }
        assert not fallen
        # An answer on its way to a process that is killed is in the server's log alone; each slot has one at most.
        in_flight = sum(classes(site).values()) - after.total("fetch_responses_total")
        assert 0 <= in_flight <= PROCESSES * SLOTS
        assert stored.total("tasks_done_total", kind="page", crawl=watched.name) == len(site.expected_pages())
        assert stored.total("audit_balance", crawl=watched.name) == 0
        audit = watched.command.run("audit", watched.name, *watched.redis)
        assert audit.code == ExitCode.DONE, audit
        said = [json.loads(line) for line in watched.running[0].err.splitlines()]
        ended = [one for one in said if "takes its place" in one["message"]]
        assert {one["worker"] for one in ended} == {worker for one in ended for worker in [one["message"].split()[1]]}
        assert {(one["level"], one["crawl"]) for one in ended} == {("warning", watched.name)}
        assert Counter(one["stage"] == "fetch" for one in ended) == {True: PROCESSES, False: 1}
        assert after.total("log_messages_total", level="warning") >= len(killed)


def test_worker_is_ready_while_redis_answers_and_shows_what_it_is_busy_with(command: Command, crawl_name: str) -> None:
    with RedisServer(options=DURABLE) as server, SiteProcess(SiteSpec(pages_per_host=5)) as site:
        watched = Watched(command, server.url, crawl_name)
        try:
            watched.begin(site.seed_url)
            worker, exporter = watched.worker(), watched.exporter(crawl_name)
            until(lambda: worker.get("/readyz") == (200, "ready\n"), "the worker is ready")
            watched.until_at_rest(exporter)
            _look_inside(worker)

            # Connections stay, and nothing answers.
            os.kill(server.pid, signal.SIGSTOP)
            until(lambda: worker.get("/readyz")[0] == 503, "it is not ready while Redis hangs")
            assert worker.get("/healthz") == (200, "ok\n")
            os.kill(server.pid, signal.SIGCONT)
            until(lambda: worker.get("/readyz")[0] == 200, "it is ready when Redis goes on")

            server.stop()
            until(lambda: worker.get("/readyz")[0] == 503, "it is not ready without Redis")
            assert "Redis" in worker.get("/readyz")[1]
            assert worker.get("/healthz") == (200, "ok\n")
            assert exporter.get("/readyz")[0] == 503
            until(lambda: exporter.scrape().total("redis_up") == 0, "the exporter says that Redis is away")
            assert exporter.get(f"/scale/{crawl_name}/fetch")[0] == 503
            gone = exporter.scrape()
            assert {name for name, labels in gone.samples if "crawl" in dict(labels)} == set()
            assert not gone.all("redis_memory_bytes")
            assert worker.scrape().total("worker_processes", stage="fetch") == PROCESSES

            server.start()
            until(lambda: worker.get("/readyz")[0] == 200, "it is ready again")
            until(lambda: exporter.scrape().all("tasks_done_total", crawl=crawl_name), "the crawl is shown again")
            assert exporter.scrape().total("redis_aof_write_ok") == 1
            # Stopped, it takes nothing any more; who asks meanwhile is told, and then the port is closed.
            watched.running[0].interrupt()
            assert watched.running[0].wait().code == ExitCode.STOPPED
            watched.running[1].process.send_signal(signal.SIGTERM)
            assert watched.running[1].wait().code == ExitCode.DONE
        finally:
            watched.close()


def _look_inside(worker: Port) -> None:
    processes = worker.json("/debug/tasks")
    assert [one.get("stage", "supervisor") == "fetch" for one in processes].count(True) == PROCESSES
    names = {one["process"]: {task["name"] for task in one["tasks"]} for one in processes}
    assert {"BeatLoop", "ReclaimLoop"} <= names["supervisor"]
    child = next(one for one in processes if one.get("stage") == "fetch")
    assert {"ReadLoop", "CommitLoop", "LagLoop"} <= names[child["process"]]
    ages = [task["age_s"] for task in child["tasks"] if task["age_s"] is not None]
    assert ages == sorted(ages, reverse=True)
    reading = next(task for task in child["tasks"] if task["name"] == "ReadLoop")
    assert reading["stack"][0].startswith("streamcrawl/work/read.py:")

    memory = worker.json("/debug/memory?seconds=0.2")
    assert {one["process"] for one in memory} == {*names}
    assert all(one["places"] and one["held_bytes"] >= 0 for one in memory)
    assert worker.get("/debug/memory?seconds=1e9")[0] == 400
    assert worker.get("/debug/tasks", {"X-Forwarded-For": "203.0.113.7"})[0] == 403
    assert worker.get("/debug/other")[0] == 404


def test_children_that_hang_are_told_of_by_what_they_have_in_hand(watched: Watched) -> None:
    with SiteProcess(SiteSpec(pages_per_host=3, latency_ms=600_000)) as site:
        watched.begin(site.seed_url, arguments=("--no-robots",))
        worker = watched.worker()
        until(lambda: sum(worker.scrape().all("slots_busy", stage="fetch").values()) == 1, "a page is in hand")
        stopped = processes_in(watched.command.folder)["crawl-fetch"]
        for process in stopped:
            process.suspend()
        try:
            found = [one for one in worker.json("/debug/tasks") if one.get("stage") == "fetch"]
        finally:
            for process in stopped:
                process.resume()
        assert all("no answer" in one["error"] for one in found)
        (entry,) = [entry for one in found for entry in one["in_hand"]]
        assert re.fullmatch(r"\d+-\d+", entry["entry"])
        assert entry["age_s"] > 0


def test_port_that_is_taken_is_one_line_and_nothing_is_started(command: Command, site: SiteProcess) -> None:
    result = command.run("crawl", site.seed_url, "--metrics-port", str(site.port))
    assert result.code == ExitCode.USAGE
    assert result.err.startswith(f"streamcrawl: --metrics-port {site.port}: nothing can listen there on 127.0.0.1 (")
    assert result.err.count("\n") == 1
    assert os.listdir(command.folder) == []
    # As JSON too, where messages are.
    again = command.run("crawl", site.seed_url, "--metrics-port", str(site.port), "--log-format", "json")
    said = json.loads(again.err)
    assert (said["level"], said["message"]) == ("error", result.err.removeprefix("streamcrawl: ").rstrip())


def test_private_redis_of_a_crawl_is_shown_while_it_runs(command: Command, leisurely_site: SiteProcess) -> None:
    assert "give --redis URL" in command.run("exporter", "127.0.0.1").err
    with command.start("crawl", leisurely_site.seed_url, "--delay", "1") as crawl:
        crawl.until(lambda: command.lines() >= 1, "a page")
        with command.start("exporter", "--port", "0") as exporting:
            port = port_of(exporting)
            assert port.scrape().total("tasks_done_total", crawl="127.0.0.1", kind="page") >= 1
            # Sixty pages of a host a second apart: it runs until it is stopped.
            crawl.interrupt()
            assert crawl.wait().code == ExitCode.STOPPED
            until(lambda: port.scrape().total("redis_up") == 0, "its server has ended")
            exporting.process.send_signal(signal.SIGTERM)
            assert exporting.wait().code == ExitCode.DONE


def test_worker_that_waits_for_its_crawl_lives_and_is_not_ready(watched: Watched) -> None:
    worker = watched.worker()
    assert worker.get("/healthz") == (200, "ok\n")
    assert worker.get("/readyz") == (503, "not ready: it has not joined its crawl yet\n")
    waiting = worker.scrape()
    assert waiting.total("build_info") == 1
    assert not waiting.all("slots")
    with SiteProcess(SiteSpec(pages_per_host=2)) as site:
        watched.begin(site.seed_url)
        until(lambda: worker.get("/readyz")[0] == 200, "it has joined")
