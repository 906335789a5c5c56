"""The web server that the tests crawl: a process of its own, many hosts, every fault that a crawler meets.

From a test: `with SiteProcess(SiteSpec(hosts=3)) as site: ... site.seed_url ... site.requests()`. By hand:
`python -m tests.site --hosts 3 --pages 100`. What the pages are is in model.py; a connection is one `_Connection`.

| route | answer |
|---|---|
| `/robots.txt` | what `SiteSpec.robots` says |
| `/p/<i>` | page `i` of this host, status 200; a flaky one answers 503 twice first |
| `/r/<i>` | 302 to `/p/<i>` on this host |
| `/x/<h>/<i>` | 302 to `/p/<i>` on host `h` |
| what robots.txt forbids | a page |
| `/fault/hang` | nothing, ever; the connection stays open |
| `/fault/reset` | a TCP reset before the answer |
| `/fault/reset_mid` | a reset in the middle of the body |
| `/fault/truncated` | a close in the middle of the body |
| `/fault/hang_in_body` | a head, and nothing then |
| `/fault/big`, `big_gzip` | a body that never ends; the same of empty gzip members |
| `/fault/slow_drip` | one byte of the body every 50 ms, for minutes |
| `/fault/head_drip` | the same with the head |
| `/fault/head_endless`, `informed_endless` | header lines, 1xx answers without end |
| `/fault/trailers_endless`, `extension_endless` | trailers, the extension of a chunk without end |
| `/fault/redirect_loop` | 302 to itself, by way of `/fault/redirect_loop?back` |
| `/fault/redirect_many` | 302 to `?n=1`, `?n=2`, … without end |
| `/fault/redirect_none` | 302 without a Location |
| `/fault/redirect_bad` | 302 to what is no URL |
| `/fault/redirect_latin1` | 302 to a path with a byte that is no UTF-8 |
| `/fault/redirect_bomb` | 302 with a body that inflates to 1 GiB |
| `/fault/redirect_<code>` | that status, to `/p/0` |
| `/fault/links_<n>` | a page with `n` links |
| `/fault/bytes_<n>` | a plain text of `n` bytes |
| `/fault/status_<code>` | that status |
| `/fault/retry_after_<s>_<code>` | that status with `Retry-After: <s>` |
| `/sitemap/<name>` | a sitemap, good or broken: sitemaps.py |
| `/sitemap/moved` | 302 to `/sitemap/xml` |
| `/sitemap/moved_<h>` | 302 to `/sitemap/xml` on host `h` |
| `/fault/<name>` | the bytes of that name in faults.py: codings, lengths, chunks, heads, types, charsets |
| everything else | 404 |

Every request is written to the log when its answer has been written, or when the client went away before: one JSON line
with `host`, `path`, `start`, `end` (ms of CLOCK_MONOTONIC, which all processes of a machine share) and `status` (0 when
no answer was written). A line is one write, so the log is complete at any time, also after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, cast

import msgspec
import uvloop

from tests.site.faults import HTML, Raw, answer, gzip_of_zeros, raw_fault
from tests.site.model import FLAKY_FAILURES, Site, SiteSpec, address, redirect_target
from tests.site.sitemaps import raw_sitemap

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

__all__ = ["LoggedRequest", "SiteProcess", "SiteSpec"]

BACKLOG: Final = 1024
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
REPOSITORY: Final = Path(__file__).resolve().parents[2]

_REASONS: Final = {
    200: b"OK",
    302: b"Found",
    404: b"Not Found",
    405: b"Method Not Allowed",
    503: b"Service Unavailable",
}
_HTML: Final = HTML
_CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: the close that follows sends a reset."""


class LoggedRequest(NamedTuple):
    """One request as the server saw it. Times are ms of CLOCK_MONOTONIC, `time.monotonic() * 1000`."""

    host: str
    """The address asked: 127.0.0.1 for host 1."""
    path: str
    start_ms: float
    """When its head had come."""
    end_ms: float
    """When the answer had been written, or the client had gone."""
    status: int
    """0 when no answer was written."""


