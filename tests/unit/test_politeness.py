"""How long a host is left alone."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.politeness import Refusal, host_delay_ms, is_of_host, parse_retry_after_ms, refusal_of

NOW_MS = 784_111_777_000
"""Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110."""


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("0", 0),
        ("120", 120_000),
        (" 120\t", 120_000),
        ("007", 7000),
        ("0" * 9000 + "1", 1000),
        ("9" * 9000, 10**15),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sun, 06 Nov 1994 08:50:07 GMT", 30_000),
        ("sun, 6 nov 1994 08:50:07 utc", 30_000),
        ("Sunday, 06-Nov-94 08:50:07 GMT", 30_000),
        ("Sun Nov  6 08:50:07 1994", 30_000),
        ("Sun Nov 06 08:50:07 1994", 30_000),
        ("Sun, 06 Nov 1994 08:49:60 GMT", 22_000),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Sunday, 06-Nov-44 08:49:37 GMT", 1_577_923_200_000),
        ("Sunday, 06-Nov-45 08:49:37 GMT", 0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(value: str, expected_ms: int) -> None:
    assert parse_retry_after_ms(value, NOW_MS) == expected_ms


def test_two_digit_year_looks_over_the_turn_of_the_century() -> None:
    now_ms = int(datetime(2099, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000
    assert parse_retry_after_ms("Friday, 01-Jan-00 00:00:00 GMT", now_ms) == 1000
    now_ms = int(datetime(2001, 1, 1, tzinfo=UTC).timestamp()) * 1000
    assert parse_retry_after_ms("Sunday, 31-Dec-99 23:59:59 GMT", now_ms) == 0


@pytest.mark.parametrize(
    "value",
    [
        "", "soon", "-5", "+5", "1.5", "1 2", "٣", "1e3", "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:00:00 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 PST", "1994-11-06T08:49:37Z",
    ],
)  # fmt: skip
def test_retry_after_that_is_neither_is_none(value: str) -> None:
    assert parse_retry_after_ms(value, NOW_MS) is None


@given(st.text(max_size=60), st.integers(0, 2**42))
def test_no_text_breaks_retry_after(value: str, now_ms: int) -> None:
    wait_ms = parse_retry_after_ms(value, now_ms)
    assert wait_ms is None or wait_ms >= 0


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_every_http_date_is_read(when: datetime) -> None:
    when = when.replace(microsecond=0, tzinfo=UTC)
    when_ms = int(when.timestamp()) * 1000
    assert parse_retry_after_ms(format_datetime(when, usegmt=True), 0) == when_ms
    assert parse_retry_after_ms(when.strftime("%a %b ") + f"{when.day:2} {when:%H:%M:%S} {when.year:04}", 0) == when_ms


@pytest.mark.parametrize(
    ("crawl_delay_ms", "expected_ms"), [(None, 1000), (0, 1000), (500, 1000), (2500, 2500), (86_400_000, 30_000)]
)
def test_crawl_delay_only_lengthens_the_wait_and_is_capped(crawl_delay_ms: int | None, expected_ms: int) -> None:
    assert host_delay_ms(1000, crawl_delay_ms, 30_000) == expected_ms


def test_cap_never_shortens_our_own_delay() -> None:
    assert host_delay_ms(60_000, 86_400_000, 30_000) == 60_000


def test_which_answers_and_which_tries_speak_of_the_whole_host() -> None:
    assert [status for status in range(100, 1000) if refusal_of(status)] == [429, 503]
    assert {refusal for refusal in Refusal if is_of_host(refusal, 1)} == set(Refusal)
    assert {refusal for refusal in Refusal if is_of_host(refusal, 2)} == {Refusal.TOO_MANY}
