"""A real Prometheus watches a real crawl: every panel, rule and alert gets data, and alerts fire and clear.

The crawl cannot end while it is watched: each host has more pages than its delay lets anybody fetch in that time.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack, contextmanager
from math import isnan
from typing import TYPE_CHECKING, Any, Final, Self

import psutil
import pytest

from tests.e2e.command import Command
from tests.prometheus_server import Prometheus
from tests.redis_server import DURABLE, RedisServer, free_port
from tests.site.model import SiteSpec
from tests.site.server import SiteProcess
from tests.unit.test_dashboards import RULES, expressions, rules

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
    "lease": "3s",
    "retry_base": "100ms",
    "retry_max": "200ms",
    "attempts_max": 3,
    "host_give_up": "2s",
    "path_depth_max": 3,
}
PATIENCE_S: Final = 60.0


class Watched:
    """A crawl with two supervisors, two exporters and a Prometheus that scrapes all of them."""

    def __init__(self, folder: Path, rules: list[Path]) -> None:
        self.folder = folder
        self.redis = RedisServer(options={**DURABLE, "maxmemory": "256mb"})
        self.site = SiteProcess(SITE)
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

    @contextmanager
    def at_work(self) -> Iterator[Self]:
        with ExitStack() as stack:
            for server in (self.redis, self.site, self.prometheus):
                stack.enter_context(server)
            self.since = time.time()
            place = ("--redis", self.redis.url)
            seeds = [self.site.url(host, "/p/0") for host in range(1, SITE.hosts + 1)]
            seeds += [self.site.url(1, path) for path in ("/fault/reset", "/fault/status_500", "/private/a/b/0")]
            options = (
                "--name",
                NAME,
                "--metrics-port",
                self.ports[0],
                "-o",
                "pages.jsonl",
                "--delay",
                "50ms",
                "--config",
                "settings.toml",
            )
            self.crawl = stack.enter_context(self.command.start("crawl", *seeds, *place, *options))
            self.worker = stack.enter_context(
                self.command.start("worker", NAME, *place, "--metrics-port", self.ports[1], "--concurrency", "2")
            )
            self.exporters = [
                stack.enter_context(self.command.start("exporter", *place, "--port", port)) for port in self.ports[2:]
            ]
            yield self

    def say(self, *words: str) -> None:
        """Run a command of an operator."""
        done = self.command.run(*words, "--redis", self.redis.url)
        assert done.code == 0, done.err

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        self.crawl.until(condition, what, within_s=PATIENCE_S)

    def has(self, expr: str) -> bool:
        return bool(self.prometheus.instant(expr))

    def child(self) -> psutil.Process:
        """Return a process of the second supervisor that fetches."""
        status = json.loads(self.command.run("status", NAME, "--json", "--redis", self.redis.url).out)
        fetching = {worker["pid"] for worker in status["workers"] if worker["role"] == "fetch"}
        ours = psutil.Process(self.worker.process.pid).children(recursive=True)
        return next(process for process in ours if process.pid in fetching)


def filled(expr: str) -> str:
    """Put in what Grafana would: all crawls, all stages, and four scrapes for a rate."""
    values = {"$__rate_interval": "4s", "$crawl": ".*", "$stage": ".*"}
    return re.sub(r"\$\w+", lambda found: values[found.group()], expr)


def asked() -> list[tuple[str, str]]:
    """Every query that has to find something while a crawl is well: of an alert, each metric it is made of."""
    found: list[tuple[str, str]] = []
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    for where, expr in expressions():
        names = re.findall(r"(?:\w+:)?streamcrawl_\w+(?::\w+)?", expr)
        found += [(where, name) for name in names] if where in alerts else [(where, filled(expr))]
    return found


@pytest.mark.timeout(240)
def test_every_query_of_dashboards_and_rules_finds_data_while_a_crawl_runs(tmp_path: Path) -> None:
    watched = Watched(tmp_path, RULES)
    with watched.at_work():
        prometheus = watched.prometheus
        watched.until("pages of both supervisors", lambda: watched.has('streamcrawl_slots_busy{stage="fetch"} > 0'))

        watched.say("pause", NAME)
        watched.until("the pause is seen", lambda: watched.has('streamcrawl_throttled{reason="paused"} == 1'))
        watched.say("resume", NAME)
        watched.child().kill()
        watched.until("the dead child is replaced", lambda: watched.has("streamcrawl_worker_restarts_total > 0"))

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
