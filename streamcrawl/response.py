"""What a user's program touches of one fetched page: Response, Request, Retry and Drop.

A handler is a function of one `Response`. It may be sync (then it runs in a thread) or async, and may return or yield
any number of `Request`s (they go to the frontier) and items (anything else; they go to the sinks). Start at `Response`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from selectolax.lexbor import LexborHTMLParser

from streamcrawl.rules.charset import charset_of, decode_body
from streamcrawl.rules.parse import Page, bounded_markup, parse_html
from streamcrawl.rules.sniff import SNIFFED_BYTES, BodyKind, body_kind
from streamcrawl.rules.task import NO_ASK, Ask, Level
from streamcrawl.rules.urls import canonical_url
from streamcrawl.rules.xpath import find, tree_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selectolax.lexbor import LexborNode

    from streamcrawl.rules.task import CrawlTask
    from streamcrawl.web.fetcher import Answer


class Retry(Exception):
    """Raised by a handler: try this page again, counting an attempt.

    Args:
        after_s: Seconds to wait; None leaves it to the crawl's back-off.
    """

    def __init__(self, message: str = "the handler asked for a retry", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Drop(Exception):
    """Raised by a handler: end this page without items; `reason` (letters, digits, underscores) is counted.

    Of reasons that are made up each stage has 50 counters; all further ones count as `other`.
    """

    def __init__(self, reason: str = "handler") -> None:
        super().__init__(reason)
        self.reason = reason


META_MAX_BYTES: Final = 4096
"""Of `meta` as JSON: it is kept in Redis with its task, of which there may be millions."""
BODY_MAX_BYTES: Final = 16_384
"""Of a request's body, for the same reason."""
_METHOD: Final = re.compile(r"[A-Z]{1,16}")
_LEVELS: Final[dict[str, Level]] = {"high": Level.HIGH, "normal": Level.NORMAL, "low": Level.LOW}


class Request(msgspec.Struct, frozen=True):
    """Something to fetch; its URL is relative to nothing: `Response.follow` makes one of a link.

    Raises:
        ValueError: a part of it will not do.
    """

    url: str
    priority: Literal["high", "normal", "low"] = "normal"
    """Among the tasks of its host."""
    label: str = ""
    """Which handler gets the page: that of `@crawl.page(label=...)`."""
    meta: Any = None
    """Any JSON, at most META_MAX_BYTES: `Response.meta` of the page."""
    method: str = "GET"
    headers: dict[str, str] = {}
    body: str = ""
    """Two requests with the same URL, method and body are one; headers, label and meta make no other of it."""

    def __post_init__(self) -> None:
        if self.priority not in _LEVELS:
            raise ValueError(f"priority {self.priority!r} is none of {', '.join(_LEVELS)}")
        if not _METHOD.fullmatch(self.method):
            raise ValueError(f"method {self.method!r} is none: write GET, POST, …")
        if self.meta is not None:
            try:
                size = len(msgspec.json.encode(self.meta))
            except (TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"meta cannot be written as JSON: {error}") from error
            if size > META_MAX_BYTES:
                raise ValueError(
                    f"meta is over {META_MAX_BYTES} bytes as JSON: keep it in a store of yours, and its key here"
                )
        if len(self.body.encode()) > BODY_MAX_BYTES:
            raise ValueError(f"the body is over {BODY_MAX_BYTES} bytes")

    @property
    def level(self) -> Level:
        return _LEVELS[self.priority]

    @property
    def ask(self) -> Ask:
        """What it asks for beside the URL, as its task keeps it."""
        if not (self.label or self.headers or self.body) and self.meta is None and self.method == "GET":
            return NO_ASK
        return Ask(method=self.method, headers=self.headers, body=self.body, label=self.label, meta=self.meta)


