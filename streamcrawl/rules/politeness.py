"""How long must a host be left alone?

Pure arithmetic: durations in, durations out, all int ms; the one function that needs the time gets it as an argument.
The store adds the results to its own clock, so the clocks of workers cannot matter. Start at `host_delay_ms`.

Sources: RFC 9110 sections 10.2.3 (Retry-After) and 5.6.7 (HTTP-date, whose three formats all recipients must accept).
RFC 9309 does not define Crawl-delay, so it is a request, which only ever lengthens the wait and is capped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final


class Refusal(StrEnum):
    """How a host shows that it is asked too often: its delay doubles (_pace.lua), whatever becomes of the task."""

    TOO_MANY = "http_429"
    UNAVAILABLE = "http_503"
    TIMEOUT = "timeout"


_SECONDS: Final = re.compile(r"[0-9]+")
_SECONDS_DIGITS_MAX: Final = 12
"""More digits are as good as for ever, and Python refuses to read some thousands of them."""
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH: Final = rf"(?P<month>{'|'.join(_MONTHS)})"
_TIME: Final = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_DATES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # IMF-fixdate: Sun, 06 Nov 1994 08:49:37 GMT
        rf"[a-z]{{3}}, (?P<day>[0-9]{{1,2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} (?:gmt|utc)",
        # RFC 850: Sunday, 06-Nov-94 08:49:37 GMT
        rf"[a-z]{{6,9}}, (?P<day>[0-9]{{1,2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} (?:gmt|utc)",
        # asctime: Sun Nov  6 08:49:37 1994
        rf"[a-z]{{3}} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)


def parse_retry_after_ms(value: str, now_ms: int) -> int | None:
    """Return how long a Retry-After header asks to wait, not capped; None when it is neither seconds nor a date.

    Args:
        value: The header's value; surrounding white space does not count.
        now_ms: When the answer came, ms since the epoch; a date before it asks for 0.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        digits = value.lstrip("0")
        return int(digits or "0") * 1000 if len(digits) <= _SECONDS_DIGITS_MAX else 10**_SECONDS_DIGITS_MAX * 1000
    when_ms = _parse_http_date_ms(value, now_ms)
    return None if when_ms is None else max(0, when_ms - now_ms)


def host_delay_ms(delay_ms: int, crawl_delay_ms: int | None, crawl_delay_max_ms: int) -> int:
    """Return the wait between two fetches of a host: our own, or the longer one its robots.txt asks for, capped."""
    return delay_ms if crawl_delay_ms is None else max(delay_ms, min(crawl_delay_ms, crawl_delay_max_ms))


_REFUSAL_OF: Final = {429: Refusal.TOO_MANY, 503: Refusal.UNAVAILABLE}


def refusal_of(status: int) -> Refusal | None:
    """Return which refusal an answer of this status is, which speaks of the whole host; None for one of a page."""
    return _REFUSAL_OF.get(status)


def is_of_host(refusal: Refusal, attempt: int) -> bool:
    """Return whether a refusal at this try of a page (from 1) says that its host is asked too often.

    429 does by its meaning. Anything else at a later try more likely is the page's own: others of its host were
    answered meanwhile, or its circuit opens, which takes care of a host that answers none. Without this a site of which
    three pages in a hundred hang would be slowed down until nothing of it is fetched any more.
    """
    return attempt == 1 or refusal is Refusal.TOO_MANY


def _parse_http_date_ms(value: str, now_ms: int) -> int | None:
    for pattern in _DATES:
        match = pattern.fullmatch(value)
        if match is not None:
            break
    else:
        return None
    year = int(match["year"])
    if len(match["year"]) == len("94"):
        # RFC 9110 section 5.6.7: a two-digit year that looks more than 50 years ahead is in the past.
        this_year = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms)).year
        year += this_year // 100 * 100
        if year > this_year + 50:
            year -= 100
        elif year <= this_year - 50:
            year += 100
    try:
        when = datetime(
            year,
            _MONTHS.index(match["month"].lower()) + 1,
            int(match["day"]),
            int(match["hour"]),
            int(match["minute"]),
            min(int(match["second"]), 59),  # 60 is a leap second, which datetime cannot hold
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return int(when.timestamp()) * 1000
