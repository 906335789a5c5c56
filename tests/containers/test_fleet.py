"""A fleet of real containers on a private network that fetch and parse: some are killed, one is cut off, others come,
and all are exchanged for the next version while the crawl goes on; nothing is lost and nothing comes twice.

Each fetcher has one slot and the site is three hosts with one fetch at a time each. While the site is frozen every
fetcher therefore holds exactly one page, so the kill and the cut hit work in hand by construction.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from docker import from_env
from docker.errors import APIError
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from streamcrawl.store.keys import GROUP, Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docker.models.containers import Container
    from docker.models.networks import Network as EngineNetwork

    from tests.containers.conftest import Images

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
HOSTS: Final = ("north.site", "south.site", "west.site")
PAGES: Final = 100
NAME: Final = "sample"
KEYS: Final = Keys(NAME)
PROGRAM: Final = "program:crawl"
NEXT: Final = "999.0.0"
LEASE_S: Final = 5
STOPPED: Final = 3


class Fleet:
    """Containers of one crawl."""

    def __init__(self, images: Images, network: Network, output: Path, stack: ExitStack) -> None:
        self._images = images
        self._network = network
        self._output = output
        self._stack = stack

    def start(self, image: str, name: str, *command: str, aliases: tuple[str, ...] = (), **options: Any) -> Container:
        """Start a container that may do as little as those of docker-compose.yml."""
        started = DockerContainer(image, network=self._network, network_aliases=[name, *aliases])
        started.with_command(list(command)).with_tmpfs_mount("/tmp")
        for host, inside, mode in options.pop("volumes", ()):
            started.with_volume_mapping(host, inside, mode)
        for variable, value in options.pop("environment", {}).items():
            started.with_env(variable, value)
        started.with_kwargs(
            hostname=name, read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"], **options
        )
        self._stack.enter_context(started)
        return started.get_wrapped_container()

    def redis(self) -> Container:
        options = ("--save", "", "--protected-mode", "no", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction")
        return self.start(self._images.redis, "redis", "redis-server", *options, user="999:999")

    def site(self) -> Container:
        script = (str(REPOSITORY / "deploy/sample/site.py"), "/site.py", "ro")
        command = ("/site.py", "--bind", "0.0.0.0", "--pages", str(PAGES))
        return self.start(
            self._images.streamcrawl, "site", *command, aliases=HOSTS, entrypoint="python3", volumes=[script]
        )

    def streamcrawl(self, name: str, *command: str, is_next: bool = False) -> Container:
        settings = {
            "STREAMCRAWL_REDIS": "redis://redis:6379/0",
            "STREAMCRAWL_CONCURRENCY": "1",
            "PYTHONPATH": "/program",
        }
        program = (str(REPOSITORY / "deploy/sample/program.py"), "/program/program.py", "ro")
        return self.start(
            self._images.next if is_next else self._images.streamcrawl,
            *(name, *command),
            environment=settings,
            volumes=[(str(self._output), "/data", "rw"), program],
        )

    def worker(self, name: str, stage: str, *, is_next: bool = False) -> Container:
        return self.streamcrawl(name, "worker", PROGRAM, "--stage", stage, is_next=is_next)

    def cut_off(self, container: Container) -> None:
        self._engine_network().disconnect(container)

    def join_again(self, container: Container) -> None:
        self._engine_network().connect(container)

    def _engine_network(self) -> EngineNetwork:
        return from_env().networks.get(self._network.name)


@pytest.fixture
def fleet(images: Images, tmp_path: Path) -> Iterator[Fleet]:
    output = tmp_path / "output"
    output.mkdir()
    output.chmod(0o777)  # the user of the image is not ours
    with ExitStack() as stack:
        network = stack.enter_context(Network(docker_network_kw={"internal": True}))
        yield Fleet(images, network, output, stack)


def wait_for(described: str, condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{described} did not happen within {timeout_s:g} s"
        time.sleep(0.1)
    return found


def execute(container: Container, *command: str) -> tuple[int, bytes]:
    """Run a command in a container; its exit code and output."""
    try:
        code, out = container.exec_run(list(command))
    except APIError as error:
        raise AssertionError(f"{container.name} does not run: {container.logs().decode()}") from error
    assert isinstance(out, bytes)
    return code or 0, out


def asked(redis: Container, *command: str) -> int:
    """Ask Redis for a number: for whoever waits for it, a hundredth of what a command in Python costs."""
    code, out = execute(redis, "redis-cli", "--raw", *command)
    first = out.decode().partition("\n")[0].strip()
    return int(first) if code == 0 and first.isdecimal() else 0


def in_hand(redis: Container) -> int:
    return asked(redis, "XPENDING", KEYS.fetch_stream, GROUP)


def end_of(container: Container, timeout_s: int = 90) -> int:
    return int(container.wait(timeout=timeout_s)["StatusCode"])


def test_kills_cuts_scaling_and_a_roll_lose_and_repeat_nothing(fleet: Fleet, tmp_path: Path) -> None:
    redis, site = fleet.redis(), fleet.site()
    wait_for("redis answers", lambda: execute(redis, "redis-cli", "ping")[1].strip() == b"PONG")
    answers = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"
    wait_for("the site answers", lambda: execute(site, "python3", "-c", answers)[0] == 0)
    output = tmp_path / "output" / f"{NAME}.jsonl"
    seeds = [f"http://{host}:8000/" for host in HOSTS]
    options = ("-o", f"/data/{output.name}", "--delay", "20ms", "--lease", f"{LEASE_S}s")

    def holds_a_page_each() -> None:
        # By a signal: the engine's own pause fails now and then on a busy machine ("unable to freeze").
        site.kill("STOP")
        wait_for("each holds a page", lambda: in_hand(redis) == len(HOSTS))

    # Frozen already when the crawl begins, or it could be over before the workers are there.
    site.kill("STOP")
    crawl = fleet.streamcrawl("crawl", "run", PROGRAM, *seeds, *options)
    killed, cut, parse = (
        fleet.worker("fetch-1", "page"),
        fleet.worker("fetch-2", "page"),
        fleet.worker("parse-1", "parse"),
    )
    holds_a_page_each()
    site.kill("CONT")
    wait_for("some pages", lambda: output.exists() and output.read_bytes().count(b"\n") >= 20)
    holds_a_page_each()
    killed.kill("KILL")
    parse.kill("KILL")
    fleet.cut_off(cut)
    # In their place, and one more of each: the next version, beside what is left of this one.
    following = [
        fleet.worker(name, stage, is_next=True)
        for name, stage in (("fetch-3", "page"), ("fetch-4", "page"), ("parse-2", "parse"), ("parse-3", "parse"))
    ]
    assert execute(following[0], "streamcrawl", "--version")[1].decode().split()[1] == NEXT
    site.kill("CONT")

    # What the dead and the cut-off held comes back when nobody has renewed it for a lease.
    wait_for("two leases run out", lambda: asked(redis, "HGET", KEYS.totals, "reclaimed") >= 2)
    fleet.join_again(cut)
    following.pop(0).kill("TERM")
    # The rest of this version goes: first who feeds and writes, and one of the next goes on with both.
    crawl.kill("TERM")
    assert end_of(crawl) == STOPPED
    cut.kill("TERM")
    assert end_of(cut) == STOPPED
    crawl = fleet.streamcrawl("crawl", "run", PROGRAM, *seeds, *options, is_next=True)

    assert end_of(crawl) == 0
    assert [end_of(one) for one in following] == [0] * len(following)
    auditor = fleet.streamcrawl("audit", "audit", NAME, is_next=True)
    assert end_of(auditor) == 0, auditor.logs().decode()

    # The file gets each once, and the database, by a sink of the program, the same.
    urls = Counter(json.loads(line)["url"] for line in output.read_bytes().splitlines())
    assert max(urls.values()) == 1
    expected = {f"http://{host}:8000{path}" for host in HOSTS for path in ["/", *(f"/page/{i}" for i in range(PAGES))]}
    assert {url for url in urls if urlsplit(url).path == "/" or "/page/" in url} == expected
    assert not [url for url in urls if "/private/" in url]
    with closing(sqlite3.connect(output.with_name("pages.db"))) as kept:
        assert {url for (url,) in kept.execute("select url from pages")} == urls.keys()
