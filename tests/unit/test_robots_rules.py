"""What a robots.txt allows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamcrawl.rules.robots_rules import BODY_MAX_BYTES, RobotsRules, deciding_line, verdict_for_status
from streamcrawl.rules.urls import canonical_url

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


@pytest.mark.parametrize(
    ("path", "number", "text"),
    [
        ("/", None, ""),
        ("/private/a", 3, "Disallow: /private/"),
        ("/private/press/a", 4, "Allow: /private/press/"),
        ("/private/a.pdf", 3, "Disallow: /private/"),
        ("/a.pdf", 5, "Disallow: /*.pdf$"),
        ("/a.pdf?x", None, ""),
        ("/robots.txt", None, ""),
    ],
)
def test_deciding_line_is_named(path: str, number: int | None, text: str) -> None:
    line = deciding_line(FILE, AGENT, SITE + path)
    assert line == (None if number is None else (number, text))


def test_deciding_line_is_of_the_group_that_holds() -> None:
    body = FILE + b"\nUser-agent: StreamCrawl\n# ours\nDisallow: /own/ # not for robots\n"
    assert deciding_line(body, AGENT, SITE + "/private/") is None
    assert deciding_line(body, AGENT, SITE + "/own/") == (18, "Disallow: /own/ # not for robots")
    assert deciding_line(body, "otherbot", SITE + "/x") == (9, "Disallow: /")


def test_deciding_line_of_a_broken_file() -> None:
    assert deciding_line(b"", AGENT, SITE + "/") is None
    assert deciding_line(b"Disallow: /\n", AGENT, SITE + "/") is None  # of no group
    assert deciding_line(b"\xef\xbb\xbfuser agent *\r\rdisalow /a\xff", AGENT, SITE + "/a%EF%BF%BD") == (
        3,
        "disalow /a\ufffd",
    )


_PATHS = st.text(alphabet="ab/*$.?=%#é", max_size=6).map(lambda text: f"/{text}")
_LINES = st.one_of(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(
            (
                *("Allow", "Disallow", "disalow", "allow", "User-agent", "useragent", "user agent"),
                *("Sitemap", "Host", "Crawl-delay", "Nonsense"),
            )
        ),
        st.sampled_from([": ", ":", " ", "", " : "]),
        st.one_of(
            _PATHS,
            st.sampled_from(["*", "streamcrawl", "stream*", "other", "", "/index.html", "/a/index.html", f"{SITE}/a"]),
        ),
    ),
    st.sampled_from(["", "# nothing", "<html>"]),
)  # fmt: skip


@given(st.lists(_LINES, max_size=14), _PATHS)
@settings(deadline=None, max_examples=400)
def test_deciding_line_agrees_with_what_is_allowed(lines: list[str], path: str) -> None:
    url = canonical_url(SITE + path)
    assert url is not None
    body = "\n".join(["User-agent: *", *lines])
    found = deciding_line(body, AGENT, url)
    is_allowed = RobotsRules.parse(body, AGENT).allows(url)
    if found is None:
        assert is_allowed
        return
    assert found.text == body.splitlines()[found.number - 1].strip()
    assert found.text.lower().startswith("allow") is is_allowed
    # Without that line something else decides, if anything: it is of the file's own group and matches.
    others = body.splitlines()
    others[found.number - 1] = "Disallow:"
    assert deciding_line("\n".join(others), AGENT, url) != found
