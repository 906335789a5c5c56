"""Which cookies does an answer set, and which go with a request?

Pure. Start at `jar_name`, then `Jar`. A crawl keeps either a jar for each host and port, whose cookies go back there
and nowhere else (`host`), or one for each registrable domain, which sends them where a browser would (`crawl`). The
store has the jars (cookies.lua), so all workers are one visitor; no host of one jar ever sees a cookie of another.

Values may be sessions of somebody: no message of this module has one, and `Cookie` does not show its value.

Sources: RFC 6265 and its revision (draft-ietf-httpbis-rfc6265bis-22): sections 5.1 (matching), 5.6 (the header), 5.7
(what is kept) and 5.8 (what is sent). Header lines are cut by the algorithm written out there: http.cookies ends at the
first character it does not like, keeps one of several cookies of a name, and neither it nor aiohttp knows public
suffixes. SameSite has no meaning where nobody clicks; what scripts may read (HttpOnly) has none here either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from streamcrawl.rules.addresses import literal_of
from streamcrawl.rules.urls import domain_of, hostname_of, is_public_suffix, split_url, without_scheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SET_MAX: Final = 50
"""Set-Cookie lines of one answer that are read."""
PAIR_MAX_BYTES: Final = 4096
"""RFC 6265bis section 5.6: a longer name and value are ignored."""
ATTRIBUTE_MAX_BYTES: Final = 1024
HEADER_MAX_BYTES: Final = 8000
"""Of the Cookie line: servers refuse requests over 8 KiB; what does not fit stays in the jar."""
AGE_MAX_MS: Final = 400 * 86_400_000
"""RFC 6265bis section 5.5."""
SESSION: Final = 0
"""How long a cookie lasts that names no end: as long as the crawl uses it."""
GONE: Final = -1

_CONTROL: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SECONDS: Final = re.compile("-?[0-9]+")
_TOKENS: Final = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])")
_DAY: Final = re.compile(r"([0-9]{1,2})(?![0-9])")
_YEAR: Final = re.compile(r"([0-9]{2,4})(?![0-9])")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WS: Final = " \t"


@dataclass(frozen=True, slots=True)
class Cookie:
    """One cookie, without its end."""

    name: str
    value: str = field(repr=False)
    domain: str
    """Host or domain, in lower case, without a dot in front."""
    path: str
    is_host_only: bool = True
    is_secure: bool = False

    @property
    def key(self) -> str:
        """What a later cookie must have in common to replace it; none of the three can hold a semicolon."""
        return f"{self.name};{self.domain};{self.path}"

    @property
    def flags(self) -> str:
        return ("" if self.is_host_only else "d") + ("s" if self.is_secure else "")

    def goes_to(self, hostname: str, path: str, *, is_secure: bool) -> bool:
        """Return whether it is sent with a request (RFC 6265bis section 5.8.3)."""
        is_there = hostname == self.domain or (not self.is_host_only and _is_below(hostname, self.domain))
        return is_there and (is_secure or not self.is_secure) and _is_path_below(path, self.path)


def jar_name(host_key: str, kind: str) -> str:
    """Return the jar of a host for a crawl whose cookies are kept per `host` or per `crawl`."""
    if kind == "host":
        return f"host:{without_scheme(host_key)}"
    return f"site:{domain_of(host_key)}"


class Jar:
    """The cookies that hosts of one jar have set, as a task sees them from its first request to its last."""

    def __init__(self, stored: Sequence[str | int] = (), *, kind: str) -> None:
        """Hold what the store gave back: key, flags, value, ms left or 0, …; what cannot be read is left out."""
        self.kind: Final = kind
        """`host` or `crawl`."""
        self._cookies: dict[str, tuple[Cookie, int]] = {}
        for at in range(0, len(stored) - 3, 4):
            key, flags, value, left_ms = stored[at : at + 4]
            name, _, place = str(key).partition(";")
            domain, semicolon, path = place.partition(";")
            if semicolon:
                cookie = Cookie(name, str(value), domain, path, "d" not in str(flags), "s" in str(flags))
                self._cookies[cookie.key] = cookie, int(left_ms)

    def __len__(self) -> int:
        return len(self._cookies)

    def header(self, url: str, given: str | None = None) -> str | None:
        """Return the Cookie line of a request to a canonical URL; None for none.

        Args:
            given: A line that the user gives that host. A cookie of the jar replaces one of its name: the site set it
                later, and may have done so because of it.
        """
        host_key, rest = split_url(url)
        hostname, path = hostname_of(host_key), rest.partition("?")[0]
        is_secure = url.startswith("https:")
        fitting = [
            cookie for cookie, _ in self._cookies.values() if cookie.goes_to(hostname, path, is_secure=is_secure)
        ]
        fitting.sort(key=lambda cookie: -len(cookie.path))  # stable: then in the order in which they were set
        names = {cookie.name for cookie in fitting}
        pairs = [
            pair.strip()
            for pair in (given or "").split(";")
            if pair.strip() and pair.partition("=")[0].strip() not in names
        ]
        length = sum(len(pair) + 2 for pair in pairs)
        for cookie in fitting:
            pair = f"{cookie.name}={cookie.value}"
            length += len(pair.encode()) + 2
            if length > HEADER_MAX_BYTES:
                break
            pairs.append(pair)
        return "; ".join(pairs) or None

    def take(self, lines: Iterable[str], url: str, now_ms: int) -> list[str | int]:
        """Take in what an answer from a canonical URL sets; return the changes that the store has to know, flat.

        One that is there already, with about the same end, is no change: most sites repeat theirs with every page.
        """
        changes: list[str | int] = []
        for line in list(lines)[:SET_MAX]:
            parsed = parse_set_cookie(line, url, now_ms, is_of_host=self.kind == "host")
            if parsed is None:
                continue
            cookie, lasts_ms = parsed
            if url.startswith("http:") and self._has_secure(cookie):
                continue
            before, left_ms = self._cookies.get(cookie.key, (None, GONE))
            if lasts_ms == GONE:
                if before is None:
                    continue
                del self._cookies[cookie.key]
            elif before == cookie and abs(left_ms - lasts_ms) <= lasts_ms // 8:
                continue
            else:
                self._cookies[cookie.key] = cookie, lasts_ms
            changes += (cookie.key, cookie.flags, cookie.value, lasts_ms)
        return changes

    def _has_secure(self, new: Cookie) -> bool:
        """Return whether a cookie that came without TLS would stand in for one that only TLS may set (section 5.7)."""
        return any(
            cookie.is_secure
            and cookie.name == new.name
            and (_is_below(cookie.domain, new.domain) or _is_below(new.domain, cookie.domain))
            and _is_path_below(new.path, cookie.path)
            for cookie, _ in self._cookies.values()
        )


def parse_set_cookie(line: str, url: str, now_ms: int, *, is_of_host: bool = False) -> tuple[Cookie, int] | None:
    """Return the cookie of a Set-Cookie line and how long it lasts, ms (SESSION, or GONE when it is to go).

    None when the line sets none, or none that this host may set.

    Args:
        url: Canonical; the answer came from it.
        now_ms: Time of the answer, ms since the epoch.
        is_of_host: Also a cookie for a whole domain is for this host alone.
    """
    if _CONTROL.search(line) or _SURROGATE.search(line):
        return None
    pair, _, rest = line.partition(";")
    name, equals, value = pair.partition("=")
    name, value = name.strip(_WS), value.strip(_WS)
    # A cookie without a name is one that old servers made by mistake; browsers send it as a value alone.
    if not equals or not name or len(name.encode()) + len(value.encode()) > PAIR_MAX_BYTES:
        return None
    attributes: dict[str, str] = {}
    for part in rest.split(";"):
        key, _, text = part.partition("=")
        if len(text) <= ATTRIBUTE_MAX_BYTES:
            attributes[key.strip(_WS).lower()] = text.strip(_WS)
    host_key, rest = split_url(url)
    hostname, request_path = hostname_of(host_key), rest.partition("?")[0]
    is_secure = "secure" in attributes
    if is_secure and not url.startswith("https:"):
        return None
    domain = attributes.get("domain", "").lower().removeprefix(".")
    if domain and not _is_below(hostname, domain):
        return None
    if domain and (literal_of(hostname) or is_public_suffix(domain)):
        # Others are at home below such a name: its cookies are for the host that has the name itself, if there is one.
        if domain != hostname:
            return None
        domain = ""
    path = attributes.get("path", "")
    if not path.startswith("/"):
        path = request_path.rpartition("/")[0] or "/"
    folded = name.lower()
    if folded.startswith("__secure-") and not is_secure:
        return None
    if folded.startswith("__host-") and not (is_secure and not domain and attributes.get("path") == "/"):
        return None
    if is_of_host:
        domain = ""
    cookie = Cookie(name, value, domain or hostname, path, not domain, is_secure)
    return cookie, _lasts_ms(attributes, now_ms)


def _lasts_ms(attributes: dict[str, str], now_ms: int) -> int:
    age = attributes.get("max-age", "")
    if _SECONDS.fullmatch(age):
        digits = age.lstrip("0")
        if age.startswith("-") or not digits:
            return GONE
        return min(AGE_MAX_MS, int(digits[:12]) * 1000) if len(digits) <= 12 else AGE_MAX_MS
    when_ms = cookie_date_ms(attributes.get("expires", ""))
    if when_ms is None:
        return SESSION
    return GONE if when_ms <= now_ms else min(AGE_MAX_MS, when_ms - now_ms)


def cookie_date_ms(text: str) -> int | None:
    """Return the time of an Expires attribute, ms since the epoch; None when it is none (RFC 6265bis section 5.1.1)."""
    clock: tuple[int, int, int] | None = None
    day = month = year = None
    for token in _TOKENS.findall(text[:ATTRIBUTE_MAX_BYTES]):
        if clock is None and (match := _CLOCK.match(token)):
            clock = int(match[1]), int(match[2]), int(match[3])
        elif day is None and (match := _DAY.match(token)):
            day = int(match[1])
        elif month is None and token[:3].lower() in _MONTHS:
            month = _MONTHS.index(token[:3].lower()) + 1
        elif year is None and (match := _YEAR.match(token)):
            year = int(match[1])
    if clock is None or day is None or month is None or year is None:
        return None
    if year <= 99:
        year += 1900 if year >= 70 else 2000
    try:
        when = datetime(year, month, day, *clock, tzinfo=UTC)
    except ValueError:
        return None
    return int(when.timestamp()) * 1000 if year >= 1601 else None


def _is_below(hostname: str, domain: str) -> bool:
    """Return whether a host is the domain or below it (section 5.1.3); an address is below nothing."""
    return hostname == domain or (hostname.endswith("." + domain) and not literal_of(hostname))


def _is_path_below(path: str, folder: str) -> bool:
    """Section 5.1.4."""
    return path == folder or (path.startswith(folder) and (folder.endswith("/") or path[len(folder)] == "/"))
