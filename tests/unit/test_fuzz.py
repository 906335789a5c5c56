"""Whatever strangers write, no parser of ours raises what its docstring does not say, and none is quadratic in it.

Two kinds of tests. `FUZZED` feeds each parser with pieces of its own language in any order, and with bytes of none;
what has to hold of the outcome is asserted where the parser is called. `GROWING` feeds it the inputs that made parsers
of others slow, at two sizes, and compares the CPU time of the two: sixteen times the input may cost 64 times as much,
and a quadratic parser takes 256 times.

`make fuzz` runs the same for longer (STREAMCRAWL_FUZZ is the number of examples).
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from streamcrawl.errors import BodyTooLarge, CodecError, ConfigError, ProtocolError, StoreIncompatible
from streamcrawl.ops.letters import Letter, Where, parse_where
from streamcrawl.ops.words import host_keys, host_test, moment, parse_moment_ms, span
from streamcrawl.response import Response
from streamcrawl.rules import parse
from streamcrawl.rules.addresses import Inside, literal_of, network_of
from streamcrawl.rules.charset import charset_of, decode_body
from streamcrawl.rules.cookies import AGE_MAX_MS, GONE, HEADER_MAX_BYTES, Jar, cookie_date_ms, parse_set_cookie
from streamcrawl.rules.host_headers import HostHeaders
from streamcrawl.rules.parse import parse_html
from streamcrawl.rules.politeness import parse_retry_after_ms
from streamcrawl.rules.proxies import parse_proxies, without_password
from streamcrawl.rules.robots_rules import RobotsRules, deciding_line, product_of, verdict_ttl_ms, whole_lines
from streamcrawl.rules.scope import Scope
from streamcrawl.rules.sniff import BodyKind, body_kind
from streamcrawl.rules.task import CrawlTask, decode_task, encode_task
from streamcrawl.rules.traps import Traps
from streamcrawl.rules.urls import (
    Canonicalizer,
    canonical_url,
    fingerprint,
    hostname_of,
    is_public_suffix,
    registrable_domain,
    split_url,
    without_credentials,
)
from streamcrawl.settings import (
    CLASSES,
    gather,
    make_settings,
    parse_duration_ms,
    parse_setting,
    parse_size_bytes,
    read_config,
    read_value,
)
from streamcrawl.store.connection import redacted
from streamcrawl.store.tuning import decode_given
from streamcrawl.web.bodies import STEP_BYTES, Decoder, codings_of
from streamcrawl.web.fetcher import Answer, split_content_type
from streamcrawl.work.robots import decode_verdict, encode_verdict
from streamcrawl.work.seeds import seed_url

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES: Final = int(os.environ.get("STREAMCRAWL_FUZZ", "200"))
NOW_MS: Final = 1_795_000_000_000
SITE: Final = "https://www.example.org"
CRAWL: Final = make_settings("fuzz", {})
DROPPING: Final = Canonicalizer(("tracking", "sessions", "ref"), is_sorted=True)

# -- languages


def mix(*pieces: str, most: int = 30) -> st.SearchStrategy[str]:
    """Return texts that are made of these pieces, and of anything."""
    return st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=most).map("".join)


def in_bytes(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """Return the same as bytes, of UTF-8 mostly."""
    return texts.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=200)


# fmt: off
NUMBERS: Final = ("0", "1", "-1", "007", "1e9", "9" * 25, "9" * 5000, "0.5", ".", "inf", "nan", "0x10", "１", "²")
DATES: Final = (
    *("Sun, ", "06 Nov 1994 ", "08:49:37", " GMT", "Sunday, 06-Nov-94 ", "Nov  6 ", " 1994", "31 Feb ", "99:99:99"),
    *("-", ":", ",", " ", "GMT", *NUMBERS),
)
URLS: Final = mix(
    "http:", "https:", "HTTP:", "ftp:", "javascript:", "data:,", "//", "/", "\\", "///", "@", "u:p@", ":",
    ":80", ":0",
    ":99999", "www.example.org", "EXAMPLE.org.", "xn--", "xn--pokxncvks", "xn--n3h", "ÅFFÄ.example", "ß", "。",
    "\u200d",
    "127.0.0.1", "0x7f.1", "017700000001", "2130706433", "[::1]", "[::ffff:1.2.3.4]", "[", "]", "%5B", "%00",
    "%2e", "%zz",
    "..", ".", "/../", "a", "a/b", "?", "&", "=", "#", "x=1", "utm_source=a", ";jsessionid=1",
    "/(S(abcdefghijklmnopqrstuvwx))/",
    *("2026-11-30", "2080/12", "\t", "\n", "\r", " ", "\x00", "\ud800", "é", "%C3%A9"),
)
CANONICAL: Final = st.builds(lambda text: canonical_url(text, SITE + "/a/b?c") or SITE + "/", URLS)
ROBOTS: Final = in_bytes(
    mix(
        "User-agent", "user agent", "useragent", "Disallow", "dissallow", "Allow", "Crawl-delay", "Sitemap",
        ":", " ", "\t",
        "*", "streamcrawl", "/", "/a", "/a*", "$", "%2F", "%zz", "%", "?", "#", "\n", "\r", "\r\n", "\x00",
        "\ufeff", "é",
        *("https://www.example.org/s.xml", *NUMBERS),
    )
)
HTML: Final = in_bytes(
    mix(
        "<", ">", "</", "/>", "<!--", "-->", "<![CDATA[", "]]>", "<?", "<!", "=", "'", '"', " ", "\n", "\x00",
        "&amp;", "&#x110000;",
        "<a href=", "<base href=", "<meta ", "http-equiv=refresh", "content=", "charset=", "name=robots",
        "nofollow", "utf-7", "<svg><a xlink:href=",
        "'0;url=", "0;", "url", "<link rel=next href=", "<iframe src=", "<noscript>", "</noscript>",
        "<script>", "</script>",
        "<title>", "</title>", "<svg>", "<table>", "<b>", "<p>", "<div>", "<template>", "<plaintext>",
        "windows-1251", "utf-16",
        "/x", "//h/", "javascript:x", "?q=é", "#", "\ufeff", "\ufffe", "<?xml version='1.0' encoding='",
        "x-user-defined",
    )
)
SET_COOKIE: Final = mix(
    "a", "b", "=", ";", " ", "__Host-", "__Secure-", "; Path=", "/", "; Domain=", "example.org", ".org",
    "www.example.org",
    *("; Secure", "; HttpOnly", "; Max-Age=", "; Expires=", "\x00", "\x7f", "\ud800", "é", *DATES),
)
LINES: Final = mix(
    "example.org", "*", "*.", "https://", "http://", ":", ": ", "8443", "[::1]", "X-A", "Authorization",
    "Host", "user", "pass",
    *("\r\n", "\x00", "é", "\ud800", "%41", "@", "/", "socks5", "socks5h", "://", "hunter2", *NUMBERS),
)
JSON: Final = in_bytes(
    mix(
        "[", "]", "{", "}", ",", ":", '"', "\\", "page", "robots", "/a", "1|", "0|b", "null", "1.5", "\\ud800",
        *NUMBERS,
    )
)
TOML: Final = in_bytes(
    mix(
        "\n", " = ", '"', "'", "[", "]", "{", "}", ",", "#", '"""', "\\", "true", "none", "1979-05-27",
        "delay", "scope", "allow",
        *("user_agent", "redis", "proxies", "max_pages", "a.b", "\x00", "é", *NUMBERS),
    )
)
SETTING: Final = mix(
    *NUMBERS,
    "s", "ms", "h", "d", "kB", "MiB", " ", "none", "no limit", "yes", "off", "host", "cdn", "10.0.0.0/8", "(",
    "[a", "{9}",
    *("*", "utm_*", ",", "=", "\n", "\x00", "é", "\ud800", "9.9.9.9:53", "socks5://u:hunter2@a:1"),
)
REDIS: Final = mix(
    "redis", "rediss", "unix", "+sentinel", "://", ":", "@", "/", "?", "&", "=", ",", "db", "0", "hunter2",
    "a.test", "[::1]",
    *("#", "%40", "[", "password", "username", "\x00", "é"),
)
HEADER: Final = mix(
    "text/html", "application/xhtml+xml", "image/png", ";", " ", "charset", "=", '"', "'", "utf-8", "utf-16",
    "gzip", "br", "deflate",
    *("zstd", "identity", ",", "x-gzip", "max-age", "s-maxage", "no-store", "no-cache", "é", "\x00", *DATES),
)
# fmt: on

