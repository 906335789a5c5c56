"""Read a sitemap piece by piece: bytes in, entries out, whatever the bytes are.

Pure: no network, no clock. Start at `SitemapReader`; `level_of` and `modified_of` say what a priority and a lastmod
mean. XML (urlset, sitemapindex), RSS, Atom and plain text are told by their first bytes, never by a name or a header.
What follows a fault is left out, what came before it stays, and the fault has a name (`Flaw`). It holds no more than
one entry, one token of XML and the text that is not whole yet, and never raises: the parser is expat, with every
declaration inside of a DOCTYPE refused before it is read, so an entity can neither grow nor reach for a file.

Relative locations are joined to the sitemap's URL and wrong namespaces are overlooked, as others do; of what is in a
foreign element (`image:loc`, the alternates of `xhtml:link`) nothing is an entry: the protocol wants each page listed
for itself.

Sources: https://www.sitemaps.org/protocol.html; RSS 2.0; RSS 1.0; RFC 4287 (Atom).
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.parsers import expat

from streamcrawl.rules.charset import declared_charset, decoder_of
from streamcrawl.rules.sniff import BodyKind
from streamcrawl.rules.task import Level
from streamcrawl.rules.urls import canonical_url

if TYPE_CHECKING:
    import codecs

BYTES_MAX: Final = 52_428_800
"""Of one sitemap, decompressed: what the protocol allows."""
ENTRIES_MAX: Final = 50_000
"""Of one sitemap: what the protocol allows."""
NESTING_MAX: Final = 3
"""Indexes above a sitemap. The protocol allows one; sites have two, and one that makes up new indexes must end."""
FOREIGN_HOSTS_MAX: Final = 10
"""Hosts beside its own on which one index, or one robots.txt, may name sitemaps: a longer list would set the crawl on
others."""
_SNIFFED_BYTES: Final = 1024
_TOKEN_MAX_BYTES: Final = 262_144
"""One tag, comment or instruction: expat reads an unfinished one again from its start with every piece (2.5.0)."""
_DEPTH_MAX: Final = 64
"""Of elements in each other: expat keeps something of each that is open."""
_NAMES_MAX: Final = 10_000
"""Different names of elements and attributes: both sides of pyexpat keep each for ever."""
_ELEMENTS_MAX: Final = 2_000_000
"""Of one sitemap: 40 of each entry, a second's work. Empty ones that bring nothing would make 13 million."""
_TEXT_MAX: Final = 16_384
"""Of one location, and of one line: longer ones are no URLs (settings.url_max_bytes is 2 kB)."""
_DATE_MAX: Final = 64
_SPACE: Final = " \t\r\n"
_PARTIAL_DATE: Final = re.compile(r"([0-9]{4})(?:-([0-9]{1,2}))?$")
_SECONDS_MAX: Final = 1 << 33
_HIGH_FROM: Final = 0.8
_LOW_TO: Final = 0.3


class Format(StrEnum):
    """What a sitemap turned out to be."""

    XML = "xml"
    RSS = "rss"
    ATOM = "atom"
    TEXT = "text"


class Flaw(StrEnum):
    """What was wrong with a sitemap that brought something all the same. Counted by name."""

    BROKEN = "broken"
    """No well-formed XML from some place on, or made to take long."""
    BROKEN_GZIP = "broken_gzip"
    CUT_OFF = "cut_off"
    """The answer did not come whole in any of the tries."""
    DOCTYPE = "doctype"
    """A document type with declarations of its own."""
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    """More entries than the protocol allows."""


class Listed(StrEnum):
    """Why a sitemap's entry is not followed, beside the reasons that hold for every link. Counted with those."""

    LOCATION = "sitemap_location"
    """It names no http(s) URL."""
    NESTING = "sitemap_nesting"
    """A sitemap below more indexes than NESTING_MAX."""
    HOSTS = "sitemap_hosts"
    """A sitemap of another host, after FOREIGN_HOSTS_MAX of them."""


