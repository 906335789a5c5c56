"""Sitemaps of the misbehaving site, good ones and broken ones: `/sitemap/<name>` on every host, as fixed bytes.

They list pages of their own host, mostly `/p/1` and `/p/2`. What is late, refused or endless can be had by the routes
of server.py under `/fault/`, which are no sitemaps.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Final

from tests.site.faults import Raw, answer, gzip_of_zeros, head

if TYPE_CHECKING:
    from collections.abc import Callable

XML: Final = b"Content-Type: application/xml\r\n"
GZIP: Final = b"Content-Type: application/gzip\r\n"
TEXT: Final = b"Content-Type: text/plain\r\n"
CODED: Final = b"Content-Encoding: gzip\r\n"
METADATA: Final = "http://169.254.169.254"
"""No crawl may connect to it."""
FOREIGN: Final = 13
"""Hosts beside its own that `strangers` names sitemaps of."""


def urlset(*urls: str) -> str:
    return "<urlset>" + "".join(f"<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


def index(*urls: str) -> str:
    return "<sitemapindex>" + "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls) + "</sitemapindex>"


def _xml(text: str, headers: bytes = XML) -> Raw:
    return Raw(answer(text.encode(), headers))


def _two(origin: str) -> str:
    return urlset(f"{origin}/p/1", f"{origin}/p/2")


def _gzip_of_large(start: str) -> bytes:
    """Return two entries, and then more white space than a sitemap may have; in members, which are quickly made."""
    entries, space = start.encode().removesuffix(b"</urlset>"), gzip.compress(b" " * 1_000_000)
    return gzip.compress(entries) + space * 60 + gzip.compress(b"</urlset>")


def _many(count: int) -> str:
    return urlset("/p/1", "/p/2", *(f"https://elsewhere.test/{n}" for n in range(count - 2)))


LAUGHS: Final = (
    '<!DOCTYPE urlset [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;">]>'
)
RSS: Final = (
    "<rss><channel><link>/p/0</link><item><link>/p/1</link></item><item><guid>%s/p/2</guid></item></channel></rss>"
)
ATOM: Final = "<feed><link href='/p/0'/><entry><link href='/p/1'/></entry><entry><link href='/p/2'/></entry></feed>"

SITEMAPS: Final[dict[str, Callable[[str], Raw]]] = {
    "xml": lambda origin: _xml(_two(origin)),
    "xml_as_html": lambda origin: _xml(_two(origin), b"Content-Type: text/html\r\n"),
    "xml_untyped": lambda origin: _xml(_two(origin), b""),
    "xml_closed": lambda origin: Raw(head(XML.rstrip()) + _two(origin).encode(), "closes"),
    "xml_utf16": lambda origin: Raw(answer(_two(origin).encode("utf-16"), XML)),
    "gz": lambda origin: Raw(answer(gzip.compress(_two(origin).encode()), GZIP)),
    "gz_coded": lambda origin: Raw(answer(gzip.compress(gzip.compress(_two(origin).encode())), GZIP + CODED)),
    "coded": lambda origin: Raw(answer(gzip.compress(_two(origin).encode()), XML + CODED)),
    "text": lambda origin: _xml(f"\ufeff{origin}/p/1\r\n\r\n{origin}/p/2\r\n", TEXT),
    "rss": lambda origin: _xml(RSS % origin),
    "atom": lambda _: _xml(ATOM),
    "index": lambda origin: _xml(index(f"{origin}/sitemap/gz", f"{origin}/sitemap/text")),
    "index_loop": lambda origin: _xml(index(f"{origin}/sitemap/index_loop", f"{origin}/sitemap/index")),
    "empty_urlset": lambda _: _xml(urlset()),
    # Faults: what came before them stays.
    "broken": lambda origin: _xml(_two(origin).replace("</urlset>", "<url><loc>/?a&b</loc></url></urlset>")),
    "not_closed": lambda origin: _xml(_two(origin).removesuffix("</urlset>")),
    "gz_cut": lambda origin: Raw(answer(gzip.compress(_two(origin).encode())[:-9], GZIP)),
    "gz_noise": lambda origin: Raw(answer(gzip.compress(_two(origin).encode())[:-8] + b"12345678", GZIP)),
    "large": lambda origin: Raw(answer(_gzip_of_large(_two(origin)), GZIP)),
    "many": lambda _: _xml(_many(50_001)),
    "laughs": lambda origin: _xml(LAUGHS + _two(origin)),
    "locations": lambda _: _xml(urlset("/p/1", "mailto:a@b", "http://[", "", "/p/2")),
    "length_more": lambda origin: Raw(
        head(XML.rstrip(), b"Content-Length: 9000") + _two(origin).removesuffix("</urlset>").encode(), "closes"
    ),
    # What they list is not followed.
    "outside": lambda _: _xml(urlset("https://elsewhere.test/", f"{METADATA}/latest/", "/p/1", "ftp://a.test/")),
    "metadata": lambda _: _xml(index(f"{METADATA}/sitemap.xml", "/sitemap/xml")),
    "strangers": lambda _: _xml(index(*(f"{METADATA}:{port + 1}/" for port in range(FOREIGN)), "/sitemap/xml")),
    # There is none.
    "page": lambda _: _xml("<!DOCTYPE html><html><a href='/p/1'>one</a></html>", b"Content-Type: text/html\r\n"),
    "prose": lambda origin: _xml(f"There is no sitemap, see {origin}/p/1", TEXT),
    "nothing": lambda _: _xml(""),
    "zeros": lambda _: Raw(answer(gzip_of_zeros(1024), GZIP)),
    "zeros_coded": lambda _: Raw(answer(gzip_of_zeros(1024), XML + CODED)),
    "not_gz": lambda _: Raw(answer(b"\x1f\x8b and no more of it", GZIP)),
}


def raw_sitemap(name: str, origin: str) -> Raw | None:
    """Return the answer of a host to `/sitemap/<name>`; None where there is none.

    `deep_<n>` is an index of `deep_<n + 1>` that lists `/p/<n>` itself, without end.
    """
    word, _, number = name.rpartition("_")
    if word == "deep" and number.isdecimal():
        below = f"<sitemap><loc>{origin}/sitemap/deep_{int(number) + 1}</loc></sitemap>"
        return _xml(f"<sitemapindex>{below}<url><loc>{origin}/p/{number}</loc></url></sitemapindex>")
    make = SITEMAPS.get(name)
    return None if make is None else make(origin)