# -- parsers, and what has to hold of what they give


def robots(body: bytes, path: str, agent: str) -> None:
    url = canonical_url(path, SITE) or SITE + "/"
    rules = RobotsRules.parse(body, agent)
    is_allowed = rules.allows(url)
    line = deciding_line(body, agent, url)
    assert is_allowed or line is not None
    stored, delay_ms = encode_verdict(CRAWL, verdict="parse", status=200, body=body)
    assert 0 <= delay_ms <= CRAWL.crawl_delay_max_ms
    # What the store has says what the host said.
    again = decode_verdict(stored.encode(), agent)
    assert again.allows(url) == is_allowed
    assert again.sitemaps == rules.sitemaps
    assert whole_lines(body) == body
    with contextlib.suppress(CodecError):
        decode_verdict(body, agent)
    product_of(agent)


def headers(text: str) -> None:
    mime, charset = split_content_type(text)
    assert body_kind(mime, b"") in BodyKind
    assert charset is None or charset
    waits = parse_retry_after_ms(text, NOW_MS)
    assert waits is None or waits >= 0
    assert 5 <= verdict_ttl_ms(text, 5, 50) <= 50
    assert set(codings_of(text)) <= {"gzip", "x-gzip", "deflate", "br", "zstd"}
    when = cookie_date_ms(text)
    assert when is None or abs(when) < 10**15


