"""When is a page fetched again, and what did this visit find?

Pure: no Redis, no network, no clock. Start at `next_visit`. A page that changed is visited after half the time, one
that did not after one and a half times as long, within bounds: that settles where about every third visit finds
something new (ln 1.5 / (ln 1.5 + ln 2) = 37 %), so that neither most visits are for nothing nor most changes missed.
Sources: RFC 9110 sections 8.8 (validators) and 13.1 (conditions); Cho and Garcia-Molina, "Effective page refresh
policies for web crawlers" (2003), for the bounds: a page that changes all the time must not take the visits of others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from streamcrawl.errors import ConfigError
from streamcrawl.rules.task import LastVisit

if TYPE_CHECKING:
    from streamcrawl.settings import Settings

BOUND: Final = 8
"""The shortest and the longest interval are this many times less and more than the first, where nothing else is set."""
INTERVAL_MAX_MS: Final = 10**12
"""30 years: commit.lua takes no longer one."""
ETAG_MAX: Final = 128
"""Characters; a longer one is not kept, because it costs its length in Redis for each page. Servers make some 50."""
_ETAG: Final = re.compile(r'(?:W/)?"[!#-Z\\^-z|~]*"')
"""RFC 9110 section 8.8.3, of ASCII: what else a host sends must not go back in a header. Without brackets and braces,
by which scripts tell this field of a task (`visit_again` in _hosts.lua)."""
_MODIFIED: Final = re.compile(r"[A-Za-z0-9 ,:+-]{10,40}")
_TAG: Final = re.compile(rb"<[^<>]*>")
"""Not over another `<`: a page of nothing else would cost the square of its length."""


class Found(StrEnum):
    """What a visit found, counted as `page.visits.<word>`."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    """Answered with an error; the page keeps its place."""
    GONE = "gone"
    """Not visited any more: 410, or 404 again and again."""


class Visit(NamedTuple):
    """What a visit found, and what the next one is to know of it; None when there is none."""

    found: Found
    last: LastVisit | None


def check_rounds(settings: Settings) -> None:
    """Raise ConfigError when rounds are asked for and no page is ever visited again: nothing would come of it."""
    if settings.one_round and settings.revisit_ms is None:
        raise ConfigError(
            "--one-round ends a round of visits, and no page is visited again: give --revisit DURATION too"
        )


@dataclass(frozen=True, slots=True)
class RevisitPolicy:
    """How long a page is left alone, ms."""

    first_ms: int
    min_ms: int
    max_ms: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Return the policy of a crawl; None when it visits no page again.

        The first interval lies within the bounds, whatever was set: it moves them.
        """
        first_ms = settings.revisit_ms
        if first_ms is None:
            return None
        least = settings.revisit_min_ms if settings.revisit_min_ms is not None else first_ms // BOUND
        most = settings.revisit_max_ms if settings.revisit_max_ms is not None else first_ms * BOUND
        first_ms = min(first_ms, INTERVAL_MAX_MS)
        return cls(first_ms, max(1, min(least, first_ms)), min(max(most, first_ms), INTERVAL_MAX_MS))


class Content(NamedTuple):
    """What an answer says of the content: hexadecimal digest, and validators ('' for none)."""

    digest: str
    etag: str = ""
    modified: str = ""


def next_visit(policy: RevisitPolicy, before: LastVisit | None, status: int, content: Content) -> Visit | None:
    """Return what a visit found and when the next one is; None for what never was a page: its first answer an error.

    304 and the same digest are unchanged. An error doubles the interval; 404 makes it four times as long, and at the
    longest the page is forgotten, as it is at once by 410.

    Args:
        before: What the visit before found; None for the first.
        status: Of the final answer.
    """
    if before is None:
        return None if status >= 400 else Visit(Found.NEW, LastVisit(policy.first_ms, *content))
    interval_ms = before.interval_ms
    if status == 410 or (status == 404 and interval_ms >= policy.max_ms):
        return Visit(Found.GONE, None)
    if status >= 400:
        found, times, content = Found.FAILED, (4, 1) if status == 404 else (2, 1), _content_of(before)
    elif status == 304:
        # RFC 9110 section 15.4.5: it carries the validators that a 200 would have.
        found, times = Found.UNCHANGED, (3, 2)
        content = Content(before.digest, content.etag or before.etag, content.modified or before.modified)
    elif content.digest == before.digest:
        found, times = Found.UNCHANGED, (3, 2)
    else:
        found, times = Found.CHANGED, (1, 2)
    interval_ms = min(max(interval_ms * times[0] // times[1], policy.min_ms), policy.max_ms)
    return Visit(found, LastVisit(interval_ms, *content))


def conditions_of(last: LastVisit | None) -> dict[str, str]:
    """Return the headers by which a host can say that nothing has changed; none when it gave no validator."""
    if last is None:
        return {}
    headers = {"If-None-Match": last.etag} if last.etag else {}
    if last.modified:
        headers["If-Modified-Since"] = last.modified
    return headers


def etag_of(text: str | None) -> str:
    """Return an ETag that can be sent back; '' for any other."""
    text = (text or "").strip()
    return text if len(text) <= ETAG_MAX and _ETAG.fullmatch(text) else ""


def modified_of(text: str | None) -> str:
    """Return a Last-Modified that can be sent back; '' for any other."""
    text = (text or "").strip()
    return text if _MODIFIED.fullmatch(text) else ""


def content_digest(body: bytes, *, is_html: bool) -> str:
    """Return 16 hexadecimal digits of what a page says: of HTML its text without tags, comments and scripts.

    In those stand tokens and times that are others at each visit of a page that nobody has changed.
    """
    if is_html:
        first, *rest = body.split(b"<script")
        parts = [first, *(part[end:] for part in rest if (end := part.find(b"</script")) >= 0)]
        body = b" ".join(_TAG.sub(b" ", b"".join(parts)).split())
    return blake2b(body, digest_size=8).hexdigest()


def _content_of(last: LastVisit) -> Content:
    return Content(last.digest, last.etag, last.modified)
