"""What does a robots.txt allow us?

Pure: bytes in, rules out. Start at `RobotsRules.parse`; how the file is fetched, kept and shared is decided elsewhere,
and `verdict_for_status` says what an answer of each status means for it. Lines, groups and patterns are read as
Google's parser reads them, which is what hosts write for: the longest pattern wins, and Allow wins a tie. protego, by
which this was done before, weighs patterns by their length after it has escaped them anew (`?` counts as three), which
no layer over it can mend; benchmarks/conformance/robots.py has the figures of all three.

Two things differ from Google's parser. Escapes of letters, digits and `-._~` are the same as the characters (RFC 9309
section 2.2.2; Google compares them as they stand), and a character that no URL can have, such as a space, is read as
its escape.

Sources: RFC 9309, whose sections are named at the lines that follow them. Crawl-delay is not in it; see politeness.py.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal, NamedTuple

from streamcrawl.rules.urls import canonical_url, split_url

BODY_MAX_BYTES: Final = 500 * 1024
"""RFC 9309 section 2.5: a limit must be at least 500 KiB; what follows is not read."""
SITEMAPS_MAX: Final = 1000
"""Sitemaps taken from one file: an index names thousands of them in one line."""
_LINE_MAX_BYTES: Final = 2083 * 8 - 1
"""What follows on a line is not read: eight times the longest URL, which is Google's limit."""
_CRAWL_DELAY_MAX_S: Final = 10**9
"""Thirty years: larger numbers are the same to anyone, and times 1000 a float may become infinite."""
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_ROBOTS_PATH: Final = "/robots.txt"

_Field = Literal["agent", "allow", "disallow", "sitemap", "delay"]
_FIELDS: Final[tuple[tuple[_Field, tuple[bytes, ...]], ...]] = (
    ("agent", (b"user-agent", b"useragent", b"user agent")),
    ("allow", (b"allow",)),
    ("disallow", (b"disallow", b"dissallow", b"dissalow", b"disalow", b"diasllow", b"disallaw")),
    ("sitemap", (b"sitemap", b"site-map")),
    ("delay", (b"crawl-delay", b"crawl delay", b"crawldelay")),
)
"""By how the word before the colon begins, whatever its case; the misspellings are those that Google knows."""
_NO_TOKEN: Final = re.compile(rb"[^A-Za-z_-]")
"""What a product token does not hold (RFC 9309 section 2.2.1)."""
_TOKEN_END: Final = re.compile(r"[/\s]")
_COMPATIBLE: Final = re.compile(r"^Mozilla/\S+ \(compatible; *([^/;\s)]+)")
_ODD: Final = re.compile(rb"%[0-9A-Fa-f]{2}|[^A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]")
"""What may be written in more than one way: an escape, or a character that has no place in a URL."""
_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

StatusVerdict = Literal["parse", "allow", "retry"]


class RobotsLine(NamedTuple):
    """One line of a robots.txt."""

    number: int
    """From 1."""
    text: str
    """As it stands there, without white space around it."""


class _Rule(NamedTuple):
    pattern: bytes
    """In its normal form; never empty."""
    is_allow: bool
    line: int
    """From 0."""


class _File(NamedTuple):
    """What of a file concerns one product."""

    rules: list[_Rule]
    """In the file's order."""
    crawl_delay_s: float | None
    sitemaps: tuple[str, ...]


