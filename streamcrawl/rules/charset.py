"""In which encoding is a body written, and what does it say?

Pure: bytes in, a name or text out, for any bytes at all. Start at `charset_of`. The order is that of browsers: BOM, the
header's parameter, a `<meta>` in the first 1024 bytes, one further down (which makes a browser begin anew), and only
then a guess from the bytes. A name is always one of Python's codecs, but means what browsers take a label for:
`latin1` and `ascii` are windows-1252, `gb2312` is gbk, `shift_jis` is cp932.

The guess is that of chardetng, Firefox's detector: of 27 short texts in as many pairs of language and encoding it and
faust-cchardet named all, charset-normalizer 22; chardetng took 0.02 ms a text, the others 1 and 15 ms (2026-11-30).
The labels are a table of our own: the webencodings package has those of 2017, without a third of the names for
UTF-8 and UTF-16, and Python's narrower codecs for the East Asian ones.

Sources: the HTML Standard, 13.2.3 (encoding sniffing, its prescan, changing the encoding while parsing); the Encoding
Standard, sections 4.2 (labels) and 9 (single-byte decoders); RFC 8259 section 8.1 (JSON).
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from chardetng_py import EncodingDetector  # type: ignore[import-untyped]

from streamcrawl.rules.sniff import BodyKind

if TYPE_CHECKING:
    from collections.abc import Iterator

PRESCANNED_BYTES: Final = 1024
"""HTML Standard, 13.2.3.2: where a declaration of the encoding must end."""
PRESCANNED_LATE_BYTES: Final = 65_536
"""Where we stop to look for one that comes too late: heads of real pages with inlined styles end before."""
GUESSED_BYTES: Final = 16_384
"""From the first byte that is not ASCII on: enough for any guess, and 5 ms at the worst."""
_UTF8_FAULTS: Final = 10
"""A body is still UTF-8 with one fault to so many of its multi-byte characters: a description that was cut in the
middle of one is common, and other encodings do not make sequences of UTF-8 by chance."""

_LABELS_BY_CODEC: Final = """
utf-8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8
ibm866 866 cp866 csibm866 ibm866
iso-8859-2 csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2
iso-8859-3 csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3
iso-8859-4 csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4
iso-8859-5 csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988
iso-8859-6 arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e iso-8859-6-i
iso-8859-6 iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987
iso-8859-7 csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7
iso-8859-7 iso_8859-7:1987 sun_eu_greek
iso-8859-8 csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8
iso-8859-8 iso_8859-8:1988 visual csiso88598i iso-8859-8-i logical
iso-8859-10 csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6
iso-8859-13 iso-8859-13 iso8859-13 iso885913
iso-8859-14 iso-8859-14 iso8859-14 iso885914
iso-8859-15 csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9
iso-8859-16 iso-8859-16
koi8-r cskoi8r koi koi8 koi8-r koi8_r
koi8-u koi8-ru koi8-u
macintosh csmacintosh mac macintosh x-mac-roman
cp874 dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874
windows-1250 cp1250 windows-1250 x-cp1250
windows-1251 cp1251 windows-1251 x-cp1251
windows-1252 ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591
windows-1252 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252 x-user-defined
windows-1253 cp1253 windows-1253 x-cp1253
windows-1254 cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5
windows-1254 windows-1254 x-cp1254
windows-1255 cp1255 windows-1255 x-cp1255
windows-1256 cp1256 windows-1256 x-cp1256
windows-1257 cp1257 windows-1257 x-cp1257
windows-1258 cp1258 windows-1258 x-cp1258
mac-cyrillic x-mac-cyrillic x-mac-ukrainian
gbk chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk
gb18030 gb18030
big5hkscs big5 big5-hkscs cn-big5 csbig5 x-x-big5
euc-jp cseucpkdfmtjapanese euc-jp x-euc-jp
iso-2022-jp csiso2022jp iso-2022-jp
cp932 csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis
cp949 cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 windows-949
utf-16-be unicodefffe utf-16be
utf-16-le csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le
"""
"""Python's codec, and the WHATWG labels that mean it. The labels of `replacement` (hz-gb-2312, iso-2022-kr, ...) are
left out: pages in them are not worth a decoder, so they count as undeclared. x-user-defined means windows-1252 in a
`<meta>`, and so it does here in a header."""
_CODEC_BY_LABEL: Final = {
    label: codec
    for codec, *labels in map(str.split, _LABELS_BY_CODEC.strip().splitlines())
    for label in (codec, *labels)
}
_DECODER_BY_CODEC: Final = {"gbk": "gb18030"}
"""The Encoding Standard decodes GBK with its superset, so that characters added since 1995 are read."""
_C1: Final = "streamcrawl.c1"
"""Error handler of `_c1`."""
_C1_CODECS: Final = frozenset(codec for codec in _CODEC_BY_LABEL.values() if codec.startswith("windows-")) | {"cp874"}
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))
_FALLBACK: Final = "windows-1252"
"""Of pages in ASCII too: so browsers read them, and encode the queries of their links."""
_LABEL_SPACE: Final = "\t\n\f\r "
_CHARSET_PARAMETER: Final = re.compile(r";\s*charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^;\s]*))", re.IGNORECASE)
_CHARSET_IN_CONTENT: Final = re.compile(
    r"charset[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"([^\"]*)\"|'([^']*)'|([^\"'\t\n\f\r ;][^\t\n\f\r ;]*))", re.IGNORECASE
)
_XML_DECLARATION: Final = re.compile(
    rb"<\?xml[^>]*?encoding[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"([^\">]*+)\"|'([^'>]*+)')[^>]*+>"
)
_NOT_ASCII: Final = re.compile(rb"[\x80-\xff\x1b]")
"""The escape counts: ISO-2022-JP is made of it and of ASCII."""
_RAW_TEXT_END: Final = {
    name: re.compile(rb"</" + name + rb"(?=[\t\n\f\r />])", re.IGNORECASE)
    for name in (b"script", b"style", b"title", b"textarea", b"xmp", b"iframe", b"noembed", b"noframes")
}
"""Elements in which a `<meta` is text."""
_LATE_META: Final = re.compile(rb"<meta[\t\n\f\r /][^>]{0,512}charset")
_META_START: Final = re.compile(rb"<meta(?=[\t\n\f\r /])", re.IGNORECASE)
_TAG_START: Final = re.compile(rb"</?[A-Za-z][^\t\n\f\r >]*+")
_ATTRIBUTE: Final = re.compile(
    rb"[\t\n\f\r /]*+(?P<name>=?[^\t\n\f\r />=]*+)"
    rb"(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<bare>[^\t\n\f\r >]*+)))?"
)


def charset_of(label: str | None, body: bytes, kind: BodyKind) -> str | None:
    """Return the encoding of a body; None for a binary one.

    Args:
        label: The charset parameter of Content-Type; one nobody knows counts as none.
        body: All of it, decompressed.
        kind: HTML is asked for a `<meta>`, HTML and XML for an XML declaration. XML that says nothing is UTF-8.
    """
    if kind is BodyKind.BINARY:
        return None
    declared = declared_charset(label, body, kind)
    if declared is not None:
        return declared
    return "utf-8" if kind is BodyKind.XML else _guessed(body)


def declared_charset(label: str | None, body: bytes, kind: BodyKind = BodyKind.HTML) -> str | None:
    """Return the encoding that a body or its header declares, None if neither does."""
    for bom, codec in _BOMS:
        if body.startswith(bom):
            return codec
    named = None if label is None else codec_of(label)
    if named is not None or kind is BodyKind.TEXT:
        return named
    head = body[:PRESCANNED_BYTES]
    if kind is BodyKind.XML:
        return _declared_in_xml(head)
    return _prescan(head) or _declared_in_xml(head) or _declared_late(body)


def decode_body(body: bytes, charset: str | None) -> str:
    """Return the text of a body without its BOM; bytes that mean nothing become U+FFFD.

    Without a charset, or with one nobody knows, it is guessed from the bytes.
    """
    codec = (None if charset is None else codec_of(charset)) or _guessed(body)
    errors = _C1 if codec in _C1_CODECS else "replace"
    return body.decode(_DECODER_BY_CODEC.get(codec, codec), errors).removeprefix("\ufeff")


def decoder_of(charset: str) -> codecs.IncrementalDecoder:
    """Return a decoder of text that comes in pieces, as `decode_body` reads it; of UTF-8 for a charset nobody knows."""
    codec = codec_of(charset) or "utf-8"
    errors = _C1 if codec in _C1_CODECS else "replace"
    return codecs.getincrementaldecoder(_DECODER_BY_CODEC.get(codec, codec))(errors)


def _c1(error: UnicodeError) -> tuple[str, int]:
    """Decode bytes that Python's windows code pages lack: to controls below 0xA0, as browsers do, else to U+FFFD."""
    assert isinstance(error, UnicodeDecodeError)
    missing = error.object[error.start : error.end]
    return "".join(chr(byte) if byte < 0xA0 else "\ufffd" for byte in missing), error.end