def cookies(lines: list[str], url: str) -> None:
    for kind in ("host", "crawl"):
        jar = Jar(kind=kind)
        changes = jar.take(lines, url, NOW_MS)
        again = Jar(changes, kind=kind)
        line = jar.header(url)
        assert again.header(url) == line
        if line is not None:
            assert len(line.encode()) <= HEADER_MAX_BYTES
            assert not re.search(r"[\r\n\x00]", line)
        assert jar.header("https://other.test/") is None
    for line in lines:
        found = parse_set_cookie(line, url, NOW_MS)
        if found is not None:
            cookie, lasts_ms = found
            assert GONE <= lasts_ms <= AGE_MAX_MS
            assert cookie.is_host_only or not is_public_suffix(cookie.domain)
            assert hostname_of(split_url(url)[0]).endswith(cookie.domain)


def page(body: bytes, content_type: str, url: str) -> None:
    told = CIMultiDictProxy(CIMultiDict({"X-Robots-Tag": content_type}))
    mime, charset = split_content_type(content_type)
    answer = Answer(url, 200, told, body, mime, charset, None, 1, 0.0, None)
    response = Response(CrawlTask(host=SITE, path="/"), answer, links_max=50)
    assert len(response.links()) <= 50
    assert isinstance(response.text, str)
    assert all(type(href) is str for href in response.xpath("//@href"))
    for kind in BodyKind:
        decode_body(body, charset_of(charset, body, kind))
    found = parse_html(body, url, charset=charset, robots_tag=content_type, links_max=50)
    assert all(canonical_url(link) == link for link in found.links)
    assert found.refresh is None or found.refresh in parse_html(body, url, charset=charset).links
    assert found.refresh_ms >= 0


