"""No page, redirect, robots.txt or name server leads a crawl where it was not started, and no password comes out of it.

The crawls here have a seed that counts as public, a name, so nothing inside is open to them but the very place of their
other seed, 127.0.0.1 with one port: the name is at that place too, where a server writes whatever it likes.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from streamcrawl.errors import BadRedirect, BlockedAddress, ProtocolError
from streamcrawl.rules.addresses import Inside
from streamcrawl.rules.urls import canonical_url
from streamcrawl.settings import Given, make_settings
from streamcrawl.store.tuning import tune
from streamcrawl.web.fetcher import CONNECTIONS_SPARE, Fetcher
from streamcrawl.work.page_work import BLOCKED_ROBOTS_TTL_MS
from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, crawling, html, plain, until
from tests.integration.drive import records as records_of
from tests.integration.snapshot import snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.integration.drive import CrawlRun
    from tests.redis_server import RedisServer

ROBOTS = "/robots.txt"


def port_of(talker: Talker) -> int:
    return int(talker.origin.rpartition(":")[2])


@asynccontextmanager
async def crawl_of_the_web(
    redis_server: RedisServer, name: str, talker: Talker, dns: DnsServer, **values: Any
) -> AsyncIterator[CrawlRun]:
    """Crawl `talker` as a site of the open web whose server is, for this test, on this machine."""
    dns.names["public.test"] = [records("127.0.0.1")]
    public = f"http://public.test:{port_of(talker)}/"
    seeds = [talker.origin, public]
    values = {"allow_private": False, "nameservers": (dns.address,), **values}
    async with crawling(redis_server.url, name, seeds, **values) as run:
        yield run


async def test_no_way_leads_inside(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    async with DnsServer() as dns, Talker({}) as secret, Talker({}) as talker:
        port = port_of(secret)
        dns.names["inward.test"] = [records("127.0.0.1")]
        dns.names["mapped.test"] = [records("::ffff:127.0.0.1")]
        dns.names["mixed.test"] = [records("127.0.0.1", "10.0.0.1", "fd00:ec2::254", "0.0.0.0")]
        hosts = [
            "127.0.0.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "１２７.0.0.1",
            "127.0.0.2",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::127.0.0.1]",
            "[2002:7f00:1::1]",
            "localhost",
            "a.localhost",
            "inward.test",
            "mapped.test",
            "mixed.test",
            "169.254.169.254",
            "10.0.0.1",
        ]
        urls = [f"http://{host}:{port}/latest" for host in hosts]
        talker.answers = {
            ROBOTS: html(status=302, Location=f"http://127.0.0.1:{port}/robots-target"),
            "/": html(*urls, "/hop", "/local-hop"),
            "/hop": html(status=302, Location=f"http://inward.test:{port}/hop-target"),
            "/local-hop": html(status=302, Location=f"http://localhost:{port}/hop-target"),
        }
        values = {"obey_robots": True, "timeout_ms": 5000}
        async with crawl_of_the_web(redis_server, crawl_name, talker, dns, output=output, **values) as run:
            assert await run.word() == "ENDED"
            await run.check()
            totals = await run.totals()
            assert await run.dead() == []
        assert secret.requests == []
        refused = {canonical_url(url) for url in urls} | {
            f"http://{host}:{port}/hop-target" for host in ("inward.test", "localhost")
        }
        assert totals["page.dropped.blocked_address"] == len(refused)
        assert totals["page.dropped.redirected"] == 4
        assert totals.get("page.retried", 0) == totals.get("page.unanswered", 0) == 0
        assert {record["url"] for record in records_of(output)} == {
            f"{origin}/" for origin in (talker.origin, f"http://public.test:{port_of(talker)}")
        }


@pytest.mark.parametrize("allow_private", [False, True])
async def test_leave_for_a_crawl_opens_what_is_inside(
    redis_server: RedisServer, crawl_name: str, allow_private: bool
) -> None:
    async with DnsServer() as dns, Talker({"/x": html()}) as inner, Talker({}) as talker:
        talker.answers = {"/": html(f"{inner.origin}/x", "http://169.254.169.254/x")}
        async with crawl_of_the_web(redis_server, crawl_name, talker, dns, allow_private=allow_private) as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
        assert totals["page.dropped.blocked_address"] == (1 if allow_private else 2)
        assert [request.path for request in inner.requests] == (["/x"] if allow_private else [])


async def test_crawl_that_is_started_inside_stays_in_its_network(redis_server: RedisServer, crawl_name: str) -> None:
    async with Talker({"/x": html()}) as other, Talker({}) as talker:
        links = [f"{other.origin}/x", "http://10.0.0.1/", "http://169.254.169.254/", "http://[fe80::1]/"]
        talker.answers = {"/": html(*links)}
        async with crawling(redis_server.url, crawl_name, [talker.origin], allow_private=False) as run:
            assert await run.word() == "ENDED"
            totals = await run.totals()
        assert totals["page.done"] == 2
        assert totals["page.dropped"] == totals["page.dropped.blocked_address"] == 3


async def test_robots_txt_inside_is_not_fetched_either(redis_server: RedisServer, crawl_name: str) -> None:
    async with DnsServer() as dns, Talker({ROBOTS: plain("")}) as secret, Talker({}) as talker:
        talker.answers = {ROBOTS: plain(""), "/": html(f"{secret.origin}/x", f"{secret.origin}/y")}
        async with crawl_of_the_web(redis_server, crawl_name, talker, dns, obey_robots=True) as run:
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.dropped.blocked_address"] == 2
        assert secret.requests == []


async def test_change_of_mind_between_two_hops_ends_the_page_after_its_delay(
    redis_server: RedisServer, crawl_name: str
) -> None:
    async with DnsServer() as dns, Talker({}) as inner, Talker({}) as talker:
        inner.answers = {"/x": html(status=302, Location="/y", Connection="close"), "/y": html()}
        talker.answers = {"/": html(f"{inner.origin}/x")}
        values = {"allow_private": True, "delay_ms": 3000}
        async with crawl_of_the_web(redis_server, crawl_name, talker, dns, **values) as run:
            await until(lambda: bool(inner.requests), "the first hop")
            await tune(run.crawl, crawl_name, {"allow_private": Given(False, "test")})
            assert await run.word() == "ENDED"
            await run.check()
            assert (await run.totals())["page.dropped.blocked_address"] == 1
        assert [request.path for request in inner.requests] == ["/x"]


async def test_robots_txt_that_is_refused_is_asked_for_again_soon(redis_server: RedisServer, crawl_name: str) -> None:
    """Once the host is opened its rules must count, not the leave that a refusal is taken for."""
    async with DnsServer() as dns, Talker({ROBOTS: plain("")}) as inner, Talker({}) as talker:
        talker.answers = {ROBOTS: plain(""), "/": html(f"{inner.origin}/x")}
        async with crawl_of_the_web(redis_server, crawl_name, talker, dns, obey_robots=True) as run:
            assert await run.word() == "ENDED"
            client: Any = run.frontier.client
            until_ms = await client.hget(run.frontier.keys.host(inner.origin), "robots_until")
            now_ms = await client.hget(run.frontier.keys.state, "clock_ms")
        assert 0 < int(until_ms) <= int(now_ms) + BLOCKED_ROBOTS_TTL_MS


# -- the fetcher alone


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://[::1]:1/", "https://[::ffff:a00:1]/", "http://0.0.0.0/"]
)
async def test_an_address_in_a_url_is_judged_without_a_lookup(url: str) -> None:
    async with Fetcher(make_settings("guard", {})) as fetcher:
        with pytest.raises(BlockedAddress) as caught:
            await fetcher.fetch(url)
    assert caught.value.url == url
    assert not caught.value.is_retryable
    assert not caught.value.is_unanswered


async def test_refusals_leave_no_connection_taken() -> None:
    settings = make_settings("guard", {}, concurrency=1)
    async with Talker({"/": html()}) as talker:
        inside = Inside.of_seeds([talker.origin.removeprefix("http://"), "public.test"], {})
        async with Fetcher(settings, inside=inside) as fetcher:
            for n in range(3 * (settings.concurrency.most + CONNECTIONS_SPARE)):
                with pytest.raises(BlockedAddress):
                    await fetcher.fetch(("http://127.0.0.1:1/", "http://localhost:1/")[n % 2])
            async with asyncio.timeout(10):
                assert (await fetcher.fetch(f"{talker.origin}/")).status == 200


async def test_a_change_of_the_setting_holds_for_the_next_connection() -> None:
    async with Talker({"/": html()}) as talker, Fetcher(make_settings("guard", {})) as fetcher:
        with pytest.raises(BlockedAddress):
            await fetcher.fetch(f"{talker.origin}/")
        fetcher.apply(make_settings("guard", {}, allow_private=True))
        assert (await fetcher.fetch(f"{talker.origin}/")).status == 200


@pytest.mark.parametrize(
    "path", ["a\r\nX-Evil: 1", "a\nb", "a b", "a\tb", "a\x00b", "caf\xe9", "a HTTP/1.1\r\nHost: b\r\n\r\nGET /c"]
)
async def test_what_would_break_out_of_the_request_line_is_never_sent(path: str) -> None:
    async with Talker({}) as talker, Fetcher(make_settings("guard", {}, allow_private=True)) as fetcher:
        with pytest.raises(ProtocolError, match="not an http or https URL"):
            await fetcher.fetch(f"{talker.origin}/{path}")
        link = canonical_url(f"{talker.origin}/{path}")
        assert link is not None
        assert (await fetcher.fetch(link)).status == 404
        assert len(talker.requests) == 1


async def test_a_password_in_a_location_is_neither_followed_nor_told() -> None:
    async with (
        Talker({}) as talker,
        Fetcher(make_settings("guard", {}), inside=Inside.of_seeds(["127.0.0.1"], {})) as fetcher,
    ):
        talker.answers = {
            "/a": html(status=302, Location="ftp://user:hunter2@127.0.0.1/"),
            "/b": html(status=302, Location=talker.origin.replace("//", "//user:hunter2@") + "/c"),
        }
        with pytest.raises(BadRedirect) as caught:
            await fetcher.fetch(f"{talker.origin}/a")
        assert "hunter2" not in str(caught.value)
        assert (await fetcher.fetch(f"{talker.origin}/b")).location == f"{talker.origin}/c"


async def test_headers_of_a_host_reach_it_and_are_kept_nowhere(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path
) -> None:
    """Also not in what a redirect leads to."""
    output = tmp_path / "pages.jsonl"
    async with Talker({"/y": html()}) as there, Talker({}) as here:
        here.answers = {"/": html("/x"), "/x": html(status=302, Location=f"{there.origin}/y")}
        auth = (f"{here.origin}: me:hunter2",)
        async with crawling(redis_server.url, crawl_name, [here.origin], output=output, auth=auth) as run:
            assert await run.word() == "ENDED"
            stored = repr(await snapshot(run.frontier))
            log = "\n".join(run.log)
    sent = "Basic bWU6aHVudGVyMg=="
    assert [headers.get("Authorization") for headers in here.headers] == [sent, sent]
    assert [headers.get("Authorization") for headers in there.headers] == [None]
    everything = stored + output.read_text() + log
    assert "hunter2" not in everything
    assert sent not in everything


async def test_passwords_of_urls_come_out_nowhere(redis_server: RedisServer, crawl_name: str, tmp_path: Path) -> None:
    output = tmp_path / "pages.jsonl"
    async with Talker({}) as talker:
        secret = talker.origin.replace("//", "//user:hunter2@")
        talker.answers = {
            "/": html(f"{secret}/a", "ftp://user:hunter2@127.0.0.1/", "/away"),
            "/a": html(),
            "/away": html(status=302, Location="ftp://user:hunter2@127.0.0.1/"),
        }
        async with crawling(redis_server.url, crawl_name, [f"{secret}/"], output=output) as run:
            assert await run.word() == "ENDED"
            assert len(await run.dead()) == 1
            stored = repr(await snapshot(run.frontier))
            log = "\n".join(run.log)
    assert len(records_of(output)) == 2
    assert f"{talker.origin}" in stored
    assert "hunter2" not in stored + output.read_text() + log