class Response:
    """One fetched page. Parsed once, and only when asked."""

    def __init__(
        self, task: CrawlTask, answer: Answer, *, redirects: tuple[str, ...] = (), links_max: int = 50_000
    ) -> None:
        self.url = task.url
        """As it was scheduled, canonical."""
        self.final_url = answer.url
        """After redirects within the host."""
        self.redirects = (*task.redirects, *redirects)
        """URLs that led here, in order, those of other hosts too."""
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.body
        self.content_type = answer.content_type
        self.depth = task.depth
        self.referrer = task.referrer
        self.label = task.ask.label
        """Of the request that brought this page; '' for a link that was merely followed."""
        self.meta: Any = task.ask.meta
        """What the request carried along; None for nothing."""
        self._charset_header = answer.charset_header
        self._links_max = links_max
        self._page: Page | None = None
        self._charset: str | None = None
        self._kind: BodyKind | None = None
        self._tree: LexborHTMLParser | None = None
        self._xpath_tree: tuple[Any] | None = None

    @property
    def kind(self) -> BodyKind:
        """HTML, XML, text or binary, by Content-Type and, where that says nothing or is wrong, by the first bytes."""
        if self._kind is None:
            self._kind = body_kind(self.content_type, self.body[:SNIFFED_BYTES])
        return self._kind

    @property
    def is_html(self) -> bool:
        return self.kind is BodyKind.HTML

    @property
    def charset(self) -> str | None:
        """The encoding by its Python name, from BOM, header, meta or the bytes; None for a binary body."""
        if self._charset is None:
            self._charset = charset_of(self._charset_header, self.body, self.kind)
        return self._charset

    @property
    def page(self) -> Page:
        """Title, links and robots words of an HTML page; an empty one when it is not HTML."""
        if self._page is None:
            if self.is_html:
                self._page = parse_html(
                    self.body,
                    self.final_url,
                    charset=self.charset,
                    robots_tag="\n".join(self.headers.getall("X-Robots-Tag", ())) or None,
                    links_max=self._links_max,
                )
            else:
                self._page = Page(title=None, links=(), nofollow=False, noindex=False, links_cut=0, base=self.final_url)
        return self._page

    @property
    def text(self) -> str:
        """The body as text; bytes that do not fit its encoding are replaced."""
        return decode_body(self.body, self.charset)

    def css(self, selector: str) -> list[LexborNode]:
        """Return the elements that a CSS selector finds, in document order; see `text()` and `attributes` of each."""
        if self._tree is None:
            self._tree = LexborHTMLParser(bounded_markup(self.text))
        return self._tree.css(selector)

    def css_first(self, selector: str) -> LexborNode | None:
        """Return the first element that a CSS selector finds; None when there is none."""
        return next(iter(self.css(selector)), None)

    def xpath(self, expression: str, *, namespaces: Mapping[str, str] | None = None, **variables: Any) -> list[Any]:
        """Return what an XPath 1.0 expression finds, in document order. Needs lxml: `pip install 'streamcrawl[xpath]'`.

        Elements are those of lxml (`get(name)`, `text_content()`, `xpath(…)` from there on); attributes and `text()`
        are strings; of `count(…)`, `string(…)` and tests the one number, string or bool is the list.

        Args:
            namespaces: Prefixes in the expression; XML has its own, HTML has none.
            variables: `$name` in the expression.

        Raises:
            ValueError: it is no XPath, or names a prefix or a variable that is not given.
            Unfit: there is no lxml: the worker ends with that line, and its page is handed back.
        """
        if self._xpath_tree is None:
            self._xpath_tree = (tree_of(self.text, is_xml=self.kind is BodyKind.XML),)
        tree = self._xpath_tree[0]
        return [] if tree is None else find(tree, expression, namespaces, variables)

    def xpath_first(self, expression: str, *, namespaces: Mapping[str, str] | None = None, **variables: Any) -> Any:
        """Return the first of what `xpath` finds; None when there is nothing."""
        return next(iter(self.xpath(expression, namespaces=namespaces, **variables)), None)

    def json(self) -> Any:
        """Return the body decoded as JSON.

        Raises:
            msgspec.DecodeError: it is none.
        """
        return msgspec.json.decode(self.body)

    def links(self) -> tuple[str, ...]:
        """Return the canonical URLs that the page links to, distinct, in document order."""
        return self.page.links

    def follow(
        self,
        link: str,
        *,
        priority: Literal["high", "normal", "low"] = "normal",
        label: str = "",
        meta: Any = None,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: str = "",
    ) -> Request:
        """Return a request for a link of this page, resolved against its base; the rest is as `Request` takes it.

        Raises:
            ValueError: the link is no http(s) URL, or a part of the request will not do.
        """
        url = canonical_url(link, self.page.base)
        if url is None:
            raise ValueError(f"{link!r} is not an http(s) URL")
        return Request(url, priority, label, meta, method, headers or {}, body)
