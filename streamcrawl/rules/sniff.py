"""What is a body: HTML, XML, text, or bytes for something else?

Pure: the header's type and the first bytes in, a `BodyKind` out. Start at `body_kind`. The header decides, where it
says something and the bytes do not show it to be wrong.

Sources: the MIME Sniffing Standard, sections 5.2 (how much is looked at), 7.1 to 7.3 and 6 (patterns). Two rules are a
crawler's own. What is called HTML and begins as a PDF, an image or an archive is binary: a browser would show rubbish,
which harms nobody, but its links would be fetched. And a BOM before `<html` does not make a page without a type text.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

SNIFFED_BYTES: Final = 1445
"""MIME Sniffing Standard, section 5.2: the size of a resource header."""


class BodyKind(StrEnum):
    HTML = "html"
    XML = "xml"
    TEXT = "text"
    BINARY = "binary"


_HTML_TYPES: Final = frozenset({"text/html", "application/xhtml+xml"})
_XML_TYPES: Final = frozenset({"text/xml", "application/xml"})
_TEXT_TYPES: Final = frozenset(
    {
        *("application/json", "application/javascript", "application/ecmascript", "application/x-javascript"),
        *("application/ld+json", "application/manifest+json", "application/x-ndjson", "application/yaml"),
    }
)
_UNKNOWN_TYPES: Final = frozenset(
    {"", "application/octet-stream", "unknown/unknown", "application/unknown", "*/*"},
)
_HTML_START: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*+(?:<\?xml[^>]*+>[\t\n\f\r ]*+(?:<!--(?s:.*?)-->[\t\n\f\r ]*+)*+"
    rb"(?=<!doctype html|<html))?"
    rb"<(?:!--|(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|body|br|b|p)[ >])",
    re.IGNORECASE,
)
_XML_START: Final = re.compile(rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*+<\?xml")
_FEED_START: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*+(?:<(?:!--(?s:.*?)--|[?!][^>]*+)>[\t\n\f\r ]*+)*+"
    rb"<(?:rss|feed|rdf:RDF)(?=[\t\n\f\r >])"
)
_BINARY_START: Final = re.compile(
    rb"%PDF-|%!PS-Adobe-|GIF8[79]a|\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF(?s:....)(?:WEBP|WAVE|AVI )"
    rb"|\x00\x00[\x01\x02]\x00|\x1f\x8b\x08|PK\x03\x04|Rar!\x1a\x07|7z\xbc\xaf\x27\x1c|\x28\xb5\x2f\xfd|BZh[1-9]1AY|\xfd7zXZ\x00"
    rb"|OggS\x00|ID3|MThd\x00\x00\x00\x06|\x1a\x45\xdf\xa3|(?s:....)ftyp|wOF[F2]|\x00asm|\x7fELF"
)
_BINARY_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_TEXT_BOM: Final = re.compile(rb"\xfe\xff|\xff\xfe|\xef\xbb\xbf")


def body_kind(content_type: str | None, head: bytes) -> BodyKind:
    """Return what a body is to be read as.

    Args:
        content_type: The header, with its parameters or without; None when there was none.
        head: The first bytes of the body, decompressed; 1445 of them are looked at.
    """
    essence = (content_type or "").partition(";")[0].strip().lower()
    if essence in _HTML_TYPES:
        if _BINARY_START.match(head) is not None:
            return BodyKind.BINARY
        return BodyKind.XML if _FEED_START.match(head[:SNIFFED_BYTES]) is not None else BodyKind.HTML
    if essence in _UNKNOWN_TYPES or "/" not in essence:
        return _sniffed(head[:SNIFFED_BYTES])
    if essence == "text/plain":
        # What Apache used to call every file that it did not know.
        return _text_or_binary(head[:SNIFFED_BYTES])
    if essence in _XML_TYPES or essence.endswith("+xml"):
        return BodyKind.XML
    if essence.startswith("text/") or essence in _TEXT_TYPES or essence.endswith("+json"):
        return BodyKind.TEXT
    return BodyKind.BINARY


def _sniffed(head: bytes) -> BodyKind:
    if _HTML_START.match(head) is not None:
        return BodyKind.HTML
    if _XML_START.match(head) is not None or _FEED_START.match(head) is not None:
        return BodyKind.XML
    return BodyKind.BINARY if _BINARY_START.match(head) is not None else _text_or_binary(head)


def _text_or_binary(head: bytes) -> BodyKind:
    if _TEXT_BOM.match(head) is None and _BINARY_BYTES.search(head) is not None:
        return BodyKind.BINARY
    return BodyKind.TEXT
