"""What a sitemap lists, by hand and by chance: no bytes raise, none take long, and pieces mean what the whole means."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamcrawl.rules.scope import kin_of, sitemap_fingerprint
from streamcrawl.rules.sitemaps import (
    BYTES_MAX,
    ENTRIES_MAX,
    FOREIGN_HOSTS_MAX,
    Entry,
    Flaw,
    Format,
    SitemapReader,
    level_of,
    modified_of,
)
from streamcrawl.rules.task import CrawlTask, Kind, Level
from streamcrawl.rules.urls import fingerprint
from streamcrawl.work.sitemap_walk import own_sitemaps, owner_of

if TYPE_CHECKING:
    from collections.abc import Iterable

URL: Final = "https://a.test/maps/map.xml"
STEP: Final = 65_536


def read(body: bytes, step: int = STEP) -> tuple[SitemapReader, list[Entry]]:
    """Read a body in pieces, as far as the reader wants it."""
    reader, entries = SitemapReader(URL), list[Entry]()
    for start in range(0, len(body), step):
        entries += reader.feed(body[start : start + step])
    return reader, entries + reader.close()


def urls(body: bytes | str) -> list[str]:
    return [entry.url for entry in read(body.encode() if isinstance(body, str) else body)[1]]


ONE: Final = ["https://a.test/1"]
TWO: Final = ["https://a.test/1", "https://a.test/2"]
IN: Final = "<url><loc>https://a.test/1</loc></url><url><loc>https://a.test/2</loc></url>"
LATIN: Final = "<urlset><url><loc>https://a.test/é</loc></url></urlset>"

READ: Final[dict[str, tuple[bytes | str, Format | None, list[str], list[Flaw]]]] = {
    "urlset": (f"<urlset>{IN}</urlset>", Format.XML, TWO, []),
    "declared": (f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset>{IN}</urlset>\n', Format.XML, TWO, []),
    "namespace": (f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{IN}</urlset>', Format.XML, TWO, []),
    "wrong namespace": (f'<urlset xmlns="urn:x">{IN}</urlset>', Format.XML, TWO, []),
    "prefixed": ('<s:urlset xmlns:s="x"><s:url><s:loc>/1</s:loc></s:url></s:urlset>', Format.XML, ONE, []),
    "prefix that is declared nowhere": ("<s:urlset><s:url><s:loc>/1</s:loc></s:url></s:urlset>", Format.XML, ONE, []),
    "capitals": ("<URLSET><Url><LOC>/1</LOC></Url></URLSET>", Format.XML, ONE, []),
    "white space in front of the declaration": (
        f"\n\n <?xml version='1.0'?><urlset>{IN}</urlset>",
        Format.XML,
        TWO,
        [],
    ),
    "byte order mark": (f"\ufeff<urlset>{IN}</urlset>", Format.XML, TWO, []),
    "utf-16": (f"<?xml version='1.0'?><urlset>{IN}</urlset>".encode("utf-16"), Format.XML, TWO, []),
    "latin-1": (
        b"<?xml version='1.0' encoding='iso-8859-1'?>" + LATIN.encode("latin-1"),
        Format.XML,
        ["https://a.test/%C3%A9"],
        [],
    ),
    "gbk, which expat does not know": (
        "<?xml version='1.0' encoding='gbk'?><urlset><url><loc>/中</loc></url></urlset>".encode("gbk"),
        Format.XML,
        ["https://a.test/%E4%B8%AD"],
        [],
    ),
    "an encoding nobody knows": (f"<?xml version='1.0' encoding='klingon'?><urlset>{IN}</urlset>", Format.XML, TWO, []),
    "bytes that are no UTF-8": (
        LATIN.encode("latin-1") + b"",
        Format.XML,
        ["https://a.test/%EF%BF%BD"],
        [],
    ),
    "CDATA, entities and white space": (
        "<urlset><url><loc>\n <![CDATA[https://a.test/?a=1&b]]>=2\n</loc></url>"
        "<url><loc>https://a.test/?a=1&amp;b=&#50;</loc></url></urlset>",
        Format.XML,
        ["https://a.test/?a=1&b=2"] * 2,
        [],
    ),
    "relative, other scheme, other host": (
        "<urlset><url><loc>x</loc></url><url><loc>http://a.test/</loc></url><url><loc>//b.test/</loc></url></urlset>",
        Format.XML,
        ["https://a.test/maps/x", "http://a.test/", "https://b.test/"],
        [],
    ),
    "locations of images, and alternates": (
        "<urlset><url><image:image><image:loc>/no</image:loc></image:image><xhtml:link href='/no'/>"
        "<loc>/1</loc><video:video><loc>/no</loc></video:video></url></urlset>",
        Format.XML,
        ONE,
        [],
    ),
    "index": ("<sitemapindex><sitemap><loc>/1</loc></sitemap></sitemapindex>", Format.XML, ONE, []),
    "index without loc": ("<sitemapindex><sitemap>\nhttps://a.test/1\n</sitemap></sitemapindex>", Format.XML, ONE, []),
    "rss": (
        "<rss><channel><link>/no</link><item><link>/1</link></item><item><guid>https://a.test/2</guid></item>"
        "</channel></rss>",
        Format.RSS,
        TWO,
        [],
    ),
    "rss 1.0": ("<rdf:RDF><item><link>/1</link></item></rdf:RDF>", Format.RSS, ONE, []),
    "rss with its old doctype": (
        '<!DOCTYPE rss PUBLIC "-//Netscape//DTD RSS 0.91//EN" "http://x.test/rss.dtd">'
        "<rss><channel><item><link>/1</link></item></channel></rss>",
        Format.RSS,
        ONE,
        [],
    ),
    "atom": (
        "<feed><link href='/no'/><entry><link rel='self' href='/no'/><link href='/1'/></entry></feed>",
        Format.ATOM,
        ONE,
        [],
    ),
    "text": ("\ufeffhttps://a.test/1\r\n\r\n  https://a.test/2", Format.TEXT, TWO, []),
    "text with more in it": ("https://a.test/1\n# no\nhttps://a.test/2\n/no\n", Format.TEXT, TWO, []),
    "text in utf-16": ("https://a.test/1\nhttps://a.test/2".encode("utf-16"), Format.TEXT, TWO, []),
    "empty urlset": ("<urlset/>", Format.XML, [], []),
    # Faults: what came before them stays.
    "ampersand": (f"<urlset>{IN}<url><loc>/?a&b</loc></url></urlset>", Format.XML, TWO, [Flaw.BROKEN]),
    "not closed": (f"<urlset>{IN}", Format.XML, TWO, [Flaw.BROKEN]),
    "cut in an entry": ("<urlset><url><loc>/1</loc><lastmod>2", Format.XML, ONE, [Flaw.BROKEN]),
    "cut in a location": ("<urlset><url><loc>https://a.te", Format.XML, [], [Flaw.BROKEN]),
    "wrong order of ends": ("<urlset><url><loc>/1</url></loc></urlset>", Format.XML, [], [Flaw.BROKEN]),
    "something behind it": (f"<urlset>{IN}</urlset><p>ad</p>", Format.XML, TWO, [Flaw.BROKEN]),
    "entity": ("<urlset><url><loc>/1&nbsp;</loc></url></urlset>", Format.XML, [], [Flaw.BROKEN]),
    "doctype with entities": (
        f'<!DOCTYPE urlset [<!ENTITY x SYSTEM "file:///etc/passwd">]><urlset>{IN}&x;</urlset>',
        Format.XML,
        [],
        [Flaw.DOCTYPE],
    ),
    "no location": (
        "<urlset><url><loc> </loc></url><url/><url><loc>mailto:x@y</loc></url></urlset>",
        Format.XML,
        [],
        [],
    ),
    # No sitemaps.
    "nothing": ("", None, [], []),
    "white space": (" \n\t" * 3000, None, [], []),
    "page": ("<!DOCTYPE html><html><a href='/1'>x</a></html>", None, [], []),
    "page in XML": ('<html xmlns="http://www.w3.org/1999/xhtml"/>', None, [], []),
    "prose": ("Not found: https://a.test/1", None, [], []),
    "json": ('{"url": "https://a.test/1"}', None, [], []),
    "zeros": (bytes(5000), None, [], []),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str) -> None:
    body, form, found, flaws = READ[name]
    body = body.encode() if isinstance(body, str) else body
    for step in (STEP, 1, 3):
        reader, entries = read(body, step)
        assert (reader.format, [entry.url for entry in entries], list(reader.flaws)) == (form, found, flaws), step


def test_entry_says_what_it_is() -> None:
    body = (
        "<urlset><url><loc>/1</loc><lastmod>2024-05-01T00:00:00Z</lastmod><priority> 0,9 </priority></url>"
        "<sitemap><loc>/2</loc><priority>x</priority><lastmod>soon</lastmod></sitemap></urlset>"
    )
    one, two = (Entry(f"https://a.test/{n}") for n in (1, 2))
    assert read(body.encode())[1] == [
        one._replace(priority=0.9, modified_s=1_714_521_600),
        two._replace(is_sitemap=True),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024", 1_704_067_200),
        ("2024-05", 1_714_521_600),
        ("2024-05-01", 1_714_521_600),
        ("2024-05-01T02:00:00+02:00", 1_714_521_600),
        ("2024-05-01T00:00:00.123Z", 1_714_521_600),
        ("2024-05-01 00:00:00", 1_714_521_600),
        ("Wed, 01 May 2024 02:00:00 +0200", 1_714_521_600),
        ("1 May 2024 00:00:00 GMT", 1_714_521_600),
        *((text, 0) for text in ("", " ", "soon", "2024-13", "0000", "1969-01-01", "9999-12-31", "2024-05-01T99:00Z")),
        *((text, 0) for text in ("Wed, 99 May 2024 02:00:00", ",", "0001-01-01T00:00:00+23:59", "2" * 100)),
    ],
)
def test_moments(text: str, seconds: int) -> None:
    assert modified_of(text) == seconds


@pytest.mark.parametrize(
    ("priority", "level"),
    [
        (None, Level.NORMAL),
        (0.5, Level.NORMAL),
        (0.8, Level.HIGH),
        (1.0, Level.HIGH),
        (0.3, Level.LOW),
        (0.0, Level.LOW),
    ],
)
def test_levels(priority: float | None, level: Level) -> None:
    assert level_of(priority) is level


# -- bounds


def many(count: int) -> bytes:
    return b"<urlset>" + b"".join(b"<url><loc>/%d</loc></url>" % n for n in range(count))


def test_no_more_entries_than_the_protocol_allows() -> None:
    reader, entries = read(many(ENTRIES_MAX) + b"</urlset>")
    assert (len(entries), list(reader.flaws)) == (ENTRIES_MAX, [])
    reader, entries = read(many(ENTRIES_MAX + 1) + b"</urlset>")
    assert (len(entries), list(reader.flaws), reader.is_over) == (ENTRIES_MAX, [Flaw.TOO_MANY], True)
    reader, entries = read(b"https://a.test/\n" * (ENTRIES_MAX + 1))
    assert (len(entries), list(reader.flaws)) == (ENTRIES_MAX, [Flaw.TOO_MANY])


def test_no_more_bytes_than_the_protocol_allows() -> None:
    start = many(2)
    fill = [b" " * 1_000_000] * (BYTES_MAX // 1_000_000) + [b" " * (BYTES_MAX % 1_000_000 - len(start) - 9)]
    for last, flaws in ((b"</urlset>", []), (b"</urlset> ", [Flaw.TOO_LARGE])):
        reader, entries = SitemapReader(URL), list[Entry]()
        for piece in (start, *fill, last):
            entries += reader.feed(piece)
        assert (len(entries + reader.close()), list(reader.flaws)) == (2, flaws)


BOMBS: Final[dict[str, tuple[bytes, bytes]]] = {
    "nesting": (b"<urlset>", b"<a>"),
    "nothing in it": (b"<urlset>", b"<a/>"),
    "comment": (b"<urlset><!--", b"x"),
    "attribute": (b'<urlset><a b="', b"x"),
    "tag": (b"<urlset><", b"x"),
    "instruction": (b"<urlset><?x ", b"x"),
    "location": (b"<urlset><url><loc>", b"x"),
    "CDATA": (b"<urlset><url><loc><![CDATA[", b"x"),
    "references": (b"<urlset><url><loc>", b"&amp;"),
    "text without an element": (b"<urlset>", b"x"),
    "fields": (b"<urlset><url>", b"<loc>/</loc>"),
    "line": (b"https://a.test/", b"x"),
    "blank lines": (b"https://a.test/", b"\n"),
    "doctype": (b"<!DOCTYPE urlset ", b" "),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_little(name: str) -> None:
    """Each goes on for 4 MB; a reader that is quadratic, or keeps what it has read, would not end within these."""
    start, fill = BOMBS[name]
    piece = fill * (STEP // len(fill))
    reader, entries = SitemapReader(URL), 0
    before = time.process_time()
    tracemalloc.start()
    try:
        entries += len(reader.feed(start))
        for _ in range(64):
            entries += len(reader.feed(piece))
        entries += len(reader.close())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert entries <= 1
    assert peak < 4_000_000
    assert time.process_time() - before < 20


def test_entities_never_grow() -> None:
    laughs = b"".join(b'<!ENTITY a%d "%b">' % (n + 1, b"&a%d;" % n * 10) for n in range(9))
    for bomb in (
        b'<!DOCTYPE urlset [<!ENTITY a0 "ha">' + laughs + b"]><urlset><url><loc>/&a9;</loc></url></urlset>",
        b'<!DOCTYPE urlset [<!ATTLIST url x CDATA "' + b"x" * 60_000 + b'">]><urlset>' + b"<url/>" * 1000,
        b'<!DOCTYPE urlset [<!ENTITY % x SYSTEM "http://b.test/x">%x;]><urlset/>',
    ):
        reader, entries = read(bomb)
        assert (entries, list(reader.flaws)) == ([], [Flaw.DOCTYPE])


def test_names_without_end_are_not_kept() -> None:
    reader, _ = read(b"<urlset>" + b"".join(b"<a%d/>" % n for n in range(200_000)))
    assert (list(reader.flaws), reader.is_over) == ([Flaw.BROKEN], True)


# -- by chance


PIECES: Final = [
    b"<urlset>", b"</urlset>", b"<sitemapindex>", b"<url>", b"</url>", b"<sitemap>", b"</sitemap>", b"<loc>", b"</loc>",
    b"<rss>", b"<channel>", b"<item>", b"</item>", b"<link>", b"</link>", b"<feed>", b"<entry>", b"</entry>",
    b"<link href='/a'/>", b"<lastmod>", b"</lastmod>", b"<priority>", b"</priority>", b"<?xml version='1.0'?>",
    b"<?xml version='1.0' encoding='utf-16'?>", b"<?xml encoding='idna'?>", b"<![CDATA[", b"]]>", b"<!--", b"-->",
    b"<!DOCTYPE a>", b"<!DOCTYPE a [", b"<!ENTITY a 'b'>", b"]>", b"&a;", b"&amp;", b"&#0;", b"&#x110000;",
    b"https://a.test/1", b"//", b"http://[", b"\n", b" ", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff",
    b"\x1f\x8b", b"2024-01-01", b"0.5", b"1e999", b"nan", b"-", b"Mon, 01 Jan 2024 00:00:00 GMT",
]  # fmt: skip
BODIES: Final = st.binary(max_size=400) | st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=60).map(
    b"".join
)
WHOLE: Final = [body.encode() if isinstance(body, str) else body for body, *_ in READ.values()]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 20)))
        body[start:end] = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
    return bytes(body)


@settings(max_examples=400, deadline=None)
@given(BODIES | mutated(), st.integers(1, 50))
def test_no_bytes_raise_and_pieces_mean_what_the_whole_means(body: bytes, step: int) -> None:
    whole, entries = read(body)
    pieces, others = read(body, step)
    assert others == entries
    assert (pieces.format, pieces.flaws, pieces.bad_locations) == (whole.format, whole.flaws, whole.bad_locations)
    assert whole.format is not None or not (entries or whole.flaws)
    for entry in entries:
        assert entry.url.startswith(("http://", "https://"))
        assert entry.url.isascii()
        assert entry.priority is None or 0 <= entry.priority <= 1
        assert entry.modified_s >= 0
    cut = SitemapReader(URL)
    found = cut.feed(body) + cut.cut(Flaw.CUT_OFF)
    assert found in (entries, entries[:-1])  # of a text the last line may lack its end
    assert cut.feed(body) == cut.close() == []


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=70) | st.from_regex(r"[0-9]{0,5}-?[0-9]{0,3}-?[0-9]{0,3}T?[0-9:.+Z-]{0,20}", fullmatch=True))
def test_no_moment_raises(text: str) -> None:
    assert 0 <= modified_of(text) < 1 << 33


# -- whose they are


def test_sitemaps_of_a_host() -> None:
    assert own_sitemaps("http://a.test", (), 2) == [
        CrawlTask(host="http://a.test", path="/sitemap.xml", kind=Kind.SITEMAP, depth=2)
    ]
    listed = ["http://a.test/1", *(f"http://b{n}.test/" for n in range(FOREIGN_HOSTS_MAX + 3)), "http://a.test/2"]
    found = own_sitemaps("http://a.test", listed, 0)
    assert [task.url for task in found] == [*listed[: FOREIGN_HOSTS_MAX + 1], listed[-1]]
    assert {owner_of(task) for task in found} == {"http://a.test"}
    assert {task.depth for task in found} == {0}


def keys(tasks: Iterable[CrawlTask]) -> set[int]:
    return {sitemap_fingerprint(task, owner_of(task), "host") for task in tasks}


def test_fingerprint_is_not_that_of_the_page_and_tells_owners_apart_where_their_scopes_differ() -> None:
    own = CrawlTask(host="http://a.test", path="/m", kind=Kind.SITEMAP)
    of_robots = CrawlTask(host="http://a.test", path="/m", kind=Kind.SITEMAP, referrer="https://a.test/robots.txt")
    of_other = CrawlTask(host="http://a.test", path="/m", kind=Kind.SITEMAP, referrer="http://www.a.test/robots.txt")
    assert keys([own]) == keys([of_robots])
    assert len(keys([own, of_other])) == 2
    assert fingerprint(own.url) not in keys([own])
    assert kin_of("domain", "http://www.a.org") == kin_of("domain", "https://a.org:81") == "a.org"
    assert kin_of("any", "http://a.test") == kin_of("prefix", "http://b.test")
