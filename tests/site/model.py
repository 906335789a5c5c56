"""What the site of the tests consists of: hosts, pages, links, redirects, and which of them misbehave.

Pure: everything follows from the `SiteSpec` and the URL, so the expected result of a crawl can be computed without
a server (`expected_pages`) and a server may be restarted at any time. Host 1 is 127.0.0.1, host 2 is 127.0.0.2, …, all
on one port.

Page `i` of host `h` is `/p/<i>`. Some pages, chosen by hash, are linked only through a redirect: `/r/<i>` on the same
host, or `/x/<h>/<i>` on another one. So the pages that end with status 200 are always all pages of all living hosts:
each page links to its children in a tree over its host's pages, page 0 also to page 0 of its children in a tree over
the living hosts, and the rest of its links is drawn from all pages of all hosts.
"""

from __future__ import annotations

import hashlib
import ipaddress
import struct
from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, Literal

FLAKY_FAILURES: Final = 2
"""Times that a flaky page answers 503 before it answers 200."""
CROSS_LINKS: Final = 0.15
"""Share of the drawn links that lead to any host rather than to their own."""

_WORDS: Final = (
    "a crawl that loses nothing repeats nothing and hammers nobody reads every page once keeps to the delay of each "
    "host and comes back to what failed later than it would like to "
)
_FILLER: Final = (_WORDS * 400).encode()


class Way(Enum):
    """How a page is linked."""

    DIRECT = "direct"
    WITHIN = "within"
    """Through a redirect on its own host."""
    ACROSS = "across"
    """Through a redirect on another host."""


@dataclass(frozen=True, slots=True)
class SiteSpec:
    """A whole site. Fractions are shares of the pages, 0 to 1, chosen by hash."""

    hosts: int = 1
    pages_per_host: int = 100
    links: int = 20
    """Links per page; more where the trees need more."""
    seed: int = 1
    flaky: float = 0.0
    """Pages that answer 503 twice and then 200."""
    redirect_within: float = 0.0
    redirect_across: float = 0.0
    slow: float = 0.0
    """Pages that take `slow_ms`."""
    slow_ms: int = 1000
    slow_hosts: tuple[int, ...] = ()
    """Hosts on which every page takes `slow_ms`."""
    latency_ms: int = 0
    """Of every other page."""
    robots: str = "allow"
    """`allow`; `none`, which answers 404; `disallow:<prefix>`; `status:<code>`."""
    dead_hosts: tuple[int, ...] = ()
    """Accept connections and never answer."""
    refusing_hosts: tuple[int, ...] = ()
    """Nobody listens."""
    page_bytes: tuple[int, int] = (2000, 10_000)
    """Least and greatest size of a page; a page with many links may be greater."""

    def __post_init__(self) -> None:
        if not 1 <= self.hosts < 2**24 or self.pages_per_host < 1:
            raise ValueError("a site has at least one host and one page, and at most as many hosts as 127/8")
        if 1 in (*self.dead_hosts, *self.refusing_hosts):
            raise ValueError("host 1 holds the seed: it cannot be dead or refusing")
        if self.robots not in ("allow", "none") and not self.robots.startswith(("disallow:/", "status:")):
            raise ValueError(f"robots={self.robots!r} is none of allow, none, disallow:<prefix>, status:<code>")

    @property
    def living_hosts(self) -> list[int]:
        """The hosts that answer, in order."""
        silent = {*self.dead_hosts, *self.refusing_hosts}
        return [host for host in range(1, self.hosts + 1) if host not in silent]


def address(host: int) -> str:
    """Return the address of a host by its number, from 1: 127.0.0.1, 127.0.0.2, …"""
    return str(ipaddress.IPv4Address((127 << 24) + host))


