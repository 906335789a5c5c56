"""The worker's copy of robots verdicts.

Dispatch hands out pages of a host only while its verdict is stored (the gate in _hosts.lua), so a worker finds it in
Redis; it keeps the parsed rules of the hosts it meets for a while. Nothing here fetches: a robots task does.

Stored form of a verdict: one JSON line `{"verdict":"parse","status":200,"delay_ms":0}` (or "allow"), then the text,
all groups and Sitemap lines of it, at most 500 KiB. `delay_ms` is the host's Crawl-delay, capped, for people: dispatch
has it from the host, and hands it out with entries.

A text outlives its time by KEPT_UNREACHABLE_MS: while its successor cannot be had, commit.lua goes on with it.
"""

from __future__ import annotations

import codecs
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from streamcrawl.errors import CodecError
from streamcrawl.rules.politeness import host_delay_ms
from streamcrawl.rules.robots_rules import RobotsRules, whole_lines
from streamcrawl.work.board import monotonic_ms

if TYPE_CHECKING:
    from streamcrawl.settings import Settings
    from streamcrawl.store.shards import Shards

HOSTS_MAX: Final = 10_000
KEPT_MS: Final = 600_000
"""How long a worker may go on with rules that were fetched again meanwhile."""
KEPT_UNREACHABLE_MS: Final = 30 * 86_400_000
"""RFC 9309 section 2.3.1.4: 30 days are a reasonably long time for a robots.txt to be out of reach."""
KEPT_SPARE_MS: Final = 3_600_000
"""Any other verdict outlives its time by so much: for workers that have a page of its host in hand."""


class _Stored(msgspec.Struct):
    verdict: str
    status: int
    delay_ms: int


def encode_verdict(settings: Settings, *, verdict: str, status: int, body: bytes) -> tuple[str, int]:
    """Return the stored form of an origin's verdict, and the Crawl-delay in it, ms and capped (0: it has none).

    Args:
        settings: Of the crawl; its User-Agent decides whose Crawl-delay it is.
        verdict: "parse" or "allow".
        status: Of the answer; 0 when there was none of use.
        body: Of the answer, cut already or not.
    """
    delay_ms = 0
    if verdict == "parse":
        asked = RobotsRules.parse(body, settings.user_agent).crawl_delay_ms
        delay_ms = host_delay_ms(0, asked, settings.crawl_delay_max_ms)
    head = msgspec.json.encode(_Stored(verdict, status, delay_ms)).decode()
    text = whole_lines(body).decode("utf-8", _ESCAPED) if verdict == "parse" else ""
    return f"{head}\n{text}", delay_ms


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Write bytes that are no UTF-8 as the escapes that they are compared as: the store takes text only."""
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


_ESCAPED: Final = "streamcrawl_escaped"
codecs.register_error(_ESCAPED, _escape)


def decode_verdict(stored: bytes, user_agent: str) -> RobotsRules:
    """Return the rules of a stored verdict for a crawler of this name.

    Raises:
        CodecError: it is none.
    """
    head, _, text = stored.partition(b"\n")
    try:
        said = msgspec.json.decode(head, type=_Stored)
    except msgspec.DecodeError as error:
        raise CodecError(f"stored robots verdict cannot be read: {head[:80]!r}") from error
    return RobotsRules.parse(text, user_agent) if said.verdict == "parse" else RobotsRules.allow_all()


class RobotsCache:
    """Rules by host key, least recently used out first."""

    def __init__(self, crawl: Shards, settings: Settings) -> None:
        self._crawl = crawl
        self._settings = settings
        self._kept: OrderedDict[str, tuple[RobotsRules, int]] = OrderedDict()

    def apply(self, settings: Settings) -> None:
        """Go by other settings from now on."""
        if settings.user_agent != self._settings.user_agent:
            self._kept.clear()  # other groups of the same files are meant now
        self._settings = settings

    async def get(self, host: str) -> RobotsRules | None:
        """Return the rules of a host; None when Redis has none (any more): its gate must ask again."""
        if not self._settings.obey_robots:
            return RobotsRules.allow_all()
        found = self._kept.get(host)
        now = monotonic_ms()
        if found is not None and found[1] > now:
            self._kept.move_to_end(host)
            return found[0]
        stored = await self._crawl.of(host).robots(host)
        if stored is None:
            self._kept.pop(host, None)
            return None
        rules = decode_verdict(stored, self._settings.user_agent)
        self._kept[host] = (rules, now + KEPT_MS)
        if len(self._kept) > HOSTS_MAX:
            self._kept.popitem(last=False)
        return rules