class SiteProcess:
    """A running site. A context manager; the process also ends when the one that started it does."""

    def __init__(self, spec: SiteSpec, log: Path | str | None = None) -> None:
        """Prepare a site whose requests go to the file `log`, which is emptied; None for a temporary one."""
        self.spec: Final = spec
        self._folder = tempfile.TemporaryDirectory(prefix="site-") if log is None else None
        self.log: Final = Path(self._folder.name, "requests.jsonl") if self._folder else Path(log or "")
        self._process: subprocess.Popen[bytes] | None = None
        self._site: Site | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and return when all its hosts listen.

        Raises:
            RuntimeError: it did not start; its own message is on stderr.
        """
        self.log.write_bytes(b"")
        spec = msgspec.json.encode(self.spec).decode()
        command = [sys.executable, "-m", "tests.site", "--spec", spec, "--log", str(self.log)]
        # The child lives as long as its stdin: nothing is left behind when the tests are killed.
        process = subprocess.Popen(
            [*command, "--until-stdin-closes"], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._process = process
        assert process.stdout is not None
        is_ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if is_ready else b""
        if not line:
            self.stop()
            raise RuntimeError(f"the site did not start within {START_TIMEOUT_S:g} s")
        self._site = Site(self.spec, int(line))

    def stop(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            with process:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def site(self) -> Site:
        """The model, with the port it is served on."""
        if self._site is None:
            raise RuntimeError("the site was not started")
        return self._site

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the site does not run")
        return self._process.pid

    @property
    def port(self) -> int:
        return self.site.port

    @property
    def seed_url(self) -> str:
        return self.site.seed_url

    def url(self, host: int, path: str) -> str:
        """Return the URL of a path on a host, by its number from 1."""
        return self.site.url(host, path)

    def expected_pages(self, *, scope: Literal["any", "host"] = "any") -> set[str]:
        """Return the canonical URLs that a crawl from `seed_url` ends with at status 200 (`Site.expected_pages`)."""
        return self.site.expected_pages(scope=scope)

    def requests(self) -> list[LoggedRequest]:
        """Return every request that has ended so far, in the order of their ends."""
        return read_log(self.log)


def read_log(path: Path) -> list[LoggedRequest]:
    """Return the requests of a log file; a line that is being written is left out."""
    requests = []
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            fields = json.loads(line)
            requests.append(
                LoggedRequest(fields["host"], fields["path"], fields["start"], fields["end"], fields["status"])
            )
    return requests


class _Server:
    """What all connections share: the site, the log, and how often each flaky page was asked for."""

    def __init__(self, site: Site, log: int | None) -> None:
        self.site: Final = site
        self.asked: Final[Counter[tuple[int, int]]] = Counter()
        self.running: Final[set[asyncio.Task[None]]] = set()
        self._log: Final = log

    def write_log(self, host: int, path: str, started: float, ended: float, status: int) -> None:
        if self._log is not None:
            line = (
                f'{{"host":"{address(host)}","path":{json.dumps(path)},"start":{started * 1000:.3f},'
                f'"end":{ended * 1000:.3f},"status":{status}}}\n'
            )
            os.write(self._log, line.encode())

    def run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)


class _Connection(asyncio.Protocol):
    """One client connection: reads one request at a time and answers it, at once or in an asyncio task."""

    def __init__(self, server: _Server, host: int, *, is_dead: bool) -> None:
        self._server = server
        self._host = host
        self._is_dead = is_dead
        self._buffer = b""
        self._path: str | None = None
        """Of the request that is being answered."""
        self._started = 0.0
        self._is_closing = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport

    # -- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are no subclass of it

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._can_write.set()
        if self._path is not None:
            self._end(0)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._path is None:
            self._next_request()

    # -- requests

    def _next_request(self) -> None:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        self._buffer = rest
        self._started = monotonic()
        method, _, target = head.partition(b"\r\n")[0].partition(b" ")
        self._path = path = target.rpartition(b" ")[0].decode("latin-1")
        self._is_closing = b"onnection: close" in head or head.endswith(b"HTTP/1.0")
        if self._is_dead:
            return
        if method != b"GET":
            self._answer(405)
        elif path.startswith("/p/"):
            self._answer_page(path)
        elif path.startswith("/fault/"):
            self._server.run(self._answer_fault(path.removeprefix("/fault/")))
        elif path.startswith("/sitemap/"):
            self._server.run(self._answer_sitemap(path.removeprefix("/sitemap/")))
        elif path.startswith(("/r/", "/x/")):
            target_host, target_path = redirect_target(self._host, path)
            is_here = target_host == self._host
            self._redirect(target_path if is_here else self._server.site.url(target_host, target_path))
        elif path == "/robots.txt":
            status, body = self._server.site.robots_txt()
            self._answer(status, body, b"Content-Type: text/plain\r\n")
        elif (forbidden := self._server.site.disallowed) is not None and path.startswith(forbidden):
            self._answer(200, b"<title>Forbidden by robots.txt</title>")
        else:
            self._answer(404)

    async def _answer_sitemap(self, name: str) -> None:
        site = self._server.site
        raw = raw_sitemap(name, site.url(self._host, ""))
        word, _, host = name.partition("_")
        if raw is not None:
            await self._answer_raw(raw)
        elif word == "moved":
            self._redirect(site.url(int(host), "/sitemap/xml") if host else "/sitemap/xml")
        else:
            self._answer(404)

    def _answer_page(self, path: str) -> None:
        site = self._server.site
        number = path.removeprefix("/p/").partition("?")[0]
        if not number.isdecimal() or int(number) >= site.spec.pages_per_host:
            self._answer(404)
            return
        page = int(number)
        latency_ms = site.latency_ms(self._host, page)
        if latency_ms:
            asyncio.get_running_loop().call_later(latency_ms / 1000, self._answer_page_now, page)
        else:
            self._answer_page_now(page)

    def _answer_page_now(self, page: int) -> None:
        site = self._server.site
        if self._path is None:  # the client went away while we were slow
            return
        if site.is_flaky(self._host, page):
            self._server.asked[self._host, page] += 1
            if self._server.asked[self._host, page] <= FLAKY_FAILURES:
                self._answer(503, b"try again")
                return
        self._answer(200, site.page_html(self._host, page))

    def _redirect(self, location: str, status: int = 302) -> None:
        self._answer(status, b"moved", b"Location: %b\r\n" % location.encode("latin-1"))

    def _answer(self, status: int, body: bytes = b"", headers: bytes = _HTML) -> None:
        """Write a whole answer and be ready for the next request."""
        ended = monotonic()  # before the write: the client may have it all before we go on
        self._transport.write(
            b"HTTP/1.1 %d %b\r\nContent-Length: %d\r\n%b\r\n%b"
            % (status, _REASONS.get(status, b"Status"), len(body), headers, body)
        )
        self._end(status, ended)

    def _end(self, status: int, ended: float | None = None) -> None:
        path, self._path = self._path, None
        assert path is not None
        self._server.write_log(self._host, path, self._started, ended or monotonic(), status)
        if self._gone.is_set():
            return
        if self._is_closing:
            self._transport.close()
        elif self._buffer:
            self._next_request()

    # -- faults

    async def _answer_fault(self, name: str) -> None:
        word, _, number = name.partition("?")[0].rpartition("_")
        match word:
            case "links" if number.isdecimal():
                links = "".join(f'<a href="/p/0?{n}">{n}</a>\n' for n in range(int(number)))
                self._answer(200, f"<!DOCTYPE html><title>{number} links</title>{links}".encode())
            case "bytes" if number.isdecimal():
                self._answer(200, b"x" * int(number), b"Content-Type: text/plain\r\n")
            case "status" if number.isdecimal():
                self._answer(int(number))
            case "redirect" if number.isdecimal():
                self._redirect("/p/0", int(number))
            case _ if word.startswith("retry_after_"):
                seconds = word.removeprefix("retry_after_")
                self._answer(int(number), b"", b"Retry-After: %b\r\n" % seconds.encode("latin-1"))
            case _:
                await self._answer_named_fault(name)

    async def _answer_named_fault(self, name: str) -> None:
        fault, _, query = name.partition("?")
        page = self._server.site.page_html(self._host, 0)
        raw = raw_fault(fault, page)
        if raw is not None:
            await self._answer_raw(raw)
            return
        half = page[: len(page) // 2]
        start = b"HTTP/1.1 200 OK\r\n" + _HTML
        whole = start + b"Content-Length: %d\r\n\r\n" % len(page)
        match fault:
            case "hang":
                pass  # the log gets its line when the client goes away
            case "hang_in_body":
                await self._write(whole)
            case "reset":
                self._reset(0)
            case "reset_mid":
                await self._write(whole + half)
                self._reset(200)
            case "truncated":
                await self._write(whole + half)
                self._close(200)
            case "big":
                await self._write_forever(start + _CHUNKED, b"10000\r\n%b\r\n" % (b"x" * 65_536))
            case "big_gzip":
                await self._write_forever(start + b"Content-Encoding: gzip\r\n\r\n", gzip.compress(b"") * 1000)
            case "slow_drip":
                await self._drip(start + b"Content-Length: 10000\r\n\r\n", b"x")
            case "head_drip":
                await self._drip(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x")
            case "head_endless":
                await self._write_forever(start, b"X-More: 1\r\n" * 1000)
            case "informed_endless":
                await self._write_forever(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
            case "trailers_endless":
                await self._write_forever(start + _CHUNKED + b"0\r\n", b"X-More: 1\r\n" * 1000)
            case "extension_endless":
                await self._write_forever(start + _CHUNKED + b"5;x=", b"x" * 65_536)
            case "redirect_loop":
                self._redirect("/fault/redirect_loop" if query else "/fault/redirect_loop?back")
            case "redirect_many":
                self._redirect(f"/fault/redirect_many?n={int(query.removeprefix('n=') or 0) + 1}")
            case "redirect_none":
                self._answer(302)
            case "redirect_bad":
                self._redirect("http://[not-an-address/")
            case "redirect_latin1":
                self._redirect("/p/0?caf\xe9")
            case "redirect_bomb":
                headers = b"Location: /p/0\r\nContent-Encoding: gzip\r\n"
                await self._answer_raw(Raw(answer(gzip_of_zeros(1024), headers, b"302 Found"), status=302))
            case _:
                self._answer(404)

    async def _answer_raw(self, raw: Raw) -> None:
        for at in range(0, len(raw.data), 65_536):
            await self._write(raw.data[at : at + 65_536])
        match raw.ends:
            case "keeps":
                self._end_unless_gone(raw.status)
            case "closes":
                self._close(raw.status)

    async def _write_forever(self, start: bytes, again: bytes) -> None:
        await self._write(start)
        while not self._gone.is_set():
            await self._write(again)

    async def _drip(self, start: bytes, drop: bytes) -> None:
        await self._write(start)
        for _ in range(10_000):
            if self._gone.is_set():
                return
            await self._write(drop)
            await asyncio.sleep(0.05)
        self._end_unless_gone(200)

    async def _write(self, data: bytes) -> None:
        """Write, and wait while the client does not read."""
        if not self._gone.is_set():
            self._transport.write(data)
            # Without a turn of the loop, an endless body would never learn that the client has gone.
            await asyncio.sleep(0)
            await self._can_write.wait()

    def _end_unless_gone(self, status: int) -> None:
        if not self._gone.is_set():
            self._end(status)

    def _close(self, status: int) -> None:
        self._is_closing = True
        self._end_unless_gone(status)

    def _reset(self, status: int) -> None:
        """End the connection with a TCP reset."""
        if not self._gone.is_set():
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._close(status)


def bind_hosts(spec: SiteSpec) -> tuple[int, list[tuple[int, socket.socket]]]:
    """Return a port that is free on every host, and the listening socket of each host but the refusing ones."""
    hosts = [host for host in range(1, spec.hosts + 1) if host not in spec.refusing_hosts]
    while True:
        bound: list[tuple[int, socket.socket]] = []
        port = 0
        try:
            for host in hosts:
                sock = socket.socket()
                bound.append((host, sock))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address(host), port))
                sock.listen(BACKLOG)
                port = sock.getsockname()[1]
        except OSError as error:
            for _, sock in bound:
                sock.close()
            # Port 0 gave one that is free on host 1; another process may have it on a later host.
            if error.errno != errno.EADDRINUSE or port == 0:
                raise
        else:
            return port, bound


async def serve(spec: SiteSpec, log: Path | None, *, until_stdin_closes: bool) -> None:
    """Serve a site until cancelled, or until stdin is closed. Prints the port when every host listens."""
    loop = asyncio.get_running_loop()
    port, sockets = bind_hosts(spec)
    log_file = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    server = _Server(Site(spec, port), log_file)
    listeners = [
        await loop.create_server(
            lambda host=host: _Connection(server, host, is_dead=host in spec.dead_hosts),  # type: ignore[misc]
            sock=sock,
            backlog=BACKLOG,
        )
        for host, sock in sockets
    ]
    print(port, flush=True)
    ended = asyncio.Event()
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), ended.set)
    try:
        await ended.wait()
    finally:
        for listener in listeners:
            listener.close()
        if log_file is not None:
            os.close(log_file)


def run(spec: SiteSpec, log: Path | None, *, until_stdin_closes: bool) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(spec, log, until_stdin_closes=until_stdin_closes))
