"""What a robots.txt allows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamcrawl.rules.robots_rules import (
    BODY_MAX_BYTES,
    SITEMAPS_MAX,
    RobotsRules,
    deciding_line,
    product_of,
    verdict_for_status,
    verdict_ttl_ms,
    whole_lines,
)
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


ALL = "User-agent: *\n"


@pytest.mark.parametrize(
    ("value", "is_meant"),
    [
        ("streamcrawl", True), ("STREAMCRAWL", True), ("streamcrawl/2.0", True), ("streamcrawl;x", True),
        ("streamcrawl and others", True), ("stream", False), ("streamcrawler", False), ("crawl", False),
        ("my-streamcrawl", False), ("streamcrawl_", False), ("stream*", False), ("", False), ("*streamcrawl", False),
    ],
)  # fmt: skip
def test_group_names_the_product_equally_or_not_at_all(value: str, is_meant: bool) -> None:
    assert RobotsRules.parse(f"User-agent: {value}\nDisallow: /\n", AGENT).allows(SITE + "/x") is not is_meant


@pytest.mark.parametrize(
    ("value", "is_meant"), [("*", True), ("* ", True), ("*\tx", True), ("*x", False), ("**", False)]
)
def test_group_for_all_is_a_star_alone(value: str, is_meant: bool) -> None:
    assert RobotsRules.parse(f"User-agent: {value}\nDisallow: /\n", AGENT).allows(SITE + "/x") is not is_meant


@pytest.mark.parametrize(
    ("user_agent", "product"),
    [
        ("streamcrawl/0.1 (+https://example.org)", "streamcrawl"), ("  bot2000  x", "bot2000"), ("", ""),
        ("Mozilla/5.0 (compatible; Somebot/1.0; +https://example.org)", "Somebot"),
        ("Mozilla/5.0 (X11; Linux)", "Mozilla"),
    ],
)  # fmt: skip
def test_product_token_of_a_header(user_agent: str, product: str) -> None:
    assert product_of(user_agent) == product


def test_token_with_digits_is_named_by_the_whole_word() -> None:
    assert not RobotsRules.parse("User-agent: Bot2000/1\nDisallow: /\n", "bot2000/1.0").allows(SITE + "/x")
    assert RobotsRules.parse("User-agent: bot\nDisallow: /\n", "bot2000/1.0").allows(SITE + "/x")


def test_groups_of_one_name_are_one() -> None:
    body = (
        "User-agent: streamcrawl\nDisallow: /a\n\nUser-agent: other\nDisallow: /b\n\n"
        "User-agent: other\nUser-agent: streamcrawl\nDisallow: /c\n\nUser-agent: *\nDisallow: /d\n"
    )
    rules = RobotsRules.parse(body, AGENT)
    assert [rules.allows(SITE + path) for path in ("/a", "/b", "/c", "/d")] == [False, True, False, True]


def test_only_rules_end_a_list_of_agents() -> None:
    body = "User-agent: streamcrawl\nCrawl-delay: 3\nSitemap: https://a/b\nNoindex: /\n\nUser-agent: x\nDisallow: /a\n"
    rules = RobotsRules.parse(body, AGENT)
    assert not rules.allows(SITE + "/a")
    assert rules.crawl_delay_ms == 3000
    assert RobotsRules.parse(body, "x").crawl_delay_ms is None  # named after that line


def test_named_group_without_rules_allows_everything() -> None:
    assert RobotsRules.parse(ALL + "Disallow: /\n\nUser-agent: streamcrawl\n", AGENT).allows(SITE + "/x")
    assert RobotsRules.parse(ALL + "Disallow: /\n\nUser-agent: streamcrawl\nDisallow:\n", AGENT).allows(SITE + "/x")


def test_longest_crawl_delay_of_a_product_holds() -> None:
    body = "User-agent: *\nCrawl-delay: 9\nDisallow: /a\nUser-agent: *\nCrawl-delay: 2\n"
    assert RobotsRules.parse(body, AGENT).crawl_delay_ms == 9000


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("/", "/", True), ("*", "/", True), ("/a", "/ab", True), ("/a", "/A", False), ("/a$", "/a", True),
        ("/a$", "/a$", False), ("/a$b", "/a$b", True), ("/a$b", "/a", False), ("$", "/", False), ("/$", "/", True),
        ("/*$", "/a", True), ("/a*", "/a", True), ("/a*b*c", "/axbxc/d", True), ("/a*b*c", "/acb", False),
        ("/a**b", "/axb", True), ("/*a$", "/aba", True), ("/*ab*ab$", "/ab", False), ("*.pdf$", "/x.pdf", True),
        ("*.pdf$", "/x.pdf?a", False), ("/*?", "/a?b", True), ("/*?", "/a", False), ("a", "/a", False),
        ("https://example.org/a", "/a", False), ("/a?b=c&d", "/a?b=c&d=e", True), ("/a/*/", "/a//", True),
        ("/a b", "/a b", True), ("/é", "/é", True), ("/%C3%a9", "/é", True), ("/%61", "/a", True), ("/a", "/%61", True),
        ("/a%2fb", "/a%2Fb", True), ("/a%2Fb", "/a/b", False), ("/a%3Fb", "/a?b", False), ("/%zz", "/%zz", True),
        ("/%", "/%", True), ("/~a", "/%7Ea", True), ("/{a}", "/{a}", True), ("/a|b", "/a|b", True),
    ],
)  # fmt: skip
def test_pattern_matches_from_the_beginning_of_the_path(pattern: str, path: str, is_match: bool) -> None:
    url = canonical_url(SITE + path)
    assert url is not None
    assert RobotsRules.parse(f"{ALL}Disallow: {pattern}\n", AGENT).allows(url) is not is_match
    line = deciding_line(f"{ALL}Disallow: {pattern}\n", AGENT, url)
    assert line == ((2, f"Disallow: {pattern}") if is_match else None)


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        # A query weighs what it is long: with `?` and `&` escaped anew it would be longer than the folder.
        ("Disallow: /*?a&b=\nAllow: /shop/items", "/shop/items?a&b=1", True),
        ("Disallow: /shop\nAllow: /shop", "/shop", True),
        ("Allow: /shop\nDisallow: /shop", "/shop", True),
        ("Disallow: /shop\nAllow: /sho*", "/shop", True),
        ("Disallow: /shop*\nAllow: /shop", "/shop", False),
        ("Disallow: /\nAllow: /$", "/", True),
        ("Disallow: /\nAllow: /$", "/a", False),
        ("Disallow: /a/\nAllow: /a/index.html", "/a/", True),
        ("Disallow: /a/\nAllow: /a/index.htm?x", "/a/", True),
        ("Disallow: /a/\nAllow: /a/index.html", "/a/b", False),
        ("Disallow: /a/\nAllow: /a/index.php", "/a/", False),
        ("Disallow: /a/index.html", "/a/", True),
        ("Disallow: /a\nAllow:", "/a", False),
    ],
)
def test_rule_with_the_most_octets_decides(rules: str, path: str, expected: bool) -> None:
    assert RobotsRules.parse(f"{ALL}{rules}\n", AGENT).allows(SITE + path) is expected


@pytest.mark.parametrize(
    ("line", "is_rule"),
    [
        (b"Disallow:/a", True), (b"\t dISALLOW \t: /a # no", True), (b"Disallow /a", True), (b"Disallow\t\t/a", True),
        (b"Disallow /a b", False), (b"Disallow=/a", False), (b"Dissallow: /a", True), (b"Disallows: /a", True),
        (b"Disallow: /a\0b", True), (b"Disa\0llow: /a", False), (b": /a", False), (b"Disallow", False),
        (b"#Disallow: /a", False), (b"Disallow: /" + b"b" * 20_000, False), (b" " * 20_000 + b"Disallow: /a", False),
    ],
)  # fmt: skip
def test_lines_are_read_generously_but_not_guessed(line: bytes, is_rule: bool) -> None:
    rules = RobotsRules.parse(b"User-agent: *\n" + line + b"\n", AGENT)
    assert rules.allows(SITE + "/a") is not is_rule


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n", "\n\r"])
def test_every_line_end_is_one(line_end: str) -> None:
    body = line_end.join(("User-agent: *", "Disallow: /a", "Disallow: /b"))
    rules = RobotsRules.parse(body, AGENT)
    assert [rules.allows(SITE + path) for path in ("/a", "/b", "/c")] == [False, False, True]


def test_sitemap_lines_without_a_colon_and_of_any_group_are_taken_to_a_bound() -> None:
    body = "Sitemap https://a.test/1\nUser-agent: x\nSite-map: https://a.test/2\nsitemap:\n"
    assert RobotsRules.parse(body, AGENT).sitemaps == ("https://a.test/1", "https://a.test/2")
    many = "".join(f"Sitemap: https://a.test/{number}\n" for number in range(SITEMAPS_MAX + 10))
    assert len(RobotsRules.parse(many, AGENT).sitemaps) == SITEMAPS_MAX


def test_file_of_the_greatest_size_is_read_and_asked_in_bounded_time() -> None:
    # What the limit of 500 KiB leaves of a hundred thousand rules. No clock: what grew with their square would not end.
    many = ALL + "".join(f"Disallow: /{number:x}\nAllow: *{number:x}x\n" for number in range(50_000))
    rules = RobotsRules.parse(many, AGENT)
    assert not rules.allows(SITE + "/2710")
    assert rules.allows(SITE + "/" + "y" * 2000)
    stars = RobotsRules.parse(f"{ALL}Disallow: /{'*a' * 250_000}b\nDisallow: /*{'a' * 8000}*b\n", AGENT)
    assert stars.allows(SITE + "/" + "a" * 2000)


def test_file_over_the_limit_keeps_its_whole_lines() -> None:
    assert whole_lines(b"a\n" * 10) == b"a\n" * 10
    kept = whole_lines(b"0123456\n" * BODY_MAX_BYTES)
    assert kept == (b"0123456\n" * (BODY_MAX_BYTES // 8))[:-1]
    assert whole_lines(kept) == kept


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
    body = b"\xef\xbb\xbfuseragent *\r\rdisalow /a\xff"
    assert deciding_line(body, AGENT, SITE + "/a%FF") == (3, "disalow /a\ufffd")
    assert deciding_line(body, AGENT, SITE + "/a%EF%BF%BD") is None


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


@pytest.mark.parametrize(
    ("cache_control", "expected_ms"),
    [
        (None, 86_400_000), ("", 86_400_000), ("max-age=7200", 7_200_000), ("public, MAX-AGE = \"7200\"", 7_200_000),
        ("max-age=60", 3_600_000), ("max-age=0", 3_600_000), ("no-store", 3_600_000),
        ("no-cache, max-age=9", 3_600_000),
        ("max-age=999999", 86_400_000), ("max-age=" + "9" * 5000, 86_400_000),
        ("max-age=" + "0" * 5000 + "7200", 7_200_000),
        ("max-age=-1", 86_400_000), ("max-age=x", 86_400_000), ("max-age=²", 86_400_000), ("s-maxage=7200", 86_400_000),
        ("max-age=9000, max-age=7200", 7_200_000),
    ],
)  # fmt: skip
def test_cache_control_says_within_bounds_how_long_a_verdict_holds(cache_control: str | None, expected_ms: int) -> None:
    assert verdict_ttl_ms(cache_control, 3_600_000, 86_400_000) == expected_ms


def test_longest_time_wins_over_the_least() -> None:
    assert verdict_ttl_ms("no-store", 3_600_000, 1000) == 1000
