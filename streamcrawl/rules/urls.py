"""What does a URL mean, and when are two of them the same page?

Pure: no network, no names resolved. Start at `canonical_url`: every URL that enters the system passes it once, and
everything after it (`split_url`, `fingerprint`, scope, robots) takes canonical URLs only and cuts them by plain string
operations. Parsing and joining are those of the WHATWG URL Standard (by the `ada` library), because links are written
for browsers: can-ada 3.0.0 gives the expected result in all 202 cases of web-platform-tests with an http(s) base. yarl
does not, so aiohttp must be handed `yarl.URL(url, encoded=True)`: else it quotes again, and asks for another page.

Beyond that standard a canonical URL has no fragment, no empty query (`/a?` is `/a`) and no user name or password: a
link that carries credentials would otherwise put them into every record and log. What servers may tell apart is left
alone: the order of parameters, upper and lower case in the path, `%7E` and `~`, a trailing slash.

Sources: https://url.spec.whatwg.org; https://publicsuffix.org/list/ (registrable domains).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import can_ada
from publicsuffixlist import PublicSuffixList

_SCHEMES: Final = ("http://", "https://")
_AUTHORITY_START: Final = len("https://")
"""From here the first slash ends the authority, for `http://` too: a host has at least one character."""
_CREDENTIALS: Final = re.compile(r"(^(?!mailto:)|//)[^/?#\s]*@")
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_UINT64_MASK: Final = (1 << 64) - 1


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
        return None
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


resolved: Final = lru_cache(maxsize=16_384)(canonical_url)
"""`canonical_url`, remembering its latest answers; about 5 MB when full."""


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