def urls(text: str, base: str) -> None:
    without_credentials(text)
    seed_url(text)
    found = canonical_url(text, base)
    if found is None:
        return
    assert canonical_url(found) == found
    assert found.isascii()
    assert found.isprintable()
    assert " " not in found
    assert "#" not in found
    host, path = split_url(found)
    assert host + path == found
    assert "@" not in host
    assert -(2**63) <= fingerprint(found) < 2**63
    formed = DROPPING(found)
    assert DROPPING(formed) == formed
    assert canonical_url(formed) == formed
    assert len(formed) <= len(found)
    name = hostname_of(host)
    assert registrable_domain(name) in name  # not at its end where the name has a final dot
    for address in literal_of(name):
        network_of(address)
    Inside.of_seeds([host.partition("//")[2]], {})
    for kind in ("host", "domain", "prefix", "any"):
        Scope.from_settings(make_settings("fuzz", {}, scope=kind), [base]).admits(found, page_host=host)
    Traps(CRAWL, 2026).reason(found, depth=1, referrer=base)


def bodies(whole: bytes, coding: str, places: list[int], step: int) -> None:
    packed = bytearray(
        {"gzip": partial(gzip.compress, mtime=0), "deflate": zlib.compress, "br": brotli.compress}[coding](whole)
    )
    for place in places:
        packed[place % len(packed)] ^= 1 + place % 255
    decoder, size_max, got = Decoder((coding,), 300_000, SITE), 300_000, 0
    with contextlib.suppress(ProtocolError, BodyTooLarge):
        for at in range(0, len(packed), step):
            for piece in decoder.pieces(bytes(packed[at : at + step])):
                assert len(piece) <= STEP_BYTES * 2
                got += len(piece)
        decoder.check_end()
        assert places or got == len(whole)
    assert got <= size_max


def tasks(stored: bytes, host: str, level: str, entry_id: str) -> None:
    with contextlib.suppress(CodecError):
        task = decode_task(host, level, stored)
        assert decode_task(host, level, encode_task(task)) == task
    fields = {b"task": stored, b"host": host.encode("utf-8", "replace"), b"level": level.encode("utf-8", "replace")}
    letter = Letter.read(0, b"5-1", fields)
    assert letter.as_json(1)
    Where(values=parse_where(["reason=a", "kind=page"])).admits(letter)
    with contextlib.suppress(StoreIncompatible):
        decode_given(stored)
    with contextlib.suppress(ConfigError):
        Where(ids=(entry_id,))


def machine_settings(lines: list[str], host: str) -> None:
    with contextlib.suppress(ConfigError):
        known = HostHeaders(lines, ())
        assert all("\n" not in value and "\r" not in value for value in known.of(split_url(host)[0]).values())
    with contextlib.suppress(ConfigError):
        HostHeaders((), lines).of(split_url(host)[0])
    found, said = None, ""
    try:
        found = parse_proxies(lines)
    except ConfigError as error:
        said = str(error)
    assert "hunter2" not in said
    if found is not None:
        assert all("hunter2" not in proxy.shown.partition("://")[0] for proxy in found.order("a.test"))
    for line in lines:
        assert "@" not in without_password(line).rpartition("@")[0]


def settings_of_people(text: str) -> None:
    for read in (parse_duration_ms, parse_size_bytes):
        with contextlib.suppress(ConfigError):
            assert read(text) >= 0
    for field in CLASSES:
        with contextlib.suppress(ConfigError):
            value = read_value(field, text)
            make_settings("fuzz", {field: value})
        with contextlib.suppress(ConfigError):
            gather({}, environment={f"STREAMCRAWL_{field.upper()}": text})
    with contextlib.suppress(ConfigError):
        parse_setting(*text.partition("=")[::2])


def words_of_operators(text: str) -> None:
    for read in (host_keys, host_test):
        with contextlib.suppress(ConfigError):
            read(text)
    with contextlib.suppress(ConfigError):
        parse_where([text])
    with contextlib.suppress(ConfigError):
        found = parse_moment_ms("--since", text, NOW_MS)
        moment(found)
        span(found)


