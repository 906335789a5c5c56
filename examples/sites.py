"""Small sites to crawl, so that each example runs with one command. `python -m examples.sites shop` serves one.

| site | what it has |
|---|---|
| `shop` | pages of a catalogue, each item with a price; every fifth costs more on each day |
| `news` | front pages by day, and their articles; one article is served under two addresses |
| `manual` | chapters that link to the next ones and to what robots.txt forbids; two of them to what is broken |
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from types import TracebackType

ITEMS: Final = 30
ITEMS_PER_PAGE: Final = 6
DAYS: Final = 4
ARTICLES_PER_DAY: Final = 5
CHAPTERS: Final = 12


class Answer(NamedTuple):
    """What a site answers."""

    body: str = ""
    status: int = 200
    location: str = ""
    """Where a redirect leads."""


NOT_FOUND: Final = Answer("<title>Not found</title>", 404)


class Site(ABC):
    """Serves a site from a thread as long as its block runs."""

    def __init__(self) -> None:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer = site.answer(self.path)
                body = answer.body.encode()
                self.send_response(answer.status)
                self.send_header("Content-Type", f"text/{'plain' if self.path.endswith('.txt') else 'html'}")
                self.send_header("Content-Length", str(len(body)))
                if answer.location:
                    self.send_header("Location", answer.location)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @abstractmethod
    def answer(self, path: str) -> Answer:
        """Return what a path answers."""

    def wait(self) -> None:
        """Serve until this process is ended."""
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def parts(path: str) -> tuple[str, int]:
    """Return the word and the number of a path: ("item", 7); the number is -1 where there is none."""
    kind, _, number = path.strip("/").partition("/")
    return kind, int(number) if number.isdecimal() else -1


def price_of(item: int, day: int) -> float:
    """Return what an item costs on a day: every fifth goes up with each."""
    return round(9.99 + item + (0.5 * day if item % 5 == 0 else 0.0), 2)


class Shop(Site):
    """A catalogue and its items; prices are those of `day`."""

    def __init__(self, day: int = 1) -> None:
        super().__init__()
        self.day = day

    def answer(self, path: str) -> Answer:
        kind, number = parts(path)
        if kind in ("", "page"):
            first = max(0, number) * ITEMS_PER_PAGE
            rows = [f'<a class="item" href="/item/{n}">item {n}</a>' for n in range(first, first + ITEMS_PER_PAGE)]
            if first + ITEMS_PER_PAGE < ITEMS:
                rows.append(f'<a class="next" href="/page/{max(0, number) + 1}">more</a>')
            return Answer(f"<title>The shop</title>{'<br>'.join(rows)}")
        if kind == "item" and 0 <= number < ITEMS:
            price = f'<p class="price">&euro; {price_of(number, self.day):.2f}</p>'
            return Answer(f"<title>Item {number}</title><h1>Item {number}</h1>{price}")
        return NOT_FOUND


class News(Site):
    """Front pages from the newest day backwards, articles, and a page that is no article."""

    def answer(self, path: str) -> Answer:
        kind, number = parts(path)
        if kind in ("", "day"):
            day = DAYS if number < 0 else number
            if not 1 <= day <= DAYS:
                return NOT_FOUND
            first = (day - 1) * ARTICLES_PER_DAY
            rows = [f'<a class="story" href="/story/{n}">story {n}</a>' for n in range(first, first + ARTICLES_PER_DAY)]
            if day > 1:
                rows.append(f'<a class="older" href="/day/{day - 1}">older</a>')
            return Answer(f'<title>News</title><a href="/imprint">Imprint</a>{"<br>".join(rows)}')
        if kind in ("story", "copy") and 0 <= number < DAYS * ARTICLES_PER_DAY:
            day, text = number // ARTICLES_PER_DAY + 1, f"What happened, part {number}. " * 20
            also = '<a class="story" href="/copy/0">the same</a>' if path == "/story/1" else ""
            head = (
                f'<title>Story {number}</title><h1>Story {number}</h1><time datetime="2026-12-0{day}">day {day}</time>'
            )
            return Answer(f"{head}<article>{text}</article>{also}")
        return Answer("<title>Imprint</title>") if kind == "imprint" else NOT_FOUND


class Manual(Site):
    """Chapters that link to the next ones; the last two also to what is broken, unless it is whole."""

    def __init__(self, *, is_whole: bool = False) -> None:
        super().__init__()
        self.is_whole = is_whole

    def answer(self, path: str) -> Answer:
        kind, number = parts(path)
        if path == "/robots.txt":
            return Answer("User-agent: *\nDisallow: /private/\n")
        if kind == "" or (kind == "chapter" and 0 <= number < CHAPTERS):
            chapter = max(0, number)
            links = [f"/chapter/{n}" for n in (chapter + 1, chapter + 2) if n < CHAPTERS] + ["/private/notes"]
            if not self.is_whole and chapter >= CHAPTERS - 2:
                links += ["/gone", "/moved", f"/draft/{chapter}"]
            return Answer(f"<title>Chapter {chapter}</title>" + "".join(f'<a href="{link}">x</a>' for link in links))
        if kind == "moved":
            return Answer(status=301, location="/lost")
        return Answer(status=500) if kind == "draft" else NOT_FOUND


SITES: Final[dict[str, type[Site]]] = {"shop": Shop, "news": News, "manual": Manual}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SITES:
        sys.exit(f"python -m examples.sites {'|'.join(SITES)}")
    with SITES[sys.argv[1]]() as served, suppress(KeyboardInterrupt):
        print(served.url, flush=True)
        served.wait()
