"""Does a crawl of real pages find exactly what is there?

Serves installed documentation (by default what is there of Debian's python3-doc, postgresql-doc and sqlite3-doc: some
2,500 pages written by people and many tools) by an ordinary web server, works out by reading the files alone which URLs
answer 200 when one follows every link from the index, crawls the same with `streamcrawl crawl`, and compares.

The traversal is independent on purpose: nothing of streamcrawl is imported, pages are read by html.parser and URLs
joined by urllib.parse, so that an error of the crawler's parser or URL rules cannot hide in the expectation. It follows
what the crawler promises to follow: a, area, frames, link rel=next/alternate/canonical, meta refresh, base; and not
what it promises to leave: rel=nofollow and pages whose meta robots say so.

    python -m benchmarks.docs_site                                    serve, crawl, compare; one JSON line
    python -m benchmarks.docs_site --root /usr/share/doc/python3-doc/html -- --processes 4
    python -m benchmarks.docs_site --serve --port 8000                only serve, until Ctrl-C
    python -m benchmarks.docs_site --port 8000 --jsonl pages.jsonl    compare a crawl that was made of the above

Exit code 0 when the sets are equal and nothing was repeated, else 1; the first differences go to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from benchmarks.nginx import claim_port, find_nginx, running, wait_until_listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DEFAULT_ROOTS: Final = (
    Path("/usr/share/doc/python3-doc/html"),
    Path("/usr/share/doc/postgresql-doc-15/html"),
    Path("/usr/share/doc/postgresql-doc-17/html"),
    Path("/usr/share/doc/sqlite3"),
)
"""Where Debian 12 and 13 put the three; sqlite3-doc installs into the folder of sqlite3."""

SHOWN_MAX: Final = 20
"""Differences written out; the numbers of all are in the JSON line."""

CRAWL_TIMEOUT_S: Final = 1800.0

# -- what is there: the files, read without the crawler ---------------------------------------------------------------

_HTML_SUFFIXES: Final = {".html", ".htm"}
_FOLLOWED_RELS: Final = {"next", "alternate", "canonical"}
_REFRESH: Final = re.compile(r"^\s*[\d.]*\s*[;,\s]\s*(?:url\s*=\s*)?['\"]?([^'\"]+)", re.IGNORECASE)

_PATH_SAFE: Final = "%/!$&'()*+,;=:@[]|\\^~-._"
"""What a WHATWG URL leaves as it is in a path, beside letters and digits; all else is percent-encoded."""
_QUERY_SAFE: Final = "%/!$&()*+,;=:@[]|\\^~-._?`{}"


class _Links(HTMLParser):
    """Collects what a page links to, as written."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.base: str | None = None
        self.is_nofollow = False
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values: dict[str, str] = {}
        for name, value in attributes:
            values.setdefault(name, value or "")  # The first of two equal attributes counts, as in HTML.
        rels = set(values.get("rel", "").lower().split())
        if tag == "base" and "href" in values:
            self.base = self.base if self.base is not None else values["href"]
        elif tag in ("a", "area", "link") and "href" in values:
            is_page = tag != "link" or (rels & _FOLLOWED_RELS and "stylesheet" not in rels)
            if is_page and "nofollow" not in rels:
                self.found.append(values["href"])
        elif tag in ("frame", "iframe") and "src" in values:
            self.found.append(values["src"])
        elif tag == "meta":
            content = values.get("content", "")
            if values.get("name", "").lower() == "robots":
                words = {word.strip() for word in content.lower().split(",")}
                self.is_nofollow = self.is_nofollow or bool(words & {"nofollow", "none"})
            elif values.get("http-equiv", "").lower() == "refresh" and (target := _REFRESH.match(content)):
                self.found.append(target[1])


def join(base: str, link: str) -> str | None:
    """Return the canonical absolute URL of a link, or None when it is not an http(s) URL."""
    try:
        text = re.sub(r"[\t\r\n]", "", link).strip(" \f\v\0")
        # A backslash before the query is a slash, as in every browser; sqlite3-doc has such a link.
        head, *rest = re.split(r"(?=[?#])", text, maxsplit=1)
        absolute = urldefrag(urljoin(base, head.replace("\\", "/") + "".join(rest))).url
        parts = urlsplit(absolute)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        path, query = quote(parts.path or "/", safe=_PATH_SAFE), quote(parts.query, safe=_QUERY_SAFE)
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc.lower()}{path}" + (f"?{query}" if query else "")