codecs.register_error(_C1, _c1)


def _guessed(body: bytes) -> str:
    """Return the encoding that the bytes look like."""
    first = _NOT_ASCII.search(body)
    if first is None:
        return _FALLBACK
    if _is_utf8(body):
        return "utf-8"
    detector = EncodingDetector()
    end = first.start() + GUESSED_BYTES
    detector.feed(body[first.start() : end], last=end >= len(body))
    return codec_of(detector.guess(tld=None, allow_utf8=False)) or _FALLBACK


def _is_utf8(body: bytes) -> bool:
    text = body.decode("utf-8", "replace")
    sequences = len(body) - len(text)  # each has at least one byte more than it has characters
    return 0 < sequences >= _UTF8_FAULTS * text.count("\ufffd")


@lru_cache(maxsize=256)
def codec_of(label: str) -> str | None:
    """Return Python's codec for what browsers understand by a label; None for one that they do not know."""
    return _CODEC_BY_LABEL.get(label.strip(_LABEL_SPACE).lower())


def _declared_late(body: bytes) -> str | None:
    """Return the encoding of a `<meta>` behind the first 1024 bytes: a parser that meets it begins anew."""
    head = body[:PRESCANNED_LATE_BYTES]
    # Lowered and searched as a whole: the walk over all tags of a page takes up to 25 ms.
    return _prescan(head, is_parsing=True) if _LATE_META.search(head.lower()) is not None else None


