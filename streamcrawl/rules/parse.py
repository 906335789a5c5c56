"""What does a page say: its title, its links, and whether it wants them followed?

Pure: bytes in, a `Page` out, for any bytes at all. Start at `parse_html`; `body_kind` (sniff.py) says whether to call
it and `charset_of` (charset.py) with what. Nothing here asks whether a link is in scope. HTML is read by lexbor
(selectolax), in one pass over the elements that matter.

Sources: the HTML Standard (document base URL, declarative refresh); Google's description of robots meta tags and
X-Robots-Tag, which is all the specification they have.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from streamcrawl.rules.charset import codec_of, decode_body
from streamcrawl.rules.urls import canonical_url, split_url

if TYPE_CHECKING:
    from collections.abc import Mapping

TITLE_MAX_CHARS: Final = 1000
BASE_MAX_CHARS: Final = 2083
"""A longer `<base href>` is ignored: 50,000 short links against one of a megabyte would fill the memory."""

_ELEMENTS: Final = "a[href],area[href],link[href],iframe[src],frame[src],base[href],meta[content],title:not(svg title)"
_LINK_RELS: Final = frozenset({"next", "alternate", "canonical"})
_REFRESH: Final = re.compile(
    r"[\t\n\f\r ]*+(?=[0-9.])([0-9]*+)[0-9.]*+(?:[\t\n\f\r ]*+[;,]|[\t\n\f\r ])[\t\n\f\r ]*+"
    r"(?:url[\t\n\f\r ]*+=[\t\n\f\r ]*+)?+(?:'([^']*)|\"([^\"]*)|(.*))",
    re.IGNORECASE | re.DOTALL,
)
_REFRESH_MAX_CHARS: Final = 4096
_SECONDS_DIGITS_MAX: Final = 9
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
_REMEMBERED_MAX_CHARS: Final = 512
"""Longer references are resolved each time: thousands of `data:` URLs of 100 kB, remembered, would fill the memory."""
REMEMBERED_MAX: Final = 16_384
"""References and folders; about 5 MB."""
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
    refresh: str | None = None
    """Where the page sends its visitors by itself (its first meta refresh, outside of `noscript`), if not to itself and
    not with nofollow. It is one of `links` too."""
    refresh_ms: int = 0
    """After how long."""


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
    refresh: tuple[str, int] | None = None
    for node in LexborHTMLParser(bounded_markup(decode_body(body, charset))).css(_ELEMENTS):
        tag = node.tag
        attributes = node.attributes
        if tag == "a" and "rel" not in attributes:
            # Nearly every node comes this way.
            references[_href_in(attributes).partition("#")[0]] = None
        elif tag == "meta":
            content = attributes.get("content") or ""
            if (attributes.get("name") or "").strip().lower() == "robots":
                directives |= _split_directives(content)
            elif (attributes.get("http-equiv") or "").strip().lower() == "refresh":
                match = _REFRESH.match(content[:_REFRESH_MAX_CHARS])
                reference = "" if match is None else (match[2] or match[3] or match[4] or "").partition("#")[0]
                if match is not None and reference:
                    references[reference] = None
                    if refresh is None and not _is_in_noscript(node):
                        digits = match[1].lstrip("0")[: _SECONDS_DIGITS_MAX + 1]
                        refresh = reference, int(digits or "0") * 1000
        elif tag == "title":
            if title is None:
                title = " ".join(node.text().split())[:TITLE_MAX_CHARS].rstrip()
        elif tag == "base":
            if base_text is None:
                base_text = attributes.get("href") or ""
        else:
            rel = attributes.get("rel")
            rels = rel.lower().split() if rel else ()
            if "nofollow" in rels:
                continue
            if tag == "link" and ("stylesheet" in rels or _LINK_RELS.isdisjoint(rels)):
                continue
            # Without the fragment already here: an index refers to one page hundreds of times.
            reference = (attributes.get("src") or "") if tag in ("iframe", "frame") else _href_in(attributes)
            references[reference.partition("#")[0]] = None

    base = url
    if base_text and len(base_text) <= BASE_MAX_CHARS:
        base = canonical_url(base_text, url) or url
    nofollow = not directives.isdisjoint(("nofollow", "none"))
    links, links_cut = ((), 0) if nofollow else _resolve(references, url, base, charset, links_max)
    sent_to = None if refresh is None or nofollow else _resolve({refresh[0]: None}, url, base, charset, 1)[0]
    return Page(
        title=title or None,
        links=links,
        nofollow=nofollow,
        noindex=not directives.isdisjoint(("noindex", "none")),
        links_cut=links_cut,
        base=base,
        refresh=sent_to[0] if sent_to else None,
        refresh_ms=refresh[1] if refresh is not None and sent_to else 0,
    )


def _href_in(attributes: Mapping[str, str | None]) -> str:
    """Return where a link leads; `[href]` also finds the `xlink:href` of a drawing, which is called otherwise here."""
    return attributes.get("href") or attributes.get("xlink:href") or ""


def _is_in_noscript(node: LexborNode) -> bool:
    """Return whether only visitors without scripts are meant: whole pages send those to one that asks for scripts."""
    parent, left = node.parent, _DEPTH_MAX
    while parent is not None and left > 0:
        if parent.tag == "noscript":
            return True
        parent, left = parent.parent, left - 1
    return False


class KnownLinks:
    """What references were resolved to, by the part of the base that they depend on: the root, or a folder.

    One look at a dict instead of finding out first what a reference depends on: half of what a known link costs.
    """

    def __init__(self) -> None:
        self._by_base: dict[str, dict[str, str]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, base: str) -> dict[str, str]:
        """Return the links of references that depend on this base alone; '' for one that is no link."""
        known = self._by_base.get(base)
        if known is None:
            self._make_room()
            known = self._by_base[base] = {}
        return known

    def resolve(self, reference: str, base: str, known: dict[str, str]) -> str | None:
        """Return the link and remember it in `known`, which `of` gave."""
        link = canonical_url(reference, base)
        self._make_room()
        known[reference] = link or ""  # `javascript:` and the like stand in every menu
        return link

    def _make_room(self) -> None:
        if self._count >= REMEMBERED_MAX:
            self._by_base.clear()  # what is in use is known again within a page
            self._count = 0
        self._count += 1


KNOWN: Final = KnownLinks()


def _resolve(
    references: dict[str, None], url: str, base: str, charset: str | None, links_max: int
) -> tuple[tuple[str, ...], int]:
    """Return the links of a page, and how many references were left unread behind the last of them."""
    query_codec = _query_codec(charset)
    host, path = split_url(base)
    root, folder = host + "/", host + path.partition("?")[0].rpartition("/")[0] + "/"
    # Apart even where the folder is the root: `x` of a page there must not be taken for the `x` of another folder.
    in_folder, in_root = KNOWN.of(folder), KNOWN.of(host)
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
        link = in_folder.get(reference)
        if link is None:
            link = in_root.get(reference)
        if link is not None:
            if link and link != url:
                links[link] = None
            continue
        first, second = reference[:1], reference[1:2]
        if len(reference) + len(folder) > _REMEMBERED_MAX_CHARS:
            link = canonical_url(reference, base)
        elif first == "/" and second not in ("/", "\\"):
            link = KNOWN.resolve(reference, root, in_root)
        elif first.isalnum() or first == ".":
            link = KNOWN.resolve(reference, folder, in_folder)
        else:
            link = canonical_url(reference, base)
        if link is not None and link != url:
            links[link] = None
    return tuple(links), links_cut


def _query_codec(charset: str | None) -> str | None:
    """Return the codec in which a page's links write their query; None for UTF-8, which the URL parser does."""
    codec = None if charset is None else codec_of(charset)
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

