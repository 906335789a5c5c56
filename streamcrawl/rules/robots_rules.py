"""What does a robots.txt allow us?

Pure: bytes in, rules out. Start at `RobotsRules.parse`; how the file is fetched, kept and shared is decided elsewhere,
and `verdict_for_status` says what an answer of each status means for it. Matching is protego's: the longest pattern
wins, and Allow wins a tie. protego takes the group whose name begins our product token where RFC 9309 asks for an
equal one (`User-agent: stream` would hold for `streamcrawl`), which errs on the side of the host.

Sources: RFC 9309, whose sections are named at the lines that follow them. Crawl-delay is not in it; see politeness.py.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from protego import Protego

from streamcrawl.rules.urls import canonical_url, split_url

BODY_MAX_BYTES: Final = 500 * 1024
"""RFC 9309 section 2.5: a limit must be at least 500 KiB; what follows is not read."""
_CRAWL_DELAY_MAX_S: Final = 10**9
"""Thirty years: larger numbers are the same to anyone, and times 1000 a float may become infinite."""
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_ROBOTS_PATH: Final = "/robots.txt"
_TOKEN_END: Final = re.compile(r"[/\s]")
_FIELDS: Final = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), "agent"),
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), "disallow"),
    "allow": "allow",
}
"""What protego takes a line for, by the word before its colon or space."""

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
        return cls(Protego.parse(_text_of(body)), _product_of(user_agent), default=True)

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


class RobotsLine(NamedTuple):
    """One line of a robots.txt."""

    number: int
    """From 1."""
    text: str
    """As it stands there, without white space around it."""


def deciding_line(body: bytes | str, user_agent: str, url: str) -> RobotsLine | None:
    """Return the line by which `RobotsRules.parse(body, user_agent).allows(url)` says what it says.

    None when no line does: nothing in the file is about this crawler or this URL, so it is allowed; or it is the
    /robots.txt itself. Found by asking protego about parts of the file, so that it cannot come to another answer. It
    takes a file of ten thousand rules a second: for people who ask about one URL.
    """
    lines = _text_of(body).splitlines()
    product = _product_of(user_agent)
    if _is_robots_txt(url):
        return None
    # Which rules are in our group: each run of rules between User-agent lines is replaced by one that no other has.
    marked, rules, segment = [], [], 0
    for number, line in enumerate(lines):
        field, value = _read_line(line)
        segment += field == "agent"
        if field in ("allow", "disallow") and value:
            rules.append((segment, number, field, value))
            marked.append(f"Disallow: /segment-{segment}/")
        else:
            marked.append(line)
    groups = Protego.parse("\n".join(marked))
    site = split_url(url)[0]
    ours = {segment for segment, *_ in rules if not groups.can_fetch(f"{site}/segment-{segment}/", product)}
    best: tuple[int, str, str] | None = None
    for segment, number, field, value in rules:
        # An Allow is asked against the shortest Disallow there is, over which any Allow that matches wins.
        shortest = "Disallow: /" if field == "allow" else ""
        is_match = _asks(f"{field}: {value}\n{shortest}", url) is (field == "allow")
        if segment in ours and is_match and (best is None or _is_stronger((field, value), best[1:], url)):
            best = (number, field, value)
    return None if best is None else RobotsLine(best[0] + 1, lines[best[0]].strip())


def _is_stronger(rule: tuple[str, str], other: tuple[str, str], url: str) -> bool:
    """Return whether a matching rule wins over another one that comes before it in the file."""
    if rule[0] != other[0]:
        verdict = _asks(f"{rule[0]}: {rule[1]}\n{other[0]}: {other[1]}", url)
        return verdict is (rule[0] == "allow")
    # Of one sort: the longer wins. A Disallow that is as long as an Allow loses against it.
    return not _asks(f"allow: {other[1]}\ndisallow: {rule[1]}", url)


def _asks(rules: str, url: str) -> bool:
    return Protego.parse(f"User-agent: *\n{rules}").can_fetch(url, "x")


def _read_line(line: str) -> tuple[str, str]:
    """Return ("agent" | "allow" | "disallow" | "", value) of a line, as generously as protego reads it."""
    line = line.partition("#")[0].strip()
    before, colon, after = line.partition(":")
    name = _FIELDS.get(before.strip().lower(), "") if colon else ""
    if name or (colon and (not after or after[0].isspace())):
        return name, after.strip()
    words = line.split()
    for count in (1, 2):
        if name := _FIELDS.get(" ".join(words[:count]).lower(), ""):
            return name, " ".join(words[count:])
    return "", ""


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


def _text_of(body: bytes | str) -> str:
    raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
    if len(raw) > BODY_MAX_BYTES:
        # Whole lines only: half of `Disallow: /private` may be `Disallow: /`.
        end = max(raw.rfind(b"\n", 0, BODY_MAX_BYTES), raw.rfind(b"\r", 0, BODY_MAX_BYTES))
        raw = raw[: max(end, 0)]
    return raw.removeprefix(_UTF8_BOM).decode("utf-8", "replace")


def _product_of(user_agent: str) -> str:
    return _TOKEN_END.split(user_agent.strip(), maxsplit=1)[0]


def _is_robots_txt(url: str) -> bool:
    path = url[url.find("/", len("https://")) :]
    return path.partition("?")[0] == _ROBOTS_PATH


def _crawl_delay_ms(rules: Protego, product: str) -> int | None:
    delay_s = rules.crawl_delay(product)
    return None if delay_s is None else round(min(delay_s, _CRAWL_DELAY_MAX_S) * 1000)


def _sitemaps(rules: Protego) -> tuple[str, ...]:
    urls = (canonical_url(text) for text in rules.sitemaps)
    return tuple(dict.fromkeys(url for url in urls if url is not None))
