"""Which proxies are there, and by which of them is a host asked?

Pure. Start at `parse_proxies`, then `Proxies.order`. A host keeps its proxy, in every worker that has the same list,
because sites tie sessions to addresses; the list is the order of what comes next while that one fails. When a proxy
joins the list or leaves it, only the hosts that go to it move (rendezvous hashing).

A proxy's URL may hold a password, so no message has more of it than `Proxy.shown`. As with curl, `socks5://` resolves
names here and `socks5h://` leaves that to the proxy, as every HTTP proxy does.

Sources: RFC 9110 section 9.3.6 (CONNECT); RFC 1928 and RFC 1929 (SOCKS5); Thaler and Ravishankar, Using Name-Based
Mappings to Increase Hit Rates (1998).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from streamcrawl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamcrawl.settings import Settings

PROXIES_MAX: Final = 1000
TRIED_MAX: Final = 8
"""Proxies that one host may come to: the order of a thousand would be work for each host."""
CREDENTIAL_MAX_BYTES: Final = 255
"""RFC 1929 writes its length into one byte."""
_PROXY: Final = re.compile(
    r"(?P<scheme>http|socks5h?)://(?:(?P<user>[^:@/\s]*)(?::(?P<password>[^@/\s]*))?@)?"
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})/?",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"[A-Za-z0-9]+://")


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy. Its repr has no password."""

    scheme: str
    """`http`, `socks5` or `socks5h`."""
    hostname: str
    """Without brackets."""
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def is_socks(self) -> bool:
        return self.scheme != "http"

    @property
    def resolves_names(self) -> bool:
        """Whether the proxy looks names up, so that nobody here knows where a connection goes."""
        return self.scheme != "socks5"

    @property
    def shown(self) -> str:
        """The proxy for people: no user, no password."""
        return f"{self.scheme}://{f'[{self.hostname}]' if ':' in self.hostname else self.hostname}:{self.port}"


class Proxies:
    """The proxies of one machine, in the order in which each host tries them."""

    def __init__(self, proxies: Iterable[Proxy]) -> None:
        self._proxies = tuple(dict.fromkeys(proxies))
        self.order = lru_cache(maxsize=4096)(self._order)

    def __bool__(self) -> bool:
        return bool(self._proxies)

    @property
    def resolve_names(self) -> bool:
        """Whether there are some, and all of them look names up: then no name server hears of a host from here."""
        return bool(self._proxies) and all(proxy.resolves_names for proxy in self._proxies)

    def _order(self, hostname: str) -> tuple[Proxy, ...]:
        """Return the proxies that a host is asked by, the first while it works; at most TRIED_MAX."""

        def weight(proxy: Proxy) -> bytes:
            # With the user: many a provider sells addresses as names of users, all behind one port.
            name = f"{proxy.scheme} {proxy.user} {proxy.hostname} {proxy.port} {hostname}"
            return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()

        return tuple(nsmallest(TRIED_MAX, self._proxies, key=weight))


def parse_proxies(texts: Iterable[str]) -> Proxies:
    """Read the setting `proxies`.

    Raises:
        ConfigError: one is no proxy; the message has its place and no password.
    """
    proxies = [_parse(place, text) for place, text in enumerate(texts, 1)]
    if len(proxies) > PROXIES_MAX:
        raise ConfigError(f"{len(proxies)} proxies are too many: give at most {PROXIES_MAX}")
    return Proxies(proxies)


def check_proxied(settings: Settings) -> None:
    """Raise ConfigError when the crawl goes by proxies and this machine has none."""
    if settings.proxied and not settings.proxies:
        raise ConfigError(
            f"crawl {settings.name!r} goes by proxies, which are not kept: give --proxy again, or STREAMCRAWL_PROXIES; "
            f"to let it go out directly: streamcrawl settings set {settings.name} proxied=no"
        )


def without_password(text: str) -> str:
    """Return the URL of a proxy as it may be shown, whatever is wrong with it: `***` for user and password."""
    head, at, rest = text.rpartition("@")
    scheme = _SCHEME.match(head)
    return f"{scheme[0] if scheme else ''}***@{rest}" if at else text


def _parse(place: int, text: str) -> Proxy:
    match = _PROXY.fullmatch(text.strip())
    if match is None or not 0 < int(match["port"]) < 65_536:
        raise ConfigError(
            f"proxy {place} will not do: write http://HOST:PORT, socks5://HOST:PORT or socks5h://HOST:PORT, with "
            "USER:PASSWORD@ before the host where one is needed"
        )
    user, password = unquote(match["user"] or ""), unquote(match["password"] or "")
    for part in (user, password):
        if not (part.isascii() and (part.isprintable() or not part)) or len(part) > CREDENTIAL_MAX_BYTES:
            raise ConfigError(f"proxy {place}: user and password must be at most 255 printable ASCII characters each")
    hostname = match["host"].lower().removeprefix("[").removesuffix("]")
    return Proxy(match["scheme"].lower(), hostname, int(match["port"]), user, password)
