"""nginx as the web server that is crawled: an ordinary one that nobody here has written.

`NginxSite` serves the pages of benchmarks/site.py, the same ones byte for byte, or those of benchmarks/real_pages.py,
from files; it has what `SiteProcess` has. It cannot hold answers back. Start at `NginxSite`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from benchmarks.site import PORT_ATTEMPTS, SiteReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from benchmarks.real_pages import RealPages
    from benchmarks.site import SiteSpec

READY_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
LOG_TIMEOUT_S: Final = 10.0
_MARK: Final = "/what-was-asked-before-this-"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

_MAIN: Final = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    types {{ text/html html htm; text/plain txt; text/css css; application/javascript js; image/png png;
            image/svg+xml svg; image/gif gif; application/xml xml; }}
    default_type application/octet-stream;
    log_format short '"$request" $status';
    log_format host '$server_addr $request_uri $status';
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    sendfile on; keepalive_timeout 60; keepalive_requests 100000;
{servers}}}
"""
_SERVER: Final = """\
    server {{
        listen {address}:{port} backlog=1024; root "{root}"; index index.html; charset utf-8; tcp_nopush on;
        access_log {folder}/access.log host; open_file_cache max=100000;
    }}
"""


def find_nginx() -> str | None:
    """Return the nginx of this machine; Debian keeps it off the PATH of users."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def running(nginx: str, servers: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run it with these server blocks, all its files in `folder`; whoever enters waits until it listens."""
    configuration = folder / "nginx.conf"
    configuration.write_text(_MAIN.format(folder=folder, servers=servers))
    process = subprocess.Popen([nginx, "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")])
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def claim_port(addresses: Sequence[str], port: int) -> int:
    """Return a port that nobody uses on all of the addresses: the given one, or any for 0.

    Asked before the server starts: of a port that is taken, a probe would find somebody listening and call it ours.
    """
    for _ in range(PORT_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            chosen = port
            for address in addresses:
                probe = stack.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((address, chosen))
                except OSError as error:
                    if port:
                        raise SystemExit(f"port {port} cannot be used on {address}: {error}") from error
                    break
                chosen = probe.getsockname()[1]
            else:
                return chosen
    raise SystemExit(f"no port is free on all of {len(addresses)} loopback addresses")


def wait_until_listening(address: str, port: int, folder: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        if time.monotonic() > deadline_s:
            errors = folder / "error.log"
            reason = errors.read_text()[-1000:] if errors.exists() else "it wrote no error"
            raise RuntimeError(
                f"the web server does not listen on {address}:{port} after {READY_TIMEOUT_S} s: {reason}"
            )
        time.sleep(0.02)


class NginxSite:
    """A site, served by nginx. A context manager, which writes the files and deletes them."""

    server: Final = "nginx"

    def __init__(self, spec: SiteSpec | RealPages, nginx: str) -> None:
        self.spec = spec
        self.port = 0
        self.mean_answer_bytes = 0
        """Of the pages alone."""
        self._nginx = nginx
        self._stack = contextlib.ExitStack()
        self._pages = {(spec.address(page % spec.hosts), spec.path(page)): page for page in range(spec.pages)}
        self._marks = 0
        self._cpu_s = 0.0

    @property
    def root_url(self) -> str:
        return self.spec.url(0, self.port)

    def urls(self) -> list[str]:
        """Return the URL of every page, in canonical form."""
        return [self.spec.url(page, self.port) for page in range(self.spec.pages)]

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nginx-site-")))
            root = self._folder / "root"
            addresses = [self.spec.address(host) for host in range(self.spec.hosts)]
            self.port = claim_port(addresses, 0)
            total_bytes = 0
            for page, body in enumerate(self.spec.bodies(self.port)):
                path = self.spec.path(page)
                file = root / (path[1:] or "index.html")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(body)
                total_bytes += len(body)
            self.mean_answer_bytes = total_bytes // self.spec.pages
            # Its worker may run as another user than who made the folder for itself alone.
            self._folder.chmod(0o755)
            servers = "".join(
                _SERVER.format(address=address, port=self.port, root=root, folder=self._folder) for address in addresses
            )
            self._process = stack.enter_context(running(self._nginx, servers, self._folder))
            for address in addresses:
                wait_until_listening(address, self.port, self._folder)
            self._log = stack.enter_context((self._folder / "access.log").open("rb"))
            self._stack = stack.pop_all()
        self.report()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def report(self) -> SiteReport:
        """Return what was served since the last report, and start again at zero."""
        counts, not_found = [0] * self.spec.pages, 0
        for address, path in self._read_log():
            page = self._pages.get((address, path))
            if page is None:
                not_found += 1
            else:
                counts[page] += 1
        before_s, self._cpu_s = self._cpu_s, self._read_cpu_s()
        return SiteReport(counts, not_found, self._cpu_s - before_s)

    def _read_log(self) -> list[tuple[str, str]]:
        """Return address and path of each request since last time; of one worker, one of ours is logged last."""
        self._marks += 1
        mark = f"{_MARK}{self._marks}"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{self.spec.address(0)}:{self.port}{mark}", timeout=LOG_TIMEOUT_S).close()
        asked, rest, deadline_s = list[tuple[str, str]](), b"", time.monotonic() + LOG_TIMEOUT_S
        while True:
            *lines, rest = (rest + self._log.read()).split(b"\n")
            for line in lines:
                address, path, _ = line.decode().split(" ")
                if path == mark:
                    return asked
                asked.append((address, path))
            if time.monotonic() > deadline_s:
                raise RuntimeError("nginx did not log a request in time")
            time.sleep(0.01)

    def _read_cpu_s(self) -> float:
        """Return the CPU seconds of its worker and the process above it."""
        pids = [self._process.pid]
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids += map(int, children.read_text().split())
        ticks = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS_PER_S