class RobotsRules:
    """The rules of one robots.txt for one user agent. Immutable; build it with `parse` or `allow_all`."""

    __slots__ = ("_lengths", "_plain", "_wild", "crawl_delay_ms", "sitemaps")

    def __init__(self, file: _File | None) -> None:
        delay_s = None if file is None else file.crawl_delay_s
        self.crawl_delay_ms: Final[int | None] = (
            None if delay_s is None else round(min(delay_s, _CRAWL_DELAY_MAX_S) * 1000)
        )
        """What the file asks for, not capped; None when it does not."""
        self.sitemaps: Final[tuple[str, ...]] = () if file is None else file.sitemaps
        """Canonical URLs, distinct, in the file's order, at most SITEMAPS_MAX; those of every group, since they belong
        to the site."""
        self._plain: dict[bytes, _Rule] = {}
        """Rules without wildcards, by pattern: one look for each length there is, not one for each of thousands."""
        self._wild: list[tuple[bytes, bytes, _Rule]] = []
        """Rules with wildcards, the strongest first, each with what a URL must begin with and with what it must hold:
        that rules most of them out at once."""
        for rule in [] if file is None else file.rules:
            if b"*" in rule.pattern or rule.pattern.endswith(b"$"):
                parts = rule.pattern.removesuffix(b"$").split(b"*")
                self._wild.append((parts[0], max(parts, key=len), rule))
            elif (other := self._plain.get(rule.pattern)) is None or (rule.is_allow and not other.is_allow):
                self._plain[rule.pattern] = rule
        self._wild.sort(key=lambda row: _strength(row[2]), reverse=True)
        self._lengths: tuple[int, ...] = tuple(sorted({len(pattern) for pattern in self._plain}, reverse=True))

    @classmethod
    def parse(cls, body: bytes | str, user_agent: str) -> RobotsRules:
        """Return the rules of a file for a User-Agent header. Lines that cannot be read are passed over.

        Args:
            body: The file, of which at most 500 KiB are read.
            user_agent: As it is sent; see `product_of`.
        """
        return cls(_read(_octets_of(body), product_of(user_agent)))

    @classmethod
    def allow_all(cls) -> RobotsRules:
        """Return the rules of a host that has no robots.txt (RFC 9309 section 2.3.1.3)."""
        return cls(None)

    def allows(self, url: str) -> bool:
        """Return whether a canonical URL of this host may be fetched; its /robots.txt always may (section 2.2.2)."""
        if _is_robots_txt(url):
            return True
        rule = self._deciding(url)
        return rule is None or rule.is_allow

    def _deciding(self, url: str) -> _Rule | None:
        """Return the strongest rule that matches."""
        if not self._lengths and not self._wild:
            return None
        path = normal_form(split_url(url)[1].encode("ascii", "replace"))
        best = None
        for length in self._lengths:
            if length <= len(path) and (best := self._plain.get(path[:length])) is not None:
                break
        least = (0, False) if best is None else _strength(best)
        for head, part, rule in self._wild:
            if path.startswith(head) and part in path:
                if _strength(rule) <= least:
                    break
                if _matches(rule.pattern, path):
                    return rule
        return best


def deciding_line(body: bytes | str, user_agent: str, url: str) -> RobotsLine | None:
    """Return the line by which `RobotsRules.parse(body, user_agent).allows(url)` says what it says.

    None when no line does: nothing in the file is about this crawler or this URL, so it is allowed; or it is the
    /robots.txt itself.
    """
    octets = _octets_of(body)
    rule = None if _is_robots_txt(url) else RobotsRules.parse(octets, user_agent)._deciding(url)
    if rule is None:
        return None
    return RobotsLine(rule.line + 1, octets.splitlines()[rule.line].decode("utf-8", "replace").strip())


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


def verdict_ttl_ms(cache_control: str | None, least_ms: int, most_ms: int) -> int:
    """Return how long the answer to a fetch of /robots.txt holds: what its Cache-Control says, within bounds.

    Args:
        cache_control: The header; several of them joined by commas. None when there was none: then the most.
        least_ms: Of an answer that asks for less, or not to be kept at all. The most wins over it.
    """
    ttl_ms = most_ms
    for directive in (cache_control or "").lower().split(","):
        name, _, value = directive.partition("=")
        name, value = name.strip(), value.strip(' \t"')
        if name in ("no-store", "no-cache"):
            ttl_ms = 0
        elif name == "max-age" and value.isascii() and value.isdigit():
            # Ten digits are three centuries, and Python refuses to read some thousands of them.
            ttl_ms = min(ttl_ms, int(value[-10:] if len(value.lstrip("0")) <= 10 else "9" * 10) * 1000)
    return min(max(ttl_ms, least_ms), most_ms)


def product_of(user_agent: str) -> str:
    """Return the product token of a User-Agent header, by which the groups of a file are meant.

    What stands before its first slash or white space; of `Mozilla/5.0 (compatible; Somebot/1.0)` it is `Somebot`.
    """
    header = user_agent.strip()
    named = _COMPATIBLE.match(header)
    return named[1] if named else _TOKEN_END.split(header, maxsplit=1)[0]


def whole_lines(body: bytes) -> bytes:
    """Return what is read of a file: at most BODY_MAX_BYTES, and whole lines only."""
    if len(body) <= BODY_MAX_BYTES:
        return body
    # Half of `Disallow: /private` may be `Disallow: /`.
    end = max(body.rfind(b"\n", 0, BODY_MAX_BYTES), body.rfind(b"\r", 0, BODY_MAX_BYTES))
    return body[: max(end, 0)]


def _octets_of(body: bytes | str) -> bytes:
    raw = body.encode("utf-8", "replace") if isinstance(body, str) else body
    return whole_lines(raw).removeprefix(_UTF8_BOM)


