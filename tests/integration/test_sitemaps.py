"""Sitemaps are tasks of a line of their own: found, read in a stream, sifted, offered in chunks, ended by name."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from streamcrawl.store.frontier import LINKS_PER_CALL
from tests.dns_server import DnsServer
from tests.integration.drive import Talker, crawling, html, plain, records, until, violations
from tests.integration.snapshot import wait_until
from tests.integration.test_address_guard import crawl_of_the_web
from tests.integration.test_outcomes import limit_memory
from tests.site.server import SiteProcess, SiteSpec
from tests.site.sitemaps import FOREIGN, METADATA, SITEMAPS, index, urlset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.drive import CrawlRun
    from tests.redis_server import RedisServer

TWO: Final = ("/p/1", "/p/2")
ENDINGS: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    # How the task ends, the pages that it brings, and what else is counted.
    **dict.fromkeys(
        (
            *("/sitemap/xml", "/sitemap/xml_as_html", "/sitemap/xml_untyped", "/sitemap/xml_closed"),
            *("/sitemap/xml_utf16", "/sitemap/gz", "/sitemap/gz_coded", "/sitemap/coded", "/sitemap/text"),
            *("/sitemap/rss", "/sitemap/atom", "/sitemap/moved"),
        ),
        ("done", TWO, ()),
    ),
    # The index, and what it lists: the tasks of those end in the same way.
    "/sitemap/index": ("done", TWO, ("sitemap.done",) * 2),
    "/sitemap/index_loop": ("done", TWO, ("sitemap.done",) * 3),
    "/sitemap/deep_0": ("done", ("/p/0", *TWO, "/p/3"), (*("sitemap.done",) * 3, "links.sitemap_nesting")),
    "/sitemap/empty_urlset": ("done", (), ()),
    "/sitemap/locations": ("done", TWO, ("links.sitemap_location",) * 3),
    "/sitemap/outside": ("done", ("/p/1",), ("links.sitemap_location",)),
    "/sitemap/metadata": ("done", TWO, ("sitemap.done", "sitemap.dropped.blocked_address")),
    "/sitemap/strangers": (
        "done",
        TWO,
        ("sitemap.done", *("sitemap.dropped.blocked_address",) * 10, *("links.sitemap_hosts",) * (FOREIGN - 10)),
    ),
    "/sitemap/broken": ("done", TWO, ("sitemap.flawed.broken",)),
    "/sitemap/not_closed": ("done", TWO, ("sitemap.flawed.broken",)),
    "/sitemap/gz_cut": ("done", TWO, ("sitemap.flawed.broken_gzip",)),
    "/sitemap/large": ("done", TWO, ("sitemap.flawed.too_large",)),
    "/sitemap/many": ("done", TWO, ("sitemap.flawed.too_many",)),
    "/sitemap/laughs": ("done", (), ("sitemap.flawed.doctype",)),
    "/sitemap/length_more": ("done", TWO, ("sitemap.flawed.cut_off", "sitemap.retried")),
    **dict.fromkeys(
        (
            *("/sitemap/page", "/sitemap/prose", "/sitemap/nothing", "/sitemap/zeros", "/sitemap/zeros_coded"),
            *(
                "/sitemap/not_gz",
                "/sitemap/gz_noise",
                "/sitemap/missing",
                "/fault/links_300",
                "/fault/bomb",
                "/fault/big",
            ),
            *("/fault/status_410", "/fault/status_204", "/fault/partial_206", "/fault/retry_after_0_403"),
        ),
        ("dropped.no_sitemap", (), ()),
    ),
    "/fault/hang_in_body": ("dead.timeout", (), ("sitemap.retried",)),
    "/fault/slow_drip": ("dead.body_too_slow", (), ("sitemap.retried",)),
    "/fault/truncated": ("dropped.no_sitemap", (), ()),
    "/fault/reset": ("dead.disconnected", (), ("sitemap.retried",)),
    "/fault/bad_encoding": ("dead.protocol", (), ("sitemap.retried",)),
    "/fault/status_500": ("dead.http_500", (), ("sitemap.retried",)),
    "/fault/redirect_loop": ("dead.redirect_loop", (), ()),
    "/fault/redirect_bad": ("dead.bad_redirect", (), ()),
}


def test_every_sitemap_of_the_site_has_its_line_in_the_table() -> None:
    assert {f"/sitemap/{name}" for name in SITEMAPS} <= ENDINGS.keys()


async def test_every_sitemap_has_one_named_outcome(redis_server: RedisServer, crawl_name: str) -> None:
    spec = SiteSpec(hosts=len(ENDINGS), pages_per_host=10)
    values: dict[str, Any] = {
        "scope": "host",
        "depth_max": 1,
        "processes": 2,
        "concurrency": 32,
        "attempts_max": 2,
        "timeout_ms": 6000,
        "read_timeout_ms": 3000,
        "redirects_max": 5,
    }
    with SiteProcess(spec) as site:
        places = {site.url(host, path): path for host, path in enumerate(ENDINGS, start=1)}
        async with crawling(redis_server.url, crawl_name, [], given_sitemaps=list(places), **values) as run:
            await run.all_ready()
            for worker in run.workers():
                limit_memory(worker.pid)
            assert await run.word(within_s=100) == "ENDED"
            await run.check()
            totals = await run.totals()
            dead = {places[letter.url]: letter.reason for letter in await run.dead()}
        assert not [line for line in run.log if "in hand" in line or "exit code" in line], "no worker died of it"
        fetched = defaultdict[str, list[str]](list)
        for request in site.requests():
            if request.path.startswith("/p/"):
                fetched[f"http://{request.host}:{site.port}"].append(request.path)

    for host, (path, (ending, pages, _)) in enumerate(ENDINGS.items(), start=1):
        assert (path, sorted(fetched[f"http://127.0.0.{host}:{site.port}"])) == (path, sorted(pages))
        assert (path, dead.get(path)) == (path, ending.removeprefix("dead.") if ending.startswith("dead.") else None)
    expected = Counter[str]()
    for ending, _, counted in ENDINGS.values():
        expected.update((f"sitemap.{ending}", *counted))
    ends = Counter({name: n for name, n in expected.items() if name.startswith("sitemap.d")})
    expected["sitemap.created"] = ends.total()
    for end in ("dead", "dropped"):
        expected[f"sitemap.{end}"] = sum(n for name, n in ends.items() if name.startswith(f"sitemap.{end}."))
    # A slow machine may try something else twice, too.
    assert totals.pop("sitemap.retried") >= expected.pop("sitemap.retried")
    assert {name: n for name, n in totals.items() if name.startswith(("sitemap.", "links.sitemap"))} == {
        name: n for name, n in expected.items() if n
    }
    assert totals["page.created"] == totals["page.done"] == sum(len(pages) for _, pages, _ in ENDINGS.values())


# -- how they are found


async def test_a_host_brings_its_sitemaps_in(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as site:
        origin = site.origin
        site.answers |= {
            "/robots.txt": plain(f"User-agent: *\nDisallow: /secret\nSitemap: {origin}/index.xml\n"),
            "/": html("/linked"),
            "/linked": html("/sitemap.xml"),
            # A URL may be a page and a sitemap; what it lists counts one step more than the page that came first.
            "/index.xml": plain(index(f"{origin}/maps/a.xml", f"{origin}/index.xml", f"{origin}/secret/map")),
            "/maps/a.xml": plain(urlset(f"{origin}/a", f"{origin}/secret", "/linked", f"{origin}/maps/a.xml")),
        }
        values: dict[str, Any] = {"sitemaps": True, "obey_robots": True, "scope": "host", "delay_ms": 60}
        async with crawling(redis_server.url, crawl_name, [origin + "/"], **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
        asked = {"/robots.txt": 1, "/": 1, "/index.xml": 1, "/maps/a.xml": 2, "/a": 1, "/linked": 1, "/sitemap.xml": 1}
        assert site.asked == asked
        assert violations(site.requests, cap=1, delay_ms=60) == [], "a sitemap is a fetch of its host like any other"
        assert (totals["sitemap.created"], totals["sitemap.done"], totals["sitemap.dropped.robots"]) == (3, 2, 1)
        assert (totals["page.done"], totals["page.dropped.robots"]) == (5, 1)


async def test_usual_place_is_tried_where_robots_txt_lists_none(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as site:
        site.answers |= {f"/{n}": html() for n in range(1, 6)}
        site.answers["/sitemap.xml"] = plain(urlset("/4", "/5"))
        seeds = [f"{site.origin}/{n}" for n in range(1, 4)]
        async with crawling(redis_server.url, crawl_name, seeds, sitemaps=True) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert site.asked == {"/sitemap.xml": 1} | {f"/{n}": 1 for n in range(1, 6)}
        # Known already when the crawl goes on, and not asked for where nobody wants it.
        async with crawling(redis_server.url, crawl_name, [f"{site.origin}/6"], sitemaps=True) as run:
            assert await run.word() == "ENDED"
        async with crawling(redis_server.url, f"{crawl_name}-0", seeds, sitemaps=True, depth_max=0) as run:
            assert await run.word() == "ENDED"
        assert site.asked["/sitemap.xml"] == 1


async def test_host_that_leads_elsewhere_leaves_its_sitemaps_to_the_other(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """`example.org` leads to `www.example.org`, whose sitemap both robots.txt name: its pages are in scope."""
    async with Talker({}) as site:
        www = site.origin.replace("127.0.0.1", "localhost")
        site.answers |= {
            "/robots.txt": plain(f"Sitemap: {www}/map\n"),
            "/old": html(status=302, Location=f"{www}/new"),
            "/new": html(),
            "/map": plain(urlset(f"{www}/listed")),
        }
        values: dict[str, Any] = {"sitemaps": True, "obey_robots": True, "scope": "host"}
        async with crawling(redis_server.url, crawl_name, [f"{site.origin}/old"], **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert (site.asked["/map"], site.asked["/listed"]) == (1, 1)


async def test_pages_are_in_scope_as_links_of_the_host_whose_sitemap_it_is(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """A sitemap on another host, below an index there, does not bring that host into scope."""
    async with Talker({}) as site:
        other = site.origin.replace("127.0.0.1", "localhost")
        site.answers |= {
            "/robots.txt": plain(f"Sitemap: {other}/index\n"),
            "/": html(),
            "/index": plain(index(f"{other}/map")),
            "/map": plain(f"{site.origin}/mine\n{other}/theirs\n{other}/deny\n"),
        }
        values: dict[str, Any] = {"sitemaps": True, "obey_robots": True, "scope": "host", "deny": ("/deny",)}
        async with crawling(redis_server.url, crawl_name, [site.origin], **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
        assert (site.asked["/map"], site.asked["/mine"], site.asked["/theirs"]) == (1, 1, 0)


async def test_no_sitemap_leads_inside(redis_server: RedisServer, crawl_name: str) -> None:
    async with DnsServer() as dns, Talker({}) as secret, Talker({}) as site:
        inside = [f"{origin}/map" for origin in (secret.origin, METADATA, "http://[::1]:1", "http://2130706433:1")]
        site.answers |= {
            "/robots.txt": plain("".join(f"Sitemap: {url}\n" for url in (*inside[:2], f"{site.origin}/index"))),
            "/": html(),
            "/index": plain(index(*inside[2:], "/moved", "/pages")),
            "/moved": html(status=302, Location=f"{secret.origin}/moved"),
            "/pages": plain(urlset(f"{secret.origin}/page", f"{METADATA}/page")),
        }
        values: dict[str, Any] = {"sitemaps": True, "obey_robots": True, "scope": "any"}
        async with crawl_of_the_web(redis_server, crawl_name, site, dns, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
        assert secret.requests == []
        # One more is where /moved leads.
        assert totals["sitemap.dropped.blocked_address"] == len(inside) + 1
        assert totals["page.dropped.blocked_address"] == 2


# -- how they are read


async def test_priority_says_what_goes_first(redis_server: RedisServer, crawl_name: str) -> None:
    pages = {"/low": "0.1", "/normal": "0.5", "/none": "x", "/high": "1.0"}
    body = "".join(f"<url><loc>{path}</loc><priority>{text}</priority></url>" for path, text in pages.items())
    async with Talker({"/map": plain(f"<urlset>{body}</urlset>")}) as site:
        async with crawling(redis_server.url, crawl_name, [], given_sitemaps=[f"{site.origin}/map"]) as run:
            assert await run.word() == "ENDED"
        assert [request.path for request in site.requests] == ["/map", "/high", "/normal", "/none", "/low"]


async def test_long_sitemap_goes_into_the_frontier_while_it_is_still_sent(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    """In chunks, over shards; and its worker may die in the middle of it."""
    is_killed, output = asyncio.Event(), tmp_path / "pages.jsonl"
    with SiteProcess(SiteSpec(hosts=20, pages_per_host=35)) as site:
        urls = [site.url(n % 20 + 1, f"/p/{n // 20}") for n in range(700)]

        async def body() -> AsyncIterator[bytes]:
            yield "".join(f"{url}\n" for url in urls[:560]).encode()
            await is_killed.wait()
            yield "".join(f"{url}\n" for url in urls[560:]).encode()

        async def answer(_: int) -> web.StreamResponse:
            return web.Response(body=body(), content_type="text/plain")

        async with Talker({"/map": answer}) as talker:
            values: dict[str, Any] = {"shards": 2, "depth_max": 1, "processes": 2, "timeout_ms": 60_000}
            given = [f"{talker.origin}/map"]
            async with crawling(redis_server.url, crawl_name, [], given_sitemaps=given, output=output, **values) as run:
                await wait_until(lambda: is_at_least(run, "page.done", 50), "pages of a sitemap that is still sent")
                assert (await run.totals()).get("sitemap.done", 0) == 0
                await kill_all(run)
                is_killed.set()
                assert await run.word() == "ENDED"
                await run.check()
                totals = await run.totals()
            assert talker.asked["/map"] == 2
    assert sorted(record["url"] for record in records(output)) == sorted(urls)
    assert totals["sitemap.done"] == 1
    assert all(record["referrer"] == given[0] and record["depth"] == 1 for record in records(output))


async def is_at_least(run: CrawlRun, name: str, count: int) -> bool:
    return (await run.totals()).get(name, 0) >= count


async def kill_all(run: CrawlRun) -> None:
    """Kill every worker there is, whichever has the sitemap in hand."""
    for child in run.workers():
        child.kill()
    await until(lambda: len(run.workers()) < 2, "the workers to be gone")


async def test_sitemap_waits_for_room_in_the_frontier(redis_server: RedisServer, crawl_name: str) -> None:
    """Its links can be had again, so they never stop the crawl; the host is not asked while there is no room."""
    bound = 1200
    with SiteProcess(SiteSpec(hosts=20, pages_per_host=70)) as site:
        urls = [site.url(n % 20 + 1, f"/p/{n // 20}") for n in range(1400)]
        async with Talker({"/map": plain("\n".join(urls))}) as talker:
            given = [f"{talker.origin}/map"]
            values: dict[str, Any] = {"frontier_max": bound, "depth_max": 1}
            async with crawling(redis_server.url, crawl_name, [], given_sitemaps=given, **values) as run:
                most = 0
                while run.is_running:
                    most = max(most, (await run.totals()).get("page.queued", 0))
                    await run.end_or(0.05)
                assert await run.word() == "ENDED"
                await run.check()
                totals = await run.totals()
            asked = talker.asked["/map"]
        assert len({(request.host, request.path) for request in site.requests()}) == len(site.requests()) == len(urls)
    assert (totals["page.done"], totals["sitemap.done"]) == (len(urls), 1)
    assert most <= bound // 2 + 2 * LINKS_PER_CALL
    assert 2 <= asked <= totals["sitemap.continued"] + 1


async def test_budget_of_a_host_holds_for_what_its_sitemaps_list(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({}) as site:
        site.answers["/map"] = plain("".join(f"{site.origin}/{n}\n" for n in range(10)))
        async with crawling(
            redis_server.url, crawl_name, [], given_sitemaps=[f"{site.origin}/map"], pages_per_host_max=3
        ) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
        assert (totals["page.done"], totals["page.dropped.host_budget"], totals["sitemap.done"]) == (3, 7, 1)


async def test_shard_with_nothing_but_a_sitemap_gets_of_the_page_budget(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """It dispatches nothing before, and pages are not known of before the sitemap is read."""
    async with Talker({}) as site:
        site.answers["/map"] = plain("".join(f"{site.origin}/{n}\n" for n in range(10)))
        values: dict[str, Any] = {"shards": 2, "pages_max": 3}
        async with crawling(redis_server.url, crawl_name, [], given_sitemaps=[f"{site.origin}/map"], **values) as run:
            assert await run.word() == "LIMIT"
            await run.check()
            totals = await run.totals()
        assert (totals["page.done"], totals["sitemap.done"]) == (3, 1)
