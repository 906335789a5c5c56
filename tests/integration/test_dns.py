"""The resolver against a name server of our own: what it keeps, for how long, and what it never hands out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiodns
import pytest

from streamcrawl.errors import BlockedAddress, ConnectError, DnsError
from streamcrawl.rules.addresses import Inside
from streamcrawl.settings import make_settings
from streamcrawl.web import dns
from streamcrawl.web.address_guard import AddressGuard
from streamcrawl.web.dns import Resolver
from streamcrawl.web.fetcher import Fetcher
from tests.dns_server import AAAA, SERVFAIL, DnsServer, Records, records
from tests.integration.drive import Talker, html

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

PUBLIC, PUBLIC_6 = "1.1.1.1", "2606:4700::1111"
INSIDE = Inside.of_seeds(["127.0.0.1"], {})


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with DnsServer() as running:
        yield running


def guard(inside: Inside | None = None, **values: Any) -> AddressGuard:
    return AddressGuard(make_settings("dns", {}, **values), inside or Inside())


@asynccontextmanager
async def resolving(server: DnsServer, inside: Inside | None = None, **values: Any) -> AsyncIterator[Resolver]:
    resolver = Resolver(guard(inside, **values), [server.address])
    yield resolver
    await resolver.close()


async def addresses(resolver: Resolver, name: str, family: int = socket.AF_UNSPEC) -> list[str]:
    return [row["host"] for row in await resolver.resolve(name, 80, socket.AddressFamily(family))]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the resolver believes to have passed."""
    passed = [0.0]
    monkeypatch.setattr(dns, "monotonic", lambda: passed[0])
    return passed


# -- what is asked, and kept


async def test_both_families_are_asked_for_at_once_and_handed_out_together(server: DnsServer) -> None:
    server.names["a.test"] = [records(PUBLIC, PUBLIC_6)]
    async with resolving(server) as resolver:
        assert sorted(await addresses(resolver, "a.test")) == [PUBLIC, PUBLIC_6]
        assert await addresses(resolver, "A.test.", socket.AF_INET) == [PUBLIC]
        assert await addresses(resolver, "a.test", socket.AF_INET6) == [PUBLIC_6]
    assert (server.asked_for("a.test"), server.asked_for("a.test", AAAA)) == (1, 1)


@pytest.mark.parametrize(
    ("ttl_s", "kept_s"),
    [(0, dns.TTL_MIN_S), (1, dns.TTL_MIN_S), (100, 100), (10**6, dns.TTL_MAX_S)],
)
async def test_an_answer_is_kept_for_its_time_within_bounds(
    server: DnsServer, clock: list[float], ttl_s: int, kept_s: int
) -> None:
    server.names["a.test"] = [records(PUBLIC, ttl_s=ttl_s)]
    async with resolving(server) as resolver:
        await addresses(resolver, "a.test")
        found = resolver._kept["a.test"]
        assert found.until == clock[0] + kept_s


async def test_an_answer_whose_time_has_passed_is_asked_for_again(server: DnsServer, clock: list[float]) -> None:
    server.names["a.test"] = [records(PUBLIC, ttl_s=0), records("8.8.8.8", ttl_s=0)]
    async with resolving(server) as resolver:
        assert await addresses(resolver, "a.test") == [PUBLIC]
        clock[0] += dns.TTL_MIN_S - 1
        assert await addresses(resolver, "a.test") == [PUBLIC]
        clock[0] += 1
        assert await addresses(resolver, "a.test") == ["8.8.8.8"]


