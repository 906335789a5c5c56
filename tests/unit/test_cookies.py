"""Which cookies an answer sets, and with which requests they go."""

from __future__ import annotations

from typing import Any

import pytest

from streamcrawl.rules.cookies import (
    AGE_MAX_MS,
    GONE,
    HEADER_MAX_BYTES,
    PAIR_MAX_BYTES,
    SESSION,
    SET_MAX,
    Cookie,
    Jar,
    cookie_date_ms,
    jar_name,
    parse_set_cookie,
)

NOW_MS = 784_111_777_000
"""Sun, 06 Nov 1994 08:49:37 GMT."""
URL = "https://www.example.org/shop/list?x=1"


def parsed(line: str, url: str = URL, **how: Any) -> tuple[Cookie, int] | None:
    return parse_set_cookie(line, url, NOW_MS, **how)


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        ("a=1", ("a", "1")),
        ("  a\t= 1 2 ; Path=/", ("a", "1 2")),
        ('a="1"', ("a", '"1"')),
        ("a=1=2", ("a", "1=2")),
        ("a=", ("a", "")),
        ("a=caf\xe9", ("a", "caf\xe9")),
        ("a[b]=1,c=2", ("a[b]", "1,c=2")),
        ("a=1;;;=;Path", ("a", "1")),
        ("", None),
        ("a", None),
        ("=1", None),
        ("; a=1", None),
        ("a=1\r\nX: y", None),
        ("a=\x00", None),
        ("a=\udce9", None),
        (f"a={'1' * PAIR_MAX_BYTES}", None),
    ],
)
def test_name_and_value_are_what_stands_before_the_first_semicolon(line: str, pair: tuple[str, str] | None) -> None:
    found = parsed(line)
    assert (found and (found[0].name, found[0].value)) == pair


@pytest.mark.parametrize(
    ("line", "url", "domain"),
    [
        # (domain, host only?) or None where the host may not set it
        ("a=1", URL, ("www.example.org", True)),
        ("a=1; Domain=", URL, ("www.example.org", True)),
        ("a=1; Domain=.Example.ORG", URL, ("example.org", False)),
        ("a=1; domain=www.example.org", URL, ("www.example.org", False)),
        ("a=1; Domain=example.org; Domain=www.example.org", URL, ("www.example.org", False)),
        ("a=1; Domain=ample.org", URL, None),
        ("a=1; Domain=other.org", URL, None),
        ("a=1; Domain=deep.www.example.org", URL, None),
        ("a=1; Domain=org", URL, None),
        ("a=1; Domain=.", URL, ("www.example.org", True)),
        ("a=1; Domain=co.uk", "https://a.co.uk/", None),
        ("a=1; Domain=github.io", "https://a.github.io/", None),
        ("a=1; Domain=github.io", "https://github.io/", ("github.io", True)),
        ("a=1; Domain=corp", "http://wiki.corp/", None),
        ("a=1; Domain=localhost", "http://localhost/", ("localhost", True)),
        ("a=1; Domain=127.0.0.1", "http://127.0.0.1:80/", ("127.0.0.1", True)),
        ("a=1; Domain=0.0.1", "http://127.0.0.1/", None),
        ("a=1; Domain=[::1]", "http://[::1]:8080/", ("[::1]", True)),
    ],
)
def test_domain_is_one_that_the_host_may_speak_for(line: str, url: str, domain: tuple[str, bool] | None) -> None:
    found = parsed(line, url)
    assert (found and (found[0].domain, found[0].is_host_only)) == domain
    own = parsed(line, url, is_of_host=True)
    assert (own is None) == (domain is None)
    assert own is None or own[0].is_host_only


@pytest.mark.parametrize(
    ("line", "url", "path"),
    [
        ("a=1", URL, "/shop"),
        ("a=1", "https://e.org/", "/"),
        ("a=1", "https://e.org/x", "/"),
        ("a=1; Path=/x/", URL, "/x/"),
        ("a=1; Path=x", URL, "/shop"),
        ("a=1; Path=", URL, "/shop"),
        (f"a=1; Path=/{'x' * 2000}", URL, "/shop"),
    ],
)
def test_path_is_given_or_that_of_the_page(line: str, url: str, path: str) -> None:
    found = parsed(line, url)
    assert found is not None
    assert found[0].path == path


@pytest.mark.parametrize(
    ("attributes", "lasts_ms"),
    [
        ("", SESSION),
        ("Max-Age=60", 60_000),
        ("max-age = 0", GONE),
        ("Max-Age=-1", GONE),
        ("Max-Age=1e9", SESSION),
        (f"Max-Age={'9' * 999}", AGE_MAX_MS),
        ("Expires=Sun, 06 Nov 1994 08:50:37 GMT", 60_000),
        ("Expires=Sun, 06-Nov-1994 08:50:37 GMT", 60_000),
        ("Expires=Sun Nov  6 08:50:37 94", 60_000),
        ("Expires=Thu, 01 Jan 1970 00:00:00 GMT", GONE),
        ("Expires=Thu, 01 Jan 2037 00:00:00 GMT", AGE_MAX_MS),
        ("Expires=tomorrow", SESSION),
        ("Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60", 60_000),
    ],
)
def test_end_is_max_age_before_expires(attributes: str, lasts_ms: int) -> None:
    found = parsed(f"a=1; {attributes}")
    assert found is not None
    assert found[1] == lasts_ms


