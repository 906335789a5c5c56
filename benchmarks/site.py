"""A local site that is never the bottleneck: the same pages for every crawler that is measured on it.

Every page is made before the first request and served from memory by a bare protocol on uvloop, in processes of their
own; the site costs 0.03 to 0.05 CPU seconds per 1,000 pages, and none of it is counted as the crawler's. The pages are
a pure function of `SiteSpec`: 2 to 10 KB of HTML, a title, prose, and links of which some climb from the root (so
that all pages are reachable from it) and the others lead anywhere; one in ten carries a fragment, which a crawler must
take off to see that it knows the page.

The site counts how often each page was asked for. That count, and not what a crawler says of itself, decides whether
everything was fetched and nothing twice. Start at `SiteProcess`.

By hand: `python -m benchmarks.site --pages 1000` prints one JSON line with its address and serves until its input ends
(Ctrl-D); a line of input makes it print, and start again at zero, what it has served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

CHILDREN: Final = 4
"""Of a page's links, those that lead to pages no other page is sure to name: the tree that makes all reachable."""

HUB_LINKS: Final = 50
"""With one link per page, one page in so many has them all: else it would be a chain, fetched one page at a time."""

FRAGMENT_EVERY: Final = 10
PORT_ATTEMPTS: Final = 20
"""A port that is free on 127.0.0.1 may be taken on one of the other addresses; then the next is tried."""

BACKLOG: Final = 1024
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0

