"""What a page says: links, title, directives."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamcrawl.rules.parse import (
    BASE_MAX_CHARS,
    KNOWN,
    REMEMBERED_MAX,
    TITLE_MAX_CHARS,
    KnownLinks,
    Page,
    parse_html,
)
from streamcrawl.rules.urls import canonical_url

URL = "https://example.org/docs/page.html"


def page_of(html: str, **options: Any) -> Page:
    return parse_html(html.encode(), URL, **{"charset": "utf-8", **options})


def links_of(html: str, **options: Any) -> list[str]:
    return [link.removeprefix("https://example.org") for link in page_of(html, **options).links]


@pytest.mark.parametrize(
    ("html", "links"),
    [
        ("<a href=next.html>n</a><a href='/up'>u</a>", ["/docs/next.html", "/up"]),
        ('<map><area href="/area"></map>', ["/area"]),
        ('<iframe src="/inner"></iframe>', ["/inner"]),
        ('<frameset><frame src="/left"><frame src="/right"></frameset>', ["/left", "/right"]),
        ('<link rel=next href="/2"><link rel=CANONICAL href="/c"><link rel=alternate href="/de">', ["/2", "/c", "/de"]),
        ('<link rel="Alternate Next" href="/x">', ["/x"]),
        ('<link rel=stylesheet href="/s.css"><link rel=icon href="/i"><link href="/n">', []),
        ('<link rel="alternate stylesheet" href="/dark.css">', []),
        ('<svg><a href="/in-svg"></a></svg>', ["/in-svg"]),
        ('<svg><a xlink:href="/in-svg#x"></a><a xlink:href="/2" rel="ugc"></a></svg>', ["/in-svg", "/2"]),
        ('<svg><a xlink:href="/old" href="/new"></a><a xlink:href="/3" rel="nofollow"></a></svg>', ["/new"]),
        (
            '<math><a xlink:href="/in-math">x</a></math><svg><base xlink:href="/b/"><a href="4"></a></svg>',
            ["/in-math", "/docs/4"],
        ),
        ("<noscript><a href=/plain></a></noscript>", ["/plain"]),
        ("<template><a href=/inert></a></template>", []),
        ("<!-- <a href=/comment> --><script>'<a href=/script>'</script><textarea><a href=/t></textarea>", []),
        ("<a name=x><a href><img src=/i><form action=/f></form>", []),
        ("<a href='/a?x=1&amp;y=2&#38;z=3'>", ["/a?x=1&y=2&z=3"]),
        ("<a href='  /sp \n'>", ["/sp"]),
        ("<A HREF=/Upper>", ["/Upper"]),
        ("<a href=mailto:a@b.example><a href='javascript:x()'><a href=tel:1><a href='http://['>", []),
        ("<a href=http://joe:secret@example.org/x>", []),
    ],
)
def test_links_are_what_leads_to_pages(html: str, links: list[str]) -> None:
    expected = links if "joe" not in html else ["http://example.org/x"]
    assert links_of(html) == expected


def test_links_are_distinct_and_in_the_order_of_the_page() -> None:
    html = "<a href=/b#1><iframe src=/a></iframe><a href=/b#2><a href=//example.org/a><a href=/c><a href=/b?>"
    assert links_of(html) == ["/b", "/a", "/c"]


def test_page_does_not_link_to_itself() -> None:
    assert links_of("<a href=#top><a href=page.html><a href=><a href=/docs/page.html#x><a href=?q>") == [
        "/docs/page.html?q"
    ]


def test_first_base_counts_for_the_whole_page() -> None:
    page = page_of("<a href=early><base target=x><base href=/root/x><base href=/other/><a href=late><a href=#top>")
    assert page.base == "https://example.org/root/x"
    assert page.links == (
        "https://example.org/root/early",
        "https://example.org/root/late",
        "https://example.org/root/x",
    )


@given(
    st.text(st.sampled_from("ab1/.:?\\@%é \t-ſ"), min_size=1, max_size=12)
    | st.sampled_from(
        ["https:x", "http:x", "https:/x", "/\t/other.example/", "data:x", ".", "..", "./?", "//", "/\\x/"]
    ),
    st.sampled_from(["/docs/a/b.html?x=/y/", "/", "/docs/", "/?q"]),
)
def test_reference_is_resolved_as_by_itself(reference: str, path: str) -> None:
    base = f"https://example.org{path}"
    expected = canonical_url(reference, base)
    for _ in range(2):  # the second time it is remembered
        page = parse_html(f'<a href="{reference}">'.encode(), base, charset="utf-8")
        assert page.links == (() if expected in (None, base) else (expected,))


def test_what_is_known_of_one_folder_does_not_hold_in_another() -> None:
    for path in ("/", "/docs/", "/docs/a/", "/"):
        base = f"https://folders.example{path}"
        page = parse_html(b'<a href="x"></a><a href="/x"></a><a href="../y">', base, charset="utf-8")
        expected = [canonical_url(reference, base) for reference in ("x", "/x", "../y")]
        assert page.links == tuple(dict.fromkeys(expected))


def test_long_references_are_not_remembered() -> None:
    links_of("<a href='x'>")
    before = len(KNOWN)
    links_of("".join(f"<a href='data:,{number}{'x' * 1000}'>" for number in range(50)))
    assert len(KNOWN) == before


@pytest.mark.parametrize("folders", [1, 2 * REMEMBERED_MAX])
def test_what_is_remembered_is_bounded_whatever_the_folders(folders: int) -> None:
    known = KnownLinks()
    for number in range(2 * REMEMBERED_MAX + 10):
        base = f"https://example.org/{number % folders}/"
        assert known.resolve(f"p{number}", base, known.of(base)) == f"{base}p{number}"
        assert len(known) <= REMEMBERED_MAX
    assert known.of(base)[f"p{number}"] == f"{base}p{number}"


@pytest.mark.parametrize("href", ["", "http://[", "javascript:x", "data:,", "/" + "x" * BASE_MAX_CHARS])
def test_base_that_is_none_is_ignored(href: str) -> None:
    page = page_of(f"<base href='{href}'><a href=a>")
    assert page.base == URL
    assert page.links == ("https://example.org/docs/a",)


@pytest.mark.parametrize(
    ("rel", "is_followed"),
    [
        ("nofollow", False),
        ("noopener NoFollow", False),
        ("external\nnofollow", False),
        ("ugc", True),
        ("sponsored", True),
        ("nofollowed", True),
        ("", True),
    ],
)
def test_link_with_nofollow_is_left_out(rel: str, is_followed: bool) -> None:
    assert links_of(f"<a rel='{rel}' href=/x>") == (["/x"] if is_followed else [])


def test_reference_with_and_without_nofollow_is_followed() -> None:
    assert links_of("<a rel=nofollow href=/x><a href=/x>") == ["/x"]


@pytest.mark.parametrize(
    ("html", "robots_tag", "nofollow", "noindex"),
    [
        ("<meta name=robots content=nofollow>", None, True, False),
        ("<meta name=ROBOTS content=' NoIndex , NoFollow '>", None, True, True),
        ("<meta name=robots content=none>", None, True, True),
        ("<meta name=robots content=noindex><body><meta name=robots content=nofollow>", None, True, True),
        ("<meta name=robots content='index, follow'>", None, False, False),
        ("<meta name=robots>", None, False, False),
        ("<meta name=otherbot content=none>", None, False, False),
        ("<meta name=description content=nofollow>", None, False, False),
        ("", "nofollow", True, False),
        ("", "NOINDEX", False, True),
        ("", "noarchive, none", True, True),
        ("", "otherbot: none", False, False),
        ("", "otherbot: noindex, nofollow", False, False),
        ("", "otherbot: noindex\nnofollow", True, False),
        ("", "otherbot: noindex, robots: nofollow", True, False),
        ("", "*: noindex", False, True),
        ("", "unavailable_after: 25 Jun 2030 15:00:00 PST, nofollow", True, False),
        ("", "max-snippet: 0, noindex", False, True),
        ("", "", False, False),
        ("", ",:,\n:", False, False),
        ("<meta name=robots content=noindex>", "nofollow", True, True),
    ],
)
def test_page_may_ask_not_to_be_followed_or_indexed(
    html: str, robots_tag: str | None, nofollow: bool, noindex: bool
) -> None:
    page = page_of(html + "<a href=/x>", robots_tag=robots_tag)
    assert (page.nofollow, page.noindex) == (nofollow, noindex)
    assert page.links == (() if nofollow else ("https://example.org/x",))


@pytest.mark.parametrize(
    ("content", "links"),
    [
        ("0; url=/next", ["/next"]),
        ("5;URL='/next'", ["/next"]),
        ('0 ; url = "/next" ignored', ["/next"]),
        ("0, /next", ["/next"]),
        ("0 /next", ["/next"]),
        ("1.5; url=/next", ["/next"]),
        (".5; url=/next", ["/next"]),
        ("0; url=/next#part", ["/next"]),
        ("0; urlx=/y", ["/docs/urlx=/y"]),
        ("30", []),
        ("30;", []),
        ("soon; url=/next", []),
        ("5x; url=/next", []),
        ("0; url=javascript:x", []),
    ],
)
def test_target_of_a_refresh_is_a_link(content: str, links: list[str]) -> None:
    assert (
        links_of(
            f"<meta http-equiv=Refresh content='{content}'>"
            if "'" not in content
            else f'<meta http-equiv=Refresh content="{content}">'
        )
        == links
    )


def test_tag_of_very_many_attributes_is_cut_and_no_link_is_lost() -> None:
    many = "".join(f'x{n}=">" ' for n in range(5000))
    html = f"<a href=/1 {many} href=/0><a href=/2><title>x</title>"
    page = page_of(html)
    assert (page.links, page.title) == (("https://example.org/1", "https://example.org/2"), "x")


def test_long_page_is_read_as_a_short_one() -> None:
    odd = "<p title=it's>a<b && c<1 <img alt='>' src=x/><a href=/1 b=\"c'd>\">x</a><!-- <a href=/no> --> 1 < 2"
    assert page_of(odd + "<a href=/2>" + " " * 20_000).links == page_of(odd + "<a href=/2>").links
    unended = "<a href=/1>x</a><a href=/2 b='" + "c " * 20_000
    assert page_of(unended).links == ("https://example.org/1",)


@pytest.mark.parametrize(
    ("html", "refresh", "after_ms"),
    [
        ("<meta http-equiv=refresh content='0;url=/next'>", "https://example.org/next", 0),
        ("<meta http-equiv=REFRESH content='007.9, /next#part'>", "https://example.org/next", 7000),
        ("<meta http-equiv=refresh content='.5;/next'>", "https://example.org/next", 0),
        (f"<meta http-equiv=refresh content='{'9' * 3000};/next'>", "https://example.org/next", 9_999_999_999_000),
        ("<base href=/a/><meta http-equiv=refresh content='1;next'>", "https://example.org/a/next", 1000),
        (
            "<meta http-equiv=refresh content='1;/a'><meta http-equiv=refresh content='0;/b'>",
            "https://example.org/a",
            1000,
        ),
        ("<body><noscript><div><meta http-equiv=refresh content='0;/no'></div></noscript>", None, 0),
        (
            "<noscript><meta http-equiv=refresh content='0;/no'></noscript><meta http-equiv=refresh content='1;/a'>",
            "https://example.org/a",
            1000,
        ),
        ("<meta http-equiv=refresh content='5'>", None, 0),
        ("<meta http-equiv=refresh content='5;url='>", None, 0),
        ("<meta http-equiv=refresh content='0;url=mailto:a@b'>", None, 0),
        ("<meta name=robots content=nofollow><meta http-equiv=refresh content='0;/next'>", None, 0),
    ],
)
def test_first_refresh_that_all_visitors_see_is_told(html: str, refresh: str | None, after_ms: int) -> None:
    page = page_of(html)
    assert (page.refresh, page.refresh_ms) == (refresh, after_ms)
    assert refresh is None or refresh in page.links


@pytest.mark.parametrize(
    ("html", "title"),
    [
        ("<title>A  page\n of\tmine </title>", "A page of mine"),
        ("<title>&lt;b&gt; &amp; <i>no tag</i></title>", "<b> & <i>no tag</i>"),
        ("<title>first</title><title>second</title>", "first"),
        ("<body><svg><title>icon</title></svg><title>late</title>", "late"),
        ("<svg><title>icon</title></svg>", None),
        ("<title> </title>", None),
        ("<title>", None),
        ("", None),
        ("<title>ü\U0001f600</title>", "ü\U0001f600"),
    ],
)
def test_title_is_one_line(html: str, title: str | None) -> None:
    assert page_of(html).title == title


def test_title_is_cut() -> None:
    title = page_of("<title>" + "ab " * 100_000).title
    assert title == ("ab " * TITLE_MAX_CHARS)[:TITLE_MAX_CHARS]


def test_links_beyond_the_limit_are_counted_and_left() -> None:
    html = "".join(f"<a href=/{number}><a href=/{number}#x>" for number in range(30))
    page = page_of(html, links_max=20)
    assert len(page.links) == 20
    assert page.links_cut == 10
    assert page_of(html, links_max=30).links_cut == 0


def test_page_of_fifty_thousand_links_is_read_whole() -> None:
    page = page_of("".join(f"<li><a href=/item/{number}>item {number}</a>\n" for number in range(50_000)))
    assert len(page.links) == 50_000
    assert page.links[-1] == "https://example.org/item/49999"
    assert page.links_cut == 0


@pytest.mark.parametrize(
    "opening",
    [
        "<div>",
        "<span>",
        "<b>",
        "<section><h1>",
        "<svg><g>",
        "<table>",
        "<ul><li>",
        "<font size={}><p>",
        "<x:y>",
        "<svg:g>",
    ],
)
def test_deep_nesting_costs_no_more_than_it_is_long(opening: str) -> None:
    html = "<a href=/first>" + "".join(opening.format(number) for number in range(100_000)) + "<a href=/last>"
    started = time.process_time()
    # Tables may move a link out of themselves, and with it before the others: hence the set.
    assert set(links_of(html)) == {"/first", "/last"}
    # Without the limit on depth this takes from 10 s to for ever; with it a fraction of a second.
    assert time.process_time() - started < 8


def test_flattening_changes_neither_links_nor_scripts() -> None:
    html = (
        "<title>deep</title>"
        + "<div><font color=red>" * 2000
        + "<script>if (a) document.write('<a href=/script>')</script><style><a href=/style></style>"
        + "<p><a href=/one>1</a><iframe src=/two></iframe></p>"
        + "</font></div>" * 2000
        + "<a href=/three>"
    )
    page = page_of(html)
    assert page.title == "deep"
    assert [link[-4:] for link in page.links] == ["/one", "/two", "hree"]


def test_long_page_of_ordinary_depth_is_read_as_it_is() -> None:
    html = "".join(f"<div><ul><li><a href=/{number}><b>x</b></a><li><i>y</i></ul></div>" for number in range(2000))
    assert len(links_of(html)) == 2000


TAGS = st.sampled_from(
    (
        *(
            "<a href=",
            "<a xlink:href=",
            "<a\x00href='x",
            "<base href=/b>",
            "<base href='",
            "<title>",
            "</title>",
            "<link rel=next href=",
        ),
        *("<meta http-equiv=refresh content='0;url=", "<meta name=robots content=", "<iframe src=", "<svg>", "</svg>"),
        *("<template>", "<table>", "</p>", "<frameset>", "<select>", "<math>", "<mi>", "<plaintext>", "<!--", "-->"),
        *("<![CDATA[", "]]>", "&amp;", "&#0;", "&#xd800;", ">", "'", '"', "/", " ", "\ufeff"),
    )
)


@given(
    st.binary(max_size=300)
    | st.lists(TAGS | st.text(max_size=5), max_size=40).map(lambda parts: "".join(parts).encode("utf-8", "replace")),
    st.sampled_from([None, "utf-8", "windows-1251", "cp932", "iso-2022-jp", "utf-16-le", "no-such", "gbk"]),
    st.none() | st.text(max_size=20),
)
def test_no_bytes_break_the_parser(body: bytes, charset: str | None, robots_tag: str | None) -> None:
    page = parse_html(body, URL, charset=charset, robots_tag=robots_tag, links_max=10)
    assert all(link.isascii() and link.startswith(("http://", "https://")) for link in page.links)
    assert len(set(page.links)) == len(page.links) <= 10
    assert URL not in page.links
    assert page.title is None or (page.title.strip() == page.title != "")
    assert not (page.nofollow and page.links)


@given(st.lists(st.sampled_from(["<div>", "</div>", "<b>", "</i>", "<p>", "<svg>", "<script>", "</script>", "<"])))
def test_no_nesting_loses_a_link_after_it(parts: list[str]) -> None:
    html = "<a href=/first>" + "".join(parts * 100)
    assert "/first" in links_of(html)


# -- encodings


@pytest.mark.parametrize(
    ("charset", "body", "link"),
    [
        ("utf-8", "<a href='/ü?q=ü'>".encode(), "/%C3%BC?q=%C3%BC"),
        ("windows-1252", "<a href='/ü?q=ü&#8364;&#x416;'>".encode("latin-1"), "/%C3%BC?q=%FC%80%26%231046%3B"),
        ("windows-1251", "<a href='/ж?q=ж#ж'>".encode("cp1251"), "/%D0%B6?q=%E6"),
        ("cp932", "<a href='?q=表'>".encode("cp932"), "/docs/page.html?q=%95\\"),
        ("utf-16-le", "<a href='/?q=ж'>".encode("utf-16-le"), "/?q=%D0%B6"),
        (None, "<a href='/?q=é'>".encode(), "/?q=%C3%A9"),
    ],
)
def test_query_is_in_the_encoding_of_the_page(charset: str | None, body: bytes, link: str) -> None:
    assert parse_html(body, URL, charset=charset).links == (f"https://example.org{link}",)