class Entry(NamedTuple):
    """What a sitemap lists: a page, or another sitemap."""

    url: str
    """Canonical."""
    is_sitemap: bool = False
    priority: float | None = None
    """From 0 to 1; None when it says nothing that can be read."""
    modified_s: int = 0
    """When it changed last, seconds since the epoch; 0 when that is not known."""


class _Stop(Exception):
    """Nothing more is to be read."""

    def __init__(self, flaw: Flaw | None = None) -> None:
        super().__init__()
        self.flaw = flaw
        """None: it is no sitemap at all."""


_FORMATS: Final = {
    "urlset": Format.XML, "sitemapindex": Format.XML, "rss": Format.RSS, "rdf": Format.RSS, "feed": Format.ATOM,
}  # fmt: skip
_ITEMS: Final = {
    Format.XML: frozenset({"url", "sitemap"}),
    Format.RSS: frozenset({"item"}),
    Format.ATOM: frozenset({"entry"}),
}
_ITEM_DEPTH_MAX: Final = 2
"""`rss/channel/item`."""
_DATES: Final = ("lastmod", "updated", "pubdate", "date", "published")
"""Each before what takes its place where it is missing."""
_FIELDS: Final = frozenset(("loc", "link", "guid", *_DATES, "priority"))


class SitemapReader:
    """Reads one sitemap. Give it the body with `feed`, end with `close`; both return the entries that became whole."""

    def __init__(self, url: str, *, charset_label: str | None = None) -> None:
        """Prepare to read what was found at a canonical URL; the label is that of Content-Type."""
        self._url = url
        self._label = charset_label
        self._head = b""
        self._decoder: codecs.IncrementalDecoder | None = None
        self._engine: _Xml | _Text | None = None
        self._size = 0
        self.format: Format | None = None
        """None until it is known, and for what is no sitemap."""
        self.flaws: dict[Flaw, None] = {}
        self.bad_locations = 0
        """Entries that name no http(s) URL."""
        self.is_over = False
        """Nothing that follows would be read."""

    def feed(self, data: bytes) -> list[Entry]:
        """Take the next bytes, at best some 64 KiB: they are worked through at once."""
        if self.is_over or not data:
            return []
        spare = BYTES_MAX - self._size
        self._size += len(data)
        found = self._read(data[:spare], is_last=False)
        if len(data) > spare:
            found += self._end(Flaw.TOO_LARGE)
        return found

    def close(self) -> list[Entry]:
        """Say that the body has ended."""
        if self.is_over:
            return []
        found = self._read(b"", is_last=True)
        self.is_over = True
        return found

    def cut(self, flaw: Flaw) -> list[Entry]:
        """Say that the body ends here although it is not whole."""
        if self.is_over:
            return []
        return self._read(b"", is_last=False, is_cut=True) + self._end(flaw)

    def _end(self, flaw: Flaw) -> list[Entry]:
        if self.is_over:
            return []
        self.is_over = True
        if self.format is not None:
            self.flaws[flaw] = None
        return self._engine.rest() if self._engine is not None else []

    def _read(self, data: bytes, *, is_last: bool, is_cut: bool = False) -> list[Entry]:
        if self._decoder is None:
            self._head += data
            if not self._head.startswith((b"\xfe\xff", b"\xff\xfe")):
                self._head = self._head.lstrip(_SPACE.encode())
            if len(self._head) < _SNIFFED_BYTES and not (is_last or is_cut):
                return []
            data, self._head = self._head, b""
            label = declared_charset(self._label, data, BodyKind.XML)
            self._decoder = decoder_of(label or "utf-8")
        text = self._decoder.decode(data, is_last)
        if self._engine is None:
            text = text.removeprefix("\ufeff").lstrip(_SPACE)
            if not text and not is_last:
                return []
            self._engine = _Xml(self._url) if text.startswith("<") else _Text(self._url)
        engine = self._engine
        try:
            engine.feed(text, is_last=is_last)
        except _Stop as stop:
            self.is_over = True
            if stop.flaw is not None and engine.format is not None:
                self.flaws[stop.flaw] = None
        self.format = engine.format
        self.bad_locations = engine.bad_locations
        return engine.rest() if self.is_over else engine.take()


