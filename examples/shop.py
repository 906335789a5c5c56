"""A small shop to crawl: pages of a catalogue, each item with a price. `python -m examples.shop` serves it."""

from __future__ import annotations

from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType

ITEMS: Final = 30
ITEMS_PER_PAGE: Final = 6


def price_of(item: int, day: int) -> float:
    """Return what an item costs on a day: every fifth goes up with each."""
    return round(9.99 + item + (0.5 * day if item % 5 == 0 else 0.0), 2)


class Shop:
    """Serves the shop from a thread as long as its block runs."""

    def __init__(self, day: int = 1) -> None:
        shop = self
        self.day = day
        """Prices are those of this day."""

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = shop.page(self.path)
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def page(self, path: str) -> bytes:
        """Return a page of the catalogue, or of an item; nothing for any other path."""
        kind, _, text = path.strip("/").partition("/")
        number = int(text) if text.isdecimal() else 0
        if kind in ("", "page"):
            first = number * ITEMS_PER_PAGE
            rows = [f'<a class="item" href="/item/{n}">item {n}</a>' for n in range(first, first + ITEMS_PER_PAGE)]
            if first + ITEMS_PER_PAGE < ITEMS:
                rows.append(f'<a class="next" href="/page/{number + 1}">more</a>')
            return "<title>The shop</title>{}".format("<br>".join(rows)).encode()
        if kind == "item" and text.isdecimal() and number < ITEMS:
            price = f'<p class="price">€ {price_of(number, self.day):.2f}</p>'
            return f"<title>Item {number}</title><h1>Item {number}</h1>{price}".encode()
        return b""

    def wait(self) -> None:
        """Serve until this process is ended."""
        self._thread.join()

    def __enter__(self) -> Shop:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


if __name__ == "__main__":
    with Shop() as shop:
        print(shop.url, flush=True)
        with suppress(KeyboardInterrupt):
            shop.wait()
