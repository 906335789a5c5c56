"""The small HTTP server: what it answers to whom, and that connections are bounded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from streamcrawl.errors import ConfigError
from streamcrawl.ops.serving import CONNECTIONS_MAX, Reply, Serving, exposition, only_local

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

OPENMETRICS = "application/openmetrics-text"


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    registry = CollectorRegistry()
    Counter("pages", "Pages", registry=registry).inc(3)

    async def metrics(request: web.BaseRequest) -> Reply:
        return exposition(registry, request)

    async def below(request: web.BaseRequest) -> Reply:
        return Reply.json({"path": request.path})

    async def inside(_: web.BaseRequest) -> Reply:
        return Reply("secret\n")

    pages = {"/metrics": metrics, "/below/": below, "/inside": only_local(inside)}
    async with Serving("127.0.0.1", 0, pages, option="--port") as running:
        yield running


async def asked(serving: Serving, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, serving.url + path, headers=headers) as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (f"{OPENMETRICS};version=1.0.0,text/plain;version=0.0.4;q=0.5", f"{OPENMETRICS}; version=1.0.0"),
        (f"{OPENMETRICS};version=soon", "text/plain; version=0.0.4"),
    ],
)
async def test_format_is_the_one_that_is_asked_for(serving: Serving, accept: str, content_type: str) -> None:
    status, said, text = await asked(serving, "/metrics", Accept=accept)
    assert status == 200
    assert said.startswith(content_type)
    assert "pages_total 3.0" in text
    assert text.endswith("# EOF\n") == content_type.startswith(OPENMETRICS)


async def test_what_is_not_there_is_said_with_what_is(serving: Serving) -> None:
    status, _, text = await asked(serving, "/other")
    assert status == 404
    assert text == "there is nothing at /other; there is: /below/, /inside, /metrics\n"
    assert (await asked(serving, "/below/a/b"))[::2] == (200, '{"path":"/below/a/b"}\n')
    assert (await asked(serving, "/below"))[0] == 404
    assert (await asked(serving, "/metrics", "POST"))[0] == 405
    assert (await asked(serving, "/metrics", "HEAD"))[::2] == (200, "")


async def test_what_lies_inside_is_for_this_machine_and_not_for_a_proxy_of_it(serving: Serving) -> None:
    assert (await asked(serving, "/inside"))[::2] == (200, "secret\n")
    port = serving.url.rpartition(":")[2]
    for own in ({"Host": f"localhost:{port}"}, {"Host": "[::1]"}, {"Sec-Fetch-Site": "none"}):
        assert (await asked(serving, "/inside", **own))[0] == 200
    for header, value in (
        *((header, "203.0.113.7") for header in ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")),
        # A page of somebody else, in a browser of this machine: under a name that leads here, or across origins.
        *(
            ("Host", value)
            for value in (f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "[")
        ),
        ("Origin", "https://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
    ):
        status, _, text = await asked(serving, "/inside", **{header: value})
        assert (status, "secret" in text) == (403, False), (header, value)


async def test_connections_are_bounded(serving: Serving) -> None:
    host, port = serving.url.removeprefix("http://").split(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(CONNECTIONS_MAX)]
    try:
        for reader, writer in opened:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        reader, writer = await asyncio.open_connection(host, int(port))
        opened.append((reader, writer))
        assert await reader.read() == b""
    finally:
        for _, writer in opened:
            writer.close()
    # Closed ones make room.
    async with asyncio.timeout(20):
        while True:
            try:
                assert (await asked(serving, "/metrics"))[0] == 200
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.01)


async def test_port_that_is_taken_is_named_with_what_would_do(serving: Serving) -> None:
    port = int(serving.url.rpartition(":")[2])
    with pytest.raises(
        ConfigError, match=rf"^--port {port}: nothing can listen there on 127.0.0.1 \(.+\); give another"
    ):
        async with Serving("127.0.0.1", port, {}, option="--port"):
            pass
    with pytest.raises(ConfigError, match="nothing can listen there on no such host"):
        async with Serving("no such host", 0, {}, option="--port"):
            pass
