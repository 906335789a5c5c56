"""Sitemaps are tasks of a line of their own: found, read in a stream, sifted, offered in chunks, ended by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.integration.drive import Talker, crawling, html, plain

if TYPE_CHECKING:
    from tests.redis_server import RedisServer

Answer = "Callable[[int], Awaitable[web.StreamResponse]]"


def urlset(*urls: str) -> str:
    return "<urlset>" + "".join(f"<url><loc>{url}</loc></url>" for url in urls) + "</urlset>"


def index(*urls: str) -> str:
    return "<sitemapindex>" + "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls) + "</sitemapindex>"


async def test_a_host_brings_its_sitemaps_in(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as site:
        origin = site.origin
        site.answers |= {
            "/robots.txt": plain(f"User-agent: *\nDisallow: /secret\nSitemap: {origin}/index.xml\n"),
            "/": html("/linked"),
            "/index.xml": plain(index(f"{origin}/maps/a.xml", f"{origin}/index.xml")),
            "/maps/a.xml": plain(urlset(f"{origin}/a", f"{origin}/secret", "https://elsewhere.example/b", "/linked")),
        }
        values: dict[str, Any] = {"sitemaps": True, "obey_robots": True, "scope": "host"}
        async with crawling(redis_server.url, crawl_name, [origin + "/"], **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
        assert site.asked == {"/robots.txt": 1, "/": 1, "/index.xml": 1, "/maps/a.xml": 1, "/a": 1, "/linked": 1}
        assert (totals["sitemap.created"], totals["sitemap.done"]) == (2, 2)
        assert totals["page.done"] == 3
        assert totals["page.dropped.robots"] == 1
