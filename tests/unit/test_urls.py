"""Canonical URLs, fingerprints and registrable domains."""

from __future__ import annotations

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.urls import (
    canonical_url,
    fingerprint,
    fingerprint_hex,
    hostname_of,
    registrable_domain,
    split_url,
    without_credentials,
    without_scheme,
)

PAGE = "https://example.org/docs/guide/index.html?v=2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("next.html", "https://example.org/docs/guide/next.html"),
        ("../api/", "https://example.org/docs/api/"),
        ("../../../../up", "https://example.org/up"),
        ("/a/./b/../c", "https://example.org/a/c"),
        ("?v=3", "https://example.org/docs/guide/index.html?v=3"),
        ("#part", "https://example.org/docs/guide/index.html?v=2"),
        ("", "https://example.org/docs/guide/index.html?v=2"),
        ("//other.example/x", "https://other.example/x"),
        ("\\\\other.example\\x", "https://other.example/x"),
        ("  /a \n b\t ", "https://example.org/a%20%20b"),
        ("/sp ace?q=a b", "https://example.org/sp%20ace?q=a%20b"),
        ("/straße?q=ü", "https://example.org/stra%C3%9Fe?q=%C3%BC"),
        ("/\ud800", "https://example.org/%EF%BF%BD"),
        ("/a?", "https://example.org/a"),
        ("/a?#f", "https://example.org/a"),
        ("/a?b?", "https://example.org/a?b?"),
        ("/a??", "https://example.org/a??"),
        ("/a/", "https://example.org/a/"),
        ("/%7Ejoe/%e4", "https://example.org/%7Ejoe/%e4"),
        ("http:", None),
        ("https:page", "https://example.org/docs/guide/page"),
        ("http://", None),
        ("mailto:joe@example.org", None),
        ("javascript:void(0)", None),
        ("data:text/html,<a href=/x>", None),
        ("ftp://example.org/", None),
        ("http://exa mple.org/", None),
        ("http://[::1", None),
        ("http://a:99999/", None),
    ],
)
def test_link_is_read_as_a_browser_reads_it(text: str, expected: str | None) -> None:
    assert canonical_url(text, PAGE) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HTTP://EXAMPLE.org", "http://example.org/"),
        ("http://example.org:80/", "http://example.org/"),
        ("https://example.org:443/", "https://example.org/"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://[0:0::1]:8080/x", "http://[::1]:8080/x"),
        ("http://joe:secret@example.org:8080/a@b?c@d", "http://example.org:8080/a@b?c@d"),
        ("http://joe@example.org/", "http://example.org/"),
        ("http://joe%40home:a%2Fb@example.org/", "http://example.org/"),
        ("http://example.org/@handle", "http://example.org/@handle"),
        ("/relative", None),
        ("example.org/", None),
        ("", None),
    ],
)
def test_absolute_url_becomes_canonical(text: str, expected: str | None) -> None:
    assert canonical_url(text) == expected


def test_base_that_is_no_url_makes_every_link_none() -> None:
    assert canonical_url("/a", "no url") is None
    assert canonical_url("/a", "http://\ud800/") is None


@given(st.text(), st.sampled_from([None, PAGE, "http://127.0.0.1:8000/"]))
def test_any_text_gives_none_or_a_stable_ascii_url(text: str, base: str | None) -> None:
    url = canonical_url(text, base)
    if url is None:
        return
    assert url.isascii()
    assert "#" not in url
    assert not any(character.isspace() for character in url)
    assert canonical_url(url) == url
    host, path = split_url(url)
    assert host + path == url
    assert path.startswith("/")
    assert "@" not in host


@given(st.text(alphabet="abc/?#@:.%[]\\ é\t\ud800", max_size=30))
def test_anything_after_a_host_stays_on_that_host(text: str) -> None:
    url = canonical_url(f"http://example.org/{text}")
    assert url is not None
    assert split_url(url)[0] == "http://example.org"
    assert canonical_url(url) == url


def test_canonical_url_reaches_the_wire_unchanged_by_way_of_yarl() -> None:
    url = canonical_url("/a%2fb/%7E/ü?x=%26&y=a+b|c", PAGE)
    assert url is not None
    assert str(yarl.URL(url, encoded=True)) == url


@pytest.mark.parametrize(
    ("host_key", "hostname"),
    [
        ("https://example.org", "example.org"),
        ("http://127.0.0.1:8000", "127.0.0.1"),
        ("http://[::1]", "[::1]"),
        ("http://[::1]:8000", "[::1]"),
        ("example.org:8000", "example.org"),
        ("example.org", "example.org"),
    ],
)
def test_host_key_has_a_hostname(host_key: str, hostname: str) -> None:
    assert hostname_of(host_key) == hostname


def test_scheme_is_left_out() -> None:
    assert without_scheme("https://example.org:8443/a//b") == "example.org:8443/a//b"


@pytest.mark.parametrize(
    ("hostname", "domain"),
    [
        ("www.shop.example.co.uk", "example.co.uk"),
        ("example.com", "example.com"),
        ("a.b.example.com.", "example.com"),
        ("me.github.io", "me.github.io"),
        ("www.me.github.io", "me.github.io"),
        ("com", "com"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("docs.wiki.corp", "docs.wiki.corp"),
        ("127.0.0.1", "127.0.0.1"),
        ("[2001:db8::1]", "[2001:db8::1]"),
        ("www.xn--bcher-kva.de", "xn--bcher-kva.de"),
    ],
)
def test_registrable_domain_is_what_somebody_registered(hostname: str, domain: str) -> None:
    assert registrable_domain(hostname) == domain


def test_fingerprint_is_fixed_for_ever() -> None:
    # Stored crawls hold these numbers: another value would fetch every page again.
    assert fingerprint("https://example.org/") == 7982605172991246264
    assert fingerprint_hex(7982605172991246264) == "6ec7e91c7656bfb8"


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_fingerprint_in_hex_is_sixteen_digits_and_reversible(number: int) -> None:
    text = fingerprint_hex(number)
    assert len(text) == 16
    assert int.from_bytes(bytes.fromhex(text), "big", signed=True) == number


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_fingerprint_fits_a_signed_64_bit_integer(url: str) -> None:
    assert -(2**63) <= fingerprint(url) < 2**63


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("https://me:hunter2@example.org/", "https://***@example.org/"),
        ("ftp://me:hunter2@example.org", "ftp://***@example.org"),
        ("//me:h@nter2@example.org/x", "//***@example.org/x"),
        ("me:hunter2@example.org/x", "***@example.org/x"),
        ("http:\\\\me:hunter2@example.org", "***@example.org"),
        ("mailto:me@example.org", "mailto:me@example.org"),
        ("no url", "no url"),
        ("", ""),
    ],
)
def test_credentials_are_left_out_of_what_is_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
