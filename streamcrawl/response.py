"""What a user's program touches of one fetched page: Response, Request, Retry and Drop.

A handler is a function of one `Response`. It may be sync (then it runs in a thread) or async, and may return or yield
any number of `Request`s (they go to the frontier) and items (anything else; they go to the sinks). Start at `Response`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from streamcrawl.rules.charset import charset_of, decode_body
from streamcrawl.rules.parse import Page, parse_html
from streamcrawl.rules.sniff import SNIFFED_BYTES, BodyKind, body_kind
from streamcrawl.rules.urls import canonical_url

if TYPE_CHECKING:
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
    """Raised by a handler: end this page without items; `reason` (letters, digits, underscores) is counted."""

    def __init__(self, reason: str = "handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Request(msgspec.Struct, frozen=True):
    """A URL to fetch; relative to nothing: make it with `Response.follow`."""

    url: str


class Response:
    """One fetched page. Parsed once, and only when asked."""

    def __init__(self, task: CrawlTask, answer: Answer, *, links_max: int = 50_000) -> None:
        self.url = task.url
        """As it was scheduled, canonical."""
        self.final_url = answer.url
        """After redirects within the host."""
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.body
        self.content_type = answer.content_type
        self.depth = task.depth
        self.referrer = task.referrer
        self._charset_header = answer.charset_header
        self._links_max = links_max
        self._page: Page | None = None
        self._charset: str | None = None
        self._kind: BodyKind | None = None

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

    def json(self) -> Any:
        """Return the body decoded as JSON.

        Raises:
            msgspec.DecodeError: it is none.
        """
        return msgspec.json.decode(self.body)

    def links(self) -> tuple[str, ...]:
        """Return the canonical URLs that the page links to, distinct, in document order."""
        return self.page.links

    def follow(self, link: str) -> Request:
        """Return a request for a link of this page, resolved against its base.

        Raises:
            ValueError: the link is no http(s) URL.
        """
        url = canonical_url(link, self.page.base)
        if url is None:
            raise ValueError(f"{link!r} is not an http(s) URL")
        return Request(url)