def links_of(page: Path, url: str) -> list[str]:
    """Return the canonical URLs that a page served at `url` links to and lets a crawler follow."""
    parser = _Links()
    parser.feed(page.read_bytes().decode("utf-8", "replace"))
    parser.close()
    if parser.is_nofollow:
        return []
    base = urljoin(url, parser.base) if parser.base is not None else url
    return [target for link in parser.found if (target := join(base, link)) is not None]


def file_of(root: Path, path: str) -> Path | str | None:
    """Return the file that a server answers a URL path with, the path it redirects to, or None for a 404 or 403."""
    target = root / unquote(path).lstrip("/")
    if target.is_dir():
        if not path.endswith("/"):
            return path + "/"
        target = target / "index.html"
    elif path.endswith("/"):
        return None
    return target if target.is_file() else None


def traverse(sites: Mapping[str, Path]) -> set[str]:
    """Return every URL that answers 200, in the end of its redirects, when all links are followed from each index.

    Args:
        sites: The folder served at each origin (`http://127.0.0.1:8000`); links between the origins are followed.
    """
    seeds = [origin + "/" for origin in sites]
    seen, queue, answering = set(seeds), deque(seeds), set[str]()
    while queue:
        url = queue.popleft()
        parts = urlsplit(url)
        root = sites[f"{parts.scheme}://{parts.netloc}"]
        found, final_url = file_of(root, parts.path), url
        if isinstance(found, str):
            final_url = f"{parts.scheme}://{parts.netloc}{found}"
            found = file_of(root, found)
        if not isinstance(found, Path):
            continue
        answering.add(url)
        if found.suffix.lower() not in _HTML_SUFFIXES:
            continue
        for link in links_of(found, final_url):
            target = urlsplit(link)
            if link not in seen and f"{target.scheme}://{target.netloc}" in sites:
                seen.add(link)
                queue.append(link)
    return answering


# -- the ordinary web server ------------------------------------------------------------------------------------------

_NGINX_SERVER: Final = """\
    server {{ listen {address}:{port}; root "{root}"; index index.html; access_log {log} short; }}
"""
_REQUEST: Final = re.compile(r'"GET (\S+) HTTP/[\d.]+" \d{3}')


def origin_of(position: int, port: int) -> str:
    """Return where the folder at this position of the list is served: each on an address of its own."""
    return f"http://127.0.0.{position + 1}:{port}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The standard library's server, logging like nginx, and like it without listings of folders."""

    protocol_version = "HTTP/1.1"
    log_path: Path

    def list_directory(self, path: Any) -> None:
        self.send_error(403)

    def log_message(self, format: str, *values: Any) -> None:
        with self.log_path.open("a") as log:
            log.write(format % values + "\n")


@contextlib.contextmanager
def served(roots: Sequence[Path], port: int, folder: Path) -> Iterator[str]:
    """Serve each folder at its origin, by nginx when there is one; give the server's name.

    `folder` takes the configuration and the logs: `access-<position>.log`, from which `requests_of` reads.
    """
    nginx = find_nginx()
    with contextlib.ExitStack() as stack:
        if nginx is not None:
            stack.enter_context(running(nginx, _servers_text(roots, port, folder), folder))
        else:
            for position, root in enumerate(roots):
                _start_http_server(root, f"127.0.0.{position + 1}", port, folder / f"access-{position}.log", stack)
        for position in range(len(roots)):
            wait_until_listening(f"127.0.0.{position + 1}", port, folder)
        yield "nginx" if nginx is not None else "http.server"


def _servers_text(roots: Sequence[Path], port: int, folder: Path) -> str:
    return "".join(
        _NGINX_SERVER.format(
            address=f"127.0.0.{position + 1}", port=port, root=root.resolve(), log=folder / f"access-{position}.log"
        )
        for position, root in enumerate(roots)
    )


