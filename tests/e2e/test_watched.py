"""A real Prometheus watches a real crawl: every panel, rule and alert gets data, and alerts fire and clear.

The crawl cannot end while it is watched: each host has more pages than its delay lets anybody fetch in that time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any, Final, Self

import psutil
import pytest
import yaml
from redis import Redis

from streamcrawl import TaskQueue
from streamcrawl.errors import ExitCode
from streamcrawl.settings import Settings
from streamcrawl.store.keys import Keys
from streamcrawl.work.janitor import MEMORY_MARK
from tests.e2e.command import REPOSITORY, Command, Running
from tests.prometheus_server import Prometheus
from tests.redis_server import DURABLE, RedisServer, free_port
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess
from tests.unit.test_dashboards import DASHBOARDS, RULES, expressions, rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME: Final = "watched"
SITE: Final = SiteSpec(
    hosts=4,
    pages_per_host=5000,
    links=6,
    latency_ms=30,
    flaky=0.1,
    refusing_hosts=(4,),
    robots="disallow:/private/a/b/",
)
SETTINGS: Final = {
    "output": "pages.jsonl",
    "concurrency": 1,
    "lease": "3s",
    "retry_base": "100ms",
    "retry_max": "200ms",
    "attempts_max": 3,
    "host_give_up": "2s",
    "path_depth_max": 3,
    "sink_waiting_max": 100,
}
PROGRAM: Final = "tests.programs:watched"
STAGES: Final = ("first_look", "second_look")
NAP_S: Final = "0.02"
"""Of each item in a stage, so that some are in hand when somebody looks."""
MEMORY: Final = "256mb"
PATIENCE_S: Final = 60.0
SHORTER: Final = (
    (r"for: \d+m", "for: 1s"),
    (r"interval: 15s", "interval: 500ms"),
    (r"\[5m\]", "[5s]"),
    (r"\[15m\]", "[6s]"),
    (r"\[1h\]", "[8s]"),
)
LOWER: Final = {
    "StreamcrawlPendingOld": ("> 900", "> 2"),
    "StreamcrawlBacklog": ("> 600", "> 3"),
    "StreamcrawlDeadLettersRising": ("> 10", "> 0"),
    "StreamcrawlFetchErrors": ("> 0.5", "> 0.1"),
    "StreamcrawlWorkersCrashing": ("> 3", "> 0"),
    "StreamcrawlLeasesLost": ("> 50", "> 0"),
    "StreamcrawlHeartbeatLate": ("> 15", "> 1.5"),
    "StreamcrawlHostsGivenUp": ("> 20", "> 0"),
}
"""What cannot be waited for or is too much to stage: less of it does, in the same expression."""


class Watched:
    """A crawl with two supervisors, two exporters and a Prometheus that scrapes all of them."""

    def __init__(self, folder: Path, rules: list[Path], site: SiteSpec = SITE, *, program: str = "") -> None:
        """Prepare it; with a program it is the crawl of that one, and the second supervisor works at its last stage."""
        self.redis = RedisServer(options={**DURABLE, "maxmemory": MEMORY}, may_fill=True)
        self.site = SiteProcess(site)
        self.command = Command(folder / "here")
        (self.command.folder / "settings.toml").write_text(
            "".join(f"{key} = {value!r}\n" for key, value in SETTINGS.items())
        )
        ports = [free_port() for _ in range(4)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.ports = [str(port) for port in ports]
        self.prometheus = Prometheus(
            folder / "prometheus",
            {"streamcrawl-workers": addresses[:2], "streamcrawl-exporter": addresses[2:]},
            rules,
        )
        self.since = 0.0
        self.fired: set[str] = set()
        self.cleared: set[str] = set()
        self._begin = ("run", program) if program else ("crawl", "--name", NAME)
        self._join = ("worker", program, "--stage", STAGES[-1]) if program else ("worker", NAME, "--concurrency", "4-8")

    @contextmanager
    def at_work(self) -> Iterator[Self]:
        with ExitStack() as stack:
            for server in (self.redis, self.site, self.prometheus):
                stack.enter_context(server)
            self.since = time.time()
            place = ("--redis", self.redis.url)
            seeds = [self.site.url(host, "/p/0") for host in range(1, self.site.site.spec.hosts + 1)]
            seeds += [self.site.url(1, path) for path in ("/fault/reset", "/fault/status_500", "/private/a/b/0")]
            options = ["--config", "settings.toml", "--delay", "50ms", "--metrics-port", self.ports[0]]
            self.crawl = stack.enter_context(self._start(*self._begin, *seeds, *place, *options))
            self.worker = stack.enter_context(self._start(*self._join, *place, "--metrics-port", self.ports[1]))
            self.exporters = [
                stack.enter_context(self.command.start("exporter", *place, "--port", port)) for port in self.ports[2:]
            ]
            yield self

    def _start(self, *words: str) -> Running:
        return self.command.start(*words, PYTHONPATH=str(REPOSITORY), TESTS_NAP=NAP_S)

    def say(self, *words: str) -> None:
        """Run a command of an operator."""
        done = self.command.run(*words, "--redis", self.redis.url)
        assert done.code == 0, done.err

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}\n{self.crawl.err}"
            time.sleep(0.1)

    def has(self, expr: str) -> bool:
        return bool(self.prometheus.instant(expr))

    def by_stage(self, expr: str) -> dict[str, float]:
        """Return what a query says now of the program's stages, zeros left out."""
        found = {one.labels.get("stage", ""): one.values[0] for one in self.prometheus.instant(expr)}
        return {stage: value for stage, value in found.items() if stage in STAGES and value}

    def fetching_child(self, of: Running) -> psutil.Process:
        """Return the process of a supervisor that fetches, once it has one: a worker joins when it finds the crawl."""
        found: list[psutil.Process] = []

        def has_one() -> bool:
            found[:] = [
                one for one in self.children("fetch") if of.process.pid in {parent.pid for parent in one.parents()}
            ]
            return len(found) == 1

        of.until(has_one, "its process that fetches", within_s=PATIENCE_S)
        return found[0]

    def children(self, role: str, stage: str = "") -> list[psutil.Process]:
        """Return the processes that do this, or only those of one stage; of an output, whoever writes it now."""
        status = json.loads(self.command.run("status", NAME, "--json", "--redis", self.redis.url).out)
        return [
            psutil.Process(worker["pid"])
            for worker in status["workers"]
            if worker["role"] == role and worker["stage"].startswith(stage)
        ]

    def until_some(self, expr: str, stage: str) -> None:
        self.until(f"{expr} has {stage}", lambda: stage in self.by_stage(expr))

    def until_is(self, expr: str, counts: dict[str, float]) -> None:
        self.until(f"{expr} is {counts}", lambda: self.by_stage(expr) == counts)

    def until_firing(self, *alerts: str) -> None:
        self.until(f"{alerts} fire", lambda: set(alerts) <= self.prometheus.firing())
        self.fired.update(alerts)

    def until_clear(self, *alerts: str) -> None:
        """Wait until these are over that were seen to fire; of none, all of them."""
        which = set(alerts) or self.fired
        self.until(f"{alerts} are over", lambda: not which & self.prometheus.firing())
        self.cleared |= which & self.fired