class _Entries:
    """What both ways of reading have in common: the list, and its bound."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._found: list[Entry] = []
        self._count = 0
        self.format: Format | None = None
        self.bad_locations = 0

    def take(self) -> list[Entry]:
        """Return the entries that became whole since the last call."""
        found, self._found = self._found, []
        return found

    def _add(self, location: str, *, is_sitemap: bool = False, priority: str = "", modified: str = "") -> None:
        self._count += 1
        if self._count > ENTRIES_MAX:
            raise _Stop(Flaw.TOO_MANY)
        url = canonical_url(location, self._url) if location else None
        if url is None:
            self.bad_locations += 1
        else:
            self._found.append(Entry(url, is_sitemap, _priority_of(priority), modified_of(modified)))


class _Xml(_Entries):
    """All formats in XML. Names are compared without their prefix and without regard to case."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        # A dictionary of our own: pyexpat's would not tell how many names there are.
        self._names: dict[str, str] = {}
        parser = expat.ParserCreate("utf-8", intern=self._names)  # decoded before: no declaration counts any more
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        self._parser = parser
        self._fed = 0
        self._elements = 0
        self._depth = 0
        self._items: frozenset[str] = frozenset()
        self._item = ""
        """Name of the entry that is open; '' outside of one."""
        self._item_depth = 0
        self._field = ""
        self._pieces: list[str] = []
        self._length = 0
        self._values: dict[str, str] = {}

    def feed(self, text: str, *, is_last: bool) -> None:
        """Read on.

        Raises:
            _Stop: there is a fault, a limit is reached, or it is no sitemap.
        """
        data = text.encode("utf-8", "replace")
        self._fed += len(data)
        try:
            self._parser.Parse(data, is_last)
        except expat.ExpatError:
            raise _Stop(Flaw.BROKEN) from None
        if self._fed - self._parser.CurrentByteIndex > _TOKEN_MAX_BYTES or len(self._names) > _NAMES_MAX:
            raise _Stop(Flaw.BROKEN)

    def rest(self) -> list[Entry]:
        """Return what `take` does, and an entry whose location was whole before the end came."""
        if self._item and (location := self._values.get("loc") or self._values.get("link")):
            with suppress(_Stop):
                self._end_item(location)
        return self.take()

    def _doctype(self, name: str, _system: str | None, _public: str | None, has_subset: bool) -> None:
        # Before its first declaration is read: entities that grow, attributes with a default of a megabyte.
        if has_subset:
            self.format = _FORMATS.get(_local(name))
            raise _Stop(Flaw.DOCTYPE)

    def _entity(self, *_: object) -> None:
        raise _Stop(Flaw.DOCTYPE)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        depth = self._depth
        self._depth = depth + 1
        if depth >= _DEPTH_MAX or self._elements > _ELEMENTS_MAX:
            raise _Stop(Flaw.BROKEN)
        local = _local(name)
        if depth == 0:
            self.format = _FORMATS.get(local)
            if self.format is None:
                raise _Stop
            self._items = _ITEMS[self.format]
        elif not self._item:
            if local in self._items and depth <= _ITEM_DEPTH_MAX:
                self._item, self._item_depth = local, depth
                self._pieces, self._length = [], 0
        elif depth == self._item_depth + 1 and local in _FIELDS:
            self._field, self._pieces, self._length = local, [], 0
            is_atom_link = local == "link" and self.format is Format.ATOM
            if is_atom_link and attributes.get("rel", "alternate") == "alternate":
                self._values.setdefault("loc", attributes.get("href", ""))

    def _end(self, _: str) -> None:
        self._depth -= 1
        if not self._item:
            return
        if self._field and self._depth == self._item_depth + 1:
            if text := self._collected():
                self._values.setdefault(self._field, text)
            self._field, self._pieces, self._length = "", [], 0
        elif self._depth == self._item_depth:
            self._end_item(self._location())

    def _collected(self) -> str:
        return "".join(self._pieces).strip() if self._length <= _TEXT_MAX else ""

    def _location(self) -> str:
        values = self._values
        if found := values.get("loc") or values.get("link"):
            return found
        # A feed's guid may be its link, and some write the location of a sitemap without an element around it.
        return next((text for text in (values.get("guid", ""), self._collected()) if _is_url(text)), "")

    def _end_item(self, location: str) -> None:
        name, values = self._item, self._values
        self._item, self._field, self._values = "", "", {}
        modified = next((values[date] for date in _DATES if date in values), "")
        self._add(location, is_sitemap=name == "sitemap", priority=values.get("priority", ""), modified=modified)

    def _text(self, data: str) -> None:
        if self._field or (self._item and self._depth == self._item_depth + 1):
            self._length += len(data)
            if self._length <= _TEXT_MAX:
                self._pieces.append(data)


