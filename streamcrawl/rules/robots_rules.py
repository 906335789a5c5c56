"""What does a robots.txt allow us?

Pure: bytes in, rules out. Start at `RobotsRules.parse`; how the file is fetched, kept and shared is decided elsewhere,
and `verdict_for_status` says what an answer of each status means for it. Matching is protego's: the longest pattern
wins, and Allow wins a tie. protego takes the group whose name begins our product token where RFC 9309 asks for an
equal one (`User-agent: stream` would hold for `streamcrawl`), which errs on the side of the host.

Sources: RFC 9309, whose sections are named at the lines that follow them. Crawl-delay is not in it; see politeness.py.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from protego import Protego

from streamcrawl.rules.urls import canonical_url

BODY_MAX_BYTES: Final = 500 * 1024
"""RFC 9309 section 2.5: a limit must be at least 500 KiB; what follows is not read."""
_CRAWL_DELAY_MAX_S: Final = 10**9
"""Thirty years: larger numbers are the same to anyone, and times 1000 a float may become infinite."""
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_ROBOTS_PATH: Final = "/robots.txt"
_TOKEN_END: Final = re.compile(r"[/\s]")

StatusVerdict = Literal["parse", "allow", "retry"]


class RobotsRules:
    """The rules of one robots.txt for one user agent. Immutable; build it with `parse`, `allow_all` or `deny_all`."""

    __slots__ = ("_default", "_product", "_rules", "crawl_delay_ms", "sitemaps")

    def __init__(self, rules: Protego | None, product: str, *, default: bool) -> None:
        self._rules = rules
        self._product = product
        self._default = default
        """The answer for every URL when there are no rules to ask."""
        self.crawl_delay_ms: Final[int | None] = None if rules is None else _crawl_delay_ms(rules, product)
        """What the file asks for, not capped; None when it does not."""
        self.sitemaps: Final[tuple[str, ...]] = () if rules is None else _sitemaps(rules)
        """Canonical URLs, distinct, in the file's order; those of every group, since they belong to the site."""

    @classmethod
    def parse(cls, body: bytes | str, user_agent: str) -> RobotsRules:
        """Return the rules of a file for a User-Agent header. Lines that cannot be read are passed over.

        Args:
            body: The file, of which at most 500 KiB are read.
            user_agent: As it is sent; up to its first slash or white space it is the product token that groups name.
        """
        raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
        if len(raw) > BODY_MAX_BYTES:
            # Whole lines only: half of `Disallow: /private` may be `Disallow: /`.
            end = max(raw.rfind(b"\n", 0, BODY_MAX_BYTES), raw.rfind(b"\r", 0, BODY_MAX_BYTES))
            raw = raw[: max(end, 0)]
        text = raw.removeprefix(_UTF8_BOM).decode("utf-8", "replace")
        return cls(Protego.parse(text), _TOKEN_END.split(user_agent.strip(), maxsplit=1)[0], default=True)

    @classmethod
    def allow_all(cls) -> RobotsRules:
        """Return the rules of a host that has no robots.txt (RFC 9309 section 2.3.1.3)."""
        return cls(None, "", default=True)

    @classmethod
    def deny_all(cls) -> RobotsRules:
        """Return the rules of a host whose robots.txt cannot be reached (RFC 9309 section 2.3.1.4)."""
        return cls(None, "", default=False)

    def allows(self, url: str) -> bool:
        """Return whether a canonical URL of this host may be fetched; its /robots.txt always may (section 2.2.2)."""
        if self._rules is None:
            return self._default or _is_robots_txt(url)
        return self._rules.can_fetch(url, self._product)


def verdict_for_status(status: int) -> StatusVerdict:
    """Return what the answer to a fetch of /robots.txt means, redirects followed.

    `parse` its body (2xx); `allow` everything, because there is none (4xx but 429); or `retry`, nothing being known
    and nothing fetched until it is (429, 5xx and whatever else).
    """
    if 200 <= status <= 299:
        return "parse"
    if 400 <= status <= 499 and status != 429:
        return "allow"
    return "retry"


def _is_robots_txt(url: str) -> bool:
    path = url[url.find("/", len("https://")) :]
    return path.partition("?")[0] == _ROBOTS_PATH


def _crawl_delay_ms(rules: Protego, product: str) -> int | None:
    delay_s = rules.crawl_delay(product)
    return None if delay_s is None else round(min(delay_s, _CRAWL_DELAY_MAX_S) * 1000)


def _sitemaps(rules: Protego) -> tuple[str, ...]:
    urls = (canonical_url(text) for text in rules.sitemaps)
    return tuple(dict.fromkeys(url for url in urls if url is not None))