def filled(expr: str) -> str:
    """Put in what Grafana would: all crawls, all stages, and four scrapes for a rate."""
    values = {"$__rate_interval": "4s", "$__range": "1m", "$crawl": ".*", "$stage": ".*", "$queue": ".*"}
    return re.sub(r"\$\w+", lambda found: values[found.group()], expr)


OF_LOGS: Final = re.compile(r"\bby \([^)]*\blog\b")
"""What is of logs that a program retains: see the test after."""


def asked() -> list[tuple[str, str]]:
    """Every query that has to find something while a crawl is well: of an alert, each metric it is made of."""
    found: list[tuple[str, str]] = []
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    for where, expr in expressions():
        names = re.findall(r"(?:\w+:)?streamcrawl_\w+(?::\w+)?", expr)
        found += [(where, name) for name in names] if where in alerts else [(where, filled(expr))]
    return [(where, expr) for where, expr in found if not OF_LOGS.search(expr)]


async def use_a_queue(url: str) -> None:
    """Leave items in each state: waiting, out, delayed, done, dead, and one that was tried again."""
    async with TaskQueue[int]("thumbs", url, attempts_max=2, lease_s=600) as queue:
        await queue.put_many([1, 2, 3, 4, 5])
        await queue.put(6, delay_s=600)
        await queue.task_done(await queue.get())
        await queue.retry(await queue.get())
        await queue.dead(await queue.get(), "not this one")
        await queue.get()


