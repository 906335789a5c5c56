"""Which links of a page does a crawl follow? Read from what it asks the web server for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from tests.integration.drive import Talker, crawling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.redis_server import RedisServer

INDEX = """
    <!DOCTYPE html><head><base href="/base/"><link rel=next href=next><link rel=alternate href=alternate>
    <link rel=canonical href=canonical><link rel=stylesheet href=style></head>
    <a href=a></a><a href=A#x></a><map><area href=area></map><iframe src=frame></iframe><img src=image>
    <a href="/meta"></a><a href="/header"></a><a href="/sniffed"></a><a href="/text"></a>
    <a rel="external nofollow" href=nofollow></a><a href="mailto:a@example.org"></a>
"""


def body(text: str, content_type: str = "text/html", **headers: str) -> Callable[[int], Awaitable[web.StreamResponse]]:
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