def redis_urls(text: str) -> None:
    assert "hunter2@" not in redacted(f"redis://:hunter2@{text}").partition("?")[0]
    assert isinstance(redacted(text), str)


FUZZED: Final[dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]]] = {
    "robots": (robots, (ROBOTS, URLS, st.sampled_from(("streamcrawl/0.1", "Other", "*")) | st.text(max_size=5))),
    "headers": (headers, (HEADER,)),
    "cookies": (cookies, (st.lists(SET_COOKIE, max_size=4), CANONICAL)),
    "page": (page, (HTML, HEADER, CANONICAL)),
    "urls": (urls, (URLS, CANONICAL)),
    "bodies": (
        bodies,
        (
            st.builds(lambda data, times: data * times, st.binary(max_size=100), st.sampled_from((1, 50, 10_000))),
            st.sampled_from(("gzip", "deflate", "br")),
            st.lists(st.integers(0, 10_000), max_size=3),
            st.sampled_from((7, 1000, 65_536)),
        ),
    ),
    "tasks": (tasks, (JSON, URLS, st.sampled_from("0123x"), st.text(max_size=9) | st.just("0/5-1"))),
    "settings of a machine": (machine_settings, (st.lists(LINES, max_size=3), CANONICAL)),
    "settings of people": (settings_of_people, (SETTING,)),
    "words of operators": (words_of_operators, (SETTING | URLS,)),
    "URLs of Redis": (redis_urls, (REDIS,)),
}


@pytest.mark.parametrize("parser", FUZZED)
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_no_input_raises_what_is_not_said(parser: str, data: st.DataObject) -> None:
    check, strategies = FUZZED[parser]
    check(*(data.draw(strategy) for strategy in strategies))


def test_no_settings_file_raises_what_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "crawl.toml"

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(TOML)
    def check(body: bytes) -> None:
        path.write_bytes(body)
        with contextlib.suppress(ConfigError):
            read_config(path)

    check()


# -- growth

FIRST_SIZE: Final = 64
LAST_SIZE: Final = 1 << 15
MEASURED_S: Final = 0.0005
"""CPU time from which a ratio says more than the clock's steps do."""
STEPS_UP: Final = 16
RATIO_MAX: Final = 64
TRIES: Final = 3
"""What else runs may cost a parser its caches, but not each time."""
EMPTY_GZIP: Final = gzip.compress(b"", mtime=0)
"""Without the time, which is part of the name of a test: processes that collect a second apart must agree."""
LONG_URLS: Final = make_settings("fuzz", {}, url_max_bytes=10_000_000, query_params_max=10_000_000)


def allows(lines: bytes, path: str = "/") -> object:
    return RobotsRules.parse(b"User-agent: *\n" + lines, "streamcrawl").allows(SITE + path)


def html(body: str) -> object:
    return parse_html(body.encode(), SITE + "/a/b", charset="utf-8")


def prescan(body: bytes) -> object:
    return charset_of(None, body, BodyKind.HTML)


def form(text: str) -> object:
    return DROPPING(canonical_url(text, SITE + "/") or SITE + "/")


def trap(path: str) -> object:
    return Traps(LONG_URLS, 2026).reason(SITE + path, depth=1, referrer=SITE + "/?a=1")


def read_header(text: str) -> None:
    split_content_type.__wrapped__(text)
    parse_retry_after_ms(text, NOW_MS)
    verdict_ttl_ms(text, 1, 2)
    codings_of(text)
    cookie_date_ms(text)


def set_cookie(attributes: str) -> object:
    return Jar(kind="crawl").take(["a=b" + attributes] * 20, SITE + "/", NOW_MS)


def decode(text: str) -> None:
    with contextlib.suppress(CodecError):
        decode_task(SITE, "2", b'[0,0,"page","' + text.encode())


def inflate(coding: str, body: bytes) -> None:
    decoder = Decoder((coding,), 10_000_000, SITE)
    with contextlib.suppress(ProtocolError):
        for _ in decoder.pieces(body):
            pass