async def delete_the_queue(url: str) -> None:
    async with TaskQueue[int]("thumbs", url) as queue:
        await queue.delete()


@pytest.mark.timeout(240)
def test_every_query_of_dashboards_and_rules_finds_data_while_a_crawl_runs(tmp_path: Path) -> None:
    watched = Watched(tmp_path, RULES)
    with SiteProcess(SITE) as late, watched.at_work():
        asyncio.run(use_a_queue(watched.redis.url))
        prometheus = watched.prometheus
        watched.until("pages of both supervisors", lambda: watched.has('streamcrawl_slots_busy{stage="fetch"} > 0'))

        watched.say("pause", NAME)
        watched.until("the pause is seen", lambda: watched.has('streamcrawl_throttled{reason="paused"} == 1'))
        watched.say("resume", NAME)
        watched.fetching_child(watched.worker).kill()
        watched.until("the dead child is replaced", lambda: watched.has("streamcrawl_worker_restarts_total > 0"))
        with frozen(*(writer.pid for writer in watched.children("sink"))):
            fewer = 'streamcrawl_slot_changes_total{reason="downstream"} > 0'
            watched.until("its slots are fewer as the output stands", lambda: watched.has(fewer))

        # Prometheus knows that a count has risen only from what it saw before, and those of the seeds may be too early.
        watched.until("the exporter counts what is left out", lambda: watched.has("streamcrawl_tasks_dropped_total"))
        seeds = f"{late.url(1, '/private/a/b/0')}\nhttp://127.0.3.1:{free_port()}/\n"
        (watched.command.folder / "late.txt").write_text(seeds)
        watched.say("seed", NAME, "late.txt")

        missing = asked()

        def everything_is_there() -> bool:
            missing[:] = [
                (where, expr)
                for where, expr in missing
                if all(isnan(v) for one in prometheus.over(expr, since=watched.since) for v in one.values)
            ]
            return not missing

        try:
            watched.until("every query finds something", everything_is_there)
        except AssertionError:
            raise AssertionError("\n".join(f"{where}: {expr}" for where, expr in missing)) from None
        assert prometheus.faults() == []


ENDINGS: Final = ("created", "done", "dead", "dropped")
TRUTH: Final = "sum by (stage) (max without (instance, job, pod) ({}))"
"""Both exporters say the same."""
WAITING: Final = TRUTH.format("streamcrawl_stream_oldest_waiting_seconds")
OF_OTHERS: Final = (
    "streamcrawl_throttled",
    "streamcrawl_slot_changes_total",
    "streamcrawl_output_bytes",
    "streamcrawl_worker_restarts_total",
    "streamcrawl_tasks_reclaimed_total",
)
"""What is of the fetch, of slots that adapt, of files, or of workers that die: see the test before."""
RETAINED: Final = STAGES[0]
"""The stage whose log is kept."""


def of_stages() -> list[tuple[str, tuple[str, str], str]]:
    """Every query of a dashboard that speaks of each stage or log: where it stands, the label and its value there has
    to be an answer for, and the query.
    """
    names = {path.stem for path in DASHBOARDS}
    by_stage = [
        (where, filled(expr))
        for where, expr in expressions()
        if where.partition(":")[0] in names
        and re.search(r"\bby \([^)]*\bstage\b", expr)
        and 'stage="fetch"' not in expr
        and not any(name in expr for name in OF_OTHERS)
    ]
    found = [(where, ("stage", stage), expr) for where, expr in by_stage for stage in STAGES]
    return found + [(where, ("log", RETAINED), filled(expr)) for where, expr in expressions() if OF_LOGS.search(expr)]


def has_ended_all(redis: Redis, stage: str) -> bool:
    """Return whether a stage has nothing left of what it got; delayed items are left."""
    created, *ended = redis.hmget(Keys(NAME).totals, [f"{stage}.{ending}" for ending in ENDINGS])
    return int(created or 0) == sum(int(count or 0) for count in ended)


