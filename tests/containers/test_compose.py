"""The stack of docker-compose.yml as it stands, with stand-ins for the images that would have to be pulled.

All of it but Grafana, which has no package here; its dashboards are tested elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from streamcrawl.store.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.containers.conftest import Images

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final = Path(sys.executable).with_name("docker-compose")
PAGES: Final = 60
HOSTS: Final = ("north.site", "south.site", "west.site")
SERVICES: Final = ("redis", "site", "crawl", "fetch", "exporter", "prometheus")
INTERNAL: Final = "tests/containers/internal.yml"
STOPPED: Final = 3
TOTALS: Final = Keys("sample").totals


class Stack:
    """`docker compose` for one project of its own."""

    def __init__(self, images: Images, *more: str) -> None:
        """Prepare a stack; `more` are files over docker-compose.yml."""
        self._files = [part for path in ("docker-compose.yml", *more, INTERNAL) for part in ("-f", path)]
        self._project = f"streamcrawl-{uuid4().hex[:8]}"
        self._environment = {
            **os.environ,
            "STREAMCRAWL_IMAGE": images.streamcrawl,
            "REDIS_IMAGE": images.redis,
            "PROMETHEUS_IMAGE": images.prometheus,
            "PROMETHEUS_PORT": "0",
            "SITE_PAGES": str(PAGES),
            "STREAMCRAWL_DELAY": "0.1s",
        }

    def __call__(self, *arguments: str, is_checked: bool = True) -> str:
        done = subprocess.run(
            [str(COMPOSE), "-p", self._project, *self._files, *arguments],
            cwd=REPOSITORY,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 or not is_checked, f"docker compose {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def up(self, *arguments: str) -> None:
        self("up", "-d", "--no-build", "--pull", "never", *arguments)

    def status(self) -> dict[str, Any]:
        """What the crawl is doing; empty while its container is not there to ask."""
        out = self("exec", "-T", "crawl", "streamcrawl", "status", "sample", "--json", is_checked=False)
        return dict(json.loads(out)) if out else {}

    def pages(self) -> int:
        """Pages done; asked of Redis, which costs the machine of the stack a hundredth of a command in Python."""
        return int(self("exec", "-T", "redis", "redis-cli", "--raw", "HGET", TOTALS, "page.done").strip() or 0)

    def fetching(self) -> int:
        return sum(worker["role"] == "fetch" for worker in self.status().get("workers", []))

    def working_at(self, stage: str) -> int:
        """Live worker processes of a stage behind fetch."""
        return sum(worker["stage"] == stage for worker in self.status().get("workers", []))

    def exits(self, service: str) -> list[int]:
        """Exit codes of its containers that have ended."""
        rows = [json.loads(line) for line in self("ps", "-a", "--format", "json", service).splitlines()]
        return [row["ExitCode"] for row in rows if row["State"] == "exited"]

    def query(self, expr: str) -> str:
        """Ask Prometheus; its answer as promtool prints it."""
        address = "http://127.0.0.1:9090"
        return self("exec", "-T", "prometheus", "promtool", "query", "instant", address, expr, is_checked=False).strip()


@pytest.fixture
def stack(images: Images) -> Iterator[Stack]:
    stack = Stack(images)
    yield stack
    stack("down", "--volumes", "-t", "1")


def wait_for(described: str, condition: Callable[[], Any], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{described} did not happen within {timeout_s:g} s"
        time.sleep(0.5)


def expected() -> set[str]:
    """Every page of the sample site, under each of its names."""
    return {f"http://{host}:8000{path}" for host in HOSTS for path in ["/", *(f"/page/{i}" for i in range(PAGES))]}


def urls_of(records: str) -> Counter[str]:
    return Counter(json.loads(line)["url"] for line in records.splitlines())


def test_the_stack_crawls_its_site_to_the_end(stack: Stack) -> None:
    """The default: one job that does it all."""
    assert stack("config", "--quiet") == ""
    stack.up("redis", "site", "crawl")
    wait_for("the crawl is over", lambda: stack.exits("crawl") == [0])
    urls = urls_of(stack("run", "--rm", "--no-deps", "-T", "--entrypoint", "cat", "crawl", "/data/sample.jsonl"))
    assert max(urls.values()) == 1
    assert {url for url in urls if url.endswith("8000/") or "/page/" in url} == expected()


def test_stages_scale_as_services_are_watched_and_go_on_after_down_and_up(images: Images) -> None:
    """Fetch, parse and save in containers of their own; the site stands still while they come: none is too late."""
    stack = Stack(images, "deploy/sample/stages.yml")
    try:
        stack.up(*SERVICES, "parse", "save")
        wait_for("some pages", lambda: stack.pages() > 20)
        stack("kill", "-s", "STOP", "site")
        stack.up("--no-deps", "--no-recreate", "--scale", "fetch=2", "--scale", "parse=3", "fetch", "parse")
        # The crawl's own container does a little of everything.
        wait_for("three containers that fetch", lambda: stack.fetching() == 3)
        wait_for("four containers that parse", lambda: stack.working_at("parse") == 4)
        wait_for("Prometheus finds them all", lambda: "7 @" in stack.query('sum(up{job="streamcrawl-workers"})'))
        wait_for("and the exporter", lambda: "1 @" in stack.query("streamcrawl_redis_up"))
        stack("kill", "-s", "CONT", "site")

        stack("stop", "crawl", "fetch", "parse", "save")
        # Stopped in order within their grace period, not killed; what they had in hand is back.
        for service, count in (("crawl", 1), ("fetch", 2), ("parse", 3), ("save", 1)):
            assert stack.exits(service) == [STOPPED] * count, service
        stack("down")
        stack.up("redis", "site", "crawl", "fetch", "parse", "save")
        wait_for("the crawl is over", lambda: stack.exits("crawl") == [0])
        wait_for("and its workers with it", lambda: stack.exits("parse") == [0])

        stack("run", "--rm", "--no-deps", "-T", "crawl", "audit", "sample")
        read = "import sqlite3; print(*sum(sqlite3.connect('/data/pages.db').execute('select url from pages'), ()))"
        urls = set(stack("run", "--rm", "--no-deps", "-T", "--entrypoint", "python3", "crawl", "-c", read).split())
        assert {url for url in urls if url.endswith("8000/") or "/page/" in url} == expected()
    finally:
        stack("down", "--volumes", "-t", "1")
