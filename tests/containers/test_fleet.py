"""A fleet of real containers on a private network: one is killed, one cut off, others come and go; nothing is lost.

Each worker has one slot and the site is three hosts with one fetch at a time each. While the site is frozen every
worker therefore holds exactly one page, so the kill and the cut hit work in hand by construction.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from docker import from_env
from docker.errors import APIError
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from docker.models.containers import Container
    from docker.models.networks import Network as EngineNetwork

    from tests.containers.conftest import Images

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
HOSTS: Final = ("north.site", "south.site", "west.site")
PAGES: Final = 100
NAME: Final = "fleet"
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

    def streamcrawl(self, name: str, *command: str) -> Container:
        settings = {"STREAMCRAWL_REDIS": "redis://redis:6379/0", "STREAMCRAWL_CONCURRENCY": "1"}
        output = (str(self._output), "/data", "rw")
        return self.start(self._images.streamcrawl, name, *command, environment=settings, volumes=[output])

    def worker(self, name: str) -> Container:
        return self.streamcrawl(name, "worker", NAME)

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


def status(container: Container) -> dict[str, Any]:
    code, out = execute(container, "streamcrawl", "status", NAME, "--json")
    return dict(json.loads(out)) if code == 0 else {}


def end_of(container: Container, timeout_s: int = 90) -> int:
    return int(container.wait(timeout=timeout_s)["StatusCode"])


def test_kills_cuts_scaling_and_a_roll_lose_and_repeat_nothing(fleet: Fleet, tmp_path: Path) -> None:
    redis, site = fleet.redis(), fleet.site()
    wait_for("redis answers", lambda: execute(redis, "redis-cli", "ping")[1].strip() == b"PONG")
    answers = "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"
    wait_for("the site answers", lambda: execute(site, "python3", "-c", answers)[0] == 0)
    output = tmp_path / "output" / f"{NAME}.jsonl"
    seeds = [f"http://{host}:8000/" for host in HOSTS]
    options = ("--name", NAME, "-o", f"/data/{output.name}", "--delay", "20ms", "--lease", f"{LEASE_S}s")

    # Frozen already when the crawl begins, or it could be over before the workers are there.
    site.pause()
    crawl = fleet.streamcrawl("crawl", "crawl", *seeds, *options)
    killed, cut = fleet.worker("fetch-1"), fleet.worker("fetch-2")
    wait_for("each of three workers holds a task", lambda: status(crawl).get("pending") == len(HOSTS))
    site.unpause()
    wait_for("some pages", lambda: output.exists() and output.read_bytes().count(b"\n") >= 20)
    site.pause()
    wait_for("each holds a page", lambda: status(crawl).get("pending") == len(HOSTS))
    killed.kill("KILL")
    fleet.cut_off(cut)
    third, fourth = fleet.worker("fetch-3"), fleet.worker("fetch-4")
    site.unpause()

    # What the dead and the cut-off held comes back when nobody has renewed it for a lease.
    wait_for("two leases run out", lambda: status(crawl).get("totals", {}).get("reclaimed", 0) >= 2)
    fleet.join_again(cut)
    third.kill("TERM")
    assert end_of(third) in {0, STOPPED}

    assert end_of(crawl) == 0
    assert end_of(fourth) == 0
    assert end_of(cut) == 0
    auditor = fleet.streamcrawl("audit", "audit", NAME)
    assert end_of(auditor) == 0, auditor.logs().decode()

    records = [json.loads(line) for line in output.read_bytes().splitlines()]
    urls = Counter(record["url"] for record in records)
    assert max(urls.values()) == 1
    expected = {f"http://{host}:8000{path}" for host in HOSTS for path in ["/", *(f"/page/{i}" for i in range(PAGES))]}
    assert {url for url in urls if urlsplit(url).path == "/" or "/page/" in url} == expected
    assert not [url for url in urls if "/private/" in url]