@pytest.mark.timeout(240)
def test_a_programs_stages_are_in_every_panel_and_their_figures_are_those_of_the_audit(tmp_path: Path) -> None:
    watched = Watched(tmp_path, RULES, program=PROGRAM)
    with watched.at_work():
        prometheus = watched.prometheus
        watched.until_some(TRUTH.format("streamcrawl_tasks_done_total"), STAGES[-1])
        watched.until("both supervisors work at it", lambda: len(watched.children("stage", STAGES[-1])) == 2)
        # However fast a machine is, items wait for a stage that stands still.
        for stage in reversed(STAGES):
            with frozen(*(child.pid for child in watched.children("stage", stage))):
                watched.until_some(WAITING, stage)
        missing = of_stages()

        def everything_is_there() -> bool:
            missing[:] = [
                (where, of, expr)
                for where, of, expr in missing
                if not any(
                    of in one.labels.items() and not all(map(isnan, one.values))
                    for one in prometheus.over(expr, since=watched.since)
                )
            ]
            return not missing

        try:
            watched.until("every query has both stages, or the log", everything_is_there)
        except AssertionError:
            raise AssertionError("\n".join(f"{where}: {of}: {expr}" for where, of, expr in missing)) from None
        assert prometheus.faults() == []

        # Paused, what is in the stages is worked off, and their workers stay to be asked.
        watched.say("pause", NAME)
        # In the order in which they feed each other: what is empty once stays so.
        with Redis.from_url(watched.redis.url) as redis:
            watched.until("no page is in hand", lambda: redis.xlen(Keys(NAME).fetch_stream) == 0)
            for stage in STAGES:
                watched.until(f"{stage} has ended all it got", partial(has_ended_all, redis, stage))
        audit = watched.command.run("audit", NAME, "--json", "--redis", watched.redis.url)
        assert audit.code == ExitCode.DONE, audit
        totals = json.loads(audit.out)["totals"]
        for ending in ENDINGS:
            counts = {stage: totals[f"{stage}.{ending}"] for stage in STAGES}
            assert all(counts.values()), totals
            by_exporters = TRUTH.format(f"streamcrawl_tasks_{ending}_total")
            by_workers = f'sum by (stage) (streamcrawl_worker_commits_total{{outcome="{ending}"}})'
            watched.until_is(by_exporters, counts)
            if ending != "created":
                watched.until_is(by_workers, counts)


def hurried_rules(folder: Path) -> list[Path]:
    """Write the rules with all times in seconds and the limits of `LOWER`; return the files."""
    folder.mkdir()
    for path in RULES:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        for rule in (rule for group in document["groups"] for rule in group["rules"]):
            if rule.get("alert") in LOWER:
                limit, lower = LOWER[rule["alert"]]
                assert limit in rule["expr"], rule["alert"]
                rule["expr"] = rule["expr"].replace(limit, lower)
        text = yaml.safe_dump(document, sort_keys=False)
        for slow, fast in SHORTER:
            text = re.sub(slow, fast, text)
        (folder / path.name).write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(300)
