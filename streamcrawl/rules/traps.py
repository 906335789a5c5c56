"""Does a link lead into a trap: a part of a site that makes new URLs for ever?

Pure: functions of the link, the page it was found on, and the year that is given. Start at `Traps.reason`. A link that
is left out is not marked seen, so a crawl that goes on with other limits finds it again; it is counted by its reason
(`links.<reason>` in the totals), each time a page has it. Seeds are never tested but for their length: somebody asked
for them. Each limit is a setting whose default real sites do not meet; None leaves its rule out.

Sources: Heritrix (TooManyPathSegmentsDecideRule: 20; PathologicalPathDecideRule: a run three times in a row); Nutch
(regex-urlfilter: a segment three times); Olston and Najork, Web Crawling, section 6.2 (crawler traps).
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from streamcrawl.rules.urls import split_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamcrawl.settings import Settings

_READ_MAX: Final = 64
"""Segments and parameters of one URL that are compared with each other, where the settings allow more: a hostile page
has thousands of links, and each may be as long as `url_max_bytes`."""
_NESTED: Final = "%252525"
"""A percent sign that was escaped three times over: a URL in the query of a URL in the query of another, as a log-in
page makes that leads back to itself. Twice is seen on real sites."""
_NUMBER_YEAR: Final = "[12][0-9]{3}"
_MONTH: Final = "(?:0[1-9]|1[0-2])"
_DAY: Final = "(?:0[1-9]|[12][0-9]|3[01])"
_PATH_DATES: Final = (
    # A whole date stands out anywhere; a month alone only as a whole segment: `rtx-2080-11` is none.
    re.compile(rf"(?<![0-9A-Za-z])(?P<year>{_NUMBER_YEAR})([-._])(?P<month>{_MONTH})\2{_DAY}(?![0-9A-Za-z])"),
    re.compile(rf"(?<=/)(?P<year>{_NUMBER_YEAR})-(?P<month>{_MONTH})(?=/|$)"),
    # With two digits for the month, and a year of our times: `/forum/4821/3` is the third page of a topic.
    re.compile(rf"(?<=/)(?P<year>(?:1[5-9]|2[0-2])[0-9]{{2}})/(?P<month>{_MONTH})(?=/|$)"),
    re.compile(
        r"(?<=/)(?:calendar|calendario|calendrier|kalender|cal|events?|agenda)/(?:[a-z]+/)?"
        rf"(?P<year>{_NUMBER_YEAR})[-/](?P<month>1[0-2]|0?[1-9])(?=[-/]|$)"
    ),
)
_VALUE_DATE: Final = re.compile(rf"(?P<year>{_NUMBER_YEAR})-(?P<month>{_MONTH})(?:-{_DAY}(?![0-9])|(?![0-9A-Za-z-]))")
_COMPACT_DATE: Final = re.compile(rf"(?P<year>{_NUMBER_YEAR})(?P<month>{_MONTH})(?:{_DAY})?$")
_TIME_NAME: Final = re.compile(r"date|day|month|time|cal|start|from", re.IGNORECASE)
"""Digits without a break may be anything, unless the name of their parameter says that they are a time."""
_YEAR_ANYWHERE: Final = re.compile(_NUMBER_YEAR)
_YEAR_VALUE: Final = re.compile(rf"{_NUMBER_YEAR}$")
_MONTH_VALUE: Final = re.compile("(?:1[0-2]|0?[1-9])$")


class LeftOut(StrEnum):
    """Why a link that is in scope was not followed. Counted by name; the first word a user greps for."""

    DEPTH = "depth"
    """Further from the seeds than `depth_max`."""
    URL_LENGTH = "url_length"
    PATH_DEPTH = "trap_path_depth"
    REPETITION = "trap_repetition"
    QUERY = "trap_query"
    CALENDAR = "trap_calendar"
    REFRESH_LOOP = "refresh_loop"
    """Pages that send their visitors on by themselves, in a circle or on and on; the last of them is taken as it is."""


_SETTINGS: Final = {
    LeftOut.DEPTH: "depth",
    LeftOut.URL_LENGTH: "url_max",
    LeftOut.PATH_DEPTH: "path_depth_max",
    LeftOut.REPETITION: "repeats_max",
    LeftOut.QUERY: "query_params_max and query_growth_max",
    LeftOut.CALENDAR: "calendar_ahead_max and calendar_back_max",
    LeftOut.REFRESH_LOOP: "redirects_max and refresh_max",
}
"""Who says so, by the names of the settings that a person would change."""


def in_words(reason: LeftOut) -> str:
    """Return a reason with what to change: `trap_repetition: the limit is the setting repeats_max`."""
    names = _SETTINGS[reason]
    return f"{reason}: the limit is the setting {names}" if " " not in names else f"{reason}: see {names}"


class _Dated(NamedTuple):
    year: int
    month: int
    around: str
    """The URL without the date: equal for the months of one calendar."""


class Traps:
    """The limits of one crawl; the same in every process with the same settings and year."""

    def __init__(self, settings: Settings, year: int) -> None:
        """Take the limits; `year` is that of today, from which calendars count."""
        self._depth_max = settings.depth_max
        self._url_max_bytes = settings.url_max_bytes
        self._path_depth_max = settings.path_depth_max
        self._repeats_max = settings.repeats_max
        self._query_params_max = settings.query_params_max
        self._query_growth_max_bytes = settings.query_growth_max_bytes
        ahead, back = settings.calendar_ahead_max, settings.calendar_back_max
        self._year_last = None if ahead is None else year + ahead
        self._year_first = None if back is None else year - back

    def reason(self, url: str, *, depth: int, referrer: str) -> LeftOut | None:
        """Return why the link `url` is not to be followed, None when it is.

        Args:
            url: In the form of its task (`Canonicalizer`).
            depth: Steps from a seed that it would have.
            referrer: The page it was found on.
        """
        if self._depth_max is not None and depth > self._depth_max:
            return LeftOut.DEPTH
        if len(url) > self._url_max_bytes:
            return LeftOut.URL_LENGTH
        path, _, query = split_url(url)[1].partition("?")
        segments = path[1:].split("/")
        if self._path_depth_max is not None and len(segments) > self._path_depth_max:
            return LeftOut.PATH_DEPTH
        if self._repeats_max is not None and is_repetitive(segments, self._repeats_max):
            return LeftOut.REPETITION
        if query:
            reason = self._reason_of_query(url, query, referrer)
            if reason is not None:
                return reason
        return LeftOut.CALENDAR if self._is_far_in_calendar(url, referrer) else None

    def _reason_of_query(self, url: str, query: str, referrer: str) -> LeftOut | None:
        pieces = query.split("&")
        if self._query_params_max is not None and len(pieces) > self._query_params_max:
            return LeftOut.QUERY
        if self._repeats_max is not None and len(pieces) > 2 * self._repeats_max:
            said = Counter(piece for piece in pieces if not piece.endswith("="))
            if max(said.values(), default=0) > 2 * self._repeats_max:
                return LeftOut.REPETITION
        if self._query_growth_max_bytes is not None:
            if _NESTED in query:
                return LeftOut.QUERY
            if len(query) > self._query_growth_max_bytes and _only_adds(url, referrer):
                return LeftOut.QUERY
        return None

    def _is_far_in_calendar(self, url: str, referrer: str) -> bool:
        first, last = self._year_first, self._year_last
        if (first is None and last is None) or _YEAR_ANYWHERE.search(url) is None:
            return False
        date = _date_in(url)
        if date is None:
            return False
        if last is not None and date.year > last:
            return True
        if first is None or date.year >= first:
            return False
        # Old dates are the subject of many a page; a chain of months that leads on into the past is a calendar.
        before = _date_in(referrer)
        return before is not None and before.around == date.around and before[:2] > date[:2]


def is_repetitive(segments: Sequence[str], repeats_max: int) -> bool:
    """Return whether a run of path segments stands more than `repeats_max` times in a row, or one segment anywhere more
    than twice as often. Numbers by themselves do not count: tiles of a map are called /0/0/0. Only the first 64
    segments are looked at."""
    segments = segments[:_READ_MAX]
    if len(set(segments)) == len(segments):
        return False
    words = Counter(segment for segment in segments if segment and not segment.isdecimal())
    if max(words.values(), default=0) > 2 * repeats_max:
        return True
    for length in range(1, len(segments) // (repeats_max + 1) + 1):
        # Where a run stands n times in a row, each segment of the first n - 1 equals the one a run further on.
        equal = has_word = 0
        for here, there in zip(segments, segments[length:], strict=False):
            if here != there:
                equal = has_word = 0
                continue
            equal += 1
            has_word += here in words
            if equal >= length * repeats_max and has_word:
                return True
    return False


def _only_adds(url: str, referrer: str) -> bool:
    """Return whether the query of `url` is that of `referrer` and more: every parameter of it is there, or goes on."""
    path, _, query = url.partition("?")
    referrer_path, _, had = referrer.partition("?")
    if path != referrer_path or not had or len(query) <= len(had):
        return False
    pieces = query.split("&")[:_READ_MAX]
    known = set(pieces)
    return all(
        piece in known or any(longer.startswith(piece) for longer in pieces) for piece in had.split("&")[:_READ_MAX]
    )


def _date_in(url: str) -> _Dated | None:
    """Return the year and month that a URL names; None when it names none."""
    host, rest = split_url(url)
    path, _, query = rest.partition("?")
    for pattern in _PATH_DATES:
        found = pattern.search(path)
        if found is not None:
            around = f"{host}{path[: found.start()]}|{path[found.end() :]}?{query}"
            return _Dated(int(found["year"]), int(found["month"]), around)
    return _date_in_query(query, host + path) if query else None


def _date_in_query(query: str, page: str) -> _Dated | None:
    """Return the same of a query: a date as one value, or a year and a month apart."""
    year = month = 0
    others = []
    pieces = query.split("&")[:_READ_MAX]
    for place, piece in enumerate(pieces):
        name, _, value = piece.partition("=")
        found = _VALUE_DATE.match(value) or (_COMPACT_DATE.match(value) if _TIME_NAME.search(name) else None)
        if found is not None:
            around = "&".join((*pieces[:place], f"{name}=|{value[found.end() :]}", *pieces[place + 1 :]))
            return _Dated(int(found["year"]), int(found["month"]), f"{page}?{around}")
        name = name.lower()
        if not year and name.endswith("year") and _YEAR_VALUE.match(value):
            year = int(value)
        elif not month and name.endswith(("month", "mon")) and _MONTH_VALUE.match(value):
            month = int(value)
        else:
            others.append(piece)
    return _Dated(year, month, f"{page}?{'&'.join(others)}") if year and month else None
