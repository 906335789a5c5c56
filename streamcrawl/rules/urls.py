"""What does a URL mean, and when are two of them the same page?

Pure: no network, no names resolved. Start at `canonical_url`: every URL that enters the system passes it once, and
everything after it (`split_url`, `fingerprint`, scope, robots) takes canonical URLs only and cuts them by plain string
operations. Parsing and joining are those of the WHATWG URL Standard (by the `ada` library), because links are written
for browsers; all 888 cases of web-platform-tests come out as expected (benchmarks/conformance/urls.py). yarl does not
read them so, and aiohttp must be handed `yarl.URL(url, encoded=True)`: else it quotes again, and asks for another page.

Beyond that standard a canonical URL has no fragment, no empty query (`/a?` is `/a`) and no user name or password: a
link that carries credentials would otherwise put them into every record and log. What servers may tell apart is left
alone: the order of parameters, upper and lower case in the path, `%7E` and `~`, a trailing slash.

A crawl may ask for more: `Canonicalizer`, made from its settings, takes parameters and session ids out and sorts
queries. It is applied where a link, a seed or a redirect's target becomes a task and nowhere else, because the URL of a
task is what `seen` knows and what is sent.

Sources: https://url.spec.whatwg.org; https://publicsuffix.org/list/ (registrable domains).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import can_ada
from publicsuffixlist import PublicSuffixList

if TYPE_CHECKING:
    from streamcrawl.settings import Settings

_SCHEMES: Final = ("http://", "https://")
_AUTHORITY_START: Final = len("https://")
"""From here the first slash ends the authority, for `http://` too: a host has at least one character."""
_CREDENTIALS: Final = re.compile(r"(^(?!mailto:)|//)[^/?#\s]*@")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_AUTHORITY: Final = re.compile(r"[\x00-\x20]*(?:[Hh][Tt][Tt][Pp][Ss]?:)?[/\\]*([^/\\?#]*)")
_PUNYCODE: Final = re.compile("xn--", re.IGNORECASE)
_UINT64_MASK: Final = (1 << 64) - 1

TRACKING: Final = (
    "utm_*", "mtm_*", "pk_campaign", "pk_kwd", "pk_source", "pk_medium", "piwik_campaign", "piwik_kwd",
    "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "srsltid", "_ga", "_gl",
    "fbclid", "msclkid", "twclid", "ttclid", "igshid", "igsh", "li_fat_id", "epik", "yclid", "ysclid", "_openstat",
    "mc_cid", "mc_eid", "mkt_tok", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking",
    "oly_anon_id", "oly_enc_id", "vero_conv", "vero_id", "wickedid", "ml_subscriber", "ml_subscriber_hash",
    "rb_clickid", "_kx", "s_kwcid", "ef_id",
)  # fmt: skip
"""What `tracking` stands for: parameters that say where a visitor came from and never what a page is. Those that
browsers take out of links (Firefox's query stripping, Brave), and the campaign names of Google and Matomo."""
SESSIONS: Final = ("jsessionid", "phpsessid", "aspsessionid*", "sessid", "sessionid", "session_id", "oscsid", "zenid",
                   "cfid", "cftoken")  # fmt: skip
"""What `sessions` stands for in a query, and behind a `;` in a path."""
SESSION_IF_LONG: Final = ("sid", "s", "session")
"""The same, but only with a value of the 22 letters and digits or more that PHP's shortest session id has: a shop's
`sid=17` is a page."""
_SESSION_VALUE: Final = re.compile(r"(?=[^&]*[0-9])[0-9A-Za-z,_-]{22,}")
_PATH_SESSION: Final = re.compile(r";(?:jsessionid|phpsessid|sessionid|sid)=[^;/]*", re.IGNORECASE)
"""The parameter of a path segment by which Java's servlets, and others after them, pass a session without cookies."""
_ASP_SESSION: Final = re.compile(r"/\((?:[ASF]\([0-9A-Za-z_-]{20,}\))+\)(?=/)")
"""ASP.NET without cookies: `/(S(lit3py55t21z5v55vlm25s55))/page.aspx`."""


@lru_cache(maxsize=256)
def _parsed_base(base: str) -> can_ada.URL:
    """Parse a base once for all the links of its page. Never hand the result out: it can be changed in place."""
    return can_ada.parse(base)


def canonical_url(text: str, base: str | None = None) -> str | None:
    """Return the canonical absolute URL of a link, in ASCII; None when it is none or not http(s).

    Args:
        text: As written in the page: relative or absolute, with any characters, white space around it included.
        base: Absolute URL against which a relative `text` is read; without it `text` must be absolute.
    """
    try:
        parsed = can_ada.parse(text) if base is None else _parsed_base(base) + text
    except ValueError:
        return _with_odd_labels(text, base)
    except TypeError:
        # A lone surrogate cannot be handed to the parser as UTF-8; the standard reads it as U+FFFD.
        mended = _SURROGATES.sub("\ufffd", text)
        return None if mended == text else canonical_url(mended, base)
    url = parsed.href
    if not url.startswith(_SCHEMES):
        return None
    # In a serialized URL `#` and `@` are escaped everywhere but as these delimiters, and `?` everywhere but in a query.
    fragment = url.find("#")
    if fragment >= 0:
        url = url[:fragment]
    if url[-1] == "?" and url.find("?") == len(url) - 1:
        url = url[:-1]
    if "@" in url:
        slash = url.find("/", _AUTHORITY_START)
        at = url.rfind("@", 0, slash)
        if at >= 0:
            url = url[: url.index("//") + 2] + url[at + 1 :]
    return url


def _with_odd_labels(text: str, base: str | None) -> str | None:
    """Return what `canonical_url` does of a URL that could not be parsed, if only for a label such as `xn--pokxncvks`.

    The standard takes a domain that is all ASCII as it is, also where what follows `xn--` decodes to nothing (step 5 of
    "domain to ASCII", of 2025); can-ada 3.0.0 is older. So the label is parsed under another name.
    """
    found = _AUTHORITY.match(text)
    if found is None or not found[1].isascii() or "%" in found[1] or not _PUNYCODE.search(found[1]):
        return None
    name = "xq"
    while name in text.lower():
        name += "q"
    start, end = found.span(1)
    url = canonical_url(f"{text[:start]}{_PUNYCODE.sub(name, text[start:end])}{text[end:]}", base)
    return None if url is None else url.replace(name, "xn--")


class Canonicalizer:
    """Gives a canonical URL the form by which one crawl knows it; the same in every process with the same settings.

    With default settings that is the URL itself. Names of parameters are compared without regard to case and escapes
    (`PHPSESSID` and `phpsessid` are both written); what stays of a query stays as it is written. What is given back is
    canonical, and given in again comes back the same.
    """

    def __init__(self, drop_params: tuple[str, ...] = (), *, is_sorted: bool = False) -> None:
        names = {name.lower() for name in drop_params}
        self._drops_sessions = "sessions" in names
        if "tracking" in names:
            names.update(TRACKING)
        if self._drops_sessions:
            names.update(SESSIONS)
        names -= {"tracking", "sessions"}
        self._names = frozenset(name for name in names if not name.endswith("*"))
        self._starts = tuple(sorted(name[:-1] for name in names if name.endswith("*")))
        self._is_sorted = is_sorted
        self.is_plain: Final = not (drop_params or is_sorted)
        """Every URL is given back as it is."""

    @classmethod
    def from_settings(cls, settings: Settings) -> Canonicalizer:
        return cls(settings.drop_params, is_sorted=settings.sort_query)

    def __call__(self, url: str) -> str:
        """Return the crawl's form of a canonical URL."""
        if self.is_plain:
            return url
        path, mark, query = url.partition("?")
        if self._drops_sessions:
            path = self._without_path_session(path)
        if not mark:
            return path
        pieces = query.split("&")
        if self._names or self._starts:
            pieces = [piece for piece in pieces if not self._is_dropped(piece)]
        if self._is_sorted:
            # By name alone, and stable: a server reads the order of two values of one name.
            pieces = sorted(filter(None, pieces), key=lambda piece: piece.partition("=")[0])
        query = "&".join(pieces)
        return f"{path}?{query}" if query else path

    def _is_dropped(self, piece: str) -> bool:
        name, _, value = piece.partition("=")
        if "%" in name:
            name = unquote(name)
        name = name.lower()
        if name in self._names or (self._starts and name.startswith(self._starts)):
            return True
        return self._drops_sessions and name in SESSION_IF_LONG and _SESSION_VALUE.fullmatch(value) is not None

    def _without_path_session(self, path: str) -> str:
        host, cut = split_url(path)
        while (shorter := _ASP_SESSION.sub("", _PATH_SESSION.sub("", cut))) != cut:
            # Parsed again: what is left of `/..;jsessionid=1/` are dots, which a canonical path does not hold.
            parsed = canonical_url(host + shorter)
            if parsed is None or len(parsed) >= len(host + cut):
                break
            cut = split_url(parsed)[1]
        return host + cut


def split_url(url: str) -> tuple[str, str]:
    """Return (host key, path) of a canonical URL: `https://example.org:8443` and the rest from the slash on."""
    slash = url.find("/", _AUTHORITY_START)
    return url[:slash], url[slash:]


def fingerprint(url: str) -> int:
    """Return the signed 64-bit hash of a canonical URL, by which it is known as seen (an intset holds int64)."""
    return int.from_bytes(blake2b(url.encode("ascii"), digest_size=8).digest(), "big", signed=True)


def fingerprint_hex(fp: int) -> str:
    """Return a fingerprint as the 16 hex digits that records carry."""
    return f"{fp & _UINT64_MASK:016x}"


def without_credentials(text: str) -> str:
    """Return text that should have been a URL as a message may show it: user names and passwords are left out."""
    return _CREDENTIALS.sub(r"\1***@", text)


def without_scheme(url: str) -> str:
    """Return a canonical URL or a host key without `http://` or `https://`."""
    return url[url.index("//") + 2 :]


def hostname_of(host_key: str) -> str:
    """Return the host name of a host key (with or without its scheme), without the port; IPv6 keeps its brackets."""
    authority = host_key.rpartition("//")[2]
    if authority.endswith("]"):
        return authority
    return authority.rpartition(":")[0] or authority


@lru_cache(maxsize=1)
def _public_suffixes() -> PublicSuffixList:
    """Read the bundled list when it is first needed: it costs tens of milliseconds, and most crawls never ask."""
    return PublicSuffixList(accept_unknown=False)


@lru_cache(maxsize=65_536)
def registrable_domain(hostname: str) -> str:
    """Return the domain somebody registered, `example.co.uk` for `www.shop.example.co.uk`.

    IP addresses, public suffixes themselves and names under a suffix that is not on the list (`localhost`,
    `wiki.corp`) are returned as they are. The list's private part counts: `a.github.io` and `b.github.io` differ.
    """
    if hostname.endswith("]") or hostname.rpartition(".")[2].isdecimal():
        return hostname  # an address: its parts are no labels
    return _public_suffixes().privatesuffix(hostname) or hostname


def domain_of(host_key: str) -> str:
    """Return the registrable domain of a host key (with or without its scheme)."""
    return registrable_domain(hostname_of(host_key))


def is_public_suffix(hostname: str) -> bool:
    """Return whether strangers register names below it: `com`, `co.uk`, `github.io`, and any name without a dot."""
    return "." not in hostname or _public_suffixes().is_public(hostname)
