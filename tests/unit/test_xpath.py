"""XPath in a handler: what it finds in HTML and XML of any kind, and what it says when it cannot."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from streamcrawl.errors import Unfit
from streamcrawl.response import Response
from streamcrawl.rules.task import CrawlTask
from streamcrawl.web.fetcher import Answer

ATOM = {"a": "http://www.w3.org/2005/Atom"}


def page(body: str | bytes, content_type: str = "text/html") -> Response:
    return Response(
        CrawlTask(host="https://example.org", path="/"),
        Answer(
            url="https://example.org/",
            status=200,
            headers=CIMultiDictProxy(CIMultiDict[str]()),
            body=body if isinstance(body, bytes) else body.encode(),
            content_type=content_type,
            charset_header=None,
            location=None,
            elapsed_ms=1,
            ended_at=0.0,
            retry_after=None,
        ),
    )


@pytest.mark.parametrize(
    ("body", "expression", "found"),
    [
        ("<h1>One</h1><p class=x>a<p>b", "//p/text()", ["a", "b"]),
        ("<h1>One</h1><p class=x>a<p>b", "//p/@class", ["x"]),
        ("<p>a<p>b", "count(//p)", [2.0]),
        ("<p>a<p>b", "string(//p[2])", ["b"]),
        ("<p>a<p>b", "boolean(//h1)", [False]),
        ("<p>a", "//h1", []),
        ("", "//h1", []),
        ("a\0<p>b\0c", "//p/text()", ["bc"]),
        # The page says an encoding that its text no longer has.
        ('<?xml version="1.0" encoding="utf-16"?><html><p>ü', "//p/text()", ["ü"]),
        ("<meta charset=iso-8859-1><p>\xfc".encode("iso-8859-1"), "//p/text()", ["ü"]),
        ("<p>" + "<div>" * 100_000 + "deep", "count(//p)", [1.0]),
    ],
)
def test_xpath_finds_elements_strings_and_values(body: str | bytes, expression: str, found: list[Any]) -> None:
    assert page(body).xpath(expression) == found


def test_elements_are_those_of_lxml_and_strings_are_plain() -> None:
    response = page("<ul><li><a href=/1>one <b>1</b></a><li><a href=/2>two</a></ul>")
    first, second = response.xpath("//a")
    assert (first.get("href"), first.text_content(), second.xpath("string(.)")) == ("/1", "one 1", "two")
    assert response.xpath("//a[@href = $link]/text()", link="/2") == ["two"]
    strings = [*response.xpath("//a/@href"), *response.xpath("//a/text()")]
    assert {type(one) for one in strings} == {str}
    assert msgspec.json.encode(strings) == b'["/1","/2","one ","two"]', "as a handler gives them on"
    assert (response.xpath_first("//a/@href"), response.xpath_first("//h1")) == ("/1", None)


def test_feed_is_read_as_xml_with_its_namespaces_and_nothing_behind_it_is_opened() -> None:
    laughs = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9))
    response = page(
        f'<!DOCTYPE feed [<!ENTITY a0 "lol">{laughs}<!ENTITY secret SYSTEM "file:///etc/passwd">]>'
        '<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>One &amp; only</title></entry>'
        "<entry>&secret;</entry><entry>&a8;</entry><broken></feed>",
        "application/atom+xml",
    )
    assert response.xpath("//a:title/text()", namespaces=ATOM) == ["One & only"]
    assert response.xpath("//title") == []
    everything = response.xpath_first("string(/)")
    assert "root:" not in everything
    assert len(everything) < 1_000_000, "three hundred million were asked for"


@pytest.mark.parametrize("expression", ["//p[", "//x:y", "//p[$unknown]", "nofunction()"])
def test_expression_that_will_not_do_is_named(expression: str) -> None:
    with pytest.raises(ValueError, match=r"xpath '.*' will not do: ") as caught:
        page("<p>a").xpath(expression)
    assert expression in str(caught.value)


def test_without_lxml_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    with pytest.raises(Unfit, match=r"needs lxml.*pip install 'streamcrawl\[xpath\]'"):
        page("<p>a").xpath("//p")