def test_alerts_fire_in_their_fault_and_clear_after_it(tmp_path: Path) -> None:
    watched = Watched(
        tmp_path, hurried_rules(tmp_path / "rules"), SiteSpec(hosts=4, pages_per_host=5000, latency_ms=30)
    )
    with watched.at_work():
        asyncio.run(use_a_queue(watched.redis.url))
        watched.until("pages are done", lambda: watched.has("sum(crawl_stage:streamcrawl_tasks_done:rate5m) > 0"))

        watched.until_firing("StreamcrawlQueueStalled")
        asyncio.run(delete_the_queue(watched.redis.url))
        watched.until_clear("StreamcrawlQueueStalled")

        watched.fetching_child(watched.worker).kill()
        watched.until_firing("StreamcrawlWorkersCrashing")

        with frozen(watched.site.pid):
            watched.until_firing("StreamcrawlStalled", "StreamcrawlPendingOld")
        watched.until_clear("StreamcrawlStalled", "StreamcrawlPendingOld", "StreamcrawlWorkersCrashing")

        with frozen(*(writer.pid for writer in watched.children("sink"))):
            watched.until_firing("StreamcrawlSinkStalled", "StreamcrawlStageFull")
        watched.until_clear("StreamcrawlSinkStalled", "StreamcrawlStageFull")

        redis = Redis.from_url(watched.redis.url)
        # Paused, or it would grow over the mark, where the crawl stops.
        watched.say("pause", NAME)
        redis.config_set("maxmemory", int(redis.info("memory")["used_memory"] / MEMORY_MARK / 0.95))
        watched.until_firing("StreamcrawlRedisMemoryNearMark")
        redis.config_set("maxmemory", MEMORY)
        watched.until_clear("StreamcrawlRedisMemoryNearMark")
        watched.say("resume", NAME)

        redis.config_set("appendonly", "no")
        redis.hincrby(Keys(NAME).totals, "page.done", 1)
        watched.until_firing("StreamcrawlAofOff", "StreamcrawlAuditUnbalanced")
        redis.config_set("appendonly", "yes")
        redis.hincrby(Keys(NAME).totals, "page.done", -1)
        watched.until_clear("StreamcrawlAofOff", "StreamcrawlAuditUnbalanced")

        with watched.redis.full_disk():
            watched.until_firing("StreamcrawlAofFailed")
        watched.until_clear("StreamcrawlAofFailed")

        # Each a host of its own where nobody listens: a backlog while nobody fetches, and given up then.
        port = free_port()
        seeds = "".join(f"http://127.0.3.{n}:{port}/\n" for n in range(1, 201))
        (watched.command.folder / "refusing.txt").write_text(seeds)
        with frozen(watched.fetching_child(watched.crawl).pid, watched.fetching_child(watched.worker).pid):
            watched.say("seed", NAME, "refusing.txt")
            watched.until_firing("StreamcrawlBacklog")
        unreachable = ("StreamcrawlFetchErrors", "StreamcrawlDeadLettersRising", "StreamcrawlHostsGivenUp")
        watched.until_firing(*unreachable)

        child = watched.fetching_child(watched.worker)

        def stall_and_look() -> bool:
            with frozen(child.pid):
                time.sleep(1.5)  # the fault itself: how late every timer of the child then is
            return "StreamcrawlLoopLag" in watched.prometheus.firing()

        watched.until("StreamcrawlLoopLag fires", stall_and_look)
        watched.fired.add("StreamcrawlLoopLag")

        with frozen(watched.redis.pid):
            watched.until_firing("StreamcrawlHeartbeatLate")
        watched.redis.stop()
        watched.until_firing("StreamcrawlRedisDown")
        watched.redis.start()
        watched.until_clear("StreamcrawlHeartbeatLate", "StreamcrawlRedisDown")

        # A machine is lost: nobody is left who could hand back what it had. Frozen, all hosts have a page in somebody's
        # hand, and the other supervisor has one slot.
        machine = psutil.Process(watched.worker.process.pid)
        with frozen(watched.site.pid):
            watched.until("all hosts are asked", lambda: watched.has('streamcrawl_stream_pending{stage="fetch"} >= 4'))
            for process in (machine, *machine.children(recursive=True)):
                process.kill()
        watched.until_firing("StreamcrawlLeasesLost")
        watched.until("all of that is over", lambda: not watched.prometheus.firing())
        watched.until_clear()

        crawl = watched.crawl
        again = ("crawl", "--resume", "--name", NAME, "--redis", watched.redis.url, "--metrics-port", watched.ports[0])
        with ExitStack() as stack:
            watched.say("settings", "set", NAME, "frontier-max=1")
            assert crawl.wait().code == ExitCode.STOPPED
            watched.until_firing("StreamcrawlFrontierFull", "StreamcrawlNoConsumers")
            watched.say("settings", "set", NAME, f"frontier-max={Settings(name=NAME).frontier_max}")
            crawl = stack.enter_context(watched.command.start(*again))
            watched.until_clear("StreamcrawlFrontierFull", "StreamcrawlNoConsumers")

            redis.config_set("maxmemory", redis.info("memory")["used_memory"])
            assert crawl.wait().code == ExitCode.STOPPED
            watched.until_firing("StreamcrawlMemoryFull")
            redis.config_set("maxmemory", MEMORY)
            stack.enter_context(watched.command.start(*again))
            watched.until_clear("StreamcrawlMemoryFull")

            for exporter in watched.exporters:
                exporter.process.terminate()
            watched.until_firing("StreamcrawlExporterMissing")
            another = ("exporter", "--redis", watched.redis.url, "--port", watched.ports[-1])
            stack.enter_context(watched.command.start(*another))
            watched.until_clear("StreamcrawlExporterMissing")
    assert watched.cleared == {rule["alert"] for rule in rules() if "alert" in rule}