def read_option(text: str) -> None:
    readers: tuple[Callable[[str], object], ...] = (
        *(parse_duration_ms, parse_size_bytes, host_test),
        *(partial(read_value, "drop_params"), partial(read_value, "headers")),
        *(lambda it: parse_moment_ms("--since", it, NOW_MS), lambda it: parse_where([it])),
        *(lambda it: parse_proxies([it]), lambda it: HostHeaders([it], ())),
    )
    for read in readers:
        with contextlib.suppress(ConfigError):
            read(text)


Growing = dict[str, Callable[[int], Callable[[], object]]]


def repeated(name: str, act: Callable[[Any], object], *pieces: str | bytes) -> Growing:
    """Return calls of `act` with each of these pieces, so and so often."""

    def of(piece: Any) -> Callable[[int], Callable[[], object]]:
        return lambda n: partial(act, piece * n)

    return {f"{name} {piece!r}": of(piece) for piece in pieces}


# fmt: off
GROWING: Final[Growing] = {
    **repeated("robots", allows, b"User-agent: a\n", b"Disallow: /a\n", b"Allow: /" + b"*a" * 900 + b"\n", b"\r\n",
               b"a", b" ",
               b"Allow: /" + b"%" * 900 + b"\n", b"Sitemap: http://a/\n", b"Crawl-delay: 9999999999\n",
               b"Allow: /index.htm\n"),
    **repeated("robots wild", lambda lines: allows(lines, "/" + "ab" * 900), b"Disallow: /*a*b*c$\n", b"Allow: *\n"),
    **repeated("prescan", prescan, b"<", b"<!", b"<!--", b"<!-- -->", b"<meta ", b"<meta charset='",
               b"<meta charset=x>", b"<a b='",
               b"<a b", b"<script>", b"</script", b"<meta content=charset= ", b"charset=", b"<?xml ", b"\xe9 ",
               b"\xff", b"\x00<"),
    **{
        name: act
        for charset in ("utf-8", "windows-1252", "gbk", "shift_jis", "iso-2022-jp", "utf-16-le", "big5")
        for name, act in repeated(
            charset, partial(decode_body, charset=charset), b"\x81", b"\xff\xfe", b"\x1b$B"
        ).items()
    },
    **repeated("html", html, "<", "<div>", "<b>", "<b><p>", "<table>", "<table><tr><td>", "<a href=x>", "<a>",
               "</p>", "<svg>",
               "<math><mi>", "<!--", "<!---->", "&amp", "&#x41;", "<title>", "<template>", "<select><option>",
               "<frameset>",
               "<base href=/a/>", "<meta http-equiv=refresh content='0;url=x'>", "<meta name=robots content=a,b>",
               "<noscript>",
               "<textarea>", "<li><ul>", "<button>", "<form>", "<ruby><rt>", "<body a=b>", "<html c=d>", "<plaintext>",
               "<![CDATA[", "\x00", "<a b='", "<a <b ", "<p title=it's>"),
    "html attributes": lambda n: partial(html, "<a " + "".join(f"x{i}=y " for i in range(n)) + "href=z>"),
    "html attributes with >": lambda n: partial(html, "<a " + "".join(f"x{i}='>' " for i in range(n)) + "href=z>"),
    "html formatting": lambda n: partial(html, "".join(f"<font size={i}><p>" for i in range(n))),
    "html many links": lambda n: partial(html, "".join(f"<a href=/{i}>" for i in range(n))),
    "html directives": lambda n: partial(parse_html, b"", SITE + "/", charset=None, robots_tag="a:,\n" * n),
    "html refreshes for those without scripts": lambda n: partial(
        html, "<body>" + "<div>" * 500 + "<noscript>" + "<meta http-equiv=refresh content='0;x'>" * n
    ),
    **repeated("url", form, "a/../", "%2e%2e/", "\u00e9", "//", "@", "?a=b&", "&utm_x=1", ";jsessionid=1", "/;sid=1",
               "\t", "\\",
               "#", "%", "/(S(abcdefghijklmnopqrstuvwx))", "/(S(abcdefghijklmnopqrstuvwx))/..;sid=1/",
               "/..;jsessionid=1", "?;&%3b="),
    "url of many labels": lambda n: partial(canonical_url, "http://" + "a." * n + "org/"),
    "url of odd labels": lambda n: partial(canonical_url, "http://" + "xn--a." * n + "org/"),
    "url of a long label": lambda n: partial(canonical_url, "http://xn--" + "a" * n + "/"),
    "url of credentials": lambda n: partial(canonical_url, "http://" + "a:@" * n + "h/"),
    "registrable domain": lambda n: partial(registrable_domain.__wrapped__, "a." * n + "co.uk"),
    "public suffix": lambda n: partial(is_public_suffix, "a." * n + "co.uk"),
    "credentials in a text": lambda n: partial(without_credentials, "//a:b" * n + "a" * n),
    "seed": lambda n: partial(seed_url, "a." * n + ":"),
    **repeated("trap", trap, "/a", "/a/b", "/?a=1", "&a=1", "/2026", "-2026-11", "?date=20261130&", "/%252525",
               "/calendar/2026", "1"),
    **repeated("header", read_header, ";", "; charset", ";charset=", " ", "0", "Sun, ", ",", "max-age=", 'max-age="',
               "gzip,", "1:"),
    **repeated("cookie", set_cookie, ";", ";a=b", "; Path=/", "=", " ", "; Domain=example.org",
               "; Expires=1 Jan 2027 1:1:1", '"'),
    "cookie line": lambda n: partial(Jar(kind="host").header, SITE + "/", "a=b; ;=" * n),
    **repeated("task", decode, '\\"', "[", "a", '","', "\\u0041", "é"),
    "task referrer": lambda n: partial(
        encode_task, CrawlTask(host=SITE, path="/" + "a" * n, referrer=SITE + "/" + "a" * n)
    ),
    **repeated("gzip", lambda body: inflate("gzip", EMPTY_GZIP + body), EMPTY_GZIP, b"\0", b"\x1f\x8b"),
    "deflate": lambda n: partial(inflate, "deflate", zlib.compress(b"a" * n)),
    "br": lambda n: partial(inflate, "br", brotli.compress(b"ab" * n)),
    **repeated("zstd", partial(inflate, "zstd"), b"\x50\x2a\x4d\x18\0\0\0\0"),
    **repeated("option", read_option, "1", " ", ".", "1s ", "a", "a ", "reason=", "2026-", "http://a:b@", "@", ":",
               "a: b: ", "*."),
    **repeated("Redis", lambda text: redacted("redis://" + text), "a", ":", "@", "?", "&password=", "?aa", ":@",
               "password="),
}
# fmt: on


def cpu_s(act: Callable[[], object]) -> float:
    """Return the CPU time of a call: what else this machine does is not counted."""
    before = time.process_time()
    act()
    return time.process_time() - before


@pytest.mark.parametrize("name", GROWING)
def test_time_grows_with_the_input_and_not_faster(name: str) -> None:
    of_size, size = GROWING[name], FIRST_SIZE
    while (small_s := cpu_s(of_size(size))) < MEASURED_S and size < LAST_SIZE:
        size *= 2
    limit_s = RATIO_MAX * max(small_s, MEASURED_S)
    large = of_size(STEPS_UP * size)
    times: list[float] = []
    while not times or (min(times) > limit_s and len(times) < TRIES):
        times.append(cpu_s(large))
    assert min(times) <= limit_s, f"{size}: {small_s:.4f} s, {STEPS_UP} times: {min(times):.4f} s"


def test_a_parser_that_is_quadratic_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other test rests on this: lexbor is, in the attributes of one tag, when nothing cuts them."""
    monkeypatch.setattr(parse, "_CHARS_TRUSTED", 1 << 30)
    with pytest.raises(AssertionError, match="16 times"):
        test_time_grows_with_the_input_and_not_faster("html attributes")
