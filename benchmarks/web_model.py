"""A web that is not there: what every URL of it answers, after how long, and where it links to.

Pure: all of it follows from the `WebSpec`, the URL and, where servers come and go, the second. So any number of
processes see the same web without a word between them, and what a crawl of it had to find can be told from what it
found (`reachable`). Never sleeps, never draws by chance. Start at `Web.reply`.

Host `n` is http://h<n>.example, host 0 the largest: sizes fall by a power law of the rank, between one page and
`host_pages_max`. Page `i` is /p/<i>; some links lead there by a redirect, /r/<i> on the same host or /x/<host>/<i> from
another one. Each page links to its children in a tree over its host's pages, page 0 also to hosts further down, so that
little is lost when one is dead; the other links are drawn, most of them from the host's own pages, the rest from all
pages there are, so that large hosts are linked more. Many are repeats, as on real sites.
"""

from __future__ import annotations

import hashlib
import re
import struct
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from math import exp
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HOSTS_LINKED: Final = 20
"""From page 0 of a host to ones that nothing else is sure to lead to: thousands are known after three steps."""
LINKS_SIGMA: Final = 0.7
LINKS_MOST: Final = 600
"""More than a script takes in one call, so that a few pages offer theirs ahead."""
ERROR_MS: Final = 50
OUTAGE_S: Final = 10
OUTAGES_WITHIN_S: Final = 60
_URL: Final = re.compile(r"http://h([0-9]+)\.example(?:/(robots\.txt)|/([pr])/([0-9]+)|/x/([0-9]+)/([0-9]+))\Z")
_ABOVE: Final = 2**32
_normal: Final = NormalDist()


class WebSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole web. Shares are 0 to 1, chosen by hash."""

    seed: int = 1
    hosts: int = 100
    pages: int = 1000
    """Of all hosts together, nearly: each host has one at least."""
    host_pages_max: int = 1_000_000
    exponent: float = 1.0
    """Of the power law: the n-th host has n to the power of minus this times as many pages as the first."""
    seeds: int = 10
    """Hosts that the crawl begins with."""
    links: int = 20
    """Of a page, in the mean."""
    cross_links: float = 0.15
    """Drawn links that lead to any host rather than to their own."""
    redirects: float = 0.01
    """Drawn links that lead by a redirect, every second by one of another host."""
    latency_ms: int = 0
    """The median; 0: everything answers at once."""
    latency_sigma: float = 0.7
    latency_max_ms: int = 60_000
    dead_hosts: float = 0.0
    """Hosts without an address."""
    missing: float = 0.0
    """Pages that answer 404, and link to nothing."""
    hanging: float = 0.0
    """Pages that never answer."""
    failing: float = 0.0
    """Answers that fail by chance, drawn anew each second: every second one with a 500, the others are cut off."""
    outages: float = 0.0
    """Hosts that answer 503 for some seconds of the first minute."""

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= self.hosts <= self.pages:
            raise ValueError("a web has as many hosts as seeds at least, and as many pages as hosts")
        if self.pages > self.hosts * self.host_pages_max:
            raise ValueError("so many pages do not fit into these hosts")


class Reply(NamedTuple):
    """What comes of one request."""

    latency_ms: float
    fate: Literal["answered", "no address", "silence", "cut off"]
    status: int = 0
    location: str | None = None
    links: tuple[str, ...] = ()


class Web:
    """A `WebSpec` worked out."""

    def __init__(self, spec: WebSpec) -> None:
        self.spec: Final = spec
        self.sizes: Final = sizes_of(spec)
        """Pages of each host."""
        self._ends: Final = list(accumulate(self.sizes))
        self._host_draws = lru_cache(maxsize=65_536)(self._draws_of_host)

    @property
    def seeds(self) -> list[str]:
        return [url_of(host, 0) for host in range(self.spec.seeds)]

    def reply(self, url: str, at_s: float) -> Reply:
        """Return what the web answers to a request that begins so many seconds after the crawl.

        Raises:
            ValueError: there is no such URL in any web of this kind.
        """
        spec = self.spec
        found = _URL.match(url)
        if found is None:
            raise ValueError(f"{url!r} is not of this web: a link was changed on its way")
        host = int(found[1])
        z_host, is_dead, outage_s = self._host_draws(host)
        if is_dead:
            return Reply(min(ERROR_MS, spec.latency_ms), "no address")
        draws = self._draws(url, count=3)
        latency_ms = self._latency_ms(z_host, draws[0])
        page = int(found[4] or found[6] or 0)
        is_first = page == 0
        if spec.hanging and draws[1] < spec.hanging * _ABOVE and not is_first:
            return Reply(spec.latency_max_ms, "silence")
        if outage_s <= at_s < outage_s + OUTAGE_S:
            return Reply(latency_ms, "answered", 503)
        if spec.failing:
            chance = self._draws(url, f"second {int(at_s)}", count=1)[0]
            if chance < spec.failing * _ABOVE:
                return Reply(latency_ms, "cut off") if chance % 2 else Reply(latency_ms, "answered", 500)
        if found[2]:
            return Reply(latency_ms, "answered", 404)
        if found[5]:
            return Reply(latency_ms, "answered", 302, url_of(int(found[5]), page))
        if found[3] == "r":
            return Reply(latency_ms, "answered", 302, url_of(host, page))
        if draws[2] < spec.missing * _ABOVE and not is_first:
            return Reply(latency_ms, "answered", 404)
        return Reply(latency_ms, "answered", 200, links=self.links(host, page))

    def links(self, host: int, page: int) -> tuple[str, ...]:
        """Return the links of a page in their order; some may be the same."""
        spec, size = self.spec, self.sizes[host]
        links = [url_of(host, child) for child in (2 * page + 1, 2 * page + 2) if child < size]
        if page == 0:
            first = spec.seeds + host * HOSTS_LINKED
            links += [url_of(other, 0) for other in range(first, min(first + HOSTS_LINKED, spec.hosts))]
        many = exp(LINKS_SIGMA * self._z(self._draws(host, page, count=1)[0]) - LINKS_SIGMA**2 / 2)
        drawn = max(0, min(LINKS_MOST, round(spec.links * many)) - len(links))
        draws = self._draws("links", host, page, count=3 * drawn)
        cross, redirect = spec.cross_links * _ABOVE, spec.redirects * _ABOVE
        for at in range(0, 3 * drawn, 3):
            where, which, how = draws[at : at + 3]
            if where < cross:
                place = which % self._ends[-1]
                other = bisect_right(self._ends, place)
                number = place - (self._ends[other - 1] if other else 0)
            else:
                other, number = host, which % size
            if how >= redirect:
                links.append(url_of(other, number))
            elif how % 2:
                links.append(f"http://h{other}.example/r/{number}")
            else:
                links.append(f"http://h{how % spec.hosts}.example/x/{other}/{number}")
        return tuple(links)

    def reachable(self, is_done: Callable[[str], bool], is_dead: Callable[[str], bool]) -> Reached:
        """Return what a crawl had to find, given how each page ended in it.

        Which pages can be reached depends on what was read: a page that died has shown no links. One that neither is
        done nor dead and does not lead to another host is missing.
        """
        known, missing, away = set(self.seeds), list[str](), set[str]()
        todo = list(known)

        def learn(urls: Iterable[str]) -> None:
            for url in urls:
                if url not in known:
                    known.add(url)
                    todo.append(url)

        while todo:
            url = todo.pop()
            found = _URL.match(url)
            assert found is not None
            if is_dead(url):
                continue
            if found[5]:
                away.add(url)
                learn([url_of(int(found[5]), int(found[6]))])
            elif not is_done(url):
                missing.append(url)
            elif self._draws(url_of(int(found[1]), int(found[4])), count=3)[2] >= self.spec.missing * _ABOVE or (
                found[4] == "0"
            ):
                learn(self.links(int(found[1]), int(found[4])))
        return Reached(known, away, missing)

    def _latency_ms(self, z_host: float, draw: int) -> float:
        spec = self.spec
        if not spec.latency_ms:
            return 0.0
        # Six parts of the host to eight of the page: the squares add up to one sigma.
        many = exp(spec.latency_sigma * (0.6 * z_host + 0.8 * self._z(draw)))
        return min(spec.latency_ms * many, spec.latency_max_ms)

    def _draws_of_host(self, host: int) -> tuple[float, bool, float]:
        """Return how slow a host is, whether it is dead, and when its outage begins (long past: never)."""
        z, dead, outage, begin = self._draws("host", host, count=4)
        is_dead = host > 0 and dead < self.spec.dead_hosts * _ABOVE
        outage_s = begin / _ABOVE * OUTAGES_WITHIN_S if outage < self.spec.outages * _ABOVE else float("-inf")
        return self._z(z), is_dead, outage_s

    def _draws(self, *what: object, count: int) -> tuple[int, ...]:
        text = f"{self.spec.seed} {' '.join(map(str, what))}"
        return struct.unpack(f"<{count}I", hashlib.shake_128(text.encode()).digest(4 * count))

    @staticmethod
    def _z(draw: int) -> float:
        return _normal.inv_cdf((draw + 0.5) / _ABOVE)


class Reached(NamedTuple):
    """What the links of a web lead to, from its seeds."""

    known: set[str]
    """All of it."""
    away: set[str]
    """Of these, those that lead to another host and have no record of their own."""
    missing: list[str]
    """Of these, those that have not ended."""


def url_of(host: int, page: int) -> str:
    return f"http://h{host}.example/p/{page}"


def sizes_of(spec: WebSpec) -> list[int]:
    """Return the pages of each host, the largest first; together `spec.pages`, but for what rounding leaves."""
    weights = [(rank + 1) ** -spec.exponent for rank in range(spec.hosts)]

    def at(scale: float) -> list[int]:
        return [max(1, min(spec.host_pages_max, int(scale * weight))) for weight in weights]

    low, high = 0.0, spec.pages / weights[-1]
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) <= spec.pages else (low, middle)
    return at(low)
