"""What a robots.txt allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.robots_rules import BODY_MAX_BYTES, RobotsRules, verdict_for_status

AGENT = "streamcrawl/0.1 (+https://example.org/bot)"
SITE = "https://example.org"

FILE = b"""\
# for all
User-agent: *
Disallow: /private/
Allow: /private/press/
Disallow: /*.pdf$
Crawl-delay: 2.5

User-agent: OtherBot
Disallow: /

Sitemap: https://example.org/sitemap.xml
Sitemap: /relative.xml
sitemap: HTTPS://example.org:443/news.xml
Sitemap: https://example.org/sitemap.xml
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", True),
        ("/private", True),
        ("/private/", False),
        ("/private/a?b", False),
        ("/private/press/a", True),
        ("/a.pdf", False),
        ("/a.pdf?x", True),
        ("/robots.txt", True),
    ],
)
def test_longest_matching_rule_decides(path: str, expected: bool) -> None:
    assert RobotsRules.parse(FILE, AGENT).allows(SITE + path) is expected


def test_own_group_replaces_the_one_for_all() -> None:
    rules = RobotsRules.parse(FILE + b"User-agent: StreamCrawl\nDisallow: /own/\nCrawl-delay: 1\n", AGENT)
    assert rules.allows(SITE + "/private/")
    assert not rules.allows(SITE + "/own/")
    assert rules.crawl_delay_ms == 1000


def test_only_the_product_token_is_compared() -> None:
    rules = RobotsRules.parse(b"User-agent: example\nDisallow: /\n", AGENT)
    assert rules.allows(SITE + "/")
    assert not RobotsRules.parse(b"User-agent: mybot\nDisallow: /\n", "MyBot (like example)").allows(SITE + "/")


def test_robots_txt_itself_is_always_allowed() -> None:
    rules = RobotsRules.parse(b"User-agent: *\nDisallow: /\n", AGENT)
    assert rules.allows(SITE + "/robots.txt")
    assert not rules.allows(SITE + "/robots.txt.bak")


def test_crawl_delay_and_sitemaps_are_read() -> None:
    rules = RobotsRules.parse(FILE, AGENT)
    assert rules.crawl_delay_ms == 2500
    assert rules.sitemaps == ("https://example.org/sitemap.xml", "https://example.org/news.xml")


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("5", 5000), ("0", 0), ("0.25", 250), ("1e300", 10**12), ("1e308", 10**12),
        ("-1", None), ("nan", None), ("x", None),
    ],
)  # fmt: skip
def test_crawl_delay_is_a_number_or_nothing(value: str, expected_ms: int | None) -> None:
    assert RobotsRules.parse(f"User-agent: *\nCrawl-delay: {value}\n", AGENT).crawl_delay_ms == expected_ms


@pytest.mark.parametrize(
    "body", [b"", b"\n\n", b"<html>not found</html>", b"Disallow: /", b"\x00\xff\xfe", b"User-agent: *"]
)
def test_file_without_rules_allows_everything(body: bytes) -> None:
    rules = RobotsRules.parse(body, AGENT)
    assert rules.allows(SITE + "/anything")
    assert rules.crawl_delay_ms is None
    assert rules.sitemaps == ()


def test_byte_order_mark_does_not_hide_the_first_group() -> None:
    assert not RobotsRules.parse(b"\xef\xbb\xbfUser-agent: *\nDisallow: /\n", AGENT).allows(SITE + "/x")
    assert not RobotsRules.parse("\ufeffUser-agent: *\nDisallow: /\n", AGENT).allows(SITE + "/x")


def test_file_is_read_up_to_500_kib() -> None:
    head = b"User-agent: *\nDisallow: /in/\n"
    filler = b"# " + b"x" * 97 + b"\n"
    body = head + filler * (BODY_MAX_BYTES // len(filler) + 1) + b"Disallow: /out/\n"
    rules = RobotsRules.parse(body, AGENT)
    assert not rules.allows(SITE + "/in/")
    assert rules.allows(SITE + "/out/")


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_line_cut_at_the_limit_is_no_rule(line_end: bytes) -> None:
    head = b"User-agent: *" + line_end
    cut_line = b"Disallow: /private/"
    body = head + b"#" * (BODY_MAX_BYTES - len(head) - len(line_end) - len(b"Disallow: /")) + line_end + cut_line * 2
    assert body[:BODY_MAX_BYTES].endswith(b"Disallow: /")
    assert RobotsRules.parse(body, AGENT).allows(SITE + "/")


def test_one_line_longer_than_the_limit_is_nothing() -> None:
    assert RobotsRules.parse(b"x" * (BODY_MAX_BYTES + 1), AGENT).allows(SITE + "/")


def test_rules_without_a_file() -> None:
    assert RobotsRules.allow_all().allows(SITE + "/x")
    denied = RobotsRules.deny_all()
    assert not denied.allows(SITE + "/x")
    assert not denied.allows(SITE + "/a/robots.txt")
    assert denied.allows(SITE + "/robots.txt")
    assert (denied.crawl_delay_ms, denied.sitemaps) == (None, ())


LINES = st.lists(
    st.sampled_from(
        [b"User-agent: *", b"Disallow: /", b"Allow: /a*b$", b"Disallow:", b"Crawl-delay: 1", b"Sitemap: //["]
    )
    | st.binary(max_size=30),
    max_size=20,
).map(b"\n".join)


@given(LINES | st.binary() | st.text(), st.text(max_size=20))
def test_no_file_and_no_agent_raise(body: bytes | str, agent: str) -> None:
    rules = RobotsRules.parse(body, agent)
    assert rules.allows(SITE + "/a%2Fb?c=%zz&d") in (True, False)
    assert rules.allows(SITE + "/robots.txt") is True
    assert rules.crawl_delay_ms is None or rules.crawl_delay_ms >= 0


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, "parse"), (204, "parse"), (400, "allow"), (401, "allow"), (403, "allow"), (404, "allow"), (410, "allow"),
        (429, "retry"), (500, "retry"), (503, "retry"), (301, "retry"), (304, "retry"), (999, "retry"),
    ],
)  # fmt: skip
def test_status_decides_what_the_answer_means(status: int, verdict: str) -> None:
    assert verdict_for_status(status) == verdict