def _read(octets: bytes, product: str) -> _File:
    """Read a file for one product: all groups that name it equally and exactly, else all those for `*`."""
    token = product.lower().encode("utf-8", "replace")
    of_product: list[_Rule] = []
    of_all: list[_Rule] = []
    delay_of_product: float | None = None
    delay_of_all: float | None = None
    sitemaps: dict[str, None] = {}
    is_ours = is_for_all = is_named = has_rules = False
    for number, line in enumerate(octets.splitlines()):
        field, value = _read_line(line)
        if field == "agent":
            # Only rules end a list of agents: other records must not interfere (RFC 9309 section 2.2.4).
            if has_rules:
                is_ours = is_for_all = has_rules = False
            if value == b"*" or value[:2] in (b"* ", b"*\t"):
                is_for_all = True
            elif token and _names(value, token):
                is_ours = is_named = True
        elif field in ("allow", "disallow"):
            if not (is_ours or is_for_all):
                continue
            has_rules = True
            for pattern in _patterns(value, is_allow=field == "allow"):
                rule = _Rule(pattern, field == "allow", number)
                if is_ours:
                    of_product.append(rule)
                if is_for_all:
                    of_all.append(rule)
        elif field == "delay":
            delay_s = _seconds(value)
            if is_ours:
                delay_of_product = _longer(delay_of_product, delay_s)
            if is_for_all:
                delay_of_all = _longer(delay_of_all, delay_s)
        elif field == "sitemap" and len(sitemaps) < SITEMAPS_MAX:
            url = canonical_url(value.decode("utf-8", "replace"))
            if url is not None:
                sitemaps[url] = None
    if is_named:
        return _File(of_product, delay_of_product, tuple(sitemaps))
    return _File(of_all, delay_of_all, tuple(sitemaps))


def _read_line(line: bytes) -> tuple[_Field | None, bytes]:
    """Return what a line is about, None for nothing that is known, and its value."""
    # A nul ends it, and the words before a colon may go on as they like, because both are so in Google's parser.
    line = line[:_LINE_MAX_BYTES].partition(b"\0")[0].partition(b"#")[0].strip()
    if not line:
        return None, b""
    name, colon, value = line.partition(b":")
    if not colon:
        words = line.replace(b"\t", b" ").split(b" ", 1)
        # Some forget the colon; of three words nobody knows which is which.
        if len(words) < 2 or b" " in (value := words[1].strip(b" ")):
            return None, b""
        name = words[0]
    name = name.strip().lower()
    for field, beginnings in _FIELDS:
        if name.startswith(beginnings):
            if field == "sitemap" and b" " in name:
                # `Sitemap https://…`: the colon that was found is the one of the URL.
                value = line.partition(b" ")[2]
            return field, value.strip()
    return None, b""


def _names(value: bytes, token: bytes) -> bool:
    """Return whether the value of a User-agent line is this product, in lower case: `Somebot/2.1` names somebot."""
    # The whole word too: a token with digits in it is none by the RFC, but there are such crawlers.
    value = value.lower()
    return token in (_NO_TOKEN.split(value, maxsplit=1)[0], value, value.partition(b"/")[0])


def _patterns(value: bytes, *, is_allow: bool) -> list[bytes]:
    """Return the patterns for which a rule stands; none when it can match nothing."""
    if not value.startswith((b"/", b"*")):
        return []
    pattern = normal_form(value)
    slash = pattern.rfind(b"/")
    if is_allow and pattern[slash:].startswith(b"/index.htm"):
        # Who allows the index of a folder means the folder's own URL too (Google's reading).
        return [pattern, pattern[: slash + 1] + b"$"]
    return [pattern]


def normal_form(octets: bytes) -> bytes:
    """Return a path or a pattern in the one form in which they are compared (RFC 9309 section 2.2.2)."""
    return _ODD.sub(_octet_form, octets)


def _octet_form(found: re.Match[bytes]) -> bytes:
    odd = found[0]
    if len(odd) == 1:
        return b"%%%02X" % odd[0]
    octet = int(odd[1:], 16)
    return bytes((octet,)) if octet in _UNRESERVED else odd.upper()


def _strength(rule: _Rule) -> tuple[int, bool]:
    """Return by what a rule wins over another: its octets, and at a tie that it allows (RFC 9309 section 2.2.2)."""
    return len(rule.pattern), rule.is_allow


def _matches(pattern: bytes, path: bytes) -> bool:
    """Return whether a pattern with wildcards matches, in time that grows with their lengths and not faster."""
    is_anchored = pattern.endswith(b"$")
    first, *parts = (pattern[:-1] if is_anchored else pattern).split(b"*")
    if not path.startswith(first):
        return False
    if not parts:
        return path == first
    at = len(first)
    last = parts.pop()
    for part in parts:
        # The earliest place leaves the most for what follows, so no other has to be tried.
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    if is_anchored:
        return len(path) - len(last) >= at and path.endswith(last)
    return path.find(last, at) >= 0


def _seconds(value: bytes) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _longer(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _is_robots_txt(url: str) -> bool:
    return split_url(url)[1].partition("?")[0] == _ROBOTS_PATH
