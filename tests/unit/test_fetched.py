"""A page that goes to a stage of its own is there what it was for the fetch."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from streamcrawl.errors import CodecError
from streamcrawl.rules.task import Ask, CrawlTask
from streamcrawl.web.fetcher import Answer
from streamcrawl.work.fetched import pack_page, unpack_page
from streamcrawl.work.program import Item

TASK = CrawlTask(
    host="http://a.test",
    path="/a?b=1",
    depth=2,
    referrer="http://a.test/",
    ask=Ask(label="item", meta={"n": [1, None]}),
)


def answer(body: bytes, **headers: str) -> Answer:
    return Answer(
        url="http://a.test/final",
        status=404,
        headers=CIMultiDictProxy(CIMultiDict(headers)),
        body=body,
        content_type="text/html",
        charset_header="latin-1",
        location=None,
        elapsed_ms=7,
        ended_at=1.0,
        retry_after=None,
    )


@pytest.mark.parametrize("body", [b"", b"<title>caf\xe9</title><a href=b>b</a>", bytes(range(256)) * 2000])
async def test_page_is_read_as_it_was_written(body: bytes) -> None:
    raw = await pack_page(TASK, answer(body, Etag="x", Odd="\udcff"), ["http://a.test/hop"])
    page = unpack_page(Item("fetched", raw, TASK.url, TASK.depth), links_max=10)
    assert (page.url, page.final_url, page.status, page.depth) == (TASK.url, "http://a.test/final", 404, 2)
    assert (page.body, page.label, page.meta, page.referrer) == (body, "item", {"n": [1, None]}, "http://a.test/")
    assert (page.headers["etag"], page.headers["odd"]) == ("x", "?")
    assert page.redirects == (*TASK.redirects, "http://a.test/hop")
    if b"title" in body:
        assert (page.page.title, page.links()) == ("café", ("http://a.test/b",))


@pytest.mark.parametrize("raw", [b"{}", b"1", b'{"final_url":"x","status":200,"headers":[],"body":"AAAA"}'])
def test_what_is_no_page_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError, match="stored page cannot be read"):
        unpack_page(Item("fetched", raw, TASK.url), links_max=10)
