"""Canonical URLs, fingerprints and registrable domains."""

from __future__ import annotations

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.urls import (
    Canonicalizer,
    canonical_url,
    fingerprint,
    fingerprint_hex,
    hostname_of,
    registrable_domain,
    split_url,
    without_credentials,
    without_scheme,
)
from streamcrawl.settings import make_settings

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
        ("http://a.xn--qqqqqqqq.example/xqx?XN--", "http://a.xn--qqqqqqqq.example/xqx?XN--"),
        (" HTTPS:\\\\joe@XN--.EXAMPLE:443", "https://xn--.example/"),
        ("http://xn--/XN--", "http://xn--/XN--"),
        ("http://xn--qqqqqqqq.example:x/", None),
        ("http://xn--qqqq qqqq.example/", None),
        ("http://xn--qqqqqqqq.ü.example/", None),
        ("mailto:xn--qqqqqqqq.example", None),
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


# -- the form of one crawl

SHOP = "https://shop.example"
SESSION = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("drop", "path", "expected"),
    [
        (("ref",), "/a?ref=1&b=2", "/a?b=2"),
        (("ref",), "/a?b=2&ref", "/a?b=2"),
        (("ref",), "/a?ref=1", "/a"),
        (("ref",), "/a?REF=1&r%65f=2&xref=3&refx=4", "/a?xref=3&refx=4"),
        (("REF",), "/a?ref=1", "/a"),
        (("utm_*",), "/a?utm_source=x&utm=1&utm_=2&b", "/a?utm=1&b"),
        (("*",), "/a?b=1&c", "/a"),
        (("ref",), "/a?b=ref=1&c=2", "/a?b=ref=1&c=2"),
        (("ref",), "/ref=1/a;ref=2?b=&&c", "/ref=1/a;ref=2?b=&&c"),
        (("tracking",), "/a?utm_source=n&gclid=1&fbclid=2&mc_eid=3&_ga=4&q=5", "/a?q=5"),
        (("tracking",), "/a?tracking=1&PHPSESSID=2", "/a?tracking=1&PHPSESSID=2"),
        (("tracking", "ref"), "/a?ref=1&dclid=2", "/a"),
        (("sessions",), "/a?PHPSESSID=1&ASPSESSIONIDQQ=2&sessions=3", "/a?sessions=3"),
        (("sessions",), f"/a?sid={SESSION}&s={SESSION}&q={SESSION}", f"/a?q={SESSION}"),
        (("sessions",), "/a?sid=17&session=summer-of-twenty-six-all", "/a?sid=17&session=summer-of-twenty-six-all"),
        (("sessions",), "/a;jsessionid=1F2E.node1?q=1", "/a?q=1"),
        (("sessions",), "/a;JSESSIONID=1F2E/b;v=2;sid=3", "/a/b;v=2"),
        (("sessions",), "/a;jsessionid=", "/a"),
        (("sessions",), "/a;xjsessionid=1", "/a;xjsessionid=1"),
        (("sessions",), "/a/..;jsessionid=1/b", "/b"),
        (("sessions",), "/(S(lit3py55t21z5v55vlm25s55))/a.aspx?b", "/a.aspx?b"),
        (("sessions",), "/app/(S(lit3py55t21z5v55vlm25s55))/", "/app/"),
        (("sessions",), "/wiki/(S(x))/page", "/wiki/(S(x))/page"),
    ],
)  # fmt: skip
def test_named_parameters_and_session_ids_are_taken_out(drop: tuple[str, ...], path: str, expected: str) -> None:
    assert Canonicalizer(drop)(SHOP + path) == SHOP + expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a?c=1&b=2&a=3", "/a?a=3&b=2&c=1"),
        ("/a?b=2&a=1&b=1&a", "/a?a=1&a&b=2&b=1"),
        ("/a?b&&a&", "/a?a&b"),
        ("/a?&", "/a"),
        ("/c?", "/c"),
    ],
)
def test_sorted_query_keeps_the_order_of_values_of_one_name(path: str, expected: str) -> None:
    assert Canonicalizer(is_sorted=True)(SHOP + path) == SHOP + expected


def test_without_options_a_url_is_its_own_form() -> None:
    form = Canonicalizer.from_settings(make_settings("books", {}))
    assert form.is_plain
    url = f"{SHOP}/a;jsessionid=1?utm_source=x&b&a&&"
    assert form(url) == url
    assert not Canonicalizer.from_settings(make_settings("books", {"sort_query": True})).is_plain


_QUERIES = st.lists(
    st.sampled_from(["", "a=1", "b", "utm_source=x", f"sid={SESSION}", "sid=1", "PHPSESSID=2", "r%65f=1", "c=%26", "ü"])
    | st.text(alphabet="ab=%&;", max_size=6),
    max_size=6,
).map("&".join)
_PATHS = st.lists(
    st.sampled_from(["a", "..", ".", "", ";jsessionid=1", "..;jsessionid=2", "%2e%2e;sid=3;jsessionid=4", "b;sid=",
                     "c;v=1", "(S(lit3py55t21z5v55vlm25s55))", ".;jsessionid=(S(lit3py55t21z5v55vlm25s55))", "(A(x))"])
    | st.text(alphabet="a.;=/()S", max_size=8),
    max_size=6,
).map("/".join)  # fmt: skip


@given(_PATHS, _QUERIES, st.sets(st.sampled_from(["tracking", "sessions", "ref", "a*", "*"])), st.booleans())
def test_form_of_any_url_is_canonical_and_its_own_form(path: str, query: str, drop: set[str], is_sorted: bool) -> None:
    url = canonical_url(f"{SHOP}/{path}?{query}")
    assert url is not None
    form = Canonicalizer(tuple(drop), is_sorted=is_sorted)
    found = form(url)
    assert canonical_url(found) == found
    assert form(found) == found
    assert split_url(found)[0] == SHOP
    assert len(found) <= len(url)


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
