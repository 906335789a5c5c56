"""Which links of a page does a crawl follow? Read from what it asks the web server for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from tests.integration.drive import Talker, crawling, html

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

INDEX = """
    <!DOCTYPE html><head><base href="/base/"><link rel=next href=next><link rel=alternate href=alternate>
    <link rel=canonical href=canonical><link rel=stylesheet href=style></head>
    <a href=a></a><a href=A#x></a><map><area href=area></map><iframe src=frame></iframe><img src=image>
    <a href="/meta"></a><a href="/header"></a><a href="/sniffed"></a><a href="/text"></a>
    <a rel="external nofollow" href=nofollow></a><a href="mailto:a@example.org"></a>
"""


Answer = Callable[[int], Awaitable[web.StreamResponse]]


def body(text: str, content_type: str = "text/html", **headers: str) -> Answer:
    async def answer(_: int) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=text.encode(), content_type=content_type, headers=named)

    return answer


async def test_directives_and_types_decide_what_is_followed(redis_server: RedisServer, crawl_name: str) -> None:
    answers = {
        "/": body(INDEX),
        "/meta": body("<meta name=robots content='noindex, nofollow'><a href=/from-meta>"),
        "/header": body("<a href=/from-header>", X_Robots_Tag="nofollow"),
        "/sniffed": body("<!DOCTYPE html><a href=/from-sniffed>", content_type="application/octet-stream"),
        "/text": body("<a href=/from-text>", content_type="text/plain"),
        "/other-bot": body("<a href=/from-other-bot>", X_Robots_Tag="otherbot: nofollow"),
        "/base/a": body("<a href=/other-bot>"),
    }
    async with Talker(answers) as talker:
        async with crawling(redis_server.url, crawl_name, [talker.origin]) as run:
            assert await run.word() == "ENDED"
        asked = sorted(request.path for request in talker.requests)
    in_base = ["A", "a", "alternate", "area", "canonical", "frame", "next"]
    others = ["/", "/from-other-bot", "/from-sniffed", "/header", "/meta", "/other-bot", "/sniffed", "/text"]
    assert asked == sorted([*(f"/base/{name}" for name in in_base), *others])


async def test_links_are_fetched_in_the_form_of_the_crawl_and_once(redis_server: RedisServer, crawl_name: str) -> None:
    session = "0123456789abcdef0123456789abcdef"
    answers = {
        "/": html(
            "/a?utm_source=x&b=2&a=1", "/a?a=1&b=2", f"/a?b=2&sid={session}&a=1", "/b;jsessionid=1F", "/b", "/moved"
        ),
        "/a?a=1&b=2": html("/?fbclid=1"),
        "/b": html("/c?gclid=2"),
        # The server means its own redirects: without the id it would redirect again.
        "/c": html(status=302, Location=f"/c?sid={session}"),
        f"/c?sid={session}": html("/d"),
    }
    async with Talker(answers) as talker:
        elsewhere = talker.origin.replace("127.0.0.1", "localhost")
        answers["/moved"] = html(status=302, Location=f"{elsewhere}/d?utm_medium=y&z=1")
        async with crawling(
            redis_server.url, crawl_name, [talker.origin], drop_params=("tracking", "sessions"), sort_query=True
        ) as run:
            assert await run.word() == "ENDED"
        asked = sorted(request.path for request in talker.requests)
    assert asked == sorted(["/", "/a?a=1&b=2", "/b", "/moved", "/c", f"/c?sid={session}", "/d", "/d?z=1"])


async def test_traps_are_left_out_and_counted(redis_server: RedisServer, crawl_name: str) -> None:
    async def deeper(_: int) -> web.StreamResponse:
        # A relative link that lacks its slash, a calendar, a filter on each filter and what never ends.
        links = '<a href="x/y/"></a><a href="?year=2999&month=1"></a><a href="/far"></a>'
        return web.Response(text=f"<!DOCTYPE html>{links}", content_type="text/html")

    answers: dict[str, Answer] = {f"/{'x/y/' * n}": deeper for n in range(10)}
    async with Talker(answers) as talker:
        elsewhere = talker.origin.replace("127.0.0.1", "localhost")
        answers["/far"] = html(status=302, Location=f"{elsewhere}/a/b/a/b/a/b")
        async with crawling(redis_server.url, crawl_name, [talker.origin], depth_max=3) as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
        asked = sorted(request.path for request in talker.requests)
    assert asked == ["/", "/far", "/x/y/", "/x/y/x/y/"]
    assert {name: count for name, count in totals.items() if name.startswith("links.")} == {
        "links.trap_repetition": 1,
        "links.trap_calendar": 3,
    }
    assert totals["page.dropped.trap_repetition"] == 1


async def test_links_beyond_the_depth_are_counted(redis_server: RedisServer, crawl_name: str) -> None:
    answers = {"/": html("/a", "/b"), "/a": html("/c", "/"), "/b": html("/c", "/d", "http://other.example/")}
    async with Talker(answers) as talker:
        async with crawling(redis_server.url, crawl_name, [talker.origin], depth_max=1, scope="host") as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
        assert sorted(request.path for request in talker.requests) == ["/", "/a", "/b"]
    # Each time one is found: nobody remembers what was left out. The seed too, which no page had offered; what is out
    # of scope is no link of this crawl.
    assert {name: count for name, count in totals.items() if name.startswith("links.")} == {"links.depth": 4}