def _prescan(head: bytes, *, is_parsing: bool = False) -> str | None:
    """Return the encoding of the first `<meta>` that declares one (HTML Standard, "prescan a byte stream").

    With `is_parsing` tags inside of scripts, styles and the like are text, as they are to a parser.
    """
    at = head.find(b"<")
    while at >= 0:
        if head.startswith(b"<!--", at):
            # The dashes that open a comment may close it: <!--> is one.
            end = head.find(b"-->", at + 2)
            at = end + 2 if end >= 0 else len(head)
        elif meta := _META_START.match(head, at):
            attributes = _Attributes(head, meta.end())
            codec = _declared_in_meta(dict(reversed(list(attributes))))
            if codec is not None and not attributes.is_cut:
                return codec
            at = attributes.at
        elif tag := _TAG_START.match(head, at):
            attributes = _Attributes(head, tag.end())
            for _ in attributes:
                pass  # only to find the end of the tag: a `>` in a value does not end it
            at = attributes.at
            raw_text_end = _RAW_TEXT_END.get(tag[0][1:].lower()) if is_parsing else None
            if raw_text_end is not None:
                end_tag = raw_text_end.search(head, at)
                at = end_tag.start() if end_tag is not None else len(head)
        elif head[at + 1 : at + 2] in (b"!", b"/", b"?"):
            end = head.find(b">", at)
            at = end if end >= 0 else len(head)
        else:
            at += 1
        at = head.find(b"<", at)
    return None


def _declared_in_xml(head: bytes) -> str | None:
    declaration = _XML_DECLARATION.match(head)
    if declaration is None:
        return None
    return _codec_in_bytes((declaration[1] or declaration[2] or b"").decode("latin-1"))


class _Attributes:
    """Iterates over (name, value) of one tag's attributes, in lower case, from `at`; afterwards `at` is its end."""

    def __init__(self, head: bytes, at: int) -> None:
        self.at = at
        self.is_cut = False
        """The bytes ended inside the tag."""
        self._head = head

    def __iter__(self) -> Iterator[tuple[str, str]]:
        while True:
            match = _ATTRIBUTE.match(self._head, self.at)
            assert match is not None  # every part of the pattern may be empty
            self.at = match.end()
            bare = match["bare"] or b""
            self.is_cut = self.at >= len(self._head) or bare[:1] in (b'"', b"'")
            if self.is_cut:
                self.at = len(self._head)
                return
            if not match["name"]:
                return
            value = match["double"] or match["single"] or bare
            yield match["name"].decode("latin-1").lower(), value.decode("latin-1").lower()


def _declared_in_meta(attributes: dict[str, str]) -> str | None:
    label = attributes.get("charset")
    if label is None and attributes.get("http-equiv") == "content-type":
        match = _CHARSET_IN_CONTENT.search(attributes.get("content", ""))
        label = None if match is None else match[1] or match[2] or match[3]
    return None if label is None else _codec_in_bytes(label)


def _codec_in_bytes(label: str) -> str | None:
    """Return the codec of a label that could be read byte by byte: so it is not UTF-16, whatever it says."""
    codec = codec_of(label)
    return "utf-8" if codec in ("utf-16-be", "utf-16-le") else codec
