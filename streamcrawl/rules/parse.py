"""What does a page say: its title, its links, and whether it wants them followed?

Pure: bytes in, a `Page` out, for any bytes at all. Start at `parse_html`; `sniff_html` says whether to call it and
`charset_of` with what. Nothing here asks whether a link is in scope. HTML is read by lexbor (selectolax), in one
pass over the elements that matter.

Sources: the HTML Standard (document base URL, encoding sniffing and its prescan, declarative refresh); the MIME
Sniffing Standard, section 7.1; the Encoding Standard, section 4.2 (labels); Google's description of robots meta tags
and X-Robots-Tag, which is all the specification they have.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

import msgspec
from selectolax.lexbor import LexborHTMLParser

from streamcrawl.rules.urls import canonical_url, resolved, split_url

if TYPE_CHECKING:
    from collections.abc import Iterator

TITLE_MAX_CHARS: Final = 1000
BASE_MAX_CHARS: Final = 2083
"""A longer `<base href>` is ignored: 50,000 short links against one of a megabyte would fill the memory."""
SNIFFED_BYTES: Final = 1445
"""MIME Sniffing Standard, section 5.2: the size of a resource header."""
PRESCANNED_BYTES: Final = 1024
"""HTML Standard, 13.2.3.2: where a declaration of the encoding must end."""

_ELEMENTS: Final = "a[href],area[href],link[href],iframe[src],frame[src],base[href],meta[content],title:not(svg title)"
_LINK_RELS: Final = frozenset({"next", "alternate", "canonical"})
_REFRESH: Final = re.compile(
    r"[\t\n\f\r ]*+[0-9.]++(?:[\t\n\f\r ]*+[;,]|[\t\n\f\r ])[\t\n\f\r ]*+"
    r"(?:url[\t\n\f\r ]*+=[\t\n\f\r ]*+)?(?:'([^']*)|\"([^\"]*)|(.+))",
    re.IGNORECASE | re.DOTALL,
)
_REFRESH_MAX_CHARS: Final = 4096
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_REMEMBERED_MAX_CHARS: Final = 512
"""Longer references are resolved each time: thousands of `data:` URLs of 100 kB, remembered, would fill the memory."""
_QUERY_SAFE: Final = "@[\\]^`{|}"
"""What the query percent-encode set leaves alone and urllib would not, but `&#;`: they may come from a reference."""


class Page(msgspec.Struct, frozen=True):
    """What a crawl needs to know of one HTML page."""

    title: str | None
    """White space collapsed, at most 1000 characters; None when there is none or it is empty."""
    links: tuple[str, ...]
    """Canonical URLs in the order of the page, distinct, without the page's own."""
    nofollow: bool
    """The page asks, by meta robots or X-Robots-Tag, that its links be left alone; then `links` is empty."""
    noindex: bool
    links_cut: int
    """Different references that were not read any more once `links_max` links had been found."""
    base: str
    """What relative references are read against: the page's URL, or its first `<base href>`."""