class Site:
    """A `SiteSpec` with the port it is served on."""

    def __init__(self, spec: SiteSpec, port: int) -> None:
        self.spec: Final = spec
        self.port: Final = port
        self._living: Final = spec.living_hosts
        self._place: Final = {host: place for place, host in enumerate(self._living)}
        self._origins: Final = ["", *(f"http://{address(host)}:{port}" for host in range(1, spec.hosts + 1))]
        self._has_redirects: Final = spec.redirect_within + spec.redirect_across > 0
        self._filler: Final = _FILLER * (1 + spec.page_bytes[1] // len(_FILLER))
        self.entry = lru_cache(maxsize=100_000)(self._entry)
        """Host and path of the URL by which other pages link to a page."""
        self.disallowed: Final = spec.robots.removeprefix("disallow:") if spec.robots.startswith("disallow:") else None
        """What robots.txt forbids: every tenth page links to a page under it, which is served to whoever asks."""

    def url(self, host: int, path: str) -> str:
        return self._origins[host] + path

    @property
    def seed_url(self) -> str:
        return self.url(1, "/p/0")

    def way(self, host: int, page: int) -> Way:
        """Return how a page is linked. The seed is always direct, so that a crawl begins with a page."""
        if (host, page) == (1, 0) or not self._has_redirects:
            return Way.DIRECT
        share = self._share("way", host, page)
        if share < self.spec.redirect_within:
            return Way.WITHIN
        if share < self.spec.redirect_within + self.spec.redirect_across and len(self._living) > 1:
            return Way.ACROSS
        return Way.DIRECT

    def _entry(self, host: int, page: int) -> tuple[int, str]:
        match self.way(host, page):
            case Way.WITHIN:
                return host, f"/r/{page}"
            case Way.ACROSS:
                # A living host other than its own: a redirect on a dead one would lose the page.
                others = [other for other in self._living if other != host]
                return others[(host + page) % len(others)], f"/x/{host}/{page}"
            case Way.DIRECT:
                return host, f"/p/{page}"

    def links(self, host: int, page: int) -> list[tuple[int, str]]:
        """Return host and path of each link of a page, in document order; some may be the same."""
        spec = self.spec
        targets = [(host, child) for child in (2 * page + 1, 2 * page + 2) if child < spec.pages_per_host]
        if page == 0:
            place = self._place.get(host, 0)
            children = (2 * place + 1, 2 * place + 2)
            targets += [(self._living[child], 0) for child in children if child < len(self._living)]
            if host == 1:
                targets += [(silent, 0) for silent in (*spec.dead_hosts, *spec.refusing_hosts)]
        drawn = max(0, spec.links - len(targets))
        numbers = self._numbers("links", host, page, count=3 * drawn)
        for at in range(drawn):
            chance, other, number = numbers[3 * at : 3 * at + 3]
            target = 1 + other % spec.hosts if chance < CROSS_LINKS * 2**32 else host
            targets.append((target, number % spec.pages_per_host))
        links = [self.entry(*target) for target in targets]
        if self.disallowed is not None and page % 10 == 0:
            links.append((host, f"{self.disallowed}{page}"))
        return links

    def is_flaky(self, host: int, page: int) -> bool:
        return self.spec.flaky > 0 and self._share("flaky", host, page) < self.spec.flaky

    def latency_ms(self, host: int, page: int) -> int:
        """Return how long a page takes, ms."""
        spec = self.spec
        if host in spec.slow_hosts or (spec.slow and self._share("slow", host, page) < spec.slow):
            return spec.slow_ms
        return spec.latency_ms

    def page_html(self, host: int, page: int) -> bytes:
        """Return a page: its title, its links with text between them, and filler up to its size."""
        least, greatest = self.spec.page_bytes
        size = least + self._numbers("size", host, page, count=1)[0] % (greatest - least + 1)
        title = f"Page {page} of host {host}"
        parts = [
            f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title></head><body><h1>{title}</h1>'
        ]
        for at, (target, path) in enumerate(self.links(host, page)):
            # Every spelling of a link that a crawler has to see through: absolute, from the root, with a fragment.
            where = path if target == host else self.url(target, path)
            parts.append(f'<p><a href="{where}{"#top" if at % 7 == 3 else ""}">Link {at}</a>')
        head = "\n".join(parts).encode()
        missing = max(0, size - len(head) - len(b"<p></body></html>"))
        return b"%b<p>%b</body></html>" % (head, self._filler[:missing])

    def robots_txt(self) -> tuple[int, bytes]:
        """Return status and body of /robots.txt."""
        robots = self.spec.robots
        if robots == "none":
            return 404, b"no robots.txt here"
        if robots.startswith("status:"):
            return int(robots.removeprefix("status:")), b""
        return 200, f"User-agent: *\nDisallow: {self.disallowed or ''}\n".encode()

    def expected_pages(self, *, scope: Literal["any", "host"] = "any") -> set[str]:
        """Return the URLs of the pages that a crawl from `seed_url` ends with at status 200.

        Follows links and redirects as a crawler does, but over the model. `scope` is as in the settings: `host` follows
        only what leads to the host of the page, or to the seed's.
        """
        seen: set[tuple[int, str]] = {(1, "/p/0")}
        waiting = deque(seen)
        pages: set[str] = set()

        def offer(found_on: int, target: tuple[int, str]) -> None:
            if target not in seen and (scope == "any" or target[0] in (found_on, 1)):
                seen.add(target)
                waiting.append(target)

        while waiting:
            host, path = waiting.popleft()
            if host not in self._place or (self.disallowed is not None and path.startswith(self.disallowed)):
                continue
            kind, *numbers = path.strip("/").split("/")
            if kind == "p":
                pages.add(self.url(host, path))
                for target in self.links(host, int(numbers[0])):
                    offer(host, target)
            else:
                offer(host, redirect_target(host, path))
        return pages

    def _numbers(self, purpose: str, host: int, page: int, *, count: int) -> tuple[int, ...]:
        """Return `count` evenly spread numbers below 2**32, always the same for the same arguments."""
        key = f"{self.spec.seed}:{purpose}:{host}:{page}".encode()
        return struct.unpack(f">{count}I", hashlib.shake_128(key).digest(4 * count))

    def _share(self, purpose: str, host: int, page: int) -> float:
        return self._numbers(purpose, host, page, count=1)[0] / 2**32


def redirect_target(host: int, path: str) -> tuple[int, str]:
    """Return host and path that `/r/<page>` or `/x/<host>/<page>` redirects to."""
    kind, *numbers = path.strip("/").split("/")
    return (host, f"/p/{numbers[0]}") if kind == "r" else (int(numbers[0]), f"/p/{numbers[1]}")
