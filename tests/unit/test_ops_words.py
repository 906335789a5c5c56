"""How operators write moments, durations and hosts, and how these are shown."""

from __future__ import annotations

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.ops.words import host_keys, host_test, moment, parse_moment_ms, span

NOW_MS = 1_796_080_000_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 ms"), (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (119_999, "120.0 s"), (120_000, "2 min"),
        (7_199_999, "119 min"), (7_200_000, "2 h"), (172_799_999, "47 h"), (172_800_000, "2 d"),
    ],
)  # fmt: skip
def test_span_is_short(ms: int, text: str) -> None:
    assert span(ms) == text


def test_moment_is_utc_and_none_when_it_cannot_be() -> None:
    assert moment(NOW_MS) == "2026-11-30T23:06:40Z"
    assert moment(0) == ""
    assert moment(10**18) == ""


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", NOW_MS - 90_000), ("1h", NOW_MS - 3_600_000), ("2026-11-30T23:06:40Z", NOW_MS),
        ("2026-11-30T23:06:40", NOW_MS), ("2026-12-01T00:06:40+01:00", NOW_MS), ("2026-11-30", NOW_MS - 83_200_000),
    ],
)  # fmt: skip
def test_moment_may_be_an_age_or_a_time(text: str, ms: int) -> None:
    assert parse_moment_ms("--since", text, NOW_MS) == ms


def test_moment_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="--since 'yesterday' is no moment; write how long ago"):
        parse_moment_ms("--since", "yesterday", NOW_MS)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("https://Example.org/a?b", ["https://example.org"]),
        ("example.org", ["https://example.org", "http://example.org"]),
        ("example.org:8080", ["https://example.org:8080", "http://example.org:8080"]),
        ("example.org/path", ["https://example.org", "http://example.org"]),
        ("[::1]:81", ["https://[::1]:81", "http://[::1]:81"]),
        ("Bücher.example", ["https://xn--bcher-kva.example", "http://xn--bcher-kva.example"]),
    ],
)
def test_host_keys_that_may_be_meant(text: str, keys: list[str]) -> None:
    assert host_keys(text) == keys


@pytest.mark.parametrize("text", ["", "ftp://a.test/", "http://", "a b"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        host_keys(text)


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("http://a.test", {"http://a.test"}),
        ("a.test:81", {"http://a.test:81"}),
        ("a.test", {"http://a.test", "http://a.test:81", "https://w.a.test"}),
        ("test", {"http://a.test", "http://a.test:81", "https://w.a.test", "http://ba.test"}),
        ("w.a.test/x:81", {"https://w.a.test"}),
    ],
)
def test_hosts_that_a_filter_takes(text: str, matching: set[str]) -> None:
    keys = {"http://a.test", "http://a.test:81", "https://w.a.test", "http://ba.test", "http://testing"}
    assert {key for key in keys if host_test(text)(key)} == matching