def parse_html(
    body: bytes, url: str, *, charset: str | None, robots_tag: str | None = None, links_max: int = 50_000
) -> Page:
    """Return what a page says. Never raises, whatever the bytes are.

    Links are those of `a`, `area`, `iframe` and `frame`, of `link` with rel next, alternate (but no alternate
    stylesheet) or canonical, and of a meta refresh. One with rel=nofollow is left out; `ugc` and `sponsored` only say
    who wrote a link, and are followed. So are links inside `noscript`, as we run no scripts; not those of `template`.

    Args:
        url: The canonical URL the body came from, after redirects.
        charset: The encoding from `charset_of`; None guesses (see `decode_body`).
        robots_tag: The X-Robots-Tag header; several of them joined by a line feed. None when there was none.
        links_max: How many links are taken.
    """
    base_text: str | None = None
    title: str | None = None
    directives = _header_directives(robots_tag) if robots_tag else set()
    references: dict[str, None] = {}
    for node in LexborHTMLParser(_flattened(decode_body(body, charset))).css(_ELEMENTS):
        tag = node.tag
        attributes = node.attributes
        if tag == "a" and "rel" not in attributes:
            # Nearly every node comes this way.
            references[(attributes["href"] or "").partition("#")[0]] = None
        elif tag == "meta":
            content = attributes["content"] or ""
            if (attributes.get("name") or "").strip().lower() == "robots":
                directives |= _split_directives(content)
            elif (attributes.get("http-equiv") or "").strip().lower() == "refresh":
                match = _REFRESH.match(content[:_REFRESH_MAX_CHARS])
                if match is not None:
                    references[(match[1] or match[2] or match[3] or "").partition("#")[0]] = None
        elif tag == "title":
            if title is None:
                title = " ".join(node.text().split())[:TITLE_MAX_CHARS].rstrip()
        elif tag == "base":
            if base_text is None:
                base_text = attributes["href"] or ""
        else:
            rel = attributes.get("rel")
            rels = rel.lower().split() if rel else ()
            if "nofollow" in rels:
                continue
            if tag == "link" and ("stylesheet" in rels or _LINK_RELS.isdisjoint(rels)):
                continue
            # Without the fragment already here: an index refers to one page hundreds of times.
            reference = attributes["src" if tag in ("iframe", "frame") else "href"] or ""
            references[reference.partition("#")[0]] = None

    base = url
    if base_text and len(base_text) <= BASE_MAX_CHARS:
        base = canonical_url(base_text, url) or url
    nofollow = not directives.isdisjoint(("nofollow", "none"))
    links, links_cut = ((), 0) if nofollow else _resolve(references, url, base, charset, links_max)
    return Page(
        title=title or None,
        links=links,
        nofollow=nofollow,
        noindex=not directives.isdisjoint(("noindex", "none")),
        links_cut=links_cut,
        base=base,
    )


def _resolve(
    references: dict[str, None], url: str, base: str, charset: str | None, links_max: int
) -> tuple[tuple[str, ...], int]:
    """Return the links of a page, and how many references were left unread behind the last of them."""
    query_codec = _query_codec(charset)
    host, path = split_url(base)
    root, folder = host + "/", host + path.partition("?")[0].rpartition("/")[0] + "/"
    links: dict[str, None] = {}
    links_cut = 0
    for position, reference in enumerate(references):
        if len(links) >= links_max:
            links_cut = len(references) - position
            break
        if query_codec is not None and not reference.isascii():
            reference = _encode_query(reference, query_codec)
        # A site's pages repeat their navigation: read against as little of the base as counts, most references have
        # been resolved before (a fifth of a page's parse time, 2026-11-30).
        first, second = reference[:1], reference[1:2]
        if len(reference) + len(folder) > _REMEMBERED_MAX_CHARS:
            link = canonical_url(reference, base)
        elif first == "/" and second not in ("/", "\\"):
            link = resolved(reference, root)
        elif first.isalnum() or first == ".":
            link = resolved(reference, folder)
        else:
            link = canonical_url(reference, base)
        if link is not None and link != url:
            links[link] = None
    return tuple(links), links_cut


def _query_codec(charset: str | None) -> str | None:
    """Return the codec in which a page's links write their query; None for UTF-8, which the URL parser does."""
    codec = None if charset is None else _codec_of(charset)
    return None if codec is None or codec.startswith("utf-") else codec


def _encode_query(reference: str, codec: str) -> str:
    """Percent-encode the query as browsers do: in the page's encoding, the rest of a URL being UTF-8 always.

    A site in windows-1251 finds nothing under the UTF-8 form of its own search links.
    """
    path, mark, query = reference.partition("?")
    encoded = _NOT_ASCII.sub(
        lambda match: quote_from_bytes(match[0].encode(codec, "xmlcharrefreplace"), safe=_QUERY_SAFE), query
    )
    return path + mark + encoded