_WORDS: Final = (
    "river", "stone", "archive", "window", "garden", "signal", "paper", "market", "harbour", "winter",
    "engine", "letter", "bridge", "copper", "meadow", "lantern", "voyage", "number", "silver", "forest",
    "quiet", "record", "island", "thunder", "museum", "kettle", "violet", "canyon", "mirror", "branch",
    "orchard", "anchor",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """What the site holds. Two equal specs make the same pages, byte for byte, on the same port."""

    pages: int = 5000
    links: int = 20
    """On each page, at least 1 (which is a mean: see HUB_LINKS). A page has no duplicates among them as long as `links`
    is small against `pages`."""
    hosts: int = 1
    """Page `i` lies on host `i % hosts`; the hosts are 127.0.0.1, 127.0.0.2, … on one port."""
    seed: int = 1
    page_min_bytes: int = 2000
    """A page whose links alone need more is longer."""
    page_max_bytes: int = 10_000
    latency_ms: int = 0
    """How long each answer is held back."""

    def address(self, host: int) -> str:
        return f"127.0.{host // 250}.{host % 250 + 1}"

    def path(self, page: int) -> str:
        """Return the path of a page; that of page 0 is the root."""
        if page == 0:
            return "/"
        section, first, second = page % 40, _WORDS[page % len(_WORDS)], _WORDS[page // 7 % len(_WORDS)]
        return f"/section-{section}/{first}-{second}-{page}.html"

    def url(self, page: int, port: int) -> str:
        return f"http://{self.address(page % self.hosts)}:{port}{self.path(page)}"

    def bodies(self, port: int) -> Iterator[bytes]:
        """Yield the HTML of every page, in the order of their numbers."""
        choose = random.Random(self.seed)
        sentences = [" ".join(choose.choices(_WORDS, k=choose.randint(6, 18))).capitalize() + "." for _ in range(200)]
        for page in range(self.pages):
            yield make_page(self, page, port, sentences)

    def linked_pages(self, page: int, choose: random.Random) -> list[int]:
        """Return the pages that `page` links to: its children in the tree, then others by chance."""
        fan_out = HUB_LINKS if self.links == 1 else min(CHILDREN, self.links)
        found = dict.fromkeys(
            child for child in range(page * fan_out + 1, (page + 1) * fan_out + 1) if child < self.pages
        )
        for _ in range(self.links * 4 if self.links > 1 else 0):
            if len(found) >= min(self.links, self.pages):
                break
            found[choose.randrange(self.pages)] = None
        return list(found)


def make_page(spec: SiteSpec, page: int, port: int, sentences: Sequence[str]) -> bytes:
    """Return the HTML of one page, between the spec's least and most bytes."""
    choose = random.Random(spec.seed * 1_000_003 + page)
    target_bytes = choose.randint(spec.page_min_bytes, spec.page_max_bytes)
    anchors = []
    for position, target in enumerate(spec.linked_pages(page, choose)):
        is_same_host = target % spec.hosts == page % spec.hosts
        href = spec.path(target) if is_same_host else spec.url(target, port)
        fragment = "#top" if position % FRAGMENT_EVERY == FRAGMENT_EVERY - 1 else ""
        anchors.append(f'<li><a href="{href}{fragment}">{_WORDS[target % len(_WORDS)]} {target}</a></li>')
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>Page {page} of the {_WORDS[page % len(_WORDS)]}</title>\n"
        '<link rel="stylesheet" href="/style.css">\n</head>\n<body>\n<main>\n'
        f"<h1>Page {page}</h1>\n"
    )
    tail = "</main>\n</body>\n</html>\n"
    links = "<ul>\n" + "\n".join(anchors) + "\n</ul>\n"
    paragraphs = []
    missing = target_bytes - len(head) - len(links) - len(tail)
    while missing > 0:
        paragraph = f'<p class="text">{choose.choice(sentences)} <em>{choose.choice(sentences)}</em></p>\n'
        paragraphs.append(paragraph if len(paragraph) <= missing else f"<!--{'-' * max(0, missing - 8)}-->\n"[:missing])
        missing -= len(paragraph)
    middle = len(paragraphs) // 2
    return (head + "".join(paragraphs[:middle]) + links + "".join(paragraphs[middle:]) + tail).encode()


def make_answers(spec: SiteSpec, port: int) -> list[bytes]:
    """Return the whole HTTP answer of each page, by its number, with the headers an ordinary server sends."""
    answers = []
    for page, body in enumerate(spec.bodies(port)):
        head = (
            "HTTP/1.1 200 OK\r\nServer: site\r\nDate: Mon, 05 Jan 2026 10:00:00 GMT\r\n"
            f"Content-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            "Last-Modified: Sun, 04 Jan 2026 09:00:00 GMT\r\nConnection: keep-alive\r\n"
            f'ETag: "{page:x}-{len(body):x}"\r\nAccept-Ranges: bytes\r\n\r\n'
        )
        answers.append(head.encode() + body)
    return answers


_NOT_FOUND: Final = (
    b"HTTP/1.1 404 Not Found\r\nServer: site\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nnot found\n"
)


class Served:
    """What one process has served since it was last asked."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._cpu_began_s = time.process_time()
        self.counts = [0] * pages
        self.not_found = 0

    def take(self) -> dict[str, Any]:
        """Return the counts and begin again at zero."""
        cpu_now_s = time.process_time()
        taken = {"counts": self.counts, "not_found": self.not_found, "cpu_s": cpu_now_s - self._cpu_began_s}
        self.counts, self.not_found, self._cpu_began_s = [0] * self._pages, 0, cpu_now_s
        return taken


class PageProtocol(asyncio.Protocol):
    """One connection. Understands what crawlers send, requests without a body, and answers them in their order."""

    __slots__ = ("_answers", "_latency_s", "_numbers", "_rest", "_served", "_transport")
    _transport: asyncio.Transport

    def __init__(self, numbers: dict[bytes, int], answers: list[bytes], served: Served, latency_ms: int) -> None:
        self._numbers = numbers
        self._answers = answers
        self._served = served
        self._latency_s = latency_ms / 1000
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no assertion: the transports of uvloop are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        rest = self._rest + data if self._rest else data
        while (end := rest.find(b"\r\n\r\n")) >= 0:
            words = rest.split(b" ", 2)
            if len(words) < 3:
                self._transport.close()
                return
            number = self._numbers.get(words[1])
            if number is None:
                self._served.not_found += 1
                answer = _NOT_FOUND
            else:
                self._served.counts[number] += 1
                answer = self._answers[number]
            if self._latency_s:
                # All wait equally long, so that answers of one connection keep their order.
                asyncio.get_running_loop().call_later(self._latency_s, self._answer, answer)
            else:
                self._transport.write(answer)
            rest = rest[end + 4 :]
        self._rest = rest

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _listening_sockets(spec: SiteSpec, port: int) -> list[socket.socket]:
    """Return one listening socket per host, all on one port; port 0 finds one that is free on every address."""
    for _ in range(PORT_ATTEMPTS):
        sockets: list[socket.socket] = []
        chosen = port
        try:
            for host in range(spec.hosts):
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind((spec.address(host), chosen))
                chosen = listener.getsockname()[1]
        except OSError:
            for listener in sockets:
                listener.close()
            if port:
                raise
            continue
        return sockets
    raise OSError(f"no port is free on all of {spec.hosts} loopback addresses")


async def serve(spec: SiteSpec, port: int) -> None:
    """Serve the site until standard input ends; a line of input is answered with a line of counts.

    The end of the input is what stops it, so that a site never outlives the benchmark that started it.
    """
    loop = asyncio.get_running_loop()
    sockets = _listening_sockets(spec, port)
    port = sockets[0].getsockname()[1]
    answers = make_answers(spec, port)
    served = Served(spec.pages)
    for host, listener in enumerate(sockets):
        numbers = {spec.path(page).encode(): page for page in range(host, spec.pages, spec.hosts)}

        def connection(numbers: dict[bytes, int] = numbers) -> PageProtocol:
            return PageProtocol(numbers, answers, served, spec.latency_ms)

        await loop.create_server(connection, sock=listener, backlog=BACKLOG)
    served.take()
    mean_bytes = sum(map(len, answers)) // len(answers)
    print(json.dumps({"root_url": spec.url(0, port), "port": port, "mean_answer_bytes": mean_bytes}), flush=True)
    ended = asyncio.Event()

    def read_input() -> None:
        if sys.stdin.buffer.readline():
            print(json.dumps(served.take()), flush=True)
        else:
            ended.set()

    try:
        loop.add_reader(sys.stdin.fileno(), read_input)
    except PermissionError as error:
        raise SystemExit("standard input must be a terminal or a pipe: its end is what stops the site") from error
    await ended.wait()


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What all processes of the site served between two reports."""

    counts: list[int]
    """Requests per page, by its number."""
    not_found: int
    cpu_s: float

    @property
    def distinct_pages(self) -> int:
        return sum(1 for count in self.counts if count)

    @property
    def repeated_fetches(self) -> int:
        """Fetches beyond the first of each page."""
        return sum(count - 1 for count in self.counts if count > 1)


class SiteProcess:
    """The site as processes of their own that share one port; a context manager, which starts and stops them.

    One process serves some 20,000 pages a second; more are needed only by a crawler that is faster than that.
    """

    server: Final = "site.py"

    def __init__(self, spec: SiteSpec, *, processes: int = 1) -> None:
        self.spec = spec
        self._count = processes
        self._processes: list[subprocess.Popen[str]] = []
        self.port = 0
        self.mean_answer_bytes = 0

    @property
    def root_url(self) -> str:
        return self.spec.url(0, self.port)

    def urls(self) -> list[str]:
        """Return the URL of every page, in canonical form."""
        return [self.spec.url(page, self.port) for page in range(self.spec.pages)]

    def report(self) -> SiteReport:
        """Return what was served since the last report, and start again at zero."""
        counts, not_found, cpu_s = [0] * self.spec.pages, 0, 0.0
        for process in self._processes:
            part = self._ask(process)
            counts = [a + b for a, b in zip(counts, part["counts"], strict=True)]
            not_found += part["not_found"]
            cpu_s += part["cpu_s"]
        return SiteReport(counts, not_found, cpu_s)

    def _ask(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return self._read_line(process)

    @staticmethod
    def _read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the site ended with exit code {process.wait(STOP_TIMEOUT_S)}; its error is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self.spec).items()]
        try:
            for _ in range(self._count):
                process = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.site", *options, f"--port={self.port}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                self._processes.append(process)
                ready = self._read_line(process)
                self.port, self.mean_answer_bytes = ready["port"], ready["mean_answer_bytes"]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self._processes.clear()


def add_spec_options(parser: argparse.ArgumentParser, *, without: Sequence[str] = ()) -> None:
    """Give a command the options that describe a site, with the defaults of `SiteSpec`."""
    spec = SiteSpec()
    for name, value in asdict(spec).items():
        if name in without:
            continue
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, metavar="N")


def spec_from_options(options: argparse.Namespace, *, without: Sequence[str] = ()) -> SiteSpec:
    """Return the site that the options of `add_spec_options` describe."""
    return SiteSpec(**{name: getattr(options, name) for name in asdict(SiteSpec()) if name not in without})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description="Serve a synthetic site.")
    add_spec_options(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="0 (the default) finds a free one")
    options = parser.parse_args()
    uvloop.run(serve(spec_from_options(options), options.port))


if __name__ == "__main__":
    main()