async def test_many_who_wait_for_a_name_ask_once_and_one_who_leaves_takes_nobody_along(server: DnsServer) -> None:
    server.names["a.test"] = [records(PUBLIC)]
    async with resolving(server) as resolver:
        waiting = [asyncio.create_task(resolver.resolve("a.test", 80)) for _ in range(50)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert all(isinstance(rows, list) and rows[0]["host"] == PUBLIC for rows in done[1:])
    assert server.asked_for("a.test") == 1


@pytest.mark.parametrize(
    ("answer", "kept_s"),
    [
        (Records(code=3), dns.MISSING_TTL_S),
        (Records(), dns.MISSING_TTL_S),
        (Records(code=SERVFAIL), dns.FAILED_TTL_S),
    ],
    ids=["no such name", "no address", "server fails"],
)
async def test_what_is_missing_is_kept_for_a_shorter_time(
    server: DnsServer, clock: list[float], answer: Records, kept_s: int
) -> None:
    server.names["a.test"] = [answer]
    async with resolving(server) as resolver:
        for _ in range(3):
            with pytest.raises(OSError, match=r"\w"):
                await addresses(resolver, "a.test")
        assert resolver._kept["a.test"].until == clock[0] + kept_s
        asked = server.asked_for("a.test")
        clock[0] += kept_s
        server.names["a.test"] = [records(PUBLIC)]
        if answer.code == SERVFAIL:
            assert await addresses(resolver, "a.test") == [PUBLIC]
        assert asked <= dns.TRIES


async def test_a_name_server_that_is_silent_is_given_up_in_time(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "LOOKUP_TIMEOUT_S", 0.2)
    server.names["a.test"] = [Records(is_silent=True)]
    async with resolving(server) as resolver:
        with pytest.raises(OSError, match="no name server answered within"):
            await addresses(resolver, "a.test")


async def test_what_is_kept_is_bounded(server: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "NAMES_KEPT_MAX", 2)
    async with resolving(server) as resolver:
        for name in ("a.test", "b.test", "a.test", "c.test"):
            server.names[name] = [records(PUBLIC)]
            await addresses(resolver, name)
        assert list(resolver._kept) == ["a.test", "c.test"]
        server.names["d.test"] = [records(*(f"1.1.1.{n}" for n in range(1, 25)))]
        assert len(await addresses(resolver, "d.test")) == dns.ADDRESSES_MAX


@pytest.mark.parametrize("name", ["a" * 64 + ".test", "a..test", "-", "*.test"])
async def test_what_cannot_be_a_name_is_an_error_of_the_lookup(server: DnsServer, name: str) -> None:
    async with resolving(server) as resolver:
        with pytest.raises(OSError, match=r"\w"):
            await addresses(resolver, name)


async def test_a_lookup_under_way_ends_with_the_resolver(server: DnsServer) -> None:
    server.names["a.test"] = [Records(is_silent=True)]
    async with resolving(server) as resolver:
        waiting = asyncio.create_task(resolver.resolve("a.test", 80))
        while not server.asked:  # noqa: ASYNC110 - the server of the test is what is waited for
            await asyncio.sleep(0.005)
    with pytest.raises((asyncio.CancelledError, OSError)):
        await waiting


async def test_forgotten_names_are_looked_up_anew(server: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "RENEW_S", 0.0)
    server.names["a.test"] = [records(PUBLIC, ttl_s=300), records("8.8.8.8", ttl_s=300)]
    async with resolving(server) as resolver:
        assert await addresses(resolver, "a.test") == [PUBLIC]
        resolver.forget("none.test")
        assert await addresses(resolver, "a.test") == [PUBLIC]
        resolver.forget("A.test.")
        assert await addresses(resolver, "a.test") == ["8.8.8.8"]


async def test_the_operating_system_is_asked_where_c_ares_cannot_start(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(aiodns, "DNSResolver", out_of_descriptors)
    async with resolving(server, INSIDE) as resolver:
        assert await addresses(resolver, "0x7f.1") == ["127.0.0.1"]  # a spelling that getaddrinfo knows by itself
        with pytest.raises(OSError, match=r"\w"):
            await addresses(resolver, "a" * 64 + ".test")
    assert server.asked == []


# -- what is handed out


async def test_localhost_is_never_asked_of_a_name_server(server: DnsServer) -> None:
    server.names["localhost"] = server.names["a.localhost"] = [records(PUBLIC)]
    async with resolving(server, INSIDE) as resolver:
        assert await addresses(resolver, "localhost") == ["127.0.0.1", "::1"]
        assert await addresses(resolver, "a.localhost.") == ["127.0.0.1", "::1"]
    assert server.asked == []
    async with resolving(server) as resolver:
        with pytest.raises(BlockedAddress, match=r"localhost is at 127\.0\.0\.1: a loopback address"):
            await addresses(resolver, "localhost")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "fe80::1"]
)
async def test_an_address_inside_is_refused_and_left_out_beside_others(server: DnsServer, address: str) -> None:
    server.names["a.test"] = [records(address)]
    server.names["b.test"] = [records(address, PUBLIC)]
    async with resolving(server) as resolver:
        with pytest.raises(BlockedAddress, match=r"a\.test is at .* which this crawl does not connect to"):
            await addresses(resolver, "a.test")
        assert await addresses(resolver, "b.test") == [PUBLIC]