def _split_directives(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


_VALUED_DIRECTIVES: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_AGENTS_MEANT: Final = frozenset({"robots", "*"})


def _header_directives(robots_tag: str) -> set[str]:
    """Return the directives for every robot; those after another one's name (`otherbot: nofollow`) are not ours."""
    found: set[str] = set()
    for line in robots_tag.splitlines():
        is_meant = True
        for word in line.lower().split(","):
            name, colon, rest = word.strip().partition(":")
            directive = name.strip()
            if colon and directive not in _VALUED_DIRECTIVES:
                is_meant = directive in _AGENTS_MEANT
                directive = rest.strip()
            if is_meant:
                found.add(directive)
    return found


# -- how deep may it nest?

_TAGS_TRUSTED: Final = 1000
"""A page of fewer tags is parsed as it is: the worst of them takes some 50 ms."""
_DEPTH_MAX: Final = 512
"""Where Chromium stops nesting too."""
_FORMATTING_DEPTH_MAX: Final = 16
_FORMATTING: Final = frozenset(
    ("b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"),
)
_NOT_COUNTED: Final = frozenset(
    (
        # Void, or ended by what follows without an end tag: often left open, and never deep by themselves.
        *("area", "base", "br", "col", "embed", "frame", "hr", "image", "img", "input", "link", "meta", "param"),
        *("source", "track", "wbr", "path", "rect", "circle", "line", "polygon", "polyline", "ellipse", "use", "stop"),
        *("html", "head", "body", "a", "p", "li", "dt", "dd", "option", "optgroup", "rt", "rp"),
        *("tr", "td", "th", "thead", "tbody", "tfoot", "colgroup"),
        # What is inside is text: without its tag a script would become markup.
        *("script", "style", "textarea", "title", "iframe", "noframes", "noembed", "noscript", "xmp", "plaintext"),
    )
)
_TAG: Final = re.compile(r"<(/?)([a-z][^\t\n\f\r />]*+)", re.IGNORECASE)


def _flattened(text: str) -> str:
    """Return a page in which no more than 512 elements are open at a time, and no more than 16 that format text.

    The tree builder of the HTML Standard, and so any parser, is quadratic in nesting: 40,000 open `<div>` took 3 s and
    100,000 took 13 s; and it opens all unclosed formatting elements anew in each block: 75 kB of `<font size=N><p>`
    made 8 million nodes in 9 s (selectolax 1.0.2). Start tags beyond become `<wbr`, which holds nothing; the links
    are where they were.
    """
    if text.count("<") <= _TAGS_TRUSTED:
        return text
    opened: dict[str, int] = {}
    depth = formatting_depth = kept_to = 0
    pieces: list[str] = []
    for match in _TAG.finditer(text):
        slash, name = match.groups()
        name = name.lower()
        if name in _NOT_COUNTED:
            continue
        step = -1 if slash else 1
        if slash:
            if not opened.get(name):
                continue
        elif depth >= _DEPTH_MAX or (name in _FORMATTING and formatting_depth >= _FORMATTING_DEPTH_MAX):
            pieces += text[kept_to : match.start()], "<wbr"
            kept_to = match.end()
            continue
        opened[name] = opened.get(name, 0) + step
        depth += step
        if name in _FORMATTING:
            formatting_depth += step
    return "".join((*pieces, text[kept_to:]))


# -- is it HTML?

_HTML_TYPES: Final = frozenset({"text/html", "application/xhtml+xml"})
_UNKNOWN_TYPES: Final = frozenset(
    {"", "application/octet-stream", "unknown/unknown", "application/unknown", "*/*"},
)
_HTML_START: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*+<(?:!--|(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title"
    rb"|body|br|b|p)[ >])",
    re.IGNORECASE,
)


def sniff_html(content_type: str | None, head: bytes) -> bool:
    """Return whether a body is to be read as HTML.

    The type says so (text/html, application/xhtml+xml), or it is missing or says nothing (application/octet-stream
    and the like) and the first 1445 bytes begin as HTML does. A BOM before that does not count, as it would in a
    browser: such a page is meant to be one.

    Args:
        content_type: The header, with its parameters or without.
        head: The first bytes of the body, decompressed.
    """
    essence = (content_type or "").partition(";")[0].strip().lower()
    if essence in _HTML_TYPES:
        return True
    if essence in _UNKNOWN_TYPES or "/" not in essence:
        return _HTML_START.match(head[:SNIFFED_BYTES]) is not None
    return False


# -- in which encoding?

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
windows-1252 iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252
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
"""Python's codec, and the WHATWG labels that mean it. The labels of `replacement` (hz-gb-2312, iso-2022-kr, ...) and
x-user-defined are left out: pages in them are not worth a decoder, so they count as undeclared."""
_CODEC_BY_LABEL: Final = {
    label: codec
    for codec, *labels in map(str.split, _LABELS_BY_CODEC.strip().splitlines())
    for label in (codec, *labels)
}
_DECODER_BY_CODEC: Final = {"gbk": "gb18030"}
"""The Encoding Standard decodes GBK with its superset, so that characters added since 1995 are read."""
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"))
_FALLBACK: Final = "windows-1252"
_LABEL_SPACE: Final = "\t\n\f\r "
_CHARSET_PARAMETER: Final = re.compile(r";\s*charset\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^;\s]*))", re.IGNORECASE)
_CHARSET_IN_CONTENT: Final = re.compile(
    r"charset[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"([^\"]*)\"|'([^']*)'|([^\"'\t\n\f\r ;][^\t\n\f\r ;]*))", re.IGNORECASE
)
_XML_DECLARATION: Final = re.compile(
    rb"<\?xml[^>]*?encoding[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"([^\">]*+)\"|'([^'>]*+)')[^>]*+>"
)
_META_START: Final = re.compile(rb"<meta(?=[\t\n\f\r /])", re.IGNORECASE)
_TAG_START: Final = re.compile(rb"</?[A-Za-z][^\t\n\f\r >]*+")
_ATTRIBUTE: Final = re.compile(
    rb"[\t\n\f\r /]*+(?P<name>=?[^\t\n\f\r />=]*+)"
    rb"(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^']*+)'|(?P<bare>[^\t\n\f\r >]*+)))?"
)


def charset_of(content_type: str | None, head: bytes) -> str | None:
    """Return the encoding a body declares, None if it declares none.

    A BOM goes before the header's parameter, that before a `<meta>`, and that before an XML declaration.

    The name is one of Python's codecs, but means what browsers take the label for: `latin1` and `ascii` are
    windows-1252, `gb2312` is gbk, `shift_jis` is cp932. A label nobody knows counts as none.

    Args:
        content_type: The Content-Type header.
        head: The first bytes of the body, decompressed, of which 1024 are searched for a `<meta>`.
    """
    for bom, codec in _BOMS:
        if head.startswith(bom):
            return codec
    match = _CHARSET_PARAMETER.search(content_type or "")
    if match is not None:
        codec_named = _codec_of(match[1] or match[2] or match[3] or "")
        if codec_named is not None:
            return codec_named
    return _prescan(head[:PRESCANNED_BYTES])


def decode_body(body: bytes, charset: str | None) -> str:
    """Return the text of a body without its BOM; bytes that mean nothing become U+FFFD.

    Without a charset, or with one nobody knows, the body is UTF-8 if it can be, else windows-1252.
    """
    codec = None if charset is None else _codec_of(charset)
    if codec is None:
        try:
            return body.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError:
            codec = _FALLBACK
    return body.decode(_DECODER_BY_CODEC.get(codec, codec), "replace").removeprefix("\ufeff")


def _codec_of(label: str) -> str | None:
    return _CODEC_BY_LABEL.get(label.strip(_LABEL_SPACE).lower())


def _prescan(head: bytes) -> str | None:
    """Return the encoding of the first `<meta>` that declares one (HTML Standard, "prescan a byte stream")."""
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
        elif head[at + 1 : at + 2] in (b"!", b"/", b"?"):
            end = head.find(b">", at)
            at = end if end >= 0 else len(head)
        else:
            at += 1
        at = head.find(b"<", at)
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
    codec = _codec_of(label)
    return "utf-8" if codec in ("utf-16-be", "utf-16-le") else codec