class _Text(_Entries):
    """One URL a line, and nothing else: what does not begin with one is no sitemap."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._rest = ""

    def feed(self, text: str, *, is_last: bool) -> None:
        """Read on.

        Raises:
            _Stop: it is no sitemap, or a limit is reached.
        """
        *lines, self._rest = (self._rest + text).split("\n")
        if is_last:
            lines.append(self._rest)
            self._rest = ""
        for line in lines:
            if stripped := line.strip():
                self._add_line(stripped)
        if len(self._rest) > _TEXT_MAX:
            raise _Stop(Flaw.BROKEN)

    def rest(self) -> list[Entry]:
        """Return what `take` does: a line that was cut may lack its end."""
        return self.take()

    def _add_line(self, line: str) -> None:
        is_url = len(line) <= _TEXT_MAX and _is_url(line)
        if self.format is None:
            if not is_url:
                raise _Stop
            self.format = Format.TEXT
        self._add(line if is_url else "")


def _local(name: str) -> str:
    return name.rpartition(":")[2].lower()


def _is_url(text: str) -> bool:
    return text[:8].lower().startswith(("http://", "https://"))


# -- what entries say


def level_of(priority: float | None) -> Level:
    """Return the queue of a page of this priority: from 0.8 on it goes before the others of its host, to 0.3 after."""
    if priority is None:
        return Level.NORMAL
    if priority >= _HIGH_FROM:
        return Level.HIGH
    return Level.LOW if priority <= _LOW_TO else Level.NORMAL


def _priority_of(text: str) -> float | None:
    if not text or len(text) > _DATE_MAX:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return None
    return None if math.isnan(value) else min(max(value, 0.0), 1.0)


def modified_of(text: str) -> int:
    """Return a moment as sitemaps (W3C's form of ISO 8601, down to the year alone) and feeds (RFC 822) write it.

    Seconds since the epoch, UTC where it does not say; 0 for what cannot be read, or lies before 1970.
    """
    text = text.strip()
    if not text or len(text) > _DATE_MAX:
        return 0
    try:
        if text[0].isalpha() or "," in text or " " in text[:4]:
            when = parsedate_to_datetime(text)
        elif partial := _PARTIAL_DATE.match(text):
            when = datetime(int(partial[1]), int(partial[2] or 1), 1)
        else:
            when = datetime.fromisoformat(text)
        seconds = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, TypeError, IndexError, AttributeError):
        return 0  # the last three are parsedate's own
    return seconds if 0 < seconds < _SECONDS_MAX else 0
