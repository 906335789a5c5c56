"""A real PostgreSQL server for tests: started, stopped, killed and started again on the same place.

It has a data folder of its own and listens on a free port of 127.0.0.1. It never outlives the tests: its guard
(streamcrawl/store/keeper.py) ends it when they are killed. PostgreSQL refuses to run as root: then it runs
as `postgres`, the user that its package makes.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from streamcrawl.store import keeper
from tests.redis_server import free_port

PASSWORD: Final = "hunter2"
_START_S: Final = 60
_STOP_S: Final = 30
_SETTINGS: Final = {"shared_buffers": "8MB", "max_connections": "20", "logging_collector": "off", "fsync": "on"}


def _program(name: str) -> str:
    """Return the path of a program of PostgreSQL; Debian keeps them off PATH.

    Raises:
        RuntimeError: it is not installed; the tests need it and skip nothing.
    """
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = str(packaged[-1]) if packaged else shutil.which(name)
    if found is None:
        raise RuntimeError(f"no {name}: the tests need `apt install postgresql`")
    return found


class PostgresServer:
    """One server. `with PostgresServer() as server:` starts it, and ends it whatever state it is in."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self.port = free_port()
        self._guard: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def __enter__(self) -> Self:
        try:
            password = self._folder / "password"
            password.write_text(PASSWORD)
            password.chmod(0o644)
            how = ("-U", "crawler", "-A", "scram-sha-256", "--pwfile=password", "--no-sync", "-E", "UTF8", "--locale=C")
            done = self._run("initdb", "-D", "data", *how)
            if done.returncode:
                raise RuntimeError(f"initdb failed:\n{done.stdout.decode()}")
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"postgresql://crawler:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        command = [_program("postgres"), "-D", "data", "-h", "127.0.0.1", "-p", str(self.port), "-k", "", *options]
        reading_end, self._lifeline = os.pipe()
        with open(self._folder / "log", "ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", keeper.__file__, "guard", str(reading_end), *self._as_user, *command],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(reading_end,),
                start_new_session=True,
            )
        os.close(reading_end)
        deadline = time.monotonic() + _START_S
        while self._run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)).returncode:
            if self._guard.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it at once, as a machine that fails does: what is not on its disk is lost."""
        guard, self._guard = self._guard, None
        if guard is not None and guard.poll() is None:
            with contextlib.suppress(OSError, ValueError):  # it may be about to start, or have ended just now
                pid = int((self._folder / "data" / "postmaster.pid").read_text().partition("\n")[0])
                os.kill(pid, signal.SIGQUIT)
        if guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(_STOP_S)
            os.close(self._lifeline)
            guard.wait(2 * _STOP_S)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self._as_user, _program(name), *arguments],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