async def test_a_name_that_turns_inward_is_refused(server: DnsServer, clock: list[float]) -> None:
    server.names["a.test"] = [records(PUBLIC, ttl_s=0), records("127.0.0.1", ttl_s=0)]
    async with resolving(server) as resolver:
        assert await addresses(resolver, "a.test") == [PUBLIC]
        clock[0] += dns.TTL_MIN_S
        with pytest.raises(BlockedAddress):
            await addresses(resolver, "a.test")


async def test_leave_to_go_inside_holds_for_what_is_kept_too_and_never_for_metadata(server: DnsServer) -> None:
    server.names["a.test"] = [records("10.0.0.1")]
    server.names["m.test"] = [records("169.254.169.254")]
    rule = guard(allow_private=True)
    resolver = Resolver(rule, [server.address])
    try:
        assert await addresses(resolver, "a.test") == ["10.0.0.1"]
        with pytest.raises(BlockedAddress, match="a metadata address"):
            await addresses(resolver, "m.test")
        rule.apply(make_settings("dns", {}))
        with pytest.raises(BlockedAddress, match="--allow-private would"):
            await addresses(resolver, "a.test")
    finally:
        await resolver.close()


# -- with connections


def fetcher(server: DnsServer, inside: Inside = INSIDE, **values: Any) -> Fetcher:
    settings = make_settings("dns", {}, nameservers=(server.address,), connect_timeout_ms=2000, **values)
    return Fetcher(settings, inside=inside)


@pytest.mark.parametrize("order", [("::1", "127.0.0.1"), ("127.0.0.1", "::1")])
async def test_a_host_that_answers_at_one_family_only_is_reached(server: DnsServer, order: Sequence[str]) -> None:
    server.names["a.test"] = [records(*order)]
    async with Talker({"/": html()}) as talker, fetcher(server) as fetching:  # it listens at 127.0.0.1 alone
        url = talker.origin.replace("127.0.0.1", "a.test") + "/"
        assert (await fetching.fetch(url)).status == 200


async def test_a_host_that_moved_is_found_at_the_next_try(server: DnsServer) -> None:
    server.names["a.test"] = [records("127.0.0.2", ttl_s=0), records("127.0.0.1", ttl_s=0)]
    async with Talker({"/": html()}) as talker, fetcher(server) as fetching:
        url = talker.origin.replace("127.0.0.1", "a.test") + "/"
        with pytest.raises(ConnectError):
            await fetching.fetch(url)
        assert (await fetching.fetch(url)).status == 200
    assert server.asked_for("a.test") == 2


async def test_a_fetch_goes_to_the_addresses_that_were_judged(server: DnsServer) -> None:
    """One lookup for one connection: a second could say something else."""
    server.names["a.test"] = [records("127.0.0.1", ttl_s=0), records("10.0.0.1", ttl_s=0)]
    async with Talker({"/": html()}) as talker, fetcher(server) as fetching:
        url = talker.origin.replace("127.0.0.1", "a.test") + "/"
        assert (await fetching.fetch(url)).status == 200
        assert server.asked_for("a.test") == 1
        assert fetching._resolver is not None
        fetching._resolver.forget("a.test")
        # The connection that is kept goes to the place that was judged; a new one asks again, and is refused.
        assert (await fetching.fetch(url)).status == 200
        with pytest.raises(BlockedAddress, match=r"10\.0\.0\.1: a private address") as caught:
            await fetching.fetch(url.replace("a.test:", "a.test.:"))
        assert caught.value.url.startswith("http://a.test.:")
        assert len(talker.requests) == 2


async def test_a_name_that_does_not_exist_is_a_dns_error_that_says_so(server: DnsServer) -> None:
    async with fetcher(server) as fetching:
        with pytest.raises(DnsError, match=r"cannot resolve none\.test:80: Domain name not found"):
            await fetching.fetch("http://none.test/")