# -- and how many attributes may a tag have?

_CHARS_TRUSTED: Final = 16_384
"""A page of less has no tag with more attributes than some 5,000, which take 50 ms."""
_ATTRIBUTE: Final = (
    r"[\t\n\f\r /]*+[^\t\n\f\r />][^\t\n\f\r />=]*+"
    r"""(?:[\t\n\f\r ]*+=[\t\n\f\r ]*+(?:"[^"]*+"?+|'[^']*+'?+|[^\t\n\f\r >]*+))?+"""
)
"""As the HTML Standard cuts a tag: a `>` in quotes does not end it."""
_TAG_OF_FEW: Final = rf"<[a-zA-Z][^\t\n\f\r />]*+(?:{_ATTRIBUTE}){{0,1000}}+"
_ALL_OF_FEW: Final = re.compile(rf"(?:[^<]++|{_TAG_OF_FEW}[\t\n\f\r /]*+(?:>|\Z)|<(?![a-zA-Z]))*+\Z")
_TAG_OF_MANY: Final = re.compile(rf"({_TAG_OF_FEW})(?:{_ATTRIBUTE})*+")


def _trimmed(text: str) -> str:
    """Return a page in which no tag has more than 1,000 attributes; those beyond are left out.

    The tree builder compares each with all before it: 100 kB of them in one tag took a second, and 1 MB minutes
    (selectolax 1.0.2). What looks like a tag inside of a script is cut as well, which no link is lost by.
    """
    if len(text) <= _CHARS_TRUSTED or _ALL_OF_FEW.match(text) is not None:
        return text
    return _TAG_OF_MANY.sub(r"\1", text)


def bounded_markup(text: str) -> str:
    """Return a page that a parser reads in time that grows with its length; its links are where they were."""
    return _flattened(_trimmed(text))


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
