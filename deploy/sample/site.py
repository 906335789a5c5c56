"""A small web site to try streamcrawl on: as many pages as wanted, and some of what real sites do.

Run by `docker compose up` in a container of its own, or by hand: `python deploy/sample/site.py --pages 500`. It needs
no package. Pages differ by nothing but their number, so two runs serve the same site:

| path | answer |
|---|---|
| `/`, `/page/<i>` | a page with links to `FANOUT` later ones, so that all are reached from the first |
| every 17th page | also links to `/moved/<i>`, a redirect to page `i` |
| every 23rd page | also links to `/gone/<i>`, a 404 |
| every 29th page | is 503 when it is asked for the first time |
| every 31st page | also links to `/private/<i>`, which robots.txt forbids |
| `/healthz` | 200 |

It is slow on purpose: 10 to 80 ms for a page, so that there is something to see.
"""

from __future__ import annotations

import argparse
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

FANOUT: Final = 4
ROBOTS: Final = "User-agent: *\nDisallow: /private/\n"


class Site(ThreadingHTTPServer):
    """The server; `failed` are the pages that have been 503 once, for each name of the site."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, pages: int, bind: str) -> None:
        super().__init__((bind, port), Page)
        self.pages = pages
        self.failed: set[tuple[str, int]] = set()


class Page(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    server: Site

    def do_GET(self) -> None:
        """Answer as the table at the top says."""
        kind, _, rest = self.path.lstrip("/").partition("/")
        number = int(rest) if rest.isdecimal() and len(rest) < 10 else None
        if self.path == "/healthz":
            self._answer(200, "text/plain", "ok\n")
        elif self.path == "/robots.txt":
            self._answer(200, "text/plain", ROBOTS)
        elif self.path == "/":
            self._page(0)
        elif kind == "page" and number is not None and number < self.server.pages:
            self._page(number)
        elif kind == "private" and number is not None:
            self._answer(200, "text/html", "<title>private</title>")
        elif kind == "moved" and number is not None:
            self._answer(302, "text/plain", "", Location=f"/page/{number}")
        else:
            self._answer(404, "text/html", "<title>not found</title>")

    def _page(self, number: int) -> None:
        time.sleep(0.010 + number * 7 % 71 / 1000)
        once = (self.headers.get("Host", ""), number)
        if number % 29 == 28 and once not in self.server.failed:
            self.server.failed.add(once)
            self._answer(503, "text/plain", "busy\n")
            return
        later = range(number * FANOUT + 1, min(number * FANOUT + FANOUT + 1, self.server.pages))
        links = [f"/page/{to}" for to in later]
        links.append(f"/page/{number // 2}")
        links += [
            f"/{kind}/{number}" for kind, each in (("moved", 17), ("gone", 23), ("private", 31)) if not number % each
        ]
        anchors = "\n".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
        self._answer(
            200, "text/html; charset=utf-8", f"<!doctype html><title>Page {number}</title><ul>\n{anchors}\n</ul>\n"
        )

    def _answer(self, status: int, content_type: str, text: str, **headers: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: a line for each page would hide what the crawl says."""


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description="A small web site to try streamcrawl on.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pages", type=int, default=3000, help="for each name of the site")
    parser.add_argument("--bind", default="127.0.0.1")
    given = parser.parse_args()
    Site(given.port, given.pages, given.bind).serve_forever()


if __name__ == "__main__":
    main()