def _start_http_server(root: Path, address: str, port: int, log: Path, stack: contextlib.ExitStack) -> None:
    handler = type("Handler", (_Handler,), {"log_path": log})
    log.touch()
    server = http.server.ThreadingHTTPServer((address, port), lambda *request: handler(*request, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, name=f"serve {address}")
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


def requests_of(folder: Path, sites: Sequence[str]) -> Counter[str]:
    """Return how often each URL was asked for, whatever the answer, from the server's own log."""
    counts: Counter[str] = Counter()
    for position, origin in enumerate(sites):
        text = (folder / f"access-{position}.log").read_text(errors="replace")
        counts.update(origin + path for path in _REQUEST.findall(text))
    return counts


# -- the crawl and the comparison -------------------------------------------------------------------------------------


def crawl(seeds: Sequence[str], output: Path, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run `streamcrawl crawl` on the seeds and return its exit code, wall time and CPU time with all its children."""
    command = Path(sys.executable).with_name("streamcrawl")
    if not command.exists():
        raise SystemExit(f"{command} is missing: run `make setup` first")
    began_s, before = time.monotonic(), os.times()
    finished = subprocess.run(
        [
            str(command), "crawl", *seeds, "--fresh", "--quiet", "--name", "docs-site", "--delay", "0",
            "--host-concurrency", "16", "-o", str(output), *arguments,
        ],
        cwd=folder,
        check=False,
        timeout=CRAWL_TIMEOUT_S,
    )  # fmt: skip
    after = os.times()
    return {
        "exit_code": finished.returncode,
        "wall_s": round(time.monotonic() - began_s, 2),
        "cpu_s": round(after.children_user + after.children_system - before.children_user - before.children_system, 2),
    }


def compare(expected: set[str], output: Path) -> dict[str, Any]:
    """Return how the records of a crawl differ from the expected URLs; the differences themselves go to stderr."""
    with output.open("rb") as lines:
        records = [json.loads(line) for line in lines]
    crawled = Counter(record["url"] for record in records if record["status"] == 200)
    missing, extra = expected - crawled.keys(), crawled.keys() - expected
    repeated = {url for url, count in crawled.items() if count > 1}
    for word, urls in (("missing", missing), ("extra", extra), ("repeated", repeated)):
        for url in sorted(urls)[:SHOWN_MAX]:
            print(f"{word}: {url}", file=sys.stderr)
    return {
        "pages": len(crawled),
        "expected_pages": len(expected),
        "missing_pages": len(missing),
        "extra_pages": len(extra),
        "repeated_records": sum(crawled[url] - 1 for url in repeated),
        "records_of_other_status": len(records) - crawled.total(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.docs_site", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, action="append", help="folder with an index.html; may be repeated")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) finds a free one")
    parser.add_argument("--traverse", action="store_true", help="only count what is there; neither serve nor crawl")
    parser.add_argument("--serve", action="store_true", help="only serve, until Ctrl-C")
    parser.add_argument("--jsonl", type=Path, help="compare this output of a crawl made earlier on the same --port")
    parser.add_argument("crawl_arguments", nargs="*", help="after --: further options for streamcrawl crawl")
    options = parser.parse_args()
    # An end by SIGTERM must stop the web server too; the default action would leave it behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    roots: list[Path] = options.root or [root for root in DEFAULT_ROOTS if (root / "index.html").exists()]
    if not roots or not all((root / "index.html").exists() for root in roots):
        raise SystemExit(
            "no documentation found: install python3-doc, postgresql-doc and sqlite3-doc, or name a --root"
        )
    if options.jsonl is not None and not options.port:
        raise SystemExit("--jsonl needs the --port on which that crawl found the pages")
    # Pages of an earlier crawl are compared by their URLs alone; nobody needs to be able to listen there.
    addresses = [f"127.0.0.{position + 1}" for position in range(len(roots))]
    port = options.port if options.jsonl is not None else claim_port(addresses, options.port)
    sites = {origin_of(position, port): root for position, root in enumerate(roots)}
    seeds = [origin + "/" for origin in sites]
    result: dict[str, Any] = {"benchmark": "docs_site", "hosts": len(sites)}
    with tempfile.TemporaryDirectory(prefix="docs-site-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if options.serve:
            result["server"] = stack.enter_context(served(roots, port, folder))
            print(json.dumps({"serving": seeds, "server": result["server"]}), flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
            return
        began_s = time.monotonic()
        expected = traverse(sites)
        result["traversal_wall_s"] = round(time.monotonic() - began_s, 2)
        if options.traverse:
            counts = Counter("{0.scheme}://{0.netloc}".format(urlsplit(url)) for url in expected)
            by_root = {str(root): counts[origin] for origin, root in sites.items()}
            result |= {"expected_pages": len(expected), "expected_pages_by_root": by_root}
            print(json.dumps(result))
            return
        output = options.jsonl or folder / "pages.jsonl"
        if options.jsonl is None:
            result["server"] = stack.enter_context(served(roots, port, folder))
            result |= crawl(seeds, output, options.crawl_arguments, folder)
            if result["exit_code"] or not output.exists():
                print(json.dumps(result))
                raise SystemExit(f"the crawl ended with exit code {result['exit_code']}; there is nothing to compare")
            answered = requests_of(folder, list(sites))
            result["repeated_requests"] = sum(count - 1 for count in answered.values())
        result |= compare(expected, output)
    print(json.dumps(result))
    if any(result.get(word) for word in ("missing_pages", "extra_pages", "repeated_records", "repeated_requests")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
