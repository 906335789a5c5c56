"""Crawls and fetches through proxies: which way they go, what is refused, and who is to blame when one fails."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import pytest

from streamcrawl.errors import (
    BlockedAddress,
    ConnectError,
    Disconnected,
    FetchError,
    ProxyError,
    ProxyRefused,
    TlsError,
)
from streamcrawl.rules.addresses import Inside
from streamcrawl.settings import make_settings
from streamcrawl.web import proxies as web_proxies
from streamcrawl.web.fetcher import Fetcher
from tests.dns_server import DnsServer, records
from tests.integration.drive import Talker, crawling, html, plain, until
from tests.integration.drive import records as records_of
from tests.integration.snapshot import snapshot
from tests.integration.test_tls import serving
from tests.web_proxy import Asked, WebProxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.redis_server import RedisServer

SCHEMES: Final = ("http", "socks5", "socks5h")


def fetcher(*proxies: str, log: list[str] | None = None, **values: Any) -> Fetcher:
    given: dict[str, Any] = {"allow_private": True, "insecure": True} | values
    said = [] if log is None else log
    return Fetcher(make_settings("proxied", {}, proxies=proxies, **given), log=said.append)


def port_of(origin: str) -> int:
    return int(origin.rpartition(":")[2])


# -- the ways


@pytest.mark.parametrize("user", ["", "me"])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_requests_go_through_the_proxy_and_reach_the_host_as_they_are(scheme: str, user: str) -> None:
    async with (
        serving("self_signed") as secure,
        Talker({"/a%20b?x=1&y=%C3%A9": html()}) as talker,
        WebProxy(user=user, password="p@ss:w") as proxy,
        fetcher(proxy.url(scheme).replace("p@ss", "p%40ss")) as fetching,
    ):
        assert (await fetching.fetch(f"{talker.origin}/a%20b?x=1&y=%C3%A9")).status == 200
        assert "Proxy-Authorization" not in talker.headers[0]
        assert talker.headers[0]["Host"] == talker.origin.removeprefix("http://")
        for _ in range(2):
            assert (await fetching.fetch(f"{secure}/")).body == b"hello"
        plain_way, secure_way = ("get", "connect") if scheme == "http" else ("socks", "socks")
        assert proxy.asked == [
            Asked(plain_way, "127.0.0.1", port_of(talker.origin)),
            # Once: the second request goes by the connection of the first.
            Asked(secure_way, "127.0.0.1", port_of(secure)),
        ]


@pytest.mark.parametrize(("scheme", "who"), [("http", "proxy"), ("socks5h", "proxy"), ("socks5", "crawler")])
async def test_names_are_resolved_by_whom_the_scheme_says(scheme: str, who: str) -> None:
    names = {"a.test": "127.0.0.1"} if who == "proxy" else {}
    async with DnsServer() as dns, Talker({"/": html()}) as talker, WebProxy(names=names) as proxy:
        dns.names["a.test"] = [records("127.0.0.1")]
        async with fetcher(proxy.url(scheme), nameservers=(dns.address,)) as fetching:
            assert (await fetching.fetch(talker.origin.replace("127.0.0.1", "a.test") + "/")).status == 200
        assert dns.asked_for("a.test") == (who == "crawler")
        assert proxy.asked[0].host == ("a.test" if who == "proxy" else "127.0.0.1")


async def test_the_name_of_a_proxy_is_resolved_here_and_may_be_inside() -> None:
    async with DnsServer() as dns, Talker({"/": html()}) as talker, WebProxy() as proxy:
        dns.names["gate.test"] = [records("127.0.0.1")]
        for scheme in SCHEMES:
            gate = proxy.url(scheme).replace("127.0.0.1", "gate.test")
            inside = Inside.of_seeds([talker.origin.removeprefix("http://"), "public.test"], {})
            settings = make_settings("proxied", {}, proxies=(gate,), nameservers=(dns.address,))
            async with Fetcher(settings, inside=inside) as fetching:
                assert (await fetching.fetch(f"{talker.origin}/")).status == 200
                with pytest.raises(BlockedAddress):
                    await fetching.fetch(f"http://127.0.0.1:{proxy.port}/")
        assert len(proxy.asked) == len(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "10.0.0.1", "169.254.169.254", "localhost", "a.localhost"])
async def test_addresses_inside_are_refused_before_the_proxy_hears_of_them(scheme: str, host: str) -> None:
    async with WebProxy() as proxy:
        for protocol in ("http", "https"):
            async with fetcher(proxy.url(scheme), allow_private=False) as fetching:
                with pytest.raises(BlockedAddress) as caught:
                    await fetching.fetch(f"{protocol}://{host}/")
                assert caught.value.url == f"{protocol}://{host}/"
        assert proxy.connections == 0


async def test_names_that_lead_inside_are_refused_where_they_are_resolved_here() -> None:
    async with DnsServer() as dns, WebProxy() as proxy:
        dns.names["inner.test"] = [records("10.0.0.1")]
        async with fetcher(proxy.url("socks5"), nameservers=(dns.address,), allow_private=False) as fetching:
            with pytest.raises(BlockedAddress, match=r"10\.0\.0\.1: a private address"):
                await fetching.fetch("http://inner.test/")
        assert proxy.connections == 0


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_tls_is_verified_through_a_proxy_and_a_fault_is_the_hosts(scheme: str) -> None:
    log: list[str] = []
    async with serving("self_signed") as secure, WebProxy() as proxy:
        async with fetcher(proxy.url(scheme), log=log, insecure=False) as fetching:
            for _ in range(2):
                with pytest.raises(TlsError) as caught:
                    await fetching.fetch(f"{secure}/")
                assert caught.value.kind == "tls_self_signed"
        assert len(proxy.asked) == 2
    assert log == []


# -- who is to blame


@pytest.mark.parametrize(
    ("scheme", "answer", "ends", "error_class", "kind"),
    [
        ("http", 403, "", ProxyRefused, "proxy_refused"),
        ("http", 407, "", ProxyError, "proxy_error"),
        ("http", 429, "", ProxyError, "proxy_error"),
        ("http", 502, "", ConnectError, "connect"),
        ("http", 0, "late", Disconnected, "disconnected"),
        ("socks5h", 0, "early", ProxyError, "proxy_error"),
        ("socks5h", 0, "late", Disconnected, "disconnected"),
        ("socks5h", 1, "", ConnectError, "connect"),
        ("socks5h", 2, "", ProxyRefused, "proxy_refused"),
        ("socks5h", 4, "", ConnectError, "connect"),
        ("socks5h", 7, "", ProxyError, "proxy_error"),
        ("socks5h", 99, "", ConnectError, "connect"),
    ],
)
async def test_what_a_proxy_answers_is_told_from_what_is_wrong_with_it(
    scheme: str, answer: int, ends: str, error_class: type[FetchError], kind: str
) -> None:
    log: list[str] = []
    async with WebProxy() as proxy, fetcher(proxy.url(scheme), log=log) as fetching:
        proxy.answer, proxy.ends = answer, ends
        with pytest.raises(error_class) as caught:
            await fetching.fetch("https://a.test/")
        assert (caught.value.kind, caught.value.url) == (kind, "https://a.test/")
        assert caught.value.is_unanswered == (error_class in (ConnectError, Disconnected))
        assert len(log) == (error_class is ProxyError)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_wrong_password_is_the_proxys_error_and_not_told(scheme: str) -> None:
    log: list[str] = []
    async with (
        Talker({"/": html()}) as talker,
        WebProxy(user="me", password="right") as proxy,
        fetcher(proxy.url(scheme).replace("right", "hunter2"), log=log) as fetching,
    ):
        with pytest.raises(ProxyError, match="user and") as caught:
            await fetching.fetch(f"{talker.origin}/")
        assert talker.requests == []
        assert "hunter2" not in str(caught.value) + "".join(log)


async def test_a_host_that_answers_407_is_not_believed_to_speak_for_the_proxy() -> None:
    answers = {"/": html(), "/407": html(status=407)}
    async with Talker(answers) as talker, WebProxy() as proxy, fetcher(proxy.url()) as fetching:
        assert (await fetching.fetch(f"{talker.origin}/")).status == 200
        assert (await fetching.fetch(f"{talker.origin}/407")).status == 407


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_proxy_that_is_down_rests_longer_each_time_and_is_told_twice(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(web_proxies, "monotonic", lambda: clock[0])
    log: list[str] = []
    async with Talker({"/": html()}) as talker, WebProxy() as proxy, fetcher(proxy.url(scheme), log=log) as fetching:
        await proxy.close()
        waits = []
        for _ in range(8):
            with pytest.raises(ProxyError, match="it takes no connection"):
                await fetching.fetch(f"{talker.origin}/")
            with pytest.raises(ProxyError, match="no proxy works") as caught:
                await fetching.fetch(f"{talker.origin}/")
            waits.append(caught.value.wait_ms)
            clock[0] += caught.value.wait_ms / 1000
        assert waits == [1001, 2001, 4001, 8001, 16_001, 32_001, 60_001, 60_001]
        await proxy.open()
        assert (await fetching.fetch(f"{talker.origin}/")).status == 200
    assert len(log) == 2
    assert log[0].startswith(f"proxy {scheme}://127.0.0.1:{proxy.port} does not work (it takes no connection: ")
    assert log[1] == f"proxy {scheme}://127.0.0.1:{proxy.port} works again"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_proxy_that_hangs_ends_within_the_time_limits(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # taken by the kernel, and never answered
        gate = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        async with fetcher(gate, connect_timeout_ms=300, timeout_ms=600) as fetching, asyncio.timeout(20):
            with pytest.raises(FetchError) as caught:
                await fetching.fetch("https://192.0.2.1/")
            # With CONNECT it may as well be the host that hangs.
            assert caught.value.kind == ("timeout" if scheme == "http" else "proxy_error")


async def test_worker_without_a_proxy_fetches_nothing_of_a_crawl_that_goes_by_some() -> None:
    async with Talker({"/": html()}) as talker, fetcher() as fetching:
        assert (await fetching.fetch(f"{talker.origin}/")).status == 200
        fetching.apply(make_settings("proxied", {}, allow_private=True, proxied=True))
        with pytest.raises(ProxyError, match="has no proxy") as caught:
            await fetching.fetch(f"{talker.origin}/")
        assert caught.value.wait_ms > 0
        assert len(talker.requests) == 1


# -- crawls


@pytest.mark.parametrize("scheme", ["http", "socks5h"])
async def test_crawl_waits_for_proxies_that_are_down_and_blames_no_host(
    redis_server: RedisServer, crawl_name: str, tmp_path: Path, scheme: str
) -> None:
    output = tmp_path / "pages.jsonl"
    hosts = [f"h{n}.test" for n in range(6)]
    names = dict.fromkeys(hosts, "127.0.0.1")
    async with (
        Talker({"/": html("/1"), "/robots.txt": plain(""), "/1": html("/2"), "/2": html()}) as talker,
        WebProxy(names=names, user="me", password="hunter2") as one,
        WebProxy(names=names) as two,
    ):
        await one.close()
        await two.close()
        seeds = [f"http://{host}:{port_of(talker.origin)}/" for host in hosts]
        settings: dict[str, Any] = {"proxies": (one.url(scheme), two.url(scheme)), "obey_robots": True}
        # Who fails once is given up at once.
        settings |= {"host_give_up_ms": 0, "host_give_up_idle_ms": 0}
        async with crawling(redis_server.url, crawl_name, seeds, output=output, **settings) as run:
            await until(lambda: "\n".join(run.log).count("does not work") == 2, "both to be missed")
            await one.open()
            assert await run.word() == "ENDED"
            totals = await run.totals()
            await run.check()
            stored = repr(await snapshot(run.frontier))
        assert totals["page.done"] == 3 * len(hosts)
        assert not {"page.dead", "robots.dead", "page.unanswered", "robots.unanswered"} & set(totals)
        assert totals["robots.waited"] == totals["robots.waited.proxy_error"] >= len(hosts)
        assert {asked.host for asked in one.asked} == set(hosts)
        assert two.connections == 0
    assert len(records_of(output)) == 3 * len(hosts)
    assert "hunter2" not in stored + output.read_text() + "\n".join(run.log)