@pytest.mark.parametrize(
    "text", ["", "1", "32 Nov 1994 08:49:37", "6 Nov 1994 25:49:37", "6 Nov 1600 08:49:37", "Nov 1994 8:1", "\x00" * 9]
)
def test_what_is_no_date_is_none(text: str) -> None:
    assert cookie_date_ms(text) is None


@pytest.mark.parametrize(
    ("line", "url", "is_taken"),
    [
        ("a=1; Secure", URL, True),
        ("a=1; Secure", "http://www.example.org/", False),
        ("__Secure-a=1; Secure", URL, True),
        ("__Secure-a=1", URL, False),
        ("__Host-a=1; Secure; Path=/", URL, True),
        ("__host-a=1; Secure", URL, False),
        ("__Host-a=1; Secure; Path=/; Domain=example.org", URL, False),
    ],
)
def test_secure_cookies_need_tls_and_prefixes_what_they_promise(line: str, url: str, is_taken: bool) -> None:
    assert (parsed(line, url) is not None) == is_taken


# -- jars


def jar_of(*lines: str, url: str = URL, kind: str = "crawl") -> Jar:
    jar = Jar(kind=kind)
    jar.take(lines, url, NOW_MS)
    return jar


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("https://www.example.org/shop/list", "shop=1; host=1; domain=1; secure=1"),
        ("https://www.example.org/shop", "shop=1; host=1; domain=1; secure=1"),
        ("https://www.example.org/shopping", "host=1; domain=1; secure=1"),
        ("http://www.example.org:8080/", "host=1; domain=1"),
        ("https://example.org/", "domain=1"),
        ("https://a.b.example.org/shop/", "domain=1"),
        ("https://notexample.org/", None),
        ("https://127.0.0.1/", None),
    ],
)
def test_cookies_go_where_they_belong_and_nowhere_else(url: str, header: str | None) -> None:
    jar = jar_of("host=1; Path=/", "domain=1; Path=/; Domain=example.org", "secure=1; Secure; Path=/", "shop=1")
    assert jar.header(url) == header


def test_a_given_line_is_what_a_jar_begins_with() -> None:
    assert Jar(kind="host").header(URL, "a=1; b=2;") == "a=1; b=2"
    assert jar_of("b=3", "c=4").header(URL, "a=1; b=2") == "a=1; b=3; c=4"


def test_what_the_store_has_comes_back_as_it_was() -> None:
    jar = Jar(kind="crawl")
    lines = ["a=1; Domain=example.org; Secure; Path=/", 'b="x;y"; Max-Age=60', "c=caf\xe9=; Path=/shop/list"]
    changes = jar.take(lines, URL, NOW_MS)
    assert len(changes) == 4 * len(jar) == 12
    again = Jar(changes, kind="crawl")
    assert again.header(URL) == jar.header(URL)
    assert Jar(["no key", "", "1", 0, "a;b", "", "1", 0], kind="crawl").header(URL) is None


def test_only_what_differs_is_a_change() -> None:
    jar = jar_of("a=1; Max-Age=8000", "b=1")
    assert jar.take(["a=1; Max-Age=7500", "b=1"], URL, NOW_MS) == []
    assert jar.take(["a=1; Max-Age=4000"], URL, NOW_MS) == ["a;www.example.org;/shop", "", "1", 4_000_000]
    assert jar.take(["b=2"], URL, NOW_MS) == ["b;www.example.org;/shop", "", "2", SESSION]
    assert jar.take(["b=; Max-Age=0", "c=; Max-Age=0"], URL, NOW_MS) == ["b;www.example.org;/shop", "", "", GONE]
    assert jar.header(URL) == "a=1"


def test_a_cookie_that_only_tls_may_set_is_not_replaced_without() -> None:
    jar = jar_of("a=1; Secure; Path=/", "b=1; Path=/")
    plain = "http://www.example.org/"
    assert jar.take(["a=2; Path=/", "a=2; Path=/x", "a=2; Domain=example.org; Path=/"], plain, NOW_MS) == []
    assert len(jar.take(["b=2; Path=/", "c=2"], plain, NOW_MS)) == 8


def test_header_and_lines_are_bounded() -> None:
    jar = jar_of(*(f"{name}={'x' * 3000}; Path=/" for name in "abcd"))
    line = jar.header(URL)
    assert line is not None
    assert 3000 < len(line) <= HEADER_MAX_BYTES
    assert len(jar_of(*(f"c{n}=1" for n in range(SET_MAX + 20)))) == SET_MAX


def test_jar_is_of_a_host_and_port_or_of_a_domain() -> None:
    assert jar_name("https://www.example.co.uk:8443", "host") == "host:www.example.co.uk:8443"
    assert jar_name("https://www.example.co.uk:8443", "crawl") == "site:example.co.uk"
    assert jar_name("http://127.0.0.1:8080", "crawl") == "site:127.0.0.1"


def test_value_is_not_shown() -> None:
    found = parsed("session=hunter2")
    assert "hunter2" not in repr(found)
