"""Links that make new URLs for ever are left out, each for a named reason; those of real sites are followed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.traps import LeftOut, Traps, in_words, is_repetitive
from streamcrawl.rules.urls import canonical_url
from streamcrawl.settings import CLASSES, Given, field_of, make_settings

SITE = "http://a.example"
YEAR = 2026
LONG = "&".join(f"filter{n:02}={'x' * 20}" for n in range(34))
"""A query of some thousand bytes."""


def reason(path: str, *, referrer: str = "/page", depth: int = 1, **values: Any) -> LeftOut | None:
    settings = make_settings("books", {field: Given(value, "") for field, value in values.items()})
    return Traps(settings, YEAR).reason(SITE + path, depth=depth, referrer=SITE + referrer)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a/b/a/b",
        "/docs/docs/page",
        "/en/docs/en/docs/index.html",
        "/tiles/0/0/0/0/0.png",
        "/com/example/com/example/Main.java",
        "/linux/v6.12/source/drivers/gpu/drm/amd/display/dc/resource/dcn321/dcn321_resource.c",
        "/a//b//c",
        "/forum/4821/3/",
        "/forum/2081/3",
        "/2026/11/30/news/",
        "/1887/12/25/front-page",
        "/2031/01/",
        "/agenda/2050/",
        "/vision-2050",
        "/iso-9001-2015.html",
        "/rtx-2080-11",
        "/v2077.12",
        "/product/20771231",
        "/?p=20771231",
        "/?year=2077",
        "/?month=12&year=2030",
        "/?date=2031-12-31",
        "/?id=9999-12",
        "/login?next=%2Flogin%3Fnext%3D%252Fpage",
        "/search?q=1&q=1&q=1&q=1",
        "/form?a=&b=&c=&d=&e=&f=&g=",
        "/form?" + "&".join(f"a{n}={n}" for n in range(50)),
        "/form?" + LONG,
        "/" + "/".join("abcdefghijklmnopqrst"),
    ],
)
def test_links_of_real_sites_are_followed(path: str) -> None:
    assert reason(path) is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b/a/b/a/b", LeftOut.REPETITION),
        ("/x/a/b/a/b/a/b/y", LeftOut.REPETITION),
        ("/a/a/a", LeftOut.REPETITION),
        ("/a/a/a/1", LeftOut.REPETITION),
        ("/0/a/0/a/0/a", LeftOut.REPETITION),
        ("/a/b/c/a/b/c/a/b/c", LeftOut.REPETITION),
        ("/news/about/jobs/news/jobs/news/about/news/home/news", LeftOut.REPETITION),
        ("/list?tag=a&tag=a&tag=a&tag=a&tag=a", LeftOut.REPETITION),
        ("/" + "/".join("abcdefghijklmnopqrstu"), LeftOut.PATH_DEPTH),
        ("/form?" + "&".join(f"a{n}={n}" for n in range(51)), LeftOut.QUERY),
        ("/login?next=%252525252Flogin", LeftOut.QUERY),
        ("/2032/01/", LeftOut.CALENDAR),
        ("/2032/01", LeftOut.CALENDAR),
        ("/archive/2199/12/31/x", LeftOut.CALENDAR),
        ("/day-2032-01-01.html", LeftOut.CALENDAR),
        ("/2032-01/", LeftOut.CALENDAR),
        ("/calendar/2032/1", LeftOut.CALENDAR),
        ("/events/month/2900-1/", LeftOut.CALENDAR),
        ("/?date=2032-01-01", LeftOut.CALENDAR),
        ("/?date=2032-01-01T00:00", LeftOut.CALENDAR),
        ("/?when=2032-01", LeftOut.CALENDAR),
        ("/?startdate=20320101&view=month", LeftOut.CALENDAR),
        ("/?month=203201", LeftOut.CALENDAR),
        ("/?month=1&year=2032", LeftOut.CALENDAR),
        ("/?cal_year=2032&a=b&cal_month=01", LeftOut.CALENDAR),
        ("/" + "x" * 2083, LeftOut.URL_LENGTH),
    ],
)
def test_trap_has_its_reason(path: str, expected: LeftOut) -> None:
    assert reason(path) is expected


def test_depth_is_counted_from_the_seeds() -> None:
    assert reason("/", depth=10_000) is None
    assert reason("/", depth=3, depth_max=3) is None
    assert reason("/", depth=4, depth_max=3) is LeftOut.DEPTH


@pytest.mark.parametrize(
    ("path", "referrer", "expected"),
    [
        (f"/list?{LONG}&more=1", f"/list?{LONG}", LeftOut.QUERY),
        (f"/list?a=1&{LONG}", f"/list?{LONG}", LeftOut.QUERY),
        (f"/list?{LONG}yyy", f"/list?{LONG}", LeftOut.QUERY),
        (f"/list?{LONG}&more=1", "/list", None),
        (f"/list?{LONG}&more=1", "/list?a=1", None),
        (f"/list?{LONG}&more=1", f"/other?{LONG}", None),
        (f"/list?{LONG}", f"/list?{LONG}&more=1", None),
        ("/list?a=1&b=2", "/list?a=1", None),
    ],
)
def test_long_query_may_not_grow_from_page_to_page(path: str, referrer: str, expected: LeftOut | None) -> None:
    assert reason(path, referrer=referrer) is expected


def test_filters_upon_filters_end() -> None:
    # A page that offers one filter more with each step, as the query of a shop does.
    query, steps = "f0=0", 0
    while reason(f"/shop?{query}&f{steps}=1", referrer=f"/shop?{query}") is None:
        steps += 1
        query += f"&f{steps}={'y' * 30}"
        assert steps < 100
    assert 20 < steps < 50


def test_log_in_page_that_returns_to_itself_ends() -> None:
    url, steps = f"{SITE}/login?next=%2F", 0
    traps = Traps(make_settings("books", {}), YEAR)
    while True:
        path = url.removeprefix(SITE)
        quoted = "".join(character if character.isalnum() else f"%{ord(character):02X}" for character in path)
        link = f"{SITE}/login?next={quoted}"
        if traps.reason(link, depth=steps, referrer=url) is not None:
            break
        url, steps = link, steps + 1
        assert steps < 20
    assert steps <= 4


@pytest.mark.parametrize(
    "pattern", ["/cal/{y}/{m:02}", "/events?date={y}-{m:02}-01", "/x?year={y}&month={m}", "/{y}-{m:02}/"]
)
def test_calendar_is_left_behind_in_both_directions(pattern: str) -> None:
    for step in (1, -1):
        month, chain = YEAR * 12 + 10, 0
        while (
            reason(
                pattern.format(y=(month + step) // 12, m=(month + step) % 12 + 1),
                referrer=pattern.format(y=month // 12, m=month % 12 + 1),
            )
            is None
        ):
            month += step
            chain += 1
            assert chain < 1500
        assert (month + step) // 12 == (YEAR + 6 if step > 0 else YEAR - 101)


@pytest.mark.parametrize("referrer", ["/1912/04/", "/1912/01/x", "/archive/", "/1911/05/14/"])
def test_old_date_is_followed_where_no_calendar_leads_back(referrer: str) -> None:
    assert reason("/1912/04/", referrer=referrer) is None
    assert reason("/1912/04/", referrer="/1912/05/") is LeftOut.CALENDAR


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/a/b/a/b/a/b/a/b/a/b", "repeats_max"),
        ("/" + "/".join(f"x{n}" for n in range(60)), "path_depth_max"),
        ("/form?" + "&".join(f"a{n}={n}" for n in range(90)), "query_params_max"),
        ("/login?next=%252525252Flogin", "query_growth_max_bytes"),
        ("/2099/12/", "calendar_ahead_max"),
    ],
)
def test_each_rule_is_left_out_where_asked(path: str, limit: str) -> None:
    found = reason(path)
    assert found is not None
    nothing: dict[str, Any] = {limit: None}
    assert reason(path, **nothing) is None
    assert limit in {
        field_of(name) for name in in_words(found).split() if name in CLASSES or f"{name}_bytes" in CLASSES
    }


def test_all_limits_of_calendars_can_be_lifted() -> None:
    nothing: dict[str, Any] = {"calendar_ahead_max": None, "calendar_back_max": None}
    assert reason("/2099/12/", **nothing) is None
    assert reason("/1912/04/", referrer="/1912/05/", calendar_back_max=None) is None
    assert reason("/1912/04/", referrer="/1912/05/", calendar_ahead_max=None) is LeftOut.CALENDAR


@pytest.mark.parametrize("one", LeftOut)
def test_reason_names_the_setting_to_change(one: LeftOut) -> None:
    words = in_words(one)
    assert words.startswith(f"{one}: ")
    names = [word for word in words.partition(": ")[2].split() if "_max" in word or word == "depth"]
    assert names
    assert all(field_of(name) for name in names)


@given(st.lists(st.sampled_from("ab1"), max_size=12), st.integers(1, 3))
def test_repetition_is_what_a_plain_search_finds(segments: list[str], most: int) -> None:
    def stands_in_a_row(start: int, length: int) -> bool:
        run = segments[start : start + length]
        row = run * (most + 1)
        return any(not part.isdecimal() for part in run) and segments[start : start + len(row)] == row

    expected = any(segments.count(word) > 2 * most for word in "ab") or any(
        stands_in_a_row(start, length) for start in range(len(segments)) for length in range(1, len(segments) + 1)
    )
    assert is_repetitive(segments, most) is expected


@given(st.text(alphabet="ab/?&=%25-0129", max_size=80), st.text(alphabet="ab/?&=%25-0129", max_size=80))
def test_any_pair_of_urls_has_an_answer(path: str, referrer: str) -> None:
    url, page = canonical_url(f"{SITE}/{path}"), canonical_url(f"{SITE}/{referrer}")
    assert url is not None
    assert page is not None
    Traps(make_settings("books", {}), YEAR).reason(url, depth=1, referrer=page)


@pytest.mark.parametrize(
    "path",
    [
        "/" + "a/" * 5000, "/" + "0/" * 5000, "/" + "ab/ba/" * 2500, "/?" + "a&" * 5000, "/?" + "date" * 2500,
        "/?" + "=2032-1" * 1500, "/" + "2032-1" * 1500, "/?" + "&".join(f"a{n}=1" for n in range(1500)),
        "/calendar/" * 1000, "/?" + "%2525" * 2000,
    ],
)  # fmt: skip
def test_no_link_takes_long_however_wide_the_limits(path: str) -> None:
    settings = make_settings(
        "books",
        {
            "url_max_bytes": 100_000,
            "path_depth_max": Given(None, ""),
            "query_params_max": Given(None, ""),
            "repeats_max": 5000,
        },
    )
    traps = Traps(settings, YEAR)
    began = time.process_time()
    for _ in range(20):
        traps.reason(SITE + path, depth=1, referrer=SITE + path[:-1])
    # Some hundred times what it takes: what grows with the square of the length would take minutes.
    assert time.process_time() - began < 5
