"""Headers of a user's own go to the hosts that were named, and to no other."""

from __future__ import annotations

import pytest

from streamcrawl.errors import ConfigError
from streamcrawl.rules.host_headers import HEADERS_MAX, HostHeaders

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (
            "example.org",
            ["https://example.org", "http://example.org:8080"],
            ["https://a.example.org", "https://example.org.evil.test", "https://notexample.org", "https://org"],
        ),
        ("EXAMPLE.org", ["https://example.org"], []),
        (
            "*.example.org",
            ["https://a.example.org", "https://a.b.example.org:1"],
            ["https://example.org", "https://badexample.org", "https://a.example.org.evil.test"],
        ),
        ("https://example.org", ["https://example.org"], ["http://example.org"]),
        ("example.org:8443", ["https://example.org:8443"], ["https://example.org", "https://example.org:84430"]),
        ("example.org:443", ["https://example.org"], ["http://example.org"]),
        ("127.0.0.1:80", ["http://127.0.0.1"], ["http://127.0.0.1:8080", "http://127.0.0.10"]),
        ("[::1]:8000", ["http://[::1]:8000"], ["http://[::1]"]),
        ("[::1]", ["http://[::1]:8000", "https://[::1]"], ["http://[::11]"]),
        ("*", ["https://example.org", "http://[::1]:1"], []),
    ],
)
def test_header_goes_to_hosts_of_its_pattern(pattern: str, matching: list[str], other: list[str]) -> None:
    headers = HostHeaders([f"{pattern}: X-Key: a: b"], [])
    assert [headers.of(host) for host in matching] == [{"X-Key": "a: b"}] * len(matching)
    assert [headers.of(host) for host in other] == [{}] * len(other)


def test_later_lines_win_whatever_their_case() -> None:
    headers = HostHeaders(["*: X-Key: 1", "*: Y: 1", "a.test: x-key: 2", "a.test: Empty:"], [])
    assert headers.of("http://a.test") == {"x-key": "2", "Y": "1", "Empty": ""}
    assert headers.of("http://b.test") == {"X-Key": "1", "Y": "1"}


def test_password_goes_over_https_only_unless_somebody_says_otherwise() -> None:
    headers = HostHeaders([], ["a.test: me:pass:word", "http://b.test: me:"])
    assert headers.of("https://a.test") == {"Authorization": "Basic bWU6cGFzczp3b3Jk"}
    assert headers.of("http://a.test") == {}
    assert headers.of("http://b.test") == {"Authorization": "Basic bWU6"}
    assert headers.of("https://b.test") == {}


def test_nothing_given_is_nothing_sent() -> None:
    assert not HostHeaders([], [])
    assert HostHeaders([], []).of("https://a.test") == {}
    assert HostHeaders(["*: X: 1"], [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("X-Key hunter2", 'write "example.org: Name: value"'),
        ("a.test: hunter2", 'write "example.org: Name: value"'),
        ("a/b: X: hunter2", "'a/b' is no pattern of hosts"),
        ("a.*: X: hunter2", "'a.*' is no pattern of hosts"),
        ("ftp://a.test: X: hunter2", "is no pattern of hosts"),
        ("a.test: X Y: hunter2", "'X Y' is no name of a header"),
        ("a.test: : hunter2", "'' is no name of a header"),
        ("a.test: Host: hunter2", "'Host' is no name of a header that can be given"),
        ("a.test: user-agent: hunter2", "'user-agent' is no name of a header that can be given"),
        ("a.test: X: hunter2\r\nEvil: 1", "the value of X must be one line"),
        ("a.test: X: hunter2\0", "the value of X must be one line"),
        ("a.test: X: hunter2 ☃", "the value of X must be one line"),
        (f"a.test: X: hunter2{'x' * 8192}", "the value of X must be one line of at most 8192 bytes"),
    ],
)
def test_line_that_is_no_header_is_refused_and_its_value_not_told(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HostHeaders(["*: X: 1", line], [])
    assert message in str(caught.value)
    assert str(caught.value).startswith("header 2")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["a.test", "a.test: hunter2", "a/b: me:hunter2", "a.test: me:hunter2\n", ": me:hunter2"]
)
def test_line_that_is_no_password_is_refused_and_not_told(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^auth 1") as caught:
        HostHeaders([], [line])
    assert SECRET not in str(caught.value)


def test_headers_are_bounded() -> None:
    HostHeaders(["*: X: 1"] * HEADERS_MAX, [])
    with pytest.raises(ConfigError, match="at most"):
        HostHeaders(["*: X: 1"] * HEADERS_MAX, ["*: me:x"])
