"""Real pages as a closed site: a folder of HTML that people and many tools wrote, without what leads out of it.

Crawlers differ in which links they follow and what they do with broken ones. So that all of them fetch the same pages,
every link is disarmed (`href` becomes `data-href`) unless it leads to a page of the folder that can be reached from
`index.html` by `<a href>` alone; the rest of a page stays as it is, byte for byte. nginx serves it (nginx.py).

Start at `RealPages.read`, which has what `SiteSpec` has for the server. The links are found by html.parser.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUFFIXES: Final = (".html", ".htm")
_PLAIN_PATH: Final = re.compile(r"/[\w./~-]*", re.ASCII)
"""Nothing that two crawlers could write differently."""
_LINK: Final = re.compile(
    rb"""(<(?:a|area|link|iframe|frame)\b[^>]*?\s)(href|src)(\s*=\s*)("[^"]*"|'[^']*'|[^\s>"']+)""", re.IGNORECASE
)
_FORBIDDEN: Final = re.compile(rb"""(<(?:a|meta|base)\b[^>]*?\s)(rel|name|href)(\s*=\s*["']?)(nofollow|robots)""", re.I)


class _Anchors(HTMLParser):
    """Collects the href of each `<a>`, as written."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.has_base = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.has_base = self.has_base or tag == "base"
        if tag == "a":
            # The first of two equal attributes counts, as in HTML.
            self.found += [value for name, value in attributes if name == "href" and value is not None][:1]


def _target(path: str, href: str) -> str | None:
    """Return the path that a link on a page leads to; None when it leads out, or has a form that we leave out."""
    try:
        parts = urlsplit(urljoin(f"http://site{path}", href.strip()))
    except ValueError:
        return None
    is_ours = (parts.scheme, parts.netloc, parts.query) == ("http", "site", "") and _PLAIN_PATH.fullmatch(parts.path)
    return parts.path if is_ours else None


@dataclass(frozen=True)
class RealPages:
    """The pages of a folder, on one host. Page 0 is its `index.html`, at the root."""

    paths: tuple[str, ...]
    contents: tuple[bytes, ...]
    links: int
    """On a page, the mean of distinct ones, rounded."""
    hosts: int = 1
    latency_ms: int = 0

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return what can be reached from the folder's `index.html`.

        Raises:
            ValueError: it has none, or no page leads on from there.
        """
        if not (folder / "index.html").is_file():
            raise ValueError(f"{folder} has no index.html")
        texts: dict[str, bytes] = {}
        linked: dict[str, list[str]] = {}
        queue = deque(["/"])
        while queue:
            path = queue.popleft()
            if path in texts:
                continue
            file = folder / (path[1:] or "index.html")
            if (path != "/" and not path.endswith(_SUFFIXES)) or not file.is_file():
                continue
            texts[path] = file.read_bytes()
            anchors = _Anchors()
            anchors.feed(texts[path].decode("utf-8", "replace"))
            anchors.close()
            # Where a <base> says what links are relative to, all are disarmed.
            found = [] if anchors.has_base else anchors.found
            linked[path] = [target for href in found if (target := _target(path, href)) is not None]
            queue.extend(linked[path])
        if len(texts) < 2:
            raise ValueError(f"no page is linked from {folder / 'index.html'}")
        known = {path: [target for target in dict.fromkeys(linked[path]) if target in texts] for path in texts}
        return cls(
            paths=tuple(texts),
            contents=tuple(_closed(path, text, frozenset(known[path])) for path, text in texts.items()),
            links=round(sum(map(len, known.values())) / len(known)),
        )

    @property
    def pages(self) -> int:
        return len(self.paths)

    def address(self, host: int) -> str:
        return f"127.0.0.{host + 1}"

    def path(self, page: int) -> str:
        return self.paths[page]

    def url(self, page: int, port: int) -> str:
        return f"http://{self.address(0)}:{port}{self.path(page)}"

    def bodies(self, port: int) -> Iterator[bytes]:
        """Yield the HTML of every page, in the order of their numbers; it names no port."""
        yield from self.contents


def _closed(path: str, text: bytes, known: frozenset[str]) -> bytes:
    """Return a page of which only links to known pages are left, and which forbids none of them to be followed."""

    def replace(match: re.Match[bytes]) -> bytes:
        before, name, equals, value = match.groups()
        target = _target(path, value.strip(b"\"'").decode("utf-8", "replace"))
        return match[0] if target in known else before + b"data-" + name + equals + value

    return _FORBIDDEN.sub(rb"\1data-\2\3\4", _LINK.sub(replace, text))
