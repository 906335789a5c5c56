"""Crawls with cookies: one visitor however many workers, no cookie where it does not belong or may be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from streamcrawl.store.keys import Keys
from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, crawling, html, plain
from tests.integration.drive import records as records_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.redis_server import RedisServer


def setting(lines: list[str], *links: str, status: int = 200) -> Callable[[int], Awaitable[web.StreamResponse]]:
    """Return an answer that sets cookies."""

    async def answer(_: int) -> web.StreamResponse:
        body = "".join(f'<a href="{link}">x</a>' for link in links)
        response = web.Response(text=body, content_type="text/html", status=status)
        for line in lines:
            response.headers.add("Set-Cookie", line)
        if status == 302:
            response.headers["Location"] = links[0]
        return response

    return answer


def sent(talker: Talker) -> dict[str, str | None]:
    """Return the Cookie line of each request, by path."""
    return {
        request.path: headers.get("Cookie") for request, headers in zip(talker.requests, talker.headers, strict=True)
    }


async def test_session_that_each_page_renews_is_kept_over_workers(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    """As a site does that takes each session once: whoever comes with an old one is logged out."""
    output = tmp_path / "pages.jsonl"
    pages = 40
    session = ["begun"]
    async with Talker({}) as talker:

        def page(n: int) -> Callable[[int], Awaitable[web.StreamResponse]]:
            async def answer(_: int) -> web.StreamResponse:
                cookie = talker.headers[-1].get("Cookie", "")
                if cookie != f"lang=en; session={session[-1]}":
                    return web.Response(status=403, text=cookie)
                session.append(f"s{n}")
                links = "".join(f'<a href="/{m}">x</a>' for m in range(1, pages))
                response = web.Response(text=links, content_type="text/html")
                response.headers.add("Set-Cookie", f"session=s{n}; HttpOnly; SameSite=Strict; Path=/")
                return response

            return answer

        talker.answers = {f"/{n or ''}": page(n) for n in range(pages)}
        given = (f"{talker.origin}: Cookie: lang=en; session=begun",)
        settings: dict[str, Any] = {"cookies": "host", "processes": 2, "concurrency": 4, "headers": given}
        async with crawling(redis_server.url, crawl_name, [talker.origin], output=output, **settings) as run:
            assert await run.word() == "ENDED"
            await run.check()
            log = "\n".join(run.log)
            port = talker.origin.rpartition(":")[2]
            key = run.frontier.keys.prefix + f"cookies:host:127.0.0.1:{port}"
            client: Any = run.frontier.client
            assert await client.hlen(key) == 1
            assert await client.ttl(key) > 0
    assert [record["status"] for record in records_of(output)] == [200] * pages
    assert len(session) == pages + 1
    assert session[-1] not in log
    assert not {value for value in session if f"session={value}" in output.read_text()}


@pytest.mark.parametrize("kind", ["off", "host", "crawl"])
async def test_cookies_go_to_other_hosts_of_their_domain_only_where_browsers_send_them(
    redis_server: RedisServer, crawl_name: str, kind: str
) -> None:
    async with DnsServer() as dns, Talker({}) as talker:
        names = ("www.example.com", "api.example.com", "www.example.org")
        port = talker.origin.rpartition(":")[2]
        for name in names:
            dns.names[name] = [records("127.0.0.1")]
        www, api, other = (f"http://{name}:{port}" for name in names)
        talker.answers = {
            "/robots.txt": setting(["robots=1"], status=404),
            "/": setting(["own=1", "all=1; Domain=example.com", "bad=1; Domain=example.org", "tls=1; Secure"], "/a"),
            "/a": setting(["hop=1"], "/b", status=302),
            "/b": setting([], f"{api}/c", f"{other}/d"),
            "/c": html(),
            "/d": html(),
        }
        settings: dict[str, Any] = {"cookies": kind, "obey_robots": True, "nameservers": (dns.address,)}
        async with crawling(redis_server.url, crawl_name, [f"{www}/"], **settings) as run:
            assert await run.word() == "ENDED"
            await run.check()
        found = sent(talker)
        assert found["/robots.txt"] is None
        assert found["/"] is None
        assert found["/d"] is None
        assert found["/a"] == {"off": None, "host": "own=1; all=1", "crawl": "own=1; all=1"}[kind]
        assert found["/b"] == {"off": None, "host": "own=1; all=1; hop=1", "crawl": "own=1; all=1; hop=1"}[kind]
        assert found["/c"] == {"off": None, "host": None, "crawl": "all=1"}[kind]


async def test_cookies_of_a_sharded_crawl_lie_with_their_hosts(redis_server: RedisServer, crawl_name: str) -> None:
    async with DnsServer() as dns, Talker({}) as talker:
        hosts = [f"www.example{n}.com" for n in range(6)]
        port = talker.origin.rpartition(":")[2]
        for name in hosts:
            dns.names[name] = [records("127.0.0.1")]
        talker.answers = {"/": setting(["a=1"], "/x"), "/x": html(), "/robots.txt": plain("")}
        seeds = [f"http://{host}:{port}/" for host in hosts]
        settings: dict[str, Any] = {"cookies": "crawl", "shards": 3, "nameservers": (dns.address,)}
        async with crawling(redis_server.url, crawl_name, seeds, **settings) as run:
            assert await run.word() == "ENDED"
            await run.check()
            for host in hosts:
                shard = run.crawl.index_of(f"http://{host}:{port}")
                key = Keys(crawl_name, shard).prefix + f"cookies:site:{host.removeprefix('www.')}"
                assert await run.frontier.client.exists(key)
        assert [headers.get("Cookie") for headers in talker.headers].count("a=1") == len(hosts)
